//! permessage-deflate (RFC 7692) over real sockets: what is negotiated, what is delivered, what it
//! costs. The tests compress with miniz_oxide, the server with zlib-rs.

use std::collections::HashMap;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use serde_json::json;

use crate::harness::deflate::{
    CONTINUED, CONTINUED_LAST, DEFLATED, DEFLATED_FIRST, OFFER, deflated, inflated, long_text,
};
use crate::harness::eventually;
use crate::harness::executable;
use crate::harness::server::Server;
use crate::harness::socket::{ACCEPT, Frame, Socket, TEXT, upgrade};

/// The figure that `serve --compression takeover` logs.
const TAKEOVER_BYTES: u64 = 310_000;

const SHARED: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

/// A WebSocket with this offer, and what the server answered.
fn open(server: &Server, path: &str, offer: &str) -> (Socket, Option<String>) {
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade(path, &[("Sec-WebSocket-Extensions", offer)]).as_bytes());
    let response = socket.response();
    assert_eq!(response.status, 101, "{response:?}");
    assert_eq!(response.header("sec-websocket-accept"), Some(ACCEPT));
    let answer = response.header("sec-websocket-extensions").map(str::to_owned);
    (socket, answer)
}

fn count(server: &Server, name: &str) -> u64 {
    server.metrics()[name] as u64
}

fn violations(server: &Server, name: &str) -> u64 {
    count(server, &format!("standfast_violations_total{{violation=\"{name}\"}}"))
}

#[test]
fn offers_are_negotiated_unless_compression_is_off() {
    let server = Server::start(&[]);
    for (offer, expected) in [
        (OFFER, Some(SHARED.to_owned())),
        (
            "permessage-deflate; server_max_window_bits=10",
            Some(format!("{SHARED}; server_max_window_bits=10")),
        ),
        ("permessage-deflate; server_max_window_bits=8", None),
        ("permessage-bzip2", None),
    ] {
        assert_eq!(open(&server, "/echo", offer).1, expected, "{offer}");
    }
    let mut socket = Socket::connect(server.listen);
    socket.send(
        upgrade("/echo", &[("Sec-WebSocket-Extensions", "permessage-deflate; a=\"")]).as_bytes(),
    );
    assert_eq!(socket.response().status, 400);
    assert_eq!(violations(&server, "upgrade_bad_extension"), 1);
    let off = Server::start(&["--compression", "off"]);
    assert_eq!(open(&off, "/echo", OFFER).1, None);
    let takeover = Server::start(&["--compression", "takeover"]);
    assert_eq!(open(&takeover, "/echo", OFFER).1.as_deref(), Some(OFFER));
    eventually("its cost is logged", || takeover.log().contains("310"));
}

#[test]
fn long_messages_are_compressed_and_short_ones_are_not() {
    let server = Server::start(&[]);
    for offer in [OFFER, "permessage-deflate; server_max_window_bits=9"] {
        let (mut socket, _) = open(&server, "/echo", offer);
        let text = long_text("echo");
        socket.send_frame(DEFLATED, &deflated(text.as_bytes()));
        let Frame { first, payload } = socket.frame().unwrap();
        assert_eq!(first, DEFLATED);
        assert!(payload.len() < text.len() / 2, "{} of {}", payload.len(), text.len());
        assert_eq!(inflated(&payload), text.as_bytes());
        // In fragments split anywhere, followed by an uncompressed one.
        let payload = deflated(text.as_bytes());
        let (one, two) = payload.split_at(7);
        socket.send_frame(DEFLATED_FIRST, one);
        socket.send_frame(CONTINUED, &[]);
        socket.send_frame(CONTINUED_LAST, two);
        assert_eq!(inflated(&socket.frame().unwrap().payload), text.as_bytes());
        socket.send_frame(TEXT, b"short");
        assert_eq!(socket.frame(), Some(Frame { first: TEXT, payload: b"short".to_vec() }));
        socket.send_frame(DEFLATED, &deflated(b"short"));
        assert_eq!(socket.frame(), Some(Frame { first: TEXT, payload: b"short".to_vec() }));
    }
    assert!(count(&server, "standfast_deflate_out_bytes_total") > 0);
}

#[test]
fn a_kept_context_shortens_repeated_messages() {
    let server = Server::start(&["--compression", "takeover"]);
    let (mut socket, _) = open(&server, "/echo", OFFER);
    let text = long_text("again");
    let mut compress = Compress::new(Compression::default(), false);
    let mut decompress = Decompress::new(false);
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let mut data = Vec::with_capacity(8192);
        compress.compress_vec(text.as_bytes(), &mut data, FlushCompress::Sync).unwrap();
        socket.send_frame(DEFLATED, &data[..data.len() - 4]);
        let payload = socket.frame().unwrap().payload;
        sizes.push(payload.len());
        let mut out = Vec::with_capacity(1 << 16);
        let data = [&payload[..], &[0, 0, 0xFF, 0xFF]].concat();
        decompress.decompress_vec(&data, &mut out, FlushDecompress::Sync).unwrap();
        assert_eq!(out, text.as_bytes());
    }
    assert!(sizes[1] * 4 < sizes[0] && sizes[2] * 4 < sizes[0], "{sizes:?}");
}

/// The figure logged at start is the memory of a socket.
#[test]
fn kept_contexts_cost_what_is_logged() {
    const SOCKETS: u64 = 100;
    let server = Server::start(&["--workers", "1", "--compression", "takeover"]);
    let payload = deflated(long_text("memory").as_bytes());
    let mut talk = |_: u64| {
        let (mut socket, _) = open(&server, "/echo", OFFER);
        socket.send_frame(DEFLATED, &payload);
        assert_eq!(socket.frame().unwrap().first, DEFLATED);
        socket
    };
    let _first = talk(0);
    let before = server.rss_bytes();
    let _sockets: Vec<Socket> = (0..SOCKETS).map(&mut talk).collect();
    let each = (server.rss_bytes() - before) / SOCKETS;
    assert!((250_000..=TAKEOVER_BYTES).contains(&each), "{each} bytes a socket");
}

#[test]
fn a_publication_is_compressed_once_per_window_size() {
    let server = Server::start(&["--workers", "1"]);
    let text = long_text("news");
    let small = "permessage-deflate; server_max_window_bits=9";
    let mut sockets: Vec<(&str, Socket)> = [OFFER, OFFER, OFFER, small, ""]
        .map(|offer| (offer, open(&server, "/topics/news", offer).0))
        .into();
    assert_eq!(server.publish(&json!({ "topic": "news", "data": text })).status, 200);
    for (offer, socket) in &mut sockets {
        let Frame { first, payload } = socket.frame().unwrap();
        if offer.is_empty() {
            assert_eq!((first, &payload[..]), (TEXT, text.as_bytes()));
        } else {
            assert_eq!((first, inflated(&payload)), (DEFLATED, text.clone().into_bytes()));
        }
    }
    // Once for the three, once for the one with the small window.
    assert_eq!(count(&server, "standfast_deflate_in_bytes_total"), 2 * text.len() as u64);
}

#[test]
fn load_and_serve_compress_for_each_other() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let text = long_text("load");
    let echo = [
        "--connections",
        "20",
        "--messages",
        "50",
        "--message",
        &text,
        "--timeout",
        "60s",
        "--json",
        "-",
    ];
    let finished =
        executable::run(&[&["load", &url, "--compression", "shared"], &echo[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let wanted = 1_000 * text.len() as u64;
    assert_eq!(count(&server, "standfast_inflate_out_bytes_total"), wanted);
    assert_eq!(count(&server, "standfast_deflate_in_bytes_total"), wanted);
    assert!(count(&server, "standfast_inflate_in_bytes_total") < wanted / 2);
}

#[test]
fn load_compresses_messages_from_the_configured_size() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let text = long_text("above");
    let length = text.len();
    for (size, above, is_compressed) in [
        (length, Some(length), true),
        (length, Some(length + 1), false),
        (length, None, true),
        (500, None, false),
        (500, Some(500), true),
    ] {
        let before = ["inflate_in", "inflate_out"].map(|of| inflated_bytes(&server, of));
        let above = above.map(|above| ["--compress-above".to_owned(), above.to_string()]);
        let above: Vec<&str> = above.iter().flatten().map(String::as_str).collect();
        let few = ["--connections", "2", "--messages", "5", "--message", &text[..size]];
        let run = [&["load", &url, "--compression", "shared"], &few[..], &above];
        let finished = executable::run(&run.concat());
        assert_eq!(finished.code, Some(0), "{size}, {above:?}: {finished:?}");
        let after = ["inflate_in", "inflate_out"].map(|of| inflated_bytes(&server, of));
        let [came, became] = [after[0] - before[0], after[1] - before[1]];
        let expected = if is_compressed { 10 * size as u64 } else { 0 };
        assert_eq!(became, expected, "{size}, {above:?}");
        assert!(came <= expected / 2, "{size}, {above:?}: {came} bytes on the wire");
    }
}

fn inflated_bytes(server: &Server, of: &str) -> u64 {
    count(server, &format!("standfast_{of}_bytes_total"))
}

/// Negotiating compression must cost an idle socket nothing extra.
#[test]
fn an_idle_socket_with_compression_costs_no_more() {
    let memory: HashMap<&str, u64> = ["off", "shared"]
        .map(|how| {
            let server = Server::start(&["--workers", "1", "--compression", how]);
            let (url, pid) = (format!("ws://{}/echo", server.listen), server.pid().to_string());
            let hold = |connections: &str| {
                let run = ["load", &url, "--compression", "shared", "--hold", "1s"];
                let more = ["--connections", connections, "--watch-pid", &pid, "--json", "-"];
                let finished = executable::run(&[run, more].concat());
                assert_eq!(finished.code, Some(0), "{finished:?}");
                finished.json()["watched"]["rss_bytes"].as_u64().unwrap()
            };
            // The pages of code that a handshake with compression needs are there before it is measured.
            let before = hold("100");
            (how, hold("8k").saturating_sub(before))
        })
        .into();
    let more = memory["shared"].saturating_sub(memory["off"]);
    assert!(more < 16 * 8_000 + 512 * 1024, "16 B a socket, and room to differ: {memory:?}");
}
