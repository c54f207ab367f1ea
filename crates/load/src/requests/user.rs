//! [`User`]: one who sends and waits, with the connection it has, and [`Flight`], a request of its
//! that is under way.

use std::collections::VecDeque;

use engine::ConnId;

use super::tunnel::Tunnel;
use super::{Awaited, Failure, Kind, Request, Times};

/// What a connection of the engine knows of itself.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Socket {
    /// Whose it is.
    pub(super) user: u32,
    /// The connect has succeeded.
    pub(super) opened: bool,
}

/// Whether a user sends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// Its next request follows an answer.
    Busy,
    /// It is ready, and its turn has not come.
    Idle,
    /// There are to be fewer users now.
    Parked,
    /// It does nothing until then.
    Asleep(u64),
    /// It is done, and stays while something may come to it.
    Staying,
    /// It is done.
    Over,
}

/// A request under way.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Flight {
    pub(super) times: Times,
    /// Its answer has no body.
    pub(super) is_head: bool,
    pub(super) kind: Kind,
    /// A message that came by itself is to answer it.
    pub(super) awaits: bool,
}

/// One user.
pub(super) struct User<C> {
    pub(super) at: At,
    /// Its connection, or the connect under way.
    pub(super) conn: Option<ConnId>,
    pub(super) opened: bool,
    pub(super) endpoint: u8,
    /// How often it was redirected for the request under way.
    pub(super) hops: u32,
    /// When its wake-up for a timeout comes; 0 without one.
    pub(super) armed_ns: u64,
    /// A wake-up for its connect is set.
    pub(super) is_connect_armed: bool,
    /// Since when it connects.
    pub(super) connect_ns: u64,
    /// Nobody knows yet where the place is that it was sent to.
    pub(super) is_lost: bool,
    /// Its connection is not through its proxy yet.
    pub(super) tunnel: Option<Box<Tunnel>>,
    /// The first of them is awaited.
    pub(super) flights: VecDeque<Flight>,
    pub(super) awaited: Awaited,
    /// What the driver remembers of the connection.
    pub(super) state: C,
    /// Why its next request cannot be sent.
    pub(super) refused: Option<Failure>,
    /// Where an answer has sent it.
    pub(super) redirect: Option<Box<Request>>,
    /// The connection in use is its socket, not that of HTTP.
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
