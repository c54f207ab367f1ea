//! [`Pubsub`]: what workers and the connections of one node share, as `brokers::Broker` has it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brokers::interest::Interest;
use brokers::{Channel, shard_of};

use super::scenario::Scenario;

pub(crate) const PREFIX: &str = "p:t:";
pub(crate) const CONTROL: &str = "p:nodes";

/// A publication that waits to be sent.
pub(crate) struct Queued {
    pub(crate) channel: Channel,
    pub(crate) data: Vec<u8>,
}

/// What is shared of one connection.
pub(crate) struct Inner {
    pub(crate) interest: Interest,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) queue_bytes: usize,
    pub(crate) is_up: bool,
}

#[derive(Clone)]
pub(crate) struct Pubsub(Arc<Shared>);

struct Shared {
    shards: Vec<Mutex<Inner>>,
    queue_bytes_max: usize,
    spool_bytes: usize,
    now_ns: AtomicU64,
    dead: AtomicBool,
}

impl Pubsub {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let inner = || Inner {
            interest: Interest::new(scenario.linger_ns),
            queue: VecDeque::new(),
            queue_bytes: 0,
            is_up: false,
        };
        let pubsub = Pubsub(Arc::new(Shared {
            shards: (0..scenario.shards).map(|_| Mutex::new(inner())).collect(),
            queue_bytes_max: scenario.queue_bytes,
            spool_bytes: scenario.spool_bytes,
            now_ns: AtomicU64::new(0),
            dead: AtomicBool::new(false),
        }));
        let control: Channel = CONTROL.into();
        pubsub.of(&control).interest.want(&control);
        pubsub
    }

    pub(crate) fn shard(&self, at: usize) -> MutexGuard<'_, Inner> {
        self.0.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shards(&self) -> usize {
        self.0.shards.len()
    }

    fn of(&self, channel: &str) -> MutexGuard<'_, Inner> {
        self.shard(shard_of(channel, self.0.shards.len()))
    }

    /// Whether the control channel is on this shard.
    pub(crate) fn has_control(&self, at: usize) -> bool {
        shard_of(CONTROL, self.0.shards.len()) == at
    }

    pub(crate) fn set_now(&self, now_ns: u64) {
        self.0.now_ns.store(now_ns, Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns.load(Ordering::Relaxed)
    }

    /// The process has ended.
    pub(crate) fn kill(&self) {
        self.0.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.0.dead.load(Ordering::Relaxed)
    }

    /// A topic has its first subscriber, or has lost its last one.
    pub(crate) fn observe(&self, topic: &str, there: bool) {
        let channel = channel(topic);
        let mut inner = self.of(&channel);
        if there {
            inner.interest.want(&channel);
        } else {
            inner.interest.release(self.now_ns(), &channel);
        }
    }

    /// As `Broker::prepare`.
    pub(crate) fn prepare(&self, topic: &str) -> bool {
        let channel = channel(topic);
        let mut inner = self.of(&channel);
        inner.interest.touch(self.now_ns(), &channel);
        inner.interest.confirmed_or_await(&channel)
    }

    /// As `Broker::publish`. False if it is refused.
    pub(crate) fn publish(&self, topic: &str, data: Vec<u8>) -> bool {
        let channel = channel(topic);
        let mut inner = self.of(&channel);
        let after = inner.queue_bytes + data.len();
        let refused = match inner.is_up {
            false => after > self.0.spool_bytes,
            true => {
                after > self.0.queue_bytes_max.max(self.0.spool_bytes) && !inner.queue.is_empty()
            }
        };
        if refused || self.is_dead() {
            return false;
        }
        inner.queue.push_back(Queued { channel, data });
        inner.queue_bytes = after;
        true
    }
}

pub(crate) fn channel(topic: &str) -> Channel {
    format!("{PREFIX}{topic}").into()
}

/// The topic of a channel; `None` for the control channel.
pub(crate) fn topic_of(channel: &str) -> Option<u32> {
    channel.strip_prefix(PREFIX)?.parse().ok()
}
