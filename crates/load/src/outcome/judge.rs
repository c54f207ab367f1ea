//! [`judge`]: whether an [`Outcome`] is what was expected: [`Threshold`]s such as `p99<50ms`, `lost==0`
//! or `rate>10k`, and, without them, no shortfall at all.
//!
//! The verdict fails closed. A figure that was not measured meets no threshold. Whatever was due and
//! not answered took forever, so percentiles for thresholds are of everything that was due. `rate`
//! counts good answers. And a shortfall has to be tolerated by a threshold on a count that covers it:
//! a latency or a rate alone does not pass a run that fell short.

use serde::{Deserialize, Serialize};

use crate::outcome::FAILED;
use crate::outcome::sections::Quantiles;
use crate::outcome::selection::{Selection, Selector};
use crate::outcome::{Outcome, Shortfall, saturation};

/// A condition on one figure of an outcome.
#[derive(Clone, PartialEq, Debug)]
pub struct Threshold {
    /// As written.
    pub text: String,
    /// The figure.
    pub metric: Metric,
    /// The steps or checks that it is of; `None` for the whole run.
    pub selector: Option<Selector>,
    /// How it compares with the bound.
    pub sign: Sign,
    /// In milliseconds, a count, percent, or a rate per second.
    pub bound: f64,
}

/// How a figure compares with its bound.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sign {
    /// Less than the bound.
    Below,
    /// More than the bound.
    Above,
    /// The bound itself.
    Exactly,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// A figure of an outcome.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum Metric {
            $($(#[$doc])* $variant,)*
            /// [`Metric::Errors`] in percent of what was due.
            ErrorShare,
        }

        impl Metric {
            /// The metrics by name.
            pub const NAMED: &[(&str, Metric)] = &[$(($name, Metric::$variant),)*];
        }
    };
}

metrics! {
    /// Percentiles of latency in milliseconds, from when a message was due.
    P50 "p50",
    /// See [`Metric::P50`].
    P90 "p90",
    /// See [`Metric::P50`].
    P95 "p95",
    /// See [`Metric::P50`].
    P99 "p99",
    /// See [`Metric::P50`].
    P999 "p999",
    /// See [`Metric::P50`].
    Max "max",
    /// Requests that failed; in runs of WebSockets connects that failed.
    Failed "failed",
    /// Connections that ended before the run.
    Closed "closed",
    /// Messages without a receipt or an answer.
    Lost "lost",
    /// Messages received again.
    Duplicated "duplicated",
    /// Messages received after a later one.
    Reordered "reordered",
    /// Messages received later than allowed.
    Late "late",
    /// Percentiles from sending to receipt, of publications and of users in groups.
    ReceiptP50 "receipt_p50",
    /// See [`Metric::ReceiptP50`].
    ReceiptP99 "receipt_p99",
    /// See [`Metric::ReceiptP50`].
    ReceiptMax "receipt_max",
    /// Passes that were due while no user was free.
    Dropped "dropped",
    /// All errors of connections and messages.
    Errors "errors",
    /// Good answers per second; of a fan-out accepted publications per second.
    Rate "rate",
    /// Checks that held, in percent.
    Checks "checks",
}

impl Metric {
    /// Whether it is a time in milliseconds.
    #[must_use]
    pub fn is_time(self) -> bool {
        use Metric::{Max, P50, P90, P95, P99, P999, ReceiptMax, ReceiptP50, ReceiptP99};
        matches!(self, P50 | P90 | P95 | P99 | P999 | Max | ReceiptP50 | ReceiptP99 | ReceiptMax)
    }

    /// Whether steps of a scenario have it, each its own.
    #[must_use]
    pub fn is_of_steps(self) -> bool {
        use Metric::{Checks, ErrorShare, Errors, Failed, Max, P50, P90, P95, P99, P999, Rate};
        matches!(self, P50 | P90 | P95 | P99 | P999 | Max)
            || matches!(self, Failed | Errors | ErrorShare | Rate | Checks)
    }
}

/// The value of a metric.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum Figure {
    /// Measured.
    Value(f64),
    /// A percentile that lies among what was never answered.
    Infinite,
    /// Not measured.
    Unknown,
}

/// The result of a threshold.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct ThresholdResult {
    /// As written.
    pub threshold: String,
    /// In milliseconds, a count, percent, or a rate per second; null if it was not measured or is
    /// infinite.
    pub value: Option<f64>,
    /// Whether the threshold is met.
    pub met: bool,
    /// Why it is not met whatever its value is; null if its value decides.
    #[serde(default)]
    pub why: Option<String>,
    /// What was judged, for its text; `None` if it was read from a file.
    #[serde(skip)]
    pub(crate) of: Option<Threshold>,
}

impl Threshold {
    /// Whether a time or a rate is good by a factor. A saturated generator lengthens times and lowers
    /// rates by an unknown amount, so it does not matter then.
    fn is_met_by_far(&self, value: f64) -> bool {
        match self.sign {
            Sign::Below => self.metric.is_time() && value * saturation::MARGIN <= self.bound,
            Sign::Above => !self.metric.is_time() && value >= self.bound * saturation::MARGIN,
            Sign::Exactly => false,
        }
    }

    fn judge(&self, outcome: &Outcome) -> ThresholdResult {
        let (figure, is_answered) = match &self.selector {
            None => (outcome.figure(self.metric), outcome.is_answered(self.metric)),
            Some(selector) => outcome.selected(selector, self.metric),
        };
        let rate_or_time = self.metric.is_time() || self.metric == Metric::Rate;
        let why = match (figure, is_answered) {
            (_, false) => Some("nothing was answered".to_owned()),
            (Figure::Unknown, _) => Some("not measured".to_owned()),
            (Figure::Infinite, _) => {
                Some("infinite: too many failed or were never answered".to_owned())
            }
            (Figure::Value(value), true)
                if rate_or_time && outcome.is_saturated() && !self.is_met_by_far(value) =>
            {
                Some("the generator was saturated".to_owned())
            }
            (Figure::Value(_), true) => None,
        };
        let value = match figure {
            Figure::Value(value) => Some(value),
            Figure::Infinite | Figure::Unknown => None,
        };
        let met = value.filter(|_| why.is_none()).is_some_and(|value| match self.sign {
            Sign::Below => value < self.bound,
            Sign::Above => value > self.bound,
            // Counts and their bounds are integers.
            Sign::Exactly => (value - self.bound).abs() < f64::EPSILON,
        });
        // An infinite latency is above every bound.
        let above = figure == Figure::Infinite && self.sign == Sign::Above;
        let (met, why) = if above && is_answered { (true, None) } else { (met, why) };
        ThresholdResult { threshold: self.text.clone(), value, met, why, of: Some(self.clone()) }
    }
}

/// Judges an outcome: sets its threshold results and whether it held.
pub fn judge(outcome: &mut Outcome, thresholds: &[&Threshold]) {
    outcome.thresholds = thresholds.iter().map(|threshold| threshold.judge(outcome)).collect();
    let met = |metrics: &[Metric]| {
        let mut results = thresholds.iter().zip(&outcome.thresholds);
        results.any(|(threshold, result)| {
            result.met && threshold.selector.is_none() && metrics.contains(&threshold.metric)
        })
    };
    let by_steps = outcome.is_covered_by_steps(thresholds);
    let shortfalls = outcome.shortfalls();
    let tolerated = |shortfall: &Shortfall| {
        met(shortfall.covered_by) || shortfall.covered_by == FAILED && by_steps
    };
    outcome.tolerated = shortfalls.iter().all(tolerated) && !thresholds.is_empty();
    outcome.reasons = shortfalls.into_iter().map(|shortfall| shortfall.text).collect();
    outcome.held = outcome.reasons.is_empty() && !outcome.interrupted;
}

impl Outcome {
    /// The value of a metric of selected steps or checks, and whether any of them was answered.
    fn selected(&self, selector: &Selector, metric: Metric) -> (Figure, bool) {
        let name = selector.to_string();
        let Some(of) = self.selections.iter().find(|selection| selection.selector == name) else {
            return (Figure::Unknown, true);
        };
        let Selection { requests, failed, checks_passed, checks_failed, .. } = *of;
        let all = of.latency_of_all;
        let time = |pick: fn(&Quantiles) -> Option<f64>| {
            all.map_or(Figure::Unknown, |all| pick(&all).map_or(Figure::Infinite, Figure::Value))
        };
        let share = |part: u64, whole: u64| match whole {
            0 => Figure::Unknown,
            whole => Figure::Value(100.0 * part as f64 / whole as f64),
        };
        let figure = match metric {
            Metric::P50 => time(|all| all.p50_ms),
            Metric::P90 => time(|all| all.p90_ms),
            Metric::P95 => time(|all| all.p95_ms),
            Metric::P99 => time(|all| all.p99_ms),
            Metric::P999 => time(|all| all.p999_ms),
            Metric::Max => time(|all| all.max_ms),
            Metric::Failed | Metric::Errors => Figure::Value(failed as f64),
            Metric::ErrorShare => share(failed, requests),
            Metric::Rate => of.good_per_second.map_or(Figure::Unknown, Figure::Value),
            Metric::Checks => share(checks_passed, checks_passed + checks_failed),
            _ => Figure::Unknown,
        };
        (figure, of.answered > 0)
    }

    /// Whether each failed request is of a step whose failures a threshold that was met allows, or
    /// failed only by checks of which one allows failures.
    fn is_covered_by_steps(&self, thresholds: &[&Threshold]) -> bool {
        let met = thresholds.iter().zip(&self.thresholds).filter(|(_, result)| result.met);
        let met: Vec<(&Selector, bool)> = met
            .filter_map(|(threshold, _)| match threshold.metric {
                Metric::Failed | Metric::Errors | Metric::ErrorShare => {
                    Some((threshold.selector.as_ref()?, false))
                }
                Metric::Checks => Some((threshold.selector.as_ref()?, true)),
                _ => None,
            })
            .collect();
        let steps =
            self.flows.iter().flat_map(|flow| flow.steps.iter().map(move |step| (flow, step)));
        let covered = steps.map(|(flow, step)| {
            let by = met.iter().map(|(of, only_checks)| of.covered(&flow.name, step, *only_checks));
            by.max().unwrap_or(0)
        });
        let covered: u64 = covered.sum();
        self.requests.is_some_and(|of| covered >= of.failed)
    }
}

/// The verdict on an outcome.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No shortfall, and every threshold met.
    Held,
    /// Every threshold met, and what fell short is tolerated by them.
    ThresholdsMet,
    /// A threshold was missed, and nothing else.
    ThresholdMissed,
    /// It fell short.
    FellShort,
    /// It was interrupted.
    Interrupted,
}

impl Verdict {
    /// The verdict on a judged outcome.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Verdict {
        let missed = outcome.thresholds.iter().any(|result| !result.met);
        match outcome {
            _ if outcome.interrupted => Verdict::Interrupted,
            _ if missed && outcome.reasons.is_empty() => Verdict::ThresholdMissed,
            _ if missed => Verdict::FellShort,
            _ if outcome.held && outcome.thresholds.is_empty() => Verdict::Held,
            _ if outcome.held || outcome.tolerated => Verdict::ThresholdsMet,
            _ => Verdict::FellShort,
        }
    }

    /// Whether the run is what was expected.
    #[must_use]
    pub fn is_good(self) -> bool {
        matches!(self, Verdict::Held | Verdict::ThresholdsMet)
    }

    /// The exit code of a command: 0, 1, or 130 if the run was interrupted.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Held | Verdict::ThresholdsMet => 0,
            Verdict::ThresholdMissed | Verdict::FellShort => 1,
            Verdict::Interrupted => 130,
        }
    }
}

/// How the reason of a run begins that misses the results of others: no threshold makes it hold.
pub const INCOMPLETE: &str = "INCOMPLETE: ";

/// The last line of the text of a judged outcome. `well` is said of a run without thresholds.
#[must_use]
pub fn last_line(outcome: &Outcome, well: &str) -> String {
    let is_missed = outcome.thresholds.iter().any(|result| !result.met);
    let missed = outcome.thresholds.iter().filter(|result| !result.met);
    let missed = missed.map(|result| format!("threshold {} missed", result.threshold));
    let reasons = &outcome.reasons;
    let besides = match reasons.as_slice() {
        [] => String::new(),
        reasons => format!(" ({})", reasons.join("; ")),
    };
    let is_incomplete = reasons.iter().any(|reason| reason.starts_with(INCOMPLETE));
    let all = || missed.chain(reasons.iter().cloned()).collect::<Vec<_>>().join("; ");
    let text = match Verdict::of(outcome) {
        Verdict::Interrupted => format!("interrupted{besides}"),
        Verdict::Held => well.to_owned(),
        Verdict::ThresholdsMet => format!("thresholds met{besides}"),
        Verdict::FellShort if !outcome.thresholds.is_empty() && !is_missed && !is_incomplete => {
            let more = "no threshold tolerates it: add one such as errors<1%";
            format!("fell short: {} ({more})", all())
        }
        Verdict::ThresholdMissed | Verdict::FellShort => format!("fell short: {}", all()),
    };
    format!("result        {text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::generator::Generator;
    use crate::outcome::sections::{EchoSummary, RequestCounts};

    fn quantiles(p50_ms: Option<f64>) -> Option<Quantiles> {
        let none = None;
        let (count, p90_ms, p95_ms, p99_ms, p999_ms, max_ms) = (9, none, none, none, none, none);
        Some(Quantiles { count, p50_ms, p90_ms, p95_ms, p99_ms, p999_ms, max_ms })
    }

    fn requests(ok: u64, failed: u64) -> Outcome {
        let answered = ok + failed;
        let mut outcome = Outcome {
            requests: Some(RequestCounts { ok, failed, answered, ..RequestCounts::default() }),
            good_per_second: Some(ok as f64),
            latency_of_all: quantiles(Some(1.0)),
            ..Outcome::default()
        };
        outcome.connections.requested = 1;
        outcome
    }

    fn threshold(metric: Metric, sign: Sign, bound: f64) -> Threshold {
        let (name, _) = Metric::NAMED.iter().find(|(_, known)| *known == metric).unwrap();
        Threshold { text: (*name).to_owned(), metric, selector: None, sign, bound }
    }

    fn verdict(mut outcome: Outcome, thresholds: &[Threshold]) -> (Verdict, String) {
        judge(&mut outcome, &thresholds.iter().collect::<Vec<_>>());
        (Verdict::of(&outcome), last_line(&outcome, "all answered"))
    }

    #[test]
    fn nothing_is_met_without_answers_or_without_a_measurement() {
        let all = Metric::NAMED.iter().map(|(_, metric)| *metric);
        for metric in all {
            let threshold = threshold(metric, Sign::Below, 1e9);
            let silent = Outcome { requests: Some(RequestCounts::default()), ..requests(0, 0) };
            assert_eq!(verdict(silent, &[threshold]).0, Verdict::FellShort, "{metric:?}");
        }
        let unmeasured = Outcome { latency_of_all: None, good_per_second: None, ..requests(9, 0) };
        for metric in [Metric::P50, Metric::Rate, Metric::Duplicated, Metric::ReceiptMax] {
            let threshold = [threshold(metric, Sign::Below, 1e9)];
            let (verdict, _) = verdict(unmeasured.clone(), &threshold);
            assert_eq!(verdict, Verdict::ThresholdMissed, "{metric:?}");
        }
    }

    #[test]
    fn a_percentile_among_what_was_never_answered_is_missed() {
        let p99 = [threshold(Metric::P99, Sign::Below, 1e9)];
        let (verdict, line) = verdict(requests(5, 500), &p99);
        assert_eq!(verdict, Verdict::FellShort);
        assert!(line.contains("fell short: threshold p99 missed; 500 requests failed"), "{line}");
    }

    #[test]
    fn a_latency_or_a_rate_alone_does_not_pass_a_run_that_fell_short() {
        let p50 = || threshold(Metric::P50, Sign::Below, 9.0);
        let rate = || threshold(Metric::Rate, Sign::Above, 1.0);
        assert_eq!(verdict(requests(9, 0), &[p50(), rate()]).0, Verdict::ThresholdsMet);
        let (short, line) = verdict(requests(9, 1), &[p50(), rate()]);
        assert_eq!(short, Verdict::FellShort);
        assert!(line.contains("1 requests failed (no threshold tolerates it"), "{line}");
        // Set after the judgement, whatever the thresholds are.
        let mut incomplete = requests(9, 0);
        judge(&mut incomplete, &[&p50()]);
        (incomplete.held, incomplete.tolerated) = (false, false);
        incomplete.reasons.push(format!("{INCOMPLETE}one has no result"));
        assert_eq!(Verdict::of(&incomplete), Verdict::FellShort);
        assert_eq!(
            last_line(&incomplete, ""),
            "result        fell short: INCOMPLETE: one has no result\n"
        );
        let few = |metric| threshold(metric, Sign::Below, 2.0);
        for metric in [Metric::Errors, Metric::Failed] {
            let (tolerated, line) = verdict(requests(9, 1), &[p50(), few(metric)]);
            assert_eq!(tolerated, Verdict::ThresholdsMet, "{metric:?}");
            assert_eq!(line, "result        thresholds met (1 requests failed)\n");
        }
        let echo = EchoSummary { sent: 9, received: 8, lost: 1, ..EchoSummary::default() };
        let lost = || Outcome { requests: None, echo: Some(echo.clone()), ..requests(0, 0) };
        let open = |mut outcome: Outcome| {
            outcome.connections.open = Some(1);
            outcome
        };
        assert_eq!(verdict(open(lost()), &[few(Metric::Failed)]).0, Verdict::FellShort);
        assert_eq!(verdict(open(lost()), &[few(Metric::Lost)]).0, Verdict::ThresholdsMet);
    }

    #[test]
    fn rate_counts_good_answers() {
        let rate = threshold(Metric::Rate, Sign::Above, 490.0);
        let refused = Outcome { per_second: Some(500.0), ..requests(0, 500) };
        assert_eq!(verdict(refused, &[rate]).0, Verdict::FellShort);
    }

    #[test]
    fn a_saturated_generator_has_no_verdict_on_times_and_rates() {
        let generator = serde_json::json!({"cores": 2, "cpu_seconds": 1.0, "cpu_cores_most": 1.0, "workers": [],
            "saturated": true, "reasons": ["it had no core"], "rate_missed": false});
        let generator: Option<Generator> = serde_json::from_value(generator).unwrap();
        for (metric, sign, bound, met) in [
            (Metric::P50, Sign::Below, 9.0, false),
            (Metric::P50, Sign::Below, 11.0, true),
            (Metric::P50, Sign::Above, 0.01, false),
            (Metric::Rate, Sign::Above, 5.0, false),
            (Metric::Rate, Sign::Above, 0.5, true),
            (Metric::Rate, Sign::Below, 1e9, false),
            (Metric::Errors, Sign::Below, 1.0, true),
        ] {
            let threshold = threshold(metric, sign, bound);
            let mut outcome = Outcome { generator: generator.clone(), ..requests(9, 0) };
            judge(&mut outcome, &[&threshold]);
            let result = &outcome.thresholds[0];
            assert_eq!(result.met, met, "{metric:?} {sign:?} {bound}");
            assert_eq!(result.why.as_deref(), (!met).then_some("the generator was saturated"));
            assert!(outcome.to_string().starts_with("SATURATED     "), "{outcome}");
            assert!(outcome.to_string().contains("it had no core"), "{outcome}");
        }
    }

    #[test]
    fn the_last_line_names_the_reason() {
        let errors = || vec![threshold(Metric::Errors, Sign::Below, 5.0)];
        let interrupted = |outcome: Outcome| Outcome { interrupted: true, ..outcome };
        for (outcome, thresholds, verdict_of, said) in [
            (
                requests(9, 1),
                errors(),
                Verdict::ThresholdsMet,
                "thresholds met (1 requests failed)",
            ),
            (requests(9, 0), errors(), Verdict::ThresholdsMet, "thresholds met"),
            (
                requests(9, 9),
                errors(),
                Verdict::FellShort,
                "fell short: threshold errors missed; 9 requests failed",
            ),
            (requests(9, 1), vec![], Verdict::FellShort, "fell short: 1 requests failed"),
            (requests(9, 0), vec![], Verdict::Held, "all answered"),
            (interrupted(requests(9, 0)), vec![], Verdict::Interrupted, "interrupted"),
            (
                interrupted(requests(9, 1)),
                errors(),
                Verdict::Interrupted,
                "interrupted (1 requests failed)",
            ),
        ] {
            let (verdict, line) = verdict(outcome, &thresholds);
            assert_eq!((verdict, line), (verdict_of, format!("result        {said}\n")));
        }
    }
}
