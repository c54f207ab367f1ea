//! WebSocket: the opening handshake, frames and messages, both roles (RFC 6455), and their
//! compression (RFC 7692). Not here: answering pings, the closing handshake's timers, and
//! assembling fragments, which are up to the connection.

mod decoder;
mod deflate;
mod encode;
mod handshake;
mod mask;
mod utf8;

#[cfg(test)]
mod tests;

use core::fmt;

pub use decoder::{Decoder, Event};
pub use deflate::{Compressor, Inflater, SingleCompressor};
pub use encode::{FrameHeader, encode, encode_close, encode_deflated, encode_masked};
pub use handshake::{
    Deflate, Protocols, Upgrade, UpgradeAccepted, accept_key, check_upgrade,
    check_upgrade_response, encode_key, encode_refusal, encode_upgrade_request,
    encode_upgrade_response, encode_upgrade_response_with,
};

/// Longest payload of a control frame, in bytes (RFC 6455 5.5).
pub const CONTROL_BYTES_MAX: usize = 125;

/// Longest frame header, in bytes: two, a 64-bit length and a mask (RFC 6455 5.2).
pub const HEADER_BYTES_MAX: usize = 14;

/// The type of a frame (RFC 6455 5.2).
#[repr(u8)]
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum OpCode {
    /// A further fragment of the current message.
    Continuation = 0,
    /// A message of UTF-8 text, or its first fragment.
    Text = 1,
    /// A message of bytes, or its first fragment.
    Binary = 2,
    /// The last frame of a direction.
    Close = 8,
    /// Requests a pong with the same payload.
    Ping = 9,
    /// Answers a ping, or is unsolicited.
    Pong = 10,
}

impl OpCode {
    /// The opcode in the low four bits of a frame's first byte; `None` if it is reserved.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<OpCode> {
        Some(match byte & 0x0F {
            0 => OpCode::Continuation,
            1 => OpCode::Text,
            2 => OpCode::Binary,
            8 => OpCode::Close,
            9 => OpCode::Ping,
            10 => OpCode::Pong,
            _ => return None,
        })
    }

    /// Whether this is a close, ping or pong.
    #[inline]
    pub const fn is_control(self) -> bool {
        self as u8 & 8 != 0
    }
}

/// Why a WebSocket was closed, as sent in a close frame (RFC 6455 7.4).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct CloseCode(pub u16);

impl CloseCode {
    /// The purpose is fulfilled.
    pub const NORMAL: CloseCode = CloseCode(1000);
    /// The server shuts down, or the browser leaves the page.
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    /// A violation of RFC 6455.
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// A text message that is not UTF-8.
    pub const INVALID_PAYLOAD: CloseCode = CloseCode(1007);
    /// A violation of the server's own policy.
    pub const POLICY: CloseCode = CloseCode(1008);
    /// A message longer than allowed.
    pub const TOO_BIG: CloseCode = CloseCode(1009);
    /// The server failed.
    pub const INTERNAL: CloseCode = CloseCode(1011);
    /// The server is overloaded or the peer too slow; try again later.
    pub const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);

    /// Whether it may be sent in a close frame: 1000–1003 and 1007–1014 as registered, and
    /// 3000–4999, which RFC 6455 7.4.2 leaves to libraries and applications.
    #[inline]
    pub const fn is_sendable(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether an assembled or inflated message is UTF-8.
#[inline]
#[must_use]
pub fn is_utf8(data: &[u8]) -> bool {
    utf8::is_valid(data)
}
