//! Settings of either side (RFC 9113 6.5.2, RFC 8441 3), and the limits of a connection.

use super::frame::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, WINDOW_INITIAL, WINDOW_MAX};
use super::hpack::EXCESS_BYTES_MAX;
use crate::Violation;

/// Identifiers of settings (RFC 9113 6.5.2).
pub(super) mod id {
    pub(in crate::http2) const HEADER_TABLE_SIZE: u16 = 0x1;
    pub(in crate::http2) const ENABLE_PUSH: u16 = 0x2;
    pub(in crate::http2) const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub(in crate::http2) const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub(in crate::http2) const MAX_FRAME_SIZE: u16 = 0x5;
    pub(in crate::http2) const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// RFC 8441 3.
    pub(in crate::http2) const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
}

/// The settings of one side, at first the initial values of RFC 9113 6.5.2.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Settings {
    /// Size of the table that the other side's header compression may use, in bytes.
    pub header_table_bytes: u32,
    /// Most streams that the other side may have open at a time; `u32::MAX` without a limit.
    pub max_concurrent_streams: u32,
    /// Window of new streams, in bytes.
    pub initial_window_bytes: u32,
    /// Longest payload of a frame, in bytes.
    pub max_frame_bytes: u32,
    /// Longest list of fields, as counted by RFC 7541 4.1, in bytes; advice only.
    pub max_header_list_bytes: u32,
    /// Pushes are accepted.
    pub enable_push: bool,
    /// Extended CONNECT is accepted (RFC 8441 3).
    pub enable_connect_protocol: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            header_table_bytes: 4096,
            max_concurrent_streams: u32::MAX,
            initial_window_bytes: WINDOW_INITIAL,
            max_frame_bytes: FRAME_BYTES_MIN,
            max_header_list_bytes: u32::MAX,
            enable_push: true,
            enable_connect_protocol: false,
        }
    }
}

impl Settings {
    /// Applies one setting of a peer. Unknown ones are ignored (RFC 9113 6.5.2).
    pub(super) fn apply(&mut self, id: u16, value: u32) -> Result<(), Violation> {
        match id {
            id::HEADER_TABLE_SIZE => self.header_table_bytes = value,
            id::ENABLE_PUSH if value > 1 => return Err(Violation::Http2BadSetting),
            id::ENABLE_PUSH => self.enable_push = value == 1,
            id::MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = value,
            id::INITIAL_WINDOW_SIZE if value > WINDOW_MAX => {
                return Err(Violation::Http2BadWindowSetting);
            }
            id::INITIAL_WINDOW_SIZE => self.initial_window_bytes = value,
            id::MAX_FRAME_SIZE if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&value) => {
                return Err(Violation::Http2BadSetting);
            }
            id::MAX_FRAME_SIZE => self.max_frame_bytes = value,
            id::MAX_HEADER_LIST_SIZE => self.max_header_list_bytes = value,
            // Once sent as 1, it must not be sent as 0 (RFC 8441 3).
            id::ENABLE_CONNECT_PROTOCOL
                if value > 1 || self.enable_connect_protocol && value == 0 =>
            {
                return Err(Violation::Http2BadSetting);
            }
            id::ENABLE_CONNECT_PROTOCOL => self.enable_connect_protocol = value == 1,
            _ => {}
        }
        Ok(())
    }
}

/// Limits of a connection and what it announces. One value is shared by all connections of a kind.
#[derive(Clone, Debug)]
pub struct Config {
    /// Longest list of fields of a head, as counted by RFC 7541 4.1, in bytes.
    pub header_list_bytes: u32,
    /// Longest header block as sent, over HEADERS and CONTINUATION, in bytes.
    pub header_block_bytes: u32,
    /// Most CONTINUATION frames of a header block.
    pub continuations: u16,
    /// Size of the peer's header compression table, in bytes. Peers may use 4,096 until they have
    /// acknowledged it (RFC 7541 4.2).
    pub header_table_bytes: u32,
    /// Receive window of a stream, in bytes, at most [`WINDOW_MAX`].
    pub stream_window_bytes: u32,
    /// Receive window of the connection, in bytes, from [`WINDOW_INITIAL`] to [`WINDOW_MAX`].
    pub connection_window_bytes: u32,
    /// Longest payload of a frame that is accepted, in bytes, from [`FRAME_BYTES_MIN`] to
    /// [`FRAME_BYTES_MAX`].
    pub frame_bytes: u32,
    /// Most streams that a client may have open at a time, in streams.
    pub max_streams: u32,
    /// Streams that a client opens at most before it knows the server's limit.
    pub initial_max_streams: u32,
    /// Extended CONNECT is accepted (RFC 8441 3); of servers.
    pub enable_connect_protocol: bool,
    /// Received data counts as consumed when [`Connection::release`](super::Connection::release)
    /// says so, not when it was returned.
    pub explicit_release: bool,
    /// Streams that a client may reset before the response, have reset for a violation, or open beyond
    /// the limit, in excess of those that ended regularly: rapid resets.
    pub resets: u16,
    /// Frames other than HEADERS and DATA that a peer may send in excess of useful frames, four for
    /// each of those: floods of PING, SETTINGS, WINDOW_UPDATE and PRIORITY.
    pub control_frames: u16,
    /// DATA and CONTINUATION frames without content that a peer may send in excess of useful ones.
    pub empty_frames: u16,
}

impl Config {
    /// As many bytes as an HTTP/1.1 head may have, and 32 a field, half of the fields allowed.
    pub const HEADER_LIST_BYTES: u32 = 16 * 1024;
    /// The list as literals without Huffman coding: never longer than the list as it is counted.
    pub const HEADER_BLOCK_BYTES: u32 = 16 * 1024;
    /// A block of the largest size in frames of 1 KiB.
    pub const CONTINUATIONS: u16 = 16;
    /// The initial value of RFC 9113 6.5.2.
    pub const HEADER_TABLE_BYTES: u32 = 4096;
    /// What nginx and Go's client use as well, within a factor of four.
    pub const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
    /// Four streams at full speed.
    pub const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
    /// The initial value of RFC 9113 6.5.2.
    pub const FRAME_BYTES: u32 = FRAME_BYTES_MIN;
    /// The least that RFC 9113 6.5.2 recommends; what nginx uses, within a factor of two.
    pub const MAX_STREAMS: u32 = 100;
    /// A browser that leaves a page resets all its streams, once or twice.
    pub const RESETS: u16 = 200;
    /// The acknowledgements of so many take 17 KB.
    pub const CONTROL_FRAMES: u16 = 1000;
    /// Empty frames have no use except to end a stream.
    pub const EMPTY_FRAMES: u16 = 100;

    /// For clients: a head that is too long costs its stream and not the connection, on which requests of others wait,
    /// as long as its fields exceed the limit by at most [`EXCESS_BYTES_MAX`].
    #[must_use]
    pub fn of_client() -> Config {
        // In frames of 1 KiB, as the limits of servers.
        let header_block_bytes = Self::HEADER_LIST_BYTES + EXCESS_BYTES_MAX as u32;
        let continuations = (header_block_bytes / 1024) as u16;
        Config { header_block_bytes, continuations, ..Config::default() }
    }

    /// The settings that a connection announces.
    pub fn settings(&self) -> Settings {
        Settings {
            header_table_bytes: self.header_table_bytes,
            max_concurrent_streams: self.max_streams,
            initial_window_bytes: self.stream_window(),
            max_frame_bytes: self.max_frame(),
            max_header_list_bytes: self.header_list_bytes,
            enable_push: false,
            enable_connect_protocol: self.enable_connect_protocol,
        }
    }

    #[inline]
    pub(super) fn stream_window(&self) -> u32 {
        self.stream_window_bytes.min(WINDOW_MAX)
    }

    #[inline]
    pub(super) fn max_frame(&self) -> u32 {
        self.frame_bytes.clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX)
    }

    /// The connection's window within the bounds of RFC 9113 6.9: it cannot begin smaller.
    pub(super) fn connection_window(&self) -> u32 {
        self.connection_window_bytes.clamp(WINDOW_INITIAL, WINDOW_MAX)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            header_list_bytes: Self::HEADER_LIST_BYTES,
            header_block_bytes: Self::HEADER_BLOCK_BYTES,
            continuations: Self::CONTINUATIONS,
            header_table_bytes: Self::HEADER_TABLE_BYTES,
            stream_window_bytes: Self::STREAM_WINDOW_BYTES,
            connection_window_bytes: Self::CONNECTION_WINDOW_BYTES,
            frame_bytes: Self::FRAME_BYTES,
            max_streams: Self::MAX_STREAMS,
            initial_max_streams: Self::MAX_STREAMS,
            enable_connect_protocol: false,
            explicit_release: false,
            resets: Self::RESETS,
            control_frames: Self::CONTROL_FRAMES,
            empty_frames: Self::EMPTY_FRAMES,
        }
    }
}
