//! Counters of one proxy worker, in addition to the engine's: refused requests and closed tunnels, by
//! reason. Each has one writer; readers sum over the workers.

use engine::{Counter, invariant};

use crate::access_log::Side;

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$each])* $variant,)*
        }

        impl $name {
            /// Every variant, in numeric order.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// The name in metrics, JSON and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// Why the proxy refused a request instead of passing it on.
    Refusal {
        /// No route for its host and path (404).
        NoRoute = "no_route",
        /// The method was CONNECT (405).
        Connect = "connect",
        /// The route does not allow this client (403).
        Denied = "denied",
        /// Every upstream is at its maximum and the queue is full (503).
        Busy = "busy",
        /// No upstream is up (503).
        Down = "down",
        /// The proxy has no descriptors or memory for another connection (503).
        Exhausted = "exhausted",
        /// The proxy has no free source address or port (503).
        NoSource = "no_source",
        /// No upstream could be reached, or it closed before its response (502).
        Unreachable = "unreachable",
        /// The upstream's response was invalid, or switched protocols without a request to (502).
        BadAnswer = "bad_answer",
        /// No response arrived in time (504).
        NoAnswer = "no_answer",
        /// The request's body is invalid (400).
        BadBody = "bad_body",
        /// The request's body stalled (408).
        StalledBody = "stalled_body",
        /// The request's body arrived more slowly than the minimum rate (408).
        SlowBody = "slow_body",
        /// The request's body was not complete in time (408).
        LateBody = "late_body",
        /// The request's body is larger than the limit (413).
        BodyTooLarge = "body_too_large",
    }
}

reasons! {
    /// Why a tunnel was closed.
    EndReason {
        /// The client closed its side first.
        ByClient = "client",
        /// The upstream closed its side first.
        ByUpstream = "upstream",
        /// The client reset the connection.
        ClientReset = "client_reset",
        /// The upstream reset the connection.
        UpstreamReset = "upstream_reset",
        /// The client acknowledged nothing, or read none of its queued data, for the peer timeout.
        ClientGivenUp = "client_given_up",
        /// The same for the upstream.
        UpstreamGivenUp = "upstream_given_up",
        /// No data in either direction for the idle timeout.
        Idle = "idle_timeout",
        /// Half closed and without data for the fin timeout.
        Fin = "fin_timeout",
        /// It reached its maximum lifetime.
        Lifetime = "max_lifetime",
        /// The proxy is shutting down.
        Draining = "draining",
        /// An operator closed it.
        Ordered = "ordered",
        /// The proxy ran out of memory for it.
        Exhausted = "exhausted",
        /// Shed because memory use exceeded `--memory-limit`.
        Shed = "shed",
    }
}

reasons! {
    /// The stage of a request in progress.
    Stage {
        /// The body is received before an upstream is chosen.
        Reading = "reading",
        /// Every upstream is at its maximum; the request waits in the queue.
        Waiting = "waiting",
        /// Connecting to an upstream.
        Connecting = "connecting",
        /// The request was sent, or as much of it as has arrived; no response head yet.
        Sent = "asked",
        /// The head of the response was passed on.
        Answering = "answering",
    }
}

reasons! {
    /// The phase of a tunnel.
    Phase {
        /// Both directions are open.
        Open = "open",
        /// One side has closed its direction.
        HalfClosed = "half_closed",
        /// The proxy is closing it.
        Ending = "ending",
    }
}

impl Phase {
    /// The phase of a tunnel that is being closed for this reason, if any.
    pub(crate) const fn of(ending: Option<EndReason>) -> Phase {
        match ending {
            None => Phase::Open,
            Some(EndReason::ByClient | EndReason::ByUpstream) => Phase::HalfClosed,
            Some(_) => Phase::Ending,
        }
    }
}

impl EndReason {
    /// The side that closed it.
    #[must_use]
    pub const fn side(self) -> Side {
        match self {
            EndReason::ByClient | EndReason::ClientReset => Side::Client,
            EndReason::ByUpstream | EndReason::UpstreamReset => Side::Upstream,
            _ => Side::Proxy,
        }
    }
}

impl Refusal {
    /// The status of the response.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Refusal::NoRoute => 404,
            Refusal::Connect => 405,
            Refusal::Denied => 403,
            Refusal::Busy | Refusal::Down | Refusal::Exhausted | Refusal::NoSource => 503,
            Refusal::Unreachable | Refusal::BadAnswer => 502,
            Refusal::NoAnswer => 504,
            Refusal::BadBody => 400,
            Refusal::StalledBody | Refusal::SlowBody | Refusal::LateBody => 408,
            Refusal::BodyTooLarge => 413,
        }
    }

    /// The body of the response.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Refusal::NoRoute => "Nothing is served here.\n",
            Refusal::Connect => "This proxy makes no tunnels to anywhere.\n",
            Refusal::Denied => "This address has no access.\n",
            Refusal::Busy => "Every server is full now: try again later.\n",
            Refusal::Down => "No server is there to answer.\n",
            Refusal::Exhausted => "This proxy takes no more connections now.\n",
            Refusal::NoSource => {
                "This proxy has no free address or port to reach the server from: try again later.\n"
            }
            Refusal::Unreachable => "The server could not be reached.\n",
            Refusal::BadAnswer => "The server's answer was not understood.\n",
            Refusal::NoAnswer => "The server did not answer in time.\n",
            Refusal::BadBody => "The body of this request was not understood.\n",
            Refusal::StalledBody | Refusal::LateBody => {
                "The body of this request did not come in time.\n"
            }
            Refusal::SlowBody => "The body of this request came too slowly.\n",
            Refusal::BodyTooLarge => "The body of this request is too large.\n",
        }
    }
}

/// The counters of one worker.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// Open tunnels (gauge).
    pub(crate) tunnels: Counter,
    /// Tunnels opened.
    pub(crate) opened: Counter,
    /// Requests accepted for proxying, including handshakes.
    pub(crate) requests: Counter,
    /// Requests in progress (gauge).
    pub(crate) exchanges: Counter,
    /// Handshakes that an upstream answered with another status than 101.
    pub(crate) declined: Counter,
    /// Retries on another upstream.
    pub(crate) retries: Counter,
    /// Requests sent on a reused connection.
    pub(crate) reused: Counter,
    /// Idle upstream connections that serve one client only (gauge).
    pub(crate) bound: Counter,
    /// Connections closed because too many were bound.
    pub(crate) unbound: Counter,
    /// Plain requests redirected to https.
    pub(crate) https_redirects: Counter,
    /// Responses that ended early.
    pub(crate) truncated: Counter,
    /// Request bodies received, as far as they fit the buffer, before an upstream was chosen.
    pub(crate) bodies_buffered: Counter,
    /// Request bodies passed on as they arrived because the worker's buffers were full.
    pub(crate) bodies_unbuffered: Counter,
    /// Bytes of buffered request bodies (gauge).
    pub(crate) buffered_bytes: Counter,
    /// Bytes from clients in closed tunnels.
    pub(crate) bytes_up: Counter,
    /// Bytes from upstreams in closed tunnels.
    pub(crate) bytes_down: Counter,
    refused: [Counter; Refusal::ALL.len()],
    ended: [Counter; EndReason::ALL.len()],
    stages: [Counter; Stage::ALL.len()],
    phases: [Counter; Phase::ALL.len()],
}

impl Counters {
    pub(crate) fn count_refused(&self, why: Refusal) {
        match self.refused.get(why as usize) {
            Some(counter) => counter.add(1),
            None => invariant::broken("every refusal has a counter"),
        }
    }

    pub(crate) fn count_ended(&self, why: EndReason) {
        match self.ended.get(why as usize) {
            Some(counter) => counter.add(1),
            None => invariant::broken("every end reason has a counter"),
        }
    }

    /// Moves a request from one stage to another; `None` is before the first or after the last.
    pub(crate) fn move_stage(&self, from: Option<Stage>, to: Option<Stage>) {
        let of = |stage: Option<Stage>| stage.and_then(|stage| self.stages.get(stage as usize));
        move_one(of(from), of(to));
    }

    /// Moves a tunnel from one phase to another.
    pub(crate) fn move_phase(&self, from: Option<Phase>, to: Option<Phase>) {
        let of = |phase: Option<Phase>| phase.and_then(|phase| self.phases.get(phase as usize));
        move_one(of(from), of(to));
    }

    /// Requests in this stage.
    #[must_use]
    pub(crate) fn at(&self, stage: Stage) -> u64 {
        self.stages.get(stage as usize).map_or(0, Counter::get)
    }

    /// Tunnels in this phase.
    #[must_use]
    pub(crate) fn in_phase(&self, phase: Phase) -> u64 {
        self.phases.get(phase as usize).map_or(0, Counter::get)
    }

    /// Requests refused for this reason.
    #[must_use]
    pub(crate) fn refused(&self, why: Refusal) -> u64 {
        self.refused.get(why as usize).map_or(0, Counter::get)
    }

    /// Tunnels closed for this reason.
    #[must_use]
    pub(crate) fn ended(&self, why: EndReason) -> u64 {
        self.ended.get(why as usize).map_or(0, Counter::get)
    }
}

fn move_one(from: Option<&Counter>, to: Option<&Counter>) {
    if let Some(from) = from {
        from.sub(1);
    }
    if let Some(to) = to {
        to.add(1);
    }
}
