//! Masking of payloads (RFC 6455 5.3), in place, eight bytes at a time in a form the compiler
//! widens to vector registers. No security property: choosing unpredictable keys is up to the
//! sender.

/// Masks or unmasks `data`, whose first byte meets the first byte of `mask`. Returns whether every
/// byte of the result is ASCII, which costs nothing here and saves a UTF-8 check of text.
#[inline]
pub(super) fn apply(data: &mut [u8], mask: [u8; 4]) -> bool {
    let narrow = u32::from_ne_bytes(mask);
    let wide = u64::from(narrow) | u64::from(narrow) << 32;
    let mut bits = 0;

    let (words, rest) = data.as_chunks_mut::<8>();
    for word in words {
        let plain = u64::from_ne_bytes(*word) ^ wide;
        bits |= plain;
        *word = plain.to_ne_bytes();
    }
    let (halves, tail) = rest.as_chunks_mut::<4>();
    for half in halves {
        let plain = u32::from_ne_bytes(*half) ^ narrow;
        bits |= u64::from(plain);
        *half = plain.to_ne_bytes();
    }
    for (byte, key) in tail.iter_mut().zip(mask) {
        *byte ^= key;
        bits |= u64::from(*byte);
    }
    bits & 0x8080_8080_8080_8080 == 0
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn masking_matches_the_scalar_definition(
            data in proptest::collection::vec(any::<u8>(), 0..200), mask: [u8; 4], skip in 0usize..8,
        ) {
            let skip = skip.min(data.len());
            let mut fast = data.clone();
            let ascii = apply(&mut fast[skip..], mask);
            let slow: Vec<u8> =
                data[skip..].iter().enumerate().map(|(i, b)| b ^ mask[i % 4]).collect();
            prop_assert_eq!(&fast[..skip], &data[..skip]);
            prop_assert_eq!(&fast[skip..], &slow[..]);
            prop_assert_eq!(ascii, slow.is_ascii());
        }
    }
}
