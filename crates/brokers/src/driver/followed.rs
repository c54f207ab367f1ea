//! [`Followed`]: how far this node is in each topic that the broker keeps. It has no clock and does no I/O.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::kept::Position;
use crate::transport::Channel;

/// The subscribed channels whose publications are kept: 56 to 112 bytes for each.
#[derive(Debug, Default)]
pub(super) struct Followed {
    channels: HashMap<Channel, Follow, RandomState>,
}

/// How far this node is in one of them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Follow {
    /// That of [`crate::interest::Subscribed`].
    pub(super) id: u64,
    /// The last one that was delivered; meaningless before it is loaded.
    pub(super) position: Position,
    loaded: bool,
    /// What was published before the connection was fetched.
    pub(super) synced: bool,
    /// Something after the position could not be delivered yet.
    pub(super) behind: bool,
    /// The broker refuses to fetch it.
    pub(super) rejected: bool,
    /// Its epoch is not the first: what was delivered in the one before may be kept in this one, too.
    pub(super) renewed: bool,
}

impl Followed {
    /// A channel is about to be subscribed, perhaps again after its subscription was lost.
    pub(super) fn begin(&mut self, channel: &Channel, id: u64) {
        self.unsynced(channel, id);
        self.set_rejected(channel, id, false);
        if self.get(channel, id).is_none() {
            let position = Position { epoch: 0, offset: 0 };
            let follow = Follow {
                id,
                position,
                loaded: false,
                synced: false,
                rejected: false,
                behind: false,
                renewed: false,
            };
            self.channels.insert(Channel::clone(channel), follow);
        }
    }

    /// A channel, if this is its subscription.
    pub(super) fn get(&self, channel: &str, id: u64) -> Option<Follow> {
        self.channels.get(channel).copied().filter(|follow| follow.id == id)
    }

    /// All that was published up to this position is delivered.
    pub(super) fn reached(&mut self, channel: &str, id: u64, position: Position) {
        if let Some(follow) = self.channels.get_mut(channel).filter(|follow| follow.id == id) {
            follow.renewed |= follow.loaded && follow.position.epoch != position.epoch;
            (follow.position, follow.loaded) = (position, true);
        }
    }

    /// All that was published before this connection was opened is delivered, or a gap was told for it.
    pub(super) fn synced(&mut self, channel: &str, id: u64) {
        if let Some(follow) = self.channels.get_mut(channel).filter(|follow| follow.id == id) {
            follow.synced = true;
        }
    }

    /// Sets whether something could not be delivered. Returns whether that is new.
    pub(super) fn set_behind(&mut self, channel: &str, id: u64, behind: bool) -> bool {
        let follow = self.channels.get_mut(channel).filter(|follow| follow.id == id);
        follow.is_some_and(|follow| std::mem::replace(&mut follow.behind, behind) != behind)
    }

    /// A channel is not subscribed any more. Returns whether its history was loaded.
    pub(super) fn remove(&mut self, channel: &str) -> bool {
        let removed = self.channels.remove(channel).is_some_and(|follow| follow.loaded);
        if self.channels.is_empty() {
            self.channels = HashMap::default();
        }
        removed
    }

    /// Sets whether the broker refuses to fetch a channel: it is not synced then, and nothing waits for it.
    pub(super) fn set_rejected(&mut self, channel: &str, id: u64, rejected: bool) {
        if let Some(follow) = self.channels.get_mut(channel).filter(|follow| follow.id == id) {
            (follow.rejected, follow.synced) = (rejected, follow.synced && !rejected);
        }
    }

    /// The connection is lost.
    pub(super) fn disconnected(&mut self) {
        self.channels.values_mut().for_each(|follow| follow.synced = false);
    }

    /// The subscription of a channel was lost.
    pub(super) fn unsynced(&mut self, channel: &str, id: u64) {
        if let Some(follow) = self.channels.get_mut(channel).filter(|follow| follow.id == id) {
            follow.synced = false;
        }
    }

    /// All channels that are loaded.
    pub(super) fn all(&self) -> Vec<(Channel, u64)> {
        let loaded = self.channels.iter().filter(|(_, follow)| follow.loaded);
        loaded.map(|(channel, follow)| (Channel::clone(channel), follow.id)).collect()
    }
}

impl Follow {
    /// The last position; `None` before it is loaded.
    pub(super) fn after(&self) -> Option<Position> {
        self.loaded.then_some(self.position)
    }
}
