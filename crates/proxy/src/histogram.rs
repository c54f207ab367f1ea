//! [`Histogram`]: durations in buckets whose upper bounds double. Each has one writer; a scrape sums
//! over the workers.

use engine::Counter;

/// Number of buckets; their upper bounds in milliseconds are 1, 2, 4 … 67,108,864 (over 18 hours),
/// then +Inf.
const BUCKETS: usize = 27;

/// The histograms of one worker.
#[derive(Default)]
pub(crate) struct Timed {
    /// From the first byte of a request's head, TLS before it included, to its end.
    pub(crate) handshake: Times,
    /// From a connect to an upstream to its end.
    pub(crate) connect: Times,
    /// From a handshake's head to its 101.
    pub(crate) switching: Times,
    /// From a tunnel's beginning to its end, in whole seconds.
    pub(crate) lifetime: Times,
}

/// A histogram of durations.
#[derive(Default)]
pub(crate) struct Times {
    buckets: [Counter; BUCKETS + 1],
    sum_us: Counter,
}

impl Times {
    /// It took so long.
    pub(crate) fn add(&self, time_ns: u64) {
        let ms = time_ns.div_ceil(1_000_000).max(1);
        let bucket = ms.next_power_of_two().trailing_zeros() as usize;
        if let Some(bucket) = self.buckets.get(bucket.min(BUCKETS)) {
            bucket.add(1);
        }
        self.sum_us.add(time_ns / 1_000);
    }

    /// All of `times` as Prometheus has it: for each upper end in seconds how many took no longer,
    /// then the sum of seconds and the number.
    pub(crate) fn sum<'t>(times: impl Iterator<Item = &'t Times>) -> (Vec<(f64, u64)>, f64, u64) {
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
    fn each_time_is_in_the_first_bucket_that_holds_it() {
        let (one, other) = (Times::default(), Times::default());
        for ms in [0, 1, 2, 3, 4, 5] {
            one.add(ms * 1_000_000);
        }
        other.add(1_000_001);
        other.add(u64::MAX / 2);
        let (ends, sum, count) = Times::sum([&one, &other].into_iter());
        let at = |end: f64| ends.iter().find(|(at, _)| *at == end).unwrap().1;
        assert_eq!([at(0.001), at(0.002), at(0.004), at(0.008)], [2, 4, 6, 7]);
        assert_eq!((at(f64::INFINITY), count), (8, 8));
        assert!(sum > 9e9, "{sum}");
        assert_eq!(ends.len(), BUCKETS + 1);
    }
}
