//! Limits on time and on queues: late, idle and slow clients are told the reason, counted, and
//! disconnected or kept as configured.

use serde_json::json;

use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::{CLOSE, PING, PONG, Socket, TEXT};

#[test]
fn an_endless_head_times_out() {
    let server = Server::start(&["--handshake-timeout", "1s"]);
    let mut silent = Socket::connect(server.listen);
    let mut trickling = Socket::connect(server.listen);
    trickling.send(b"GET /echo HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    // Each byte is progress, but the timeout is for the complete head.
    eventually("both are closed by the handshake timeout", || {
        trickling.send(b"x");
        server.closed("handshake_timeout") == 2
    });
    assert!(trickling.ends() && silent.ends());
    let mut quick = Socket::open(server.listen, "/echo");
    quick.send_frame(TEXT, b"in time");
    assert!(quick.frame().is_some());
}

#[test]
fn an_idle_client_is_pinged_then_closed_unless_it_answers() {
    let server = Server::start(&["--idle-timeout", "1s"]);
    let mut silent = Socket::open(server.listen, "/echo");
    let mut live = Socket::open(server.listen, "/echo");
    while server.closed("idle_timeout") == 0 {
        let ping = live.frame().expect("a live peer stays");
        assert_eq!(ping.first, PING);
        live.send_frame(PONG, &ping.payload);
    }
    assert_eq!(silent.frame().map(|frame| frame.first), Some(PING));
    assert_eq!(silent.close_code(), 1001);
    assert_eq!(server.closed("idle_timeout"), 1);
    live.send_frame(TEXT, b"still here");
    let echo = std::iter::from_fn(|| live.frame()).find(|frame| frame.first != PING);
    assert_eq!(echo.map(|frame| frame.payload), Some(b"still here".to_vec()));
}

#[test]
fn without_pings_an_idle_client_is_closed() {
    let server = Server::start(&["--idle-timeout", "500ms", "--pings", "off"]);
    let mut socket = Socket::open(server.listen, "/echo");
    assert_eq!(socket.frame().map(|frame| frame.first), Some(CLOSE));
    server.until_closed("idle_timeout", 1);
}

#[test]
fn a_slow_consumer_is_closed_with_1013() {
    let server = Server::start(&["--send-queue", "64KiB"]);
    let mut slow = Socket::open(server.listen, "/topics/x");
    publish_until(&server, || server.metrics()["standfast_dropped_slow_total"] > 0.0);
    // It has some seconds to read its queue and the close frame after it.
    assert_eq!(slow.close_code(), 1013);
    slow.send_frame(CLOSE, &1013_u16.to_be_bytes());
    assert!(slow.ends());
    server.until_closed("slow_consumer", 1);
}

#[test]
fn drop_policies_keep_a_slow_consumer_and_count_each_drop() {
    for policy in ["drop-oldest", "latest-only"] {
        let server = Server::start(&["--send-queue", "64KiB", "--slow-consumer", policy]);
        let mut slow = Socket::open(server.listen, "/topics/x");
        let dropped = || server.metrics()["standfast_dropped_slow_total"];
        let published = publish_until(&server, || dropped() >= 10.0);
        let mut received = Vec::new();
        while received.last() != Some(&(published - 1)) {
            let frame = slow.frame().expect("a slow consumer stays");
            received.push(message_number(&frame.payload));
        }
        assert!(received.is_sorted_by(|one, next| one < next), "{policy}: {received:?}");
        assert_eq!(received.len() as f64 + dropped(), published as f64, "{policy}");
        assert_eq!(server.closed("slow_consumer"), 0, "{policy}");
    }
}

/// Publishes numbered messages of 16 KiB to topic `x` until `enough`; returns how many.
fn publish_until(server: &Server, mut enough: impl FnMut() -> bool) -> u64 {
    let mut published = 0;
    eventually("the queue is full", || {
        for _ in 0..10 {
            let data = format!("{published:<16384}");
            assert_eq!(server.publish(&json!({"topic": "x", "data": data})).status, 200);
            published += 1;
        }
        enough()
    });
    published
}

fn message_number(payload: &[u8]) -> u64 {
    std::str::from_utf8(payload).unwrap().trim_end().parse().unwrap()
}
