//! [`Backoff`]: pauses between attempts to connect, doubling, with full jitter, so that many nodes do not
//! come back at the same time.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{RETRY_FIRST, RETRY_LONGEST, STEADY};

/// The pauses of one connection.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Attempts in a row that failed.
    failures: u32,
    connected: Option<Instant>,
}

impl Backoff {
    /// The connection is there. If it lasts, the next pause is short.
    pub(crate) fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    /// The connection has lasted for this time. Returns whether the next pause is short.
    pub(crate) fn lasted(&mut self, time: Duration) -> bool {
        let is_steady = time >= STEADY;
        if is_steady {
            self.failures = 0;
        }
        is_steady
    }

    /// Waits before the next attempt.
    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.next_pause(random_share())).await;
    }

    /// The next pause, for a random number from 0 to 1.
    fn next_pause(&mut self, share: f64) -> Duration {
        if let Some(since) = self.connected.take() {
            self.lasted(since.elapsed());
        }
        let longest = RETRY_FIRST.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        longest.min(RETRY_LONGEST).mul_f64(share)
    }
}

/// A random number from 0 to 1.
fn random_share() -> f64 {
    random() as f64 / u64::MAX as f64
}

/// A number that differs from that of other processes and from earlier ones.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..100).map(|_| backoff.next_pause(1.0)).collect();
        assert_eq!(pauses[0], RETRY_FIRST);
        assert_eq!(pauses[1], 2 * RETRY_FIRST);
        assert_eq!(pauses[99], RETRY_LONGEST);
        backoff.connected();
        assert_eq!(backoff.next_pause(0.5), RETRY_LONGEST / 2, "it did not last");
        assert!(!backoff.lasted(STEADY / 2));
        assert_eq!(backoff.next_pause(1.0), RETRY_LONGEST);
        assert!(backoff.lasted(STEADY));
        assert_eq!(backoff.next_pause(1.0), RETRY_FIRST);
        assert!((0..1000).all(|_| (0.0..=1.0).contains(&random_share())));
    }
}
