//! [`put_json`]: JSON as MessagePack.

use alloc::vec::Vec;

use serde::de::IgnoredAny;

use crate::Malformed;
use crate::json::not_json;

/// Appends JSON as MessagePack: integers in the fewest bytes, numbers with a fraction or an exponent and
/// integers beyond 64 bits as float 64, keys in their order. Half of a surrogate pair, which UTF-8
/// cannot hold, becomes U+FFFD.
///
/// # Errors
/// It is not JSON. Nothing is appended then.
pub(crate) fn put_json(json: &str, out: &mut Vec<u8>) -> Result<(), Malformed> {
    serde_json::from_str::<IgnoredAny>(json).map_err(|error| not_json(&error))?;
    let counts = counts(json.as_bytes());
    let mut counts = counts.into_iter();
    let mut unescaped = Vec::new();
    let mut rest = json;
    while let Some(first) = rest.bytes().next() {
        let used = match first {
            b'{' => {
                put_header(MAP, counts.next().unwrap_or_default(), out);
                1
            }
            b'[' => {
                put_header(ARRAY, counts.next().unwrap_or_default(), out);
                1
            }
            b'"' => put_string_of(rest, &mut unescaped, out),
            b't' | b'f' | b'n' => {
                out.push(match first {
                    b't' => 0xc3,
                    b'f' => 0xc2,
                    _ => 0xc0,
                });
                if first == b'f' { 5 } else { 4 }
            }
            b'-' | b'0'..=b'9' => {
                let ends =
                    |byte: u8| !matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let end = rest.bytes().position(ends).unwrap_or(rest.len());
                put_number(rest.get(..end).unwrap_or_default(), out);
                end
            }
            // Space, commas, colons and ends.
            _ => 1,
        };
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(())
}

/// The number of entries of each object and array, in the order in which they begin.
fn counts(json: &[u8]) -> Vec<u32> {
    let mut counts: Vec<u32> = Vec::new();
    // Those that are open, by their place in `counts`.
    let mut open: Vec<u32> = Vec::new();
    // Nothing has followed the begin of the innermost one.
    let mut empty = false;
    let mut rest = json.iter();
    while let Some(byte) = rest.next() {
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        }
        let first = core::mem::take(&mut empty) && !matches!(byte, b'}' | b']');
        if first || *byte == b',' {
            let innermost = open.last().and_then(|at| counts.get_mut(*at as usize));
            innermost.into_iter().for_each(|count| *count += 1);
        }
        match byte {
            b'{' | b'[' => {
                open.push(u32::try_from(counts.len()).unwrap_or(u32::MAX));
                counts.push(0);
                empty = true;
            }
            b'}' | b']' => {
                open.pop();
            }
            b'"' => {
                while let Some(byte) = rest.next() {
                    match byte {
                        b'\\' => drop(rest.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    counts
}

/// The bytes of a header by how much it counts: in the header itself, in 8, 16 and 32 bits.
struct Header {
    fixed: u8,
    fixed_max: u32,
    bits_8: Option<u8>,
    bits_16: u8,
    bits_32: u8,
}

const MAP: Header =
    Header { fixed: 0x80, fixed_max: 15, bits_8: None, bits_16: 0xde, bits_32: 0xdf };
const ARRAY: Header =
    Header { fixed: 0x90, fixed_max: 15, bits_8: None, bits_16: 0xdc, bits_32: 0xdd };
const STRING: Header =
    Header { fixed: 0xa0, fixed_max: 31, bits_8: Some(0xd9), bits_16: 0xda, bits_32: 0xdb };

fn put_header(header: Header, count: u32, out: &mut Vec<u8>) {
    match (count, header.bits_8) {
        (0..=31, _) if count <= header.fixed_max => out.push(header.fixed | count as u8),
        (0..=0xff, Some(bits_8)) => out.extend_from_slice(&[bits_8, count as u8]),
        (0..=0xffff, _) => put_big_endian(header.bits_16, &(count as u16).to_be_bytes(), out),
        _ => put_big_endian(header.bits_32, &count.to_be_bytes(), out),
    }
}

fn put_big_endian(first: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(first);
    out.extend_from_slice(bytes);
}

/// Appends the string that `json` begins with, and returns the bytes that it takes there.
fn put_string_of(json: &str, unescaped: &mut Vec<u8>, out: &mut Vec<u8>) -> usize {
    let (mut escapes, mut end) = (false, json.len());
    let mut bytes = json.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => {
                escapes = true;
                bytes.next();
            }
            b'"' => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    let text = json.get(1..end).unwrap_or_default();
    let text = match escapes {
        true => {
            unescaped.clear();
            unescape(text, unescaped);
            unescaped.as_slice()
        }
        false => text.as_bytes(),
    };
    put_header(STRING, u32::try_from(text.len()).unwrap_or(u32::MAX), out);
    out.extend_from_slice(text);
    end + 1
}

fn unescape(text: &str, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.extend_from_slice(plain.as_bytes());
        let (mut used, mut char) = (1, escape.chars().next().unwrap_or_default());
        match char {
            'n' => char = '\n',
            'r' => char = '\r',
            't' => char = '\t',
            'b' => char = '\x08',
            'f' => char = '\x0c',
            'u' => (char, used) = unicode(escape),
            _ => {}
        }
        out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        rest = escape.get(used..).unwrap_or_default();
    }
    out.extend_from_slice(rest.as_bytes());
}

/// The character that `uXXXX`, or `uXXXX\uXXXX`, means, and the length of it.
fn unicode(escape: &str) -> (char, usize) {
    let unit = |from: usize| {
        let digits = escape.get(from..from + 4)?;
        u32::from_str_radix(digits, 16).ok()
    };
    let high = unit(1).unwrap_or_default();
    if let 0xd800..=0xdbff = high
        && escape.get(5..7) == Some("\\u")
        && let Some(low @ 0xdc00..=0xdfff) = unit(7)
    {
        let both = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
        return (char::from_u32(both).unwrap_or(char::REPLACEMENT_CHARACTER), 11);
    }
    (char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), 5)
}

fn put_number(text: &str, out: &mut Vec<u8>) {
    if let Ok(number) = text.parse::<u64>() {
        return put_unsigned(number, out);
    }
    // An integer would lose the sign of -0.
    if let Some(number) = text.parse::<i64>().ok().filter(|number| *number != 0) {
        return put_negative(number, out);
    }
    let number: f64 = text.parse().unwrap_or(f64::NAN);
    put_big_endian(0xcb, &number.to_be_bytes(), out);
}

/// Appends an integer in the fewest bytes.
pub(crate) fn put_unsigned(number: u64, out: &mut Vec<u8>) {
    match number {
        0..=0x7f => out.push(number as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, number as u8]),
        0x100..=0xffff => put_big_endian(0xcd, &(number as u16).to_be_bytes(), out),
        0x1_0000..=0xffff_ffff => put_big_endian(0xce, &(number as u32).to_be_bytes(), out),
        _ => put_big_endian(0xcf, &number.to_be_bytes(), out),
    }
}

fn put_negative(number: i64, out: &mut Vec<u8>) {
    const MIN_8: i64 = i8::MIN as i64;
    const MIN_16: i64 = i16::MIN as i64;
    const MIN_32: i64 = i32::MIN as i64;
    match number {
        -32.. => out.push(number as u8),
        MIN_8.. => out.extend_from_slice(&[0xd0, number as u8]),
        MIN_16.. => put_big_endian(0xd1, &(number as i16).to_be_bytes(), out),
        MIN_32.. => put_big_endian(0xd2, &(number as i32).to_be_bytes(), out),
        _ => put_big_endian(0xd3, &number.to_be_bytes(), out),
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use super::*;

    fn packed(json: &str) -> Vec<u8> {
        let mut out = Vec::new();
        put_json(json, &mut out).unwrap();
        out
    }

    /// The bytes of the specification's formats, at both ends of each.
    #[test]
    fn each_value_takes_the_fewest_bytes() {
        for (json, bytes) in [
            ("null", &[0xc0][..]),
            (" true ", &[0xc3]),
            ("false", &[0xc2]),
            ("0", &[0]),
            ("127", &[0x7f]),
            ("128", &[0xcc, 0x80]),
            ("256", &[0xcd, 1, 0]),
            ("65536", &[0xce, 0, 1, 0, 0]),
            ("4294967296", &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]),
            ("18446744073709551615", &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]),
            ("-1", &[0xff]),
            ("-32", &[0xe0]),
            ("-33", &[0xd0, 0xdf]),
            ("-129", &[0xd1, 0xff, 0x7f]),
            ("-32769", &[0xd2, 0xff, 0xff, 0x7f, 0xff]),
            ("-2147483649", &[0xd3, 255, 255, 255, 255, 0x7f, 255, 255, 255]),
            ("1.5", &[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]),
            ("1e999", &[0xcb, 0x7f, 0xf0, 0, 0, 0, 0, 0, 0]),
            ("-0", &[0xcb, 0x80, 0, 0, 0, 0, 0, 0, 0]),
            ("36893488147419103232", &[0xcb, 0x44, 0, 0, 0, 0, 0, 0, 0]),
            (r#""""#, &[0xa0]),
            (r#""\"\\\/\u00e9\n""#, b"\xa6\"\\/\xc3\xa9\n"),
            (r#""\ud83d\ude00""#, b"\xa4\xf0\x9f\x98\x80"),
            (r#""\ud800x\udc00""#, b"\xa7\xef\xbf\xbdx\xef\xbf\xbd"),
            (r#"{"a":[{},[ ]], "b":{"c":1} }"#, b"\x82\xa1a\x92\x80\x90\xa1b\x81\xa1c\x01"),
            (r#"["]},{[", 2]"#, b"\x92\xa5]},{[\x02"),
        ] {
            assert_eq!(packed(json), bytes, "{json}");
        }
    }

    #[test]
    fn lengths_take_the_header_that_holds_them() {
        for (length, header) in [
            (31, &[0xbf][..]),
            (32, &[0xd9, 32]),
            (255, &[0xd9, 255]),
            (256, &[0xda, 1, 0]),
            (65_536, &[0xdb, 0, 1, 0, 0]),
        ] {
            assert!(packed(&format!("\"{}\"", "x".repeat(length))).starts_with(header), "{length}");
        }
        for (length, header) in
            [(15, &[0x9f][..]), (16, &[0xdc, 0, 16]), (65_536, &[0xdd, 0, 1, 0, 0])]
        {
            let json: String = alloc::vec!["1"; length].join(",");
            assert!(packed(&format!("[{json}]")).starts_with(header), "{length}");
        }
        let json: String = alloc::vec!["\"k\":1"; 16].join(",");
        assert!(packed(&format!("{{{json}}}")).starts_with(&[0xde, 0, 16]));
    }

    #[test]
    fn any_depth_is_written_and_what_is_not_json_is_refused() {
        let deep = 100_000;
        let json = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
        let bytes = packed(&json);
        assert_eq!((bytes.len(), bytes.last()), (deep, Some(&0x90)));
        for bad in ["", "{", "[1,]", "nul", "{\"a\"}", "1 2", "\"\\x\"", "'a'"] {
            let mut out = Vec::new();
            assert!(matches!(put_json(bad, &mut out), Err(Malformed::NotJson { .. })), "{bad}");
            assert!(out.is_empty());
        }
    }
}
