//! RADIUS (RFC 2865) over UDP: users that send Access-Requests one after another. `packet.rs` is the bytes,
//! `worker.rs` the users of a thread and their sockets, [`drive`] a run.
//!
//! It uses neither the engine, which has no UDP, nor a crate for RADIUS: those there are for Rust need an
//! asynchronous runtime and allocate for each packet.

mod packet;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use engine::sys::process::now_ns;
use serde::Serialize;

pub use self::packet::{ACCESS_ACCEPT, ACCESS_CHALLENGE, ACCESS_REJECT, AccessRequest};
use self::worker::Worker;
use crate::outcome::recorder::{Latency, Recorder, Series};

/// Users that share a socket. It has 256 identifiers, so that one is used again as late as possible
/// (RFC 5080 section 2.1.1).
pub const USERS_PER_SOCKET: u64 = 128;
/// The most users.
pub const USERS_MAX: u64 = 100_000;
/// Time after which a request without an answer is sent again.
pub const RETRANSMIT: Duration = Duration::from_secs(1);
/// A run whose requests are refused for so long, and none answered, ends.
const REFUSED_FOR: Duration = Duration::from_secs(2);
/// How often a run looks for its end, and rows.
const WATCH: Duration = Duration::from_millis(20);

/// A run of Access-Requests.
#[derive(Clone, Debug)]
pub struct Radius {
    /// The server.
    pub server: SocketAddr,
    /// Users with one request at a time; at most [`USERS_MAX`].
    pub users: u64,
    /// Requests of each user; `None` leaves the end to `duration`.
    pub each: Option<u64>,
    /// No request begins after this time.
    pub duration: Option<Duration>,
    /// Time for an answer.
    pub timeout: Duration,
    /// Threads.
    pub threads: usize,
    /// What is sent.
    pub request: AccessRequest,
}

/// How a request ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RadiusEnd {
    /// A verified answer with this code.
    Answered(u8),
    /// No answer in time.
    Timeout,
    /// Nothing listens on the port of the server (ICMP).
    Refused,
    /// The kernel did not send it.
    Unsent,
}

/// A request that has ended.
#[derive(Copy, Clone, Debug)]
pub struct RadiusResult {
    /// How.
    pub end: RadiusEnd,
    /// Bytes of the answer.
    pub bytes: u16,
    /// From the first datagram on.
    pub took_ns: u64,
    /// It is the first of its user.
    pub is_first: bool,
}

/// Counts of a run. A request is answered, or failed, or unfinished.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct RadiusCounts {
    /// Requests that began.
    pub requests: u64,
    /// Answered by Access-Accept.
    pub accepted: u64,
    /// By Access-Reject.
    pub rejected: u64,
    /// By Access-Challenge.
    pub challenged: u64,
    /// By another code.
    pub other_codes: u64,
    /// Without an answer in time.
    pub timeouts: u64,
    /// Nothing listened on the port.
    pub refused: u64,
    /// Not sent by the kernel.
    pub unsent: u64,
    /// Without a result when the run was stopped.
    pub unfinished: u64,
    /// Datagrams sent, with retransmissions.
    pub datagrams_sent: u64,
    /// Datagrams that were sent again.
    pub retransmissions: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Received datagrams whose authenticator is wrong: another secret, or an attack.
    pub unverified: u64,
    /// Received datagrams that are not valid packets.
    pub malformed: u64,
    /// Received answers to no request in flight: late or duplicated ones.
    pub unexpected: u64,
}

impl RadiusCounts {
    fn add(&mut self, other: &RadiusCounts) {
        let RadiusCounts {
            requests,
            accepted,
            rejected,
            challenged,
            other_codes,
            timeouts,
            refused,
            unsent,
            unfinished,
            datagrams_sent,
            retransmissions,
            datagrams_received,
            unverified,
            malformed,
            unexpected,
        } = other;
        self.requests += requests;
        self.accepted += accepted;
        self.rejected += rejected;
        self.challenged += challenged;
        self.other_codes += other_codes;
        self.timeouts += timeouts;
        self.refused += refused;
        self.unsent += unsent;
        self.unfinished += unfinished;
        self.datagrams_sent += datagrams_sent;
        self.retransmissions += retransmissions;
        self.datagrams_received += datagrams_received;
        self.unverified += unverified;
        self.malformed += malformed;
        self.unexpected += unexpected;
    }
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RadiusOutcome {
    /// Time that passed, in seconds.
    pub seconds: f64,
    /// It was stopped before its end.
    pub interrupted: bool,
    /// Why the server was never reached: the run then ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreached: Option<String>,
    /// What was counted.
    pub radius: RadiusCounts,
    /// Of verified answers, from the first datagram on; `None` without any.
    pub latency: Option<Latency>,
}

/// What a thread has counted.
struct Part {
    counts: RadiusCounts,
    times: Recorder,
    end_ns: u64,
}

/// What the threads know of the server.
#[derive(Default)]
struct Contact {
    answered: AtomicBool,
    refused: AtomicBool,
}

impl Contact {
    fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) && !self.answered.load(Ordering::Relaxed)
    }
}

/// Runs the users until they are done, or `wait` returns true. `observer` makes for each thread what is
/// told of each result; `row` is called each second with the time that passed.
///
/// # Errors
/// Too many users, or sockets or threads that cannot be opened.
pub fn drive<O: FnMut(&RadiusResult) + Send>(
    radius: &Radius,
    observer: impl Fn() -> O,
    mut row: impl FnMut(Duration),
    mut wait: impl FnMut(Duration) -> bool,
) -> io::Result<RadiusOutcome> {
    if radius.users > USERS_MAX {
        let users = radius.users;
        return Err(io::Error::other(format!("{users} users: the limit is {USERS_MAX}")));
    }
    let threads = (radius.threads.max(1) as u64).min(radius.users.max(1));
    let begin_ns = now_ns();
    let contact = Contact::default();
    let refused = || format!("connection refused: no UDP server on {}", radius.server);
    let workers: Vec<Worker<'_, O>> = (0..threads)
        .map(|thread| {
            let users = radius.users / threads + u64::from(thread < radius.users % threads);
            Worker::new(radius, users, begin_ns ^ thread << 56, &contact, observer())
        })
        .collect::<io::Result<_>>()?;
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut interrupted, mut unreached) = (false, None);
    let parts = thread::scope(|scope| {
        let (stop, done) = (&stop, &done);
        let started: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let run = move || {
                    let ended = worker.run(stop);
                    done.fetch_add(1, Ordering::Release);
                    ended
                };
                thread::Builder::new().name("radius".to_owned()).spawn_scoped(scope, run)
            })
            .collect();
        let count = started.iter().filter(|one| one.is_ok()).count();
        if count < started.len() {
            stop.store(true, Ordering::Release);
        }
        let mut rows = 0;
        while done.load(Ordering::Acquire) < count {
            if wait(WATCH) && !std::mem::replace(&mut interrupted, true) {
                stop.store(true, Ordering::Release);
            }
            let elapsed = Duration::from_nanos(now_ns() - begin_ns);
            if unreached.is_none() && elapsed > REFUSED_FOR && contact.is_refused() {
                unreached = Some(refused());
                stop.store(true, Ordering::Release);
            }
            if elapsed.as_secs() > rows {
                rows = elapsed.as_secs();
                row(elapsed);
            }
        }
        let join = |one: io::Result<thread::ScopedJoinHandle<'_, io::Result<_>>>| {
            one?.join().map_err(|_| io::Error::other("a thread of RADIUS has panicked"))?
        };
        started.into_iter().map(join).collect::<io::Result<Vec<Part>>>()
    })?;
    if unreached.is_none() && contact.is_refused() {
        unreached = Some(refused());
    }
    let (mut counts, mut times) = (RadiusCounts::default(), Recorder::default());
    for part in &parts {
        counts.add(&part.counts);
        times.merge(&part.times);
    }
    let end_ns = parts.iter().map(|part| part.end_ns).max().unwrap_or(begin_ns);
    let seconds = end_ns.saturating_sub(begin_ns) as f64 / 1e9;
    let latency = times.latency(Series::Latency);
    Ok(RadiusOutcome { seconds, interrupted, unreached, radius: counts, latency })
}
