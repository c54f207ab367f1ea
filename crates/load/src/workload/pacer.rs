//! [`Pacer`]: when the next send is due, at a constant or varying rate. It has no access to sockets
//! or clocks, and due times do not depend on how late earlier sends were: latency is measured from the
//! due time.

use std::ops::Range;

use crate::workload::requests::script::Part;
use crate::workload::stages::Stage;

/// Due times from a start time, without drift.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    begin_ns: u64,
    rate: Rate,
    /// `None` for all sends of the sequence.
    share: Option<Share>,
}

/// One share of a sequence of sends that is split in rounds of `whole`: in each round one send for each
/// of some users of a worker, at the place of its number from `offset`.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) part: Part,
    pub(crate) users: Range<u32>,
    pub(crate) offset: u64,
    pub(crate) whole: u64,
}

impl Share {
    /// The position in the whole sequence of send `number` of this share.
    fn place(&self, number: u64) -> u64 {
        let each = u64::from(self.users.end.saturating_sub(self.users.start).max(1));
        let user = self.users.start + (number % each) as u32;
        let place = self.part.number(user).saturating_sub(self.offset);
        (number / each).saturating_mul(self.whole.max(1)).saturating_add(place)
    }
}

#[derive(Clone, Debug)]
enum Rate {
    /// Nanoseconds between two sends, as a fraction.
    Constant(u64, u64),
    /// Consecutive linear segments.
    Segments(Vec<Segment>),
}

/// A rate that changes linearly.
#[derive(Copy, Clone, Debug)]
struct Segment {
    /// Sends due before it, and its start in seconds.
    sends: f64,
    at: f64,
    /// Its duration.
    seconds: f64,
    /// Sends per second at its start and at its end.
    from: f64,
    to: f64,
}

impl Pacer {
    /// A constant rate of `part` of `whole` of `rate` sends per second, evenly spaced. A rate, part or
    /// whole of 0 counts as 1.
    pub(crate) fn new(begin_ns: u64, rate: u64, part: u64, whole: u64) -> Pacer {
        let numerator = whole.max(1).saturating_mul(1_000_000_000);
        let denominator = rate.max(1).saturating_mul(part.max(1));
        Pacer { begin_ns, rate: Rate::Constant(numerator, denominator), share: None }
    }

    /// A rate that changes linearly from the end of one stage to the next. It starts at 0, and a stage
    /// without duration is a step. After the last stage nothing is due.
    pub(crate) fn staged(begin_ns: u64, stages: &[Stage]) -> Pacer {
        let (mut sends, mut at, mut from) = (0.0, 0.0, 0.0);
        let mut segments = Vec::with_capacity(stages.len());
        for stage in stages {
            let (seconds, to) = (stage.time.as_secs_f64(), stage.connections as f64);
            let segment = Segment { sends, at, seconds, from, to };
            (sends, at, from) = (sends + segment.sends_by(seconds), at + seconds, to);
            segments.push(segment);
        }
        Pacer { begin_ns, rate: Rate::Segments(segments), share: None }
    }

    /// Only one share, at the times it has in the whole sequence, so that no two shares send at once.
    pub(crate) fn shared(self, share: Share) -> Pacer {
        Pacer { share: Some(share), ..self }
    }

    /// Starts later by `nth` of `of` equal parts of the interval of a constant rate, so that pacers with
    /// changing parts do not all send at the same time.
    pub(crate) fn shifted(self, nth: u64, of: u64) -> Pacer {
        let Rate::Constant(numerator, denominator) = self.rate else { return self };
        let pieces = u128::from(denominator) * u128::from(of.max(1));
        let shift = u128::from(numerator) * u128::from(nth) / pieces;
        let shift = u64::try_from(shift).unwrap_or(u64::MAX);
        Pacer { begin_ns: self.begin_ns.saturating_add(shift), ..self }
    }

    /// When send `number`, counted from 0, is due.
    #[inline]
    pub(crate) fn due_ns(&self, number: u64) -> u64 {
        let number = self.share.as_ref().map_or(number, |share| share.place(number));
        let after = match &self.rate {
            Rate::Constant(numerator, denominator) => {
                let after = u128::from(number) * u128::from(*numerator) / u128::from(*denominator);
                u64::try_from(after).unwrap_or(u64::MAX)
            }
            Rate::Segments(segments) => {
                let sends = number as f64;
                let segment = segments
                    .iter()
                    .find(|segment| sends < segment.sends + segment.sends_by(segment.seconds));
                segment.map_or(u64::MAX, |segment| (segment.at_send(sends) * 1e9) as u64)
            }
        };
        self.begin_ns.saturating_add(after)
    }

    /// The number of sends due before a time.
    pub(crate) fn due_before(&self, time_ns: u64) -> u64 {
        let (mut least, mut most) = (0_u64, 1_u64);
        while most < u64::MAX / 2 && self.due_ns(most) < time_ns {
            (least, most) = (most, most * 2);
        }
        if self.due_ns(least) >= time_ns {
            return least;
        }
        // The last send before the time is `least` or between it and `most`.
        while most - least > 1 {
            let middle = least + (most - least) / 2;
            if self.due_ns(middle) < time_ns { least = middle } else { most = middle }
        }
        most
    }
}

impl Segment {
    /// Sends due in its first `seconds`.
    fn sends_by(&self, seconds: f64) -> f64 {
        if self.seconds <= 0.0 {
            return 0.0;
        }
        let grown = (self.to - self.from) * seconds / self.seconds;
        (self.from + grown / 2.0) * seconds
    }

    /// The time in seconds since the start at which `sends` sends are due: the root of the parabola, in
    /// the form that keeps precision when the rate hardly changes.
    fn at_send(&self, sends: f64) -> f64 {
        let missing = (sends - self.sends).max(0.0);
        let grows = (self.to - self.from) / self.seconds;
        let root = (self.from * self.from + 2.0 * grows * missing).max(0.0).sqrt();
        let divisor = self.from + root;
        self.at + if divisor > 0.0 { 2.0 * missing / divisor } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_that_does_not_divide_a_second_does_not_drift() {
        let pacer = Pacer::new(1_000, 3, 1, 1);
        assert_eq!(pacer.due_ns(0), 1_000);
        assert_eq!(pacer.due_ns(1), 333_334_333);
        assert_eq!(pacer.due_ns(3_000_000), 1_000_000 * 1_000_000_000 + 1_000);
    }

    #[test]
    fn parts_add_up_to_the_rate() {
        let parts = [Pacer::new(0, 1_000, 3, 10), Pacer::new(0, 1_000, 7, 10)];
        let until = 60_000_000_000;
        let sends = parts.map(|pacer| (0..).take_while(|&n| pacer.due_ns(n) < until).count());
        assert_eq!(sends, [18_000, 42_000]);
    }

    #[test]
    fn shares_add_up_to_the_sequence_and_never_coincide() {
        // Five places: two of the first, two of the second, one of the third.
        let shared = |worker| {
            let part = Part::new(worker, 3, 1, 5);
            let users = 0..part.users;
            Pacer::new(0, 1_000, 1, 1).shared(Share { part, users, offset: 0, whole: 5 })
        };
        let all = [0, 1, 2].map(shared);
        let of =
            |pacer: &Pacer| -> Vec<u64> { (0..40).map(|n| pacer.due_ns(n) / 1_000_000).collect() };
        let mut due: Vec<u64> = all.iter().flat_map(of).filter(|ms| *ms < 100).collect();
        due.sort_unstable();
        assert_eq!(due, (0..100).collect::<Vec<_>>(), "one each millisecond");
        let shifted = |nth| Pacer::new(10, 1_000, 1, 4).shifted(nth, 4);
        assert_eq!([0, 1, 3].map(|nth| shifted(nth).due_ns(1)), [4_000_010, 5_000_010, 7_000_010]);
    }

    #[test]
    fn growing_rate_shortens_the_intervals() {
        let stage = |seconds, connections| Stage {
            time: std::time::Duration::from_secs(seconds),
            connections,
        };
        // Half of 10 s at 100, then 10 s at 100, then nothing for 5 s, then a step.
        let stages =
            [stage(10, 100), stage(10, 100), stage(0, 0), stage(5, 0), stage(0, 10), stage(1, 10)];
        let pacer = Pacer::staged(7, &stages);
        let due = |number| (pacer.due_ns(number) - 7) as f64 / 1e9;
        for (number, seconds) in
            [(0, 0.0), (125, 5.0), (500, 10.0), (1_000, 15.0), (1_500, 25.0), (1_505, 25.5)]
        {
            assert!((due(number) - seconds).abs() < 1e-6, "{number}: {}", due(number));
        }
        assert_eq!(pacer.due_ns(1_510), u64::MAX, "after the last stage");
        assert_eq!(pacer.due_before(u64::MAX), 1_510);
        assert!((1..1_600).all(|n| pacer.due_ns(n - 1) <= pacer.due_ns(n)));
        let share = Share { part: Part::new(1, 2, 1, 2), users: 0..1, offset: 0, whole: 2 };
        let half = pacer.clone().shared(share);
        assert_eq!((half.due_before(u64::MAX), half.due_ns(62)), (755, pacer.due_ns(125)));
    }

    #[test]
    fn sends_are_counted_up_to_a_time() {
        let pacer = Pacer::new(1_000, 1_000, 1, 1);
        for (time_ns, sends) in [
            (0, 0),
            (1_000, 0),
            (1_001, 1),
            (1_001_000, 1),
            (1_001_001, 2),
            (10_000_001_000, 10_000),
        ] {
            assert_eq!(pacer.due_before(time_ns), sends, "{time_ns}");
        }
    }

    #[test]
    fn large_numbers_saturate() {
        assert!(Pacer::new(0, u64::MAX, u64::MAX, u64::MAX).due_ns(u64::MAX) > 0);
        assert_eq!(Pacer::new(5, 0, 0, 0).due_ns(2), 2_000_000_005);
    }
}
