//! Frames, both directions: the RFC's examples, every header, every split, and bad inputs that
//! broke other servers (BI-nn).

use std::string::String;
use std::vec::Vec;
use std::{format, vec};

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

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
fn bi_01_lengths_of_2_to_the_63_and_64() {
    let head = |length: u64| [b"\x82\xff".as_slice(), &length.to_be_bytes(), &MASK].concat();
    assert_eq!(violation(&head(u64::MAX)), Some(Violation::LengthTopBit));
    assert_eq!(violation(&head(1 << 63)), Some(Violation::LengthTopBit));
    assert_eq!(violation(&head((1 << 63) - 1)), Some(Violation::MessageTooBig));
    // An overflow with the message under way must not hide it.
    let begun = frame(OpCode::Binary, false, b"abc", Some(MASK));
    let next = [b"\x80\xff".as_slice(), &((1u64 << 63) - 1).to_be_bytes(), &MASK].concat();
    assert_eq!(violation(&[begun, next].concat()), Some(Violation::MessageTooBig));
}

#[test]
fn bi_02_announced_sizes_are_refused_from_the_header() {
    for bytes in [65_537u64, 1 << 30, 100 << 30, 1 << 32, (1 << 32) + 5] {
        // Before the mask has arrived.
        let head = [b"\x82\xff".as_slice(), &bytes.to_be_bytes()].concat();
        assert_eq!(violation(&head), Some(Violation::MessageTooBig), "{bytes}");
    }
    // Without any limit, an announced size waits and allocates nothing.
    let limits = Limits { message_bytes: u32::MAX, ..Limits::default() };
    let head = [b"\x82\xff".as_slice(), &u64::from(u32::MAX).to_be_bytes(), &MASK].concat();
    assert_eq!(read(Role::Server, &limits, &head, []), (vec![], None));
}

#[test]
fn bi_03_lengths_in_more_bytes_than_needed() {
    for length in [0u16, 1, 125] {
        let head = [b"\x81\xfe".as_slice(), &length.to_be_bytes()].concat();
        assert_eq!(violation(&head), Some(Violation::LengthNotMinimal), "{length}");
    }
    for length in [0u64, 125, 126, 65535] {
        let head = [b"\x81\xff".as_slice(), &length.to_be_bytes()].concat();
        assert_eq!(violation(&head), Some(Violation::LengthNotMinimal), "{length}");
    }
}

#[test]
fn bi_04_many_tiny_fragments_count_as_one_message() {
    let limits = Limits { message_bytes: 131_000, ..Limits::default() };
    let mut stream = frame(OpCode::Binary, false, b"x", Some(MASK));
    for _ in 1..131_000 {
        stream.extend(frame(OpCode::Continuation, false, b"x", Some(MASK)));
    }
    assert_eq!(read(Role::Server, &limits, &stream, []), (vec![], None));
    stream.extend(frame(OpCode::Continuation, false, b"x", Some(MASK)));
    assert_eq!(read(Role::Server, &limits, &stream, []).1, Some(Violation::MessageTooBig));
}

#[test]
fn bi_05_the_limit_is_on_the_sum_of_fragments() {
    let begin = frame(OpCode::Binary, false, &[0; 40_000], Some(MASK));
    let go_on = frame(OpCode::Continuation, false, &[0; 25_536], Some(MASK));
    let full = [begin, go_on].concat();
    assert_eq!(violation(&full), None);
    let one_more = frame(OpCode::Continuation, true, b"x", Some(MASK));
    assert_eq!(violation(&[&full[..], &one_more].concat()), Some(Violation::MessageTooBig));
    // Also if the limit is smaller than the smallest frames.
    let limits = Limits { message_bytes: 4, ..Limits::default() };
    let small = |data| read(Role::Server, &limits, &masked(OpCode::Text, data), []).1;
    assert_eq!((small(b"four"), small(b"fours")), (None, Some(Violation::MessageTooBig)));
    // The sum restarts with each message.
    let end = frame(OpCode::Continuation, true, b"", Some(MASK));
    assert_eq!(violation(&[&full[..], &end, &full].concat()), None);
}

#[test]
fn bi_06_headers_split_anywhere_and_many_frames_at_once() {
    let limits = Limits { message_bytes: 70_000, ..Limits::default() };
    let long = [masked(OpCode::Text, b"before"), masked(OpCode::Binary, &[7; 66_000])].concat();
    let whole = read(Role::Server, &limits, &long, []);
    assert_eq!(whole.0.len(), 2);
    for cut in 0..40 {
        assert_eq!(read(Role::Server, &limits, &long, [cut]), whole);
    }
    let many = masked(OpCode::Text, b"hello").repeat(10_000);
    assert_eq!(read_at_once(Role::Server, &many), (vec![text("hello"); 10_000], None));
    let bytewise = read(Role::Server, &limits, &many, vec![1; many.len()]);
    assert_eq!(bytewise, (vec![text("hello"); 10_000], None));
}

#[test]
fn bi_07_close_frames() {
    let close = |payload: &[u8]| masked(OpCode::Close, payload);
    assert_eq!(violation(&close(b"\x03")), Some(Violation::CloseTooShort));
    for code in 0..=u16::MAX {
        let allowed = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
        let found = read_at_once(Role::Server, &close(&code.to_be_bytes()));
        let expected = match allowed {
            true => (vec![Decoded::Close(Some(code), String::new())], None),
            false => (vec![], Some(Violation::CloseCodeInvalid)),
        };
        assert_eq!(found, expected, "{code}");
    }
    let reason = |bytes: &[u8]| close(&[b"\x03\xe8", bytes].concat());
    assert_eq!(violation(&reason(b"\xce\xba\xe1")), Some(Violation::CloseReasonUtf8));
    assert_eq!(violation(&reason(&[b'x'; 124])), Some(Violation::ControlTooLong));
    let longest = "é".repeat(61);
    let expected = (vec![Decoded::Close(Some(1000), longest.clone())], None);
    assert_eq!(read_at_once(Role::Server, &reason(longest.as_bytes())), expected);

    // Within a message, and with arbitrary bytes after it.
    let begun = frame(OpCode::Text, false, b"abc", Some(MASK));
    let stream = [begun, close(b""), masked(OpCode::Text, b"late"), vec![0xFF; 500]].concat();
    let expected = (vec![Decoded::Close(None, String::new())], None);
    assert_eq!(read_at_once(Role::Server, &stream), expected);
    let bytewise = read(Role::Server, &Limits::default(), &stream, vec![1; stream.len()]);
    assert_eq!(bytewise, expected);

    // Any number of pings costs the decoder nothing.
    let pings = masked(OpCode::Ping, b"p").repeat(100_000);
    assert_eq!(
        read_at_once(Role::Server, &pings),
        (vec![Decoded::Ping(b"p".into()); 100_000], None)
    );
}

#[test]
fn bi_08_masks_and_reserved_bits() {
    assert_eq!(violation(b"\x81\x05Hello"), Some(Violation::UnmaskedFrame));
    let masked_by_server = masked(OpCode::Text, b"Hello");
    assert_eq!(read_at_once(Role::Client, &masked_by_server).1, Some(Violation::MaskedFrame));
    let zero = frame(OpCode::Text, true, b"Hello", Some([0; 4]));
    assert_eq!(read_at_once(Role::Server, &zero), (vec![text("Hello")], None));
    for bit in [0x40, 0x20, 0x10] {
        for opcode in [OpCode::Text, OpCode::Ping, OpCode::Close] {
            let mut stream = masked(opcode, b"");
            stream[0] |= bit;
            assert_eq!(violation(&stream), Some(Violation::ReservedBits));
        }
        let mut go_on = frame(OpCode::Continuation, true, b"", Some(MASK));
        go_on[0] |= bit;
        let stream = [frame(OpCode::Text, false, b"a", Some(MASK)), go_on].concat();
        assert_eq!(violation(&stream), Some(Violation::ReservedBits));
    }
}

/// Texts whose splits have broken validators: each length, borders of each range, overlong forms,
/// surrogates, beyond Unicode, lone and missing continuations.
const TRICKY: &[&[u8]] = &[
    "κόσμε".as_bytes(),
    "\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}".as_bytes(),
    "\0a\0é\0".as_bytes(),
    "\u{fffd}\u{fffe}\u{d7ff}\u{e000}".as_bytes(),
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
    b"ab\xf4\x90\x80\x80",
    b"\xf4\x8f\xbf\xbf\xf5",
    b"\xf0\x8f\xbf\xbf",
    b"\xe0\x9f\xbf",
    b"\xc1\xbf",
    b"\xc0\x80",
    b"\x80",
    b"a\xbf\xbf",
    b"\xf0\x90\x80",
    b"\xf0\x90\x80z",
    b"\xe2\x82",
    b"\xe2\x82\xe2\x82\xac",
    b"\xc3\xc3\xa9",
    b"\xc3a\xa9",
    b"\xe2a\x82\xac",
    b"\xed\xbf\xbf",
    b"\xfe",
    b"\xff\xff",
    b"abc\xc3",
];

#[test]
fn utf8_split_at_every_pair_of_points_agrees_with_core() {
    for bytes in TRICKY {
        let expected = match core::str::from_utf8(bytes) {
            Ok(valid) => (vec![text(valid)], None),
            Err(_) => (vec![], Some(Violation::InvalidUtf8)),
        };
        for mask in [None, Some(MASK)] {
            let role = if mask.is_some() { Role::Server } else { Role::Client };
            for first in 0..=bytes.len() {
                for second in first..=bytes.len() {
                    let fragments = [
                        frame(OpCode::Text, false, &bytes[..first], mask),
                        frame(OpCode::Continuation, false, &bytes[first..second], mask),
                        frame(OpCode::Continuation, true, &bytes[second..], mask),
                    ];
                    assert_eq!(read_at_once(role, &fragments.concat()), expected, "{bytes:02x?}");
                    let header = if mask.is_some() { 6 } else { 2 };
                    let reads = [header + first, second - first];
                    let stream = frame(OpCode::Text, true, bytes, mask);
                    let partial = read(role, &Limits::default(), &stream, reads);
                    assert_eq!(partial, expected, "{bytes:02x?}");
                }
            }
        }
    }
}

#[test]
fn invalid_utf8_is_refused_at_its_first_byte() {
    for bytes in TRICKY {
        let Err(error) = core::str::from_utf8(bytes) else { continue };
        let Some(invalid) = error.error_len() else { continue };
        // The shortest beginning that no continuation can make valid.
        let refused = (1..=error.valid_up_to() + invalid + 1)
            .find(|len| {
                core::str::from_utf8(bytes.get(..*len).unwrap_or(bytes))
                    .is_err_and(|error| error.error_len().is_some())
            })
            .unwrap();
        let mut decoder = Decoder::default();
        let limits = Limits::default();
        let mut header = FrameHeader::new(OpCode::Text, false, 100, None).as_slice().to_vec();
        header.push(b'a');
        assert!(decoder.decode(Role::Client, &limits, &mut header).is_ok());
        for (index, byte) in bytes.iter().enumerate().take(refused) {
            let found = decoder.decode(Role::Client, &limits, &mut [*byte]).is_err();
            assert_eq!(found, index + 1 == refused, "{bytes:02x?} at {index}");
        }
    }
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

/// "Hello", compressed (RFC 7692 7.2.3.1). It is not UTF-8.
const HELLO_DEFLATED: [u8; 7] = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];

/// An event: opcode, data, whether it is complete in itself, the last piece, compressed.
type Piece = (OpCode, Vec<u8>, bool, bool, bool);

/// Decodes a stream, all at once, on a connection that negotiated permessage-deflate.
fn read_deflated(role: Role, stream: &[u8]) -> (Vec<Piece>, Option<Violation>) {
    let (mut decoder, limits) = (Decoder::default(), Limits::default());
    decoder.enable_deflate();
    let (mut stream, mut at, mut pieces) = (stream.to_vec(), 0, vec![]);
    loop {
        let (used, event) = match decoder.decode(role, &limits, &mut stream[at..]) {
            Ok(Status::Complete(complete)) => complete,
            Ok(Status::Partial) => return (pieces, None),
            Err(violation) => return (pieces, Some(violation)),
        };
        at += used;
        pieces.push(match event {
            Event::Message { opcode, data, deflated } => {
                (opcode, data.to_vec(), true, true, deflated)
            }
            Event::Fragment { opcode, data, last, deflated } => {
                (opcode, data.to_vec(), false, last, deflated)
            }
            Event::Ping(data) => (OpCode::Ping, data.to_vec(), true, true, false),
            Event::Pong(data) => (OpCode::Pong, data.to_vec(), true, true, false),
            Event::Close { .. } => (OpCode::Close, vec![], true, true, false),
        });
    }
}

#[test]
fn compressed_frames_are_encoded_with_rsv1() {
    let mut out = vec![];
    encode_deflated(&mut out, OpCode::Text, &HELLO_DEFLATED, None);
    assert_eq!(out, [b"\xc1\x07", &HELLO_DEFLATED[..]].concat(), "RFC 7692 7.2.3.1");
    out.clear();
    encode_deflated(&mut out, OpCode::Binary, &HELLO_DEFLATED, Some(MASK));
    let masked = frame(OpCode::Binary, true, &HELLO_DEFLATED, Some(MASK));
    assert_eq!(out, [&[0xc2, 0x87], &masked[2..]].concat());
    // Appended to what is there, in the next form of the length.
    encode_deflated(&mut out, OpCode::Text, &[7; 126], None);
    assert_eq!(out[13..], [b"\xc1\x7e\x00\x7e".as_slice(), &[7; 126]].concat());
}

#[test]
fn compressed_messages_are_delivered_as_they_arrived() {
    let hello = HELLO_DEFLATED.to_vec();
    for (role, mask) in [(Role::Client, None), (Role::Server, Some(MASK))] {
        let mut stream = vec![];
        encode_deflated(&mut stream, OpCode::Text, &hello, mask);
        encode_deflated(&mut stream, OpCode::Binary, &hello, mask);
        stream.extend(frame(OpCode::Text, true, b"plain", mask));
        encode_deflated(&mut stream, OpCode::Text, &hello, mask);
        let compressed = |opcode| (opcode, hello.clone(), true, true, true);
        let plain = (OpCode::Text, b"plain".to_vec(), true, true, false);
        let expected =
            [compressed(OpCode::Text), compressed(OpCode::Binary), plain, compressed(OpCode::Text)];
        assert_eq!(read_deflated(role, &stream), (expected.to_vec(), None));
        // Not negotiated: RSV1 has no meaning.
        assert_eq!(read_at_once(role, &stream).1, Some(Violation::ReservedBits));
    }
}

#[test]
fn fragments_of_a_compressed_message_are_all_marked_as_compressed() {
    // RFC 7692 7.2.3.1, with a ping in between.
    let hello = b"\x41\x03\xf2\x48\xcd\x89\x00\x80\x04\xc9\xc9\x07\x00";
    let then_plain = b"\x01\x01a\x80\x01b\x82\x00";
    let expected = [
        (OpCode::Text, vec![0xf2, 0x48, 0xcd], false, false, true),
        (OpCode::Ping, vec![], true, true, false),
        (OpCode::Text, vec![0xc9, 0xc9, 0x07, 0x00], false, true, true),
        (OpCode::Text, b"a".to_vec(), false, false, false),
        (OpCode::Text, b"b".to_vec(), false, true, false),
        (OpCode::Binary, vec![], true, true, false),
    ];
    let stream = [&hello[..], then_plain].concat();
    assert_eq!(read_deflated(Role::Client, &stream), (expected.to_vec(), None));
    // A frame that arrives in two pieces.
    let (mut decoder, limits) = (Decoder::default(), Limits::default());
    decoder.enable_deflate();
    let mut begin = b"\xc1\x07\xf2\x48".to_vec();
    let event = Event::Fragment {
        opcode: OpCode::Text,
        data: &mut [0xf2, 0x48],
        last: false,
        deflated: true,
    };
    let decoded = decoder.decode(Role::Client, &limits, &mut begin);
    assert_eq!(decoded, Ok(Status::Complete((4, event))));
    assert!(decoder.is_within_message());
    let event = Event::Fragment {
        opcode: OpCode::Text,
        data: &mut [0xcd, 0xc9, 0xc9, 0x07, 0x00],
        last: true,
        deflated: true,
    };
    let mut end = HELLO_DEFLATED[2..].to_vec();
    let decoded = decoder.decode(Role::Client, &limits, &mut end);
    assert_eq!(decoded, Ok(Status::Complete((5, event))));
    assert!(!decoder.is_within_message());
}

#[test]
fn deflate_leaves_other_frames_as_strict_as_before() {
    let refused = |stream: &[u8]| read_deflated(Role::Client, stream).1;
    for first in [0xC0, 0xC8, 0xC9, 0xCA, 0xA1, 0x91, 0xE1, 0xD1, 0xF2] {
        assert_eq!(refused(&[first, 0]), Some(Violation::ReservedBits), "{first:02x}");
    }
    // RSV1 belongs to the first frame only (RFC 7692 6.1).
    assert_eq!(refused(b"\x41\x01a\xc0\x01b"), Some(Violation::ReservedBits));
    assert_eq!(refused(b"\x41\x01a\xc1\x01b"), Some(Violation::InterruptedMessage));
    // Text that is not compressed is checked, also in fragments and after a compressed message.
    assert_eq!(refused(b"\x81\x01\xff"), Some(Violation::InvalidUtf8));
    assert_eq!(refused(b"\xc1\x01\xff\x01\x01\xff"), Some(Violation::InvalidUtf8));
    assert_eq!(refused(b"\x81\x02\xc3\xc3"), Some(Violation::InvalidUtf8));
    let limits = Limits { message_bytes: 6, ..Limits::default() };
    let mut decoder = Decoder::default();
    decoder.enable_deflate();
    let mut long = [b"\xc1\x07".as_slice(), &HELLO_DEFLATED].concat();
    let refused = decoder.decode(Role::Client, &limits, &mut long);
    assert_eq!(refused, Err(Violation::MessageTooBig), "the limit is on the compressed bytes");
    let mut decoder = Decoder::default();
    decoder.enable_deflate();
    let mut close = *b"\x88\x00\x81\x01a";
    assert!(decoder.decode(Role::Client, &limits, &mut close).is_ok());
    assert!(decoder.is_closed());
    let after = decoder.decode(Role::Client, &limits, &mut close[2..]);
    assert_eq!(after, Ok(Status::Partial), "frames after a close are discarded");
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

/// What a peer sends: messages in fragments, with control frames between them.
#[derive(Clone, Debug)]
enum Sent {
    Message { opcode: OpCode, data: Vec<u8>, pieces: Vec<usize>, ping_between: bool },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

fn any_sent() -> impl Strategy<Value = Sent> {
    let data = prop_oneof![
        ".{0,60}".prop_map(String::into_bytes),
        vec_of(32u8..127, 0..300),
        vec_of(32u8..127, 65_400..65_540),
    ];
    let pieces = prop_oneof![Just(vec![]), vec_of(0usize..40, 0..5)];
    let opcode = prop_oneof![Just(OpCode::Text), Just(OpCode::Binary)];
    let message =
        (opcode, data, pieces, any::<bool>()).prop_map(|(opcode, data, pieces, ping_between)| {
            Sent::Message { opcode, data, pieces, ping_between }
        });
    prop_oneof![
        6 => message,
        1 => vec_of(any::<u8>(), 0..=125).prop_map(Sent::Ping),
        1 => vec_of(any::<u8>(), 0..=125).prop_map(Sent::Pong),
    ]
}

fn encode_all(sent: &[Sent], mask: Option<[u8; 4]>) -> (Vec<u8>, Vec<Decoded>) {
    let (mut stream, mut decoded) = (vec![], vec![]);
    for sent in sent {
        match sent {
            Sent::Ping(data) => {
                stream.extend(frame(OpCode::Ping, true, data, mask));
                decoded.push(Decoded::Ping(data.clone()));
            }
            Sent::Pong(data) => {
                stream.extend(frame(OpCode::Pong, true, data, mask));
                decoded.push(Decoded::Pong(data.clone()));
            }
            Sent::Message { opcode, data, pieces, ping_between } => {
                let (mut next, mut rest) = (*opcode, &data[..]);
                for size in pieces {
                    let (piece, later) = rest.split_at((*size).min(rest.len()));
                    stream.extend(frame(next, false, piece, mask));
                    (next, rest) = (OpCode::Continuation, later);
                    if *ping_between {
                        stream.extend(frame(OpCode::Ping, true, b"between", mask));
                        decoded.push(Decoded::Ping(b"between".into()));
                    }
                }
                stream.extend(frame(next, true, rest, mask));
                decoded.push(Decoded::Message(*opcode, data.clone()));
            }
        }
    }
    (stream, decoded)
}

fn reads() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![vec_of(0usize..20, 0..60), vec_of(1usize..3000, 0..60), Just(vec![1; 4000])]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(200), failure_persistence: None, ..Default::default() })]

    #[test]
    fn frames_decode_the_same_for_any_reads(
        sent in vec_of(any_sent(), 0..6), reads in reads(), mask in any::<Option<[u8; 4]>>(),
    ) {
        let role = if mask.is_some() { Role::Server } else { Role::Client };
        let (stream, decoded) = encode_all(&sent, mask);
        let limits = Limits { message_bytes: 70_000, ..Limits::default() };
        prop_assert_eq!(read(role, &limits, &stream, reads), (decoded, None));
    }

    #[test]
    fn any_stream_decodes_the_same_for_any_reads(
        sent in vec_of(any_sent(), 1..5), reads in reads(), flips in vec_of((any::<u16>(), 0u8..8), 0..4),
        garbage in vec_of(any::<u8>(), 0..40), mask in any::<Option<[u8; 4]>>(),
    ) {
        let role = if mask.is_some() { Role::Server } else { Role::Client };
        let (mut stream, _) = encode_all(&sent, mask);
        stream.extend(garbage);
        for (at, bit) in flips {
            let len = stream.len().max(1);
            if let Some(byte) = stream.get_mut(usize::from(at) % len.min(100)) {
                *byte ^= 1 << bit;
            }
        }
        let limits = Limits { message_bytes: 1000, ..Limits::default() };
        let whole = read(role, &limits, &stream, []);
        prop_assert_eq!(read(role, &limits, &stream, reads), whole, "{}", format!("{stream:02x?}"));
    }

    #[test]
    fn encoded_frames_decode(
        data in vec_of(any::<u8>(), 0..70_000), mask: [u8; 4], reason in ".{0,80}", code in 3000u16..5000,
    ) {
        let limits = Limits { message_bytes: 70_000, ..Limits::default() };
        let (mut server, mut client) = (vec![], vec![]);
        encode(&mut server, OpCode::Binary, &data);
        encode_close(&mut server, Some(CloseCode(code)), &reason, None);
        encode_masked(&mut client, OpCode::Binary, &data, mask);
        encode_close(&mut client, Some(CloseCode(code)), &reason, Some(mask));
        let from_server = read(Role::Client, &limits, &server, []);
        prop_assert_eq!(&from_server, &read(Role::Server, &limits, &client, []));
        prop_assert_eq!(from_server.1, None);
        prop_assert_eq!(&from_server.0[0], &Decoded::Message(OpCode::Binary, data));
        let truncated = matches!(&from_server.0[1], Decoded::Close(Some(sent), text)
            if *sent == code && reason.starts_with(text.as_str()) && text.len() > reason.len().min(123) - 4.min(reason.len()));
        prop_assert!(truncated || reason.is_empty());
    }
}
