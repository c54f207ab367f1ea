//! Every limit of the engine: name, unit, default, and why that value.

use std::time::Duration;

use crate::{AdmissionLimits, Compression, Proxies, SlowConsumer};

/// Bytes a worker reads from one socket by one call. One buffer per worker, none per connection.
pub const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Bytes kept in front of a read for what the last one left torn: at most a whole request head, or
/// what a paused connection had not yet taken.
pub(crate) const TAIL_BYTES_MAX: usize = READ_BUFFER_BYTES + 16 * 1024;
/// Bytes gathered for one socket before they are written in the middle of its read.
pub(crate) const CORK_BYTES: usize = 32 * 1024;
/// Frames at least this long are written from where they lie instead of being copied together.
pub(crate) const VECTORED_BYTES: usize = 8 * 1024;
/// Steps of TLS handshakes that cost cryptography carried out in one turn: a storm of handshakes
/// leaves room for those inside. The rest are reported again in the next turn.
pub(crate) const TLS_HANDSHAKES_PER_TURN: usize = 16;
/// Of those steps, after how many no further connection is accepted in a turn. A handshake takes two
/// to four of them: were all spent on the first, those that came in a storm would wait in flight
/// until they had to give way to those behind them.
pub(crate) const TLS_ARRIVALS_PER_TURN: usize = TLS_HANDSHAKES_PER_TURN / 4;
/// Ciphertext kept of one connection because it is not whole: a record is at most 18 KiB
/// (RFC 5246 section 6.2.3), a chain of certificates in a handshake may be longer.
pub(crate) const TLS_TORN_BYTES_MAX: usize = 32 * 1024;
/// Readiness reports handled in one turn.
pub(crate) const EVENTS_PER_TURN: usize = 512;
/// Connections accepted from one listener in one turn: a storm leaves room for those inside.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;
/// Bytes flushed to one slow socket in one turn.
pub(crate) const FLUSH_BYTES_PER_TURN: usize = 1024 * 1024;
/// What a message under way has to grow by in the time of the idle timeout, or its peer is closed
/// however lively it is. With the defaults 9 bytes a second are enough.
pub(crate) const MESSAGE_GROWS_BYTES: usize = 1024;
/// Posts taken from the mailbox in one turn.
pub(crate) const POSTS_PER_TURN: usize = 1024;
/// How long a listener rests after the kernel had no descriptor or memory for a connection.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Emptied buffers a worker keeps for the next torn message, and the largest it keeps.
pub(crate) const POOLED_BUFFERS: usize = 8;
pub(crate) const POOLED_BUFFER_BYTES: usize = 64 * 1024;

/// Addresses kept for the limits per address, in the process: some 60 bytes each. Of those beyond
/// it new ones are let in and not counted.
pub(crate) const ADDRESSES_MAX: usize = 1 << 20;
/// What a client that is turned away is told to wait: at random between these, in whole seconds.
pub(crate) const RETRY_AFTER: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(10));
/// Deadlines looked at to find the oldest handshake in flight.
pub(crate) const EVICTION_LOOKS: usize = 256;
/// Of its connections a worker that is short of memory sheds one of so many a round, within bounds,
/// and looks at so many slots to find them.
pub(crate) const SHED_SHARE: u32 = 64;
pub(crate) const SHED_MIN: u32 = 8;
pub(crate) const SHED_MAX: u32 = 1024;
pub(crate) const SHED_LOOKS: u32 = 16 * 1024;

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
    /// Time for the whole request head, for a body that was asked for, or for the answer to our handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// A client that was answered and asks nothing more for this long is closed; told apart by the
    /// time for a head, which it may last longer. Default 75 s.
    pub keep_alive_timeout: Duration,
    /// Time for the peer to answer our close frame and end its stream. Default 5 s.
    pub close_timeout: Duration,
    /// After the time of a drain, how long what a handler holds may still go on. Default 30 s.
    pub drain_grace: Duration,
    /// Whether messages are compressed; a client offers it by its targets. Default off.
    pub compression: Compression,
    /// Messages shorter than this, in bytes, are sent as they are. Default 1 KiB.
    pub compress_above_bytes: usize,
    /// Bytes of request bodies that one worker holds while they are not whole. Default 16 MiB.
    pub bodies_bytes: usize,
    /// Bytes that may wait in one worker's mailbox. Default 8 MiB.
    pub mailbox_bytes: usize,
    /// A peer that does not acknowledge what we send, or that we are there, for this long is dead;
    /// `None` leaves it to the system. Of what [`crate::Core::connect_raw`] opens; a listener has its
    /// own. Default `None`.
    pub peer_timeout: Option<Duration>,
    /// Who may come in.
    pub admission: AdmissionLimits,
    /// Whose word on a client's address is taken. Default: nobody's.
    pub proxies: Proxies,
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
            keep_alive_timeout: Duration::from_secs(75),
            close_timeout: Duration::from_secs(5),
            drain_grace: Duration::from_secs(30),
            compression: Compression::Off,
            compress_above_bytes: 1024,
            bodies_bytes: 16 * 1024 * 1024,
            mailbox_bytes: 8 * 1024 * 1024,
            peer_timeout: None,
            admission: AdmissionLimits::default(),
            proxies: Proxies::default(),
        }
    }
}
