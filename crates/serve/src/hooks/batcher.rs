//! [`Batcher`]: the events that wait for one receiver, which of them are sent together and when. It sends
//! nothing and has no clock.
//!
//! A receiver gets one batch at a time, in order. A batch that was not accepted is sent again, the same
//! bytes under the same number, after a pause that doubles. Events wait up to a number of bytes and an
//! age; then the oldest are dropped, and the next batch says how many.

use std::collections::VecDeque;
use std::sync::Arc;

/// Memory of an event that waits, beyond its text.
const EVENT_BYTES: usize = 64;
/// The pause before a batch is sent again, which doubles from the first to the second.
const PAUSE_NS: (u64, u64) = (500_000_000, 30_000_000_000);
/// The same while the server ends.
const DRAIN_PAUSE_NS: (u64, u64) = (100_000_000, 500_000_000);

/// The bounds of a receiver's events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    /// Events of a batch.
    pub(crate) events: usize,
    /// Bytes of the events of a batch; a longer event is a batch of its own.
    pub(crate) bytes: usize,
    /// How long an event waits for others.
    pub(crate) window_ns: u64,
    /// Memory of the events that wait or are being sent, in bytes.
    pub(crate) queue_bytes: usize,
    /// Age at which an event is dropped.
    pub(crate) age_ns: u64,
}

struct Waiting {
    text: Arc<str>,
    since_ns: u64,
}

impl Waiting {
    fn bytes(&self) -> usize {
        EVENT_BYTES + self.text.len()
    }
}

/// Events that are sent together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Counts the batches of the receiver, from 1.
    pub(crate) number: u64,
    pub(crate) events: Box<[Arc<str>]>,
    /// Events that were dropped since the batch before.
    pub(crate) dropped: u64,
}

/// The batch under way.
struct Current {
    batch: Arc<Batch>,
    bytes: usize,
    /// When the oldest of its events happened.
    since_ns: u64,
    /// Times that it was sent in vain.
    failed: u32,
    /// When it is to be sent; `None` while it is being sent.
    due_ns: Option<u64>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this. [`Batcher::delivered`] or [`Batcher::failed`] must follow.
    Send(Arc<Batch>),
    /// Nothing until an event is pushed, or until this time.
    Wait(Option<u64>),
}

/// What became of the events and batches of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatcherStats {
    /// Events of batches that were accepted.
    pub(crate) delivered: u64,
    pub(crate) batches: u64,
    /// Times that a batch was not accepted.
    pub(crate) failed: u64,
    /// Events dropped because too much waited.
    pub(crate) dropped_bytes: u64,
    /// Events dropped for their age.
    pub(crate) dropped_age: u64,
}

impl BatcherStats {
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped_bytes + self.dropped_age
    }
}

/// The events that wait for one receiver.
pub(crate) struct Batcher {
    limits: BatchLimits,
    waiting: VecDeque<Waiting>,
    /// Memory of what waits, the current batch included.
    bytes: usize,
    current: Option<Current>,
    batches: u64,
    /// Dropped events that no batch has told yet.
    untold: u64,
    stats: BatcherStats,
    /// The server ends: nothing waits for others.
    draining: bool,
}

impl Batcher {
    pub(crate) fn new(limits: BatchLimits) -> Self {
        Batcher {
            limits,
            waiting: VecDeque::new(),
            bytes: 0,
            current: None,
            batches: 0,
            untold: 0,
            stats: BatcherStats::default(),
            draining: false,
        }
    }

    /// Adds an event. The oldest are dropped if there is no room.
    pub(crate) fn push(&mut self, now_ns: u64, text: Arc<str>) {
        let event = Waiting { text, since_ns: now_ns };
        self.bytes += event.bytes();
        self.waiting.push_back(event);
        while self.bytes > self.limits.queue_bytes
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.bytes -= oldest.bytes();
            self.untold += 1;
            self.stats.dropped_bytes += 1;
        }
    }

    /// What is to be done now.
    pub(crate) fn next(&mut self, now_ns: u64) -> Next {
        self.expire(now_ns);
        let due_ns = self.due_ns();
        if due_ns.is_none_or(|due_ns| due_ns > now_ns) {
            return Next::Wait(due_ns);
        }
        if self.current.is_none() {
            self.begin_batch();
        }
        let Some(current) = &mut self.current else { return Next::Wait(None) };
        current.due_ns = None;
        Next::Send(Arc::clone(&current.batch))
    }

    /// When [`Batcher::next`] has something to do; `None` for not before the next event or the end of the
    /// batch that is being sent.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        if let Some(current) = &self.current {
            let expires_ns = current.since_ns.saturating_add(self.limits.age_ns);
            return current.due_ns.map(|due_ns| due_ns.min(expires_ns));
        }
        let oldest = self.waiting.front()?;
        let full = self.waiting.len() >= self.limits.events || self.bytes >= self.limits.bytes;
        match full || self.draining {
            true => Some(oldest.since_ns),
            false => Some(oldest.since_ns.saturating_add(self.limits.window_ns)),
        }
    }

    /// The batch that was sent is accepted.
    pub(crate) fn delivered(&mut self) {
        let Some(current) = self.current.take() else { return };
        self.bytes -= current.bytes;
        self.stats.batches += 1;
        self.stats.delivered += current.batch.events.len() as u64;
    }

    /// The batch that was sent is not accepted. `random` spreads the next attempt over half of the pause.
    pub(crate) fn failed(&mut self, now_ns: u64, random: u64) {
        let Some(current) = &mut self.current else { return };
        let (least_ns, most_ns) = if self.draining { DRAIN_PAUSE_NS } else { PAUSE_NS };
        let pause_ns = least_ns.saturating_mul(1 << current.failed.min(16)).min(most_ns);
        current.failed = current.failed.saturating_add(1);
        let pause_ns = pause_ns / 2 + random % (pause_ns / 2 + 1);
        current.due_ns = Some(now_ns.saturating_add(pause_ns));
        self.stats.failed += 1;
    }

    /// The server ends: what waits is due now.
    pub(crate) fn drain(&mut self, now_ns: u64) {
        self.draining = true;
        if let Some(due_ns) = self.current.as_mut().and_then(|current| current.due_ns.as_mut()) {
            *due_ns = now_ns;
        }
    }

    /// Events that wait or are being sent.
    pub(crate) fn len(&self) -> usize {
        let current = self.current.as_ref().map_or(0, |current| current.batch.events.len());
        self.waiting.len() + current
    }

    /// Their memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The age of the oldest of them.
    pub(crate) fn oldest_ns(&self, now_ns: u64) -> u64 {
        let current = self.current.as_ref().map(|current| current.since_ns);
        let oldest = current.or(self.waiting.front().map(|event| event.since_ns));
        oldest.map_or(0, |since_ns| now_ns.saturating_sub(since_ns))
    }

    pub(crate) fn stats(&self) -> BatcherStats {
        self.stats
    }

    /// Drops what is too old, unless it is being sent.
    fn expire(&mut self, now_ns: u64) {
        let age_ns = self.limits.age_ns;
        let is_old = |since_ns: u64| since_ns.saturating_add(age_ns) <= now_ns;
        let expired =
            self.current.take_if(|current| current.due_ns.is_some() && is_old(current.since_ns));
        if let Some(Current { batch, bytes, .. }) = expired {
            self.bytes -= bytes;
            self.untold += batch.dropped + batch.events.len() as u64;
            self.stats.dropped_age += batch.events.len() as u64;
        }
        while let Some(oldest) = self.waiting.front().filter(|event| is_old(event.since_ns)) {
            self.bytes -= oldest.bytes();
            self.waiting.pop_front();
            self.untold += 1;
            self.stats.dropped_age += 1;
        }
    }

    /// Makes a batch of the oldest events.
    fn begin_batch(&mut self) {
        let Some(since_ns) = self.waiting.front().map(|event| event.since_ns) else { return };
        let (mut events, mut bytes, mut text_bytes) = (Vec::new(), 0, 0);
        while let Some(event) = self.waiting.front() {
            let fits = text_bytes + event.text.len() <= self.limits.bytes;
            if !(events.is_empty() || fits && events.len() < self.limits.events) {
                break;
            }
            let Some(event) = self.waiting.pop_front() else { break };
            bytes += event.bytes();
            text_bytes += event.text.len();
            events.push(event.text);
        }
        if self.waiting.capacity() > 1024 && self.waiting.len() < self.waiting.capacity() / 8 {
            self.waiting.shrink_to(2 * self.waiting.len());
        }
        self.batches += 1;
        let dropped = std::mem::take(&mut self.untold);
        let batch = Batch { number: self.batches, events: events.into(), dropped };
        let due_ns = Some(since_ns);
        self.current = Some(Current { batch: Arc::new(batch), bytes, since_ns, failed: 0, due_ns });
    }
}

#[cfg(test)]
#[path = "batcher_tests.rs"]
mod tests;
