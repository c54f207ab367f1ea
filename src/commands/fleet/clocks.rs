//! [`Offset`]: how far another machine's clock is from ours, by round trips.

use std::time::Duration;

/// The most by which one clock runs faster than another, in parts per million. Crystals are within 100 each, and NTP
/// slews one of the clocks by up to 500. If it slews both in opposite directions the bounds may miss by 0.6 ms in 2 s.
const DRIFT_PPM: i128 = 700;
/// Bounds that miss those before by more than this are of a clock that has jumped.
const JUMP_NS: i128 = 1_000_000;
/// The fewest and the most round trips to a machine before a start, and how long they are made at most.
const ROUND_TRIPS: u32 = 12;
const ROUND_TRIPS_MAX: u32 = 150;
const MEASURE_MAX: Duration = Duration::from_secs(10);
/// Round trips are made until one more would narrow the bounds by less than about this, in nanoseconds.
const GAIN_NS: u64 = 300_000;

/// The round trips to a machine. Its clock was read after we sent and before we received, however long each way
/// took, so each round trip has bounds of the offset. The narrowest are kept, which move apart with time as the
/// clocks may drift.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Offset {
    bounds: Option<Bounds>,
    /// Round trips that do not contradict each other, when the first was sent, and how long they took.
    round_trips: u32,
    first_ns: u64,
    quickest_ns: u64,
    total_ns: u64,
}

#[derive(Copy, Clone, Debug)]
struct Bounds {
    least: i128,
    most: i128,
    /// The time of ours that they are of.
    at_ns: u64,
}

/// An offset in nanoseconds, to be added to our time, and by how much it may be wrong.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Estimate {
    middle: i128,
    pub(super) error_ns: u64,
}

impl Offset {
    /// Adds a round trip: our times when it was sent and received, and the time of the other clock between. Returns
    /// by how much the bounds had to be widened, which is added to the errors of earlier estimates; `None` if the
    /// clock has jumped.
    pub(super) fn add(&mut self, sent_ns: u64, other_ns: u64, received_ns: u64) -> Option<u64> {
        let other = i128::from(other_ns);
        let own = Bounds {
            least: other - i128::from(received_ns),
            most: other - i128::from(sent_ns),
            at_ns: received_ns,
        };
        // Without a common offset the clock has jumped: what was measured before is of no use.
        let before = self.bounds.map_or(own, |before| before.at(received_ns));
        let narrowed = before.narrowed(own);
        let missed = narrowed.least - narrowed.most;
        let both = match missed {
            ..=0 => Some(narrowed),
            // A small step, or a clock that slews more quickly: the offset is between those before and these.
            1..=JUMP_NS => Some(before.widened(own)),
            _ => None,
        };
        let is_first = self.bounds.is_none();
        if both.is_none() || is_first {
            *self = Offset { quickest_ns: u64::MAX, first_ns: sent_ns, ..Offset::default() };
        }
        self.bounds = both.or(Some(own));
        let took_ns = received_ns.saturating_sub(sent_ns);
        self.round_trips = self.round_trips.saturating_add(1);
        self.quickest_ns = self.quickest_ns.min(took_ns);
        self.total_ns = self.total_ns.saturating_add(took_ns);
        let beyond = (own.most - before.most).max(before.least - own.least);
        let widened_ns = if missed > 0 { u64::try_from(beyond).unwrap_or(u64::MAX) } else { 0 };
        both.map(|_| widened_ns)
    }

    /// The offset at a time of ours; `None` without a round trip.
    pub(super) fn at(&self, ours_ns: u64) -> Option<Estimate> {
        let Bounds { least, most, .. } = self.bounds?.at(ours_ns);
        let error_ns = u64::try_from((most - least + 1) / 2).ok()?;
        Some(Estimate { middle: least + (most - least) / 2, error_ns })
    }

    /// Whether further round trips would hardly tell more. Where each takes another time, the quickest of many
    /// there and the quickest of many back are near the shortest that there are.
    pub(super) fn is_known(&self, now_ns: u64) -> bool {
        let trips = u64::from(self.round_trips.max(1));
        let beyond_ns = self.total_ns / trips - self.quickest_ns.min(self.total_ns / trips);
        let is_late = now_ns > self.first_ns.saturating_add(MEASURE_MAX.as_nanos() as u64);
        self.round_trips >= ROUND_TRIPS
            && (beyond_ns / trips <= GAIN_NS || self.round_trips >= ROUND_TRIPS_MAX || is_late)
    }
}

impl Bounds {
    /// The bounds at another time of ours.
    fn at(self, at_ns: u64) -> Bounds {
        let drift = i128::from(at_ns.abs_diff(self.at_ns)) * DRIFT_PPM / 1_000_000;
        Bounds { least: self.least - drift, most: self.most + drift, at_ns }
    }

    fn widened(self, other: Bounds) -> Bounds {
        Bounds {
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            at_ns: self.at_ns,
        }
    }

    fn narrowed(self, other: Bounds) -> Bounds {
        Bounds {
            least: self.least.max(other.least),
            most: self.most.min(other.most),
            at_ns: self.at_ns,
        }
    }
}

impl Estimate {
    /// A time of ours on the other clock.
    pub(super) fn of_theirs(self, ours_ns: u64) -> u64 {
        u64::try_from(i128::from(ours_ns) + self.middle).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const PING_NS: u64 = 50_000_000;

    /// A connection: what is sent later arrives later, as over TCP.
    struct Link {
        random: u64,
        /// The shortest and the longest way there and back in nanoseconds.
        ways_ns: [(u64, u64); 2],
        arrived_ns: [u64; 2],
        truth: i128,
        ppm: i128,
    }

    impl Link {
        fn new(seed: u64, ways_ns: [(u64, u64); 2], truth: i128, ppm: i128) -> Link {
            let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Link { random, ways_ns, arrived_ns: [0; 2], truth, ppm }
        }

        fn below(&mut self, most: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) % most.max(1)
        }

        /// The time of the other clock at one of ours.
        fn other(&self, ours_ns: u64) -> u64 {
            let ours = i128::from(ours_ns);
            u64::try_from(ours + self.truth + ours * self.ppm / 1_000_000).unwrap()
        }

        fn arrive(&mut self, way: usize, sent_ns: u64) -> u64 {
            let (least, most) = self.ways_ns[way];
            let at_ns = sent_ns + 20_000 + least + self.below(most - least);
            self.arrived_ns[way] = self.arrived_ns[way].max(at_ns);
            self.arrived_ns[way]
        }

        fn ping(&mut self, offset: &mut Offset, sent_ns: u64) -> u64 {
            let there_ns = self.arrive(0, sent_ns);
            let back_ns = self.arrive(1, there_ns);
            offset.add(sent_ns, self.other(there_ns), back_ns);
            back_ns
        }

        /// By how much the start is early or late if it is due so long after the measurement.
        fn start(&mut self, ahead_ns: u64) -> (i128, Estimate) {
            let (mut offset, mut now_ns) = (Offset::default(), 20 * SECOND_NS);
            let mut last_ns = now_ns;
            while !offset.is_known(last_ns) {
                last_ns = self.ping(&mut offset, now_ns);
                now_ns += PING_NS;
            }
            let start_ns = last_ns + ahead_ns;
            let estimate = offset.at(start_ns).unwrap();
            let wrong = i128::from(self.other(start_ns)) - i128::from(estimate.of_theirs(start_ns));
            (wrong, estimate)
        }
    }

    #[test]
    fn the_error_contains_the_true_offset_whatever_each_way_takes() {
        const MS: u64 = 1_000_000;
        for seed in 0..400 {
            for ways_ns in [
                [(0, MS / 50), (0, MS / 50)],
                [(0, 50 * MS), (0, 50 * MS)],
                [(50 * MS, 50 * MS), (0, 0)],
                [(0, 0), (10 * MS, 40 * MS)],
            ] {
                let truth = (i128::from(seed) % 21 - 10) * i128::from(SECOND_NS);
                let ppm = i128::from(seed) % 3 * 100 - 100;
                let (wrong, estimate) = Link::new(seed, ways_ns, truth, ppm).start(2 * SECOND_NS);
                assert!(wrong.unsigned_abs() <= u128::from(estimate.error_ns) + 1, "{wrong}");
            }
        }
    }

    #[test]
    fn agents_start_within_five_milliseconds_over_ways_of_up_to_fifty() {
        const MS: u64 = 1_000_000;
        let mut skews: Vec<i128> = (0..400)
            .map(|run| {
                let starts = (0..16).map(|agent| {
                    // Another longest way for each, there and back.
                    let ways_ns = [(0, 50 * MS * (agent % 4) / 3), (0, 50 * MS * (agent / 4) / 3)];
                    let truth = (i128::from(agent) - 8) * i128::from(SECOND_NS);
                    let ppm = i128::from(agent) % 3 * 100 - 100;
                    Link::new(run * 16 + agent, ways_ns, truth, ppm).start(2 * SECOND_NS).0
                });
                let (least, most) = starts.fold((i128::MAX, i128::MIN), |(least, most), wrong| {
                    (least.min(wrong), most.max(wrong))
                });
                most - least
            })
            .collect();
        skews.sort_unstable();
        let p99 = skews[skews.len() * 99 / 100];
        let median = skews[skews.len() / 2];
        crate::output::note(&format!("skew of 16 agents: median {median} ns, p99 {p99} ns"));
        assert!(p99 <= 5_000_000, "{p99}");
    }

    #[test]
    fn ways_that_hardly_vary_are_known_after_few_round_trips() {
        let mut link = Link::new(1, [(40_000_000, 40_100_000), (0, 100_000)], 0, 0);
        let (mut offset, mut now_ns) = (Offset::default(), SECOND_NS);
        assert_eq!(offset.at(0), None);
        for _ in 0..ROUND_TRIPS {
            assert!(!offset.is_known(now_ns));
            now_ns = link.ping(&mut offset, now_ns);
        }
        assert!(offset.is_known(now_ns));
        assert!(offset.at(now_ns).unwrap().error_ns < 20_200_000);
    }

    #[test]
    fn a_clock_that_jumps_is_measured_again() {
        let mut link = Link::new(1, [(0, 90_000), (0, 90_000)], 0, 0);
        let (mut offset, mut now_ns) = (Offset::default(), SECOND_NS);
        for round in 0..60 {
            if round == 20 {
                link.truth = 3 * i128::from(SECOND_NS);
            }
            now_ns = link.ping(&mut offset, now_ns + PING_NS);
            assert_eq!(
                offset.is_known(now_ns),
                !(0..11).contains(&round) && !(20..31).contains(&round)
            );
            let estimate = offset.at(now_ns).unwrap();
            let wrong = link.other(now_ns).abs_diff(estimate.of_theirs(now_ns));
            assert!(wrong <= estimate.error_ns + 1, "{round}: {wrong} > {estimate:?}");
        }
    }

    #[test]
    fn a_clock_that_is_slewed_has_not_jumped_and_the_error_contains_it() {
        for (ppm, step) in [(500, 0), (-500, 0), (0, 900_000), (0, -900_000)] {
            // Ways that hardly vary: their bounds are narrow, and miss each other after a small step.
            let mut link = Link::new(1, [(0, 9_000), (0, 9_000)], 0, 0);
            let (mut offset, mut now_ns) = (Offset::default(), SECOND_NS);
            let mut first: Option<(Estimate, u64, u64)> = None;
            for round in 0..200 {
                if round == 100 {
                    let before = i128::from(now_ns) * ppm / 1_000_000;
                    (link.ppm, link.truth) = (ppm, step - before);
                }
                let sent_ns = now_ns + PING_NS;
                let there_ns = link.arrive(0, sent_ns);
                now_ns = link.arrive(1, there_ns);
                let widened_ns = offset.add(sent_ns, link.other(there_ns), now_ns);
                let widened_ns = widened_ns.unwrap_or_else(|| panic!("{ppm}, {step}: {round}"));
                assert_eq!(widened_ns > 0, step != 0 && round == 100, "{ppm}, {step}: {round}");
                let estimate = offset.at(now_ns).unwrap();
                let wrong = link.other(now_ns).abs_diff(estimate.of_theirs(now_ns));
                assert!(wrong <= estimate.error_ns + 1, "{round}: {wrong} > {estimate:?}");
                // A start two seconds after the step, told before it.
                let start_ns = now_ns + 40 * PING_NS;
                if round == 99 {
                    let estimate = offset.at(start_ns).unwrap();
                    first = Some((estimate, start_ns, estimate.error_ns));
                }
                if let Some((estimate, start_ns, error_ns)) = &mut first {
                    *error_ns += widened_ns;
                    let wrong = link.other(*start_ns).abs_diff(estimate.of_theirs(*start_ns));
                    assert!(round == 99 || wrong <= *error_ns + 1, "{round}: {wrong} > {error_ns}");
                }
            }
        }
    }
}
