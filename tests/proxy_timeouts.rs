//! Timeouts of `standfast proxy`, of all routes and of one: `--connect-timeout` alone limits connects and TLS
//! handshakes to upstreams, and idle tunnels are closed after the time of their route, as clients that read
//! no response are.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen};
use rustix::net::{socket, socket_with};
use rustix::process::Signal;

use crate::harness::server::Server;
use crate::harness::socket::{Socket, upgrade};
use crate::harness::upstream::{Leg, Upstream};
use crate::harness::{Scratch, eventually};

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

#[test]
fn a_connect_timeout_of_a_route_applies_to_its_requests_only() {
    let (address, _held) = full_listener();
    let text = format!(
        "[proxy]\nworkers = 1\nconnect_timeout = '1h'\n[pool.a]\nupstreams = ['{address}']\n\
         [[route]]\npool = 'a'\n[[route]]\npath = '/quick'\npool = 'a'\nconnect_timeout = '300ms'\n"
    );
    let config = Scratch::new("connect-timeout.toml", &text);
    let proxy = Server::start_proxy(&["--config", config.path()]);
    let mut patient = Socket::connect(proxy.listen);
    patient.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut quick = Socket::connect(proxy.listen);
    let began = Instant::now();
    quick.send(b"GET /quick HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(quick.response().status, 502);
    assert!(began.elapsed() >= Duration::from_millis(300));
    let refused = "standfast_requests_refused_total{reason=\"unreachable\"}";
    assert_eq!(proxy.metrics()[refused], 1.0, "the other one waits");
}

/// An idle tunnel through a route.
fn tunnel(proxy: &Server, upstream: &Upstream, path: &str) -> (Socket, Leg) {
    let mut socket = Socket::connect(proxy.listen);
    socket.send(upgrade(path, &[]).as_bytes());
    let leg = upstream.tunnel();
    assert_eq!(socket.response().status, 101);
    (socket, leg)
}

fn passes((socket, leg): &mut (Socket, Leg)) -> bool {
    socket.send(b"x");
    leg.bytes(1) == b"x"
}

#[test]
fn an_idle_timeout_of_a_route_applies_to_its_tunnels_only() {
    let upstream = Upstream::new();
    let text = |idle: &str, quick: &str| {
        format!(
            "[proxy]\nworkers = 1\nidle_timeout = '{idle}'\n[pool.a]\nupstreams = ['{}']\n\
             [[route]]\npool = 'a'\n[[route]]\npath = '/quick'\npool = 'a'\nidle_timeout = '{quick}'\n\
             [[route]]\npath = '/off'\npool = 'a'\nidle_timeout = 'off'\n",
            upstream.address()
        )
    };
    let config = Scratch::new("idle-timeout.toml", &text("1h", "300ms"));
    let proxy = Server::start_proxy(&["--config", config.path()]);
    let ended = || proxy.metrics()["standfast_tunnels_ended_total{reason=\"idle_timeout\"}"];
    let mut open = ["/", "/off"].map(|path| tunnel(&proxy, &upstream, path));
    let mut quick = tunnel(&proxy, &upstream, "/quick");
    assert!(quick.0.ends() && quick.1.ends());
    eventually("it is counted", || ended() == 1.0);
    assert!(open.iter_mut().all(passes));
    // A tunnel keeps the timeout of its route. The others follow a reload.
    config.write(&text("300ms", "1h"));
    proxy.signal(Signal::HUP);
    eventually("the configuration is reloaded", || proxy.log().contains("configuration reloaded"));
    let mut slow = tunnel(&proxy, &upstream, "/quick");
    let [all, off] = &mut open;
    assert!(all.0.ends() && all.1.ends());
    eventually("it is counted", || ended() == 2.0);
    assert!(passes(off) && passes(&mut slow));
}

/// A client that reads nothing, of which the last response is complete in the proxy and waits there; and how
/// many responses it is owed.
fn unread(proxy: &Server, upstream: &Upstream, path: &str) -> (Socket, usize) {
    let waiting = || proxy.metrics()["standfast_queued_bytes"];
    let before = waiting();
    let mut socket = Socket::connect(proxy.listen);
    let length = 16_000;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let response = [head.as_bytes(), &vec![b'a'; length]].concat();
    for owed in 1..=2_000 {
        socket.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        let mut leg = upstream.accept();
        leg.head();
        leg.say(&response);
        eventually("it is complete", || proxy.metrics()["standfast_exchanges"] == 0.0);
        if waiting() > before {
            return (socket, owed);
        }
    }
    panic!("the kernel takes everything");
}

#[test]
fn an_answer_timeout_of_a_route_applies_to_its_unread_responses_only() {
    let upstream = Upstream::new();
    for (all, of_route) in [("3s", "1h"), ("1h", "3s")] {
        let text = format!(
            "[proxy]\nworkers = 1\nspare_connections = 0\nanswer_timeout = '{all}'\n\
             [pool.a]\nupstreams = ['{}']\n\
             [[route]]\npool = 'a'\n[[route]]\npath = '/own'\npool = 'a'\nanswer_timeout = '{of_route}'\n",
            upstream.address()
        );
        let config = Scratch::new("answer-timeout.toml", &text);
        let proxy = Server::start_proxy(&["--config", config.path()]);
        let paths = if all == "1h" { ["/", "/own"] } else { ["/own", "/"] };
        let waiting = || proxy.metrics()["standfast_queued_bytes"];
        let (mut patient, owed) = unread(&proxy, &upstream, paths[0]);
        let of_patient = waiting();
        let _quick = unread(&proxy, &upstream, paths[1]);
        eventually("the quick one is reset", || waiting() <= of_patient);
        for _ in 0..owed {
            assert_eq!(patient.response().status, 200, "{paths:?}");
        }
    }
}
