//! [`Versions`]: which version of each topic's members is known, and so which changes follow it. Pure.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use super::PENDING_BYTES_MAX;
use super::event::Event;
use crate::transport::Channel;

/// What to do with a change.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It follows what is known.
    Apply,
    /// It is part of what is known, or of what will be loaded.
    Ignore,
    /// It waits until the topic is loaded.
    Waits,
    /// Others are missing before it: the members have to be loaded again.
    Reload,
}

#[derive(Debug, Default)]
enum Known {
    /// Nothing yet, or nothing any more.
    #[default]
    Nothing,
    Loading(Box<Pending>),
    /// This version; 0 if there are no members.
    At(u64),
}

#[derive(Debug, Default)]
struct Pending {
    bodies: Vec<Vec<u8>>,
    bytes: usize,
    /// Some did not find room.
    overflown: bool,
}

/// The topics that a node follows at one broker.
#[derive(Debug, Default)]
pub(crate) struct Versions(HashMap<Channel, Known, RandomState>);

impl Versions {
    /// Topics are followed from now on. Returns those that were not before.
    pub(crate) fn follow(&mut self, channels: &[Channel]) -> HashSet<Channel> {
        let new = channels.iter().filter(|channel| !self.0.contains_key(*channel));
        let new: HashSet<Channel> = new.cloned().collect();
        self.0.extend(new.iter().map(|channel| (Channel::clone(channel), Known::Nothing)));
        new
    }

    /// The members of a topic are about to be loaded. Returns false if they are being loaded already.
    pub(crate) fn begin(&mut self, channel: &Channel) -> bool {
        let known = self.0.entry(Channel::clone(channel)).or_default();
        let begins = !matches!(known, Known::Loading(_));
        if begins {
            *known = Known::Loading(Box::default());
        }
        begins
    }

    /// The members were loaded. Returns the changes that arrived meanwhile; `None` if it has to be loaded
    /// again.
    pub(crate) fn loaded(&mut self, channel: &str, version: u64) -> Option<Vec<Vec<u8>>> {
        let Some(known) = self.0.get_mut(channel) else { return Some(Vec::new()) };
        let pending = std::mem::replace(known, Known::At(version));
        match pending {
            Known::Loading(pending) if pending.overflown => {
                *known = Known::Nothing;
                None
            }
            Known::Loading(pending) => Some(pending.bodies),
            Known::Nothing | Known::At(_) => Some(Vec::new()),
        }
    }

    /// A change has arrived, as these bytes.
    pub(crate) fn arrived(&mut self, channel: &str, event: &Event<'_>, body: &[u8]) -> Verdict {
        let Some(known) = self.0.get_mut(channel) else { return Verdict::Ignore };
        match known {
            Known::Nothing => Verdict::Ignore,
            Known::Loading(pending) => {
                pending.bytes += body.len() + size_of::<Vec<u8>>();
                if pending.bytes > PENDING_BYTES_MAX {
                    pending.overflown = true;
                    pending.bodies = Vec::new();
                } else {
                    pending.bodies.push(body.to_vec());
                }
                Verdict::Waits
            }
            Known::At(version) if event.before == *version => {
                *version = if event.rest { event.after } else { 0 };
                Verdict::Apply
            }
            Known::At(version) if event.after <= *version => Verdict::Ignore,
            Known::At(_) => {
                *known = Known::Nothing;
                Verdict::Reload
            }
        }
    }

    /// A topic is not followed any more.
    pub(crate) fn remove(&mut self, channel: &str) {
        self.0.remove(channel);
        if self.0.capacity() > 64 && self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(2 * self.0.len());
        }
    }

    /// The topics of which a version is known.
    pub(crate) fn known(&self) -> Vec<Channel> {
        let known = self.0.iter().filter(|(_, known)| matches!(known, Known::At(_)));
        known.map(|(channel, _)| Channel::clone(channel)).collect()
    }

    /// Whether a topic is followed.
    pub(crate) fn contains(&self, channel: &str) -> bool {
        self.0.contains_key(channel)
    }

    /// The connection is lost: all have to be loaded again.
    pub(crate) fn disconnected(&mut self) {
        self.0.values_mut().for_each(|known| *known = Known::Nothing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::NodeId;

    fn event(before: u64, after: u64, rest: bool) -> Event<'static> {
        Event { before, after, rest, node: NodeId(1), changes: Vec::new() }
    }

    #[test]
    fn changes_follow_each_other_or_the_topic_is_loaded_again() {
        let (mut versions, topic) = (Versions::default(), Channel::from("t"));
        let arrives = |versions: &mut Versions, before, after, rest| {
            versions.arrived("t", &event(before, after, rest), b"body")
        };
        assert_eq!(arrives(&mut versions, 0, 100, true), Verdict::Ignore, "nobody follows it");
        assert!(versions.begin(&topic) && !versions.begin(&topic));
        assert_eq!(arrives(&mut versions, 101, 102, true), Verdict::Waits);
        assert_eq!(versions.loaded("t", 101), Some(vec![b"body".to_vec()]));
        assert_eq!(arrives(&mut versions, 100, 101, true), Verdict::Ignore, "it is in there");
        assert_eq!(arrives(&mut versions, 101, 102, true), Verdict::Apply);
        assert_eq!(arrives(&mut versions, 102, 103, false), Verdict::Apply);
        assert_eq!(arrives(&mut versions, 0, 200, true), Verdict::Apply, "the first one again");
        assert_eq!(arrives(&mut versions, 201, 202, true), Verdict::Reload);
        assert_eq!(arrives(&mut versions, 202, 203, true), Verdict::Ignore, "it will be loaded");
        assert!(versions.begin(&topic));
        assert_eq!(versions.loaded("t", 203), Some(vec![]));
        assert_eq!(arrives(&mut versions, 0, 300, true), Verdict::Reload, "its end is missing");
        versions.begin(&topic);
        versions.disconnected();
        assert!(versions.contains("t"));
        versions.remove("t");
        assert_eq!(versions.loaded("t", 300), Some(vec![]));
    }

    #[test]
    fn what_waits_for_a_load_is_bounded() {
        let (mut versions, topic) = (Versions::default(), Channel::from("t"));
        versions.begin(&topic);
        let body = vec![0; PENDING_BYTES_MAX / 2];
        for _ in 0..10 {
            assert_eq!(versions.arrived("t", &event(1, 2, true), &body), Verdict::Waits);
        }
        assert_eq!(versions.loaded("t", 5), None);
        assert!(versions.begin(&topic));
    }
}
