//! The data of the live screen: the latest sample, rates over the last seconds, a bounded history for
//! the curves, and notes. It draws nothing.

use std::collections::VecDeque;

use super::{About, Step};
use std::borrow::Cow;

use load::{Sample, SampleSeries, Usage};

/// Time window of the rates, long enough to read them.
const RATE_SECONDS: f64 = 2.0;
/// Minimum time between samples for a rate.
const RATE_SECONDS_MIN: f64 = 0.1;

pub(super) struct Model {
    pub(super) title: String,
    pub(super) sockets: u64,
    /// Phase names, and the index of the current one.
    pub(super) phases: Vec<Cow<'static, str>>,
    pub(super) at: usize,
    pub(super) done: f64,
    pub(super) now: Sample,
    before: Sample,
    ends_here: u64,
    recent: VecDeque<Sample>,
    series: SampleSeries,
    notes: Vec<String>,
}

/// Per second.
#[derive(Default, Debug, PartialEq)]
pub(super) struct Rates {
    pub(super) opened: f64,
    pub(super) sent: f64,
    pub(super) received: f64,
    /// CPU in cores (CPU seconds per second).
    pub(super) server_cpu: Option<f64>,
    pub(super) client_cpu: Option<f64>,
}

/// The quantity of a curve.
#[derive(Copy, Clone)]
pub(super) enum Curve {
    Open,
    Received,
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
            now: Sample::default(),
            before: about.before,
            ends_here: about.ends_here,
            recent: VecDeque::new(),
            series: SampleSeries::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a sample. Returns whether it began a new phase.
    pub(super) fn take(&mut self, sample: &Sample, step: &Step) -> bool {
        self.series.push(sample);
        self.recent.push_back(sample.clone());
        let old = |at: &Sample| sample.elapsed_seconds - at.elapsed_seconds >= RATE_SECONDS;
        while self.recent.get(1).is_some_and(old) {
            self.recent.pop_front();
        }
        let begins = self.now.phase != sample.phase;
        self.at = self.place_of(&sample.phase);
        // A phase that took no time is complete.
        self.done = if step.done.is_finite() { step.done.clamp(0.0, 1.0) } else { 1.0 };
        self.now = sample.clone();
        begins
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
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let opened = |sample: &Sample| sample.open + sample.closed;
        let cpu = |now: Option<Usage>, then: Option<Usage>| {
            Some((now?.cpu_seconds - then?.cpu_seconds).max(0.0) / seconds)
        };
        Rates {
            opened: per_second(opened(&self.now), opened(before)),
            sent: per_second(self.now.sent, before.sent),
            received: per_second(self.now.received, before.received),
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

    /// Returns at most `width` values over the whole run, the newest last; each is the maximum of its time.
    pub(super) fn curve(&self, curve: Curve, width: usize) -> Vec<u64> {
        let samples = self.series.samples();
        let values: Vec<u64> = samples
            .windows(2)
            .filter_map(|pair| value(curve, pair.first()?, pair.last()?))
            .collect();
        if values.len() <= width {
            return values;
        }
        let mut columns = vec![0; width];
        for (at, one) in values.iter().enumerate() {
            if let Some(column) = columns.get_mut(at * width / values.len()) {
                *column = (*one).max(*column);
            }
        }
        columns
    }
}

fn value(curve: Curve, before: &Sample, after: &Sample) -> Option<u64> {
    Some(match curve {
        Curve::Open => after.open,
        Curve::Received => {
            let seconds = after.elapsed_seconds - before.elapsed_seconds;
            if seconds < RATE_SECONDS_MIN {
                return None;
            }
            (after.received.saturating_sub(before.received) as f64 / seconds) as u64
        }
        Curve::P99 => after.latency.map_or(0, |latency| (latency.p99_ms * 1e3) as u64),
    })
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
        model.take(sample, &Step { row: String::new(), done: 0.5 })
    }

    #[test]
    fn rates_cover_the_last_seconds_and_memory_is_per_open_socket() {
        let mut model = model();
        assert_eq!(model.rates(), Rates::default());
        for quarter in 0..40 {
            let seconds = f64::from(quarter) / 4.0;
            // Slow at first, then 100 per second.
            take(&mut model, &at(seconds, (100.0 * (seconds - 5.0).max(0.0)) as u64));
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
    fn a_curve_fits_its_width_and_keeps_the_peak() {
        let mut model = model();
        for second in 0..100 {
            take(&mut model, &at(f64::from(second), if second == 50 { 1_000 } else { 10 }));
        }
        let curve = model.curve(Curve::Open, 20);
        assert_eq!((curve.len(), curve.iter().max()), (20, Some(&1_000)));
        assert_eq!(model.curve(Curve::Open, 500).len(), 99);
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
}
