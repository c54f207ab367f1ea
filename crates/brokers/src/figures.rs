//! Figures for operators: counters, connections, and the other nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::envelope::NodeId;
use crate::limits::{NODE_FORGOTTEN_NS, NODES_MAX};
use crate::transport::{Fault, FaultKind};

/// Why publications may be missing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum GapCause {
    /// A number of a sender is missing.
    Missing,
    /// The connection to the broker was lost while the topic was subscribed.
    Reconnected,
    /// This node could not deliver them.
    Overloaded,
    /// They are of another version, or of another program.
    Unreadable,
}

impl GapCause {
    /// All causes, in the order of their discriminants.
    pub const ALL: [GapCause; 4] =
        [GapCause::Missing, GapCause::Reconnected, GapCause::Overloaded, GapCause::Unreadable];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            GapCause::Missing => "missing",
            GapCause::Reconnected => "reconnected",
            GapCause::Overloaded => "overloaded",
            GapCause::Unreadable => "unreadable",
        }
    }
}

/// What was counted since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Publications and commands that the broker has taken.
    pub published: AtomicU64,
    /// Those that were given up: there was no connection, too much waited, or the broker takes none of their length.
    pub refused: AtomicU64,
    /// Publications that arrived, this node's own included.
    pub received: AtomicU64,
    /// Those that were received before, and so not delivered again.
    pub repeated: AtomicU64,
    /// Messages that are no envelope of this version.
    pub malformed: AtomicU64,
    /// Messages dropped because too much waited to be delivered.
    pub dropped: std::sync::Arc<AtomicU64>,
    /// Beacons sent.
    pub beacons: AtomicU64,
    /// Channels subscribed to, again after a disconnect included.
    pub subscribed: AtomicU64,
    /// Channels unsubscribed.
    pub unsubscribed: AtomicU64,
    /// Subscriptions that the broker has ended, as their hash slot was moved to another server.
    pub moved: AtomicU64,
    /// Channels of which something kept was fetched, or would have been if there were any.
    pub fetches: AtomicU64,
    /// Publications that arrived by that.
    pub fetched: AtomicU64,
    /// Topics whose history was loaded, each time.
    pub loaded: AtomicU64,
    /// Times that publications were missed, fetched and then delivered, without a gap.
    pub healed: AtomicU64,
    /// Publications that the broker has no memory to keep.
    pub no_memory: AtomicU64,
    /// Commands for one topic that the broker has refused: subscriptions, publications, and what it keeps.
    pub rejected: AtomicU64,
    /// Topics whose history or members were deleted, as what was kept was not written by a node.
    pub reset: AtomicU64,
    /// Connections opened.
    pub connected: AtomicU64,
    /// Changes of members that were written.
    pub members_written: AtomicU64,
    /// Topics whose members were loaded.
    pub members_loads: AtomicU64,
    /// Nodes whose members were removed because their lease had ended.
    pub nodes_ended: AtomicU64,
    gaps: [AtomicU64; GapCause::ALL.len()],
    faults: [AtomicU64; FaultKind::ALL.len()],
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, many: usize) {
        counter.fetch_add(many as u64, Ordering::Relaxed);
    }

    pub(crate) fn gaps_add(&self, cause: GapCause, topics: usize) {
        if let Some(counter) = self.gaps.get(cause as usize) {
            Self::add(counter, topics);
        }
    }

    pub(crate) fn fault_add(&self, kind: FaultKind) {
        if let Some(counter) = self.faults.get(kind as usize) {
            Self::add(counter, 1);
        }
    }

    /// Topics of which something may be missing, each time counted, by cause.
    #[must_use]
    pub fn gaps(&self) -> [u64; GapCause::ALL.len()] {
        self.gaps.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Connections lost and attempts failed, in the order of [`FaultKind::ALL`].
    #[must_use]
    pub fn faults(&self) -> [u64; FaultKind::ALL.len()] {
        self.faults.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// A connection at one time.
#[derive(Clone, Debug)]
pub struct ShardFigures {
    /// The server, without secrets.
    pub server: String,
    /// When its state last changed.
    pub since_ns: u64,
    /// Why it carries no publications; `None` if it does.
    pub fault: Option<Fault>,
    /// It has refused a publication a moment ago that it had no room to keep, and has taken none since.
    pub is_full: bool,
    /// Channels that are subscribed or wanted.
    pub topics: usize,
    /// Those that the broker has not confirmed yet.
    pub unconfirmed: usize,
    /// Publications that wait to be sent.
    pub waiting: usize,
    /// Their memory.
    pub waiting_bytes: usize,
    /// Round trip of the last check, in nanoseconds; 0 before the first.
    pub check_ns: u64,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSeen {
    /// Its process.
    pub node: NodeId,
    /// Its name.
    pub name: Box<str>,
    /// How long ago it was heard, in nanoseconds.
    pub heard_ns_ago: u64,
}

/// Other nodes, with their names, and when they were heard.
#[derive(Debug, Default)]
pub(crate) struct Nodes(HashMap<NodeId, (Box<str>, u64)>);

impl Nodes {
    pub(crate) fn heard(&mut self, now_ns: u64, node: NodeId, name: &str) {
        if let Some((known, heard_ns)) = self.0.get_mut(&node) {
            *heard_ns = now_ns;
            if **known != *name {
                *known = name.into();
            }
            return;
        }
        self.forget(now_ns);
        if self.0.len() < NODES_MAX {
            self.0.insert(node, (name.into(), now_ns));
        }
    }

    fn forget(&mut self, now_ns: u64) {
        let lately = |heard_ns: u64| now_ns.saturating_sub(heard_ns) < NODE_FORGOTTEN_NS;
        self.0.retain(|_, (_, heard_ns)| lately(*heard_ns));
    }

    pub(crate) fn list(&mut self, now_ns: u64) -> Vec<NodeSeen> {
        self.forget(now_ns);
        let seen = |(node, (name, heard_ns)): (&NodeId, &(Box<str>, u64))| NodeSeen {
            node: *node,
            name: name.clone(),
            heard_ns_ago: now_ns.saturating_sub(*heard_ns),
        };
        let mut list: Vec<NodeSeen> = self.0.iter().map(seen).collect();
        list.sort_by(|a, b| (&a.name, a.node).cmp(&(&b.name, b.node)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_listed_until_they_are_silent_for_a_while() {
        let mut nodes = Nodes::default();
        nodes.heard(1, NodeId(2), "b");
        nodes.heard(5, NodeId(1), "a");
        nodes.heard(9, NodeId(2), "c");
        let listed = |nodes: &mut Nodes, now_ns| -> Vec<(String, u64)> {
            let list = nodes.list(now_ns).into_iter();
            list.map(|seen| (seen.name.into(), seen.heard_ns_ago)).collect()
        };
        assert_eq!(listed(&mut nodes, 10), [("a".to_owned(), 5), ("c".to_owned(), 1)]);
        let later = NODE_FORGOTTEN_NS + 6;
        assert_eq!(listed(&mut nodes, later), [("c".to_owned(), later - 9)]);
        (0..10_000).for_each(|node| nodes.heard(later, NodeId(node), "many"));
        assert_eq!(nodes.0.len(), NODES_MAX);
    }
}
