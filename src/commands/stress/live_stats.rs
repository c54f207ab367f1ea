//! [`LiveStats`]: counters of a running test, for the table. Each worker writes its own
//! [`WorkerStats`]; the main thread adds them up once a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of codes: HTTP statuses and two codes of go-stress-testing.
const CODES: usize = 1_000;
/// Code for a request without an answer.
pub(super) const NO_ANSWER: u16 = 509;
/// Code for an answer that cannot be parsed.
pub(super) const UNREADABLE: u16 = 510;

/// The counters of one worker.
#[derive(Debug)]
pub(super) struct WorkerStats {
    ok: AtomicU64,
    failed: AtomicU64,
    untimed: AtomicU64,
    users: AtomicU64,
    bytes: AtomicU64,
    sum_ns: AtomicU64,
    ok_sum_ns: AtomicU64,
    longest_ns: AtomicU64,
    shortest_ns: AtomicU64,
    codes: Box<[AtomicU64]>,
}

impl WorkerStats {
    fn new() -> WorkerStats {
        let zero = || AtomicU64::new(0);
        WorkerStats {
            ok: zero(),
            failed: zero(),
            untimed: zero(),
            users: zero(),
            bytes: zero(),
            sum_ns: zero(),
            ok_sum_ns: zero(),
            longest_ns: zero(),
            shortest_ns: AtomicU64::new(u64::MAX),
            codes: (0..CODES).map(|_| zero()).collect(),
        }
    }

    /// Counts an answer, or a request that failed without one.
    pub(super) fn answer(&self, is_ok: bool, code: u16, bytes: u64, took_ns: u64) {
        let add = |counter: &AtomicU64, more| counter.fetch_add(more, Ordering::Relaxed);
        add(if is_ok { &self.ok } else { &self.failed }, 1);
        add(&self.bytes, bytes);
        add(&self.sum_ns, took_ns);
        if is_ok {
            add(&self.ok_sum_ns, took_ns);
        }
        self.longest_ns.fetch_max(took_ns, Ordering::Relaxed);
        self.shortest_ns.fetch_min(took_ns, Ordering::Relaxed);
        if let Some(counter) = self.codes.get(usize::from(code)) {
            add(counter, 1);
        }
    }

    /// Counts requests that got no answer or were not sent for lack of a connection. They have no
    /// latency.
    pub(super) fn unanswered(&self, count: u64) {
        self.failed.fetch_add(count, Ordering::Relaxed);
        self.untimed.fetch_add(count, Ordering::Relaxed);
        if let Some(counter) = self.codes.get(usize::from(NO_ANSWER)) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts a user that received its first answer.
    pub(super) fn user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }
}

/// The counters of all workers.
#[derive(Clone, Default, Debug)]
pub(super) struct LiveStats(Arc<Mutex<Vec<Arc<WorkerStats>>>>);

impl LiveStats {
    /// Adds counters for one more worker.
    pub(super) fn add(&self) -> Arc<WorkerStats> {
        let worker = Arc::new(WorkerStats::new());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&worker));
        worker
    }

    /// Adds up the counters of all workers.
    pub(super) fn sum(&self) -> Sum {
        let mut sum = Sum { shortest_ns: u64::MAX, ..Sum::default() };
        for worker in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            sum.ok += get(&worker.ok);
            sum.failed += get(&worker.failed);
            sum.untimed += get(&worker.untimed);
            sum.users += get(&worker.users);
            sum.bytes += get(&worker.bytes);
            sum.sum_ns += get(&worker.sum_ns);
            sum.ok_sum_ns += get(&worker.ok_sum_ns);
            sum.longest_ns = sum.longest_ns.max(get(&worker.longest_ns));
            sum.shortest_ns = sum.shortest_ns.min(get(&worker.shortest_ns));
            for (code, counter) in (0_u16..).zip(&worker.codes) {
                let count = get(counter);
                if count > 0 {
                    *sum.codes.entry(code).or_default() += count;
                }
            }
        }
        sum
    }
}

/// The totals of all workers at one moment.
#[derive(Clone, Default, Debug)]
pub(super) struct Sum {
    pub(super) ok: u64,
    pub(super) failed: u64,
    untimed: u64,
    /// Users that received an answer.
    pub(super) users: u64,
    pub(super) bytes: u64,
    sum_ns: u64,
    ok_sum_ns: u64,
    pub(super) longest_ns: u64,
    shortest_ns: u64,
    pub(super) codes: BTreeMap<u16, u64>,
}

impl Sum {
    pub(super) fn all(&self) -> u64 {
        self.ok + self.failed
    }

    /// Returns the number of answers, successful or not.
    pub(super) fn answers(&self) -> u64 {
        self.all() - self.codes.get(&NO_ANSWER).copied().unwrap_or_default()
    }

    /// Returns the number of requests with a latency.
    fn timed(&self) -> u64 {
        self.all() - self.untimed
    }

    pub(super) fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.timed()).unwrap_or_default()
    }

    pub(super) fn shortest_ns(&self) -> u64 {
        if self.timed() == 0 { 0 } else { self.shortest_ns }
    }

    /// Returns go-stress-testing's estimate of the rate: users ÷ mean latency of successful requests.
    pub(super) fn estimated(&self, users: u64) -> f64 {
        match self.ok_sum_ns {
            0 => 0.0,
            sum => self.ok as f64 * users as f64 * 1e9 / sum as f64,
        }
    }
}
