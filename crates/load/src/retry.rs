//! [`Retries`]: connects that failed are tried again, as real clients do: after a random time
//! between nothing and a bound that doubles with each attempt (*full jitter*, as the article
//! "Exponential Backoff and Jitter" of AWS has it), so that a crowd that was refused together does
//! not come back together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Which connects are tried again, and when.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Attempts after the first; `u32::MAX` for ever.
    pub attempts: u32,
    /// The bound of the first wait; it doubles with each attempt.
    pub base: Duration,
    /// What the bound does not exceed.
    pub most: Duration,
    /// How it grows.
    pub growth: Growth,
    /// Whether a WebSocket that ended is opened again too.
    pub reconnect: bool,
}

/// How waits grow.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Anywhere below a bound that doubles.
    Doubling,
    /// As Rails' client for Action Cable waits (`connection_monitor.js`): the first bound to twice
    /// that; then 1.15 times longer with each attempt up to the tenth, and up to 15 % more.
    Cable,
}

impl Retry {
    /// None.
    pub const NONE: Retry = Retry {
        attempts: 0,
        base: Duration::ZERO,
        most: Duration::ZERO,
        growth: Growth::Doubling,
        reconnect: false,
    };

    /// How long to wait after `attempt` attempts have failed, of which the first is 1. `random` is
    /// any number.
    fn wait_ns(&self, attempt: u32, random: u64) -> u64 {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if self.growth == Growth::Cable {
            let jitter = if attempt <= 1 { 1.0 } else { 0.15 };
            let grown = 1.15_f64.powi(attempt.saturating_sub(1).min(10) as i32);
            let wait =
                self.base.as_secs_f64() * grown * (1.0 + jitter * (random as f64 / 2f64.powi(64)));
            return (wait * 1e9) as u64;
        }
        let doubled = nanoseconds(self.base).saturating_mul(1 << attempt.saturating_sub(1).min(40));
        let bound = doubled.min(nanoseconds(self.most));
        ((u128::from(random) * u128::from(bound)) >> 64) as u64
    }
}

/// Connects that wait for their next attempt.
#[derive(Debug)]
pub(crate) struct Retries {
    retry: Retry,
    /// When, and how many attempts went before.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Retries {
    pub(crate) fn new(retry: Retry) -> Retries {
        Retries { retry, waiting: BinaryHeap::new() }
    }

    /// Whether a WebSocket that ended is to be opened again.
    pub(crate) fn reconnects(&self) -> bool {
        self.retry.reconnect
    }

    /// Whether another attempt follows after so many.
    pub(crate) fn allows(&self, attempts: u32) -> bool {
        attempts <= self.retry.attempts
    }

    /// A connect has failed after so many attempts. False when that was the last.
    pub(crate) fn again(&mut self, attempts: u32, now_ns: u64, random: u64) -> bool {
        if !self.allows(attempts) {
            return false;
        }
        let due_ns = now_ns.saturating_add(self.retry.wait_ns(attempts, random));
        self.waiting.push(Reverse((due_ns, attempts)));
        true
    }

    /// A connect that is to be made at once, for the first time.
    pub(crate) fn at_once(&mut self, now_ns: u64) {
        self.at(now_ns, 0);
    }

    /// A connect after so many attempts that is to be made then: it could not even be tried.
    pub(crate) fn at(&mut self, due_ns: u64, attempts: u32) {
        self.waiting.push(Reverse((due_ns, attempts)));
    }

    /// The attempts made by the next that is due.
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<u32> {
        let &Reverse((due_ns, attempts)) = self.waiting.peek()?;
        (due_ns <= now_ns).then(|| {
            self.waiting.pop();
            attempts
        })
    }

    /// When the next is due.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((due_ns, _))| *due_ns)
    }

    /// Gives up what waits.
    pub(crate) fn stop(&mut self) {
        self.retry = Retry::NONE;
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry {
        attempts: 5,
        base: Duration::from_millis(100),
        most: Duration::from_secs(1),
        growth: Growth::Doubling,
        reconnect: false,
    };

    #[test]
    fn the_bound_doubles_up_to_its_most_and_the_wait_is_anywhere_below() {
        for (attempt, most_ms) in [(1, 100), (2, 200), (4, 800), (5, 1_000), (u32::MAX, 1_000)] {
            assert_eq!(RETRY.wait_ns(attempt, 0), 0);
            assert_eq!(RETRY.wait_ns(attempt, u64::MAX), most_ms * 1_000_000 - 1);
            assert_eq!(RETRY.wait_ns(attempt, 1 << 63), most_ms * 500_000);
        }
    }

    #[test]
    fn cable_clients_wait_between_their_stale_time_and_twice_that_and_then_longer() {
        let base = Duration::from_secs(6);
        let cable = Retry { base, growth: Growth::Cable, ..RETRY };
        let wait = |attempt, random| cable.wait_ns(attempt, random) as f64 / 1e9;
        for (attempt, least, most) in
            [(1, 6.0, 12.0), (2, 6.9, 7.935), (11, 24.273, 27.914), (u32::MAX, 24.273, 27.914)]
        {
            assert!((wait(attempt, 0) - least).abs() < 1e-3, "{attempt}");
            assert!((wait(attempt, u64::MAX) - most).abs() < 1e-3, "{attempt}");
        }
    }

    #[test]
    fn what_is_to_be_at_once_goes_before_what_waits() {
        let mut retries = Retries::new(RETRY);
        assert!(retries.again(1, 0, u64::MAX));
        retries.at_once(5);
        assert_eq!((retries.due_ns(), retries.next_due(5)), (Some(5), Some(0)));
        assert_eq!(retries.next_due(5), None);
    }

    #[test]
    fn the_earliest_is_next_and_after_the_last_attempt_it_is_over() {
        let mut retries = Retries::new(RETRY);
        assert!(retries.again(3, 0, u64::MAX) && retries.again(1, 0, u64::MAX));
        assert!(!retries.again(6, 0, 0));
        assert_eq!(retries.next_due(50_000_000), None);
        assert_eq!(retries.next_due(100_000_000), Some(1));
        assert_eq!(retries.due_ns(), Some(400_000_000 - 1));
        assert_eq!(retries.next_due(400_000_000), Some(3));
        assert_eq!(retries.due_ns(), None);
    }
}
