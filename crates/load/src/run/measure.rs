//! Counters and times of a run, with or without its warm-up, and the outcome.

use std::time::Duration;

use engine::sys::process;

use super::Run;
use crate::delivery::spread::{Spread, Times};
use crate::outcome::Outcome;
use crate::outcome::cable::CableSummary;
use crate::outcome::histograms::Histograms;
use crate::outcome::judge::judge;
use crate::outcome::metrics::Snapshot;
use crate::outcome::runs::SocketRun;
use crate::outcome::timed::unix_us;
use crate::workload::client::Order;
use crate::{Config, Recorder};

/// Timeout for workers to flush recorded times.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// What a warm-up did.
pub(super) struct Warmed {
    counts: Snapshot,
    timed: Recorder,
    sent: u64,
}

impl Run {
    /// Takes the times that workers have flushed: call it several times a second, as workers flush the
    /// next ones only then.
    pub fn collect(&self) {
        let timed = &mut *self.timed.borrow_mut();
        self.all_metrics.iter().for_each(|metrics| metrics.timed.take(timed));
    }

    /// All histograms, merged; of the last moments only after [`Run::outcome`].
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        self.collect();
        self.timed.borrow().clone()
    }

    /// Ends the warm-up: the messages so far will be in no figure.
    pub fn begin_measuring(&mut self) {
        let mut sent = 0;
        if let Some(mut fanout) = self.fanout.take() {
            fanout.stop(true, || self.measured().delivery.expected());
            sent = fanout.published();
        }
        (self.expected, self.requested_messages) = (None, None);
        self.echo_began_ns = None;
        self.echo_over_ns.set(None);
        self.flush();
        for metrics in &self.all_metrics {
            metrics.expect_none();
            drop(std::mem::take(&mut *metrics.arrivals()));
        }
        let (counts, timed) = (self.snapshot(), self.timed.borrow().clone());
        sent += counts.echo_sent;
        self.warmed = Some(Box::new(Warmed { counts, timed, sent }));
    }

    /// All counters, without the messages of the warm-up.
    pub(super) fn measured(&self) -> Snapshot {
        let now = self.snapshot();
        self.warmed.as_ref().map_or_else(|| now.clone(), |warmed| now.since(&warmed.counts))
    }

    /// Blocks until all workers have flushed their times, and takes them.
    pub(super) fn flush(&self) {
        let number = self.flushes.get() + 1;
        self.flushes.set(number);
        for worker in self.busy() {
            self.post_order(worker, Order::Flush(number));
        }
        let over_ns = process::now_ns() + FLUSH_TIMEOUT.as_nanos() as u64;
        let flushed = || {
            let mut busy = self.busy().filter_map(|worker| self.all_metrics.get(worker));
            busy.all(|metrics| metrics.has_flushed(number))
        };
        while !flushed() && !self.workers.any_ended() && process::now_ns() < over_ns {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.collect();
    }

    /// The outcome so far, not judged.
    #[must_use]
    pub fn outcome(&self, config: &Config) -> Outcome {
        self.flush();
        let now = self.measured();
        let begun = if self.requested > 0 { self.requested } else { config.connections };
        let (fanout, times, histograms) = match self.judged.clone() {
            Some((fanout, times, histograms)) => (Some(fanout), times, histograms),
            None => {
                let (times, histograms) = self.times(now.open);
                (None, times, histograms)
            }
        };
        let mut recorder = self.recorder();
        if let Some(warmed) = &self.warmed {
            recorder.subtract(&warmed.timed);
        }
        let is_validated = config.echo.as_ref().is_some_and(|echo| echo.validator.is_some());
        let run = SocketRun {
            requested: begun.saturating_sub(now.retired),
            connecting: self.connecting(),
            in_flight_max: self.in_flight.max(),
            counts: &now,
            recorder: &recorder,
            messages: self.requested_messages,
            wrong: if is_validated { now.corrupted } else { 0 },
            awaits_pongs: self.awaits_pongs,
            pings: self.pings,
            sending: self.sending(config),
            interrupted: self.interrupted,
            warm_up: self.warmed.as_ref().map(|warmed| warmed.sent),
            expected: self.expected,
            fanout,
            unknown: self.unknown,
            times,
            histograms,
            http2: config.streams.is_some(),
            began_unix_us: Some(unix_us(self.began_ns)),
            measured_unix_us: self.echo_began_ns.map(unix_us),
        };
        let mut outcome = run.outcome();
        self.all_metrics.iter().for_each(|of| of.goaways.add_to(&mut outcome.goaways));
        let histograms = outcome.histograms.get_or_insert_default();
        if self.cable {
            let all_metrics = self.all_metrics.iter().map(|metrics| &**metrics);
            let cable = CableSummary::new(&now, &recorder, all_metrics, histograms);
            outcome.cable = Some(cable);
        }
        if let Some((churn, timed)) = self.churned.clone() {
            histograms.extend(timed);
            outcome.churn = Some(churn);
            outcome.set_latency_of_all();
        }
        outcome.interrupted = self.interrupted;
        judge(&mut outcome, &[]);
        if !outcome.reasons.is_empty() {
            // With --force: the shortfalls found at the start are the likeliest cause.
            let short = self.fit.shortfalls.iter();
            outcome.machine_short = short.map(|shortfall| shortfall.text.clone()).collect();
            judge(&mut outcome, &[]);
        }
        outcome
    }

    /// How long messages of an echo were due: as configured, even if no connection was left to send
    /// them; without a duration until it was over, and if it was interrupted until now.
    fn sending(&self, config: &Config) -> Option<Duration> {
        let began_ns = self.echo_began_ns.filter(|_| self.snapshot().opened > 0)?;
        if let Some(sending) = config.sending().filter(|_| !self.interrupted) {
            return Some(sending);
        }
        let over_ns = self.echo_over_ns.get().unwrap_or_else(process::now_ns);
        let passed = Duration::from_nanos(over_ns.saturating_sub(began_ns));
        Some(config.sending().map_or(passed, |sending| sending.min(passed)))
    }

    /// Arrival times of publications outside a fan-out, which nothing gathers.
    fn times(&self, receivers: u64) -> (Times, Histograms) {
        let (mut spread, mut histograms) = (Spread::default(), Histograms::default());
        for metrics in &self.all_metrics {
            let mut arrivals = metrics.arrivals().clone();
            spread.gather(&mut arrivals, receivers);
        }
        (spread.finish(&mut histograms), histograms)
    }
}
