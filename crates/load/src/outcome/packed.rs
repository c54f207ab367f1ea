//! [`Packed`]: a histogram that is only read, as the counts of HdrHistogram's V2 format: a few bytes for each
//! value that was recorded, where a histogram has up to 192 KiB. A leader keeps several of each agent.

use hdrhistogram::Histogram;

use crate::outcome::recorder::Recorder;

/// The number of counts of a histogram with three digits up to 2³² − 1 µs.
const COUNTS_MAX: u64 = 23_552;
/// Counts of the first half of each further bucket are those of the bucket before.
const HALF: u64 = 1_024;

/// Counts by index, with runs of zeros as negative numbers; zigzag and LEB128 of at most 9 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    /// Checks and keeps the counts. `None` if they are not those of a histogram of ours.
    pub(crate) fn read(counts: &[u8]) -> Option<Packed> {
        let mut each = Counts { bytes: counts, index: 0 };
        while !each.bytes.is_empty() {
            each.read()?;
        }
        Some(Packed(counts.into()))
    }

    /// The lowest value in microseconds of each count that is not zero, and the count.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut each = Counts { bytes: &self.0, index: 0 };
        std::iter::from_fn(move || {
            while !each.bytes.is_empty() {
                if let (index, Some(count)) = each.read()? {
                    return Some((lowest_us(index), count));
                }
            }
            None
        })
    }

    pub(crate) fn add_to(&self, histogram: &mut Histogram<u64>) {
        for (us, count) in self.counts() {
            // It grows to what it adds.
            let _ = histogram.record_n(us, count);
        }
    }

    /// The histogram. `None` only if none can be made.
    pub(crate) fn histogram(&self) -> Option<Histogram<u64>> {
        let mut histogram = Recorder::empty()?;
        self.add_to(&mut histogram);
        Some(histogram)
    }
}

struct Counts<'a> {
    bytes: &'a [u8],
    index: u64,
}

impl Counts<'_> {
    /// The next count and its index; no count for a run of zeros.
    fn read(&mut self) -> Option<(u64, Option<u64>)> {
        let number = self.number()?;
        let index = self.index;
        let is_run = number & 1 == 1;
        // −n is written as 2n − 1, n as 2n.
        let (skipped, count) = match is_run {
            true => ((number >> 1) + 1, None),
            false => (1, Some(number >> 1).filter(|count| *count > 0)),
        };
        self.index = index.checked_add(skipped).filter(|next| *next <= COUNTS_MAX)?;
        Some((index, count))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..9 {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            // The ninth byte has no mark.
            let bits = if place == 8 { *byte } else { *byte & 0x7f };
            number |= u64::from(bits) << (7 * place);
            if bits == *byte {
                break;
            }
        }
        Some(number)
    }
}

fn lowest_us(index: u64) -> u64 {
    match index >> 10 {
        0 | 1 => index,
        bucket => ((index & (HALF - 1)) + HALF) << (bucket - 1),
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::{Serializer as _, V2Serializer};

    use super::*;
    use crate::outcome::recorder::ABOVE_US;

    fn packed(histogram: &Histogram<u64>) -> Packed {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(histogram, &mut bytes).unwrap();
        Packed::read(&bytes[40..]).unwrap()
    }

    #[test]
    fn every_value_is_kept() {
        let mut state = 1_u64;
        for round in 0..40 {
            let mut histogram = Recorder::empty().unwrap();
            for _ in 0..round * 50 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let us = (state >> 8 & u64::from(u32::MAX)) >> (state % 32);
                histogram.record_n(us.clamp(1, ABOVE_US), 1 + (state >> 60)).unwrap();
            }
            for us in [1, 2_047, 2_048, 4_095, 4_096, ABOVE_US, ABOVE_US] {
                histogram.record_n(us, 1 << round).unwrap();
            }
            let (packed, mut sum) = (packed(&histogram), histogram.clone());
            assert_eq!(packed.histogram().unwrap(), histogram);
            packed.add_to(&mut sum);
            assert_eq!(sum.len(), 2 * histogram.len());
            assert_eq!(sum.value_at_quantile(0.99), histogram.value_at_quantile(0.99));
            assert_eq!(sum.max(), histogram.max());
        }
    }

    #[test]
    fn what_is_no_histogram_of_ours_is_refused() {
        let number = |mut number: u64| {
            let mut bytes = Vec::new();
            while number > 0x7f {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
            bytes
        };
        let zeros = |count: u64| number(2 * count - 1);
        assert!(Packed::read(&[zeros(COUNTS_MAX - 1), number(2)].concat()).is_some());
        assert!(Packed::read(&[zeros(COUNTS_MAX), number(2)].concat()).is_none());
        assert!(Packed::read(&zeros(u64::MAX >> 9)).is_none());
        // The smallest number there is, and one without its end.
        assert!(Packed::read(&[0xff; 9]).is_none());
        assert!(Packed::read(&[0x82]).is_none());
    }
}
