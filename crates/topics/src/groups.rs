//! [`Groups`]: the groups of one worker, found by topic and kind, and walked by topic. Either costs
//! the same however many groups a topic has: thousands, where each client names it in its own words.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::group::Group;

/// No group.
const NONE: u32 = u32::MAX;

/// All groups of a worker, each with a place that stays its own.
#[derive(Default)]
pub(crate) struct Groups {
    hasher: RandomState,
    all: Vec<Option<Node>>,
    free: Vec<u32>,
    /// By topic and kind.
    by_kind: HashTable<u32>,
    /// By topic, the newest of its groups.
    newest: HashTable<u32>,
}

/// A group among those of its topic, from the newest to the oldest.
struct Node {
    group: Group,
    newer: u32,
    older: u32,
}

impl Groups {
    pub(crate) fn get(&self, index: u32) -> Option<&Group> {
        self.node(index).map(|node| &node.group)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Group> {
        self.all.get_mut(index as usize)?.as_mut().map(|node| &mut node.group)
    }

    /// The group of a topic in an encoding.
    pub(crate) fn find(&self, topic: &str, kind: u32) -> Option<u32> {
        let hash = self.hasher.hash_one((topic, kind));
        let is = |&index: &u32| {
            self.get(index).is_some_and(|group| group.kind() == kind && group.topic() == topic)
        };
        self.by_kind.find(hash, is).copied()
    }

    /// The newest group of a topic; [`Groups::older`] leads to all others.
    pub(crate) fn newest(&self, topic: &str) -> Option<u32> {
        let is = |&index: &u32| self.get(index).is_some_and(|group| group.topic() == topic);
        self.newest.find(self.hasher.hash_one(topic), is).copied()
    }

    /// The group of the same topic that was there before this one.
    pub(crate) fn older(&self, index: u32) -> Option<u32> {
        self.node(index).map(|node| node.older).filter(|&older| older != NONE)
    }

    /// Takes a group in as the newest of its topic; there must be none of its kind.
    pub(crate) fn insert(&mut self, group: Group) -> u32 {
        let (topic, kind) = (group.shared_topic(), group.kind());
        let older = self.newest(&topic);
        let node = Some(Node { group, newer: NONE, older: older.unwrap_or(NONE) });
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.all.push(None);
                (self.all.len() - 1) as u32
            }
        };
        if let Some(place) = self.all.get_mut(index as usize) {
            *place = node;
        }
        let (all, hasher) = (&self.all, &self.hasher);
        let hash = hasher.hash_one((&*topic, kind));
        self.by_kind.insert_unique(hash, index, |&index| hash_of(all, hasher, index).0);
        match older {
            Some(older) => self.replace_newest(&topic, older, index),
            None => {
                let hash = hasher.hash_one(&*topic);
                self.newest.insert_unique(hash, index, |&index| hash_of(all, hasher, index).1);
            }
        }
        index
    }

    /// Lets a group go; whether its topic has others.
    pub(crate) fn remove(&mut self, index: u32) -> Option<(Group, bool)> {
        let node = self.node(index)?;
        let (topic, newer, older) = (node.group.shared_topic(), node.newer, node.older);
        let hash = self.hasher.hash_one((&*topic, node.group.kind()));
        if let Ok(entry) = self.by_kind.find_entry(hash, |&other| other == index) {
            entry.remove();
        }
        if let Some(newer) = self.node_mut(newer) {
            newer.older = older;
        } else if older == NONE {
            let hash = self.hasher.hash_one(&*topic);
            if let Ok(entry) = self.newest.find_entry(hash, |&other| other == index) {
                entry.remove();
            }
        } else {
            self.replace_newest(&topic, index, older);
        }
        if let Some(older) = self.node_mut(older) {
            older.newer = newer;
        }
        self.free.push(index);
        let node = self.all.get_mut(index as usize)?.take()?;
        Some((node.group, (newer, older) != (NONE, NONE)))
    }

    /// Another group is the newest of a topic from now on.
    fn replace_newest(&mut self, topic: &Arc<str>, before: u32, now: u32) {
        let hash = self.hasher.hash_one(&**topic);
        if let Some(newest) = self.newest.find_mut(hash, |&other| other == before) {
            *newest = now;
        }
        if let Some(before) = self.node_mut(before) {
            before.newer = now;
        }
    }

    fn node(&self, index: u32) -> Option<&Node> {
        self.all.get(index as usize)?.as_ref()
    }

    fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.all.get_mut(index as usize)?.as_mut()
    }
}

/// By topic and kind, and by topic.
fn hash_of(all: &[Option<Node>], hasher: &RandomState, index: u32) -> (u64, u64) {
    let Some(Some(Node { group, .. })) = all.get(index as usize) else { return (0, 0) };
    (hasher.hash_one((group.topic(), group.kind())), hasher.hash_one(group.topic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(groups: &Groups, topic: &str) -> Vec<u32> {
        let kind = |index: u32| groups.get(index).unwrap().kind();
        let next = |index: &u32| groups.older(*index);
        std::iter::successors(groups.newest(topic), next).map(kind).collect()
    }

    #[test]
    fn groups_are_found_and_walked_however_they_come_and_go() {
        let mut groups = Groups::default();
        let topics: [Arc<str>; 2] = ["a".into(), "b".into()];
        for kind in 0..10_000 {
            for topic in &topics {
                groups.insert(Group::new(kind, Arc::clone(topic)));
            }
        }
        assert!(groups.find("a", 10_000).is_none() && groups.newest("c").is_none());
        // Every third goes: the newest, the oldest and some between.
        for kind in (0..10_000).filter(|kind| kind % 3 == 0) {
            let index = groups.find("a", kind).unwrap();
            let (group, others) = groups.remove(index).unwrap();
            assert_eq!((group.kind(), group.topic(), others), (kind, "a", true));
            assert!(groups.find("a", kind).is_none() && groups.remove(index).is_none());
        }
        let left: Vec<u32> = (0..10_000).rev().filter(|kind| kind % 3 != 0).collect();
        assert_eq!(walk(&groups, "a"), left);
        assert_eq!(walk(&groups, "b"), (0..10_000).rev().collect::<Vec<_>>());
        let places = groups.all.len();
        let index = groups.insert(Group::new(0, Arc::clone(&topics[0])));
        assert_eq!((groups.find("a", 0), groups.all.len()), (Some(index), places), "used again");
        assert_eq!(walk(&groups, "a").first(), Some(&0));
        for kind in left.into_iter().chain([0]) {
            let index = groups.find("a", kind).unwrap();
            let (_, others) = groups.remove(index).unwrap();
            assert_eq!(others, kind != 0, "the last has no others");
        }
        assert!(groups.newest("a").is_none() && groups.newest("b").is_some());
    }
}
