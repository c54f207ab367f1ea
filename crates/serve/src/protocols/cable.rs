//! Action Cable and AnyCable's extended protocol: each message is a JSON object in a text frame, or the
//! same in another [`Encoding`] in a binary one. The codec is the crate [`action_cable`]; this file
//! translates its commands, and `handler/channels.rs` executes them.

use std::str;

use action_cable::{self, DisconnectReason, Encoding, Message, Position, Protocol};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::{Core, Handler, SharedFrame, Sys};
use topics::Publication;
use wire::websocket::{self, CloseCode, OpCode, Protocols};

use super::{Command, Disconnect, ProtocolAdapter, Receivers};
use crate::identifiers::Group;

/// `/cable`.
pub(crate) struct Cable;

impl ProtocolAdapter for Cable {
    /// The first supported one in the client's order of preference.
    fn accept(mut offered: Protocols<'_>) -> Option<Box<str>> {
        offered.find_map(Protocol::from_name).map(|protocol| protocol.name().into())
    }

    fn decode(opcode: OpCode, data: &[u8]) -> Command<'_> {
        let text = str::from_utf8(data).ok().filter(|_| opcode == OpCode::Text);
        let Some(text) = text else { return Command::Malformed };
        match action_cable::Command::decode(text) {
            Ok(command) => translate(command),
            Err(action_cable::Malformed::UnknownCommand) => Command::Unknown,
            Err(_) => Command::Malformed,
        }
    }

    /// Text that is not JSON is sent as a JSON string, binary data as a string in base64.
    fn encode<S: Sys, H: Handler>(
        core: &mut Core<S, H>,
        group: Receivers<'_>,
        publication: &Publication,
        out: &mut Vec<u8>,
    ) {
        let mut message = Vec::with_capacity(group.prefix.len() + publication.data.len() + 1);
        match &publication.kind {
            Some(kind) => action_cable::typed_prefix(kind, group.prefix, &mut message),
            None => message.extend_from_slice(group.prefix),
        }
        match str::from_utf8(&publication.data) {
            Ok(text) if !publication.binary => action_cable::put_payload(text, &mut message),
            _ => action_cable::put_string(&STANDARD.encode(&publication.data), &mut message),
        }
        match publication.position().filter(|_| group.positions) {
            Some(position) => {
                let epoch = position.epoch.to_string().into();
                let stream_id = (&*publication.topic).into();
                let position = Position { stream_id, epoch, offset: position.offset };
                action_cable::data_suffix(Some(&position), &mut message);
            }
            None => action_cable::data_suffix(None, &mut message),
        }
        if group.messages == Encoding::Json {
            return core.encode_message(group.encoding, OpCode::Text, &message, out);
        }
        let mut binary = Vec::with_capacity(message.len());
        if translated(group.messages, group.positions, &message, &mut binary) {
            core.encode_message(group.encoding, OpCode::Binary, &binary, out);
        }
    }

    fn disconnect(reason: Disconnect, out: &mut Vec<u8>) -> (CloseCode, &'static str) {
        let sent = match reason {
            Disconnect::Overloaded => DisconnectReason::TooSlow,
            Disconnect::Unauthorized => DisconnectReason::Unauthorized,
            Disconnect::TokenExpired => DisconnectReason::TokenExpired,
            Disconnect::Malformed => DisconnectReason::InvalidRequest,
            Disconnect::NoPong => DisconnectReason::NoPong,
            Disconnect::Restart => DisconnectReason::ServerRestart,
            Disconnect::Remote { .. } => DisconnectReason::Remote,
            Disconnect::AppUnavailable => DisconnectReason::Other("overloaded".into()),
            Disconnect::SessionExpired => DisconnectReason::Other("session_expired".into()),
            // Without a message, as in AnyCable: clients connect again, later and later.
            Disconnect::AppFailed => return (CloseCode::INTERNAL, "application error"),
        };
        let reconnect = match reason {
            Disconnect::Remote { reconnect } => reconnect,
            _ => sent.reconnect(),
        };
        let code = CloseCode(sent.close_code());
        Message::Disconnect { reason: sent, reconnect }.encode(out);
        (code, "see the message before")
    }
}

impl Cable {
    /// Appends the message of the extended protocol that says that messages may be missing.
    pub(super) fn gap<S: Sys, H: Handler>(
        core: &mut Core<S, H>,
        group: Group,
        identifier: &str,
        out: &mut Vec<u8>,
    ) {
        let (mut text, mut binary) = (Vec::new(), Vec::new());
        let message = Message::RejectHistory { identifier: identifier.into() };
        let message = encode_message(&message, &mut text);
        if group.messages == Encoding::Json {
            return core.encode_message(group.encoding, OpCode::Text, message, out);
        }
        if translated(group.messages, true, message, &mut binary) {
            core.encode_message(group.encoding, OpCode::Binary, &binary, out);
        }
    }
}

/// Appends a message that is JSON in another encoding. Returns whether that has a place for it.
pub(crate) fn translated(
    encoding: Encoding,
    extended: bool,
    message: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    let text = str::from_utf8(message).ok();
    text.is_some_and(|text| encoding.encode(extended, text, out).is_ok())
}

/// One heartbeat as each client receives it; made for an encoding when its first client is met.
pub(crate) struct Pings {
    text: Vec<u8>,
    frames: Vec<(Protocol, SharedFrame)>,
}

impl Pings {
    pub(crate) fn new(unix_s: u64) -> Self {
        let mut text = Vec::new();
        Message::Ping { message: unix_s }.encode(&mut text);
        Pings { text, frames: Vec::new() }
    }

    pub(crate) fn of(&mut self, protocol: Protocol) -> &SharedFrame {
        let at = match self.frames.iter().position(|(own, _)| *own == protocol) {
            Some(at) => at,
            None => {
                let mut frame = Vec::new();
                let mut message = Vec::new();
                if protocol.encoding == Encoding::Json {
                    websocket::encode(&mut frame, OpCode::Text, &self.text);
                } else if translated(protocol.encoding, protocol.extended, &self.text, &mut message)
                {
                    websocket::encode(&mut frame, OpCode::Binary, &message);
                }
                self.frames.push((protocol, SharedFrame::new(&frame, 0)));
                self.frames.len() - 1
            }
        };
        &self.frames[at].1
    }
}

/// Encodes a message into `text`, which is cleared first.
pub(crate) fn encode_message<'t>(message: &Message<'_>, text: &'t mut Vec<u8>) -> &'t [u8] {
    text.clear();
    message.encode(text);
    text
}

fn translate(command: action_cable::Command<'_>) -> Command<'_> {
    use action_cable::Command as Decoded;
    match command {
        Decoded::Subscribe { identifier, history, presence } => {
            Command::Subscribe { identifier, history, presence }
        }
        Decoded::Unsubscribe { identifier } => Command::Unsubscribe { identifier },
        Decoded::Whisper { identifier, data } => Command::Whisper { identifier, data },
        Decoded::History { identifier, history } => Command::History { identifier, history },
        Decoded::Join { identifier, presence } => Command::Join { identifier, presence },
        Decoded::Leave { identifier, .. } => Command::Leave { identifier },
        Decoded::Presence { identifier, records } => Command::Presence { identifier, records },
        Decoded::Ping => Command::Ping,
        Decoded::Pong => Command::Nothing,
        Decoded::Message { identifier, data } => Command::Perform { identifier, data },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_translated() {
        let text = |text: &'static str| Cable::decode(OpCode::Text, text.as_bytes());
        let subscribe = text(r#"{"command":"subscribe","identifier":"a"}"#);
        let identifier = "a".into();
        assert_eq!(subscribe, Command::Subscribe { identifier, history: None, presence: None });
        assert_eq!(text(r#"{"command":"pong"}"#), Command::Nothing);
        let message = r#"{"command":"message","identifier":"a","data":"{}"}"#;
        let (identifier, data) = ("a".into(), "{}".into());
        assert_eq!(text(message), Command::Perform { identifier, data });
        assert_eq!(text(r#"{"command":"dance"}"#), Command::Unknown);
        for malformed in ["", "{", "[]", r#"{"command":"subscribe"}"#] {
            assert_eq!(text(malformed), Command::Malformed, "{malformed}");
        }
        let binary = Cable::decode(OpCode::Binary, br#"{"command":"pong"}"#);
        assert_eq!(binary, Command::Malformed);
    }

    #[test]
    fn a_disconnect_has_its_reason_and_close_code() {
        for (reason, fields, code) in [
            (Disconnect::Unauthorized, r#""unauthorized","reconnect":false"#, 1000),
            (Disconnect::Restart, r#""server_restart","reconnect":true"#, 1001),
            (Disconnect::Malformed, r#""invalid_request","reconnect":false"#, 1008),
            (Disconnect::Remote { reconnect: false }, r#""remote","reconnect":false"#, 1000),
            (Disconnect::Remote { reconnect: true }, r#""remote","reconnect":true"#, 1000),
        ] {
            let mut out = Vec::new();
            let (given, _) = Cable::disconnect(reason, &mut out);
            let expected = format!(r#"{{"type":"disconnect","reason":{fields}}}"#);
            assert_eq!((out, given.0), (expected.into_bytes(), code), "{reason:?}");
        }
    }
}
