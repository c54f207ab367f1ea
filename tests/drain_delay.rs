//! `/health` and `/ready`, and `--drain-delay`: both report draining while clients are still accepted.

use std::net::TcpStream;

use rustix::process::Signal;

use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{Scratch, eventually, http};

fn echoes(socket: &mut Socket) -> bool {
    socket.send_frame(TEXT, b"hello");
    socket.frame().is_some_and(|frame| frame.payload == b"hello")
}

#[test]
fn clients_are_accepted_until_the_delay_has_passed() {
    let mut server = Server::start(&["--drain-delay", "10m", "--drain", "0s"]);
    let mut before = Socket::open(server.listen, "/echo");
    server.signal(Signal::TERM);
    eventually("health reports draining", || http::get(server.admin, "/health").status == 503);
    for path in ["/health", "/ready"] {
        let (admin, client) = (http::get(server.admin, path), http::get(server.listen, path));
        assert_eq!((admin.status, admin.body.trim()), (503, "draining"), "{path}");
        assert_eq!((client.status, client.body.trim()), (503, "draining"), "{path}");
    }
    assert_eq!(http::get(server.admin, "/api/stats").json()["status"], "draining");
    let mut during = Socket::open(server.listen, "/echo");
    assert!(echoes(&mut before) && echoes(&mut during));
    assert!(server.log().contains("draining in 600s"), "{}", server.log());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "a second signal exits: {}", server.log());
}

#[test]
fn after_the_delay_clients_are_closed_as_without_one() {
    let mut server = Server::start(&["--drain-delay", "1s", "--drain", "0s"]);
    let mut socket = Socket::open(server.listen, "/echo");
    server.signal(Signal::TERM);
    assert_eq!(socket.close_code(), 1001);
    eventually("new connections are refused", || TcpStream::connect(server.listen).is_err());
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

#[test]
fn a_server_is_ready_while_it_serves() {
    let server = Server::start(&["--admin-key", "correct-horse"]);
    for address in [server.admin, server.listen] {
        let ready = http::get(address, "/ready");
        assert_eq!((ready.status, ready.body.trim()), (200, "ready"), "it needs no key");
    }
    let upstream = server.listen.to_string();
    let proxy = Server::start_proxy(&["--upstream", &upstream]);
    assert_eq!(http::get(proxy.admin, "/ready").status, 200);
    assert_eq!(proxy.metrics()["standfast_workers_stalled"], 0.0);
    assert_eq!(proxy.metrics()["standfast_worker_stalls_total"], 0.0);
}

#[test]
fn the_delay_can_be_reloaded() {
    let config = Scratch::new("delay.toml", "[serve]\ndrain_delay = \"0s\"\n");
    let server = Server::start(&["--config", config.path(), "--drain", "0s"]);
    config.write("[serve]\ndrain_delay = \"10m\"\n");
    server.signal(Signal::HUP);
    eventually("the configuration is reloaded", || server.log().contains("reloaded"));
    server.signal(Signal::TERM);
    eventually("health reports draining", || http::get(server.admin, "/health").status == 503);
    assert!(echoes(&mut Socket::open(server.listen, "/echo")));
}

#[test]
fn the_proxy_accepts_clients_until_the_delay_has_passed() {
    let upstream = Server::start(&[]);
    let upstream_address = upstream.listen.to_string();
    let args = ["--upstream", &upstream_address, "--drain-delay", "10m", "--drain", "0s"];
    let mut proxy = Server::start_proxy(&args);
    let mut before = Socket::open(proxy.listen, "/echo");
    proxy.signal(Signal::TERM);
    eventually("health reports draining", || http::get(proxy.admin, "/health").status == 503);
    let mut during = Socket::open(proxy.listen, "/echo");
    assert!(echoes(&mut before) && echoes(&mut during));
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.wait().code(), Some(0), "a second signal exits: {}", proxy.log());
}

/// A client that is closed only at the end of a drain can send as much as before.
#[test]
fn the_memory_limit_is_enforced_while_draining() {
    let config = Scratch::new("drain-memory.toml", "[serve]\nmemory_limit = '4GiB'\n");
    let args = ["--config", config.path(), "--workers", "1", "--drain", "10m"];
    let server = Server::start(&[&args[..], &["--max-message", "32MiB"]].concat());
    // Closed first, and a hundred a second: the others are there for 20 s.
    let _idle: Vec<Socket> = (0..2_000).map(|_| Socket::open(server.listen, "/echo")).collect();
    let mut clients: Vec<Socket> = (0..40).map(|_| Socket::open(server.listen, "/echo")).collect();
    let limit = server.rss_bytes() + (24 << 20);
    config.write(&format!("[serve]\nmemory_limit = '{}KiB'\n", limit >> 10));
    server.signal(Signal::HUP);
    eventually("the limit applies", || server.log().contains("configuration reloaded"));
    server.signal(Signal::TERM);
    eventually("the server drains", || TcpStream::connect(server.listen).is_err());
    // Not the last fragment.
    let part = vec![7; 2 << 20];
    clients.iter_mut().for_each(|client| client.send_frame(0x02, &part));
    eventually("clients are shed, and memory is below the limit", || {
        server.metrics()["standfast_shed_total"] > 0.0 && server.rss_bytes() <= limit
    });
    assert!(server.log().contains("memory limit exceeded"), "{}", server.log());
}
