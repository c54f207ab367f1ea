//! [`MemoryTrim`]: decides when the allocator returns free memory to the system.
//!
//! Free blocks are best kept while a server stays as busy as it was. When many clients have
//! disconnected, or queues have emptied, the allocator's free lists hold memory that nobody will use
//! soon. A check reads a few counters; returning memory holds the lock of one arena after the other,
//! for the time of a few hundred `madvise` calls, and so is rare.

use std::time::Duration;

use engine::Remote;
use engine::sys::process::{now_ns, trim_allocator};

/// A peak of fewer connections leaves nothing worth returning.
const CONNECTIONS_MIN: u64 = 1_000;
/// A peak of fewer queued bytes leaves nothing worth returning.
const QUEUED_BYTES_MIN: u64 = 512 * 1024;
/// Shortest time between two returns because of emptied queues: slow readers fill and empty theirs
/// all the time.
const QUEUES_EVERY: Duration = Duration::from_secs(5);

/// Peaks since memory was last returned.
#[derive(Default)]
pub(crate) struct MemoryTrim {
    open: Peak,
    queued: Peak,
    /// No return because of emptied queues before this.
    queues_not_before_ns: u64,
}

impl MemoryTrim {
    /// Returns memory when connections or queued bytes have fallen below half of their peak.
    pub(crate) fn check<P>(&mut self, open: u64, remote: &Remote<P>) {
        let queued = remote.counters().map(|worker| worker.queued_bytes.get()).sum();
        if self.is_due(open, queued, now_ns()) {
            trim_allocator();
        }
    }

    fn is_due(&mut self, open: u64, queued: u64, now_ns: u64) -> bool {
        let disconnected = self.open.has_halved(open, CONNECTIONS_MIN);
        let too_soon = now_ns < self.queues_not_before_ns;
        let queued_min = if too_soon { u64::MAX } else { QUEUED_BYTES_MIN };
        let emptied = self.queued.has_halved(queued, queued_min);
        if emptied {
            self.queues_not_before_ns = now_ns + QUEUES_EVERY.as_nanos() as u64;
        }
        disconnected || emptied
    }
}

/// The highest value since the last reset.
#[derive(Default)]
struct Peak(u64);

impl Peak {
    /// Whether the peak was at least `min` and `now` is below half of it. The peak then restarts at
    /// `now`.
    fn has_halved(&mut self, now: u64, min: u64) -> bool {
        let halved = self.0 >= min && now < self.0 / 2;
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
        let open = [0, 900, 10, 5_000, 2_600, 2_400, 2_400, 1_300, 1_100, 900, 0];
        let due: Vec<bool> =
            (0..).zip(open).map(|(s, n)| memory_trim.is_due(n, 0, s * SECOND)).collect();
        let at: Vec<usize> = (0..due.len()).filter(|index| due[*index]).collect();
        assert_eq!(at, [5, 8, 10], "each time below half of the last peak");
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
            times(&mut memory_trim, 0..60, |s| (s % 2) * (QUEUED_BYTES_MIN - 1)),
            0,
            "too few bytes"
        );
        assert_eq!(
            times(&mut memory_trim, 60..120, |s| (s % 2) * 64 * QUEUED_BYTES_MIN),
            10,
            "once in five seconds"
        );
        let mut memory_trim = MemoryTrim::default();
        assert_eq!(
            times(&mut memory_trim, 0..60, |s| u64::from(s < 3) * 64 * QUEUED_BYTES_MIN),
            1,
            "once after the last peak"
        );
    }
}
