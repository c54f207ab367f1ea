//! [`LiveStats`]: the figures of a running test. A worker locks only its own part; the main thread adds
//! them up once a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use load::{Recorder, Series};

/// Code for a request without an answer.
pub(super) const NO_ANSWER: u16 = 509;
/// Code for an answer that cannot be parsed.
pub(super) const UNREADABLE: u16 = 510;

/// Counts of requests, and sums over their times as go-stress-testing takes them: to the head of an
/// answer, or to the failure.
#[derive(Clone, Default, Debug)]
pub(super) struct Tally {
    pub(super) ok: u64,
    pub(super) failed: u64,
    /// Users with a result.
    pub(super) users: u64,
    pub(super) bytes: u64,
    /// Requests with a time, failed ones included.
    timed: u64,
    sum_ns: u64,
    longest_ns: u64,
    shortest_ns: Option<u64>,
    pub(super) codes: BTreeMap<u16, u64>,
}

impl Tally {
    /// Counts a request. `is_first`: it is the first of its user.
    fn add(&mut self, is_ok: bool, code: u16, bytes: u64, took_ns: u64, is_first: bool) {
        *(if is_ok { &mut self.ok } else { &mut self.failed }) += 1;
        self.users += u64::from(is_first);
        self.bytes += bytes;
        self.timed += 1;
        self.sum_ns += took_ns;
        self.longest_ns = self.longest_ns.max(took_ns);
        self.shortest_ns = Some(self.shortest_ns.map_or(took_ns, |least| least.min(took_ns)));
        *self.codes.entry(code).or_default() += 1;
    }

    fn merge(&mut self, other: &Tally) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.users += other.users;
        self.bytes += other.bytes;
        self.timed += other.timed;
        self.sum_ns += other.sum_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.shortest_ns = self.shortest_ns.into_iter().chain(other.shortest_ns).min();
        for (code, count) in &other.codes {
            *self.codes.entry(*code).or_default() += count;
        }
    }

    pub(super) fn all(&self) -> u64 {
        self.ok + self.failed
    }

    /// Returns the number of answers, successful or not.
    pub(super) fn answers(&self) -> u64 {
        self.all() - self.codes.get(&NO_ANSWER).copied().unwrap_or_default()
    }

    /// Returns go-stress-testing's rate: successes × users ÷ the time of all requests.
    pub(super) fn qps(&self, users: u64) -> f64 {
        self.ok as f64 * users as f64 * 1e9 / self.sum_ns.max(1) as f64
    }

    /// Returns go-stress-testing's average: the time of all requests ÷ successes.
    pub(super) fn average_ms(&self) -> Option<f64> {
        (self.ok > 0).then(|| self.sum_ns as f64 / 1e6 / self.ok as f64)
    }

    /// Returns the mean time of all requests.
    pub(super) fn mean_ms(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.sum_ns as f64 / 1e6 / self.timed as f64)
    }

    pub(super) fn longest_ms(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.longest_ns as f64 / 1e6)
    }

    pub(super) fn shortest_ms(&self) -> Option<f64> {
        self.shortest_ns.map(|ns| ns as f64 / 1e6)
    }
}

/// The figures and times of one worker.
#[derive(Default, Debug)]
struct Part {
    tally: Tally,
    /// [`Series::Latency`]: times of all requests, failed ones included.
    times: Recorder,
}

/// The figures of one worker, which it alone adds to.
#[derive(Clone, Default, Debug)]
pub(super) struct WorkerStats(Arc<Mutex<Part>>);

impl WorkerStats {
    /// Counts an answer, or a request that failed without one. `is_first`: it is the first of its user.
    pub(super) fn add(&self, is_ok: bool, code: u16, bytes: u64, took_ns: u64, is_first: bool) {
        let mut part = locked(&self.0);
        part.tally.add(is_ok, code, bytes, took_ns, is_first);
        part.times.record(Series::Latency, took_ns);
    }

    /// Counts requests that were never sent and so have no time.
    pub(super) fn unsent(&self, count: u64) {
        if count > 0 {
            let tally = &mut locked(&self.0).tally;
            tally.failed += count;
            *tally.codes.entry(NO_ANSWER).or_default() += count;
        }
    }
}

/// The figures of all workers.
#[derive(Clone, Default, Debug)]
pub(super) struct LiveStats(Arc<Mutex<Vec<WorkerStats>>>);

impl LiveStats {
    /// Adds one more worker.
    pub(super) fn worker(&self) -> WorkerStats {
        let worker = WorkerStats::default();
        locked(&self.0).push(worker.clone());
        worker
    }

    /// Adds up the counts of all workers.
    pub(super) fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        locked(&self.0).iter().for_each(|worker| sum.merge(&locked(&worker.0).tally));
        sum
    }

    /// Merges the times of all requests.
    pub(super) fn times(&self) -> Recorder {
        let mut times = Recorder::default();
        locked(&self.0).iter().for_each(|worker| times.merge(&locked(&worker.0).times));
        times
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
