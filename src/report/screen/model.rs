//! The data of the live screen: the latest sample, rates over the last second, a bounded history for
//! the curves, and notes. It draws nothing.

use std::borrow::Cow;
use std::collections::VecDeque;

use capacity::limits::KERNEL_BYTES_PLAUSIBLE;

use super::{About, AgentRow, CLOSE, Left, Step};
use load::{Bin, Counts, Latency, Row, Sample, SampleSeries, Series, Usage};

/// Time window of the rates. A row each second may arrive a little early.
const RATE_SECONDS: f64 = 0.95;
/// Minimum time between samples for a rate.
const RATE_SECONDS_MIN: f64 = 0.1;
/// Most bars of the histogram of latency, and the share of values at each end without bars of their own.
const BINS: usize = 10;
const BINS_TAIL: f64 = 0.001;

pub(super) struct Model {
    pub(super) title: String,
    pub(super) sockets: u64,
    /// Phase names, and the index of the current one.
    pub(super) phases: Vec<Cow<'static, str>>,
    pub(super) at: usize,
    pub(super) done: f64,
    pub(super) left: Option<Left>,
    pub(super) now: Sample,
    pub(super) latency: Latencies,
    /// Only of a run of requests.
    pub(super) requests: Option<RequestTotals>,
    /// Of a run that agents share.
    pub(super) agents: Vec<AgentRow>,
    before: Sample,
    ends_here: u64,
    recent: VecDeque<Sample>,
    series: SampleSeries,
    notes: Vec<String>,
}

/// Percentiles by how long ago.
#[derive(Default)]
pub(super) struct Latencies {
    /// All percentiles are known, also those so far. Samples have only p50, p99 and the maximum of the last
    /// second.
    pub(super) is_complete: bool,
    /// What was timed.
    pub(super) name: &'static str,
    pub(super) last_second: Option<Latency>,
    pub(super) so_far: Option<Latency>,
    /// The distribution of `so_far`.
    pub(super) bins: Vec<Bin>,
}

/// Requests so far: those of the warm-up until it is over, then only measured ones.
#[derive(Default)]
pub(super) struct RequestTotals {
    pub(super) is_warm_up: bool,
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// Answers by status.
    pub(super) statuses: Vec<(u16, u64)>,
}

/// Per second.
#[derive(Default, Debug, PartialEq)]
pub(super) struct Rates {
    pub(super) opened: f64,
    pub(super) sent: f64,
    pub(super) received: f64,
    /// Failed connects and ended connections; of requests failed requests.
    pub(super) failed: f64,
    pub(super) closed: f64,
    /// CPU in cores (CPU seconds per second).
    pub(super) server_cpu: Option<f64>,
    pub(super) client_cpu: Option<f64>,
}

/// The quantity of a curve.
#[derive(Copy, Clone)]
pub(super) enum Curve {
    Open,
    Received,
    FailedRequests,
    P50,
    P99,
}

impl Model {
    pub(super) fn new(about: About) -> Model {
        Model {
            title: about.title,
            sockets: about.sockets,
            phases: about.phases.into_iter().map(Cow::Borrowed).collect(),
            at: 0,
            done: 0.0,
            left: None,
            now: Sample::default(),
            latency: Latencies { name: "latency", ..Latencies::default() },
            requests: None,
            agents: Vec::new(),
            before: about.before,
            ends_here: about.ends_here,
            recent: VecDeque::new(),
            series: SampleSeries::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a sample. Returns whether it began a new phase.
    pub(super) fn take(&mut self, sample: &Sample, step: &Step<'_>) -> bool {
        let begins = self.now.phase != sample.phase;
        if begins && sample.phase == CLOSE {
            // Nothing is measured any more: there are no rates.
            self.recent.clear();
        }
        self.series.push(sample);
        self.recent.push_back(sample.clone());
        let old = |at: &Sample| sample.elapsed_seconds - at.elapsed_seconds >= RATE_SECONDS;
        while self.recent.get(1).is_some_and(old) {
            self.recent.pop_front();
        }
        self.at = self.place_of(&sample.phase);
        // A phase that took no time is complete.
        self.done = if step.done.is_finite() { step.done.clamp(0.0, 1.0) } else { 1.0 };
        self.left = step.left;
        self.now = sample.clone();
        self.agents = step.agents.to_vec();
        if let Some(row) = step.detail {
            self.take_row(row);
        } else if step.so_far.is_some() {
            self.latency = Latencies {
                is_complete: true,
                name: "latency",
                last_second: step.last_second,
                so_far: step.so_far,
                bins: Vec::new(),
            };
        } else if let Some(latency) = sample.latency {
            let load::SampleLatency { p50_ms, p99_ms, max_ms } = latency;
            let latency = Latency { p50_ms, p99_ms, max_ms, ..Latency::default() };
            self.latency.last_second = Some(latency);
        } else {
            self.latency.last_second = None;
        }
        begins
    }

    /// Takes what a run of `load` knows beside its sample.
    fn take_row(&mut self, row: &Row) {
        let (series, so_far) = timed(row);
        self.latency = Latencies {
            is_complete: true,
            name: match series {
                Series::Broadcast => "delivery",
                Series::Heartbeat => "ping to pong",
                _ => "latency",
            },
            last_second: row.latency,
            so_far,
            bins: row.progress.timed.bins(series, BINS, BINS_TAIL),
        };
        if let Counts::Requests(counts) = &row.progress.counts {
            let is_warm_up = row.phase == "warm-up";
            let (sent, answered) = match is_warm_up {
                true => (counts.warm_up_sent, counts.warm_up),
                false => (counts.sent, counts.answered),
            };
            self.requests = Some(RequestTotals {
                is_warm_up,
                sent,
                answered,
                failed: counts.failed_total(),
                statuses: counts.statuses().collect(),
            });
        }
    }

    /// An unannounced phase is inserted after the current one.
    fn place_of(&mut self, phase: &str) -> usize {
        let known = self.phases.iter().position(|known| known == phase);
        known.unwrap_or_else(|| {
            let after = (self.at + 1).min(self.phases.len());
            self.phases.insert(after, Cow::Owned(phase.to_owned()));
            after
        })
    }

    pub(super) fn note(&mut self, text: &str) {
        self.notes.extend(text.lines().map(str::to_owned));
    }

    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The latest notes, the newest last.
    pub(super) fn last_notes(&self, most: usize) -> &[String] {
        let from = self.notes.len().saturating_sub(most);
        self.notes.get(from..).unwrap_or_default()
    }

    pub(super) fn rates(&self) -> Rates {
        let Some(before) = self.recent.front() else { return Rates::default() };
        let seconds = self.now.elapsed_seconds - before.elapsed_seconds;
        if seconds < RATE_SECONDS_MIN {
            return Rates::default();
        }
        let per_second = |count: fn(&Sample) -> u64| {
            count(&self.now).saturating_sub(count(before)) as f64 / seconds
        };
        let cpu = |now: Option<Usage>, then: Option<Usage>| {
            Some((now?.cpu_seconds - then?.cpu_seconds).max(0.0) / seconds)
        };
        let failed = if self.requests.is_some() { failed_requests } else { |s: &Sample| s.failed };
        Rates {
            opened: per_second(|sample| sample.open + sample.closed),
            sent: per_second(|sample| sample.sent),
            received: per_second(|sample| sample.received),
            failed: per_second(failed),
            closed: per_second(|sample| sample.closed),
            server_cpu: cpu(self.now.server, before.server),
            client_cpu: cpu(self.now.client, before.client),
        }
    }

    /// Memory growth per open socket since before the first, in bytes.
    pub(super) fn bytes_per_socket(&self, of: impl Fn(&Sample) -> Option<u64>) -> Option<u64> {
        of(&self.now)?.saturating_sub(of(&self.before)?).checked_div(self.now.open)
    }

    /// The same for kernel memory; the kernel has a socket for each end.
    pub(super) fn kernel_bytes_per_socket(&self) -> Option<u64> {
        self.bytes_per_socket(|sample| sample.kernel_bytes)?.checked_div(self.ends_here)
    }

    /// Whether the growth of kernel memory cannot be that of the sockets: other programs used or freed memory.
    pub(super) fn is_kernel_implausible(&self) -> bool {
        let each = self.kernel_bytes_per_socket();
        each.is_some_and(|bytes| !KERNEL_BYTES_PLAUSIBLE.contains(&(bytes as f64)))
    }

    /// Seconds and values over the whole run; moments without a value are left out.
    pub(super) fn curve(&self, curve: Curve) -> Vec<(f64, f64)> {
        let pairs = self.series.samples().windows(2);
        let points = pairs.filter_map(|pair| {
            let (before, after) = (pair.first()?, pair.last()?);
            Some((after.elapsed_seconds, value(curve, before, after)?))
        });
        points.filter(|(_, value)| value.is_finite()).collect()
    }
}

/// Failed requests so far.
fn failed_requests(sample: &Sample) -> u64 {
    sample.errors.iter().map(|(_, count)| count).sum()
}

/// What is timed in the phase of a row, or in other phases if nothing yet, and its percentiles so far.
fn timed(row: &Row) -> (Series, Option<Latency>) {
    let first = match row.phase {
        "fanout" | "churn" => Series::Broadcast,
        "connect" | "stages" | "hold" => Series::Heartbeat,
        _ => Series::Latency,
    };
    let all = [first, Series::Latency, Series::Broadcast, Series::Heartbeat];
    let known = |series| Some((series, Some(row.progress.timed.latency(series)?)));
    all.into_iter().find_map(known).unwrap_or((first, None))
}

fn value(curve: Curve, before: &Sample, after: &Sample) -> Option<f64> {
    let seconds = after.elapsed_seconds - before.elapsed_seconds;
    let per_second = |count: fn(&Sample) -> u64| {
        let grown = count(after).saturating_sub(count(before)) as f64;
        (seconds >= RATE_SECONDS_MIN).then(|| grown / seconds)
    };
    match curve {
        Curve::Open => Some(after.open as f64),
        Curve::Received => per_second(|sample| sample.received),
        Curve::FailedRequests => per_second(failed_requests),
        Curve::P50 => after.latency.map(|latency| latency.p50_ms),
        Curve::P99 => after.latency.map(|latency| latency.p99_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let server = Some(Usage { rss_bytes: 10_000, cpu_seconds: 1.0 });
        let before = Sample { server, ..Sample::default() };
        let phases = vec!["connect", "hold"];
        Model::new(About { title: "test".to_owned(), phases, sockets: 1_000, ends_here: 2, before })
    }

    fn at(elapsed_seconds: f64, open: u64) -> Sample {
        let server = Usage { rss_bytes: 10_000 + open * 70, cpu_seconds: 1.0 + elapsed_seconds };
        Sample {
            elapsed_seconds,
            phase: "connect".into(),
            open,
            server: Some(server),
            ..Sample::default()
        }
    }

    fn take(model: &mut Model, sample: &Sample) -> bool {
        model.take(sample, &Step { done: 0.5, ..Step::default() })
    }

    #[test]
    fn rates_cover_the_last_second_and_memory_is_per_open_socket() {
        let mut model = model();
        assert_eq!(model.rates(), Rates::default());
        for quarter in 0..=40 {
            let seconds = f64::from(quarter) / 4.0;
            // Slow at first, then 100 per second.
            take(&mut model, &at(seconds, (100.0 * (seconds - 9.0).max(0.0)) as u64));
        }
        let rates = model.rates();
        assert!((rates.opened - 100.0).abs() < 1.0, "{rates:?}");
        assert!((rates.server_cpu.unwrap() - 1.0).abs() < 0.01, "{rates:?}");
        assert_eq!(rates.client_cpu, None);
        let rss = |sample: &Sample| sample.server.map(|usage| usage.rss_bytes);
        assert_eq!(model.bytes_per_socket(rss), Some(70));
        assert_eq!(model.kernel_bytes_per_socket(), None, "unknown before the first socket");
    }

    #[test]
    fn a_curve_spans_the_run_in_bounded_memory() {
        let mut model = model();
        for second in 0..5_000 {
            take(&mut model, &at(f64::from(second), 10));
        }
        let curve = model.curve(Curve::Open);
        assert!(curve.len() < 1_024 && curve.last().unwrap().0 > 4_990.0);
        assert_eq!(model.curve(Curve::P99), [], "nothing was timed");
    }

    #[test]
    fn phases_advance_and_an_unannounced_one_is_inserted() {
        let mut model = model();
        assert!(take(&mut model, &at(0.0, 0)), "the first begins");
        assert!(!take(&mut model, &at(1.0, 0)));
        assert!(take(&mut model, &Sample { phase: "fanout".into(), ..at(2.0, 0) }));
        assert_eq!(model.at, 1);
        assert_eq!(model.phases, ["connect", "fanout", "hold"]);
        assert!(take(&mut model, &Sample { phase: "hold".into(), ..at(3.0, 0) }));
        assert_eq!(model.at, 2);
    }

    #[test]
    fn a_run_that_closes_its_sockets_has_no_rates() {
        let mut model = model();
        let sent = |seconds, sent| Sample { sent, ..at(seconds, 10) };
        take(&mut model, &sent(1.0, 0));
        take(&mut model, &sent(2.0, 500));
        assert!(model.rates().sent > 400.0);
        for seconds in [2.1, 2.5, 9.0] {
            let closing = Sample { phase: CLOSE.into(), ..sent(seconds, 500) };
            take(&mut model, &closing);
            assert_eq!(model.rates().sent, 0.0);
        }
        assert_eq!((&*model.phases[model.at], model.now.elapsed_seconds), (CLOSE, 9.0));
    }
}
