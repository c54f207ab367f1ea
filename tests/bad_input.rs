//! Input that a server must refuse: each is answered as its RFC says, counted by cause, and ends
//! the connection; none of it costs memory or descriptors afterwards.

use std::net::SocketAddr;
use std::thread;

use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::{self, BINARY, CLOSE, PING, Socket, TEXT, masked, upgrade};

/// A refused request: the violation it is counted as, its bytes, the status of the answer.
type Refusal = (&'static str, Vec<u8>, u16);

/// A forbidden frame: the violation it is counted as, its bytes, the close code of the answer.
type Forbidden = (&'static str, Vec<u8>, u16);

#[test]
fn bad_requests_are_answered_counted_and_disconnected() {
    let server = Server::start(&[]);
    for (violation, request, status) in refusals() {
        let mut socket = Socket::connect(server.listen);
        socket.send(&request);
        let response = socket.response();
        assert_eq!(response.status, status, "{violation}: {response:?}");
        if status == 426 {
            assert_eq!(response.header("sec-websocket-version"), Some("13"), "{response:?}");
        }
        assert!(socket.ends(), "{violation}: the connection stays open");
    }
    let counts = refusals().into_iter().map(|(violation, ..)| violation);
    each_is_counted(&server, counts.collect());
}

#[test]
fn forbidden_frames_are_answered_counted_and_disconnected() {
    let server = Server::start(&[]);
    for (violation, frame, code) in forbidden() {
        let mut socket = Socket::open(server.listen, "/echo");
        socket.send(&frame);
        assert_eq!(socket.close_code(), code, "{violation}");
        // Whether or not the closing handshake is completed, nothing further is answered.
        socket.send_frame(TEXT, b"still there?");
        socket.finish_sending();
        assert!(socket.ends(), "{violation}: the connection stays open");
    }
    let counts = forbidden().into_iter().map(|(violation, ..)| violation);
    each_is_counted(&server, counts.collect());
}

/// Heads with more lines than usual are parsed a second time, with more room.
#[test]
fn handshakes_with_up_to_a_hundred_headers_are_accepted() {
    let server = Server::start(&[]);
    let usual = upgrade("/echo", &[]);
    let lines = usual.matches("\r\n").count() - 2;
    for total in [lines, 23, 24, 25, 26, 99, 100] {
        let more: String = (lines..total).map(|number| format!("X-{number}: y\r\n")).collect();
        let before = usual.replacen("Host", &format!("{more}Host"), 1);
        let after = usual.replacen("\r\n\r\n", &format!("\r\n{more}\r\n"), 1);
        for request in [before, after] {
            let mut socket = Socket::connect(server.listen);
            socket.send(request.as_bytes());
            assert_eq!(socket.response().status, 101, "{total} lines");
            socket.send_frame(TEXT, b"open");
            assert_eq!(socket.frame().unwrap().payload, b"open", "{total} lines");
        }
    }
}

#[test]
fn plain_requests_to_websocket_paths_get_426() {
    let server = Server::start(&[]);
    for path in ["/echo", "/topics/x"] {
        let mut socket = Socket::connect(server.listen);
        socket.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        let response = socket.response();
        assert_eq!(response.status, 426, "{response:?}");
        assert_eq!(response.header("upgrade"), Some("websocket"), "{response:?}");
        assert!(socket.ends());
    }
    server.until_closed("refused", 2);
}

#[test]
fn input_in_single_bytes_is_read_as_usual() {
    let server = Server::start(&[]);
    let mut socket = Socket::connect(server.listen);
    for byte in upgrade("/echo", &[]).bytes() {
        socket.send(&[byte]);
    }
    assert_eq!(socket.response().status, 101);
    let parts = [masked(0x01, b"one "), masked(PING, b"?"), masked(0x80, b"two")].concat();
    for byte in parts {
        socket.send(&[byte]);
    }
    let pong = socket.frame().unwrap();
    assert_eq!((pong.first, pong.payload.as_slice()), (socket::PONG, &b"?"[..]));
    let message = socket.frame().unwrap();
    assert_eq!((message.first, message.payload.as_slice()), (TEXT, &b"one two"[..]));
}

/// RFC 6455 5.5.2: a pong is sent as soon as possible, not once the message is complete.
#[test]
fn the_pong_is_sent_before_the_message_ends() {
    let server = Server::start(&[]);
    let mut socket = Socket::open(server.listen, "/echo");
    socket.send_frame(0x01, b"one ");
    socket.send_frame(PING, b"the same bytes");
    let pong = socket.frame().unwrap();
    assert_eq!((pong.first, pong.payload.as_slice()), (socket::PONG, &b"the same bytes"[..]));
    socket.send_frame(0x80, b"two");
    assert_eq!(socket.frame().unwrap().payload, b"one two");
}

/// RFC 6455 5.5.1, whichever side begins: one close frame from each side, and no message after it.
#[test]
fn one_close_frame_each_way() {
    let server = Server::start(&[]);
    for ours_first in [true, false] {
        let mut socket = Socket::open(server.listen, "/echo");
        if !ours_first {
            // The server begins, because of this.
            socket.send_frame(0x83, b"");
            assert_eq!(socket.close_code(), 1002);
        }
        for _ in 0..3 {
            socket.send_frame(CLOSE, &1000_u16.to_be_bytes());
            socket.send_frame(TEXT, b"after the end");
        }
        if ours_first {
            assert_eq!(socket.close_code(), 1000);
        }
        assert!(socket.ends(), "something follows the close frame");
    }
}

#[test]
fn an_announced_size_allocates_nothing() {
    let server = Server::start(&["--max-message", "1MiB"]);
    // A first socket, so that one-time allocations of a worker happen before the measurement.
    let _warm = announcing(server.listen, 1 << 20);
    let before = server.own_bytes();
    let sockets: Vec<Socket> = (0..200).map(|_| announcing(server.listen, 1 << 20)).collect();
    let announced: u64 = 200 << 20;
    let grown = server.own_bytes().saturating_sub(before);
    assert!(grown < announced / 50, "{grown} B for sockets that sent a few bytes each");
    drop(sockets);
    let mut too_big = announcing(server.listen, u64::MAX >> 1);
    assert_eq!(too_big.close_code(), 1009);
}

/// The tolerance is 1 MiB, which detects 10 bytes per refused handshake. A deadline is kept until
/// it passes, hence the short one.
#[test]
fn a_hundred_thousand_refused_handshakes_leave_nothing() {
    const THREADS: usize = 4;
    let server = Server::start(&["--handshake-timeout", "2s"]);
    // Some first, so that one-time allocations of a worker happen before the measurement.
    refuse(server.listen, 2_000);
    settle(&server, 2_000);
    let descriptors = server.descriptors();
    let rss = server.own_bytes();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| refuse(server.listen, 100_000 / THREADS));
        }
    });
    settle(&server, 102_000);
    eventually("every descriptor is given back", || server.descriptors() <= descriptors);
    eventually("memory is given back", || server.own_bytes() <= rss + (1 << 20));
}

fn refuse(address: SocketAddr, count: usize) {
    let request = upgrade("/echo", &[("Sec-WebSocket-Key", "short")]);
    for _ in 0..count {
        let mut socket = Socket::connect(address);
        socket.send(request.as_bytes());
        assert_eq!(socket.response().status, 400);
    }
}

fn settle(server: &Server, refused: u64) {
    server.until_closed("violation", refused);
    // The admin connection of this request is not the engine's; nothing else may be left.
    eventually("no connection is left", || server.metrics()["standfast_connections"] == 0.0);
}

/// Requires that the server counted exactly `violations`, each as its own and as a cause.
fn each_is_counted(server: &Server, violations: Vec<&str>) {
    server.until_closed("violation", violations.len() as u64);
    let metrics = server.metrics();
    for violation in &violations {
        let expected = violations.iter().filter(|other| *other == violation).count();
        let sample = format!("standfast_violations_total{{violation=\"{violation}\"}}");
        assert_eq!(metrics.get(&sample), Some(&(expected as f64)), "{sample}");
    }
}

/// A WebSocket that has announced a binary message of `length` bytes and sent three of them.
fn announcing(address: SocketAddr, length: u64) -> Socket {
    let mut socket = Socket::open(address, "/echo");
    // A ping first: its pong shows that the announcement, in the same packet, was read.
    let mut bytes = masked(PING, b"");
    bytes.extend([BINARY, 0x80 | 127]);
    bytes.extend(length.to_be_bytes());
    bytes.extend([0; 4 + 3]);
    socket.send(&bytes);
    assert_eq!(socket.frame().unwrap().first, socket::PONG);
    socket
}

fn refusals() -> Vec<Refusal> {
    let with = |changes: &[(&str, &str)]| upgrade("/echo", changes).into_bytes();
    let line = |line: &str| upgrade("/echo", &[]).replacen("GET /echo HTTP/1.1", line, 1);
    let many: String = (0..101).map(|number| format!("X-{number}: y\r\n")).collect();
    vec![
        (
            "not_http",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03 TLS, no HTTP\r\n\r\n".to_vec(),
            400,
        ),
        ("head_too_large", with(&[("X-Long", &"x".repeat(17 * 1024))]), 431),
        (
            "too_many_headers",
            line("GET /echo HTTP/1.1").replace("Host", &format!("{many}Host")).into_bytes(),
            431,
        ),
        ("unsupported_version", line("GET /echo HTTP/2.0").into_bytes(), 505),
        ("bad_request_line", line("GET  /echo HTTP/1.1").into_bytes(), 400),
        ("bad_target", line("GET echo HTTP/1.1").into_bytes(), 400),
        ("control_character", with(&[("X-Null", "\0")]), 400),
        ("bare_line_feed", b"GET /echo HTTP/1.1\nHost: a\n\n".to_vec(), 400),
        ("folded_header", with(&[("X-Folded", "one\r\n two")]), 400),
        ("space_before_colon", with(&[("X-Space ", "x")]), 400),
        ("duplicate_host", with(&[("Host", "a"), ("Host", "b")]), 400),
        ("bad_content_length", with(&[("Content-Length", "four")]), 400),
        (
            "length_and_transfer_encoding",
            with(&[("Content-Length", "4"), ("Transfer-Encoding", "chunked")]),
            400,
        ),
        ("unsupported_transfer_encoding", with(&[("Transfer-Encoding", "gzip")]), 501),
        ("missing_host", with(&[("Host", "")]), 400),
        ("upgrade_method", line("POST /echo HTTP/1.1").into_bytes(), 405),
        ("upgrade_http10", line("GET /echo HTTP/1.0").into_bytes(), 400),
        ("upgrade_connection", with(&[("Connection", "keep-alive")]), 400),
        ("upgrade_version", with(&[("Sec-WebSocket-Version", "8")]), 426),
        ("upgrade_version", with(&[("Sec-WebSocket-Version", "")]), 426),
        ("upgrade_missing_key", with(&[("Sec-WebSocket-Key", "")]), 400),
        ("upgrade_bad_key", with(&[("Sec-WebSocket-Key", "c2hvcnQ=")]), 400),
        (
            "upgrade_duplicate_key",
            with(&[("Sec-WebSocket-Key", socket::KEY), ("Sec-WebSocket-Key", socket::KEY)]),
            400,
        ),
        ("upgrade_bad_protocol", with(&[("Sec-WebSocket-Protocol", "one,,two words")]), 400),
        ("upgrade_body", with(&[("Content-Length", "4")]), 400),
    ]
}

fn forbidden() -> Vec<Forbidden> {
    let mut unmasked = masked(TEXT, b"");
    unmasked[1] = 4;
    unmasked.truncate(2);
    unmasked.extend(b"bare");
    let reserved_bits = masked(TEXT | 0x40, b"compressed?");
    let interrupted = [masked(0x01, b"begun"), masked(TEXT, b"another")].concat();
    let long_form = [&[BINARY, 0x80 | 126, 0, 5][..], &[0; 4 + 5]].concat();
    let top_bit = [&[BINARY, 0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 1][..], &[0; 4]].concat();
    vec![
        ("unmasked_frame", unmasked, 1002),
        ("reserved_bits", reserved_bits, 1002),
        ("reserved_opcode", masked(0x83, b""), 1002),
        ("reserved_opcode", masked(0x8B, b""), 1002),
        ("fragmented_control", masked(PING & 0x0F, b""), 1002),
        ("control_too_long", masked(PING, &[0; 126]), 1002),
        ("unexpected_continuation", masked(0x80, b"of what?"), 1002),
        ("interrupted_message", interrupted, 1002),
        ("length_not_minimal", long_form, 1002),
        ("length_top_bit", top_bit, 1002),
        ("message_too_big", masked(BINARY, &[0; 65_537]), 1009),
        ("invalid_utf8", masked(TEXT, b"\xC3\x28"), 1007),
        ("invalid_utf8", masked(TEXT, b"cut \xE2\x9C"), 1007),
        ("close_too_short", masked(CLOSE, &[3]), 1002),
        ("close_code_invalid", masked(CLOSE, &1005_u16.to_be_bytes()), 1002),
        ("close_reason_utf8", masked(CLOSE, b"\x03\xE8\xFF"), 1007),
    ]
}
