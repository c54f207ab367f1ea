//! [`Recorder`]: HDR histograms of one worker, merged for reports. Percentiles are computed after
//! merging, never merged. Range 1 µs to one hour, three digits; longer values count as one hour and are
//! counted as such.
//!
//! A histogram begins with 16 KiB and grows to the longest value it holds: 72 KiB up to 130 ms, 152 KiB up
//! to a minute, 192 KiB up to an hour.

use engine::invariant;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::outcome::bins::{Bin, bins_of};
use crate::outcome::sections::Quantiles;

/// What is timed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Series {
    /// Echo, from the time the message was due.
    Latency,
    /// Echo, from the time the message was sent.
    ServiceTime,
    /// From ping to pong.
    Heartbeat,
    /// Publication, from the time it was due to the receipt.
    Broadcast,
    /// Publication, to its first receipt, to its last, and from first to last. Of calls: from the send to the
    /// first message, and ([`Series::Spread`]) from one to the next.
    First,
    /// See [`Series::First`].
    Last,
    /// See [`Series::First`].
    Spread,
    /// From the due time of a publication to its send.
    PublishLag,
    /// From the send of a publication to the server's answer.
    Publish,
    /// Action Cable: from the connect to the welcome, from the first subscribe to its confirmation,
    /// and from the connect to the confirmation.
    Welcome,
    /// See [`Series::Welcome`].
    Confirm,
    /// See [`Series::Welcome`].
    Subscribed,
    /// From the due time of a message, request or step of a user to its send.
    SendLag,
    /// The same of requests for which a user was free: the error of the generator alone.
    SchedulingError,
    /// From the send of a request to the first byte of its answer.
    FirstByte,
    /// Publication, from the time it was sent to the receipt.
    FromSend,
}

const SERIES: usize = 16;
const LONGEST_US: u64 = 3_600_000_000;
/// Longer values are recorded as this one, which is in another bucket than `LONGEST_US`.
pub(crate) const ABOVE_US: u64 = (1 << 32) - 1;
pub(crate) const DIGITS: u8 = 3;

/// A histogram per series, allocated with its first value.
#[derive(Default, Clone, Debug)]
pub struct Recorder {
    series: [Option<Histogram<u64>>; SERIES],
}

impl Recorder {
    /// Records one duration.
    pub fn record(&mut self, series: Series, nanoseconds: u64) {
        if let Some(histogram) = self.histogram(series) {
            Recorder::record_in(histogram, nanoseconds);
        } else {
            invariant::broken("each series has a histogram");
        }
    }

    /// An empty histogram that grows. The number of digits is valid, so it is always `Some`.
    pub(crate) fn empty() -> Option<Histogram<u64>> {
        Histogram::new(DIGITS).ok()
    }

    /// Records one duration in a histogram from [`Recorder::empty`].
    #[inline]
    pub(crate) fn record_in(histogram: &mut Histogram<u64>, nanoseconds: u64) {
        let us = (nanoseconds / 1_000).max(1);
        let us = if us > LONGEST_US { ABOVE_US } else { us };
        // Growing fails only if indexes have fewer than 32 bits.
        let _ = histogram.record(us);
    }

    /// Adds the values of such a histogram to a series.
    pub(crate) fn add(&mut self, series: Series, other: &Histogram<u64>) {
        if let Some(histogram) = self.histogram(series) {
            // It grows to what it adds.
            let _ = histogram.add(other);
        } else {
            invariant::broken("each series has a histogram");
        }
    }

    /// Removes all values and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.series.iter_mut().flatten().for_each(Histogram::reset);
    }

    /// Adds all values of another recorder.
    pub fn merge(&mut self, other: &Recorder) {
        for (mine, theirs) in self.series.iter_mut().zip(&other.series) {
            let Some(theirs) = theirs else { continue };
            match mine {
                // It grows to what it adds.
                Some(mine) => {
                    let _ = mine.add(theirs);
                }
                None => *mine = Some(theirs.clone()),
            }
        }
    }

    /// Subtracts the values of an earlier state of the same recorder.
    pub fn subtract(&mut self, earlier: &Recorder) {
        for (mine, earlier) in self.series.iter_mut().zip(&earlier.series) {
            if let (Some(mine), Some(earlier)) = (mine, earlier) {
                let _ = mine.subtract(earlier);
            }
        }
    }

    /// The percentiles of a series; `None` if it is empty.
    #[must_use]
    pub fn latency(&self, series: Series) -> Option<Latency> {
        latency_of(self.of(series)?)
    }

    /// The histogram of a series; `None` if nothing was recorded.
    pub(crate) fn of(&self, series: Series) -> Option<&Histogram<u64>> {
        self.series.get(series as usize)?.as_ref()
    }

    /// The value in milliseconds that `nth` of the values of a series are below, exact to three digits.
    /// `nth` gets their number. `None` if the series is empty.
    #[must_use]
    pub fn nth_ms(&self, series: Series, nth: impl FnOnce(u64) -> u64) -> Option<f64> {
        let histogram = self.series.get(series as usize)?.as_ref()?;
        let count = histogram.len();
        // The middle of the share that the value stands for, as the search rounds up.
        let quantile = (nth(count) as f64 + 0.5) / count as f64;
        (count > 0).then(|| histogram.value_at_quantile(quantile) as f64 / 1_000.0)
    }

    /// The longest value of a series in milliseconds; 0 if it is empty.
    pub(crate) fn longest_ms(&self, series: Series) -> f64 {
        let histogram = self.series.get(series as usize).and_then(Option::as_ref);
        histogram.map_or(0.0, |histogram| histogram.max().min(LONGEST_US) as f64 / 1e3)
    }

    /// Cumulative buckets: the number of values up to each of `ends`, in ascending seconds, and up to
    /// infinity; the sum of the values in seconds; and their number. Exact to three digits.
    #[must_use]
    pub fn buckets(&self, series: Series, ends: &[f64]) -> Option<Buckets> {
        let histogram = self.series.get(series as usize)?.as_ref()?;
        let ends = ends.iter().copied().chain([f64::INFINITY]);
        let mut buckets: Vec<(f64, u64)> = ends.map(|end| (end, 0)).collect();
        let mut sum = 0.0;
        for value in histogram.iter_recorded() {
            let us = histogram.lowest_equivalent(value.value_iterated_to());
            let (seconds, count) = (us as f64 / 1e6, value.count_at_value());
            sum += seconds * count as f64;
            if let Some((_, within)) = buckets.iter_mut().find(|(end, _)| seconds <= *end) {
                *within += count;
            }
        }
        let mut all = 0;
        for (_, within) in &mut buckets {
            all += *within;
            *within = all;
        }
        Some((buckets, sum, all))
    }

    /// The bars of a histogram of a series: at most `most`, which is at least 3, and none of their own for
    /// the share `tail` of the values at each end. None if the series is empty.
    #[must_use]
    pub fn bins(&self, series: Series, most: usize, tail: f64) -> Vec<Bin> {
        self.of(series).map(|histogram| bins_of(histogram, most, tail)).unwrap_or_default()
    }

    /// The histogram of a series, made if it is missing.
    pub(crate) fn histogram(&mut self, series: Series) -> Option<&mut Histogram<u64>> {
        let place = self.series.get_mut(series as usize)?;
        if place.is_none() {
            *place = Recorder::empty();
        }
        place.as_mut()
    }
}

/// The percentiles of a histogram; `None` if it is empty.
pub(crate) fn latency_of(histogram: &Histogram<u64>) -> Option<Latency> {
    if histogram.is_empty() {
        return None;
    }
    let ms = |us: u64| us.min(LONGEST_US) as f64 / 1_000.0;
    Some(Latency {
        count: histogram.len(),
        above_range: histogram.count_at(ABOVE_US),
        p50_ms: ms(histogram.value_at_quantile(0.5)),
        p90_ms: ms(histogram.value_at_quantile(0.9)),
        p95_ms: ms(histogram.value_at_quantile(0.95)),
        p99_ms: ms(histogram.value_at_quantile(0.99)),
        p999_ms: ms(histogram.value_at_quantile(0.999)),
        max_ms: ms(histogram.max()),
    })
}

/// The percentiles of a histogram whose `wrong` values count as never ended, as do `never` further ones;
/// `None` if nothing was timed. Which values are wrong is unknown, so they are taken for the shortest: no
/// percentile is below the true one. Those beyond an hour are not distinguished, and never ended either.
pub(crate) fn quantiles_of(
    histogram: &Histogram<u64>,
    wrong: u64,
    never: u64,
) -> Option<Quantiles> {
    let timed = histogram.len();
    if timed == 0 {
        return None;
    }
    let count = timed.saturating_add(never);
    let at = |quantile: f64| {
        let rank = quantile * count as f64 + wrong as f64;
        let us = || histogram.value_at_quantile(rank / timed as f64);
        let us = (rank <= timed as f64).then(us).filter(|us| *us <= LONGEST_US)?;
        Some(us as f64 / 1e3)
    };
    Some(Quantiles {
        count,
        p50_ms: at(0.5),
        p90_ms: at(0.9),
        p95_ms: at(0.95),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: at(1.0),
    })
}

/// Cumulative counts by upper bound, the sum of all values, and their number.
pub type Buckets = (Vec<(f64, u64)>, f64, u64);

/// Percentiles in milliseconds, exact to three digits.
#[derive(Default, Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// The number of values.
    pub count: u64,
    /// Values above [`Latency::LONGEST_MS`], which count as that.
    pub above_range: u64,
    /// The median.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
    pub p999_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

impl Latency {
    /// The longest time that is recorded as it is: one hour. A percentile of this value means an hour or
    /// more.
    pub const LONGEST_MS: f64 = LONGEST_US as f64 / 1_000.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_computed_after_merging() {
        let (mut fast, mut slow) = (Recorder::default(), Recorder::default());
        for _ in 0..98 {
            fast.record(Series::Latency, 1_000_000);
        }
        for _ in 0..2 {
            slow.record(Series::Latency, 100_000_000);
        }
        let before = fast.clone();
        fast.merge(&slow);
        let latency = fast.latency(Series::Latency).unwrap();
        assert_eq!((latency.count, latency.p50_ms), (100, 1.0));
        assert!((latency.p99_ms - 100.0).abs() < 0.1, "{latency:?}");
        fast.subtract(&before);
        assert_eq!(fast.latency(Series::Latency).unwrap().count, 2);
        assert_eq!(fast.latency(Series::Heartbeat), None);
    }

    #[test]
    fn what_never_ended_is_above_every_percentile() {
        let quantiles = |recorder: &Recorder, wrong, never| {
            quantiles_of(recorder.of(Series::Latency)?, wrong, never)
        };
        let mut recorder = Recorder::default();
        assert_eq!(quantiles(&recorder, 0, 9), None, "nothing was timed");
        for _ in 0..99 {
            recorder.record(Series::Latency, 1_000_000);
        }
        let all = quantiles(&recorder, 0, 0).unwrap();
        assert_eq!((all.count, all.p99_ms, all.max_ms), (99, Some(1.0), Some(1.0)));
        let one = quantiles(&recorder, 0, 1).unwrap();
        assert_eq!((one.p99_ms, one.p999_ms, one.max_ms), (Some(1.0), None, None));
        let mut hours = recorder.clone();
        hours.record(Series::Latency, 2 * 3_600_000_000_000);
        assert_eq!(quantiles(&hours, 0, 0).unwrap().max_ms, None);
        let half = quantiles(&recorder, 0, 101).unwrap();
        assert_eq!((half.p50_ms, half.p90_ms), (None, None));
        recorder.record(Series::Latency, 100_000_000);
        let most = quantiles(&recorder, 50, 0).unwrap();
        assert_eq!(most.p90_ms, None, "half of them were wrong");
        assert!(most.p50_ms > Some(90.0), "the wrong ones may have been the quick ones");
    }

    #[test]
    fn values_are_found_by_their_rank() {
        let mut recorder = Recorder::default();
        assert_eq!(recorder.nth_ms(Series::Latency, |_| 0), None);
        for ms in 1..=10 {
            recorder.record(Series::Latency, ms * 1_000_000);
        }
        for (nth, ms) in [(0, 1.0), (8, 9.0), (9, 10.0), (10, 10.0)] {
            let found = recorder.nth_ms(Series::Latency, |_| nth).unwrap();
            assert!((found - ms).abs() < 0.01, "{nth}: {found}");
        }
        assert!(recorder.nth_ms(Series::Latency, |count| count * 9 / 10) > Some(9.9));
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut recorder = Recorder::default();
        assert_eq!(recorder.buckets(Series::Latency, &[1.0]), None);
        for ms in [1, 5, 5, 2_000] {
            recorder.record(Series::Latency, ms * 1_000_000);
        }
        let ends = [0.000_5, 0.001, 0.005, 1.0];
        let (buckets, sum, count) = recorder.buckets(Series::Latency, &ends).unwrap();
        let counts: Vec<u64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!((counts, count), (vec![0, 1, 3, 3, 4], 4));
        assert!((sum - 2.011).abs() < 0.003, "{sum}");
    }

    #[test]
    fn values_up_to_an_hour_are_exact_and_longer_ones_are_counted() {
        let mut recorder = Recorder::default();
        let second = 1_000_000_000;
        recorder.record(Series::Latency, 65 * second);
        let latency = recorder.latency(Series::Latency).unwrap();
        assert!((latency.max_ms - 65_000.0).abs() < 65.0, "{latency:?}");
        recorder.record(Series::Latency, 3_599 * second);
        let latency = recorder.latency(Series::Latency).unwrap();
        assert!((latency.max_ms - 3_599_000.0).abs() < 3_599.0, "{latency:?}");
        assert_eq!(latency.above_range, 0);
        recorder.record(Series::Latency, 3_610 * second);
        recorder.record(Series::Latency, u64::MAX);
        recorder.record(Series::Latency, 0);
        let latency = recorder.latency(Series::Latency).unwrap();
        assert_eq!((latency.count, latency.above_range), (5, 2));
        assert!(latency.max_ms >= Latency::LONGEST_MS, "{latency:?}");
        let (buckets, _, _) = recorder.buckets(Series::Latency, &[60.0, 3_600.0]).unwrap();
        assert_eq!(buckets.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 3, 5]);
    }

    #[test]
    fn histograms_that_grew_apart_are_merged_and_subtracted() {
        let (mut short, mut long) = (Recorder::default(), Recorder::default());
        short.record(Series::Latency, 1_000_000);
        long.record(Series::Latency, 600_000_000_000);
        let before = short.clone();
        short.merge(&long);
        short.subtract(&before);
        let latency = short.latency(Series::Latency).unwrap();
        assert!(latency.count == 1 && latency.p50_ms > 599_000.0, "{latency:?}");
        // An earlier state has grown less, and one that was cleared has kept its memory.
        long.clear();
        long.merge(&before);
        long.subtract(&before);
        assert_eq!(long.latency(Series::Latency), None);
    }

    #[test]
    fn short_times_take_little_memory() {
        let mut recorder = Recorder::default();
        for us in 1..100_000 {
            recorder.record(Series::Latency, us * 1_000);
        }
        let histogram = recorder.histogram(Series::Latency).unwrap();
        assert!(histogram.distinct_values() * 8 <= 72 * 1024, "{}", histogram.distinct_values());
        recorder.record(Series::Latency, u64::MAX);
        let histogram = recorder.histogram(Series::Latency).unwrap();
        assert!(histogram.distinct_values() * 8 <= 192 * 1024, "{}", histogram.distinct_values());
    }
}
