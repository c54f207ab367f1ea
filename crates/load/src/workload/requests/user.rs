//! [`User`]: one user with its connections and requests.

use crate::outcome::failure::Failure;
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::flights::{Flight, Flights};
use crate::workload::requests::link::{Link, StreamId};
use crate::workload::requests::rare::Rare;

/// The data of an engine connection.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Socket {
    /// Its user; of a connection with streams, its number among those.
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
    /// Its branches have requests in flight.
    Forked,
    /// It pauses until [`User::until_ns`].
    Asleep,
    /// It is done, and stays to receive messages.
    Staying,
    /// It is done.
    Over,
}

/// One user.
pub(crate) struct User<C> {
    pub(crate) activity: Activity,
    /// When its pause ends.
    pub(crate) until_ns: u64,
    /// The connection that it uses.
    pub(crate) link: Link<C>,
    /// Its other connections, and what else few users have.
    pub(crate) rare: Rare<C>,
    /// Redirects followed for the current request.
    pub(crate) hops: u32,
    /// Its wake-up for a timeout; 0 without one.
    pub(crate) armed_ns: u64,
    /// A wake-up for its connect is set.
    pub(crate) is_connect_armed: bool,
    /// The name of its target is not resolved yet.
    pub(crate) awaits_lookup: bool,
    /// Requests in flight, oldest first.
    pub(crate) flights: Flights,
    pub(crate) awaited: Awaited,
    /// Why its next request cannot be sent.
    pub(crate) refused: Option<Failure>,
}

// There may be 100,000 on one connection.
const _: () = assert!(size_of::<User<Option<Box<u8>>>>() <= 136);

impl<C: Default> User<C> {
    pub(crate) fn new() -> User<C> {
        User {
            activity: Activity::Busy,
            until_ns: 0,
            link: Link::default(),
            rare: Rare::default(),
            hops: 0,
            armed_ns: 0,
            is_connect_armed: false,
            awaits_lookup: false,
            flights: Flights::default(),
            awaited: Awaited::default(),
            refused: None,
        }
    }

    /// Whether the active connection is a WebSocket.
    pub(crate) fn on_socket(&self) -> bool {
        self.link.is_socket()
    }

    /// Whether it is done or parked, without a request in flight.
    pub(crate) fn is_away(&self) -> bool {
        let is_done = matches!(self.activity, Activity::Over | Activity::Parked);
        is_done && self.flights.is_empty() && !self.rare.has_group()
    }

    /// Takes the request in flight on a stream of the active connection.
    #[inline]
    pub(crate) fn take_flight(&mut self, stream: StreamId) -> Option<Flight> {
        if self.flights.front().is_some_and(|flight| flight.stream == stream) {
            return self.flights.pop_front();
        }
        let is_it = |flight: &Flight| flight.stream == stream && flight.times.sent_ns > 0;
        let at = self.flights.iter().position(is_it)?;
        self.flights.remove(at)
    }
}
