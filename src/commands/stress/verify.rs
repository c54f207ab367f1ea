//! Go-stress-testing's verifiers, which decide whether an answer is successful.

use anyhow::{Result, bail};
use serde_json::Value;

use super::live_stats::UNREADABLE;

/// Code of a successful WebSocket message.
const GOOD: i64 = 200;

/// The verifier (`-v`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Check {
    /// The status equals this.
    Status(i64),
    /// The body is JSON whose "code" is this, and the status is 200; over ws the "code" in "response",
    /// and "seq" is what was sent.
    Json(i64),
    /// Any message, or any call that ended with OK.
    Any,
}

impl Check {
    /// Returns the verifier of HTTP responses.
    ///
    /// # Errors
    /// An unknown name.
    pub(super) fn of_responses(name: Option<&str>, code: i64) -> Result<Check> {
        match name {
            None | Some("statusCode") => Ok(Check::Status(code)),
            Some("json") => Ok(Check::Json(code)),
            Some(name) => {
                bail!("invalid verifier {name:?} (-v): expected statusCode or json over http")
            }
        }
    }

    /// Returns the verifier of gRPC calls, `default` without a name. With the first the status is OK.
    ///
    /// # Errors
    /// An unknown name.
    pub(super) fn of_calls(name: Option<&str>, default: &str, code: i64) -> Result<Check> {
        match name.unwrap_or(default) {
            "statusCode" => Ok(Check::Any),
            "json" => Ok(Check::Json(code)),
            name => bail!("invalid verifier {name:?} (-v): expected statusCode or json over grpc"),
        }
    }

    /// Returns the verifier of WebSocket messages.
    ///
    /// # Errors
    /// An unknown name.
    pub(super) fn of_messages(name: Option<&str>) -> Result<Check> {
        match name {
            None | Some("json") => Ok(Check::Json(GOOD)),
            Some("any") => Ok(Check::Any),
            Some(name) => bail!("invalid verifier {name:?} (-v): expected json or any over ws"),
        }
    }

    pub(super) fn wants_body(self) -> bool {
        matches!(self, Check::Json(_))
    }

    /// Returns whether a response is successful, and its code in the table.
    pub(super) fn response(self, status: u16, body: &[u8]) -> (bool, u16) {
        match self {
            Check::Status(good) => (i64::from(status) == good, status),
            Check::Json(good) if status == 200 => {
                let body = serde_json::from_slice::<Value>(body).unwrap_or_default();
                judged(body["code"].as_i64(), good, status)
            }
            Check::Json(_) => (false, status),
            Check::Any => (true, status),
        }
    }

    /// Returns whether the message that answers a gRPC call with the status OK is successful, as JSON, and
    /// its code. JSON of Protocol Buffers has no field that is 0.
    pub(super) fn call(self, message: Option<&str>) -> (bool, u16) {
        let (Check::Json(good) | Check::Status(good)) = self else { return (true, GOOD as u16) };
        let message = message.and_then(|text| serde_json::from_str::<Value>(text).ok());
        let code = message.filter(Value::is_object).map(|message| match &message["code"] {
            Value::Null => Some(0),
            // Integers of 64 bits are text.
            Value::String(text) => text.parse().ok(),
            code => code.as_i64(),
        });
        judged(code.flatten(), good, GOOD as u16)
    }

    /// Returns whether a message is successful, and its code; `None` if it answers a different one than
    /// that with the "seq" `sequence`.
    pub(super) fn message(self, sequence: Option<&str>, data: &[u8]) -> Option<(bool, u16)> {
        let Check::Json(good) = self else { return Some((true, GOOD as u16)) };
        let Ok(message) = serde_json::from_slice::<Value>(data) else {
            return Some((false, UNREADABLE));
        };
        if sequence.is_some() && message["seq"].as_str() != sequence {
            return None;
        }
        Some(judged(message["response"]["code"].as_i64(), good, GOOD as u16))
    }
}

/// Compares the code of an application. In the table it is shown if it fits in 16 bits.
fn judged(code: Option<i64>, good: i64, success: u16) -> (bool, u16) {
    match code {
        Some(code) if code == good => (true, success),
        code => (false, code.and_then(|code| u16::try_from(code).ok()).unwrap_or(UNREADABLE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_checked_by_status_or_json_code() {
        let status = Check::of_responses(None, 201).unwrap();
        assert_eq!(
            (status.response(201, b""), status.response(200, b"")),
            ((true, 201), (false, 200))
        );
        let json = Check::of_responses(Some("json"), 0).unwrap();
        assert_eq!(json.response(200, br#"{"code":0,"msg":"","data":null}"#), (true, 200));
        assert_eq!(json.response(200, br#"{"code":403}"#), (false, 403));
        assert_eq!(json.response(200, br#"{"code":-1}"#), (false, UNREADABLE));
        assert_eq!(json.response(200, b"<html>"), (false, UNREADABLE));
        assert_eq!(json.response(500, br#"{"code":0}"#), (false, 500));
        let unknown = [Check::of_responses(Some("regex"), 0), Check::of_messages(Some("x"))];
        assert!(unknown.iter().all(Result::is_err));
    }

    #[test]
    fn calls_are_checked_by_the_code_of_their_message() {
        let json = Check::of_calls(None, "json", 200).unwrap();
        for (message, judged) in [
            (Some(r#"{"code":200,"msg":"ok"}"#), (true, 200)),
            (Some(r#"{"code":"200"}"#), (true, 200)),
            (Some(r#"{"code":500}"#), (false, 500)),
            (Some("{}"), (false, 0)),
            (Some(r#"{"code":"x"}"#), (false, UNREADABLE)),
            (None, (false, UNREADABLE)),
        ] {
            assert_eq!(json.call(message), judged, "{message:?}");
        }
        let zero = Check::of_calls(Some("json"), "statusCode", 0).unwrap();
        assert_eq!(zero.call(Some("{}")), (true, 200));
        let status = Check::of_calls(None, "statusCode", 200).unwrap();
        assert_eq!((status.call(None), status.wants_body()), ((true, 200), false));
        assert!(Check::of_calls(Some("regex"), "json", 0).is_err());
    }

    #[test]
    fn messages_are_checked_by_sequence_and_code() {
        let json = Check::of_messages(None).unwrap();
        let answer =
            br#"{"seq":"1-2","cmd":"ping","response":{"code":200,"codeMsg":"","data":null}}"#;
        assert_eq!(json.message(Some("1-2"), answer), Some((true, 200)));
        assert_eq!(json.message(Some("1-3"), answer), None, "of another client");
        assert_eq!(json.message(None, answer), Some((true, 200)));
        for (data, code) in [
            (&br#"{"seq":"1","response":{"code":500}}"#[..], 500),
            (br#"{"seq":"1"}"#, UNREADABLE),
            (b"pong", UNREADABLE),
        ] {
            assert_eq!(json.message(Some("1"), data), Some((false, code)));
        }
        let any = Check::of_messages(Some("any")).unwrap();
        assert_eq!(any.message(Some("1"), b"pong"), Some((true, 200)));
    }
}
