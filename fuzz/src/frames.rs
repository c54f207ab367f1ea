//! A stream of frames read in pieces, as a connection reads it: an incomplete tail is kept in front of
//! the next read.

use wire::websocket::{CONTROL_BYTES_MAX, Decoder, Event, HEADER_BYTES_MAX, OpCode};
use wire::{Limits, Role, Status, Violation};

/// An event of the stream, independent of how the stream was split.
#[derive(Clone, PartialEq, Debug)]
pub enum Seen {
    /// The last field: whether it is compressed.
    Message(OpCode, Vec<u8>, bool),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

/// Reads the complete `stream` by reads of these sizes.
pub fn read(
    role: Role,
    deflate: bool,
    limits: &Limits,
    stream: &[u8],
    sizes: impl Iterator<Item = usize>,
) -> (Vec<Seen>, Option<Violation>) {
    let mut decoder = Decoder::default();
    if deflate {
        decoder.enable_deflate();
    }
    let (mut seen, mut message, mut tail) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = stream;
    for size in sizes {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(size.min(rest.len()));
        rest = later;
        tail.extend_from_slice(now);
        let mut at = 0;
        loop {
            let before = tail.clone();
            let (used, event) = match decoder.decode(role, limits, &mut tail[at..]) {
                Ok(Status::Complete(complete)) => complete,
                Ok(Status::Partial) => {
                    assert_eq!(before, tail, "a torn frame was changed");
                    break;
                }
                Err(violation) => return (seen, Some(violation)),
            };
            assert!(used > 0 && used <= before.len() - at);
            let within = match event {
                Event::Message { opcode, data, deflated } => {
                    assert!(message.is_empty() && data.len() <= limits.message_bytes as usize);
                    seen.push(Seen::Message(opcode, data.to_vec(), deflated));
                    false
                }
                Event::Fragment { opcode, data, last, deflated } => {
                    message.extend_from_slice(data);
                    assert!(message.len() <= limits.message_bytes as usize);
                    if last {
                        seen.push(Seen::Message(opcode, std::mem::take(&mut message), deflated));
                    }
                    !last
                }
                Event::Ping(data) => {
                    seen.push(Seen::Ping(data.to_vec()));
                    decoder.is_within_message()
                }
                Event::Pong(data) => {
                    seen.push(Seen::Pong(data.to_vec()));
                    decoder.is_within_message()
                }
                Event::Close { code, reason } => {
                    assert!(code.is_none_or(|code| code.is_sendable()));
                    seen.push(Seen::Close(code.map(|code| code.0), reason.to_owned()));
                    decoder.is_within_message()
                }
            };
            assert_eq!(decoder.is_within_message(), within);
            at += used;
        }
        tail.drain(..at);
        if decoder.is_closed() {
            break;
        }
        assert!(tail.len() < HEADER_BYTES_MAX + CONTROL_BYTES_MAX, "{} bytes kept", tail.len());
    }
    for event in &seen {
        if let Seen::Message(opcode, data, deflated) = event {
            assert!(deflate || !deflated);
            assert!(*deflated || *opcode == OpCode::Binary || std::str::from_utf8(data).is_ok());
        }
    }
    (seen, None)
}
