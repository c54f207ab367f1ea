//! [`Config`]: the configuration of a run, as plain data. The command line parses texts into it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::workload::requests::generators::Gate;
use crate::workload::stages::Stage;
use crate::{Endpoint, HttpPublish, Retry, Validator};

/// One run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Targets, used in turn. At most 256.
    pub endpoints: Vec<Endpoint>,
    /// Connections in total: with stages, all that are begun. With `streams` these are sockets.
    pub connections: u64,
    /// How the number of connections changes; empty opens all at once and holds them.
    pub stages: Vec<Stage>,
    /// How they are opened.
    pub connect: Connect,
    /// Most connects in flight at a time, over all workers; `None`: the default of `connect`.
    pub in_flight: Option<u64>,
    /// Time for a connection to become a WebSocket before it counts as failed.
    pub connect_timeout: Duration,
    /// Retries of failed connects.
    pub retry: Retry,
    /// With Action Cable: `retry` was asked for, so the run goes on while its target is not reached. Other
    /// runs do so if they retry at all.
    pub awaits_target: bool,
    /// Source addresses; empty lets the kernel choose, or on loopback this crate.
    pub sources: Vec<IpAddr>,
    /// With HTTP/2: sockets on a connection (RFC 8441). `None`: each has a connection of its own.
    pub streams: Option<u32>,
    /// Additional headers of the handshake.
    pub headers: Vec<(String, String)>,
    /// Subprotocols offered, in order of preference.
    pub protocols: Vec<String>,
    /// Use Action Cable on every connection; `None`: plain WebSockets.
    pub cable: Option<Cable>,
    /// Offer permessage-deflate, and compress messages of at least this many bytes.
    pub compress_above: Option<usize>,
    /// Ping period of each socket while connections are held; `None` for no pings.
    pub heartbeat: Option<Duration>,
    /// Warm-up: the echo, the fan-out or the heartbeats of a hold for this time beforehand. Its messages
    /// are sent and checked like the others, and are in no figure. Without `stages` and `churn`.
    pub warm_up: Duration,
    /// How long the open connections are held before the echo, or before the end.
    pub hold: Duration,
    /// How long they are held after the echo.
    pub linger: Duration,
    /// Messages to send and receive back.
    pub echo: Option<Echo>,
    /// Publish to all connections and check what each receives.
    pub fanout: Option<Fanout>,
    /// Begin and end subscriptions while publishing; needs `cable` and `fanout`.
    pub churn: Option<Churn>,
    /// Start even if the machine is too small, and open as many connections as possible.
    pub force: bool,
    /// What the run begins after; `None`: at once.
    pub gate: Option<Arc<dyn Gate>>,
}

impl Config {
    /// A run that opens connections as fast as the server accepts them, and closes them.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>, connections: u64) -> Config {
        Config {
            endpoints,
            connections,
            stages: Vec::new(),
            connect: Connect::Windowed,
            in_flight: None,
            connect_timeout: Duration::from_secs(30),
            retry: Retry::NONE,
            awaits_target: false,
            sources: Vec::new(),
            streams: None,
            headers: Vec::new(),
            protocols: Vec::new(),
            cable: None,
            compress_above: None,
            heartbeat: None,
            warm_up: Duration::ZERO,
            hold: Duration::ZERO,
            linger: Duration::ZERO,
            echo: None,
            fanout: None,
            churn: None,
            force: false,
            gate: None,
        }
    }
}

impl Config {
    /// TCP connections that so many sockets need.
    pub(crate) fn carriers(&self, sockets: u64) -> u64 {
        sockets.div_ceil(self.streams.unwrap_or(1).max(1).into())
    }

    /// How long messages of an echo are due, if that is set.
    #[must_use]
    pub fn sending(&self) -> Option<Duration> {
        let echo = self.echo.as_ref()?;
        echo.duration.filter(|_| echo.messages.is_none() || echo.turnover)
    }
}

/// Every connection is an Action Cable client with one subscription. [`Config::protocols`] sets the
/// subprotocols it offers.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Channel identifiers, used in turn by connection number. At least one.
    pub identifiers: Vec<String>,
    /// A connection without a ping for this time is given up.
    pub stale_after: Duration,
    /// A subscribe that is not confirmed in this time is repeated.
    pub repeat: Duration,
}

impl Cable {
    /// The `stale_after` of Rails' client.
    pub const STALE_AFTER: Duration = Duration::from_secs(6);
    /// The `repeat` of Rails' client.
    pub const REPEAT: Duration = Duration::from_millis(500);

    /// A client with the times of Rails' client.
    #[must_use]
    pub fn new(identifiers: Vec<String>) -> Cable {
        Cable { identifiers, stale_after: Self::STALE_AFTER, repeat: Self::REPEAT }
    }
}

/// How connections are opened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Connect {
    /// As fast as the server accepts them: each busy worker has at most [`Connect::WINDOW`]
    /// connects in flight.
    Windowed,
    /// All at once: as many as may be in flight, by default [`Connect::STORM`], are begun before any
    /// is served, and others as soon as there are fewer.
    Storm,
    /// This many begun per second, however many are in progress.
    Paced(u64),
    /// The next begins when the one before is open.
    OneByOne,
}

impl Connect {
    /// Connects in flight per worker in [`Connect::Windowed`]. One worker per core
    /// connects at a time, so a server's backlog of 4,096 has room for eight cores.
    pub const WINDOW: u32 = 512;
    /// Connects in flight in [`Connect::Storm`], over all workers: as many as event-driven clients
    /// on a few machines have.
    pub const STORM: u64 = 16_000;
    /// Connects begun per turn, so that those in flight are served in between.
    const PER_TURN: u32 = 64;

    /// The most connects in flight over all workers, where a number is named.
    pub(crate) fn in_flight(self) -> Option<u64> {
        match self {
            Connect::Storm => Some(Self::STORM),
            Connect::OneByOne => Some(1),
            Connect::Windowed | Connect::Paced(_) => None,
        }
    }

    /// Connects that a worker begins in a turn.
    pub(crate) fn per_turn(self) -> u32 {
        match self {
            // Serving others in between would keep few in flight: they end as fast as they begin.
            Connect::Storm => u32::MAX,
            Connect::Windowed | Connect::Paced(_) | Connect::OneByOne => Self::PER_TURN,
        }
    }
}

/// Messages that the server is expected to send back unchanged.
#[derive(Clone, Debug)]
pub struct Echo {
    /// Bytes of a message's payload, at least [`Echo::SIZE_MIN`].
    pub size: usize,
    /// Messages per second over all sockets (open model); `None` sends a socket's next message
    /// when its last was answered (closed loop).
    pub rate: Option<u64>,
    /// Messages per socket; `None` leaves the end to `duration`.
    pub messages: Option<u32>,
    /// No message is due after this time; `None` leaves the end to `messages`.
    pub duration: Option<Duration>,
    /// In the closed loop: a connection that has sent its `messages` is closed by the closing
    /// handshake and replaced by another, until `duration` is over. Connections open then finish
    /// their messages and stay open.
    pub turnover: bool,
    /// The content of every message; `None` sends numbered messages with a checksum.
    pub content: Option<Content>,
    /// In the closed loop: writes and validates the messages, instead of `content`.
    pub validator: Option<Arc<dyn Validator>>,
    /// In the closed loop: random pause between an answer and the next message, from minimum to
    /// maximum.
    pub think: Option<(Duration, Duration)>,
    /// How long an answer is awaited: in the closed loop before the socket's next message, and at the
    /// end of a run for messages in flight.
    pub timeout: Duration,
}

/// Custom messages. They carry no number, so answers are matched in order.
#[derive(Clone, Debug)]
pub struct Content {
    /// The payload.
    pub data: Vec<u8>,
    /// Binary, not text.
    pub binary: bool,
    /// Any message is accepted as an answer.
    pub any_answer: bool,
}

impl Content {
    /// Messages too small for a number.
    #[must_use]
    pub fn filling(size: usize) -> Content {
        Content { data: vec![b'm'; size], binary: true, any_answer: false }
    }
}

impl Echo {
    /// The least payload: a message carries its number.
    pub const SIZE_MIN: usize = crate::delivery::message::SEQUENCE_BYTES;
}

/// Subscriptions that begin and end while publications go to all their streams in turn.
/// [`Fanout::late_after`] is the grace of a publication and of the end of a subscription.
#[derive(Clone, Debug)]
pub struct Churn {
    /// Subscriptions begun or ended a second over all connections, each of which has at most four.
    pub rate: u64,
    /// The stream of each of [`Cable::identifiers`], all different.
    pub streams: Vec<String>,
}

/// Publications at a rate, each expected once at every connection.
#[derive(Clone, Debug)]
pub struct Fanout {
    /// Publications per second (open model), of all publishers together.
    pub rate: u64,
    /// Publishers, which take turns and have their own numbers and HTTP connection or socket; 1 to
    /// [`Fanout::PUBLISHERS_MAX`]. A receiver needs 16 bytes for each.
    pub publishers: u32,
    /// Publications in total; `None` leaves the end to `duration`.
    pub messages: Option<u32>,
    /// No publication is due after this time; `None` leaves the end to `messages`.
    pub duration: Option<Duration>,
    /// Bytes of a publication; it is longer if its header needs more.
    pub size: usize,
    /// A receipt later than this after the publish is late.
    pub late_after: Duration,
    /// How they are published.
    pub publish: Publish,
}

impl Fanout {
    /// The most publishers of a run.
    pub const PUBLISHERS_MAX: u32 = 64;
    /// The first publisher's number; the others' follow.
    pub(crate) const FIRST_PUBLISHER: u32 = 1;
}

/// How publications are sent.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a run has one")]
pub enum Publish {
    /// One HTTP request each.
    Http(HttpPublish),
    /// On as many open connections as there are publishers, which also receive them; with
    /// [`Config::cable`] as whispers, which the sender does not receive.
    Socket,
}

/// How a run closes its connections.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Close {
    /// By the closing handshake, code 1000 (RFC 6455 section 7.1.2).
    Graceful,
    /// By RST, which leaves no port in TIME_WAIT.
    Abort,
}
