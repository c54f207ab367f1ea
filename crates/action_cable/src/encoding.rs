//! [`Encoding`]: how a message is written: as JSON, or as the MessagePack or Protobuf that AnyCable's
//! clients offer by a subprotocol. JSON is the form that everything else is translated from and to.

use alloc::vec::Vec;

use crate::{Malformed, msgpack, protobuf};

/// How the messages of a connection are written.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
pub enum Encoding {
    /// Text frames.
    #[default]
    Json,
    /// Binary frames with the same maps in MessagePack.
    Msgpack,
    /// Binary frames with AnyCable's Protobuf messages, whose payloads are MessagePack.
    Protobuf,
}

impl Encoding {
    /// All of them.
    pub const ALL: [Encoding; 3] = [Encoding::Json, Encoding::Msgpack, Encoding::Protobuf];

    /// The last part of its subprotocol names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Json => "json",
            Encoding::Msgpack => "msgpack",
            Encoding::Protobuf => "protobuf",
        }
    }

    /// Appends a client's message as the JSON that [`Command::decode`](crate::Command::decode) reads: at
    /// most about seven times as many bytes.
    ///
    /// # Errors
    /// Why it is malformed. `json` holds a part of it then.
    pub fn decode(self, data: &[u8], json: &mut Vec<u8>) -> Result<(), Malformed> {
        match self {
            Encoding::Json => json.extend_from_slice(data),
            Encoding::Msgpack => msgpack::to_json(data, json)?,
            Encoding::Protobuf => protobuf::command_to_json(data, json)?,
        }
        Ok(())
    }

    /// Appends a server's message that is JSON. Protobuf has two schemas, one of them for the extended
    /// protocol.
    ///
    /// # Errors
    /// Why this encoding has no place for it. Nothing is appended then.
    pub fn encode(self, extended: bool, json: &str, out: &mut Vec<u8>) -> Result<(), Malformed> {
        match self {
            Encoding::Json => out.extend_from_slice(json.as_bytes()),
            Encoding::Msgpack => msgpack::put_json(json, out)?,
            Encoding::Protobuf => protobuf::put_json(extended, json, out)?,
        }
        Ok(())
    }
}
