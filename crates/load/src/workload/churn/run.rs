//! [`ChurnRun`]: a running churn as seen by the main thread: workers start, publishers publish, workers
//! stop and judge.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::Remote;

use crate::outcome::churn::ChurnSummary;
use crate::outcome::histograms::Histograms;
use crate::outcome::metrics::{Metrics, Snapshot};
use crate::workload::churn::ChurnOrder;
use crate::workload::churn::publish_counters::PublishCounters;
use crate::workload::client::Order;
use crate::workload::fanout::publisher::Publishers;
use crate::workload::fanout::{accepted_rate, reached_rate};
use crate::{Churn, Fanout, Published, Recorder};

/// Timeout for workers to judge all subscriptions, in addition to the grace.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running churn.
pub(crate) struct ChurnRun {
    fanout: Fanout,
    counters: Arc<PublishCounters>,
    remote: Remote<Order>,
    /// Workers that take part.
    busy: Vec<usize>,
    phase: Phase,
    publishers: Option<Publishers>,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Phase {
    /// The workers are starting.
    Begun,
    Publishing,
    /// Publishing has ended; judging ends at this time at the latest.
    Stopping {
        until_ns: u64,
    },
    Over,
}

impl ChurnRun {
    /// Starts with all open sockets; `open` is their number per worker.
    pub(crate) fn begin(
        churn: &Churn,
        fanout: &Fanout,
        remote: &Remote<Order>,
        open: &[u64],
    ) -> ChurnRun {
        let counters = Arc::new(PublishCounters::new(&churn.streams));
        let whole = open.iter().sum();
        let grace_ns = u64::try_from(fanout.late_after.as_nanos()).unwrap_or(u64::MAX);
        let mut busy = Vec::new();
        let of = open.iter().filter(|part| **part > 0).count() as u64;
        for (worker, &part) in open.iter().enumerate().filter(|(_, part)| **part > 0) {
            let (counters, turn) = (Arc::clone(&counters), (busy.len() as u64, of));
            let order = ChurnOrder { counters, rate: churn.rate, part, whole, turn, grace_ns };
            post_order(remote, worker, Order::Churn(order));
            busy.push(worker);
        }
        ChurnRun {
            fanout: fanout.clone(),
            counters,
            remote: remote.clone(),
            busy,
            phase: Phase::Begun,
            publishers: None,
        }
    }

    /// Advances it; call it several times a second. Returns true when all is judged.
    ///
    /// # Errors
    /// The publisher threads could not be started.
    pub(crate) fn tend(&mut self, all_metrics: &[Arc<Metrics>], now_ns: u64) -> io::Result<bool> {
        let all = |is: &dyn Fn(&Metrics) -> bool| {
            self.busy
                .iter()
                .filter_map(|&worker| all_metrics.get(worker))
                .all(|metrics| is(metrics))
        };
        match self.phase {
            Phase::Begun if all(&|metrics| metrics.expects(Fanout::FIRST_PUBLISHER)) => {
                let counters = Some(Arc::clone(&self.counters));
                let publishers =
                    Publishers::start(&self.fanout, &self.remote, &[], counters, None)?;
                (self.publishers, self.phase) = (Some(publishers), Phase::Publishing);
            }
            Phase::Publishing if self.publishers.as_ref().is_none_or(Publishers::is_done) => {
                self.stop(now_ns, false);
            }
            Phase::Stopping { until_ns }
                if now_ns > until_ns || all(&|metrics| metrics.judged().is_some()) =>
            {
                self.phase = Phase::Over;
            }
            _ => {}
        }
        Ok(self.phase == Phase::Over)
    }

    /// Stops publishing and tells the workers to judge.
    pub(crate) fn stop(&mut self, now_ns: u64, is_interrupted: bool) {
        if matches!(self.phase, Phase::Stopping { .. } | Phase::Over) {
            return;
        }
        self.publishers.iter_mut().for_each(|publishers| publishers.stop(is_interrupted));
        for &worker in &self.busy {
            post_order(&self.remote, worker, Order::StopChurn);
        }
        let longest = JUDGE_TIMEOUT + self.fanout.late_after;
        self.phase = Phase::Stopping { until_ns: now_ns + longest.as_nanos() as u64 };
    }

    pub(crate) fn progress(&self) -> Published {
        self.publishers.as_ref().map(Publishers::progress).unwrap_or_default()
    }

    pub(crate) fn summary(
        &self,
        counts: &Snapshot,
        recorder: &Recorder,
    ) -> (ChurnSummary, Histograms) {
        let stats = self.publishers.as_ref().map(Publishers::stats).unwrap_or_default();
        let began_ns = self.publishers.as_ref().map_or(0, |publishers| publishers.began_ns);
        let took_ns = stats.last_sent_ns.saturating_sub(began_ns);
        let rate = self.fanout.rate as f64;
        let reached = reached_rate(rate, stats.sent, took_ns);
        let accepted = accepted_rate(rate, &stats, took_ns);
        let streams = self.counters.streams() as u64;
        let mut histograms = Histograms::default();
        let summary = ChurnSummary::new(
            streams,
            self.counters.published(),
            (rate, reached, accepted),
            stats,
            counts,
            recorder,
            &mut histograms,
        );
        (summary, histograms)
    }
}

fn post_order(remote: &Remote<Order>, worker: usize, order: Order) {
    // A mailbox holds 8 MiB: it fills only if the worker is gone.
    let _ = remote.post(worker, order, 0);
}
