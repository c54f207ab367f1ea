//! [`Offset`]: how far another machine's clock is from ours, by round trips.

use std::collections::VecDeque;

/// The round trips that count: the latest ones.
const ROUND_TRIPS: usize = 16;
/// The most by which one clock runs faster than another, in parts per million. Crystals are within 100.
const DRIFT_PPM: i128 = 200;

/// The round trips to a machine. Its clock was read after we sent and before we received, however long each way
/// took, so each round trip has bounds of the offset.
#[derive(Clone, Default, Debug)]
pub(super) struct Offset {
    latest: VecDeque<RoundTrip>,
}

#[derive(Copy, Clone, Debug)]
struct RoundTrip {
    least: i128,
    most: i128,
    received_ns: u64,
}

/// An offset in nanoseconds, to be added to our time, and by how much it may be wrong.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Estimate {
    middle: i128,
    pub(super) error_ns: u64,
}

impl Offset {
    /// Adds a round trip: our times when it was sent and received, and the time of the other clock between.
    pub(super) fn add(&mut self, sent_ns: u64, other_ns: u64, received_ns: u64) {
        let other = i128::from(other_ns);
        let (least, most) = (other - i128::from(received_ns), other - i128::from(sent_ns));
        if self.latest.len() >= ROUND_TRIPS {
            self.latest.pop_front();
        }
        self.latest.push_back(RoundTrip { least, most, received_ns });
    }

    /// The number of round trips that count.
    pub(super) fn round_trips(&self) -> usize {
        self.latest.len()
    }

    /// The offset at a time of ours. `None` without round trips, or if they contradict each other: a clock has
    /// jumped.
    pub(super) fn at(&self, ours_ns: u64) -> Option<Estimate> {
        let bounds = self.latest.iter().map(|trip| {
            // Since then the clocks may have drifted apart.
            let drift = i128::from(ours_ns.abs_diff(trip.received_ns)) * DRIFT_PPM / 1_000_000;
            (trip.least - drift, trip.most + drift)
        });
        let narrower = |(a, b): (i128, i128), (c, d): (i128, i128)| (a.max(c), b.min(d));
        let (least, most) = bounds.reduce(narrower).filter(|(least, most)| least <= most)?;
        let error_ns = u64::try_from((most - least + 1) / 2).ok()?;
        Some(Estimate { middle: least + (most - least) / 2, error_ns })
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

    struct Link {
        random: u64,
        /// The longest way there and back in nanoseconds.
        most_ns: [u64; 2],
        truth: i128,
        ppm: i128,
    }

    impl Link {
        /// The time of the other clock at one of ours.
        fn other(&self, ours_ns: u64) -> u64 {
            let ours = i128::from(ours_ns);
            u64::try_from(ours + self.truth + ours * self.ppm / 1_000_000).unwrap()
        }

        fn round_trip(&mut self, sent_ns: u64) -> (u64, u64, u64) {
            let [there, back] = self.most_ns.map(|most_ns| {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                20_000 + (self.random >> 33) % most_ns
            });
            (sent_ns, self.other(sent_ns + there), sent_ns + there + back)
        }
    }

    #[test]
    fn the_error_contains_the_true_offset_whatever_each_way_takes() {
        for (seed, truth) in [-10, -3, 0, 7, 10].into_iter().enumerate() {
            for ppm in [-100, 0, 100] {
                for most_ns in [[1_000, 1_000], [50_000_000, 1_000], [9_000_000, 50_000_000]] {
                    let truth = truth * i128::from(SECOND_NS);
                    let mut link = Link { random: seed as u64, most_ns, truth, ppm };
                    let mut offset = Offset::default();
                    for round in 0..40_u64 {
                        let (sent, other, received) =
                            link.round_trip(20 * SECOND_NS + round * SECOND_NS / 10);
                        offset.add(sent, other, received);
                        // The start is some seconds after the last round trip.
                        let start = received + 2 * SECOND_NS;
                        let estimate = offset.at(start).unwrap();
                        let wrong = link.other(start).abs_diff(estimate.of_theirs(start));
                        assert!(wrong <= estimate.error_ns + 1, "{wrong} > {estimate:?}");
                    }
                    let error_ns = offset.at(24 * SECOND_NS).unwrap().error_ns;
                    assert!(error_ns < 30_000_000 && offset.round_trips() == ROUND_TRIPS);
                }
            }
        }
    }

    #[test]
    fn a_clock_that_jumps_has_no_offset_until_the_round_trips_before_are_gone() {
        let mut link = Link { random: 1, most_ns: [90_000, 90_000], truth: 0, ppm: 0 };
        let mut offset = Offset::default();
        assert_eq!(offset.at(0), None);
        for round in 0..60_u64 {
            if round == 20 {
                link.truth = 3 * i128::from(SECOND_NS);
            }
            let now = SECOND_NS + round * SECOND_NS / 10;
            let (sent, other, received) = link.round_trip(now);
            offset.add(sent, other, received);
            let known = offset.at(now).is_some();
            assert_eq!(known, !(20..35).contains(&round), "{round}");
        }
    }
}
