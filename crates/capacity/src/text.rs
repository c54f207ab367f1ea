//! Sizes and counts formatted for people. The units of flags are parsed in the binary, not here.

use std::fmt;

/// A size in bytes, shown in decimal units: `105 MB`, `9.1 GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1_000 {
            return f.pad(&format!("{} B", self.0));
        }
        let bytes = u128::from(self.0);
        let mut unit = 1_000;
        for name in ["kB", "MB", "GB", "TB", "PB"] {
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
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
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
            (1_000, "1.0 kB"),
            (9_949, "9.9 kB"),
            (9_950, "10 kB"),
            (105_400_000, "105 MB"),
            (999_499_999, "999 MB"),
            (999_500_000, "1.0 GB"),
            (9_123_000_000, "9.1 GB"),
            (24_684_096 * 1024, "25 GB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|", Bytes(5_000)), "  5.0 kB|");
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
    fn estimates_are_rounded_down_to_two_digits() {
        for (value, rounded) in
            [(0, 0), (99, 99), (101, 100), (643_999, 640_000), (1_000_000, 1_000_000)]
        {
            assert_eq!(about(value), rounded);
        }
    }
}
