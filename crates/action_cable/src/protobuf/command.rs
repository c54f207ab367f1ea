//! [`command_to_json`]: a client's `Message`.

use alloc::vec::Vec;

use super::{BYTES, COMMANDS, VARINT};
use crate::Malformed;
use crate::history::{History, Position};
use crate::json::{Object, put_payload, put_string};

/// Appends a client's message as JSON. Of a repeated field the last counts, unknown fields are skipped, as
/// Protobuf demands. The `data` of a whisper is any JSON there: text that is none becomes a string.
///
/// # Errors
/// Why it is malformed.
pub(crate) fn command_to_json(data: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let (mut command, mut identifier, mut text, mut history) = (0, None, None, None::<History>);
    let mut fields = Fields { data, at: 0 };
    while let Some((number, value)) = fields.next()? {
        match number {
            2 => command = value.number().ok_or(Malformed::Invalid("command"))?,
            3 => identifier = Some(value.text("identifier")?),
            4 => text = Some(value.text("data")?),
            8 => {
                let bytes = value.bytes().ok_or(Malformed::Invalid("history"))?;
                read_history(history.get_or_insert_default(), bytes)?;
            }
            _ => {}
        }
    }
    let name = usize::try_from(command).ok().and_then(|command| COMMANDS.get(command));
    let name = name.filter(|name| !name.is_empty()).ok_or(Malformed::UnknownCommand)?;
    let mut object = Object::begin(out);
    object.text("command", name);
    // An empty text is not sent.
    if *name != "pong" {
        object.text("identifier", identifier.unwrap_or_default());
    }
    match *name {
        "whisper" => put_payload(text.unwrap_or_default(), object.key("data")),
        "message" => put_string(text.unwrap_or_default(), object.key("data")),
        _ => {}
    }
    if let Some(history) = history {
        history.put(&mut object);
    }
    object.end();
    Ok(())
}

const HISTORY: Malformed = Malformed::Invalid("history");

/// Reads a `HistoryRequest` into what was read before.
fn read_history<'a>(history: &mut History<'a>, data: &'a [u8]) -> Result<(), Malformed> {
    let mut fields = Fields { data, at: 0 };
    while let Some((number, value)) = fields.next()? {
        match number {
            // Negative numbers are sent as if they were large ones.
            1 => history.since = Some(value.number().ok_or(HISTORY)? as i64),
            2 => {
                let stream = read_stream(value.bytes().ok_or(HISTORY)?)?;
                // No stream has no name.
                history.streams.extend(Some(stream).filter(|stream| !stream.stream_id.is_empty()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads an entry of `streams`.
fn read_stream(data: &[u8]) -> Result<Position<'_>, Malformed> {
    let mut stream = Position { stream_id: "".into(), epoch: "".into(), offset: 0 };
    let mut fields = Fields { data, at: 0 };
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => stream.stream_id = value.text("history")?.into(),
            2 => read_position(&mut stream, value.bytes().ok_or(HISTORY)?)?,
            _ => {}
        }
    }
    Ok(stream)
}

/// Reads a `StreamHistoryRequest`.
fn read_position<'a>(stream: &mut Position<'a>, data: &'a [u8]) -> Result<(), Malformed> {
    let mut fields = Fields { data, at: 0 };
    while let Some((number, value)) = fields.next()? {
        match number {
            2 => stream.epoch = value.text("history")?.into(),
            3 => {
                let offset = value.number().filter(|offset| *offset <= i64::MAX as u64);
                stream.offset = offset.ok_or(HISTORY)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The fields of a message.
struct Fields<'a> {
    data: &'a [u8],
    at: usize,
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// 32 or 64 bits: no field that we read.
    Fixed,
}

impl<'a> Value<'a> {
    fn number(&self) -> Option<u64> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn text(&self, key: &'static str) -> Result<&'a str, Malformed> {
        let text = self.bytes().and_then(|bytes| core::str::from_utf8(bytes).ok());
        text.ok_or(Malformed::Invalid(key))
    }
}

impl<'a> Fields<'a> {
    fn malformed(&self) -> Malformed {
        Malformed::NotProtobuf { byte: self.at }
    }

    /// The number and the value of the next field.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        const FIXED_64: u64 = 1;
        const FIXED_32: u64 = 5;
        if self.at >= self.data.len() {
            return Ok(None);
        }
        let start = self.at;
        let tag = self.varint()?;
        let value = match tag & 7 {
            VARINT => Value::Number(self.varint()?),
            BYTES => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| self.malformed())?;
                Value::Bytes(self.take(length)?)
            }
            FIXED_64 => self.take(8).map(|_| Value::Fixed)?,
            FIXED_32 => self.take(4).map(|_| Value::Fixed)?,
            // Groups, which this version of Protobuf does not have.
            _ => return Err(Malformed::NotProtobuf { byte: start }),
        };
        match tag >> 3 {
            1..=0x1fff_ffff => Ok(Some((tag >> 3, value))),
            _ => Err(Malformed::NotProtobuf { byte: start }),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let taken = rest.get(..length).ok_or_else(|| self.malformed())?;
        self.at += length;
        Ok(taken)
    }

    /// At most ten bytes. The bits of the last beyond 64 are dropped, as Protobuf's own readers do.
    fn varint(&mut self) -> Result<u64, Malformed> {
        let start = self.at;
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?.first().copied().unwrap_or_default();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed::NotProtobuf { byte: start })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    fn json(data: &[u8]) -> Result<String, Malformed> {
        let mut out = Vec::new();
        command_to_json(data, &mut out).map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn commands_become_json() {
        for (data, text) in [
            (&b"\x10\x01\x1a\x01i"[..], r#"{"command":"subscribe","identifier":"i"}"#),
            // Another order, an unknown field of each type, `type` and `message`.
            (
                b"\x1a\x01i\x08\x00\x2a\x01\xc0\x78\x05\x7d\0\0\0\0\x79\0\0\0\0\0\0\0\0\x10\x02",
                r#"{"command":"unsubscribe","identifier":"i"}"#,
            ),
            (
                b"\x10\x03\x1a\x01i\x22\x02{}",
                r#"{"command":"message","identifier":"i","data":"{}"}"#,
            ),
            (b"\x10\x06\x1a\x01i\x22\x02{}", r#"{"command":"whisper","identifier":"i","data":{}}"#),
            (
                b"\x10\x06\x1a\x01i\x22\x02{]",
                r#"{"command":"whisper","identifier":"i","data":"{]"}"#,
            ),
            (b"\x10\x05", r#"{"command":"pong"}"#),
            // The last of a repeated field, and both parts of a message that comes twice.
            (
                b"\x10\x04\x1a\x01a\x1a\x01i\x42\x02\x08\x05\x42\x0d\x12\x0b\x0a\x01s\x12\x06\x12\x01e\x18\x80\x01",
                r#"{"command":"history","identifier":"i","history":{"since":5,"streams":{"s":{"offset":128,"epoch":"e"}}}}"#,
            ),
            (
                b"\x10\x01\x1a\x01i\x42\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                r#"{"command":"subscribe","identifier":"i","history":{"since":-1}}"#,
            ),
        ] {
            assert_eq!(json(data).as_deref(), Ok(text), "{data:x?}");
            assert!(crate::Command::decode(text).is_ok());
        }
    }

    #[test]
    fn hostile_messages_are_errors() {
        use Malformed::{Invalid, NotProtobuf, UnknownCommand};
        for (data, why) in [
            (&b""[..], UnknownCommand),
            (b"\x10\x00", UnknownCommand),
            (b"\x10\x07", UnknownCommand),
            (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", UnknownCommand),
            (b"\x10", NotProtobuf { byte: 1 }),
            (b"\x10\x81", NotProtobuf { byte: 2 }),
            (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", NotProtobuf { byte: 1 }),
            (b"\x1a\x05ab", NotProtobuf { byte: 2 }),
            (b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01ab", NotProtobuf { byte: 11 }),
            (b"\x0b\x0c", NotProtobuf { byte: 0 }),
            (b"\x00\x01", NotProtobuf { byte: 0 }),
            (b"\x7d\x00", NotProtobuf { byte: 1 }),
            (b"\x12\x01a", Invalid("command")),
            (b"\x18\x01", Invalid("identifier")),
            (b"\x1a\x01\xff", Invalid("identifier")),
            (b"\x22\x01\xff", Invalid("data")),
            (b"\x10\x01\x40\x01", Invalid("history")),
            (b"\x10\x01\x42\x02\x10\x01", Invalid("history")),
            (b"\x10\x01\x42\x04\x12\x02\x10\x01", Invalid("history")),
            (
                b"\x10\x01\x42\x0f\x12\x0d\x12\x0b\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                Invalid("history"),
            ),
        ] {
            assert_eq!(json(data), Err(why), "{data:x?}");
        }
    }
}
