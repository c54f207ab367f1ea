//! [`RecentStrings`]: the Huffman-coded strings that were decoded last.

use alloc::vec::Vec;

use super::huffman;
use crate::Violation;

/// Lengths of coded strings that are kept, in bytes. Shorter ones are decoded in nearly the same time,
/// longer ones are rare.
const CODED_BYTES_MIN: usize = 8;
const CODED_BYTES_MAX: usize = 24;
/// The longest that one decodes to: the shortest code has 5 bits (RFC 7541 Appendix B).
const PLAIN_BYTES_MAX: usize = CODED_BYTES_MAX * 8 / 5;
/// A power of two. With two strings in each set all of them take 8 KiB.
const SETS: usize = 64;

/// Decodes strings, those that came a short while ago by a copy: many peers send the same date, type or
/// server with each message, as literals. This halves the time for such a head.
#[derive(Default)]
pub(super) struct RecentStrings {
    /// Of each set the one that was decoded last is first.
    sets: Vec<[Known; 2]>,
}

#[derive(Copy, Clone)]
struct Known {
    coded: [u64; 3],
    /// 0 if there is none.
    coded_len: u8,
    plain_len: u8,
    plain: [u8; PLAIN_BYTES_MAX],
}

const NONE: Known =
    Known { coded: [0; 3], coded_len: 0, plain_len: 0, plain: [0; PLAIN_BYTES_MAX] };

const _: () = assert!(size_of::<Known>() == 64, "more than a cache line");

/// A coded string as numbers: its first eight bytes, the next if it is longer than sixteen, and its last.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Coded {
    parts: [u64; 3],
    len: u8,
}

impl Coded {
    #[inline]
    fn of(string: &[u8]) -> Option<Coded> {
        if !(CODED_BYTES_MIN..=CODED_BYTES_MAX).contains(&string.len()) {
            return None;
        }
        let first = u64::from_le_bytes(*string.first_chunk()?);
        let last = u64::from_le_bytes(*string.last_chunk()?);
        let middle = match string.get(8..16).filter(|_| string.len() > 16) {
            Some(bytes) => u64::from_le_bytes(*bytes.first_chunk()?),
            None => 0,
        };
        Some(Coded { parts: [first, middle, last], len: string.len() as u8 })
    }

    #[inline]
    fn set(&self) -> usize {
        let [first, middle, last] = self.parts;
        let mixed = first ^ middle.rotate_left(23) ^ last.rotate_left(47);
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SETS
    }
}

impl RecentStrings {
    pub(super) const fn new() -> RecentStrings {
        RecentStrings { sets: Vec::new() }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<[Known; 2]>()
    }

    /// Appends the decoded form of a string.
    #[inline]
    pub(super) fn decode(&mut self, string: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
        let Some(coded) = Coded::of(string) else { return huffman::decode(string, out) };
        for known in self.sets.get(coded.set()).unwrap_or(&[NONE; 2]) {
            if known.coded == coded.parts && known.coded_len == coded.len {
                let plain = known.plain.get(..usize::from(known.plain_len));
                out.extend_from_slice(plain.unwrap_or_default());
                return Ok(());
            }
        }
        self.decode_new(coded, string, out)
    }

    #[inline(never)]
    fn decode_new(
        &mut self,
        coded: Coded,
        string: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let begin = out.len();
        huffman::decode(string, out)?;
        let plain = out.get(begin..).unwrap_or_default();
        let mut known = Known {
            coded: coded.parts,
            coded_len: coded.len,
            plain_len: plain.len() as u8,
            plain: [0; PLAIN_BYTES_MAX],
        };
        let Some(place) = known.plain.get_mut(..plain.len()) else { return Ok(()) };
        place.copy_from_slice(plain);
        if self.sets.is_empty() {
            self.sets.resize(SETS, [NONE; 2]);
        }
        if let Some(set) = self.sets.get_mut(coded.set()) {
            let &mut [before, _] = set;
            *set = [known, before];
        }
        Ok(())
    }
}

/// A clone knows no strings.
impl Clone for RecentStrings {
    fn clone(&self) -> RecentStrings {
        RecentStrings::new()
    }
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn coded(text: &str) -> Vec<u8> {
        let mut out = vec![];
        huffman::encode(text.as_bytes(), &mut out);
        out
    }

    #[test]
    fn only_strings_of_usual_lengths_are_kept() {
        let mut recent = RecentStrings::new();
        for length in 0..60 {
            let string = coded(&"a".repeat(length));
            let kept = (8..=24).contains(&string.len());
            let mut out = vec![];
            for nth in 0..3 {
                out.clear();
                assert_eq!(recent.decode(&string, &mut out), Ok(()));
                assert_eq!(out, vec![b'a'; length]);
                let of = Coded::of(&string);
                let first = of.map(|coded| &recent.sets[coded.set()][0]);
                assert_eq!(first.is_some(), kept, "{length} {nth}");
                assert_eq!(first.map(|known| known.coded), of.map(|coded| coded.parts));
            }
        }
        assert!(recent.memory_bytes() <= 10 * 1024, "{}", recent.memory_bytes());
        assert_eq!(recent.clone().memory_bytes(), 0);
    }

    #[test]
    fn invalid_strings_are_not_kept() {
        let mut recent = RecentStrings::new();
        // 65 bits and seven of padding.
        let mut string = coded(&"a".repeat(13));
        *string.last_mut().unwrap() ^= 1;
        for _ in 0..3 {
            let refused = recent.decode(&string, &mut vec![]);
            assert_eq!(refused, Err(Violation::HpackBadHuffman));
        }
        assert_eq!(recent.memory_bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(crate::cases(64)))]

        /// Strings that differ in one character, in any order.
        #[test]
        fn what_is_known_is_what_was_decoded(
            base in "[a-z0-9]{8,40}",
            steps in prop::collection::vec((any::<prop::sample::Index>(), "[a-z]", 0..3usize), 1..200),
        ) {
            let mut recent = RecentStrings::new();
            for (place, letter, cut) in steps {
                let place = place.index(base.len());
                let text = [&base[..place], &letter, &base[place + 1..base.len() - cut.min(base.len() - place - 1)]].concat();
                let mut out = b"before".to_vec();
                prop_assert_eq!(recent.decode(&coded(&text), &mut out), Ok(()));
                prop_assert_eq!(out, ["before", &text].concat().into_bytes());
            }
        }
    }
}
