//! [`RequestLedger`]: what one worker counts and times, for the main thread to read at any moment.
//! Counters have one writer; the worker's histograms come over a few times a second.
//!
//! What the counts mean: begun = sent + those whose connect failed; begun = ok + failed once all is
//! over, and failed is the sum over [`Failure`]. What was due in the warm-up is in none of them, only
//! in those that say so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::Counter;
use hdrhistogram::Histogram;

use super::{Failure, Times};
use crate::{Recorder, Series};

/// Statuses have three digits.
const STATUSES: usize = 1_000;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one worker.
        #[repr(align(128))]
        pub(crate) struct RequestCounts {
            $($(#[$doc])* pub(crate) $name: Counter,)*
            failed: Box<[Counter]>,
            status: Box<[Counter]>,
        }

        /// The counters of all workers, summed at one moment.
        #[derive(Clone, Debug)]
        pub struct RequestSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Requests that failed, by [`Failure::index`].
            pub failed: Vec<u64>,
            /// Whole answers, by status.
            pub status: Vec<u64>,
        }

        impl RequestCounts {
            fn new() -> Self {
                let some = |number| (0..number).map(|_| Counter::default()).collect();
                RequestCounts {
                    $($name: Counter::default(),)*
                    failed: some(Failure::COUNT),
                    status: some(STATUSES),
                }
            }
        }

        impl Default for RequestSnapshot {
            fn default() -> Self {
                RequestSnapshot {
                    $($name: 0,)*
                    failed: vec![0; Failure::COUNT],
                    status: vec![0; STATUSES],
                }
            }
        }

        impl RequestSnapshot {
            fn add(&mut self, counts: &RequestCounts) {
                $(self.$name += counts.$name.get();)*
                let tables = [(&mut self.failed, &counts.failed), (&mut self.status, &counts.status)];
                for (sums, ones) in tables {
                    for (sum, one) in sums.iter_mut().zip(ones) {
                        *sum += one.get();
                    }
                }
            }
        }
    };
}

counts! {
    /// Requests that a user took up.
    begun,
    /// Requests given to the kernel.
    sent,
    /// Requests whose answer came whole, whatever it said.
    answered,
    /// Of them those that were what they should be.
    ok,
    /// Requests due in the warm-up that were sent.
    warm_up_sent,
    /// Requests due in the warm-up that came to anything.
    warm_up,
    /// Further requests sent because an answer redirected, those of the warm-up among them.
    redirects,
    /// Connections that were made.
    opened,
    /// Connections that are there now (gauge).
    open,
    /// Connections that ended.
    ended,
    /// Connects that failed.
    connects_failed,
    /// Connections that the server ended while nothing was asked of it.
    closed_idle,
    /// Connections given up because the server sent what nobody had asked for.
    unasked,
    /// Bytes of bodies, as they came.
    body_bytes,
    /// Bytes that bodies with a content coding were decoded to, where the body was wanted.
    decoded_bytes,
}

impl RequestCounts {
    #[inline]
    pub(super) fn count_status(&self, status: u16) {
        if let Some(counter) = self.status.get(usize::from(status)) {
            counter.add(1);
        }
    }

    pub(super) fn count_failed(&self, failure: Failure) {
        if let Some(counter) = self.failed.get(failure.index()) {
            counter.add(1);
        }
    }
}

impl RequestSnapshot {
    /// The sum over `ledgers`.
    pub(crate) fn of<'a>(ledgers: impl IntoIterator<Item = &'a RequestLedger>) -> RequestSnapshot {
        let mut sum = RequestSnapshot::default();
        ledgers.into_iter().for_each(|ledger| sum.add(&ledger.counts));
        sum
    }

    /// Requests that failed, whatever for.
    #[must_use]
    pub fn failed_total(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// The same by name; kinds that have not come are left out.
    #[must_use]
    pub fn errors(&self) -> Vec<(&'static str, u64)> {
        let named = Failure::all().map(Failure::name).zip(self.failed.iter().copied());
        named.filter(|(_, count)| *count > 0).collect()
    }

    /// Statuses of whole answers; those that have not come are left out, and answers of protocols that
    /// have none.
    pub fn statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        (0_u16..).zip(self.status.iter().copied()).skip(1).filter(|(_, count)| *count > 0)
    }
}

/// One worker's counters, histograms and milestones.
pub(crate) struct RequestLedger {
    pub(crate) counts: RequestCounts,
    recorder: Mutex<Recorder>,
    /// When the measured time was over.
    over_ns: AtomicU64,
    /// Requests that were due and for which no user was free until the end.
    untaken: AtomicU64,
    done: AtomicBool,
}

impl RequestLedger {
    pub(crate) fn new() -> RequestLedger {
        RequestLedger {
            counts: RequestCounts::new(),
            recorder: Mutex::default(),
            over_ns: AtomicU64::new(0),
            untaken: AtomicU64::new(0),
            done: AtomicBool::new(false),
        }
    }

    /// Locks the histograms.
    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn over_ns(&self) -> u64 {
        self.over_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_over(&self, over_ns: u64) {
        self.over_ns.store(over_ns, Ordering::Relaxed);
    }

    pub(crate) fn untaken(&self) -> u64 {
        self.untaken.load(Ordering::Relaxed)
    }

    pub(crate) fn set_untaken(&self, untaken: u64) {
        self.untaken.store(untaken, Ordering::Relaxed);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn set_done(&self) {
        self.done.store(true, Ordering::Release);
    }
}

/// What a worker times, until it hands it over.
pub(crate) struct Timings {
    /// Requests sent when they were due: both times are the same, recorded once.
    same: Option<Histogram<u64>>,
    recorder: Recorder,
    settled_ns: u64,
    handed_over_ns: u64,
    fresh: bool,
}

impl Timings {
    /// How often histograms are handed over.
    const PERIOD_NS: u64 = 250_000_000;

    pub(super) fn new() -> Timings {
        let (same, recorder) = (Recorder::empty(), Recorder::default());
        Timings { same, recorder, settled_ns: 0, handed_over_ns: 0, fresh: false }
    }

    /// An answer came.
    #[inline]
    pub(super) fn answered(&mut self, times: &Times) {
        let Times { due_ns, sent_ns, done_ns, .. } = *times;
        (self.settled_ns, self.fresh) = (done_ns, true);
        if due_ns == sent_ns {
            if let Some(same) = &mut self.same {
                Recorder::record_in(same, done_ns.saturating_sub(due_ns));
            }
            return;
        }
        self.recorder.record(Series::Latency, done_ns.saturating_sub(due_ns));
        self.recorder.record(Series::ServiceTime, done_ns.saturating_sub(sent_ns));
    }

    /// A request came to nothing.
    pub(super) fn failed(&mut self, done_ns: u64) {
        self.settled_ns = done_ns;
    }

    /// When the last measured request came to anything; 0 before the first.
    pub(super) fn settled_ns(&self) -> u64 {
        self.settled_ns
    }

    /// A request left so much later than it was due though a user was free.
    pub(super) fn late(&mut self, nanoseconds: u64) {
        self.fresh = true;
        self.recorder.record(Series::SendLag, nanoseconds);
    }

    /// When there is something to hand over.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.fresh.then_some(self.handed_over_ns.saturating_add(Self::PERIOD_NS))
    }

    /// Hands over what has come, if it is time or `now`.
    #[inline]
    pub(super) fn hand_over(&mut self, ledger: &RequestLedger, now_ns: u64, now: bool) {
        if self.fresh && (now || now_ns >= self.handed_over_ns.saturating_add(Self::PERIOD_NS)) {
            self.hand_over_now(ledger, now_ns);
        }
    }

    #[inline(never)]
    fn hand_over_now(&mut self, ledger: &RequestLedger, now_ns: u64) {
        let mut shared = ledger.recorder();
        shared.merge(&self.recorder);
        self.recorder.clear();
        if let Some(same) = self.same.as_mut().filter(|same| !same.is_empty()) {
            shared.add(Series::Latency, same);
            shared.add(Series::ServiceTime, same);
            same.reset();
        }
        (self.handed_over_ns, self.fresh) = (now_ns, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_are_recorded_whether_they_differ_or_not() {
        let (ledger, mut timings) = (RequestLedger::new(), Timings::new());
        let times =
            |due_ns, sent_ns| Times { due_ns, sent_ns, done_ns: 9_000_000, ..Times::default() };
        timings.answered(&times(4_000_000, 4_000_000));
        timings.answered(&times(1_000_000, 7_000_000));
        assert_eq!(timings.next_ns(), Some(Timings::PERIOD_NS));
        timings.hand_over(&ledger, 9_000_000, false);
        assert_eq!(ledger.recorder().latency(Series::Latency), None, "not yet");
        timings.hand_over(&ledger, 9_000_000, true);
        timings.hand_over(&ledger, 9_000_000, true);
        let of = |series| ledger.recorder().latency(series).unwrap();
        let (latency, service) = (of(Series::Latency), of(Series::ServiceTime));
        assert_eq!((latency.count, service.count), (2, 2));
        assert!((latency.max_ms - 8.0).abs() < 0.1 && (service.max_ms - 5.0).abs() < 0.1);
        assert_eq!((timings.settled_ns(), timings.next_ns()), (9_000_000, None));
        timings.failed(9_500_000);
        assert_eq!(timings.settled_ns(), 9_500_000, "what failed took its time too");
    }
}
