//! Admission with TLS: the limits of `admission` where a connection is refused before it can read a
//! response, and handshakes that stall, fail or arrive all at once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::ClientConfig;

use crate::harness::executable;
use crate::harness::server::Server;
use crate::harness::socket::{BINARY, masked, upgrade};
use crate::harness::tls::{Authority, Secure, client_hello};
use crate::harness::{PATIENCE, eventually};

/// The first byte of a TLS handshake record.
const HANDSHAKE_RECORD: u8 = 22;

/// A server with TLS, and the configuration of a client that trusts it.
fn start(more: &[&str]) -> (Server, Arc<ClientConfig>) {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let flags = ["--tls-cert", &certificate, "--tls-key", &key];
    (Server::start(&[&flags[..], more].concat()), authority.client(None))
}

/// Requests a WebSocket; `None` if the connection is refused before TLS.
fn try_open(server: &Server, config: &Arc<ClientConfig>) -> Option<Secure> {
    let mut socket = Secure::connect(server.listen, config, "localhost", usize::MAX);
    socket.send(upgrade("/echo", &[]).as_bytes()).ok()?;
    assert_eq!(socket.response().status, 101);
    Some(socket)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn is_served(socket: &mut Secure) {
    socket.send(&masked(BINARY, b"anybody?")).unwrap();
    assert_eq!(socket.frame().map(|frame| frame.payload), Some(b"anybody?".to_vec()));
}

/// Whether the server closes the connection without a byte.
fn closes_silently(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

fn refused(server: &Server, limit: &str) -> u64 {
    server.metrics()[&format!("standfast_refused_total{{limit=\"{limit}\"}}")] as u64
}

fn in_flight(server: &Server) -> f64 {
    server.metrics()["standfast_handshakes"]
}

#[test]
fn connections_of_one_address_are_limited_until_others_close() {
    let (server, config) = start(&["--max-per-address", "3"]);
    let open = || Secure::open(server.listen, &config, "/echo");
    let mut inside = [open(), open(), open()];
    for _ in 0..5 {
        let mut late = connect(server.listen);
        late.write_all(&client_hello(&config)).unwrap();
        assert!(closes_silently(&mut late));
    }
    assert_eq!(refused(&server, "max_per_address"), 5);
    inside.iter_mut().for_each(is_served);
    let [one, ..] = inside;
    drop(one);
    server.until_closed("gone", 1);
    is_served(&mut open());
}

#[test]
fn connect_rates_are_limited_by_address_and_in_total() {
    for (flag, limit) in
        [("--per-address-rate", "per_address_rate"), ("--connect-rate", "connect_rate")]
    {
        let (server, config) = start(&[flag, "4"]);
        let mut inside: Vec<Secure> =
            (0..4).map(|_| Secure::open(server.listen, &config, "/echo")).collect();
        eventually("one is refused for the rate", || {
            inside.extend(try_open(&server, &config));
            refused(&server, limit) > 0
        });
        inside.iter_mut().for_each(is_served);
        eventually("the bucket has a token again", || try_open(&server, &config).is_some());
    }
}

#[test]
fn the_oldest_handshake_is_closed_with_a_503_if_it_can_read_one() {
    let (server, config) = start(&["--max-handshakes", "3", "--workers", "1"]);
    let mut bystander = Secure::open(server.listen, &config, "/echo");
    let hello = client_hello(&config);
    let (half, rest) = hello.split_at(hello.len() / 2);
    let start_handshake = |count: f64| {
        let mut stream = connect(server.listen);
        stream.write_all(half).unwrap();
        eventually("it is in flight", || in_flight(&server) == count);
        stream
    };
    let mut first = start_handshake(1.0);
    let mut second = Secure::connect(server.listen, &config, "localhost", usize::MAX);
    second.send(b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ").unwrap();
    eventually("its TLS is complete, its head is not", || {
        in_flight(&server) == 2.0 && server.metrics()["standfast_tls_handshakes_total"] == 2.0
    });
    let mut third = start_handshake(3.0);

    let fourth = connect(server.listen);
    (&fourth).write_all(half).unwrap();
    assert!(closes_silently(&mut first), "it cannot read a 503");
    server.until_closed("shed", 1);
    let fifth = connect(server.listen);
    (&fifth).write_all(half).unwrap();
    let response = second.response();
    assert_eq!(response.status, 503, "{response:?}");
    assert!(response.header("retry-after").is_some(), "{response:?}");
    assert!(second.frame().is_none(), "the server sends close_notify");
    server.until_closed("shed", 2);
    assert_eq!(refused(&server, "max_handshakes"), 2);

    third.write_all(rest).unwrap();
    let mut answer = [0; 1];
    third.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], HANDSHAKE_RECORD, "a remaining handshake can complete");
    is_served(&mut bystander);
}

#[test]
fn a_storm_of_handshakes_is_accepted_completely() {
    let (server, _) = start(&["--max-handshakes", "400", "--workers", "1"]);
    let url = format!("wss://{}/echo", server.listen);
    let storm = ["--connections", "1000", "--connect", "storm", "--insecure", "--messages", "1"];
    let flags = ["load", &url, "--plain", "--echo"];
    let finished = executable::run(&[&flags[..], &storm].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(refused(&server, "max_handshakes"), 0);
    assert_eq!(server.metrics()["standfast_tls_handshakes_total"], 1_000.0);
}

#[test]
fn a_failed_handshake_is_not_in_flight_while_its_peer_stays_connected() {
    let (server, config) = start(&["--workers", "1"]);
    let mut peers = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(server.listen);
        stream.write_all(&client_hello(&config)[..20]).unwrap();
        eventually("it is in flight", || in_flight(&server) == 1.0);
        stream.write_all(&[b'G'; 1_000]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.first(), Some(&21), "an alert");
        assert_eq!(in_flight(&server), 0.0, "the handshake has ended");
        peers.push(stream);
    }
    drop(peers);
    server.until_closed("tls_failed", 3);
}

#[test]
fn a_client_refused_before_tls_gets_no_plaintext() {
    let limits = ["--trusted-proxy", "127.0.0.1", "--proxy-protocol", "--max-per-address", "1"];
    let (server, config) = start(&limits);
    let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\r\n";
    let mut inside =
        Secure::connect_behind(header, server.listen, &config, "localhost", usize::MAX);
    inside.upgrade("/echo");
    let hello = [&header[..], &client_hello(&config)].concat();
    for at in [hello.len(), header.len(), 3] {
        let mut second = connect(server.listen);
        second.write_all(&hello[..at]).unwrap();
        let _ = second.write_all(&hello[at..]);
        assert!(closes_silently(&mut second));
    }
    assert_eq!(refused(&server, "max_per_address"), 3);
    is_served(&mut inside);
}

#[test]
fn stalled_handshakes_take_little_memory_and_leak_nothing() {
    const STALLED: usize = 500;
    let (server, config) = start(&["--handshake-timeout", "3s", "--workers", "1"]);
    let mut bystander = Secure::open(server.listen, &config, "/echo");
    let hello = client_hello(&config);
    // Half of the hello, only the hello, and a record of 16 KiB without its last byte.
    let mut long = vec![HANDSHAKE_RECORD, 3, 1, 0x40, 0, 1, 0, 0xea, 0x60];
    long.resize(5 + 0x4000 - 1, 0);
    let before = server.rss_bytes();
    let stalls: [(&[u8], u64); 3] = [(&hello[..200], 8), (&hello, 16), (&long, 32)];
    for (sent, kib) in stalls {
        let stall = || {
            let sockets: Vec<TcpStream> = (0..STALLED)
                .map(|_| {
                    let mut stream = connect(server.listen);
                    stream.write_all(sent).unwrap();
                    stream
                })
                .collect();
            eventually("all are in flight", || in_flight(&server) >= STALLED as f64);
            sockets
        };
        let over = || eventually("all have timed out", || in_flight(&server) == 0.0);
        drop(stall());
        over();
        let (rss, descriptors) = (server.rss_bytes(), server.descriptors());
        let held = stall();
        let each = server.rss_bytes().saturating_sub(before) / STALLED as u64;
        println!("{} bytes sent: {each} bytes held for each", sent.len());
        assert!(each <= kib * 1024, "{each} bytes for each that sent {}", sent.len());
        is_served(&mut bystander);
        over();
        drop(held);
        eventually("descriptors are closed", || server.descriptors() <= descriptors);
        eventually("memory is returned", || server.rss_bytes() <= rss + (2 << 20));
    }
}

#[test]
fn an_answered_request_over_tls_is_not_in_flight() {
    let (server, config) = start(&[]);
    let mut socket = Secure::connect(server.listen, &config, "localhost", usize::MAX);
    socket.send(upgrade("/echo", &[]).as_bytes()).unwrap();
    assert_eq!(socket.response().status, 101);
    assert_eq!(in_flight(&server), 0.0);
}
