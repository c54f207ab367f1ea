//! Frames of connections with permessage-deflate, as the decoder delivers them.

use super::*;

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
