//! [`Confirmation`]: which brokers confirm a topic before a client is subscribed to it, so that a client misses
//! nothing that is published from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brokers::adapters::Streams;

use crate::pubsub::Pubsub;

/// Time for Redis to confirm a stream of Rails. Clients of Rails repeat what was not confirmed.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// The brokers of a process that confirm topics; at least one.
pub(crate) struct Confirmation {
    pubsub: Option<Arc<Pubsub>>,
    streams: Vec<Arc<Streams>>,
    /// Subscriptions refused because a stream of Rails was not confirmed in time.
    unconfirmed: AtomicU64,
}

impl Confirmation {
    pub(crate) fn new(
        pubsub: Option<Arc<Pubsub>>,
        streams: Vec<Arc<Streams>>,
    ) -> Option<Arc<Self>> {
        let any = pubsub.is_some() || !streams.is_empty();
        any.then(|| Arc::new(Confirmation { pubsub, streams, unconfirmed: AtomicU64::new(0) }))
    }

    /// Whether all have confirmed a topic. Workers are told when those that have not do.
    pub(crate) fn prepare(&self, topic: &str) -> bool {
        // All are asked, so that none is waited for after another.
        let pubsub = self.pubsub.as_ref().is_none_or(|pubsub| pubsub.broker.prepare(topic));
        self.streams.iter().fold(pubsub, |all, streams| streams.prepare(topic) && all)
    }

    /// Time for them to confirm.
    pub(crate) fn timeout(&self) -> Duration {
        self.pubsub.as_ref().map_or(STREAM_TIMEOUT, |pubsub| pubsub.timeout)
    }

    /// Counts what was refused because they did not in time.
    pub(crate) fn count_unconfirmed(&self) {
        let pubsub = self.pubsub.as_ref().map(|pubsub| &pubsub.unconfirmed);
        pubsub.unwrap_or(&self.unconfirmed).fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted without pubsub.
    pub(crate) fn unconfirmed(&self) -> u64 {
        self.unconfirmed.load(Ordering::Relaxed)
    }
}
