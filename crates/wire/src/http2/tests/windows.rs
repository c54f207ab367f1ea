//! Windows of both levels, in both directions (RFC 9113 6.9).

use std::vec;

use super::*;
use crate::http2::frame::{FRAME_BYTES_MIN, WINDOW_INITIAL, flags};

/// A client that has sent a request to a server whose windows are these.
fn upload(stream_window: u32, connection_window: u32) -> (Side, Side, StreamId) {
    let server = Config {
        stream_window_bytes: stream_window,
        connection_window_bytes: connection_window,
        ..Config::default()
    };
    let (mut client, mut server) = pair(&Config::default(), &server);
    let id = client.connection.open(POST, false, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    (client, server, id)
}

#[test]
fn a_body_larger_than_all_windows_arrives() {
    for (stream_window, connection_window) in
        [(1000, 65_535), (65_535, 65_535), (1 << 20, 65_535), (100_000, 1 << 20), (1, 65_535)]
    {
        let (mut client, mut server, id) = upload(stream_window, connection_window);
        server.news();
        let body: Vec<u8> = (0..300_000u32.min(stream_window * 500)).map(|n| n as u8).collect();
        let mut sent = 0;
        let mut calls = 0;
        while sent < body.len() {
            let taken = client.connection.send_data(id, &body[sent..], true, &mut client.out);
            sent += taken.unwrap();
            assert!(taken.unwrap() > 0, "{stream_window} {connection_window}");
            exchange(&mut client, &mut server);
            let opened = client.news().iter().any(|seen| matches!(seen, Seen::WindowOpened(_)));
            assert!(opened || sent == body.len(), "{stream_window} {connection_window} {sent}");
            calls += 1;
            assert!(calls <= 1000);
        }
        let [Seen::Data { data, end_stream: true, .. }] = &server.news()[..] else { panic!() };
        assert!(*data == body);
    }
}

#[test]
fn a_window_that_is_closed_takes_nothing_but_an_end() {
    let (mut client, mut server, id) = upload(0, 65_535);
    assert_eq!(client.connection.send_window(id), 0);
    assert_eq!(client.connection.send_data(id, b"x", true, &mut client.out), Ok(0));
    assert_eq!(client.connection.data_frame(id, 1, true), Ok(None));
    assert!(client.out.is_empty());
    // A setting opens it.
    client.receive(&frame(FrameType::SETTINGS, 0, 0, &setting(4, 2))).unwrap();
    assert_eq!(client.connection.send_data(id, b"xyz", true, &mut client.out), Ok(2));
    // And makes it negative.
    client.receive(&frame(FrameType::SETTINGS, 0, 0, &setting(4, 0))).unwrap();
    client.receive(&frame(FrameType::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 2])).unwrap();
    assert_eq!(client.connection.send_window(id), 0);
    assert_eq!(client.news(), []);
    client.receive(&frame(FrameType::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).unwrap();
    assert_eq!(client.news(), [Seen::WindowOpened(Some(1))]);
    assert_eq!(client.connection.send_window(id), 1);

    let (mut client, mut server2, id) = upload(0, 65_535);
    assert_eq!(client.connection.send_data(id, b"", true, &mut client.out), Ok(0));
    exchange(&mut client, &mut server2);
    let seen = server2.news();
    assert_eq!(seen[1], Seen::Data { stream: 1, data: Vec::new(), end_stream: true });
    server.news();
}

#[test]
fn the_window_of_the_connection_is_shared() {
    let (mut client, _, first) = upload(1 << 20, 65_535);
    let second = client.connection.open(POST, false, 0, &mut client.out).unwrap();
    let body = [0; 70_000];
    let taken = client.connection.send_data(first, &body[..65_000], false, &mut client.out);
    assert_eq!(taken, Ok(65_000));
    assert_eq!(client.connection.send_window(second), 535);
    assert_eq!(client.connection.send_data(second, &body, false, &mut client.out), Ok(535));
    let longest = frames(&client.out).iter().map(|(header, _)| header.payload_bytes).max();
    assert_eq!(longest, Some(FRAME_BYTES_MIN));
    client.receive(&frame(FrameType::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9])).unwrap();
    assert_eq!(client.news(), [Seen::WindowOpened(None)]);
    assert_eq!(client.connection.send_window(first), 9);
}

#[test]
fn updates_are_sent_by_half_windows() {
    let config = Config { stream_window_bytes: 10_000, ..Config::default() };
    let (mut client, mut server) = pair(&config, &Config::default());
    let id = client.connection.open(GET, true, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    let at_server = server.ids[0];
    server.connection.respond(at_server, OK, false, &mut server.out).unwrap();
    server.connection.send_data(at_server, &[0; 4999], false, &mut server.out).unwrap();
    client.receive(&server.sent()).unwrap();
    assert!(client.out.is_empty());
    server.connection.send_data(at_server, &[0; 1], false, &mut server.out).unwrap();
    client.receive(&server.sent()).unwrap();
    let [(header, payload)] = &frames(&client.out)[..] else { panic!() };
    assert_eq!((header.kind, header.stream), (FrameType::WINDOW_UPDATE, id.get()));
    assert_eq!(payload[..], 5000u32.to_be_bytes());
}

#[test]
fn more_than_a_window_is_a_violation() {
    let over = |config: &Config, sizes: &[usize]| {
        let (mut client, _) = pair(config, &Config::default());
        assert!(client.connection.is_acknowledged());
        client.connection.open(GET, true, 0, &mut client.out).unwrap();
        client.receive(&frame(FrameType::HEADERS, flags::END_HEADERS, 1, b"\x88")).unwrap();
        let results: Vec<_> = sizes
            .iter()
            .map(|size| client.receive(&frame(FrameType::DATA, 0, 1, &vec![0; *size])))
            .collect();
        results
    };
    let exceeded = Err(Violation::Http2WindowExceeded);
    // Released explicitly, so that no update raises it again.
    let stream = Config { stream_window_bytes: 100, explicit_release: true, ..Config::default() };
    assert_eq!(over(&stream, &[100, 1]), [Ok(()), exceeded]);
    assert_eq!(over(&stream, &[101]), [exceeded]);
    let connection = Config {
        stream_window_bytes: 1 << 20,
        connection_window_bytes: WINDOW_INITIAL,
        explicit_release: true,
        ..Config::default()
    };
    let sizes = [16_384, 16_384, 16_384, 16_383, 1];
    assert_eq!(over(&connection, &sizes), [Ok(()), Ok(()), Ok(()), Ok(()), exceeded]);
}

#[test]
fn clients_that_have_not_read_our_settings_have_the_initial_window() {
    let config = Config { stream_window_bytes: 10, ..Config::default() };
    let mut server = Side::server(&config);
    let settings = frame(FrameType::SETTINGS, 0, 0, b"");
    let request = frame(FrameType::HEADERS, flags::END_HEADERS, 1, b"\x83\x86\x84");
    server.receive(&[PREFACE.as_slice(), &settings, &request].concat()).unwrap();
    server.receive(&frame(FrameType::DATA, 0, 1, &[0; 16_384])).unwrap();
    // After the acknowledgement the window is 10 less what was sent, plus what was returned.
    let returned: u32 = frames(&server.sent())
        .iter()
        .filter(|(header, _)| header.kind == FrameType::WINDOW_UPDATE && header.stream == 1)
        .map(|(_, payload)| u32::from_be_bytes(payload[..].try_into().unwrap()))
        .sum();
    assert_eq!(returned, 16_384);
    server.receive(&frame(FrameType::SETTINGS, flags::ACK, 0, b"")).unwrap();
    server.receive(&frame(FrameType::DATA, 0, 1, &[0; 10])).unwrap();
    let result = server.receive(&frame(FrameType::DATA, 0, 1, &[0; 11]));
    assert_eq!(result, Err(Violation::Http2WindowExceeded));
}

#[test]
fn data_that_is_released_later() {
    let config = Config {
        stream_window_bytes: 1000,
        connection_window_bytes: WINDOW_INITIAL,
        explicit_release: true,
        ..Config::default()
    };
    let (mut client, mut server) = pair(&config, &Config::default());
    let id = client.connection.open(GET, true, 0, &mut client.out).unwrap();
    exchange(&mut client, &mut server);
    let at_server = server.ids[0];
    server.connection.respond(at_server, OK, false, &mut server.out).unwrap();
    let taken = server.connection.send_data(at_server, &[1; 5000], true, &mut server.out);
    assert_eq!(taken, Ok(1000));
    exchange(&mut client, &mut server);
    assert_eq!(server.connection.send_window(at_server), 0);
    client.connection.release(id, 499, &mut client.out);
    assert!(client.out.is_empty());
    client.connection.release(id, 1, &mut client.out);
    exchange(&mut client, &mut server);
    assert_eq!(server.connection.send_window(at_server), 500);
    assert!(server.news().contains(&Seen::WindowOpened(Some(1))));
    // Never more than was received.
    client.connection.release(id, usize::MAX, &mut client.out);
    exchange(&mut client, &mut server);
    assert_eq!(server.connection.send_window(at_server), 1000);
}

#[test]
fn ignored_data_returns_its_window() {
    for explicit_release in [false, true] {
        let config = Config {
            connection_window_bytes: WINDOW_INITIAL,
            explicit_release,
            ..Config::default()
        };
        let (mut client, mut server) = pair(&config, &Config::default());
        for round in 0..20 {
            let id = client.connection.open(GET, true, 0, &mut client.out).unwrap();
            exchange(&mut client, &mut server);
            let at_server = *server.ids.last().unwrap();
            server.connection.respond(at_server, OK, false, &mut server.out).unwrap();
            let taken = server.connection.send_data(at_server, &[1; 20_000], true, &mut server.out);
            assert_eq!(taken, Ok(20_000), "{round}");
            // Reset in the middle of a frame, and before the others.
            let bytes = server.sent();
            client.receive(&bytes[..500]).unwrap();
            let [.., Seen::Data { data, .. }] = &client.seen[..] else { panic!() };
            let passed = data.len();
            assert!(client.connection.reset(id, ErrorCode::CANCEL, &mut client.out));
            client.receive(&bytes[500..]).unwrap();
            let [.., Seen::Data { data, .. }] = &client.seen[..] else { panic!() };
            assert_eq!(data.len(), passed, "nothing after the reset");
            client.seen.clear();
            if explicit_release {
                client.connection.release(id, passed, &mut client.out);
            }
            exchange(&mut client, &mut server);
        }
    }
}

#[test]
fn a_reset_before_the_length_of_the_padding_accounts_for_the_whole_frame() {
    for explicit_release in [false, true] {
        let config = Config {
            connection_window_bytes: WINDOW_INITIAL,
            explicit_release,
            ..Config::default()
        };
        let (mut client, mut server) = pair(&config, &Config::default());
        // More than the window of the connection in all.
        for round in 0..20 {
            let id = client.connection.open(GET, true, 0, &mut client.out).unwrap();
            exchange(&mut client, &mut server);
            let at_server = *server.ids.last().unwrap();
            server.connection.respond(at_server, OK, false, &mut server.out).unwrap();
            exchange(&mut client, &mut server);
            let padded = frame(FrameType::DATA, flags::PADDED, id.get(), &[9; 10_000]);
            client.receive(&padded[..9]).unwrap();
            assert!(client.connection.reset(id, ErrorCode::CANCEL, &mut client.out));
            client.receive(&padded[9..]).unwrap_or_else(|why| panic!("round {round}: {why:?}"));
            let returned: u32 = frames(&client.out)
                .iter()
                .filter(|(header, _)| header.kind == FrameType::WINDOW_UPDATE && header.stream == 0)
                .map(|(_, payload)| u32::from_be_bytes(payload[..].try_into().unwrap()))
                .sum();
            assert!(returned <= 40_000, "round {round}: {returned} bytes");
            exchange(&mut client, &mut server);
        }
        let id = client.connection.open(GET, true, 0, &mut client.out).unwrap();
        exchange(&mut client, &mut server);
        let more = frame(FrameType::DATA, 0, id.get(), &[9; 16_384]);
        let head = frame(FrameType::HEADERS, flags::END_HEADERS, id.get(), b"\x88");
        client.receive(&head).unwrap();
        let mut accepted = 0;
        while client.receive(&more).is_ok() {
            accepted += 1;
            assert!(accepted < 100 || !explicit_release, "what is not released closes the window");
            if accepted == 100 {
                break;
            }
        }
        assert!(explicit_release == (accepted <= 4), "{accepted}");
    }
}

#[test]
fn an_end_without_data_is_accepted_where_a_setting_has_made_the_window_negative() {
    let config = Config { stream_window_bytes: 100, explicit_release: true, ..Config::default() };
    let (mut client, mut server) = (Side::client(&Config::default()), Side::server(&config));
    let id = client.connection.open(POST, false, 0, &mut client.out).unwrap();
    // Before it has read the server's settings.
    assert_eq!(client.connection.send_data(id, &[1; 10_000], false, &mut client.out), Ok(10_000));
    client.receive(&server.sent()).unwrap();
    assert_eq!(client.connection.send_data(id, &[1], false, &mut client.out), Ok(0));
    assert_eq!(client.connection.send_data(id, &[], true, &mut client.out), Ok(0));
    server.receive(&client.sent()).unwrap();
    assert!(matches!(server.seen.last(), Some(Seen::Data { end_stream: true, .. })));
}
