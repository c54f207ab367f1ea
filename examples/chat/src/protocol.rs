//! The JSON of requests, answers and pushes.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::codes::Code;

/// The answer to what is no request, as plain text.
pub(crate) const INVALID: &str = "数据不合法";

/// A request on `/acc`.
#[derive(Deserialize, Default, PartialEq, Debug)]
#[serde(default)]
pub(crate) struct Request<'a> {
    #[serde(borrow)]
    pub(crate) seq: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) cmd: Cow<'a, str>,
    pub(crate) data: Value,
}

/// `data` of `login`.
#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(crate) struct Login {
    #[serde(rename = "serviceToken")]
    pub(crate) service_token: String,
    #[serde(rename = "appID", alias = "appId")]
    pub(crate) app_id: u32,
    #[serde(rename = "userID", alias = "userId")]
    pub(crate) user_id: String,
}

/// `data` of `msg`, a command of ours.
#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(crate) struct Outgoing {
    /// The user who gets the message; empty for everyone in the application.
    pub(crate) to: String,
    pub(crate) message: String,
    #[serde(rename = "msgID")]
    pub(crate) message_id: String,
}

/// Reads a request; `null` is an empty one, as in Go.
pub(crate) fn read(message: &[u8]) -> Option<Request<'_>> {
    // serde reads structs from arrays, too.
    if message.trim_ascii_start().first() == Some(&b'[') {
        return None;
    }
    serde_json::from_slice::<Option<Request<'_>>>(message).ok().map(Option::unwrap_or_default)
}

/// Reads `data` of a command; `null` and nothing are an empty object, as in Go.
pub(crate) fn data<T: Default + for<'a> Deserialize<'a>>(data: Value) -> Result<T, Code> {
    if data.is_array() {
        return Err(Code::InvalidParameter);
    }
    let read = serde_json::from_value::<Option<T>>(data);
    read.map(Option::unwrap_or_default).map_err(|_| Code::InvalidParameter)
}

/// Writes an answer. `data` is JSON.
pub(crate) fn answer(text: &mut String, seq: &str, cmd: &str, code: Code, data: &str) {
    begin(text, seq, cmd, code, code.text());
    text.push_str(data);
    text.push_str("}}");
}

/// Writes a message that is pushed to users.
pub(crate) fn push(
    text: &mut String,
    seq: &str,
    cmd: &str,
    message: &str,
    from: &str,
    target: &str,
) {
    push_begin(text, seq, cmd, message, from, target);
    text.push_str("}}}");
}

/// As [`push`], without the braces at the end.
pub(crate) fn push_begin(
    text: &mut String,
    seq: &str,
    cmd: &str,
    message: &str,
    from: &str,
    target: &str,
) {
    begin(text, seq, cmd, Code::Ok, "Ok");
    text.push_str("{\"target\":");
    push_json(text, target);
    text.push_str(",\"type\":\"text\",\"msg\":");
    push_json(text, message);
    text.push_str(",\"from\":");
    push_json(text, from);
}

fn begin(text: &mut String, seq: &str, cmd: &str, code: Code, code_text: &str) {
    text.push_str("{\"seq\":");
    push_json(text, seq);
    text.push_str(",\"cmd\":");
    push_json(text, cmd);
    text.push_str(",\"response\":{\"code\":");
    text.push_str(&(code as u16).to_string());
    text.push_str(",\"codeMsg\":");
    push_json(text, code_text);
    text.push_str(",\"data\":");
}

/// Writes a JSON string.
pub(crate) fn push_json(text: &mut String, value: &str) {
    text.push('"');
    let mut rest = value;
    while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
        text.push_str(&rest[..at]);
        let escaped = rest.as_bytes()[at];
        match escaped {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            _ => text.push_str(&format!("\\u{escaped:04x}")),
        }
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_go_reads_them() {
        let request = read(br#"{"seq":"1\n","cmd":"login","data":{"appID":101},"x":1}"#).unwrap();
        assert_eq!((&*request.seq, &*request.cmd), ("1\n", "login"));
        let login: Login = data(request.data).unwrap();
        assert_eq!((login.app_id, &*login.user_id), (101, ""));
        assert_eq!(read(b"null"), Some(Request::default()));
        assert_eq!(read(b"{}"), Some(Request::default()));
        for invalid in ["", "x", "[]", "1", r#"{"seq":1}"#, r#"{"cmd":"ping"} x"#] {
            assert_eq!(read(invalid.as_bytes()), None, "{invalid}");
        }
        assert!(data::<Login>(Value::Null).is_ok());
        for invalid in [r#""text""#, r#"{"appID":"101"}"#, r#"{"appID":-1}"#, "[1]"] {
            let value = serde_json::from_str(invalid).unwrap();
            assert_eq!(data::<Login>(value).err(), Some(Code::InvalidParameter), "{invalid}");
        }
    }

    #[test]
    fn what_is_written_is_json() {
        for value in ["", "a\"b\\c\nd\u{1}e\u{7f}é", "\"", "\t\r\u{8}"] {
            let mut text = String::new();
            push_json(&mut text, value);
            assert_eq!(serde_json::from_str::<String>(&text).unwrap(), value);
        }
        let mut text = String::new();
        answer(&mut text, "s", "ping", Code::Ok, "\"pong\"");
        let expected =
            r#"{"seq":"s","cmd":"ping","response":{"code":200,"codeMsg":"Success","data":"pong"}}"#;
        assert_eq!(text, expected);
        text.clear();
        push(&mut text, "m", "msg", "hi", "ada", "");
        let expected = r#"{"seq":"m","cmd":"msg","response":{"code":200,"codeMsg":"Ok","data":{"target":"","type":"text","msg":"hi","from":"ada"}}}"#;
        assert_eq!(text, expected);
    }
}
