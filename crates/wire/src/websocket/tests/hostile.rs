//! Inputs that broke other servers (BI-nn).

use super::*;

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
