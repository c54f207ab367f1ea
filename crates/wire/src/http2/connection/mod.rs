//! [`Connection`]: one HTTP/2 connection in either role, without I/O.

mod control;
mod headers;
mod receive;
mod send;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::frame::{
    FRAME_HEADER_BYTES, PREFACE, STREAM_MAX, WINDOW_INITIAL, encode_settings, encode_window_update,
};
use super::hpack::{Decoder, Encoder, TABLE_BYTES_DEFAULT};
use super::settings::id;
use super::streams::StreamTable;
use super::{Config, ErrorCode, Settings};
use crate::{Role, Violation};

/// A stream by its identifier (RFC 9113 5.1.1).
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct StreamId(u32);

impl StreamId {
    /// The identifier: 1 to 2³¹ − 1.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// What a header block is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum HeadKind {
    /// The head of a request: the stream is new.
    Request,
    /// The head of a response, with its status.
    Response(u16),
    /// An interim response, with its status from 100 to 199.
    Interim(u16),
    /// Trailers, which end the stream.
    Trailers,
}

/// What a peer did. `tag` is what the caller gave the stream, 0 at first.
#[derive(Eq, PartialEq, Debug)]
pub enum Event<'b> {
    /// A complete and valid head or trailers; its fields are in the list that was passed to
    /// [`Connection::receive`].
    Head {
        /// The stream, new if this is a request.
        stream: StreamId,
        /// The stream's tag.
        tag: u32,
        /// Which of a message's heads it is.
        kind: HeadKind,
        /// Nothing follows from the peer on this stream.
        end_stream: bool,
    },
    /// The next bytes of a stream; empty only with `end_stream`.
    Data {
        /// The stream.
        stream: StreamId,
        /// The stream's tag.
        tag: u32,
        /// A piece of what was passed to [`Connection::receive`].
        data: &'b [u8],
        /// Nothing follows from the peer on this stream.
        end_stream: bool,
    },
    /// The peer reset the stream, or announced by GOAWAY that it does not process it; then the code
    /// is REFUSED_STREAM. The stream is gone.
    Reset {
        /// The stream.
        stream: StreamId,
        /// The stream's tag.
        tag: u32,
        /// The peer's reason.
        code: ErrorCode,
    },
    /// The peer violated the protocol on this stream; it was reset and is gone. A request that failed
    /// so was not returned.
    StreamFailed {
        /// The stream.
        stream: StreamId,
        /// The stream's tag.
        tag: u32,
        /// What the peer did.
        violation: Violation,
    },
    /// The peer accepts no further streams; those after `last_stream` are reset by the following
    /// events.
    GoAway {
        /// The last stream of ours that the peer may have processed; 0 if none.
        last_stream: u32,
        /// The peer's reason.
        code: ErrorCode,
    },
    /// The peer's settings have changed: there may be room for more streams, or more window.
    Settings,
    /// More can be sent on a stream that took less than it was given, or on all of them if `None`.
    WindowOpened(Option<(StreamId, u32)>),
    /// The answer to a ping.
    Pong([u8; 8]),
}

/// Why a stream cannot be opened.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Refused {
    /// As many streams are open as the peer allows.
    TooManyStreams,
    /// The peer, or we, have sent GOAWAY.
    GoingAway,
    /// All identifiers were used: a new connection is needed.
    NoIdentifiers,
}

/// The stream has ended, in this direction or as a whole, or never began.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct StreamEnded;

/// One HTTP/2 connection in either role: bytes to events and back (RFC 9113, RFC 8441).
///
/// Everything that is to be sent is appended to the `out` of a call, including what the protocol
/// demands: acknowledgements, WINDOW_UPDATE, RST_STREAM. A [`Config`] is shared by many connections.
///
/// ```
/// use std::sync::Arc;
/// use wire::http2::hpack::HeaderList;
/// use wire::http2::{Config, Connection, Event, HeadKind};
///
/// let config = Arc::new(Config::default());
/// let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
/// let mut client = Connection::client(&config, &mut to_server);
/// let mut server = Connection::server(&config, &mut to_client);
/// let request: [(&[u8], &[u8]); 4] =
///     [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a.example")];
/// let stream = client.open(request, true, 7, &mut to_server).unwrap();
///
/// let (mut fields, mut at) = (HeaderList::new(), 0);
/// while let Some((used, event)) =
///     server.receive(&to_server[at..], &mut fields, &mut to_client).unwrap()
/// {
///     at += used;
///     if let Event::Head { stream, kind: HeadKind::Request, .. } = event {
///         assert_eq!(fields.get(b":path"), Some(b"/".as_slice()));
///         server.respond(stream, [(b":status".as_slice(), b"204".as_slice())], true, &mut to_client)
///             .unwrap();
///     }
/// }
///
/// let mut at = 0;
/// let mut answers = 0;
/// while let Some((used, event)) =
///     client.receive(&to_client[at..], &mut fields, &mut to_server).unwrap()
/// {
///     at += used;
///     if let Event::Head { kind: HeadKind::Response(status), tag, .. } = event {
///         assert_eq!((status, tag), (204, 7));
///         answers += 1;
///     }
/// }
/// assert_eq!(answers, 1);
/// ```
pub struct Connection {
    config: Arc<Config>,
    streams: StreamTable,
    decoder: Decoder,
    encoder: Encoder,
    reader: Reader,
    peer: PeerSettings,
    /// What may be sent on all streams together, in bytes.
    send_window: i32,
    /// What the peer may send on all streams together, in bytes.
    receive_window: i32,
    /// Data that was consumed, but not yet returned to the peer as window, in bytes.
    consumed: u32,
    /// Data that was returned to the caller and not yet released, in bytes, with explicit release.
    held: u32,
    /// The initial window of streams that the peer may assume: ours after its acknowledgement.
    stream_window: u32,
    /// The next stream that we open.
    next_stream: u32,
    /// The last stream that the peer opened.
    last_peer_stream: u32,
    /// Identifiers of streams that we reset are from here to the second: frames on them may still
    /// arrive and are ignored (RFC 9113 5.1).
    reset_streams: (u32, u32),
    /// The largest part of a stream's send window beyond the initial window.
    send_delta_max: i32,
    /// The last stream that was promised to be processed when we sent GOAWAY.
    last_promised: u32,
    /// GOAWAY of the peer.
    go_away: Option<Box<GoAway>>,
    resets: u16,
    control_frames: u16,
    empty_frames: u16,
    flags: u16,
}

/// What of the peer's settings is needed after they were applied.
#[derive(Copy, Clone)]
struct PeerSettings {
    max_concurrent_streams: u32,
    initial_window_bytes: u32,
    max_frame_bytes: u32,
    max_header_list_bytes: u32,
}

/// The last GOAWAY of the peer.
struct GoAway {
    last_stream: u32,
    debug: Vec<u8>,
}

/// Where reading stands.
#[derive(Default)]
struct Reader {
    /// Payload bytes of the current frame that are still to come, with padding.
    left: u32,
    /// The tag of the stream of the current DATA frame.
    tag: u32,
    /// The header of the current frame.
    header: [u8; FRAME_HEADER_BYTES],
    /// Bytes of the header, or of the preface, that have arrived.
    arrived: u8,
    /// Padding at the end of the current frame.
    padding: u8,
    phase: Phase,
    /// Parts of a frame or of a header block, while there are any.
    partial: Option<Box<Partial>>,
}

#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
enum Phase {
    /// In the client's preface.
    Preface,
    /// Before the end of a frame header.
    #[default]
    Header,
    /// Before the length of the padding of DATA.
    Padding,
    /// In the content of DATA.
    Data,
    /// In bytes that are ignored.
    Skip,
    /// In the payload of a frame of another type, which is collected.
    Payload,
}

/// What has arrived of a frame, and of a header block.
#[derive(Default)]
struct Partial {
    /// The payload of the current frame.
    payload: Vec<u8>,
    /// Fragments of the header block.
    block: Vec<u8>,
    /// The stream of the header block; 0 if there is none.
    stream: u32,
    /// CONTINUATION frames of the header block.
    continuations: u16,
    end_stream: bool,
}

/// Flags of a connection.
mod flag {
    pub(super) const SERVER: u16 = 1;
    /// The peer's SETTINGS have arrived.
    pub(super) const SETTINGS: u16 = 1 << 1;
    /// The peer has acknowledged our SETTINGS.
    pub(super) const ACKNOWLEDGED: u16 = 1 << 2;
    /// Data could not be sent for lack of the connection's window.
    pub(super) const BLOCKED: u16 = 1 << 3;
    /// We sent GOAWAY.
    pub(super) const LEAVING: u16 = 1 << 4;
    /// The peer supports extended CONNECT (RFC 8441 3).
    pub(super) const CONNECT_PROTOCOL: u16 = 1 << 5;
    /// Streams after the last one of the peer's GOAWAY are to be reset.
    pub(super) const UNPROCESSED: u16 = 1 << 6;
    /// The peer has left out identifiers of streams.
    pub(super) const SKIPPED: u16 = 1 << 7;
}

impl Connection {
    /// A connection that we opened. Appends the preface and our SETTINGS.
    pub fn client(config: &Arc<Config>, out: &mut Vec<u8>) -> Connection {
        out.extend_from_slice(PREFACE);
        Connection::new(config, Role::Client, out)
    }

    /// A connection that we accepted; it begins with the client's preface. Appends our SETTINGS.
    pub fn server(config: &Arc<Config>, out: &mut Vec<u8>) -> Connection {
        Connection::new(config, Role::Server, out)
    }

    fn new(config: &Arc<Config>, role: Role, out: &mut Vec<u8>) -> Connection {
        let settings = config.settings();
        announce(&settings, role, out);
        let window = config.connection_window();
        if window > WINDOW_INITIAL {
            encode_window_update(out, 0, window - WINDOW_INITIAL);
        }
        let initial = Settings::default();
        let (flags, phase) = match role {
            Role::Client => (0, Phase::Header),
            Role::Server => (flag::SERVER, Phase::Preface),
        };
        // Until the peer has acknowledged our settings it may keep to the initial ones.
        let stream_window = settings.initial_window_bytes.max(initial.initial_window_bytes);
        let table = settings.header_table_bytes.max(TABLE_BYTES_DEFAULT);
        Connection {
            config: Arc::clone(config),
            streams: StreamTable::default(),
            decoder: Decoder::new(table),
            encoder: Encoder::new(),
            reader: Reader { phase, ..Reader::default() },
            peer: PeerSettings {
                max_concurrent_streams: config.initial_max_streams,
                initial_window_bytes: initial.initial_window_bytes,
                max_frame_bytes: initial.max_frame_bytes,
                max_header_list_bytes: initial.max_header_list_bytes,
            },
            send_window: WINDOW_INITIAL as i32,
            receive_window: window as i32,
            consumed: 0,
            held: 0,
            stream_window,
            next_stream: 1,
            last_peer_stream: 0,
            reset_streams: (0, 0),
            send_delta_max: 0,
            last_promised: STREAM_MAX,
            go_away: None,
            resets: 0,
            control_frames: 0,
            empty_frames: 0,
            flags,
        }
    }

    /// Our side of the connection.
    #[inline]
    pub const fn role(&self) -> Role {
        if self.has(flag::SERVER) { Role::Server } else { Role::Client }
    }

    /// Streams that are open, or half-closed on one side.
    #[inline]
    pub fn open_streams(&self) -> u32 {
        self.streams.len()
    }

    /// How many more streams [`open`](Connection::open) would open now.
    #[inline]
    pub fn free_streams(&self) -> u32 {
        match self.refusal() {
            Some(_) => 0,
            None => (self.peer.max_concurrent_streams - self.streams.len())
                .min((STREAM_MAX - self.next_stream) / 2 + 1),
        }
    }

    /// Whether the peer's SETTINGS have arrived: until then its limits are assumed.
    #[inline]
    pub const fn has_settings(&self) -> bool {
        self.has(flag::SETTINGS)
    }

    /// Whether the peer has acknowledged our SETTINGS. How long that may take is up to the caller
    /// (SETTINGS_TIMEOUT, RFC 9113 6.5.3).
    #[inline]
    pub const fn is_acknowledged(&self) -> bool {
        self.has(flag::ACKNOWLEDGED)
    }

    /// Whether no further stream can be opened, by either side's GOAWAY.
    #[inline]
    pub const fn is_going_away(&self) -> bool {
        self.go_away.is_some() || self.has(flag::LEAVING)
    }

    /// The debug data of the peer's GOAWAY, cut to its first 256 bytes.
    pub fn go_away_debug(&self) -> &[u8] {
        self.go_away.as_ref().map_or(&[], |go_away| &go_away.debug)
    }

    /// Whether the peer accepts extended CONNECT (RFC 8441 3).
    #[inline]
    pub const fn peer_accepts_extended_connect(&self) -> bool {
        self.has(flag::CONNECT_PROTOCOL)
    }

    /// The longest list of fields that the peer says it accepts, as counted by RFC 7541 4.1.
    #[inline]
    pub const fn peer_header_list_bytes(&self) -> u32 {
        self.peer.max_header_list_bytes
    }

    /// How much could be sent on this stream now, in bytes; 0 if it has ended.
    pub fn send_window(&self, stream: StreamId) -> usize {
        self.streams.get(stream.0).map_or(0, |stream| self.sendable(stream.send_delta))
    }

    /// How many bytes the peer's window of the connection allows now, on all streams together.
    #[inline]
    pub fn connection_window(&self) -> usize {
        usize::try_from(self.send_window).unwrap_or(0)
    }

    /// The stream of this identifier; `None` if it has ended or was never opened.
    pub fn stream(&self, id: u32) -> Option<StreamId> {
        self.streams.get(id).map(|stream| StreamId(stream.id))
    }

    /// The tag of a stream; `None` if it has ended.
    pub fn tag(&self, stream: StreamId) -> Option<u32> {
        self.streams.get(stream.0).map(|stream| stream.tag)
    }

    /// Gives a stream a tag, which its events will carry. Ignored if it has ended.
    pub fn set_tag(&mut self, stream: StreamId, tag: u32) {
        if let Some(stream) = self.streams.get_mut(stream.0) {
            stream.tag = tag;
        }
        if self.reader.phase == Phase::Data && self.reader.frame().stream == stream.0 {
            self.reader.tag = tag;
        }
    }

    /// The streams that have not ended, with their tags, in order: what fails if the connection is
    /// lost.
    pub fn streams(&self) -> impl Iterator<Item = (StreamId, u32)> {
        self.streams.iter().map(|stream| (StreamId(stream.id), stream.tag))
    }

    /// Reports that everything appended to `out` so far was written: answers to PING and SETTINGS are
    /// not piling up, so those count no longer. Without this only useful frames lower their count.
    #[inline]
    pub fn written(&mut self) {
        self.control_frames = 0;
    }

    /// Gives unused memory back; for connections that become idle.
    pub fn shrink(&mut self) {
        self.streams.shrink();
    }

    /// Bytes of memory that it holds in addition to itself.
    pub fn memory_bytes(&self) -> usize {
        let partial = self.reader.partial.as_ref().map_or(0, |partial| {
            size_of::<Partial>() + partial.payload.capacity() + partial.block.capacity()
        });
        let go_away = self
            .go_away
            .as_ref()
            .map_or(0, |go_away| size_of::<GoAway>() + go_away.debug.capacity());
        self.streams.heap_bytes()
            + self.decoder.memory_bytes()
            + self.encoder.memory_bytes()
            + partial
            + go_away
    }

    #[inline]
    const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// What both windows allow, in bytes.
    #[inline]
    fn sendable(&self, send_delta: i32) -> usize {
        let stream = i64::from(self.peer.initial_window_bytes) + i64::from(send_delta);
        usize::try_from(stream.min(i64::from(self.send_window))).unwrap_or(0)
    }
}

/// Appends SETTINGS with the values that differ from the initial ones (RFC 9113 6.5.2).
fn announce(settings: &Settings, role: Role, out: &mut Vec<u8>) {
    let initial = Settings::default();
    let (client, server) = (role == Role::Client, role == Role::Server);
    let values = [
        (
            settings.header_table_bytes != initial.header_table_bytes,
            id::HEADER_TABLE_SIZE,
            settings.header_table_bytes,
        ),
        (client, id::ENABLE_PUSH, 0),
        (server, id::MAX_CONCURRENT_STREAMS, settings.max_concurrent_streams),
        (
            settings.initial_window_bytes != initial.initial_window_bytes,
            id::INITIAL_WINDOW_SIZE,
            settings.initial_window_bytes,
        ),
        (
            settings.max_frame_bytes != initial.max_frame_bytes,
            id::MAX_FRAME_SIZE,
            settings.max_frame_bytes,
        ),
        (true, id::MAX_HEADER_LIST_SIZE, settings.max_header_list_bytes),
        (server && settings.enable_connect_protocol, id::ENABLE_CONNECT_PROTOCOL, 1),
    ];
    let differing = values.into_iter().filter(|(differs, ..)| *differs);
    encode_settings(out, differing.map(|(_, id, value)| (id, value)));
}
