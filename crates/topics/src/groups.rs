//! [`Groups`]: the groups of one worker, found by topic and kind, and iterated by topic. Both cost
//! the same for any number of groups of a topic: there can be thousands, if each client names it
//! differently.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use engine::invariant::broken;

use crate::group::Group;
use crate::slots::Slots;

/// All groups of a worker, each at an index that does not change.
#[derive(Default)]
pub(crate) struct Groups {
    hasher: RandomState,
    all: Slots<Node>,
    /// By topic and kind.
    by_kind: HashTable<u32>,
    /// By topic, the oldest of its groups.
    oldest: HashTable<u32>,
}

/// A group in the ring of its topic's groups, from the oldest to the newest.
struct Node {
    group: Group,
    /// The next one; for the newest, the oldest.
    newer: u32,
    /// The previous one; for the oldest, the newest.
    older: u32,
    /// The last lane of the topic, set at its oldest group only.
    lane: u32,
}

/// No lane has this index.
pub(crate) const NO_LANE: u32 = u32::MAX;

/// An iteration over the groups of one topic, in the order in which they were added.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct GroupWalk {
    pub(crate) next: u32,
    /// The newest when the walk began: later groups are not part of it.
    until: u32,
}

impl GroupWalk {
    /// The walk after its next group, if any are left.
    pub(crate) fn advance(self, groups: &Groups) -> Option<GroupWalk> {
        let node = groups.node(self.next).filter(|_| self.next != self.until)?;
        Some(GroupWalk { next: node.newer, ..self })
    }

    /// The walk without a group that is about to be removed.
    pub(crate) fn without(self, index: u32, groups: &Groups) -> Option<GroupWalk> {
        if index == self.next {
            return self.advance(groups);
        }
        let until = if index == self.until { groups.node(index)?.older } else { self.until };
        Some(GroupWalk { until, ..self })
    }
}

impl Groups {
    pub(crate) fn get(&self, index: u32) -> Option<&Group> {
        self.node(index).map(|node| &node.group)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Group> {
        self.all.get_mut(index).map(|node| &mut node.group)
    }

    /// One more than the highest index in use.
    pub(crate) fn end(&self) -> u32 {
        self.all.end()
    }

    /// The group of a topic in an encoding.
    pub(crate) fn find(&self, topic: &str, kind: u32) -> Option<u32> {
        let hash = self.hasher.hash_one((topic, kind));
        let is = |&index: &u32| {
            self.get(index).is_some_and(|group| group.kind() == kind && group.name() == topic)
        };
        self.by_kind.find(hash, is).copied()
    }

    /// The last lane of a topic, by its oldest group. The lane may be gone, and be another topic's.
    pub(crate) fn lane(&self, oldest: u32) -> u32 {
        self.node(oldest).map_or(NO_LANE, |node| node.lane)
    }

    pub(crate) fn set_lane(&mut self, oldest: u32, lane: u32) {
        match self.node_mut(oldest) {
            Some(node) => node.lane = lane,
            None => broken("a topic's oldest group exists"),
        }
    }

    /// All groups of a topic, from the oldest to the newest.
    pub(crate) fn walk(&self, topic: &str) -> Option<GroupWalk> {
        let is = |&index: &u32| self.get(index).is_some_and(|group| group.name() == topic);
        let oldest = *self.oldest.find(self.hasher.hash_one(topic), is)?;
        self.node(oldest).map(|node| GroupWalk { next: oldest, until: node.older })
    }

    /// Adds a group as the newest of its topic; there must be none of its kind.
    pub(crate) fn insert(&mut self, group: Group) -> u32 {
        let (topic, kind) = (Arc::clone(group.topic()), group.kind());
        let topic = &**topic.name();
        let siblings = self.walk(topic);
        let index = self.all.insert(Node { group, newer: 0, older: 0, lane: NO_LANE });
        // The first one is its own neighbour.
        let GroupWalk { next: oldest, until: newest } =
            siblings.unwrap_or(GroupWalk { next: index, until: index });
        self.link(newest, index);
        self.link(index, oldest);
        let (all, hasher) = (&self.all, &self.hasher);
        let hash = hasher.hash_one((topic, kind));
        self.by_kind.insert_unique(hash, index, |&index| hash_of(all, hasher, index).0);
        if siblings.is_none() {
            let hash = hasher.hash_one(topic);
            self.oldest.insert_unique(hash, index, |&index| hash_of(all, hasher, index).1);
        }
        index
    }

    /// Removes a group; returns it, and whether its topic has others.
    pub(crate) fn remove(&mut self, index: u32) -> Option<(Group, bool)> {
        let node = self.node(index)?;
        let (topic, newer, older) = (Arc::clone(node.group.topic()), node.newer, node.older);
        let (topic, lane) = (&**topic.name(), node.lane);
        let hash = self.hasher.hash_one((topic, node.group.kind()));
        match self.by_kind.find_entry(hash, |&other| other == index) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => broken("a group is found by its topic and kind"),
        }
        let others = newer != index;
        let hash = self.hasher.hash_one(topic);
        if let Ok(mut entry) = self.oldest.find_entry(hash, |&other| other == index) {
            if others {
                *entry.get_mut() = newer;
                self.set_lane(newer, lane);
            } else {
                entry.remove();
            }
        }
        self.link(older, newer);
        let node = self.all.remove(index)?;
        self.shrink();
        Some((node.group, others))
    }

    /// Returns the memory of tables that have become almost empty.
    fn shrink(&mut self) {
        let Groups { hasher, all, by_kind, oldest } = self;
        if by_kind.capacity() > 64 && by_kind.len() < by_kind.capacity() / 8 {
            by_kind.shrink_to(2 * by_kind.len(), |&index| hash_of(all, hasher, index).0);
        }
        if oldest.capacity() > 64 && oldest.len() < oldest.capacity() / 8 {
            oldest.shrink_to(2 * oldest.len(), |&index| hash_of(all, hasher, index).1);
        }
    }

    /// Links two groups as neighbours.
    fn link(&mut self, older: u32, newer: u32) {
        match self.node_mut(older) {
            Some(node) => node.newer = newer,
            None => broken("a group's neighbours exist"),
        }
        match self.node_mut(newer) {
            Some(node) => node.older = older,
            None => broken("a group's neighbours exist"),
        }
    }

    fn node(&self, index: u32) -> Option<&Node> {
        self.all.get(index)
    }

    fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.all.get_mut(index)
    }
}

/// The hash by topic and kind, and the one by topic.
fn hash_of(all: &Slots<Node>, hasher: &RandomState, index: u32) -> (u64, u64) {
    let Some(Node { group, .. }) = all.get(index) else {
        broken("an index in a table names a group");
        return (0, 0);
    };
    (hasher.hash_one((group.name(), group.kind())), hasher.hash_one(group.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::Topic;

    fn topic(name: &str) -> Arc<Topic> {
        Topic::new(name, &Arc::default())
    }

    fn walk(groups: &Groups, left: Option<GroupWalk>) -> Vec<u32> {
        let kind = |left: GroupWalk| groups.get(left.next).unwrap().kind();
        std::iter::successors(left, |left| left.advance(groups)).map(kind).collect()
    }

    fn all(groups: &Groups, topic: &str) -> Vec<u32> {
        walk(groups, groups.walk(topic))
    }

    #[test]
    fn groups_are_found_and_walked_after_additions_and_removals() {
        let mut groups = Groups::default();
        let topics = ["a", "b"].map(topic);
        for kind in 0..10_000 {
            for topic in &topics {
                groups.insert(Group::new(kind, Arc::clone(topic)));
            }
        }
        assert!(groups.find("a", 10_000).is_none() && groups.walk("c").is_none());
        // Every third is removed: the newest, the oldest and some between.
        for kind in (0..10_000).filter(|kind| kind % 3 == 0) {
            let index = groups.find("a", kind).unwrap();
            let (group, others) = groups.remove(index).unwrap();
            assert_eq!((group.kind(), group.name(), others), (kind, "a", true));
            assert!(groups.find("a", kind).is_none() && groups.remove(index).is_none());
        }
        let left: Vec<u32> = (0..10_000).filter(|kind| kind % 3 != 0).collect();
        assert_eq!(all(&groups, "a"), left);
        assert_eq!(all(&groups, "b"), (0..10_000).collect::<Vec<_>>());
        let index = groups.insert(Group::new(0, Arc::clone(&topics[0])));
        assert_eq!(groups.find("a", 0), Some(index));
        assert!(index < 20_000, "the index is reused");
        assert_eq!(all(&groups, "a").last(), Some(&0));
        for kind in left.into_iter().chain([0]) {
            let index = groups.find("a", kind).unwrap();
            let (_, others) = groups.remove(index).unwrap();
            assert_eq!(others, kind != 0, "the last has no others");
        }
        assert!(groups.walk("a").is_none() && groups.walk("b").is_some());
    }

    #[test]
    fn a_walk_skips_removed_groups_and_ignores_new_ones() {
        let topic = topic("a");
        // A group is removed at each point of a walk: the others follow in order, later groups
        // never.
        for (walked, goes) in (0..5).flat_map(|walked| (0..5).map(move |goes| (walked, goes))) {
            let mut groups = Groups::default();
            for kind in 0..5 {
                groups.insert(Group::new(kind, Arc::clone(&topic)));
            }
            let mut left = groups.walk("a");
            for _ in 0..walked {
                left = left.and_then(|left| left.advance(&groups));
            }
            groups.insert(Group::new(5, Arc::clone(&topic)));
            let index = groups.find("a", goes).unwrap();
            left = left.and_then(|left| left.without(index, &groups));
            groups.remove(index);
            groups.insert(Group::new(6, Arc::clone(&topic)));
            let expected: Vec<u32> = (walked..5).filter(|kind| *kind != goes).collect();
            assert_eq!(walk(&groups, left), expected, "{goes} was removed after {walked}");
        }
    }
}
