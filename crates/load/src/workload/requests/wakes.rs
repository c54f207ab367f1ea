//! [`WakePacing`]: how long a worker sleeps so that it finds several answers at a wake.
//!
//! A server that sends the answers to several streams of a connection one by one wakes its client for each. That costs
//! more than handling the answer, and the next request then reaches the server alone. The sleep is small beside the
//! latency, which in a closed loop is the number of requests in flight divided by their throughput (Little's law).

use std::time::Duration;

/// Between two looks at the latency.
const STEP: Duration = Duration::from_millis(1);
/// The longest sleep; longer ones save little more.
const SLEEP_MAX_NS: u64 = 20_000;
/// A shorter sleep costs what it saves.
const SLEEP_MIN_NS: u64 = 8_000;
/// A sleep is at most this part of the mean latency.
const PARTS_OF_LATENCY: u64 = 64;

#[derive(Default, Debug)]
pub(crate) struct WakePacing {
    /// Answers so far.
    pub(crate) answers: u64,
    /// When that was looked at, and how many there were.
    last: (u64, u64),
}

impl WakePacing {
    /// A new length of sleeps, in nanoseconds, once a step has passed; 0 for none.
    #[inline]
    pub(crate) fn look(&mut self, now_ns: u64, in_flight: usize) -> Option<u32> {
        let step_ns = now_ns.saturating_sub(self.last.0);
        if step_ns < STEP.as_nanos() as u64 {
            return None;
        }
        let (_, before) = std::mem::replace(&mut self.last, (now_ns, self.answers));
        Some(sleep_ns(in_flight as u64, step_ns, self.answers - before))
    }
}

fn sleep_ns(in_flight: u64, step_ns: u64, answers: u64) -> u32 {
    let latency_ns = in_flight.saturating_mul(step_ns).checked_div(answers).unwrap_or(0);
    let sleep_ns = (latency_ns / PARTS_OF_LATENCY).min(SLEEP_MAX_NS);
    if sleep_ns < SLEEP_MIN_NS { 0 } else { sleep_ns as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_a_small_part_of_the_latency() {
        // 100 requests in flight and 100 answers a millisecond: 1 ms each.
        assert_eq!(sleep_ns(100, 1_000_000, 100), 15_625);
        assert_eq!(sleep_ns(100, 1_000_000, 10), 20_000);
        assert_eq!(sleep_ns(2, 1_000_000, 100), 0, "answered within 20 us");
        assert_eq!(sleep_ns(100, 1_000_000, 0), 0, "nothing is known");
        assert_eq!(sleep_ns(0, 1_000_000, 10), 0);
    }

    #[test]
    fn looks_once_a_millisecond() {
        let mut pacing = WakePacing::default();
        assert_eq!(pacing.look(5_000_000, 100), Some(0));
        pacing.answers += 50;
        assert_eq!(pacing.look(5_999_999, 100), None);
        assert_eq!(pacing.look(6_000_000, 50), Some(15_625));
    }
}
