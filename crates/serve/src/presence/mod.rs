//! [`Presence`]: who is present in which topic, for the whole process. Workers tell it of joins, leaves and
//! lost connections; one thread ([`announcer`]) tells subscribers, some changes at a time ([`pace`]).
//!
//! Bounded by bytes: who does not fit is refused. A lock per shard of topics, which nobody takes who has
//! nothing to do with presence. This is all that workers and the control plane know of it, so that members
//! can be kept elsewhere.

pub(crate) mod announcer;
mod merge;
pub(crate) mod nodes;
mod pace;
mod set;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brokers::Broker;

use self::announcer::Alarm;
use self::nodes::{Nodes, NodesStats};
use self::set::{Events, Set, record_bytes};
use crate::config::PresenceConfig;

/// Number of locks.
const SHARDS: usize = 64;
/// Memory of a topic with members beyond its name, in bytes.
const TOPIC_BYTES: usize = 1024;
/// Longest id and info of a member together, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = 4 * 1024;
/// Longest id of a member, in bytes.
pub(crate) const ID_BYTES_MAX: usize = 256;
/// Longest list of members that a client gets, in bytes: it has to fit into memory at once there, too.
const LIST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Shortest time between two lines in the log.
const LINE_INTERVAL_NS: u64 = 10_000_000_000;
/// Topics announced, and members expired, under one lock.
const TOPICS_PER_LOCK: usize = 64;
const EXPIRED_PER_LOCK: usize = 256;

/// Why a member cannot join.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Its id is empty or too long, or its info is too long.
    Record,
    /// All members take as much memory as they may.
    Bytes,
    /// The subscription has joined with another id.
    OtherId,
    /// The connection is not subscribed, or the subscription has no presence.
    Stream,
    /// Its connection holds as much memory as it may.
    Connection,
    /// The list of members is too long for one message.
    List,
}

impl Refused {
    /// All causes, in the order of their discriminants.
    pub(crate) const ALL: [Refused; 6] = [
        Refused::Record,
        Refused::Bytes,
        Refused::OtherId,
        Refused::Stream,
        Refused::Connection,
        Refused::List,
    ];

    /// Its name in counters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Refused::Record => "record",
            Refused::Bytes => "bytes",
            Refused::OtherId => "other_id",
            Refused::Stream => "stream",
            Refused::Connection => "connection",
            Refused::List => "list",
        }
    }
}

/// The answer to a request for the members of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Info {
    /// The members as JSON, and a number that changes with them.
    Ready(Vec<u8>, u64),
    /// The same as at this number.
    Same,
    /// Very many are joining or leaving: ask again in a window.
    Later,
    /// There are too many for one message.
    TooLong,
}

/// Figures for operators. `joined` = `members` + `left` + `expired`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PresenceStats {
    /// Topics with members, and some with leaves that are not announced yet.
    pub(crate) topics: usize,
    pub(crate) members: u64,
    pub(crate) bytes: usize,
    pub(crate) joined: u64,
    pub(crate) left: u64,
    pub(crate) expired: u64,
    /// Events by type: join, leave, info, changed.
    pub(crate) events: [u64; 4],
    /// Events that could not be delivered and are made up for by a summary.
    pub(crate) retried: u64,
    /// By [`Refused::ALL`].
    pub(crate) refused: [u64; Refused::ALL.len()],
    /// Members of other nodes, if they are shared.
    pub(crate) nodes: Option<NodesStats>,
}

#[derive(Default)]
struct Counters {
    freed_total: AtomicU64,
    joined: AtomicU64,
    left: AtomicU64,
    expired: AtomicU64,
    events: [AtomicU64; 4],
    retried: AtomicU64,
    refused: [AtomicU64; Refused::ALL.len()],
    /// Refusals for want of memory that are logged, and when the next line may be written.
    logged: AtomicU64,
    next_line_ns: AtomicU64,
}

#[derive(Default)]
struct Shard {
    topics: HashMap<Arc<str>, Set>,
    /// When which topic has something to announce.
    due: BTreeSet<(u64, Arc<str>)>,
    /// Until when who stays without a connection: topic and member.
    lingering: BTreeSet<(u64, Arc<str>, Arc<str>)>,
}

impl Shard {
    fn next_ns(&self) -> u64 {
        let due = self.due.first().map_or(u64::MAX, |(due_ns, _)| *due_ns);
        due.min(self.lingering.first().map_or(u64::MAX, |(until_ns, ..)| *until_ns))
    }

    /// Keeps the times of a topic up to date, and forgets it when it is empty. Returns the bytes of its
    /// entry then.
    fn note(&mut self, topic: &Arc<str>, before: Option<u64>) -> usize {
        let Some(set) = self.topics.get(topic) else { return 0 };
        let now = set.pace.due_ns();
        if before != now {
            if let Some(before) = before {
                self.due.remove(&(before, Arc::clone(topic)));
            }
            self.due.extend(now.map(|due_ns| (due_ns, Arc::clone(topic))));
        }
        if !set.is_empty() {
            return 0;
        }
        self.topics.remove(topic);
        if self.topics.capacity() > 64 && self.topics.len() < self.topics.capacity() / 8 {
            self.topics.shrink_to(2 * self.topics.len());
        }
        topic_bytes(topic)
    }
}

fn topic_bytes(topic: &str) -> usize {
    TOPIC_BYTES + topic.len()
}

/// The members of all topics of a process.
pub(crate) struct Presence {
    ttl_ns: u64,
    window_ns: u64,
    bytes_max: usize,
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    bytes: AtomicUsize,
    counters: Counters,
    pub(crate) alarm: Alarm,
    /// Members of other nodes, if they are shared.
    nodes: Option<Nodes>,
}

impl Presence {
    /// With a broker members are shared with other nodes.
    pub(crate) fn new(config: &PresenceConfig, broker: Option<Arc<Broker>>) -> Self {
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Presence {
            ttl_ns: nanos(config.ttl),
            window_ns: nanos(config.window),
            bytes_max: config.bytes,
            hasher: RandomState::new(),
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            bytes: AtomicUsize::new(0),
            counters: Counters::default(),
            alarm: Alarm::default(),
            nodes: broker.map(Nodes::new),
        }
    }

    /// Members are shared with other nodes.
    pub(crate) fn is_shared(&self) -> bool {
        self.nodes.is_some()
    }

    /// The time in which joins and leaves are collected, in nanoseconds.
    pub(crate) fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Adds a session of a member to a topic; with `again` the session has joined before and may have
    /// another info now. Returns the id, to be kept with the session.
    ///
    /// # Errors
    /// Why it cannot join. Nothing has changed then.
    pub(crate) fn join(
        &self,
        topic: &str,
        id: &str,
        info: Option<&str>,
        again: bool,
        now_ns: u64,
    ) -> Result<Arc<str>, Refused> {
        let record = id.len() + info.map_or(0, str::len);
        if id.is_empty() || id.len() > ID_BYTES_MAX || record > RECORD_BYTES_MAX {
            return Err(Refused::Record);
        }
        // Both entries may be new. What is not needed is released.
        let reserved = record_bytes(id, info) + topic_bytes(topic);
        if !self.reserve(reserved) {
            return Err(Refused::Bytes);
        }
        let mut shard = self.shard(topic);
        let mut added = 0;
        let name = match shard.topics.get_key_value(topic) {
            Some((name, _)) => Arc::clone(name),
            None => {
                added += topic_bytes(topic);
                Arc::from(topic)
            }
        };
        let set = shard.topics.entry(Arc::clone(&name)).or_insert_with(|| Set::new(now_ns));
        let due = set.pace.due_ns();
        let joined = set.join(id, info, again, now_ns, self.window_ns);
        if let Some(until_ns) = joined.lingered_until_ns {
            shard.lingering.remove(&(until_ns, Arc::clone(&name), Arc::clone(&joined.id)));
        }
        shard.note(&name, due);
        if let Some(nodes) = self.nodes.as_ref().filter(|_| joined.changed) {
            let info = info.map(Arc::from);
            nodes.tell(topic, &joined.id, Some(info.as_ref()));
        }
        let next_ns = shard.next_ns();
        drop(shard);
        self.counters.joined.fetch_add(joined.new.into(), Ordering::Relaxed);
        self.release(reserved.saturating_sub(added + joined.added));
        self.free(joined.freed);
        self.alarm.ring_at(next_ns);
        Ok(joined.id)
    }

    /// A session of a member leaves.
    pub(crate) fn leave(&self, topic: &str, id: &str, now_ns: u64) {
        if self.end_session(topic, id, None, now_ns) {
            self.counters.left.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A session of a member has lost its connection. It may come back.
    pub(crate) fn disconnected(&self, topic: &str, id: &Arc<str>, now_ns: u64) {
        self.end_session(topic, id, Some(now_ns.saturating_add(self.ttl_ns)), now_ns);
    }

    fn end_session(&self, topic: &str, id: &str, until_ns: Option<u64>, now_ns: u64) -> bool {
        let at = self.shard_of(topic);
        let mut shard = locked(&self.shards[at]);
        let Some((name, _)) = shard.topics.get_key_value(topic) else { return false };
        let name = Arc::clone(name);
        let Some(set) = shard.topics.get_mut(&name) else { return false };
        let due = set.pace.due_ns();
        let last = set.end_session(id, until_ns, now_ns, self.window_ns);
        if let Some(until_ns) = until_ns.filter(|_| last) {
            shard.lingering.insert((until_ns, Arc::clone(&name), id.into()));
        }
        let mut freed = 0;
        if last && until_ns.is_none() {
            freed += self.left(at, &mut shard, topic, id);
        }
        freed += shard.note(&name, due);
        let next_ns = shard.next_ns();
        drop(shard);
        self.free(freed);
        self.alarm.ring_at(next_ns);
        last
    }

    /// The members of a topic as JSON, or with `records` off only their number. While very many
    /// join, a client waits for its answer until they have, or until it has waited long enough (`at_once`). The
    /// answer holds until the next event. `known` is the number of an earlier answer.
    pub(crate) fn info(
        &self,
        topic: &str,
        records: bool,
        at_once: bool,
        known: Option<u64>,
        now_ns: u64,
    ) -> Info {
        let shard = self.shard(topic);
        let none = Set::default();
        let set = shard.topics.get(topic).unwrap_or(&none);
        if records && !at_once && set.is_crowded(now_ns) {
            return Info::Later;
        }
        if known == Some(set.version) {
            return Info::Same;
        }
        let (list, version) = (set.list(records, LIST_BYTES_MAX), set.version);
        drop(shard);
        list.map_or(Info::TooLong, |list| Info::Ready(list.json(), version))
    }

    /// All members of a topic as JSON, for operators.
    pub(crate) fn list(&self, topic: &str) -> Vec<u8> {
        let shard = self.shard(topic);
        let list = shard.topics.get(topic).and_then(|set| set.list(true, usize::MAX));
        drop(shard);
        list.unwrap_or_default().json()
    }

    /// Counts a refusal.
    pub(crate) fn refused(&self, why: Refused) {
        if let Some(counter) = self.counters.refused.get(why as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many were refused for want of memory since the last call that returned a number; `None` if
    /// nobody was, or if that was less than [`LINE_INTERVAL_NS`] ago.
    pub(crate) fn refused_for_memory(&self, now_ns: u64) -> Option<u64> {
        let Counters { refused, logged, next_line_ns, .. } = &self.counters;
        let omitted = self.nodes.as_ref().map_or(0, Nodes::omitted);
        let total = refused[Refused::Bytes as usize].load(Ordering::Relaxed) + omitted;
        let times = total - logged.load(Ordering::Relaxed);
        if times == 0 || now_ns < next_line_ns.load(Ordering::Relaxed) {
            return None;
        }
        logged.store(total, Ordering::Relaxed);
        next_line_ns.store(now_ns.saturating_add(LINE_INTERVAL_NS), Ordering::Relaxed);
        Some(times)
    }

    /// Expires and announces what is due. `publish` sends an event to the subscribers of a topic, and
    /// returns false if it could not. Returns when to be called again.
    pub(crate) fn turn(
        &self,
        now_ns: u64,
        mut publish: impl FnMut(&Arc<str>, Vec<u8>) -> bool,
    ) -> u64 {
        let mut next_ns = u64::MAX;
        for at in 0..self.shards.len() {
            next_ns = next_ns.min(self.turn_of(at, now_ns, &mut publish));
        }
        next_ns
    }

    fn turn_of(
        &self,
        at: usize,
        now_ns: u64,
        publish: &mut impl FnMut(&Arc<str>, Vec<u8>) -> bool,
    ) -> u64 {
        let cell = &self.shards[at];
        loop {
            let mut shard = locked(cell);
            let next_ns = shard.next_ns();
            if next_ns > now_ns {
                return next_ns;
            }
            let mut freed = self.expire(at, &mut shard, now_ns);
            let mut all: Vec<(Arc<str>, Events)> = Vec::new();
            for _ in 0..TOPICS_PER_LOCK {
                if shard.due.first().is_none_or(|(due_ns, _)| *due_ns > now_ns) {
                    break;
                }
                let Some((_, topic)) = shard.due.pop_first() else { break };
                let Some(set) = shard.topics.get_mut(&topic) else { continue };
                let (events, bytes) = set.announce(now_ns, self.window_ns);
                // Its entry is removed already.
                freed += bytes + shard.note(&topic, None);
                if !events.is_empty() {
                    all.push((topic, events));
                }
            }
            drop(shard);
            self.free(freed);
            for (topic, events) in all {
                if !self.publish(&topic, events, publish) {
                    self.counters.retried.fetch_add(1, Ordering::Relaxed);
                    self.lost(cell, &topic, now_ns);
                }
            }
        }
    }

    /// Ends the stay of members whose connections have been lost for too long. Returns freed bytes.
    fn expire(&self, at: usize, shard: &mut Shard, now_ns: u64) -> usize {
        let mut freed = 0;
        for _ in 0..EXPIRED_PER_LOCK {
            if shard.lingering.first().is_none_or(|(until_ns, ..)| *until_ns > now_ns) {
                break;
            }
            let Some((_, topic, id)) = shard.lingering.pop_first() else { break };
            let Some(set) = shard.topics.get_mut(&topic) else { continue };
            let due = set.pace.due_ns();
            if set.expire(&id, now_ns, self.window_ns) {
                self.counters.expired.fetch_add(1, Ordering::Relaxed);
                freed += self.left(at, shard, &topic, &id);
            }
            freed += shard.note(&topic, due);
        }
        freed
    }

    fn publish(
        &self,
        topic: &Arc<str>,
        events: Events,
        publish: &mut impl FnMut(&Arc<str>, Vec<u8>) -> bool,
    ) -> bool {
        for (event, json) in events {
            if !publish(topic, json) {
                return false;
            }
            if let Some(counter) = self.counters.events.get(event as usize) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    /// An event of a topic was not delivered: a summary follows.
    fn lost(&self, cell: &Mutex<Shard>, topic: &Arc<str>, now_ns: u64) {
        let mut shard = locked(cell);
        let is_new = !shard.topics.contains_key(topic);
        let set = shard.topics.entry(Arc::clone(topic)).or_insert_with(|| Set::new(now_ns));
        let due = set.pace.due_ns();
        set.pace.refused(now_ns, self.window_ns);
        shard.note(topic, due);
        drop(shard);
        if is_new {
            // The last member has left. It stays for one more window.
            self.count(topic_bytes(topic));
        }
    }

    /// Memory counted for members, in bytes, and what was counted so and is freed.
    pub(crate) fn held(&self) -> (u64, u64) {
        let freed = self.counters.freed_total.load(Ordering::Relaxed);
        (self.bytes.load(Ordering::Relaxed) as u64, freed)
    }

    /// Figures for operators.
    pub(crate) fn stats(&self) -> PresenceStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let mut stats = PresenceStats {
            bytes: self.bytes.load(Ordering::Relaxed),
            joined: get(&counters.joined),
            left: get(&counters.left),
            expired: get(&counters.expired),
            events: counters.events.each_ref().map(get),
            retried: get(&counters.retried),
            refused: counters.refused.each_ref().map(get),
            nodes: self.nodes.as_ref().map(Nodes::stats),
            ..PresenceStats::default()
        };
        stats.members = stats.joined.saturating_sub(stats.left + stats.expired);
        stats.topics = self.shards.iter().map(|cell| locked(cell).topics.len()).sum();
        stats
    }

    /// This process does not have a member any more: other nodes are told. Returns freed bytes.
    fn left(&self, at: usize, shard: &mut Shard, topic: &str, id: &str) -> usize {
        let Some(nodes) = &self.nodes else { return 0 };
        nodes.tell(topic, &id.into(), None);
        self.show_elsewhere(at, shard, topic, id)
    }

    /// Reserves bytes, unless they exceed the limit.
    fn reserve(&self, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let fits = before.saturating_add(bytes) <= self.bytes_max;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    /// Counts bytes that are used in any case.
    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Releases bytes that were reserved and not used.
    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Frees bytes that were used.
    fn free(&self, bytes: usize) {
        if bytes > 0 {
            self.release(bytes);
            self.counters.freed_total.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    fn shard_of(&self, topic: &str) -> usize {
        self.hasher.hash_one(topic) as usize % SHARDS
    }

    fn shard(&self, topic: &str) -> MutexGuard<'_, Shard> {
        // SHARDS is the length.
        locked(&self.shards[self.shard_of(topic)])
    }
}

fn locked<T>(cell: &Mutex<T>) -> MutexGuard<'_, T> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
