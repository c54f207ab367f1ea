//! [`Given`]: the offsets of a topic where somebody else gives them, as a broker does for all nodes. They rise and
//! may leave numbers out.

use std::collections::VecDeque;

use super::Epoch;

/// The offsets of one topic.
pub(super) struct Given {
    pub(super) epoch: Epoch,
    /// Those of what is kept, oldest first.
    pub(super) offsets: VecDeque<u64>,
    /// All that was published after this offset is kept.
    pub(super) floor: u64,
    /// The offset of the last publication. It may not be kept any more.
    pub(super) last: u64,
}

impl Given {
    /// Memory of an offset, and of this entry with what lists have to spare, in bytes.
    pub(super) const KEPT_BYTES: usize = 16;
    pub(super) const TOPIC_BYTES: usize = 96;

    /// Nothing is kept, and all that is published after an offset will be.
    pub(super) fn after(epoch: Epoch, floor: u64, last: u64) -> Self {
        Given { epoch, offsets: VecDeque::new(), floor, last }
    }

    /// How many are below an offset.
    pub(super) fn index_from(&self, offset: u64) -> usize {
        let Some(first) = self.offsets.front() else { return 0 };
        // Where no number was left out.
        let guess = usize::try_from(offset.saturating_sub(*first)).unwrap_or(usize::MAX);
        match self.offsets.get(guess) {
            Some(found) if *found == offset => guess,
            _ => self.offsets.partition_point(|other| *other < offset),
        }
    }

    pub(super) fn push(&mut self, offset: u64) {
        self.offsets.push_back(offset);
        self.last = self.last.max(offset);
    }

    /// The oldest is not kept any more.
    pub(super) fn pop(&mut self) {
        let Some(offset) = self.offsets.pop_front() else { return };
        self.floor = offset;
        if self.offsets.is_empty() {
            self.offsets = VecDeque::new();
        } else if self.offsets.capacity() > 16 && self.offsets.len() < self.offsets.capacity() / 4 {
            self.offsets.shrink_to(2 * self.offsets.len());
        }
    }
}
