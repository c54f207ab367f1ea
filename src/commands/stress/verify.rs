//! Go-stress-testing's verifiers, which decide whether an answer is successful.

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::live_stats::UNREADABLE;

/// Verifier of HTTP responses (`-v`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum ResponseCheck {
    /// The status equals this.
    Status(i64),
    /// The status is 200, and the body is JSON whose "code" is this.
    Json(i64),
}

impl ResponseCheck {
    /// # Errors
    /// An unknown name.
    pub(super) fn new(name: Option<&str>, code: i64) -> Result<ResponseCheck> {
        match name {
            None | Some("statusCode") => Ok(ResponseCheck::Status(code)),
            Some("json") => Ok(ResponseCheck::Json(code)),
            Some(name) => {
                bail!("invalid verifier {name:?} (-v): expected statusCode or json over http")
            }
        }
    }

    pub(super) fn wants_body(self) -> bool {
        matches!(self, ResponseCheck::Json(_))
    }

    /// Returns whether an answer is successful, and its code in the table.
    pub(super) fn judge(self, status: u16, body: &[u8]) -> (bool, u16) {
        let ResponseCheck::Json(good) = self else {
            return (self == ResponseCheck::Status(i64::from(status)), status);
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
pub(super) enum MessageCheck {
    /// JSON with the "seq" that was sent and a "response" whose "code" is this.
    Json(i64),
    /// Any message.
    Any,
}

/// The result of checking a received message against the sent one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum MessageResult {
    Good,
    Bad(u16),
    /// The answer to a different message.
    Foreign,
}

impl MessageCheck {
    /// # Errors
    /// An unknown name.
    pub(super) fn new(name: Option<&str>) -> Result<MessageCheck> {
        match name {
            None | Some("json") => Ok(MessageCheck::Json(200)),
            Some("any") => Ok(MessageCheck::Any),
            Some(name) => bail!("invalid verifier {name:?} (-v): expected json or any over ws"),
        }
    }

    /// Checks a received message. `sequence` is the "seq" of the sent message, if it has one.
    pub(super) fn judge(self, sequence: Option<&str>, data: &[u8]) -> MessageResult {
        let MessageCheck::Json(good) = self else { return MessageResult::Good };
        let Ok(message) = serde_json::from_slice::<Value>(data) else {
            return MessageResult::Bad(UNREADABLE);
        };
        if sequence.is_some() && message["seq"].as_str() != sequence {
            return MessageResult::Foreign;
        }
        match message["response"]["code"].as_i64() {
            Some(code) if code == good => MessageResult::Good,
            Some(code) => MessageResult::Bad(u16::try_from(code).unwrap_or(UNREADABLE)),
            None => MessageResult::Bad(UNREADABLE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_checked_by_status_or_json_code() {
        let status = ResponseCheck::new(None, 201).unwrap();
        assert_eq!((status.judge(201, b""), status.judge(200, b"")), ((true, 201), (false, 200)));
        let json = ResponseCheck::new(Some("json"), 0).unwrap();
        assert_eq!(json.judge(200, br#"{"code":0,"msg":"","data":null}"#), (true, 200));
        assert_eq!(json.judge(200, br#"{"code":403}"#), (false, 403));
        assert_eq!(json.judge(200, br#"{"code":-1}"#), (false, UNREADABLE));
        assert_eq!(json.judge(200, b"<html>"), (false, UNREADABLE));
        assert_eq!(json.judge(500, br#"{"code":0}"#), (false, 500));
        assert!(
            ResponseCheck::new(Some("regex"), 0).is_err()
                && MessageCheck::new(Some("statusCode")).is_err()
        );
    }

    #[test]
    fn messages_are_checked_by_sequence_and_code() {
        let json = MessageCheck::new(None).unwrap();
        let answer =
            br#"{"seq":"1-2","cmd":"ping","response":{"code":200,"codeMsg":"","data":null}}"#;
        assert_eq!(json.judge(Some("1-2"), answer), MessageResult::Good);
        assert_eq!(json.judge(Some("1-3"), answer), MessageResult::Foreign);
        assert_eq!(json.judge(None, answer), MessageResult::Good);
        assert_eq!(
            json.judge(Some("1"), br#"{"seq":"1","response":{"code":500}}"#),
            MessageResult::Bad(500)
        );
        assert_eq!(json.judge(Some("1"), br#"{"seq":"1"}"#), MessageResult::Bad(UNREADABLE));
        assert_eq!(json.judge(Some("1"), b"pong"), MessageResult::Bad(UNREADABLE));
        assert_eq!(
            MessageCheck::new(Some("any")).unwrap().judge(Some("1"), b"pong"),
            MessageResult::Good
        );
    }
}
