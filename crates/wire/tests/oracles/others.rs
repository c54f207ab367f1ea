//! tungstenite and fastwebsockets behind one trait: from a stream to events, and back.

use std::io::{self, Cursor, Read, Write};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fastwebsockets::{FragmentCollector, Frame, Payload, WebSocket, WebSocketError};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, Message};
use wire::{Role, Violation};

use crate::MESSAGE_BYTES;
use crate::streams::Seen;

/// How reading ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum End {
    /// The bytes ran out.
    Waits,
    Refused,
    /// By a close frame.
    Closed,
}

pub(crate) trait Other {
    fn name(&self) -> &'static str;
    fn read(&self, role: Role, stream: &[u8]) -> (Vec<Seen>, End);
    fn write(&self, role: Role, messages: &[Seen]) -> Vec<u8>;

    /// Whether it may accept, or notice later, what is a violation to us.
    fn is_lax(&self, violation: Violation) -> bool {
        lax().iter().any(|lax| lax.who == self.name() && lax.violation == violation)
    }
}

/// Something that we refuse and another accepts.
pub(crate) struct Lax {
    pub(crate) who: &'static str,
    pub(crate) violation: Violation,
    /// Why we refuse it.
    pub(crate) why: &'static str,
    /// Which of them accepts the example.
    pub(crate) role: Role,
    pub(crate) example: Vec<u8>,
}

/// Where we are stricter, each with an example.
pub(crate) fn lax() -> Vec<Lax> {
    use Violation::*;

    let half = [b"\x02\xfe\x02\x58\0\0\0\0".as_slice(), &[b'x'; 600]].concat();
    let mut sum = [half.clone(), half].concat();
    sum[608] = 0x80;
    let minimal =
        "RFC 6455 5.2: the shortest form is a MUST; a second form lets two readers differ";
    let long = "RFC 6455 5.5: a control frame has no extended length, whatever stands there";
    let (server, client) = (Role::Server, Role::Client);
    let table: [(_, _, _, _, &[u8]); 10] = [
        (
            "tungstenite",
            CloseCodeInvalid,
            "RFC 6455 7.4: it answers 1002, as we do, but tells its caller of a close frame",
            server,
            b"\x88\x82\0\0\0\0\x04\x04",
        ),
        ("tungstenite", ControlTooLong, long, server, b"\x89\xfe\x00\x01\0\0\0\0x"),
        ("tungstenite", LengthNotMinimal, minimal, server, b"\x81\xfe\x00\x01\0\0\0\0x"),
        ("fastwebsockets", ControlTooLong, long, server, b"\x8a\xfe\x00\x01\0\0\0\0x"),
        ("fastwebsockets", LengthNotMinimal, minimal, server, b"\x81\xfe\x00\x01\0\0\0\0x"),
        (
            "fastwebsockets",
            InterruptedMessage,
            "RFC 6455 5.4: the first of two fragmented messages would vanish unnoticed",
            server,
            b"\x01\x81\0\0\0\0a\x01\x81\0\0\0\0b",
        ),
        (
            "fastwebsockets",
            InvalidUtf8,
            "RFC 6455 8.1: a character torn at the end of the last fragment would vanish",
            server,
            b"\x01\x81\0\0\0\0\xc3\x80\x80\0\0\0\0",
        ),
        (
            "fastwebsockets",
            MaskedFrame,
            "RFC 6455 5.1: a client must close when a server masks",
            client,
            b"\x81\x81\0\0\0\0x",
        ),
        (
            "fastwebsockets",
            UnmaskedFrame,
            "RFC 6455 5.1: a server must close when a client does not mask, or proxies are fooled",
            server,
            b"\x81\x01x",
        ),
        (
            "fastwebsockets",
            MessageTooBig,
            "its limit is for a frame: fragments without end would fill the memory",
            server,
            &sum,
        ),
    ];
    let owned = |(who, violation, why, role, example): (_, _, _, _, &[u8])| Lax {
        who,
        violation,
        why,
        role,
        example: example.to_vec(),
    };
    table.into_iter().map(owned).collect()
}

pub(crate) struct Tungstenite;

/// The input to read is in front, what is written is kept.
pub(crate) struct Pipe {
    pub(crate) input: Cursor<Vec<u8>>,
    pub(crate) output: Vec<u8>,
}

impl Pipe {
    pub(crate) fn new(input: &[u8]) -> Pipe {
        Pipe { input: Cursor::new(input.to_vec()), output: Vec::new() }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.input.read(into)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn tungstenite_on(role: Role, input: &[u8]) -> tungstenite::WebSocket<Pipe> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES as usize))
        .max_frame_size(Some(MESSAGE_BYTES as usize));
    let role = match role {
        Role::Server => tungstenite::protocol::Role::Server,
        Role::Client => tungstenite::protocol::Role::Client,
    };
    tungstenite::WebSocket::from_raw_socket(Pipe::new(input), role, Some(config))
}

impl Other for Tungstenite {
    fn name(&self) -> &'static str {
        "tungstenite"
    }

    fn read(&self, role: Role, stream: &[u8]) -> (Vec<Seen>, End) {
        let mut socket = tungstenite_on(role, stream);
        let mut seen = Vec::new();
        loop {
            seen.push(match socket.read() {
                Ok(Message::Text(text)) => Seen::Text(text.to_string()),
                Ok(Message::Binary(data)) => Seen::Binary(data.to_vec()),
                Ok(Message::Ping(data)) => Seen::Ping(data.to_vec()),
                Ok(Message::Pong(data)) => Seen::Pong(data.to_vec()),
                Ok(Message::Close(frame)) => {
                    let said = frame.map(|frame| (frame.code.into(), frame.reason.to_string()));
                    seen.push(Seen::Close(said));
                    return (seen, End::Closed);
                }
                Ok(Message::Frame(_)) => panic!("a bare frame was read"),
                Err(Error::Protocol(
                    tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
                )) => return (seen, End::Waits),
                Err(_) => return (seen, End::Refused),
            });
        }
    }

    fn write(&self, role: Role, messages: &[Seen]) -> Vec<u8> {
        let mut socket = tungstenite_on(role, b"");
        for message in messages {
            let message = match message.clone() {
                Seen::Text(text) => Message::text(text),
                Seen::Binary(data) => Message::binary(data),
                Seen::Ping(data) => Message::Ping(data.into()),
                Seen::Pong(data) => Message::Pong(data.into()),
                Seen::Close(_) => Message::Close(None),
            };
            socket.send(message).expect("tungstenite writes");
        }
        socket.get_ref().output.clone()
    }
}

pub(crate) struct Fast;

type Joined<'s> = tokio::io::Join<&'s [u8], Vec<u8>>;

fn fast_on(role: Role, input: &[u8]) -> WebSocket<Joined<'_>> {
    let role = match role {
        Role::Server => fastwebsockets::Role::Server,
        Role::Client => fastwebsockets::Role::Client,
    };
    let mut socket = WebSocket::after_handshake(tokio::io::join(input, Vec::new()), role);
    // Its limit is the first size that is too long.
    socket.set_max_message_size(MESSAGE_BYTES as usize + 1);
    // Only with this setting does it check the contents of a close frame.
    socket.set_auto_close(true);
    socket.set_auto_pong(false);
    socket
}

/// Nothing here ever waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a buffer in memory is never pending"),
    }
}

impl Other for Fast {
    fn name(&self) -> &'static str {
        "fastwebsockets"
    }

    fn read(&self, role: Role, stream: &[u8]) -> (Vec<Seen>, End) {
        use fastwebsockets::OpCode;

        let mut socket = FragmentCollector::new(fast_on(role, stream));
        let mut seen = Vec::new();
        loop {
            let frame = match now(socket.read_frame()) {
                Ok(frame) => frame,
                Err(WebSocketError::UnexpectedEOF) => return (seen, End::Waits),
                Err(_) => return (seen, End::Refused),
            };
            let data = frame.payload.to_vec();
            seen.push(match frame.opcode {
                OpCode::Text => Seen::Text(String::from_utf8(data).expect("a text is UTF-8")),
                OpCode::Binary => Seen::Binary(data),
                OpCode::Ping => Seen::Ping(data),
                OpCode::Pong => Seen::Pong(data),
                OpCode::Close => {
                    let said = data.split_first_chunk().map(|(code, reason)| {
                        let reason = String::from_utf8_lossy(reason).into_owned();
                        (u16::from_be_bytes(*code), reason)
                    });
                    seen.push(Seen::Close(said));
                    return (seen, End::Closed);
                }
                OpCode::Continuation => panic!("a bare fragment was read"),
            });
        }
    }

    fn write(&self, role: Role, messages: &[Seen]) -> Vec<u8> {
        use fastwebsockets::OpCode;

        let mut socket = fast_on(role, b"");
        for message in messages {
            let (opcode, data) = match message {
                Seen::Text(text) => (OpCode::Text, text.as_bytes()),
                Seen::Binary(data) => (OpCode::Binary, data.as_slice()),
                Seen::Ping(data) => (OpCode::Ping, data.as_slice()),
                Seen::Pong(data) => (OpCode::Pong, data.as_slice()),
                Seen::Close(_) => continue,
            };
            let frame = Frame::new(true, opcode, None, Payload::Owned(data.to_vec()));
            now(socket.write_frame(frame)).expect("fastwebsockets writes");
        }
        now(socket.flush()).expect("a buffer in memory is flushed");
        socket.into_inner().into_inner().1
    }
}
