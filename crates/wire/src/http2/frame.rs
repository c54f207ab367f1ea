//! Frames as bytes: headers, types, flags, and encoders that append to the caller's buffer (RFC 9113
//! 4 and 6).

use alloc::vec::Vec;

use super::ErrorCode;

/// What a client sends before its first frame (RFC 9113 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame header, in bytes (RFC 9113 4.1).
pub const FRAME_HEADER_BYTES: usize = 9;

/// The smallest and the initial value of SETTINGS_MAX_FRAME_SIZE, in bytes (RFC 9113 6.5.2).
pub const FRAME_BYTES_MIN: u32 = 1 << 14;

/// The largest value of SETTINGS_MAX_FRAME_SIZE, in bytes (RFC 9113 6.5.2).
pub const FRAME_BYTES_MAX: u32 = (1 << 24) - 1;

/// The initial window of streams and of the connection, in bytes (RFC 9113 6.9.2).
pub const WINDOW_INITIAL: u32 = 65_535;

/// The largest window, in bytes (RFC 9113 6.9.1).
pub const WINDOW_MAX: u32 = (1 << 31) - 1;

/// The largest stream identifier (RFC 9113 5.1.1).
pub const STREAM_MAX: u32 = (1 << 31) - 1;

/// The type of a frame (RFC 9113 6). Types that it does not define are kept as they are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct FrameType(pub u8);

impl FrameType {
    /// Content of a stream (RFC 9113 6.1).
    pub const DATA: FrameType = FrameType(0);
    /// Begins a header block, and may open a stream (RFC 9113 6.2).
    pub const HEADERS: FrameType = FrameType(1);
    /// Deprecated (RFC 9113 6.3).
    pub const PRIORITY: FrameType = FrameType(2);
    /// Ends a stream early (RFC 9113 6.4).
    pub const RST_STREAM: FrameType = FrameType(3);
    /// Settings of the sender, or their acknowledgement (RFC 9113 6.5).
    pub const SETTINGS: FrameType = FrameType(4);
    /// Announces a pushed response (RFC 9113 6.6).
    pub const PUSH_PROMISE: FrameType = FrameType(5);
    /// Requests an answer of the same payload, or is that answer (RFC 9113 6.7).
    pub const PING: FrameType = FrameType(6);
    /// Announces the end of the connection (RFC 9113 6.8).
    pub const GOAWAY: FrameType = FrameType(7);
    /// Opens a window (RFC 9113 6.9).
    pub const WINDOW_UPDATE: FrameType = FrameType(8);
    /// Continues a header block (RFC 9113 6.10).
    pub const CONTINUATION: FrameType = FrameType(9);
}

/// Flags of frames (RFC 9113 6). Flags that a type does not define are ignored.
pub mod flags {
    /// DATA, HEADERS: the last frame of the stream in this direction.
    pub const END_STREAM: u8 = 0x01;
    /// SETTINGS, PING: an acknowledgement.
    pub const ACK: u8 = 0x01;
    /// HEADERS, CONTINUATION: the last frame of the header block.
    pub const END_HEADERS: u8 = 0x04;
    /// DATA, HEADERS: begins with a length of padding.
    pub const PADDED: u8 = 0x08;
    /// HEADERS: five bytes of priority precede the header block.
    pub const PRIORITY: u8 = 0x20;
}

/// A frame header (RFC 9113 4.1).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct FrameHeader {
    /// Length of the payload in bytes, 24 bits.
    pub payload_bytes: u32,
    /// The type.
    pub kind: FrameType,
    /// Flags, by type.
    pub flags: u8,
    /// The stream, 31 bits; 0 is the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// A header of these bytes. The reserved bit is ignored.
    #[inline]
    pub const fn parse(bytes: &[u8; FRAME_HEADER_BYTES]) -> FrameHeader {
        let &[a, b, c, kind, flags, s, t, u, v] = bytes;
        FrameHeader {
            payload_bytes: u32::from_be_bytes([0, a, b, c]),
            kind: FrameType(kind),
            flags,
            stream: u32::from_be_bytes([s, t, u, v]) & STREAM_MAX,
        }
    }

    /// The header as bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let [_, a, b, c] = self.payload_bytes.to_be_bytes();
        let [s, t, u, v] = self.stream.to_be_bytes();
        [a, b, c, self.kind.0, self.flags, s, t, u, v]
    }

    /// Whether all of these flags are set.
    #[inline]
    pub const fn has(self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// Appends a frame of a short payload.
fn push(out: &mut Vec<u8>, kind: FrameType, flags: u8, stream: u32, payload: &[u8]) {
    let payload_bytes = payload.len() as u32;
    debug_assert!(payload_bytes <= FRAME_BYTES_MIN);
    out.extend_from_slice(&FrameHeader { payload_bytes, kind, flags, stream }.to_bytes());
    out.extend_from_slice(payload);
}

/// Appends RST_STREAM (RFC 9113 6.4).
pub fn encode_rst_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    push(out, FrameType::RST_STREAM, 0, stream, &code.0.to_be_bytes());
}

/// Appends SETTINGS of these identifiers and values (RFC 9113 6.5), at most 2,730.
pub fn encode_settings(out: &mut Vec<u8>, settings: impl Iterator<Item = (u16, u32)>) {
    let start = out.len();
    push(out, FrameType::SETTINGS, 0, 0, &[]);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    let payload_bytes = (out.len() - start - FRAME_HEADER_BYTES) as u32;
    set_header(
        out,
        start,
        FrameHeader { payload_bytes, kind: FrameType::SETTINGS, flags: 0, stream: 0 },
    );
}

/// Appends the acknowledgement of SETTINGS (RFC 9113 6.5.3).
pub fn encode_settings_ack(out: &mut Vec<u8>) {
    push(out, FrameType::SETTINGS, flags::ACK, 0, &[]);
}

/// Appends PING, or the answer to one (RFC 9113 6.7).
pub fn encode_ping(out: &mut Vec<u8>, payload: [u8; 8], ack: bool) {
    push(out, FrameType::PING, if ack { flags::ACK } else { 0 }, 0, &payload);
}

/// Appends GOAWAY without debug data (RFC 9113 6.8).
pub fn encode_go_away(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode) {
    let [a, b, c, d] = last_stream.to_be_bytes();
    let [e, f, g, h] = code.0.to_be_bytes();
    push(out, FrameType::GOAWAY, 0, 0, &[a, b, c, d, e, f, g, h]);
}

/// Appends WINDOW_UPDATE of a stream, or of the connection if `stream` is 0 (RFC 9113 6.9).
/// `increment` is at least 1 and at most [`WINDOW_MAX`].
pub fn encode_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    debug_assert!((1..=WINDOW_MAX).contains(&increment));
    push(out, FrameType::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

/// Completes a header block that `out` contains from `start` on, after room for one frame header: as
/// HEADERS, and CONTINUATION where it is longer than `frame_bytes_max` (RFC 9113 6.2, 6.10).
pub(super) fn finish_headers(
    out: &mut Vec<u8>,
    start: usize,
    stream: u32,
    end_stream: bool,
    frame_bytes_max: u32,
) {
    let frame_max = frame_bytes_max as usize;
    let block_bytes = out.len().saturating_sub(start + FRAME_HEADER_BYTES);
    let end_stream = if end_stream { flags::END_STREAM } else { 0 };
    let first_bytes = block_bytes.min(frame_max);
    let all = first_bytes == block_bytes;
    let end_headers = if all { flags::END_HEADERS } else { 0 };
    let header = FrameHeader {
        payload_bytes: first_bytes as u32,
        kind: FrameType::HEADERS,
        flags: end_stream | end_headers,
        stream,
    };
    set_header(out, start, header);
    if all {
        return;
    }
    let rest = out.split_off(start + FRAME_HEADER_BYTES + first_bytes);
    let mut pieces = rest.chunks(frame_max.max(1)).peekable();
    while let Some(piece) = pieces.next() {
        let header = FrameHeader {
            payload_bytes: piece.len() as u32,
            kind: FrameType::CONTINUATION,
            flags: if pieces.peek().is_none() { flags::END_HEADERS } else { 0 },
            stream,
        };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(piece);
    }
}

/// Overwrites the frame header at `start`.
fn set_header(out: &mut [u8], start: usize, header: FrameHeader) {
    if let Some(place) = out.get_mut(start..start + FRAME_HEADER_BYTES) {
        place.copy_from_slice(&header.to_bytes());
    }
}
