//! Samples of a run over time for the rows, the live screen and the report. A [`Sample`] is one moment
//! of a run; a [`SampleSeries`] keeps a bounded number of them. It neither measures nor draws.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::outcome::read;

/// Maximum number of samples; beyond it every second one is dropped and the sampling interval doubles.
const SAMPLES_MAX: usize = 1_024;

/// One moment of a run. Counts are totals so far unless stated otherwise.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the run began.
    pub elapsed_seconds: f64,
    /// Phase of the run: connect, hold, echo, broadcast …
    pub phase: Cow<'static, str>,
    /// Open WebSockets.
    pub open: u64,
    /// Failed connects.
    pub failed: u64,
    /// Closed WebSockets.
    pub closed: u64,
    /// Messages and heartbeats sent, and received.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// Latency since the last sample: of answers, or of received publications.
    #[serde(flatten, deserialize_with = "read::sample_latency")]
    pub latency: Option<SampleLatency>,
    /// Usage of the server and the generator, if known.
    pub server: Option<Usage>,
    /// See `server`.
    pub client: Option<Usage>,
    /// Growth of the kernel's own memory since the run began.
    pub kernel_bytes: Option<u64>,
    /// Errors so far by cause; causes without errors are left out.
    #[serde(skip)]
    pub errors: Vec<(String, u64)>,
}

/// Latency in milliseconds.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub struct SampleLatency {
    /// The median.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

/// Memory and CPU of a process.
#[derive(Copy, Clone, Default, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Resident memory.
    pub rss_bytes: u64,
    /// CPU time since it began.
    pub cpu_seconds: f64,
}

/// Samples over a whole run, however long, in bounded memory.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<Sample>", into = "Vec<Sample>")]
pub struct SampleSeries {
    samples: Vec<Sample>,
    /// Minimum time between two samples.
    every_seconds: f64,
}

impl SampleSeries {
    /// The series of a run without samples.
    pub const EMPTY: SampleSeries = SampleSeries { samples: Vec::new(), every_seconds: 1.0 };

    /// Creates a series with at most one sample per second, fewer in a long run.
    pub fn new() -> SampleSeries {
        SampleSeries { samples: Vec::new(), every_seconds: 1.0 }
    }

    /// Keeps a sample unless the last one is too recent. The first of a phase is always kept.
    pub fn push(&mut self, sample: &Sample) {
        if let Some(last) = self.samples.last() {
            let near = sample.elapsed_seconds - last.elapsed_seconds < self.every_seconds;
            if near && last.phase == sample.phase {
                return;
            }
        }
        if self.samples.len() >= SAMPLES_MAX {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.every_seconds *= 2.0;
        }
        self.samples.push(sample.clone());
    }

    /// Returns the maximum number of open connections.
    pub fn most_open(&self) -> u64 {
        self.samples.iter().map(|sample| sample.open).max().unwrap_or(0)
    }

    /// Returns the samples in the order of time.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }
}

impl From<Vec<Sample>> for SampleSeries {
    fn from(samples: Vec<Sample>) -> SampleSeries {
        SampleSeries { samples, every_seconds: 1.0 }
    }
}

impl From<SampleSeries> for Vec<Sample> {
    fn from(series: SampleSeries) -> Vec<Sample> {
        series.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32, phase: &'static str) -> Sample {
        let phase = Cow::Borrowed(phase);
        Sample { elapsed_seconds: f64::from(second) / 4.0, phase, ..Sample::default() }
    }

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_even_samples() {
        let mut series = SampleSeries::new();
        for quarter in 0..4 * 10_000 {
            series.push(&at(quarter, "hold"));
        }
        let samples = series.samples();
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
        let gaps: Vec<f64> = samples
            .windows(2)
            .map(|pair| pair[1].elapsed_seconds - pair[0].elapsed_seconds)
            .collect();
        assert!(gaps.iter().all(|gap| (8.0..=32.0).contains(gap)), "{gaps:?}");
        assert!(samples.last().unwrap().elapsed_seconds > 9_980.0);
    }

    #[test]
    fn a_short_phase_is_kept() {
        let mut series = SampleSeries::new();
        for (quarter, phase) in [(0, "connect"), (1, "connect"), (2, "hold"), (3, "broadcast")] {
            series.push(&at(quarter, phase));
        }
        let phases: Vec<_> = series.samples().iter().map(|sample| &*sample.phase).collect();
        assert_eq!(phases, ["connect", "hold", "broadcast"]);
    }
}
