//! Every limit of the engine: name, unit, default, and why that value.

use std::time::Duration;

use crate::{Compression, SlowConsumer};

/// Bytes a worker reads from one socket by one call. One buffer per worker, none per connection.
pub const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Bytes kept in front of a read for what the last one left torn: at most a whole request head, or
/// what a paused connection had not yet taken.
pub(crate) const TAIL_BYTES_MAX: usize = READ_BUFFER_BYTES + 16 * 1024;
/// Bytes gathered for one socket before they are written in the middle of its read.
pub(crate) const CORK_BYTES: usize = 32 * 1024;
/// Frames at least this long are written from where they lie instead of being copied together.
pub(crate) const VECTORED_BYTES: usize = 8 * 1024;
/// Readiness reports handled in one turn.
pub(crate) const EVENTS_PER_TURN: usize = 512;
/// Connections accepted from one listener in one turn: a storm leaves room for those inside.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;
/// Bytes flushed to one slow socket in one turn.
pub(crate) const FLUSH_BYTES_PER_TURN: usize = 1024 * 1024;
/// Posts taken from the mailbox in one turn.
pub(crate) const POSTS_PER_TURN: usize = 1024;
/// How long a listener rests after the kernel had no descriptor or memory for a connection.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Emptied buffers a worker keeps for the next torn message, and the largest it keeps.
pub(crate) const POOLED_BUFFERS: usize = 8;
pub(crate) const POOLED_BUFFER_BYTES: usize = 64 * 1024;

/// The limits an operator sets, the same for every worker.
#[derive(Clone, Debug)]
pub struct Limits {
    /// What the protocols allow: head, headers, message bytes.
    pub wire: wire::Limits,
    /// Bytes that may wait for one slow reader. Default 1 MiB.
    pub send_queue_bytes: usize,
    /// What happens beyond that. Default: disconnect.
    pub slow_consumer: SlowConsumer,
    /// A connection silent for this long is closed; `None` never. Default 120 s.
    pub idle_timeout: Option<Duration>,
    /// Send pings at half the idle timeout, so that live peers stay. Default on.
    pub pings: bool,
    /// Time for the whole request head, or for the answer to our handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// Time for the peer to answer our close frame and end its stream. Default 5 s.
    pub close_timeout: Duration,
    /// Whether messages are compressed; a client offers it by its targets. Default off.
    pub compression: Compression,
    /// Messages shorter than this, in bytes, are sent as they are. Default 1 KiB.
    pub compress_above_bytes: usize,
    /// Bytes that may wait in one worker's mailbox. Default 8 MiB.
    pub mailbox_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            wire: wire::Limits::default(),
            send_queue_bytes: 1024 * 1024,
            slow_consumer: SlowConsumer::Disconnect,
            idle_timeout: Some(Duration::from_secs(120)),
            pings: true,
            handshake_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
            compression: Compression::Off,
            compress_above_bytes: 1024,
            mailbox_bytes: 8 * 1024 * 1024,
        }
    }
}
