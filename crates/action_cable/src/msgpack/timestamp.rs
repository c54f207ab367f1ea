//! MessagePack's timestamps as text: what `JSON.stringify` makes of a date.

use alloc::format;
use alloc::string::String;

/// The moment in RFC 3339 and UTC, with milliseconds, or with nanoseconds if it has any. Nothing for
/// years that do not have four digits, and for a second of more than 10⁹ nanoseconds.
pub(super) fn shown(unix_s: i64, ns: u32) -> Option<String> {
    const S_PER_DAY: i64 = 86_400;
    // From the year 0 to the end of 9999.
    if !(-62_167_219_200..=253_402_300_799).contains(&unix_s) || ns > 999_999_999 {
        return None;
    }
    let (days, second) = (unix_s.div_euclid(S_PER_DAY), unix_s.rem_euclid(S_PER_DAY));
    // Days of years that begin in March, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    let fraction = match ns % 1_000_000 {
        0 => format!("{:03}", ns / 1_000_000),
        _ => format!("{ns:09}"),
    };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_browsers_do() {
        for (unix_s, ns, text) in [
            (0, 0, "1970-01-01T00:00:00.000Z"),
            (2_000_000_000, 500_000_000, "2033-05-18T03:33:20.500Z"),
            (951_782_400, 1, "2000-02-29T00:00:00.000000001Z"),
            (-1, 999_000_000, "1969-12-31T23:59:59.999Z"),
            (-62_167_219_200, 0, "0000-01-01T00:00:00.000Z"),
            (253_402_300_799, 0, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(shown(unix_s, ns).as_deref(), Some(text));
        }
        for (unix_s, ns) in [(253_402_300_800, 0), (i64::MIN, 0), (0, 1_000_000_000)] {
            assert_eq!(shown(unix_s, ns), None);
        }
    }
}
