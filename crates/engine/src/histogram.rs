//! [`Histogram`]: how values of one worker are distributed over fixed buckets, in counters with one
//! writer.

use crate::counters::Counter;
use crate::invariant::broken;

/// Upper bounds of times in nanoseconds: 10 µs to 10 s.
const TIMES: [u64; 13] = [
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
];
/// Upper bounds of sizes in bytes: none, 1 KiB to 1 GiB.
const SIZES: [u64; 12] = {
    let mut bounds = [0; 12];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = 1024 << (2 * (at - 1));
        at += 1;
    }
    bounds
};
/// Upper bounds of numbers of items: 1 to 65,536.
const ITEMS: [u64; 9] = [1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536];

/// Values in buckets. Its one worker records, every thread may read.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for values above all.
    buckets: [Counter; TIMES.len() + 1],
    sum: Counter,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Self {
        Histogram { bounds, buckets: Default::default(), sum: Counter::default() }
    }

    /// Records a value, from the owning worker only.
    #[inline]
    pub fn record(&self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        match self.buckets.get(bucket.unwrap_or(self.bounds.len())) {
            Some(bucket) => bucket.add(1),
            None => broken("a histogram has a bucket for each bound and one more"),
        }
        self.sum.add(value);
    }

    /// How many values are within each bound, those of smaller bounds included.
    pub fn within(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut so_far = 0;
        self.bounds.iter().zip(&self.buckets).map(move |(bound, bucket)| {
            so_far += bucket.get();
            (*bound, so_far)
        })
    }

    /// The number of all values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum()
    }

    /// The sum of all values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }
}

/// The histograms of one worker.
#[derive(Debug)]
#[repr(align(128))]
pub struct Histograms {
    /// Time from the end of a turn's wait to its end, in nanoseconds: one value per turn.
    pub turn_ns: Histogram,
    /// Posts in the mailbox when the worker takes some of them: one value per turn that finds any.
    pub mailbox_posts: Histogram,
    /// The memory of these posts, in bytes.
    pub mailbox_bytes: Histogram,
    /// Bytes in all send queues at the end of a turn: one value per turn.
    pub queued_bytes: Histogram,
    /// Time from the acceptance of a publication to its last send to subscribers of the worker with
    /// the same encoding, in nanoseconds. The handler's: the engine knows no publications.
    pub delivery_ns: Histogram,
}

impl Default for Histograms {
    fn default() -> Self {
        Histograms {
            turn_ns: Histogram::new(&TIMES),
            mailbox_posts: Histogram::new(&ITEMS),
            mailbox_bytes: Histogram::new(&SIZES),
            queued_bytes: Histogram::new(&SIZES),
            delivery_ns: Histogram::new(&TIMES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_within_the_first_bound_that_is_not_below_it() {
        let all = Histograms::default();
        for histogram in [&all.turn_ns, &all.mailbox_posts, &all.queued_bytes] {
            let bounds = histogram.bounds;
            assert!(bounds.is_sorted() && bounds.len() < histogram.buckets.len());
            bounds.iter().for_each(|bound| histogram.record(*bound));
            bounds.iter().for_each(|bound| histogram.record(*bound + 1));
            let expected: Vec<(u64, u64)> =
                bounds.iter().zip(0..).map(|(bound, at)| (*bound, 2 * at + 1)).collect();
            assert_eq!(histogram.within().collect::<Vec<_>>(), expected);
            let count = bounds.len() as u64;
            assert_eq!(histogram.count(), 2 * count);
            assert_eq!(histogram.sum(), 2 * bounds.iter().sum::<u64>() + count);
        }
        assert_eq!((SIZES[1], SIZES[11]), (1024, 1 << 30));
    }
}
