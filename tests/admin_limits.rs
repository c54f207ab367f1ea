//! Connections of the admin listener: silent, half-sent and idle ones make room for callers.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::http;
use crate::harness::server::Server;

const KEY: &str = "correct-horse";

/// A request with the admin key on a new connection.
fn keyed(server: &Server, request: &str, body: &str) -> http::Response {
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
    let rest = format!("Authorization: Bearer {KEY}\r\nContent-Length: {length}\r\n\r\n{body}");
    http::ask(server.admin, &(head + &rest))
}

fn silent(server: &Server, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(server.admin).expect("the listener accepts")).collect()
}

#[test]
fn silent_connections_beyond_the_descriptor_limit_do_not_stop_publishing() {
    let server = Server::start_limited(256, &["--admin-key", KEY]);
    let mut held = silent(&server, 300);
    for stream in held.iter_mut().skip(150) {
        stream.write_all(b"GET /api/stats HT").unwrap();
    }
    let published = keyed(&server, "POST /api/publish", r#"{"topic":"x","data":"x"}"#);
    assert_eq!(published.status, 200, "{published:?}");
    drop(held);
}

#[test]
fn a_burst_of_callers_waits_in_the_accept_queue() {
    let server = Server::start(&[]);
    let longest = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let count = longest.trim().parse::<usize>().unwrap().min(600);
    // Nothing is accepted meanwhile. A connect that finds the queue full is dropped and gets no answer.
    server.signal(Signal::STOP);
    let connect = |_| TcpStream::connect_timeout(&server.admin, Duration::from_secs(10));
    let held: Result<Vec<TcpStream>, _> = (0..count).map(connect).collect();
    server.signal(Signal::CONT);
    held.expect("the queue has room");
}
