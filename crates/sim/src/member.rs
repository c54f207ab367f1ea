//! [`Member`]: a simulated worker, which gets a turn whenever a real one would be awake, and the invariants
//! checked after each turn; [`Crew`]: the workers of one process.

use std::io;

use engine::sys::sim::{Kernel, Sim};
use engine::{Core, Handler, Limits, Remote, Totals, Turn, Worker, invariant};

/// Maximum number of turns a second in which a worker moves no data: its timers tick 50 times and others
/// wake it up to 2,000 times. A worker that spins takes 30,000 and more.
const IDLE_TURNS_MAX: u64 = 5000;
const SECOND_NS: u64 = super::SECOND_NS;

/// A worker and its state as seen from outside.
pub struct Member<H: Handler> {
    /// The worker itself.
    pub worker: Worker<Sim, H>,
    /// Whether it has ended.
    pub stopped: bool,
    /// Turns in which it moved no data.
    pub idle_turns: u64,
    /// Bytes in the longest of its queues, as of its last turn.
    pub queued_max: usize,
    table: usize,
    /// Descriptors in its table that are not connections.
    own: usize,
    /// When its next timer is due, as of its last turn.
    deadline_ns: Option<u64>,
    window_turns: u64,
    window_ns: u64,
    /// Broken invariants of the process before it began. Debug builds panic at one.
    broken_before: u64,
}

/// The workers of one process.
pub struct Crew {
    /// Number of workers.
    pub workers: usize,
    /// Connections a worker may hold.
    pub capacity: u32,
    /// Descriptors for connections in each worker's table.
    pub table: usize,
    /// Maximum number of bytes in each worker's mailbox.
    pub mailbox_bytes: usize,
    /// The limits of each worker.
    pub limits: Limits,
}

/// A crew's mailboxes and workers.
pub type Started<H> = (Remote<<H as Handler>::Post>, Vec<Member<H>>);

impl Crew {
    /// Creates the workers. They share the kernel's listeners of those numbers; at first each owns at most
    /// one.
    ///
    /// # Errors
    /// Those of [`Worker::new`]; the simulated kernel causes none.
    pub fn start<H: Handler>(
        &self,
        kernel: &Kernel,
        listeners: &[usize],
        mut handler: impl FnMut(u16) -> H,
    ) -> io::Result<Started<H>> {
        let own = 1 + listeners.len();
        let (mut places, mut wakes) = (Vec::new(), Vec::new());
        for _ in 0..self.workers {
            let seat = kernel.seat(self.table + own, listeners);
            wakes.push(seat.wake);
            places.push((seat.sys, seat.listeners));
        }
        let remote = Remote::new(wakes, self.mailbox_bytes);
        let mut members = Vec::new();
        for (index, (sys, numbers)) in (0..).zip(places) {
            let (table, limits, handler) = (sys.table(), self.limits.clone(), handler(index));
            let (mailbox, capacity) = (remote.clone(), self.capacity);
            let worker = Worker::new(sys, index, limits, mailbox, &numbers, capacity, handler)?;
            members.push(Member::new(worker, table, own));
        }
        for listener in 0..listeners.len() {
            remote.give_listener(listener % self.workers, listener);
        }
        Ok((remote, members))
    }
}

impl<H: Handler> Member<H> {
    fn new(worker: Worker<Sim, H>, table: usize, own: usize) -> Self {
        Member {
            worker,
            stopped: false,
            idle_turns: 0,
            queued_max: 0,
            table,
            own,
            deadline_ns: Some(0),
            window_turns: 0,
            window_ns: 0,
            broken_before: invariant::total(),
        }
    }

    /// Which of the kernel's tables is its own.
    #[must_use]
    pub fn table(&self) -> usize {
        self.table
    }

    /// Descriptors of its connections.
    #[must_use]
    pub fn used(&self, kernel: &Kernel) -> usize {
        kernel.used(self.table) - self.own
    }

    /// When it has something to do even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.deadline_ns.filter(|_| !self.stopped)
    }

    /// Gives the worker a turn if it would not sleep; whether it did.
    ///
    /// # Errors
    /// A condition that does not hold after the turn.
    pub fn step(&mut self, kernel: &Kernel) -> Result<bool, String> {
        let due = self.deadline().is_some_and(|at_ns| at_ns <= kernel.now_ns());
        if self.stopped || !due && !kernel.is_ready(self.table) {
            return Ok(false);
        }
        let before = (kernel.progress(self.table), kernel.drawn());
        let turn = self.worker.turn(None).map_err(|error| format!("a turn failed: {error}"))?;
        self.stopped = turn == Turn::Stopped;
        self.deadline_ns = self.worker.deadline();
        let idle = before == (kernel.progress(self.table), kernel.drawn());
        self.check(idle, kernel).map_err(|what| format!("table {}: {what}", self.table))?;
        Ok(true)
    }

    fn check(&mut self, idle: bool, kernel: &Kernel) -> Result<(), String> {
        require(invariant::total() == self.broken_before, broken_invariant)?;
        self.check_pace(idle, kernel.now_ns())?;
        self.check_books(kernel)
    }

    /// Checks that a worker without anything to do sleeps.
    fn check_pace(&mut self, idle: bool, now_ns: u64) -> Result<(), String> {
        if now_ns - self.window_ns > SECOND_NS {
            (self.window_ns, self.window_turns) = (now_ns, 0);
        }
        self.idle_turns += u64::from(idle);
        self.window_turns += u64::from(idle);
        require(self.window_turns <= IDLE_TURNS_MAX, || "the worker spins".into())
    }

    /// Checks that each slot, descriptor and queued byte has its connection.
    fn check_books(&mut self, kernel: &Kernel) -> Result<(), String> {
        let (_, core) = self.worker.parts();
        let totals = Totals::sum([core.counters()]);
        let there = totals.connections;
        let came = totals.accepted + totals.connects + totals.polled_opened;
        let went: u64 = totals.closed.iter().sum();
        require(came == went + there, || format!("{came} came, {went} went, {there} are there"))?;
        require(u64::from(core.connections()) == there, || {
            "the gauge of connections is off".into()
        })?;
        let used = kernel.used(self.table);
        require(used as u64 == self.own as u64 + there - totals.polled, || {
            format!("{used} numbers for {there} connections, {} polled", totals.polled)
        })?;
        let queues: Vec<usize> = (0..core.slots()).filter_map(|slot| backlog(core, slot)).collect();
        // Connections that ended after the reaping are listed no more, but counted until the next.
        let all_told = queues.len() as u64 == there;
        let queued = queues.iter().sum::<usize>() as u64;
        require(!all_told || queued == totals.queued_bytes, || {
            format!("{queued} bytes queued, gauge {}", totals.queued_bytes)
        })?;
        require(totals.polled_bytes <= totals.queued_bytes, || {
            "more bytes polled than queued".into()
        })?;
        self.queued_max = queues.into_iter().max().unwrap_or(0);
        Ok(())
    }
}

fn backlog<H: Handler>(core: &Core<Sim, H>, slot: u32) -> Option<usize> {
    core.info(core.id_at(slot)?).map(|info| info.queued_bytes)
}

fn broken_invariant() -> String {
    let first = invariant::take_unreported().into_iter().next();
    first.map_or_else(
        || "an invariant was broken".to_owned(),
        |broken| format!("invariant broken: {} ({})", broken.what, broken.location),
    )
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
