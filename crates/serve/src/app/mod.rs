//! Calls of the application, by AnyCable's contract: it decides who connects and subscribes, and
//! performs actions. Workers submit calls and go on; the answer is a post to the worker.
//!
//! A worker must not wake a task of the runtime, because the runtime's descriptor is not in the
//! worker's table. So calls go through [`Calls`], a [`queue::Queue`] under a lock, to a thread that
//! starts them on the runtime; a call that ends starts the next one itself.

pub(crate) mod call;
pub(crate) mod client;
mod concurrency;
mod config;
mod connect;
pub(crate) mod decision;
mod grpc;
mod http;
mod proto;
mod queue;
pub(crate) mod reply;
mod runner;
pub(crate) mod session;
mod stats;
pub(crate) mod stored;
mod target;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use engine::ConnId;

use self::call::Call;
use self::concurrency::Concurrency;
pub use self::config::{AppConfig, AuthUrl, DisconnectMode};
use self::decision::{Credentials, Decision, Decisions};
pub(crate) use self::queue::{Full, Room};
use self::queue::{Queue, QueueLimits};
use self::reply::Reply;
pub(crate) use self::runner::start;
pub(crate) use self::stats::{Stats, Times};
pub use self::target::{PostUrl, PostUrlError, Target, TargetError};

/// Why a call has no answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It waited in the queue for too long.
    Late,
    /// The application did not answer in time.
    Timeout,
    /// The connection to the application was lost meanwhile.
    Lost,
    /// The answer is none of the contract.
    Invalid,
}

impl Failure {
    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Failure::Late => "late",
            Failure::Timeout => "timeout",
            Failure::Lost => "lost",
            Failure::Invalid => "invalid",
        }
    }
}

/// The end of a call, as it is posted to the worker of its connection.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) id: ConnId,
    pub(crate) call: Call,
    pub(crate) outcome: Result<Reply, Failure>,
}

/// The calls of all workers.
pub(crate) struct Calls {
    pub(crate) config: AppConfig,
    inner: Mutex<Inner>,
    /// Notified when a call can begin.
    changed: Condvar,
    /// Answers of `--auth-url` that may be used again.
    decisions: Mutex<Decisions>,
    decisions_used: AtomicU64,
}

struct Inner {
    queue: Queue<Call>,
    stats: Stats,
    /// When the starting thread looks again by itself; `None` while it runs.
    looks_ns: Option<u64>,
}

impl Calls {
    pub(crate) fn new(config: &AppConfig) -> Arc<Self> {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let limits = QueueLimits {
            calls: config.queue,
            bytes: config.queue_bytes,
            wait_ns: ns(config.queue_wait),
            patience_ns: ns(config.patience).min(ns(config.queue_wait)),
            disconnects: config.disconnect_backlog,
            disconnect_rate: config.disconnect_rate,
        };
        let queue = Queue::new(limits, Concurrency::new(config.concurrency));
        let inner = Inner { queue, stats: Stats::default(), looks_ns: None };
        let decisions_bytes = config.auth.as_ref().map_or(0, |auth| auth.decisions_bytes);
        Arc::new(Calls {
            config: config.clone(),
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            decisions: Mutex::new(Decisions::new(decisions_bytes)),
            decisions_used: AtomicU64::new(0),
        })
    }

    fn decisions(&self) -> MutexGuard<'_, Decisions> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decision about a client and a topic, if an earlier one still holds.
    pub(crate) fn decided(
        &self,
        now_ns: u64,
        credentials: Credentials,
        topic: &str,
    ) -> Option<Arc<Decision>> {
        let found = self.decisions().find(now_ns, credentials, topic);
        self.decisions_used.fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        found
    }

    /// Keeps a decision for as long as it says.
    pub(crate) fn keep_decision(
        &self,
        now_ns: u64,
        credentials: Credentials,
        topic: &str,
        decision: &Arc<Decision>,
    ) {
        if decision.ttl_s > 0 {
            self.decisions().keep(now_ns, credentials, topic, decision);
        }
    }

    /// Drops decisions that do not hold any more.
    pub(crate) fn expire_decisions(&self, now_ns: u64) {
        if self.config.auth.is_some() {
            self.decisions().expire(now_ns);
        }
    }

    /// How often a decision was used again, and the memory of those that may be, in bytes.
    pub(crate) fn decision_figures(&self) -> (u64, usize) {
        (self.decisions_used.load(Ordering::Relaxed), self.decisions().bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call of a connection that has none. Its end is posted to its worker.
    ///
    /// # Errors
    /// The queue is full.
    pub(crate) fn submit(&self, now_ns: u64, id: ConnId, call: Call) -> Result<(), Full> {
        let (method, bytes) = (call.method(), call.bytes());
        let mut inner = self.lock();
        let pushed = inner.queue.push(now_ns, id, method, call, bytes);
        if pushed.is_err() {
            inner.stats.full += 1;
        }
        self.notify(&inner, now_ns);
        pushed
    }

    /// Queues the disconnect of a connection that has ended.
    pub(crate) fn submit_disconnect(&self, now_ns: u64, id: ConnId, call: Call) {
        let bytes = call.bytes();
        let mut inner = self.lock();
        let dropped = inner.queue.push_disconnect(now_ns, id, call, bytes);
        inner.stats.disconnects_dropped += dropped.len() as u64;
        self.notify(&inner, now_ns);
    }

    /// What can be added to the disconnects before the oldest is dropped.
    pub(crate) fn disconnect_room(&self) -> Room {
        self.lock().queue.disconnect_room()
    }

    /// A connection has ended. Returns `false` if its call is not waiting: its end follows.
    pub(crate) fn cancel(&self, id: ConnId) -> bool {
        let mut inner = self.lock();
        let cancelled = inner.queue.cancel(id);
        inner.stats.gone += u64::from(cancelled);
        cancelled
    }

    /// Whether a connect would be accepted.
    pub(crate) fn has_room(&self) -> bool {
        self.lock().queue.has_room(1024)
    }

    /// Lets disconnects go without a rate: the server ends.
    pub(crate) fn drain(&self) {
        let mut inner = self.lock();
        inner.queue.drain();
        self.changed.notify_one();
    }

    /// Whether much of the memory that calls held is free again, since the last time that it was.
    pub(crate) fn has_emptied(&self) -> bool {
        self.lock().queue.has_emptied()
    }

    /// Whether no call waits or runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().queue.is_idle()
    }

    /// The figures, and those of the queue.
    pub(crate) fn figures(&self, now_ns: u64) -> (Stats, QueueFigures) {
        let inner = self.lock();
        let queue = &inner.queue;
        let figures = QueueFigures {
            waiting: queue.len(),
            bytes: queue.bytes(),
            oldest_ns: queue.oldest_ns(now_ns),
            running: queue.running(),
            limit: queue.limit(),
        };
        (inner.stats.clone(), figures)
    }

    /// Wakes the starting thread, if there is something to start, or something is due before it looks by
    /// itself.
    fn notify(&self, inner: &Inner, now_ns: u64) {
        let sooner = |looks_ns: u64| inner.queue.due_ns().is_some_and(|due_ns| due_ns < looks_ns);
        if inner.looks_ns.is_some_and(|at| inner.queue.is_ready(now_ns) || sooner(at)) {
            self.changed.notify_one();
        }
    }
}

/// Figures of the queue at one time.
#[derive(Copy, Clone, Debug)]
pub(crate) struct QueueFigures {
    pub(crate) waiting: usize,
    pub(crate) bytes: usize,
    pub(crate) oldest_ns: u64,
    pub(crate) running: usize,
    pub(crate) limit: usize,
}
