//! [`Sweep`]: visits every slot once per period, a few at a time, so that a million slots are never
//! visited at once. It returns the slots that are due; the caller handles them.

use std::ops::Range;
use std::time::Duration;

/// The minimum and maximum interval between calls while slots are left.
const TICK_MIN_NS: u64 = 10_000_000;
const TICK_MAX_NS: u64 = 100_000_000;

/// Repeated rounds over the slots of a worker.
#[derive(Debug)]
pub(crate) struct Sweep {
    round_began_ns: u64,
    period_ns: u64,
    /// The part of the period for visits; the rest is for answers.
    span_ns: u64,
    cursor: u32,
}

impl Sweep {
    /// Rounds of `period`, starting now, with the visits in the first `eighths` of it.
    pub(crate) fn new(now_ns: u64, period: Duration, eighths: u64) -> Sweep {
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(8);
        let span_ns = period_ns / 8 * eighths.clamp(1, 8);
        Sweep { round_began_ns: now_ns, period_ns, span_ns, cursor: 0 }
    }

    /// The slots to visit now, at most `most`, of `slots` in total.
    pub(crate) fn due(&mut self, now_ns: u64, slots: u32, most: u32) -> Range<u32> {
        let elapsed = now_ns.saturating_sub(self.round_began_ns);
        let share = u128::from(slots) * u128::from(elapsed.min(self.span_ns));
        let until = (share / u128::from(self.span_ns)) as u32;
        let from = self.cursor.min(until);
        let to = until.min(from.saturating_add(most));
        self.cursor = to.max(self.cursor);
        if elapsed >= self.period_ns && self.cursor >= slots {
            // Rounds missed during a long delay are skipped: one visit each is enough.
            self.round_began_ns += elapsed / self.period_ns * self.period_ns;
            self.cursor = 0;
        }
        from..to
    }

    /// When to call [`Sweep::due`] next, for `slots` slots.
    pub(crate) fn next_ns(&self, now_ns: u64, slots: u32) -> u64 {
        if self.cursor >= slots {
            return (self.round_began_ns + self.period_ns).max(now_ns + TICK_MIN_NS);
        }
        now_ns + (self.span_ns / u64::from(slots.max(1))).clamp(TICK_MIN_NS, TICK_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_visits_every_slot_once_and_early() {
        let mut sweep = Sweep::new(1_000, Duration::from_secs(30), 7);
        let slots = 10_007;
        let mut visits = vec![0; slots as usize];
        let mut now = 1_000;
        while now < 1_000 + 26_300_000_000 {
            for slot in sweep.due(now, slots, 256) {
                visits[slot as usize] += 1;
            }
            now = sweep.next_ns(now, slots);
        }
        assert!(visits.iter().all(|&n| n == 1), "all within seven eighths of the period");
        assert!(sweep.due(29_000_000_000, slots, 256).is_empty(), "and none again before its end");
        assert_eq!(sweep.next_ns(29_000_000_000, slots), 30_000_001_000);
    }

    #[test]
    fn late_caller_gets_batches_and_no_slot_twice() {
        let mut sweep = Sweep::new(0, Duration::from_secs(1), 8);
        let late = 5_500_000_000;
        assert_eq!(sweep.due(late, 1_000, 600), 0..600);
        assert_eq!(sweep.due(late, 1_000, 600), 600..1_000);
        assert_eq!(sweep.due(late, 1_000, 600), 0..500, "the round that is under way now");
    }

    #[test]
    fn slots_added_during_a_round_are_visited_in_it() {
        let mut sweep = Sweep::new(0, Duration::from_secs(8), 8);
        assert_eq!(sweep.due(4_000_000_000, 100, 1_000), 0..50);
        assert_eq!(sweep.due(4_000_000_000, 1_000, 1_000), 50..500);
        assert_eq!(sweep.due(6_000_000_000, 10, 1_000), 7..7, "fewer slots than already visited");
    }
}
