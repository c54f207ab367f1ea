//! [`History`]: the recent publications of each topic, with offsets. One lock per shard of topics gives a
//! publication its offset and posts it, so that all workers see the publications of a topic in one order.
//!
//! Offsets are numbers of one [`Epoch`], which a process draws at its start. What is kept is bounded by
//! number, age and bytes for each topic and by bytes for all together: the oldest is evicted first. Bytes
//! are reserved before a publication is kept, so that the limit is never exceeded.
//!
//! Where a broker keeps the publications of all nodes, this is a replica of some topics: [`replica`].

mod given;
mod page;
mod replica;
mod shard;
mod topic;
mod view;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

pub use self::page::{HistoryPage, KeptMessage};
pub use self::replica::{KeptAt, Past, PastPublication};
use self::shard::Shard;
pub(crate) use self::topic::Kept;
use self::topic::TopicHistory;
pub(crate) use self::view::View;
use crate::directory::{Publication, Refused};

/// Number of locks.
const SHARDS: usize = 64;
/// Expired publications removed under one lock, so that publishers do not wait for all of them.
const EXPIRED_PER_LOCK: usize = 1024;
/// Those removed with each publication.
const EXPIRED_AT_ONCE: usize = 16;

/// The epoch of offsets: those of different epochs are not comparable.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Epoch(u32);

impl Epoch {
    /// An epoch from a random number.
    #[must_use]
    pub fn new(random: u32) -> Self {
        Epoch(random)
    }

    /// The epoch with this text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 8 || !text.bytes().all(plain) {
            return None;
        }
        u32::from_str_radix(text, 16).ok().map(Epoch)
    }

    pub(crate) fn as_u32(self) -> u32 {
        self.0
    }
}

/// Eight hexadecimal digits.
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The place of a publication in its topic.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// The epoch of the offset.
    pub epoch: Epoch,
    /// Its number, from 1 on: without gaps, unless a broker gives it.
    pub offset: u64,
}

impl Position {
    /// The position with this text, `EPOCH:OFFSET`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, offset) = text.split_once(':')?;
        Some(Position { epoch: Epoch::parse(epoch)?, offset: offset.parse().ok()? })
    }

    /// That of the next publication, where no number is left out.
    #[must_use]
    pub fn next(self) -> Position {
        Position { offset: self.offset.saturating_add(1), ..self }
    }
}

/// As [`Position::parse`] reads it.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.offset)
    }
}

/// What is kept at most.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct HistoryLimits {
    /// Publications of one topic.
    pub messages: usize,
    /// How long, in nanoseconds.
    pub age_ns: u64,
    /// Bytes of one topic.
    pub topic_bytes: usize,
    /// Bytes of all topics.
    pub bytes: usize,
}

/// Where the requested publications begin.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// After the one with this position.
    After(Position),
    /// At this time of the monotonic clock, in nanoseconds.
    Since(u64),
}

/// Why not all requested publications are available.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// The position is one of another epoch.
    Epoch,
    /// The position is later than the last publication.
    Ahead,
    /// Some of them are not kept any more.
    Evicted,
}

impl Unavailable {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Unavailable; 3] =
        [Unavailable::Epoch, Unavailable::Ahead, Unavailable::Evicted];

    /// Its name in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unavailable::Epoch => "epoch",
            Unavailable::Ahead => "ahead",
            Unavailable::Evicted => "evicted",
        }
    }
}

/// Why a publication is not kept any more.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// Its topic has more recent ones.
    Messages,
    /// It is too old.
    Age,
    /// Its topic holds too many bytes.
    TopicBytes,
    /// All topics hold too many bytes.
    Bytes,
    /// Its topic is not followed any more, or was loaded again.
    Released,
}

impl Eviction {
    /// All causes, in the order of their discriminants.
    pub const ALL: [Eviction; 5] = [
        Eviction::Messages,
        Eviction::Age,
        Eviction::TopicBytes,
        Eviction::Bytes,
        Eviction::Released,
    ];

    /// Its name in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Eviction::Messages => "messages",
            Eviction::Age => "age",
            Eviction::TopicBytes => "topic_bytes",
            Eviction::Bytes => "bytes",
            Eviction::Released => "released",
        }
    }
}

/// Figures for operators. `kept_total` = `messages` + the sum of `evicted`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct HistoryStats {
    /// Topics with an entry.
    pub topics: usize,
    /// Publications kept now.
    pub messages: usize,
    /// Bytes held now, with the entries of topics.
    pub bytes: usize,
    /// Publications kept so far.
    pub kept_total: u64,
    /// Evicted ones, in the order of [`Eviction::ALL`].
    pub evicted: [u64; Eviction::ALL.len()],
}

/// A shard, and how old its oldest entries are, which other threads read without its lock.
struct Cell {
    shard: Mutex<Shard>,
    /// The oldest publication, and the topic that has been without one for the longest time; `u64::MAX`
    /// for none.
    oldest_ns: AtomicU64,
    oldest_empty_ns: AtomicU64,
}

/// The recent publications of all topics of a process.
pub struct History {
    epoch: Epoch,
    limits: HistoryLimits,
    /// Before this, nothing is known.
    started_ns: u64,
    /// Positions are given by a broker, each topic has an epoch of its own, and only those that were loaded or
    /// published to are known.
    is_replica: bool,
    hasher: RandomState,
    shards: Box<[Cell]>,
    /// Bytes held, and reserved for publications that are about to be kept.
    bytes: AtomicUsize,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl History {
    /// An empty history that starts now.
    #[must_use]
    pub fn new(epoch: Epoch, limits: HistoryLimits, now_ns: u64) -> Self {
        let cell = || Cell {
            shard: Mutex::new(Shard::new(now_ns)),
            oldest_ns: AtomicU64::new(u64::MAX),
            oldest_empty_ns: AtomicU64::new(u64::MAX),
        };
        History {
            epoch,
            limits,
            started_ns: now_ns,
            is_replica: false,
            hasher: RandomState::default(),
            shards: std::iter::repeat_with(cell).take(SHARDS).collect(),
            bytes: AtomicUsize::new(0),
        }
    }

    /// The epoch of the offsets that it gives.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Posts a publication with `post` and keeps it, at the next position of its topic. If `post` fails it
    /// takes no position and is not kept.
    pub(crate) fn sequence(
        &self,
        publication: &Publication,
        post: impl FnOnce() -> Result<usize, Refused>,
    ) -> Result<usize, Refused> {
        let bytes = Kept::bytes_of(publication);
        let mut reserved = 0;
        let mut fits = bytes <= self.limits.topic_bytes && self.make_room(bytes, &mut reserved);
        let hash = self.hash(&publication.topic);
        let now_ns = publication.accepted_ns;
        let mut cell = self.lock(hash);
        // First, as it may forget this topic.
        let expired = cell.shard.expire(&self.hasher, now_ns, self.limits.age_ns, EXPIRED_AT_ONCE);
        let mut index = cell.shard.find(hash, &publication.topic);
        if index.is_none() && fits {
            // Room for a new topic is made without this lock, as it may be made in any shard.
            drop(cell);
            fits = self.make_room(TopicHistory::bytes_of(&publication.topic), &mut reserved);
            cell = self.lock(hash);
            index = cell.shard.find(hash, &publication.topic);
        }
        let is_new = index.is_none();
        let add = || cell.shard.add(&self.hasher, hash, &publication.topic);
        let index = index.unwrap_or_else(add);
        let position = Position { epoch: self.epoch, offset: cell.shard.next(index) };
        publication.set_position(Some(position));
        let posted = post();
        if posted.is_err() {
            publication.set_position(None);
            if is_new {
                cell.shard.undo_add(&self.hasher, index);
            }
            drop(cell);
            self.release(reserved + expired.bytes);
            return posted;
        }
        let mut freed = reserved + expired.bytes;
        if fits {
            freed += cell.shard.keep(index, publication, &self.limits);
            freed -= bytes;
            freed -= if is_new { TopicHistory::bytes_of(&publication.topic) } else { 0 };
        } else {
            // The entry of a new topic has no bytes reserved, so it does not stay.
            freed += cell.shard.skip(&self.hasher, index, now_ns, is_new);
        }
        drop(cell);
        self.release(freed);
        posted
    }

    /// Publications to a topic may be missing from now on: what was before is not available any more, to those
    /// who ask for it by a position or by a time.
    pub fn interrupt(&self, topic: &str, now_ns: u64) {
        if self.is_replica {
            return self.release_topic(topic);
        }
        self.interrupt_as(topic, now_ns, false);
    }

    /// A topic whose publications come from a broker is followed from now on, as in [`History::interrupt`]. Its entry
    /// stays until [`History::forget`] while there is room: the position of a topic without one is lost when any
    /// other topic of its shard is forgotten.
    pub fn begin(&self, topic: &str, now_ns: u64) {
        self.interrupt_as(topic, now_ns, true);
    }

    fn interrupt_as(&self, topic: &str, now_ns: u64, followed: bool) {
        let hash = self.hash(topic);
        let mut cell = self.lock(hash);
        let mut index = cell.shard.find(hash, topic);
        let (mut reserved, mut fits) = (0, true);
        if index.is_none() {
            // As for a publication to a new topic.
            drop(cell);
            fits = self.make_room(TopicHistory::bytes_of(topic), &mut reserved);
            cell = self.lock(hash);
            index = cell.shard.find(hash, topic);
        }
        let is_new = index.is_none();
        let add = || cell.shard.add(&self.hasher, hash, &topic.into());
        let index = index.unwrap_or_else(add);
        let mut freed = reserved;
        freed += cell.shard.interrupt(&self.hasher, index, now_ns, is_new && !fits);
        if fits {
            freed -= if is_new { TopicHistory::bytes_of(topic) } else { 0 };
            cell.shard.set_followed(index, followed);
        }
        drop(cell);
        self.release(freed);
    }

    /// The position of the first publication to send, or one after the last if none is missing.
    ///
    /// # Errors
    /// Why not all of them are available.
    pub fn first(&self, topic: &str, start: Start, now_ns: u64) -> Result<Position, Unavailable> {
        self.read(topic, now_ns, |view| view.first(start))
    }

    /// The position of a topic's last publication; offset 0 if there was none. `None` in a replica that does not
    /// know the topic.
    #[must_use]
    pub fn last(&self, topic: &str, now_ns: u64) -> Option<Position> {
        self.read(topic, now_ns, |view| view.position())
    }

    /// The position of a topic after which all that was published is kept. `None` in a replica that does not know the
    /// topic.
    #[must_use]
    pub fn floor(&self, topic: &str, now_ns: u64) -> Option<Position> {
        self.read(topic, now_ns, |view| view.floor())
    }

    /// Reads one topic under its lock, without what is too old.
    pub(crate) fn read<R>(&self, topic: &str, now_ns: u64, read: impl FnOnce(View<'_>) -> R) -> R {
        let hash = self.hash(topic);
        let mut cell = self.lock(hash);
        let index = cell.shard.find(hash, topic);
        let freed =
            index.map_or(0, |index| cell.shard.expire_topic(index, now_ns, self.limits.age_ns));
        let (last, lost_ns) = cell.shard.floor();
        let topic = index.and_then(|index| cell.shard.get(index));
        let view = match topic {
            Some(topic) => View::of(topic, self.epoch, self.started_ns),
            None if self.is_replica => View::unknown(),
            None => View::forgotten(self.epoch, last, lost_ns.max(self.started_ns)),
        };
        let result = read(view);
        drop(cell);
        self.release(freed);
        result
    }

    /// Removes what is too old. To be called periodically.
    pub fn expire(&self, now_ns: u64) {
        for at in 0..self.shards.len() {
            loop {
                let Some(mut cell) = self.lock_at(at) else { break };
                let expired =
                    cell.shard.expire(&self.hasher, now_ns, self.limits.age_ns, EXPIRED_PER_LOCK);
                drop(cell);
                self.release(expired.bytes);
                if !expired.more {
                    break;
                }
            }
        }
    }

    /// Bytes held now: 0 if nothing is kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Figures for operators.
    #[must_use]
    pub fn stats(&self) -> HistoryStats {
        let mut stats = HistoryStats { bytes: self.bytes(), ..HistoryStats::default() };
        for at in 0..self.shards.len() {
            let Some(cell) = self.lock_at(at) else { continue };
            cell.shard.add_stats(&mut stats);
        }
        stats
    }

    /// Reserves bytes, and evicts the oldest publications for them; false if there are none left.
    fn make_room(&self, bytes: usize, reserved: &mut usize) -> bool {
        *reserved += bytes;
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        while self.bytes.load(Ordering::Acquire) > self.limits.bytes {
            if !self.evict_oldest() {
                return false;
            }
        }
        true
    }

    fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Removes the oldest entry of a topic without publications, or the oldest publication.
    fn evict_oldest(&self) -> bool {
        let oldest = |age: fn(&Cell) -> &AtomicU64| {
            let ages = self.shards.iter().map(|cell| age(cell).load(Ordering::Relaxed));
            let (at, oldest_ns) = ages.enumerate().min_by_key(|(_, oldest_ns)| *oldest_ns)?;
            (oldest_ns < u64::MAX).then_some(at)
        };
        let empty = oldest(|cell| &cell.oldest_empty_ns);
        let Some(at) = empty.or_else(|| oldest(|cell| &cell.oldest_ns)) else { return false };
        let Some(mut cell) = self.lock_at(at) else { return false };
        let freed = if empty.is_some() {
            cell.shard.forget_oldest(&self.hasher)
        } else {
            cell.shard.evict_oldest()
        };
        drop(cell);
        self.release(freed);
        true
    }

    fn hash(&self, topic: &str) -> u64 {
        self.hasher.hash_one(topic)
    }

    fn lock(&self, hash: u64) -> Locked<'_> {
        // Not the bits that the table of a shard uses.
        Locked::new(&self.shards[(hash >> 32) as usize % SHARDS])
    }

    fn lock_at(&self, at: usize) -> Option<Locked<'_>> {
        self.shards.get(at).map(Locked::new)
    }
}

/// A locked shard. Its ages are brought up to date when it is released.
struct Locked<'h> {
    cell: &'h Cell,
    shard: MutexGuard<'h, Shard>,
}

impl<'h> Locked<'h> {
    fn new(cell: &'h Cell) -> Self {
        let shard = cell.shard.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { cell, shard }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let (oldest_ns, oldest_empty_ns) = self.shard.ages();
        self.cell.oldest_ns.store(oldest_ns, Ordering::Relaxed);
        self.cell.oldest_empty_ns.store(oldest_empty_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod tests;
