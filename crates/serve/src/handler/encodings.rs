//! Clients of Action Cable that write messages in another encoding than JSON: their messages become the
//! JSON that other clients send, and JSON that is sent to them is translated.

use action_cable::Encoding;
use engine::{ConnId, Core, Sys};
use wire::websocket::OpCode;

use super::ServeHandler;
use crate::protocols::{Cable, Command, ProtocolAdapter, translated};
use crate::session::{Session, SessionProtocol};

/// Memory that a scratch buffer keeps, in bytes.
const KEPT_BYTES: usize = 64 * 1024;

impl ServeHandler {
    /// Sends a message of Action Cable that is JSON, as its client reads it.
    pub(super) fn send_json<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, json: &[u8]) {
        let Some(session) = core.user(id) else { return };
        let encoding = session.encoding();
        if encoding == Encoding::Json {
            core.send(id, OpCode::Text, json);
            return;
        }
        let extended = session.protocol() == SessionProtocol::CableExt;
        self.binary.clear();
        match translated(encoding, extended, json, &mut self.binary) {
            true => {
                core.send(id, OpCode::Binary, &self.binary);
            }
            false => self.counters(core.worker()).messages_unencodable.add(1),
        }
        self.binary.shrink_to(KEPT_BYTES);
    }

    /// Appends the frame of such a message for connections like this one; nothing if their encoding has
    /// no place for it.
    pub(super) fn frame_json<S: Sys>(
        &self,
        core: &mut Core<S, Self>,
        id: ConnId,
        json: &[u8],
        out: &mut Vec<u8>,
    ) {
        let Some(session) = core.user(id) else { return };
        let (compression, encoding) = (core.encoding(id), session.encoding());
        if encoding == Encoding::Json {
            return core.encode_message(compression, OpCode::Text, json, out);
        }
        let extended = session.protocol() == SessionProtocol::CableExt;
        let mut binary = Vec::new();
        match translated(encoding, extended, json, &mut binary) {
            true => core.encode_message(compression, OpCode::Binary, &binary, out),
            false => self.counters(core.worker()).messages_unencodable.add(1),
        }
    }

    /// A message of a client that does not write JSON.
    pub(super) fn encoded_message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &[u8],
    ) {
        let encoding = core.user(id).map_or(Encoding::Json, Session::encoding);
        let mut json = std::mem::take(&mut self.json);
        json.clear();
        let decoded = match opcode {
            OpCode::Binary => encoding.decode(data, &mut json),
            _ => Err(action_cable::Malformed::NotAnObject),
        };
        match decoded {
            Ok(()) if self.app.is_some() => self.app_message(core, id, OpCode::Text, &json),
            Ok(()) => self.execute(core, id, Cable::decode(OpCode::Text, &json)),
            Err(action_cable::Malformed::UnknownCommand) => {
                self.execute(core, id, Command::Unknown);
            }
            Err(_) => self.execute(core, id, Command::Malformed),
        }
        json.shrink_to(KEPT_BYTES);
        self.json = json;
    }
}
