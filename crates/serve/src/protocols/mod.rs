//! [`ProtocolAdapter`]: the message protocol of one path. An adapter translates messages to commands
//! and publications to frames. It sends nothing itself and knows no other connection.
//!
//! The engine sends WebSocket pings (RFC 6455 section 5.5.2) for every protocol. Heartbeats that clients
//! of a protocol expect beside them are [`ProtocolAdapter::beat`].

mod cable;
mod events;
mod plain;

use std::borrow::Cow;

use action_cable::{Encoding, History, Presence};
use engine::{Core, Handler, Sys, invariant};
use topics::Publication;
use wire::websocket::{CloseCode, OpCode, Protocols};

use crate::identifiers::{Form, Group, Identifiers};

pub(crate) use self::cable::{Cable, Pings, encode_message, translated};
pub(crate) use self::events::Events;
pub(crate) use self::plain::{Echo, PlainTopic};

/// The command in a message.
#[derive(Debug, PartialEq)]
pub(crate) enum Command<'m> {
    /// Send this back to the client.
    Reply(OpCode, &'m [u8]),
    /// Publish this to the connection's topic.
    Publish { data: &'m [u8], binary: bool },
    /// Subscribe by this identifier; `history` and `presence` are requested with it.
    Subscribe {
        identifier: Cow<'m, str>,
        history: Option<History<'m>>,
        presence: Option<Presence<'m>>,
    },
    /// End the subscription by this identifier.
    Unsubscribe { identifier: Cow<'m, str> },
    /// Perform an action of the application's channel.
    Perform { identifier: Cow<'m, str>, data: Cow<'m, str> },
    /// Publish this to the other subscribers by the identifier.
    Whisper { identifier: Cow<'m, str>, data: &'m str },
    /// Send missed messages.
    History { identifier: Cow<'m, str>, history: History<'m> },
    /// Be present in the stream of a subscription.
    Join { identifier: Cow<'m, str>, presence: Presence<'m> },
    /// Be present no more.
    Leave { identifier: Cow<'m, str> },
    /// Send who is present, or with `records` off how many are.
    Presence { identifier: Cow<'m, str>, records: bool },
    /// Answer with a pong.
    Ping,
    /// No effect; the client is alive.
    Nothing,
    /// An unknown command.
    Unknown,
    /// The message is malformed.
    Malformed,
}

/// Why the server ends a session.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Disconnect {
    /// Its publication cannot be delivered, and the retry queue is full.
    Overloaded,
    /// It is not authorized to connect.
    Unauthorized,
    /// Its token has expired: the client may fetch another one and reconnect.
    TokenExpired,
    /// It sent a malformed message.
    Malformed,
    /// It did not answer pings within the pong timeout.
    NoPong,
    /// The server shuts down.
    Restart,
    /// The application requested it; `reconnect` tells whether the client may reconnect.
    Remote { reconnect: bool },
    /// The application cannot be called, or too many calls wait.
    AppUnavailable,
    /// The application failed to answer who the client is.
    AppFailed,
    /// The session of a request of long polling does not exist any more.
    SessionExpired,
}

/// The message protocol of one path. The defaults are those of most protocols.
pub(crate) trait ProtocolAdapter {
    /// Selects one of the offered subprotocols. Default: none.
    fn accept(_offered: Protocols<'_>) -> Option<Box<str>> {
        None
    }

    /// The command in a message.
    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_>;

    /// Appends the frame of a publication for the subscribers of a group; nothing if it cannot be told
    /// them.
    fn encode<S: Sys, H: Handler>(
        core: &mut Core<S, H>,
        group: Receivers<'_>,
        publication: &Publication,
        out: &mut Vec<u8>,
    ) {
        let opcode = if publication.binary { OpCode::Binary } else { OpCode::Text };
        core.encode_message(group.encoding, opcode, &publication.data, out);
    }

    /// Appends the frame of a heartbeat, which is sent ahead of queued messages.
    fn beat(_unix_s: u64, _out: &mut Vec<u8>) {}

    /// Appends the message with the reason why a session ends, if the protocol has one. Returns the
    /// close code and reason.
    fn disconnect(reason: Disconnect, _out: &mut Vec<u8>) -> (CloseCode, &'static str) {
        match reason {
            Disconnect::Overloaded => (CloseCode::TRY_AGAIN_LATER, "overloaded"),
            Disconnect::Unauthorized => (CloseCode::POLICY, "unauthorized"),
            Disconnect::TokenExpired => (CloseCode::POLICY, "token expired"),
            Disconnect::Malformed => (CloseCode::POLICY, "this cannot be understood"),
            Disconnect::NoPong => (CloseCode::NORMAL, "no pong"),
            Disconnect::Restart => (CloseCode::GOING_AWAY, "server is shutting down"),
            Disconnect::Remote { .. } => (CloseCode::NORMAL, "disconnected by the application"),
            Disconnect::AppUnavailable => (CloseCode::TRY_AGAIN_LATER, "application overloaded"),
            Disconnect::AppFailed => (CloseCode::INTERNAL, "application error"),
            Disconnect::SessionExpired => (CloseCode::NORMAL, "session expired"),
        }
    }
}

/// The receivers that a publication is encoded for.
#[derive(Copy, Clone)]
pub(crate) struct Receivers<'i> {
    /// The [encoding](Core::encoding) of their connections.
    pub(crate) encoding: u32,
    /// How messages of Action Cable are written.
    pub(crate) messages: Encoding,
    /// The prefix of each message, where receivers have an identifier.
    pub(crate) prefix: &'i [u8],
    /// Messages have their position.
    pub(crate) positions: bool,
}

/// Appends the frame of a publication for the group with this number.
pub(crate) fn encode<S: Sys, H: Handler>(
    identifiers: &Identifiers,
    core: &mut Core<S, H>,
    group: u32,
    publication: &Publication,
    out: &mut Vec<u8>,
) {
    let Group { encoding, messages, form } = Group::of(group);
    let plain = Receivers { encoding, messages, prefix: &[], positions: false };
    match form {
        _ if publication.gap => encode_gap(identifiers, core, Group::of(group), out),
        Form::Plain | Form::Cable(_) if publication.typed_only => {}
        Form::Plain => PlainTopic::encode(core, plain, publication, out),
        Form::Event => Events::encode(core, plain, publication, out),
        Form::Cable(index) | Form::CablePositions(index) => {
            let Some(identifier) = identifiers.get(index) else {
                return invariant::broken("a group of subscribers has an identifier");
            };
            let positions = matches!(form, Form::CablePositions(_));
            let receivers = Receivers { encoding, messages, prefix: &identifier.prefix, positions };
            let before = out.len();
            Cable::encode(core, receivers, publication, out);
            if out.len() == before {
                identifiers.count_unencodable();
                if publication.position().is_some() {
                    // An empty pong takes the message's place in the history.
                    wire::websocket::encode(out, OpCode::Pong, &[]);
                }
            }
        }
    }
}

/// Appends the frame that says that messages may be missing, where a protocol has one.
fn encode_gap<S: Sys, H: Handler>(
    identifiers: &Identifiers,
    core: &mut Core<S, H>,
    group: Group,
    out: &mut Vec<u8>,
) {
    match group.form {
        Form::Plain | Form::Cable(_) => {}
        Form::Event => Events::reset("gap", None, out),
        Form::CablePositions(index) => {
            let Some(identifier) = identifiers.get(index) else {
                return invariant::broken("a group of subscribers has an identifier");
            };
            Cable::gap(core, group, identifier.text(), out);
        }
    }
}
