//! UTF-8 checked piece by piece (RFC 3629): a sequence may be split anywhere, and the first byte
//! that cannot continue it is refused at once. Not a decoder: the bytes are not moved.

/// The bytes of an incomplete sequence. No byte of an incomplete sequence is zero, so zeros mark
/// free entries and the length needs no field.
#[derive(Copy, Clone, Default, Eq, PartialEq, Debug)]
pub(super) struct Utf8Carry([u8; 3]);

impl Utf8Carry {
    /// Checks the next piece; returns `false` if the text so far cannot begin valid UTF-8.
    pub(super) fn check(&mut self, data: &[u8]) -> bool {
        match self.finish_sequence(data) {
            Some(rest) => self.check_rest(rest),
            None => false,
        }
    }

    /// Whether the text so far ends between characters.
    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0 == [0; 3]
    }

    /// Joins an incomplete sequence with the bytes that follow; returns the rest of `data`, or
    /// `None` if they do not fit.
    fn finish_sequence<'d>(&mut self, data: &'d [u8]) -> Option<&'d [u8]> {
        let [first, second, third] = self.0;
        let held = self.0.iter().take_while(|byte| **byte != 0).count();
        if held == 0 {
            return Some(data);
        }
        let missing = sequence_len(first).saturating_sub(held);
        let (next, rest) = data.split_at_checked(missing).unwrap_or((data, &[]));
        let mut sequence = [first, second, third, 0];
        for (place, byte) in sequence.iter_mut().skip(held).zip(next) {
            *place = *byte;
        }
        let joined = sequence.get(..held + next.len())?;
        match core::str::from_utf8(joined) {
            Ok(_) => *self = Utf8Carry::default(),
            Err(error) if error.error_len().is_none() => self.hold(joined),
            Err(_) => return None,
        }
        Some(rest)
    }

    fn check_rest(&mut self, data: &[u8]) -> bool {
        match simdutf8::compat::from_utf8(data) {
            Ok(_) => true,
            Err(error) if error.error_len().is_none() => {
                self.hold(data.get(error.valid_up_to()..).unwrap_or(&[]));
                true
            }
            Err(_) => false,
        }
    }

    fn hold(&mut self, unfinished: &[u8]) {
        *self = Utf8Carry::default();
        for (place, byte) in self.0.iter_mut().zip(unfinished) {
            *place = *byte;
        }
    }
}

/// Whether this is a complete and valid text.
#[inline]
pub(super) fn is_valid(data: &[u8]) -> bool {
    simdutf8::basic::from_utf8(data).is_ok()
}

/// The length of a sequence, by its first byte, which is known to begin one of two to four.
fn sequence_len(first: u8) -> usize {
    match first {
        0xF0.. => 4,
        0xE0.. => 3,
        _ => 2,
    }
}
