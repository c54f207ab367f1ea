//! What the threads and JavaScript tell each other: lists with their bytes behind each other, one for each turn.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use engine::ConnId;
use topics::Publication;

use crate::exchange::Headers;
use crate::replays::{Beginning, Sent};

/// A list of events or commands, and the bytes that they name by lengths, in order.
pub(crate) struct Batch<T> {
    pub(crate) list: Vec<T>,
    pub(crate) bytes: Vec<u8>,
    /// Bytes that are held beyond that.
    shared: usize,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch { list: Vec::new(), bytes: Vec::new(), shared: 0 }
    }
}

impl<T> Batch<T> {
    pub(crate) fn push(&mut self, one: T, bytes: &[u8]) {
        self.list.push(one);
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds what holds bytes that others may hold as well.
    pub(crate) fn push_shared(&mut self, one: T, bytes: usize) {
        self.list.push(one);
        self.shared += bytes;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The memory that it holds.
    pub(crate) fn weight(&self) -> usize {
        self.list.len() * size_of::<T>() + self.bytes.len() + self.shared
    }
}

/// Takes the next bytes of a batch.
pub(crate) fn take<'a>(rest: &mut &'a [u8], length: u32) -> &'a [u8] {
    let (taken, after) = rest.split_at(rest.len().min(length as usize));
    *rest = after;
    taken
}

/// A piece of the body of a request.
pub(crate) struct Piece {
    pub(crate) data: Box<[u8]>,
    pub(crate) last: bool,
}

/// From a thread to JavaScript. Lengths are of bytes in the batch.
pub(crate) enum Event {
    /// A request, after the address of its client, if it was `proxied` that in the PROXY header, and the `certificate` of
    /// so many bytes; as a head again: `lines` headers.
    Request {
        id: ConnId,
        upgrades: bool,
        proxied: bool,
        certificate: u32,
        lines: u16,
        length: u32,
    },
    /// A piece of a request's body.
    Data {
        id: ConnId,
        last: bool,
        length: u32,
    },
    /// So many bytes of an answer, of those that were passed on since the last such event: nothing of it waits.
    Flowed {
        id: ConnId,
        bytes: u32,
    },
    /// The client of a request has left.
    Gone(ConnId),
    /// A WebSocket that was accepted without JavaScript; the address of its client.
    Open {
        id: ConnId,
        route: u16,
        length: u32,
    },
    Message {
        id: ConnId,
        binary: bool,
        length: u32,
    },
    Dropped {
        id: ConnId,
        binary: bool,
        length: u32,
    },
    Ping {
        id: ConnId,
        length: u32,
    },
    Pong {
        id: ConnId,
        length: u32,
    },
    /// So many bytes wait.
    Buffered {
        id: ConnId,
        bytes: u32,
    },
    /// Nothing waits any more.
    Drain(ConnId),
    Close {
        id: ConnId,
        code: u16,
        length: u32,
    },
    /// A subscription was sent what it missed.
    Sent(Box<Sent>),
}

/// From JavaScript to a thread.
pub(crate) enum Command {
    Send {
        id: ConnId,
        binary: bool,
        compress: bool,
        /// The thread answers with [`Event::Drain`] if the socket's queue is empty afterwards.
        reports: bool,
        length: u32,
    },
    Ping {
        id: ConnId,
        length: u32,
    },
    /// Closes with a code, 0 for none, and a reason.
    End {
        id: ConnId,
        code: u16,
        length: u32,
    },
    /// Ends a WebSocket at once.
    Close(ConnId),
    /// Ends a connection of a request at once.
    Reset(ConnId),
    /// Whether a WebSocket, or the body of a request, is read.
    Pause {
        id: ConnId,
        paused: bool,
    },
    Subscribe {
        id: ConnId,
        length: u32,
    },
    Unsubscribe {
        id: ConnId,
        length: u32,
    },
    /// Subscribes to what was published, too. The thread answers with [`Event::Sent`], which names the ticket, unless
    /// the subscription ends before.
    SubscribeFrom {
        id: ConnId,
        beginning: Box<Beginning>,
        ticket: u32,
        length: u32,
    },
    Publish(Arc<Publication>),
    /// The next bytes of the answer to a request.
    Answer {
        id: ConnId,
        /// They are the last ones.
        ends: bool,
        keep_alive: bool,
        length: u32,
    },
    /// JavaScript reads the body of a request.
    WantData(ConnId),
    Upgrade(Box<Upgrade>),
    /// Ends all connections at once: the app is closed.
    CloseAll,
}

pub(crate) struct Upgrade {
    pub(crate) id: ConnId,
    pub(crate) route: u16,
    pub(crate) protocol: Option<Box<str>>,
    pub(crate) headers: Headers,
}

// What there is for each message does not grow with what there is for a few requests.
const _: () = assert!(size_of::<Event>() == 24);

/// The address of a client: 0, 4 or 16 bytes, and its port.
#[derive(Copy, Clone, Default)]
pub(crate) struct Peer {
    address: [u8; 16],
    length: u8,
    pub(crate) port: u16,
}

/// Bytes of a [`Peer`] in a batch.
pub(crate) const PEER_BYTES: usize = 19;

impl Peer {
    pub(crate) fn new(peer: Option<SocketAddr>) -> Peer {
        peer.map(Peer::reported).unwrap_or_default()
    }

    /// An address in the form in which it was reported.
    pub(crate) fn reported(peer: SocketAddr) -> Peer {
        let mut own = Peer { port: peer.port(), ..Peer::default() };
        let octets: &[u8] = match &peer.ip() {
            IpAddr::V4(address) => &address.octets(),
            IpAddr::V6(address) => &address.octets(),
        };
        own.length = octets.len() as u8;
        own.address.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        own
    }

    pub(crate) fn address(&self) -> &[u8] {
        self.address.get(..usize::from(self.length)).unwrap_or_default()
    }

    pub(crate) fn to_bytes(self) -> [u8; PEER_BYTES] {
        let mut bytes = [0; PEER_BYTES];
        let [port_0, port_1] = self.port.to_be_bytes();
        let all = self.address.into_iter().chain([self.length, port_0, port_1]);
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        bytes
    }

    /// What [`Peer::to_bytes`] has written.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Peer {
        let Some((address, &[length, port_0, port_1])) = bytes.split_first_chunk() else {
            return Peer::default();
        };
        Peer {
            address: *address,
            length: length.min(16),
            port: u16::from_be_bytes([port_0, port_1]),
        }
    }
}
