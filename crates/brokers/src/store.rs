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

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAnswer {
    /// The broker has the value.
    Stored,
    /// The value. Nobody else gets it.
    Taken(Vec<u8>),
    /// There is no value by this key.
    Missing,
    /// It was not performed and will not be, for this reason.
    Refused(Box<str>),
    /// It was on its way when the connection was lost: it may have been performed.
    Unknown,
}

/// Called with the answer, by the thread of the connections. False to be called again soon.
pub type OnAnswer = Box<dyn Fn(&StoreAnswer) -> bool + Send>;

/// A request that is not answered yet.
pub(crate) struct Request {
    pub(crate) command: StoreCommand,
    /// It is not performed later than this.
    until_ns: u64,
    pub(crate) on_answer: OnAnswer,
}

impl Request {
    fn bytes(&self) -> usize {
        let value = match &self.command.what {
            StoreAction::Put(value, _) => value.len(),
            StoreAction::Take => 0,
        };
        // Twice: the closure keeps about as much.
        2 * size_of::<Self>() + self.command.key.len() + value
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.fmt(f)
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
    pub(crate) fn take_batch(&self, now_ns: u64) -> Vec<StoreCommand> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut inner = self.lock();
        while batch.len() < STORE_BATCH && bytes < STORE_BATCH_BYTES {
            let Some(request) = inner.pop() else { break };
            if request.until_ns < now_ns {
                let refused = StoreAnswer::Refused("it waited for too long".into());
                inner.answered.push_back((request, refused));
                continue;
            }
            bytes += request.bytes();
            batch.push(request.command.clone());
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
        let (key, shard) = self.store_shard(key);
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.now_ns().saturating_add(within_ns);
        let command = StoreCommand { key, what };
        shard.store.push(Request { command, until_ns, on_answer })?;
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
        let command = StoreCommand { key: key.into(), what };
        Request { command, until_ns, on_answer: Box::new(|_| true) }
    }

    fn keys(batch: &[StoreCommand]) -> Vec<&str> {
        batch.iter().map(|command| &*command.key).collect()
    }

    fn told(queue: &StoreQueue) -> Vec<(String, StoreAnswer)> {
        let next = || queue.next_answer();
        std::iter::from_fn(next)
            .map(|(one, answer)| (one.command.key.to_string(), answer))
            .collect()
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
