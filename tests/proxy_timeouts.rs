//! `--connect-timeout` of `standfast proxy` alone limits connects and TLS handshakes to upstreams.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen};
use rustix::net::{socket, socket_with};

use crate::harness::server::Server;
use crate::harness::socket::Socket;

/// The `--connect-timeout` of these proxies; the other timeouts are shorter.
const CONNECT: Duration = Duration::from_secs(4);

/// Returns after which time a request is answered 502.
fn gives_up_after(upstream: SocketAddr, more: &[&str]) -> Duration {
    let upstream = upstream.to_string();
    let flags = ["--upstream", &upstream, "--connect-timeout", "4s", "--workers", "1"];
    let proxy = Server::start_proxy(&[&flags[..], more].concat());
    let mut socket = Socket::connect(proxy.listen);
    let began = Instant::now();
    socket.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(socket.response().status, 502);
    began.elapsed()
}

#[test]
fn a_short_handshake_timeout_of_clients_does_not_shorten_tls_to_upstreams() {
    // Accepts in the kernel and never answers the ClientHello.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let flags = ["--upstream-tls", "--upstream-name", "localhost", "--handshake-timeout", "1s"];
    let took = gives_up_after(address, &flags);
    assert!(took >= CONNECT, "{took:?}");
}

/// A listener whose queue is full, so that the kernel drops further SYNs; and what fills it.
fn full_listener() -> (SocketAddr, Vec<OwnedFd>) {
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 0).unwrap();
    let address: SocketAddr = getsockname(&listener).unwrap().try_into().unwrap();
    let mut held = vec![listener];
    for _ in 0..4 {
        let flags = SocketFlags::NONBLOCK;
        let filler = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        let _ = connect(&filler, &address);
        held.push(filler);
    }
    (address, held)
}

#[test]
fn short_handshake_and_peer_timeouts_do_not_shorten_a_connect() {
    let (address, _held) = full_listener();
    for flags in [["--handshake-timeout", "1s"], ["--peer-timeout", "1s"]] {
        let took = gives_up_after(address, &flags);
        assert!(took >= CONNECT, "{flags:?}: {took:?}");
    }
}
