//! [`FanoutRun`]: a running fan-out as seen by the main thread: its publishers, the wait for receipts,
//! and the summary.

pub(crate) mod http;
pub(crate) mod publisher;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::Remote;
use engine::sys::process;

use self::publisher::{PublishStats, Publishers};
use crate::delivery::checker::keep_worst;
use crate::delivery::spread::{Spread, Times};
use crate::delivery::verdicts::Verdicts;
use crate::outcome::histograms::Histograms;
use crate::outcome::metrics::{Metrics, Snapshot};
use crate::outcome::sections::FanoutSummary;
use crate::workload::client::Order;
use crate::{Fanout, Published, Series};

/// How often arrival times are collected from the workers.
const GATHER_NS: u64 = 250_000_000;
/// After the last publication: the minimum time without a receipt after which the rest is lost, and
/// the maximum wait in total.
const QUIET: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(30);
/// The same after an interruption.
const INTERRUPTED_WAIT_NS: u64 = 2_000_000_000;

/// A running fan-out.
pub(crate) struct FanoutRun {
    publishers: Publishers,
    spread: Spread,
    fanout: Fanout,
    receivers: u64,
    gathered_ns: u64,
    /// When the publishers were done.
    done_ns: Option<u64>,
    /// The number of receipts when it last changed, and when that was.
    received: u64,
    received_ns: u64,
    /// Nothing more is awaited.
    over: bool,
    /// Receipts that were still arriving when an interrupted run ended.
    pub(crate) unknown: u64,
}

impl FanoutRun {
    /// Starts publishing to all sockets, which already count; `open` is their number per worker, and
    /// `senders` of them are no receivers. They read the `verdicts`.
    pub(crate) fn start(
        fanout: &Fanout,
        remote: &Remote<Order>,
        open: &[u64],
        senders: u64,
        verdicts: Option<Arc<Verdicts>>,
    ) -> io::Result<FanoutRun> {
        let receivers = open.iter().sum::<u64>().saturating_sub(senders);
        let now_ns = process::now_ns();
        Ok(FanoutRun {
            publishers: Publishers::start(fanout, remote, open, None, verdicts)?,
            spread: Spread::default(),
            fanout: fanout.clone(),
            receivers,
            gathered_ns: now_ns,
            done_ns: None,
            received: 0,
            received_ns: now_ns,
            over: false,
            unknown: 0,
        })
    }

    /// Publications of all publishers that were accepted, or may have been.
    pub(crate) fn published(&self) -> u64 {
        self.publishers.expected()
    }

    /// Accepted and failed publications.
    pub(crate) fn progress(&self) -> Published {
        self.publishers.progress()
    }

    /// Accepted publications of each publisher.
    pub(crate) fn published_each(&self) -> Arc<[u32]> {
        self.publishers.expected_each()
    }

    /// Collects arrival times. Returns true when nothing more is awaited.
    pub(crate) fn tend(
        &mut self,
        all_metrics: &[Arc<Metrics>],
        counts: &Snapshot,
        now_ns: u64,
    ) -> bool {
        if now_ns >= self.gathered_ns + GATHER_NS {
            self.gathered_ns = now_ns;
            self.gather(all_metrics);
        }
        let received = counts.delivery.expected();
        if received != self.received {
            (self.received, self.received_ns) = (received, now_ns);
        }
        if self.done_ns.is_none() && self.publishers.is_done() {
            self.done_ns = Some(now_ns);
        }
        let Some(done_ns) = self.done_ns else { return false };
        let quiet_ns = QUIET.max(self.fanout.late_after).as_nanos() as u64;
        let all = self.published() * self.receivers;
        self.over = received >= all
            || now_ns > self.received_ns.max(done_ns) + quiet_ns
            || now_ns > done_ns + WAIT.as_nanos() as u64;
        self.over
    }

    fn gather(&mut self, all_metrics: &[Arc<Metrics>]) {
        for metrics in all_metrics {
            let mut arrivals = std::mem::take(&mut *metrics.arrivals());
            self.spread.gather(&mut arrivals, self.receivers);
        }
    }

    /// Stops publishing, which is done, or of no use as no receiver is left. After an interruption, receipts of what was published are awaited for a moment;
    /// `received` counts them. Those that are missing are lost if none arrived meanwhile.
    pub(crate) fn stop(&mut self, is_interrupted: bool, received: impl Fn() -> u64) {
        self.publishers.stop(is_interrupted);
        let (all, before) = (self.published() * self.receivers, received());
        let over_ns = process::now_ns() + INTERRUPTED_WAIT_NS;
        let mut last = before;
        while !self.over && last < all && process::now_ns() < over_ns {
            std::thread::sleep(Duration::from_millis(2));
            last = received();
        }
        self.unknown = if last > before { all.saturating_sub(last) } else { 0 };
    }

    /// Returns the summary, after the receivers were judged.
    pub(crate) fn summary(
        &mut self,
        all_metrics: &[Arc<Metrics>],
        counts: &Snapshot,
    ) -> (FanoutSummary, Times, Histograms) {
        self.gather(all_metrics);
        let mut histograms = Histograms::default();
        let times = self.spread.finish(&mut histograms);
        let stats = self.publishers.stats();
        let mut worst: Vec<_> =
            all_metrics.iter().filter_map(|metrics| metrics.judged()).flatten().collect();
        keep_worst(&mut worst);
        let took_ns = stats.last_sent_ns.saturating_sub(self.publishers.began_ns);
        let rate = self.fanout.rate as f64;
        let accepted = accepted_rate(rate, &stats, took_ns);
        let summary = FanoutSummary {
            publishers: self.fanout.publishers,
            publish_failed: stats.failed,
            publish_rejected: Some(stats.rejected),
            publish_unanswered: Some(stats.unanswered),
            publish_unknown: Some(stats.unknown),
            publish_unsent: Some(stats.unsent),
            rate,
            reached_rate: reached_rate(rate, stats.sent, took_ns),
            accepted_rate: Some(accepted),
            publish_lag: histograms.latency(
                "broadcast.publish_lag",
                &stats.recorder,
                Series::PublishLag,
            ),
            publish: histograms.latency("broadcast.publish", &stats.recorder, Series::Publish),
            receivers_short: counts.receivers_short,
            worst,
        };
        (summary, times, histograms)
    }
}

/// The rate reached. n publications take n - 1 intervals, as the first is due at once; for a single
/// one the configured rate is returned.
pub(crate) fn reached_rate(rate: f64, sent: u64, took_ns: u64) -> f64 {
    match sent {
        0 => 0.0,
        1 => rate,
        _ if took_ns == 0 => rate,
        _ => (sent - 1) as f64 * 1e9 / took_ns as f64,
    }
}

/// The rate of accepted publications: their share of the rate reached.
pub(crate) fn accepted_rate(rate: f64, stats: &PublishStats, took_ns: u64) -> f64 {
    let share = stats.accepted as f64 / stats.sent.max(1) as f64;
    reached_rate(rate, stats.sent, took_ns) * share
}

/// The worker and index of every open socket, round-robin over workers; then the first socket of the
/// first worker forever.
pub(crate) fn sockets(open: &[u64]) -> impl Iterator<Item = (usize, u32)> {
    let rounds = open.iter().copied().max().unwrap_or(0).min(u64::from(Fanout::PUBLISHERS_MAX));
    let turn = move |nth: u64| {
        let has = move |&(_, &open): &(usize, &u64)| open > nth;
        open.iter().enumerate().filter(has).map(move |(worker, _)| (worker, nth as u32))
    };
    (0..rounds).flat_map(turn).chain(std::iter::repeat((0, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishing_sockets_alternate_between_workers() {
        let places: Vec<_> = sockets(&[2, 0, 3, 1]).take(7).collect();
        assert_eq!(places, [(0, 0), (2, 0), (3, 0), (0, 1), (2, 1), (2, 2), (0, 0)]);
        assert_eq!(sockets(&[]).take(2).collect::<Vec<_>>(), [(0, 0); 2]);
    }

    #[test]
    fn rate_counts_intervals() {
        assert_eq!(reached_rate(10.0, 11, 1_000_000_000), 10.0);
        assert_eq!(reached_rate(10.0, 11, 2_000_000_000), 5.0);
        assert_eq!((reached_rate(10.0, 1, 0), reached_rate(10.0, 0, 0)), (10.0, 0.0));
    }
}
