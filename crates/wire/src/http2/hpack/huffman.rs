//! The Huffman code of RFC 7541 5.2 and Appendix B.
//!
//! The code is canonical: sorted by length and symbol, codes are consecutive. So the lengths determine
//! it, and all tables are computed from them at compile time.

use alloc::vec::Vec;

use crate::Violation;

const SYMBOLS: usize = 257;
/// The end of a string, which must not be in one (5.2).
const EOS: u16 = 256;
/// The length of each symbol's code in bits (Appendix B).
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
/// The shortest and the longest code, in bits.
const LENGTH_MIN: usize = 5;
const LENGTH_MAX: u32 = 30;
/// Codes up to this length are found by one lookup: all letters, digits and most of what else is usual.
const SHORT_BITS: u32 = 8;
/// The number of codes that are longer, and of their different lengths.
const LONG_SYMBOLS: usize = 183;
const LONG_LENGTHS: usize = 17;

/// Codes of one length above [`SHORT_BITS`].
#[derive(Copy, Clone)]
struct Group {
    length: u8,
    /// Where its symbols begin in `long_symbols`.
    offset: u8,
    /// Its first code, and its last with all bits after it set, in the high bits.
    first: u32,
    last: u32,
}

struct Tables {
    /// Code and length of each symbol.
    codes: [(u32, u8); SYMBOLS],
    /// Symbol and length of the short code that a byte begins with; length 0 if it is a long one.
    short: [(u8, u8); 1 << SHORT_BITS],
    long: [Group; LONG_LENGTHS],
    long_symbols: [u16; LONG_SYMBOLS],
}

static TABLES: Tables = tables();

#[expect(clippy::indexing_slicing, reason = "computed at compile time: an error does not compile")]
const fn tables() -> Tables {
    let mut tables = Tables {
        codes: [(0, 0); SYMBOLS],
        short: [(0, 0); 1 << SHORT_BITS],
        long: [Group { length: 0, offset: 0, first: 0, last: 0 }; LONG_LENGTHS],
        long_symbols: [0; LONG_SYMBOLS],
    };
    let (mut code, mut length, mut groups, mut long_symbols) = (0u32, LENGTH_MIN as u32, 0, 0);
    while length <= LENGTH_MAX {
        let (first, offset) = (code, long_symbols);
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as u32 == length {
                tables.codes[symbol] = (code, length as u8);
                if length <= SHORT_BITS {
                    let mut byte = code << (SHORT_BITS - length);
                    while byte < (code + 1) << (SHORT_BITS - length) {
                        tables.short[byte as usize] = (symbol as u8, length as u8);
                        byte += 1;
                    }
                } else {
                    tables.long_symbols[long_symbols] = symbol as u16;
                    long_symbols += 1;
                }
                code += 1;
            }
            symbol += 1;
        }
        if code > first && length > SHORT_BITS {
            tables.long[groups] = Group {
                length: length as u8,
                offset: offset as u8,
                first: first << (32 - length),
                last: ((code - 1) << (32 - length)) | (u32::MAX >> length),
            };
            groups += 1;
        }
        code <<= 1;
        length += 1;
    }
    assert!(groups == LONG_LENGTHS && long_symbols == LONG_SYMBOLS);
    tables
}

/// The symbol whose code `bits` begins with, and the code's length.
#[inline]
fn lookup(bits: u64) -> (u16, u32) {
    match TABLES.short.get((bits >> (64 - SHORT_BITS)) as usize) {
        Some(&(symbol, length)) if length > 0 => (u16::from(symbol), u32::from(length)),
        _ => lookup_long((bits >> 32) as u32),
    }
}

#[inline(never)]
fn lookup_long(code: u32) -> (u16, u32) {
    for group in &TABLES.long {
        if code <= group.last {
            let length = u32::from(group.length);
            let index = (code - group.first) >> (32 - length);
            let symbol = TABLES.long_symbols.get(usize::from(group.offset) + index as usize);
            return (symbol.copied().unwrap_or(EOS), length);
        }
    }
    (EOS, LENGTH_MAX)
}

/// Appends the decoded form of a string, which is at most 8/5 as long.
pub(super) fn decode(string: &[u8], out: &mut Vec<u8>) -> Result<(), Violation> {
    let start = out.len();
    let most = string.len() * 8 / LENGTH_MIN;
    out.resize(start + most, 0);
    let room = out.get_mut(start..).unwrap_or_default();
    let written = decode_into(string, room)?;
    out.truncate(start + written);
    Ok(())
}

/// Decodes into `out`, which has room for the longest result; returns the number of bytes.
fn decode_into(string: &[u8], out: &mut [u8]) -> Result<usize, Violation> {
    let most = out.len();
    let mut room = out.iter_mut();
    let mut rest = string;
    // The next bits, the first in the highest, and how many of them are known to be in it.
    let (mut bits, mut have) = (0u64, 0u32);
    loop {
        if let Some((chunk, _)) = rest.split_first_chunk() {
            // As many bytes as have room. Bits of the next one may be in it, too; they will be the same.
            bits |= u64::from_be_bytes(*chunk) >> have;
            rest = rest.get(((63 - have) >> 3) as usize..).unwrap_or_default();
            have |= 56;
        } else {
            while let Some((&byte, after)) = rest.split_first()
                && have <= 56
            {
                bits |= u64::from(byte) << (56 - have);
                have += 8;
                rest = after;
            }
            if have < 32 {
                break;
            }
        }
        // No code is longer than what there is.
        while have >= 32 {
            let (symbol, length) = lookup(bits);
            let Ok(symbol) = u8::try_from(symbol) else { return Err(Violation::HpackBadHuffman) };
            if let Some(place) = room.next() {
                *place = symbol;
            }
            bits <<= length;
            have -= length;
        }
    }
    // With ones after the end, correct padding is the beginning of EOS (5.2).
    bits |= u64::MAX >> have;
    while have > 0 {
        let (symbol, length) = lookup(bits);
        if length > have {
            if symbol == EOS && have < 8 {
                break;
            }
            return Err(Violation::HpackBadHuffman);
        }
        let Ok(symbol) = u8::try_from(symbol) else { return Err(Violation::HpackBadHuffman) };
        if let Some(place) = room.next() {
            *place = symbol;
        }
        bits <<= length;
        have -= length;
    }
    Ok(most - room.len())
}

/// The code of a byte, and its length.
#[inline]
fn code(byte: u8) -> (u32, u32) {
    let (code, length) = TABLES.codes.get(usize::from(byte)).copied().unwrap_or_default();
    (code, u32::from(length))
}

/// The length of the encoded form of a string, in bytes.
pub(super) fn encoded_len(string: &[u8]) -> usize {
    let bits: usize = string.iter().map(|&byte| code(byte).1 as usize).sum();
    bits.div_ceil(8)
}

/// Appends the encoded form of a string.
pub(super) fn encode(string: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut have) = (0u64, 0u32);
    for &byte in string {
        let (code, length) = code(byte);
        bits = bits << length | u64::from(code);
        have += length;
        if have >= 32 {
            have -= 32;
            out.extend_from_slice(&((bits >> have) as u32).to_be_bytes());
        }
    }
    // Padded with the first bits of EOS, which are ones (5.2).
    let padding = have.wrapping_neg() & 7;
    bits = bits << padding | ((1 << padding) - 1);
    have += padding;
    while have > 0 {
        have -= 8;
        out.push((bits >> have) as u8);
    }
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn decoded(string: &[u8]) -> Result<Vec<u8>, Violation> {
        let mut out = b"before".to_vec();
        decode(string, &mut out).map(|()| out.split_off(6))
    }

    /// Codes from all parts of Appendix B.
    #[test]
    fn codes_are_those_of_appendix_b() {
        let codes = [
            (b'0', 0x0, 5),
            (b't', 0x9, 5),
            (b' ', 0x14, 6),
            (b'u', 0x2d, 6),
            (b':', 0x5c, 7),
            (b'z', 0x7b, 7),
            (b'&', 0xf8, 8),
            (b'Z', 0xfd, 8),
            (b'!', 0x3f8, 10),
            (b'?', 0x3fc, 10),
            (b'|', 0x7fc, 11),
            (b'#', 0xffa, 12),
            (0, 0x1ff8, 13),
            (b'}', 0x3ffd, 14),
            (b'{', 0x7ffe, 15),
            (b'\\', 0x7fff0, 19),
            (128, 0xfffe6, 20),
            (1, 0x7fffd8, 23),
            (9, 0xffffea, 24),
            (255, 0x3ffffee, 26),
            (127, 0xffffffc, 28),
            (b'\n', 0x3ffffffc, 30),
            (22, 0x3ffffffe, 30),
        ];
        for (symbol, expected, length) in codes {
            assert_eq!(code(symbol), (expected, length), "{symbol}");
        }
        assert_eq!(TABLES.codes[256], (0x3fff_ffff, 30));
    }

    #[test]
    fn padding_is_less_than_a_byte_of_ones() {
        // "a" is 00011.
        assert_eq!(decoded(&[0b0001_1111]), Ok(b"a".to_vec()));
        for wrong in [0b0001_1000, 0b0001_1110, 0b0001_1011, 0b0001_1101] {
            assert_eq!(decoded(&[wrong]), Err(Violation::HpackBadHuffman), "{wrong:b}");
        }
        assert_eq!(decoded(&[0b0001_1111, 0xff]), Err(Violation::HpackBadHuffman));
        assert_eq!(decoded(&[0xff]), Err(Violation::HpackBadHuffman));
        assert_eq!(decoded(&[0xfe]), Err(Violation::HpackBadHuffman));
        assert_eq!(decoded(&[0b1111_1000]), Ok(b"&".to_vec()), "a full byte has no padding");
        assert_eq!(decoded(&[]), Ok(vec![]));
    }

    #[test]
    fn end_of_string_is_refused_wherever_it_is() {
        for before in 0..20 {
            // Each "&" is 8 bits.
            for (bytes, after) in [(4, 0), (4, 9), (5, 0), (12, 3)] {
                let string = [vec![0xf8; before], vec![0xff; bytes], vec![0xf8; after]].concat();
                assert_eq!(decoded(&string), Err(Violation::HpackBadHuffman), "{string:02x?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(crate::cases(256)))]

        #[test]
        fn strings_round_trip(string in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut out = vec![];
            encode(&string, &mut out);
            prop_assert_eq!(out.len(), encoded_len(&string));
            prop_assert_eq!(decoded(&out), Ok(string));
        }

        /// What is accepted has one encoding.
        #[test]
        fn any_bytes_are_decoded_or_refused(string in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(out) = decoded(&string) {
                let mut again = vec![];
                encode(&out, &mut again);
                prop_assert_eq!(again, string);
            }
        }
    }
}
