//! Subscribe and publish across workers, without brokers or protocols.
//!
//! Each worker has its [`Topics`]: who of its connections is subscribed to what. All share one
//! [`Directory`], which knows the workers that have subscribers of a topic, so that a publication
//! is posted to those only, once each. A [`Publication`] knows no protocol: subscribers of a topic
//! stand in groups, and the caller encodes a publication once per group and worker.
//!
//! Delivery is a rolling sweep: a group keeps a short log of recent frames and each member a
//! cursor. The worker visits members round the ring, some at a time, and each visit sends all that
//! is pending by then. Under load several messages so leave in one write, without waiting for it
//! when idle.
//!
//! Order: what one publisher publishes to one topic arrives in that order everywhere.

mod directory;
mod group;
mod memberships;

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{ConnId, Core, Full, Handler, SharedFrame, Sys};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

pub use crate::directory::{Directory, Publication};
pub use crate::memberships::{Memberships, Subscriber};

use crate::group::Group;

/// Members visited in one turn of the worker that had something to be sent.
const SENDS_PER_TURN: usize = 64;
/// Members looked at in one turn.
const VISITS_PER_TURN: usize = 4096;
/// Bytes of frames that may wait for the sweep before a worker takes no further posts and refuses
/// its own sockets' publications.
const SWEEP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What one worker's connections are subscribed to.
pub struct Topics {
    worker: u16,
    directory: Directory,
    /// Topic and encoding → place in `groups`.
    names: HashMap<Box<str>, Vec<u32>, RandomState>,
    groups: Vec<Option<Group>>,
    free: Vec<u32>,
    /// Groups in which somebody still has something to get.
    active: VecDeque<u32>,
    waiting_bytes: usize,
    subscriptions: u64,
    scratch: Vec<u8>,
}

impl Topics {
    /// The topics of worker `worker`, none yet.
    #[must_use]
    pub fn new(worker: u16, directory: Directory) -> Self {
        Topics {
            worker,
            directory,
            names: HashMap::default(),
            groups: Vec::new(),
            free: Vec::new(),
            active: VecDeque::new(),
            waiting_bytes: 0,
            subscriptions: 0,
            scratch: Vec::new(),
        }
    }

    /// Subscriptions of this worker's connections.
    #[must_use]
    pub fn subscriptions(&self) -> u64 {
        self.subscriptions
    }

    /// The topic of somebody who is subscribed to exactly one.
    #[must_use]
    pub fn only_topic(&self, memberships: &Memberships) -> Option<Arc<str>> {
        let index = memberships.only()?;
        self.groups.get(index as usize)?.as_ref().map(Group::topic)
    }

    /// Subscribes a connection in the encoding `group`; it gets what is published from now on.
    /// False if it was subscribed already or is gone.
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
        let index = match self.find(topic, kind) {
            Some(index) => index,
            None => self.add_group(topic, kind),
        };
        let Some(Some(group)) = self.groups.get_mut(index as usize) else { return false };
        let Some(user) = core.user_mut(id) else { return false };
        if !user.memberships().add(index, group.next_place()) {
            return false;
        }
        group.add(id.slot());
        self.subscriptions += 1;
        true
    }

    /// Ends one subscription; false if there was none.
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
        let Some(index) = self.find(topic, kind) else { return false };
        let Some(user) = core.user_mut(id) else { return false };
        let Some(place) = user.memberships().remove(index) else { return false };
        self.leave(core, index, place);
        true
    }

    /// Ends all subscriptions of a connection. To be called when it has closed. `ended` is told the
    /// encoding of each.
    pub fn forget<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        id: ConnId,
        mut ended: impl FnMut(u32),
    ) where
        H: Handler<User: Subscriber>,
    {
        while let Some((index, place)) = core.user_mut(id).and_then(|user| user.memberships().pop())
        {
            if let Some(Some(group)) = self.groups.get(index as usize) {
                ended(group.kind());
            }
            self.leave(core, index, place);
        }
    }

    /// Whether a connection is subscribed in the encoding `kind`.
    #[must_use]
    pub fn is_subscribed(&self, memberships: &Memberships, topic: &str, kind: u32) -> bool {
        self.find(topic, kind).is_some_and(|index| memberships.has(index))
    }

    /// Publishes from this worker: to the others that have subscribers by one post each, and to
    /// its own. `encode` appends the publication as subscribers of a group get it.
    ///
    /// # Errors
    /// [`Full`] when another worker's mailbox or this worker's sweep holds its limit; nothing was
    /// published then, and the publisher should pause and try again.
    pub fn publish<S: Sys, H>(
        &mut self,
        core: &mut Core<S, H>,
        publication: &Arc<Publication>,
        encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) -> Result<(), Full>
    where
        H: Handler<User: Subscriber, Post: From<Arc<Publication>>>,
    {
        if !self.takes_posts() {
            return Err(Full);
        }
        let me = Some(usize::from(self.worker));
        if let Err(full) = self.directory.post(core.remote(), publication, me) {
            core.counters().mailbox_full.add(1);
            return Err(full);
        }
        self.deliver(core, publication, encode);
        Ok(())
    }

    /// Takes a publication for this worker's subscribers; [`Topics::turn`] sends it. A group for which
    /// `encode` appends nothing gets nothing.
    pub fn deliver<S: Sys, H: Handler>(
        &mut self,
        core: &mut Core<S, H>,
        publication: &Publication,
        mut encode: impl FnMut(&mut Core<S, H>, u32, &Publication, &mut Vec<u8>),
    ) {
        let Some(indexes) = self.names.get(&*publication.topic) else { return };
        for &index in indexes {
            let Some(Some(group)) = self.groups.get_mut(index as usize) else { continue };
            self.scratch.clear();
            encode(core, group.kind(), publication, &mut self.scratch);
            if self.scratch.is_empty() {
                continue;
            }
            let before = group.waiting_bytes();
            if group.publish(SharedFrame::new(&self.scratch, 1), publication.except) {
                self.active.push_back(index);
            }
            self.waiting_bytes += group.waiting_bytes() - before;
        }
        self.scratch.shrink_to(64 * 1024);
    }

    /// Whether there is room for further publications.
    #[must_use]
    pub fn takes_posts(&self) -> bool {
        self.waiting_bytes < SWEEP_BYTES_MAX
    }

    /// A portion of the sweep. Returns when it wants to go on, as [`Handler::turn`] does.
    pub fn turn<S: Sys, H: Handler>(&mut self, core: &mut Core<S, H>) -> Option<u64> {
        let (mut sends, mut visits) = (SENDS_PER_TURN, VISITS_PER_TURN);
        while sends > 0 && visits > 0 {
            let index = self.active.pop_front()?;
            let Some(Some(group)) = self.groups.get_mut(index as usize) else { continue };
            let before = group.waiting_bytes();
            let more = group.sweep(core, &mut sends, &mut visits);
            self.waiting_bytes -= before - group.waiting_bytes();
            if more {
                self.active.push_back(index);
            }
        }
        (!self.active.is_empty()).then(|| core.now_ns())
    }

    fn find(&self, topic: &str, kind: u32) -> Option<u32> {
        let indexes = self.names.get(topic)?;
        indexes.iter().copied().find(|&index| {
            matches!(self.groups.get(index as usize), Some(Some(group)) if group.kind() == kind)
        })
    }

    fn add_group(&mut self, topic: &str, kind: u32) -> u32 {
        let entry = self.directory.join(topic, self.worker);
        let group = Some(Group::new(kind, entry));
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(place) = self.groups.get_mut(index as usize) {
                    *place = group;
                }
                index
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u32
            }
        };
        self.names.entry(topic.into()).or_default().push(index);
        index
    }

    /// Takes a member out of a group whose membership was removed already.
    fn leave<S: Sys, H>(&mut self, core: &mut Core<S, H>, index: u32, place: u32)
    where
        H: Handler<User: Subscriber>,
    {
        let Some(Some(group)) = self.groups.get_mut(index as usize) else { return };
        self.subscriptions -= 1;
        if let Some(moved) = group.remove(place)
            && let Some(user) = core.user_at(moved)
        {
            user.memberships().moved(index, place);
        }
        if !group.is_empty() {
            return;
        }
        self.waiting_bytes -= group.waiting_bytes();
        let name = group.topic();
        if let Some(indexes) = self.names.get_mut(&*name) {
            indexes.retain(|&other| other != index);
            if indexes.is_empty() {
                self.names.remove(&*name);
                self.directory.leave(&name, self.worker);
            }
        }
        self.active.retain(|&other| other != index);
        if let Some(slot) = self.groups.get_mut(index as usize) {
            *slot = None;
        }
        self.free.push(index);
    }
}
