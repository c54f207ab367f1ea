//! Sessions, publishers and histories while a broker is away or refuses something: each is a fault that was found
//! by reading.

use serde_json::{Value, json};

use crate::harness::brokers::Broker;
use crate::harness::cable::{Cable, Extended};
use crate::harness::polling::Poller;
use crate::harness::redis::{Passage, Redis, Relay};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::{Scratch, eventually};
use crate::nodes::{node, stream, unready_node, until_ready};

/// The sum of a metric over its labels.
fn metric(server: &Server, name: &str) -> f64 {
    let all = server.metrics();
    let of = all.iter().filter(|(full, _)| full.split('{').next() == Some(name));
    of.map(|(_, value)| value).sum()
}

#[test]
fn a_session_of_polls_begins_anew_if_the_broker_has_not_followed_its_topics() {
    let Some(redis) = Redis::start(&[]) else { return };
    let relay = Relay::start(redis.address());
    let polling = ["--long-polling", "--long-polling-keepalive", "300ms"];
    let more = ["--history", "memory", "--pubsub-linger", "1s"];
    let flags = [&polling[..], &more].concat();
    let server = node(&format!("redis://{}", relay.address), &flags);
    let topics = || server.admin_get("/api/cluster").json()["connections"][0]["topics"].clone();
    let before = topics();
    let mut client = Poller::open(server.listen, "");
    client.subscribe(&stream("a"));
    let query = format!("?sid={}", client.sid);
    // While Redis follows the topic the session goes on.
    let mut again = Poller::open(server.listen, &query);
    assert_eq!(again.welcome["restored"], Value::Null, "it is still open");
    again.subscribe(&stream("a"));
    eventually("both sessions have ended", || {
        metric(&server, "standfast_long_polling_expired_total") == 2.0
    });
    eventually("the topic is not followed any more", || topics() == before);
    relay.set(Passage::Held);
    let other = Poller::open(server.listen, &query);
    assert_eq!(other.welcome["restored"], Value::Null, "something may be missing");
}

#[test]
fn a_publisher_that_waits_for_the_broker_is_not_judged_by_its_pongs() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let times = ["--ping-interval", "200ms", "--pong-timeout", "1s"];
    let server = node(&redis.url(), &[&times[..], &["--streams-whisper"]].concat());
    let mut publisher = Extended::connect(server.listen, "");
    publisher.subscribe(&stream("a"));
    redis.kill();
    eventually("the broker is away", || server.admin_get("/ready").status == 503);
    publisher.send(&json!({"command": "whisper", "identifier": stream("a"), "data": 1}));
    // More pings than fit into the timeout; none of the pongs is read.
    for _ in 0..15 {
        let frame = publisher.socket.frame().expect("the connection stays");
        let message: Value = serde_json::from_slice(&frame.payload).unwrap();
        assert_eq!(message["type"], "ping", "{message}");
        publisher.send(&json!({"command": "pong"}));
    }
    redis.restart();
    until_ready(&server);
    eventually("its whisper is published", || metric(&server, "standfast_published_total") == 1.0);
    assert_eq!(metric(&server, "standfast_no_pong_total"), 0.0);
}

#[test]
fn a_connection_that_ends_as_soon_as_it_is_there_is_neither_repeated_nor_logged_at_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    assert_eq!(redis.ask("ACL SETUSER mute on >pass +@all -publish allchannels"), "+OK");
    let server = unready_node(&format!("redis://mute:pass@{}", redis.address()), &[]);
    let faults = || metric(&server, "standfast_pubsub_faults_total");
    eventually("it is cut off again and again", || faults() >= 6.0);
    let (lines, faults) = (server.log().matches("pubsub disconnected").count(), faults());
    assert!(server.log().contains("NOPERM"), "{}", server.log());
    assert!(lines as f64 <= faults / 3.0, "{lines} lines of {faults} faults");
}

#[test]
fn a_publication_that_is_too_long_for_nats_is_refused_and_a_message_that_is_leaves_a_gap() {
    let config = Scratch::new("nats-payload", "max_payload: 2048\n");
    let Some(nats) = Broker::nats(&["--config", config.path()]) else { return };
    let url = nats.url("");
    let fixed = ["--pubsub", "nats", "--nats-servers", &url, "--public-streams", "--public"];
    let nodes = [Server::start(&fixed), Server::start(&fixed)];
    nodes.iter().for_each(until_ready);
    let mut client = Cable::join(nodes[1].listen, None).welcomed();
    let wanted = json!({"channel": "$pubsub", "stream_name": "news"});
    assert_eq!(client.subscribe(&wanted), "confirm_subscription");
    let long = json!({"topic": "news", "data": "x".repeat(4000)});
    let refused = nodes[0].publish(&long);
    assert_eq!(
        (refused.status, refused.json()["error"].clone()),
        (413, json!("publication_too_long"))
    );
    assert_eq!(nodes[0].publish(&json!({"topic": "news", "data": "1"})).status, 200);
    assert_eq!(client.hear()["message"], 1);
    // A client that publishes gets no answer; its message is missing, which is told.
    let mut publisher = Socket::open(nodes[0].listen, "/topics/news");
    publisher.send_frame(TEXT, "x".repeat(4000).as_bytes());
    publisher.send_frame(TEXT, b"2");
    assert_eq!(client.hear()["message"], 2);
    assert_eq!(metric(&nodes[1], "standfast_pubsub_gaps_total"), 1.0);
    assert_eq!(metric(&nodes[0], "standfast_pubsub_refused_total"), 2.0);
    assert_eq!(nodes[0].log().matches("publication dropped: ").count(), 1, "once");
}
