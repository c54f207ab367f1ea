//! Subscribe and publish across workers, without brokers or protocols.
//!
//! Each worker has its [`Topics`]: what its connections are subscribed to. All share one
//! [`Directory`] of the workers that have subscribers of a topic, so that a publication is posted
//! to those only, once each. A [`Publication`] is independent of protocols: subscribers of a topic
//! are in groups, and the caller encodes a publication once per group and worker.
//!
//! Delivery is a rolling sweep: a group keeps a short log of recent frames, and each member a
//! cursor. The worker visits members in a ring, some at a time, and each visit sends all that is
//! pending by then. Under load, several messages are thus sent in one write, without delay when
//! idle.
//!
//! A topic may have thousands of groups on one worker. They get a publication in portions, turn by
//! turn, and none while too much waits for the sweep; later publications wait, too. The oldest
//! group gets it first.
//!
//! Order: what one publisher publishes to one topic arrives in that order everywhere.

mod directory;
mod group;
mod groups;
mod inspect;
mod memberships;
mod meter;
mod slots;

use std::collections::VecDeque;
use std::sync::Arc;

pub use crate::directory::{Directory, Publication};
pub use crate::inspect::TopTopics;
pub use crate::memberships::{Memberships, Subscriber};
pub use crate::meter::{TopicCount, TopicCounts, Traffic};
pub use crate::slots::Slots;
use engine::invariant::broken;
use engine::{ConnId, Core, Handler, MailboxFull, SharedFrame, Sys};

use crate::group::Group;
use crate::groups::{GroupWalk, Groups};
use crate::meter::Meter;

/// Groups for which a publication is encoded in one turn.
const ENCODES_PER_TURN: usize = 512;
/// Publications that may be pending before a worker accepts no more.
const PENDING_MAX: usize = 1024;
/// Members per turn of the worker that are sent something.
const SENDS_PER_TURN: usize = 64;
/// Members per turn that are visited.
const VISITS_PER_TURN: usize = 4096;
/// Bytes of frames that may wait for the sweep before a worker accepts no more posts and refuses
/// publications of its own sockets.
const SWEEP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The subscriptions of one worker's connections.
pub struct Topics {
    worker: u16,
    directory: Directory,
    groups: Groups,
    /// Publications that not all groups of their topic have got, in their order.
    pending: VecDeque<PendingPublication>,
    pending_bytes: usize,
    /// What is left of this turn's budget.
    encodes: usize,
    /// Groups with members that lack frames; or removed since.
    active: VecDeque<u32>,
    waiting_bytes: usize,
    subscriptions: u64,
    scratch: Vec<u8>,
    meter: Meter,
}

struct PendingPublication {
    publication: Arc<Publication>,
    left: Option<GroupWalk>,
}

impl Topics {
    /// Creates the topics of a worker, none yet.
    #[must_use]
    pub fn new(worker: u16, directory: Directory) -> Self {
        Topics {
            worker,
            directory,
            groups: Groups::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            encodes: ENCODES_PER_TURN,
            active: VecDeque::new(),
            waiting_bytes: 0,
            subscriptions: 0,
            scratch: Vec::new(),
            meter: Meter::default(),
        }
    }

    /// Subscriptions of this worker's connections.
    #[must_use]
    pub fn subscriptions(&self) -> u64 {
        self.subscriptions
    }

    /// The topic of a subscriber with exactly one subscription.
    #[must_use]
    pub fn only_topic(&self, memberships: &Memberships) -> Option<Arc<str>> {
        let index = memberships.only()?;
        self.groups.get(index).map(Group::shared_topic)
    }

    /// The encodings of a subscriber's subscriptions.
    pub fn kinds(&self, memberships: &Memberships) -> impl Iterator<Item = u32> {
        memberships.groups().filter_map(|index| self.groups.get(index).map(Group::kind))
    }

    /// Subscribes a connection in the encoding `kind`; it gets what is published from now on.
    /// Returns `false` if it was already subscribed or has disconnected.
    pub fn subscribe<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        topic: &str,
        kind: u32,
    ) -> bool
    where
        H: Handler<User: Subscriber>,
    {
        let index = match self.groups.find(topic, kind) {
            Some(index) => index,
            None => self.add_group(topic, kind),
        };
        let Some(group) = self.groups.get_mut(index) else {
            broken("a group that was found or added exists");
            return false;
        };
        let Some(user) = core.user_mut(id) else { return false };
        if !user.memberships().add(index, group.next_position()) {
            return false;
        }
        group.add(id.slot());
        self.subscriptions += 1;
        true
    }

    /// Ends one subscription; returns `false` if there was none.
    pub fn unsubscribe<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        topic: &str,
        kind: u32,
    ) -> bool
    where
        H: Handler<User: Subscriber>,
    {
        let Some(index) = self.groups.find(topic, kind) else { return false };
        let Some(user) = core.user_mut(id) else { return false };
        let Some(position) = user.memberships().remove(index) else { return false };
        self.remove_member(core, index, position);
        true
    }

    /// Ends all subscriptions of a connection. To be called when it has closed. `ended` is called
    /// with the encoding of each.
    pub fn unsubscribe_all<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        mut ended: impl FnMut(u32),
    ) where
        H: Handler<User: Subscriber>,
    {
        while let Some((index, position)) =
            core.user_mut(id).and_then(|user| user.memberships().pop())
        {
            match self.groups.get(index) {
                Some(group) => ended(group.kind()),
                None => broken("a membership names a group"),
            }
            self.remove_member(core, index, position);
        }
    }

    /// Whether a connection is subscribed in the encoding `kind`.
    #[must_use]
    pub fn is_subscribed(&self, memberships: &Memberships, topic: &str, kind: u32) -> bool {
        self.groups.find(topic, kind).is_some_and(|index| memberships.has(index))
    }

    /// Publishes from this worker: to the others that have subscribers by one post each, and to its
    /// own. `encode` appends the publication as the subscribers of a group receive it.
    ///
    /// # Errors
    /// [`MailboxFull`] if another worker's mailbox or this worker's sweep is at its limit; nothing
    /// was published then, and the publisher should pause and retry.
    pub fn publish<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        publication: &Arc<Publication>,
        encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Result<(), MailboxFull>
    where
        H: Handler<User: Subscriber, Post: From<Arc<Publication>>>,
    {
        if !self.accepts_posts() {
            return Err(MailboxFull);
        }
        let me = Some(usize::from(self.worker));
        if let Err(full) = self.directory.post(core.remote(), publication, me) {
            core.counters().mailbox_full.add(1);
            return Err(full);
        }
        self.deliver(core, publication, encode);
        Ok(())
    }

    /// Accepts a publication for this worker's subscribers; [`Topics::turn`] sends it. A group for
    /// which `encode` appends nothing gets nothing.
    pub fn deliver<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        publication: &Arc<Publication>,
        mut encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) {
        let mut left = self.groups.walk(&publication.topic);
        if self.pending.is_empty() {
            left = self.encode_for(core, publication, left, &mut encode);
        }
        if left.is_some() {
            self.pending_bytes += publication.bytes();
            self.pending
                .push_back(PendingPublication { publication: Arc::clone(publication), left });
        }
    }

    /// Whether there is room for further publications.
    #[must_use]
    pub fn accepts_posts(&self) -> bool {
        self.waiting_bytes + self.pending_bytes < SWEEP_BYTES_MAX
            && self.pending.len() < PENDING_MAX
    }

    /// Runs a portion of the sweep, with `encode` as in [`Topics::deliver`]. Returns when to
    /// continue, as [`Handler::turn`] does.
    pub fn turn<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        mut encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Option<u64> {
        self.encodes = ENCODES_PER_TURN;
        self.encode_pending(core, &mut encode);
        let (mut sends, mut visits) = (SENDS_PER_TURN, VISITS_PER_TURN);
        while sends > 0 && visits > 0 {
            let Some(index) = self.active.pop_front() else { break };
            let Some(group) = self.groups.get_mut(index) else { continue };
            let before = group.waiting_bytes();
            let more = group.sweep(core, &mut sends, &mut visits);
            self.waiting_bytes -= before - group.waiting_bytes();
            if more {
                self.active.push_back(index);
            }
        }
        let rests = self.active.is_empty() && self.pending.is_empty();
        (!rests).then(|| core.now_ns())
    }

    fn encode_pending<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        encode: &mut impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) {
        while let Some(PendingPublication { publication, left }) = self.pending.front() {
            let (publication, left) = (Arc::clone(publication), *left);
            let left = self.encode_for(core, &publication, left, encode);
            if left.is_some() {
                match self.pending.front_mut() {
                    Some(first) => first.left = left,
                    None => broken("the first pending publication stays while it is encoded"),
                }
                return;
            }
            self.pending_bytes -= publication.bytes();
            self.pending.pop_front();
        }
    }

    /// Encodes for the groups that are left, within the limits of the turn and the sweep. Returns
    /// the groups that remain.
    fn encode_for<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        publication: &Publication,
        mut left: Option<GroupWalk>,
        encode: &mut impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Option<GroupWalk> {
        while self.encodes > 0 && self.waiting_bytes < SWEEP_BYTES_MAX {
            let Some(now) = left else { break };
            left = now.advance(&self.groups);
            self.encodes -= 1;
            let Some(group) = self.groups.get_mut(now.next) else {
                broken("a walk names groups that exist");
                continue;
            };
            self.scratch.clear();
            encode(core, group.kind(), publication, &mut self.scratch);
            if self.scratch.is_empty() {
                continue;
            }
            let (topic, members) = (group.topic_name(), group.members());
            self.meter.count(core.now_ns(), topic, members, publication.data.len());
            let before = group.waiting_bytes();
            if group.publish(SharedFrame::new(&self.scratch, 1), publication) {
                self.active.push_back(now.next);
            }
            self.waiting_bytes += group.waiting_bytes() - before;
        }
        self.scratch.shrink_to(64 * 1024);
        left
    }

    fn add_group(&mut self, topic: &str, kind: u32) -> u32 {
        let sibling = self.groups.walk(topic).and_then(|all| self.groups.get(all.next));
        let topic = match sibling {
            Some(sibling) => sibling.shared_topic(),
            None => self.directory.add_worker(topic, self.worker),
        };
        self.groups.insert(Group::new(kind, topic))
    }

    /// Removes a member from a group; its membership is already removed.
    fn remove_member<S: Sys, H>(&mut self, core: &mut Core<S, H>, index: u32, position: u32)
    where
        H: Handler<User: Subscriber>,
    {
        let Some(group) = self.groups.get_mut(index) else {
            return broken("a membership names a group");
        };
        self.subscriptions -= 1;
        if let Some(moved) = group.remove(position) {
            match core.user_at(moved) {
                Some(user) => user.memberships().moved(index, position),
                None => broken("a group's members are connections"),
            }
        }
        if group.is_empty() {
            self.remove_group(index);
        }
    }

    fn remove_group(&mut self, index: u32) {
        for pending in &mut self.pending {
            pending.left = pending.left.and_then(|left| left.without(index, &self.groups));
        }
        let Some((group, others)) = self.groups.remove(index) else {
            return broken("a group that lost its last member exists");
        };
        self.waiting_bytes -= group.waiting_bytes();
        if !others {
            self.directory.remove_worker(group.topic(), self.worker);
        }
    }
}
