//! [`Check`]: a named condition on an answer. A failed check is counted and the flow continues;
//! thresholds decide whether the run has failed.

use std::ops::RangeInclusive;
use std::time::Duration;

use regex::bytes::Regex;

use crate::grpc::accepted_code;
use crate::workload::requests::answer::Wants;
use crate::workload::scenario::extract::{AnswerView, Source, pattern};

/// A condition on an answer.
#[derive(Clone, Debug)]
pub struct Check {
    /// The name in summaries.
    pub name: String,
    /// The condition.
    pub rule: Rule,
}

/// What a check tests.
#[derive(Clone, Debug)]
pub enum Rule {
    /// Its status is one of these.
    Status(Vec<RangeInclusive<u16>>),
    /// A value exists and is as expected.
    Value(Source, Expected),
    /// The body's bytes.
    Size(Bound),
    /// Nanoseconds from the due time to the complete answer.
    Latency(Bound),
}

/// The expected value.
#[derive(Clone, Debug)]
pub enum Expected {
    /// Any value.
    Found,
    /// Exactly these bytes.
    Is(Vec<u8>),
    /// A match of this expression.
    Matches(Regex),
}

/// A bound of a figure.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Bound {
    /// Less than this.
    Below(u64),
    /// More than this.
    Above(u64),
    /// Equal to this.
    Exactly(u64),
}

impl Check {
    /// The parts of an answer that the check needs.
    #[must_use]
    pub fn wants(&self) -> Wants {
        match &self.rule {
            Rule::Value(source, _) => source.wants(),
            Rule::Status(_) | Rule::Size(_) | Rule::Latency(_) => Wants::Nothing,
        }
    }

    /// Whether it holds.
    #[must_use]
    pub fn holds(&self, seen: &AnswerView<'_>) -> bool {
        match &self.rule {
            Rule::Status(ranges) => ranges.iter().any(|range| range.contains(&seen.status)),
            Rule::Size(bound) => bound.holds(seen.size()),
            Rule::Latency(bound) => bound.holds(seen.latency_ns),
            Rule::Value(source, expected) => expected.holds(source.find(seen).as_deref()),
        }
    }
}

impl Rule {
    /// Parses `200`, `2xx` or `200-299`, or several with commas.
    ///
    /// # Errors
    /// What is expected.
    pub fn status(text: &str) -> Result<Rule, String> {
        let ranges = text.split(',').map(|one| statuses(one.trim()));
        Ok(Rule::Status(ranges.collect::<Result<_, _>>()?))
    }
}

impl Rule {
    /// Parses statuses of gRPC calls: `OK`, or several with commas.
    ///
    /// # Errors
    /// What is expected.
    pub fn code(text: &str) -> Result<Rule, String> {
        let codes = text.split(',').map(|one| accepted_code(one.trim()));
        Ok(Rule::Status(codes.collect::<Result<_, _>>()?))
    }
}

impl Expected {
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        match (value, self) {
            (None, _) => false,
            (Some(_), Expected::Found) => true,
            (Some(value), Expected::Is(wanted)) => value == wanted.as_slice(),
            (Some(value), Expected::Matches(pattern)) => pattern.is_match(value),
        }
    }

    /// Expects a match of a regular expression.
    ///
    /// # Errors
    /// What is expected.
    pub fn matches(text: &str) -> Result<Expected, String> {
        pattern(text).map(Expected::Matches)
    }
}

impl Bound {
    /// A bound in nanoseconds.
    #[must_use]
    pub fn of_time(sign: char, time: Duration) -> Option<Bound> {
        Self::new(sign, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// `<`, `>` or `=` and a number.
    #[must_use]
    pub fn new(sign: char, number: u64) -> Option<Bound> {
        match sign {
            '<' => Some(Bound::Below(number)),
            '>' => Some(Bound::Above(number)),
            '=' => Some(Bound::Exactly(number)),
            _ => None,
        }
    }

    fn holds(self, value: u64) -> bool {
        match self {
            Bound::Below(bound) => value < bound,
            Bound::Above(bound) => value > bound,
            Bound::Exactly(bound) => value == bound,
        }
    }
}

/// Parses `200`, `2xx` or `200-299`.
///
/// # Errors
/// What is expected.
pub fn statuses(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong =
        || format!("invalid status {text:?}: expected 200, 2xx or 200-204, or several with commas");
    status_range(text).ok_or_else(wrong)
}

fn status_range(text: &str) -> Option<RangeInclusive<u16>> {
    let three = |text: &str| {
        let number = text.parse::<u16>().ok();
        number.filter(|number| (100..1_000).contains(number))
    };
    if let Some(hundred) = text.strip_suffix("xx") {
        let first = hundred.parse::<u16>().ok().filter(|digit| (1..10).contains(digit))? * 100;
        return Some(first..=first + 99);
    }
    match text.split_once('-') {
        Some((first, last)) => Some(three(first)?..=three(last)?),
        None => three(text).map(|one| one..=one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::scenario::extract::tests::answer;

    fn holds(rule: Rule, status: u16) -> bool {
        let answer = answer(b"HTTP/1.1 200 OK\r\nA: b c\r\n\r\n", br#"{"ok":true,"n":3}"#);
        Check { name: "x".to_owned(), rule }.holds(&AnswerView::new(status, &answer))
    }

    #[test]
    fn statuses() {
        let right = [("200", 200), ("2xx", 299), ("200,404", 404), ("200-204, 5xx", 204)];
        let wrong = [("200", 201), ("2xx", 300), ("200,404", 500), ("200-204", 205)];
        for (text, status) in right {
            assert!(holds(Rule::status(text).unwrap(), status), "{text} {status}");
        }
        for (text, status) in wrong {
            assert!(!holds(Rule::status(text).unwrap(), status), "{text} {status}");
        }
        for text in ["", "20", "xx", "1000", "ok", "200,", "0xx"] {
            assert!(Rule::status(text).unwrap_err().contains("2xx"), "{text}");
        }
    }

    #[test]
    fn values_exist_are_equal_or_match() {
        let json = |path| Source::json(path).unwrap();
        let is = |text: &str| Expected::Is(text.as_bytes().to_vec());
        for (source, expected, right) in [
            (json("$.ok"), Expected::Found, true),
            (json("$.no"), Expected::Found, false),
            (json("$.ok"), is("true"), true),
            (json("$.n"), is("4"), false),
            (json("$.n"), Expected::matches("^[0-9]$").unwrap(), true),
            (Source::Header("a".to_owned()), Expected::matches("^b").unwrap(), true),
            (Source::Header("a".to_owned()), Expected::matches("^c").unwrap(), false),
            (Source::regex("\"n\":(.)").unwrap(), is("3"), true),
        ] {
            let label = format!("{source:?} {expected:?}");
            assert_eq!(holds(Rule::Value(source, expected), 200), right, "{label}");
        }
    }

    #[test]
    fn bounds_apply_to_the_complete_body_and_to_latency_from_the_due_time() {
        for (bound, right) in [
            (Bound::Below(18), true),
            (Bound::Below(17), false),
            (Bound::Above(16), true),
            (Bound::Exactly(17), true),
        ] {
            assert_eq!(holds(Rule::Size(bound), 200), right, "{bound:?}");
        }
        let ms = Duration::from_millis;
        assert!(holds(Rule::Latency(Bound::of_time('<', ms(6)).unwrap()), 200));
        assert!(!holds(Rule::Latency(Bound::of_time('<', ms(5)).unwrap()), 200));
        assert_eq!(Bound::new('!', 1), None);
    }
}
