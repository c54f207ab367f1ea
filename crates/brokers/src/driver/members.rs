//! The part of a connection that shares members: leases, writes of what changes here, loads of what others have.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Driver;
use crate::envelope::NodeId;
use crate::figures::Counters;
use crate::members::outbox::Batch;
use crate::members::versions::{Verdict, Versions};
use crate::members::{BATCH_LOADS, BATCH_WRITES, Event, Members, NODES_MAX, REPEAT_NS, Stored};
use crate::members::{WRITE_INTERVAL, WRITE_MEMBERS, Write};
use crate::transport::{Channel, Fault, Link};

/// A lease lasts for so many of its renewals, and what ends it is noticed after one more: together the time after
/// which members of a node that has ended are absent.
const RENEWALS: u32 = 4;
/// That of a node that drains, which may end just before it is renewed: its clients have the whole time to come back.
const LEAVING_RENEWALS: u32 = 6;
/// Names to choose one from whose lease is at the servers of the connection.
const NAMES_MAX: usize = 4096;

/// What the thread of the connections knows of members at one broker.
#[derive(Default)]
pub(super) struct Sharing {
    /// What this node is called there, if it has a lease. After that has ended it is another node.
    node: Cell<Option<NodeId>>,
    versions: RefCell<Versions>,
    /// Topics whose members have to be loaded again.
    reload: RefCell<VecDeque<Channel>>,
    /// Nodes that had a lease a moment ago.
    nodes: RefCell<HashSet<NodeId>>,
    /// What is being written, and what was when the connection was lost.
    in_flight: RefCell<Vec<Batch>>,
    /// What nodes that have ended left behind, to be removed.
    remains: RefCell<Vec<Write>>,
    /// Topics in which such nodes left something behind, to be loaded again when it may be removed.
    with_remains: RefCell<HashSet<Channel>>,
    /// When the connection was opened.
    opened_ns: Cell<u64>,
    /// What the inboxes had dropped when everything was loaded.
    dropped: Cell<u64>,
    /// When all members of this node are written again.
    repeat_ns: Cell<u64>,
}

impl Driver {
    fn shared_members(&self) -> Option<&dyn Members> {
        self.broker.settings.members?;
        self.receiver.members()
    }

    fn lease_key(&self, node: NodeId) -> String {
        format!("{}:n:{node}", self.broker.settings.prefix)
    }

    fn members_key(&self, topic: &str) -> String {
        match self.broker.placement.has_slots() {
            true => format!("{}:p", self.broker.channel(topic)),
            false => format!("{}:p:{topic}", self.broker.settings.prefix),
        }
    }

    /// Another name of this node. With hash slots its lease is at the servers of this connection.
    fn new_node(&self) -> NodeId {
        let random = || NodeId((self.broker.settings.random)());
        let is_here = |node: &NodeId| {
            let shard = self.broker.shard(&self.lease_key(*node));
            !self.broker.placement.has_slots() || std::ptr::eq(shard, self.shard())
        };
        std::iter::repeat_with(random).take(NAMES_MAX).find(is_here).unwrap_or_else(random)
    }

    /// How long members of a node stay after it has ended.
    fn members_ttl(&self) -> Duration {
        self.broker.settings.members.unwrap_or_default()
    }

    /// Writes and loads members. Ends with a fault.
    pub(super) async fn share_members(&self, link: &impl Link) -> Fault {
        let Some(members) = self.shared_members() else { return std::future::pending().await };
        self.sharing.opened_ns.set(self.broker.now_ns());
        self.sharing.dropped.set(self.dropped_now());
        match self.share(link, members).await {
            Err(fault) => fault,
            Ok(never) => match never {},
        }
    }

    async fn share(
        &self,
        link: &impl Link,
        members: &dyn Members,
    ) -> Result<std::convert::Infallible, Fault> {
        link.open_members(&self.members_key("")).await?;
        self.shard().outbox.put_back(self.sharing.in_flight.take());
        let interval = self.members_ttl() / (RENEWALS + 1);
        let (mut renew_ns, mut was_leaving) = (0, false);
        loop {
            let (now_ns, is_leaving) = (self.broker.now_ns(), self.broker.is_leaving());
            if now_ns >= renew_ns || is_leaving != was_leaving || self.shard().outbox.is_overflown()
            {
                was_leaving = is_leaving;
                let renewals = if is_leaving { LEAVING_RENEWALS } else { RENEWALS };
                renew_ns = now_ns.saturating_add(interval.as_nanos() as u64);
                self.renew(link, members, now_ns, interval * renewals).await?;
                self.end_nodes(link, members, now_ns).await?;
                for topic in members.tick() {
                    self.reload(self.broker.channel(&topic));
                }
                self.reload_if_dropped();
            }
            let mut reload: Vec<Channel> = Vec::new();
            while reload.len() < BATCH_LOADS {
                let Some(channel) = self.sharing.reload.borrow_mut().pop_front() else { break };
                reload.push(channel);
            }
            self.load_topics(link, members, &reload, &HashSet::new()).await?;
            for batch in self.sharing.remains.take().chunks(BATCH_WRITES) {
                self.write_members(link, batch).await?;
            }
            let wrote = self.write(link).await?;
            if wrote || !reload.is_empty() {
                // What changes meanwhile is written together.
                tokio::time::sleep(WRITE_INTERVAL).await;
                continue;
            }
            let sleep = Duration::from_nanos(renew_ns.saturating_sub(self.broker.now_ns()));
            let woken = self.shard().wakes.members.notified();
            let _ = tokio::time::timeout(sleep, woken).await;
        }
    }

    /// Renews the lease of this node, or becomes another one and writes all its members.
    async fn renew(
        &self,
        link: &impl Link,
        members: &dyn Members,
        now_ns: u64,
        time: Duration,
    ) -> Result<(), Fault> {
        let outbox = &self.shard().outbox;
        if let Some(node) = self.sharing.node.get() {
            let key = self.lease_key(node);
            if outbox.is_overflown() {
                link.end_lease(&key).await?;
            } else if link.renew_lease(&key, time).await? {
                if now_ns >= self.sharing.repeat_ns.get() {
                    self.write_all(members, now_ns);
                }
                return Ok(());
            }
            self.sharing.node.set(None);
        }
        let node = self.new_node();
        link.begin_lease(&self.lease_key(node), time).await?;
        self.sharing.node.set(Some(node));
        outbox.clear();
        self.write_all(members, now_ns);
        Ok(())
    }

    /// Puts all members of this node into the outbox.
    fn write_all(&self, members: &dyn Members, now_ns: u64) {
        self.sharing.repeat_ns.set(now_ns.saturating_add(REPEAT_NS));
        members.own(&mut |topic, id, info| {
            let shard = self.broker.shard(&self.broker.channel(topic));
            if std::ptr::eq(shard, self.shard()) {
                shard.outbox.push(topic, Arc::clone(id), Some(info.cloned()));
            }
        });
    }

    /// Removes the members of nodes whose lease has ended. Not for a while after a connection was opened: after
    /// the broker was restarted nobody has a lease, until it has connected, too.
    async fn end_nodes(
        &self,
        link: &impl Link,
        members: &dyn Members,
        now_ns: u64,
    ) -> Result<(), Fault> {
        if self.within_grace(now_ns) {
            return Ok(());
        }
        self.sharing.with_remains.take().into_iter().for_each(|channel| self.reload(channel));
        let nodes: Vec<NodeId> = self.sharing.nodes.borrow().iter().copied().collect();
        for node in self.without_lease(link, &nodes).await? {
            let mut writes = Vec::new();
            for (topic, ids) in members.of_node(node) {
                for absent in ids.chunks(WRITE_MEMBERS) {
                    writes.push(self.write_of(node, &topic, Vec::new(), absent.to_vec()));
                }
            }
            for batch in writes.chunks(BATCH_WRITES) {
                self.write_members(link, batch).await?;
            }
            self.sharing.nodes.borrow_mut().remove(&node);
            Counters::add(&self.broker.counters.nodes_ended, 1);
        }
        Ok(())
    }

    /// Whether the connection was opened less than the time ago for which members of a node that has ended stay.
    fn within_grace(&self, now_ns: u64) -> bool {
        let grace_ns = self.members_ttl().as_nanos() as u64;
        now_ns < self.sharing.opened_ns.get().saturating_add(grace_ns)
    }

    /// Those of the nodes that have no lease.
    async fn without_lease(
        &self,
        link: &impl Link,
        nodes: &[NodeId],
    ) -> Result<Vec<NodeId>, Fault> {
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<String> = nodes.iter().map(|node| self.lease_key(*node)).collect();
        let leases = link.leases(&keys).await?;
        let ended = nodes.iter().zip(leases).filter(|(_, has_lease)| !has_lease);
        Ok(ended.map(|(node, _)| *node).collect())
    }

    fn write_of(
        &self,
        node: NodeId,
        topic: &str,
        present: Vec<(Arc<str>, Option<Arc<str>>)>,
        absent: Vec<Arc<str>>,
    ) -> Write {
        let (key, channel) = (self.members_key(topic), self.broker.channel(topic));
        Write { key, channel, node, present, absent }
    }

    /// Writes a part of the outbox. Returns whether there was any.
    async fn write(&self, link: &impl Link) -> Result<bool, Fault> {
        let Some(node) = self.sharing.node.get() else { return Ok(false) };
        let batches = self.shard().outbox.take();
        if batches.is_empty() {
            return Ok(false);
        }
        let writes: Vec<Write> = batches
            .iter()
            .map(|Batch { topic, changes }| {
                let (mut present, mut absent) = (Vec::new(), Vec::new());
                for (id, state) in changes {
                    match state {
                        Some(info) => present.push((Arc::clone(id), info.clone())),
                        None => absent.push(Arc::clone(id)),
                    }
                }
                self.write_of(node, topic, present, absent)
            })
            .collect();
        *self.sharing.in_flight.borrow_mut() = batches;
        self.write_members(link, &writes).await?;
        let written = self.sharing.in_flight.take();
        let many = written.iter().map(|batch| batch.changes.len()).sum();
        Counters::add(&self.broker.counters.members_written, many);
        Ok(true)
    }

    /// After the inbox has dropped messages, changes may be among them that nothing follows.
    fn reload_if_dropped(&self) {
        let dropped = self.dropped_now();
        if self.sharing.dropped.replace(dropped) != dropped {
            let known = self.sharing.versions.borrow().known();
            self.sharing.reload.borrow_mut().extend(known);
        }
    }

    fn reload(&self, channel: Channel) {
        self.sharing.reload.borrow_mut().push_back(channel);
    }

    /// Loads the members of channels that the broker has just subscribed, before they are confirmed.
    pub(super) async fn load_members(
        &self,
        link: &impl Link,
        channels: &[Channel],
    ) -> Result<(), Fault> {
        let Some(members) = self.shared_members() else { return Ok(()) };
        for channels in channels.chunks(BATCH_LOADS) {
            let first = self.sharing.versions.borrow_mut().follow(channels);
            self.load_topics(link, members, channels, &first).await?;
        }
        Ok(())
    }

    async fn load_topics(
        &self,
        link: &impl Link,
        members: &dyn Members,
        channels: &[Channel],
        first: &HashSet<Channel>,
    ) -> Result<(), Fault> {
        let (mut followed, mut wanted) = (Vec::new(), Vec::new());
        for channel in channels {
            let Some(topic) = self.broker.topic(channel) else { continue };
            let mut versions = self.sharing.versions.borrow_mut();
            // It may have been released, or be loading.
            if versions.contains(channel) && versions.begin(channel) {
                followed.push((channel, topic));
                wanted.push((self.members_key(topic), Channel::clone(channel)));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let all = self.stored_members(link, &wanted).await?;
        Counters::add(&self.broker.counters.members_loads, all.len());
        let ended = self.unknown_ended(link, &all).await?;
        let mut remains: HashMap<(NodeId, &str), Vec<Arc<str>>> = HashMap::new();
        for ((channel, topic), stored) in followed.into_iter().zip(all) {
            if !self.sharing.versions.borrow().contains(channel) {
                // It was released meanwhile.
                continue;
            }
            let (mut own, mut others) = (Vec::new(), Vec::new());
            for member in stored.members {
                if Some(member.node) == self.sharing.node.get() {
                    own.push(member);
                } else if !ended.contains(&member.node) {
                    others.push(member);
                } else {
                    remains.entry((member.node, topic)).or_default().push(member.id.into());
                }
            }
            members.loaded(topic, &others, first.contains(channel));
            members.own_loaded(topic, &own);
            let pending = self.sharing.versions.borrow_mut().loaded(channel, stored.version);
            match pending {
                Some(pending) => pending.iter().for_each(|body| self.changed(channel, body)),
                None => self.reload(Channel::clone(channel)),
            }
        }
        if self.within_grace(self.broker.now_ns()) {
            // Their nodes may be about to come back as others, and other nodes still have their members.
            let channels = remains.into_keys().map(|(_, topic)| self.broker.channel(topic));
            self.sharing.with_remains.borrow_mut().extend(channels);
        } else if !remains.is_empty() {
            let write = |((node, topic), absent): (_, Vec<Arc<str>>)| {
                let of =
                    move |ids: &[Arc<str>]| self.write_of(node, topic, Vec::new(), ids.to_vec());
                absent.chunks(WRITE_MEMBERS).map(of).collect::<Vec<_>>()
            };
            let writes: Vec<Write> = remains.into_iter().flat_map(write).collect();
            self.sharing.remains.borrow_mut().extend(writes);
            self.shard().wakes.members.notify_one();
        }
        Ok(())
    }

    /// Finds out about nodes that were not seen before. Returns those that have ended.
    async fn unknown_ended(&self, link: &impl Link, all: &[Stored]) -> Result<Vec<NodeId>, Fault> {
        let unknown: BTreeSet<NodeId> = {
            let (nodes, own) = (self.sharing.nodes.borrow(), self.sharing.node.get());
            let members = all.iter().flat_map(|stored| &stored.members);
            let unknown =
                members.filter(|member| Some(member.node) != own && !nodes.contains(&member.node));
            unknown.map(|member| member.node).collect()
        };
        let unknown: Vec<NodeId> = unknown.into_iter().collect();
        let ended = self.without_lease(link, &unknown).await?;
        unknown.into_iter().filter(|node| !ended.contains(node)).for_each(|node| self.watch(node));
        Ok(ended)
    }

    /// Watches the lease of a node.
    fn watch(&self, node: NodeId) {
        let mut nodes = self.sharing.nodes.borrow_mut();
        if Some(node) != self.sharing.node.get() && nodes.len() < NODES_MAX {
            nodes.insert(node);
        }
    }

    /// A change of members has arrived.
    pub(super) fn members_changed(&self, channel: &str, body: &[u8]) {
        if self.shared_members().is_some() {
            self.changed(channel, body);
        }
    }

    fn changed(&self, channel: &str, body: &[u8]) {
        let (Some(members), Some(topic)) = (self.shared_members(), self.broker.topic(channel))
        else {
            return;
        };
        let Some(event) = Event::decode(body) else {
            return Counters::add(&self.broker.counters.malformed, 1);
        };
        let verdict = self.sharing.versions.borrow_mut().arrived(channel, &event, body);
        match verdict {
            Verdict::Apply if Some(event.node) != self.sharing.node.get() => {
                self.watch(event.node);
                members.changed(topic, event.node, &event.changes);
            }
            Verdict::Reload => {
                self.reload(channel.into());
                self.shard().wakes.members.notify_one();
            }
            Verdict::Apply | Verdict::Ignore | Verdict::Waits => {}
        }
    }

    /// Channels were unsubscribed.
    pub(super) fn release_members(&self, channels: &[Channel]) {
        let Some(members) = self.shared_members() else { return };
        for channel in channels {
            self.sharing.versions.borrow_mut().remove(channel);
            if let Some(topic) = self.broker.topic(channel) {
                members.released(topic);
            }
        }
    }

    /// The connection is lost.
    pub(super) fn members_disconnected(&self) {
        self.sharing.versions.borrow_mut().disconnected();
        self.sharing.reload.take();
        self.sharing.remains.take();
        self.sharing.with_remains.take();
    }
}
