//! Go-stress-testing's verifiers, which decide whether an answer is successful.

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::live_stats::UNREADABLE;

/// Verifier of HTTP responses (`-v`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum OfRequests {
    /// The status is this.
    Status(i64),
    /// The status is 200, and the body is JSON whose "code" is this.
    Json(i64),
}

impl OfRequests {
    /// # Errors
    /// A name that is none.
    pub(super) fn new(name: Option<&str>, code: i64) -> Result<OfRequests> {
        match name {
            None | Some("statusCode") => Ok(OfRequests::Status(code)),
            Some("json") => Ok(OfRequests::Json(code)),
            Some(name) => bail!("-v {name}: over http there are statusCode and json"),
        }
    }

    pub(super) fn wants_body(self) -> bool {
        matches!(self, OfRequests::Json(_))
    }

    /// Returns whether an answer is successful, and its code in the table.
    pub(super) fn judge(self, status: u16, body: &[u8]) -> (bool, u16) {
        let OfRequests::Json(good) = self else {
            return (self == OfRequests::Status(i64::from(status)), status);
        };
        if status != 200 {
            return (false, status);
        }
        let body: Option<Body> = serde_json::from_slice(body).ok();
        match body {
            Some(body) if body.code == good => (true, status),
            // The application's code is shown if it fits in 16 bits.
            Some(body) => (false, u16::try_from(body.code).unwrap_or(UNREADABLE)),
            None => (false, UNREADABLE),
        }
    }
}

#[derive(Deserialize)]
struct Body {
    code: i64,
}

/// Verifier of WebSocket messages (`-v`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum OfMessages {
    /// JSON with the "seq" that was sent and a "response" whose "code" is this.
    Json(i64),
    /// Any message.
    Any,
}

/// The result of checking a received message against the sent one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Good,
    Bad(u16),
    /// The answer to a different message.
    Foreign,
}

impl OfMessages {
    /// # Errors
    /// A name that is none.
    pub(super) fn new(name: Option<&str>) -> Result<OfMessages> {
        match name {
            None | Some("json") => Ok(OfMessages::Json(200)),
            Some("any") => Ok(OfMessages::Any),
            Some(name) => bail!("-v {name}: over ws there are json and any"),
        }
    }

    /// `sequence`: what was sent as "seq", if that was.
    pub(super) fn judge(self, sequence: Option<&str>, data: &[u8]) -> Heard {
        let OfMessages::Json(good) = self else { return Heard::Good };
        let Ok(message) = serde_json::from_slice::<Value>(data) else {
            return Heard::Bad(UNREADABLE);
        };
        if sequence.is_some() && message["seq"].as_str() != sequence {
            return Heard::Foreign;
        }
        match message["response"]["code"].as_i64() {
            Some(code) if code == good => Heard::Good,
            Some(code) => Heard::Bad(u16::try_from(code).unwrap_or(UNREADABLE)),
            None => Heard::Bad(UNREADABLE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_codes() {
        let status = OfRequests::new(None, 201).unwrap();
        assert_eq!((status.judge(201, b""), status.judge(200, b"")), ((true, 201), (false, 200)));
        let json = OfRequests::new(Some("json"), 0).unwrap();
        assert_eq!(json.judge(200, br#"{"code":0,"msg":"","data":null}"#), (true, 200));
        assert_eq!(json.judge(200, br#"{"code":403}"#), (false, 403));
        assert_eq!(json.judge(200, br#"{"code":-1}"#), (false, UNREADABLE));
        assert_eq!(json.judge(200, b"<html>"), (false, UNREADABLE));
        assert_eq!(json.judge(500, br#"{"code":0}"#), (false, 500));
        assert!(
            OfRequests::new(Some("regex"), 0).is_err()
                && OfMessages::new(Some("statusCode")).is_err()
        );
    }

    #[test]
    fn messages() {
        let json = OfMessages::new(None).unwrap();
        let answer =
            br#"{"seq":"1-2","cmd":"ping","response":{"code":200,"codeMsg":"","data":null}}"#;
        assert_eq!(json.judge(Some("1-2"), answer), Heard::Good);
        assert_eq!(json.judge(Some("1-3"), answer), Heard::Foreign);
        assert_eq!(json.judge(None, answer), Heard::Good);
        assert_eq!(
            json.judge(Some("1"), br#"{"seq":"1","response":{"code":500}}"#),
            Heard::Bad(500)
        );
        assert_eq!(json.judge(Some("1"), br#"{"seq":"1"}"#), Heard::Bad(UNREADABLE));
        assert_eq!(json.judge(Some("1"), b"pong"), Heard::Bad(UNREADABLE));
        assert_eq!(OfMessages::new(Some("any")).unwrap().judge(Some("1"), b"pong"), Heard::Good);
    }
}
