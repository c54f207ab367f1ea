//! `grpc-timeout`: how long a caller waits for an answer, told to the server.

use std::time::Duration;

/// The largest value: eight digits.
const VALUE_MAX: u128 = 99_999_999;
/// The units with their length in nanoseconds, finest first.
const UNITS: [(char, u128); 6] = [
    ('n', 1),
    ('u', 1_000),
    ('m', 1_000_000),
    ('S', 1_000_000_000),
    ('M', 60_000_000_000),
    ('H', 3_600_000_000_000),
];

/// The value for a time: in the finest unit that has room for it, rounded up, as a server must not give up
/// before its caller.
#[must_use]
pub fn encode_timeout(time: Duration) -> String {
    let ns = time.as_nanos();
    let fitting = UNITS.iter().find(|(_, unit)| ns.div_ceil(*unit) <= VALUE_MAX);
    match fitting {
        Some((name, unit)) => format!("{}{name}", ns.div_ceil(*unit)),
        None => format!("{VALUE_MAX}H"),
    }
}

/// Reads a value. `None` if it is none.
#[must_use]
pub fn parse_timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let valid = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let (_, ns) = UNITS.iter().find(|(name, _)| unit.starts_with(*name))?;
    let value: u128 = digits.parse().ok().filter(|_| valid)?;
    let ns = value * ns;
    let seconds = u64::try_from(ns / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, u32::try_from(ns % 1_000_000_000).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_eight_digits_at_most_and_are_never_shortened() {
        for (time, value) in [
            (Duration::ZERO, "0n"),
            (Duration::from_millis(50), "50000000n"),
            (Duration::from_secs(1), "1000000u"),
            (Duration::from_secs(30), "30000000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_nanos(100_000_001), "100001u"),
            (Duration::from_secs(100_000), "100000S"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(encode_timeout(time), value);
        }
        for shift in 0..64 {
            let time = Duration::from_nanos(0xdead_beef_cafe_f00d >> shift);
            let parsed = parse_timeout(&encode_timeout(time)).unwrap();
            assert!(parsed >= time && parsed.as_nanos() <= time.as_nanos() * 10_001 / 10_000 + 1);
        }
    }

    #[test]
    fn other_values_are_refused() {
        for value in ["", "1", "n", "1x", "123456789n", "-1n", "1.5S", " 1S", "1S ", "1\u{b5}"] {
            assert_eq!(parse_timeout(value), None, "{value:?}");
        }
        assert_eq!(parse_timeout("2M"), Some(Duration::from_secs(120)));
    }
}
