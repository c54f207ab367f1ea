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
pub(super) enum At {
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
    pub(super) at: At,
    /// Its connection, or the connect under way.
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
    /// Nobody knows yet where the place is that it was sent to.
    pub(super) is_lost: bool,
    /// Its connection is not through its proxy yet.
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
    /// The other one.
    pub(super) aside: Option<Box<Aside<C>>>,
}

/// The connection of a user that is not in use.
pub(super) struct Aside<C> {
    pub(super) conn: Option<ConnId>,
    pub(super) opened: bool,
    pub(super) endpoint: u8,
    pub(super) state: C,
}

impl<C: Default> User<C> {
    pub(super) fn new() -> User<C> {
        User {
            at: At::Busy,
            conn: None,
            opened: false,
            endpoint: 0,
            hops: 0,
            armed_ns: 0,
            is_connect_armed: false,
            connect_ns: 0,
            is_lost: false,
            tunnel: None,
            flights: VecDeque::new(),
            awaited: Awaited::default(),
            state: C::default(),
            refused: None,
            redirect: None,
            on_socket: false,
            aside: None,
        }
    }

    /// Has the connection in use that is the socket, or that is not.
    pub(super) fn turn_to(&mut self, on_socket: bool) {
        if self.on_socket == on_socket {
            return;
        }
        self.on_socket = on_socket;
        let none = || Aside { conn: None, opened: false, endpoint: 0, state: C::default() };
        let aside = self.aside.get_or_insert_with(|| Box::new(none()));
        std::mem::swap(&mut self.conn, &mut aside.conn);
        std::mem::swap(&mut self.opened, &mut aside.opened);
        std::mem::swap(&mut self.endpoint, &mut aside.endpoint);
        std::mem::swap(&mut self.state, &mut aside.state);
    }
}
