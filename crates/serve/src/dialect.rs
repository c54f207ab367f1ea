//! [`Dialect`]: how the connections of one path speak. A dialect turns messages into commands and
//! publications into frames; it sends nothing itself and knows no other connection.
//!
//! Keep-alive pings are the engine's (RFC 6455 section 5.5.2) for every dialect here.

use engine::{Core, Handler, Sys};
use topics::Publication;
use wire::websocket::{CloseCode, OpCode, Protocols};

/// What a message asks for.
pub(crate) enum Command<'m> {
    /// Send this back to whom it came from.
    Reply(OpCode, &'m [u8]),
    /// Publish this to the connection's topic.
    Publish { data: &'m [u8], binary: bool },
}

/// Why a session is ended by us.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Disconnect {
    /// What it publishes cannot be passed on, and too much waits already.
    Overloaded,
}

/// How the connections of one path speak. What most dialects say alike is given here.
pub(crate) trait Dialect {
    /// The subprotocol to agree on, of those offered. None is agreed on unless a dialect has one.
    fn accept(_offered: Protocols<'_>) -> Option<Box<str>> {
        None
    }

    /// What a message asks for.
    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_>;

    /// Appends a publication as this dialect's subscribers of group `group` get it. A group is those
    /// who have one [encoding](Core::encoding).
    fn encode<S: Sys, H: Handler>(
        core: &mut Core<S, H>,
        group: u32,
        publication: &Publication,
        out: &mut Vec<u8>,
    ) {
        let opcode = if publication.binary { OpCode::Binary } else { OpCode::Text };
        core.encode_message(group, opcode, &publication.data, out);
    }

    /// How a session is told that it ends.
    fn disconnect(reason: Disconnect) -> (CloseCode, &'static str) {
        match reason {
            Disconnect::Overloaded => (CloseCode::TRY_AGAIN_LATER, "overloaded"),
        }
    }
}

/// `/topics/NAME`: a message is a publication and a publication is a message, text or binary.
pub(crate) struct PlainTopic;

impl Dialect for PlainTopic {
    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_> {
        Command::Publish { data, binary: opcode == OpCode::Binary }
    }
}

/// `/echo`: every message comes back. For trying things out and for measuring.
pub(crate) struct Echo;

impl Dialect for Echo {
    #[inline]
    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_> {
        Command::Reply(opcode, data)
    }
}
