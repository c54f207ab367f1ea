//! Formats of an access log line. Text from clients is escaped in both formats, so that no request
//! can inject a line or a field.

use std::fmt::Write;

use serde_json::json;

use super::Entry;

/// Maximum length of a client-supplied field, in bytes.
const PART_BYTES_MAX: usize = 2048;

pub(super) fn json(out: &mut String, entry: &Entry) {
    let parsed = |text| (!entry.method.is_empty()).then(|| cut(text));
    let value = json!({
        "time": time(entry.began_ms),
        "client": entry.client.map(|client| client.to_string()),
        "method": parsed(&entry.method),
        "host": parsed(&entry.host),
        "target": parsed(&entry.target),
        "user_agent": entry.agent.as_deref().map(cut),
        "referer": entry.referer.as_deref().map(cut),
        "request_id": entry.request_id.as_deref().map(cut),
        "pool": entry.pool,
        "upstream": entry.upstream,
        "upstream_name": entry.upstream_name.as_deref(),
        "status": entry.status,
        "bytes_in": entry.bytes_in,
        "bytes_out": entry.bytes_out,
        "duration_ms": entry.duration.as_millis() as u64,
        "closed_by": entry.closed_by.name(),
        "why": entry.why,
    });
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{value}");
}

/// Writes the combined format, then upstream, bytes in, seconds, by whom and why it was closed, and the
/// request id if there is one.
pub(super) fn combined(out: &mut String, entry: &Entry) {
    match entry.client {
        Some(client) => _ = write!(out, "{client}"),
        None => out.push('-'),
    }
    let _ = write!(out, " - - [{}] \"", clf_time(entry.began_ms));
    if entry.method.is_empty() {
        out.push('-');
    } else {
        quoted(out, &entry.method);
        out.push(' ');
        quoted(out, &entry.target);
        let _ = write!(out, " HTTP/1.{}", entry.version);
    }
    let _ = write!(out, "\" {} {} \"", entry.status, entry.bytes_out);
    quoted(out, entry.referer.as_deref().unwrap_or("-"));
    out.push_str("\" \"");
    quoted(out, entry.agent.as_deref().unwrap_or("-"));
    let upstream = entry.upstream.as_deref().unwrap_or("-");
    let seconds = entry.duration.as_secs_f64();
    let _ = write!(
        out,
        "\" upstream={upstream} in={} seconds={seconds:.3} closed_by={} why={}",
        entry.bytes_in,
        entry.closed_by.name(),
        entry.why
    );
    if let Some(id) = &entry.request_id {
        out.push_str(" request_id=");
        quoted(out, id);
    }
    out.push('\n');
}

/// Appends a text with quotes, backslashes and control characters escaped.
fn quoted(out: &mut String, text: &str) {
    for character in cut(text).chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            _ if character.is_control() => _ = write!(out, "\\x{:02x}", u32::from(character)),
            _ => out.push(character),
        }
    }
}

fn cut(text: &str) -> &str {
    if text.len() <= PART_BYTES_MAX {
        return text;
    }
    let end = (0..=PART_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// As RFC 3339 has it, in UTC.
fn time(ms: u64) -> String {
    let (year, month, day) = date(ms);
    let [hours, minutes, seconds] = of_day(ms);
    let thousandths = ms % 1_000;
    format!("{year}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{thousandths:03}Z")
}

/// As the common log format has it, in UTC.
fn clf_time(ms: u64) -> String {
    let (year, month, day) = date(ms);
    let [hours, minutes, seconds] = of_day(ms);
    let at = usize::try_from(month).unwrap_or(1).saturating_sub(1);
    let month = MONTHS.get(at).copied().unwrap_or("Jan");
    format!("{day:02}/{month}/{year}:{hours:02}:{minutes:02}:{seconds:02} +0000")
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

fn of_day(ms: u64) -> [u64; 3] {
    let seconds = ms / 1_000;
    [seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60]
}

/// Year, month and day: the proleptic Gregorian calendar in eras of 400 years that begin in March,
/// so that a leap day is the last of its year.
fn date(ms: u64) -> (u64, u64, u64) {
    let days = ms / 86_400_000 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::super::tests::entry;
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(seconds * 1_000), shown);
        }
        assert_eq!(clf_time(1_700_000_000_123), "14/Nov/2023:22:13:20 +0000");
    }

    #[test]
    fn an_unreadable_head_leaves_its_fields_empty() {
        let nothing = || Box::<str>::default();
        let (method, host, target) = (nothing(), nothing(), nothing());
        let entry = Entry { method, host, target, status: 400, ..entry("") };
        let mut out = String::new();
        combined(&mut out, &entry);
        assert!(out.contains("] \"-\" 400 11 \""), "{out}");
        out.clear();
        json(&mut out, &entry);
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        for key in ["method", "host", "target"] {
            assert!(value[key].is_null(), "{value}");
        }
    }

    #[test]
    fn a_request_is_one_line_whatever_it_contains() {
        let mut entry = entry("/a\" 200 1 \"-\"\r\n10.9.9.9 - - [x] \"GET /b");
        entry.host = "x".repeat(5_000).into();
        let mut out = String::new();
        combined(&mut out, &entry);
        assert_eq!(out.matches('\n').count(), 1);
        assert!(out.contains("/a\\\" 200 1 \\\"-\\\"\\x0d\\x0a10.9.9.9"), "{out}");
        assert!(out.starts_with("10.0.0.1 - - [14/Nov/2023:22:13:20 +0000] \"GET /a"), "{out}");
        let ends = "upstream=10.0.0.2:80 in=7 seconds=1.500 closed_by=client why=gone\n";
        assert!(out.ends_with(ends), "{out}");
        assert!(out.contains(" HTTP/1.1\" 101 11 \"-\""), "{out}");
        out.clear();
        entry.request_id = Some("01".into());
        combined(&mut out, &entry);
        assert!(out.ends_with(" why=gone request_id=01\n"), "{out}");
        out.clear();
        combined(&mut out, &Entry { version: 0, ..entry.clone() });
        assert!(out.contains(" HTTP/1.0\" 101 11 \"-\""), "{out}");
        out.clear();
        json(&mut out, &entry);
        assert_eq!(out.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(value["target"], &*entry.target);
        assert_eq!(value["host"].as_str().unwrap().len(), PART_BYTES_MAX);
        assert_eq!(value["duration_ms"], 1_500);
        assert_eq!(
            [&value["upstream"], &value["upstream_name"]],
            ["10.0.0.2:80", "app.internal:80"]
        );
    }
}
