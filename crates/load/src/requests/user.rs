//! [`User`]: one user with its connection, and [`Flight`], a request in flight.

use std::collections::VecDeque;

use engine::ConnId;

use super::tunnel::Tunnel;
use super::{Awaited, Failure, Kind, Request, Times};

/// The data of an engine connection.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Socket {
    /// Its user.
    pub(super) user: u32,
    /// The connect has succeeded.
    pub(super) opened: bool,
}

/// What a user is doing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Activity {
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
pub(super) struct Flight {
    pub(super) times: Times,
    /// It is HEAD, whose answer has no body.
    pub(super) is_head: bool,
    pub(super) kind: Kind,
    /// A pushed message answers it.
    pub(super) awaits: bool,
}

/// One user.
pub(super) struct User<C> {
    pub(super) activity: Activity,
    /// Its connection, open or connecting.
    pub(super) conn: Option<ConnId>,
    pub(super) opened: bool,
    pub(super) endpoint: u8,
    /// Redirects followed for the current request.
    pub(super) hops: u32,
    /// Its wake-up for a timeout; 0 without one.
    pub(super) armed_ns: u64,
    /// A wake-up for its connect is set.
    pub(super) is_connect_armed: bool,
    /// When it started to connect.
    pub(super) connect_ns: u64,
    /// The name of its target is not resolved yet.
    pub(super) awaits_lookup: bool,
    /// The tunnel that is being opened.
    pub(super) tunnel: Option<Box<Tunnel>>,
    /// Requests in flight, oldest first.
    pub(super) flights: VecDeque<Flight>,
    pub(super) awaited: Awaited,
    /// The driver state of the connection.
    pub(super) state: C,
    /// Why its next request cannot be sent.
    pub(super) refused: Option<Failure>,
    /// The request that follows a redirect.
    pub(super) redirect: Option<Box<Request>>,
    /// The active connection is its WebSocket.
    pub(super) on_socket: bool,
    /// The other connection.
    pub(super) inactive: Option<Box<InactiveConnection<C>>>,
}

/// The inactive connection of a user.
pub(super) struct InactiveConnection<C> {
    pub(super) conn: Option<ConnId>,
    pub(super) opened: bool,
    pub(super) endpoint: u8,
    pub(super) state: C,
}

impl<C: Default> User<C> {
    pub(super) fn new() -> User<C> {
        User {
            activity: Activity::Busy,
            conn: None,
            opened: false,
            endpoint: 0,
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
            on_socket: false,
            inactive: None,
        }
    }

    /// Makes the WebSocket or the HTTP connection the active one.
    pub(super) fn activate(&mut self, on_socket: bool) {
        if self.on_socket == on_socket {
            return;
        }
        self.on_socket = on_socket;
        let none =
            || InactiveConnection { conn: None, opened: false, endpoint: 0, state: C::default() };
        let inactive = self.inactive.get_or_insert_with(|| Box::new(none()));
        std::mem::swap(&mut self.conn, &mut inactive.conn);
        std::mem::swap(&mut self.opened, &mut inactive.opened);
        std::mem::swap(&mut self.endpoint, &mut inactive.endpoint);
        std::mem::swap(&mut self.state, &mut inactive.state);
    }
}
