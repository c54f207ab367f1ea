//! [`Histogram`]: durations in buckets whose upper bounds double. Each has one writer; a scrape sums
//! over the workers.

use engine::{Counter, invariant};

/// Number of buckets; their upper bounds in milliseconds are 1, 2, 4 … 67,108,864 (over 18 hours),
/// then +Inf.
const BUCKETS: usize = 27;

/// The histograms of one worker.
#[derive(Default)]
pub(crate) struct Timings {
    /// Time to receive the head of a request, including TLS.
    pub(crate) handshake: Histogram,
    /// Time to connect to an upstream.
    pub(crate) connect: Histogram,
    /// Time from a handshake's head to its 101.
    pub(crate) switching: Histogram,
    /// Lifetime of a tunnel.
    pub(crate) lifetime: Histogram,
}

/// A histogram of durations.
#[derive(Default)]
pub(crate) struct Histogram {
    buckets: [Counter; BUCKETS + 1],
    sum_us: Counter,
}

impl Histogram {
    /// Records a duration.
    pub(crate) fn add(&self, time_ns: u64) {
        let ms = time_ns.div_ceil(1_000_000).max(1);
        let bucket = ms.next_power_of_two().trailing_zeros() as usize;
        match self.buckets.get(bucket.min(BUCKETS)) {
            Some(bucket) => bucket.add(1),
            None => invariant::broken("every duration has a bucket"),
        }
        self.sum_us.add(time_ns / 1_000);
    }

    /// Sums histograms in Prometheus form: the cumulative count for each upper bound in seconds, then
    /// the sum in seconds and the total count.
    pub(crate) fn sum<'t>(
        times: impl Iterator<Item = &'t Histogram>,
    ) -> (Vec<(f64, u64)>, f64, u64) {
        let (mut counts, mut sum_us) = ([0u64; BUCKETS + 1], 0u64);
        for one in times {
            for (count, bucket) in counts.iter_mut().zip(&one.buckets) {
                *count += bucket.get();
            }
            sum_us += one.sum_us.get();
        }
        let mut so_far = 0;
        let ends = (0..BUCKETS).map(|bucket| (1u64 << bucket) as f64 / 1e3);
        let ends = ends.chain([f64::INFINITY]).zip(counts).map(|(end, count)| {
            so_far += count;
            (end, so_far)
        });
        let ends = ends.collect();
        (ends, sum_us as f64 / 1e6, so_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_that_holds_it() {
        let (one, other) = (Histogram::default(), Histogram::default());
        for ms in [0, 1, 2, 3, 4, 5] {
            one.add(ms * 1_000_000);
        }
        other.add(1_000_001);
        other.add(u64::MAX / 2);
        let (ends, sum, count) = Histogram::sum([&one, &other].into_iter());
        let at = |end: f64| ends.iter().find(|(at, _)| *at == end).unwrap().1;
        assert_eq!([at(0.001), at(0.002), at(0.004), at(0.008)], [2, 4, 6, 7]);
        assert_eq!((at(f64::INFINITY), count), (8, 8));
        assert!(sum > 9e9, "{sum}");
        assert_eq!(ends.len(), BUCKETS + 1);
    }
}
