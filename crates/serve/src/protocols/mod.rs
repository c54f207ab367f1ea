//! [`Dialect`]: how the connections of one path speak. A dialect turns messages into commands and
//! publications into frames; it sends nothing itself and knows no other connection.
//!
//! Keep-alive pings of WebSocket (RFC 6455 section 5.5.2) are the engine's for every dialect; what
//! clients of a dialect expect beside them is its [`Dialect::beat`].

mod cable;
mod events;
mod plain;

use std::borrow::Cow;

use engine::{Core, Handler, Sys};
use topics::Publication;
use wire::websocket::{CloseCode, OpCode, Protocols};

use crate::identifiers::{Form, Group, Identifiers};

pub(crate) use self::cable::{Cable, say};
pub(crate) use self::events::Events;
pub(crate) use self::plain::{Echo, PlainTopic};

/// What a message asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Command<'m> {
    /// Send this back to whom it came from.
    Reply(OpCode, &'m [u8]),
    /// Publish this to the connection's topic.
    Publish { data: &'m [u8], binary: bool },
    /// Subscribe by this identifier; `history` and `presence` were asked for with it.
    Subscribe { identifier: Cow<'m, str>, history: bool, presence: bool },
    /// End the subscription by this identifier.
    Unsubscribe { identifier: Cow<'m, str> },
    /// Publish this to the others of a subscription.
    Whisper { identifier: Cow<'m, str>, data: &'m str },
    /// Tell what was missed.
    History { identifier: Cow<'m, str> },
    /// Say who is there, or that somebody is.
    Presence { identifier: Cow<'m, str> },
    /// Show that we are there.
    Ping,
    /// Only a sign of life.
    Nothing,
    /// Something for an application, or that we do not know.
    Unknown,
    /// It cannot be understood.
    Malformed,
}

/// Why a session is ended by us.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Disconnect {
    /// What it publishes cannot be passed on, and too much waits already.
    Overloaded,
    /// It may not come in.
    Unauthorized,
    /// It may fetch another token and come again.
    TokenExpired,
    /// It sent what cannot be understood.
    Malformed,
    /// It did not answer pings where that is asked.
    NoPong,
    /// The server goes away.
    Restart,
    /// The application said so; whether it may come again.
    Remote { reconnect: bool },
}

/// How the connections of one path speak. What most dialects say alike is given here.
pub(crate) trait Dialect {
    /// The subprotocol to agree on, of those offered. None is agreed on unless a dialect has one.
    fn accept(_offered: Protocols<'_>) -> Option<Box<str>> {
        None
    }

    /// What a message asks for.
    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_>;

    /// Appends a publication as the subscribers of a group get it.
    fn encode<S: Sys, H: Handler>(
        core: &mut Core<S, H>,
        group: Receivers<'_>,
        publication: &Publication,
        out: &mut Vec<u8>,
    ) {
        let opcode = if publication.binary { OpCode::Binary } else { OpCode::Text };
        core.encode_message(group.encoding, opcode, &publication.data, out);
    }

    /// Appends the frame that tells clients that we are there; they hear it before all that waits.
    fn beat(_unix_s: u64, _out: &mut Vec<u8>) {}

    /// Appends the message that tells why a session ends, if there is one, and says how its
    /// connection is closed then.
    fn disconnect(reason: Disconnect, _out: &mut Vec<u8>) -> (CloseCode, &'static str) {
        match reason {
            Disconnect::Overloaded => (CloseCode::TRY_AGAIN_LATER, "overloaded"),
            Disconnect::Unauthorized => (CloseCode::POLICY, "unauthorized"),
            Disconnect::TokenExpired => (CloseCode::POLICY, "token expired"),
            Disconnect::Malformed => (CloseCode::POLICY, "this cannot be understood"),
            Disconnect::NoPong => (CloseCode::NORMAL, "no pong"),
            Disconnect::Restart => (CloseCode::GOING_AWAY, "server is shutting down"),
            Disconnect::Remote { .. } => (CloseCode::NORMAL, "disconnected by the application"),
        }
    }
}

/// Who a publication is encoded for.
#[derive(Copy, Clone)]
pub(crate) struct Receivers<'i> {
    /// The [encoding](Core::encoding) of their connections.
    pub(crate) encoding: u32,
    /// What stands before the message, where they have an identifier.
    pub(crate) prefix: &'i [u8],
}

/// Appends a publication as the group of that number gets it.
pub(crate) fn encode<S: Sys, H: Handler>(
    identifiers: &Identifiers,
    core: &mut Core<S, H>,
    group: u32,
    publication: &Publication,
    out: &mut Vec<u8>,
) {
    let Group { encoding, form } = Group::of(group);
    let plain = Receivers { encoding, prefix: &[] };
    match form {
        Form::Plain => PlainTopic::encode(core, plain, publication, out),
        Form::Event => Events::encode(core, plain, publication, out),
        Form::Cable(index) => {
            let Some(identifier) = identifiers.get(index) else { return };
            let receivers = Receivers { encoding, prefix: &identifier.prefix };
            Cable::encode(core, receivers, publication, out);
        }
    }
}
