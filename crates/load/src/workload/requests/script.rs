//! [`Script`]: what users send. [`Fixed`] repeats one request and is the fast path; scenarios are
//! another implementation.

use std::time::Duration;

use crate::delivery::publication::Publication;
use crate::grpc::Code;
use crate::outcome::failure::Failure;
use crate::transport::driver::Push;
use crate::transport::target_table::TargetTable;
use crate::workload::requests::answer::{Answer, Wants};
use crate::workload::requests::generators::Generators;
use crate::workload::requests::request::{Kind, Request};

/// The next step of a user.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send [`Script::request`] as soon as the schedule allows.
    Send,
    /// Pause, then call [`Script::next`] again.
    Wait(Duration),
    /// Send it now; it was due at this time, by [`Script::arrived`].
    SendDue(u64),
    /// The next pass of [`crate::requests::Arrivals`] would begin: [`Script::arrived`] is called when it
    /// is due, and then [`Script::next`] again.
    Arrive,
    /// The request cannot be sent: it fails as soon as the schedule allows.
    Fail(Failure),
    /// The user is done.
    End,
}

/// The users of a worker: blocks `first`, `first + stride` and so on of `block` users each, unless several
/// blocks in a row are of one generator.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The worker's number.
    pub worker: u16,
    /// A number below `stride` that no other worker of the run has.
    pub first: u64,
    /// The workers of all generators, if each had as many as this one.
    pub stride: u64,
    /// Users of this worker.
    pub users: u32,
    /// Users that share connections; 1 if each has its own.
    pub block: u32,
    /// The generators, each of which has every nth `row` of blocks.
    share: Generators,
    /// Blocks in a row; 1 with one generator.
    row: u64,
    /// Users are `stride` apart: neither share connections nor are several in a row of one generator.
    is_even: bool,
}

impl Part {
    /// The part of a worker, which is one of `stride`, of so many users.
    #[must_use]
    pub fn new(worker: u16, stride: u64, block: u32, users: u64) -> Part {
        Part::shared(Generators::ONE, worker, stride, (block, 1), users)
    }

    /// The part of a worker, one of `workers` of a generator that shares the run: a generator has every
    /// nth row of so many blocks, and each of its workers every nth of these blocks.
    #[must_use]
    pub fn shared(
        share: Generators,
        worker: u16,
        workers: u64,
        (block, row): (u32, u64),
        users: u64,
    ) -> Part {
        let (nth, of) = (u64::from(share.nth), u64::from(share.of.max(1)));
        let first = nth + u64::from(worker) * of;
        let row = if of > 1 { row.max(1) } else { 1 };
        let is_even = block <= 1 && row == 1;
        let stride = workers * of;
        let part = Part { worker, first, stride, users: 0, block, share, row, is_even };
        Part { users: u32::try_from(part.below(users)).unwrap_or(u32::MAX), ..part }
    }

    /// The number in the run of a user of this worker.
    #[must_use]
    pub fn number(&self, user: u32) -> u64 {
        if self.is_even {
            return self.first + u64::from(user) * self.stride;
        }
        let (block, nth) = (u64::from(self.block.max(1)), u64::from(user));
        self.block_number(nth / block) * block + nth % block
    }

    /// The number in the run of a block of this worker.
    #[must_use]
    pub fn block_number(&self, nth: u64) -> u64 {
        if self.row <= 1 {
            return self.first + nth * self.stride;
        }
        let of = u64::from(self.share.of.max(1));
        let own = (self.first + nth * self.stride) / of;
        (own / self.row * of + u64::from(self.share.nth)) * self.row + own % self.row
    }

    /// How many users of this worker have numbers below this one, without a limit.
    #[must_use]
    pub fn below(&self, number: u64) -> u64 {
        let (block, of) = (u64::from(self.block.max(1)), u64::from(self.share.of.max(1)));
        let (whole, rest) = (number / block, number % block);
        let (first, stride) = (self.first / of, (self.stride / of).max(1));
        let before = self.share.of_blocks(self.row, whole);
        let blocks = before.saturating_sub(first).div_ceil(stride);
        let is_of_share = (whole / self.row.max(1)) % of == u64::from(self.share.nth);
        let is_own = is_of_share && before >= first && (before - first).is_multiple_of(stride);
        blocks * block + if is_own { rest } else { 0 }
    }
}

/// The script of the users of one worker. They are numbered from 0; [`Part::number`] is the number in
/// the run. The calls for every request, once each unless noted: `next` returning [`Step::Send`],
/// `wants`, `request`, and finally `answered`; after [`Step::Fail`] only `answered`.
pub trait Script: Send + 'static {
    /// Whether the script keeps its unanswered requests. They are then queued while a connect is in
    /// progress, and those that a server has not processed are sent again.
    const KEEPS: bool = false;

    /// Called at the start, with the targets and the end of the warm-up.
    fn start(&mut self, _targets: &TargetTable, _measure_ns: u64) {}

    /// The next step of a user without a request in flight.
    fn next(&mut self, user: u32, now_ns: u64) -> Step;

    /// The number of requests that the next step of a user sends at the same time; 0: it is one request.
    /// Each is sent by a branch, a number after those of users, to which the calls for a request are made
    /// after [`Script::fork`]. [`Script::join`] ends the step.
    #[inline]
    fn parallel(&self, _user: u32) -> u8 {
        0
    }

    /// The target of the nth of these requests.
    fn endpoint(&self, _user: u32, _nth: u8) -> u8 {
        0
    }

    /// Prepares the nth of these requests, which a branch sends now. Returns why it cannot be sent.
    fn fork(&mut self, _user: u32, _branch: u32, _nth: u8, _now_ns: u64) -> Option<Failure> {
        None
    }

    /// Called when all of them have ended; `is_whole` unless some were not sent, as the run has ended.
    fn join(&mut self, _user: u32, _is_whole: bool) {}

    /// Called when the next pass of a user is due, after [`Step::Arrive`].
    fn arrived(&mut self, _user: u32, _due_ns: u64) {}

    /// The request to send now. Called again for a redirect.
    fn request(&mut self, user: u32) -> &Request;

    /// The nth oldest unanswered request, with [`Script::KEEPS`].
    #[inline]
    fn unanswered(&mut self, user: u32, _nth: usize) -> &Request {
        self.request(user)
    }

    /// Called when a request that was due at `due_ns` is taken up, before [`Script::request`].
    #[inline]
    fn begin(&mut self, _user: u32, _due_ns: u64, _now_ns: u64) {}

    /// The parts of the answer that the script needs.
    #[inline]
    fn wants(&self, _user: u32) -> Wants {
        Wants::Nothing
    }

    /// Whether a complete answer is followed up by another request, which [`Script::request`] then
    /// returns. It is sent at once, counts as a redirect, and its answer is that of the first request.
    /// Not called with pipelining.
    #[inline]
    fn follows_up(&mut self, _user: u32, _answer: &Answer<'_>) -> bool {
        false
    }

    /// The timeout of the request in flight, if it differs from that of the run.
    #[inline]
    fn limit(&self, _user: u32) -> Option<Duration> {
        None
    }

    /// Takes the result of a request. Returns a failure if a complete answer is not as expected.
    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure>;

    /// Appends the next message of the call of a user, for drivers with
    /// [`crate::transport::driver::Driver::MESSAGES`]. False if it cannot be made: the call ends.
    fn message(&mut self, _user: u32, _next: &NextMessage, _out: &mut Vec<u8>) -> bool {
        false
    }

    // Only for drivers with `PUSHES`:

    /// The kind of the next request. All but [`Kind::Plain`] use a WebSocket of the user.
    fn kind(&self, _user: u32) -> Kind {
        Kind::Plain
    }

    /// The WebSocket of the next request, from 1.
    fn socket(&self, _user: u32) -> u8 {
        1
    }

    /// Whether a sent message is answered by one that [`Script::pushed`] accepts.
    fn awaits(&self, _user: u32) -> bool {
        false
    }

    /// Takes a message pushed on a WebSocket. If the user `waits` for one: returns whether it is this one.
    fn pushed(
        &mut self,
        _user: u32,
        _socket: u8,
        _push: &Push<'_>,
        _waits: bool,
        _now_ns: u64,
    ) -> bool {
        false
    }

    /// Takes an earlier message that matches what the user waits for.
    fn recall(&mut self, _user: u32) -> Option<Vec<u8>> {
        None
    }

    /// Keeps the end of a call that no step waits for: its status and its last head.
    fn keep_end(&mut self, _user: u32, _socket: u8, _status: u16, _head: &[u8]) {}

    /// Takes the end of the call that the user closes, if the server has ended it already.
    fn recall_end(&mut self, _user: u32) -> Option<(u16, Vec<u8>)> {
        None
    }

    /// Called when a WebSocket of the user ends other than by its steps.
    fn socket_ended(&mut self, _user: u32, _socket: u8, _end: SocketEnd) {}

    /// Called when all connections of the user are closed, as it is parked.
    fn parked(&mut self, _user: u32) {}

    /// Whether a user that is done keeps its connections, as messages are still expected.
    fn stays(&mut self, _user: u32, _now_ns: u64) -> bool {
        false
    }

    /// How long users may stay, and answers are awaited, after the end of the run.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }
}

/// A message that is to be sent.
#[derive(Copy, Clone, Debug)]
pub struct NextMessage {
    /// Messages of the call before it.
    pub nth: u32,
    /// Its sender, number and times.
    pub stamp: Publication,
}

/// How a WebSocket ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SocketEnd {
    /// The server closed it, with this code.
    Closed(u16),
    /// It ended without a close frame.
    Lost,
    /// The server violated the protocol.
    Failed(Failure),
    /// The server ended the call with this status.
    Status(Code),
}

/// Each user repeats one request. It allocates nothing.
#[derive(Clone, Debug)]
pub struct Fixed {
    requests: Vec<Request>,
    part: Part,
    accepted: Accepted,
}

/// The statuses that are accepted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Accepted {
    /// Those below 400, including 0 for protocols without status.
    #[default]
    Below400,
    /// These.
    Only(Vec<u16>),
}

impl Accepted {
    /// Whether a status is accepted.
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
    /// User `n` of the run sends request `n` modulo their number. At least one is required.
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
