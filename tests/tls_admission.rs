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

/// Asks for a WebSocket, if its TLS is agreed on: who is refused hears an end instead.
fn asks(server: &Server, config: &Arc<ClientConfig>) -> Option<Secure> {
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

fn is_heard(socket: &mut Secure) {
    socket.send(&masked(BINARY, b"anybody?")).unwrap();
    assert_eq!(socket.frame().map(|frame| frame.payload), Some(b"anybody?".to_vec()));
}

/// Whether the server ends the stream without a word.
fn ends_in_silence(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

fn refused(server: &Server, limit: &str) -> u64 {
    server.metrics()[&format!("standfast_refused_total{{limit=\"{limit}\"}}")] as u64
}

fn in_flight(server: &Server) -> f64 {
    server.metrics()["standfast_handshakes"]
}

#[test]
fn an_address_has_so_many_sockets_and_gets_further_ones_as_they_end() {
    let (server, config) = start(&["--max-per-address", "3"]);
    let open = || Secure::open(server.listen, &config, "/echo");
    let mut inside = [open(), open(), open()];
    for _ in 0..5 {
        let mut late = connect(server.listen);
        late.write_all(&client_hello(&config)).unwrap();
        assert!(ends_in_silence(&mut late));
    }
    assert_eq!(refused(&server, "max_per_address"), 5);
    inside.iter_mut().for_each(is_heard);
    let [one, ..] = inside;
    drop(one);
    server.until_closed("gone", 1);
    is_heard(&mut open());
}

#[test]
fn sockets_that_come_too_fast_are_refused_by_address_and_for_all() {
    for (flag, limit) in
        [("--per-address-rate", "per_address_rate"), ("--connect-rate", "connect_rate")]
    {
        let (server, config) = start(&[flag, "4"]);
        let mut inside: Vec<Secure> =
            (0..4).map(|_| Secure::open(server.listen, &config, "/echo")).collect();
        eventually("one comes too fast", || {
            inside.extend(asks(&server, &config));
            refused(&server, limit) > 0
        });
        inside.iter_mut().for_each(is_heard);
        eventually("its time has come", || asks(&server, &config).is_some());
    }
}

#[test]
fn the_oldest_handshake_gives_way_and_is_told_if_it_can_read() {
    let (server, config) = start(&["--max-handshakes", "3", "--workers", "1"]);
    let mut neighbour = Secure::open(server.listen, &config, "/echo");
    let hello = client_hello(&config);
    let (half, rest) = hello.split_at(hello.len() / 2);
    let begun = |count: f64| {
        let mut stream = connect(server.listen);
        stream.write_all(half).unwrap();
        eventually("it is in flight", || in_flight(&server) == count);
        stream
    };
    let mut first = begun(1.0);
    let mut second = Secure::connect(server.listen, &config, "localhost", usize::MAX);
    second.send(b"GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ").unwrap();
    eventually("its TLS is agreed on, its head is not whole", || {
        in_flight(&server) == 2.0 && server.metrics()["standfast_tls_handshakes_total"] == 2.0
    });
    let mut third = begun(3.0);

    let fourth = connect(server.listen);
    (&fourth).write_all(half).unwrap();
    assert!(ends_in_silence(&mut first), "it could not read a 503");
    server.until_closed("shed", 1);
    let fifth = connect(server.listen);
    (&fifth).write_all(half).unwrap();
    let told = second.response();
    assert_eq!(told.status, 503, "{told:?}");
    assert!(told.header("retry-after").is_some(), "{told:?}");
    assert!(second.frame().is_none(), "its end is announced");
    server.until_closed("shed", 2);
    assert_eq!(refused(&server, "max_handshakes"), 2);

    third.write_all(rest).unwrap();
    let mut answer = [0; 1];
    third.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], HANDSHAKE_RECORD, "who is still inside completes what it began");
    is_heard(&mut neighbour);
}

#[test]
fn a_storm_of_handshakes_is_taken_in_without_turning_anybody_away() {
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
fn a_failed_handshake_is_not_in_flight_while_its_peer_stays() {
    let (server, config) = start(&["--workers", "1"]);
    let mut stayers = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(server.listen);
        stream.write_all(&client_hello(&config)[..20]).unwrap();
        eventually("it is in flight", || in_flight(&server) == 1.0);
        stream.write_all(&[b'G'; 1_000]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.first(), Some(&21), "an alert");
        assert_eq!(in_flight(&server), 0.0, "it has its answer");
        stayers.push(stream);
    }
    drop(stayers);
    server.until_closed("tls_failed", 3);
}

#[test]
fn a_client_of_a_proxy_that_is_refused_in_front_of_tls_hears_nothing_in_the_clear() {
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
        assert!(ends_in_silence(&mut second));
    }
    assert_eq!(refused(&server, "max_per_address"), 3);
    is_heard(&mut inside);
}

#[test]
fn handshakes_that_stall_hold_little_and_leave_nothing() {
    const STALLED: usize = 500;
    let (server, config) = start(&["--handshake-timeout", "3s", "--workers", "1"]);
    let mut neighbour = Secure::open(server.listen, &config, "/echo");
    let hello = client_hello(&config);
    // Half of the hello, only the hello, and a record of 16 KiB without its last byte.
    let mut long = vec![HANDSHAKE_RECORD, 3, 1, 0x40, 0, 1, 0, 0xea, 0x60];
    long.resize(5 + 0x4000 - 1, 0);
    let before = server.rss_bytes();
    let stalls: [(&[u8], u64); 3] = [(&hello[..200], 8), (&hello, 16), (&long, 32)];
    for (said, kib) in stalls {
        let stall = || {
            let sockets: Vec<TcpStream> = (0..STALLED)
                .map(|_| {
                    let mut stream = connect(server.listen);
                    stream.write_all(said).unwrap();
                    stream
                })
                .collect();
            eventually("all are in flight", || in_flight(&server) >= STALLED as f64);
            sockets
        };
        let over = || eventually("their time is over", || in_flight(&server) == 0.0);
        drop(stall());
        over();
        let (rss, descriptors) = (server.rss_bytes(), server.descriptors());
        let held = stall();
        let each = server.rss_bytes().saturating_sub(before) / STALLED as u64;
        println!("{} bytes said: {each} held of each", said.len());
        assert!(each <= kib * 1024, "{each} bytes for {} stalled", said.len());
        is_heard(&mut neighbour);
        over();
        drop(held);
        eventually("descriptors are given back", || server.descriptors() <= descriptors);
        eventually("memory is given back", || server.rss_bytes() <= rss + (2 << 20));
    }
}

#[test]
fn who_is_answered_over_tls_no_longer_counts_as_in_flight() {
    let (server, config) = start(&[]);
    let mut socket = Secure::connect(server.listen, &config, "localhost", usize::MAX);
    socket.send(upgrade("/echo", &[]).as_bytes()).unwrap();
    assert_eq!(socket.response().status, 101);
    assert_eq!(in_flight(&server), 0.0);
}
