//! Consistent hashing that is the same in every process: weighted rendezvous hashing (Thaler and
//! Ravishankar, "Using name-based mappings to increase hit rates", 1998) over FNV-1a.
//!
//! Each key gives each upstream a score, and the best score wins. Removing an upstream moves only its
//! own keys, and adding one moves only its share. The hash is not keyed: a client that chooses the
//! key can choose the upstream.

/// 64-bit FNV-1a, finished with SplitMix64's mixer so that similar keys differ in all bits.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// The score of one upstream for one key: the smallest wins. With `-ln(u) / weight` an upstream wins
/// in proportion to its weight.
pub(crate) fn score(key: u64, upstream: u64, weight: u64) -> f64 {
    let bits = mix(key ^ upstream.rotate_left(32)) >> 11;
    let unit = (bits as f64 + 0.5) / (1u64 << 53) as f64;
    -unit.ln() / weight.max(1) as f64
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_computes_the_same() {
        // Fixed: another value would move every client at the next upgrade of a fleet.
        assert_eq!(hash_bytes(b""), mix(0xcbf2_9ce4_8422_2325));
        assert_eq!(hash_bytes(b"a"), mix(0xaf63_dc4c_8601_ec8c));
        assert_ne!(hash_bytes(b"a"), hash_bytes(b"b"));
    }

    #[test]
    fn scores_are_positive_and_finite() {
        for key in 0..1_000 {
            let score = score(key, 7, 1);
            assert!(score.is_finite() && score > 0.0, "{score}");
        }
    }
}
