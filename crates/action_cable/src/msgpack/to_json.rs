//! [`to_json`]: a client's MessagePack as JSON.

use alloc::format;
use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::timestamp;
use crate::Malformed;
use crate::json::put_string;

/// Maps and arrays within each other. No message of the protocol has more than five beyond a payload's
/// own, and readers of JSON accept as many as this.
const DEPTH_MAX: usize = 128;

/// Appends a value as JSON, as `JSON.stringify` would: whole floats as integers, infinity and NaN as
/// null, a timestamp as text, binary data as base64. It ends with the last byte.
///
/// # Errors
/// It is not MessagePack, or not representable: an extension type other than the timestamp, a key that
/// is not a string, too deep.
pub(crate) fn to_json(data: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut reader = Reader { data, at: 0 };
    let mut open: Vec<Open> = Vec::new();
    loop {
        let is_key = open.last_mut().is_some_and(|innermost| innermost.begin(out));
        match reader.token()? {
            Token::Text(text) => put_string(text, out),
            _ if is_key => return Err(Malformed::Unsupported("a key that is not a string")),
            Token::Json(json) => out.extend_from_slice(json.as_bytes()),
            Token::Written(json) => out.extend_from_slice(json.as_bytes()),
            Token::Binary(bytes) => put_string(&STANDARD.encode(bytes), out),
            Token::Map(entries) => reader.begin(&mut open, entries, true, out)?,
            Token::Array(entries) => reader.begin(&mut open, entries, false, out)?,
        }
        while let Some(ended) = open.pop_if(|innermost| innermost.left == 0) {
            out.push(if ended.is_map { b'}' } else { b']' });
        }
        if open.is_empty() {
            break;
        }
    }
    match reader.at == data.len() {
        true => Ok(()),
        false => Err(reader.malformed()),
    }
}

/// A map or an array that has begun.
struct Open {
    /// Values that are still to come; a key is one.
    left: usize,
    is_map: bool,
    first: bool,
}

impl Open {
    /// Writes what comes before its next value. Returns whether that is a key.
    fn begin(&mut self, out: &mut Vec<u8>) -> bool {
        let is_key = self.is_map && self.left.is_multiple_of(2);
        if !core::mem::take(&mut self.first) {
            out.push(if self.is_map && !is_key { b':' } else { b',' });
        }
        self.left -= 1;
        is_key
    }
}

enum Token<'a> {
    Text(&'a str),
    Json(&'static str),
    Written(alloc::string::String),
    Binary(&'a [u8]),
    Map(u32),
    Array(u32),
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn malformed(&self) -> Malformed {
        Malformed::NotMsgpack { byte: self.at }
    }

    fn begin(
        &self,
        open: &mut Vec<Open>,
        entries: u32,
        is_map: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        if open.len() == DEPTH_MAX {
            return Err(Malformed::Unsupported("a message nested deeper than 128"));
        }
        let left = (entries as usize).saturating_mul(if is_map { 2 } else { 1 });
        // Each value takes a byte or more.
        if left > self.data.len() - self.at {
            return Err(self.malformed());
        }
        out.push(if is_map { b'{' } else { b'[' });
        open.push(Open { left, is_map, first: true });
        Ok(())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let taken = rest.get(..length).ok_or_else(|| self.malformed())?;
        self.at += length;
        Ok(taken)
    }

    /// An unsigned number of this many bytes, at most eight.
    fn number(&mut self, bytes: usize) -> Result<u64, Malformed> {
        let taken = self.take(bytes)?;
        Ok(taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// A length of this many bytes, at most four.
    fn length(&mut self, bytes: usize) -> Result<usize, Malformed> {
        let length = self.number(bytes)?;
        usize::try_from(length).map_err(|_| self.malformed())
    }

    fn count(&mut self, bytes: usize) -> Result<u32, Malformed> {
        let count = self.number(bytes)?;
        u32::try_from(count).map_err(|_| self.malformed())
    }

    fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let at = self.at;
        let first = self.number(1)? as u8;
        Ok(match first {
            0..=0x7f => written(u64::from(first)),
            0x80..=0x8f => Token::Map(u32::from(first & 0xf)),
            0x90..=0x9f => Token::Array(u32::from(first & 0xf)),
            0xa0..=0xbf => self.text(usize::from(first & 0x1f))?,
            0xc0 => Token::Json("null"),
            0xc1 => {
                self.at = at;
                return Err(self.malformed());
            }
            0xc2 => Token::Json("false"),
            0xc3 => Token::Json("true"),
            0xc4..=0xc6 => {
                let length = self.length(1 << (first - 0xc4))?;
                Token::Binary(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(1 << (first - 0xc7))?;
                self.extension(length)?
            }
            0xca => float(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xcb => float(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => written(self.number(1 << (first - 0xcc))?),
            0xd0 => written(self.number(1)? as i8),
            0xd1 => written(self.number(2)? as i16),
            0xd2 => written(self.number(4)? as i32),
            0xd3 => written(self.number(8)? as i64),
            0xd4..=0xd8 => self.extension(1 << (first - 0xd4))?,
            0xd9..=0xdb => {
                let length = self.length(1 << (first - 0xd9))?;
                self.text(length)?
            }
            0xdc | 0xdd => Token::Array(self.count(if first == 0xdc { 2 } else { 4 })?),
            0xde | 0xdf => Token::Map(self.count(if first == 0xde { 2 } else { 4 })?),
            0xe0..=0xff => written(first as i8),
        })
    }

    fn text(&mut self, length: usize) -> Result<Token<'a>, Malformed> {
        let bytes = self.take(length)?;
        let text = core::str::from_utf8(bytes);
        text.map(Token::Text).map_err(|_| Malformed::Unsupported("a string that is not UTF-8"))
    }

    /// A timestamp: the only extension type with a meaning that is not the application's own.
    fn extension(&mut self, length: usize) -> Result<Token<'a>, Malformed> {
        const TIMESTAMP: i8 = -1;
        let kind = self.number(1)? as i8;
        let moment = match (kind, length) {
            (TIMESTAMP, 4) => (self.number(4)? as i64, 0),
            (TIMESTAMP, 8) => {
                let both = self.number(8)?;
                ((both & ((1 << 34) - 1)) as i64, (both >> 34) as u32)
            }
            (TIMESTAMP, 12) => {
                let ns = self.number(4)? as u32;
                (self.number(8)? as i64, ns)
            }
            _ => return Err(Malformed::Unsupported("an extension type")),
        };
        let shown = timestamp::shown(moment.0, moment.1);
        let shown = shown.ok_or(Malformed::Unsupported("this timestamp"))?;
        Ok(Token::Written(format!("\"{shown}\"")))
    }
}

fn written<'a>(number: impl core::fmt::Display) -> Token<'a> {
    Token::Written(format!("{number}"))
}

fn float<'a>(number: f64) -> Token<'a> {
    /// The first that a float does not tell from the one after it.
    const WHOLE_END: f64 = 9_007_199_254_740_992.0;
    match number {
        _ if !number.is_finite() => Token::Json("null"),
        _ if number.abs() < WHOLE_END && number as i64 as f64 == number => written(number as i64),
        // With an exponent where it is shorter.
        _ => Token::Written(format!("{number:?}")),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    fn json(data: &[u8]) -> Result<String, Malformed> {
        let mut out = Vec::new();
        to_json(data, &mut out).map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn each_type_becomes_json() {
        for (data, text) in [
            (&b"\xc0"[..], "null"),
            (b"\x93\xc2\xc3\x7f", "[false,true,127]"),
            (b"\x82\xa1a\x81\xa0\x90\xa1b\x80", r#"{"a":{"":[]},"b":{}}"#),
            (b"\xcc\xff", "255"),
            (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"),
            (b"\xd0\x80", "-128"),
            (b"\xd1\xff\x7f", "-129"),
            (b"\xd2\x80\x00\x00\x00", "-2147483648"),
            (b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "-9223372036854775808"),
            (b"\xe0", "-32"),
            (b"\xca\x3f\xc0\x00\x00", "1.5"),
            (b"\xcb\x41\xd9\x00\x00\x00\x00\x00\x00", "1677721600"),
            (b"\xcb\x7e\x37\xe4\x3c\x88\x00\x75\x9c", "1e300"),
            (b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", "null"),
            (b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "null"),
            (b"\xd9\x03\"\\\n", r#""\"\\\n""#),
            (b"\xc4\x02hi", r#""aGk=""#),
            (b"\xdc\x00\x01\x05", "[5]"),
            (b"\xdf\x00\x00\x00\x01\xa1k\x05", r#"{"k":5}"#),
            (b"\xd6\xff\x00\x00\x00\x01", r#""1970-01-01T00:00:01.000Z""#),
            (b"\xd7\xff\x00\x3d\x09\x00\x00\x00\x00\x01", r#""1970-01-01T00:00:01.001Z""#),
            (
                b"\xc7\x0c\xff\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff",
                r#""1969-12-31T23:59:59.000000001Z""#,
            ),
        ] {
            assert_eq!(json(data).as_deref(), Ok(text), "{data:x?}");
        }
    }

    #[test]
    fn hostile_messages_are_errors() {
        use Malformed::{NotMsgpack, Unsupported};
        for (data, why) in [
            (&b""[..], NotMsgpack { byte: 0 }),
            (b"\xc1", NotMsgpack { byte: 0 }),
            (b"\x00\x00", NotMsgpack { byte: 1 }),
            (b"\x92\x00", NotMsgpack { byte: 1 }),
            (b"\xa5abcd", NotMsgpack { byte: 1 }),
            (b"\xdb\xff\xff\xff\xffa", NotMsgpack { byte: 5 }),
            (b"\xdd\xff\xff\xff\xff\x00", NotMsgpack { byte: 5 }),
            (b"\xdf\xff\xff\xff\xff\xa0\x00", NotMsgpack { byte: 5 }),
            (b"\xc6\xff\xff\xff\xff\x00", NotMsgpack { byte: 5 }),
            (b"\xce\x00\x00", NotMsgpack { byte: 1 }),
            (b"\x81\x01\x01", Unsupported("a key that is not a string")),
            (b"\x81\x80\x01", Unsupported("a key that is not a string")),
            (b"\xa1\xff", Unsupported("a string that is not UTF-8")),
            (b"\xd4\x01\x00", Unsupported("an extension type")),
            (b"\xd4\xff\x00", Unsupported("an extension type")),
            (b"\xd7\xff\xff\xff\xff\xff\x00\x00\x00\x00", Unsupported("this timestamp")),
        ] {
            assert_eq!(json(data), Err(why), "{data:x?}");
        }
        let deep = |depth: usize| [alloc::vec![0x91; depth - 1], alloc::vec![0x90]].concat();
        assert!(json(&deep(DEPTH_MAX)).is_ok());
        for depth in [DEPTH_MAX + 1, 1_000_000] {
            let why = Malformed::Unsupported("a message nested deeper than 128");
            assert_eq!(json(&deep(depth)), Err(why));
        }
    }
}
