//! [`Config`]: what a run is to do, as plain data. Texts become these in the command line's hands.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::stages::Stage;
use crate::{Dialogue, Endpoint, HttpPublish, Retry};

/// One run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to connect; several are taken in turn. At most 256.
    pub endpoints: Vec<Endpoint>,
    /// Connections in all: with stages, all that are begun.
    pub connections: u64,
    /// How their number changes over time; empty opens all at once and holds them.
    pub stages: Vec<Stage>,
    /// How they are opened.
    pub connect: Connect,
    /// Time for one connection to become a WebSocket, before it counts as failed.
    pub connect_timeout: Duration,
    /// What becomes of connects that fail.
    pub retry: Retry,
    /// Addresses of this machine to connect from; empty leaves it to the kernel, and on loopback
    /// to us.
    pub sources: Vec<IpAddr>,
    /// Further header lines of the handshake.
    pub headers: Vec<(String, String)>,
    /// Subprotocols offered, in order of preference.
    pub protocols: Vec<String>,
    /// Speak Action Cable on every connection; `None`: plain WebSockets.
    pub cable: Option<Cable>,
    /// Offer permessage-deflate; what is sent is compressed from this many bytes on.
    pub compress_above: Option<usize>,
    /// Ping each socket once in this time while connections are held; `None` never.
    pub heartbeat: Option<Duration>,
    /// How long the open connections are held before the echo, or before the end.
    pub hold: Duration,
    /// How long they are held after the echo.
    pub linger: Duration,
    /// Messages to send and to get back.
    pub echo: Option<Echo>,
    /// Publish to all connections and judge what each receives.
    pub fanout: Option<Fanout>,
    /// Begin and end subscriptions meanwhile, of which each is to get what is published while it is
    /// there; needs `cable` and `fanout`.
    pub churn: Option<Churn>,
    /// Begin though the machine is too small for it, and open what can be opened.
    pub force: bool,
}

impl Config {
    /// Opens so many connections as fast as the far side does, and closes them: what a run adds to
    /// that is set on it.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>, connections: u64) -> Config {
        Config {
            endpoints,
            connections,
            stages: Vec::new(),
            connect: Connect::Windowed,
            connect_timeout: Duration::from_secs(30),
            retry: Retry::NONE,
            sources: Vec::new(),
            headers: Vec::new(),
            protocols: Vec::new(),
            cable: None,
            compress_above: None,
            heartbeat: None,
            hold: Duration::ZERO,
            linger: Duration::ZERO,
            echo: None,
            fanout: None,
            churn: None,
            force: false,
        }
    }
}

/// Every connection is a client of Action Cable with one subscription. Which subprotocols it offers
/// is [`Config::protocols`]' to say.
#[derive(Clone, Debug)]
pub struct Cable {
    /// What to subscribe by, taken in turn by the connections' numbers. At least one.
    pub identifiers: Vec<String>,
    /// A connection that got no ping for so long is given up.
    pub stale_after: Duration,
    /// A subscribe that was not confirmed in this time is sent again, and so on.
    pub repeat: Duration,
}

impl Cable {
    /// What Rails' client has for `stale_after`.
    pub const STALE_AFTER: Duration = Duration::from_secs(6);
    /// What it has for `repeat`.
    pub const REPEAT: Duration = Duration::from_millis(500);

    /// A client with these times.
    #[must_use]
    pub fn new(identifiers: Vec<String>) -> Cable {
        Cable { identifiers, stale_after: Self::STALE_AFTER, repeat: Self::REPEAT }
    }
}

/// How connections are opened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Connect {
    /// As fast as the far side opens them: each busy worker has at most
    /// [`Connect::WINDOW`] handshakes under way.
    Windowed,
    /// All at once: nothing is waited for.
    Storm,
    /// So many begun per second, however many are under way.
    Paced(u64),
    /// The next begins when the one before is open.
    OneByOne,
}

impl Connect {
    /// Handshakes that one worker has under way in [`Connect::Windowed`]. One worker per core
    /// connects at a time, so a server's backlog of 4,096 has room for eight cores.
    pub const WINDOW: u32 = 512;

    /// Handshakes one worker may have under way.
    pub(crate) fn window(self) -> u32 {
        match self {
            Connect::Windowed => Self::WINDOW,
            Connect::Storm | Connect::Paced(_) => u32::MAX,
            Connect::OneByOne => 1,
        }
    }
}

/// Messages that the far side is expected to send back as they are.
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
    /// In the closed loop: a connection that has had its `messages` is closed by the closing
    /// handshake, and another takes its place, until `duration` is over. Those that are open then
    /// finish theirs and stay.
    pub turnover: bool,
    /// What every message says; `None` sends numbered messages that check themselves.
    pub content: Option<Content>,
    /// In the closed loop: who makes and judges the messages, instead of `content`.
    pub dialogue: Option<Arc<dyn Dialogue>>,
    /// In the closed loop: how long a connection waits between an answer and its next message, at
    /// random between these two.
    pub think: Option<(Duration, Duration)>,
    /// How long an answer is waited for: in the closed loop before the socket's next message is
    /// sent, at the end of a run for what is still under way.
    pub timeout: Duration,
}

/// Messages of the user's own. They carry no number, so answers are taken in their order.
#[derive(Clone, Debug)]
pub struct Content {
    /// The payload.
    pub data: Vec<u8>,
    /// Binary, not text.
    pub binary: bool,
    /// Any message is an answer, not only the same.
    pub any_answer: bool,
}

impl Content {
    /// Messages that are too small for a number of their own.
    #[must_use]
    pub fn filling(size: usize) -> Content {
        Content { data: vec![b'm'; size], binary: true, any_answer: false }
    }
}

impl Echo {
    /// The least payload: a message carries its number.
    pub const SIZE_MIN: usize = crate::message::SEQUENCE_BYTES;
}

/// Subscriptions that begin and end while publications go to all their streams in turn. How long a
/// publication may take, and a subscription's end, is [`Fanout::late_after`].
#[derive(Clone, Debug)]
pub struct Churn {
    /// Subscriptions begun or ended a second over all connections, each of which has at most four.
    pub rate: u64,
    /// The stream of each of [`Cable::identifiers`], all different.
    pub streams: Vec<String>,
}

/// Publications at a rate, of which every connection is to receive each once.
#[derive(Clone, Debug)]
pub struct Fanout {
    /// Publications per second (open model), of all publishers together.
    pub rate: u64,
    /// Who publishes them in turn, each with numbers of its own and by a request or a socket of its
    /// own; 1 to [`Fanout::PUBLISHERS_MAX`]. A receiver remembers 16 bytes of each.
    pub publishers: u32,
    /// Publications in all; `None` leaves the end to `duration`.
    pub messages: Option<u32>,
    /// None is due after this time; `None` leaves the end to `messages`.
    pub duration: Option<Duration>,
    /// Bytes of a publication, at least what it needs for its numbers.
    pub size: usize,
    /// A receipt later than this after the publish is late.
    pub late_after: Duration,
    /// How they enter.
    pub publish: Publish,
}

impl Fanout {
    /// The most publishers of a run.
    pub const PUBLISHERS_MAX: u32 = 64;
    /// The first publisher's number; the others' follow.
    pub(crate) const FIRST_PUBLISHER: u32 = 1;
}

/// How publications enter.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a run has one")]
pub enum Publish {
    /// By one HTTP request each.
    Http(HttpPublish),
    /// By as many of the open connections as there are publishers, which receive them too; with
    /// [`Config::cable`] as whispers, which they do not receive.
    Socket,
}

/// How a run leaves its connections.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Close {
    /// By the closing handshake, code 1000 (RFC 6455 section 7.1.2).
    Graceful,
    /// By RST, which leaves no port resting.
    Abort,
}
