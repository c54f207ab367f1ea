//! At the connection limit, connections without a request give way to new clients.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{PATIENCE, eventually, http};

const SECRET: &str = "s3Krit";
/// The key of `/_broadcast` for that secret.
const KEY: &str = "a239a7ca182c90fc32bdedf73703d271388cf433843affffd3a5e757041fc716";

/// Sends a request on a connection that stays open.
fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// A connection that waits for its client's next request.
fn idle(address: SocketAddr) -> TcpStream {
    let mut stream = send(address, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(http::read_response(&mut stream, &mut Vec::new()).status, 200);
    stream
}

fn ends(stream: &mut TcpStream) -> bool {
    !http::read_more(stream, &mut Vec::new())
}

fn again(stream: &mut TcpStream) -> u16 {
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    http::read_response(stream, &mut Vec::new()).status
}

#[test]
fn idle_keep_alive_connections_give_way() {
    let server = Server::start(&["--workers", "1", "--max-connections", "4"]);
    let mut held: Vec<TcpStream> = (0..4).map(|_| idle(server.listen)).collect();
    // It closes after its answer.
    assert_eq!(http::get(server.listen, "/health").status, 200);
    assert_eq!(server.metrics()["standfast_keep_alive_closed_total"], 1.0);
    assert_eq!(server.closed("shed"), 1);
    assert!(ends(&mut held[0]), "the one that was idle longest");
    for stream in &mut held[1..] {
        assert_eq!(again(stream), 200);
    }
}

#[test]
fn a_full_table_without_waiting_clients_keeps_its_connections() {
    let server = Server::start(&["--workers", "1", "--max-connections", "4"]);
    let mut held: Vec<TcpStream> = (0..4).map(|_| idle(server.listen)).collect();
    for _ in 0..2 {
        for stream in &mut held {
            assert_eq!(again(stream), 200);
        }
    }
    assert_eq!(server.metrics()["standfast_keep_alive_closed_total"], 0.0);
}

#[test]
fn incomplete_heads_give_way() {
    let more = ["--workers", "1", "--max-connections", "4", "--handshake-timeout", "10m"];
    let server = Server::start(&more);
    let begun = |_| send(server.listen, "GET /health HTTP/1.1\r\nHo");
    let mut held: Vec<TcpStream> = (0..4).map(begun).collect();
    assert_eq!(http::get(server.listen, "/health").status, 200);
    let refused = http::read_response(&mut held[0], &mut Vec::new());
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(server.metrics()["standfast_refused_total{limit=\"max_connections\"}"], 1.0);
    held[1].write_all(b"st: localhost\r\n\r\n").unwrap();
    assert_eq!(http::read_response(&mut held[1], &mut Vec::new()).status, 200, "others stay");
}

#[test]
fn a_worker_without_idle_connections_is_helped_by_another() {
    let server = Server::start(&["--workers", "4", "--max-connections", "8"]);
    let _held: Vec<TcpStream> = (0..8).map(|_| idle(server.listen)).collect();
    let mut sockets: Vec<Socket> = Vec::new();
    for _ in 0..8 {
        sockets.push(Socket::open(server.listen, "/echo"));
    }
    assert_eq!(server.metrics()["standfast_keep_alive_closed_total"], 8.0);
    for socket in &mut sockets {
        socket.send_frame(TEXT, b"open");
        assert!(socket.frame().is_some_and(|frame| frame.payload == b"open"));
    }
}

#[test]
fn while_clients_wait_an_answered_connection_does_not_stay() {
    let more = ["--workers", "1", "--max-connections", "1", "--listen-broadcast", "--secret"];
    let server = Server::start(&[&more[..], &[SECRET, "--handshake-timeout", "10m"]].concat());
    let mut busy = send(
        server.listen,
        &format!(
            "POST /_broadcast HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Length: 25\r\n\r\n"
        ),
    );
    eventually("its body is awaited", || server.metrics()["standfast_connections"] == 1.0);
    let request = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut waiting = send(server.listen, request);
    eventually("it waits", || server.metrics()["standfast_accept_full_total"] > 0.0);
    busy.write_all(br#"{"stream":"a","data":"x"}"#).unwrap();
    let answered = http::read_response(&mut busy, &mut Vec::new());
    assert_eq!((answered.status, answered.header("connection")), (201, Some("close")));
    drop(busy);
    assert_eq!(http::read_response(&mut waiting, &mut Vec::new()).status, 200);
}

#[test]
fn idle_clients_of_the_proxy_give_way() {
    let upstream = Server::start(&[]);
    let address = upstream.listen.to_string();
    let more = ["--upstream", &address, "--workers", "1", "--max-connections", "2"];
    let proxy = Server::start_proxy(&more);
    let _held: Vec<TcpStream> = (0..2).map(|_| idle(proxy.listen)).collect();
    for _ in 0..3 {
        assert_eq!(http::get(proxy.listen, "/health").status, 200);
    }
    assert!(proxy.metrics()["standfast_keep_alive_closed_total"] >= 1.0);
}
