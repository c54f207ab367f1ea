//! BI-08 … BI-10, BI-12: compressed messages (RFC 7692).

use crate::harness::deflate::{
    CONTINUED, CONTINUED_LAST, DEFLATED, DEFLATED_FIRST, OFFER, deflated, finished, inflated,
    long_text,
};
use crate::harness::socket::{Frame, Socket, TEXT, masked};

use super::siege::{Attack, RSS_BYTES, Siege};

fn attack(violation: &'static str, close: u16, bytes: Vec<u8>) -> Attack {
    Attack::extended(OFFER, violation, close, bytes)
}

/// Compressed frames without a negotiation, and where none are allowed.
#[test]
fn bi_08_reserved_bits_with_compression() {
    let payload = deflated(b"x");
    let first = masked(DEFLATED_FIRST, &payload);
    let refused = |bytes| attack("reserved_bits", 1002, bytes);
    Siege::begin(&[]).refuses(&[
        Attack::frame("reserved_bits", 1002, masked(DEFLATED, &payload)),
        refused(masked(0xC9, b"ping")),
        refused(masked(0xC8, b"")),
        refused(masked(0xA1, b"")),
        refused([first.clone(), masked(0xC0, &payload)].concat()),
        refused([first, masked(0x40, &payload)].concat()),
    ]);
}

/// 1024:1, within the limit of a message on the wire, in one frame and in many.
#[test]
fn bi_09_decompression_bombs() {
    let bomb = deflated(&vec![0; 32 << 20]);
    assert!(bomb.len() < 64 * 1024, "{}", bomb.len());
    let mut pieces = masked(DEFLATED_FIRST, &bomb[..1]);
    bomb[1..].chunks(1_000).for_each(|piece| pieces.extend(masked(CONTINUED, piece)));
    pieces.extend(masked(CONTINUED_LAST, b""));
    Siege::begin(&[]).refuses(&[
        attack("inflated_too_big", 1009, masked(DEFLATED, &bomb)),
        attack("inflated_too_big", 1009, pieces),
    ]);
}

#[test]
fn bi_10_invalid_compressed_messages() {
    let whole = deflated(long_text("broken").as_bytes());
    // Refers to 20,000 bytes before its beginning.
    let too_far = [0x62, 0x60, 0x18, 0x05, 0x00, 0xff];
    let garbage = [finished(b"the last block"), vec![0xFF; 40]].concat();
    let broken = |payload: &[u8]| attack("bad_deflate", 1007, masked(DEFLATED, payload));
    Siege::begin(&[]).refuses(&[
        broken(&whole[..whole.len() / 2]),
        broken(b""),
        broken(&[0xFF; 40]),
        broken(&too_far),
        // A block of the reserved type.
        broken(&[0x06, 0x00]),
        broken(&garbage),
        attack("invalid_utf8", 1007, masked(DEFLATED, &deflated(b"a\xFF"))),
    ]);
}

/// A last block is legal, an empty message is one byte, and what follows a compressed frame is not
/// changed by the bytes that inflating adds.
#[test]
fn bi_10_unusual_but_valid_compressed_messages() {
    let mut siege = Siege::begin(&["--compress-above", "1MiB", "--max-message", "2MiB"]);
    let last_block = [finished(b"the last block"), vec![0]].concat();
    let frames = [
        masked(DEFLATED, &last_block),
        masked(DEFLATED, &[0]),
        masked(DEFLATED, &deflated(b"compressed")),
        masked(TEXT, b"plain"),
    ];
    let frames = frames.concat();
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::open_with(address, "/echo", OFFER);
            socket.send(&frames);
            socket
        },
        |mut socket| {
            for expected in [&b"the last block"[..], b"", b"compressed", b"plain"] {
                let payload = expected.to_vec();
                assert_eq!(socket.frame(), Some(Frame { first: TEXT, payload }));
            }
        },
    );
    siege.server.until_closed("gone", begun);
}

/// An aborted message on one connection does not appear on another: neither what was inflated
/// before, nor the rest of it.
#[test]
fn bi_12_no_data_leaks_between_connections() {
    let mut siege = Siege::begin(&["--compress-above", "1"]);
    let address = siege.server.listen;
    let [mut good, mut other] = [(); 2].map(|()| Socket::open_with(address, "/echo", OFFER));
    let canary = long_text("canary");
    let whole = deflated(canary.as_bytes());
    let mine = deflated(b"mine and nothing else");
    // Refers to 20,000 bytes before its beginning: where the canary would be.
    let too_far = vec![0x62, 0x60, 0x18, 0x05, 0x00, 0xff];
    let broken = [whole[..whole.len() / 2].to_vec(), Vec::new(), vec![0xFF; 40], too_far];
    let mut turn = broken.iter().cycle();
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            good.send_frame(DEFLATED, &whole);
            assert_eq!(inflated(&good.frame().unwrap().payload), canary.as_bytes());
            let mut bad = Socket::open_with(address, "/echo", OFFER);
            bad.send_frame(DEFLATED, turn.next().unwrap());
            other.send_frame(DEFLATED, &mine);
            let Frame { first, payload } = other.frame().unwrap();
            let received = if first == DEFLATED { inflated(&payload) } else { payload };
            assert_eq!(received, b"mine and nothing else");
            bad
        },
        |mut bad| {
            assert_eq!(bad.close_code(), 1007);
            assert!(bad.ends());
        },
    );
    siege.server.until_closed("violation", begun);
    let refused = "standfast_violations_total{violation=\"bad_deflate\"}";
    assert_eq!(siege.server.metrics()[refused], begun as f64);
}
