//! Codec of Action Cable v1 and AnyCable's extended v1: JSON text to commands and messages and back,
//! both roles, no I/O.
//!
//! - [`Command`]: a client's message. [`Message`]: a server's message.
//! - [`channel()`]: the channel in an identifier. An identifier is a string of JSON; it is compared and
//!   sent back as text, never rewritten.
//! - [`data_prefix`] and [`data_suffix`]: the envelope of a message, so that a server encodes it once
//!   for all subscribers by the same identifier.
//! - [`DisconnectReason`]: why a server ends a connection, with its close code.
//!
//! There are no sockets, no clock and no cryptography here: signed names are returned unverified.
//! Decoded values borrow from the text, except strings with escapes. Payloads (`data` of a whisper, a
//! message, `info`) stay JSON text: validated but not decoded, nested to any depth, because nothing here
//! descends into them. Unknown keys are ignored. A repeated known key is an error, because other parsers
//! of the same text may choose the other one.
//!
//! Sources: `action_cable.rb`, `connection/*` and `server/*` of Rails 8; the extended protocol as
//! AnyCable documents it.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod channel;
mod command;
mod disconnect;
mod encoding;
mod history;
mod json;
mod malformed;
mod message;
mod msgpack;
mod presence;
mod protobuf;
mod protocol;

pub use channel::{Channel, channel};
pub use command::Command;
pub use disconnect::DisconnectReason;
pub use encoding::Encoding;
pub use history::{History, Position};
pub use json::{put_payload, put_string};
pub use malformed::Malformed;
pub use message::{Message, data_prefix, data_suffix, typed_prefix};
pub use presence::{Presence, PresenceEvent};
pub use protocol::{Protocol, TOKEN_PREFIX, UNSUPPORTED, V1, V1_EXT, token};
