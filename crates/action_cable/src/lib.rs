//! Action Cable v1 and AnyCable's extended v1: JSON text to commands and messages and back, both
//! roles, no I/O.
//!
//! - [`Command`]: what a client says. [`Message`]: what a server says.
//! - [`channel`]: what an identifier asks for. An identifier is a text that happens to be JSON; it is
//!   compared, and sent back, as the text it is, never rewritten.
//! - [`data_prefix`] and [`data_suffix`]: what stands around a message, so that a server encodes it
//!   once for all that have subscribed by the same identifier.
//! - [`DisconnectReason`]: why a server ends a connection, and with which close code.
//!
//! There are no sockets, no clock and no cryptography here: signed names are handed on as they came.
//! What is decoded borrows from the text, except strings with escapes. Values that are only passed on
//! (`data` of a whisper, a message, `info`) stay the JSON text they are, checked but not read; they may
//! nest as deep as the text is long, because nothing here descends into them. Unknown keys are ignored;
//! a known key that comes twice is refused, as there is no telling which of the two another reader
//! of the same text would take.
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
mod history;
mod json;
mod malformed;
mod message;
mod presence;
mod protocol;

pub use channel::{Channel, channel};
pub use command::Command;
pub use disconnect::DisconnectReason;
pub use history::{History, Position};
pub use json::{put_payload, put_string};
pub use malformed::Malformed;
pub use message::{Message, data_prefix, data_suffix, typed_prefix};
pub use presence::{Presence, PresenceEvent};
pub use protocol::{Protocol, TOKEN_PREFIX, UNSUPPORTED, V1, V1_EXT, token};
