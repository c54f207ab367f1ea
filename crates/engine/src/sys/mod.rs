//! The seam between a worker and its operating system.
//!
//! [`Sys`] is everything a worker may ask of the outside: readiness, sockets, the clock and
//! randomness. [`linux::Linux`] asks the kernel; [`sim::Sim`] plays the kernel from a seed. Nothing
//! above this module makes a system call, reads a clock or draws a random number, and nothing
//! outside it contains `unsafe`.
//!
//! The contract of an implementation, which the tests in `contract` check:
//! - readiness is level-triggered: an event is reported again until its cause is gone. The exception
//!   is a descriptor watched for [`Interest::NONE`]: its error or hang-up is reported once, and again
//!   only after [`Sys::rewatch`];
//! - every call is non-blocking except [`Sys::wait`], and none is retried inside: `EINTR` and
//!   `EAGAIN` come back as errors;
//! - timeouts round up, never to a busy zero;
//! - a descriptor that was closed never shows up in later events.

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "linux")]
pub mod process;
pub mod sim;

#[cfg(all(test, target_os = "linux"))]
mod contract;

use std::io;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// A descriptor of one worker's table: 4 bytes, and it stays in its thread, because the same
/// number means another file in the next worker's table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fd {
    number: i32,
    in_this_thread: PhantomData<*const ()>,
}

impl Fd {
    /// The descriptor with this number in the current thread's table.
    #[must_use]
    pub fn new(number: i32) -> Self {
        Fd { number, in_this_thread: PhantomData }
    }

    /// The number, for the calls of an implementation and for reports.
    #[must_use]
    pub fn number(self) -> i32 {
        self.number
    }
}

/// What a descriptor is watched for. Errors and hang-ups are always reported.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Interest {
    /// Report when there is something to read, or the peer has ended its side.
    pub read: bool,
    /// Report when there is room to write.
    pub write: bool,
}

impl Interest {
    /// Reading only, the state of nearly every connection.
    pub const READ: Interest = Interest { read: true, write: false };
    /// Writing only: a connect under way, or a paused reader with a backlog.
    pub const WRITE: Interest = Interest { read: false, write: true };
    /// Nothing but errors and hang-ups, which are reported once per watch.
    pub const NONE: Interest = Interest { read: false, write: false };
}

/// One readiness report.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key given to [`Sys::watch`].
    pub key: u64,
    /// Something to read, end of stream, or an error that a read will tell.
    pub readable: bool,
    /// Room to write, or an error that a write will tell.
    pub writable: bool,
    /// The connection is broken or both sides have ended it; reported whatever it is watched for.
    pub failed: bool,
}

impl Event {
    /// The slot of the connection that it is about, if it is about one.
    pub(crate) fn slot(&self) -> u32 {
        self.key as u32
    }

    /// The generation of that connection.
    pub(crate) fn generation(&self) -> u32 {
        (self.key >> 32) as u32
    }
}

/// What a worker asks of its operating system. See the module's text for the contract.
pub trait Sys {
    /// Monotonic time in nanoseconds. A worker asks once per turn.
    fn now_ns(&self) -> u64;

    /// 64 random bits that a peer cannot foresee (RFC 6455 section 5.3).
    fn random(&mut self) -> u64;

    /// Waits until something is ready, is woken, or `timeout` has passed; `None` waits for ever.
    /// Appends at most `events_max` reports to `events`.
    fn wait(
        &mut self,
        events: &mut Vec<Event>,
        events_max: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()>;

    /// A descriptor that becomes readable when [`Sys::wait`] would report something, for embedding
    /// a worker in another event loop.
    fn poll_fd(&self) -> Option<i32>;

    /// Starts watching a descriptor.
    fn watch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()>;

    /// Changes what a watched descriptor is watched for.
    fn rewatch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()>;

    /// Stops watching without closing. Closing stops by itself.
    fn unwatch(&mut self, fd: Fd) -> io::Result<()>;

    /// The descriptor through which other threads wake this worker, if it has one.
    fn wake_fd(&self) -> Option<Fd>;

    /// Makes the wake-up descriptor quiet again after it was reported.
    fn clear_wake(&mut self);

    /// Takes one connection from a listener's queue; it is non-blocking.
    fn accept(&mut self, listener: Fd) -> io::Result<Fd>;

    /// The same with the peer's address, if it is one of IP. Known even of a peer that has reset
    /// the connection since, unlike [`Sys::peer`].
    fn accept_with_peer(&mut self, listener: Fd) -> io::Result<(Fd, Option<IpAddr>)>;

    /// Starts a non-blocking connect, from `source` if given (any port of it). The connect may
    /// still be under way when this returns.
    fn connect(&mut self, destination: SocketAddr, source: Option<IpAddr>) -> io::Result<Fd>;

    /// The same to a UNIX socket; with its queue full, `WouldBlock`.
    fn connect_unix(&mut self, _path: &Path) -> io::Result<Fd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets a connection fail whose peer is gone without a word, after this long. Without it the
    /// system's own patience holds.
    fn notice_dead_peer(&mut self, _fd: Fd, _timeout: Duration) {}

    /// The outcome of a connect once the descriptor is writable; later whether it has failed since this
    /// was last asked (`SO_ERROR`).
    fn connect_outcome(&mut self, fd: Fd) -> io::Result<()>;

    /// Reads what is there; `Ok(0)` is the end of the stream.
    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> io::Result<usize>;

    /// Writes what fits.
    fn send(&mut self, fd: Fd, bytes: &[u8]) -> io::Result<usize>;

    /// Writes what fits of several pieces.
    fn send_vectored(&mut self, fd: Fd, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends our side of the stream; the peer reads end of stream after what was sent.
    fn shutdown_write(&mut self, fd: Fd);

    /// Closes a descriptor of this worker.
    fn close(&mut self, fd: Fd);

    /// Makes a listener refuse further connections, for everybody who shares it. Whoever opened it
    /// closes it.
    fn stop_listening(&mut self, listener: Fd) {
        self.close(listener);
    }

    /// Makes the coming close send RST instead of FIN, leaving no `TIME_WAIT` behind.
    fn reset_on_close(&mut self, fd: Fd);

    /// The peer's address, for reports.
    fn peer(&self, fd: Fd) -> Option<SocketAddr>;

    /// The address of ours that a connection came to, if it is one of IP.
    fn local(&self, _fd: Fd) -> Option<SocketAddr> {
        None
    }

    /// Whether the peer has broken the connection off: its address is not known any more, though what
    /// it sent before may still be read.
    fn is_broken(&self, fd: Fd) -> bool;
}
