//! [`Workers`]: the threads of a process, started in the order that private descriptor tables
//! require. One worker per core accepts at first; others begin only when tables fill.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::parked::LISTENERS_MAX;
use crate::sys::linux::Linux;
use crate::sys::process;
use crate::{Handler, Limits, Remote, SLOTS_MAX, Sys, Turn, WORKERS_MAX, Wake, Worker};

/// Which descriptor table a worker uses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Tables {
    /// Each worker its own: `RLIMIT_NOFILE` counts per worker.
    Private,
    /// All share the table of the process: the system refused private ones, or they were not
    /// wanted.
    Shared,
}

/// How many workers there are and how many connections each holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Threads, at most [`WORKERS_MAX`].
    pub workers: usize,
    /// Workers that accept at first; the others begin when these are at capacity.
    pub accepting: usize,
    /// Connections per worker.
    pub capacity: u32,
    /// Which descriptor table they use.
    pub tables: Tables,
}

impl Plan {
    /// Descriptors of a table that are not for connections, besides one wake-up per worker:
    /// standard streams, epoll, inherited ones and `listeners`, for which there is always room for
    /// [`Plan::LISTENERS_RESERVED`].
    #[must_use]
    pub const fn reserved_descriptors(listeners: usize) -> u64 {
        let reserved = Self::LISTENERS_RESERVED;
        (if listeners > reserved { listeners } else { reserved }) as u64 + 16
    }

    /// Listeners that every table has room for.
    pub const LISTENERS_RESERVED: usize = 64;

    /// A plan for `connections` sockets on `cores` cores where a table holds `nofile` descriptors,
    /// among them all `listeners`. With private tables there are as many workers as their tables
    /// need, at least one per core; with a shared one as many as cores, sharing the table. If not
    /// all fit, the plan holds as many as possible: compare [`Plan::connections`].
    #[must_use]
    pub fn new(
        connections: u64,
        cores: usize,
        nofile: u64,
        listeners: usize,
        tables: Tables,
    ) -> Plan {
        let cores = cores.clamp(1, WORKERS_MAX) as u64;
        // Every table holds the wake-ups of all workers, so more workers leave less room in each.
        let reserved = Self::reserved_descriptors(listeners);
        let room =
            |workers: u64| nofile.saturating_sub(reserved + workers).min(u64::from(SLOTS_MAX));
        let (workers, capacity) = match tables {
            Tables::Shared => (cores, room(cores) / cores),
            Tables::Private => {
                let most = WORKERS_MAX as u64;
                let enough = (cores..=most).find(|&n| n * room(n) >= connections);
                let workers =
                    enough.or_else(|| (cores..=most).max_by_key(|&n| n * room(n))).unwrap_or(cores);
                (workers, room(workers))
            }
        };
        let (workers, accepting) = (workers as usize, cores as usize);
        Plan { workers, accepting, capacity: capacity.max(1) as u32, tables }
    }

    /// Most connections of all workers together.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.workers as u64 * u64::from(self.capacity)
    }
}

/// The running workers of a process.
pub struct Workers<P> {
    remote: Remote<P>,
    listeners: Vec<i32>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// A wake-up descriptor, open as long as any thread may write to it.
pub(crate) struct WakeByDescriptor(pub(crate) i32);

impl Drop for WakeByDescriptor {
    fn drop(&mut self) {
        process::close(self.0);
    }
}

impl Wake for WakeByDescriptor {
    fn wake(&self) {
        process::wake(self.0);
    }
}

impl<P: Send + 'static> Workers<P> {
    /// Starts the workers. `listeners` are descriptors of this process ([`process::listen`]),
    /// distributed over the workers that accept at first. `handler` is called in each worker's
    /// thread, and only when that worker is first needed. When this returns, these workers accept,
    /// and all workers have their own tables, if planned.
    ///
    /// Call it before anything else opens descriptors: those below the highest wake-up descriptor
    /// or listener stay open in the workers' tables.
    ///
    /// # Errors
    /// No descriptors for the wake-ups (`EMFILE`), no threads (`EAGAIN`), or an error that kept an
    /// accepting worker from starting.
    pub fn start<H, F>(
        plan: Plan,
        limits: &Limits,
        listeners: &[i32],
        handler: F,
    ) -> io::Result<Self>
    where
        H: Handler<Post = P> + 'static,
        F: Fn(u16, &Remote<P>) -> H + Send + Sync + 'static,
    {
        Self::start_over(plan, limits, listeners, |_, kernel| kernel, handler)
    }

    /// As [`Workers::start`], with what `sys` makes of each worker's interface to the kernel.
    ///
    /// # Errors
    /// As [`Workers::start`].
    pub fn start_over<S, K, H, F>(
        plan: Plan,
        limits: &Limits,
        listeners: &[i32],
        sys: K,
        handler: F,
    ) -> io::Result<Self>
    where
        S: Sys + 'static,
        K: Fn(u16, Linux) -> S + Send + Sync + 'static,
        H: Handler<Post = P> + 'static,
        F: Fn(u16, &Remote<P>) -> H + Send + Sync + 'static,
    {
        Self::start_all(plan, limits, listeners, None, sys, handler)
    }

    /// As [`Workers::start`], in a process that has opened other descriptors and handles signals: private tables have
    /// none of the former but `keep`, which handlers use, and the threads get none of the latter.
    ///
    /// # Errors
    /// As [`Workers::start`].
    pub fn start_within<H, F>(
        plan: Plan,
        limits: &Limits,
        listeners: &[i32],
        keep: &[i32],
        handler: F,
    ) -> io::Result<Self>
    where
        H: Handler<Post = P> + 'static,
        F: Fn(u16, &Remote<P>) -> H + Send + Sync + 'static,
    {
        Self::start_all(plan, limits, listeners, Some(keep), |_, kernel| kernel, handler)
    }

    fn start_all<S, K, H, F>(
        plan: Plan,
        limits: &Limits,
        listeners: &[i32],
        keep: Option<&[i32]>,
        sys: K,
        handler: F,
    ) -> io::Result<Self>
    where
        S: Sys + 'static,
        K: Fn(u16, Linux) -> S + Send + Sync + 'static,
        H: Handler<Post = P> + 'static,
        F: Fn(u16, &Remote<P>) -> H + Send + Sync + 'static,
    {
        assert!(listeners.len() <= LISTENERS_MAX && plan.workers <= WORKERS_MAX);
        let wakes: Vec<i32> =
            (0..plan.workers).map(|_| process::wake_descriptor()).collect::<io::Result<_>>()?;
        let wakers = wakes.iter().map(|&fd| Box::new(WakeByDescriptor(fd)) as Box<dyn Wake>);
        let remote = Remote::new(wakers.collect(), limits.mailbox_bytes);
        for mailbox in &remote.shared.mailboxes {
            mailbox.capacity.store(plan.capacity, Ordering::Relaxed);
        }
        let used = || wakes.iter().chain(listeners).chain(keep.unwrap_or_default()).copied();
        let keep_below = used().max().map_or(3, |highest| highest + 1);
        let only: Option<Arc<[i32]>> = keep.map(|_| used().collect());
        let (handler, sys) = (Arc::new(handler), Arc::new(sys));
        let mut threads = Vec::new();
        let (begun, beginnings) = mpsc::channel();
        let (in_shared, shared_by) = mpsc::channel::<()>();
        for (index, &wake) in wakes.iter().enumerate() {
            let (remote, limits) = (remote.clone(), limits.clone());
            let (handler, sys) = (Arc::clone(&handler), Arc::clone(&sys));
            let (listeners, begun) = (listeners.to_vec(), begun.clone());
            let (in_shared, only) = (in_shared.clone(), only.clone());
            let begin = move || {
                if only.is_some() {
                    process::block_all_signals();
                }
                if plan.tables == Tables::Private {
                    process::leave_shared_table(keep_below)?;
                    if let Some(only) = &only {
                        process::close_others(only);
                    }
                }
                drop(in_shared);
                process::wait_for_wake(wake);
                let handler = handler(index as u16, &remote);
                let sys = sys(index as u16, Linux::new(Some(wake))?);
                let (index, capacity) = (index as u16, plan.capacity);
                Worker::new(sys, index, limits, remote, &listeners, capacity, handler)
            };
            let run = move || {
                let worker = begin();
                // Nobody receives the result of workers that start later.
                let _ = begun.send(worker.is_ok());
                let mut worker = worker?;
                while worker.turn(None)? == Turn::Running {}
                Ok(())
            };
            let builder = Builder::new().name(format!("worker-{index}")).stack_size(512 * 1024);
            let thread = builder.spawn(run).map_err(|error| no_thread(&error, index, &plan))?;
            threads.push(thread);
        }
        // Wait until all have left the shared table: a descriptor that the caller opens earlier
        // would stay open in a worker's table.
        drop(in_shared);
        let _ = shared_by.recv();
        let accepting = plan.accepting.clamp(1, plan.workers);
        for index in 0..listeners.len() {
            remote.give_listener(index % accepting, index);
        }
        let workers = Workers { remote, listeners: listeners.to_vec(), threads };
        if beginnings.iter().take(accepting.min(listeners.len())).all(|begun| begun) {
            return Ok(workers);
        }
        let why = workers.drain(Duration::ZERO).err();
        Err(why.unwrap_or_else(|| io::Error::other("a worker ended while starting")))
    }

    /// The handle to the workers.
    #[must_use]
    pub fn remote(&self) -> &Remote<P> {
        &self.remote
    }

    /// Whether a worker has ended: after a drain, or because of an error.
    #[must_use]
    pub fn any_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops accepting, closes every WebSocket with 1001 spread over `over`, and waits for the
    /// workers to end.
    ///
    /// # Errors
    /// The error that made a worker fail, now or before; the panic of a worker is an error, too.
    pub fn drain(self, over: Duration) -> io::Result<()> {
        self.remote.drain(over);
        // No worker accepts from a parked listener, so it is stopped here.
        for (index, &listener) in self.listeners.iter().enumerate() {
            if self.remote.shared.parked.take(index) {
                process::stop_listening(listener);
            }
        }
        self.join()
    }

    /// Waits for the workers to end.
    ///
    /// # Errors
    /// The error that made a worker fail.
    pub fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            result = result.and(ended);
        }
        for listener in self.listeners {
            process::close(listener);
        }
        result
    }
}

/// `EAGAIN` alone does not say that the limit of threads was reached.
fn no_thread(error: &io::Error, index: usize, plan: &Plan) -> io::Error {
    let text = format!(
        "no thread for worker {} of {}: {error}; `ulimit -u`, the control group's pids.max, \
         kernel.threads-max or `ulimit -v` is in the way",
        index + 1,
        plan.workers
    );
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_fits_into_many_small_tables() {
        let plan = Plan::new(1_000_000, 2, 20_000, 0, Tables::Private);
        assert!(plan.connections() >= 1_000_000, "{plan:?}");
        assert!(plan.workers <= 54, "{plan:?}");
        let plan = Plan::new(100, 2, 20_000, 0, Tables::Private);
        assert_eq!(plan.workers, 2, "one per core when the tables suffice");
        let plan = Plan::new(1_000_000, 4, 1_048_576, 0, Tables::Private);
        assert_eq!(plan.workers, 4);
        let plan = Plan::new(1_000_000, 2, 1_024, 0, Tables::Private);
        assert!(plan.connections() > 200_000, "as many as can be: {plan:?}");
        let plan = Plan::new(1_000_000, 2, 20_000, 0, Tables::Shared);
        assert!(plan.connections() < 20_000, "{plan:?}");
    }

    #[test]
    fn more_listeners_leave_fewer_descriptors_for_connections() {
        let plan = |listeners| Plan::new(1, 128, 20_000, listeners, Tables::Private);
        assert_eq!(plan(Plan::LISTENERS_RESERVED), plan(0));
        assert_eq!(plan(0).capacity - plan(256).capacity, 192);
        assert_eq!(plan(256).workers, 128);
    }
}
