//! Integers with a prefix of 1 to 8 bits (RFC 7541 5.1).

use alloc::vec::Vec;

use crate::Violation;

/// Octets after the prefix that are read: enough for numbers below 2^28, and more than any length or
/// index that is accepted. RFC 7541 5.1 requires a limit.
const OCTETS_MAX: u32 = 4;

/// Reads an integer whose prefix is in the low `prefix` bits of the first byte.
#[inline]
pub(super) fn decode(rest: &mut &[u8], prefix: u32) -> Result<u32, Violation> {
    let (&first, mut bytes) = rest.split_first().ok_or(Violation::HpackTruncated)?;
    let mask = (1u32 << prefix) - 1;
    let mut value = u32::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, after) = bytes.split_first().ok_or(Violation::HpackTruncated)?;
            bytes = after;
            value += u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift == 7 * OCTETS_MAX {
                return Err(Violation::HpackIntegerTooLarge);
            }
        }
    }
    *rest = bytes;
    Ok(value)
}

/// Appends an integer whose first byte also holds `flags`, above the low `prefix` bits.
#[inline]
pub(super) fn encode(out: &mut Vec<u8>, flags: u8, prefix: u32, value: u32) {
    let mask = (1u32 << prefix) - 1;
    if value < mask {
        return out.push(flags | value as u8);
    }
    out.push(flags | mask as u8);
    let mut value = value - mask;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
