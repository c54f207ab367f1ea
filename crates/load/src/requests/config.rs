//! [`Requests`]: what a run of requests is to do, as plain data.

use std::net::IpAddr;
use std::time::Duration;

use crate::Endpoint;
use crate::stages::Stage;

/// One run of requests and answers. Each connection is a user's: it sends, waits for the answer, and
/// sends again.
#[derive(Clone, Debug)]
pub struct Requests {
    /// Where requests go; each names one by its number. At most 256.
    pub endpoints: Vec<Endpoint>,
    /// Users, each with at most one connection at a time.
    pub connections: u64,
    /// When they send.
    pub pace: Pace,
    /// From then on nothing is due; `None` leaves the end to `requests`.
    pub duration: Option<Duration>,
    /// Requests in all, those of the warm-up apart; `None` leaves the end to `duration`.
    pub requests: Option<u64>,
    /// What is due in this time first is sent and not counted.
    pub warm_up: Duration,
    /// Time for a connect of that, a proxy's answer and the handshake of TLS included; `None` has no
    /// time of its own.
    pub connect_timeout: Option<Duration>,
    /// Time for one answer to be whole, from when a user takes the request up, a connect included.
    pub timeout: Duration,
    /// A new connection for each request.
    pub new_connections: bool,
    /// Requests a connection may have under way at the same time (RFC 9112 section 9.3.2).
    pub pipeline: u32,
    /// Redirects followed for one request; 0 leaves them as answers.
    pub redirects: u32,
    /// The script asks for places that answers redirect to.
    pub follows: bool,
    /// Addresses of this machine to connect from; empty leaves it to the kernel, and on loopback
    /// to us.
    pub sources: Vec<IpAddr>,
    /// Told to end, it waits for nothing that is under way.
    pub stops_at_once: bool,
    /// Begin though the machine is too small for it.
    pub force: bool,
}

/// When users send.
#[derive(Clone, PartialEq, Debug)]
pub enum Pace {
    /// The closed model: every user sends when its last request is answered.
    Closed,
    /// The same with a number of users that goes up and down.
    Users(Vec<Stage>),
    /// The open model: so many requests a second over all users, due whether or not any user is
    /// free. Latency counts from then.
    Rate(u64),
    /// The same with a rate that goes up and down: [`Stage::connections`] are requests a second.
    Rates(Vec<Stage>),
}

impl Requests {
    /// Most requests a connection may have under way.
    pub const PIPELINE_MAX: u32 = 64;
    /// What is still under way at the end of the time is waited for, but no longer than this and as
    /// long as the slowest answer until then took; what has no answer then has failed.
    pub const GRACE: Duration = Duration::from_secs(2);
    /// A user whose connect failed rests for this long.
    pub const CONNECT_REST: Duration = Duration::from_millis(1);

    /// A closed loop over so many connections for ten seconds.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>, connections: u64) -> Requests {
        Requests {
            endpoints,
            connections,
            pace: Pace::Closed,
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
            stops_at_once: false,
            force: false,
        }
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

    /// What does not go together, as a text for people.
    pub(crate) fn unfit(&self) -> Option<&'static str> {
        let open = matches!(self.pace, Pace::Rate(_) | Pace::Rates(_));
        Some(match self {
            _ if self.pipeline == 0 || self.pipeline > Self::PIPELINE_MAX => {
                "pipelining takes 1 to 64 requests"
            }
            _ if self.pipeline > 1 && self.new_connections => {
                "pipelining needs connections that stay"
            }
            _ if self.pipeline > 1 && self.redirects > 0 => {
                "redirects are not followed while requests are pipelined"
            }
            _ if self.over_after().is_none() && self.requests.is_none() => {
                "say when it ends: a duration, a number of requests, or stages"
            }
            _ if open && self.pace == Pace::Rate(0) => "a rate is at least 1",
            _ => return None,
        })
    }
}
