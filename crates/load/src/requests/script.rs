//! [`Script`]: what users ask for. [`Fixed`] is the fast path, one request again and again; a
//! scenario is another.

use std::time::Duration;

use super::{Answer, Failure, Kind, Places, Push, Request, Wants};

/// What a user does next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// It sends [`Script::request`] as soon as the pacing lets it.
    Send,
    /// It thinks, and is asked again.
    Wait(Duration),
    /// What it was to send cannot be: that is begun when the pacing lets it, and has failed.
    Fail(Failure),
    /// It is done for good.
    End,
}

/// Which users a worker has: those whose number is `first`, `first + stride` and so on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The worker's number.
    pub worker: u16,
    /// Of the worker's user 0.
    pub first: u64,
    /// From one user to the next.
    pub stride: u64,
    /// Users of this worker.
    pub users: u32,
}

impl Part {
    /// The number in the whole run of this worker's user.
    #[must_use]
    pub fn number(&self, user: u32) -> u64 {
        self.first + u64::from(user) * self.stride
    }
}

/// What the users of one worker do. They are numbered from 0; [`Part::number`] tells them apart over
/// all workers. For every request: `next` says [`Step::Send`], then `wants`, `request`, and in the
/// end `answered`, once each unless said otherwise; of [`Step::Fail`] it is `answered` alone.
pub trait Script: Send + 'static {
    /// The run begins: whom it asks, and when what is due counts.
    fn start(&mut self, _places: &Places, _measure_ns: u64) {}

    /// What a user does that has nothing under way.
    fn next(&mut self, user: u32, now_ns: u64) -> Step;

    /// What it sends, about to be sent. Asked for once more where an answer redirects.
    fn request(&mut self, user: u32) -> &Request;

    /// What the user wants to see of the answer.
    #[inline]
    fn wants(&self, _user: u32) -> Wants {
        Wants::Nothing
    }

    /// Whether a whole answer leads on to another request: then that is what [`Script::request`] is from
    /// now on. It is sent at once, whatever the pacing, counts as a redirect, and its answer is that of
    /// the first. Not asked where requests are pipelined.
    #[inline]
    fn leads_on(&mut self, _user: u32, _answer: &Answer<'_>) -> bool {
        false
    }

    /// What came of it. A whole answer that is not what it should be is given a failure.
    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure>;

    // Only with drivers whose servers push:

    /// What the next request is. With anything but [`Kind::Plain`] it goes over the user's socket.
    fn kind(&self, _user: u32) -> Kind {
        Kind::Plain
    }

    /// A message, once sent, is to be answered by one that [`Script::pushed`] accepts.
    fn awaits(&self, _user: u32) -> bool {
        false
    }

    /// Time for the request under way, where it is another than the run's.
    fn limit(&self, _user: u32) -> Option<Duration> {
        None
    }

    /// A request is about to be sent.
    fn begin(&mut self, _user: u32, _now_ns: u64) {}

    /// A message came by itself. Where the user `waits` for one: whether it is this.
    fn pushed(&mut self, _user: u32, _push: &Push<'_>, _waits: bool, _now_ns: u64) -> bool {
        false
    }

    /// A message that came before and is what the user waits for now.
    fn recall(&mut self, _user: u32) -> Option<Vec<u8>> {
        None
    }

    /// The user's socket is gone, and its steps had not ended it.
    fn left(&mut self, _user: u32, _left: Left) {}

    /// A user that is done keeps its connections, as something is still to come to it.
    fn stays(&mut self, _user: u32, _now_ns: u64) -> bool {
        false
    }

    /// How long users may stay when the run's time is over.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }
}

/// How a socket went.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Left {
    /// The server closed it, with this code.
    Closed(u16),
    /// It ended without a word.
    Gone,
    /// What the server said was against the protocol.
    Broken(Failure),
    /// We ended it, as there are to be fewer users for a while.
    Parked,
}

/// Every user sends one and the same request, for ever. It allocates nothing.
#[derive(Clone, Debug)]
pub struct Fixed {
    requests: Vec<Request>,
    part: Part,
    accepted: Accepted,
}

/// Which statuses are no failure.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Accepted {
    /// Those below 400; also 0, for protocols that have none.
    #[default]
    Below400,
    /// These.
    Only(Vec<u16>),
}

impl Accepted {
    /// Whether it is accepted.
    #[must_use]
    #[inline]
    pub fn has(&self, status: u16) -> bool {
        match self {
            Accepted::Below400 => status < 400,
            Accepted::Only(statuses) => statuses.contains(&status),
        }
    }
}

impl Fixed {
    /// User `n` of the run sends request `n` modulo their number: at least one is needed.
    #[must_use]
    pub fn new(requests: Vec<Request>, part: Part, accepted: Accepted) -> Fixed {
        assert!(!requests.is_empty(), "a script needs a request");
        Fixed { requests, part, accepted }
    }
}

impl Script for Fixed {
    #[inline]
    fn next(&mut self, _user: u32, _now_ns: u64) -> Step {
        Step::Send
    }

    #[inline]
    fn request(&mut self, user: u32) -> &Request {
        let number = match self.requests.len() {
            1 => 0,
            several => (self.part.number(user) % several as u64) as usize,
        };
        &self.requests[number]
    }

    #[inline]
    fn answered(&mut self, _user: u32, answer: &Answer<'_>) -> Option<Failure> {
        let refused = answer.outcome.is_ok_and(|status| !self.accepted.has(status));
        refused.then_some(Failure::Status)
    }
}
