//! [`Retries`]: retries of failed connects with exponential backoff and *full jitter* (see
//! "Exponential Backoff and Jitter" by AWS): a random wait below a bound that doubles with each
//! attempt, so that clients refused together do not reconnect together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// The retry policy of connects.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Attempts after the first; `u32::MAX` for no limit.
    pub attempts: u32,
    /// The bound of the first wait; it doubles with each attempt.
    pub base: Duration,
    /// The maximum of the bound.
    pub most: Duration,
    /// How the wait grows.
    pub growth: Growth,
    /// Whether WebSockets that ended are reopened too.
    pub reconnect: bool,
}

/// How waits grow.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Random below a bound that doubles.
    Doubling,
    /// As Rails' Action Cable client (`connection_monitor.js`): first `base` to twice that, then 1.15
    /// times longer with each attempt up to the tenth, plus up to 15 %.
    Cable,
}

impl Retry {
    /// No retries.
    pub const NONE: Retry = Retry {
        attempts: 0,
        base: Duration::ZERO,
        most: Duration::ZERO,
        growth: Growth::Doubling,
        reconnect: false,
    };

    /// The wait after failed attempt `attempt`, counted from 1. `random` is uniform over all of u64.
    pub(crate) fn wait_ns(&self, attempt: u32, random: u64) -> u64 {
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

/// Connects waiting for a retry.
#[derive(Debug)]
pub(crate) struct Retries {
    retry: Retry,
    /// Due time and number of earlier attempts.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Retries {
    pub(crate) fn new(retry: Retry) -> Retries {
        Retries { retry, waiting: BinaryHeap::new() }
    }

    /// Whether WebSockets that ended are reopened.
    pub(crate) fn reconnects(&self) -> bool {
        self.retry.reconnect
    }

    /// Whether another attempt is allowed after `attempts`.
    pub(crate) fn allows(&self, attempts: u32) -> bool {
        attempts <= self.retry.attempts
    }

    /// Schedules a retry after `attempts` failed attempts; false if no more are allowed.
    pub(crate) fn again(&mut self, attempts: u32, now_ns: u64, random: u64) -> bool {
        if !self.allows(attempts) {
            return false;
        }
        let due_ns = now_ns.saturating_add(self.retry.wait_ns(attempts, random));
        self.waiting.push(Reverse((due_ns, attempts)));
        true
    }

    /// Schedules a first attempt for now.
    pub(crate) fn at_once(&mut self, now_ns: u64) {
        self.at(now_ns, 0);
    }

    /// Schedules an attempt at a given time, because the last one could not be made.
    pub(crate) fn at(&mut self, due_ns: u64, attempts: u32) {
        self.waiting.push(Reverse((due_ns, attempts)));
    }

    /// Takes the next connect that is due; returns its number of earlier attempts.
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

    /// Drops all waiting connects and disables retries.
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
    fn bound_doubles_up_to_its_maximum_and_the_wait_is_below() {
        for (attempt, most_ms) in [(1, 100), (2, 200), (4, 800), (5, 1_000), (u32::MAX, 1_000)] {
            assert_eq!(RETRY.wait_ns(attempt, 0), 0);
            assert_eq!(RETRY.wait_ns(attempt, u64::MAX), most_ms * 1_000_000 - 1);
            assert_eq!(RETRY.wait_ns(attempt, 1 << 63), most_ms * 500_000);
        }
    }

    #[test]
    fn cable_clients_wait_as_rails_does() {
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
    fn immediate_connects_precede_waiting_ones() {
        let mut retries = Retries::new(RETRY);
        assert!(retries.again(1, 0, u64::MAX));
        retries.at_once(5);
        assert_eq!((retries.due_ns(), retries.next_due(5)), (Some(5), Some(0)));
        assert_eq!(retries.next_due(5), None);
    }

    #[test]
    fn earliest_retry_is_next_and_attempts_are_limited() {
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
