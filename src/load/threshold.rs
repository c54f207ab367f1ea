//! Thresholds: what a run must reach for exit code 0, such as `p99<50ms`, `failed<1`, `rate>10k`.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use load::{Latency, Summary};
use serde::Serialize;

use crate::units;

/// A condition on one figure of the summary.
#[derive(Clone, Debug)]
pub(super) struct Threshold {
    text: String,
    metric: Metric,
    below: bool,
    bound: f64,
}

/// A figure that can be asked for, in milliseconds, counts or messages per second.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Metric {
    P50,
    P90,
    P99,
    P999,
    Max,
    Failed,
    Closed,
    Lost,
    Errors,
    Rate,
}

const METRICS: [(&str, Metric); 10] = [
    ("p50", Metric::P50),
    ("p90", Metric::P90),
    ("p99", Metric::P99),
    ("p999", Metric::P999),
    ("max", Metric::Max),
    ("failed", Metric::Failed),
    ("closed", Metric::Closed),
    ("lost", Metric::Lost),
    ("errors", Metric::Errors),
    ("rate", Metric::Rate),
];

/// What became of a threshold.
#[derive(Serialize, Debug)]
pub(super) struct Outcome {
    pub(super) threshold: String,
    /// In milliseconds, a count, or messages per second; null when it was not measured.
    pub(super) value: Option<f64>,
    pub(super) met: bool,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Threshold, String> {
        let at =
            text.find(['<', '>']).ok_or_else(|| format!("{text:?}: write p99<50ms or rate>10k"))?;
        let (name, rest) = text.split_at(at);
        let (sign, bound) = rest.split_at(1);
        let names = METRICS.map(|(name, _)| name).join(", ");
        let found = METRICS.iter().find(|(known, _)| *known == name.trim());
        let (_, metric) = found.ok_or_else(|| format!("{name:?} is none of {names}"))?;
        let bound = match metric {
            Metric::P50 | Metric::P90 | Metric::P99 | Metric::P999 | Metric::Max => {
                milliseconds(units::duration(bound.trim())?)
            }
            _ => units::count(bound.trim())? as f64,
        };
        Ok(Threshold { text: text.to_owned(), metric: *metric, below: sign == "<", bound })
    }
}

impl Threshold {
    /// `rate` is of messages, per second.
    pub(super) fn judge(&self, summary: &Summary, rate: Option<f64>) -> Outcome {
        let value = self.metric.of(summary, rate);
        let met = value.is_some_and(|v| if self.below { v < self.bound } else { v > self.bound });
        Outcome { threshold: self.text.clone(), value, met }
    }
}

impl Metric {
    fn of(self, summary: &Summary, rate: Option<f64>) -> Option<f64> {
        let broadcast = summary.broadcast.as_ref();
        let published = broadcast.and_then(|broadcast| broadcast.latency.as_ref());
        let latency =
            summary.latency.as_ref().or(published).or(summary.heartbeats.latency.as_ref());
        let of = |pick: fn(&Latency) -> f64| latency.map(pick);
        let closed = summary.closed.values().sum::<u64>();
        let echo = summary.echo.as_ref();
        let lost = echo.map_or(0, |echo| echo.lost) + broadcast.map_or(0, |b| b.lost);
        let wrong = echo.map_or(0, |e| e.duplicated + e.reordered + e.corrupted + e.late)
            + broadcast.map_or(0, |b| b.duplicated + b.reordered + b.corrupted + b.late + b.stale);
        let count = |count: u64| Some(count as f64);
        match self {
            Metric::P50 => of(|latency| latency.p50_ms),
            Metric::P90 => of(|latency| latency.p90_ms),
            Metric::P99 => of(|latency| latency.p99_ms),
            Metric::P999 => of(|latency| latency.p999_ms),
            Metric::Max => of(|latency| latency.max_ms),
            Metric::Failed => count(summary.connections.failed),
            Metric::Closed => count(closed),
            Metric::Lost => count(lost),
            Metric::Errors => count(summary.connections.failed + closed + lost + wrong),
            Metric::Rate => rate,
        }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.map_or("not measured".to_owned(), |value| format!("{value:.3}"));
        let met = if self.met { "met" } else { "MISSED" };
        writeln!(f, "threshold     {}: {value}, {met}", self.threshold)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_figure_a_sign_and_a_bound() {
        let threshold: Threshold = "p99<50ms".parse().unwrap();
        assert_eq!((threshold.metric, threshold.below, threshold.bound), (Metric::P99, true, 50.0));
        let threshold: Threshold = "rate>10k".parse().unwrap();
        assert_eq!(
            (threshold.metric, threshold.below, threshold.bound),
            (Metric::Rate, false, 10_000.0)
        );
        for (text, named) in
            [("p99", "p99<50ms"), ("p98<1s", "p999"), ("p99<50", "500ms"), ("lost<many", "10k")]
        {
            let error = text.parse::<Threshold>().unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
