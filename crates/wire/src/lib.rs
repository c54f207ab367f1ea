//! HTTP/1.1, HTTP/2 and WebSocket: bytes to events and back, both roles, no I/O.
//!
//! A decoder gets the bytes that have arrived and returns complete, partial or a [`Violation`];
//! short input is never an error, and no allocation depends on a size that the peer declares.
//! Encoders append to the caller's buffer. There are no sockets, no clock and no randomness here:
//! the caller supplies mask keys and nonces.
//!
//! - [`http`]: heads (located, then parsed) and bodies, RFC 9110 and RFC 9112.
//! - [`http2`]: connections in both roles, RFC 9113 and RFC 8441, and header compression (HPACK),
//!   RFC 7541.
//! - [`parse_proxy_header`]: the PROXY protocol, versions 1 and 2.
//! - [`websocket`]: the opening handshake, frames, RFC 6455, and permessage-deflate, RFC 7692.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used))]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod http;
pub mod http2;
mod limits;
mod proxy;
mod violation;
pub mod websocket;

pub use limits::Limits;
pub use proxy::{
    ProxyHeader, ProxyVersion, V2_BYTES_MAX, begins_proxy_header_v2, encode_proxy_header,
    parse_proxy_header,
};
pub use violation::Violation;

/// Our side of the connection: a server requires masked frames, a client unmasked ones.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Role {
    /// We accepted the connection.
    Server,
    /// We opened the connection.
    Client,
}

/// The result of decoding the bytes so far; a violation of the protocol is the `Err` around it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Status<T> {
    /// Enough bytes for one result.
    Complete(T),
    /// More bytes are needed; nothing was consumed.
    Partial,
}

/// How many cases a property test runs: `usual`, unless `PROPTEST_CASES` says otherwise.
#[cfg(test)]
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
