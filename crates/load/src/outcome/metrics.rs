//! [`Metrics`]: the counters of one worker, which the main thread reads at any time, and
//! [`WorkerMetrics`], the worker's own side with its histograms. Counters have one writer; times are
//! passed in batches, see `timings.rs`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::Counter;
use serde::{Deserialize, Serialize};

use crate::delivery::checker::{DeliveryCounters, DeliveryCounts};
use crate::delivery::spread::Arrivals;
use crate::outcome::goaways::GoAways;
use crate::outcome::sections::Receiver;
use crate::outcome::shared_row::named;
use crate::outcome::timings::{Batches, Timings};
use crate::{Cause, Series};

/// The most different disconnect reasons that are counted separately.
const REASONS_MAX: usize = 32;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one worker.
        #[repr(align(128))]
        pub(crate) struct Counts {
            $($(#[$doc])* pub(crate) $name: Counter,)*
            pub(crate) delivery: DeliveryCounters,
        }

        /// The counters of all workers, summed at one moment.
        #[derive(Clone, Default, Debug, Serialize, Deserialize)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Publications received.
            pub delivery: DeliveryCounts,
            /// How connections ended.
            pub ends: Ends,
            /// The fewest streams that a server allows on a connection, if that is fewer than wanted.
            pub streams_allowed: Option<u64>,
            /// When the last WebSocket opened, in monotonic nanoseconds; 0 before the first.
            pub last_open_ns: u64,
            /// Time of each worker in long waits for a core.
            #[serde(skip)]
            pub stalled_ns: Vec<u64>,
        }

        impl Counts {
            fn new() -> Self {
                Counts {
                    $($name: Counter::default(),)*
                    delivery: DeliveryCounters::default(),
                }
            }
        }

        impl Snapshot {
            fn add(&mut self, counts: &Counts) {
                $(self.$name += counts.$name.get();)*
                self.delivery.merge(&counts.delivery.counts());
            }

            /// Adds the counters of another generator that shares the run.
            pub(crate) fn merge(&mut self, other: &Snapshot) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
                self.delivery.merge(&other.delivery);
                self.ends.add(&other.ends);
            }
        }
    };
}

/// How connections ended, by cause. The number of causes is bounded.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Ends {
    /// Failed connects.
    #[serde(with = "named")]
    pub failed: BTreeMap<Cause, u64>,
    /// Failed attempts that were retried.
    #[serde(with = "named")]
    pub retried: BTreeMap<Cause, u64>,
    /// WebSockets that ended.
    #[serde(with = "named")]
    pub closed: BTreeMap<Cause, u64>,
}

impl Ends {
    fn add(&mut self, other: &Ends) {
        let pairs = [
            (&mut self.failed, &other.failed),
            (&mut self.retried, &other.retried),
            (&mut self.closed, &other.closed),
        ];
        for (sum, one) in pairs {
            for (cause, count) in one {
                *sum.entry(*cause).or_default() += count;
            }
        }
    }
}

counts! {
    /// Connects begun.
    begun,
    /// Connects that became WebSockets.
    opened,
    /// WebSockets open now (gauge).
    open,
    /// WebSockets closed because the target fell.
    retired,
    /// WebSockets closed after their messages and replaced.
    replaced,
    /// Connects that succeeded after a retry.
    opened_late,
    /// WebSockets that ended and are to be reopened.
    reconnects,
    /// Times a source address had no port left and the next was used.
    sources_changed,
    /// HTTP/2 connections that took streams.
    http2_opened,
    /// Those that do now (gauge).
    http2_open,
    /// HTTP/2 connections that never took one.
    http2_failed,
    /// HTTP/2 connections that took streams and were ended by the server.
    http2_ended,
    /// Times a server announced to take no further streams on a connection.
    http2_goaways,
    /// Pings sent.
    heartbeats_sent,
    /// Pongs received for a ping.
    heartbeats_received,
    /// Pings in flight on connections that we closed.
    heartbeats_cut,
    /// Open sockets that have answered a ping at least once (gauge).
    answered,
    /// Open sockets whose last ping is not answered (gauge).
    waiting,
    /// Open sockets that were pinged and have never answered (gauge).
    unanswered,
    /// Echo messages sent.
    echo_sent,
    /// All messages received during an echo.
    echo_received,
    /// Echo messages answered, each counted once.
    echo_answered,
    /// Duplicate answers.
    duplicated,
    /// Answers received after one to a later message.
    reordered,
    /// Messages that answer none sent on that socket.
    corrupted,
    /// Answers received after their message was given up.
    late,
    /// Echo messages given up (closed loop).
    given_up,
    /// Receivers that lost publications, once judged.
    receivers_short,
    /// Open sockets that are subscribed (gauge).
    subscribed,
    /// Open sockets whose subscription was rejected (gauge).
    rejected,
    /// Subscribes sent.
    subscribes,
    /// Repeated subscribes.
    subscribes_again,
    /// Repeated confirmations.
    confirmed_again,
    /// Pings of Action Cable received.
    cable_pings,
    /// WebSockets given up because no ping was received.
    stale,
    /// Messages that are not Action Cable, or not expected.
    unexpected,
    /// Churn: subscriptions that were confirmed.
    churn_begun,
    /// Subscriptions whose publications were judged.
    churn_judged,
    /// Publications expected by subscriptions.
    churn_owed,
    /// Publications expected and not received.
    churn_lost,
    /// Subscribes that were never confirmed.
    churn_unconfirmed,
}

impl Snapshot {
    /// The sum over all workers.
    pub(crate) fn of<'a>(all_metrics: impl IntoIterator<Item = &'a Metrics>) -> Snapshot {
        let mut sum = Snapshot::default();
        for metrics in all_metrics {
            sum.add(&metrics.counts);
            sum.ends.add(&metrics.ends());
            let allowed = metrics.streams_allowed();
            sum.streams_allowed = [sum.streams_allowed, allowed].into_iter().flatten().min();
            sum.stalled_ns.push(metrics.stalled_ns.get());
            sum.last_open_ns = sum.last_open_ns.max(metrics.last_open_ns.load(Ordering::Relaxed));
        }
        sum
    }

    /// Without the messages and pings counted by `before`. Connections stay.
    pub(crate) fn since(&self, before: &Snapshot) -> Snapshot {
        let mut since = self.clone();
        for (now, before) in [
            (&mut since.heartbeats_sent, before.heartbeats_sent),
            (&mut since.heartbeats_received, before.heartbeats_received),
            (&mut since.heartbeats_cut, before.heartbeats_cut),
            (&mut since.echo_sent, before.echo_sent),
            (&mut since.echo_received, before.echo_received),
            (&mut since.echo_answered, before.echo_answered),
            (&mut since.duplicated, before.duplicated),
            (&mut since.reordered, before.reordered),
            (&mut since.corrupted, before.corrupted),
            (&mut since.late, before.late),
            (&mut since.given_up, before.given_up),
        ] {
            *now = now.saturating_sub(before);
        }
        since.delivery = self.delivery.since(&before.delivery);
        since
    }

    /// Failed connects.
    #[must_use]
    pub fn failed_total(&self) -> u64 {
        self.ends.failed.values().sum()
    }

    /// Attempts that were retried.
    #[must_use]
    pub fn retried_total(&self) -> u64 {
        self.ends.retried.values().sum()
    }

    /// WebSockets that ended.
    #[must_use]
    pub fn closed_total(&self) -> u64 {
        self.ends.closed.values().sum()
    }

    /// Errors by cause, without zeros: failed connects, ended WebSockets, and messages given up, wrong
    /// or duplicated.
    #[must_use]
    pub fn errors(&self) -> Vec<(&'static str, u64)> {
        self.each_error().filter(|(_, count)| *count > 0).collect()
    }

    /// All errors by cause, including zeros except for statuses.
    pub fn each_error(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let mut ends: BTreeMap<Cause, u64> = Cause::all().map(|cause| (cause, 0)).collect();
        for (cause, count) in self.ends.failed.iter().chain(&self.ends.closed) {
            *ends.entry(*cause).or_default() += count;
        }
        let ends = ends.into_iter().map(|(cause, count)| (cause.name(), count));
        let messages = [
            ("given_up", self.given_up),
            ("duplicated", self.duplicated + self.delivery.duplicated),
            ("reordered", self.reordered + self.delivery.reordered),
            ("corrupted", self.corrupted + self.delivery.corrupted),
            ("late", self.late + self.delivery.late),
            ("stale", self.delivery.stale),
            ("rejected", self.rejected),
            ("unexpected", self.unexpected + self.delivery.unexpected),
            ("lost", self.churn_lost),
        ];
        ends.chain(messages)
    }

    /// Connections with a final state: opened at least once, or with Action Cable subscribed or
    /// rejected; or failed or ended for good.
    pub(crate) fn settled(&self, cable: bool) -> u64 {
        if !cable {
            return self.opened + self.failed_total();
        }
        let gone = self.closed_total().saturating_sub(self.reconnects);
        self.subscribed + self.rejected + self.retired + self.failed_total() + gone
    }

    /// Connections that are still expected to open: begun or to be reopened, and not given up.
    pub(crate) fn expected_to_open(&self) -> u64 {
        let begun = self.begun + self.reconnects + self.replaced;
        begun.saturating_sub(self.opened + self.failed_total())
    }

    /// Echo messages not answered.
    #[must_use]
    pub fn unanswered_messages(&self) -> u64 {
        self.echo_sent.saturating_sub(self.echo_answered)
    }
}

/// One worker's counters, times and milestones.
pub(crate) struct Metrics {
    pub(crate) counts: Counts,
    pub(crate) timed: Batches,
    ends: Mutex<Ends>,
    arrivals: Mutex<Arrivals>,
    /// The receivers that lost most, once judged.
    judged: Mutex<Option<Vec<Receiver>>>,
    /// Disconnects by the reason given by the server.
    disconnects: Mutex<BTreeMap<String, u64>>,
    /// Of HTTP/2 connections that carry sockets.
    pub(crate) goaways: GoAways,
    last_open_ns: AtomicU64,
    /// Streams that a server allows, with one more; 0 if unknown, or as many as wanted.
    streams_allowed: AtomicU64,
    /// See [`crate::outcome::stalls`].
    pub(crate) stalled_ns: Counter,
    /// The echo is over on this worker.
    echo_done: AtomicBool,
    /// The number of the first expected publisher, plus one.
    expecting: AtomicU64,
    /// All connections are closed after the order to finish.
    finished: AtomicBool,
    /// The number of the last order to flush that was executed.
    flushes: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Metrics {
            counts: Counts::new(),
            timed: Batches::default(),
            ends: Mutex::default(),
            arrivals: Mutex::default(),
            judged: Mutex::default(),
            disconnects: Mutex::default(),
            goaways: GoAways::default(),
            last_open_ns: AtomicU64::new(0),
            streams_allowed: AtomicU64::new(0),
            stalled_ns: Counter::default(),
            echo_done: AtomicBool::new(false),
            expecting: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
        }
    }

    /// Locks the arrivals of publications.
    pub(crate) fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_judged(&self, worst: Vec<Receiver>) {
        *self.judged.lock().unwrap_or_else(PoisonError::into_inner) = Some(worst);
    }

    /// The judged receivers; `None` until judged.
    pub(crate) fn judged(&self) -> Option<Vec<Receiver>> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn count_opened(&self, now_ns: u64) {
        // In this order, so that a snapshot never takes it for neither open nor connecting.
        self.counts.open.add(1);
        self.counts.opened.add(1);
        self.last_open_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Notes that a server allows so many streams on a connection, which is fewer than wanted.
    pub(crate) fn note_streams_allowed(&self, allowed: u64) {
        let fewest = self.streams_allowed().map_or(allowed, |before| before.min(allowed));
        self.streams_allowed.store(fewest.saturating_add(1), Ordering::Relaxed);
    }

    fn streams_allowed(&self) -> Option<u64> {
        self.streams_allowed.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Counts a confirmed subscription, which is when an Action Cable connection is complete.
    pub(crate) fn count_subscribed(&self, now_ns: u64) {
        self.counts.subscribed.add(1);
        self.last_open_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Counts the reason of a disconnect message.
    pub(crate) fn count_disconnect(&self, reason: &str) {
        let mut disconnects = self.disconnects();
        let known = disconnects.len() < REASONS_MAX || disconnects.contains_key(reason);
        *disconnects.entry(if known { reason } else { "other" }.to_owned()).or_default() += 1;
    }

    pub(crate) fn disconnects(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.disconnects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_failed(&self, cause: Cause) {
        *self.ends().failed.entry(cause).or_default() += 1;
    }

    /// Counts a failed attempt that is retried.
    pub(crate) fn count_retried(&self, cause: Cause) {
        *self.ends().retried.entry(cause).or_default() += 1;
    }

    pub(crate) fn count_closed(&self, cause: Cause) {
        self.counts.open.sub(1);
        *self.ends().closed.entry(cause).or_default() += 1;
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn echo_is_done(&self) -> bool {
        self.echo_done.load(Ordering::Acquire)
    }

    pub(crate) fn set_echo_done(&self, done: bool) {
        self.echo_done.store(done, Ordering::Release);
    }

    pub(crate) fn expects(&self, publisher: u32) -> bool {
        self.expecting.load(Ordering::Acquire) == u64::from(publisher) + 1
    }

    pub(crate) fn set_expecting(&self, publisher: u32) {
        self.expecting.store(u64::from(publisher) + 1, Ordering::Release);
    }

    /// Expects no publisher any more, until the worker sets the next.
    pub(crate) fn expect_none(&self) {
        self.expecting.store(0, Ordering::Release);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
    }

    pub(crate) fn has_flushed(&self, number: u64) -> bool {
        self.flushes.load(Ordering::Acquire) >= number
    }
}

/// The metrics of a worker in its own thread: recording a time takes no lock.
pub(crate) struct WorkerMetrics {
    shared: Arc<Metrics>,
    timings: RefCell<Timings>,
}

impl WorkerMetrics {
    pub(crate) fn new(shared: Arc<Metrics>) -> WorkerMetrics {
        WorkerMetrics { shared, timings: RefCell::new(Timings::new()) }
    }

    /// Records one duration.
    #[inline]
    pub(crate) fn record(&self, series: Series, nanoseconds: u64) {
        self.timings.borrow_mut().record(series, nanoseconds);
    }

    /// Records the answer to a message.
    #[inline]
    pub(crate) fn echoed(&self, due_ns: u64, sent_ns: u64, done_ns: u64) {
        self.timings.borrow_mut().echoed(due_ns, sent_ns, done_ns);
    }

    /// Flushes recorded times if that is due. Returns when to call it next.
    #[inline]
    pub(crate) fn flush(&self, now_ns: u64) -> Option<u64> {
        let mut timings = self.timings.borrow_mut();
        timings.flush(&self.shared.timed, now_ns);
        timings.next_ns()
    }

    /// Executes an order to flush all recorded times.
    pub(crate) fn flush_rest(&self, number: u64) {
        self.timings.borrow_mut().flush_rest(&self.shared.timed);
        self.shared.flushes.store(number, Ordering::Release);
    }
}

impl Deref for WorkerMetrics {
    type Target = Metrics;

    fn deref(&self) -> &Metrics {
        &self.shared
    }
}
