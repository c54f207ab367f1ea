//! [`put_json`]: a server's message.

use alloc::vec::Vec;

use super::{BYTES, TYPES, VARINT};
use crate::{Malformed, Message, msgpack};

/// The numbers of the fields that both schemas have, and those of the extended one.
struct Numbers {
    identifier: u64,
    message: u64,
    reason: u64,
    reconnect: u64,
}

const BASE: Numbers = Numbers { identifier: 3, message: 5, reason: 6, reconnect: 7 };
const EXTENDED: Numbers = Numbers { identifier: 2, message: 3, reason: 4, reconnect: 5 };
const TYPE: u64 = 1;
const STREAM_ID: u64 = 6;
const EPOCH: u64 = 7;
const OFFSET: u64 = 8;
const SID: u64 = 9;
const RESTORED: u64 = 10;
const RESTORED_IDS: u64 = 11;

/// Appends a server's message that is JSON, as `Reply` in the extended protocol, as `Message` in the other.
///
/// # Errors
/// It is not a server's message, or one that the schema has no type for. Nothing is appended then.
pub(crate) fn put_json(extended: bool, json: &str, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let message = Message::decode(json)?;
    let kind = match &message {
        Message::Data { .. } => 0,
        Message::Presence { .. } => return Err(Malformed::Unsupported("presence")),
        Message::Pong => return Err(Malformed::Unsupported("pong")),
        message => position_of(message.kind()),
    };
    let numbers = if extended { EXTENDED } else { BASE };
    let mut packed = Vec::new();
    match &message {
        Message::Data { message, .. } => msgpack::put_json(message, &mut packed)?,
        Message::Ping { message } => msgpack::put_unsigned(*message, &mut packed),
        _ => {}
    }
    put_number(TYPE, kind, out);
    match &message {
        Message::Welcome { sid, restored } if extended => {
            put_bytes(SID, sid.as_deref().unwrap_or_default().as_bytes(), out);
            if let Some(ids) = restored {
                put_number(RESTORED, 1, out);
                // Unlike other fields, entries of a list may be empty.
                ids.iter().for_each(|id| put_entry(RESTORED_IDS, id.as_bytes(), out));
            }
        }
        Message::Disconnect { reason, reconnect } => {
            put_bytes(numbers.reason, reason.as_str().as_bytes(), out);
            put_number(numbers.reconnect, u64::from(*reconnect), out);
        }
        Message::Confirm { identifier }
        | Message::Reject { identifier }
        | Message::ConfirmHistory { identifier }
        | Message::RejectHistory { identifier }
        | Message::Data { identifier, .. } => {
            put_bytes(numbers.identifier, identifier.as_bytes(), out);
        }
        _ => {}
    }
    put_bytes(numbers.message, &packed, out);
    if let Message::Data { position: Some(position), .. } = &message
        && extended
    {
        put_bytes(STREAM_ID, position.stream_id.as_bytes(), out);
        put_bytes(EPOCH, position.epoch.as_bytes(), out);
        put_number(OFFSET, position.offset, out);
    }
    Ok(())
}

fn position_of(kind: &str) -> u64 {
    let found = TYPES.iter().position(|name| *name == kind);
    debug_assert!(found.is_some(), "each type that is left has a number");
    found.unwrap_or_default() as u64
}

/// A number that is not 0, which readers assume.
fn put_number(field: u64, number: u64, out: &mut Vec<u8>) {
    if number > 0 {
        put_varint(field << 3 | VARINT, out);
        put_varint(number, out);
    }
}

/// Bytes that are not none, which readers assume.
fn put_bytes(field: u64, bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        put_entry(field, bytes, out);
    }
}

fn put_entry(field: u64, bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(field << 3 | BYTES, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(extended: bool, json: &str) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::new();
        put_json(extended, json, &mut out).map(|()| out)
    }

    #[test]
    fn messages_have_the_fields_of_their_schema() {
        for (json, base, extended) in [
            (r#"{"type":"welcome"}"#, &b"\x08\x01"[..], &b"\x08\x01"[..]),
            (r#"{"type":"welcome","sid":"s"}"#, b"\x08\x01", b"\x08\x01\x4a\x01s"),
            (
                r#"{"type":"welcome","sid":"s","restored":true,"restored_ids":["i",""]}"#,
                b"\x08\x01",
                b"\x08\x01\x4a\x01s\x50\x01\x5a\x01i\x5a\x00",
            ),
            (
                r#"{"type":"disconnect","reason":"remote","reconnect":true}"#,
                b"\x08\x02\x32\x06remote\x38\x01",
                b"\x08\x02\x22\x06remote\x28\x01",
            ),
            (
                r#"{"type":"disconnect","reason":"remote","reconnect":false}"#,
                b"\x08\x02\x32\x06remote",
                b"\x08\x02\x22\x06remote",
            ),
            (
                r#"{"type":"ping","message":300}"#,
                b"\x08\x03\x2a\x03\xcd\x01\x2c",
                b"\x08\x03\x1a\x03\xcd\x01\x2c",
            ),
            (
                r#"{"type":"confirm_subscription","identifier":"i"}"#,
                b"\x08\x04\x1a\x01i",
                b"\x08\x04\x12\x01i",
            ),
            (
                r#"{"type":"reject_subscription","identifier":"i"}"#,
                b"\x08\x05\x1a\x01i",
                b"\x08\x05\x12\x01i",
            ),
            (
                r#"{"type":"confirm_history","identifier":"i"}"#,
                b"\x08\x06\x1a\x01i",
                b"\x08\x06\x12\x01i",
            ),
            (
                r#"{"type":"reject_history","identifier":"i"}"#,
                b"\x08\x07\x1a\x01i",
                b"\x08\x07\x12\x01i",
            ),
            (
                r#"{"identifier":"i","message":{"a":[]},"stream_id":"s","epoch":"e","offset":128}"#,
                b"\x1a\x01i\x2a\x04\x81\xa1a\x90",
                b"\x12\x01i\x1a\x04\x81\xa1a\x90\x32\x01s\x3a\x01e\x40\x80\x01",
            ),
        ] {
            assert_eq!(encoded(false, json).as_deref(), Ok(base), "{json}");
            assert_eq!(encoded(true, json).as_deref(), Ok(extended), "{json}");
        }
    }

    #[test]
    fn what_the_schema_lacks_is_refused() {
        use Malformed::{NotJson, UnknownType, Unsupported};
        let presence = r#"{"type":"presence","identifier":"i","message":{"type":"error"}}"#;
        for (json, why) in [
            (presence, Unsupported("presence")),
            (r#"{"type":"pong"}"#, Unsupported("pong")),
            (r#"{"type":"tea","identifier":"i","message":1}"#, UnknownType),
            ("", NotJson { line: 1, column: 0 }),
        ] {
            assert_eq!(encoded(true, json), Err(why), "{json}");
        }
    }
}
