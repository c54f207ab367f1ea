//! Frames, both directions: the RFC's examples, every header, every split.

mod compressed;
mod generated;
mod hostile;
mod utf8;

use std::string::String;
use std::vec::Vec;
use std::{format, vec};

use super::*;
use crate::{Limits, Role, Status, Violation};

const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];
/// The longest header and the longest control frame together.
const PARTIAL_BYTES_MAX: usize = HEADER_BYTES_MAX + CONTROL_BYTES_MAX;

/// What was decoded, independent of the reads it arrived in.
#[derive(Clone, PartialEq, Debug)]
enum Decoded {
    Message(OpCode, Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

/// Feeds a stream in reads of the given sizes, the rest at once, as a connection does: incomplete
/// tails are kept in front of the next read.
fn read(
    role: Role,
    limits: &Limits,
    stream: &[u8],
    reads: impl IntoIterator<Item = usize>,
) -> (Vec<Decoded>, Option<Violation>) {
    let mut decoder = Decoder::default();
    let (mut decoded, mut message, mut tail) = (vec![], vec![], vec![]);
    let mut rest = stream;
    for size in reads.into_iter().chain([stream.len()]) {
        let (now, later) = rest.split_at(size.min(rest.len()));
        rest = later;
        tail.extend_from_slice(now);
        let mut at = 0;
        loop {
            let (used, event) = match decoder.decode(role, limits, &mut tail[at..]) {
                Ok(Status::Complete(complete)) => complete,
                Ok(Status::Partial) => break,
                Err(violation) => return (decoded, Some(violation)),
            };
            match event {
                Event::Message { opcode, data, .. } => {
                    assert!(message.is_empty());
                    assert!(opcode == OpCode::Binary || core::str::from_utf8(data).is_ok());
                    decoded.push(Decoded::Message(opcode, data.to_vec()));
                }
                Event::Fragment { opcode, data, last, .. } => {
                    message.extend_from_slice(data);
                    if last {
                        decoded.push(Decoded::Message(opcode, std::mem::take(&mut message)));
                    }
                    assert_eq!(decoder.is_within_message(), !last);
                }
                Event::Ping(data) => decoded.push(Decoded::Ping(data.to_vec())),
                Event::Pong(data) => decoded.push(Decoded::Pong(data.to_vec())),
                Event::Close { code, reason } => {
                    decoded.push(Decoded::Close(code.map(|code| code.0), reason.into()));
                }
            }
            assert!(used > 0);
            at += used;
        }
        tail.drain(..at);
        if decoder.is_closed() {
            tail.clear();
        }
        assert!(tail.len() < PARTIAL_BYTES_MAX, "{} bytes are kept", tail.len());
    }
    (decoded, None)
}

fn read_at_once(role: Role, stream: &[u8]) -> (Vec<Decoded>, Option<Violation>) {
    read(role, &Limits::default(), stream, [])
}

fn violation(stream: &[u8]) -> Option<Violation> {
    let (_, whole) = read_at_once(Role::Server, stream);
    let (_, bytewise) = read(Role::Server, &Limits::default(), stream, vec![1; stream.len()]);
    assert_eq!(whole, bytewise);
    whole
}

fn frame(opcode: OpCode, fin: bool, data: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut out = FrameHeader::new(opcode, fin, data.len(), mask).as_slice().to_vec();
    let key = mask.unwrap_or_default();
    out.extend(data.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]));
    out
}

fn masked(opcode: OpCode, data: &[u8]) -> Vec<u8> {
    frame(opcode, true, data, Some(MASK))
}

fn text(text: &str) -> Decoded {
    Decoded::Message(OpCode::Text, text.into())
}

#[test]
fn rfc_6455_5_7_examples() {
    let client = |bytes: &[u8]| read_at_once(Role::Client, bytes);
    let single = b"\x81\x05\x48\x65\x6c\x6c\x6f";
    assert_eq!(client(single), (vec![text("Hello")], None));
    let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(read_at_once(Role::Server, masked), (vec![text("Hello")], None));
    let fragmented = b"\x01\x03\x48\x65\x6c\x80\x02\x6c\x6f";
    assert_eq!(client(fragmented), (vec![text("Hello")], None));
    let ping = b"\x89\x05\x48\x65\x6c\x6c\x6f";
    assert_eq!(client(ping), (vec![Decoded::Ping(b"Hello".into())], None));
    let pong = b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(read_at_once(Role::Server, pong), (vec![Decoded::Pong(b"Hello".into())], None));

    let header = |len| FrameHeader::new(OpCode::Binary, true, len, None).as_slice().to_vec();
    assert_eq!(header(256), b"\x82\x7e\x01\x00");
    assert_eq!(header(65536), b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00");

    let mut out = vec![];
    encode(&mut out, OpCode::Text, b"Hello");
    encode_masked(&mut out, OpCode::Text, b"Hello", MASK);
    assert_eq!(out, [&single[..], &masked[..]].concat());
}

/// The violation that the first two bytes alone determine, in the decoder's order; the payload is
/// zeros.
fn expected(role: Role, within: bool, first: u8, second: u8) -> Result<Option<OpCode>, Violation> {
    let (fin, length) = (first >= 0x80, second & 0x7F);
    let control = first & 0x08 != 0;
    match first & 0x0F {
        _ if first & 0x70 != 0 => Err(Violation::ReservedBits),
        3..=7 | 11.. => Err(Violation::ReservedOpCode),
        _ if control && !fin => Err(Violation::FragmentedControl),
        _ if control && length > 125 => Err(Violation::ControlTooLong),
        0 if !within => Err(Violation::UnexpectedContinuation),
        1 | 2 if within => Err(Violation::InterruptedMessage),
        _ if role == Role::Server && second < 0x80 => Err(Violation::UnmaskedFrame),
        _ if role == Role::Client && second >= 0x80 => Err(Violation::MaskedFrame),
        _ if length > 125 => Err(Violation::LengthNotMinimal),
        8 if length == 1 => Err(Violation::CloseTooShort),
        8 if length > 1 => Err(Violation::CloseCodeInvalid),
        number => Ok(OpCode::from_byte(number)),
    }
}

#[test]
fn every_pair_of_first_bytes_is_decided_as_expected() {
    let limits = Limits::default();
    for role in [Role::Server, Role::Client] {
        for pair in 0..=u16::MAX {
            for within in [false, true] {
                let mut decoder = Decoder::default();
                if within {
                    let mask = (role == Role::Server).then_some(MASK);
                    let mut begin = frame(OpCode::Text, false, b"x", mask);
                    assert!(decoder.decode(role, &limits, &mut begin).is_ok());
                }
                let [first, second] = pair.to_be_bytes();
                let mut buf = [0; 256];
                buf[..2].copy_from_slice(&[first, second]);
                let found = decoder.decode(role, &limits, &mut buf).map(|status| match status {
                    Status::Complete((_, Event::Message { opcode, .. })) => Some(opcode),
                    Status::Complete((_, Event::Fragment { opcode, .. })) if !within => {
                        Some(opcode)
                    }
                    Status::Complete((_, Event::Fragment { opcode, .. })) => {
                        (opcode == OpCode::Text).then_some(OpCode::Continuation)
                    }
                    Status::Complete((_, Event::Ping(_))) => Some(OpCode::Ping),
                    Status::Complete((_, Event::Pong(_))) => Some(OpCode::Pong),
                    Status::Complete((_, Event::Close { .. })) => Some(OpCode::Close),
                    Status::Partial => None,
                });
                assert_eq!(
                    found,
                    expected(role, within, first, second),
                    "{role:?} {within} {pair:04x}"
                );
            }
        }
    }
}

#[test]
fn lengths_around_every_boundary_are_decoded() {
    let limits = Limits { message_bytes: 70_000, ..Limits::default() };
    for len in [0, 1, 124, 125, 126, 127, 128, 65534, 65535, 65536, 65537, 70_000] {
        let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let expected = (vec![Decoded::Message(OpCode::Binary, data.clone())], None);
        let stream = masked(OpCode::Binary, &data);
        assert_eq!(read(Role::Server, &limits, &stream, []), expected);
        assert_eq!(read(Role::Server, &limits, &stream, [1, 1, 1, 1, 3, 1, 4, 7, 1000]), expected);
        let mut out = vec![];
        encode(&mut out, OpCode::Binary, &data);
        assert_eq!(read(Role::Client, &limits, &out, [5, 5, 5]), expected);
    }
    assert_eq!(
        read(Role::Server, &limits, &masked(OpCode::Binary, &[0; 70_001]), []).1,
        Some(Violation::MessageTooBig)
    );
}

#[test]
fn a_partial_data_frame_is_delivered_as_it_arrives() {
    let limits = Limits::default();
    let mut decoder = Decoder::default();
    let mut stream = masked(OpCode::Text, b"abcdefgh");
    let (header, payload) = stream.split_at_mut(6);
    assert_eq!(decoder.decode(Role::Server, &limits, header), Ok(Status::Partial));
    let mut first = [&*header, &payload[..3]].concat();
    let event = Event::Fragment {
        opcode: OpCode::Text,
        data: &mut b"abc".clone(),
        last: false,
        deflated: false,
    };
    let decoded = decoder.decode(Role::Server, &limits, &mut first);
    assert_eq!(decoded, Ok(Status::Complete((9, event))));
    assert_eq!(decoder.decode(Role::Server, &limits, &mut []), Ok(Status::Partial));
    let event = Event::Fragment {
        opcode: OpCode::Text,
        data: &mut b"defgh".clone(),
        last: true,
        deflated: false,
    };
    let decoded = decoder.decode(Role::Server, &limits, &mut payload[3..]);
    assert_eq!(decoded, Ok(Status::Complete((5, event))));
}

#[test]
fn a_frame_of_any_length_that_arrived_completely_is_one_message() {
    for len in [0, 1, 125, 126, 127, 65_535, 65_536] {
        for (role, mask) in [(Role::Client, None), (Role::Server, Some(MASK))] {
            let data = vec![b'a'; len];
            let mut stream = frame(OpCode::Text, true, &data, mask);
            let bytes = stream.len();
            stream.extend_from_slice(b"\x89");
            let limits = Limits { message_bytes: 65_536, ..Limits::default() };
            let decoded = Decoder::default().decode(role, &limits, &mut stream).unwrap();
            let Status::Complete((used, Event::Message { opcode, data: found, .. })) = decoded
            else {
                panic!("{len} bytes are no message: {decoded:?}")
            };
            assert_eq!((used, opcode, &*found), (bytes, OpCode::Text, &data[..]));
        }
    }
}

#[test]
fn empty_fragments_are_events() {
    let stream = [
        frame(OpCode::Text, false, b"", Some(MASK)),
        frame(OpCode::Continuation, false, b"", Some(MASK)),
        frame(OpCode::Continuation, true, b"", Some(MASK)),
        masked(OpCode::Text, b""),
    ];
    assert_eq!(read_at_once(Role::Server, &stream.concat()), (vec![text(""), text("")], None));
}

#[test]
fn close_reasons_are_truncated_at_a_character() {
    let mut out = vec![];
    encode_close(&mut out, Some(CloseCode::GOING_AWAY), &"é".repeat(100), None);
    assert_eq!(out.len(), 2 + 2 + 122);
    let expected = vec![Decoded::Close(Some(1001), "é".repeat(61))];
    assert_eq!(read_at_once(Role::Client, &out), (expected, None));
    out.clear();
    encode_close(&mut out, None, "nowhere to put it", Some(MASK));
    assert_eq!(out, [&[0x88, 0x80], &MASK[..]].concat());
    out.clear();
    encode_close(&mut out, Some(CloseCode::NORMAL), "bye", Some(MASK));
    let expected = vec![Decoded::Close(Some(1000), "bye".into())];
    assert_eq!(read_at_once(Role::Server, &out), (expected, None));
}

#[test]
fn a_decoder_reports_closed_and_within_message() {
    let limits = Limits::default();
    let mut decoder = Decoder::default();
    assert!(!decoder.is_closed() && !decoder.is_within_message());
    assert!(decoder.decode(Role::Client, &limits, &mut b"\x02\x01a".clone()).is_ok());
    assert!(!decoder.is_closed() && decoder.is_within_message());
    assert!(decoder.decode(Role::Client, &limits, &mut b"\x88\x00".clone()).is_ok());
    assert!(decoder.is_closed() && decoder.is_within_message());
}

#[test]
fn utf8_and_close_codes() {
    assert!(is_utf8("κόσμε".as_bytes()) && is_utf8(b""));
    assert!(!is_utf8(b"\xc3") && !is_utf8(b"a\xff"));
    assert_eq!(format!("{}", CloseCode::GOING_AWAY), "1001");
}
