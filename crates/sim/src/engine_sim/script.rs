//! [`Script`]: what a raw peer does, and all that it sends in bytes. Most of it no server
//! should be sent.

use fastrand::Rng;
use wire::websocket::{FrameHeader, OpCode, encode_masked};

use super::envelope::{Envelope, Kind};

/// What a raw peer does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Script {
    /// Echo, correct but split at any byte.
    Echo,
    /// Echo in fragments with pings between them.
    Fragments,
    /// Bytes of no meaning.
    Garbage,
    /// A request head that never ends.
    EndlessHead,
    /// Nothing after the handshake, not even pongs.
    Silent,
    /// Nothing after the handshake but pongs.
    Ponger,
    /// Echo without ever reading.
    Deaf,
    /// A frame that violates the protocol.
    Violator,
    /// Echoes, then a rule broken in the middle of a message.
    BreaksOff,
    /// A message in fragments without an end: many that are empty or tiny, or too much in all.
    Endless,
    /// Pings, and nothing is read.
    Pings,
    /// A request head that arrives byte by byte, and never in time.
    Dribble,
    /// Plain requests, several at once.
    Health,
    /// A stream of lines.
    Stream,
    /// Requests that take the messages of a polled connection.
    Poll,
}

pub(crate) const SCRIPTS: [Script; 15] = [
    Script::Echo,
    Script::Fragments,
    Script::Garbage,
    Script::EndlessHead,
    Script::Silent,
    Script::Ponger,
    Script::Deaf,
    Script::Violator,
    Script::BreaksOff,
    Script::Endless,
    Script::Pings,
    Script::Dribble,
    Script::Health,
    Script::Stream,
    Script::Poll,
];

impl Script {
    /// Whether it violates the WebSocket protocol.
    pub(crate) fn breaks(self) -> bool {
        matches!(self, Script::Violator | Script::BreaksOff | Script::Endless)
    }
}

/// Everything a script sends, in bytes.
pub(crate) fn script_bytes(
    script: Script,
    peer_id: u32,
    echoes: u32,
    filler: usize,
    random: &mut Rng,
) -> Vec<u8> {
    let mut out = Vec::new();
    match script {
        Script::Garbage => out.extend((0..random.usize(1..400)).map(|_| random.u8(..))),
        Script::Dribble => {
            out.extend_from_slice(b"GET /echo HTTP/1.1\r\nHost: h\r\n");
            out.extend((0..300).flat_map(|_| *b"X: y\r\n"));
        }
        Script::EndlessHead => {
            out.extend_from_slice(b"GET /echo HTTP/1.1\r\n");
            out.extend((0..random.usize(..300)).flat_map(|_| *b"X-Word: y\r\n").take(1000));
        }
        Script::Health => {
            out.extend((0..echoes).flat_map(|_| *b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"));
        }
        Script::Stream => out.extend_from_slice(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"),
        Script::Poll => {
            let head = format!("POST /poll/{peer_id} HTTP/1.1\r\nHost: h\r\nContent-Length: 0");
            out.extend((0..echoes).flat_map(|_| format!("{head}\r\n\r\n").into_bytes()));
        }
        _ => out.extend_from_slice(
            b"GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        ),
    }
    let says =
        matches!(script, Script::Echo | Script::Fragments | Script::Deaf | Script::BreaksOff);
    for number in 0..if says { echoes } else { 0 } {
        let envelope = Envelope { kind: Kind::Echo, peer_id, number };
        let data = envelope.write(random.usize(..filler));
        let opcode = envelope.opcode();
        if script == Script::Fragments {
            push_fragments(&mut out, opcode, &data, random);
        } else {
            encode_masked(&mut out, opcode, &data, random.u32(..).to_ne_bytes());
        }
    }
    match script {
        Script::Violator => out.extend_from_slice(broken(random)),
        Script::BreaksOff => {
            push_fragment(&mut out, OpCode::Text, b"begun", random);
            out.extend_from_slice(broken(random));
        }
        Script::Endless => push_endless(&mut out, random),
        Script::Pings => {
            let payload = vec![b'p'; random.usize(..=125)];
            for _ in 0..random.usize(50..400) {
                encode_masked(&mut out, OpCode::Ping, &payload, random.u32(..).to_ne_bytes());
            }
        }
        _ => {}
    }
    out
}

/// A frame that may not be sent within a message, nor most of them anywhere.
fn broken(random: &mut Rng) -> &'static [u8] {
    const BROKEN: [&[u8]; 13] = [
        b"\x81\x02hi",
        b"\xf1\x80\0\0\0\0",
        b"\x83\x80\0\0\0\0",
        b"\x89\xfe\x00\x80\0\0\0\0",
        b"\x81\x82\0\0\0\0\xff\xfe",
        // A control frame in fragments, RSV1 on a ping, and without agreement.
        b"\x09\x80\0\0\0\0",
        b"\xc9\x80\0\0\0\0",
        b"\xc1\x80\0\0\0\0",
        // Lengths of 2^63 and 2^64 - 1, of 100 GB, and in the long form without need.
        b"\x80\xff\x80\0\0\0\0\0\0\0\0\0\0\0",
        b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0",
        b"\x82\xff\0\0\0\x17\x48\x76\xe8\0\0\0\0\0",
        b"\x82\xfe\x00\x05\0\0\0\0hello",
        // A close frame of one byte, or with a code that may not be sent.
        b"\x88\x81\0\0\0\0\x03",
    ];
    random.choice(BROKEN).unwrap_or_default()
}

/// Fragments that never end, and a ping now and then.
fn push_endless(out: &mut Vec<u8>, random: &mut Rng) {
    let (bytes, count) = random.choice([(0, 300), (1, 300), (2000, 60)]).unwrap_or((0, 1));
    push_fragment(out, OpCode::Binary, &vec![b'f'; bytes], random);
    for _ in 0..count {
        push_fragment(out, OpCode::Continuation, &vec![b'f'; bytes], random);
        if random.u8(..16) == 0 {
            encode_masked(out, OpCode::Ping, b"between", [1, 2, 3, 4]);
        }
    }
}

/// One fragment that is not the last.
fn push_fragment(out: &mut Vec<u8>, opcode: OpCode, data: &[u8], random: &mut Rng) {
    let mask = random.u32(..).to_ne_bytes();
    let header = FrameHeader::new(opcode, false, data.len(), Some(mask));
    out.extend_from_slice(header.as_slice());
    out.extend(data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

fn push_fragments(out: &mut Vec<u8>, opcode: OpCode, data: &[u8], random: &mut Rng) {
    let mut rest = data;
    let mut opcode = opcode;
    loop {
        let (piece, more) = rest.split_at(random.usize(..=rest.len()));
        let last = more.is_empty();
        let mask = random.u32(..).to_ne_bytes();
        let header = FrameHeader::new(opcode, last, piece.len(), Some(mask));
        out.extend_from_slice(header.as_slice());
        out.extend(piece.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        if last {
            return;
        }
        if random.u8(..4) == 0 {
            encode_masked(out, OpCode::Ping, b"between", mask);
        }
        (rest, opcode) = (more, OpCode::Continuation);
    }
}
