//! Moments in the format of Rails and RFC 3339 in UTC, `2033-05-18T03:33:20.000Z`.

/// The seconds since 1970 of a moment as Rails writes it, `2033-05-18T03:33:20.000Z` (RFC 3339 in
/// UTC). A fraction is left out.
pub(super) fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let mut time = time.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let right = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !right {
        return None;
    }
    // Days of years that begin in March, so that a leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    // … from March of the year 0 to January of 1970.
    let since_1970 = days - 719_468;
    Some(since_1970 * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// The moment as Rails writes it. Years have four digits: later ones become the end of 9999.
pub(super) fn format(unix_s: u64) -> String {
    const LAST: u64 = 253_402_300_799;
    let unix_s = unix_s.min(LAST);
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    // Days of years that begin in March, in eras of 400 years.
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) =
        if month < 10 { (era * 400 + year, month + 3) } else { (era * 400 + year + 1, month - 9) };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_parsed_as_rails_writes_them() {
        let cases = [
            ("1970-01-01T00:00:00.000Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2000-03-01T00:00:00Z", Some(951_868_800)),
            ("2033-05-18T03:33:20.123Z", Some(2_000_000_000)),
            ("2033-05-18T03:33:20+01:00", None),
            ("2033-13-18T03:33:20Z", None),
            ("0000-00-00T00:00:00Z", None),
            ("18446744073709551615-01-01T00:00:00Z", None),
            ("tomorrow", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn moments_are_written_as_they_are_parsed() {
        for unix_s in [0, 951_825_600, 951_868_800, 1_709_164_799, 2_000_000_000, 253_402_300_799] {
            assert_eq!(parse(&format(unix_s)), Some(unix_s), "{}", format(unix_s));
        }
        assert_eq!(format(2_000_000_000), "2033-05-18T03:33:20.000Z");
        assert_eq!(format(951_825_600), "2000-02-29T12:00:00.000Z");
        assert_eq!(format(u64::MAX), "9999-12-31T23:59:59.000Z");
    }
}
