//! Limits of connections to brokers, with their units.

use std::time::Duration;

/// Time to connect, with TLS and authentication.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the pings that find connections that swallow everything.
pub const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time for the answer to a ping or to a batch; then the connection is closed.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause before the next attempt to connect. It doubles from [`RETRY_FIRST`], with full jitter.
pub const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Longest first pause.
pub const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Channels in one command to subscribe or unsubscribe.
pub const BATCH_CHANNELS: usize = 512;
/// Channels that nobody wants any more and that are not unsubscribed yet. With more the oldest go early.
pub const LINGERING_MAX: usize = 64 * 1024;
