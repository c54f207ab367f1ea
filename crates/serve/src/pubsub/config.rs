//! Settings of what crosses nodes.

use std::time::Duration;

use brokers::Fault;
use brokers::nats::NatsTransport;
use brokers::redis::{ClusterTransport, RedisTransport};

/// Settings of publications between nodes.
#[derive(Clone, Debug)]
pub struct PubsubConfig {
    /// The brokers.
    pub transport: PubsubTransport,
    /// Precedes the names of channels.
    pub prefix: String,
    /// The name of this node for others.
    pub node_name: String,
    /// How long a topic stays subscribed after its last subscriber has left.
    pub linger: Duration,
    /// Time for the broker to confirm a subscription or to take a publication.
    pub timeout: Duration,
    /// Bytes of publications that wait while there is no connection; 0 to refuse them.
    pub spool_bytes: usize,
}

/// How brokers are reached.
#[derive(Clone, Debug)]
pub enum PubsubTransport {
    /// Redis servers, each with the topics of a share of all hashes.
    Redis(Vec<RedisTransport>),
    /// A Redis Cluster in parts, one at first.
    RedisCluster(Vec<ClusterTransport>),
    /// The servers of one NATS.
    Nats(NatsTransport),
}

impl PubsubTransport {
    /// Divides a Redis Cluster into a part for each of its masters. Waits until one of its nodes answers, up to 5 s for each.
    ///
    /// # Errors
    /// It cannot be used, whatever comes later.
    pub fn discover(&mut self) -> Result<(), Fault> {
        if let PubsubTransport::RedisCluster(parts) = self
            && let Some(whole) = parts.first()
        {
            *parts = whole.discover()?;
        }
        Ok(())
    }
}
