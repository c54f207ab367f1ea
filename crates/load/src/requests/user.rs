//! [`User`]: one who sends and waits, with the connection it has, and [`Flight`], a request of its
//! that is under way.

use std::collections::VecDeque;

use engine::ConnId;

use super::{Awaited, Request, Times};

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
    /// It is done.
    Over,
}

/// A request under way.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Flight {
    pub(super) times: Times,
    /// Its answer has no body.
    pub(super) is_head: bool,
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
    /// A wake-up for its timeout is set.
    pub(super) is_armed: bool,
    /// The first of them is awaited.
    pub(super) flights: VecDeque<Flight>,
    pub(super) awaited: Awaited,
    /// What the driver remembers of the connection.
    pub(super) state: C,
    /// Where an answer has sent it.
    pub(super) redirect: Option<Box<Request>>,
}

impl<C: Default> User<C> {
    pub(super) fn new() -> User<C> {
        User {
            at: At::Busy,
            conn: None,
            opened: false,
            endpoint: 0,
            hops: 0,
            is_armed: false,
            flights: VecDeque::new(),
            awaited: Awaited::default(),
            state: C::default(),
            redirect: None,
        }
    }
}
