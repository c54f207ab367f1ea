//! The interface between a worker and its operating system.
//!
//! [`Sys`] is all that a worker uses of the outside: readiness, sockets, the clock and randomness.
//! [`linux::Linux`] calls the kernel; `sim::Sim` simulates one from a seed. Nothing above this module
//! makes a system call, reads a clock or draws a random number, and nothing outside it contains `unsafe`.
//!
//! The contract of an implementation, which the tests in `contract` check:
//! - readiness is level-triggered: an event is reported again until its cause is gone. The exception
//!   is a descriptor watched for [`Interest::NONE`]: its error or hang-up is reported once, and again
//!   only after [`Sys::rewatch`];
//! - every call is non-blocking except [`Sys::wait`], and none is retried inside: `EINTR` and
//!   `EAGAIN` come back as errors;
//! - timeouts are rounded up, so that a wait never returns early and spins;
//! - later events never contain a descriptor that was closed.

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(any(test, feature = "simulation"))]
pub mod sim;
#[cfg(target_os = "linux")]
pub mod spread;
mod thread_waits;

#[cfg(all(test, target_os = "linux"))]
mod contract;

use std::io;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

pub use thread_waits::ThreadWaits;

use crate::ServerFault;

/// A descriptor of one worker's table, in 4 bytes. It is not `Send`: the same number is another file in
/// another worker's table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fd {
    number: i32,
    in_this_thread: PhantomData<*const ()>,
}

impl Fd {
    /// No descriptor; passed to no call.
    pub(crate) const NONE: Fd = Fd { number: -1, in_this_thread: PhantomData };

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
    /// Report when there are bytes to read, or the peer has ended its side.
    pub read: bool,
    /// Report when there is room to write.
    pub write: bool,
}

impl Interest {
    /// Reading only, the state of nearly every connection.
    pub const READ: Interest = Interest { read: true, write: false };
    /// Writing only: a connect in progress, or a paused reader with a backlog.
    pub const WRITE: Interest = Interest { read: false, write: true };
    /// Nothing but errors and hang-ups, which are reported once per watch.
    pub const NONE: Interest = Interest { read: false, write: false };
}

/// One readiness report.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key given to [`Sys::watch`].
    pub key: u64,
    /// Bytes to read, the end of the stream, or an error that a read returns.
    pub readable: bool,
    /// Room to write, or an error that a write returns.
    pub writable: bool,
    /// The connection has failed or both sides have ended it. Reported for every [`Interest`].
    pub failed: bool,
}

impl Event {
    /// The slot of the connection, if the key is one of a connection.
    pub(crate) fn slot(&self) -> u32 {
        self.key as u32
    }

    /// The generation of that connection.
    pub(crate) fn generation(&self) -> u32 {
        (self.key >> 32) as u32
    }
}

/// What a worker uses of its operating system. The contract is in the module's text.
pub trait Sys {
    /// Monotonic time in nanoseconds. A worker reads it once per turn.
    fn now_ns(&self) -> u64;

    /// How long this worker's thread has waited for a core, if the system tells. It costs a system call.
    fn thread_waits(&mut self) -> Option<ThreadWaits> {
        None
    }

    /// Lets the thread sleep for `ns` nanoseconds, as exactly as the system can; see
    /// [`Core::coalesce_wakes`](crate::Core::coalesce_wakes).
    fn pause(&mut self, _ns: u32) {}

    /// 64 random bits that a peer cannot predict (RFC 6455 section 5.3).
    fn random(&mut self) -> u64;

    /// Waits until a descriptor is ready, the worker is woken, or `timeout` has passed; `None` waits without
    /// a limit. Appends at most `events_max` events to `events`.
    fn wait(
        &mut self,
        events: &mut Vec<Event>,
        events_max: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()>;

    /// A descriptor that is readable when [`Sys::wait`] would return events, for running a worker in
    /// another event loop.
    fn poll_fd(&self) -> Option<i32>;

    /// Starts watching a descriptor.
    fn watch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()>;

    /// Starts watching a listener for connections; not to be followed by [`Sys::rewatch`]. Of the workers
    /// that watch the same socket, a connection is reported to at least one that waits: to the one
    /// that has watched longest, where the system can tell.
    fn watch_listener(&mut self, listener: Fd, key: u64) -> io::Result<()> {
        self.watch(listener, Interest::READ, key)
    }

    /// Whether other workers may watch the same listener, by descriptors of their own.
    fn is_shared(&self, _listener: Fd) -> bool {
        false
    }

    /// Changes what a watched descriptor is watched for.
    fn rewatch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()>;

    /// Stops watching a descriptor that stays open. Closing one stops watching it.
    fn unwatch(&mut self, fd: Fd) -> io::Result<()>;

    /// The descriptor through which other threads wake this worker, if it has one.
    fn wake_fd(&self) -> Option<Fd>;

    /// Resets the wake-up descriptor after it was reported.
    fn clear_wake(&mut self);

    /// Accepts one connection from a listener's queue; its socket is non-blocking.
    fn accept(&mut self, listener: Fd) -> io::Result<Fd>;

    /// The same with the peer's IP address, if it has one. It is known even if the peer has reset the
    /// connection since, unlike that of [`Sys::peer`].
    fn accept_with_peer(&mut self, listener: Fd) -> io::Result<(Fd, Option<IpAddr>)>;

    /// Starts a non-blocking connect, from any port of `source` if given. The connect may still be in
    /// progress when this returns.
    fn connect(&mut self, destination: SocketAddr, source: Option<IpAddr>) -> io::Result<Fd>;

    /// The same to a UNIX socket; with its queue full, `WouldBlock`.
    fn connect_unix(&mut self, _path: &Path) -> io::Result<Fd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets a connection fail after this long without an answer from its peer. The default is the
    /// system's own timeout.
    fn notice_dead_peer(&mut self, _fd: Fd, _timeout: Duration) {}

    /// The result of a connect once the descriptor is writable. Later: the error of the connection since
    /// the last call (`SO_ERROR`).
    fn connect_outcome(&mut self, fd: Fd) -> io::Result<()>;

    /// Reads what has arrived; `Ok(0)` is the end of the stream.
    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> io::Result<usize>;

    /// Writes what fits.
    fn send(&mut self, fd: Fd, bytes: &[u8]) -> io::Result<usize>;

    /// Writes what fits of several pieces.
    fn send_vectored(&mut self, fd: Fd, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends our side of the stream; the peer reads end of stream after what was sent.
    fn shutdown_write(&mut self, fd: Fd);

    /// Closes a descriptor of this worker.
    fn close(&mut self, fd: Fd);

    /// Makes a listener refuse further connections in all tables that share it. Its opener closes it.
    fn stop_listening(&mut self, listener: Fd) {
        self.close(listener);
    }

    /// Makes the next close send RST instead of FIN, which leaves no `TIME_WAIT`.
    fn reset_on_close(&mut self, fd: Fd);

    /// What the server of an outgoing connection did wrong, if errors and the end of the stream do not say
    /// all of it. Asked until the descriptor is closed.
    fn fault(&self, _fd: Fd) -> Option<ServerFault> {
        None
    }

    /// The peer's address; `None` if the connection is over or not one of IP.
    fn peer(&self, fd: Fd) -> Option<SocketAddr>;

    /// The local address of a connection, if it is one of IP.
    fn local(&self, _fd: Fd) -> Option<SocketAddr> {
        None
    }

    /// Whether a TCP connection has ended, so that the peer's address is unknown. Bytes that the peer sent
    /// before may still be read.
    fn is_broken(&self, fd: Fd) -> bool;

    /// Whether the peer has ended its side, or the connection has ended. Bytes that the peer sent before may
    /// still be read.
    fn peer_has_left(&self, fd: Fd) -> bool;
}
