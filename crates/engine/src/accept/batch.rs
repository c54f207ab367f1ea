//! [`Batch`]: how many connections to accept from a listener before epoll is asked again.
//!
//! An `accept4` that finds an empty queue costs more than an event of epoll: the kernel makes a socket and
//! a file before it looks (`do_accept` in `net/socket.c`). As listeners are level-triggered, nobody has to
//! look: epoll reports a queue that is not empty yet. With one listener for many clients, though, a turn
//! per connection is too much. So a batch grows while the queue holds more, and one look in vain is spent
//! on every [`GROWS_AFTER`] connections at most.

/// Connections accepted in full batches before the next one is longer.
const GROWS_AFTER: usize = 16;
/// The longest batch, if the budget of the turn allows it.
const LONGEST: usize = 64;

/// Of one listener.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Batch {
    length: usize,
    /// Accepted since the length changed or the queue was found empty.
    accepted: usize,
}

impl Batch {
    pub(crate) const fn new() -> Self {
        Batch { length: 1, accepted: 0 }
    }

    /// The connections to accept now.
    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// A whole batch, or as much of it as the budget allows, was accepted.
    pub(crate) fn was_full(&mut self, taken: usize) {
        self.accepted += taken;
        if self.accepted >= GROWS_AFTER {
            *self = Batch { length: (2 * self.length).min(LONGEST), accepted: 0 };
        }
    }

    /// The queue was found empty after `taken` connections.
    pub(crate) fn found_the_end(&mut self, taken: usize) {
        *self = Batch { length: taken.clamp(1, LONGEST), accepted: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_grows_with_the_queue_and_shrinks_to_it() {
        let mut batch = Batch::new();
        let mut batches = 0;
        while batch.length() < LONGEST {
            batch.was_full(batch.length());
            batches += 1;
        }
        // 16 × 1, 8 × 2, 4 × 4, 2 × 8, 1 × 16, 1 × 32.
        assert_eq!(batches, 32);
        (0..100).for_each(|_| batch.was_full(64));
        assert_eq!(batch.length(), LONGEST);
        batch.found_the_end(20);
        assert_eq!(batch.length(), 20);
        batch.found_the_end(0);
        assert_eq!(batch.length(), 1);
        batch.found_the_end(1_000);
        assert_eq!(batch.length(), LONGEST);
    }

    #[test]
    fn one_look_in_vain_per_sixteen_connections() {
        for waiting in 1..200 {
            let (mut batch, mut accepted, mut in_vain) = (Batch::new(), 0, 0);
            for _ in 0..1_000 {
                // As many are there each time, and epoll reports them until none is.
                let mut left = waiting;
                while left > 0 {
                    let length = batch.length();
                    accepted += length.min(left);
                    if length > left {
                        batch.found_the_end(left);
                        in_vain += 1;
                        break;
                    }
                    left -= length;
                    batch.was_full(length);
                }
            }
            assert!(in_vain * GROWS_AFTER <= accepted, "{in_vain} of {accepted} by {waiting}");
        }
    }
}
