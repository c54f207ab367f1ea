//! Errors of a broker that belong to one topic: that topic is refused or begins anew, and all others go on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use brokers::{GapCause, Outcome, Settings, Ticket};

use crate::servers::{NatsServer, RedisServer};
use crate::support::{Event, Node, eventually, publication, settings};

fn hour() -> Settings {
    settings(1_000, Duration::from_secs(3600))
}

fn publish(node: &Node, topic: &str, data: &str) -> Outcome {
    let ticket = Ticket::new();
    node.broker.publish(topic, publication(data, false), Some(ticket.clone())).unwrap();
    ticket.wait(Duration::from_secs(60))
}

fn is_published(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Published { .. })
}

/// Another topic works, over the same connection.
fn others_go_on(node: &Node, connected: u64) {
    if node.heard.confirmed("fine") == 0 {
        node.follow("fine");
    }
    let data = format!("still there {}", crate::support::random());
    assert!(is_published(&publish(node, "fine", &data)));
    node.until_heard("fine", &data);
    let counters = node.broker.counters();
    assert_eq!(counters.connected.load(Ordering::Relaxed), connected, "the connection was kept");
    assert_eq!(node.broker.trouble(), None);
}

#[test]
fn content_that_no_node_has_written_begins_another_epoch() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let node = Node::start(&server.transport(), hour());
    let reset = || node.broker.counters().reset.load(Ordering::Relaxed);
    // A foreign entry of the stream, then a client that subscribes.
    assert!(is_published(&publish(&node, "entry", "1")));
    server.ask("XADD {test:t:entry}:kept 9999999999999-0 a b");
    node.follow("entry");
    assert_eq!(reset(), 1);
    assert!(is_published(&publish(&node, "entry", "2")));
    node.until_heard("entry", "2");
    // Keys of another type, and a hash without numbers, for a publisher and for a subscriber.
    let invalid = [
        "SET {test:t:NAME}:at b",
        "SET {test:t:NAME}:kept b",
        "HSET {test:t:NAME}:at run RUN epoch x offset y",
    ];
    let run = server.run_id();
    for (number, command) in invalid.iter().enumerate() {
        for published in [true, false] {
            let (name, before) = (format!("invalid{number}{published}"), reset());
            // The stream of a topic that was never published to is not looked at.
            assert!(is_published(&publish(&node, &name, "0")));
            server.ask(&format!("DEL {{test:t:{name}}}:kept"));
            let command = command.replace("NAME", &name).replace("RUN", &run);
            assert!(!server.ask(&command).starts_with('-'), "{command}");
            if published {
                assert!(is_published(&publish(&node, &name, "1")), "{command}");
            }
            node.follow(&name);
            assert!(is_published(&publish(&node, &name, "2")), "{command}");
            node.until_heard(&name, "2");
            assert_eq!(reset(), before + 1, "{command}");
        }
    }
    others_go_on(&node, 1);
}

#[test]
fn a_followed_topic_whose_content_is_replaced_has_a_gap_and_goes_on() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let node = Node::start(&server.transport(), hour());
    node.follow("room");
    assert!(is_published(&publish(&node, "room", "1")));
    node.until_heard("room", "1");
    server.ask("DEL {test:t:room}:at");
    server.ask("SET {test:t:room}:at b");
    server.cut();
    eventually("the gap is reported", || node.heard.gaps("room") == 1);
    node.until_up();
    assert!(is_published(&publish(&node, "room", "2")));
    node.until_heard("room", "2");
}

#[test]
fn a_topic_that_the_user_may_not_use_is_refused_and_taken_once_it_may() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let commands = "+@all";
    server.ask(&format!(
        "ACL SETUSER some on >p resetchannels ~* {commands} &test:nodes &test:t:fine"
    ));
    for history in [true, false] {
        let settings = Settings { history: hour().history.filter(|_| history), ..hour() };
        let node = Node::start(&server.transport_as("some:p@"), settings);
        let names: Vec<String> = (0..20).map(|number| format!("other{number}")).collect();
        names.iter().for_each(|name| node.broker.want(name));
        let rejected = || node.broker.counters().rejected.load(Ordering::Relaxed);
        eventually("they are refused", || rejected() >= 20);
        others_go_on(&node, 1);
        assert!(names.iter().all(|name| node.heard.confirmed(name) == 0));
        match publish(&node, "other1", "1") {
            Outcome::Rejected(why) => {
                // In a script it has no code.
                let is_named = why.contains("NOPERM") || why.contains("can't publish");
                assert!(is_named && why.contains("test:t:other1"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        others_go_on(&node, 1);
        server.ask("ACL SETUSER some &test:t:other*");
        eventually("they are confirmed", || names.iter().all(|one| node.heard.confirmed(one) == 1));
        assert!(is_published(&publish(&node, "other1", "2")));
        node.until_heard("other1", "2");
        others_go_on(&node, 1);
        server.ask("ACL SETUSER some resetchannels &test:nodes &test:t:fine");
    }
}

#[test]
fn keys_that_the_user_may_not_use_are_refused() {
    let Some(server) = RedisServer::start(&[]) else { return };
    server.ask("ACL SETUSER some on >p &* +@all resetkeys ~{test:nodes}* ~{test:t:fine}*");
    let node = Node::start(&server.transport_as("some:p@"), hour());
    node.broker.want("other");
    eventually("it is refused", || node.broker.counters().rejected.load(Ordering::Relaxed) > 0);
    assert!(
        matches!(publish(&node, "other", "1"), Outcome::Rejected(why) if why.contains("NOPERM"))
    );
    others_go_on(&node, 1);
    assert_eq!(node.heard.confirmed("other"), 0);
    // Nobody wants it any more: it is forgotten.
    node.broker.release("other");
    eventually("it is forgotten", || node.broker.shards()[0].topics == 2);
}

/// Full until a publication is taken.
fn full_until_it_takes_one(node: &Node, fill: &dyn Fn(bool)) {
    assert!(is_published(&publish(node, "room", "1")));
    assert_eq!(node.broker.full(), None);
    fill(true);
    eventually("it is full", || publish(node, "room", "more") == Outcome::Full);
    assert!(node.broker.full().is_some_and(|why| why.contains("no room for more")));
    assert!(node.broker.shards()[0].is_full && node.broker.trouble().is_none());
    fill(false);
    eventually("it takes one", || is_published(&publish(node, "room", "2")));
    assert!(node.broker.full().is_none() && !node.broker.shards()[0].is_full);
}

#[test]
fn a_full_redis_is_told_until_it_takes_a_publication() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let node = Node::start(&server.transport(), hour());
    full_until_it_takes_one(&node, &|is_full| {
        server.ask(if is_full { "CONFIG SET maxmemory 1" } else { "CONFIG SET maxmemory 0" });
    });
}

#[test]
fn a_full_nats_is_told_until_it_takes_a_publication() {
    let Some(server) = NatsServer::start() else { return };
    let node = Node::start(&server.transport(), hour());
    full_until_it_takes_one(&node, &|is_full| {
        let info = server.ask("$JS.API.STREAM.INFO.test_history", "");
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        let mut config = info["config"].clone();
        config["max_bytes"] = if is_full { 1.into() } else { (-1).into() };
        config["discard"] = "new".into();
        let answer = server.ask("$JS.API.STREAM.UPDATE.test_history", &config.to_string());
        assert!(!answer.contains("error"), "{answer}");
    });
}

/// Messages of another layout, as in a rolling upgrade, with and without a history.
#[test]
fn what_cannot_be_read_is_a_gap() {
    let Some(server) = RedisServer::start(&[]) else { return };
    for history in [true, false] {
        let settings = Settings { history: hour().history.filter(|_| history), ..hour() };
        let node = Node::start(&server.transport(), settings);
        let topic = format!("room{history}");
        node.follow(&topic);
        assert!(is_published(&publish(&node, &topic, "1")));
        node.until_heard(&topic, "1");
        server.ask(&format!("PUBLISH test:t:{topic} other"));
        let unreadable = || {
            let events = node.heard.of(&topic);
            events.iter().filter(|event| **event == Event::Gap(GapCause::Unreadable)).count()
        };
        eventually("the gap is reported", || unreadable() == 1);
        assert!(is_published(&publish(&node, &topic, "2")));
        node.until_heard(&topic, "2");
        assert_eq!((node.heard.gaps(&topic), node.heard.data(&topic).len()), (1, 2));
    }
}
