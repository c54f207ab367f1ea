//! [`Stats`]: what is counted of calls.

use std::collections::BTreeMap;

use super::Failure;
use super::call::Method;
use super::reply::Status;

/// Upper bounds of times in nanoseconds: 1 ms to 30 s.
const TIMES: [u64; 10] = [
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// What is counted of calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    /// By the name of the call and of its end.
    pub(crate) ended: BTreeMap<(&'static str, &'static str), u64>,
    /// Time of calls, by method.
    pub(crate) took: [Times; Method::ALL.len()],
    /// Time in the queue.
    pub(crate) waited: Times,
    /// Calls that waited for a connection that has ended.
    pub(crate) gone: u64,
    /// Calls refused because the queue was full.
    pub(crate) full: u64,
    /// Disconnects dropped because too many were waiting.
    pub(crate) disconnects_dropped: u64,
    /// Calls put back because they did not reach the application, or it was overloaded.
    pub(crate) put_back: u64,
}

impl Stats {
    pub(crate) fn ended(&mut self, name: &'static str, outcome: Result<Status, Failure>) {
        let how = match outcome {
            Ok(Status::Success) => "success",
            Ok(Status::Failure) => "failure",
            Ok(Status::Error) => "error",
            Err(failure) => failure.name(),
        };
        *self.ended.entry((name, how)).or_default() += 1;
    }

    /// How often any call ended so.
    #[cfg(test)]
    pub(crate) fn failures(&self, failure: Failure) -> u64 {
        let of = |((_, how), _): &(&(&str, &str), &u64)| *how == failure.name();
        self.ended.iter().filter(of).map(|(_, times)| times).sum()
    }
}

/// A histogram of times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    buckets: [u64; TIMES.len() + 1],
    sum_ns: u64,
}

impl Times {
    pub(crate) fn record(&mut self, ns: u64) {
        let at = TIMES.partition_point(|bound| *bound < ns);
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Adds those of another histogram.
    pub(crate) fn add(&mut self, other: &Times) {
        for (own, others) in self.buckets.iter_mut().zip(other.buckets) {
            *own += others;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Cumulative counts by upper bound in seconds, the last one infinity; sum and count.
    pub(crate) fn exposed(&self) -> (Vec<(f64, u64)>, f64, u64) {
        let bounds = TIMES.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
        let mut count = 0;
        let ends = bounds.zip(&self.buckets).map(|(bound, bucket)| {
            count += bucket;
            (bound, count)
        });
        let ends: Vec<(f64, u64)> = ends.collect();
        (ends, self.sum_ns as f64 / 1e9, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_within_their_bounds() {
        let mut times = Times::default();
        for ns in [0, 1_000_000, 1_000_001, u64::MAX / 2] {
            times.record(ns);
        }
        let (ends, _, count) = times.exposed();
        assert_eq!((ends[0], ends[1].1, ends[9].1, ends[10].1, count), ((0.001, 2), 3, 3, 4, 4));
    }

    #[test]
    fn ends_are_counted_by_name() {
        let mut stats = Stats::default();
        stats.ended("connect", Ok(Status::Failure));
        stats.ended("connect", Err(Failure::Late));
        stats.ended("subscribe", Err(Failure::Late));
        assert_eq!(stats.failures(Failure::Late), 2);
        assert_eq!(stats.ended[&("connect", "failure")], 1);
    }
}
