//! Publishers while the broker is slow, away, or lost at the end: each waits or is answered, in order, and what was
//! accepted is published before the node exits.

use std::net::TcpStream;

use rustix::process::Signal;

use crate::harness::eventually;
use crate::harness::redis::{Passage, Redis, Relay};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::nodes::{node, payload};

fn metric(server: &Server, name: &str) -> f64 {
    let all = server.metrics();
    let of = all.iter().filter(|(full, _)| full.split('{').next() == Some(name));
    of.map(|(_, value)| value).sum()
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
