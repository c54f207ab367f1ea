//! Axes and units of the charts, on the page and on the live screen: round ticks, and values as text.

use capacity::{Bytes, Count, Milliseconds};

/// Most ticks that an axis may have.
const TICKS_MAX: i32 = 20;

/// Unit of the values of a chart.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Count,
    Bytes,
    PerSecond,
    Milliseconds,
    Cores,
}

impl Unit {
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Unit::Bytes => Bytes(value.max(0.0) as u64).to_string(),
            Unit::Count => short(value),
            Unit::PerSecond => format!("{}/s", short(value)),
            Unit::Milliseconds => milliseconds(value),
            Unit::Cores => format!("{value:.2}"),
        }
    }

    /// The distance of ticks on an axis up to `most` with about `ticks` of them.
    pub(super) fn step(self, most: f64, ticks: f64) -> f64 {
        let least = if most > 0.0 { most } else { 1.0 } / ticks;
        match self {
            Unit::Count | Unit::PerSecond | Unit::Bytes => nice_step(least).max(1.0),
            Unit::Milliseconds | Unit::Cores => nice_step(least),
        }
    }

    /// The top of an axis: a multiple of the step, not below the highest value.
    pub(super) fn top(self, most: f64, ticks: f64) -> f64 {
        let step = self.step(most, ticks);
        (most / step).ceil().max(1.0) * step
    }
}

/// A time without zeros that say nothing: `20 ms`, `0.5 ms`, `1.25 s`.
pub(super) fn milliseconds(value: f64) -> String {
    let text = Milliseconds(value).to_string();
    let Some((number, unit)) = text.split_once(' ').filter(|(number, _)| number.contains('.'))
    else {
        return text;
    };
    format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// 1,234 · 12.3 k · 1.23 M
pub(super) fn short(value: f64) -> String {
    let trimmed = |scaled: f64, unit: &str| {
        let digits = if scaled >= 99.95 { 0 } else { 1 };
        let text = format!("{scaled:.digits$}");
        format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    if value >= 999_500.0 {
        trimmed(value / 1e6, "M")
    } else if value >= 9_999.5 {
        trimmed(value / 1e3, "k")
    } else if value < 10.0 && value.fract() > 0.0 {
        format!("{value:.1}")
    } else {
        Count(value.round() as u64).to_string()
    }
}

/// The ticks from zero up to the top.
pub(super) fn ticks(top: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..=TICKS_MAX)
        .map(move |number| f64::from(number) * step)
        .take_while(move |&tick| tick <= top * 1.001)
}

/// Returns the smallest 1, 2 or 5 times a power of ten that is not below the value.
fn nice_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|&n| n >= least).unwrap_or(least)
}

/// The same in steps of a clock.
pub(super) fn nice_seconds(least: f64) -> f64 {
    const STEPS: [f64; 16] = [
        0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0,
        3_600.0,
    ];
    STEPS.into_iter().find(|&step| step >= least).unwrap_or_else(|| nice_step(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_formatted_for_people() {
        for (value, text) in [
            (0.0, "0"),
            (1.5, "1.5"),
            (9_999.0, "9,999"),
            (9_999.9, "10 k"),
            (99_990.0, "100 k"),
            (250_000.0, "250 k"),
            (1e6, "1 M"),
        ] {
            assert_eq!(short(value), text);
        }
        let times = [0.0, 0.05, 1.0, 2.5, 20.0, 66.2, 100.0, 1_250.0, 2_500.0, 60_000.0];
        let texts = times.map(milliseconds);
        let expected = [
            "0 ms", "0.05 ms", "1 ms", "2.5 ms", "20 ms", "66.2 ms", "100 ms", "1.25 s", "2.5 s",
            "60 s",
        ];
        assert_eq!(texts, expected);
        assert_eq!(Unit::Bytes.text(5e6), "5.0 MB");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (most, top) in [(1_000_000.0, 1_000_000.0), (7.0, 8.0), (101.0, 150.0), (0.0, 1.0)] {
            let found = Unit::Count.top(most, 4.0);
            assert!((found - top).abs() < 1e-6, "{most}: {found}");
        }
        assert!((Unit::Milliseconds.top(0.3, 4.0) - 0.3).abs() < 1e-9);
        assert_eq!((nice_seconds(0.7), nice_seconds(400.0)), (1.0, 600.0));
        // Half a socket is no tick.
        assert_eq!(Unit::Count.step(1.0, 4.0), 1.0);
    }
}
