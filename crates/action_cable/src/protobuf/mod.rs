//! AnyCable's Protobuf messages, package `action_cable`: clients send `Message`, servers send `Message`
//! in the base protocol and `Reply` in the extended one. Payloads (`message`) are MessagePack in bytes.
//! The schema is public in AnyCable's client; what it lacks (presence, `ping`, `pong` of a server, a
//! broadcast's own type) cannot be said.

mod command;
mod reply;

pub(crate) use self::command::command_to_json;
pub(crate) use self::reply::put_json;

/// Wire types.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// The values of `Type`.
const TYPES: [&str; 8] = [
    "",
    "welcome",
    "disconnect",
    "ping",
    "confirm_subscription",
    "reject_subscription",
    "confirm_history",
    "reject_history",
];
/// The values of `Command`.
const COMMANDS: [&str; 7] =
    ["", "subscribe", "unsubscribe", "message", "history", "pong", "whisper"];
