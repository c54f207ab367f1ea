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
    /// The active connection is its WebSocket.
    pub(crate) on_socket: bool,
    /// The other connection.
    pub(crate) inactive: Option<Box<InactiveConnection<C>>>,
}

/// The inactive connection of a user.
pub(crate) struct InactiveConnection<C> {
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
            on_socket: false,
            inactive: None,
        }
    }

    /// Makes the WebSocket or the HTTP connection the active one.
    pub(crate) fn activate(&mut self, on_socket: bool) {
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
