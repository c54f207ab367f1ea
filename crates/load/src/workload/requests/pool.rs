//! [`Pool`]: the connections that the users of a worker share, by blocks of users and targets.

use std::collections::VecDeque;

use engine::ConnId;

/// A connection of a block of users to a target.
pub(crate) struct Shared<C> {
    pub(super) conn: Option<ConnId>,
    pub(crate) opened: bool,
    /// The server takes no further streams.
    pub(super) is_leaving: bool,
    /// It sent a GOAWAY with an error code.
    pub(super) is_expelled: bool,
    /// Listed among those whose driver has more to send.
    pub(super) is_held: bool,
    pub(super) endpoint: u8,
    pub(super) secure: bool,
    pub(super) block: u32,
    /// The user whose request opened it.
    pub(super) opener: u32,
    /// Streams in use.
    pub(super) streams: u32,
    /// Users whose request waits for the connect or for a free stream, in order.
    pub(crate) waiting: VecDeque<u32>,
    pub(super) state: C,
}

/// The shared connections of a worker.
pub(crate) struct Pool<C> {
    all: Vec<Shared<C>>,
    pub(super) free: Vec<u32>,
    /// By block: the connections that take requests.
    pub(super) usable: Vec<Vec<u32>>,
    /// The connection that what the driver has to send is for.
    pub(super) current: u32,
}

impl<C> Default for Pool<C> {
    fn default() -> Self {
        Pool { all: Vec::new(), free: Vec::new(), usable: Vec::new(), current: 0 }
    }
}

impl<C: Default> Pool<C> {
    pub(crate) fn get(&mut self, at: u32) -> Option<&mut Shared<C>> {
        self.all.get_mut(at as usize)
    }

    pub(crate) fn shared(&self, at: u32) -> Option<&Shared<C>> {
        self.all.get(at as usize)
    }

    /// An open connection and its state.
    pub(crate) fn connection(&mut self, at: u32) -> Option<(ConnId, &mut C)> {
        let shared = self.get(at)?;
        shared.conn.map(|id| (id, &mut shared.state))
    }

    /// The connection that takes requests of a block to a target.
    pub(crate) fn find(&self, block: u32, endpoint: u8) -> Option<u32> {
        let usable = self.usable.get(block as usize)?;
        let is_it = |at: &&u32| {
            self.all.get(**at as usize).is_some_and(|shared| shared.endpoint == endpoint)
        };
        usable.iter().find(is_it).copied()
    }

    pub(super) fn add(&mut self, shared: Shared<C>) -> u32 {
        let block = shared.block as usize;
        let at = self.free.pop().unwrap_or(self.all.len() as u32);
        match self.all.get_mut(at as usize) {
            Some(place) => *place = shared,
            None => self.all.push(shared),
        }
        if self.usable.len() <= block {
            self.usable.resize_with(block + 1, Vec::new);
        }
        if let Some(usable) = self.usable.get_mut(block) {
            usable.push(at);
        }
        at
    }

    /// Leaves a connection to the requests that it has.
    pub(super) fn leave(&mut self, at: u32) {
        let Some(shared) = self.all.get_mut(at as usize) else { return };
        shared.is_leaving = true;
        if let Some(usable) = self.usable.get_mut(shared.block as usize) {
            usable.retain(|one| *one != at);
        }
    }
}
