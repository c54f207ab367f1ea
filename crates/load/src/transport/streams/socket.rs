//! The sockets of a worker: one stream each, from its connect to its close.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use engine::ServerFault;
use engine::sys::{Fd, Interest};
use wire::http2::StreamId;

/// Descriptors of sockets have numbers from here on; those below are the kernel's.
const FIRST_FD: i32 = 1 << 30;
/// Boxes kept for reuse, and the longest buffer that is kept with one.
const SPARE_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// No carrier.
pub(super) const NONE: u32 = u32::MAX;

/// The progress of a socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The place is not in use.
    Free,
    /// It has no connection yet: its first bytes say which.
    New,
    /// It waits until its connection takes a stream.
    Waiting,
    /// Its connection takes a stream: the next write opens it.
    Ready,
    /// The request is sent.
    Opening,
    /// Bytes in both directions.
    Open,
    /// It has ended with an error.
    Failed,
}

/// A socket, 40 bytes while it is idle.
pub(super) struct Socket {
    /// Under which its worker watches it.
    pub(super) key: u64,
    pub(super) held: Option<Box<Held>>,
    pub(super) stream: Option<StreamId>,
    /// Its connection, and its place among the sockets there.
    pub(super) carrier: u32,
    pub(super) place: u32,
    pub(super) state: State,
    pub(super) interest: Interest,
    /// It is in the list of those to look at.
    pub(super) is_listed: bool,
    /// The server, and we, have ended the stream.
    pub(super) has_ended: bool,
    pub(super) is_finished: bool,
    /// It is a request, not a WebSocket.
    pub(super) is_request: bool,
}

/// What a socket holds while it is not idle.
#[derive(Default)]
pub(super) struct Held {
    /// Received bytes, of which the first `at` were read.
    pub(super) received: Vec<u8>,
    pub(super) at: usize,
    /// How many bytes of `received` are an answer, and trailers at its end, which no window counts.
    pub(super) answer_bytes: usize,
    pub(super) trailer_bytes: usize,
    /// It is a gRPC call.
    pub(super) is_call: bool,
    /// Before the answer: what the worker expects as Sec-WebSocket-Accept.
    pub(super) accept: [u8; 28],
    /// Bytes of the body of a request that were not sent.
    pub(super) body_left: u64,
    pub(super) destination: Destination,
    pub(super) source: Option<IpAddr>,
    pub(super) failure: Option<SocketFailure>,
}

/// Where a socket connects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    Tcp(SocketAddr),
    Unix(Arc<Path>),
}

impl Default for Destination {
    fn default() -> Self {
        Destination::Tcp(SocketAddr::from(([0; 4], 0)))
    }
}

/// Why a socket failed.
#[derive(Copy, Clone, Debug)]
pub(super) struct SocketFailure {
    /// The error of further calls.
    pub(super) error: io::ErrorKind,
    /// What that error does not say.
    pub(super) fault: Option<ServerFault>,
}

impl Socket {
    fn new() -> Socket {
        Socket {
            key: 0,
            held: None,
            stream: None,
            carrier: NONE,
            place: 0,
            state: State::Free,
            interest: Interest::NONE,
            is_listed: false,
            has_ended: false,
            is_finished: false,
            is_request: false,
        }
    }

    pub(super) fn has_received(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.at < held.received.len())
    }

    /// Received data that was not read, without the answer.
    pub(super) fn unread(&self) -> usize {
        let unread = |held: &Held| {
            let counted = held.received.len().saturating_sub(held.trailer_bytes);
            counted.saturating_sub(held.at.max(held.answer_bytes))
        };
        self.held.as_deref().map_or(0, unread)
    }

    /// Whether it has nothing on its connection yet, and may use another.
    pub(super) fn may_move(&self) -> bool {
        matches!(self.state, State::Waiting | State::Ready)
    }

    /// Whether it is a gRPC call.
    pub(super) fn is_call(&self) -> bool {
        self.is_request && self.held.as_ref().is_some_and(|held| held.is_call)
    }

    pub(super) fn failure(&self) -> Option<SocketFailure> {
        self.held.as_ref().and_then(|held| held.failure)
    }

    /// The error of a socket that has failed.
    pub(super) fn error(&self) -> io::Error {
        self.failure().map_or(io::ErrorKind::NotConnected, |failure| failure.error).into()
    }
}

/// The table of sockets.
#[derive(Default)]
pub(super) struct Sockets {
    all: Vec<Socket>,
    free: Vec<u32>,
    #[allow(clippy::vec_box, reason = "the boxes are what is used again")]
    spare: Vec<Box<Held>>,
}

impl Sockets {
    /// The socket of a descriptor; `None` if it is one of the kernel.
    pub(super) fn index(fd: Fd) -> Option<u32> {
        fd.number().checked_sub(FIRST_FD).and_then(|at| u32::try_from(at).ok())
    }

    pub(super) fn fd(at: u32) -> Fd {
        Fd::new(FIRST_FD + at as i32)
    }

    pub(super) fn add(&mut self, destination: Destination, source: Option<IpAddr>) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.all.push(Socket::new());
            self.all.len() as u32 - 1
        });
        let held = Held { destination, source, ..Held::default() };
        if let Some(socket) = self.all.get_mut(at as usize) {
            let is_listed = socket.is_listed;
            let held = Some(Box::new(held));
            *socket = Socket { state: State::New, held, is_listed, ..Socket::new() };
        }
        at
    }

    /// Frees the place of a socket, which may still be in the list of those to look at.
    pub(super) fn free(&mut self, at: u32) {
        self.put_back(at);
        if let Some(socket) = self.all.get_mut(at as usize) {
            let is_listed = socket.is_listed;
            *socket = Socket { is_listed, ..Socket::new() };
            self.free.push(at);
        }
    }

    pub(super) fn get(&self, at: u32) -> Option<&Socket> {
        self.all.get(at as usize).filter(|socket| socket.state != State::Free)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Socket> {
        self.all.get_mut(at as usize).filter(|socket| socket.state != State::Free)
    }

    /// Takes a socket from the list of those to look at.
    pub(super) fn unlist(&mut self, at: u32) {
        if let Some(socket) = self.all.get_mut(at as usize) {
            socket.is_listed = false;
        }
    }

    /// What a socket holds, in a box that may be one of an earlier socket.
    pub(super) fn held(&mut self, at: u32) -> Option<&mut Held> {
        let socket = self.all.get_mut(at as usize)?;
        let spare = &mut self.spare;
        Some(socket.held.get_or_insert_with(|| spare.pop().unwrap_or_default()))
    }

    /// Takes back the box of a socket that holds nothing more.
    pub(super) fn put_back(&mut self, at: u32) {
        let Some(mut held) = self.all.get_mut(at as usize).and_then(|one| one.held.take()) else {
            return;
        };
        if self.spare.len() < SPARE_MAX && held.received.capacity() <= SPARE_BYTES_MAX {
            let mut received = std::mem::take(&mut held.received);
            received.clear();
            *held = Held { received, ..Held::default() };
            self.spare.push(held);
        }
    }
}
