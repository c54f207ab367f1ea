//! [`MemoryTrim`]: decides when the allocator returns free memory to the system.
//!
//! Free blocks are best kept while a server stays as busy as it was. When many clients have
//! disconnected, or queues have emptied, the allocator's free lists hold memory that nobody will use
//! soon. A check reads a few counters; returning memory holds the lock of one arena after the other,
//! for the time of a few hundred `madvise` calls, and so is rare.

use std::time::Duration;

use engine::Remote;
use engine::sys::process::{now_ns, trim_allocator};

/// Fewer connections than this leave nothing worth returning.
const CROWD: u64 = 1_000;
/// Fewer bytes than this that waited in queues leave nothing worth returning.
const QUEUED: u64 = 512 * 1024;
/// How often it is returned at most because queues have emptied: those of slow readers come and go.
const QUEUES_EVERY: Duration = Duration::from_secs(5);

/// Peaks since memory was last returned.
#[derive(Default)]
pub(crate) struct Spare {
    crowd: Most,
    queued: Most,
    /// Not again for queues before this.
    rests_until_ns: u64,
}

impl Spare {
    /// Returns memory when much of what was held has been let go of.
    pub(crate) fn look<P>(&mut self, open: u64, remote: &Remote<P>) {
        let queued = remote.counters().map(|worker| worker.queued_bytes.get()).sum();
        if self.is_due(open, queued, now_ns()) {
            trim_allocator();
        }
    }

    fn is_due(&mut self, open: u64, queued: u64, now_ns: u64) -> bool {
        let left = self.crowd.has_gone(open, CROWD);
        let rests = now_ns < self.rests_until_ns;
        let emptied = self.queued.has_gone(queued, if rests { u64::MAX } else { QUEUED });
        if emptied {
            self.rests_until_ns = now_ns + QUEUES_EVERY.as_nanos() as u64;
        }
        left || emptied
    }
}

/// The highest value since the last reset.
#[derive(Default)]
struct Most(u64);

impl Most {
    /// Whether there were `many` and less than half of the most is left; it then counts from there.
    fn has_gone(&mut self, now: u64, many: u64) -> bool {
        let gone = self.0 >= many && now < self.0 / 2;
        self.0 = if gone { now } else { self.0.max(now) };
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn memory_is_returned_once_when_a_crowd_has_left() {
        let mut spare = Spare::default();
        let open = [0, 900, 10, 5_000, 2_600, 2_400, 2_400, 1_300, 1_100, 900, 0];
        let due: Vec<bool> = (0..).zip(open).map(|(s, n)| spare.is_due(n, 0, s * SECOND)).collect();
        let at: Vec<usize> = (0..due.len()).filter(|index| due[*index]).collect();
        assert_eq!(at, [5, 8, 10], "each time half of those counted from are gone");
    }

    #[test]
    fn memory_is_returned_when_queues_have_emptied_but_not_for_each_that_does() {
        let mut spare = Spare::default();
        let times = |spare: &mut Spare, seconds: std::ops::Range<u64>, queued: fn(u64) -> u64| {
            seconds.filter(|s| spare.is_due(100, queued(*s), s * SECOND)).count()
        };
        assert_eq!(times(&mut spare, 0..60, |s| (s % 2) * (QUEUED - 1)), 0, "too few to matter");
        assert_eq!(
            times(&mut spare, 60..120, |s| (s % 2) * 64 * QUEUED),
            10,
            "once in five seconds"
        );
        let mut spare = Spare::default();
        assert_eq!(
            times(&mut spare, 0..60, |s| u64::from(s < 3) * 64 * QUEUED),
            1,
            "and then rests"
        );
    }
}
