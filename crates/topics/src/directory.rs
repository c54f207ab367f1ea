//! [`Directory`]: which workers have subscribers of which topic. Read once per publication, written
//! only when a worker gets its first subscriber of a topic or loses its last.

use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError, RwLock};

use engine::invariant::broken;
use engine::{ConnId, MailboxFull, Remote, WORKERS_MAX};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// A message for all subscribers of a topic, whatever their protocol.
#[derive(Debug)]
pub struct Publication {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The payload.
    pub data: Box<[u8]>,
    /// The payload is binary, not text.
    pub binary: bool,
    /// The subscriber that does not get it: usually the sender of a whisper.
    pub except: Option<ConnId>,
    /// When it was accepted, in nanoseconds of the monotonic clock; 0 if its delivery is not timed.
    pub accepted_ns: u64,
    /// The kind of message reported to receivers, if their protocol has a field for it.
    pub kind: Option<Box<str>>,
}

impl Publication {
    /// For all subscribers of a topic.
    #[must_use]
    pub fn new(topic: Arc<str>, data: Box<[u8]>, binary: bool) -> Self {
        Publication { topic, data, binary, except: None, accepted_ns: 0, kind: None }
    }

    /// The same, with the time at which it was accepted.
    #[must_use]
    pub fn accepted(self, now_ns: u64) -> Self {
        Publication { accepted_ns: now_ns, ..self }
    }

    /// Memory that it holds, in bytes, for the limits of mailboxes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let kind = self.kind.as_ref().map_or(0, |kind| kind.len());
        size_of::<Self>() + self.data.len() + self.topic.len() + kind
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

    fn iter(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }
}

struct Entry {
    name: Arc<str>,
    workers: Box<WorkerSet>,
}

/// Number of locks; a publication takes one of them for reading.
const SHARDS: usize = 64;

type Shard = RwLock<HashMap<Arc<str>, Entry, RandomState>>;

/// Which workers have subscribers of which topic. Cheap to clone, shared by all.
#[derive(Clone)]
pub struct Directory {
    shards: Arc<[Shard; SHARDS]>,
    hasher: RandomState,
}

impl Default for Directory {
    fn default() -> Self {
        Directory::new()
    }
}

impl Directory {
    /// An empty directory.
    #[must_use]
    pub fn new() -> Self {
        let shards = std::array::from_fn(|_| RwLock::new(HashMap::default()));
        Directory { shards: Arc::new(shards), hasher: RandomState::default() }
    }

    /// Number of topics that have a subscriber on any worker.
    #[must_use]
    pub fn topics(&self) -> usize {
        self.shards.iter().map(|s| s.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Publishes from a thread that is not a worker: to all workers that have subscribers, or to
    /// none if one of their mailboxes is full. Returns how many workers got it.
    ///
    /// # Errors
    /// [`MailboxFull`]: retry later, or report it to the publisher.
    pub fn publish<P: From<Arc<Publication>>>(
        &self,
        remote: &Remote<P>,
        publication: &Arc<Publication>,
    ) -> Result<usize, MailboxFull> {
        self.post(remote, publication, None)
    }

    pub(crate) fn post<P: From<Arc<Publication>>>(
        &self,
        remote: &Remote<P>,
        publication: &Arc<Publication>,
        except: Option<usize>,
    ) -> Result<usize, MailboxFull> {
        let topic = &*publication.topic;
        let shard = self.shard(topic).read().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = shard.get(topic) else { return Ok(0) };
        let workers = entry.workers.iter().filter(move |&worker| Some(worker) != except);
        let reached = workers.clone().count();
        remote.post_all(workers, publication.bytes(), || Arc::clone(publication).into())?;
        Ok(reached)
    }

    /// Adds a worker that got its first subscriber of a topic. Returns the shared name of the
    /// topic.
    pub(crate) fn add_worker(&self, topic: &str, worker: u16) -> Arc<str> {
        let mut shard = self.shard(topic).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.get_mut(topic) {
            entry.workers.set(worker, true);
            return Arc::clone(&entry.name);
        }
        let name: Arc<str> = topic.into();
        let mut workers = Box::<WorkerSet>::default();
        workers.set(worker, true);
        shard.insert(Arc::clone(&name), Entry { name: Arc::clone(&name), workers });
        name
    }

    /// Removes a worker that lost its last subscriber of a topic.
    pub(crate) fn remove_worker(&self, topic: &str, worker: u16) {
        let mut shard = self.shard(topic).write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = shard.get_mut(topic) else {
            return broken("a topic with subscribers is in the directory");
        };
        entry.workers.set(worker, false);
        if entry.workers.is_empty() {
            shard.remove(topic);
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
                let topics = shard.len();
                shard.shrink_to(2 * topics);
            }
        }
    }

    fn shard(&self, topic: &str) -> &Shard {
        let hash = self.hasher.hash_one(topic) as usize;
        &self.shards[hash % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_exists_while_a_worker_has_subscribers() {
        let directory = Directory::new();
        directory.add_worker("a", 1);
        directory.add_worker("a", 700);
        directory.add_worker("b", 3);
        assert_eq!(directory.topics(), 2);
        let shard = directory.shard("a").read().unwrap();
        assert_eq!(shard.get("a").unwrap().workers.iter().collect::<Vec<_>>(), [1, 700]);
        drop(shard);
        directory.remove_worker("a", 1);
        directory.remove_worker("a", 700);
        assert_eq!(directory.topics(), 1);
    }
}
