//! Minimal JSON: objects whose values stay text until decoded, and a writer of objects. serde_json
//! parses; the writer only puts keys around values that are JSON already.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::Malformed;

/// A value as JSON text.
pub(crate) type Raw<'a> = &'a RawValue;

/// Parses an object. If all values in `T` are [`Raw`], the only error beside syntax is a repeated key.
pub(crate) fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Malformed> {
    let begins = text.trim_start_matches([' ', '\t', '\n', '\r']);
    if !begins.starts_with('{') {
        // serde accepts an array for a struct; the protocol does not.
        let json = serde_json::from_str::<IgnoredAny>(text);
        return Err(json.map_or_else(|error| not_json(&error), |_| Malformed::NotAnObject));
    }
    serde_json::from_str(text).map_err(|error| match error.is_data() {
        true => Malformed::Repeated,
        false => not_json(&error),
    })
}

pub(crate) fn not_json(error: &serde_json::Error) -> Malformed {
    Malformed::NotJson { line: error.line(), column: error.column() }
}

/// A present value, `null` included: `Option` alone treats `null` as absent.
pub(crate) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Raw<'de>>, D::Error> {
    Raw::deserialize(deserializer).map(Some)
}

/// The string of a required key.
pub(crate) fn text<'a>(
    value: Option<Raw<'a>>,
    key: &'static str,
) -> Result<Cow<'a, str>, Malformed> {
    optional_text(value, key)?.ok_or(Malformed::Missing(key))
}

/// The string of an optional key.
pub(crate) fn optional_text<'a>(
    value: Option<Raw<'a>>,
    key: &'static str,
) -> Result<Option<Cow<'a, str>>, Malformed> {
    Ok(scalar::<Text<'a>>(value, key)?.map(|text| text.0))
}

/// A string, number or boolean of an optional key.
pub(crate) fn scalar<'a, T: Deserialize<'a>>(
    value: Option<Raw<'a>>,
    key: &'static str,
) -> Result<Option<T>, Malformed> {
    let Some(value) = value else { return Ok(None) };
    serde_json::from_str(value.get()).map(Some).map_err(|_| Malformed::Invalid(key))
}

/// A string, borrowed if it has no escapes: serde does not borrow a `Cow` by default.
#[derive(Deserialize, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Appends an object to a buffer.
pub(crate) struct Object<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl<'o> Object<'o> {
    pub(crate) fn begin(out: &'o mut Vec<u8>) -> Object<'o> {
        out.push(b'{');
        Object { out, first: true }
    }

    /// Continues an object that has a key already.
    pub(crate) fn after(out: &'o mut Vec<u8>) -> Object<'o> {
        Object { out, first: false }
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        put_string(value, self.key(key));
        self
    }

    pub(crate) fn optional_text(&mut self, key: &str, value: Option<&str>) -> &mut Self {
        if let Some(value) = value {
            self.text(key, value);
        }
        self
    }

    /// A value that is already JSON.
    pub(crate) fn raw(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key).extend_from_slice(value.as_bytes());
        self
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, if value { "true" } else { "false" })
    }

    pub(crate) fn number(&mut self, key: &str, value: u64) -> &mut Self {
        put_number(value, self.key(key));
        self
    }

    /// Writes a key and returns the buffer for its value.
    pub(crate) fn key(&mut self, key: &str) -> &mut Vec<u8> {
        if !core::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        put_string(key, self.out);
        self.out.push(b':');
        self.out
    }

    pub(crate) fn end(&mut self) {
        self.out.push(b'}');
    }
}

/// Appends a text as a JSON string.
pub fn put_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    while let Some(at) = rest.iter().position(special) {
        let (plain, from) = rest.split_at(at);
        out.extend_from_slice(plain);
        let Some((&byte, after)) = from.split_first() else {
            debug_assert!(false, "a special byte was found here");
            break;
        };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                let low = byte & 0xf;
                let digit = if low < 10 { b'0' + low } else { b'a' + low - 10 };
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (byte >> 4), digit]);
            }
        }
        rest = after;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Appends a published payload: unchanged if it is JSON, otherwise as a JSON string.
pub fn put_payload(payload: &str, out: &mut Vec<u8>) {
    match serde_json::from_str::<Raw>(payload) {
        Ok(value) => out.extend_from_slice(value.get().as_bytes()),
        Err(_) => put_string(payload, out),
    }
}

/// Appends a number in decimal digits.
pub(crate) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    let from = out.len();
    loop {
        out.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    if let Some(digits) = out.get_mut(from..) {
        digits.reverse();
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;

    fn string(text: &str) -> String {
        let mut out = Vec::new();
        put_string(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn strings_are_escaped_as_json_requires() {
        assert_eq!(string("a\"b\\c/é😀"), r#""a\"b\\c/é😀""#);
        assert_eq!(string("\0\x08\t\n\r\x1f\x7f"), "\"\\u0000\\u0008\\t\\n\\r\\u001f\x7f\"");
        for byte in 0..=0x7f_u8 {
            let text = String::from(char::from(byte));
            assert_eq!(serde_json::from_str::<String>(&string(&text)).unwrap(), text);
        }
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 9, 10, 1_234_567_890, u64::MAX] {
            let mut out = Vec::new();
            put_number(number, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), alloc::format!("{number}"));
        }
    }

    #[test]
    fn a_json_payload_is_unchanged_and_any_other_becomes_a_string() {
        for (payload, message) in [
            (r#"{"a":[1,2]}"#, r#"{"a":[1,2]}"#),
            ("  17 ", "17"),
            ("null", "null"),
            ("hello", r#""hello""#),
            ("{\"a\":", r#""{\"a\":""#),
            ("", r#""""#),
            ("1 2", r#""1 2""#),
        ] {
            let mut out = Vec::new();
            put_payload(payload, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), message);
        }
    }
}
