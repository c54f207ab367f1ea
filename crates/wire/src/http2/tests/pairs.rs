//! A client and a server of ours.

use super::*;
use crate::http2::frame::{FRAME_BYTES_MIN, flags};
use crate::http2::{Refused, StreamEnded};

fn head(stream: u32, kind: HeadKind, end_stream: bool, fields: &[Field]) -> Seen {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let fields = fields.iter().map(|(name, value)| (text(name), text(value))).collect();
    Seen::Head { stream, kind, end_stream, fields }
}

fn data(stream: u32, data: &[u8], end_stream: bool) -> Seen {
    Seen::Data { stream, data: data.to_vec(), end_stream }
}

#[test]
fn a_request_and_its_answer() {
    let (mut client, mut server) = pair(&Config::default(), &Config::default());
    client.connection.open(GET, true, 5, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(server.news(), [head(1, HeadKind::Request, true, &GET)]);

    let id = server.ids[0];
    server.connection.respond(id, OK, false, &mut server.out).unwrap();
    let sent = server.connection.send_data(id, b"hello", true, &mut server.out);
    assert_eq!(sent, Ok(5));
    assert_eq!(server.connection.open_streams(), 0);
    exchange(&mut client, &mut server);
    let expected = [head(1, HeadKind::Response(200), false, &OK), data(1, b"hello", true)];
    assert_eq!(client.news(), expected);
    assert_eq!(client.connection.open_streams(), 0);
    assert_eq!(server.connection.respond(id, OK, true, &mut server.out), Err(StreamEnded));
    assert_eq!(server.connection.send_data(id, b"", true, &mut server.out), Err(StreamEnded));
    assert!(server.out.is_empty());
}

#[test]
fn bodies_interim_responses_and_trailers() {
    let (mut client, mut server) = pair(&Config::default(), &Config::default());
    let id = client.connection.open(POST, false, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    let at_server = server.ids[0];
    let early: [Field; 2] = [(b":status", b"103"), (b"link", b"</a.css>")];
    server.connection.respond_interim(at_server, early, &mut server.out).unwrap();
    server.connection.respond(at_server, OK, false, &mut server.out).unwrap();
    client.connection.send_data(id, b"ab", false, &mut client.out).unwrap();
    client.connection.send_data(id, b"cd", false, &mut client.out).unwrap();
    let checksum: [Field; 1] = [(b"x-checksum", b"1")];
    client.connection.send_trailers(id, checksum, &mut client.out).unwrap();
    assert_eq!(client.connection.send_data(id, b"", true, &mut client.out), Err(StreamEnded));
    exchange(&mut client, &mut server);
    let expected = [
        head(1, HeadKind::Request, false, &POST),
        data(1, b"abcd", false),
        head(1, HeadKind::Trailers, true, &checksum),
    ];
    assert_eq!(server.news(), expected);
    let status: [Field; 1] = [(b"grpc-status", b"0")];
    server.connection.send_trailers(at_server, status, &mut server.out).unwrap();
    exchange(&mut client, &mut server);
    let expected = [
        head(1, HeadKind::Interim(103), false, &early),
        head(1, HeadKind::Response(200), false, &OK),
        head(1, HeadKind::Trailers, true, &status),
    ];
    assert_eq!(client.news(), expected);
    assert_eq!((client.connection.open_streams(), server.connection.open_streams()), (0, 0));
}

#[test]
fn many_streams_in_any_order() {
    let config = Config { max_streams: 1000, ..Config::default() };
    let (mut client, mut server) = pair(&config, &config);
    assert_eq!(client.connection.free_streams(), 1000);
    for tag in 0..1000 {
        client.connection.open(GET, true, tag, &mut client.out).unwrap();
    }
    let refused = client.connection.open(GET, true, 0, &mut client.out);
    assert_eq!(refused, Err(Refused::TooManyStreams));
    exchange(&mut client, &mut server);
    let ids = std::mem::take(&mut server.ids);
    assert_eq!(ids.len(), 1000);
    // 617 and 1000 have no common divisor: each comes once.
    for index in 0..1000 {
        let id = ids[index * 617 % 1000];
        assert_eq!(client.connection.tag(id), Some(id.get() / 2));
        server.connection.respond(id, OK, true, &mut server.out).unwrap();
        if index % 100 == 0 {
            exchange(&mut client, &mut server);
            let open = client.connection.streams().count();
            assert_eq!((open, client.connection.open_streams()), (999 - index, 999 - index as u32));
        }
    }
    exchange(&mut client, &mut server);
    assert_eq!(client.connection.open_streams(), 0);
    client.connection.shrink();
    server.connection.shrink();
}

#[test]
fn a_stream_that_stays_open_costs_no_place_for_each_that_ends() {
    let (mut client, mut server) = pair(&Config::default(), &Config::default());
    let first = client.connection.open(POST, false, 1, &mut client.out).unwrap();
    for _ in 0..10_000 {
        client.connection.open(GET, true, 2, &mut client.out).unwrap();
        exchange(&mut client, &mut server);
        let id = *server.ids.last().unwrap();
        server.connection.respond(id, OK, true, &mut server.out).unwrap();
        exchange(&mut client, &mut server);
    }
    assert_eq!(client.connection.tag(first), Some(1));
    assert_eq!(client.connection.stream(1), Some(first));
    assert_eq!(client.connection.stream(3), None);
    assert_eq!(client.connection.open_streams(), 1);
    assert!(client.connection.memory_bytes() < 8 * 1024);
    assert!(server.connection.memory_bytes() < 8 * 1024);
}

#[test]
fn long_heads_are_continued() {
    let config =
        Config { header_list_bytes: 1 << 20, header_block_bytes: 1 << 20, ..Config::default() };
    let (mut client, mut server) = pair(&config, &config);
    let long: Vec<u8> = (0..50_000u32).map(|n| b'a' + (n * n % 23) as u8).collect();
    let fields: Vec<(&[u8], &[u8])> =
        GET.iter().copied().chain([(b"x-long".as_slice(), long.as_slice())]).collect();
    client.connection.open(fields, true, 0, &mut client.out).unwrap();
    let sent = frames(&client.out);
    assert!(sent.len() > 2);
    assert!(sent.iter().all(|(header, _)| header.payload_bytes <= FRAME_BYTES_MIN));
    assert!(sent[0].0.has(flags::END_STREAM) && !sent[0].0.has(flags::END_HEADERS));
    assert!(sent.last().unwrap().0.has(flags::END_HEADERS));
    exchange(&mut client, &mut server);
    let [Seen::Head { fields, end_stream: true, .. }] = &server.news()[..] else { panic!() };
    assert_eq!(fields[4].1.as_bytes(), long);
}

#[test]
fn resets_pings_and_goaway() {
    let (mut client, mut server) = pair(&Config::default(), &Config::default());
    let ids: Vec<StreamId> = (0..4)
        .map(|tag| client.connection.open(POST, false, tag, &mut client.out).unwrap())
        .collect();
    exchange(&mut client, &mut server);
    server.news();
    assert!(client.connection.reset(ids[0], ErrorCode::CANCEL, &mut client.out));
    assert!(!client.connection.reset(ids[0], ErrorCode::CANCEL, &mut client.out));
    client.connection.ping(*b"12345678", &mut client.out);
    // Crosses the reset on its way.
    server.connection.respond(ids[0], OK, false, &mut server.out).unwrap();
    server.connection.send_data(ids[0], &[0; 1000], true, &mut server.out).unwrap();
    server.connection.reset(ids[1], ErrorCode(99), &mut server.out);
    exchange(&mut client, &mut server);
    assert_eq!(server.news(), [Seen::Reset { stream: 1, code: ErrorCode::CANCEL }]);
    let expected = [Seen::Reset { stream: 3, code: ErrorCode(99) }, Seen::Pong(*b"12345678")];
    assert_eq!(client.news(), expected);

    // The server announces, processes one more, and then leaves.
    server.connection.announce_shutdown(&mut server.out);
    exchange(&mut client, &mut server);
    let code = ErrorCode::NO_ERROR;
    assert_eq!(client.news(), [Seen::GoAway { last_stream: 0x7fff_ffff, code }]);
    let refused = client.connection.open(GET, true, 0, &mut client.out);
    assert_eq!(refused, Err(Refused::GoingAway));
    assert_eq!(client.connection.free_streams(), 0);
    server.connection.go_away(code, &mut server.out);
    exchange(&mut client, &mut server);
    assert_eq!(client.news(), [Seen::GoAway { last_stream: 7, code }]);
    assert_eq!(client.connection.open_streams(), 2);

    // What it says it has not processed is given back.
    client.receive(&frame(FrameType::GOAWAY, 0, 0, b"\0\0\0\x05\0\0\0\0why")).unwrap();
    let refused = Seen::Reset { stream: 7, code: ErrorCode::REFUSED_STREAM };
    assert_eq!(client.news(), [Seen::GoAway { last_stream: 5, code }, refused]);
    assert_eq!(client.connection.go_away_debug(), b"why");
    assert_eq!(client.connection.open_streams(), 1);
}

#[test]
fn requests_after_our_goaway_are_ignored() {
    let (mut client, mut server) = pair(&Config::default(), &Config::default());
    client.connection.open(GET, true, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    server.connection.go_away(ErrorCode::NO_ERROR, &mut server.out);
    // Sent before it arrives.
    let late = client.connection.open(POST, false, 0, &mut client.out).unwrap();
    client.connection.send_data(late, b"late", true, &mut client.out).unwrap();
    server.news();
    exchange(&mut client, &mut server);
    assert_eq!(server.news(), []);
    let refused = Seen::Reset { stream: 3, code: ErrorCode::REFUSED_STREAM };
    let away = Seen::GoAway { last_stream: 1, code: ErrorCode::NO_ERROR };
    assert_eq!(client.news(), [away, refused]);
}

#[test]
fn extended_connect() {
    let enabled = Config { enable_connect_protocol: true, ..Config::default() };
    let websocket: [Field; 6] = [
        (b":method", b"CONNECT"),
        (b":protocol", b"websocket"),
        (b":scheme", b"https"),
        (b":path", b"/chat"),
        (b":authority", b"a.example"),
        (b"sec-websocket-version", b"13"),
    ];
    let (mut client, mut server) = pair(&Config::default(), &enabled);
    assert!(client.connection.peer_accepts_extended_connect());
    let id = client.connection.open(websocket, false, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(server.news(), [head(1, HeadKind::Request, false, &websocket)]);
    server.connection.respond(id, OK, false, &mut server.out).unwrap();
    server.connection.send_data(id, b"\x81\x01a", false, &mut server.out).unwrap();
    client.connection.send_data(id, b"\x88\x80mask", true, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    assert_eq!(server.news(), [data(1, b"\x88\x80mask", true)]);
    let expected = [head(1, HeadKind::Response(200), false, &OK), data(1, b"\x81\x01a", false)];
    assert_eq!(client.news(), expected);

    let (mut client, mut server) = pair(&Config::default(), &Config::default());
    assert!(!client.connection.peer_accepts_extended_connect());
    client.connection.open(websocket, false, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    let violation = Violation::Http2BadConnect;
    assert_eq!(server.news(), [Seen::StreamFailed { stream: 1, violation }]);
    assert_eq!(client.news(), [Seen::Reset { stream: 1, code: ErrorCode::PROTOCOL_ERROR }],);
}

#[test]
fn responses_without_content() {
    let (mut client, mut server) = pair(&Config::default(), &Config::default());
    let mut head_request = GET;
    head_request[0].1 = b"HEAD";
    let length: [Field; 2] = [(b":status", b"200"), (b"content-length", b"10")];
    let unmodified: [Field; 2] = [(b":status", b"304"), (b"content-length", b"10")];
    for (request, response) in [(head_request, length), (GET, unmodified)] {
        client.connection.open(request, true, 0, &mut client.out).unwrap();
        exchange(&mut client, &mut server);
        let id = *server.ids.last().unwrap();
        server.connection.respond(id, response, true, &mut server.out).unwrap();
        exchange(&mut client, &mut server);
        let status = if request == GET { 304 } else { 200 };
        let expected = head(id.get(), HeadKind::Response(status), true, &response);
        assert_eq!(client.news(), [expected]);
    }
    // Content all the same.
    client.connection.open(head_request, true, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    let id = *server.ids.last().unwrap();
    server.connection.respond(id, length, false, &mut server.out).unwrap();
    server.connection.send_data(id, b"0123456789", true, &mut server.out).unwrap();
    exchange(&mut client, &mut server);
    let violation = Violation::Http2WrongContentLength;
    let failed = Seen::StreamFailed { stream: id.get(), violation };
    let response = head(id.get(), HeadKind::Response(200), false, &length);
    assert_eq!(client.news(), [response, failed]);
}
