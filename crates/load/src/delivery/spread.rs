//! First and last receipt of each publication: [`Arrivals`] of one worker, collected from all of them
//! by [`Spread`], which times publish → first, publish → last, and first → last.
//!
//! Both are bounded: publications that are not collected in time or never complete are dropped and
//! counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::delivery::publication::Publication;
use crate::outcome::histograms::Histograms;
use crate::{Latency, Recorder, Series};

/// The most publications that a worker keeps until they are collected.
const ARRIVALS_MAX: usize = 8_192;
/// The most incomplete publications that are kept.
const UNDER_WAY_MAX: usize = 65_536;

/// First and last receipt of one publication, in monotonic nanoseconds.
#[derive(Copy, Clone, Debug)]
struct Arrival {
    published_ns: u64,
    first_ns: u64,
    last_ns: u64,
    receivers: u64,
}

/// Sequence and publisher, in this order so that the first is among the oldest.
type Key = (u32, u32);

/// Arrival times of publications.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Times {
    /// Per publication: from publishing to its first and last receipt, and from first to last.
    pub to_first: Option<Latency>,
    /// See `to_first`.
    pub to_last: Option<Latency>,
    /// See `to_first`.
    pub first_to_last: Option<Latency>,
    /// Publications that were not timed.
    pub untimed: u64,
}

/// Receipts of one worker, by sequence and publisher.
#[derive(Clone, Default, Debug)]
pub(crate) struct Arrivals {
    by_key: BTreeMap<Key, Arrival>,
    dropped: u64,
}

impl Arrivals {
    /// Notes the first receipt at a receiver.
    pub(crate) fn note(&mut self, publication: &Publication, now_ns: u64) {
        let Publication { publisher, sequence, published_ns, .. } = *publication;
        let fresh = Arrival { published_ns, first_ns: now_ns, last_ns: now_ns, receivers: 1 };
        self.add((sequence, publisher), fresh, ARRIVALS_MAX);
    }

    /// Takes the arrivals of `newer`, which stays empty.
    pub(crate) fn merge(&mut self, newer: &mut Arrivals) {
        self.dropped += std::mem::take(&mut newer.dropped);
        for (key, arrival) in std::mem::take(&mut newer.by_key) {
            self.add(key, arrival, ARRIVALS_MAX);
        }
    }

    /// Adds receipts of a publication, and returns all of them. At most `most` publications are kept.
    fn add(&mut self, key: Key, new: Arrival, most: usize) -> Arrival {
        if let Some(known) = self.by_key.get_mut(&key) {
            known.first_ns = known.first_ns.min(new.first_ns);
            known.last_ns = known.last_ns.max(new.last_ns);
            known.receivers += new.receivers;
            return *known;
        }
        if self.by_key.len() >= most {
            self.by_key.pop_first();
            self.dropped += 1;
        }
        self.by_key.insert(key, new);
        new
    }
}

/// Receipts of all workers.
#[derive(Default)]
pub(crate) struct Spread {
    under_way: Arrivals,
    recorder: Recorder,
}

impl Spread {
    /// Takes the arrivals of a worker, and times publications that have reached all `receivers`.
    pub(crate) fn gather(&mut self, arrivals: &mut Arrivals, receivers: u64) {
        self.under_way.dropped += std::mem::take(&mut arrivals.dropped);
        for (key, new) in std::mem::take(&mut arrivals.by_key) {
            let whole = self.under_way.add(key, new, UNDER_WAY_MAX);
            if whole.receivers >= receivers {
                self.under_way.by_key.remove(&key);
                self.time(whole);
            }
        }
    }

    /// Times the rest, which did not reach all receivers, and returns all times.
    pub(crate) fn finish(&mut self, histograms: &mut Histograms) -> Times {
        while let Some((_, arrival)) = self.under_way.by_key.pop_first() {
            self.time(arrival);
        }
        let mut of = |name, series| histograms.latency(name, &self.recorder, series);
        Times {
            to_first: of("broadcast.to_first", Series::First),
            to_last: of("broadcast.to_last", Series::Last),
            first_to_last: of("broadcast.first_to_last", Series::Spread),
            untimed: self.under_way.dropped,
        }
    }

    fn time(&mut self, arrival: Arrival) {
        let Arrival { published_ns, first_ns, last_ns, .. } = arrival;
        self.recorder.record(Series::First, first_ns.saturating_sub(published_ns));
        self.recorder.record(Series::Last, last_ns.saturating_sub(published_ns));
        self.recorder.record(Series::Spread, last_ns - first_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn first_and_last_receipt_span_all_workers() {
        let (mut one, mut two, mut spread) =
            (Arrivals::default(), Arrivals::default(), Spread::default());
        let seventh = Publication::new(1, 7, 10 * MS);
        one.note(&seventh, 15 * MS);
        one.note(&seventh, 30 * MS);
        two.note(&seventh, 12 * MS);
        let of_another = Publication { publisher: 2, published_ns: 20 * MS, ..seventh };
        one.note(&of_another, 21 * MS);
        spread.gather(&mut one, 3);
        spread.gather(&mut two, 3);
        assert_eq!(spread.under_way.by_key.len(), 1, "the other has not reached everybody");
        let times = spread.finish(&mut Histograms::default());
        let max = |latency: Option<Latency>| latency.unwrap().max_ms.round();
        let of_all = [times.to_first, times.to_last, times.first_to_last].map(max);
        assert_eq!(of_all, [2.0, 20.0, 18.0]);
        assert_eq!((times.to_last.unwrap().count, times.untimed), (2, 0));
    }

    #[test]
    fn uncollected_publications_are_dropped_and_counted() {
        let mut arrivals = Arrivals::default();
        for sequence in 0..ARRIVALS_MAX as u32 + 5 {
            arrivals.note(&Publication::new(1, sequence, 0), 1);
        }
        assert_eq!((arrivals.by_key.len(), arrivals.dropped), (ARRIVALS_MAX, 5));
    }
}
