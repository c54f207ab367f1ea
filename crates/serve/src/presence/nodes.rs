//! Members of other nodes ([`Nodes`]): what the broker tells of them becomes part of the topics' members, and what
//! changes here goes to the broker.
//!
//! Their memory counts for that of all members. What finds no room is left out and counted, and its topic is
//! loaded again when there is room.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use brokers::Broker;
use brokers::envelope::NodeId;
use brokers::members::{Member, Members, OwnMember, State};
use engine::sys::process::now_ns;

use super::merge::{Held, Left, Merged, holder_bytes};
use super::set::{Set, record_bytes};
use super::{Presence, SHARDS, Shard, locked, topic_bytes};

/// Topics of which not all members are known that are loaded again at a time.
const RELOADS: usize = 64;

type Topics = HashMap<Arc<str>, Merged>;

/// What a process knows of other nodes' members.
pub(crate) struct Nodes {
    broker: Arc<Broker>,
    /// By topic, with as many locks as there are for members; to be locked after those.
    topics: Box<[Mutex<Topics>]>,
    /// Members of other nodes, each once for each node.
    held: AtomicUsize,
    /// Those that found no room, each time.
    omitted: AtomicU64,
}

/// Figures for operators.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodesStats {
    /// Members at other nodes, each once for each node that has it.
    pub(crate) held: usize,
    /// Those that found no room, each time.
    pub(crate) omitted: u64,
    /// Changes of members of this node that the broker does not have yet.
    pub(crate) waiting: usize,
}

impl Nodes {
    pub(super) fn new(broker: Arc<Broker>) -> Self {
        Nodes {
            broker,
            topics: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            held: AtomicUsize::new(0),
            omitted: AtomicU64::new(0),
        }
    }

    fn topics(&self, at: usize) -> MutexGuard<'_, Topics> {
        // SHARDS is the length.
        locked(&self.topics[at % SHARDS])
    }

    /// A member of this process is present, or is not. The lock of its topic is held.
    pub(super) fn tell(&self, topic: &str, id: &Arc<str>, state: Option<Option<&Arc<str>>>) {
        self.broker.set_member(topic, id, state);
    }

    pub(super) fn omitted(&self) -> u64 {
        self.omitted.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> NodesStats {
        NodesStats {
            held: self.held.load(Ordering::Relaxed),
            omitted: self.omitted(),
            waiting: self.broker.members_waiting(),
        }
    }
}

/// A topic while its members change.
struct Change<'p> {
    presence: &'p Presence,
    nodes: &'p Nodes,
    set: &'p mut Set,
    merged: &'p mut Merged,
    /// There were no subscribers yet.
    first: bool,
    now_ns: u64,
    freed: usize,
}

impl Change<'_> {
    fn hold(&mut self, node: NodeId, id: &str, info: Option<&str>) {
        // Both may be new.
        let reserved = record_bytes(id, info) + holder_bytes(id, info);
        if !self.presence.reserve(reserved) {
            self.merged.incomplete = true;
            self.nodes.omitted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Held { id, info, added, freed } = self.merged.hold(node, id, info);
        let window_ns = self.presence.window_ns;
        let (more, less) =
            self.set.join_elsewhere(&id, info.as_ref(), self.first, self.now_ns, window_ns);
        self.presence.release(reserved.saturating_sub(added + more));
        self.freed += freed + less;
        if freed == 0 {
            self.nodes.held.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn leave(&mut self, left: &Left) {
        self.freed += left.freed;
        self.nodes.held.fetch_sub(1, Ordering::Relaxed);
        match &left.still {
            Some(info) => {
                let (added, freed) = self.set.set_info_elsewhere(&left.id, info.as_ref());
                self.presence.count(added);
                self.freed += freed;
            }
            None => self.set.leave_elsewhere(&left.id, self.now_ns, self.presence.window_ns),
        }
    }
}

impl Presence {
    /// Changes what is known of other nodes' members of a topic.
    fn merge(&self, topic: &str, first: bool, change: impl FnOnce(&mut Change<'_>)) {
        let Some(nodes) = &self.nodes else { return };
        let (at, now_ns) = (self.shard_of(topic), now_ns());
        let mut shard = locked(&self.shards[at]);
        let mut topics = nodes.topics(at);
        let name = match shard.topics.get_key_value(topic) {
            Some((name, _)) => Arc::clone(name),
            None => {
                self.count(topic_bytes(topic));
                let name: Arc<str> = topic.into();
                shard.topics.insert(Arc::clone(&name), Set::new(now_ns));
                name
            }
        };
        let Some(set) = shard.topics.get_mut(&name) else { return };
        let due = set.pace.due_ns();
        let merged = topics.entry(Arc::clone(&name)).or_default();
        let mut all = Change { presence: self, nodes, set, merged, first, now_ns, freed: 0 };
        change(&mut all);
        let mut freed = all.freed;
        if merged.is_empty() {
            topics.remove(&name);
        }
        drop(topics);
        freed += shard.note(&name, due);
        let next_ns = shard.next_ns();
        drop(shard);
        self.free(freed);
        self.alarm.ring_at(next_ns);
    }

    /// After a member has left this process: what other nodes know of it. Returns freed bytes.
    pub(super) fn show_elsewhere(
        &self,
        at: usize,
        shard: &mut Shard,
        topic: &str,
        id: &str,
    ) -> usize {
        let Some(nodes) = &self.nodes else { return 0 };
        let topics = nodes.topics(at);
        let info = topics.get(topic).and_then(|merged| merged.info(id));
        let Some((info, set)) = info.zip(shard.topics.get_mut(topic)) else { return 0 };
        let (added, freed) = set.set_info_elsewhere(id, info);
        self.count(added);
        freed
    }

    fn expire_missing(&self) {
        let Some(nodes) = &self.nodes else { return };
        let now_ns = now_ns();
        for at in 0..SHARDS {
            let topics = nodes.topics(at);
            let missing = topics.iter().filter(|(_, merged)| merged.has_missing());
            let missing: Vec<Arc<str>> = missing.map(|(topic, _)| Arc::clone(topic)).collect();
            drop(topics);
            for topic in missing {
                self.merge(&topic, false, |change| {
                    let ended = change.merged.expire(now_ns);
                    ended.iter().for_each(|left| change.leave(left));
                });
            }
        }
    }

    /// Topics of which not all members are known, if there is room.
    fn take_incomplete(&self) -> Vec<Arc<str>> {
        let mut all = Vec::new();
        let Some(nodes) = &self.nodes else { return all };
        if self.bytes.load(Ordering::Relaxed) > self.bytes_max / 8 * 7 {
            return all;
        }
        for at in 0..SHARDS {
            for (topic, merged) in nodes.topics(at).iter_mut() {
                if all.len() < RELOADS && std::mem::take(&mut merged.incomplete) {
                    all.push(Arc::clone(topic));
                }
            }
        }
        all
    }
}

impl Members for Presence {
    fn loaded(&self, topic: &str, members: &[Member], first: bool) {
        let known = || {
            let nodes = self.nodes.as_ref();
            nodes.is_some_and(|nodes| nodes.topics(self.shard_of(topic)).contains_key(topic))
        };
        if members.is_empty() && !known() {
            return;
        }
        self.merge(topic, first, |change| {
            let loaded: HashSet<(NodeId, &str)> =
                members.iter().map(|member| (member.node, &*member.id)).collect();
            change.merged.incomplete = false;
            change.merged.miss(&loaded, change.now_ns.saturating_add(self.ttl_ns));
            for Member { node, id, info } in members {
                change.hold(*node, id, info.as_deref());
            }
        });
    }

    fn own_loaded(&self, topic: &str, members: &[Member]) {
        let Some(nodes) = &self.nodes else { return };
        let shard = locked(&self.shards[self.shard_of(topic)]);
        let mut stored: HashMap<&str, Option<&str>> =
            members.iter().map(|member| (&*member.id, member.info.as_deref())).collect();
        for (id, info) in shard.topics.get(topic).into_iter().flat_map(Set::own) {
            if stored.remove(&**id) != Some(info.map(|info| &**info)) {
                nodes.tell(topic, id, Some(info));
            }
        }
        stored.into_keys().for_each(|id| nodes.tell(topic, &id.into(), None));
    }

    fn changed(&self, topic: &str, node: NodeId, changes: &[(&str, State<'_>)]) {
        self.merge(topic, false, |change| {
            for (id, state) in changes {
                match state {
                    State::Present(info) => change.hold(node, id, *info),
                    State::Absent => {
                        if let Some(left) = change.merged.leave(node, id) {
                            change.leave(&left);
                        }
                    }
                }
            }
        });
    }

    fn released(&self, topic: &str) {
        let Some(nodes) = &self.nodes else { return };
        let at = self.shard_of(topic);
        let mut shard = locked(&self.shards[at]);
        let Some((name, merged)) = nodes.topics(at).remove_entry(topic) else { return };
        nodes.held.fetch_sub(merged.len(), Ordering::Relaxed);
        let mut freed = merged.bytes();
        if let Some(set) = shard.topics.get_mut(&name) {
            let due = set.pace.due_ns();
            freed += set.forget_elsewhere();
            freed += shard.note(&name, due);
        }
        drop(shard);
        self.free(freed);
    }

    fn of_node(&self, node: NodeId) -> Vec<(Arc<str>, Vec<Arc<str>>)> {
        let mut all = Vec::new();
        let Some(nodes) = &self.nodes else { return all };
        for at in 0..SHARDS {
            for (topic, merged) in nodes.topics(at).iter() {
                let ids = merged.of_node(node);
                if !ids.is_empty() {
                    all.push((Arc::clone(topic), ids));
                }
            }
        }
        all
    }

    fn own(&self, each: &mut OwnMember<'_>) {
        for cell in &self.shards {
            for (topic, set) in &locked(cell).topics {
                set.own().for_each(|(id, info)| each(topic, id, info));
            }
        }
    }

    fn tick(&self) -> Vec<Arc<str>> {
        self.expire_missing();
        self.take_incomplete()
    }
}
