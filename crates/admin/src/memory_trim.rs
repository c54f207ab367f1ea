//! [`MemoryTrim`]: decides when the allocator returns free memory to the system.
//!
//! Free blocks are best kept while a server stays as busy as it was. When many clients have
//! disconnected, or queues have emptied, the allocator's free lists hold memory that nobody will use
//! soon. A check reads a few counters; returning memory holds the lock of one arena after the other,
//! for the time of a few hundred `madvise` calls, and so is rare.

use std::time::Duration;

use engine::Remote;
use engine::sys::process::now_ns;

/// After a peak of more connections memory is returned at once, otherwise as rarely as because of
/// emptied queues.
const CONNECTIONS_MANY: u64 = 1_000;
/// A peak of fewer held bytes leaves nothing worth returning.
const HELD_BYTES_MIN: u64 = 512 * 1024;
/// Shortest time between two returns because of emptied queues or few connections: slow readers fill
/// and empty theirs all the time.
const RARELY_EVERY: Duration = Duration::from_secs(5);

/// Memory that a program holds for its clients, in bytes.
#[derive(Copy, Clone, Default, Debug)]
pub struct Held {
    /// Now.
    pub now: u64,
    /// All that it held and has freed: what comes and goes between two checks is in no other figure.
    pub freed_total: u64,
}

/// Peaks since memory was last returned.
#[derive(Default)]
pub(crate) struct MemoryTrim {
    open: Peak,
    held: Peak,
    /// [`Held::freed_total`] at the last check.
    freed_total: u64,
    /// No return before this, except after many connections.
    rarely_not_before_ns: u64,
}

impl MemoryTrim {
    /// Returns memory when connections, or bytes in queues and held otherwise, have fallen below
    /// half of their peak.
    pub(crate) fn check<P>(&mut self, open: u64, held: Held, remote: &Remote<P>) {
        let queued: u64 = remote.counters().map(|worker| worker.queued_bytes.get()).sum();
        self.note_freed(held);
        if self.is_due(open, queued + held.now, now_ns()) {
            remote.trim_memory();
        }
    }

    /// Counts what was freed since the last check as if it had been held at one time.
    fn note_freed(&mut self, held: Held) {
        let freed = held.freed_total - std::mem::replace(&mut self.freed_total, held.freed_total);
        self.held.0 = self.held.0.max(held.now + freed);
    }

    fn is_due(&mut self, open: u64, held: u64, now_ns: u64) -> bool {
        let too_soon = now_ns < self.rarely_not_before_ns;
        let at_least = |min| if too_soon { u64::MAX } else { min };
        let many_left = self.open.has_halved(open, CONNECTIONS_MANY);
        let few_left = self.open.has_halved(open, at_least(1));
        let emptied = self.held.has_halved(held, at_least(HELD_BYTES_MIN));
        if few_left || emptied {
            self.rarely_not_before_ns = now_ns + RARELY_EVERY.as_nanos() as u64;
        }
        many_left || few_left || emptied
    }
}

/// The highest value since the last reset.
#[derive(Default)]
struct Peak(u64);

impl Peak {
    /// Whether the peak was at least `min` and `now` is below half of it. The peak then restarts at
    /// `now`.
    fn has_halved(&mut self, now: u64, min: u64) -> bool {
        let halved = self.0 >= min && now.saturating_mul(2) < self.0;
        self.0 = if halved { now } else { self.0.max(now) };
        halved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn memory_is_returned_each_time_connections_halve() {
        let mut memory_trim = MemoryTrim::default();
        let mut at = |from: u64, open: &[u64]| {
            let due = |(s, n): &(u64, &u64)| memory_trim.is_due(**n, 0, s * SECOND);
            (from..).zip(open).filter(due).map(|(s, _)| s).collect::<Vec<u64>>()
        };
        let open = [5_000, 2_600, 2_400, 2_400, 1_300, 1_100, 900, 2_000, 0];
        assert_eq!(at(10, &open), [12, 15, 18], "each time below half of the last peak");
        let open = [9, 5, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0];
        assert_eq!(at(100, &open), [102, 107, 112], "however few they were, but not every second");
    }

    #[test]
    fn memory_is_returned_when_queues_empty_at_most_every_five_seconds() {
        let mut memory_trim = MemoryTrim::default();
        let times = |memory_trim: &mut MemoryTrim,
                     seconds: std::ops::Range<u64>,
                     queued: fn(u64) -> u64| {
            seconds.filter(|s| memory_trim.is_due(100, queued(*s), s * SECOND)).count()
        };
        assert_eq!(
            times(&mut memory_trim, 0..60, |s| (s % 2) * (HELD_BYTES_MIN - 1)),
            0,
            "too few bytes"
        );
        assert_eq!(
            times(&mut memory_trim, 60..120, |s| (s % 2) * 64 * HELD_BYTES_MIN),
            10,
            "once in five seconds"
        );
        let mut memory_trim = MemoryTrim::default();
        assert_eq!(
            times(&mut memory_trim, 0..60, |s| u64::from(s < 3) * 64 * HELD_BYTES_MIN),
            1,
            "once after the last peak"
        );
    }

    #[test]
    fn memory_that_came_and_went_between_two_checks_is_returned() {
        let mut memory_trim = MemoryTrim::default();
        assert!(!memory_trim.is_due(20, 0, 100 * SECOND));
        memory_trim.note_freed(Held { now: 10, freed_total: HELD_BYTES_MIN - 20 });
        assert!(!memory_trim.is_due(20, 10, 101 * SECOND), "too few bytes");
        memory_trim.note_freed(Held { now: 10, freed_total: 2 * HELD_BYTES_MIN });
        assert!(memory_trim.is_due(20, 10, 102 * SECOND));
        memory_trim.note_freed(Held { now: 10, freed_total: 2 * HELD_BYTES_MIN });
        assert!(!memory_trim.is_due(20, 10, 110 * SECOND), "it is returned already");
    }
}
