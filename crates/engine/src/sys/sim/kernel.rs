//! [`Kernel`]: the clock, the files and the tables of a simulated machine.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::faults::{Fault, Faults};
use super::stream::{Bound, File, FileId, Listener, Stream};
use super::table::Table;
use super::{Sim, WakeByFlag};
use crate::Wake;
use crate::sys::Fd;

/// A simulated machine. Clones are the same machine.
#[derive(Clone)]
pub struct Kernel {
    state: Rc<RefCell<State>>,
}

/// What one worker needs: a table with a wake-up descriptor and listeners.
pub struct Seat {
    /// The worker's view.
    pub sys: Sim,
    /// Wakes it.
    pub wake: Box<dyn Wake>,
    /// The numbers of the listeners, in the order given.
    pub listeners: Vec<i32>,
}

/// A connection that a worker closed.
#[derive(Copy, Clone, Debug)]
pub struct Ended {
    /// How long the worker had it open, in nanoseconds.
    pub held_ns: u64,
    /// The peer had ended its side, or the stream was reset or never connected.
    pub peer_ended: bool,
}

/// An event at a scheduled time.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A SYN arrives at the listener.
    Connect(FileId, u64),
    /// A connect is refused.
    Refuse(FileId, u64),
    /// A connection delayed by `TCP_DEFER_ACCEPT` becomes acceptable.
    Show,
}

pub(super) struct State {
    pub(super) now_ns: u64,
    pub(super) random: fastrand::Rng,
    pub(super) faults: Faults,
    pub(super) files: Vec<File>,
    free: Vec<FileId>,
    /// Paths of UNIX listeners. The files remain after the listeners are closed.
    pub(super) unix_paths: Vec<PathBuf>,
    pub(super) tables: Vec<Table>,
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    pub(super) serial: u64,
    pub(super) buffer_bytes: (usize, usize),
    /// Connections that were reset because their listener was closed before they were accepted.
    pub(super) lost: u64,
    pub(super) accepts_in_vain: u64,
    pub(super) reports: u64,
    trace: u64,
}

impl Kernel {
    /// A machine that draws all choices from `seed`. Each stream's buffer holds between
    /// `buffer_bytes.0` and `buffer_bytes.1` bytes.
    #[must_use]
    pub fn new(seed: u64, buffer_bytes: (usize, usize)) -> Self {
        let state = State {
            now_ns: 1_000_000_000,
            random: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
            files: Vec::new(),
            free: Vec::new(),
            unix_paths: Vec::new(),
            tables: Vec::new(),
            due: BinaryHeap::new(),
            serial: 0,
            buffer_bytes,
            lost: 0,
            accepts_in_vain: 0,
            reports: 0,
            trace: seed,
        };
        Kernel { state: Rc::new(RefCell::new(state)) }
    }

    /// From now on the fault is drawn `rate` times out of 10,000 where it can happen.
    pub fn set_rate(&self, fault: Fault, rate: u32) {
        self.state.borrow_mut().faults.set_rate(fault, rate);
    }

    /// From now on no fault is drawn.
    pub fn calm(&self) {
        self.state.borrow_mut().faults.calm();
    }

    /// Draws a fault that the driver causes itself.
    #[must_use]
    pub fn strike(&self, fault: Fault) -> bool {
        self.state.borrow_mut().draw(fault)
    }

    /// How often a fault happened.
    #[must_use]
    pub fn counted(&self, fault: Fault) -> u64 {
        self.state.borrow().faults.counted(fault)
    }

    /// How many faults were drawn, without the natural ones.
    #[must_use]
    pub fn drawn(&self) -> u64 {
        self.state.borrow().faults.drawn
    }

    /// Opens a listener that is in no table yet.
    #[must_use]
    pub fn listen(&self, address: SocketAddr, backlog: usize, defer_ns: u64) -> usize {
        self.add_listener(Bound::Tcp(address), backlog, defer_ns)
    }

    /// The same on a UNIX socket.
    #[must_use]
    pub fn listen_unix(&self, path: &Path, backlog: usize) -> usize {
        self.state.borrow_mut().unix_paths.push(path.to_owned());
        self.add_listener(Bound::Unix(path.to_owned()), backlog, 0)
    }

    fn add_listener(&self, address: Bound, backlog: usize, defer_ns: u64) -> usize {
        let listener = Listener {
            address,
            backlog,
            defer_ns,
            pending: Default::default(),
            references: 0,
            stopped: false,
        };
        self.state.borrow_mut().add(File::Listener(listener))
    }

    /// A new table that holds at most `limit` numbers, with a wake-up descriptor and `listeners`.
    #[must_use]
    pub fn seat(&self, limit: usize, listeners: &[usize]) -> Seat {
        let state = &mut *self.state.borrow_mut();
        let table = state.tables.len();
        state.tables.push(Table::new(limit));
        let flag = Arc::new(AtomicBool::new(false));
        let file = state.add(File::Wake(Arc::clone(&flag)));
        let wake = state.install(table, file);
        let mut numbers = Vec::new();
        for &file in listeners {
            if let Some(File::Listener(listener)) = state.files.get_mut(file) {
                listener.references += 1;
                numbers.push(state.install(table, file).number());
            }
        }
        let sys = Sim { state: Rc::clone(&self.state), table, wake };
        Seat { sys, wake: Box::new(WakeByFlag(flag)), listeners: numbers }
    }

    /// A table for scripted peers. Their own calls have no faults, so the script knows what was sent and
    /// received.
    #[must_use]
    pub fn outside(&self) -> Sim {
        self.outside_with(&[]).sys
    }

    /// The same for peers that listen.
    #[must_use]
    pub fn outside_with(&self, listeners: &[usize]) -> Seat {
        let seat = self.seat(usize::MAX, listeners);
        self.state.borrow_mut().tables[seat.sys.table].fault_free = true;
        seat
    }

    /// The time, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state.borrow().now_ns
    }

    /// Advances the clock and runs the events that become due.
    pub fn advance(&self, by_ns: u64) {
        self.state.borrow_mut().advance(by_ns);
    }

    /// The time of the kernel's next scheduled event.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.state.borrow().due.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }

    /// Whether a wait on the table would report something.
    #[must_use]
    pub fn is_ready(&self, table: usize) -> bool {
        self.state.borrow_mut().is_ready(table)
    }

    /// Numbers in use in a table.
    #[must_use]
    pub fn used(&self, table: usize) -> usize {
        self.state.borrow().tables[table].used
    }

    /// Number of a table's calls that moved bytes, or accepted or closed connections.
    #[must_use]
    pub fn progress(&self, table: usize) -> u64 {
        self.state.borrow().tables[table].progress
    }

    /// The connections that a table has closed since the last call, in order.
    #[must_use]
    pub fn take_ended(&self, table: usize) -> Vec<Ended> {
        std::mem::take(&mut self.state.borrow_mut().tables[table].ended)
    }

    /// Connections waiting in the queues of all listeners.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let state = self.state.borrow();
        let pending = state.files.iter().map(|file| match file {
            File::Listener(listener) => listener.pending.len(),
            _ => 0,
        });
        pending.sum()
    }

    /// Connections that were reset because their listener was closed before they were accepted.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.state.borrow().lost
    }

    /// Calls of accept so far that found an empty queue.
    #[must_use]
    pub fn accepts_in_vain(&self) -> u64 {
        self.state.borrow().accepts_in_vain
    }

    /// Readiness events returned so far.
    #[must_use]
    pub fn reports(&self) -> u64 {
        self.state.borrow().reports
    }

    /// A digest of all calls and their results, in order.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.state.borrow().trace
    }
}

impl State {
    /// Draws whether the fault happens in a call on the table.
    pub(super) fn strike(&mut self, table: usize, fault: Fault) -> bool {
        !self.tables[table].fault_free && self.draw(fault)
    }

    fn draw(&mut self, fault: Fault) -> bool {
        self.faults.strike(fault, &mut self.random)
    }

    /// Adds a call to the trace.
    pub(super) fn note(&mut self, call: u64, table: usize, fd: Fd, outcome: u64) {
        self.tables[table].quiet = false;
        let site = call << 56 | (table as u64) << 48 | (fd.number() as u64) << 16;
        for word in [site ^ self.now_ns, outcome] {
            self.trace = (self.trace.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    pub(super) fn add(&mut self, file: File) -> FileId {
        if let Some(id) = self.free.pop() {
            self.files[id] = file;
            return id;
        }
        self.files.push(file);
        self.files.len() - 1
    }

    pub(super) fn remove(&mut self, id: FileId) -> File {
        self.unlink(id);
        self.free.push(id);
        std::mem::replace(&mut self.files[id], File::Free)
    }

    /// Separates a stream from its other end. What stays linked to a removed file would reach whoever gets
    /// its index next.
    pub(super) fn unlink(&mut self, id: FileId) {
        let peer = self.files[id].stream_mut().and_then(|stream| stream.peer.take());
        if let Some(other) = peer.and_then(|peer| self.files[peer].stream_mut()) {
            other.peer = None;
        }
    }

    pub(super) fn at(&mut self, in_ns: u64, due: Due) {
        self.serial += 1;
        self.due.push(Reverse((self.now_ns + in_ns, self.serial, due)));
    }

    fn advance(&mut self, by_ns: u64) {
        self.now_ns += by_ns;
        while let Some(&Reverse((at_ns, _, due))) = self.due.peek() {
            if at_ns > self.now_ns {
                return;
            }
            self.due.pop();
            self.stir_all();
            match due {
                Due::Connect(id, serial) if self.is_connecting(id, serial) => self.arrive(id),
                Due::Refuse(id, serial) if self.is_connecting(id, serial) => {
                    if let Some(stream) = self.files[id].stream_mut() {
                        stream.fail(libc::ECONNREFUSED);
                    }
                }
                _ => {}
            }
        }
    }

    fn is_connecting(&self, id: FileId, serial: u64) -> bool {
        let stream = self.files.get(id).and_then(File::stream);
        stream.is_some_and(|stream| stream.serial == serial && stream.connecting)
    }

    pub(super) fn new_stream(
        &mut self,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
    ) -> FileId {
        self.serial += 1;
        let (least, most) = self.buffer_bytes;
        let room = self.random.usize(least..=most);
        let stream = Stream::new(self.serial, room, local, remote);
        self.add(File::Stream(Box::new(stream)))
    }
}
