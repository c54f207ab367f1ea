//! UTF-8 in text frames, in any fragments and reads.

use super::*;

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
