//! [`Topic`]: what the workers share of one topic, among it how much is pending, and so whether
//! a further publication would be delivered soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of pending publications in the process. One topic may hold as many as all topics leave
/// free, so that some are always left for others.
const PENDING_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Encodes that may be pending for one topic, for each worker with subscribers. A publication counts as
/// some even without any groups, so that there are not too many.
const PENDING_ENCODES_MAX: usize = 64 * 1024;
const PUBLICATION_ENCODES: usize = 3;

/// One topic of a process.
#[derive(Debug)]
pub(crate) struct Topic {
    name: Arc<str>,
    /// Groups on all workers.
    groups: AtomicUsize,
    /// Workers with a publication that has been pending for too long.
    late: AtomicUsize,
    /// Of pending publications: groups they were to be encoded for when they were accepted, and their
    /// bytes.
    encodes: AtomicUsize,
    bytes: AtomicUsize,
    /// Bytes of pending publications of all topics.
    process_bytes: Arc<AtomicUsize>,
}

impl Topic {
    pub(crate) fn new(name: &str, process_bytes: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Topic {
            name: name.into(),
            groups: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
            encodes: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            process_bytes: Arc::clone(process_bytes),
        })
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn group_added(&self) {
        self.groups.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn group_removed(&self) {
        self.groups.fetch_sub(1, Ordering::Relaxed);
    }

    /// Encodes that a publication counts as.
    fn cost(&self) -> usize {
        self.groups.load(Ordering::Relaxed) + PUBLICATION_ENCODES
    }

    /// Sets whether one worker has a publication that has been pending for too long. To be called
    /// when that changes.
    pub(crate) fn set_late(&self, late: bool) {
        if late {
            self.late.fetch_add(1, Ordering::Relaxed);
        } else {
            self.late.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether a publication of so many bytes to `workers` workers would be delivered soon. Those of
    /// threads that ask at the same time are not counted yet.
    pub(crate) fn accepts(&self, bytes: usize, workers: usize) -> bool {
        if self.late.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let held = self.bytes.load(Ordering::Relaxed);
        if held == 0 {
            return true;
        }
        let encodes = self.encodes.load(Ordering::Relaxed) + self.cost();
        let left = PENDING_BYTES_MAX.saturating_sub(self.process_bytes.load(Ordering::Relaxed));
        encodes <= PENDING_ENCODES_MAX * workers.max(1) && held + bytes <= left
    }
}

/// A pending publication in the counts of its topic.
#[derive(Debug)]
pub(crate) struct Reservation {
    topic: Arc<Topic>,
    encodes: usize,
    bytes: usize,
}

impl Reservation {
    pub(crate) fn new(topic: &Arc<Topic>, bytes: usize) -> Self {
        let encodes = topic.cost();
        topic.encodes.fetch_add(encodes, Ordering::Relaxed);
        topic.bytes.fetch_add(bytes, Ordering::Relaxed);
        topic.process_bytes.fetch_add(bytes, Ordering::Relaxed);
        Reservation { topic: Arc::clone(topic), encodes, bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.topic.encodes.fetch_sub(self.encodes, Ordering::Relaxed);
        self.topic.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.topic.process_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Publishes until the topic is refused.
    fn fill(topic: &Arc<Topic>, bytes: usize, workers: usize) -> Vec<Reservation> {
        let next = || topic.accepts(bytes, workers).then(|| Reservation::new(topic, bytes));
        std::iter::repeat_with(next).map_while(|reserved| reserved).collect()
    }

    #[test]
    fn a_topic_is_refused_by_bytes_and_leaves_room_for_others() {
        let process_bytes = Arc::default();
        let topics: Vec<Arc<Topic>> =
            (0..20).map(|n: u32| Topic::new(&n.to_string(), &process_bytes)).collect();
        let mut all = Vec::new();
        for (before, topic) in topics.iter().enumerate() {
            topic.group_added();
            let filled = fill(topic, 1000, 1);
            assert!(before > 5 || filled.len() > 50, "{} in {before}", filled.len());
            assert!(!filled.is_empty() && !topic.accepts(1000, 1));
            all.extend(filled);
            assert!(process_bytes.load(Ordering::Relaxed) <= PENDING_BYTES_MAX + 20 * 1000);
        }
        drop(all);
        assert!(topics.iter().all(|topic| topic.accepts(1000, 1)));
        assert_eq!(process_bytes.load(Ordering::Relaxed), 0);
        assert!(topics[0].accepts(2 * PENDING_BYTES_MAX, 1), "one of any length");
    }

    #[test]
    fn a_topic_is_refused_by_encodes_but_never_for_its_size_alone() {
        let process_bytes = Arc::default();
        let topic = Topic::new("large", &process_bytes);
        for _ in 0..PENDING_ENCODES_MAX / 4 - PUBLICATION_ENCODES {
            topic.group_added();
        }
        assert_eq!(fill(&topic, 10, 1).len(), 4);
        assert_eq!(fill(&topic, 10, 3).len(), 12);
        for _ in 0..4 * PENDING_ENCODES_MAX {
            topic.group_added();
        }
        let filled = fill(&topic, 10, 2);
        assert_eq!(filled.len(), 1);
        // The count is taken back as it was added.
        topic.group_removed();
        drop(filled);
        assert_eq!(topic.encodes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_late_topic_is_refused_until_no_worker_is_late() {
        let topic = Topic::new("late", &Arc::default());
        topic.set_late(true);
        topic.set_late(true);
        topic.set_late(false);
        assert!(!topic.accepts(1, 1));
        topic.set_late(false);
        assert!(topic.accepts(1, 1));
    }
}
