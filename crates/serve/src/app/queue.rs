//! [`Queue`]: calls that wait for the application, and which of them is next. It performs no call and
//! has no clock.
//!
//! It is bounded by number, by bytes and by age. A connection has at most one call in it, which is
//! removed when the connection ends. The oldest call is next, until the oldest has waited for longer
//! than clients do: then the newest is, as otherwise every client would give up just before its answer.
//! Calls of connections that have ended have a lane of their own, with its own rate.

use std::collections::{BTreeMap, HashMap, VecDeque};

use engine::{ConnId, invariant};

use super::call::Method;
use super::concurrency::Concurrency;

/// Calls at a time of the lane for disconnects.
const DISCONNECTS_AT_ONCE: usize = 4;
/// Times that a call is repeated after its connection was lost: one that makes the application fail must
/// not do so for long.
const REPEATS_MAX: u8 = 2;
/// A peak of fewer bytes leaves nothing worth returning to the system.
const EMPTIED_BYTES_MIN: usize = 512 * 1024;
/// Calls in a row that did not reach the application before the queue pauses.
const UNREACHED_MAX: u32 = 3;
/// The pause between attempts to reach it, which doubles from the first to the second.
const PAUSE_NS: (u64, u64) = (50_000_000, 1_000_000_000);

/// The bounds of a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueLimits {
    /// Calls that wait.
    pub(crate) calls: usize,
    /// Their memory, and as much for disconnects that wait.
    pub(crate) bytes: usize,
    /// Time that a call may wait.
    pub(crate) wait_ns: u64,
    /// Time that a client waits before it gives up.
    pub(crate) patience_ns: u64,
    /// Disconnects that wait; for more, or when they have as many bytes, the oldest are dropped.
    pub(crate) disconnects: usize,
    /// Disconnects per second.
    pub(crate) disconnect_rate: u32,
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Entry<C> {
    pub(crate) id: ConnId,
    pub(crate) method: Method,
    pub(crate) call: C,
    bytes: usize,
    queued_ns: u64,
    /// Its position; it keeps it when it is put back.
    position: u64,
    /// How often it may have been performed without an answer.
    repeats: u8,
}

impl<C> Entry<C> {
    /// How long it has waited.
    pub(crate) fn waited_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.queued_ns)
    }

    /// Counts a repetition of a call that may have been performed. Returns whether it may be repeated.
    pub(crate) fn repeat(&mut self) -> bool {
        self.repeats += 1;
        self.repeats <= REPEATS_MAX
    }
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Next<C> {
    /// Perform this call. [`Queue::finished`] or [`Queue::put_back`] must follow.
    Call(Box<Entry<C>>),
    /// This one has waited for too long.
    Late(Box<Entry<C>>),
    /// Nothing, until a call is pushed or ends, or until this time.
    Wait(Option<u64>),
}

/// The queue is full: the call is not in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Room in a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) calls: usize,
    pub(crate) bytes: usize,
}

/// How a call ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With an answer, whatever it is.
    Answered,
    /// The application refused it for load, or did not answer in time.
    Overloaded,
    /// It did not reach the application.
    Unreached,
}

/// The calls that wait.
#[derive(Debug)]
pub(crate) struct Queue<C> {
    limits: QueueLimits,
    concurrency: Concurrency,
    /// By position. Boxed, because the nodes of a map that is filled in order stay half empty.
    waiting: BTreeMap<u64, Box<Entry<C>>>,
    by_id: HashMap<ConnId, u64>,
    /// Of the calls that wait, and of the disconnects.
    bytes: usize,
    disconnect_bytes: usize,
    /// The most bytes since [`Queue::has_emptied`] was true.
    peak_bytes: usize,
    /// The connections whose call runs, and whether they have ended since.
    running: HashMap<ConnId, bool>,
    disconnects: VecDeque<Box<Entry<C>>>,
    disconnects_running: usize,
    next_disconnect_ns: u64,
    next_position: u64,
    unreached: u32,
    /// No call before this, and then one at a time.
    paused_until_ns: Option<u64>,
    /// The server ends: disconnects have no rate any more.
    draining: bool,
}

impl<C> Queue<C> {
    pub(crate) fn new(limits: QueueLimits, concurrency: Concurrency) -> Self {
        Queue {
            limits,
            concurrency,
            waiting: BTreeMap::new(),
            by_id: HashMap::new(),
            bytes: 0,
            disconnect_bytes: 0,
            peak_bytes: 0,
            running: HashMap::new(),
            disconnects: VecDeque::new(),
            disconnects_running: 0,
            next_disconnect_ns: 0,
            next_position: 0,
            unreached: 0,
            paused_until_ns: None,
            draining: false,
        }
    }

    /// Adds a call of a connection that has none waiting.
    ///
    /// # Errors
    /// The queue is full.
    pub(crate) fn push(
        &mut self,
        now_ns: u64,
        id: ConnId,
        method: Method,
        call: C,
        bytes: usize,
    ) -> Result<(), Full> {
        if !self.has_room(bytes) {
            return Err(Full);
        }
        if self.by_id.contains_key(&id) {
            invariant::broken("a connection has one call at a time");
            return Err(Full);
        }
        let entry = self.entry(now_ns, id, method, call, bytes);
        self.insert(entry);
        Ok(())
    }

    /// Adds a disconnect. Returns those that are dropped for it, if there is no room.
    pub(crate) fn push_disconnect(
        &mut self,
        now_ns: u64,
        id: ConnId,
        call: C,
        bytes: usize,
    ) -> Vec<C> {
        let mut dropped = Vec::new();
        while self.disconnects.len() >= self.limits.disconnects
            || self.disconnect_bytes >= self.limits.bytes
        {
            let Some(oldest) = self.disconnects.pop_front() else { break };
            self.disconnect_bytes -= oldest.bytes;
            dropped.push(oldest.call);
        }
        let entry = self.entry(now_ns, id, Method::Disconnect, call, bytes);
        self.disconnect_bytes += entry.bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes());
        self.disconnects.push_back(entry);
        dropped
    }

    /// What can be added to the disconnects before the oldest is dropped.
    pub(crate) fn disconnect_room(&self) -> Room {
        Room {
            calls: self.limits.disconnects.saturating_sub(self.disconnects.len()),
            bytes: self.limits.bytes.saturating_sub(self.disconnect_bytes),
        }
    }

    /// A connection has ended: removes its waiting call. Returns `false` if there is none: it runs, or
    /// its answer is on the way.
    pub(crate) fn cancel(&mut self, id: ConnId) -> bool {
        if let Some(gone) = self.running.get_mut(&id) {
            *gone = true;
        }
        let position = self.by_id.get(&id).copied();
        position.and_then(|position| self.remove(position)).is_some()
    }

    /// The next call, if one may begin now.
    pub(crate) fn next(&mut self, now_ns: u64) -> Next<C> {
        let Some(oldest) = self.waiting.values().next() else {
            return self.next_disconnect(now_ns, None);
        };
        let (position, queued_ns) = (oldest.position, oldest.queued_ns);
        let late_ns = queued_ns.saturating_add(self.limits.wait_ns);
        if late_ns <= now_ns {
            return self.remove(position).map_or(Next::Wait(Some(now_ns)), Next::Late);
        }
        if !self.may_run(now_ns) {
            if self.paused_until_ns.is_none() {
                self.concurrency.reached();
            }
            return self.next_disconnect(now_ns, Some(late_ns));
        }
        let impatient = now_ns.saturating_sub(queued_ns) >= self.limits.patience_ns;
        let newest = self.waiting.keys().next_back().copied().unwrap_or(position);
        match self.remove(if impatient { newest } else { position }) {
            Some(entry) => {
                self.running.insert(entry.id, false);
                Next::Call(entry)
            }
            None => Next::Wait(Some(now_ns)),
        }
    }

    /// A call has ended after this time. Returns whether its connection has ended meanwhile.
    pub(crate) fn finished(
        &mut self,
        now_ns: u64,
        id: ConnId,
        method: Method,
        latency_ns: u64,
        ended: Ended,
    ) -> bool {
        let gone = match method {
            Method::Disconnect => {
                let left = self.disconnects_running.checked_sub(1);
                left.map(|left| self.disconnects_running = left).map(|()| false)
            }
            _ => self.running.remove(&id),
        };
        let Some(gone) = gone else {
            invariant::broken("a call that has ended was running");
            return false;
        };
        self.count_end(now_ns, method, latency_ns, ended);
        gone
    }

    fn count_end(&mut self, now_ns: u64, method: Method, latency_ns: u64, ended: Ended) {
        if ended == Ended::Unreached {
            self.unreached = self.unreached.saturating_add(1);
            if let Some(times) = self.unreached.checked_sub(UNREACHED_MAX) {
                let pause_ns = PAUSE_NS.0.saturating_mul(1 << times.min(16)).min(PAUSE_NS.1);
                self.paused_until_ns = Some(now_ns.saturating_add(pause_ns));
            }
            return;
        }
        (self.unreached, self.paused_until_ns) = (0, None);
        self.concurrency.record(now_ns, method, latency_ns, ended == Ended::Overloaded);
    }

    /// Puts back a call that has [ended](Queue::finished) without effect, where it was.
    pub(crate) fn put_back(&mut self, entry: Box<Entry<C>>) {
        self.insert(entry);
    }

    /// Lets disconnects go without a rate: the server ends.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.next_disconnect_ns = 0;
    }

    /// Whether a call of this size would be accepted.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.waiting.len() < self.limits.calls && self.bytes + bytes <= self.limits.bytes
    }

    /// Whether [`Queue::next`] may return something now.
    pub(crate) fn is_ready(&self, now_ns: u64) -> bool {
        !self.waiting.is_empty() && self.may_run(now_ns)
            || !self.disconnects.is_empty() && self.may_disconnect(now_ns)
    }

    /// When the oldest call has waited for too long, or the next disconnect may begin.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let oldest = self.waiting.values().next();
        let late_ns = oldest.map(|oldest| oldest.queued_ns.saturating_add(self.limits.wait_ns));
        let disconnect_ns = (!self.disconnects.is_empty()).then_some(self.next_disconnect_ns);
        late_ns.into_iter().chain(disconnect_ns).min()
    }

    /// Whether much of the memory that calls held is free again, since the last time that it was.
    pub(crate) fn has_emptied(&mut self) -> bool {
        let emptied = self.peak_bytes >= EMPTIED_BYTES_MIN && self.bytes() < self.peak_bytes / 2;
        if emptied {
            self.peak_bytes = self.bytes();
        }
        emptied
    }

    /// Whether nothing waits and nothing runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.disconnects.is_empty()
            && self.running.len() + self.disconnects_running == 0
    }

    /// Calls that wait, disconnects included.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.disconnects.len()
    }

    /// Their memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.disconnect_bytes
    }

    /// How long the oldest call has waited, disconnects aside.
    pub(crate) fn oldest_ns(&self, now_ns: u64) -> u64 {
        let oldest = self.waiting.values().next();
        oldest.map_or(0, |entry| now_ns.saturating_sub(entry.queued_ns))
    }

    /// Calls that run.
    pub(crate) fn running(&self) -> usize {
        self.running.len() + self.disconnects_running
    }

    /// The limit of calls at a time, disconnects aside.
    pub(crate) fn limit(&self) -> usize {
        self.concurrency.limit()
    }

    fn may_run(&self, now_ns: u64) -> bool {
        match self.paused_until_ns {
            Some(until_ns) => now_ns >= until_ns && self.running.is_empty(),
            None => self.running.len() < self.concurrency.limit(),
        }
    }

    fn may_disconnect(&self, now_ns: u64) -> bool {
        let resumed = self.paused_until_ns.is_none_or(|until_ns| now_ns >= until_ns);
        let at_once = if self.paused_until_ns.is_some() { 1 } else { DISCONNECTS_AT_ONCE };
        resumed && self.disconnects_running < at_once && now_ns >= self.next_disconnect_ns
    }

    /// The next disconnect, or until when to wait for one or for the time given.
    fn next_disconnect(&mut self, now_ns: u64, until_ns: Option<u64>) -> Next<C> {
        let resume_ns = self.paused_until_ns.filter(|at| *at > now_ns);
        let waits_to_resume = resume_ns.filter(|_| !self.waiting.is_empty());
        if self.disconnects.is_empty() {
            return Next::Wait(until_ns.into_iter().chain(waits_to_resume).min());
        }
        if self.may_disconnect(now_ns)
            && let Some(entry) = self.disconnects.pop_front()
        {
            self.disconnect_bytes -= entry.bytes;
            self.disconnects_running += 1;
            if !self.draining {
                let interval_ns = 1_000_000_000 / u64::from(self.limits.disconnect_rate.max(1));
                // Without saving up time in which there were none.
                self.next_disconnect_ns =
                    self.next_disconnect_ns.max(now_ns.saturating_sub(interval_ns)) + interval_ns;
            }
            return Next::Call(entry);
        }
        let due_ns = resume_ns.or(Some(self.next_disconnect_ns)).filter(|at| *at > now_ns);
        Next::Wait(until_ns.into_iter().chain(waits_to_resume).chain(due_ns).min())
    }

    fn entry(
        &mut self,
        now_ns: u64,
        id: ConnId,
        method: Method,
        call: C,
        bytes: usize,
    ) -> Box<Entry<C>> {
        let position = self.next_position;
        self.next_position += 1;
        Box::new(Entry { id, method, call, bytes, queued_ns: now_ns, position, repeats: 0 })
    }

    fn insert(&mut self, entry: Box<Entry<C>>) {
        if entry.method == Method::Disconnect {
            self.disconnect_bytes += entry.bytes;
            return self.disconnects.push_front(entry);
        }
        self.bytes += entry.bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes());
        self.by_id.insert(entry.id, entry.position);
        self.waiting.insert(entry.position, entry);
    }

    fn remove(&mut self, position: u64) -> Option<Box<Entry<C>>> {
        let entry = self.waiting.remove(&position)?;
        self.by_id.remove(&entry.id);
        self.bytes -= entry.bytes;
        if self.by_id.capacity() > 1024 && self.by_id.len() < self.by_id.capacity() / 8 {
            self.by_id.shrink_to(2 * self.by_id.len());
        }
        Some(entry)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
