//! [`RetryQueue`]: publications of this worker's clients that found a mailbox full. Their publishers
//! are paused until the publications are delivered, so nothing is reordered and nothing is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use engine::ConnId;
use topics::Publication;

/// Time between a failure and the next attempt.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Bytes that may be queued in one worker; beyond that a publisher is disconnected.
const QUEUED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Publications to retry, at most one per connection.
#[derive(Default)]
pub(crate) struct RetryQueue {
    waiting: VecDeque<(ConnId, Arc<Publication>)>,
    bytes: usize,
    retry_at_ns: u64,
}

impl RetryQueue {
    /// Queues a publication; false if the queue is full.
    pub(crate) fn push(&mut self, now_ns: u64, id: ConnId, publication: Arc<Publication>) -> bool {
        if self.bytes >= QUEUED_BYTES_MAX {
            return false;
        }
        if self.waiting.is_empty() {
            self.retry_at_ns = now_ns + RETRY_AFTER.as_nanos() as u64;
        }
        self.bytes += publication.bytes();
        self.waiting.push_back((id, publication));
        true
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
    fn queued_bytes_are_limited() {
        let mut queue = RetryQueue::default();
        let each = 1024 * 1024;
        let taken = (0..100).take_while(|_| queue.push(0, id(), publication(each))).count();
        assert_eq!(taken, QUEUED_BYTES_MAX / each);
        assert_eq!(queue.take_due(u64::MAX).len(), taken);
        assert!(queue.push(0, id(), publication(each)), "empty again");
    }
}
