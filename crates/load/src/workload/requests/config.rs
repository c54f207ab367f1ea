//! [`Requests`]: the configuration of a run of requests.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Endpoint;
use crate::workload::requests::conversation::Messages;
use crate::workload::requests::generators::{Gate, Generators};
use crate::workload::stages::Stage;

/// A run of requests and answers. Each user sends a request, waits for the answer, and repeats.
#[derive(Clone, Debug)]
pub struct Requests {
    /// Targets of requests, referred to by number. At most 256.
    pub endpoints: Vec<Endpoint>,
    /// Users. Each keeps a connection to each target that it uses, and sends one request at a time unless
    /// its script has several to send at once. With [`Requests::streams`] several share connections.
    pub connections: u64,
    /// Users that share a connection to each target, for drivers with
    /// [`crate::transport::driver::Driver::STREAMS`]; `None` for others.
    pub streams: Option<u32>,
    /// The most connections for requests that a user needs at a time.
    pub links: u64,
    /// The most targets to which a user keeps connections: to connect to another one, it closes the
    /// connections used longest ago.
    pub hosts: usize,
    /// The most requests to a target that a user sends at the same time; further ones wait.
    pub connections_per_host: usize,
    /// WebSockets of each user beside its connections for requests, if the driver has them.
    pub sockets: u8,
    /// The messages of each request, for drivers with [`crate::transport::driver::Driver::MESSAGES`].
    pub messages: Option<Messages>,
    /// When they send.
    pub pace: Pace,
    /// Users whose passes begin at a rate; within a pass they send as with [`Pace::Closed`].
    pub arrivals: Vec<Arrivals>,
    /// Nothing is due after this time; `None` leaves the end to `requests`.
    pub duration: Option<Duration>,
    /// Requests in total, without the warm-up; `None` leaves the end to `duration`.
    pub requests: Option<u64>,
    /// Requests due in this initial time are sent but not counted.
    pub warm_up: Duration,
    /// Time for a connect, including a proxy's answer and the TLS handshake; `None`: only `timeout`
    /// applies.
    pub connect_timeout: Option<Duration>,
    /// Time for a complete answer, from when a user takes up the request, including a connect.
    pub timeout: Duration,
    /// A new connection for each request.
    pub new_connections: bool,
    /// Requests a connection may have under way at the same time (RFC 9112 section 9.3.2).
    pub pipeline: u32,
    /// Redirects followed per request; 0 treats them as answers.
    pub redirects: u32,
    /// The script follows redirects itself.
    pub follows: bool,
    /// Addresses of this machine to connect from; empty leaves it to the kernel, and on loopback
    /// to us.
    pub sources: Vec<IpAddr>,
    /// Users send in turn, and a request that is due while each has `pipeline` requests in flight is
    /// not sent. Otherwise the user that was free last sends first, and a due request waits for one.
    pub in_turn: bool,
    /// A connection that was idle for longer is not used again, as its server may be closing it.
    pub reuse_within: Option<Duration>,
    /// When stopped, it does not wait for requests in flight.
    pub stops_at_once: bool,
    /// Start even if the machine is too small.
    pub force: bool,
    /// Users in a row that send to each other, and so are of one generator; 1 if none do.
    pub group: u32,
    /// Which of the generators that share the run this is. All other settings are of the whole run.
    pub generators: Generators,
    /// What the run begins after; `None`: at once.
    pub gate: Option<Arc<dyn Gate>>,
}

/// Passes of some users that begin at a rate, whether or not a user is free; then they are dropped.
#[derive(Clone, PartialEq, Debug)]
pub struct Arrivals {
    /// The users by number: the most passes at the same time.
    pub users: Range<u64>,
    /// [`Pace::Rate`] or [`Pace::Rates`], of passes.
    pub pace: Pace,
    /// When the first one is due, from the end of the warm-up; 0 from the beginning.
    pub start: Duration,
}

/// When users send.
#[derive(Clone, PartialEq, Debug)]
pub enum Pace {
    /// Closed model: each user sends when its last request is answered.
    Closed,
    /// Closed model with a varying number of users.
    Users(Vec<Stage>),
    /// Open model: requests per second over all users, due whether or not a user is free. Latency is
    /// measured from the due time.
    Rate(u64),
    /// Open model with a varying rate: [`Stage::connections`] is requests per second.
    Rates(Vec<Stage>),
}

impl Pace {
    /// Its stages; none if it is the same all the time.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        match self {
            Pace::Users(stages) | Pace::Rates(stages) => stages,
            Pace::Closed | Pace::Rate(_) => &[],
        }
    }
}

impl Requests {
    /// The most requests in flight per connection.
    pub const PIPELINE_MAX: u32 = 64;
    /// The most streams of a connection.
    pub const STREAMS_MAX: u32 = 100_000;
    /// The default of [`Requests::hosts`].
    pub const HOSTS: usize = 6;
    /// The default of [`Requests::connections_per_host`], as in browsers.
    pub const CONNECTIONS_PER_HOST: usize = 6;
    /// Requests in flight at the end are awaited for this plus the slowest service time so far. After
    /// that they have failed.
    pub const GRACE: Duration = Duration::from_secs(2);
    /// Pause of a user after a failed connect.
    pub const CONNECT_REST: Duration = Duration::from_millis(1);

    /// A closed loop of ten seconds over `connections` connections.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>, connections: u64) -> Requests {
        Requests {
            endpoints,
            connections,
            streams: None,
            links: 1,
            hosts: Self::HOSTS,
            connections_per_host: Self::CONNECTIONS_PER_HOST,
            sockets: 1,
            messages: None,
            pace: Pace::Closed,
            arrivals: Vec::new(),
            duration: Some(Duration::from_secs(10)),
            requests: None,
            warm_up: Duration::ZERO,
            connect_timeout: None,
            timeout: Duration::from_secs(30),
            new_connections: false,
            pipeline: 1,
            redirects: 0,
            follows: false,
            sources: Vec::new(),
            in_turn: false,
            reuse_within: None,
            stops_at_once: false,
            force: false,
            group: 1,
            generators: Generators::ONE,
            gate: None,
        }
    }

    /// Users that share connections.
    pub(crate) fn block(&self) -> u32 {
        self.streams.unwrap_or(1).max(1)
    }

    /// Blocks of users that share connections, in a row, that are of one generator: so many that no group is of
    /// two.
    pub(crate) fn row(&self) -> u64 {
        let (block, group) = (u64::from(self.block()), u64::from(self.group.max(1)));
        let (mut one, mut other) = (block, group);
        while other > 0 {
            (one, other) = (other, one % other);
        }
        group / one.max(1)
    }

    /// The most generators that can share the run: each has some of the users.
    #[must_use]
    pub fn generators_max(&self) -> u64 {
        self.connections.div_ceil(u64::from(self.block()).saturating_mul(self.row()).max(1))
    }

    /// The users of this generator.
    #[must_use]
    pub fn own_users(&self) -> u64 {
        let row = u64::from(self.block()).saturating_mul(self.row());
        self.generators.of_blocks(row, self.connections)
    }

    /// Those of them that share connections, as one.
    pub(crate) fn own_blocks(&self) -> u64 {
        self.own_users().div_ceil(u64::from(self.block()))
    }

    /// When nothing is due any more, measured from the end of the warm-up.
    #[must_use]
    pub fn over_after(&self) -> Option<Duration> {
        let staged = match &self.pace {
            Pace::Users(stages) | Pace::Rates(stages) => {
                Some(stages.iter().map(|stage| stage.time).sum())
            }
            Pace::Closed | Pace::Rate(_) => None,
        };
        [staged, self.duration].into_iter().flatten().min()
    }

    /// Returns why the configuration is inconsistent.
    pub(crate) fn unfit(&self) -> Option<&'static str> {
        let open = matches!(self.pace, Pace::Rate(_) | Pace::Rates(_));
        Some(match self {
            _ if self.pipeline == 0 || self.pipeline > Self::PIPELINE_MAX => {
                "pipelining takes 1 to 64 requests"
            }
            _ if self.pipeline > 1 && self.new_connections => {
                "pipelining needs persistent connections"
            }
            _ if self.streams.is_some_and(|streams| streams > Self::STREAMS_MAX) => {
                "a connection takes 1 to 100000 streams"
            }
            _ if self.block() > 1 && self.new_connections => {
                "several streams need persistent connections"
            }
            _ if self.streams.is_some() && self.pipeline > 1 => {
                "HTTP/2 has streams instead of pipelining"
            }
            _ if self.pipeline > 1 && self.redirects > 0 => {
                "redirects are not followed while requests are pipelined"
            }
            _ if self.over_after().is_none() && self.requests.is_none() => {
                "no end is set: expected a duration, a number of requests, or stages"
            }
            _ if open && self.pace == Pace::Rate(0) => "a rate must be at least 1",
            _ if self.pace != Pace::Closed && !self.arrivals.is_empty() => {
                "an arrival rate excludes another pace"
            }
            _ => return None,
        })
    }
}
