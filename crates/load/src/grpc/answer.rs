//! Answers to calls: their status as that of an answer, and their messages as JSON for checks and captures.

use std::ops::RangeInclusive;

use super::frame::{Encoding, FrameError, MessageDecoder};
use super::json;
use super::limits::{ANSWER_JSON_BYTES, MESSAGE_BYTES};
use super::method::{Method, MethodKind};
use super::status::Code;
use crate::outcome::failure::Failure;

/// The status of an answer that stands for the status 0 of a call: those of HTTP are below.
const BASE: u16 = 1_000;
/// All statuses of calls without a name.
const OTHER: u16 = 99;

/// The status of a call as the status of an answer.
#[must_use]
pub fn answer_status(code: Code) -> u16 {
    BASE + u16::try_from(code.0).unwrap_or(OTHER).min(OTHER)
}

/// The status of the call that an answer has ended; `None` if it is one of HTTP.
#[must_use]
pub fn code_of(status: u16) -> Option<Code> {
    status.checked_sub(BASE).map(|code| Code(code.into()))
}

/// Reads the name or number of a status: `NOT_FOUND` or `5`.
///
/// # Errors
/// What is expected.
pub fn accepted_code(text: &str) -> Result<RangeInclusive<u16>, String> {
    let code = Code::named(text).filter(|code| code.0 < u32::from(OTHER));
    let status = code.map(answer_status).ok_or_else(|| {
        format!(
            "invalid status {text:?}: expected a status of gRPC such as OK, NOT_FOUND or 5, or several \
             with commas"
        )
    })?;
    Ok(status..=status)
}

/// Appends the body of an answer as JSON: its message, or the messages of a stream as a list. Fields that have
/// their default value are in it, too. Nothing is appended if a message was expected and there is none, as after
/// an error.
///
/// # Errors
/// `GrpcMessage` for what is no message, `GrpcReplyUndecodable` for one of another type, `TooLarge` for more than is shown to checks.
pub(crate) fn answer_json(
    method: &Method,
    encoding: &[u8],
    body: &[u8],
    out: &mut String,
) -> Result<(), Failure> {
    let is_list = matches!(method.kind(), MethodKind::ServerStream | MethodKind::BidiStream);
    let (kind, encoding) = (method.answer(), Encoding::parse(encoding));
    let mut decoder = MessageDecoder::new(MESSAGE_BYTES);
    let (mut rest, mut plain, mut count) = (body, Vec::new(), 0_u64);
    if is_list {
        out.push('[');
    }
    while !rest.is_empty() {
        let (used, message) = decoder.next(rest).map_err(failure)?;
        rest = rest.get(used..).unwrap_or_default();
        let Some(message) = message.filter(|_| is_list || count == 0) else { continue };
        if count > 0 {
            out.push(',');
        }
        count += 1;
        let bytes = if message.compressed {
            encoding.decompress(message.bytes, MESSAGE_BYTES, &mut plain).map_err(failure)?;
            &plain[..]
        } else {
            message.bytes
        };
        let text = json::of_bytes_whole(&kind, bytes).map_err(|_| Failure::GrpcReplyUndecodable)?;
        if out.len() + text.len() > ANSWER_JSON_BYTES {
            return Err(Failure::TooLarge);
        }
        out.push_str(&text);
    }
    if is_list {
        out.push(']');
    }
    decoder.finish().map_err(failure)
}

/// Appends a message that answers a call, without prefix, as JSON.
///
/// # Errors
/// As [`answer_json`].
pub(crate) fn message_json(
    method: &Method,
    message: &[u8],
    out: &mut String,
) -> Result<(), Failure> {
    let text = json::of_bytes_whole(&method.answer(), message)
        .map_err(|_| Failure::GrpcReplyUndecodable)?;
    if text.len() > ANSWER_JSON_BYTES {
        return Err(Failure::TooLarge);
    }
    out.push_str(&text);
    Ok(())
}

fn failure(error: FrameError) -> Failure {
    match error {
        FrameError::TooLong { .. } => Failure::TooLarge,
        _ => Failure::GrpcMessage,
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::schema;
    use super::super::{encode, encode_gzip};
    use super::*;

    const FILE: &str = "syntax = \"proto3\"; package a;
        message B { string text = 1; int64 count = 2; B inner = 3; repeated B many = 4; optional bool is = 5; }
        service S { rpc One(B) returns (B); rpc Many(B) returns (stream B); }";

    fn shown(path: &str, encoding: &[u8], body: &[u8]) -> Result<String, Failure> {
        let mut out = String::new();
        answer_json(&schema(FILE).method(path).unwrap(), encoding, body, &mut out).map(|()| out)
    }

    fn body(messages: &[&str]) -> Vec<u8> {
        let method = schema(FILE).method("/a.S/One").unwrap();
        let mut body = Vec::new();
        for text in messages {
            encode(&method.request_of_json(text).unwrap(), &mut body).unwrap();
        }
        body
    }

    #[test]
    fn defaults_are_shown_and_what_is_not_set_is_left_out() {
        let one = body(&[r#"{"text":"x","inner":{}}"#]);
        let inner = r#"{"text":"","count":"0","many":[]}"#;
        let expected = format!(r#"{{"text":"x","count":"0","inner":{inner},"many":[]}}"#);
        assert_eq!(shown("/a.S/One", b"", &one), Ok(expected));
        assert_eq!(shown("/a.S/One", b"", b""), Ok(String::new()));
    }

    #[test]
    fn messages_of_a_stream_are_a_list() {
        let two = body(&[r#"{"count":1}"#, r#"{"count":2}"#]);
        let list: serde_json::Value =
            serde_json::from_str(&shown("/a.S/Many", b"", &two).unwrap()).unwrap();
        assert_eq!((&list[0]["count"], &list[1]["count"]), (&"1".into(), &"2".into()));
        assert_eq!(shown("/a.S/Many", b"", b""), Ok("[]".to_owned()));
    }

    #[test]
    fn compressed_messages_are_shown_and_others_are_failures() {
        let mut gzip = Vec::new();
        encode_gzip(b"\x0a\x01x", &mut gzip).unwrap();
        assert!(shown("/a.S/One", b"gzip", &gzip).unwrap().starts_with(r#"{"text":"x""#));
        assert_eq!(shown("/a.S/One", b"", &gzip), Err(Failure::GrpcMessage));
        let undecodable = Err(Failure::GrpcReplyUndecodable);
        assert_eq!(shown("/a.S/One", b"", &[0, 0, 0, 0, 1, 255]), undecodable);
        assert_eq!(shown("/a.S/One", b"", &[0, 0, 0, 0, 9, 1]), Err(Failure::GrpcMessage));
        let mut bomb = Vec::new();
        encode_gzip(&vec![0; MESSAGE_BYTES + 1], &mut bomb).unwrap();
        assert_eq!(shown("/a.S/One", b"gzip", &bomb), Err(Failure::TooLarge));
        let mut many = Vec::new();
        let long = [&[0x0a, 0x80, 0x80, 0x40][..], &[b'x'; 1 << 20]].concat();
        (0..20).for_each(|_| encode_gzip(&long, &mut many).unwrap());
        assert_eq!(shown("/a.S/Many", b"gzip", &many), Err(Failure::TooLarge));
    }

    #[test]
    fn statuses_of_calls_are_none_of_http() {
        assert_eq!((answer_status(Code::OK), code_of(200)), (1_000, None));
        assert_eq!(code_of(answer_status(Code(5))), Some(Code(5)));
        assert_eq!(answer_status(Code(70_000)), answer_status(Code(99)));
        assert_eq!(accepted_code("not_found"), Ok(1_005..=1_005));
        assert_eq!(accepted_code("16"), Ok(1_016..=1_016));
        assert!(accepted_code("404").unwrap_err().contains("NOT_FOUND"));
    }
}
