//! [`User`]: one user with its connections and requests.

use crate::outcome::failure::Failure;
use crate::transport::tunnel::Tunnel;
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::flights::{Flight, Flights};
use crate::workload::requests::link::{Link, Others, StreamId};
use crate::workload::requests::parallel::Group;
use crate::workload::requests::request::Request;

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
    /// It pauses until this time.
    Asleep(u64),
    /// It is done, and stays to receive messages.
    Staying,
    /// It is done.
    Over,
}

/// One user.
pub(crate) struct User<C> {
    pub(crate) activity: Activity,
    /// The connection that it uses.
    pub(crate) link: Link<C>,
    /// Its other connections; the one used last is the last.
    pub(crate) others: Others<C>,
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
    pub(crate) flights: Flights,
    pub(crate) awaited: Awaited,
    /// Why its next request cannot be sent.
    pub(crate) refused: Option<Failure>,
    /// The request that follows a redirect.
    pub(crate) redirect: Option<Box<Request>>,
    /// The requests that its branches send.
    pub(crate) group: Option<Box<Group>>,
}

// There may be 100,000 on one connection.
const _: () = assert!(size_of::<User<Option<Box<u8>>>>() <= 184);

impl<C: Default> User<C> {
    pub(crate) fn new() -> User<C> {
        User {
            activity: Activity::Busy,
            link: Link::default(),
            others: Others::default(),
            hops: 0,
            armed_ns: 0,
            is_connect_armed: false,
            connect_ns: 0,
            awaits_lookup: false,
            tunnel: None,
            flights: Flights::default(),
            awaited: Awaited::default(),
            refused: None,
            redirect: None,
            group: None,
        }
    }

    /// Whether the active connection is a WebSocket.
    pub(crate) fn on_socket(&self) -> bool {
        self.link.is_socket()
    }

    /// Whether it is done or parked, without a request in flight.
    pub(crate) fn is_away(&self) -> bool {
        let is_done = matches!(self.activity, Activity::Over | Activity::Parked);
        is_done && self.flights.is_empty() && self.group.is_none()
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
