//! Figures of one worker's topics, for operators.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::group::Group;
use crate::groups::Groups;
use crate::{Memberships, Topics, Traffic};

/// Topics in [`TopTopics`].
const TOP_MAX: usize = 1000;

/// The topics of a portion of a worker's groups that have most subscribers.
#[derive(Debug, Default)]
pub struct TopTopics {
    /// Topics with their subscribers on this worker, in no order.
    pub topics: Vec<(Arc<str>, u64)>,
    /// Where the next portion begins, unless this was the last.
    pub next: Option<u32>,
}

impl Topics {
    /// The topic of each of a subscriber's subscriptions.
    pub fn topics_of<M>(&self, memberships: &Memberships<M>) -> impl Iterator<Item = &Arc<str>> {
        memberships.groups().filter_map(|index| Some(self.groups.get(index)?.topic().name()))
    }

    /// The encoding, the topic and the number of members of the group of each of a subscriber's
    /// subscriptions.
    pub fn groups_of<M>(
        &self,
        memberships: &Memberships<M>,
    ) -> impl Iterator<Item = (u32, &str, usize)> {
        let groups = memberships.groups().filter_map(|index| self.groups.get(index));
        groups.map(|group| (group.kind(), group.name(), group.members()))
    }

    /// The largest topics that begin with `prefix` of about `budget` groups from a position on; 0 is the
    /// first. A topic is reported in one of the portions, with all its subscribers.
    #[must_use]
    pub fn largest(&self, prefix: &str, position: u32, budget: u32) -> TopTopics {
        let (mut next, mut left) = (position, budget);
        let mut topics = Vec::new();
        while next < self.groups.end() && left > 0 {
            left -= 1;
            if let Some(name) = self.groups.topic_of_oldest(next, prefix) {
                topics.push((Arc::clone(name), self.subscribers(name, &mut left)));
            }
            next += 1;
        }
        if topics.len() > TOP_MAX {
            topics.select_nth_unstable_by_key(TOP_MAX, |(_, subscribers)| Reverse(*subscribers));
            topics.truncate(TOP_MAX);
        }
        TopTopics { topics, next: (next < self.groups.end()).then_some(next) }
    }

    /// Subscribers of a topic on this worker. Each visited group is taken from the budget, but all are
    /// visited.
    #[must_use]
    pub fn subscribers(&self, topic: &str, budget: &mut u32) -> u64 {
        *budget = budget.saturating_sub(1);
        let groups =
            std::iter::successors(self.groups.walk(topic), |walk| walk.advance(&self.groups));
        let members = groups.map(|walk| {
            *budget = budget.saturating_sub(1);
            self.groups.get(walk.next).map_or(0, Group::members) as u64
        });
        members.sum()
    }

    /// The topics with most traffic in this minute and the one before.
    #[must_use]
    pub fn traffic(&self, now_ns: u64) -> Traffic {
        self.meter.traffic(now_ns)
    }
}

impl Groups {
    /// The topic of the group at an index, if it has this prefix and the group is the oldest of its topic.
    fn topic_of_oldest(&self, index: u32, prefix: &str) -> Option<&Arc<str>> {
        let name = self.get(index)?.topic().name();
        if !name.starts_with(prefix) {
            return None;
        }
        self.walk(name).filter(|walk| walk.next == index).map(|_| name)
    }
}
