//! [`Sys`] simulated from a seed: a kernel in memory, for several workers in one thread.
//!
//! A [`Kernel`] has a virtual clock, one descriptor table per worker, listeners that tables share,
//! and TCP and UNIX streams with bounded buffers. It draws every choice from its
//! seed, so the same seed gives the same run to the last byte; compare [`Kernel::trace`]. A [`Fault`] happens
//! at its rate and is counted.
//!
//! It never blocks: the driver of the workers gives a turn only to a worker that has something to do, and
//! advances the clock when none has. It does not model the network's timing, congestion or memory. Sources: socket(7), tcp(7), epoll(7), accept(2), connect(2).

mod faults;
mod kernel;
mod sockets;
mod stream;
mod table;

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use self::faults::Fault;
pub use self::kernel::{Ended, Kernel, Seat};

use self::kernel::State;
use super::{Event, Fd, Interest, Sys};
use crate::Wake;

/// One worker's view of a [`Kernel`]. Clones share the table.
#[derive(Clone)]
pub struct Sim {
    state: Rc<RefCell<State>>,
    table: usize,
    wake: Fd,
}

/// Sets the flag that represents an eventfd's counter.
struct WakeByFlag(Arc<AtomicBool>);

impl Wake for WakeByFlag {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Sim {
    /// Which of the kernel's tables this is, from 0 in the order of [`Kernel::seat`].
    #[must_use]
    pub fn table(&self) -> usize {
        self.table
    }

    /// Whether the listener has accepted a connection that this side opened.
    #[must_use]
    pub fn was_accepted(&self, fd: Fd) -> bool {
        self.state.borrow().was_accepted(self.table, fd)
    }

    /// Bytes sent on this end that the other end's owner has read. Reads after a reset do not count.
    #[must_use]
    pub fn read_by_peer(&self, fd: Fd) -> u64 {
        self.state.borrow().read_by_peer(self.table, fd)
    }
}

impl Sys for Sim {
    fn now_ns(&self) -> u64 {
        self.state.borrow().now_ns
    }

    fn random(&mut self) -> u64 {
        self.state.borrow_mut().random.u64(..)
    }

    fn wait(
        &mut self,
        events: &mut Vec<Event>,
        events_max: usize,
        _timeout: Option<Duration>,
    ) -> io::Result<()> {
        self.state.borrow_mut().wait(self.table, events, events_max)
    }

    fn poll_fd(&self) -> Option<i32> {
        None
    }

    fn watch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        self.state.borrow_mut().watch(self.table, fd, interest, key, false)
    }

    fn rewatch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        self.state.borrow_mut().watch(self.table, fd, interest, key, true)
    }

    fn unwatch(&mut self, fd: Fd) -> io::Result<()> {
        self.state.borrow_mut().unwatch(self.table, fd)
    }

    fn wake_fd(&self) -> Option<Fd> {
        Some(self.wake)
    }

    fn clear_wake(&mut self) {
        self.state.borrow_mut().clear_wake(self.table, self.wake);
    }

    fn accept(&mut self, listener: Fd) -> io::Result<Fd> {
        self.state.borrow_mut().accept(self.table, listener)
    }

    fn accept_with_peer(&mut self, listener: Fd) -> io::Result<(Fd, Option<IpAddr>)> {
        let mut state = self.state.borrow_mut();
        let fd = state.accept(self.table, listener)?;
        Ok((fd, state.remote(self.table, fd).map(|remote| remote.ip())))
    }

    fn connect(&mut self, destination: SocketAddr, source: Option<IpAddr>) -> io::Result<Fd> {
        self.state.borrow_mut().connect(self.table, destination, source)
    }

    fn connect_unix(&mut self, path: &Path) -> io::Result<Fd> {
        self.state.borrow_mut().connect_unix(self.table, path)
    }

    fn connect_outcome(&mut self, fd: Fd) -> io::Result<()> {
        self.state.borrow_mut().connect_outcome(self.table, fd)
    }

    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> io::Result<usize> {
        self.state.borrow_mut().recv(self.table, fd, into)
    }

    fn send(&mut self, fd: Fd, bytes: &[u8]) -> io::Result<usize> {
        self.state.borrow_mut().send(self.table, fd, &[IoSlice::new(bytes)])
    }

    fn send_vectored(&mut self, fd: Fd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.state.borrow_mut().send(self.table, fd, pieces)
    }

    fn shutdown_write(&mut self, fd: Fd) {
        self.state.borrow_mut().shutdown_write(self.table, fd);
    }

    fn close(&mut self, fd: Fd) {
        self.state.borrow_mut().close(self.table, fd);
    }

    fn stop_listening(&mut self, listener: Fd) {
        self.state.borrow_mut().stop_listening(self.table, listener);
    }

    fn reset_on_close(&mut self, fd: Fd) {
        self.state.borrow_mut().reset_on_close(self.table, fd);
    }

    fn peer(&self, fd: Fd) -> Option<SocketAddr> {
        self.state.borrow().peer(self.table, fd)
    }

    fn local(&self, fd: Fd) -> Option<SocketAddr> {
        self.state.borrow().local(self.table, fd)
    }

    fn is_broken(&self, fd: Fd) -> bool {
        let state = self.state.borrow();
        state.peer(self.table, fd).is_none() && state.remote(self.table, fd).is_some()
    }

    fn peer_has_left(&self, fd: Fd) -> bool {
        self.state.borrow().peer_has_left(self.table, fd)
    }
}

#[cfg(test)]
mod tests;
