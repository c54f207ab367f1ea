//! [`Merged`]: the members of one topic that other nodes have, by node. Pure: the time is passed in.
//!
//! A member that is missing when the topic is loaded again stays for a while: after the broker was restarted every
//! node writes its members anew.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use brokers::envelope::NodeId;

/// Memory of a member at another node beyond its texts, in bytes: entries in tables, with spare room.
const HOLDER_BYTES: usize = 256;

/// What counts for a member at another node, beside the member itself, in bytes.
pub(super) fn holder_bytes(id: &str, info: Option<&str>) -> usize {
    HOLDER_BYTES + id.len() + info.map_or(0, str::len)
}

/// A node that has a member.
#[derive(Debug)]
struct Holder {
    node: NodeId,
    info: Option<Arc<str>>,
    /// It was missing when the topic was loaded, and stays until then.
    until_ns: Option<u64>,
}

/// The members of one topic at other nodes.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// The nodes that have each member; the one that said so last is the last.
    members: HashMap<Arc<str>, Vec<Holder>>,
    /// Holders that were missing.
    missing: usize,
    /// Some found no room.
    pub(super) incomplete: bool,
}

/// A member that a node has, and bytes that were added and freed.
pub(super) struct Held {
    pub(super) id: Arc<str>,
    pub(super) info: Option<Arc<str>>,
    pub(super) added: usize,
    pub(super) freed: usize,
}

/// A member that a node does not have any more.
pub(super) struct Left {
    pub(super) id: Arc<str>,
    /// Its info at the node that still has it; `None` if none has.
    pub(super) still: Option<Option<Arc<str>>>,
    pub(super) freed: usize,
}

impl Merged {
    /// Nothing is known of other nodes.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && !self.incomplete
    }

    /// Whether holders are missing.
    pub(super) fn has_missing(&self) -> bool {
        self.missing > 0
    }

    /// The holders.
    pub(super) fn len(&self) -> usize {
        self.members.values().map(Vec::len).sum()
    }

    /// The info of a member at the node that said so last; `None` if no other node has it.
    pub(super) fn info(&self, id: &str) -> Option<Option<&Arc<str>>> {
        Some(self.members.get(id)?.last()?.info.as_ref())
    }

    /// A node has a member.
    pub(super) fn hold(&mut self, node: NodeId, id: &str, info: Option<&str>) -> Held {
        let id = match self.members.get_key_value(id) {
            Some((id, _)) => Arc::clone(id),
            None => id.into(),
        };
        let holders = self.members.entry(Arc::clone(&id)).or_default();
        let mut freed = 0;
        if let Some(at) = holders.iter().position(|holder| holder.node == node) {
            let before = holders.remove(at);
            self.missing -= usize::from(before.until_ns.is_some());
            freed = holder_bytes(&id, before.info.as_deref());
        }
        let info: Option<Arc<str>> = info.map(Into::into);
        let added = holder_bytes(&id, info.as_deref());
        holders.push(Holder { node, info: info.clone(), until_ns: None });
        Held { id, info, added, freed }
    }

    /// A node has told that it does not have a member, or others have that it ended. One that was missing stays
    /// for its time.
    pub(super) fn leave(&mut self, node: NodeId, id: &str) -> Option<Left> {
        let holders = self.members.get_mut(id)?;
        let at = holders.iter().position(|holder| holder.node == node)?;
        if holders.get(at)?.until_ns.is_some() {
            return None;
        }
        let left = holders.remove(at);
        Some(self.left(id, left.info.as_deref()))
    }

    fn left(&mut self, id: &str, info: Option<&str>) -> Left {
        let freed = holder_bytes(id, info);
        let still = self.members.get(id).and_then(|holders| holders.last());
        let still = still.map(|holder| holder.info.clone());
        let id = match still.is_some() {
            true => self.members.get_key_value(id).map(|(id, _)| Arc::clone(id)),
            false => self.members.remove_entry(id).map(|(id, _)| id),
        };
        Left { id: id.unwrap_or_default(), still, freed }
    }

    /// The topic was loaded again with these members of nodes: others stay until `until_ns`.
    pub(super) fn miss(&mut self, loaded: &HashSet<(NodeId, &str)>, until_ns: u64) {
        for (id, holders) in &mut self.members {
            for holder in holders.iter_mut() {
                if holder.until_ns.is_none() && !loaded.contains(&(holder.node, &**id)) {
                    holder.until_ns = Some(until_ns);
                    self.missing += 1;
                }
            }
        }
    }

    /// Ends the stay of holders that were missing for too long.
    pub(super) fn expire(&mut self, now_ns: u64) -> Vec<Left> {
        let ended = |holder: &Holder| holder.until_ns.is_some_and(|until_ns| until_ns <= now_ns);
        let ids: Vec<Arc<str>> = self
            .members
            .iter()
            .filter(|(_, holders)| holders.iter().any(ended))
            .map(|(id, _)| Arc::clone(id))
            .collect();
        let mut all = Vec::new();
        for id in ids {
            while let Some(holders) = self.members.get_mut(&id)
                && let Some(at) = holders.iter().position(ended)
            {
                let holder = holders.remove(at);
                self.missing -= 1;
                all.push(self.left(&id, holder.info.as_deref()));
            }
        }
        all
    }

    /// The members that a node has.
    pub(super) fn of_node(&self, node: NodeId) -> Vec<Arc<str>> {
        let has = |holders: &[Holder]| holders.iter().any(|holder| holder.node == node);
        let of_node = self.members.iter().filter(|(_, holders)| has(holders));
        of_node.map(|(id, _)| Arc::clone(id)).collect()
    }

    /// Bytes that all count for.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |(id, holders): (&Arc<str>, &Vec<Holder>)| -> usize {
            holders.iter().map(|holder| holder_bytes(id, holder.info.as_deref())).sum()
        };
        self.members.iter().map(bytes).sum()
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
