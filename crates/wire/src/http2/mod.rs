//! HTTP/2 in both roles: frames, streams, windows, and the compression of header blocks (RFC 9113,
//! RFC 7541, RFC 8441). Not here: sockets, timers, priorities, and push, which is refused.

mod connection;
mod error_code;
pub mod frame;
mod head;
pub mod hpack;
mod settings;
mod streams;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Event, HeadKind, Refused, StreamEnded, StreamId};
pub use error_code::ErrorCode;
pub use settings::{Config, Settings};
