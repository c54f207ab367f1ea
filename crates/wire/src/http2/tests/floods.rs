//! Peers that attack: what they send is bounded by a count or by what it costs them, and what it costs
//! us by bytes and calls.

use std::vec;

use super::*;
use crate::Role;
use crate::http2::frame::flags;

const HEADERS: FrameType = FrameType::HEADERS;
const CONTINUATION: FrameType = FrameType::CONTINUATION;
const REQUEST: &[u8] = b"\x82\x86\x84";
const END: u8 = flags::END_HEADERS | flags::END_STREAM;

/// A server that has received a preface and SETTINGS.
fn server(config: &Config) -> Side {
    let mut side = Side::server(config);
    let settings = frame(FrameType::SETTINGS, 0, 0, b"");
    side.receive(&[PREFACE.as_slice(), &settings].concat()).unwrap();
    side.sent();
    side.calls = 0;
    side
}

/// Repeats frames until the violation; returns how often they were accepted.
fn repeat(side: &mut Side, mut next: impl FnMut(u32) -> Vec<u8>) -> (u32, Option<Violation>) {
    for round in 0..100_000 {
        if let Err(violation) = side.receive(&next(round)) {
            return (round, Some(violation));
        }
        side.seen.clear();
        side.ids.clear();
    }
    (100_000, None)
}

/// No peer makes a connection hold more than this beside its streams, in bytes.
const HELD_BYTES: usize = 64 * 1024;

#[test]
fn floods_end_after_a_bounded_number_of_frames() {
    type Next = fn(u32) -> Vec<u8>;
    let floods: [(&str, Next, u16, Violation); 13] = [
        (
            // CVE-2023-44487.
            "rapid reset",
            |round| {
                let id = 2 * round + 1;
                let cancel = frame(FrameType::RST_STREAM, 0, id, &[0, 0, 0, 8]);
                [frame(HEADERS, END, id, REQUEST), cancel].concat()
            },
            Config::RESETS,
            Violation::Http2TooManyResets,
        ),
        (
            // CVE-2025-8671: the peer makes us reset.
            "reset by a bad increment",
            |round| {
                let id = 2 * round + 1;
                let zero = frame(FrameType::WINDOW_UPDATE, 0, id, &[0; 4]);
                [frame(HEADERS, END, id, REQUEST), zero].concat()
            },
            Config::RESETS,
            Violation::Http2TooManyResets,
        ),
        (
            "malformed requests",
            |round| frame(HEADERS, END, 2 * round + 1, b"\x82"),
            Config::RESETS,
            Violation::Http2TooManyResets,
        ),
        (
            // CVE-2019-9512.
            "PING",
            |_| frame(FrameType::PING, 0, 0, b"12345678"),
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            // CVE-2019-9515.
            "SETTINGS",
            |round| frame(FrameType::SETTINGS, 0, 0, &setting(4, round)),
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            "PRIORITY",
            |round| frame(FrameType::PRIORITY, 0, 2 * round + 1, &[0; 5]),
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            "WINDOW_UPDATE",
            |_| frame(FrameType::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            "empty DATA on a stream that we have reset",
            |round| match round {
                0 => {
                    let zero = frame(FrameType::WINDOW_UPDATE, 0, 1, &[0; 4]);
                    [frame(HEADERS, flags::END_HEADERS, 1, REQUEST), zero].concat()
                }
                _ => frame(FrameType::DATA, flags::END_STREAM, 1, b""),
            },
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            "GOAWAY",
            |_| frame(FrameType::GOAWAY, 0, 0, &[0; 1000]),
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            "RST_STREAM of a stream that has ended",
            |round| match round {
                0 => {
                    let cancel = frame(FrameType::RST_STREAM, 0, 1, &[0, 0, 0, 8]);
                    [frame(HEADERS, END, 1, REQUEST), cancel].concat()
                }
                _ => frame(FrameType::RST_STREAM, 0, 1, &[0, 0, 0, 8]),
            },
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            "unknown frames",
            |_| frame(FrameType(99), 0, 0, b""),
            Config::CONTROL_FRAMES,
            Violation::Http2TooManyControlFrames,
        ),
        (
            // CVE-2019-9518.
            "empty DATA",
            |round| match round {
                0 => frame(HEADERS, flags::END_HEADERS, 1, REQUEST),
                _ => frame(FrameType::DATA, 0, 1, b""),
            },
            Config::EMPTY_FRAMES,
            Violation::Http2TooManyEmptyFrames,
        ),
        (
            "DATA of nothing but padding",
            |round| match round {
                0 => frame(HEADERS, flags::END_HEADERS, 1, REQUEST),
                _ => frame(FrameType::DATA, flags::PADDED, 1, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            },
            Config::EMPTY_FRAMES,
            Violation::Http2TooManyEmptyFrames,
        ),
    ];
    for (what, next, allowed, expected) in floods {
        let mut side = server(&Config::default());
        let (rounds, violation) = repeat(&mut side, next);
        assert_eq!(violation, Some(expected), "{what}");
        let allowed = u32::from(allowed);
        assert!((allowed - 2..=allowed + 1).contains(&rounds), "{what}: {rounds}");
        assert!(side.out.len() <= 20 * allowed as usize, "{what}: {}", side.out.len());
        assert!(side.connection.memory_bytes() <= HELD_BYTES, "{what}");
        assert!(side.calls <= 4 * allowed as usize + 4, "{what}: {}", side.calls);
    }
}

#[test]
fn resets_among_requests_that_are_answered_are_no_flood() {
    let mut side = server(&Config::default());
    for round in 0..10_000 {
        let id = 2 * round + 1;
        side.receive(&frame(HEADERS, END, id, REQUEST)).unwrap();
        if round % 2 == 0 {
            side.receive(&frame(FrameType::RST_STREAM, 0, id, &[0, 0, 0, 8])).unwrap();
        } else {
            let id = *side.ids.last().unwrap();
            side.connection.respond(id, OK, true, &mut side.out).unwrap();
        }
        side.sent();
        side.seen.clear();
    }
}

#[test]
fn resets_of_streams_whose_response_has_begun_are_no_flood() {
    let mut side = server(&Config::default());
    for round in 0..10 * u32::from(Config::RESETS) {
        side.receive(&frame(HEADERS, END, 2 * round + 1, REQUEST)).unwrap();
        let id = *side.ids.last().unwrap();
        side.connection.respond(id, OK, false, &mut side.out).unwrap();
        side.receive(&frame(FrameType::RST_STREAM, 0, id.get(), &[0, 0, 0, 8])).unwrap();
        side.sent();
    }
    // An interim response is none.
    let first = 10 * u32::from(Config::RESETS);
    let early: [Field; 1] = [(b":status", b"103")];
    for round in 0..=u32::from(Config::RESETS) {
        let id = 2 * (first + round) + 1;
        side.receive(&frame(HEADERS, END, id, REQUEST)).unwrap();
        let stream = *side.ids.last().unwrap();
        side.connection.respond_interim(stream, early, &mut side.out).unwrap();
        let result = side.receive(&frame(FrameType::RST_STREAM, 0, id, &[0, 0, 0, 8]));
        let violation = Violation::Http2TooManyResets;
        let is_last = round == u32::from(Config::RESETS);
        assert_eq!(result, if is_last { Err(violation) } else { Ok(()) });
    }
}

#[test]
fn pings_that_are_answered_in_time_are_no_flood() {
    let mut side = server(&Config::default());
    for _ in 0..100 * u32::from(Config::CONTROL_FRAMES) {
        side.receive(&frame(FrameType::PING, 0, 0, b"12345678")).unwrap();
        side.sent();
        side.connection.written();
    }
}

#[test]
fn a_client_counts_interim_responses() {
    let mut side = Side::client(&Config::default());
    side.receive(&frame(FrameType::SETTINGS, 0, 0, b"")).unwrap();
    side.connection.open(GET, true, 0, &mut side.out).unwrap();
    let early = frame(HEADERS, flags::END_HEADERS, 1, b"\x48\x03103");
    let (rounds, violation) = repeat(&mut side, |_| early.clone());
    assert_eq!(violation, Some(Violation::Http2TooManyControlFrames));
    assert!(rounds <= u32::from(Config::CONTROL_FRAMES));
}

#[test]
fn header_blocks_are_bounded() {
    // CVE-2024-27316 and others: CONTINUATION without an end.
    let floods: [(&[u8], _, usize); 3] = [
        (&[0; 1000], Violation::Http2TooManyContinuations, 17),
        (&[0; 10_000], Violation::Http2HeaderBlockTooLarge, 2),
        (b"", Violation::Http2TooManyContinuations, 17),
    ];
    for (piece, expected, most) in floods {
        let mut side = server(&Config::default());
        side.receive(&frame(HEADERS, 0, 1, b"\x40\x7f\xff\xff\x01")).unwrap();
        let (rounds, violation) = repeat(&mut side, |_| frame(CONTINUATION, 0, 1, piece));
        assert_eq!(violation, Some(expected));
        assert!(rounds as usize <= most, "{rounds}");
        assert!(side.connection.memory_bytes() <= HELD_BYTES);
    }
    // Refused by the header of the frame, before its payload.
    let config = Config { frame_bytes: 1 << 20, ..Config::default() };
    let mut side = server(&config);
    let large = frame(HEADERS, END, 1, &vec![0; 1 << 20]);
    assert_eq!(side.receive(&large[..9]), Err(Violation::Http2HeaderBlockTooLarge));
}

/// A head with a field for the table, and fields without indexing that add so many bytes to the list.
fn long_head(bytes: usize) -> Vec<u8> {
    let mut block = b"\x88\x40\x01a\x01b".to_vec();
    // 4,096 each: a name of a byte, a value, and 32.
    for _ in 0..bytes / 4096 {
        block.extend_from_slice(b"\x00\x01x\x7f\xe0\x1e");
        block.extend_from_slice(&[b'y'; 4063]);
    }
    block
}

/// A header block in frames of at most so many bytes.
fn in_frames(block: &[u8], stream: u32, most: usize) -> Vec<u8> {
    let pieces: Vec<&[u8]> = block.chunks(most).collect();
    let of = |(at, piece): (usize, &&[u8])| {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let flags = if at + 1 == pieces.len() { flags::END_HEADERS } else { 0 };
        frame(kind, flags, stream, piece)
    };
    pieces.iter().enumerate().flat_map(of).collect()
}

#[test]
fn a_long_head_costs_a_client_its_stream_and_not_the_connection() {
    let mut side = Side::client(&Config::of_client());
    side.receive(&frame(FrameType::SETTINGS, 0, 0, b"")).unwrap();
    let mut list = 16;
    for (stream, most) in [(1, 16_384), (3, 16_384), (5, 1_100), (7, 16_384)] {
        side.connection.open(GET, true, 0, &mut side.out).unwrap();
        side.connection.open(GET, true, 0, &mut side.out).unwrap();
        side.news();
        let (long, other) = (2 * stream - 1, 2 * stream + 1);
        side.receive(&in_frames(&long_head(list * 1024), long, most)).unwrap();
        let violation = Violation::HeaderListTooLarge;
        assert_eq!(side.news(), [Seen::StreamFailed { stream: long, violation }]);
        assert!(side.connection.memory_bytes() <= HELD_BYTES);
        assert!(side.list.memory_bytes() < 64 * 1024);
        // The field that the head before it added to the table.
        side.receive(&frame(HEADERS, END, other, b"\x88\xbe")).unwrap();
        let news = side.news();
        let [Seen::Head { fields, .. }] = &news[..] else { panic!("{news:?}") };
        assert_eq!(fields[1], ("a".to_string(), "b".to_string()));
        list += 20;
    }
    // The work is bounded: one that is far longer ends the connection, before it has arrived.
    for (bytes, most, expected) in [
        (84 * 1024, 16_384, Violation::Http2HeaderBlockTooLarge),
        (1 << 20, 16_384, Violation::Http2HeaderBlockTooLarge),
        (80 * 1024, 1_000, Violation::Http2TooManyContinuations),
    ] {
        let mut side = Side::client(&Config::of_client());
        side.receive(&frame(FrameType::SETTINGS, 0, 0, b"")).unwrap();
        side.connection.open(GET, true, 0, &mut side.out).unwrap();
        let result = side.receive(&in_frames(&long_head(bytes), 1, most));
        assert_eq!(result, Err(expected), "{bytes}");
        assert!(side.connection.memory_bytes() <= 4 * HELD_BYTES);
    }
}

#[test]
fn bombs_cost_their_stream_or_the_connection() {
    // An entry of 4,000 bytes, then references to it.
    let value = [b'x'; 4000];
    let entry = [b"\x82\x86\x84\x40\x01a\x7f\xa1\x1e".as_slice(), &value].concat();
    let refer = |times: usize| [REQUEST, &vec![0xbe; times]].concat();
    let mut side = server(&Config::default());
    side.receive(&frame(HEADERS, END, 1, &entry)).unwrap();
    assert!(matches!(&side.news()[..], [Seen::Head { fields, .. }] if fields[3].1.len() == 4000));
    side.receive(&frame(HEADERS, END, 3, &refer(5))).unwrap();
    let violation = Violation::HeaderListTooLarge;
    assert_eq!(side.news(), [Seen::StreamFailed { stream: 3, violation }]);
    // The connection goes on, with the same table.
    side.receive(&frame(HEADERS, END, 5, &refer(1))).unwrap();
    assert!(matches!(&side.news()[..], [Seen::Head { fields, .. }] if fields[3].1.len() == 4000));
    let result = side.receive(&frame(HEADERS, END, 7, &refer(16_000)));
    assert_eq!(result, Err(Violation::HeaderListBomb));
    assert!(side.list.memory_bytes() < 256 * 1024);
    assert!(side.connection.memory_bytes() <= HELD_BYTES);
}

#[test]
fn a_frame_in_single_bytes_is_held_as_it_arrives() {
    let mut side = server(&Config::default());
    // Announces 16 KiB of debug data, and sends 100 bytes.
    side.receive(&[0, 0x40, 0, 7, 0, 0, 0, 0, 0]).unwrap();
    for _ in 0..100 {
        side.receive(b"x").unwrap();
    }
    assert!(side.connection.memory_bytes() < 1024);
}

#[test]
fn streams_are_bounded_and_small() {
    let config = Config { max_streams: 100_000, ..Config::default() };
    let mut side = server(&config);
    for round in 0..100_001 {
        side.receive(&frame(HEADERS, flags::END_HEADERS, 2 * round + 1, REQUEST)).unwrap();
    }
    let violation = Violation::Http2TooManyStreams;
    assert_eq!(side.seen.last(), Some(&Seen::StreamFailed { stream: 200_001, violation }));
    assert_eq!(side.connection.open_streams(), 100_000);
    let bytes = side.connection.memory_bytes();
    assert!(bytes <= 100_000 * 64, "{bytes}");
    // A change of the initial window is no work for each stream.
    for round in 0..900 {
        side.receive(&frame(FrameType::SETTINGS, 0, 0, &setting(4, round))).unwrap();
    }
    for round in 0..100_000 {
        let result = side.receive(&frame(FrameType::DATA, flags::END_STREAM, 2 * round + 1, b"x"));
        result.unwrap();
    }
    side.connection.shrink();
}

#[test]
fn an_idle_connection_is_small() {
    let bytes = size_of::<Connection>();
    assert!(bytes <= 400, "{bytes}");
    let (client, server) = pair(&Config::default(), &Config::default());
    assert_eq!(client.connection.memory_bytes(), 0);
    assert_eq!(server.connection.memory_bytes(), 0);
    assert_eq!(client.connection.role(), Role::Client);
    assert_eq!(server.connection.role(), Role::Server);
}

#[test]
fn frames_that_are_held_whole_stay_small_where_data_may_be_large() {
    let config = Config { frame_bytes: 1 << 24, ..Config::default() };
    for kind in [FrameType::SETTINGS, FrameType::GOAWAY] {
        let mut side = server(&config);
        let payload = vec![0; 6 * 100_000];
        let bytes = frame(kind, 0, 0, &payload);
        assert_eq!(side.receive(&bytes[..9]), Err(Violation::Http2FrameTooLarge), "{kind:?}");
        assert!(side.connection.memory_bytes() < HELD_BYTES);
    }
}
