//! A publication that its receivers can check: publisher, sequence number, time and checksum, as
//! text so that every server passes it through. The layout is in `docs/protocol/load-messages.md`.
//!
//! `sf1 PUBLISHER SEQUENCE NANOSECONDS [+MICROSECONDS] [FILLING] CHECKSUM`: decimal numbers, the time of
//! the send in nanoseconds of CLOCK_MONOTONIC, which all processes of one machine share, how much
//! later that is than it was due, and FNV-1a over all before the last blank, in eight hexadecimal
//! digits.

use std::fmt::Write;

/// The header of a publication.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// The number of the publisher, which it chooses.
    pub publisher: u32,
    /// The sequence number of that publisher, from 0.
    pub sequence: u32,
    /// When it was due and when it was sent, in nanoseconds of the monotonic clock. The difference is
    /// carried in microseconds.
    pub due_ns: u64,
    /// See `due_ns`.
    pub published_ns: u64,
}

impl Publication {
    /// A publication sent when it was due.
    #[must_use]
    pub fn new(publisher: u32, sequence: u32, published_ns: u64) -> Publication {
        Publication { publisher, sequence, due_ns: published_ns, published_ns }
    }
}

/// The prefix of every publication.
pub const BEGINNING: &[u8] = b"sf1 ";

/// Bytes of the longest publication without filling.
pub const LONGEST_BYTES: usize =
    "sf1 4294967295 4294967295 18446744073709551615 +4294967295 ffffffff".len();

/// Encodes a publication, padded to `size` bytes.
#[must_use]
pub fn encode(publication: &Publication, size: usize) -> String {
    let Publication { publisher, sequence, due_ns, published_ns } = publication;
    let mut text = String::with_capacity(LONGEST_BYTES.max(size));
    // Writing to a String cannot fail.
    let _ = write!(text, "sf1 {publisher} {sequence} {published_ns}");
    let delay_us = published_ns.saturating_sub(*due_ns) / 1_000;
    if delay_us > 0 {
        let _ = write!(text, " +{}", u32::try_from(delay_us).unwrap_or(u32::MAX));
    }
    let missing = size.saturating_sub(text.len() + CHECKSUM_BYTES);
    if missing > 1 {
        text.push(' ');
        text.extend(std::iter::repeat_n('x', missing - 1));
    }
    let check = fnv1a(text.as_bytes());
    let _ = write!(text, " {check:08x}");
    text
}

/// Finds a publication in a message: all of it, or a JSON string in the envelope of another server.
/// `None` if nothing in it begins like one.
#[must_use]
pub fn find(message: &[u8]) -> Option<&[u8]> {
    if message.starts_with(BEGINNING) {
        return Some(message);
    }
    let begins = |window: &[u8]| window.strip_prefix(b"\"").is_some_and(|it| it == BEGINNING);
    let quote = message.windows(BEGINNING.len() + 1).position(begins)?;
    let text = message.get(quote + 1..)?;
    text.split(|&byte| byte == b'"').next()
}

/// Finds a publication in a message of Protocol Buffers, where it is a whole string: after its length of
/// one byte.
#[must_use]
pub fn find_in_fields(message: &[u8]) -> Option<&[u8]> {
    let begins = |window: &[u8]| window.split_first().is_some_and(|(_, text)| text == BEGINNING);
    let at = message.windows(BEGINNING.len() + 1).position(begins)?;
    let (length, text) = message.get(at..)?.split_first()?;
    text.get(..usize::from(*length)).filter(|_| *length < 0x80)
}

/// Parses a publication; `None` if it is none or was changed.
#[must_use]
pub fn parse(data: &[u8]) -> Option<Publication> {
    let (text, check) = data.split_last_chunk::<CHECKSUM_BYTES>()?;
    let digits = check.strip_prefix(b" ")?;
    let check = digits.iter().try_fold(0_u32, |sum, byte| match byte {
        b'0'..=b'9' => Some(sum << 4 | u32::from(byte - b'0')),
        b'a'..=b'f' => Some(sum << 4 | u32::from(byte - b'a' + 10)),
        _ => None,
    })?;
    let mut words = text.strip_prefix(BEGINNING)?.split(|&byte| byte == b' ');
    let publisher = u32::try_from(decimal(words.next()?)?).ok()?;
    let sequence = u32::try_from(decimal(words.next()?)?).ok()?;
    let published_ns = decimal(words.next()?)?;
    let (mut filling, mut delay_us) = (words.next(), 0);
    if let Some(digits) = filling.and_then(|word| word.strip_prefix(b"+")) {
        delay_us = u32::try_from(decimal(digits)?).ok()?;
        filling = words.next();
    }
    let due_ns = published_ns.saturating_sub(u64::from(delay_us) * 1_000);
    let filled = filling.is_none_or(|filling| filling.iter().all(|&byte| byte == b'x'));
    let valid = filled && words.next().is_none() && fnv1a(text) == check;
    valid.then_some(Publication { publisher, sequence, due_ns, published_ns })
}

/// A space and eight digits.
const CHECKSUM_BYTES: usize = 9;

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// FNV-1a, 32 bits: one line in any language, so that other publishers can implement it.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "sf1 7 42 123456789012 4d4efc7e";

    fn publication() -> Publication {
        Publication::new(7, 42, 123_456_789_012)
    }

    #[test]
    fn encoded_publications_are_parsed() {
        let text = encode(&publication(), 0);
        assert_eq!(text, TEXT, "the example in docs/protocol/load-messages.md");
        assert_eq!(parse(text.as_bytes()), Some(publication()));
        let most = Publication { due_ns: 0, ..Publication::new(u32::MAX, u32::MAX, u64::MAX) };
        assert_eq!(encode(&most, 0).len(), LONGEST_BYTES);
        let due_ns = u64::MAX - u64::from(u32::MAX) * 1_000;
        let parsed = parse(encode(&most, 0).as_bytes());
        assert_eq!(parsed, Some(Publication { due_ns, ..most }), "the longest delay");
        for size in [30, 31, 32, 100, 5_000] {
            let text = encode(&publication(), size);
            assert_eq!(parse(text.as_bytes()), Some(publication()), "{text}");
            assert!(text.len() == size || size < 33 && text.len() == TEXT.len(), "{size}: {text}");
        }
        let late = Publication { due_ns: 123_456_288_512, ..publication() };
        let due_ns = 123_456_289_012;
        for size in [0, 100] {
            let text = encode(&late, size);
            assert!(text.starts_with("sf1 7 42 123456789012 +500 "), "{text}");
            let parsed = parse(text.as_bytes());
            assert_eq!(parsed, Some(Publication { due_ns, ..late }), "whole microseconds: {text}");
        }
    }

    #[test]
    fn the_checksum_is_the_published_one() {
        // Test vectors of FNV-1a by its authors.
        assert_eq!(fnv1a(b""), 0x811c_9dc5);
        assert_eq!(fnv1a(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn publication_is_found_in_an_envelope() {
        assert_eq!(find(TEXT.as_bytes()), Some(TEXT.as_bytes()));
        let message = format!(r#"{{"push":{{"channel":"sf1","pub":{{"data":"{TEXT}"}}}}}}"#);
        assert_eq!(find(message.as_bytes()), Some(TEXT.as_bytes()));
        assert_eq!(find(format!("\"{TEXT}").as_bytes()), Some(TEXT.as_bytes()), "cut short");
        for other in ["", "{}", "{\"type\":\"ping\"}", "sf1", " sf1 1 2 3", "\"sf1\""] {
            assert_eq!(find(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn publication_is_found_in_a_message_of_protocol_buffers() {
        let length = TEXT.len() as u8;
        let message =
            [b"\x08\x07\x12".as_slice(), &[length], TEXT.as_bytes(), b"\x1a\x01x"].concat();
        assert_eq!(find_in_fields(&message), Some(TEXT.as_bytes()));
        for cut in 0..4 + TEXT.len() {
            assert_eq!(find_in_fields(&message[..cut]), None, "{cut}");
        }
        assert_eq!(find_in_fields(b"\xffsf1 1 2"), None);
    }

    #[test]
    fn changed_or_foreign_text_is_rejected() {
        let text = encode(&publication(), 0);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            assert_eq!(parse(&changed), None, "byte {at}");
        }
        for other in ["", "sf1", "hello", " 00000000", "sf1 1 2 3", "sf1 4294967296 0 0 00000000"] {
            assert_eq!(parse(other.as_bytes()), None, "{other:?}");
        }
    }
}
