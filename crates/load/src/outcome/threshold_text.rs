//! Thresholds as text, with units: `p99 22.6 ms < 1 s: met`. JSON has the numbers.

use std::fmt::{self, Display};

use capacity::{Count, Decimal, Milliseconds};

use crate::outcome::judge::{Metric, Sign, Threshold, ThresholdResult};
use crate::outcome::selection::Selector;

impl Metric {
    /// A value with its unit; `exactly`: with all the digits that are known.
    fn text(self, value: f64, exactly: bool) -> String {
        match self {
            metric if metric.is_time() && exactly => format!("{} ms", Decimal(value, 3)),
            metric if metric.is_time() => Milliseconds(value).to_string(),
            Metric::ErrorShare | Metric::Checks => {
                // As many decimals as the first digit needs, or three.
                let small = value > 0.0 && value < 0.001;
                format!("{} %", Decimal(value, if exactly || small { 6 } else { 3 }))
            }
            Metric::Rate => {
                let decimals = if exactly { 3 } else { usize::from(value.fract() > 0.0) };
                format!("{} per second", Decimal(value, decimals))
            }
            _ => Count(value as u64).to_string(),
        }
    }
}

impl Threshold {
    /// A value of its metric with the unit, with more digits if fewer would be those of the bound.
    fn with_unit(&self, value: f64) -> String {
        let text = self.metric.text(value, false);
        let differs = (value - self.bound).abs() > f64::EPSILON;
        match differs && text == self.metric.text(self.bound, false) {
            true => self.metric.text(value, true),
            false => text,
        }
    }

    /// The condition without the metric: `< 250 ms`.
    fn condition(&self) -> String {
        let sign = match self.sign {
            Sign::Below => "<",
            Sign::Above => ">",
            Sign::Exactly => "==",
        };
        // As short as it was given.
        let bound = match self.metric {
            metric if metric.is_time() && self.bound >= 1e3 => {
                format!("{} s", trimmed(self.bound / 1e3))
            }
            metric if metric.is_time() => format!("{} ms", trimmed(self.bound)),
            Metric::ErrorShare | Metric::Checks => format!("{} %", trimmed(self.bound)),
            metric => metric.text(self.bound.trunc(), false),
        };
        format!("{sign} {bound}")
    }

    /// The metric with its selector: `p99{step:login}`.
    fn name(&self) -> String {
        let named = Metric::NAMED.iter().find(|(_, metric)| *metric == self.metric);
        // A share of errors has the name of their number.
        let name = named.map_or("errors", |(name, _)| name);
        let selector = self.selector.as_ref().filter(|selector| !selector.labels.is_empty());
        format!("{name}{}", selector.map(Selector::to_string).unwrap_or_default())
    }
}

/// A number with at most six decimals, without zeros at its end.
fn trimmed(value: f64) -> String {
    let text = Decimal(value, 6).to_string();
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl ThresholdResult {
    /// The value with its unit, and the verdict, as texts.
    #[must_use]
    pub fn texts(&self) -> [String; 2] {
        let with_unit = |value| match &self.of {
            Some(threshold) => threshold.with_unit(value),
            None => Decimal(value, 3).to_string(),
        };
        let value = self.value.map_or("not measured".to_owned(), with_unit);
        match (self.met, &self.why) {
            (true, _) if self.value.is_none() => ["infinite".to_owned(), "met".to_owned()],
            (true, _) => [value, "met".to_owned()],
            (false, None) => [value, "MISSED".to_owned()],
            (false, Some(why)) if self.value.is_none() && why.starts_with("infinite") => {
                ["infinite".to_owned(), format!("MISSED: {}", why.trim_start_matches("infinite: "))]
            }
            (false, Some(why)) if why == "not measured" => [value, "MISSED".to_owned()],
            (false, Some(why)) => [value, format!("MISSED: {why}")],
        }
    }
}

impl Display for ThresholdResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [value, verdict] = self.texts();
        let Some(threshold) = &self.of else {
            return writeln!(f, "threshold     {}: {value}, {verdict}", self.threshold);
        };
        let (name, condition) = (threshold.name(), threshold.condition());
        match self.value {
            Some(_) => writeln!(f, "threshold     {name} {value} {condition}: {verdict}"),
            None => writeln!(f, "threshold     {name} {condition}: {value}, {verdict}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_shown_with_units() {
        let text = |metric, sign, bound, value| {
            let text = String::new();
            let of = Some(Threshold { text, metric, selector: None, sign, bound });
            let (threshold, why) = (String::new(), None);
            ThresholdResult { threshold, value, met: true, why, of }.to_string()
        };
        let (below, above, exactly) = (Sign::Below, Sign::Above, Sign::Exactly);
        for (metric, sign, bound, value, said) in [
            (Metric::P99, below, 1_000.0, 22.64, "p99 22.6 ms < 1 s"),
            (Metric::P50, below, 1_500.0, 0.154, "p50 0.154 ms < 1.5 s"),
            (Metric::Max, above, 0.0, 12_345.0, "max 12.3 s > 0 ms"),
            // What three digits would make equal.
            (Metric::P99, below, 1_000.0, 1_000.4, "p99 1,000.400 ms < 1 s"),
            (Metric::Errors, below, 5_000.0, 1_234.0, "errors 1,234 < 5,000"),
            (Metric::ErrorShare, below, 0.1, 0.0, "errors 0.000 % < 0.1 %"),
            (Metric::ErrorShare, below, 0.1, 0.000_4, "errors 0.000400 % < 0.1 %"),
            (Metric::Lost, exactly, 0.0, 0.0, "lost 0 == 0"),
            (
                Metric::Rate,
                above,
                10_000.0,
                12_345.67,
                "rate 12,345.7 per second > 10,000 per second",
            ),
        ] {
            assert_eq!(
                text(metric, sign, bound, Some(value)),
                format!("threshold     {said}: met\n")
            );
        }
        assert_eq!(
            text(Metric::P99, above, 50.0, None),
            "threshold     p99 > 50 ms: infinite, met\n"
        );
        let step = Selector { labels: vec![("step".to_owned(), "log in".to_owned())] };
        let (text, metric, sign) = (String::new(), Metric::P99, below);
        let selected = Threshold { text, metric, selector: Some(step), sign, bound: 50.0 };
        assert_eq!(selected.name(), "p99{step:log in}");
    }
}
