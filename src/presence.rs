//! The flags of presence.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serve::PresenceConfig;

use crate::{pubsub, units};

/// That of the other flags of sessions.
const HEADING: &str = "Channels";

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "presence_flags")]
pub(crate) struct Flags {
    /// Let clients of AnyCable's extended protocol and applications say who is present: off, memory, or redis or nats
    /// for all nodes
    #[arg(long, value_name = "WHERE", default_value = "off", help_heading = HEADING)]
    presence: Place,
    /// How long a member stays after its last connection was lost, or its node has ended
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    presence_ttl: Duration,
    /// Time in which joins and leaves of a topic are collected
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = units::positive_duration,
        help_heading = HEADING)]
    presence_window: Duration,
    /// Maximum memory of all topics' members
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = units::size,
        help_heading = HEADING)]
    presence_bytes: u64,
}

/// Where members are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Place {
    /// Nowhere
    Off,
    /// In this process: a restart loses them
    Memory,
    /// In the Redis of --pubsub, by all nodes
    Redis,
    /// In a stream of the NATS of --pubsub, by all nodes
    Nats,
}

impl Flags {
    /// The settings, if presence is on.
    ///
    /// # Errors
    /// A broker that does not connect the nodes.
    pub(crate) fn config(&self, pubsub: &pubsub::Flags) -> Result<Option<PresenceConfig>> {
        let shared = match self.presence {
            Place::Off | Place::Memory => None,
            Place::Redis => Some("redis"),
            Place::Nats => Some("nats"),
        };
        if let Some(name) = shared.filter(|name| pubsub.broker() != *name) {
            bail!("--presence {name} needs --pubsub {name}: the broker keeps who is present");
        }
        Ok(match self.presence {
            Place::Off => None,
            Place::Memory | Place::Redis | Place::Nats => Some(PresenceConfig {
                ttl: self.presence_ttl,
                window: self.presence_window,
                bytes: usize::try_from(self.presence_bytes).unwrap_or(usize::MAX),
                shared: shared.is_some(),
            }),
        })
    }
}
