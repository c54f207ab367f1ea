//! [`Shard`]: a part of the topics in the history: what is kept, and what is evicted.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use engine::invariant::broken;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::given::Given;
use super::topic::{Kept, TopicHistory};
use super::{Eviction, HistoryLimits, HistoryStats};
use crate::directory::Publication;
use crate::slots::Slots;

/// How many times as long as a publication the entry of a topic without any is kept: its offset says
/// that a client has missed nothing.
const EMPTY_AGES: u64 = 10;
/// Entries of lists that may be stale before they are removed.
const STALE_MAX: usize = 64;

/// What expired.
pub(super) struct Expired {
    pub(super) bytes: usize,
    /// There is more of it.
    pub(super) more: bool,
}

/// A part of the topics.
pub(super) struct Shard {
    by_name: HashTable<u32>,
    topics: Slots<TopicHistory>,
    /// Topic and number of what is kept, oldest first, and of some that is not kept any more.
    order: VecDeque<(u32, u64)>,
    messages: usize,
    /// Topics without publications, since when and with which next number, oldest first; and some that
    /// have publications again.
    empty: VecDeque<(u32, u64, u64)>,
    empty_topics: usize,
    /// The highest number and the latest loss of topics that are forgotten: no number is given twice.
    last_offset: u64,
    lost_ns: u64,
    /// Time does not go back here.
    now_ns: u64,
    kept_total: u64,
    evicted: [u64; Eviction::ALL.len()],
}

impl Shard {
    pub(super) fn new(now_ns: u64) -> Self {
        Shard {
            by_name: HashTable::new(),
            topics: Slots::default(),
            order: VecDeque::new(),
            messages: 0,
            empty: VecDeque::new(),
            empty_topics: 0,
            last_offset: 0,
            lost_ns: 0,
            now_ns,
            kept_total: 0,
            evicted: [0; Eviction::ALL.len()],
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&TopicHistory> {
        self.topics.get(index)
    }

    /// The highest number and the latest loss of topics that are forgotten.
    pub(super) fn floor(&self) -> (u64, u64) {
        (self.last_offset, self.lost_ns)
    }

    pub(super) fn find(&self, hash: u64, name: &str) -> Option<u32> {
        let is = |&index: &u32| self.get(index).is_some_and(|topic| *topic.name == *name);
        self.by_name.find(hash, is).copied()
    }

    /// Adds a topic, which must not be there. [`Shard::keep`], [`Shard::skip`] or [`Shard::undo_add`] must
    /// follow.
    pub(super) fn add(&mut self, hasher: &RandomState, hash: u64, name: &Arc<str>) -> u32 {
        let topic = TopicHistory::new(name, self.last_offset + 1, self.lost_ns);
        let index = self.topics.insert(topic);
        let topics = &self.topics;
        self.by_name.insert_unique(hash, index, |&index| hash_of(topics, hasher, index));
        self.empty_topics += 1;
        index
    }

    /// Removes a topic that was added for a publication that was refused.
    pub(super) fn undo_add(&mut self, hasher: &RandomState, index: u32) {
        self.remove(hasher, index);
    }

    /// The next number of a topic.
    pub(super) fn next(&self, index: u32) -> u64 {
        self.get(index).map_or(0, TopicHistory::next)
    }

    /// Keeps a publication; returns the bytes of those that had to go.
    pub(super) fn keep(
        &mut self,
        index: u32,
        publication: &Publication,
        limits: &HistoryLimits,
    ) -> usize {
        self.now_ns = self.now_ns.max(publication.accepted_ns);
        let Some(topic) = self.topics.get_mut(index) else {
            broken("a topic exists while a publication is kept");
            return 0;
        };
        self.empty_topics -= usize::from(topic.kept.is_empty());
        let kept = Kept::new(publication, self.now_ns);
        topic.bytes += kept.bytes();
        self.order.push_back((index, topic.next()));
        topic.kept.push_back(kept);
        self.messages += 1;
        self.kept_total += 1;
        let freed = trim(topic, limits, &mut self.messages, &mut self.evicted);
        self.tidy();
        freed
    }

    /// The same at an offset that is given, published at `at_ns`.
    pub(super) fn keep_given(
        &mut self,
        index: u32,
        publication: &Publication,
        offset: u64,
        at_ns: u64,
        limits: &HistoryLimits,
    ) -> usize {
        let Some(topic) = self.topics.get_mut(index) else {
            broken("a topic exists while a publication is kept");
            return 0;
        };
        let Some(given) = &mut topic.given else {
            broken("the offsets of this topic are given");
            return 0;
        };
        given.push(offset);
        self.empty_topics -= usize::from(topic.kept.is_empty());
        // Within a topic time does not go back, either.
        let at_ns = at_ns.max(topic.kept.back().map_or(topic.lost_ns, |last| last.at_ns));
        let kept = Kept::new(publication, at_ns);
        topic.bytes += kept.bytes() + Given::KEPT_BYTES;
        self.order.push_back((index, topic.next()));
        topic.kept.push_back(kept);
        self.messages += 1;
        self.kept_total += 1;
        let freed = trim(topic, limits, &mut self.messages, &mut self.evicted);
        self.tidy();
        freed
    }

    /// Passes over a publication at an offset that is given and that is not kept. Returns the bytes freed.
    pub(super) fn skip_given(&mut self, index: u32, offset: u64, at_ns: u64) -> usize {
        self.kept_total += 1;
        self.evicted[Eviction::TopicBytes as usize] += 1;
        let freed = self.clear(index, Eviction::TopicBytes);
        if let Some(topic) = self.topics.get_mut(index) {
            topic.lost_ns = topic.lost_ns.max(at_ns);
            if let Some(given) = &mut topic.given {
                (given.floor, given.last) = (offset, offset);
            }
        }
        freed
    }

    /// Removes the publications of a topic; returns their bytes.
    fn clear(&mut self, index: u32, cause: Eviction) -> usize {
        let mut freed = 0;
        while let Some(bytes) = self.pop(index, cause) {
            freed += bytes;
        }
        self.tidy();
        freed
    }

    /// Begins a topic whose offsets are given anew, without publications: those until now are of another epoch, or
    /// unknown. Returns the bytes freed.
    pub(super) fn restart(&mut self, index: u32, given: Given, lost_ns: u64) -> usize {
        let freed = self.clear(index, Eviction::Released);
        if let Some(topic) = self.topics.get_mut(index) {
            topic.lost_ns = lost_ns;
            topic.given = Some(Box::new(given));
        }
        freed
    }

    /// Forgets a topic whose offsets are given, with its publications; returns its bytes.
    pub(super) fn release(&mut self, hasher: &RandomState, index: u32) -> usize {
        let freed = self.clear(index, Eviction::Released);
        let entry = self.get(index).map_or(0, TopicHistory::entry_bytes);
        self.forget(hasher, index);
        freed + entry
    }

    /// Passes over a publication that is too long to be kept: what was before it would have a gap. Returns
    /// the bytes freed.
    pub(super) fn skip(
        &mut self,
        hasher: &RandomState,
        index: u32,
        now_ns: u64,
        forget: bool,
    ) -> usize {
        self.kept_total += 1;
        self.evicted[Eviction::TopicBytes as usize] += 1;
        self.interrupt(hasher, index, now_ns, forget)
    }

    /// Passes over an offset, so that what was before it is not available any more. Returns the bytes freed.
    pub(super) fn interrupt(
        &mut self,
        hasher: &RandomState,
        index: u32,
        now_ns: u64,
        forget: bool,
    ) -> usize {
        self.now_ns = self.now_ns.max(now_ns);
        let freed = self.clear(index, Eviction::TopicBytes);
        let now_ns = self.now_ns;
        if let Some(topic) = self.topics.get_mut(index) {
            topic.lowest += 1;
            topic.lost_ns = now_ns;
            let next = topic.next();
            if forget {
                self.forget(hasher, index);
            } else {
                self.empty.push_back((index, next, now_ns));
            }
        }
        self.tidy();
        freed
    }

    /// Whether the entry of a topic is to stay.
    pub(super) fn set_followed(&mut self, index: u32, followed: bool) {
        if let Some(topic) = self.topics.get_mut(index) {
            topic.followed = followed;
        }
    }

    /// Removes the oldest publication of a topic; returns its bytes.
    fn pop(&mut self, index: u32, cause: Eviction) -> Option<usize> {
        let topic = self.topics.get_mut(index)?;
        let bytes = topic.pop()?;
        self.messages -= 1;
        self.evicted[cause as usize] += 1;
        if topic.kept.is_empty() {
            self.empty_topics += 1;
            // Those whose offsets are given stay until they are released.
            if topic.given.is_none() {
                self.empty.push_back((index, topic.next(), self.now_ns));
            }
        }
        Some(bytes)
    }

    /// Removes what is too old of one topic; returns the bytes.
    pub(super) fn expire_topic(&mut self, index: u32, now_ns: u64, age_ns: u64) -> usize {
        self.now_ns = self.now_ns.max(now_ns);
        let mut freed = 0;
        let old = |topic: &TopicHistory| is_old(topic, now_ns, age_ns);
        while self.get(index).is_some_and(old) {
            freed += self.pop(index, Eviction::Age).unwrap_or_default();
        }
        freed
    }

    /// Removes up to `most` of what is too old, oldest first.
    pub(super) fn expire(
        &mut self,
        hasher: &RandomState,
        now_ns: u64,
        age_ns: u64,
        most: usize,
    ) -> Expired {
        self.now_ns = self.now_ns.max(now_ns);
        let mut expired = Expired { bytes: 0, more: false };
        self.tidy();
        for _ in 0..most {
            self.drop_stale();
            let oldest = self.order.front().map(|(index, _)| *index);
            let old =
                |index: &u32| self.get(*index).is_some_and(|topic| is_old(topic, now_ns, age_ns));
            if let Some(index) = oldest.filter(old) {
                expired.bytes += self.pop(index, Eviction::Age).unwrap_or_default();
                continue;
            }
            let long_ns = age_ns.saturating_mul(EMPTY_AGES).max(1);
            let empty = self.empty.front().copied();
            let empty = empty.filter(|entry| now_ns.saturating_sub(entry.2) >= long_ns);
            let Some((index, next, _)) = empty else { return expired };
            if self.get(index).is_some_and(|topic| topic.followed) {
                self.empty.pop_front();
                self.empty.push_back((index, next, now_ns));
            } else {
                expired.bytes += self.forget_oldest(hasher);
            }
        }
        expired.more = true;
        expired
    }

    /// Removes the oldest publication; returns its bytes.
    pub(super) fn evict_oldest(&mut self) -> usize {
        self.drop_stale();
        let Some((index, _)) = self.order.front().copied() else { return 0 };
        self.pop(index, Eviction::Bytes).unwrap_or_default()
    }

    /// Forgets the topic that has been without publications for the longest time; returns its bytes.
    pub(super) fn forget_oldest(&mut self, hasher: &RandomState) -> usize {
        self.drop_stale();
        let Some((index, ..)) = self.empty.pop_front() else { return 0 };
        let bytes = self.get(index).map_or(0, |topic| TopicHistory::bytes_of(&topic.name));
        self.forget(hasher, index);
        bytes
    }

    /// Forgets a topic without publications.
    fn forget(&mut self, hasher: &RandomState, index: u32) {
        let Some(topic) = self.get(index) else { return broken("a forgotten topic exists") };
        let (last_offset, lost_ns) = (topic.next() - 1, topic.lost_ns);
        self.last_offset = self.last_offset.max(last_offset);
        self.lost_ns = self.lost_ns.max(lost_ns);
        self.remove(hasher, index);
    }

    fn remove(&mut self, hasher: &RandomState, index: u32) {
        let hash = hash_of(&self.topics, hasher, index);
        match self.by_name.find_entry(hash, |&other| other == index) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => broken("a topic is found by its name"),
        }
        self.topics.remove(index);
        self.empty_topics -= 1;
        let Shard { by_name, topics, .. } = self;
        if by_name.capacity() > 64 && by_name.len() < by_name.capacity() / 8 {
            by_name.shrink_to(2 * by_name.len(), |&index| hash_of(topics, hasher, index));
        }
    }

    /// When the oldest publication was kept, and the time since which the oldest topic without any has had
    /// none; `u64::MAX` for none.
    pub(super) fn ages(&mut self) -> (u64, u64) {
        self.drop_stale();
        let oldest = self.order.front().and_then(|(index, _)| self.get(*index)?.kept.front());
        let empty = self.empty.front().map(|(.., since_ns)| *since_ns);
        (oldest.map_or(u64::MAX, |kept| kept.at_ns), empty.unwrap_or(u64::MAX))
    }

    /// Removes entries at the front of lists that are not true any more.
    fn drop_stale(&mut self) {
        let Shard { topics, order, empty, .. } = self;
        while order.front().is_some_and(|entry| !is_kept(topics, entry)) {
            order.pop_front();
        }
        while empty.front().is_some_and(|entry| !is_empty(topics, entry)) {
            empty.pop_front();
        }
    }

    /// Removes entries of lists that are not true any more, once there are many of them.
    fn tidy(&mut self) {
        let Shard { topics, order, empty, messages, empty_topics, .. } = self;
        if order.len() > 2 * *messages + STALE_MAX {
            order.retain(|entry| is_kept(topics, entry));
        }
        if order.capacity() > 4 * order.len() + STALE_MAX {
            order.shrink_to(2 * order.len());
        }
        if empty.len() > 2 * *empty_topics + STALE_MAX {
            empty.retain(|entry| is_empty(topics, entry));
        }
        if empty.capacity() > 4 * empty.len() + STALE_MAX {
            empty.shrink_to(2 * empty.len());
        }
    }

    pub(super) fn add_stats(&self, stats: &mut HistoryStats) {
        stats.topics += self.by_name.len();
        stats.messages += self.messages;
        stats.kept_total += self.kept_total;
        for (sum, evicted) in stats.evicted.iter_mut().zip(self.evicted) {
            *sum += evicted;
        }
    }
}

#[cfg(test)]
impl Shard {
    /// The bytes of what is held, counted again.
    pub(super) fn audit(&self) -> usize {
        let topics = self.by_name.iter().filter_map(|index| self.get(*index));
        let bytes = |topic: &TopicHistory| -> usize {
            let given = if topic.given.is_some() { Given::KEPT_BYTES } else { 0 };
            let kept = topic.kept.iter().map(|kept| kept.bytes() + given).sum::<usize>();
            assert_eq!(kept, topic.bytes);
            let offsets = topic.given.as_ref().map(|given| given.offsets.len());
            assert!(offsets.is_none_or(|offsets| offsets == topic.kept.len()));
            kept + topic.entry_bytes()
        };
        assert!(self.order.len() <= 2 * self.messages + STALE_MAX + 1);
        assert!(self.empty.len() <= 2 * self.empty_topics + STALE_MAX + 1);
        topics.map(bytes).sum()
    }
}

/// Removes the oldest publications of a topic that has too many; returns their bytes.
fn trim(
    topic: &mut TopicHistory,
    limits: &HistoryLimits,
    messages: &mut usize,
    evicted: &mut [u64; Eviction::ALL.len()],
) -> usize {
    let mut freed = 0;
    while topic.kept.len() > limits.messages.max(1) || topic.bytes > limits.topic_bytes {
        let many = topic.kept.len() > limits.messages.max(1);
        let cause = if many { Eviction::Messages } else { Eviction::TopicBytes };
        let Some(bytes) = topic.pop() else { break };
        evicted[cause as usize] += 1;
        *messages -= 1;
        freed += bytes;
    }
    freed
}

fn is_old(topic: &TopicHistory, now_ns: u64, age_ns: u64) -> bool {
    topic.kept.front().is_some_and(|kept| now_ns.saturating_sub(kept.at_ns) >= age_ns)
}

fn is_kept(topics: &Slots<TopicHistory>, &(index, number): &(u32, u64)) -> bool {
    topics.get(index).is_some_and(|topic| topic.holds(number))
}

fn is_empty(topics: &Slots<TopicHistory>, &(index, next, _): &(u32, u64, u64)) -> bool {
    topics.get(index).is_some_and(|topic| topic.kept.is_empty() && topic.next() == next)
}

fn hash_of(topics: &Slots<TopicHistory>, hasher: &RandomState, index: u32) -> u64 {
    let Some(topic) = topics.get(index) else {
        broken("an index in a table names a topic");
        return 0;
    };
    hasher.hash_one(&*topic.name)
}
