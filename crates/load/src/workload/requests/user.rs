//! [`User`]: one user with its connection, and [`Flight`], a request in flight.

use std::collections::VecDeque;

use engine::ConnId;

use crate::outcome::failure::Failure;
use crate::transport::tunnel::Tunnel;
use crate::workload::requests::answer::{Awaited, Times};
use crate::workload::requests::request::{Kind, Request};

/// The data of an engine connection.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Socket {
    /// Its user.
    pub(crate) user: u32,
    /// The connect has succeeded.
    pub(crate) opened: bool,
}

/// What a user is doing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    /// Its next request follows an answer.
    Busy,
    /// It is ready to send when a request is due.
    Idle,
    /// It is paused, as the stage has fewer users.
    Parked,
    /// It pauses until this time.
    Asleep(u64),
    /// It is done, and stays to receive messages.
    Staying,
    /// It is done.
    Over,
}

/// A request in flight.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Flight {
    pub(crate) times: Times,
    /// It is HEAD, whose answer has no body.
    pub(crate) is_head: bool,
    pub(crate) kind: Kind,
    /// A pushed message answers it.
    pub(crate) awaits: bool,
}

/// One user.
pub(crate) struct User<C> {
    pub(crate) activity: Activity,
    /// Its connection, open or connecting.
    pub(crate) conn: Option<ConnId>,
    pub(crate) opened: bool,
    pub(crate) endpoint: u8,
    /// When its last answer arrived.
    pub(crate) answered_ns: u64,
    /// Redirects followed for the current request.
    pub(crate) hops: u32,
    /// Its wake-up for a timeout; 0 without one.
    pub(crate) armed_ns: u64,
    /// A wake-up for its connect is set.
    pub(crate) is_connect_armed: bool,
    /// When it started to connect.
    pub(crate) connect_ns: u64,
    /// The name of its target is not resolved yet.
    pub(crate) awaits_lookup: bool,
    /// The tunnel that is being opened.
    pub(crate) tunnel: Option<Box<Tunnel>>,
    /// Requests in flight, oldest first.
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) awaited: Awaited,
    /// The driver state of the connection.
    pub(crate) state: C,
    /// Why its next request cannot be sent.
    pub(crate) refused: Option<Failure>,
    /// The request that follows a redirect.
    pub(crate) redirect: Option<Box<Request>>,
    /// The active connection: 0 is that of HTTP, others are WebSockets.
    pub(crate) slot: u8,
    /// The other connections.
    pub(crate) inactive: Vec<InactiveConnection<C>>,
}

/// A connection of a user that is not the active one.
pub(crate) struct InactiveConnection<C> {
    pub(crate) slot: u8,
    pub(crate) conn: Option<ConnId>,
    pub(crate) opened: bool,
    pub(crate) endpoint: u8,
    pub(crate) state: C,
}

impl<C: Default> User<C> {
    pub(crate) fn new() -> User<C> {
        User {
            activity: Activity::Busy,
            conn: None,
            opened: false,
            endpoint: 0,
            answered_ns: 0,
            hops: 0,
            armed_ns: 0,
            is_connect_armed: false,
            connect_ns: 0,
            awaits_lookup: false,
            tunnel: None,
            flights: VecDeque::new(),
            awaited: Awaited::default(),
            state: C::default(),
            refused: None,
            redirect: None,
            slot: 0,
            inactive: Vec::new(),
        }
    }

    /// Makes a WebSocket or the HTTP connection the active one.
    pub(crate) fn activate(&mut self, slot: u8) {
        if self.slot == slot {
            return;
        }
        let before = InactiveConnection {
            slot: self.slot,
            conn: self.conn.take(),
            opened: std::mem::take(&mut self.opened),
            endpoint: self.endpoint,
            state: std::mem::take(&mut self.state),
        };
        self.slot = slot;
        let Some(next) = self.inactive.iter_mut().find(|one| one.slot == slot) else {
            self.endpoint = 0;
            // A user has few connections.
            self.inactive.reserve_exact(1);
            return self.inactive.push(before);
        };
        let next = std::mem::replace(next, before);
        (self.conn, self.opened) = (next.conn, next.opened);
        (self.endpoint, self.state) = (next.endpoint, next.state);
    }

    /// Whether the active connection is a WebSocket.
    pub(crate) fn on_socket(&self) -> bool {
        self.slot > 0
    }

    /// The connection of a slot, unless it is the active one.
    pub(crate) fn inactive(&mut self, slot: u8) -> Option<&mut InactiveConnection<C>> {
        self.inactive.iter_mut().find(|one| one.slot == slot && self.slot != slot)
    }
}
