//! [`Limits`] of a server and [`RouteOptions`] of a route: names, units, defaults.

use std::time::Duration;

use engine::{ClassLimits, Compression, SlowConsumer};

/// The limits of a server. Give those that differ; there may be more of them in a later version:
///
/// ```
/// use std::time::Duration;
/// use standfast::Limits;
///
/// let limits = Limits { idle_timeout: Some(Duration::from_secs(30)), ..Limits::default() };
/// ```
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sockets of the process at most; `None` for as many as there are descriptors (the soft limit
    /// `RLIMIT_NOFILE` is raised to the hard one). Further clients wait in the accept queue, counted as
    /// `accept_full`. Default `None`.
    pub connections: Option<u64>,
    /// Longest message in bytes, for routes without a limit of their own; a longer one closes its socket
    /// with 1009, before it is received where no route allows more. Default 64 KiB.
    pub message_bytes: u32,
    /// Longest request head in bytes; a longer one is answered 431. Default 16 KiB.
    pub head_bytes: usize,
    /// Bytes of request bodies that a worker holds at a time; beyond it requests are answered 503, counted
    /// as `bodies_refused`. Default 16 MiB.
    pub bodies_bytes: usize,
    /// Bytes that may wait for one socket that reads slowly; half of it for an answer that comes in pieces.
    /// Default 1 MiB.
    pub send_queue_bytes: usize,
    /// What happens beyond that; what is lost is counted as `dropped_slow`. Default: the socket is closed
    /// with 1013.
    pub slow_consumer: SlowConsumer,
    /// A socket that has sent nothing for this long, not even a pong, is closed; `None` disables that.
    /// Default 120 s.
    pub idle_timeout: Option<Duration>,
    /// Sockets are pinged at half the idle timeout, so that live peers stay connected. Default on.
    pub pings: bool,
    /// Time for the complete request head, for its body, and for the [`Decision`](crate::Decision) about a
    /// client. Default 10 s.
    pub handshake_timeout: Duration,
    /// An HTTP connection without another request for this long is closed. Default 75 s.
    pub keep_alive_timeout: Duration,
    /// A client that sends no byte of a request body, or takes no byte of an answer, for this long while an
    /// [`Exchange`](crate::Exchange) waits for it, is answered 408 or cut off. Default 30 s.
    pub exchange_timeout: Duration,
    /// Time for a [`Reply`](crate::Reply); then the client is answered 504. Default 30 s.
    pub reply_timeout: Duration,
    /// How long answers under way may go on when the server stops. Default 5 s.
    pub stop_grace: Duration,
    /// Time for the peer to answer our close frame. Default 5 s.
    pub close_timeout: Duration,
    /// Whether messages are compressed (permessage-deflate, RFC 7692), for clients that offer it. With
    /// [`Compression::Shared`] neither side keeps a context (`server_no_context_takeover`,
    /// `client_no_context_takeover`). A client may limit the server's window, to 512 bytes or more
    /// (`server_max_window_bits`); the client's window is not limited. Default off.
    pub compression: Compression,
    /// Messages shorter than this, in bytes, are sent uncompressed. Default 1 KiB.
    pub compress_above_bytes: usize,
    /// Bytes that may wait in the mailbox of one worker: publications, and calls of other threads. Beyond
    /// it they are refused, counted as `mailbox_full`. Default 8 MiB.
    pub mailbox_bytes: usize,
    /// Connections that may wait to be accepted, for each worker and address (`listen(2)`); the kernel limits it to
    /// `net.core.somaxconn`. Beyond it the kernel drops their packets, counted as `ListenOverflows` of
    /// `nstat`, and clients try again after a second. Default 4,096.
    pub backlog: u32,
    /// Names that the connections of one [`Clients`](crate::Clients) look up at a time, each in a thread; further
    /// lookups wait, counted as [`Lookups::delayed`](crate::Lookups::delayed). Default 4.
    pub lookups: usize,
    /// Further limits may follow: end the expression with `..Limits::default()`.
    #[doc(hidden)]
    pub _further: (),
}

impl Default for Limits {
    fn default() -> Self {
        let (own, wire) = (engine::Limits::default(), wire::Limits::default());
        Limits {
            connections: None,
            message_bytes: wire.message_bytes,
            head_bytes: wire.head_bytes,
            bodies_bytes: own.bodies_bytes,
            send_queue_bytes: own.send_queue_bytes,
            slow_consumer: own.slow_consumer,
            idle_timeout: own.idle_timeout,
            pings: own.pings,
            handshake_timeout: own.handshake_timeout,
            keep_alive_timeout: own.keep_alive_timeout,
            exchange_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
            close_timeout: own.close_timeout,
            compression: own.compression,
            compress_above_bytes: own.compress_above_bytes,
            mailbox_bytes: own.mailbox_bytes,
            backlog: 4096,
            lookups: 4,
            _further: (),
        }
    }
}

impl Limits {
    /// The engine's limits, where the longest message of any route has this many bytes.
    pub(crate) fn of_engine(&self, message_bytes: u32, classes: Classes) -> engine::Limits {
        engine::Limits {
            wire: wire::Limits {
                message_bytes,
                head_bytes: self.head_bytes,
                ..wire::Limits::default()
            },
            bodies_bytes: self.bodies_bytes,
            send_queue_bytes: self.send_queue_bytes,
            slow_consumer: self.slow_consumer,
            idle_timeout: self.idle_timeout,
            pings: self.pings,
            handshake_timeout: self.handshake_timeout,
            keep_alive_timeout: self.keep_alive_timeout,
            close_timeout: self.close_timeout,
            drain_grace: self.stop_grace,
            compression: classes.compression(self.compression),
            compress_above_bytes: self.compress_above_bytes,
            classes: classes.0,
            mailbox_bytes: self.mailbox_bytes,
            ..engine::Limits::default()
        }
    }
}

/// What a route does differently, for [`Server::route_with`](crate::Server::route_with).
#[derive(Clone, Debug, Default)]
pub struct RouteOptions {
    /// Longest message in bytes, instead of [`Limits::message_bytes`]. One that is longer closes its socket
    /// with 1009, before it is received if it is longer than a read (64 KiB).
    pub message_bytes: Option<u32>,
    /// Bytes that may wait for a socket, instead of [`Limits::send_queue_bytes`].
    pub send_queue_bytes: Option<usize>,
    /// What happens beyond that, instead of [`Limits::slow_consumer`].
    pub slow_consumer: Option<SlowConsumer>,
    /// When idle sockets are closed, instead of [`Limits::idle_timeout`]; `Some(None)` for never. Idle times
    /// of all routes are measured in steps of a 256th of the shortest timeout, or of a 60,000th of the
    /// longest if that is more.
    pub idle_timeout: Option<Option<Duration>>,
    /// Whether messages are compressed, instead of [`Limits::compression`].
    pub compression: Option<Compression>,
    /// Interval of [`Handler::tick`](crate::Handler::tick), at least 1 ms; `None` or 0 for no ticks. A worker
    /// that is late leaves out those that it missed.
    pub tick: Option<Duration>,
    /// Further options may follow: end the expression with `..RouteOptions::default()`.
    #[doc(hidden)]
    pub _further: (),
}

impl RouteOptions {
    /// The limits of a route that has some of its own besides the longest message.
    pub(crate) fn class(&self, limits: &Limits) -> ClassLimits {
        ClassLimits {
            send_queue_bytes: self.send_queue_bytes.unwrap_or(limits.send_queue_bytes),
            slow_consumer: self.slow_consumer.unwrap_or(limits.slow_consumer),
            idle_timeout: self.idle_timeout.unwrap_or(limits.idle_timeout),
            message_bytes: self.message_bytes.unwrap_or(limits.message_bytes),
            compression: self.compression.unwrap_or(limits.compression),
        }
    }
}

/// The limits of the routes, as classes of the engine: the class of a route is its index.
pub(crate) struct Classes(Vec<ClassLimits>);

impl Classes {
    /// Most routes of WebSockets, if any of them has a limit of its own: a class is a byte.
    pub(crate) const MAX: usize = 254;

    /// No classes if no route differs from the others, so that nothing has to be looked up.
    pub(crate) fn new(routes: &[RouteOptions], limits: &Limits) -> Classes {
        let differs = |route: &RouteOptions| {
            route.send_queue_bytes.is_some()
                || route.slow_consumer.is_some()
                || route.idle_timeout.is_some()
                || route.message_bytes.is_some()
                || route.compression.is_some()
        };
        let classes = routes.iter().map(|route| route.class(limits));
        Classes(if routes.iter().any(differs) { classes.collect() } else { Vec::new() })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// What any route allows.
    fn compression(&self, default: Compression) -> Compression {
        let strength = |compression: &Compression| match compression {
            Compression::Off => 0,
            Compression::Shared => 1,
            Compression::Takeover => 2,
        };
        let all = self.0.iter().map(|class| class.compression);
        all.max_by_key(strength).unwrap_or(default)
    }
}
