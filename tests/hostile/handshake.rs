//! BI-13 … BI-16, BI-18, BI-19: requests (RFC 9112, RFC 6455 section 4).

use crate::harness::eventually;
use crate::harness::socket::{ACCEPT, CLOSE, KEY, Socket, TEXT, masked, upgrade};

use super::siege::{Attack, RSS_BYTES, Siege};

/// A valid request with `line` among its headers.
fn with(line: &str) -> Vec<u8> {
    upgrade("/echo", &[]).replacen("\r\n", &format!("\r\n{line}\r\n"), 1).into_bytes()
}

/// A valid request for another target.
fn with_target(target: &str) -> Vec<u8> {
    upgrade("/echo", &[]).replacen("/echo", target, 1).into_bytes()
}

/// Requires that each of `requests` is answered 101 while the bystander is served.
fn accepts(requests: &[Vec<u8>]) {
    let mut siege = Siege::begin(&[]);
    let mut turn = requests.iter().cycle();
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::connect(address);
            let request = turn.next().unwrap();
            socket.send(request);
            (request, socket)
        },
        |(request, mut socket)| {
            let response = socket.response();
            assert_eq!(response.status, 101, "{}: {response:?}", request.escape_ascii());
            assert_eq!(response.header("sec-websocket-accept"), Some(ACCEPT));
            assert_eq!(response.header("sec-websocket-protocol"), None, "none was requested");
        },
    );
    siege.server.until_closed("gone", begun);
}

/// It is refused when it is too long, and each byte is scanned once.
#[test]
fn bi_13_an_endless_trickling_head() {
    let mut siege = Siege::begin(&[]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::connect(address);
            socket.send(b"GET /echo HTTP/1.1\r\nHost: a\r\nX: ");
            (0..17).for_each(|_| socket.send(&[b'x'; 1024]));
            socket
        },
        |mut socket| {
            assert_eq!(socket.response().status, 431);
            // What follows, up to 1 MiB of it, is not kept.
            (0..64).for_each(|_| socket.send(&[b'x'; 16 * 1024]));
            socket.finish_sending();
            assert!(socket.ends());
        },
    );
    siege.server.until_closed("violation", begun);
}

#[test]
fn bi_14_thousands_of_headers() {
    let many = "a: b\r\n".repeat(2_000);
    let before = with(many.trim_end());
    let after = upgrade("/echo", &[]).replacen("\r\n\r\n", &format!("\r\n{many}\r\n"), 1);
    Siege::begin(&[]).refuses(&[
        Attack::request("too_many_headers", 431, before),
        Attack::request("too_many_headers", 431, after.into_bytes()),
    ]);
}

#[test]
fn bi_14_missing_headers() {
    Siege::begin(&[]).refuses(&[
        Attack::upgrade("missing_host", 400, &[("Host", "")]),
        Attack::upgrade("upgrade_connection", 400, &[("Connection", "")]),
        Attack::upgrade("upgrade_missing_key", 400, &[("Sec-WebSocket-Key", "")]),
        Attack::upgrade("upgrade_version", 426, &[("Sec-WebSocket-Version", "")]),
    ]);
}

/// Without `Upgrade` it is an ordinary request.
#[test]
fn bi_14_missing_upgrade() {
    let mut siege = Siege::begin(&[]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::connect(address);
            socket.send(upgrade("/echo", &[("Upgrade", "")]).as_bytes());
            socket
        },
        |mut socket| {
            assert_eq!(socket.response().status, 426);
            assert!(socket.ends());
        },
    );
    siege.server.until_closed("refused", begun);
}

#[test]
fn bi_14_empty_and_repeated_forwarding_headers() {
    accepts(&[
        with("X-Forwarded-For:"),
        with("X-Forwarded-For: ,,\r\nX-Forwarded-For: 1.2.3.4, x"),
        with("Forwarded: for=\"[::\r\nX-Forwarded-Host:\r\nX-Forwarded-Proto: "),
    ]);
}

#[test]
fn bi_15_protocol_lists() {
    let blanks = |count: usize| format!("a{}b", " ".repeat(count));
    Siege::begin(&[]).refuses(&[
        Attack::upgrade("upgrade_bad_protocol", 400, &[("Sec-WebSocket-Protocol", &blanks(8_000))]),
        Attack::upgrade("head_too_large", 431, &[("Sec-WebSocket-Protocol", &blanks(32_000))]),
        Attack::upgrade("upgrade_bad_protocol", 400, &[("Sec-WebSocket-Protocol", "a, b c")]),
        Attack::upgrade(
            "head_too_large",
            431,
            &[("Sec-WebSocket-Extensions", &"a,".repeat(10_000))],
        ),
    ]);
}

#[test]
fn bi_15_unclosed_quotes() {
    let attack = |value: &str| {
        Attack::upgrade("upgrade_bad_extension", 400, &[("Sec-WebSocket-Extensions", value)])
    };
    Siege::begin(&[]).refuses(&[
        attack("permessage-deflate; x=\"unclosed"),
        attack(&format!("x; y=\"{}", "\\".repeat(6_001))),
    ]);
}

/// Unacceptable extensions are declined; the socket opens without them.
#[test]
fn bi_15_extension_lists() {
    let offer = |value: &str| with(&format!("Sec-WebSocket-Extensions: {value}"));
    accepts(&[
        offer("permessage-deflate; x=y; x=\"z\", permessage-deflate; server_max_window_bits=99"),
        offer(&"a;b=c,".repeat(1_500)),
        offer("constructor, __proto__; hasOwnProperty=1"),
        with("Sec-WebSocket-Protocol: constructor\r\nSec-WebSocket-Protocol: __proto__"),
    ]);
}

#[test]
fn bi_16_keys() {
    let key =
        |violation, value: &str| Attack::upgrade(violation, 400, &[("Sec-WebSocket-Key", value)]);
    let twice = Attack::upgrade(
        "upgrade_duplicate_key",
        400,
        &[("Sec-WebSocket-Key", KEY), ("Sec-WebSocket-Key", KEY)],
    );
    Siege::begin(&[]).refuses(&[
        key("upgrade_bad_key", "c2hvcnQ="),
        key("upgrade_bad_key", "dGhlIHNhbXBsZSBub25jZSBhbmQgbW9yZQ=="),
        key("upgrade_bad_key", "dGhlIHNhbXBsZSBub25jZQ"),
        key("upgrade_bad_key", "dGhlIHNhbXBsZSBub25j*Q=="),
        key("upgrade_bad_key", &format!("{KEY}, {KEY}")),
        twice,
    ]);
}

/// A target with its own authority reaches no other resource and bypasses no check.
#[test]
fn bi_18_targets_and_hosts() {
    Siege::begin(&[]).refuses(&[
        Attack::request("bad_target", 400, with_target("echo")),
        Attack::request("bad_target", 400, with_target("127.0.0.1/echo")),
        Attack::request("bad_target", 400, with_target("/echo#x")),
        Attack::upgrade("bad_host", 400, &[("Host", "a b")]),
        Attack::upgrade("bad_host", 400, &[("Host", "a/echo")]),
        Attack::upgrade("bad_host", 400, &[("Host", "user@a")]),
        Attack::upgrade("duplicate_host", 400, &[("Host", "a"), ("Host", "b")]),
    ]);
    let mut siege = Siege::begin(&[]);
    // An authority that is not ours is refused (421); the other targets do not exist.
    let targets = [
        ("http://example.com/echo", 421),
        ("http://127.0.0.1/metrics", 404),
        ("//example.com/echo", 404),
        ("/echo/../metrics", 404),
        ("/%65cho", 404),
    ];
    let mut turn = targets.iter().cycle();
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let (target, status) = turn.next().unwrap();
            let mut socket = Socket::connect(address);
            socket.send(&with_target(target));
            (target, *status, socket)
        },
        |(target, status, mut socket)| {
            assert_eq!(socket.response().status, status, "{target}");
            socket.finish_sending();
            assert!(socket.ends());
        },
    );
    eventually("each was answered", || {
        siege.server.closed("answered") + siege.server.closed("refused") == begun
    });
}

#[test]
fn bi_19_ambiguous_lines() {
    let bare_lf = upgrade("/echo", &[]).replacen("\r\n", "\n", 1).into_bytes();
    let attack = |violation, line: &str| Attack::request(violation, 400, with(line));
    Siege::begin(&[]).refuses(&[
        attack("control_character", "X: a\0b"),
        attack("bare_carriage_return", "X: a\rb"),
        attack("folded_header", "X: a\r\n b"),
        attack("space_before_colon", "X : a"),
        attack("conflicting_content_length", "Content-Length: 0\r\nContent-Length: 1"),
        attack("length_and_transfer_encoding", "Content-Length: 0\r\nTransfer-Encoding: chunked"),
        attack("upgrade_body", "Transfer-Encoding: chunked"),
        attack("upgrade_body", "Content-Length: 4"),
        Attack::request("bare_line_feed", 400, bare_lf),
    ]);
}

/// An empty line after the head, as some clients send it, is not a frame. No reader may take it for
/// one and disagree with another.
#[test]
fn bi_19_an_empty_line_after_the_head() {
    let request = upgrade("/echo", &[]) + "\r\n";
    let mut siege = Siege::begin(&[]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::connect(address);
            socket.send(&[request.as_bytes(), &masked(TEXT, b"not read")].concat());
            socket
        },
        |mut socket| {
            assert_eq!(socket.response().status, 101);
            let close = socket.frame().unwrap();
            assert_eq!((close.first, &close.payload[..2]), (CLOSE, &1002_u16.to_be_bytes()[..]));
            assert!(socket.ends());
        },
    );
    siege.server.until_closed("violation", begun);
    let refused = "standfast_violations_total{violation=\"reserved_opcode\"}";
    assert_eq!(siege.server.metrics()[refused], begun as f64);
}

/// The first frames may arrive in the segment of the request.
#[test]
fn bi_06_frames_in_the_segment_of_the_request() {
    let request = upgrade("/echo", &[]);
    let mut siege = Siege::begin(&[]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::connect(address);
            let frames = [masked(TEXT, b"at once"), masked(CLOSE, b"\x03\xE8")].concat();
            socket.send(&[request.as_bytes(), &frames].concat());
            socket
        },
        |mut socket| {
            assert_eq!(socket.response().status, 101);
            assert_eq!(socket.frame().unwrap().payload, b"at once");
            assert_eq!(socket.close_code(), 1000);
            assert!(socket.ends());
        },
    );
    siege.server.until_closed("by_peer", begun);
}
