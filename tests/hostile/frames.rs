//! BI-01 … BI-08: frames (RFC 6455 section 5).

use std::time::{Duration, Instant};

use crate::harness::socket::{BINARY, CLOSE, Frame, PING, PONG, Socket, TEXT, masked};

use super::siege::{Attack, HELD, RSS_BYTES, Siege};

/// Time limit for the server to close every message that does not grow; the idle timeout is a part of it.
const UNFINISHED_MAX: Duration = Duration::from_secs(120);

/// A header that announces `length` bytes in the longest form, with the mask key 0.
fn announcing(length: u64) -> Vec<u8> {
    [&[BINARY, 0x80 | 127][..], &length.to_be_bytes(), &[0; 4]].concat()
}

fn closing(payload: &[u8]) -> Vec<u8> {
    masked(CLOSE, payload)
}

/// Closes properly and reads the answer.
fn close_normally(mut socket: Socket) {
    socket.send_frame(CLOSE, &1000_u16.to_be_bytes());
    assert_eq!(socket.close_code(), 1000);
    assert!(socket.ends());
}

#[test]
fn bi_01_lengths_of_2_to_the_63_and_more() {
    Siege::begin(&[]).refuses(&[
        Attack::frame("length_top_bit", 1002, announcing(u64::MAX)),
        Attack::frame("length_top_bit", 1002, announcing(1 << 63)),
        Attack::frame("message_too_big", 1009, announcing((1 << 63) - 1)),
    ]);
}

#[test]
fn bi_02_announced_gigabytes() {
    let attack = |gib: u64| Attack::frame("message_too_big", 1009, announcing(gib << 30));
    Siege::begin(&[]).refuses(&[attack(1), attack(10), attack(100)]);
}

#[test]
fn bi_02_allowed_sizes_announced_and_not_sent() {
    let mut siege = Siege::begin(&["--max-message", "100MiB"]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::open(address, "/echo");
            socket.send(&announcing(100 << 20));
            socket
        },
        drop,
    );
    siege.server.until_closed("gone", begun);
}

#[test]
fn bi_03_lengths_in_more_bytes_than_needed() {
    let short = |length: u16| [&[BINARY, 0xFE][..], &length.to_be_bytes(), &[0; 4]].concat();
    let attack = |bytes| Attack::frame("length_not_minimal", 1002, bytes);
    Siege::begin(&[]).refuses(&[
        attack(short(0)),
        attack(short(125)),
        attack(announcing(125)),
        attack(announcing(65_535)),
    ]);
}

/// 131,000 of them before the message is complete. They cost no more than their bytes.
#[test]
fn bi_04_endless_one_byte_fragments() {
    const EACH: usize = 655;
    endless_fragments(&masked(0x00, b"x").repeat(EACH), EACH);
}

/// For a while they are treated like pings: a sign of life, and no cost.
#[test]
fn bi_04_masses_of_empty_fragments() {
    endless_fragments(&masked(0x00, b"").repeat(655), 0);
}

/// But not forever: a message has to grow, or to end, within the idle timeout.
#[test]
fn bi_04_endless_empty_fragments() {
    // A round must not last as long as the idle timeout: a client that sent nothing for so long is closed
    // for that instead.
    let mut siege = Siege::begin(&["--idle-timeout", "6s"]);
    let mut hostile: Vec<Socket> =
        (0..HELD).map(|_| Socket::open(siege.server.listen, "/echo")).collect();
    hostile.iter_mut().for_each(|socket| socket.send_frame(0x01, b""));
    let rss = siege.server.own_bytes();
    let fragments = masked(0x00, b"").repeat(10);
    let mut turn = (0..HELD).cycle();
    let begun = Instant::now();
    while siege.server.closed("unfinished") < HELD as u64 {
        assert!(begun.elapsed() < UNFINISHED_MAX, "not all were closed as unfinished");
        siege.serves_as_before(|siege, times| {
            for number in 0..HELD {
                let next = turn.next().unwrap_or_default();
                times.take(number, siege, |_| hostile[next].send(&fragments));
            }
        });
    }
    assert!(siege.server.own_bytes() <= rss + RSS_BYTES);
    for mut socket in hostile {
        assert_eq!(socket.close_code(), 1008);
        assert!(socket.ends());
    }
}

/// One message grows between the bystander's echoes, is finished at last, and is echoed complete.
fn endless_fragments(fragments: &[u8], payload: usize) {
    let mut siege = Siege::begin(&["--max-message", "32MiB"]);
    let mut hostile = Socket::open(siege.server.listen, "/echo");
    hostile.send_frame(0x01, b"");
    let grown = 4 * (payload * HELD) as u64;
    let begun = siege.withstands(RSS_BYTES + grown, |_| hostile.send(fragments), |()| ());
    hostile.send_frame(0x80, b"");
    let echo = hostile.frame().unwrap();
    assert_eq!((echo.first, echo.payload.len()), (TEXT, payload * begun as usize));
    close_normally(hostile);
    siege.server.until_closed("by_peer", 1);
}

#[test]
fn bi_05_fragments_exceeding_the_limit_in_sum() {
    let piece = [7; 16 * 1024];
    let more = masked(0x00, &piece).repeat(4);
    let bytes = [masked(0x02, &piece), more].concat();
    Siege::begin(&[]).refuses(&[Attack::frame("message_too_big", 1009, bytes)]);
}

#[test]
fn bi_06_a_header_split_at_every_byte() {
    let mut siege = Siege::begin(&["--max-message", "1MiB"]);
    let frame = masked(BINARY, &[7; 65_536]);
    let begun = siege.withstands(
        8 * RSS_BYTES,
        |address| {
            let mut socket = Socket::open(address, "/echo");
            frame[..14].iter().for_each(|byte| socket.send(&[*byte]));
            socket.send(&frame[14..]);
            socket
        },
        |mut socket| {
            assert_eq!(socket.frame().unwrap().payload, [7; 65_536]);
            close_normally(socket);
        },
    );
    siege.server.until_closed("by_peer", begun);
}

#[test]
fn bi_06_a_header_at_the_end_of_the_read_buffer() {
    const BUFFER: usize = 64 * 1024;
    let mut siege = Siege::begin(&["--max-message", "1MiB"]);
    let last = masked(BINARY, &[7; 65_536]);
    let mut within = (0..=14).cycle();
    let begun = siege.withstands(
        8 * RSS_BYTES,
        |address| {
            let mut socket = Socket::open(address, "/echo");
            let first = BUFFER - 8 - within.next().unwrap_or_default();
            socket.send(&[masked(BINARY, &vec![1; first]), last.clone()].concat());
            (first, socket)
        },
        |(first, mut socket)| {
            assert_eq!(socket.frame().unwrap().payload.len(), first);
            assert_eq!(socket.frame().unwrap().payload, [7; 65_536]);
            close_normally(socket);
        },
    );
    siege.server.until_closed("by_peer", begun);
}

#[test]
fn bi_06_ten_thousand_frames_in_one_segment() {
    let mut siege = Siege::begin(&[]);
    let mut hostile = Socket::open(siege.server.listen, "/echo");
    hostile.send(&masked(TEXT, b"x").repeat(10_000));
    for _ in 0..10_000 {
        assert_eq!(hostile.frame(), Some(Frame { first: TEXT, payload: b"x".to_vec() }));
    }
    // Fifty at a time do not slow the bystander, however often.
    let fifty = masked(TEXT, b"x").repeat(50);
    let begun = siege.withstands(RSS_BYTES, |_| hostile.send(&fifty), |()| ());
    for _ in 0..50 * begun {
        assert_eq!(hostile.frame().unwrap().payload, b"x");
    }
    close_normally(hostile);
    siege.server.until_closed("by_peer", 1);
}

#[test]
fn bi_07_invalid_close_frames() {
    let mut attacks = vec![
        Attack::frame("close_too_short", 1002, closing(&[3])),
        Attack::frame("control_too_long", 1002, closing(&[&[3, 232][..], &[b'x'; 124]].concat())),
        Attack::frame("close_reason_utf8", 1007, closing(b"\x03\xE8\xFF")),
    ];
    for code in [0_u16, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535] {
        let bytes = closing(&code.to_be_bytes());
        attacks.push(Attack::frame("close_code_invalid", 1002, bytes));
    }
    Siege::begin(&[]).refuses(&attacks);
}

/// A close frame within a message, and messages and a ping after one: only the closing handshake is
/// answered.
#[test]
fn bi_07_data_around_a_close_frame() {
    let mut siege = Siege::begin(&[]);
    let normal = closing(&1000_u16.to_be_bytes());
    let within = [masked(0x01, b"begun"), normal.clone()].concat();
    let after = [normal, masked(TEXT, b"late"), masked(PING, b"late"), masked(0xFF, b"")].concat();
    let mut turn = [within, after].into_iter().cycle();
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::open(address, "/echo");
            socket.send(&turn.next().unwrap_or_default());
            socket
        },
        |mut socket| {
            let answer = socket.frame().unwrap();
            assert_eq!((answer.first, answer.payload), (CLOSE, 1000_u16.to_be_bytes().to_vec()));
            assert!(socket.ends());
        },
    );
    siege.server.until_closed("by_peer", begun);
}

/// Only the latest ping needs an answer, so for a client that does not read, only the kernel's
/// buffers fill.
#[test]
fn bi_07_a_hundred_thousand_pings_with_unread_pongs() {
    const EACH: u64 = 500;
    let mut siege = Siege::begin(&[]);
    let mut hostile = Socket::open(siege.server.listen, "/echo");
    let mut number = 0_u64;
    let attack = |_| {
        let mut pings = Vec::new();
        for _ in 0..EACH {
            number += 1;
            pings.extend(masked(PING, format!("{number:0125}").as_bytes()));
        }
        hostile.send(&pings);
    };
    let begun = siege.withstands(RSS_BYTES, attack, |()| ());
    assert!(begun * EACH >= 100_000);
    let mut pongs = 0;
    let mut latest = 0;
    while latest < begun * EACH {
        let pong = hostile.frame().unwrap();
        assert_eq!(pong.first, PONG);
        let answered: u64 = String::from_utf8(pong.payload).unwrap().parse().unwrap();
        assert!(answered > latest, "{answered} after {latest}");
        latest = answered;
        pongs += 1;
    }
    assert!(pongs <= begun * EACH);
    close_normally(hostile);
    siege.server.until_closed("by_peer", 1);
}

#[test]
fn bi_08_masks_reserved_bits_and_opcodes() {
    let bare = [&[TEXT, 4][..], b"bare"].concat();
    let within = |frame: Vec<u8>| [masked(0x01, b"begun"), frame].concat();
    Siege::begin(&[]).refuses(&[
        Attack::frame("unmasked_frame", 1002, bare),
        Attack::frame("unmasked_frame", 1002, vec![PING, 0]),
        Attack::frame("reserved_opcode", 1002, masked(0x83, b"")),
        Attack::frame("reserved_opcode", 1002, masked(0x87, b"x")),
        Attack::frame("reserved_opcode", 1002, masked(0x8B, b"")),
        Attack::frame("reserved_opcode", 1002, masked(0x8F, b"")),
        Attack::frame("reserved_bits", 1002, masked(TEXT | 0x40, b"not agreed")),
        Attack::frame("reserved_bits", 1002, masked(TEXT | 0x20, b"")),
        Attack::frame("reserved_bits", 1002, masked(TEXT | 0x10, b"")),
        Attack::frame("reserved_bits", 1002, masked(PING | 0x40, b"")),
        Attack::frame("reserved_bits", 1002, within(masked(0x80 | 0x40, b""))),
    ]);
}

#[test]
fn bi_08_the_mask_key_0_is_valid() {
    let mut siege = Siege::begin(&[]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::open(address, "/echo");
            socket.send(&[&[TEXT, 0x84, 0, 0, 0, 0][..], b"zero"].concat());
            socket
        },
        |mut socket| {
            assert_eq!(socket.frame().unwrap().payload, b"zero");
            close_normally(socket);
        },
    );
    siege.server.until_closed("by_peer", begun);
}
