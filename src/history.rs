//! The flags of the history, and of sessions that can be resumed.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serve::{HistoryConfig, HistoryPlace};

use crate::{brokers, pubsub, units};

/// That of the other flags of sessions: what they need is listed together.
const HEADING: &str = "Channels";

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "history_flags")]
pub(crate) struct Flags {
    /// Keep recent messages of topics, so that clients get what they missed: off, memory, or redis or nats
    /// for all nodes
    #[arg(long, value_name = "WHERE", default_value = "off", help_heading = HEADING)]
    history: Place,
    /// Maximum messages kept of one topic
    #[arg(long, value_name = "N", default_value = "100", value_parser = units::positive_count,
        help_heading = HEADING)]
    history_limit: u64,
    /// How long messages are kept
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    history_ttl: Duration,
    /// Maximum memory of one topic's messages
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = units::size,
        help_heading = HEADING)]
    history_topic_bytes: u64,
    /// Maximum memory of all topics' messages
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::size,
        help_heading = HEADING)]
    history_bytes: u64,
    /// How long clients of AnyCable's extended protocol can resume a session after a disconnect
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    sessions_ttl: Duration,
    /// Maximum memory of sessions that can be resumed
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = units::size,
        help_heading = HEADING)]
    sessions_bytes: u64,
}

/// Where messages are kept.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Place {
    /// Nowhere
    Off,
    /// In this process: a restart loses them
    Memory,
    /// In the Redis of --pubsub: all nodes have the same
    Redis,
    /// In a stream of the NATS of --pubsub: all nodes have the same
    Nats,
}

impl Flags {
    /// The history, if there is one.
    ///
    /// # Errors
    /// It is at a broker that the nodes do not use, or some messages would not reach it.
    pub(crate) fn config(
        &self,
        pubsub: &pubsub::Flags,
        brokers: &brokers::Flags,
    ) -> Result<Option<HistoryConfig>> {
        let size = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let place = match self.history {
            Place::Off => return Ok(None),
            Place::Memory => HistoryPlace::Memory,
            Place::Redis => at_broker("redis", pubsub, brokers)?,
            Place::Nats => at_broker("nats", pubsub, brokers)?,
        };
        Ok(Some(HistoryConfig {
            place,
            messages: size(self.history_limit),
            age: self.history_ttl,
            topic_bytes: size(self.history_topic_bytes),
            bytes: size(self.history_bytes),
            sessions_age: self.sessions_ttl,
            sessions_bytes: size(self.sessions_bytes),
        }))
    }
}

fn at_broker(name: &str, pubsub: &pubsub::Flags, brokers: &brokers::Flags) -> Result<HistoryPlace> {
    if pubsub.broker() != name {
        bail!("--history {name} needs --pubsub {name}: the broker keeps what the nodes exchange");
    }
    if let Some(adapter) = brokers.received_by_all() {
        bail!(
            "--history {name} does not keep what comes by --broadcast-adapter {adapter}, which each node receives \
             by itself: publish by redisx or HTTP"
        );
    }
    Ok(HistoryPlace::Broker)
}
