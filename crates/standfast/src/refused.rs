//! [`Refused`]: why nobody gets a publication.

/// Why a publication was refused: nobody gets it, and the publisher may try again later.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// A worker's mailbox was full, or a worker has too much pending.
    MailboxFull,
    /// Its topic has more pending than can be delivered soon; others are not affected.
    TopicOverloaded,
    /// With a broker: 8 MiB wait to be sent to it.
    BrokerFull,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::MailboxFull => topics::Refused::MailboxFull.fmt(f),
            Refused::TopicOverloaded => topics::Refused::TopicOverloaded.fmt(f),
            Refused::BrokerFull => f.write_str("too much waits for the broker; try again later"),
        }
    }
}

impl std::error::Error for Refused {}

impl From<topics::Refused> for Refused {
    fn from(refused: topics::Refused) -> Self {
        match refused {
            topics::Refused::MailboxFull => Refused::MailboxFull,
            topics::Refused::TopicOverloaded => Refused::TopicOverloaded,
        }
    }
}
