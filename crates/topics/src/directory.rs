//! [`Directory`]: which workers have subscribers of which topic. Read once per publication, written
//! only when a worker gets its first subscriber of a topic or loses its last.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use engine::invariant::broken;
use engine::{ConnId, MailboxFull, Remote, WORKERS_MAX};
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::history::{Epoch, History, KeptAt, Position};
use crate::topic::{Reservation, Topic};

/// Why a publication was refused: nothing of it was published.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A worker's mailbox was full, or a worker has too much pending.
    MailboxFull,
    /// Its topic has more pending than can be delivered soon; others are not affected.
    TopicOverloaded,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::MailboxFull => MailboxFull.fmt(f),
            Refused::TopicOverloaded => f.write_str("the topic is overloaded; try again later"),
        }
    }
}

impl std::error::Error for Refused {}

impl From<MailboxFull> for Refused {
    fn from(_: MailboxFull) -> Self {
        Refused::MailboxFull
    }
}

/// A message for all subscribers of a topic, whatever their protocol.
#[derive(Debug)]
pub struct Publication {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The payload.
    pub data: Arc<[u8]>,
    /// The payload is binary, not text.
    pub binary: bool,
    /// The subscriber that does not get it, by [`Topics::id`](crate::Topics::id): usually the sender of a whisper.
    pub except: Option<ConnId>,
    /// When it was accepted, in nanoseconds of the monotonic clock; 0 if its delivery is not timed.
    pub accepted_ns: u64,
    /// The kind of message reported to receivers, if their protocol has a field for it.
    pub kind: Option<Arc<str>>,
    /// The history does not keep it, and it has no position.
    pub transient: bool,
    /// Only receivers whose protocol has a field for the kind get it.
    pub typed_only: bool,
    /// It is no message: others before it may be missing.
    pub gap: bool,
    /// Its position, set when it was published; offset 0 for none.
    epoch: AtomicU32,
    offset: AtomicU64,
    /// Counts it for its topic, once it was posted or is pending, until it is encoded on all workers.
    reserved: OnceLock<Reservation>,
}

impl Publication {
    /// For all subscribers of a topic.
    #[must_use]
    pub fn new(topic: Arc<str>, data: Arc<[u8]>, binary: bool) -> Self {
        Publication {
            topic,
            data,
            binary,
            except: None,
            accepted_ns: 0,
            kind: None,
            transient: false,
            typed_only: false,
            gap: false,
            epoch: AtomicU32::new(0),
            offset: AtomicU64::new(0),
            reserved: OnceLock::new(),
        }
    }

    /// The same, with the time at which it was accepted.
    #[must_use]
    pub fn accepted(self, now_ns: u64) -> Self {
        Publication { accepted_ns: now_ns, ..self }
    }

    /// Its position in the topic's history, if it was published with one.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let offset = self.offset();
        let epoch = || Epoch::new(self.epoch.load(Ordering::Relaxed));
        (offset > 0).then(|| Position { epoch: epoch(), offset })
    }

    /// Its offset; 0 without a position.
    pub(crate) fn offset(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// Workers see it once it was posted: the mailboxes order memory.
    pub(crate) fn set_position(&self, position: Option<Position>) {
        let (epoch, offset) =
            position.map_or((0, 0), |position| (position.epoch.as_u32(), position.offset));
        self.epoch.store(epoch, Ordering::Relaxed);
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Memory that it holds, in bytes, for the limits of mailboxes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let kind = self.kind.as_ref().map_or(0, |kind| kind.len());
        size_of::<Self>() + self.data.len() + self.topic.len() + kind
    }

    /// Counts it for its topic, if it is not counted yet.
    pub(crate) fn reserve(&self, topic: &Arc<Topic>) {
        self.reserved.get_or_init(|| Reservation::new(topic, self.bytes()));
    }
}

/// The mailboxes of the workers that a directory names.
pub trait Mailboxes<P> {
    /// Posts to all of `workers` or to none of them; `bytes` is the memory that a post holds.
    ///
    /// # Errors
    /// [`MailboxFull`] if one of the mailboxes is at its limit.
    fn post_all(
        &self,
        workers: impl Iterator<Item = usize> + Clone,
        bytes: usize,
        post: impl FnMut() -> P,
    ) -> Result<(), MailboxFull>;
}

impl<P> Mailboxes<P> for Remote<P> {
    #[inline]
    fn post_all(
        &self,
        workers: impl Iterator<Item = usize> + Clone,
        bytes: usize,
        post: impl FnMut() -> P,
    ) -> Result<(), MailboxFull> {
        Remote::post_all(self, workers, bytes, post)
    }
}

/// One bit per worker.
#[derive(Clone, Default)]
struct WorkerSet([u64; WORKERS_MAX / 64]);

impl WorkerSet {
    fn set(&mut self, worker: u16, there: bool) {
        let Some(word) = self.0.get_mut(usize::from(worker) / 64) else {
            return broken("a worker's number is below WORKERS_MAX");
        };
        let bit = 1 << (worker % 64);
        *word = if there { *word | bit } else { *word & !bit };
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The workers in ascending order. Each publication does this: words without workers cost a comparison each.
    fn iter(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, &word)| {
            let rests = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
            let rests = rests.take_while(|rest| *rest != 0);
            rests.map(move |rest| at * 64 + rest.trailing_zeros() as usize)
        })
    }
}

struct Entry {
    topic: Arc<Topic>,
    workers: Box<WorkerSet>,
}

/// Number of locks; a publication takes one of them for reading.
const SHARDS: usize = 64;

type Shard = RwLock<HashTable<Entry>>;

/// Which workers have subscribers of which topic. Cheap to clone, shared by all.
#[derive(Clone)]
pub struct Directory {
    shards: Arc<[Shard; SHARDS]>,
    hasher: RandomState,
    /// Bytes of publications that are pending in the process.
    pending_bytes: Arc<AtomicUsize>,
    history: Option<Arc<History>>,
    observer: Option<Arc<Observer>>,
}

/// What is called with a topic that got its first subscriber in the process, with `true`, or lost its last one.
type Observer = dyn Fn(&str, bool) + Send + Sync;

impl Default for Directory {
    fn default() -> Self {
        Directory::new()
    }
}

impl Directory {
    /// An empty directory, without a history.
    #[must_use]
    pub fn new() -> Self {
        Directory::with_history(None)
    }

    /// An empty directory. What is published through it is kept in the history, if there is one.
    #[must_use]
    pub fn with_history(history: Option<Arc<History>>) -> Self {
        let shards = std::array::from_fn(|_| Shard::default());
        let pending_bytes = Arc::default();
        Directory {
            shards: Arc::new(shards),
            hasher: RandomState::default(),
            pending_bytes,
            history,
            observer: None,
        }
    }

    /// A directory for other members, of its own: with this one's history, and what is pending is counted for both.
    #[must_use]
    pub fn aside(&self) -> Self {
        let pending_bytes = Arc::clone(&self.pending_bytes);
        Directory { pending_bytes, ..Directory::with_history(self.history.clone()) }
    }

    /// Calls this for each topic that gets its first subscriber in the process, with `true`, or loses its last
    /// one; in the order in which it happens to the topic, while a lock is held. To be set before clones are
    /// made.
    pub fn observe(&mut self, observer: impl Fn(&str, bool) + Send + Sync + 'static) {
        self.observer = Some(Arc::new(observer));
    }

    /// The history of its topics.
    #[must_use]
    pub fn history(&self) -> Option<&Arc<History>> {
        self.history.as_ref()
    }

    /// Number of topics that have a subscriber on any worker.
    #[must_use]
    pub fn topics(&self) -> usize {
        self.shards.iter().map(|s| s.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Bytes of accepted publications that are not yet encoded for all their groups.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Publishes from a thread that is not a worker: to all workers that have subscribers, or to
    /// none. Returns how many workers got it.
    ///
    /// # Errors
    /// [`Refused`]: retry later, or report it to the publisher.
    pub fn publish<P: From<Arc<Publication>>>(
        &self,
        remote: &Remote<P>,
        publication: &Arc<Publication>,
    ) -> Result<usize, Refused> {
        self.post(remote, publication, None)
    }

    /// As [`Directory::publish`], to workers with mailboxes of their own. Without a history the worker `me` gets none,
    /// as it delivers to its own subscribers at once.
    ///
    /// # Errors
    /// As [`Directory::publish`].
    pub fn publish_by<P: From<Arc<Publication>>>(
        &self,
        mailboxes: &impl Mailboxes<P>,
        publication: &Arc<Publication>,
        me: Option<usize>,
    ) -> Result<usize, Refused> {
        self.post(mailboxes, publication, me)
    }

    /// As [`Directory::publish`], of what a broker keeps there: it has this position. The history is a replica.
    ///
    /// # Errors
    /// [`Refused`]: it is not in the history, either.
    pub fn publish_kept<P: From<Arc<Publication>>>(
        &self,
        mailboxes: &impl Mailboxes<P>,
        publication: &Arc<Publication>,
        at: KeptAt,
    ) -> Result<usize, Refused> {
        let post = || self.post_except(mailboxes, publication, None);
        match &self.history {
            Some(history) if history.is_replica() => history.follow(publication, at, post),
            _ => post(),
        }
    }

    /// As [`Directory::publish`], from a worker that delivers to its own subscribers at once. With a history
    /// it gets a post like all others, because only posts are in one order.
    pub(crate) fn post<P: From<Arc<Publication>>>(
        &self,
        mailboxes: &impl Mailboxes<P>,
        publication: &Arc<Publication>,
        me: Option<usize>,
    ) -> Result<usize, Refused> {
        match &self.history {
            None => self.post_except(mailboxes, publication, me),
            Some(history) if publication.transient || history.is_replica() => {
                self.post_except(mailboxes, publication, None)
            }
            Some(history) => {
                history.sequence(publication, || self.post_except(mailboxes, publication, None))
            }
        }
    }

    fn post_except<P: From<Arc<Publication>>>(
        &self,
        mailboxes: &impl Mailboxes<P>,
        publication: &Arc<Publication>,
        except: Option<usize>,
    ) -> Result<usize, Refused> {
        let topic = &*publication.topic;
        let hash = self.hasher.hash_one(topic);
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = shard.find(hash, |entry| entry.is(topic)) else { return Ok(0) };
        let all = entry.workers.iter();
        if !publication.gap && !entry.topic.accepts(publication.bytes(), all.clone().count()) {
            return Err(Refused::TopicOverloaded);
        }
        let workers = all.filter(move |&worker| Some(worker) != except);
        let reached = workers.clone().count();
        if reached > 0 {
            mailboxes.post_all(workers, publication.bytes(), || Arc::clone(publication).into())?;
            publication.reserve(&entry.topic);
        }
        Ok(reached)
    }

    /// A worker without [`crate::Topics`] of its own got its first subscriber of a topic.
    pub fn join(&self, topic: &str, worker: u16) {
        self.add_worker(topic, worker);
    }

    /// A worker that has joined a topic has lost its last subscriber of it.
    pub fn leave(&self, topic: &str, worker: u16) {
        self.remove_worker(topic, worker);
    }

    /// Adds a worker that got its first subscriber of a topic. Returns the topic.
    pub(crate) fn add_worker(&self, topic: &str, worker: u16) -> Arc<Topic> {
        let hash = self.hasher.hash_one(topic);
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.find_mut(hash, |entry| entry.is(topic)) {
            entry.workers.set(worker, true);
            return Arc::clone(&entry.topic);
        }
        let topic = Topic::new(topic, &self.pending_bytes);
        let mut workers = Box::<WorkerSet>::default();
        workers.set(worker, true);
        let entry = Entry { topic: Arc::clone(&topic), workers };
        shard.insert_unique(hash, entry, |entry| self.hash(entry));
        if let Some(observer) = &self.observer {
            observer(topic.name(), true);
        }
        topic
    }

    /// Removes a worker that lost its last subscriber of a topic.
    pub(crate) fn remove_worker(&self, topic: &str, worker: u16) {
        let hash = self.hasher.hash_one(topic);
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        let Ok(mut found) = shard.find_entry(hash, |entry| entry.is(topic)) else {
            return broken("a topic with subscribers is in the directory");
        };
        found.get_mut().workers.set(worker, false);
        if found.get().workers.is_empty() {
            found.remove();
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
                let topics = shard.len();
                shard.shrink_to(2 * topics, |entry| self.hash(entry));
            }
            if let Some(observer) = &self.observer {
                observer(topic, false);
            }
        }
    }

    fn hash(&self, entry: &Entry) -> u64 {
        self.hasher.hash_one(&**entry.topic.name())
    }

    fn shard(&self, hash: u64) -> &Shard {
        // Not the bits that the table of a shard uses.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

impl Entry {
    fn is(&self, topic: &str) -> bool {
        **self.topic.name() == *topic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_workers_has_those_that_were_added_in_ascending_order() {
        let mut set = WorkerSet::default();
        assert!(set.is_empty() && set.iter().next().is_none());
        let workers = [0, 1, 62, 63, 64, 127, 128, 700, WORKERS_MAX as u16 - 1];
        workers.iter().rev().for_each(|worker| set.set(*worker, true));
        assert_eq!(set.iter().collect::<Vec<_>>(), workers.map(usize::from));
        for worker in workers {
            set.set(worker, false);
            assert!(set.iter().all(|other| other > usize::from(worker)));
        }
        assert!(set.is_empty());
        (0..WORKERS_MAX as u16).for_each(|worker| set.set(worker, true));
        assert!(set.iter().eq(0..WORKERS_MAX));
    }

    #[test]
    fn the_first_subscriber_of_the_process_and_the_end_of_the_last_are_observed() {
        let (seen, mut directory) = (Arc::new(std::sync::Mutex::new(Vec::new())), Directory::new());
        let notes = Arc::clone(&seen);
        directory
            .observe(move |topic, there| notes.lock().unwrap().push((topic.to_owned(), there)));
        directory.add_worker("a", 1);
        directory.add_worker("a", 2);
        directory.add_worker("b", 2);
        directory.remove_worker("a", 1);
        directory.clone().remove_worker("a", 2);
        directory.add_worker("a", 1);
        let expected = [("a", true), ("b", true), ("a", false), ("a", true)];
        assert_eq!(*seen.lock().unwrap(), expected.map(|(topic, there)| (topic.to_owned(), there)));
    }

    #[test]
    fn a_topic_exists_while_a_worker_has_subscribers() {
        let directory = Directory::new();
        directory.add_worker("a", 1);
        directory.add_worker("a", 700);
        directory.add_worker("b", 3);
        assert_eq!(directory.topics(), 2);
        let hash = directory.hasher.hash_one("a");
        let shard = directory.shard(hash).read().unwrap();
        let entry = shard.find(hash, |entry| entry.is("a")).unwrap();
        assert_eq!(entry.workers.iter().collect::<Vec<_>>(), [1, 700]);
        drop(shard);
        directory.remove_worker("a", 1);
        directory.remove_worker("a", 700);
        assert_eq!(directory.topics(), 1);
    }
}
