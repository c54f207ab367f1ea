//! [`RetryQueue`]: publications of this worker's clients that found a mailbox full. Their publishers
//! are paused until the publications are delivered, so nothing is reordered and nothing is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use engine::ConnId;
use topics::Publication;

/// Time between a failure and the next attempt.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Bytes that may be held in one worker; a publisher beyond that is disconnected.
const HELD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Publications to retry, at most one per connection.
#[derive(Default)]
pub(crate) struct Held {
    waiting: VecDeque<(ConnId, Arc<Publication>)>,
    bytes: usize,
    retry_at_ns: u64,
}

impl Held {
    /// Keeps a publication; false when too much is held already.
    pub(crate) fn hold(&mut self, now_ns: u64, id: ConnId, publication: Arc<Publication>) -> bool {
        if self.bytes >= HELD_BYTES_MAX {
            return false;
        }
        if self.waiting.is_empty() {
            self.retry_at_ns = now_ns + RETRY_AFTER.as_nanos() as u64;
        }
        self.bytes += publication.bytes();
        self.waiting.push_back((id, publication));
        true
    }

    /// All that are to be tried now, in the order they came; what fails again is held again.
    pub(crate) fn due(&mut self, now_ns: u64) -> VecDeque<(ConnId, Arc<Publication>)> {
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
    fn what_is_held_comes_back_in_order_when_its_time_has_come() {
        let mut held = Held::default();
        assert_eq!(held.next_ns(), None);
        assert!(held.hold(10, id(), publication(1)) && held.hold(20, id(), publication(2)));
        let at = held.next_ns().unwrap();
        assert!(at > 20 && held.due(at - 1).is_empty());
        let sizes: Vec<usize> = held.due(at).iter().map(|(_, p)| p.data.len()).collect();
        assert_eq!((sizes, held.next_ns()), (vec![1, 2], None));
    }

    #[test]
    fn what_is_held_has_a_limit() {
        let mut held = Held::default();
        let each = 1024 * 1024;
        let taken = (0..100).take_while(|_| held.hold(0, id(), publication(each))).count();
        assert_eq!(taken, HELD_BYTES_MAX / each);
        assert_eq!(held.due(u64::MAX).len(), taken);
        assert!(held.hold(0, id(), publication(each)), "empty again");
    }
}
