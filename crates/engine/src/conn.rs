//! [`Conn`]: one connection's place in the slab, 64 bytes with a handler's 16, and [`Cold`], what
//! only a busy connection needs.

use wire::http::HeadScanner;
use wire::websocket::Decoder;

use crate::body::Reading;
use crate::deflate::{Agreed, Contexts};
use crate::http::Asked;
use crate::queue::SendQueue;
use crate::tls::Tls;
use crate::{Closed, sys::Fd};

/// Where a connection is in its life.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Our connect is under way.
    Connecting,
    /// A server waits for a request head, a client for the answer to its handshake.
    Http,
    /// A request waits for [`crate::Answer`]`::Later` to be settled.
    Parked,
    /// Frames both ways.
    WebSocket,
    /// Bytes both ways.
    Raw,
    /// Bytes our way only: the peer has ended its side, and the handler keeps ours.
    HalfClosed,
    /// Our close frame is out, the peer's is awaited.
    Closing,
    /// Our side of the stream is ended, what still comes is thrown away until the peer's end.
    Lingering,
    /// To be reaped at the end of the turn.
    Dead,
}

/// Yes-or-no facts of a connection.
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
    /// We connected; else we accepted.
    CLIENT = 0,
    /// The handler's `open` was called.
    OPENED = 1,
    /// The descriptor is known to epoll.
    WATCHED = 2,
    WATCHED_READ = 3,
    WATCHED_WRITE = 4,
    /// The handler asked not to read.
    PAUSED = 5,
    /// Not read because its own queue is long.
    STALLED = 6,
    CLOSE_SENT = 7,
    /// End our side once the queue is empty.
    FINISH = 8,
    /// A keep-alive ping is out and nothing was heard since.
    PINGED = 9,
    /// An entry in the handshake deadlines names this connection.
    DEADLINE = 10,
    /// Stands in the list of connections to pump again.
    RESUMED = 11,
    /// The queue had grown: tell the handler when it is empty.
    TELL_DRAINED = 12,
    /// This plain HTTP connection was answered at least once.
    ANSWERED = 13,
}

/// Where [`Flags::grown`] begins.
const GROWN: u16 = 14;

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

    /// The span of time in which the sweep last saw the message under way grow, 1 to 3; 0 if it has
    /// not looked yet.
    pub(crate) fn grown(self) -> u16 {
        self.0 >> GROWN
    }

    #[inline]
    pub(crate) fn set_grown(&mut self, span: u16) {
        self.0 = self.0 & ((1 << GROWN) - 1) | span << GROWN;
    }
}

/// One connection. It owns no buffer while idle.
pub(crate) struct Conn<U> {
    pub(crate) user: U,
    pub(crate) cold: Option<Box<Cold>>,
    pub(crate) decoder: Decoder,
    pub(crate) fd: Fd,
    pub(crate) generation: u32,
    /// The tick at which something was last heard.
    pub(crate) last_active: u16,
    pub(crate) flags: Flags,
    pub(crate) mode: Mode,
    /// Why it is ending, once that is known.
    pub(crate) closed: Closed,
    /// Which of the worker's targets it connects to.
    pub(crate) target: u8,
    /// How its messages are compressed.
    pub(crate) deflate: Agreed,
}

/// What a connection holds while it is in the middle of something.
#[derive(Default)]
pub(crate) struct Cold {
    /// Bytes read but not yet taken: a torn head, frame header or control frame, or what a paused
    /// connection left.
    pub(crate) tail: Vec<u8>,
    pub(crate) scanner: HeadScanner,
    /// When TLS or the head that is not whole yet began; 0 with neither.
    pub(crate) since_ns: u64,
    /// The message being assembled.
    pub(crate) message: Vec<u8>,
    /// Its length when the sweep last saw that it had grown.
    pub(crate) message_seen: usize,
    pub(crate) queue: SendQueue,
    /// The pong owed to a peer whose queue is not empty: the latest only.
    pub(crate) pong: Option<Box<[u8]>>,
    /// The request that is parked.
    pub(crate) asked: Option<Asked>,
    /// The body that is being read.
    pub(crate) body: Option<Box<Reading>>,
    /// What it has compressed and inflated, as long as it lives.
    pub(crate) contexts: Option<Box<Contexts>>,
    /// What it keeps for TLS, if it speaks that: then this box stays for its life.
    pub(crate) tls: Option<Box<Tls>>,
}

impl Cold {
    /// Whether nothing is left in it and the box may go.
    pub(crate) fn is_empty(&self) -> bool {
        self.tail.is_empty()
            && self.message.is_empty()
            && self.queue.is_empty()
            && self.pong.is_none()
            && self.asked.is_none()
            && self.body.is_none()
            && self.contexts.is_none()
            && self.tls.is_none()
    }
}

impl<U> Conn<U> {
    pub(crate) fn cold(&mut self) -> &mut Cold {
        self.cold.get_or_insert_default()
    }

    /// Whether it is read as it comes, unframed and not encrypted, with nothing kept and nothing queued.
    #[inline]
    pub(crate) fn is_bare(&self) -> bool {
        let held = Flags::PAUSED | Flags::STALLED | Flags::RESUMED;
        self.mode == Mode::Raw && self.cold.is_none() && !self.flags.has(held)
    }

    /// Bytes waiting in its queue.
    #[inline]
    pub(crate) fn backlog(&self) -> usize {
        self.cold.as_ref().map_or(0, |cold| cold.queue.len())
    }

    /// What its queue holds in memory.
    #[inline]
    pub(crate) fn weight(&self) -> usize {
        self.cold.as_ref().map_or(0, |cold| cold.queue.weight())
    }

    /// Gives back what only reading on would need. Nothing that a peer sends counts once it has been
    /// told that the connection ends, so it may not keep us holding half a message.
    pub(crate) fn forget_unread(&mut self) {
        let lingering = self.mode == Mode::Lingering;
        let Some(cold) = self.cold.as_mut() else { return };
        cold.message = Vec::new();
        if lingering {
            cold.contexts = None;
        }
        self.thaw();
    }

    /// Whether it is a client's that was answered and has not begun to ask again.
    pub(crate) fn is_between_requests(&self) -> bool {
        let idle =
            |cold: &Cold| cold.tail.is_empty() && cold.body.is_none() && cold.queue.is_empty();
        let answered = self.mode == Mode::Http && self.flags.has(Flags::ANSWERED);
        answered && self.cold.as_deref().is_none_or(idle)
    }

    pub(crate) fn is_client(&self) -> bool {
        self.flags.has(Flags::CLIENT)
    }

    /// Frees the box when nothing is in it.
    pub(crate) fn thaw(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        if cold.is_empty() {
            self.cold = None;
        } else if cold.queue.is_empty() {
            // An empty queue keeps its room, where the box has to stay.
            cold.queue = SendQueue::default();
        }
    }
}

const _: () = assert!(size_of::<Conn<[u64; 2]>>() <= 64);
