//! What is seen, and where a violation is, does not depend on how the bytes are split.

use proptest::prelude::*;

use super::*;
use crate::Role;
use crate::http2::frame::flags;

/// A frame that is mostly valid.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let blocks: [&[u8]; 8] = [
        b"\x82\x86\x84",
        b"\x88",
        b"\x83\x86\x84\x0f\x0d\x013",
        b"\x40\x01a\x01b",
        b"\xbe",
        b"\x88\x0f\x0d\x015",
        b"\x48\x03103",
        b"",
    ];
    let stream = prop_oneof![Just(1u32), Just(3), Just(5), Just(7), Just(0), Just(2)];
    let flag = prop_oneof![
        4 => Just(flags::END_HEADERS),
        4 => Just(flags::END_HEADERS | flags::END_STREAM),
        1 => any::<u8>(),
        2 => Just(0),
    ];
    let headers = (stream.clone(), flag.clone(), proptest::sample::select(blocks.to_vec()))
        .prop_map(|(stream, flags, block)| frame(FrameType::HEADERS, flags, stream, block));
    let data = (stream.clone(), 0..16u8, proptest::collection::vec(0..9u8, 0..40))
        .prop_map(|(stream, flags, data)| frame(FrameType::DATA, flags & 0x9, stream, &data));
    let others = (
        prop_oneof![Just(2u8), Just(3), Just(4), Just(6), Just(7), Just(8), Just(9), Just(77)],
        prop_oneof![4 => Just(0u8), 1 => any::<u8>()],
        stream,
        prop_oneof![
            Just(&b"\0\0\0\x01"[..]),
            Just(&b"12345678"[..]),
            Just(&b"\0\x04\0\0\0\x05"[..]),
            Just(&b"\0\0\0\0\x01"[..]),
            Just(&b""[..]),
        ],
    )
        .prop_map(|(kind, flags, stream, payload)| frame(FrameType(kind), flags, stream, payload));
    prop_oneof![5 => headers, 4 => data, 3 => others]
}

/// What a side makes of a stream that arrives in these pieces: what it sees and answers until the end or
/// a violation. After that it may have seen a piece of data more or less.
fn read<'p>(
    role: Role,
    config: &Config,
    pieces: impl Iterator<Item = &'p [u8]>,
) -> (Vec<Seen>, Vec<u8>, Result<(), Violation>) {
    let mut side = match role {
        Role::Server => Side::server(config),
        Role::Client => Side::client(config),
    };
    if role == Role::Client {
        side.connection.open(GET, true, 1, &mut side.out).unwrap();
        side.connection.open(POST, false, 3, &mut side.out).unwrap();
        side.connection.open(POST, false, 5, &mut side.out).unwrap();
    }
    let mut result = Ok(());
    for piece in pieces {
        result = side.receive(piece);
        if result.is_err() {
            break;
        }
    }
    (side.seen, side.out, result)
}

fn start(role: Role) -> Vec<u8> {
    let preface = if role == Role::Server { PREFACE.as_slice() } else { &[] };
    [preface, &frame(FrameType::SETTINGS, 0, 0, b"")].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(256), ..ProptestConfig::default() })]

    #[test]
    fn any_splitting_means_the_same(
        frames in proptest::collection::vec(any_frame(), 1..12),
        sizes in proptest::collection::vec(1..30usize, 1..20),
        is_server in any::<bool>(),
        flip in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
        explicit_release in any::<bool>(),
    ) {
        let role = if is_server { Role::Server } else { Role::Client };
        let config = Config { stream_window_bytes: 100, explicit_release, ..Config::default() };
        let mut bytes = start(role);
        let begin = bytes.len();
        bytes.extend(frames.concat());
        if let Some((index, value)) = flip {
            let at = begin + index.index(bytes.len() - begin);
            bytes[at] = value;
        }
        let whole = read(role, &config, std::iter::once(&bytes[..]));
        prop_assert_eq!(&whole, &read(role, &config, bytes.chunks(1)));
        let mut rest = &bytes[..];
        let pieces = sizes.iter().cycle().map_while(|size| {
            let (piece, after) = rest.split_at(rest.len().min(*size));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        });
        let pieces: Vec<&[u8]> = pieces.collect();
        prop_assert_eq!(&whole, &read(role, &config, pieces.into_iter()));
    }
}

#[test]
fn each_place_to_split_a_conversation() {
    let (mut client, mut server) =
        (Side::client(&Config::default()), Side::server(&Config::default()));
    let id = client.connection.open(POST, false, 0, &mut client.out).unwrap();
    client.connection.send_data(id, b"some data", true, &mut client.out).unwrap();
    let request = client.sent();
    server.receive(&request).unwrap();
    server.connection.respond(server.ids[0], OK, false, &mut server.out).unwrap();
    server.connection.send_data(server.ids[0], b"an answer", true, &mut server.out).unwrap();
    for at in 0..=request.len() {
        let mut other = Side::server(&Config::default());
        other.receive(&request[..at]).unwrap();
        other.receive(&request[at..]).unwrap();
        assert_eq!(other.seen, server.seen, "{at}");
    }
    let response = server.sent();
    let mut expected = None;
    for at in 0..=response.len() {
        let mut other = Side::client(&Config::default());
        let id = other.connection.open(POST, false, 0, &mut other.out).unwrap();
        other.connection.send_data(id, b"some data", true, &mut other.out).unwrap();
        other.receive(&response[..at]).unwrap();
        other.receive(&response[at..]).unwrap();
        assert_eq!(&other.seen, expected.get_or_insert(other.seen.clone()), "{at}");
        assert_eq!(other.connection.open_streams(), 0);
    }
}
