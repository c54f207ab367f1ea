//! [`Timings`]: the histograms of a worker, and [`Batches`], which pass them to reports. Batches of
//! histograms are swapped: a worker neither merges them nor waits for a merge, as either would delay
//! the next message.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;

use crate::workload::requests::answer::Times;
use crate::{Latency, Recorder, Series};

/// The times of some messages or requests.
#[derive(Default)]
struct Batch {
    /// Sent when due: latency and service time are the same and recorded once.
    same: Option<Histogram<u64>>,
    /// The same of requests whose answer arrived in one piece, so that its first byte did too.
    in_one: Option<Histogram<u64>>,
    recorder: Recorder,
}

impl Batch {
    fn add_to(&self, all: &mut Recorder) {
        all.merge(&self.recorder);
        let both = [Series::Latency, Series::ServiceTime];
        let three = [Series::Latency, Series::ServiceTime, Series::FirstByte];
        for (histogram, series) in [(&self.same, &both[..]), (&self.in_one, &three[..])] {
            if let Some(histogram) = histogram.as_ref().filter(|histogram| !histogram.is_empty()) {
                series.iter().for_each(|series| all.add(*series, histogram));
            }
        }
    }

    fn clear(&mut self) {
        self.recorder.clear();
        [&mut self.same, &mut self.in_one].into_iter().flatten().for_each(Histogram::reset);
    }

    /// The longest service time, in milliseconds.
    fn slowest_ms(&self) -> f64 {
        let longest = |histogram: &Option<Histogram<u64>>| {
            histogram.as_ref().map_or(0.0, |histogram| histogram.max() as f64 / 1e3)
        };
        let slowest = self.recorder.longest_ms(Series::ServiceTime);
        slowest.max(longest(&self.same)).max(longest(&self.in_one)).min(Latency::LONGEST_MS)
    }
}

/// Records in a histogram that is allocated with its first value.
#[inline]
fn record(histogram: &mut Option<Histogram<u64>>, nanoseconds: u64) {
    if histogram.is_none() {
        *histogram = Recorder::empty();
    }
    if let Some(histogram) = histogram {
        Recorder::record_in(histogram, nanoseconds);
    }
}

/// The batches between a worker and reports.
#[derive(Default)]
pub(crate) struct Batches(Mutex<BatchSlots>);

/// Locked only to move a pointer, except at the end of a run.
#[derive(Default)]
struct BatchSlots {
    /// Flushed, and not yet taken.
    full: Option<Box<Batch>>,
    /// Returned for reuse.
    empty: Option<Box<Batch>>,
}

impl Batches {
    /// Adds the flushed batch to `all`.
    pub(crate) fn take(&self, all: &mut Recorder) {
        let Some(mut batch) = self.slots().full.take() else { return };
        batch.add_to(all);
        batch.clear();
        let other = self.slots().empty.replace(batch);
        drop(other);
    }

    fn slots(&self) -> MutexGuard<'_, BatchSlots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The histograms of a worker until they are flushed.
pub(crate) struct Timings {
    batch: Box<Batch>,
    slowest_ms: f64,
    settled_ns: u64,
    flushed_ns: u64,
    fresh: bool,
}

impl Timings {
    /// How often batches are flushed, if the last one was taken.
    const PERIOD_NS: u64 = 250_000_000;

    pub(crate) fn new() -> Timings {
        let batch = Box::default();
        Timings { batch, slowest_ms: 0.0, settled_ns: 0, flushed_ns: 0, fresh: false }
    }

    /// Records the answer to a request.
    #[inline]
    pub(crate) fn answered(&mut self, times: &Times) {
        let Times { due_ns, sent_ns, first_ns, done_ns, .. } = *times;
        self.settled_ns = done_ns;
        if due_ns == sent_ns && first_ns == done_ns {
            self.fresh = true;
            return record(&mut self.batch.in_one, done_ns.saturating_sub(due_ns));
        }
        self.echoed(due_ns, sent_ns, done_ns);
        if first_ns > 0 && sent_ns > 0 {
            self.record(Series::FirstByte, first_ns.saturating_sub(sent_ns));
        }
    }

    /// Records the answer to a message.
    #[inline]
    pub(crate) fn echoed(&mut self, due_ns: u64, sent_ns: u64, done_ns: u64) {
        if due_ns == sent_ns {
            self.fresh = true;
            return record(&mut self.batch.same, done_ns.saturating_sub(due_ns));
        }
        self.record(Series::Latency, done_ns.saturating_sub(due_ns));
        self.record(Series::ServiceTime, done_ns.saturating_sub(sent_ns));
    }

    /// Records one duration.
    #[inline]
    pub(crate) fn record(&mut self, series: Series, nanoseconds: u64) {
        self.fresh = true;
        self.batch.recorder.record(series, nanoseconds);
    }

    /// Records the end of a failed request.
    pub(crate) fn failed(&mut self, done_ns: u64) {
        self.settled_ns = done_ns;
    }

    /// When the last measured request ended; 0 before the first.
    pub(crate) fn settled_ns(&self) -> u64 {
        self.settled_ns
    }

    /// The longest service time so far.
    pub(crate) fn slowest_ms(&self) -> f64 {
        self.slowest_ms.max(self.batch.slowest_ms())
    }

    /// Records the receipt of a publication.
    #[inline]
    pub(crate) fn received(&mut self, due_ns: u64, sent_ns: u64, now_ns: u64) {
        self.fresh = true;
        let recorder = &mut self.batch.recorder;
        recorder.record(Series::Broadcast, now_ns.saturating_sub(due_ns));
        recorder.record(Series::FromSend, now_ns.saturating_sub(sent_ns));
    }

    /// Adds the times since the last flush to `all`.
    pub(crate) fn drain(&mut self, all: &mut Recorder) {
        std::mem::take(&mut self.batch).add_to(all);
        self.fresh = false;
    }

    /// When to flush next, if there is something to flush.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.fresh.then_some(self.flushed_ns.saturating_add(Self::PERIOD_NS))
    }

    /// Flushes what was timed, once per [`Timings::PERIOD_NS`]. True if it was time to.
    #[inline]
    pub(crate) fn flush(&mut self, batches: &Batches, now_ns: u64) -> bool {
        let due = self.fresh && now_ns >= self.flushed_ns.saturating_add(Self::PERIOD_NS);
        if due {
            self.flush_now(batches, now_ns);
        }
        due
    }

    #[inline(never)]
    fn flush_now(&mut self, batches: &Batches, now_ns: u64) {
        self.flushed_ns = now_ns;
        let mut slots = batches.slots();
        if slots.full.is_some() {
            return;
        }
        self.slowest_ms = self.slowest_ms();
        let empty = slots.empty.take().unwrap_or_default();
        slots.full = Some(std::mem::replace(&mut self.batch, empty));
        self.fresh = false;
    }

    /// Flushes the last batch, merged with the one before it if that was not taken.
    pub(crate) fn flush_rest(&mut self, batches: &Batches) {
        let mut slots = batches.slots();
        let before = slots.full.take();
        if let Some(before) = before {
            before.add_to(&mut self.batch.recorder);
        }
        self.slowest_ms = self.slowest_ms();
        slots.full = Some(std::mem::take(&mut self.batch));
        self.fresh = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(due_ns: u64, sent_ns: u64, done_ns: u64) -> Times {
        Times { due_ns, sent_ns, done_ns, ..Times::default() }
    }

    #[test]
    fn both_times_are_recorded_whether_they_differ_or_not() {
        let (batches, mut timings) = (Batches::default(), Timings::new());
        let mut all = Recorder::default();
        timings.answered(&times(4_000_000, 4_000_000, 9_000_000));
        timings.answered(&times(1_000_000, 7_000_000, 9_000_000));
        assert_eq!(timings.next_ns(), Some(Timings::PERIOD_NS));
        timings.flush(&batches, 9_000_000);
        batches.take(&mut all);
        assert_eq!(all.latency(Series::Latency), None, "not yet");
        timings.flush(&batches, Timings::PERIOD_NS);
        batches.take(&mut all);
        batches.take(&mut all);
        let of = |series| all.latency(series).unwrap();
        let (latency, service) = (of(Series::Latency), of(Series::ServiceTime));
        assert_eq!((latency.count, service.count), (2, 2));
        assert!((latency.max_ms - 8.0).abs() < 0.1 && (service.max_ms - 5.0).abs() < 0.1);
        assert!((timings.slowest_ms() - 5.0).abs() < 0.1);
        assert_eq!((timings.settled_ns(), timings.next_ns()), (9_000_000, None));
        timings.failed(9_500_000);
        assert_eq!(timings.settled_ns(), 9_500_000, "what failed took its time too");
    }

    #[test]
    fn first_byte_is_timed_whether_the_answer_comes_in_one_piece_or_not() {
        let (batches, mut timings) = (Batches::default(), Timings::new());
        let ms = 1_000_000;
        timings.answered(&Times { first_ns: 9 * ms, ..times(4 * ms, 4 * ms, 9 * ms) });
        timings.answered(&Times { first_ns: 6 * ms, ..times(4 * ms, 4 * ms, 9 * ms) });
        timings.answered(&Times { first_ns: 9 * ms, ..times(ms, 7 * ms, 9 * ms) });
        // Messages and answers without a first byte.
        timings.echoed(4 * ms, 4 * ms, 9 * ms);
        timings.answered(&times(4 * ms, 4 * ms, 9 * ms));
        timings.flush_rest(&batches);
        let mut all = Recorder::default();
        batches.take(&mut all);
        let of = |series| all.latency(series).unwrap();
        let first = of(Series::FirstByte);
        assert_eq!((first.count, first.p50_ms, first.max_ms), (3, 2.0, 5.003));
        assert_eq!([of(Series::Latency).count, of(Series::ServiceTime).count], [5, 5]);
    }

    #[test]
    fn no_time_is_lost_or_duplicated_if_batches_are_taken_rarely() {
        let (batches, mut timings) = (Batches::default(), Timings::new());
        let mut all = Recorder::default();
        for second in 1..=40_u64 {
            let now_ns = second * Timings::PERIOD_NS;
            timings.answered(&times(now_ns - 2_000_000, now_ns - 2_000_000, now_ns));
            timings.record(Series::SendLag, 3_000_000);
            timings.flush(&batches, now_ns);
            if second % 7 == 0 {
                batches.take(&mut all);
            }
        }
        timings.flush_rest(&batches);
        batches.take(&mut all);
        for series in [Series::Latency, Series::ServiceTime, Series::SendLag] {
            assert_eq!(all.latency(series).map(|times| times.count), Some(40), "{series:?}");
        }
    }
}
