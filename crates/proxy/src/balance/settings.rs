//! How a pool balances, and its limits, as plain data.

use std::time::Duration;

use super::errors::ErrorEjection;

/// A balancing method.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Balance {
    /// The less loaded of two, by open tunnels and weight. The default, because with long-lived
    /// sockets round robin drifts out of balance.
    #[default]
    LeastConnections,
    /// Weighted round robin.
    RoundRobin,
    /// Weighted random.
    Random,
    /// Weighted consistent hashing (rendezvous): the same key goes to the same upstream.
    Hash(HashBy),
}

/// The key of consistent hashing. A request without it goes to a random upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashBy {
    /// The client's address.
    Address,
    /// The path, without the query.
    Path,
    /// A header's value.
    Header(Box<str>),
    /// A cookie's value.
    Cookie(Box<str>),
}

/// Limits of a pool.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Time after which an upstream that comes up gets its full share.
    pub slow_start: Duration,
    /// Maximum number of requests that wait while every upstream is at its maximum.
    pub queue: u32,
    /// Maximum time in the queue.
    pub queue_timeout: Duration,
    /// If fewer upstreams than this percentage pass their health checks, requests go to all of them;
    /// 0 disables that. Backups do not count while another upstream passes.
    pub panic_threshold: u8,
    /// Ejection by the share of 5xx answers.
    pub error_ejection: ErrorEjection,
}

impl Default for PoolLimits {
    fn default() -> Self {
        let queue_timeout = Duration::from_secs(5);
        let error_ejection = ErrorEjection::default();
        let (slow_start, panic_threshold) = (Duration::ZERO, 1);
        PoolLimits { slow_start, queue: 0, queue_timeout, panic_threshold, error_ejection }
    }
}
