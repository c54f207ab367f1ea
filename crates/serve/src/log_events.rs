//! Log events of workers. A worker writes no log: it posts an event without waiting, and the control
//! plane writes it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use engine::sys::process::now_ns;
use tracing::warn;

use crate::allowed_host::AllowedHost;
use crate::auth::Cause;
use crate::origin::Origin;

/// Events that may wait to be written; further ones are only counted.
const EVENTS_MAX: usize = 1024;
/// Distinct events written at a time.
const WRITTEN_MAX: usize = 10;
/// Shortest time between two lines about refusals of one cause.
const CAUSE_INTERVAL: Duration = Duration::from_secs(10);

/// An event that a worker reports, with text of the client as [`admin::log::shown`] makes it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogEvent {
    /// A web page of this origin was refused.
    OriginRefused(Box<str>),
    /// A request on loopback had this Host, which is not this machine's.
    HostRefused(Box<str>),
    /// A request had this Host, which is no allowed name.
    HostNotAllowed(Box<str>),
    /// A token or a subscription was refused. The text is the name or the identifier, where it is no
    /// secret, or empty.
    AccessRefused(Cause, Box<str>),
    /// A client requested what a part of the server does that is off.
    RequestedOff(Part),
}

/// A part of the server that a flag turns on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    History,
    Presence,
}

impl Part {
    pub(crate) const ALL: [Part; 2] = [Part::History, Part::Presence];
}

/// The workers' end of the queue. Posting makes no system call on a descriptor.
#[derive(Clone)]
pub(crate) struct LogSender(SyncSender<LogEvent>);

/// The control plane's end of the queue.
pub(crate) struct LogReceiver {
    events: Receiver<LogEvent>,
    access: [CauseLog; Cause::ALL.len()],
}

/// Refusals of one cause that are not written yet.
#[derive(Default)]
struct CauseLog {
    times: u64,
    last: Box<str>,
    /// No further line before this.
    next_ns: u64,
}

pub(crate) fn channel() -> (LogSender, LogReceiver) {
    let (sender, receiver) = sync_channel(EVENTS_MAX);
    (LogSender(sender), LogReceiver { events: receiver, access: Default::default() })
}

impl LogSender {
    /// Posts an event unless the queue is full: counters have counted it anyway.
    pub(crate) fn post(&self, record: LogEvent) {
        let _ = self.0.try_send(record);
    }
}

impl LogReceiver {
    /// Writes the events since the last call, equal ones once with their number; about refused access
    /// at most one line per cause in [`CAUSE_INTERVAL`].
    pub(crate) fn write(&mut self) {
        let mut counted = BTreeMap::new();
        for record in self.events.try_iter().take(EVENTS_MAX) {
            match record {
                LogEvent::AccessRefused(cause, what) => {
                    if let Some(log) = self.access.get_mut(cause as usize) {
                        (log.times, log.last) = (log.times + 1, what);
                    }
                }
                record => *counted.entry(record).or_insert(0u64) += 1,
            }
        }
        let different = counted.len();
        for (record, times) in counted.into_iter().take(WRITTEN_MAX) {
            warn!(times, "{}", text(&record));
        }
        if different > WRITTEN_MAX {
            warn!("and {} other origins or hosts", different - WRITTEN_MAX);
        }
        self.write_access(now_ns());
    }

    fn write_access(&mut self, now_ns: u64) {
        for (cause, log) in Cause::ALL.into_iter().zip(&mut self.access) {
            if log.times == 0 || now_ns < log.next_ns {
                continue;
            }
            warn!(times = log.times, cause = cause.name(), "{}", access(cause, &log.last));
            log.times = 0;
            log.next_ns = now_ns.saturating_add(CAUSE_INTERVAL.as_nanos() as u64);
        }
    }
}

/// What was refused, and the flag that admits it if there is one that accepts the value.
fn text(event: &LogEvent) -> String {
    match event {
        LogEvent::OriginRefused(origin) if matches!(origin.parse(), Ok(Origin::Exact(_))) => {
            format!("origin refused: {origin}; to allow it, add --allow-origin {origin}")
        }
        LogEvent::OriginRefused(origin) if **origin == *"null" => {
            "origin refused: null, which sandboxed pages and local files have; serve the page over \
             http or https"
                .to_owned()
        }
        LogEvent::OriginRefused(origin) => format!("origin refused: {origin} is no web origin"),
        LogEvent::HostNotAllowed(host) => {
            let refused = format!("host refused: {host} is not an allowed name");
            let name = host.rsplit_once(':').map_or(&**host, |(name, _)| name);
            match name.parse::<AllowedHost>() {
                Ok(_) => format!("{refused}; to allow it, add --allow-host {name}"),
                Err(_) => refused,
            }
        }
        LogEvent::HostRefused(host) => {
            let refused = format!("host refused: {host} is not this machine");
            let origin = format!("https://{host}");
            match origin.parse::<Origin>() {
                Ok(_) => format!("{refused}; behind a proxy, add --allow-origin {origin}"),
                Err(_) => refused,
            }
        }
        LogEvent::AccessRefused(cause, what) => access(*cause, what),
        LogEvent::RequestedOff(Part::History) => {
            "history rejected: missed messages are not kept; to keep them, add --history memory, or with several nodes \
             --history redis or nats"
                .to_owned()
        }
        LogEvent::RequestedOff(Part::Presence) => {
            "presence rejected: it is off; to turn it on, add --presence memory, or with several nodes --presence redis or \
             nats".to_owned()
        }
    }
}

/// Why a token or a subscription was refused, and what to do.
fn access(cause: Cause, what: &str) -> String {
    let text = match cause {
        Cause::TokenMissing => {
            "token rejected: there is none; clients send it in ?jid=, or drop --enforce-jwt"
        }
        Cause::TokenTooLong => "token rejected: it is too long",
        Cause::TokenMalformed => "token rejected: it is not a JWT of a supported algorithm",
        Cause::TokenKey => "token rejected: no key for its algorithm and key id; see --jwt-keys",
        Cause::TokenSignature => {
            "token rejected: wrong signature; does the application sign with the same --secret or \
             --jwt-secret?"
        }
        Cause::TokenEarly => "token rejected: not valid yet (nbf); compare the clocks",
        Cause::TokenExpired => "token rejected: expired (exp); the application issues a new one",
        Cause::TokenIdentifiers => "token rejected: claim ext is missing or no identifiers",
        Cause::StreamMalformed => "subscription rejected: the signed stream name is malformed",
        Cause::StreamSignature => {
            "subscription rejected: wrong signature of the stream name; does the application sign \
             with the same --secret or --streams-secret?"
        }
        Cause::StreamExpired => "subscription rejected: the signed stream name has expired",
        Cause::StreamPurpose => {
            "subscription rejected: the stream name was signed for another purpose"
        }
        Cause::StreamName => "subscription rejected: invalid stream name",
        Cause::StreamOff => {
            "subscription rejected: no secret for signed stream names; set --secret or \
             --streams-secret"
        }
        Cause::StreamPublic => {
            "subscription rejected: the stream name is not signed; to allow it, add --public-streams"
        }
        Cause::Channel => {
            "subscription rejected: a channel of the application, which has refused it or is not \
             called; to call it, set --rpc-host, or use signed streams, or $pubsub with \
             --public-streams"
        }
        Cause::Application => "connection refused by the application",
        Cause::PollIdentity => "long polling refused: the session is of another identity",
        Cause::Publish => "message refused: the application does not let the client publish",
        Cause::Identifier => "subscription rejected: the identifier names no channel",
        Cause::Subscriptions => {
            "subscription rejected: limit of the connection reached; see --max-subscriptions"
        }
        Cause::SubscriptionBytes => {
            "subscription rejected: limit of the connection reached; see --max-subscription-bytes"
        }
    };
    match what {
        "" => text.to_owned(),
        what => format!("{text}; last: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_never_a_value_that_would_be_refused() {
        let origin = |text: &str| LogEvent::OriginRefused(text.into());
        let host = |text: &str| LogEvent::HostRefused(text.into());
        let name = |text: &str| LogEvent::HostNotAllowed(text.into());
        for (event, hint) in [
            (origin("https://a.example"), Some("--allow-origin https://a.example")),
            (origin("null"), None),
            (origin("*"), None),
            (origin("https://*.a.example"), None),
            (origin("https://a b"), None),
            (host("a.example:8443"), Some("--allow-origin https://a.example:8443")),
            (host(""), None),
            (host("a b"), None),
            (name("a.example:8443"), Some("--allow-host a.example")),
            (name("a b"), None),
        ] {
            let text = text(&event);
            match hint {
                Some(hint) => assert!(text.ends_with(hint), "{text}"),
                None => assert!(!text.contains("--allow"), "{text}"),
            }
        }
    }

    #[test]
    fn refusals_of_one_cause_are_one_line_in_ten_seconds() {
        let (sender, mut receiver) = channel();
        for _ in 0..3 {
            sender.post(LogEvent::AccessRefused(Cause::Channel, "Chat".into()));
        }
        receiver.write();
        let log = &receiver.access[Cause::Channel as usize];
        assert!(log.times == 0 && log.next_ns > 0, "the first is written at once");
        let next_ns = log.next_ns;
        sender.post(LogEvent::AccessRefused(Cause::Channel, "Chat".into()));
        receiver.write();
        assert_eq!(receiver.access[Cause::Channel as usize].times, 1, "the next one waits");
        receiver.write_access(next_ns);
        assert_eq!(receiver.access[Cause::Channel as usize].times, 0);
    }
}
