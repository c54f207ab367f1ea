//! Plain WebSocket messages, without an envelope.

use wire::websocket::OpCode;

use super::{Command, ProtocolAdapter};

/// `/topics/NAME`: a message is a publication and a publication is a message, text or binary.
pub(crate) struct PlainTopic;

impl ProtocolAdapter for PlainTopic {
    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_> {
        Command::Publish { data, binary: opcode == OpCode::Binary }
    }
}

/// `/echo`: each message is sent back. For tests and measurements.
pub(crate) struct Echo;

impl ProtocolAdapter for Echo {
    #[inline]
    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_> {
        Command::Reply(opcode, data)
    }
}
