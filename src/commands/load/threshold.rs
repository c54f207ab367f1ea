//! Parses thresholds such as `p99<50ms`, `lost==0`, `rate>10k`. [`load::judge`] judges them.

use std::time::Duration;

use load::{Metric, Selector, Sign, Threshold};

use crate::settings::nearest;
use crate::units;

const SIGNS: [(&str, Sign); 4] =
    [("<", Sign::Below), (">", Sign::Above), ("==", Sign::Exactly), ("=", Sign::Exactly)];

/// Parses a condition.
///
/// # Errors
/// An unknown metric, or a bound that it cannot have.
pub(super) fn parse(text: &str) -> Result<Threshold, String> {
    let expected = || "expected a condition such as p99<50ms or rate>10k".to_owned();
    // Names in braces may contain signs.
    let (selector, after) = match text.split_once('{') {
        Some((name, rest)) if !name.contains(['<', '>', '=']) => {
            let (inside, rest) = rest.rsplit_once('}').ok_or_else(|| {
                format!("{text:?}: {{ is not closed: expected p99{{step:NAME}}<50ms")
            })?;
            (Some(selector(inside)?), (name, rest.trim_start()))
        }
        _ => (None, text.split_at(text.find(['<', '>', '=']).ok_or_else(expected)?)),
    };
    let (name, rest) = after;
    let signs = SIGNS.iter().find_map(|(text, sign)| Some((*sign, rest.strip_prefix(text)?)));
    let (sign, bound) = signs.ok_or_else(expected)?;
    let names = || Metric::NAMED.iter().map(|(name, _)| *name);
    let found = Metric::NAMED.iter().find(|(known, _)| *known == name.trim());
    let near = nearest(name.trim(), names());
    let near = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
    let (_, metric) = found.ok_or_else(|| {
        let names = names().collect::<Vec<_>>().join(", ");
        format!("unknown metric {name:?}{near} (expected one of {names})")
    })?;
    let (metric, bound) = match (metric, bound.trim().strip_suffix('%')) {
        (Metric::Errors, Some(share)) => (Metric::ErrorShare, per_cent(share)?),
        (Metric::Checks, Some(share)) => (Metric::Checks, per_cent(share)?),
        (Metric::Checks, None) => {
            return Err("expected a percentage such as checks>99%".to_owned());
        }
        (metric, _) if metric.is_time() => (*metric, milliseconds(units::duration(bound.trim())?)),
        (metric, _) => (*metric, units::count(bound.trim())? as f64),
    };
    let selector = match (selector, metric) {
        (None, Metric::Checks) => Some(Selector::default()),
        (None, _) => None,
        (Some(selector), Metric::Checks) => Some(selector),
        (Some(selector), _) if selector.is_of_checks() => {
            return Err(
                "only checks can be selected by check, as in checks{check:NAME}>99%".to_owned()
            );
        }
        (Some(_), metric) if !metric.is_of_steps() => {
            return Err(format!("{} cannot be selected by step or tag", name.trim()));
        }
        (selector, _) => selector,
    };
    Ok(Threshold { text: text.to_owned(), metric, selector, sign, bound })
}

/// Parses `step:login,type:api`. Values with a comma are quoted.
fn selector(text: &str) -> Result<Selector, String> {
    let wrong = || {
        format!(
            "invalid selector {{{text}}}: expected {{step:NAME}}, {{check:NAME}} or {{TAG:VALUE}}"
        )
    };
    let mut labels: Vec<(String, String)> = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once(':').ok_or_else(wrong)?;
        let after = after.trim_start();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or_else(wrong)?,
            None => after.split_at(after.find(',').unwrap_or(after.len())),
        };
        let (key, value, after) = (key.trim(), value.trim(), after.trim_start());
        if key.is_empty() || value.is_empty() || labels.iter().any(|(known, _)| known == key) {
            return Err(wrong());
        }
        labels.push((key.to_owned(), value.to_owned()));
        rest = match after.strip_prefix(',') {
            Some(next) if !next.trim().is_empty() => next.trim_start(),
            None if after.is_empty() => after,
            _ => return Err(wrong()),
        };
    }
    if labels.is_empty() { Err(wrong()) } else { Ok(Selector { labels }) }
}

/// Refuses thresholds that select steps or checks, as only scenarios have them.
///
/// # Errors
/// Names the threshold.
pub(super) fn check_whole(thresholds: &[Threshold]) -> Result<(), String> {
    match thresholds.iter().find(|threshold| threshold.selector.is_some()) {
        Some(threshold) if threshold.metric == Metric::Checks => Err(format!(
            "threshold {}: there are no checks: add --check RULE, or use a scenario",
            threshold.text
        )),
        Some(threshold) => {
            Err(format!("threshold {}: only scenarios have steps and checks", threshold.text))
        }
        None => Ok(()),
    }
}

/// Parses a percentage such as `0.1`.
fn per_cent(text: &str) -> Result<f64, String> {
    let share = text.trim().parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| "expected a percentage such as errors<0.1%".to_owned())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_parsed() {
        for (text, metric, sign, bound) in [
            ("p99<50ms", Metric::P99, Sign::Below, 50.0),
            ("rate>10k", Metric::Rate, Sign::Above, 10_000.0),
            ("lost==0", Metric::Lost, Sign::Exactly, 0.0),
            ("lost = 0", Metric::Lost, Sign::Exactly, 0.0),
            ("receipt_p99<50ms", Metric::ReceiptP99, Sign::Below, 50.0),
            ("errors<0.1%", Metric::ErrorShare, Sign::Below, 0.1),
        ] {
            let parsed = parse(text).unwrap();
            let selector = None;
            assert_eq!(parsed, Threshold { text: text.to_owned(), metric, selector, sign, bound });
        }
        for (text, named) in [
            ("p99", "p99<50ms"),
            ("errors<101%", "0.1%"),
            ("p50<1%", "500ms"),
            ("p98<1s", "p999"),
            ("p99<50", "500ms"),
            ("lost<many", "10k"),
            ("eror<1", "did you mean errors?"),
            ("checks>9", "checks>99%"),
            ("p99{step:a<1s", "not closed"),
            ("p99{}<1s", "{step:NAME}"),
            ("p99{step}<1s", "{step:NAME}"),
            ("p99{step:}<1s", "{step:NAME}"),
            ("p99{step:a,}<1s", "{step:NAME}"),
            ("p99{step:a,step:b}<1s", "{step:NAME}"),
            ("p99{step:a}", "p99<50ms"),
            ("p99{check:a}<1s", "checks{check:NAME}"),
            ("lost{step:a}<1", "cannot be selected"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
    #[test]
    fn selectors_are_parsed_as_in_k6() {
        for (text, metric, labels) in [
            ("p99{step:log in}<50ms", Metric::P99, &[("step", "log in")][..]),
            ("errors{type:api, step:a}<1%", Metric::ErrorShare, &[("type", "api"), ("step", "a")]),
            ("checks{check:status is 200}>99%", Metric::Checks, &[("check", "status is 200")]),
            ("checks{check:latency <250ms}>99%", Metric::Checks, &[("check", "latency <250ms")]),
            (
                "checks{check:\"status 200, 404\",step:a:b} == 100%",
                Metric::Checks,
                &[("check", "status 200, 404"), ("step", "a:b")],
            ),
            ("checks{check:$.a[?@.b > '{'] }>1%", Metric::Checks, &[("check", "$.a[?@.b > '{']")]),
            ("checks>99%", Metric::Checks, &[]),
        ] {
            let parsed = parse(text).unwrap();
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let selector = Some(Selector { labels: labels.collect() });
            assert_eq!((parsed.metric, &parsed.selector), (metric, &selector), "{text}");
            assert!(check_whole(&[parsed]).unwrap_err().contains(text));
        }
        assert_eq!(check_whole(&[parse("p99<1s").unwrap()]), Ok(()));
    }
}
