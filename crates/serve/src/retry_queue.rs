//! [`RetryQueue`]: publications of this worker's clients that found a mailbox full or their topic
//! overloaded. Their publishers are paused until the publications are accepted, so nothing is reordered
//! and nothing is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use engine::ConnId;
use topics::Publication;

/// Time between a failure and the next attempt. It doubles with each attempt that delivers nothing, up
/// to [`DOUBLINGS_MAX`] times: 64 ms.
const RETRY_AFTER: Duration = Duration::from_millis(1);
const DOUBLINGS_MAX: u32 = 6;
/// Bytes that may be queued in one worker; beyond that a publisher is disconnected.
const QUEUED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Publications to retry, at most one per connection.
#[derive(Default)]
pub(crate) struct RetryQueue {
    waiting: VecDeque<(ConnId, Arc<Publication>)>,
    bytes: usize,
    retry_at_ns: u64,
    /// Attempts in a row that delivered nothing.
    in_vain: u32,
}

impl RetryQueue {
    /// Queues a publication; false if the queue is full.
    pub(crate) fn push(&mut self, now_ns: u64, id: ConnId, publication: Arc<Publication>) -> bool {
        if self.bytes >= QUEUED_BYTES_MAX {
            return false;
        }
        if self.waiting.is_empty() {
            self.retry_at_ns = now_ns + self.delay_ns();
        }
        self.bytes += publication.bytes();
        self.waiting.push_back((id, publication));
        true
    }

    fn delay_ns(&self) -> u64 {
        (RETRY_AFTER.as_nanos() as u64) << self.in_vain.min(DOUBLINGS_MAX)
    }

    /// Ends an attempt, after what failed again was pushed: `delivered` says whether anything was
    /// delivered.
    pub(crate) fn attempted(&mut self, now_ns: u64, delivered: bool) {
        self.in_vain = if delivered { 0 } else { self.in_vain.saturating_add(1) };
        self.retry_at_ns = now_ns + self.delay_ns();
    }

    /// All publications if a retry is due, in their order. The caller pushes those that fail again.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> VecDeque<(ConnId, Arc<Publication>)> {
        if now_ns < self.retry_at_ns {
            return VecDeque::new();
        }
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
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
        Arc::new(Publication::new("x".into(), vec![0; bytes].into(), true))
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
                assert!(queue.push(now_ns, id, publication));
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
        let each = 1024 * 1024;
        let taken = (0..100).take_while(|_| queue.push(0, id(), publication(each))).count();
        assert_eq!(taken, QUEUED_BYTES_MAX / each);
        assert_eq!(queue.take_due(u64::MAX).len(), taken);
        assert!(queue.push(0, id(), publication(each)), "empty again");
    }
}
