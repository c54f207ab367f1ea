//! What nodes leave for each other in a broker: values by key, for a while, each of which is taken once.
//!
//! A request waits for nothing: it is queued by any thread, performed by the thread of the connections in the
//! order of its key, and answered by a call. Nothing is repeated: after a connection was lost it is unknown
//! whether what was on its way was performed, and a value that was put again could be taken twice.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::broker::{Broker, Shard, Unavailable};
use crate::limits::{STORE_BATCH, STORE_BATCH_BYTES, STORE_QUEUE_BYTES};

/// A request as a link performs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCommand {
    /// The key, as the broker knows it.
    pub key: Arc<str>,
    /// What to do.
    pub what: StoreAction,
}

/// What to do with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAction {
    /// Keep a value for this time, in place of another one.
    Put(Arc<[u8]>, Duration),
    /// Return the value and remove it.
    Take,
}

/// A value that is kept for a time where there is none by this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewValue {
    /// The key, as the broker knows it.
    pub key: Arc<str>,
    /// The value.
    pub value: Arc<[u8]>,
    /// How long it is kept.
    pub ttl: Duration,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAnswer {
    /// The broker has the value.
    Stored,
    /// It has another value by this key, which stays.
    Exists,
    /// The value. Nobody else gets it.
    Taken(Vec<u8>),
    /// The value, which stays.
    Found(Vec<u8>),
    /// There is no value by this key.
    Missing,
    /// It was not performed and will not be, for this reason.
    Refused(Box<str>),
    /// The broker has no such operation.
    Unsupported,
    /// It was on its way when the connection was lost: it may have been performed.
    Unknown,
}

/// Called with the answer, by the thread of the connections. False to be called again soon.
pub type OnAnswer = Box<dyn Fn(&StoreAnswer) -> bool + Send>;

/// What is asked of the broker.
#[derive(Debug)]
enum Asked {
    Do(StoreAction),
    Read,
    Add(Arc<[u8]>, Duration),
}

/// A request that is not answered yet.
pub(crate) struct Request {
    key: Arc<str>,
    asked: Asked,
    /// It is not performed later than this.
    until_ns: u64,
    pub(crate) on_answer: OnAnswer,
}

impl Request {
    fn bytes(&self) -> usize {
        let value = match &self.asked {
            Asked::Do(StoreAction::Put(value, _)) | Asked::Add(value, _) => value.len(),
            Asked::Do(StoreAction::Take) | Asked::Read => 0,
        };
        // Twice: the closure keeps about as much.
        2 * size_of::<Self>() + self.key.len() + value
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.key).field(&self.asked).finish()
    }
}

/// Consecutive requests of one kind, which are performed together.
#[derive(Debug)]
pub(crate) enum Batch {
    Commands(Vec<StoreCommand>),
    Read(Vec<Arc<str>>),
    Add(Vec<NewValue>),
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        match self {
            Batch::Commands(commands) => commands.len(),
            Batch::Read(keys) => keys.len(),
            Batch::Add(values) => values.len(),
        }
    }

    /// Adds a request; false if it is of another kind.
    fn push(&mut self, request: &Request) -> bool {
        let key = Arc::clone(&request.key);
        match (&request.asked, &mut *self) {
            (Asked::Do(what), Batch::Commands(commands)) => {
                commands.push(StoreCommand { key, what: what.clone() });
            }
            (Asked::Read, Batch::Read(keys)) => keys.push(key),
            (Asked::Add(value, ttl), Batch::Add(values)) => {
                values.push(NewValue { key, value: Arc::clone(value), ttl: *ttl });
            }
            (_, other) if other.len() > 0 => return false,
            (Asked::Do(what), _) => {
                *self = Batch::Commands(vec![StoreCommand { key, what: what.clone() }]);
            }
            (Asked::Read, _) => *self = Batch::Read(vec![key]),
            (Asked::Add(value, ttl), _) => {
                *self = Batch::Add(vec![NewValue { key, value: Arc::clone(value), ttl: *ttl }]);
            }
        }
        true
    }
}

/// The requests for one broker.
#[derive(Debug, Default)]
pub(crate) struct StoreQueue {
    inner: Mutex<Inner>,
    /// Requests are taken. Written under the lock.
    open: AtomicBool,
    pub(crate) wakes: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Request>,
    bytes: usize,
    in_flight: Vec<Request>,
    /// Those whose answer is to be told.
    answered: VecDeque<(Request, StoreAnswer)>,
}

impl Inner {
    fn pop(&mut self) -> Option<Request> {
        let request = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(request.bytes());
        Some(request)
    }
}

impl StoreQueue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a connection that performs requests.
    pub(crate) fn open(&self) {
        let _inner = self.lock();
        self.open.store(true, Ordering::Relaxed);
    }

    /// The connection is lost.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        self.open.store(false, Ordering::Relaxed);
        let in_flight = std::mem::take(&mut inner.in_flight);
        inner.answered.extend(in_flight.into_iter().map(|one| (one, StoreAnswer::Unknown)));
        while let Some(request) = inner.pop() {
            let refused = StoreAnswer::Refused("the connection was lost".into());
            inner.answered.push_back((request, refused));
        }
    }

    fn push(&self, request: Request) -> Result<(), Unavailable> {
        let mut inner = self.lock();
        if !self.open.load(Ordering::Relaxed) {
            return Err(Unavailable::Down);
        }
        let bytes = inner.bytes.saturating_add(request.bytes());
        if bytes > STORE_QUEUE_BYTES {
            return Err(Unavailable::Full);
        }
        inner.bytes = bytes;
        inner.waiting.push_back(request);
        Ok(())
    }

    /// The next requests, which are on their way from now on.
    pub(crate) fn take_batch(&self, now_ns: u64) -> Batch {
        let (mut batch, mut bytes) = (Batch::Commands(Vec::new()), 0);
        let mut inner = self.lock();
        while batch.len() < STORE_BATCH && bytes < STORE_BATCH_BYTES {
            let Some(next) = inner.waiting.front() else { break };
            let is_late = next.until_ns < now_ns;
            if !is_late && !batch.push(next) {
                break;
            }
            let Some(request) = inner.pop() else { break };
            if is_late {
                let refused = StoreAnswer::Refused("it waited for too long".into());
                inner.answered.push_back((request, refused));
                continue;
            }
            bytes += request.bytes();
            inner.in_flight.push(request);
        }
        batch
    }

    /// The answers to the last batch.
    pub(crate) fn answer(&self, answers: Vec<StoreAnswer>) {
        let mut inner = self.lock();
        let requests = std::mem::take(&mut inner.in_flight);
        inner.answered.extend(requests.into_iter().zip(answers));
    }

    /// The next answer that is to be told.
    pub(crate) fn next_answer(&self) -> Option<(Request, StoreAnswer)> {
        self.lock().answered.pop_front()
    }

    /// An answer that is to be told again.
    pub(crate) fn keep_answer(&self, request: Request, answer: StoreAnswer) {
        self.lock().answered.push_front((request, answer));
    }

    fn unanswered(&self) -> usize {
        let inner = self.lock();
        inner.waiting.len() + inner.in_flight.len() + inner.answered.len()
    }
}

impl Broker {
    fn store_shard(&self, key: &str) -> (Arc<str>, &Shard) {
        let key: Arc<str> = format!("{}:{key}", self.settings.prefix).into();
        let shard = self.shard(&key);
        (key, shard)
    }

    /// Asks the broker to keep a value, or to return and remove one. If it cannot be sent within a time, it is
    /// refused.
    ///
    /// # Errors
    /// It is not queued, and nobody is called.
    pub fn store(
        &self,
        key: &str,
        what: StoreAction,
        within: Duration,
        on_answer: OnAnswer,
    ) -> Result<(), Unavailable> {
        self.ask(key, Asked::Do(what), within, on_answer)
    }

    /// As [`Broker::store`], to return a value that stays.
    ///
    /// # Errors
    /// It is not queued, and nobody is called.
    pub fn read(
        &self,
        key: &str,
        within: Duration,
        on_answer: OnAnswer,
    ) -> Result<(), Unavailable> {
        self.ask(key, Asked::Read, within, on_answer)
    }

    /// As [`Broker::store`], to keep a value for a time if there is none by this key.
    ///
    /// # Errors
    /// It is not queued, and nobody is called.
    pub fn add(
        &self,
        key: &str,
        (value, ttl): (Arc<[u8]>, Duration),
        within: Duration,
        on_answer: OnAnswer,
    ) -> Result<(), Unavailable> {
        self.ask(key, Asked::Add(value, ttl), within, on_answer)
    }

    fn ask(
        &self,
        key: &str,
        asked: Asked,
        within: Duration,
        on_answer: OnAnswer,
    ) -> Result<(), Unavailable> {
        let (key, shard) = self.store_shard(key);
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.now_ns().saturating_add(within_ns);
        shard.store.push(Request { key, asked, until_ns, on_answer })?;
        self.ring();
        Ok(())
    }

    /// Whether requests for a key are taken now.
    #[must_use]
    pub fn stores(&self, key: &str) -> bool {
        self.store_shard(key).1.store.open.load(Ordering::Relaxed)
    }

    /// Requests that are not answered yet.
    #[must_use]
    pub fn store_waiting(&self) -> usize {
        self.shards.iter().map(|shard| shard.store.unanswered()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: &str, until_ns: u64, value: usize) -> Request {
        let what = match value {
            0 => StoreAction::Take,
            bytes => StoreAction::Put(vec![7; bytes].into(), Duration::from_secs(1)),
        };
        request_for(key, until_ns, Asked::Do(what))
    }

    fn request_for(key: &str, until_ns: u64, asked: Asked) -> Request {
        Request { key: key.into(), asked, until_ns, on_answer: Box::new(|_| true) }
    }

    fn keys(batch: &Batch) -> Vec<&str> {
        match batch {
            Batch::Commands(commands) => commands.iter().map(|command| &*command.key).collect(),
            Batch::Read(keys) => keys.iter().map(|key| &**key).collect(),
            Batch::Add(values) => values.iter().map(|one| &*one.key).collect(),
        }
    }

    fn told(queue: &StoreQueue) -> Vec<(String, StoreAnswer)> {
        let next = || queue.next_answer();
        std::iter::from_fn(next).map(|(one, answer)| (one.key.to_string(), answer)).collect()
    }

    #[test]
    fn requests_keep_their_order_and_each_is_answered() {
        let refused = |why: &str| StoreAnswer::Refused(why.into());
        let queue = StoreQueue::default();
        assert_eq!(queue.push(request("a", 9, 0)), Err(Unavailable::Down));
        queue.open();
        for (key, until_ns) in [("a", 9), ("b", 3), ("c", 9)] {
            queue.push(request(key, until_ns, 10)).unwrap();
        }
        assert_eq!(keys(&queue.take_batch(5)), ["a", "c"]);
        assert_eq!(told(&queue), [("b".to_owned(), refused("it waited for too long"))]);
        queue.push(request("d", 9, 0)).unwrap();
        assert_eq!(queue.unanswered(), 3);
        queue.close();
        assert_eq!(queue.push(request("e", 9, 0)), Err(Unavailable::Down));
        let lost = refused("the connection was lost");
        let (a, c, d) = ("a".to_owned(), "c".to_owned(), "d".to_owned());
        assert_eq!(told(&queue), [(a, StoreAnswer::Unknown), (c, StoreAnswer::Unknown), (d, lost)]);
        queue.open();
        queue.push(request("e", 9, 0)).unwrap();
        assert_eq!(keys(&queue.take_batch(0)), ["e"]);
        queue.answer(vec![StoreAnswer::Missing]);
        let (request, answer) = queue.next_answer().unwrap();
        queue.keep_answer(request, answer);
        assert_eq!(queue.unanswered(), 1);
        assert_eq!(told(&queue), [("e".to_owned(), StoreAnswer::Missing)]);
        assert_eq!(queue.unanswered(), 0);
    }

    #[test]
    fn requests_of_different_kinds_keep_their_order() {
        let queue = StoreQueue::default();
        queue.open();
        let add = || Asked::Add(Arc::from(*b"x"), Duration::from_secs(1));
        let all = [
            ("a", Asked::Read),
            ("b", Asked::Read),
            ("c", Asked::Do(StoreAction::Take)),
            ("d", add()),
            ("e", add()),
            ("f", Asked::Read),
        ];
        for (key, asked) in all {
            queue.push(request_for(key, 9, asked)).unwrap();
        }
        for expected in [&["a", "b"][..], &["c"], &["d", "e"], &["f"], &[]] {
            let batch = queue.take_batch(0);
            assert_eq!(keys(&batch), expected);
            queue.answer(vec![StoreAnswer::Missing; batch.len()]);
        }
        assert_eq!(told(&queue).len(), 6);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let queue = StoreQueue::default();
        queue.open();
        let mut taken = 0;
        while queue.push(request("a", 9, 1000)).is_ok() {
            taken += 1;
        }
        assert_eq!(queue.push(request("a", 9, 1000)), Err(Unavailable::Full));
        assert!((STORE_QUEUE_BYTES / 1400..STORE_QUEUE_BYTES / 1000).contains(&taken), "{taken}");
        assert_eq!(queue.take_batch(0).len(), STORE_BATCH);
        queue.push(request("a", 9, 1000)).unwrap();
    }
}

#[cfg(test)]
mod contract;
