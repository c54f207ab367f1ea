//! Parses thresholds such as `p99<50ms`, `lost==0`, `rate>10k`. [`load::judge`] judges them.

use std::time::Duration;

use load::{Metric, Sign, Threshold};

use crate::settings::nearest;
use crate::units;

const SIGNS: [(&str, Sign); 4] =
    [("<", Sign::Below), (">", Sign::Above), ("==", Sign::Exactly), ("=", Sign::Exactly)];

/// Parses a condition.
///
/// # Errors
/// An unknown metric, or a bound that it cannot have.
pub(super) fn parse(text: &str) -> Result<Threshold, String> {
    let at = text
        .find(['<', '>', '='])
        .ok_or_else(|| "expected a condition such as p99<50ms or rate>10k".to_owned())?;
    let (name, rest) = text.split_at(at);
    let signs = SIGNS.iter().find_map(|(text, sign)| Some((*sign, rest.strip_prefix(text)?)));
    let (sign, bound) = signs.unwrap_or((Sign::Below, rest));
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
        (metric, _) if metric.is_time() => (*metric, milliseconds(units::duration(bound.trim())?)),
        (metric, _) => (*metric, units::count(bound.trim())? as f64),
    };
    Ok(Threshold { text: text.to_owned(), metric, sign, bound })
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
            assert_eq!(parsed, Threshold { text: text.to_owned(), metric, sign, bound });
        }
        for (text, named) in [
            ("p99", "p99<50ms"),
            ("errors<101%", "0.1%"),
            ("p50<1%", "500ms"),
            ("p98<1s", "p999"),
            ("p99<50", "500ms"),
            ("lost<many", "10k"),
            ("eror<1", "did you mean errors?"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
