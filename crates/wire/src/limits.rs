//! Limits on what a peer sends, in one place with units and reasons. Limits of time and rate are
//! not here: this crate has no clock.

/// How much a peer may send; more is a violation.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Longest HTTP head, first line to blank line, in bytes.
    pub head_bytes: usize,
    /// Most header lines in a head; at most [`MAX_HEADERS`](crate::http::MAX_HEADERS). The caller
    /// of the parser enforces it by the length of the slice that it passes.
    pub headers: usize,
    /// Longest WebSocket message, summed over its fragments, in bytes.
    pub message_bytes: u32,
    /// Longest HTTP body, in bytes; `u64::MAX` for a client that measures downloads.
    pub body_bytes: u64,
    /// Longest chunk-size line with its extensions, in bytes.
    pub chunk_line_bytes: u32,
    /// Longest trailer section of a chunked body, in bytes.
    pub trailer_bytes: u32,
}

impl Limits {
    /// Room for large cookies; what nginx and Node allow, within a factor of two.
    pub const HEAD_BYTES: usize = 16 * 1024;
    /// Browsers send 10–20, proxies add a few.
    pub const HEADERS: usize = 100;
    /// The default of Centrifugo; four times that of uWebSockets.
    pub const MESSAGE_BYTES: u32 = 64 * 1024;
    /// One publish request of sixteen of the largest messages.
    pub const BODY_BYTES: u64 = 1024 * 1024;
    /// Sixteen digits and some extensions; in practice there are no extensions.
    pub const CHUNK_LINE_BYTES: u32 = 256;
    /// Trailers are read and discarded.
    pub const TRAILER_BYTES: u32 = 4 * 1024;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head_bytes: Self::HEAD_BYTES,
            headers: Self::HEADERS,
            message_bytes: Self::MESSAGE_BYTES,
            body_bytes: Self::BODY_BYTES,
            chunk_line_bytes: Self::CHUNK_LINE_BYTES,
            trailer_bytes: Self::TRAILER_BYTES,
        }
    }
}

const _: () = assert!(Limits::HEADERS <= crate::http::MAX_HEADERS);
const _: () = assert!(Limits::MESSAGE_BYTES as u64 <= Limits::BODY_BYTES);
