//! Random streams of frames, and how our decoder reads them.

use proptest::collection::vec;
use proptest::prelude::*;
use wire::websocket::{Decoder, Event, FrameHeader, OpCode};
use wire::{Limits, Role, Status, Violation};

/// What a peer sent.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Seen {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
}

/// A valid message or control frame.
pub(crate) fn message(most: usize) -> impl Strategy<Value = Seen> {
    prop_oneof![
        4 => vec(any::<char>(), 0..most / 8).prop_map(|text| Seen::Text(text.into_iter().collect())),
        4 => vec(any::<u8>(), 0..most).prop_map(Seen::Binary),
        1 => vec(any::<u8>(), 0..126).prop_map(Seen::Ping),
        1 => vec(any::<u8>(), 0..126).prop_map(Seen::Pong),
    ]
}

/// Valid frames: messages in fragments, control frames between them.
pub(crate) fn good(from_peer_of: Role) -> impl Strategy<Value = Vec<u8>> {
    let piece = (message(900), vec(0usize..300, 0..4), any::<bool>(), any::<[u8; 4]>());
    vec(piece, 1..8).prop_map(move |pieces| {
        let mut out = Vec::new();
        for (message, cuts, ping, mask) in pieces {
            let mask = (from_peer_of == Role::Server).then_some(mask);
            let (opcode, data) = match message {
                Seen::Text(text) => (OpCode::Text, text.into_bytes()),
                Seen::Binary(data) => (OpCode::Binary, data),
                Seen::Ping(data) => (OpCode::Ping, data),
                Seen::Pong(data) => (OpCode::Pong, data),
                Seen::Close(_) => continue,
            };
            if opcode.is_control() {
                push(&mut out, opcode as u8 | 0x80, &data, mask);
                continue;
            }
            let (mut rest, mut first) = (data.as_slice(), opcode as u8);
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                push(&mut out, first, now, mask);
                (rest, first) = (later, 0);
                if ping {
                    push(&mut out, 0x89, b"between", mask);
                }
            }
            push(&mut out, first | 0x80, rest, mask);
        }
        out
    })
}

/// Complete frames of which some violate the protocol, and zeros for a reader that waits for more.
pub(crate) fn broken(from_peer_of: Role) -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        vec(any::<char>(), 0..60)
            .prop_map(|text| text.into_iter().collect::<String>().into_bytes()),
        vec(any::<u8>(), 0..140),
        (any::<u16>(), "[a-z]{0,20}").prop_map(|(code, reason)| [
            &code.to_be_bytes()[..],
            reason.as_bytes()
        ]
        .concat()),
        (0u16..5100).prop_map(|code| code.to_be_bytes().to_vec()),
        Just(vec![b'x'; 600]),
    ];
    let first = prop_oneof![
        6 => prop::sample::select(vec![0x81, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8A, 0x88]),
        1 => any::<u8>(),
    ];
    // How the length is written, and whether the mask is what the role requires.
    let form = prop_oneof![12 => Just(0u8), 1 => Just(2u8), 1 => Just(8u8)];
    let frame = (first, payload, form, prop::bool::weighted(0.95), any::<[u8; 4]>());
    vec(frame, 1..10).prop_map(move |frames| {
        let mut out = Vec::new();
        for (first, payload, form, right, mask) in frames {
            let mask = ((from_peer_of == Role::Server) == right).then_some(mask);
            push_form(&mut out, first, &payload, form, mask);
        }
        out.resize(out.len() + 1200, 0);
        out
    })
}

fn push(out: &mut Vec<u8>, first: u8, data: &[u8], mask: Option<[u8; 4]>) {
    push_form(out, first, data, 0, mask);
}

fn push_form(out: &mut Vec<u8>, first: u8, data: &[u8], form: u8, mask: Option<[u8; 4]>) {
    let begin = out.len();
    let masked = if mask.is_some() { 0x80 } else { 0 };
    match form {
        2 => {
            out.extend_from_slice(&[first, masked | 126]);
            out.extend_from_slice(&(data.len() as u16).to_be_bytes());
            out.extend_from_slice(mask.as_ref().map_or(&[], |mask| &mask[..]));
        }
        8 => {
            out.extend_from_slice(&[first, masked | 127]);
            out.extend_from_slice(&(data.len() as u64).to_be_bytes());
            out.extend_from_slice(mask.as_ref().map_or(&[], |mask| &mask[..]));
        }
        _ => {
            let header = FrameHeader::new(OpCode::Text, true, data.len(), mask);
            out.extend_from_slice(header.as_slice());
            out[begin] = first;
        }
    }
    let key = mask.unwrap_or_default();
    out.extend(data.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
}

/// How our decoder reads a stream, up to a violation or a close frame.
pub(crate) fn read_ours(
    role: Role,
    limits: &Limits,
    stream: &[u8],
) -> (Vec<Seen>, Option<Violation>) {
    let (mut decoder, mut stream) = (Decoder::default(), stream.to_vec());
    let (mut seen, mut begun, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        match decoder.decode(role, limits, &mut stream[at..]) {
            Ok(Status::Partial) => return (seen, None),
            Err(violation) => return (seen, Some(violation)),
            Ok(Status::Complete((used, event))) => {
                at += used;
                match event {
                    Event::Message { opcode, data, .. } => seen.push(whole(opcode, data.to_vec())),
                    Event::Fragment { opcode, data, last, .. } => {
                        begun.extend_from_slice(data);
                        if last {
                            seen.push(whole(opcode, std::mem::take(&mut begun)));
                        }
                    }
                    Event::Ping(data) => seen.push(Seen::Ping(data.to_vec())),
                    Event::Pong(data) => seen.push(Seen::Pong(data.to_vec())),
                    Event::Close { code, reason } => {
                        seen.push(Seen::Close(code.map(|code| (code.0, reason.to_owned()))));
                    }
                }
            }
        }
    }
}

fn whole(opcode: OpCode, data: Vec<u8>) -> Seen {
    match opcode {
        OpCode::Text => Seen::Text(String::from_utf8(data).expect("a text is UTF-8")),
        _ => Seen::Binary(data),
    }
}
