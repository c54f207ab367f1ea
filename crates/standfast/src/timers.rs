//! [`SocketTimers`]: the timers of a worker's sockets, at most one for each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::SocketId;

/// Timers that are called in one turn; the others follow in the next one.
pub(crate) const TIMERS_PER_TURN: usize = 1024;

/// The timers that are set. A timer that is moved to a later time keeps its entry in the heap, which is
/// moved when it comes up: setting a timer again and again, for each message, costs no heap operation.
#[derive(Default)]
pub(crate) struct SocketTimers {
    set: BTreeMap<SocketId, Timer>,
    /// At least one entry for each timer, at its time or earlier.
    queue: BinaryHeap<Reverse<(u64, SocketId)>>,
}

struct Timer {
    at_ns: u64,
    /// The earliest entry of the heap.
    queued_ns: u64,
}

impl SocketTimers {
    /// Sets the timer of a socket, instead of the one that it had.
    pub(crate) fn set(&mut self, id: SocketId, at_ns: u64) {
        match self.set.get_mut(&id) {
            Some(timer) => {
                timer.at_ns = at_ns;
                if at_ns >= timer.queued_ns {
                    return;
                }
                timer.queued_ns = at_ns;
            }
            None => drop(self.set.insert(id, Timer { at_ns, queued_ns: at_ns })),
        }
        self.queue.push(Reverse((at_ns, id)));
        self.drop_stale();
    }

    /// Removes the timer of a socket. Returns whether it had one.
    pub(crate) fn clear(&mut self, id: SocketId) -> bool {
        let was_set = !self.set.is_empty() && self.set.remove(&id).is_some();
        if was_set {
            self.drop_stale();
        }
        was_set
    }

    /// Removes and returns a timer that is due.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<SocketId> {
        while let Some(&Reverse((queued_ns, id))) = self.queue.peek() {
            if queued_ns > now_ns {
                return None;
            }
            self.queue.pop();
            let Some(timer) = self.set.get_mut(&id).filter(|timer| timer.queued_ns == queued_ns)
            else {
                continue;
            };
            if timer.at_ns <= now_ns {
                self.set.remove(&id);
                return Some(id);
            }
            timer.queued_ns = timer.at_ns;
            self.queue.push(Reverse((timer.at_ns, id)));
        }
        None
    }

    /// When to look again; it may be too early.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Frees the entries of timers that are no longer set, once they are the majority.
    fn drop_stale(&mut self) {
        if self.queue.len() > 2 * self.set.len() + 64 || self.set.is_empty() {
            let entries = self.set.iter_mut().map(|(id, timer)| {
                timer.queued_ns = timer.at_ns;
                Reverse((timer.at_ns, *id))
            });
            self.queue = entries.collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> SocketId {
        SocketId::first_at(0, slot)
    }

    fn due(timers: &mut SocketTimers, now_ns: u64) -> Vec<SocketId> {
        std::iter::from_fn(|| timers.pop(now_ns)).collect()
    }

    #[test]
    fn timers_come_up_in_order_and_once() {
        let mut timers = SocketTimers::default();
        for (slot, at_ns) in [(1, 30), (2, 10), (3, 20)] {
            timers.set(id(slot), at_ns);
        }
        assert_eq!(timers.next_ns(), Some(10));
        assert_eq!(due(&mut timers, 9), []);
        assert_eq!(due(&mut timers, 25), [id(2), id(3)]);
        assert_eq!(due(&mut timers, 100), [id(1)]);
        assert_eq!((due(&mut timers, 200), timers.next_ns()), (vec![], None));
    }

    #[test]
    fn a_timer_is_moved_and_removed() {
        let mut timers = SocketTimers::default();
        timers.set(id(1), 10);
        timers.set(id(1), 50);
        assert_eq!(due(&mut timers, 40), []);
        timers.set(id(1), 45);
        assert_eq!(due(&mut timers, 45), [id(1)]);
        assert_eq!(due(&mut timers, 100), []);
        timers.set(id(2), 110);
        assert!(timers.clear(id(2)) && !timers.clear(id(2)));
        assert_eq!((due(&mut timers, 200), timers.next_ns()), (vec![], None));
    }

    #[test]
    fn the_queue_does_not_grow_with_what_is_set_again() {
        let mut timers = SocketTimers::default();
        // Miri is a thousand times slower.
        for round in 0..if cfg!(miri) { 30 } else { 10_000 } {
            for slot in 0..10 {
                // Later, earlier, removed.
                timers.set(id(slot), 1_000_000 + round);
                timers.set(id(slot), 1_000_000 - round);
                if slot % 2 == 0 {
                    timers.clear(id(slot));
                }
            }
            assert!(timers.queue.len() <= 2 * 10 + 65, "{}", timers.queue.len());
        }
        assert_eq!(due(&mut timers, 2_000_000).len(), 5);
    }
}
