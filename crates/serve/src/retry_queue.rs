//! [`RetryQueue`]: publications of this worker's clients that found a mailbox full or their topic
//! overloaded. Their publishers are paused until the publications are accepted, so nothing is reordered
//! and nothing is dropped. Each topic has its share of the queue, and a turn retries a portion of it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use engine::ConnId;
use engine::invariant;
use topics::Publication;

/// Time between a failure and the next attempt. It doubles with each attempt that delivers nothing, up
/// to [`DOUBLINGS_MAX`] times: 64 ms.
const RETRY_AFTER: Duration = Duration::from_millis(1);
const DOUBLINGS_MAX: u32 = 6;
/// Bytes that may be queued in one worker. A topic may have as many as all leave free of them; beyond
/// that its publishers are disconnected.
const QUEUED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Publications retried in one turn. Messages of others must not wait for all of them.
const RETRIED_PER_TURN: usize = 256;

/// A connection and its publication.
type Waiting = (ConnId, Arc<Publication>);

/// Publications to retry, at most one per connection.
#[derive(Default)]
pub(crate) struct RetryQueue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// Bytes of each topic.
    topics: HashMap<Box<str>, usize>,
    retry_at_ns: u64,
    /// How many, from the front, this attempt has still to retry.
    left: usize,
    /// Whether this attempt has delivered anything.
    delivered: bool,
    /// Attempts in a row that delivered nothing.
    in_vain: u32,
}

impl RetryQueue {
    /// Queues a publication; false if its topic has no room.
    pub(crate) fn push(&mut self, now_ns: u64, id: ConnId, publication: Arc<Publication>) -> bool {
        let of_topic = self.topics.get(&*publication.topic).copied().unwrap_or_default();
        if of_topic >= QUEUED_BYTES_MAX.saturating_sub(self.bytes) {
            return false;
        }
        if self.waiting.is_empty() {
            self.retry_at_ns = now_ns + self.delay_ns();
        }
        self.push_again(id, publication);
        true
    }

    /// Queues a publication that was retried and failed again.
    pub(crate) fn push_again(&mut self, id: ConnId, publication: Arc<Publication>) {
        let bytes = publication.bytes();
        self.bytes += bytes;
        match self.topics.get_mut(&*publication.topic) {
            Some(of_topic) => *of_topic += bytes,
            None => drop(self.topics.insert((*publication.topic).into(), bytes)),
        }
        self.waiting.push_back((id, publication));
    }

    /// Whether a publication of this connection waits.
    pub(crate) fn holds(&self, id: ConnId) -> bool {
        self.waiting.iter().any(|(own, _)| *own == id)
    }

    fn delay_ns(&self) -> u64 {
        (RETRY_AFTER.as_nanos() as u64) << self.in_vain.min(DOUBLINGS_MAX)
    }

    /// Ends a portion of an attempt, after what failed again was pushed: `delivered` says whether any of it
    /// was delivered.
    pub(crate) fn attempted(&mut self, now_ns: u64, delivered: bool) {
        self.delivered |= delivered;
        if self.left > 0 {
            // The rest is due in the next turn.
            self.retry_at_ns = now_ns;
            return;
        }
        let delivered = std::mem::take(&mut self.delivered);
        self.in_vain = if delivered { 0 } else { self.in_vain.saturating_add(1) };
        self.retry_at_ns = now_ns + self.delay_ns();
    }

    /// The publications that this turn retries, in their order; none if no retry is due. The caller pushes
    /// those that fail again.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> VecDeque<Waiting> {
        if now_ns < self.retry_at_ns {
            return VecDeque::new();
        }
        if self.left == 0 {
            self.left = self.waiting.len();
        }
        let portion = self.left.min(RETRIED_PER_TURN);
        self.left -= portion;
        let later = self.waiting.split_off(portion);
        let due = std::mem::replace(&mut self.waiting, later);
        for (_, publication) in &due {
            self.uncount(publication);
        }
        due
    }

    fn uncount(&mut self, publication: &Publication) {
        let bytes = publication.bytes();
        self.bytes -= bytes;
        match self.topics.get_mut(&*publication.topic) {
            Some(of_topic) if *of_topic > bytes => *of_topic -= bytes,
            Some(_) => drop(self.topics.remove(&*publication.topic)),
            None => invariant::broken("the topic of a queued publication is counted"),
        }
    }

    /// When the next retry is due, if any.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.retry_at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(bytes: usize) -> Arc<Publication> {
        of_topic("x", bytes)
    }

    fn of_topic(topic: &str, bytes: usize) -> Arc<Publication> {
        Arc::new(Publication::new(topic.into(), vec![0; bytes].into(), true))
    }

    fn id() -> ConnId {
        ConnId::from_u64(1)
    }

    #[test]
    fn publications_are_retried_in_order_when_due() {
        let mut queue = RetryQueue::default();
        assert_eq!(queue.next_ns(), None);
        assert!(queue.push(10, id(), publication(1)) && queue.push(20, id(), publication(2)));
        let at = queue.next_ns().unwrap();
        assert!(at > 20 && queue.take_due(at - 1).is_empty());
        let sizes: Vec<usize> = queue.take_due(at).iter().map(|(_, p)| p.data.len()).collect();
        assert_eq!((sizes, queue.next_ns()), (vec![1, 2], None));
    }

    #[test]
    fn attempts_in_vain_are_further_and_further_apart() {
        let mut queue = RetryQueue::default();
        assert!(queue.push(0, id(), publication(1)));
        let (mut now_ns, mut attempts) = (0, 0);
        while now_ns < 10_000_000_000 {
            now_ns = queue.next_ns().unwrap();
            for (id, publication) in queue.take_due(now_ns) {
                queue.push_again(id, publication);
            }
            queue.attempted(now_ns, false);
            attempts += 1;
        }
        assert!((150..170).contains(&attempts), "{attempts} attempts in 10 s");
        queue.attempted(now_ns, true);
        assert_eq!(queue.next_ns(), Some(now_ns + 1_000_000), "at once after a success");
    }

    #[test]
    fn queued_bytes_are_limited() {
        let mut queue = RetryQueue::default();
        let each = 64 * 1024;
        let fill = |queue: &mut RetryQueue, topic: &str| {
            (0..1_000).take_while(|_| queue.push(0, id(), of_topic(topic, each))).count() * each
        };
        let taken = ["a", "b", "c"].map(|topic| fill(&mut queue, topic));
        // The others find room, however much one topic has.
        for (taken, share) in taken.into_iter().zip([2, 4, 8]) {
            let share = QUEUED_BYTES_MAX / share;
            assert!(taken > share - 2 * each && taken <= share + each, "{taken} of {share}");
        }
        assert!(queue.bytes <= QUEUED_BYTES_MAX);
        while queue.next_ns().is_some() {
            queue.take_due(u64::MAX);
        }
        assert_eq!((queue.bytes, queue.topics.len()), (0, 0));
        assert!(queue.push(0, id(), publication(each)), "empty again");
    }

    #[test]
    fn a_turn_retries_a_portion_and_each_publication_is_retried_once() {
        let mut queue = RetryQueue::default();
        let all = 5 * RETRIED_PER_TURN + 1;
        for number in 0..all {
            assert!(queue.push(0, ConnId::from_u64(number as u64), publication(1)));
        }
        let (now_ns, mut retried) = (queue.next_ns().unwrap(), Vec::new());
        while queue.next_ns() == Some(now_ns) {
            let due = queue.take_due(now_ns);
            assert!(due.len() <= RETRIED_PER_TURN);
            for (id, publication) in due {
                retried.push(id.as_u64());
                // Those that come meanwhile wait for the next attempt.
                assert!(queue.push(now_ns, id, publication));
            }
            queue.attempted(now_ns, false);
        }
        assert_eq!(retried, (0..all as u64).collect::<Vec<_>>());
        let again_ns = queue.next_ns().unwrap();
        assert_eq!(again_ns - now_ns, queue.delay_ns(), "the whole attempt was in vain");
        // One success in an attempt is enough to try again at once.
        for _ in 0..all.div_ceil(RETRIED_PER_TURN) {
            let first = queue.left == 0;
            queue.take_due(again_ns);
            queue.attempted(again_ns, first);
        }
        assert_eq!(queue.retry_at_ns, again_ns + RETRY_AFTER.as_nanos() as u64);
    }
}
