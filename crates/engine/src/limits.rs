//! Every limit of the engine: name, unit, default, and the reason for the value.

use std::time::Duration;

use crate::{AdmissionLimits, ClassLimits, Compression, Proxies, SlowConsumer};

/// Bytes that a worker reads from a socket in one call. One buffer per worker, none per connection.
pub const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Full reads that the buffer has room for where sockets are read together: 32 of 4 KiB and one of the largest.
pub(crate) const READS_OF_SOCKETS: usize = 3;
/// Bytes kept in front of a read for the tail of the last one: at most a complete request head, or
/// what a paused connection has not consumed.
pub(crate) const TAIL_BYTES_MAX: usize = READ_BUFFER_BYTES + 16 * 1024;
/// Bytes collected for one socket before they are written in the middle of its read.
pub(crate) const CORK_BYTES: usize = 32 * 1024;
/// Frames at least this long are written in place instead of being copied together.
pub(crate) const VECTORED_BYTES: usize = 8 * 1024;
/// TLS handshake steps with cryptography per turn: a storm of handshakes leaves time for open
/// connections. The rest are reported again in the next turn.
pub(crate) const TLS_HANDSHAKES_PER_TURN: usize = 16;
/// After this many of those steps no further connection is accepted in the turn. A handshake takes
/// two to four of them: if all were spent on the first step, the handshakes of a storm would stay
/// in flight until they are evicted for later ones.
pub(crate) const TLS_ARRIVALS_PER_TURN: usize = TLS_HANDSHAKES_PER_TURN / 4;
/// Incomplete ciphertext kept per connection: a record is at most 18 KiB (RFC 5246 section 6.2.3),
/// a chain of certificates in a handshake can be longer.
pub(crate) const TLS_PARTIAL_BYTES_MAX: usize = 32 * 1024;
/// Readiness events handled per turn.
pub(crate) const EVENTS_PER_TURN: usize = 512;
/// Connections accepted per turn, shared by a worker's listeners: a storm leaves time for open
/// connections.
pub(crate) const ACCEPTS_PER_TURN: usize = 64;
/// Connections accepted per turn from each listener, however many there are.
pub(crate) const ACCEPTS_MIN: usize = 4;
/// Bytes flushed to one slow socket per turn.
pub(crate) const FLUSH_BYTES_PER_TURN: usize = 1024 * 1024;
/// How much an unfinished message must grow within the idle timeout; otherwise its connection is
/// closed, however active. With the defaults 9 bytes per second are enough.
pub(crate) const MESSAGE_GROWS_BYTES: usize = 1024;
/// Posts taken from the mailbox per turn.
pub(crate) const POSTS_PER_TURN: usize = 1024;
/// Slots that the keep-alive sweep checks per turn: after a pause all of them are due.
pub(crate) const SWEEP_SLOTS_PER_TURN: u32 = 4096;
/// Handshake deadlines, and deadlines of closes, that are handled per turn.
pub(crate) const DEADLINES_PER_TURN: usize = 1024;
/// How long a listener pauses after the kernel had no descriptor or memory for a connection.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Buffers that a worker keeps for the next partial message, and the largest it keeps.
pub(crate) const POOLED_BUFFERS: usize = 8;
pub(crate) const POOLED_BUFFER_BYTES: usize = 64 * 1024;
/// A buffer of at most this capacity may stay with a connection, however little it contains; a larger
/// one has to be at least half full at first.
pub(crate) const KEPT_BUFFER_BYTES: usize = 512;

/// Addresses tracked for the limits per address, in the process: some 60 bytes each. Beyond it,
/// connections of new addresses are admitted and not counted.
pub(crate) const ADDRESSES_MAX: usize = 1 << 20;
/// The Retry-After of an answer with 503: random between these, in seconds.
pub(crate) const RETRY_AFTER_SECONDS: (u64, u64) = (1, 10);
/// How long a head that has begun may be incomplete without counting towards the limit of handshakes
/// in flight. One that has not has half of its timeout.
pub(crate) const HEAD_GRACE: Duration = Duration::from_secs(1);
/// Handshakes evicted per turn.
pub(crate) const EVICTIONS_PER_TURN: usize = 64;
/// A client that has sent nothing has this many times as long as a head that has begun.
pub(crate) const SILENT_TIMEOUTS: u32 = 3;
/// Deadlines examined to find the oldest handshake in flight.
pub(crate) const EVICTION_LOOKS: usize = 256;
/// At the connection limit a connection gives way to a new one once it has been idle, or its request
/// head incomplete, for this long: a request may be under way to one that is idle for less.
pub(crate) const GIVES_WAY_AFTER: Duration = Duration::from_secs(1);
/// Memory of an idle connection and of its TLS session, in bytes: measured, see ARCHITECTURE.md.
pub(crate) const IDLE_BYTES: usize = 128;
pub(crate) const TLS_IDLE_BYTES: usize = 4_100;
/// Memory of a TLS handshake in flight beyond the session, in bytes: an estimate.
pub(crate) const TLS_HANDSHAKE_BYTES: usize = 8 * 1024;
/// A worker short of memory sheds at most one of this many connections per round, within these
/// bounds.
pub(crate) const SHED_SHARE: u32 = 64;
pub(crate) const SHED_MIN: u32 = 8;
pub(crate) const SHED_MAX: u32 = 1024;
/// Slots that it examines for that in one turn, with the entries of what their handlers hold.
pub(crate) const SHED_LOOKS: u32 = 16 * 1024;
/// A connection that holds fewer bytes than this beyond an idle one is shed as an idle one is.
pub(crate) const SHED_HELD_MIN: usize = 1024;
/// Idle connections are shed only if they hold at least one in this many bytes of the limit.
pub(crate) const SHED_IDLE_SHARE: u64 = 8;
/// Largest rest of a frame that a connection being shed may still send before its close frame. A
/// longer one is not kept: the connection is reset.
pub(crate) const SHED_REST_BYTES: usize = 16 * 1024;

/// The value of the Retry-After header of an answer with 503 (RFC 9110 section 10.2.3), from 64 random
/// bits, so that refused clients do not all return at once.
#[must_use]
pub fn retry_after(random: u64) -> String {
    let (least, most) = RETRY_AFTER_SECONDS;
    (least + random % (most - least + 1)).to_string()
}

/// The limits that an operator sets, the same for every worker.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Limits of the protocols: head, headers, message bytes.
    pub wire: wire::Limits,
    /// Bytes that may wait for one slow consumer. Default 1 MiB.
    pub send_queue_bytes: usize,
    /// What happens beyond that. Default: disconnect.
    pub slow_consumer: SlowConsumer,
    /// A connection idle for this long is closed; `None` disables that. Default 120 s.
    pub idle_timeout: Option<Duration>,
    /// The step in which idle times are measured, where that is to be finer than a 256th of the idle
    /// timeout; see [`Limits::idle_step`]. `None` by default.
    pub idle_precision: Option<Duration>,
    /// Send pings at half the idle timeout, so that live peers stay connected. Default on.
    pub pings: bool,
    /// Time for the complete request head, from its first byte, for a requested body, or for the
    /// answer to our handshake. The first byte of a request has three times as long. Default 10 s.
    pub handshake_timeout: Duration,
    /// A keep-alive connection without another request for this long is closed. Tracked separately
    /// from the handshake timeout, which may be shorter. Default 75 s.
    pub keep_alive_timeout: Duration,
    /// Time for the peer to answer our close frame and end its stream. Default 5 s.
    pub close_timeout: Duration,
    /// After the drain period, how long connections that the handler defers may still go on.
    /// Default 30 s.
    pub drain_grace: Duration,
    /// Whether messages are compressed; a client offers it per target. Default off.
    pub compression: Compression,
    /// Messages shorter than this, in bytes, are sent uncompressed. Default 1 KiB.
    pub compress_above_bytes: usize,
    /// Limits of connections that the handler puts into a class, see [`crate::Core::set_class`]; at most
    /// 255. Default: none.
    pub classes: Vec<ClassLimits>,
    /// Bytes of incomplete request bodies that one worker holds. Default 16 MiB.
    pub bodies_bytes: usize,
    /// Bytes of all polled connections of the process, with what waits for their next polls. Beyond it none
    /// is opened, and the receiver of a message is a slow consumer. Default 64 MiB.
    pub polled_bytes: usize,
    /// Bytes that may wait in one worker's mailbox. Default 8 MiB.
    pub mailbox_bytes: usize,
    /// A peer that acknowledges neither data nor keep-alive probes for this long is dead; `None`
    /// leaves that to the system. Applies to outgoing raw connections once they are connected;
    /// listeners have their own setting. Default `None`.
    pub peer_timeout: Option<Duration>,
    /// Admission limits.
    pub admission: AdmissionLimits,
    /// Trusted proxies, which report client addresses. Default: none.
    pub proxies: Proxies,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            wire: wire::Limits::default(),
            send_queue_bytes: 1024 * 1024,
            slow_consumer: SlowConsumer::Disconnect,
            idle_timeout: Some(Duration::from_secs(120)),
            idle_precision: None,
            pings: true,
            handshake_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(75),
            close_timeout: Duration::from_secs(5),
            drain_grace: Duration::from_secs(30),
            compression: Compression::Off,
            compress_above_bytes: 1024,
            classes: Vec::new(),
            bodies_bytes: 16 * 1024 * 1024,
            polled_bytes: 64 * 1024 * 1024,
            mailbox_bytes: 8 * 1024 * 1024,
            peer_timeout: None,
            admission: AdmissionLimits::default(),
            proxies: Proxies::default(),
        }
    }
}
