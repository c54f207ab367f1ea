//! Mass misuse of `standfast proxy`: handshakes refused in every way, resets on either side, and floods
//! towards peers that do not read, in pieces of several sizes. Checks memory meanwhile and that nothing
//! leaks. `cargo xtask bench siege` does the same by the hundred thousand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Upstream, switching};

const MIB: u64 = 1 << 20;
/// Requests of each kind; a tenth of them run before the measurement.
const EACH: usize = 250;

/// How the upstream answers, by path, and the status line that the client gets.
const KINDS: [(&str, &str); 6] = [
    ("/404", "HTTP/1.1 404 "),
    ("/503", "HTTP/1.1 503 "),
    ("/garbage", "HTTP/1.1 502 "),
    ("/wrong", "HTTP/1.1 502 "),
    ("/close", "HTTP/1.1 502 "),
    ("/reset", "HTTP/1.1 101 "),
];

fn answer(path: &str) -> String {
    match path {
        "/404" => "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno".to_owned(),
        "/503" => "HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "/garbage" => "\x15\x03\x01 what?\r\n\r\n".to_owned(),
        "/wrong" => switching().replace("s3pP", "AAAA"),
        "/close" => String::new(),
        _ => switching(),
    }
}

/// An upstream that answers the first request of each connection.
fn answering() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut piece = [0; 1024];
                match stream.read(&mut piece) {
                    Ok(got @ 1..) => head.extend_from_slice(&piece[..got]),
                    _ => break,
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let _ = stream.write_all(answer(path).as_bytes());
            if path == "/reset" {
                let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            }
        }
    });
    address
}

/// Runs this many requests of each kind, one after the other.
fn come(proxy: &Server, each: usize) {
    for number in 0..each * KINDS.len() {
        let (path, expected) = KINDS[number % KINDS.len()];
        let mut stream = TcpStream::connect(proxy.listen).unwrap();
        stream.write_all(upgrade(path, &[]).as_bytes()).unwrap();
        let (mut heard, mut piece) = (Vec::new(), [0; 1024]);
        // Until the close or the reset.
        while let Ok(got @ 1..) = stream.read(&mut piece) {
            heard.extend_from_slice(&piece[..got]);
        }
        let heard = String::from_utf8_lossy(&heard);
        // If the upstream resets, the reset may arrive before its response.
        let right = heard.starts_with(expected)
            || path == "/reset" && (heard.is_empty() || heard.starts_with("HTTP/1.1 502 "));
        assert!(right, "{path}: {heard}");
    }
}

#[test]
fn mass_refusals_of_every_kind_leak_nothing() {
    let upstream = answering().to_string();
    let config = format!("[pool.a]\nupstreams = ['{upstream}']\neject_after = 0\n");
    let config = crate::harness::Scratch::new("masses.toml", &config);
    let proxy = Server::start_proxy(&["--config", config.path(), "--workers", "1"]);
    let metric = |name: &str| proxy.metrics()[&format!("standfast_{name}")];
    come(&proxy, EACH / 10);
    let (rss, descriptors) = (proxy.rss_bytes(), proxy.descriptors());
    come(&proxy, EACH);
    for gauge in ["tunnels", "exchanges", "queued_bytes"] {
        eventually("nothing is under way", || metric(gauge) == 0.0);
    }
    eventually("no descriptor is left", || proxy.descriptors() <= descriptors);
    let grown = proxy.rss_bytes().saturating_sub(rss);
    assert!(grown < MIB, "{grown} bytes more");
    let each = (EACH + EACH / 10) as f64;
    assert_eq!(metric("declined_total"), 2.0 * each, "404 and 503");
    let bad = metric("requests_refused_total{reason=\"bad_answer\"}");
    assert!(bad >= 2.0 * each, "{bad}: garbage and wrong");
}

#[test]
fn bi_27_floods_of_every_piece_size_are_not_buffered() {
    const HELD: usize = 6;
    let upstream = Upstream::new();
    let address = upstream.address().to_string();
    // A peer that reads nothing for the peer timeout is dropped; a slow machine needs longer.
    let flags = ["--upstream", &address, "--workers", "1", "--peer-timeout", "off"];
    let proxy = Server::start_proxy(&flags);
    let before = proxy.rss_bytes();
    for size in [128, 4_000, 64 * 1024, 1 << 20] {
        let mut held = Vec::new();
        let piece = vec![b'f'; size];
        for number in 0..HELD {
            let mut socket = Socket::connect(proxy.listen);
            socket.send(upgrade("/flood", &[]).as_bytes());
            let mut leg = upstream.tunnel();
            assert_eq!(socket.response().status, 101);
            leg.stream.set_nonblocking(true).unwrap();
            let mut refused = 0;
            // Even ones flood the upstream, odd ones the client, until nothing is accepted for a while.
            while refused < 20 {
                let (poured, before) = (socket.poured(), refused);
                let taken = if number % 2 == 0 {
                    socket.pour(&piece);
                    socket.poured() - poured
                } else {
                    leg.stream.write(&piece).unwrap_or(0)
                };
                refused = if taken == 0 { before + 1 } else { 0 };
                if taken == 0 {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            held.push((socket, leg));
        }
        let queued = proxy.metrics()["standfast_queued_bytes"];
        assert!(
            queued > 0.0 && queued <= (HELD * 64 * 1024) as f64,
            "{queued} B in pieces of {size}"
        );
        // Queued bytes and the worker's own buffers.
        let more = proxy.rss_bytes().saturating_sub(before);
        assert!(more <= (HELD as u64 * 64 * 1024) + 2 * MIB, "{more} B more in pieces of {size}");
        assert_eq!(proxy.metrics()["standfast_tunnels"], HELD as f64, "nobody was closed for it");
        drop(held);
        eventually("all have gone", || proxy.metrics()["standfast_tunnels"] == 0.0);
        eventually("nothing waits", || proxy.metrics()["standfast_queued_bytes"] == 0.0);
    }
}
