//! [`Lane`]: what one worker has yet to deliver of one topic; and [`Budget`], how much of it in a turn.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::invariant::broken;

use crate::directory::Publication;
use crate::groups::{GroupWalk, Groups};
use crate::slots::Slots;
use crate::topic::Topic;

/// How long a publication may be pending before its topic is refused.
const PENDING_AGE_MAX_NS: u64 = 1_000_000_000;
/// Lanes kept for reuse, and the entries for which they keep memory.
const SPARE_LANES: usize = 64;
const SPARE_ENTRIES: usize = 64;

/// What may be done before others have their turn.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Groups for which a publication is encoded.
    pub(crate) encodes: usize,
    /// Members that are sent something, and members that are visited.
    pub(crate) sends: usize,
    pub(crate) visits: usize,
    /// Bytes that are encoded or sent; the last item may exceed it.
    pub(crate) bytes: usize,
}

impl Budget {
    /// Of all topics in one turn of the worker.
    pub(crate) const TURN: Budget =
        Budget { encodes: 256, sends: 64, visits: 4096, bytes: 4 * 1024 * 1024 };
    /// Of one topic before the next has its turn.
    pub(crate) const TOPIC: Budget =
        Budget { encodes: 64, sends: 16, visits: 1024, bytes: 256 * 1024 };
    /// Of publications that are encoded at once when they are accepted, between two turns.
    pub(crate) const AT_ONCE: Budget =
        Budget { encodes: 256, sends: 0, visits: 0, bytes: 1024 * 1024 };

    /// The part of it that the next topic gets.
    pub(crate) fn portion(&self) -> Budget {
        let topic = Budget::TOPIC;
        Budget {
            encodes: self.encodes.min(topic.encodes),
            sends: self.sends.min(topic.sends),
            visits: self.visits.min(topic.visits),
            bytes: self.bytes.min(topic.bytes),
        }
    }

    /// Subtracts what was used of a portion.
    pub(crate) fn spend(&mut self, portion: Budget, left: Budget) {
        self.encodes -= portion.encodes - left.encodes;
        self.sends -= portion.sends - left.sends;
        self.visits -= portion.visits - left.visits;
        self.bytes -= portion.bytes - left.bytes;
    }

    pub(crate) fn may_encode(&self) -> bool {
        self.encodes > 0 && self.bytes > 0
    }

    pub(crate) fn may_send(&self) -> bool {
        self.sends > 0 && self.visits > 0 && self.bytes > 0
    }
}

/// A publication that not all groups of its topic have got.
pub(crate) struct PendingPublication {
    pub(crate) publication: Arc<Publication>,
    pub(crate) left: Option<GroupWalk>,
    since_ns: u64,
}

/// What one worker has yet to deliver of one topic.
pub(crate) struct Lane {
    topic: Arc<Topic>,
    /// In their order.
    pub(crate) pending: VecDeque<PendingPublication>,
    /// Groups with members that lack frames; or removed since.
    pub(crate) active: VecDeque<u32>,
    /// Bytes of frames that some member lacks.
    pub(crate) waiting_bytes: usize,
    /// The first publication has been pending for too long.
    late: bool,
}

impl Lane {
    pub(crate) fn is_of(&self, topic: &Arc<Topic>) -> bool {
        Arc::ptr_eq(&self.topic, topic)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.active.is_empty()
    }

    pub(crate) fn defer(
        &mut self,
        publication: &Arc<Publication>,
        left: Option<GroupWalk>,
        since_ns: u64,
    ) {
        publication.reserve(&self.topic);
        let publication = Arc::clone(publication);
        self.pending.push_back(PendingPublication { publication, left, since_ns });
    }

    /// Removes a group that is about to be removed from its topic.
    pub(crate) fn remove_group(&mut self, index: u32, groups: &Groups) {
        for pending in &mut self.pending {
            pending.left = pending.left.and_then(|left| left.without(index, groups));
        }
    }

    /// Forgets what is left of a topic that has lost its last group. Returns the bytes of the
    /// publications.
    pub(crate) fn clear(&mut self) -> usize {
        let bytes = self.pending.drain(..).map(|pending| pending.publication.bytes()).sum();
        self.active.clear();
        self.set_late(false);
        bytes
    }

    /// Checks how long the first publication has been pending, and tells publishers.
    fn check_age(&mut self, now_ns: u64) {
        let late =
            |first: &PendingPublication| now_ns.saturating_sub(first.since_ns) > PENDING_AGE_MAX_NS;
        self.set_late(self.pending.front().is_some_and(late));
    }

    fn set_late(&mut self, late: bool) {
        if self.late != late {
            self.late = late;
            self.topic.set_late(late);
        }
    }
}

/// The lanes of one worker.
#[derive(Default)]
pub(crate) struct Lanes {
    all: Slots<Lane>,
    /// Lanes that have not had a turn, and the ring of those that are behind. They have every second
    /// turn, so that a topic with little to deliver does not wait for a round of the ring.
    fresh: VecDeque<u32>,
    ring: VecDeque<u32>,
    fresh_is_next: bool,
    /// Entries of lanes that are gone, for the next: a topic that is not behind allocates nothing.
    spare: Vec<(VecDeque<PendingPublication>, VecDeque<u32>)>,
}

impl Lanes {
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Lane> {
        self.all.get_mut(index)
    }

    /// The lane with this index, if it is that of the topic.
    pub(crate) fn of(&mut self, index: u32, topic: &Arc<Topic>) -> Option<&mut Lane> {
        self.all.get_mut(index).filter(|lane| lane.is_of(topic))
    }

    pub(crate) fn len(&self) -> usize {
        self.fresh.len() + self.ring.len()
    }

    /// Adds a lane.
    pub(crate) fn add(&mut self, topic: &Arc<Topic>) -> u32 {
        let (pending, active) = self.spare.pop().unwrap_or_default();
        let topic = Arc::clone(topic);
        let index = self.all.insert(Lane { topic, pending, active, waiting_bytes: 0, late: false });
        self.fresh.push_back(index);
        index
    }

    /// Takes the lane whose turn it is. [`Lanes::end_turn`] must follow.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.fresh_is_next = !self.fresh_is_next;
        let (first, other) = match self.fresh_is_next {
            true => (&mut self.fresh, &mut self.ring),
            false => (&mut self.ring, &mut self.fresh),
        };
        first.pop_front().or_else(|| other.pop_front())
    }

    /// Ends the turn of a lane: it goes to the end of the ring, or is removed if nothing is left.
    pub(crate) fn end_turn(&mut self, index: u32, now_ns: u64) {
        let Some(lane) = self.all.get_mut(index) else {
            return broken("a lane exists while it has its turn");
        };
        lane.check_age(now_ns);
        if !lane.is_empty() {
            return self.ring.push_back(index);
        }
        if lane.waiting_bytes > 0 {
            broken("a lane without active groups has no frames that wait");
        }
        let Some(Lane { mut pending, mut active, .. }) = self.all.remove(index) else { return };
        if self.spare.len() < SPARE_LANES {
            pending.shrink_to(SPARE_ENTRIES);
            active.shrink_to(SPARE_ENTRIES);
            self.spare.push((pending, active));
        }
    }
}
