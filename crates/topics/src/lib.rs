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
//! turn, and none while too much waits for the sweep; later publications to that topic wait, too. The
//! oldest group gets it first.
//!
//! Topics do not wait for each other: each one with something to deliver has a [`lane`], and they are
//! served in turns, each as much as a [`lane::Budget`] allows. A topic that has more pending than
//! can be delivered soon is refused ([`Refused::TopicOverloaded`]), and no other with it.
//!
//! Order: what one publisher publishes to one topic arrives in that order everywhere. With a [`History`]
//! the publications of all publishers to a topic have one order, which is that of their offsets, and a
//! member can get what it missed before it continues with the others ([`Topics::replay`]).

mod directory;
mod group;
mod groups;
mod history;
mod inspect;
mod lane;
mod memberships;
mod meter;
mod replay;
mod slots;
mod topic;

use std::sync::Arc;

pub use crate::directory::{Directory, Mailboxes, Publication, Refused};
pub use crate::history::{
    Epoch, Eviction, History, HistoryLimits, HistoryPage, HistoryStats, KeptAt, KeptMessage, Past,
    PastPublication, Position, Start, Unavailable,
};
pub use crate::inspect::TopTopics;
pub use crate::memberships::{Memberships, Subscriber};
pub use crate::meter::{TopicCount, TopicCounts, Traffic};
pub use crate::replay::Replayed;
pub use crate::slots::Slots;
use engine::invariant::broken;
use engine::{ConnId, Core, Handler, SharedFrame, Sys};

use crate::group::Group;
use crate::groups::{GroupWalk, Groups, NO_LANE};
use crate::lane::{Budget, Lanes};
use crate::meter::Meter;
use crate::replay::Replays;

/// Bytes of pending publications of a worker before it accepts no more posts. Publishers are refused
/// before that, unless very many topics are behind.
const PENDING_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of frames that wait for the sweep. The frames of one topic may be as many as all topics
/// leave free, so that some are always left for others.
const SWEEP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Time for deliveries in one turn, after which no other topic has its turn.
const TURN_NS: u64 = 500_000;

/// The subscriptions of one worker's connections.
pub struct Topics {
    worker: u16,
    directory: Directory,
    groups: Groups,
    /// What is to be delivered, by topic.
    lanes: Lanes,
    /// Bytes of publications in the lanes, and of frames that some member lacks.
    pending_bytes: usize,
    waiting_bytes: usize,
    /// What is left for publications that are encoded at once.
    at_once: Budget,
    subscriptions: u64,
    scratch: Vec<u8>,
    meter: Meter,
    /// Members that get publications from the history.
    replays: Replays,
}

impl Topics {
    /// Creates the topics of a worker, none yet.
    #[must_use]
    pub fn new(worker: u16, directory: Directory) -> Self {
        Topics {
            worker,
            directory,
            groups: Groups::default(),
            lanes: Lanes::default(),
            pending_bytes: 0,
            waiting_bytes: 0,
            at_once: Budget::AT_ONCE,
            subscriptions: 0,
            scratch: Vec::new(),
            meter: Meter::default(),
            replays: Replays::default(),
        }
    }

    /// What publications name a connection of this worker by: its id, at the worker's number in the directory.
    #[must_use]
    pub fn id(&self, id: ConnId) -> ConnId {
        id.at_worker(self.worker)
    }

    /// Subscriptions of this worker's connections.
    #[must_use]
    pub fn subscriptions(&self) -> u64 {
        self.subscriptions
    }

    /// The topic of a subscriber with exactly one subscription.
    #[must_use]
    pub fn only_topic<M>(&self, memberships: &Memberships<M>) -> Option<Arc<str>> {
        let index = memberships.only()?;
        self.groups.get(index).map(|group| Arc::clone(group.topic().name()))
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
        // Otherwise its group would stay, without members.
        if core.user_mut(id).is_none() {
            return false;
        }
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
        self.remove_member(core, id, index, position);
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
            self.remove_member(core, id, index, position);
        }
    }

    /// Whether a connection is subscribed in the encoding `kind`.
    #[must_use]
    pub fn is_subscribed<M>(&self, memberships: &Memberships<M>, topic: &str, kind: u32) -> bool {
        self.groups.find(topic, kind).is_some_and(|index| memberships.has(index))
    }

    /// Publishes from this worker: to the others that have subscribers by one post each, and to its
    /// own. `encode` appends the publication as the subscribers of a group receive it.
    ///
    /// # Errors
    /// [`Refused`]: nothing was published then, and the publisher should pause and retry.
    pub fn publish<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        publication: &Arc<Publication>,
        encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Result<(), Refused>
    where
        H: Handler<User: Subscriber, Post: From<Arc<Publication>>>,
    {
        if !self.accepts_posts() {
            return Err(Refused::MailboxFull);
        }
        let me = Some(usize::from(self.worker));
        if let Err(refused) = self.directory.post(core.remote(), publication, me) {
            core.counters().mailbox_full.add(u64::from(refused == Refused::MailboxFull));
            return Err(refused);
        }
        if self.directory.history().is_none() {
            self.deliver(core, publication, encode);
        }
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
        let Some(walk) = self.groups.walk(&publication.topic) else { return };
        let index = self.lane(walk.next);
        let Some(lane) = self.lanes.get_mut(index) else {
            return broken("a lane that was found or added exists");
        };
        let mut left = Some(walk);
        if lane.pending.is_empty() {
            let portion = self.at_once.portion();
            let mut rest = portion;
            left = self.encode_for(core, index, publication, left, &mut rest, &mut encode);
            self.at_once.spend(portion, rest);
        }
        if left.is_some()
            && let Some(lane) = self.lanes.get_mut(index)
        {
            self.pending_bytes += publication.bytes();
            lane.defer(publication, left, core.now_ns());
        }
    }

    /// Whether there is room for further publications.
    #[must_use]
    pub fn accepts_posts(&self) -> bool {
        self.pending_bytes < PENDING_BYTES_MAX
    }

    /// Sends a subscriber what waits for it, ahead of the others: before a message that must not overtake
    /// publications, or before it ends a subscription. Publications that wait because very much does are
    /// not sent by it.
    #[inline]
    pub fn catch_up<S: Sys, H>(&mut self, core: &mut Core<S, H>, id: ConnId)
    where
        H: Handler<User: Subscriber>,
    {
        if self.lanes.len() == 0 {
            return;
        }
        let mut nth = 0;
        while let Some((index, position)) =
            core.user_mut(id).and_then(|user| user.memberships().nth(nth))
        {
            if let Some(group) =
                self.groups.get_mut(index).filter(|group| group.waiting_bytes() > 0)
            {
                group.catch_up(core, position as usize);
            }
            nth += 1;
        }
    }

    /// Delivers a portion, with `encode` as in [`Topics::deliver`]. Returns when to continue, as
    /// [`Handler::turn`] does.
    pub fn turn<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        mut encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Option<u64> {
        self.at_once = Budget::AT_ONCE;
        let prune_ns = self.prune_replays(core.now_ns());
        if self.lanes.len() == 0 {
            return prune_ns;
        }
        let until_ns = core.clock_ns() + TURN_NS;
        let mut budget = Budget::TURN;
        // Lanes in a row for which nothing could be done.
        let mut in_vain = 0;
        while in_vain < self.lanes.len() {
            let Some(index) = self.lanes.next() else { break };
            let portion = budget.portion();
            let mut rest = portion;
            self.encode_pending(core, index, &mut rest, &mut encode);
            self.sweep(core, index, &mut rest);
            self.lanes.end_turn(index, core.now_ns());
            budget.spend(portion, rest);
            in_vain = if rest == portion { in_vain + 1 } else { 0 };
            if !budget.may_send() || self.lanes.len() > 0 && core.clock_ns() >= until_ns {
                break;
            }
        }
        if self.lanes.len() > 0 { Some(core.now_ns()) } else { prune_ns }
    }

    /// The lane of a topic, by the oldest of its groups.
    fn lane(&mut self, oldest: u32) -> u32 {
        let lane = self.groups.lane(oldest);
        let Some(group) = self.groups.get(oldest) else {
            broken("a walk names groups that exist");
            return lane;
        };
        if self.lanes.of(lane, group.topic()).is_some() {
            return lane;
        }
        let lane = self.lanes.add(group.topic());
        self.groups.set_lane(oldest, lane);
        lane
    }

    /// Sends what a lane's groups wait for.
    fn sweep<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        index: u32,
        budget: &mut Budget,
    ) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        while budget.may_send() {
            let Some(active) = lane.active.pop_front() else { break };
            let group = self.groups.get_mut(active);
            // It may have been removed, and the index be another one's now.
            let Some(group) = group.filter(|group| lane.is_of(group.topic())) else { continue };
            let before = group.waiting_bytes();
            let more = group.sweep(core, budget);
            let sent = before - group.waiting_bytes();
            self.waiting_bytes -= sent;
            lane.waiting_bytes -= sent;
            if more {
                lane.active.push_back(active);
            }
        }
    }

    /// Encodes what is pending in a lane.
    fn encode_pending<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        index: u32,
        budget: &mut Budget,
        encode: &mut impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) {
        while let Some(first) = self.lanes.get_mut(index).and_then(|lane| lane.pending.front()) {
            let (publication, left) = (Arc::clone(&first.publication), first.left);
            let left = self.encode_for(core, index, &publication, left, budget, encode);
            let Some(lane) = self.lanes.get_mut(index) else { break };
            if left.is_some() {
                match lane.pending.front_mut() {
                    Some(first) => first.left = left,
                    None => broken("the first pending publication stays while it is encoded"),
                }
                break;
            }
            self.pending_bytes -= publication.bytes();
            lane.pending.pop_front();
        }
    }

    /// Encodes for the groups that are left, within the budget and what may wait for the sweep.
    /// Returns the groups that remain.
    fn encode_for<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        index: u32,
        publication: &Publication,
        mut left: Option<GroupWalk>,
        budget: &mut Budget,
        encode: &mut impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Option<GroupWalk> {
        let except = publication.except.filter(|id| id.worker() == self.worker);
        let except = except.map(|id| id.at_worker(core.worker()));
        let Some(lane) = self.lanes.get_mut(index) else {
            broken("a lane exists while its publications are encoded");
            return None;
        };
        while let Some(now) = left {
            let free = SWEEP_BYTES_MAX.saturating_sub(self.waiting_bytes);
            if !budget.may_encode() || lane.waiting_bytes >= free {
                break;
            }
            left = now.advance(&self.groups);
            budget.encodes -= 1;
            let Some(group) = self.groups.get_mut(now.next) else {
                broken("a walk names groups that exist");
                continue;
            };
            self.scratch.clear();
            encode(core, group.kind(), publication, &mut self.scratch);
            // Compressing costs by the bytes before it.
            let bytes = self.scratch.len().max(publication.data.len());
            budget.bytes = budget.bytes.saturating_sub(bytes);
            if self.scratch.is_empty() {
                continue;
            }
            let (topic, members) = (group.topic().name(), group.members());
            self.meter.count(core.now_ns(), topic, members, publication.data.len());
            let before = group.waiting_bytes();
            let replaying = self.replays.publishes(now.next, publication);
            if group.publish(SharedFrame::new(&self.scratch, 1), publication, except, replaying) {
                lane.active.push_back(now.next);
            }
            let added = group.waiting_bytes() - before;
            self.waiting_bytes += added;
            lane.waiting_bytes += added;
        }
        self.scratch.shrink_to(64 * 1024);
        left
    }

    fn add_group(&mut self, topic: &str, kind: u32) -> u32 {
        let sibling = self.groups.walk(topic).and_then(|all| self.groups.get(all.next));
        let topic = match sibling {
            Some(sibling) => Arc::clone(sibling.topic()),
            None => self.directory.add_worker(topic, self.worker),
        };
        topic.group_added();
        self.groups.insert(Group::new(kind, topic))
    }

    /// Removes a member from a group; its membership is already removed.
    fn remove_member<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        index: u32,
        position: u32,
    ) where
        H: Handler<User: Subscriber>,
    {
        let Some(group) = self.groups.get_mut(index) else {
            return broken("a membership names a group");
        };
        self.subscriptions -= 1;
        self.replays.forget(index, id);
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
        let Some(topic) = self.groups.get(index).map(|group| Arc::clone(group.topic())) else {
            return broken("a group that lost its last member exists");
        };
        // Read before, as the link is at the oldest group.
        let lane = match self.groups.walk(topic.name()) {
            Some(walk) if self.lanes.len() > 0 => self.groups.lane(walk.next),
            _ => NO_LANE,
        };
        if let Some(lane) = self.lanes.of(lane, &topic) {
            lane.remove_group(index, &self.groups);
        }
        let Some((group, others)) = self.groups.remove(index) else {
            return broken("a group that lost its last member exists");
        };
        topic.group_removed();
        self.replays.remove_group(index);
        self.waiting_bytes -= group.waiting_bytes();
        if let Some(lane) = self.lanes.of(lane, &topic) {
            lane.waiting_bytes -= group.waiting_bytes();
            if !others {
                self.pending_bytes -= lane.clear();
            }
        }
        if !others {
            self.directory.remove_worker(topic.name(), self.worker);
        }
    }
}
