//! [`FanoutRun`]: a fan-out under way, seen from the main thread: the publisher, when to stop
//! waiting for receipts, and the summary of it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::Remote;

use crate::client::Order;
use crate::ledger::{Ledger, Snapshot};
use crate::publisher::{Books, Publisher};
use crate::reception::keep_worst;
use crate::spread::Spread;
use crate::summary::FanoutSummary;
use crate::{Fanout, Publish, Series};

/// How often arrivals are gathered from the workers.
const GATHER_NS: u64 = 250_000_000;
/// After the last publication: how long nothing may arrive before the rest is lost, at least, and
/// how long is waited in all.
const QUIET: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(30);

/// A fan-out under way.
pub(crate) struct FanoutRun {
    publisher: Publisher,
    spread: Spread,
    fanout: Fanout,
    receivers: u64,
    gathered_ns: u64,
    /// When the publisher was done.
    done_ns: Option<u64>,
    /// Receipts when there last was a new one, and when that was.
    received: u64,
    received_ns: u64,
}

impl FanoutRun {
    /// Begins to publish to so many receivers, which count already.
    pub(crate) fn start(
        fanout: &Fanout,
        remote: Remote<Order>,
        receivers: u64,
        worker: usize,
        now_ns: u64,
    ) -> io::Result<FanoutRun> {
        Ok(FanoutRun {
            publisher: Publisher::start(fanout, remote, worker)?,
            spread: Spread::default(),
            fanout: fanout.clone(),
            receivers,
            gathered_ns: now_ns,
            done_ns: None,
            received: 0,
            received_ns: now_ns,
        })
    }

    /// Publications that were taken.
    pub(crate) fn published(&self) -> u32 {
        self.publisher.published()
    }

    /// Gathers arrivals now and then. Returns true when nothing more is waited for.
    pub(crate) fn tend(&mut self, ledgers: &[Arc<Ledger>], counts: &Snapshot, now_ns: u64) -> bool {
        if now_ns >= self.gathered_ns + GATHER_NS {
            self.gathered_ns = now_ns;
            self.gather(ledgers);
        }
        if counts.publications != self.received {
            (self.received, self.received_ns) = (counts.publications, now_ns);
        }
        if self.done_ns.is_none() && self.publisher.is_done() {
            self.done_ns = Some(now_ns);
        }
        let Some(done_ns) = self.done_ns else { return false };
        let quiet_ns = QUIET.max(self.fanout.late_after).as_nanos() as u64;
        let all = u64::from(self.published()) * self.receivers;
        counts.publications >= all
            || now_ns > self.received_ns.max(done_ns) + quiet_ns
            || now_ns > done_ns + WAIT.as_nanos() as u64
    }

    fn gather(&mut self, ledgers: &[Arc<Ledger>]) {
        for ledger in ledgers {
            let mut arrivals = std::mem::take(&mut *ledger.arrivals());
            self.spread.gather(&mut arrivals, self.receivers);
        }
    }

    /// Ends publishing.
    pub(crate) fn stop(&mut self, now_ns: u64) {
        self.publisher.stop();
        self.done_ns.get_or_insert(now_ns);
    }

    /// What came of it; the receivers have been judged.
    pub(crate) fn summary(&mut self, ledgers: &[Arc<Ledger>], counts: &Snapshot) -> FanoutSummary {
        self.gather(ledgers);
        let (spread, untimed) = self.spread.finish();
        let Books { failed, recorder, sending_ns } = self.publisher.books();
        let mut worst: Vec<_> =
            ledgers.iter().filter_map(|ledger| ledger.judged()).flatten().collect();
        keep_worst(&mut worst);
        let published = f64::from(self.published());
        // The first is due at once, so n publications take n - 1 intervals.
        let intervals = (published - 1.0).max(0.0);
        let by_http = matches!(self.fanout.publish, Publish::Http(_));
        FanoutSummary {
            publish_failed: failed,
            rate: self.fanout.rate as f64,
            reached_rate: if sending_ns > 0 {
                intervals * 1e9 / sending_ns as f64
            } else {
                published
            },
            publish_lag: recorder.latency(Series::PublishLag),
            publish: recorder.latency(Series::Publish).filter(|_| by_http),
            to_first: spread.latency(Series::First),
            to_last: spread.latency(Series::Last),
            first_to_last: spread.latency(Series::Spread),
            untimed,
            receivers_short: counts.receivers_short,
            worst,
        }
    }
}
