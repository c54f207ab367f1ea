//! [`Conn`]: one connection's entry in the slab, 64 bytes with a handler's 16, and [`Cold`], the
//! state that only a busy connection needs.

use wire::http::HeadScanner;
use wire::websocket::Decoder;

use crate::body::PendingBody;
use crate::buffers::held;
use crate::deflate::{Contexts, NegotiatedDeflate};
use crate::http::RequestContext;
use crate::invariant::broken;
use crate::limits::{IDLE_BYTES, TLS_IDLE_BYTES};
use crate::queue::SendQueue;
use crate::tls::Tls;
use crate::{Closed, sys::Fd};

/// The state of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Our connect is in progress.
    Connecting,
    /// A server waits for a request head, a client for the answer to its handshake.
    Http,
    /// A request waits for the answer that [`crate::Answer`]`::Later` announced.
    Parked,
    /// Frames in both directions.
    WebSocket,
    /// Bytes in both directions.
    Raw,
    /// Bytes in our direction only: the peer has ended its side, and the handler keeps ours open.
    HalfClosed,
    /// Our close frame is sent, the peer's is awaited.
    Closing,
    /// Our side of the stream has ended; what arrives is discarded until the peer ends its side.
    Lingering,
    /// To be reaped at the end of the turn.
    Dead,
    /// Without a socket: what is sent waits for the next request of its client.
    Polled,
}

/// Boolean state of a connection.
#[derive(Copy, Clone, Default)]
pub(crate) struct Flags(u16);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:expr,)*) => {
        impl Flags {
            $($(#[$doc])* pub(crate) const $name: u16 = 1 << $bit;)*
        }
    };
}

flags! {
    /// We connected; otherwise we accepted.
    CLIENT = 0,
    /// The handler's `open` was called.
    OPENED = 1,
    /// The descriptor is registered with epoll.
    WATCHED = 2,
    WATCHED_READ = 3,
    WATCHED_WRITE = 4,
    /// The handler has paused reading.
    PAUSED = 5,
    /// Not read because its own send queue is long.
    STALLED = 6,
    CLOSE_SENT = 7,
    /// End our side once the queue is empty.
    FINISH = 8,
    /// A keep-alive ping was sent and nothing was received since.
    PINGED = 9,
    /// An entry in the handshake deadlines refers to this connection.
    DEADLINE = 10,
    /// Listed for another pass over its kept bytes.
    RESUMED = 11,
    /// The queue was used: notify the handler when it is empty.
    NOTIFY_DRAINED = 12,
    /// This plain HTTP connection was answered at least once.
    ANSWERED = 13,
}

/// The bit at which [`Flags::growth_span`] begins.
const GROWTH_SPAN: u16 = 14;

impl Flags {
    #[inline]
    pub(crate) fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: u16) {
        self.0 |= flag;
    }

    #[inline]
    pub(crate) fn clear(&mut self, flag: u16) {
        self.0 &= !flag;
    }

    /// The span of time in which the sweep last saw the current message grow, 1 to 3; 0 if it has
    /// not looked yet.
    pub(crate) fn growth_span(self) -> u16 {
        self.0 >> GROWTH_SPAN
    }

    #[inline]
    pub(crate) fn set_growth_span(&mut self, span: u16) {
        self.0 = self.0 & ((1 << GROWTH_SPAN) - 1) | span << GROWTH_SPAN;
    }
}

/// One connection. It owns no buffer while idle.
pub(crate) struct Conn<U> {
    pub(crate) user: U,
    pub(crate) cold: Option<Box<Cold>>,
    pub(crate) decoder: Decoder,
    pub(crate) fd: Fd,
    pub(crate) generation: u32,
    /// The tick at which something was last received.
    pub(crate) last_active: u16,
    pub(crate) flags: Flags,
    pub(crate) mode: Mode,
    /// Why it is ending, once known.
    pub(crate) closed: Closed,
    /// The worker's target that it connects to; of an accepted connection its class of limits, counted
    /// from 1.
    pub(crate) target: u8,
    /// The negotiated compression of its messages.
    pub(crate) deflate: NegotiatedDeflate,
}

/// State that a connection has only while it is busy.
#[derive(Default)]
pub(crate) struct Cold {
    /// Bytes read but not yet consumed: a partial head, frame header or control frame, or what a
    /// paused connection left.
    pub(crate) tail: Vec<u8>,
    pub(crate) scanner: HeadScanner,
    /// When TLS or the incomplete head began; 0 with neither.
    pub(crate) since_ns: u64,
    /// The message being assembled.
    pub(crate) message: Vec<u8>,
    /// Its length when the sweep last saw that it had grown.
    pub(crate) message_swept_bytes: usize,
    pub(crate) queue: SendQueue,
    /// The pong that is still to be sent to a peer whose queue is not empty: the latest only.
    pub(crate) pong: Option<Box<[u8]>>,
    /// The request that waits for its answer.
    pub(crate) parked: Option<RequestContext>,
    /// The body that is being received.
    pub(crate) body: Option<Box<PendingBody>>,
    /// Its own compressor and inflater, kept between messages.
    pub(crate) contexts: Option<Box<Contexts>>,
    /// Its TLS session, if it uses TLS; then this box stays as long as the connection.
    pub(crate) tls: Option<Box<Tls>>,
}

impl Cold {
    /// Whether it holds nothing and the box can be freed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tail.is_empty()
            && self.message.is_empty()
            && self.queue.is_empty()
            && self.pong.is_none()
            && self.parked.is_none()
            && self.body.is_none()
            && self.contexts.is_none()
            && self.tls.is_none()
    }

    /// Memory that it holds, in bytes. Pooled buffers count with their capacity: a byte may be all
    /// that is in a large one.
    fn held(&self) -> usize {
        let body = self.body.as_ref().map_or(0, |body| body.held());
        let contexts = self.contexts.as_ref().map_or(0, |contexts| contexts.held());
        let tls = self.tls.as_ref().map_or(0, |tls| tls.held());
        let buffers = held(&self.tail) + held(&self.message);
        buffers + self.queue.held() + body + contexts + tls
    }
}

impl<U> Conn<U> {
    pub(crate) fn cold(&mut self) -> &mut Cold {
        self.cold.get_or_insert_default()
    }

    /// Whether its bytes go straight to the handler: raw, unencrypted, nothing kept and nothing
    /// queued.
    #[inline]
    pub(crate) fn is_bare(&self) -> bool {
        let held = Flags::PAUSED | Flags::STALLED | Flags::RESUMED;
        self.mode == Mode::Raw && self.cold.is_none() && !self.flags.has(held)
    }

    /// Whether it is received together with others: bare, or the same in another mode if `sockets`.
    #[inline]
    pub(crate) fn is_read_together(&self, sockets: bool) -> bool {
        let held = Flags::PAUSED | Flags::STALLED | Flags::RESUMED;
        let mode =
            self.mode == Mode::Raw || sockets && matches!(self.mode, Mode::WebSocket | Mode::Http);
        mode && self.cold.is_none() && !self.flags.has(held)
    }

    /// Bytes waiting in its queue.
    #[inline]
    pub(crate) fn backlog(&self) -> usize {
        self.cold.as_ref().map_or(0, |cold| cold.queue.len())
    }

    /// Whether received bytes wait to be processed.
    pub(crate) fn has_tail(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| !cold.tail.is_empty())
    }

    /// Memory that its queue holds, in bytes.
    #[inline]
    pub(crate) fn weight(&self) -> usize {
        self.cold.as_ref().map_or(0, |cold| cold.queue.weight())
    }

    /// Memory that would be freed without it, in bytes, beyond what every idle connection takes.
    pub(crate) fn held(&self) -> usize {
        self.cold.as_ref().map_or(0, |cold| cold.held())
    }

    /// Whether it uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.tls.is_some())
    }

    /// Memory that it takes while idle, in bytes.
    pub(crate) fn base(&self) -> usize {
        IDLE_BYTES + if self.is_encrypted() { TLS_IDLE_BYTES } else { 0 }
    }

    /// Frees what only further reading would need. Once a close is under way nothing that the peer
    /// sends counts, so it must not keep half a message in our memory.
    pub(crate) fn discard_unread(&mut self) {
        let lingering = self.mode == Mode::Lingering;
        let Some(cold) = self.cold.as_mut() else { return };
        cold.message = Vec::new();
        if lingering {
            cold.contexts = None;
        }
        self.release_cold();
    }

    /// Whether it is an accepted connection that was answered and has not begun another request.
    pub(crate) fn is_between_requests(&self) -> bool {
        let idle =
            |cold: &Cold| cold.tail.is_empty() && cold.body.is_none() && cold.queue.is_empty();
        let answered = self.mode == Mode::Http && self.flags.has(Flags::ANSWERED);
        answered && self.cold.as_deref().is_none_or(idle)
    }

    /// Whether its client is watched while it waits for an answer.
    pub(crate) fn is_watched(&self) -> bool {
        let parked = self.cold.as_ref().and_then(|cold| cold.parked.as_ref());
        self.mode == Mode::Parked && parked.is_some_and(RequestContext::is_watched)
    }

    /// Takes the context of a request that waits for its answer.
    pub(crate) fn take_parked(&mut self) -> RequestContext {
        self.cold.as_mut().and_then(|cold| cold.parked.take()).unwrap_or_else(|| {
            broken("a parked request has its context");
            RequestContext::default()
        })
    }

    /// Whether it has a socket; a polled connection has none.
    pub(crate) fn has_socket(&self) -> bool {
        self.fd != Fd::NONE
    }

    pub(crate) fn is_client(&self) -> bool {
        self.flags.has(Flags::CLIENT)
    }

    /// Frees the box if it holds nothing.
    pub(crate) fn release_cold(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        if cold.is_empty() {
            self.cold = None;
        } else if cold.queue.is_empty() {
            // An empty queue keeps its capacity, which would stay with the box.
            cold.queue = SendQueue::default();
        }
    }
}

const _: () = assert!(size_of::<Conn<[u64; 2]>>() <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_count_as_held_with_their_capacity() {
        let with_byte = || {
            let mut buffer = Vec::with_capacity(64 << 10);
            buffer.push(b'x');
            buffer
        };
        let cold = |tail, message| Cold { tail, message, ..Cold::default() };
        assert_eq!(cold(with_byte(), Vec::new()).held(), 64 << 10);
        assert_eq!(cold(Vec::new(), with_byte()).held(), 64 << 10);
        assert_eq!(cold(Vec::new(), Vec::new()).held(), 0);
    }
}
