//! The parts of an HTTP archive (HAR 1.2) that requests are made of. Fields that browsers leave out or
//! write in their own way are optional; unknown ones are ignored.

use anyhow::{Result, anyhow};
use serde::Deserialize;

#[derive(Deserialize)]
struct Archive {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    entries: Vec<Entry>,
}

/// A request and its response.
#[derive(Deserialize)]
pub(super) struct Entry {
    #[serde(rename = "startedDateTime", default)]
    pub(super) started: String,
    pub(super) request: Request,
    #[serde(default)]
    pub(super) response: Response,
    /// As Chrome names it: document, xhr, script and so on.
    #[serde(rename = "_resourceType", default)]
    pub(super) resource: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) url: String,
    #[serde(default)]
    pub(super) headers: Vec<Pair>,
    #[serde(default)]
    pub(super) cookies: Vec<Pair>,
    #[serde(rename = "postData", default)]
    pub(super) body: Option<PostData>,
}

#[derive(Deserialize, Default)]
pub(super) struct Response {
    #[serde(default)]
    pub(super) status: i64,
    #[serde(default)]
    pub(super) cookies: Vec<Pair>,
    #[serde(default)]
    pub(super) headers: Vec<Pair>,
    #[serde(default)]
    pub(super) content: Content,
    #[serde(rename = "redirectURL", default)]
    pub(super) redirect: String,
}

#[derive(Deserialize, Default)]
pub(super) struct Content {
    #[serde(rename = "mimeType", default)]
    pub(super) kind: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Pair {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: String,
}

#[derive(Deserialize)]
pub(super) struct PostData {
    #[serde(rename = "mimeType", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) params: Vec<Param>,
    /// Not in HAR 1.2, but written by some tools: base64.
    #[serde(default)]
    pub(super) encoding: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Param {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: String,
    #[serde(rename = "fileName", default)]
    pub(super) file: Option<String>,
}

/// Parses an archive.
///
/// # Errors
/// What is wrong, with line and column.
pub(super) fn parse(text: &str, shown: &str) -> Result<Vec<Entry>> {
    let archive: Archive = serde_json::from_str(text)
        .map_err(|error| anyhow!("{shown}: not a HAR file: {error} (expected log.entries)"))?;
    Ok(archive.log.entries)
}

/// Parses a time such as `2026-11-02T10:00:00.123+01:00` to milliseconds since 1970 (RFC 3339).
pub(super) fn milliseconds(time: &str) -> Option<i64> {
    let (date, rest) = time.split_once(['T', 't', ' '])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let at = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(at);
    let offset = match zone {
        "" | "Z" | "z" => 0,
        zone => {
            let digits = zone.get(1..)?.replace(':', "");
            let hours: i64 = digits.get(..2)?.parse().ok()?;
            let minutes: i64 = digits.get(2..4).unwrap_or("0").parse().ok()?;
            (hours * 60 + minutes) * if zone.starts_with('-') { -1 } else { 1 }
        }
    };
    let mut clock = clock.splitn(3, ':');
    let (hour, minute): (i64, i64) = (clock.next()?.parse().ok()?, clock.next()?.parse().ok()?);
    let second: f64 = clock.next().unwrap_or("0").parse().ok()?;
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0.0..61.0).contains(&second) {
        return None;
    }
    // Days since 1970, from years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let minutes = (days * 24 + hour) * 60 + minute - offset;
    Some(minutes * 60_000 + (second * 1e3).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_zone() {
        for (time, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T01:00:00.250+01:00", Some(250)),
            ("2000-02-29T00:00:00.000Z", Some(951_782_400_000)),
            ("2026-11-23T08:00:00.123456-0500", Some(1_795_438_800_123)),
            ("2026-11-23 08:00", Some(1_795_420_800_000)),
            ("2026-13-01T00:00:00Z", None),
            ("2026-01-01T99:00:00Z", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(milliseconds(time), expected, "{time}");
        }
    }
}
