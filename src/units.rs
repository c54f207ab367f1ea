//! Parsers for values with units, in flags and configuration files: counts `10k`, durations `30s`,
//! sizes `64KiB`. An error says only what is expected, as clap puts `invalid value 'x' for '--flag'`
//! before it; readers of files add the value with [`with_value`].

use std::net::IpAddr;
use std::time::Duration;

/// Adds the value to an error that only says what is expected.
pub(crate) fn with_value(text: &str, error: &str) -> String {
    if error.starts_with("expected ") {
        format!("invalid value {text:?}: {error}")
    } else {
        error.to_owned()
    }
}

/// A timeout, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleTimeout(pub(crate) Option<Duration>);

/// Parses a timeout: a duration above 0, or `off`.
pub(crate) fn idle_timeout(text: &str) -> Result<IdleTimeout, String> {
    if text == "off" {
        return Ok(IdleTimeout(None));
    }
    let time = positive_duration(text).map_err(|error| format!("{error}, or off"))?;
    Ok(IdleTimeout(Some(time)))
}

/// Parses a count: digits, then nothing, `k` (thousand) or `M` (million). `_` may group digits.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let units = [("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("", 1)];
    scaled(text, &units).ok_or_else(|| "expected a count such as 500, 10k or 1M".to_owned())
}

/// Parses a count of at least 1.
pub(crate) fn positive_count(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("expected at least 1".to_owned()),
        count => Ok(count),
    }
}

/// Parses a duration: digits and `ms`, `s`, `m` or `h`, or a bare `0`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    let expected = || {
        let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let unit =
            if bare { format!(" with its unit, {text}s or {text}ms,") } else { String::new() };
        format!("expected a duration{unit} such as 500ms, 30s, 5m or 1h")
    };
    scaled(text, &units).map(Duration::from_millis).ok_or_else(expected)
}

/// Formats a duration as [`duration`] parses it.
pub(crate) fn format_duration(time: Duration) -> String {
    let milliseconds = time.as_millis();
    if milliseconds == 0 {
        return "0".to_owned();
    }
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let whole = units.into_iter().find(|(unit, _)| milliseconds.is_multiple_of(*unit));
    let (unit, name) = whole.unwrap_or((1, "ms"));
    format!("{}{name}", milliseconds / unit)
}

/// Parses a duration longer than 0.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected a duration of more than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses a range of durations, `100ms..30s`; a single duration is both ends.
pub(crate) fn duration_range(text: &str) -> Result<(Duration, Duration), String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let (from, to) = (duration(from)?, duration(to)?);
    if from > to {
        return Err("expected the shorter duration first, as in 100ms..30s".to_owned());
    }
    Ok((from, to))
}

/// Parses a size in bytes: digits, then nothing, `B`, `KiB`, `MiB` or `GiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1), ("", 1)];
    scaled(text, &units).ok_or_else(|| "expected a size such as 20, 64KiB or 1MiB".to_owned())
}

/// Parses a percentage up to 100 %: `80%` gives 0.8.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let digits = text.strip_suffix('%').unwrap_or(text).trim();
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share = digits.parse::<f64>().ok().filter(|share| plain && *share <= 100.0);
    share.map(|share| share / 100.0).ok_or_else(|| "expected a percentage such as 80%".to_owned())
}

/// Parses an IP address.
pub(crate) fn ip(text: &str) -> Result<IpAddr, String> {
    text.trim().parse().map_err(|_| "expected an IP address such as 127.0.0.1 or ::1".to_owned())
}

/// Returns the digits multiplied by the unit at the end of the text, for the first unit that leaves
/// only digits.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find_map(|(unit, factor)| {
        let digits = text.strip_suffix(unit)?;
        let grouped = !digits.starts_with('_') && !digits.ends_with('_');
        let right = grouped && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
        let number: u64 = digits.replace('_', "").parse().ok().filter(|_| right)?;
        number.checked_mul(*factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_given_its_value_once() {
        let error = duration("5").unwrap_err();
        let expected = "expected a duration with its unit, 5s or 5ms, such as 500ms, 30s, 5m or 1h";
        assert_eq!(with_value("5", &error), format!("invalid value \"5\": {expected}"));
        assert_eq!(with_value("5", "invalid weight \"5\""), "invalid weight \"5\"");
    }

    #[test]
    fn counts() {
        assert_eq!(count("0"), Ok(0));
        assert_eq!(count("10k"), Ok(10_000));
        assert_eq!(count("1M"), Ok(1_000_000));
        assert_eq!(count("1_000_000"), Ok(1_000_000));
        for wrong in ["", "k", "-1", "+1", "1.5k", "1m", "many", "_1", "99999999999999999999", " 1"]
        {
            let error = count(wrong).unwrap_err();
            assert!(error.contains("10k"), "{error}");
        }
        assert!(count("18446744073709551615k").is_err());
        assert!(positive_count("0").is_err());
        assert_eq!(positive_count("3"), Ok(3));
    }

    #[test]
    fn durations_are_formatted_as_they_are_parsed() {
        for text in ["0", "250ms", "90s", "2m", "1h"] {
            assert_eq!(format_duration(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "30", "s", "ms", "1d", "-1s", "1 s"] {
            let error = duration(wrong).unwrap_err();
            assert!(error.contains("30s"), "{error}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(size("20"), Ok(20));
        assert_eq!(size("20B"), Ok(20));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        for wrong in ["", "KiB", "64KB", "64k", "-1B"] {
            assert!(size(wrong).unwrap_err().contains("64KiB"), "{wrong}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!((percent("80%"), percent("2.5"), percent("0%")), (Ok(0.8), Ok(0.025), Ok(0.0)));
        for wrong in ["", "%", "101%", "-1%", "1e1%", "inf", "most"] {
            assert!(percent(wrong).unwrap_err().contains("80%"), "{wrong}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(ip("127.0.0.2"), Ok(IpAddr::from([127, 0, 0, 2])));
        assert!(ip("localhost").unwrap_err().contains("127.0.0.1"));
    }
}
