//! What a worker of the proxy counts beside the engine: requests refused, tunnels ended, and why.
//! One writer each; whoever asks adds them up.

use engine::Counter;

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
            /// Every reason, in the order of its number.
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
    /// Why a request was answered by the proxy itself.
    Refusal {
        /// No route for its host and path (404).
        NoRoute = "no_route",
        /// It asked for a tunnel to anywhere (405).
        Connect = "connect",
        /// Every upstream has its most and enough wait already (503).
        Busy = "busy",
        /// No upstream is up (503).
        Down = "down",
        /// This proxy has no descriptors or memory for another connection (503).
        Exhausted = "exhausted",
        /// It has no free address or port to connect from (503).
        NoSource = "no_source",
        /// No upstream could be reached, or it broke off before it answered (502).
        Unreachable = "unreachable",
        /// What an upstream answered breaks the rules, or switched what nobody asked for (502).
        BadAnswer = "bad_answer",
        /// No answer came in time (504).
        NoAnswer = "no_answer",
        /// The request's body breaks the rules (400).
        BadBody = "bad_body",
        /// The request's body did not go on in time (408).
        StalledBody = "stalled_body",
    }
}

reasons! {
    /// Why a tunnel ended.
    Ended {
        /// The client ended its side first.
        ByClient = "client",
        /// The upstream ended its side first.
        ByUpstream = "upstream",
        /// The client broke off.
        ClientReset = "client_reset",
        /// The upstream broke off.
        UpstreamReset = "upstream_reset",
        /// The client acknowledged nothing for the peer timeout, or read nothing of what waited for it.
        ClientGivenUp = "client_given_up",
        /// The same of the upstream.
        UpstreamGivenUp = "upstream_given_up",
        /// Neither side was heard for the idle timeout.
        Idle = "idle_timeout",
        /// One side had ended and the other was silent for the fin timeout.
        Fin = "fin_timeout",
        /// It had its time.
        Lifetime = "max_lifetime",
        /// This proxy is shutting down.
        Draining = "draining",
        /// An operator ended it.
        Ordered = "ordered",
        /// This proxy had no memory for it.
        Exhausted = "exhausted",
        /// More memory than `--memory-limit` was held, and its turn to leave had come.
        Shed = "shed",
    }
}

reasons! {
    /// Where a request is.
    Stage {
        /// Every upstream has its most: it waits for a place.
        Waiting = "waiting",
        /// A connection to an upstream is being made.
        Connecting = "connecting",
        /// The request was sent, or as much of it as has come.
        Asked = "asked",
        /// The head of the answer was passed on.
        Answering = "answering",
    }
}

reasons! {
    /// Where a tunnel is.
    Phase {
        /// Both sides may speak.
        Open = "open",
        /// One side has said all.
        HalfClosed = "half_closed",
        /// This proxy is ending it.
        Ending = "ending",
    }
}

impl Phase {
    /// Of a tunnel that is ending for this reason, if it is.
    pub(crate) const fn of(ending: Option<Ended>) -> Phase {
        match ending {
            None => Phase::Open,
            Some(Ended::ByClient | Ended::ByUpstream) => Phase::HalfClosed,
            Some(_) => Phase::Ending,
        }
    }
}

impl Ended {
    /// Who ended it.
    #[must_use]
    pub const fn side(self) -> Side {
        match self {
            Ended::ByClient | Ended::ClientReset => Side::Client,
            Ended::ByUpstream | Ended::UpstreamReset => Side::Upstream,
            _ => Side::Proxy,
        }
    }
}

impl Refusal {
    /// The status of the answer.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Refusal::NoRoute => 404,
            Refusal::Connect => 405,
            Refusal::Busy | Refusal::Down | Refusal::Exhausted | Refusal::NoSource => 503,
            Refusal::Unreachable | Refusal::BadAnswer => 502,
            Refusal::NoAnswer => 504,
            Refusal::BadBody => 400,
            Refusal::StalledBody => 408,
        }
    }

    /// What the client is told.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Refusal::NoRoute => "Nothing is served here.\n",
            Refusal::Connect => "This proxy makes no tunnels to anywhere.\n",
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
            Refusal::StalledBody => "The body of this request did not come in time.\n",
        }
    }
}

/// The counters of one worker.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// Tunnels that are open now (gauge).
    pub(crate) tunnels: Counter,
    /// Tunnels opened.
    pub(crate) opened: Counter,
    /// Requests that were taken on, handshakes included.
    pub(crate) requests: Counter,
    /// Requests whose answer has not come to its end (gauge).
    pub(crate) exchanges: Counter,
    /// Handshakes that an upstream answered with something else than 101.
    pub(crate) declined: Counter,
    /// Further upstreams asked for a request, as nothing was answered.
    pub(crate) retries: Counter,
    /// Requests sent on a connection that had served another.
    pub(crate) reused: Counter,
    /// Answers that broke off in the middle.
    pub(crate) truncated: Counter,
    /// Bytes from clients in tunnels that have ended.
    pub(crate) bytes_up: Counter,
    /// Bytes from upstreams in tunnels that have ended.
    pub(crate) bytes_down: Counter,
    refused: [Counter; Refusal::ALL.len()],
    ended: [Counter; Ended::ALL.len()],
    stages: [Counter; Stage::ALL.len()],
    phases: [Counter; Phase::ALL.len()],
}

impl Counters {
    pub(crate) fn count_refused(&self, why: Refusal) {
        if let Some(counter) = self.refused.get(why as usize) {
            counter.add(1);
        }
    }

    pub(crate) fn count_ended(&self, why: Ended) {
        if let Some(counter) = self.ended.get(why as usize) {
            counter.add(1);
        }
    }

    /// A request goes from one stage to another; none is before and behind all.
    pub(crate) fn staged(&self, from: Option<Stage>, to: Option<Stage>) {
        let of = |stage: Option<Stage>| stage.and_then(|stage| self.stages.get(stage as usize));
        moved(of(from), of(to));
    }

    /// The same of a tunnel.
    pub(crate) fn phased(&self, from: Option<Phase>, to: Option<Phase>) {
        let of = |phase: Option<Phase>| phase.and_then(|phase| self.phases.get(phase as usize));
        moved(of(from), of(to));
    }

    /// Requests that are there now.
    #[must_use]
    pub(crate) fn at(&self, stage: Stage) -> u64 {
        self.stages.get(stage as usize).map_or(0, Counter::get)
    }

    /// Tunnels that are there now.
    #[must_use]
    pub(crate) fn in_phase(&self, phase: Phase) -> u64 {
        self.phases.get(phase as usize).map_or(0, Counter::get)
    }

    /// Requests answered by the proxy itself for this reason.
    #[must_use]
    pub(crate) fn refused(&self, why: Refusal) -> u64 {
        self.refused.get(why as usize).map_or(0, Counter::get)
    }

    /// Tunnels ended for this reason.
    #[must_use]
    pub(crate) fn ended(&self, why: Ended) -> u64 {
        self.ended.get(why as usize).map_or(0, Counter::get)
    }
}

fn moved(from: Option<&Counter>, to: Option<&Counter>) {
    if let Some(from) = from {
        from.sub(1);
    }
    if let Some(to) = to {
        to.add(1);
    }
}
