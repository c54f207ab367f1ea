//! Finding the end of a head as its bytes arrive (RFC 9112 2.1), looking at each byte at most a
//! constant number of times. Stricter than the RFC requires where lenience lets two parsers
//! disagree: lines end in CRLF only, and the only control characters are tabs.

use crate::{Limits, Status, Violation};

/// The state of the search for the end of a head. Make a new one for each head.
#[derive(Copy, Clone, Default, Debug)]
pub struct HeadScanner {
    /// Everything before it is valid; a line end may begin at it.
    scanned: u32,
}

const _: () = assert!(size_of::<HeadScanner>() <= 4);

impl HeadScanner {
    /// Continues in `buf`, which begins where it began in earlier calls and may have grown.
    /// `Complete` is the head's length including its blank line; what follows belongs to the body
    /// or to the next protocol. An empty line before the first is allowed and counts (RFC 9112
    /// 2.2).
    ///
    /// # Errors
    /// `HeadTooLarge` once `limits.head_bytes` cannot hold the head, `NotHttp` if it cannot begin a
    /// method or a version, `ControlCharacter`, `BareCarriageReturn` or `BareLineFeed`, each as
    /// soon as its byte has arrived.
    #[inline]
    pub fn scan(&mut self, buf: &[u8], limits: &Limits) -> Result<Status<usize>, Violation> {
        let scanned_part = buf.get(..limits.head_bytes).unwrap_or(buf);
        if self.scanned == 0 {
            check_first(scanned_part)?;
        }
        match next_blank_line(scanned_part, self.scanned as usize)? {
            Status::Complete(end) => Ok(Status::Complete(end)),
            Status::Partial if scanned_part.len() >= limits.head_bytes => {
                Err(Violation::HeadTooLarge)
            }
            Status::Partial => {
                // A line end of four bytes may have begun in the last three.
                let settled = scanned_part.len().saturating_sub(3);
                self.scanned = self.scanned.max(u32::try_from(settled).unwrap_or(u32::MAX));
                Ok(Status::Partial)
            }
        }
    }

    /// How many bytes will not be looked at again.
    pub const fn scanned(self) -> usize {
        self.scanned as usize
    }
}

/// Checks what httparse accepts and [`HeadScanner`] does not: other first bytes, and lines that end
/// in a bare LF.
pub(super) fn check_lines(head: &[u8]) -> Result<(), Violation> {
    check_first(head)?;
    // No early exit, so that the compiler can use vectors.
    let pairs = head.iter().zip(head.iter().skip(1));
    let bare = pairs.fold(0, |bare, (first, second)| {
        bare | u8::from(*second == b'\n') & u8::from(*first != b'\r')
    });
    if bare == 0 { Ok(()) } else { Err(Violation::BareLineFeed) }
}

/// The first byte of a method or a version, after at most one empty line.
fn check_first(buf: &[u8]) -> Result<(), Violation> {
    let first = match buf {
        [b'\r', b'\n', first, ..] | [first, ..] => first,
        [] => return Ok(()),
    };
    let begins_line_end = buf.len() < 3 && b"\r\n".starts_with(buf);
    if begins_line_end || is_tchar(*first) { Ok(()) } else { Err(Violation::NotHttp) }
}

/// The end of the first blank line that begins at `from` or later. `from` is not within a pair of
/// CR and LF unless both, or the LF alone, are known to be one.
fn next_blank_line(buf: &[u8], from: usize) -> Result<Status<usize>, Violation> {
    let mut at = from;
    loop {
        let rest = buf.get(at..).unwrap_or(&[]);
        let Some(offset) = find_control(rest) else { return Ok(Status::Partial) };
        at += offset;
        match buf.get(at..).unwrap_or(&[]) {
            [b'\t', ..] => at += 1,
            [b'\r', b'\n', b'\r', b'\n', ..] => return Ok(Status::Complete(at + 4)),
            [b'\r', b'\n', ..] => at += 2,
            [b'\r'] => return Ok(Status::Partial),
            [b'\r', ..] => return Err(Violation::BareCarriageReturn),
            [b'\n', ..] if at > 0 && buf.get(at - 1) == Some(&b'\r') => at += 1,
            [b'\n', ..] => return Err(Violation::BareLineFeed),
            _ => return Err(Violation::ControlCharacter),
        }
    }
}

/// The first byte below 0x20 or equal to 0x7F, eight at a time.
#[inline]
fn find_control(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let (words, tail) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let delete = word ^ (ONES * 0x7F);
        // Borrows only reach bytes above a hit, so the lowest mark is exact.
        let low = word.wrapping_sub(ONES * 0x20) & !word;
        let marks = (low | delete.wrapping_sub(ONES) & !delete) & HIGHS;
        if marks != 0 {
            return Some(index * 8 + marks.trailing_zeros() as usize / 8);
        }
    }
    let is_control = |byte: &u8| *byte < 0x20 || *byte == 0x7F;
    tail.iter().position(is_control).map(|offset| words.len() * 8 + offset)
}

/// Whether a byte is allowed in a method or a header name (RFC 9110 5.6.2).
pub(crate) const fn is_tchar(byte: u8) -> bool {
    matches!(byte,
        b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[test]
    fn the_first_control_character_is_found_at_any_place() {
        let is_control = |byte: &u8| *byte < 0x20 || *byte == 0x7F;
        for len in 0..26 {
            assert_eq!(find_control(&vec![b'a'; len]), None);
            for at in 0..len {
                for byte in [0, 9, 0x1F, 0x20, 0x21, 0x7E, 0x7F, 0x80, 0x9F, 0xA0, 0xFF] {
                    for around in [b'a', b' ', b'~', 0x80, 0xA0, 0xFF, b'\t', 0x7F] {
                        // Before it no control characters, after it anything.
                        let mut text = vec![around; len];
                        text[..at].fill(if is_control(&around) { 0x80 } else { around });
                        text[at] = byte;
                        let first = text.iter().position(is_control);
                        assert_eq!(find_control(&text), first, "{text:02x?}");
                    }
                }
            }
        }
    }
}
