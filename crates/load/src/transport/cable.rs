//! [`Cable`]: Action Cable over [`WebSocket`] (`crates/action_cable` is the codec): a
//! connection is complete with the welcome, subscriptions are confirmed or rejected, pings of the
//! server are ignored, and published data is [`Received::Pushed`] with its identifier.

use action_cable::{Command, Message};

use crate::outcome::failure::Failure;
use crate::transport::driver::Push;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::transport::websocket::{WebSocket, WebSocketState};
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Kind;
use crate::workload::requests::request::Request;

/// One worker's clients.
#[derive(Default)]
pub struct Cable {
    pub(crate) socket: WebSocket,
    /// The last published data, and its identifier.
    data: Vec<u8>,
    identifier: String,
}

/// The state of a client.
#[derive(Default)]
pub struct CableState {
    socket: WebSocketState,
    awaits: Awaits,
}

#[derive(PartialEq, Eq, Default)]
enum Awaits {
    #[default]
    Nothing,
    Welcome,
    /// A confirmation or rejection of this identifier.
    Subscription(String),
}

/// What a message of the server means.
enum MessageOutcome {
    Nothing,
    Data,
    /// The awaited answer.
    Answer(u16),
    /// The server ends the connection.
    Disconnect(u16),
}

impl Cable {
    /// Messages of at most [`WebSocket::MESSAGE_BYTES_MAX`].
    #[must_use]
    pub fn new() -> Cable {
        Cable::default()
    }

    /// Decodes the last message; `None` if it is not Action Cable.
    fn read(&mut self, state: &mut CableState, awaited: &mut Awaited) -> Option<MessageOutcome> {
        let text = std::str::from_utf8(&self.socket.message).ok()?;
        let message = Message::decode(text).ok()?;
        let mut answers = |state: &mut CableState, status| {
            state.awaits = Awaits::Nothing;
            awaited.body(text.as_bytes());
            MessageOutcome::Answer(status)
        };
        Some(match message {
            Message::Welcome { .. } if state.awaits == Awaits::Welcome => answers(state, 101),
            Message::Confirm { identifier } | Message::Reject { identifier } if matches!(&state.awaits, Awaits::Subscription(one) if *one == identifier) => {
                answers(state, 0)
            }
            Message::Disconnect { reason, .. } => MessageOutcome::Disconnect(reason.close_code()),
            Message::Data { identifier, message, .. } => {
                self.identifier.clear();
                self.identifier.push_str(&identifier);
                self.data.clear();
                self.data.extend_from_slice(message.as_bytes());
                MessageOutcome::Data
            }
            _ => MessageOutcome::Nothing,
        })
    }
}

impl Driver for Cable {
    type State = CableState;

    const PUSHES: bool = true;

    fn seed(&mut self, random: u64) {
        self.socket.seed(random);
    }

    fn encode<'a>(&'a mut self, state: &mut CableState, request: &'a Request) -> &'a [u8] {
        let named = || {
            let text = std::str::from_utf8(request.bytes()).ok()?;
            match Command::decode(text).ok()? {
                Command::Subscribe { identifier, .. } => Some(identifier.into_owned()),
                _ => None,
            }
        };
        state.awaits = match request.kind() {
            Kind::Plain
            | Kind::Connect
            | Kind::ConnectCable
            | Kind::Unary
            | Kind::ServerStream
            | Kind::Call { .. } => Awaits::Welcome,
            Kind::Subscribe => named().map_or(Awaits::Nothing, Awaits::Subscription),
            _ => Awaits::Nothing,
        };
        self.socket.encode(&mut state.socket, request)
    }

    fn receive(&mut self, state: &mut CableState, bytes: &[u8], awaited: &mut Awaited) -> Received {
        self.socket.forget_reply();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.socket.next(&mut state.socket, rest, awaited) {
                // The welcome is still awaited.
                Received::Complete(whole) if whole.status == 101 => at += whole.used,
                Received::Complete(whole) => {
                    return Received::Complete(CompleteAnswer { used: at + whole.used, ..whole });
                }
                Received::Pushed(used) => {
                    at += used;
                    let body_bytes = self.socket.message.len() as u64;
                    match self.read(state, awaited) {
                        None => return Received::Failed(Failure::Unexpected),
                        Some(MessageOutcome::Nothing) => {}
                        Some(MessageOutcome::Data) => return Received::Pushed(at),
                        Some(MessageOutcome::Disconnect(code)) => return Received::Closing(code),
                        Some(MessageOutcome::Answer(status)) => {
                            let whole = CompleteAnswer { used: at, status, keep: true, body_bytes };
                            return Received::Complete(whole);
                        }
                    }
                }
                other => return other,
            }
        }
        Received::More
    }

    fn ended(&mut self, state: &mut CableState) -> Received {
        self.socket.ended(&mut state.socket)
    }

    fn message(&self) -> Push<'_> {
        Push {
            data: &self.data,
            is_text: true,
            identifier: Some(&self.identifier),
            ..Push::default()
        }
    }

    fn reply(&self) -> &[u8] {
        self.socket.reply()
    }

    fn close<'a>(&'a mut self, state: &mut CableState) -> &'a [u8] {
        self.socket.close_frame(&mut state.socket)
    }
}

#[cfg(test)]
mod tests {
    use wire::websocket::{OpCode, accept_key, encode};

    use super::*;
    use crate::workload::requests::answer::Wants;

    const HEAD: &[u8] =
        b"GET /cable HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: actioncable-v1-json\r\n\r\n";

    /// A client that has connected, and the first bytes of the server.
    fn asked(says: &[&str]) -> (Cable, CableState, Vec<u8>) {
        let (mut cable, mut state) = (Cable::new(), CableState::default());
        let request = Request::message(0, Kind::ConnectCable, HEAD.to_vec());
        let asked = String::from_utf8(cable.encode(&mut state, &request).to_vec()).unwrap();
        let key = asked.split("Sec-WebSocket-Key: ").nth(1).unwrap().trim();
        let accept = String::from_utf8(accept_key(key.as_bytes()).to_vec()).unwrap();
        let head = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
        let mut answer = format!("{head}Sec-WebSocket-Accept: {accept}\r\n\r\n").into_bytes();
        says.iter().for_each(|text| encode(&mut answer, OpCode::Text, text.as_bytes()));
        (cable, state, answer)
    }

    fn heard(cable: &mut Cable, state: &mut CableState, says: &str) -> (Received, String) {
        let (mut stream, mut awaited) = (Vec::new(), Awaited::default());
        awaited.begin(Wants::Body(1_000), false, false);
        encode(&mut stream, OpCode::Text, says.as_bytes());
        let received = cable.receive(state, &stream, &mut awaited);
        (received, String::from_utf8(awaited.kept_body().to_vec()).unwrap())
    }

    #[test]
    fn connection_completes_with_the_welcome_at_any_split() {
        let says = [r#"{"type":"ping","message":5}"#, r#"{"type":"welcome"}"#];
        let length = asked(&says).2.len();
        for piece in 1..=length {
            let (mut cable, mut state, answer) = asked(&says);
            let mut whole = Vec::new();
            for piece in answer.chunks(piece) {
                match cable.receive(&mut state, piece, &mut Awaited::default()) {
                    Received::More => {}
                    Received::Complete(one) => whole.push((one.status, one.keep, one.used)),
                    other => panic!("{other:?}"),
                }
            }
            let rest = length - (length - 1) / piece * piece;
            assert_eq!(whole, [(101, true, rest)], "pieces of {piece}");
        }
    }

    #[test]
    fn subscription_is_confirmed_or_rejected_and_then_receives_data() {
        let (mut cable, mut state, answer) = asked(&[r#"{"type":"welcome"}"#]);
        cable.receive(&mut state, &answer, &mut Awaited::default());
        let text = br#"{"command":"subscribe","identifier":"{\"channel\":\"A\"}"}"#;
        let subscribe = Request::message(0, Kind::Subscribe, text.to_vec());
        let confirm = r#"{"type":"confirm_subscription","identifier":"{\"channel\":\"A\"}"}"#;
        for answer in [confirm.to_owned(), confirm.replace("confirm", "reject")] {
            assert_eq!(cable.encode(&mut state, &subscribe).first(), Some(&0x81));
            let other = confirm.replace("A", "B");
            assert_eq!(heard(&mut cable, &mut state, &other).0, Received::More, "another's");
            let (received, body) = heard(&mut cable, &mut state, &answer);
            assert!(
                matches!(received, Received::Complete(whole) if whole.keep && whole.status == 0)
            );
            assert_eq!(body, answer, "the script tells them apart");
        }
        let data = r#"{"identifier":"{\"channel\":\"A\"}","message":{"a":[1]}}"#;
        let (received, _) = heard(&mut cable, &mut state, data);
        assert!(matches!(received, Received::Pushed(_)), "{received:?}");
        let push = cable.message();
        assert_eq!(
            (push.data, push.identifier),
            (&br#"{"a":[1]}"#[..], Some(r#"{"channel":"A"}"#))
        );
        let bye = r#"{"type":"disconnect","reason":"server_restart","reconnect":true}"#;
        assert!(matches!(heard(&mut cable, &mut state, bye).0, Received::Closing(_)));
        let wrong = heard(&mut cable, &mut state, "[]").0;
        assert_eq!(wrong, Received::Failed(Failure::Unexpected));
    }
}
