//! [`RequestMetrics`]: the counters of one worker, which the main thread reads at any time. Counters
//! have one writer; times are passed in batches, see `timings.rs`.
//!
//! begun = sent + those whose connect failed; begun = ok + failed at the end, where failed is the sum
//! over [`Failure`]. Requests due in the warm-up are only in the counters that name it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::Counter;
use engine::invariant;
use serde::{Deserialize, Serialize};

use crate::outcome::call_errors::CallErrors;
use crate::outcome::failure::Failure;
use crate::outcome::goaways::{self, GoAways};
use crate::outcome::messages::MessageCounters;
use crate::outcome::shared_row::sparse;
use crate::outcome::timings::Batches;

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
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub struct RequestSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Requests that failed, by [`Failure::index`].
            #[serde(with = "sparse")]
            pub failed: Vec<u64>,
            /// Complete answers, by status.
            #[serde(with = "sparse")]
            pub status: Vec<u64>,
            /// GOAWAY frames of HTTP/2, by code.
            pub(crate) goaways: [u64; goaways::CODES],
            /// Time of each worker in long waits for a core.
            #[serde(skip)]
            pub stalled_ns: Vec<u64>,
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
                    goaways: [0; goaways::CODES],
                    stalled_ns: Vec::new(),
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

            /// Adds the counters of another generator that shares the run.
            pub(crate) fn merge(&mut self, other: &RequestSnapshot) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
                let tables = [(&mut self.failed, &other.failed), (&mut self.status, &other.status)];
                for (sums, ones) in tables {
                    for (sum, one) in sums.iter_mut().zip(ones) {
                        *sum = sum.saturating_add(*one);
                    }
                }
                for (sum, one) in self.goaways.iter_mut().zip(other.goaways) {
                    *sum = sum.saturating_add(one);
                }
            }
        }
    };
}

counts! {
    /// Requests taken up by a user.
    begun,
    /// Requests passed to the kernel.
    sent,
    /// Requests with a complete answer of any status.
    answered,
    /// Requests with an accepted answer.
    ok,
    /// Complete answers that came after the time of the run was over.
    stragglers,
    /// Those of them that were accepted.
    stragglers_ok,
    /// Requests due in the warm-up that were sent.
    warm_up_sent,
    /// Requests due in the warm-up that ended.
    warm_up,
    /// Requests sent to follow redirects, including the warm-up.
    redirects,
    /// Times a request was taken back, as the server had not processed it, including the warm-up.
    repeated,
    /// Connections opened.
    opened,
    /// Connections open now (gauge).
    open,
    /// Connections that ended.
    ended,
    /// Connects that failed.
    connects_failed,
    /// Connections that the server closed while idle.
    closed_idle,
    /// Connections closed because the server sent unsolicited data.
    unasked,
    /// Connections closed because a user had them to too many targets.
    closed_surplus,
    /// Bytes of bodies as received.
    body_bytes,
    /// Decoded bytes of bodies with a content coding, if the body was wanted.
    decoded_bytes,
}

impl RequestCounts {
    #[inline]
    pub(crate) fn count_status(&self, status: u16) {
        if let Some(counter) = self.status.get(usize::from(status)) {
            counter.add(1);
        }
    }

    pub(crate) fn count_failed(&self, failure: Failure) {
        if let Some(counter) = self.failed.get(failure.index()) {
            counter.add(1);
        } else {
            invariant::broken("each failure has a counter");
        }
    }
}

impl RequestSnapshot {
    /// The sum over all workers.
    pub(crate) fn of<'a>(
        all_metrics: impl IntoIterator<Item = &'a RequestMetrics>,
    ) -> RequestSnapshot {
        let mut sum = RequestSnapshot::default();
        for metrics in all_metrics {
            sum.add(&metrics.counts);
            sum.stalled_ns.push(metrics.stalled_ns.get());
            metrics.goaways.count(&mut sum.goaways);
        }
        sum
    }

    /// Failed requests of all kinds.
    #[must_use]
    pub fn failed_total(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Failed requests by name, without zeros.
    #[must_use]
    pub fn errors(&self) -> Vec<(&'static str, u64)> {
        let named = Failure::all().map(Failure::name).zip(self.failed.iter().copied());
        named.filter(|(_, count)| *count > 0).collect()
    }

    /// GOAWAY frames of HTTP/2 by the name of their code, without zeros.
    pub fn goaways(&self) -> impl Iterator<Item = (&'static str, u64)> {
        goaways::names().zip(self.goaways).filter(|(_, count)| *count > 0)
    }

    /// Complete answers by status, without zeros and without protocols that have no status.
    pub fn statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        (0_u16..).zip(self.status.iter().copied()).skip(1).filter(|(_, count)| *count > 0)
    }
}

/// One worker's counters, times and milestones.
pub(crate) struct RequestMetrics {
    pub(crate) counts: RequestCounts,
    pub(crate) timed: Batches,
    /// Of calls with several messages.
    pub(crate) messages: Option<Box<MessageCounters>>,
    pub(crate) call_errors: CallErrors,
    pub(crate) goaways: GoAways,
    /// See [`crate::outcome::stalls`].
    pub(crate) stalled_ns: Counter,
    /// When the measured time ended.
    over_ns: AtomicU64,
    /// Requests that were due but never sent, as no user was free.
    untaken: AtomicU64,
    done: AtomicBool,
}

impl RequestMetrics {
    pub(crate) fn new(has_messages: bool) -> RequestMetrics {
        RequestMetrics {
            counts: RequestCounts::new(),
            timed: Batches::default(),
            messages: has_messages.then(Box::default),
            call_errors: CallErrors::default(),
            goaways: GoAways::default(),
            stalled_ns: Counter::default(),
            over_ns: AtomicU64::new(0),
            untaken: AtomicU64::new(0),
            done: AtomicBool::new(false),
        }
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
