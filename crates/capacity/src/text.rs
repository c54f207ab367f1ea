//! Sizes, counts, rates and times formatted for people; files for programs have plain numbers. The units
//! of flags are parsed in the binary, not here.

use std::fmt;

/// A size in bytes, shown in decimal units: `4.2 KB`, `105 MB`, `9.1 GB`. 1 KB is 1,000 bytes; units of
/// 1,024 are written KiB, MiB, GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000 {
            return f.pad(&format!("{} B", self.0));
        }
        let bytes = u128::from(self.0);
        let mut unit = 1_000;
        for name in ["KB", "MB", "GB", "TB", "PB"] {
            // Compared as rounded, so that no figure ever reads 10.0 or 1,000.
            let tenths = (bytes * 10 + unit / 2) / unit;
            let whole = (bytes + unit / 2) / unit;
            if tenths < 100 {
                return f.pad(&format!("{}.{} {name}", tenths / 10, tenths % 10));
            }
            if whole < 1_000 {
                return f.pad(&format!("{whole} {name}"));
            }
            unit *= 1_000;
        }
        f.pad(&format!("{} EB", (bytes + unit / 2) / unit))
    }
}

/// A count with a comma every three digits: `1,000,000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&grouped(&self.0.to_string()))
    }
}

/// A measured number with so many decimals and a comma every three digits before them: `12,345.6`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Decimal(pub f64, pub usize);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decimal(value, decimals) = *self;
        let text = format!("{value:.decimals$}");
        if !value.is_finite() {
            return f.pad(&text);
        }
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.as_str()),
        };
        let whole = digits.find('.').unwrap_or(digits.len());
        let (whole, rest) = digits.split_at(whole);
        f.pad(&format!("{sign}{}{rest}", grouped(whole)))
    }
}

/// A time in milliseconds, shown with three digits in the unit that fits: `0.154 ms`, `22.6 ms`, `1.28 s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Milliseconds(pub f64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0;
        // Compared as rounded, so that no figure ever reads 10.00 or 1,000 ms.
        let (value, decimals, unit) = match ms {
            ms if ms < 0.999_5 => (ms, 3, "ms"),
            ms if ms < 9.995 => (ms, 2, "ms"),
            ms if ms < 99.95 => (ms, 1, "ms"),
            ms if ms < 999.5 => (ms, 0, "ms"),
            ms if ms < 9_995.0 => (ms / 1e3, 2, "s"),
            ms if ms < 99_950.0 => (ms / 1e3, 1, "s"),
            ms => (ms / 1e3, 0, "s"),
        };
        f.pad(&format!("{} {unit}", Decimal(value, decimals)))
    }
}

/// Digits with a comma every three.
fn grouped(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `value` rounded down to two significant digits, for figures that are themselves estimates.
pub fn about(value: u64) -> u64 {
    let mut step = 1;
    while value / step >= 100 {
        step *= 10;
    }
    value / step * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 KB"),
            (9_949, "9.9 KB"),
            (9_950, "10 KB"),
            (105_400_000, "105 MB"),
            (999_499_999, "999 MB"),
            (999_500_000, "1.0 GB"),
            (9_123_000_000, "9.1 GB"),
            (24_684_096 * 1024, "25 GB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|", Bytes(5_000)), "  5.0 KB|");
    }

    #[test]
    fn counts_have_thousands_separators() {
        for (count, text) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (20_000, "20,000"), (1_000_000, "1,000,000")]
        {
            assert_eq!(Count(count).to_string(), text);
        }
    }

    #[test]
    fn measured_numbers_have_thousands_separators_before_the_decimals() {
        for (value, decimals, text) in [
            (0.04, 1, "0.0"),
            (999.96, 1, "1,000.0"),
            (12_345.678, 1, "12,345.7"),
            (1_234_567.0, 0, "1,234,567"),
            (-1_234.5, 1, "-1,234.5"),
            (f64::INFINITY, 1, "inf"),
        ] {
            assert_eq!(Decimal(value, decimals).to_string(), text);
        }
        assert_eq!(format!("{:>9}|", Decimal(1_234.5, 1)), "  1,234.5|");
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (ms, text) in [
            (0.0, "0.000 ms"),
            (0.154_2, "0.154 ms"),
            (0.999_9, "1.00 ms"),
            (7.879, "7.88 ms"),
            (9.999, "10.0 ms"),
            (22.64, "22.6 ms"),
            (250.0, "250 ms"),
            (999.7, "1.00 s"),
            (12_345.0, "12.3 s"),
            (3_600_000.0, "3,600 s"),
        ] {
            assert_eq!(Milliseconds(ms).to_string(), text);
        }
    }

    #[test]
    fn estimates_are_rounded_down_to_two_digits() {
        for (value, rounded) in
            [(0, 0), (99, 99), (101, 100), (643_999, 640_000), (1_000_000, 1_000_000)]
        {
            assert_eq!(about(value), rounded);
        }
    }
}
