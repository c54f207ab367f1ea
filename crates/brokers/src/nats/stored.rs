//! What JetStream answers, from bytes: stored messages, headers, times and errors. It does no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::protocol::Delivery;
use crate::kept::{Kept, Position};
use crate::transport::{Fault, FaultKind};

/// `no message found`: not an error, there is nothing.
const NO_MESSAGE: u64 = 10037;
/// `stream not found`.
pub(super) const NO_STREAM: u64 = 10059;
/// Without room for a message: of the account, of the server, of its memory, of its disk, and of the stream.
const NO_ROOM: [u64; 5] = [10002, 10023, 10028, 10047, 10077];
/// `wrong last sequence`: another message was there before.
const CONFLICT: u64 = 10071;
/// `message size exceeds maximum allowed`, by a limit of the stream.
const TOO_LONG: u64 = 10054;

/// Why JetStream did not do what was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ApiError {
    /// It has no room.
    NoRoom,
    /// The message is too long for the stream.
    TooLong,
    /// There is no such stream.
    NoStream,
    /// There is no such message.
    NoMessage,
    /// The last message of the subject is another one than expected.
    Conflict,
    /// Anything else.
    Other(Fault),
}

/// A message of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) sequence: u64,
    pub(crate) time_ms: u64,
    pub(crate) body: Vec<u8>,
}

/// The value of a header.
pub(super) fn header<'h>(head: &'h [u8], name: &str) -> Option<&'h str> {
    let text = std::str::from_utf8(head).ok()?;
    text.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// The status of an answer without a body, such as 503 if nobody answers.
fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    line.strip_prefix("NATS/1.0 ")?.split_ascii_whitespace().next()?.parse().ok()
}

/// The sequence of a message that a stream passed on, and that of the one before it of its subject.
pub(super) fn sequences(head: &[u8]) -> Option<(u64, u64)> {
    let sequence = header(head, "Nats-Sequence")?.parse().ok()?;
    Some((sequence, header(head, "Nats-Last-Sequence")?.parse().ok()?))
}

/// The place of a message that a stream passed on, and the offset of the one before it. `now_ms` is used with
/// servers before 2.10, which do not tell the time.
pub(super) fn place(head: &[u8], epoch: u32, now_ms: impl Fn() -> u64) -> Option<(Kept, u64)> {
    let (offset, before) = sequences(head)?;
    let time_ms = header(head, "Nats-Time-Stamp").and_then(time_ms).unwrap_or_else(now_ms);
    Some((Kept { position: Position { epoch, offset }, time_ms }, before))
}

/// The answer to a request of the JetStream API.
pub(super) fn answer(delivery: &Delivery) -> Result<Value, ApiError> {
    if status(&delivery.head) == Some(503) {
        let why = "no answer from JetStream: it is not enabled (--jetstream), or has no leader now";
        return Err(ApiError::Other(Fault::new(FaultKind::Refused, why)));
    }
    let answer: Value = match serde_json::from_slice(&delivery.body) {
        Ok(answer) => answer,
        Err(error) => {
            return Err(ApiError::Other(invalid(&error.to_string())));
        }
    };
    let Some(error) = answer.get("error") else { return Ok(answer) };
    let code = error["err_code"].as_u64().unwrap_or_default();
    Err(match code {
        NO_MESSAGE => ApiError::NoMessage,
        NO_STREAM => ApiError::NoStream,
        TOO_LONG => ApiError::TooLong,
        CONFLICT => ApiError::Conflict,
        code if NO_ROOM.contains(&code) => ApiError::NoRoom,
        code => {
            let why = error["description"].as_str().unwrap_or("unknown error");
            ApiError::Other(Fault::new(FaultKind::Refused, format!("JetStream: {why} ({code})")))
        }
    })
}

/// An answer that is not understood.
pub(super) fn invalid(what: &str) -> Fault {
    Fault::new(FaultKind::Protocol, format!("invalid answer of JetStream: {what}"))
}

/// The message of an answer to `STREAM.MSG.GET`.
pub(super) fn stored(answer: &Value) -> Result<Stored, Fault> {
    let message = &answer["message"];
    let found = || {
        let data = message["data"].as_str().unwrap_or_default();
        Some(Stored {
            sequence: message["seq"].as_u64()?,
            time_ms: time_ms(message["time"].as_str()?)?,
            body: STANDARD.decode(data).ok()?,
        })
    };
    found().ok_or_else(|| invalid("STREAM.MSG.GET"))
}

/// Milliseconds since 1970 of a time such as `2026-11-27T18:20:42.463048742Z`; 0 for earlier ones.
pub(super) fn time_ms(text: &str) -> Option<u64> {
    Some(u64::try_from(time_ns(text)? / 1_000_000).unwrap_or_default())
}

/// Nanoseconds since 1970 of such a time.
pub(super) fn time_ns(text: &str) -> Option<i128> {
    let (date, time) = text.split_once('T')?;
    let (time, zone) = time.split_at_checked(time.find(['Z', '+', '-'])?)?;
    let minutes_east = match zone.split_at_checked(1)? {
        ("Z", _) => 0,
        (sign, zone) => {
            let [hours, minutes] = numbers(zone, ':')?;
            (hours * 60 + minutes) * if sign == "-" { -1 } else { 1 }
        }
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let digits = fraction.get(..fraction.len().min(9))?;
    let nanos = digits.parse::<u32>().ok()? * 10_u32.pow(9 - digits.len() as u32);
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    let minutes = (days(year, month, day) * 24 + hour) * 60 + minute - minutes_east;
    Some(i128::from(minutes * 60 + second) * 1_000_000_000 + i128::from(nanos))
}

fn numbers<const MANY: usize>(text: &str, between: char) -> Option<[i64; MANY]> {
    let parts = text.splitn(MANY, between).map(|part| part.parse::<u32>().ok().map(i64::from));
    parts.collect::<Option<Vec<i64>>>()?.try_into().ok()
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    year * 365 + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_any_fraction_and_zone() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T00:00:00.5Z", Some(500_000_000)),
            ("2000-02-29T12:00:00Z", Some(951_825_600_000_000_000)),
            ("2024-03-01T00:00:00Z", Some(1_709_251_200_000_000_000)),
            ("2026-11-27T18:20:42.463048742Z", Some(1_795_803_642_463_048_742)),
            ("2026-11-27T19:50:42.463048742+01:30", Some(1_795_803_642_463_048_742)),
            ("2026-11-27T17:20:42.463048742-01:00", Some(1_795_803_642_463_048_742)),
            ("0001-01-01T00:00:00Z", Some(-62_135_596_800_000_000_000)),
            ("2026-11-27", None),
            ("2026-11-27T18:20Z", None),
            ("2026-11-27T18:20:42", None),
            ("xT:Z", None),
            ("", None),
        ] {
            assert_eq!(time_ns(text), expected, "{text}");
        }
        assert_eq!(time_ms("0001-01-01T00:00:00Z"), Some(0));
    }

    #[test]
    fn headers_and_places_are_found() {
        let head =
            b"NATS/1.0\r\nNats-Msg-Id: a:b\r\nNats-Sequence: 7\r\nnats-last-sequence: 3\r\n\r\n";
        assert_eq!(header(head, "Nats-Msg-Id"), Some("a:b"));
        assert_eq!(header(head, "Nats-Stream"), None);
        let kept = Kept { position: Position { epoch: 5, offset: 7 }, time_ms: 9 };
        assert_eq!(place(head, 5, || 9), Some((kept, 3)));
        assert_eq!(place(b"", 5, || 9), None);
    }

    #[test]
    fn errors_are_told_apart() {
        let ask = |head: &[u8], body: &str| {
            let (head, body) = (head.to_vec(), body.as_bytes().to_vec());
            answer(&Delivery { head, body, ..Delivery::default() })
        };
        let with = |code: u64| ask(b"", &format!(r#"{{"error":{{"err_code":{code}}}}}"#));
        assert_eq!(with(10037), Err(ApiError::NoMessage));
        assert_eq!(with(10059), Err(ApiError::NoStream));
        assert_eq!(with(10077), Err(ApiError::NoRoom));
        assert_eq!(with(10071), Err(ApiError::Conflict));
        for (answer, kind) in [
            (with(10039), FaultKind::Refused),
            (ask(b"NATS/1.0 503\r\n\r\n", ""), FaultKind::Refused),
            (ask(b"", "no JSON"), FaultKind::Protocol),
        ] {
            assert!(matches!(&answer, Err(ApiError::Other(fault)) if fault.kind == kind));
        }
        assert_eq!(ask(b"", r#"{"seq":1}"#).unwrap()["seq"], 1);
    }
}
