//! A history that is a replica of what a broker keeps for all nodes: of the topics that this node follows. What
//! is published has its position from the broker, and a topic that is followed from now on is loaded with what was
//! published before.
//!
//! All nodes have the same epochs and offsets, so a client may continue at any of them. The entry of a topic stays
//! until it is released, since only it says where the topic ends; publications are evicted by the limits as they
//! are elsewhere.

use std::sync::atomic::Ordering;

use super::given::Given;
use super::{EXPIRED_AT_ONCE, Epoch, History, HistoryLimits, Kept, Position, TopicHistory};
use crate::directory::{Publication, Refused};

/// The place and the time that a broker gave to a publication.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KeptAt {
    /// Its position.
    pub position: Position,
    /// When it was published, by the monotonic clock of this process in nanoseconds.
    pub at_ns: u64,
}

/// A publication that a broker keeps.
#[derive(Debug)]
pub struct PastPublication {
    /// Its offset.
    pub offset: u64,
    /// When it was published, by the monotonic clock.
    pub at_ns: u64,
    /// What was published.
    pub publication: Publication,
}

/// What a broker has of a topic.
#[derive(Debug)]
pub struct Past {
    /// The epoch of its offsets.
    pub epoch: Epoch,
    /// All that was published after this offset is in `publications`.
    pub floor: u64,
    /// So is all that was published after this time of the monotonic clock.
    pub floor_ns: u64,
    /// The offset of the last publication, 0 for none. It may not be kept any more, or be one that came twice.
    pub last: u64,
    /// In the order of their offsets.
    pub publications: Vec<PastPublication>,
}

impl Past {
    /// Drops what the limits do not admit, and what is not in order.
    fn admit(&mut self, limits: &HistoryLimits) -> usize {
        let Past { floor, floor_ns, last, publications, .. } = self;
        let mut previous = *floor;
        publications.retain(|one| {
            let rises = one.offset > previous;
            previous = previous.max(one.offset);
            rises
        });
        *last = (*last).max(previous);
        let (mut bytes, mut from) = (0, publications.len());
        let least = publications.len().saturating_sub(limits.messages.max(1));
        while from > least {
            let Some(one) = publications.get(from - 1) else { break };
            let length = bytes_of(&one.publication);
            if bytes + length > limits.topic_bytes {
                break;
            }
            (bytes, from) = (bytes + length, from - 1);
        }
        if let Some(dropped) = publications.drain(..from).next_back() {
            (*floor, *floor_ns) = (dropped.offset, (*floor_ns).max(dropped.at_ns));
        }
        bytes
    }

    /// Drops all publications.
    fn clear(&mut self) {
        let times = self.publications.drain(..).map(|one| one.at_ns).max();
        self.floor_ns = self.floor_ns.max(times.unwrap_or(0));
        self.floor = self.last;
    }
}

fn bytes_of(publication: &Publication) -> usize {
    Kept::bytes_of(publication) + Given::KEPT_BYTES
}

impl History {
    /// A replica, without any topic.
    #[must_use]
    pub fn replica(limits: HistoryLimits, now_ns: u64) -> Self {
        History { is_replica: true, ..History::new(Epoch::default(), limits, now_ns) }
    }

    /// Whether a broker gives the positions.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.is_replica
    }

    /// Replaces all that is known of a topic.
    pub fn load(&self, topic: &str, mut past: Past, now_ns: u64) {
        let bytes = past.admit(&self.limits);
        // The entry is needed even where there is no room: then no publications are kept.
        let has_room = self.make_room(TopicHistory::bytes_of_given(topic), &mut 0);
        if !has_room || !self.make_room(bytes, &mut 0) {
            past.clear();
            self.release(if has_room { bytes } else { 0 });
        }
        let hash = self.hash(topic);
        let mut cell = self.lock(hash);
        let mut freed = match cell.shard.find(hash, topic) {
            Some(index) => cell.shard.release(&self.hasher, index),
            None => 0,
        };
        let index = cell.shard.add(&self.hasher, hash, &topic.into());
        let given = Given::after(past.epoch, past.floor, past.last);
        freed += cell.shard.restart(index, given, past.floor_ns);
        for one in &past.publications {
            let PastPublication { offset, at_ns, publication } = one;
            freed += cell.shard.keep_given(index, publication, *offset, *at_ns, &self.limits);
        }
        freed += cell.shard.expire_topic(index, now_ns, self.limits.age_ns);
        drop(cell);
        self.release(freed);
    }

    /// Forgets topics that are not followed any more.
    pub fn forget<'t>(&self, topics: impl IntoIterator<Item = &'t str>) {
        topics.into_iter().for_each(|topic| self.release_topic(topic));
    }

    pub(super) fn release_topic(&self, topic: &str) {
        let hash = self.hash(topic);
        let mut cell = self.lock(hash);
        let Some(index) = cell.shard.find(hash, topic) else { return };
        if !self.is_replica {
            return cell.shard.set_followed(index, false);
        }
        let freed = cell.shard.release(&self.hasher, index);
        drop(cell);
        self.release(freed);
    }

    /// Keeps a publication at the place that a broker gave it, without delivering it.
    pub fn record(&self, publication: &Publication, at: KeptAt) {
        // Nothing refuses it.
        let _ = self.follow(publication, at, || Ok(0));
    }

    /// Posts a publication with `post`, and keeps it at the place that a broker gave it. A topic that is not known, or
    /// whose epoch or offset is another one than could follow, begins anew with it. If `post` fails it is not kept.
    pub(crate) fn follow(
        &self,
        publication: &Publication,
        at: KeptAt,
        post: impl FnOnce() -> Result<usize, Refused>,
    ) -> Result<usize, Refused> {
        let KeptAt { position: Position { epoch, offset }, at_ns } = at;
        let bytes = bytes_of(publication);
        let mut reserved = 0;
        let fits = bytes <= self.limits.topic_bytes && self.make_room(bytes, &mut reserved);
        let (hash, now_ns) = (self.hash(&publication.topic), publication.accepted_ns);
        let mut cell = self.lock(hash);
        let expired = cell.shard.expire(&self.hasher, now_ns, self.limits.age_ns, EXPIRED_AT_ONCE);
        publication.set_position(Some(at.position));
        let posted = post();
        if posted.is_err() {
            publication.set_position(None);
            drop(cell);
            self.release(reserved + expired.bytes);
            return posted;
        }
        let index = cell.shard.find(hash, &publication.topic).unwrap_or_else(|| {
            // Beyond the limit if need be: room is made with the next publication.
            let bytes = TopicHistory::bytes_of_given(&publication.topic);
            self.bytes.fetch_add(bytes, Ordering::AcqRel);
            cell.shard.add(&self.hasher, hash, &publication.topic)
        });
        let given = cell.shard.get(index).and_then(|topic| topic.given.as_ref());
        let follows = given.is_some_and(|given| given.epoch == epoch && given.last < offset);
        let mut freed = reserved + expired.bytes;
        if !follows {
            let floor = offset.saturating_sub(1);
            freed += cell.shard.restart(index, Given::after(epoch, floor, floor), now_ns);
        }
        freed += match fits {
            true => cell.shard.keep_given(index, publication, offset, at_ns, &self.limits),
            false => cell.shard.skip_given(index, offset, at_ns.max(now_ns)),
        };
        freed -= if fits { bytes } else { 0 };
        drop(cell);
        self.release(freed);
        posted
    }
}
