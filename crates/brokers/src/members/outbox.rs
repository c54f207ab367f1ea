//! [`Outbox`]: changes of this node's members that are not written yet, the last one of each member only.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use super::{BATCH_WRITES, OUTBOX_MAX, WRITE_BYTES, WRITE_MEMBERS};

/// The state of a member: absent, or present with an info.
pub(crate) type OwnedState = Option<Option<Arc<str>>>;

/// Members of one topic that have changed.
type Changes = HashMap<Arc<str>, OwnedState, RandomState>;

/// What any thread changes and the thread of the connections writes.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    topics: HashMap<Arc<str>, Changes, RandomState>,
    /// Topics in the order of their first change.
    order: VecDeque<Arc<str>>,
    members: usize,
    /// Some changes found no room.
    overflown: bool,
}

/// Changes of a topic, to be written together.
pub(crate) struct Batch {
    pub(crate) topic: Arc<str>,
    pub(crate) changes: Vec<(Arc<str>, OwnedState)>,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member has changed.
    pub(crate) fn push(&self, topic: &str, id: Arc<str>, state: OwnedState) {
        let mut inner = self.lock();
        inner.push(topic, id, state, true);
    }

    /// Changes that may not have been written are to be written again, unless there are later ones.
    pub(crate) fn put_back(&self, batches: Vec<Batch>) {
        let mut inner = self.lock();
        for Batch { topic, changes } in batches {
            changes.into_iter().for_each(|(id, state)| inner.push(&topic, id, state, false));
        }
    }

    /// The next changes, at most [`BATCH_WRITES`] batches.
    pub(crate) fn take(&self) -> Vec<Batch> {
        let mut inner = self.lock();
        let mut batches = Vec::new();
        while batches.len() < BATCH_WRITES {
            let Some(topic) = inner.order.pop_front() else { break };
            let Some(all) = inner.topics.remove(&topic) else { continue };
            let mut all = all.into_iter().peekable();
            while batches.len() < BATCH_WRITES && all.peek().is_some() {
                let (mut changes, mut bytes) = (Vec::new(), 0);
                while changes.len() < WRITE_MEMBERS && bytes < WRITE_BYTES {
                    let Some((id, state)) = all.next() else { break };
                    bytes += bytes_of(&id, &state);
                    changes.push((id, state));
                }
                inner.members -= changes.len();
                batches.push(Batch { topic: Arc::clone(&topic), changes });
            }
            let rest: Changes = all.collect();
            if !rest.is_empty() {
                inner.order.push_front(Arc::clone(&topic));
                inner.topics.insert(topic, rest);
            }
        }
        if inner.order.is_empty() {
            (inner.order, inner.topics) = Default::default();
        }
        batches
    }

    /// Forgets everything, before all members are written anew.
    pub(crate) fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Whether changes found no room.
    pub(crate) fn is_overflown(&self) -> bool {
        self.lock().overflown
    }

    /// Members that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().members
    }
}

fn bytes_of(id: &str, state: &OwnedState) -> usize {
    id.len() + state.iter().flatten().map(|info| info.len()).sum::<usize>()
}

impl Inner {
    fn push(&mut self, topic: &str, id: Arc<str>, state: OwnedState, newer: bool) {
        if self.overflown {
            return;
        }
        if !self.topics.contains_key(topic) {
            let topic: Arc<str> = topic.into();
            self.order.push_back(Arc::clone(&topic));
            self.topics.insert(topic, Changes::default());
        }
        let Some(changes) = self.topics.get_mut(topic) else { return };
        let before = changes.len();
        if newer {
            changes.insert(id, state);
        } else {
            changes.entry(id).or_insert(state);
        }
        self.members += changes.len() - before;
        if self.members > OUTBOX_MAX {
            *self = Inner { overflown: true, ..Inner::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(info: &str) -> OwnedState {
        Some(Some(info.into()))
    }

    #[test]
    fn the_last_change_of_each_member_is_written() {
        let outbox = Outbox::default();
        outbox.push("a", "ann".into(), present("1"));
        outbox.push("b", "bob".into(), Some(None));
        outbox.push("a", "ann".into(), None);
        let taken = outbox.take();
        let changes: Vec<_> = taken.iter().map(|batch| (&*batch.topic, &*batch.changes)).collect();
        assert_eq!(
            changes,
            [("a", &[("ann".into(), None)][..]), ("b", &[("bob".into(), Some(None))])]
        );
        // They were lost, and meanwhile she is back.
        outbox.push("a", "ann".into(), present("2"));
        outbox.put_back(taken);
        assert_eq!(outbox.len(), 2);
        let again = outbox.take();
        assert_eq!(again[0].changes, [("ann".into(), present("2"))]);
        assert_eq!((again[1].changes.len(), outbox.len(), outbox.take().len()), (1, 0, 0));
    }

    #[test]
    fn many_changes_are_several_writes_and_too_many_are_given_up() {
        let outbox = Outbox::default();
        for number in 0..2 * WRITE_MEMBERS + 5 {
            outbox.push("a", number.to_string().into(), Some(None));
        }
        let lengths: Vec<usize> = outbox.take().iter().map(|batch| batch.changes.len()).collect();
        assert_eq!(lengths, [WRITE_MEMBERS, WRITE_MEMBERS, 5]);
        let long: Arc<str> = "x".repeat(WRITE_BYTES / 4).into();
        for number in 0..9 {
            outbox.push("a", number.to_string().into(), Some(Some(Arc::clone(&long))));
        }
        let lengths: Vec<usize> = outbox.take().iter().map(|batch| batch.changes.len()).collect();
        assert_eq!(lengths, [4, 4, 1]);
        for number in 0..=OUTBOX_MAX {
            outbox.push("a", number.to_string().into(), None);
        }
        assert!(outbox.is_overflown() && outbox.len() == 0);
        outbox.push("a", "ann".into(), None);
        assert_eq!(outbox.take().len(), 0);
        outbox.clear();
        assert!(!outbox.is_overflown());
    }
}
