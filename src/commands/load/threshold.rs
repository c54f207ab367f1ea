//! Thresholds: conditions for exit code 0, such as `p99<50ms`, `lost==0`, `rate>10k`.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::settings::nearest;
use crate::units;

/// A condition on one figure of the summary.
#[derive(Clone, Debug)]
pub(super) struct Threshold {
    text: String,
    metric: Metric,
    sign: Sign,
    bound: f64,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Sign {
    Below,
    Above,
    Exactly,
}

const SIGNS: [(&str, Sign); 4] =
    [("<", Sign::Below), (">", Sign::Above), ("==", Sign::Exactly), ("=", Sign::Exactly)];

/// A figure for a threshold, in milliseconds, counts, percent, or messages per second.
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
    Duplicated,
    Reordered,
    Late,
    /// From sending to receipt, of users in groups.
    ReceiptP50,
    ReceiptP99,
    ReceiptMax,
    Errors,
    /// Errors in percent.
    ErrorShare,
    Rate,
}

const METRICS: [(&str, Metric); 17] = [
    ("p50", Metric::P50),
    ("p90", Metric::P90),
    ("p95", Metric::P95),
    ("p99", Metric::P99),
    ("p999", Metric::P999),
    ("max", Metric::Max),
    ("failed", Metric::Failed),
    ("closed", Metric::Closed),
    ("lost", Metric::Lost),
    ("duplicated", Metric::Duplicated),
    ("reordered", Metric::Reordered),
    ("late", Metric::Late),
    ("receipt_p50", Metric::ReceiptP50),
    ("receipt_p99", Metric::ReceiptP99),
    ("receipt_max", Metric::ReceiptMax),
    ("errors", Metric::Errors),
    ("rate", Metric::Rate),
];

/// The measured value of a metric.
#[derive(Copy, Clone, Debug)]
pub(super) struct Figure {
    /// `None` if it was not measured.
    pub(super) value: Option<f64>,
    /// Whether the run received any answer that the metric is about.
    pub(super) is_answered: bool,
}

/// The result of a threshold.
#[derive(Serialize, Debug)]
pub(super) struct Outcome {
    pub(super) threshold: String,
    /// In milliseconds, a count, percent, or messages per second; null if it was not measured.
    pub(super) value: Option<f64>,
    pub(super) met: bool,
    /// See [`Figure::is_answered`].
    #[serde(skip)]
    is_answered: bool,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Threshold, String> {
        let at = text
            .find(['<', '>', '='])
            .ok_or_else(|| "expected a condition such as p99<50ms or rate>10k".to_owned())?;
        let (name, rest) = text.split_at(at);
        let signs = SIGNS.iter().find_map(|(text, sign)| Some((*sign, rest.strip_prefix(text)?)));
        let (sign, bound) = signs.unwrap_or((Sign::Below, rest));
        let names = METRICS.map(|(name, _)| name).join(", ");
        let found = METRICS.iter().find(|(known, _)| *known == name.trim());
        let near = nearest(name.trim(), METRICS.into_iter().map(|(name, _)| name));
        let near = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
        let (_, metric) = found
            .ok_or_else(|| format!("unknown metric {name:?}{near} (expected one of {names})"))?;
        let (metric, bound) = match (metric, bound.trim().strip_suffix('%')) {
            (Metric::Errors, Some(share)) => (Metric::ErrorShare, per_cent(share)?),
            (metric, _) if metric.is_time() => {
                (*metric, milliseconds(units::duration(bound.trim())?))
            }
            (metric, _) => (*metric, units::count(bound.trim())? as f64),
        };
        Ok(Threshold { text: text.to_owned(), metric, sign, bound })
    }
}

impl Threshold {
    /// Judges the threshold by the value that `figure` returns. No threshold is met if nothing was
    /// answered, as a run without answers has no errors to count either.
    pub(super) fn judge(&self, figure: impl FnOnce(Metric) -> Figure) -> Outcome {
        let Figure { value, is_answered } = figure(self.metric);
        let met = value.filter(|_| is_answered).is_some_and(|value| match self.sign {
            Sign::Below => value < self.bound,
            Sign::Above => value > self.bound,
            // Counts and their bounds are integers.
            Sign::Exactly => (value - self.bound).abs() < f64::EPSILON,
        });
        Outcome { threshold: self.text.clone(), value, met, is_answered }
    }
}

impl Metric {
    fn is_time(self) -> bool {
        use Metric::{Max, P50, P90, P95, P99, P999, ReceiptMax, ReceiptP50, ReceiptP99};
        matches!(self, P50 | P90 | P95 | P99 | P999 | Max | ReceiptP50 | ReceiptP99 | ReceiptMax)
    }
}

/// Parses a percentage such as `0.1`.
fn per_cent(text: &str) -> Result<f64, String> {
    let share = text.trim().parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| "expected a percentage such as errors<0.1%".to_owned())
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [value, verdict] = self.texts();
        writeln!(f, "threshold     {}: {value}, {verdict}", self.threshold)
    }
}

impl Outcome {
    /// Returns the value and the verdict as texts.
    pub(super) fn texts(&self) -> [String; 2] {
        let value = self.value.map_or("not measured".to_owned(), |value| format!("{value:.3}"));
        let verdict = match (self.met, self.is_answered) {
            (true, _) => "met",
            (false, true) => "MISSED",
            (false, false) => "MISSED: nothing was answered",
        };
        [value, verdict.to_owned()]
    }
}

/// Returns the last line of a run. If there are thresholds, they decide; `reasons` name what else
/// fell short.
pub(super) fn result(
    interrupted: bool,
    fell_short: bool,
    outcomes: &[Outcome],
    reasons: &[String],
    well: &str,
) -> String {
    let missed = outcomes.iter().filter(|outcome| !outcome.met);
    let missed = missed.map(|outcome| format!("threshold {} missed", outcome.threshold));
    let all = || missed.chain(reasons.iter().cloned()).collect::<Vec<_>>().join("; ");
    let besides = match reasons {
        [] => String::new(),
        reasons => format!(" ({})", reasons.join("; ")),
    };
    let text = match (interrupted, fell_short) {
        (true, _) => format!("interrupted{besides}"),
        (false, true) => format!("fell short: {}", all()),
        (false, false) if outcomes.is_empty() => well.to_owned(),
        (false, false) => format!("thresholds met{besides}"),
    };
    format!("result        {text}\n")
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Option<f64>) -> impl FnOnce(Metric) -> Figure {
        move |_| Figure { value, is_answered: true }
    }

    #[test]
    fn no_threshold_is_met_without_answers() {
        for text in ["errors<9", "errors<99%", "lost==0", "closed<1", "p99<1h", "rate<5", "max>0"] {
            let threshold: Threshold = text.parse().unwrap();
            for value in [None, Some(0.0), Some(1.0)] {
                let outcome = threshold.judge(|_| Figure { value, is_answered: false });
                assert!(!outcome.met, "{text}");
                assert!(
                    outcome.to_string().ends_with("MISSED: nothing was answered\n"),
                    "{outcome}"
                );
            }
        }
    }

    #[test]
    fn the_last_line_names_the_reason() {
        let judge = |text: &str, value| text.parse::<Threshold>().unwrap().judge(of(Some(value)));
        let (met, missed) = ([judge("errors<9", 1.0)], [judge("errors<9", 10.0)]);
        let reasons = ["1 requests failed".to_owned()];
        let none: [String; 0] = [];
        for (interrupted, short, outcomes, reasons, said) in [
            (false, false, &met[..], &reasons[..], "thresholds met (1 requests failed)"),
            (false, false, &met[..], &none[..], "thresholds met"),
            (false, true, &missed[..], &none[..], "fell short: threshold errors<9 missed"),
            (false, true, &[], &reasons[..], "fell short: 1 requests failed"),
            (false, false, &[], &none[..], "all answered"),
            (true, false, &[], &none[..], "interrupted"),
            (true, true, &met[..], &reasons[..], "interrupted (1 requests failed)"),
        ] {
            let line = result(interrupted, short, outcomes, reasons, "all answered");
            assert_eq!(line, format!("result        {said}\n"));
        }
        let error = "eror<1".parse::<Threshold>().unwrap_err();
        assert!(error.contains("did you mean errors?"), "{error}");
    }

    #[test]
    fn thresholds_are_parsed_and_judged() {
        let threshold: Threshold = "p99<50ms".parse().unwrap();
        let read = |threshold: &Threshold| (threshold.metric, threshold.sign, threshold.bound);
        assert_eq!(read(&threshold), (Metric::P99, Sign::Below, 50.0));
        let threshold: Threshold = "rate>10k".parse().unwrap();
        assert_eq!(read(&threshold), (Metric::Rate, Sign::Above, 10_000.0));
        for text in ["lost==0", "lost = 0"] {
            let threshold: Threshold = text.parse().unwrap();
            assert_eq!(read(&threshold), (Metric::Lost, Sign::Exactly, 0.0));
            assert!(threshold.judge(of(Some(0.0))).met && !threshold.judge(of(Some(1.0))).met);
        }
        let threshold: Threshold = "receipt_p99<50ms".parse().unwrap();
        assert_eq!(read(&threshold), (Metric::ReceiptP99, Sign::Below, 50.0));
        let threshold: Threshold = "errors<0.1%".parse().unwrap();
        assert_eq!((threshold.metric, threshold.bound), (Metric::ErrorShare, 0.1));
        assert!(!threshold.judge(of(Some(0.1))).met && threshold.judge(of(Some(0.0))).met);
        assert!(!threshold.judge(of(None)).met, "an unmeasured value meets no threshold");
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
