//! Thresholds: what a run must reach for exit code 0, such as `p99<50ms`, `failed<1`, `rate>10k`.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

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

/// A figure that can be asked for, in milliseconds, counts, per cent, or messages per second.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Metric {
    P50,
    P90,
    P95,
    P99,
    P999,
    Max,
    Failed,
    Closed,
    Lost,
    Errors,
    /// Errors in per cent.
    ErrorShare,
    Rate,
}

const METRICS: [(&str, Metric); 11] = [
    ("p50", Metric::P50),
    ("p90", Metric::P90),
    ("p95", Metric::P95),
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
    /// In milliseconds, a count, per cent, or messages per second; null when it was not measured.
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
        let (metric, bound) = match (metric, bound.trim().strip_suffix('%')) {
            (Metric::Errors, Some(share)) => (Metric::ErrorShare, per_cent(share)?),
            (metric, _) if metric.is_time() => {
                (*metric, milliseconds(units::duration(bound.trim())?))
            }
            (metric, _) => (*metric, units::count(bound.trim())? as f64),
        };
        Ok(Threshold { text: text.to_owned(), metric, below: sign == "<", bound })
    }
}

impl Threshold {
    /// `value` tells a figure; `None` for one that was not measured.
    pub(super) fn judge(&self, value: impl FnOnce(Metric) -> Option<f64>) -> Outcome {
        let value = value(self.metric);
        let met = value.is_some_and(|v| if self.below { v < self.bound } else { v > self.bound });
        Outcome { threshold: self.text.clone(), value, met }
    }
}

impl Metric {
    fn is_time(self) -> bool {
        use Metric::{Max, P50, P90, P95, P99, P999};
        matches!(self, P50 | P90 | P95 | P99 | P999 | Max)
    }
}

/// A share in per cent, as `0.1`.
fn per_cent(text: &str) -> Result<f64, String> {
    let share = text.trim().parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is no share: write errors<0.1%"))
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
        let threshold: Threshold = "errors<0.1%".parse().unwrap();
        assert_eq!((threshold.metric, threshold.bound), (Metric::ErrorShare, 0.1));
        assert!(!threshold.judge(|_| Some(0.1)).met && threshold.judge(|_| Some(0.0)).met);
        assert!(!threshold.judge(|_| None).met, "what was not measured is not met");
        for (text, named) in [
            ("p99", "p99<50ms"),
            ("errors<101%", "0.1%"),
            ("p50<1%", "500ms"),
            ("p98<1s", "p999"),
            ("p99<50", "500ms"),
            ("lost<many", "10k"),
        ] {
            let error = text.parse::<Threshold>().unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
