//! The header `Date` of answers (RFC 9110 section 6.6.1).

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const LENGTH: usize = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n".len();

/// How long the system's time of day is taken for that of now.
const STALE_NS: u64 = 50_000_000;

thread_local! {
    /// When the system was asked, the second that it said, and its header.
    static LAST: Cell<(u64, u64, [u8; LENGTH])> = const { Cell::new((0, 0, [0; LENGTH])) };
}

/// Appends the header with the time of day. `now_ns` is that of a clock that only goes forward, if it is known.
#[expect(clippy::disallowed_methods, reason = "only the system knows the time of day")]
pub(crate) fn push_date(out: &mut Vec<u8>, now_ns: Option<u64>) {
    let (asked_ns, last, mut header) = LAST.get();
    let is_stale = |now_ns: u64| last == 0 || now_ns.wrapping_sub(asked_ns) >= STALE_NS;
    if now_ns.is_none_or(is_stale) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let second = since.map_or(0, |since| since.as_secs());
        if last != second
            && let Ok(new) = header_of(second).into_bytes().try_into()
        {
            header = new;
        }
        LAST.set((now_ns.unwrap_or(asked_ns), second, header));
    }
    out.extend_from_slice(&header);
}

fn header_of(second: u64) -> String {
    let (days, rest) = (second / 86_400, second % 86_400);
    // Years begin in March: the day that leap years have more is their last.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = year + era * 400 + u64::from(month < 2);
    let name = |names: &[&'static str], at: u64| names.get(at as usize).copied().unwrap_or("Jan");
    let (weekday, month) = (name(&DAYS, days % 7), name(&MONTHS, month));
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!(
        "Date: {weekday}, {of_month:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::header_of;

    #[test]
    fn dates_of_the_calendar() {
        let expected = [
            (0, "Thu, 01 Jan 1970 00:00:00"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00"),
        ];
        for (second, date) in expected {
            assert_eq!(header_of(second), format!("Date: {date} GMT\r\n"));
        }
    }
}
