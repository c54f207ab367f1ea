//! Publishers while the broker is slow, away, or lost at the end: each waits or is answered, in order, and what was
//! accepted is published before the node exits.

use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::app::{Answer, App};
use crate::harness::eventually;
use crate::harness::redis::{Passage, Redis, Relay};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::nodes::{node, payload, publish, until_ready};

fn metric(server: &Server, name: &str) -> f64 {
    let all = server.metrics();
    let of = all.iter().filter(|(full, _)| full.split('{').next() == Some(name));
    of.map(|(_, value)| value).sum()
}

/// Sends a body to `/_broadcast` of the client listener, without waiting for the answer.
fn broadcast(server: &Server, data: &str) -> Socket {
    let body = json!({"stream": "a", "data": data}).to_string();
    let mut socket = Socket::connect(server.listen);
    let (host, length) = (server.listen, body.len());
    let head = format!("POST /_broadcast HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer k\r\n");
    socket.send(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes());
    socket
}

#[test]
fn broadcasts_on_the_client_listener_are_published_at_once_and_in_order_by_a_slow_broker() {
    let Some(redis) = Redis::start(&[]) else { return };
    let relay = Relay::start(redis.address());
    let flags = ["--listen-broadcast", "--broadcast-key", "k"];
    let server = node(&format!("redis://{}", relay.address), &flags);
    let other = node(&redis.url(), &[]);
    let mut reader = Socket::open(other.listen, "/topics/a");
    let waiting = || metric(&server, "standfast_pubsub_waiting");
    relay.set(Passage::Held);
    // Some of the first are on their way, the others wait for the answer to these: more than may wait to be parsed.
    const FIRST: usize = 4;
    const ALL: usize = 24;
    let mut posted = Vec::new();
    for number in 0..ALL {
        posted.push(broadcast(&server, &number.to_string()));
        if number < FIRST {
            // One after another, to see their order.
            let bodies = || metric(&server, "standfast_bodies_in_total");
            eventually("it has arrived", || bodies() > number as f64);
        } else if number.is_multiple_of(4) {
            let parsed = || waiting() + (FIRST + 4) as f64 > number as f64;
            eventually("those before it wait for the broker", parsed);
        }
    }
    eventually("all wait for the broker", || waiting() + FIRST as f64 >= ALL as f64);
    relay.set(Passage::Open);
    for socket in &mut posted {
        let answer = socket.response();
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let texts: Vec<String> = (0..ALL).map(|_| payload(&mut reader)).collect();
    let expected: Vec<String> = (0..FIRST).map(|number| number.to_string()).collect();
    let first: Vec<String> = texts.into_iter().filter(|text| expected.contains(text)).collect();
    assert_eq!(first, expected);
}

#[test]
fn messages_that_the_application_allows_wait_for_the_broker_and_are_counted_once_if_refused() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let app = App::start(|_| Answer::Json(json!({"allow": true, "publish": "ask"})));
    let auth = format!("http://{}/auth", app.address);
    let server = node(&redis.url(), &["--auth-url", &auth]);
    let mut reader = Socket::open(server.listen, "/topics/a");
    let mut publisher = Socket::open(server.listen, "/topics/a");
    redis.kill();
    eventually("the broker is away", || server.admin_get("/ready").status == 503);
    for number in 1..=3 {
        publisher.send_frame(TEXT, number.to_string().as_bytes());
    }
    eventually("the first one waits", || metric(&server, "standfast_publish_paused_total") == 1.0);
    let refused = || metric(&server, "standfast_pubsub_refused_total");
    assert_eq!(publish(&server, "a", "x").status, 503);
    assert_eq!(refused(), 1.0, "the message that waits is not refused, however often it is tried");
    redis.restart();
    until_ready(&server);
    for number in 1..=3 {
        assert_eq!(payload(&mut reader), number.to_string());
        assert_eq!(payload(&mut publisher), number.to_string());
    }
    assert_eq!(refused(), 1.0);
    assert_eq!(metric(&server, "standfast_publish_paused_total"), 1.0);
}

#[test]
fn what_was_on_its_way_when_a_node_is_ended_is_published_before_it_exits() {
    let Some(redis) = Redis::start(&[]) else { return };
    let relay = Relay::start(redis.address());
    let mut server = node(&format!("redis://{}", relay.address), &["--drain", "0s"]);
    let other = node(&redis.url(), &[]);
    let mut reader = Socket::open(other.listen, "/topics/a");
    let mut publisher = Socket::open(server.listen, "/topics/a");
    // The bytes get lost, and so does the connection that carried them.
    relay.set(Passage::Swallowed);
    publisher.send_frame(TEXT, b"1");
    eventually("it is accepted", || metric(&server, "standfast_published_total") == 1.0);
    eventually("it is on its way", || metric(&server, "standfast_pubsub_waiting") == 0.0);
    server.signal(Signal::TERM);
    eventually("the clients are gone", || TcpStream::connect(server.listen).is_err());
    relay.set(Passage::Open);
    assert_eq!(payload(&mut reader), "1");
    assert!(server.wait().success(), "{}", server.log());
}
