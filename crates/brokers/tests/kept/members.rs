//! Members at nodes: how long they stay, and keys of another program.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use brokers::Settings;

use crate::servers::RedisServer;
use crate::support::{Node, eventually, settings};

fn sharing() -> Settings {
    let hour = Duration::from_secs(3600);
    Settings { members: Some(Duration::from_secs(100)), history: None, ..settings(10, hour) }
}

/// What is left of the only lease, in milliseconds.
fn lease_ms(server: &RedisServer) -> i64 {
    let script = "return redis.call('PTTL',redis.call('KEYS','test:n:*')[1]or'none')";
    server.ask(&format!("EVAL \"{script}\" 0")).trim_start_matches(':').parse().unwrap()
}

#[test]
fn members_of_a_node_that_drains_stay_for_the_whole_time() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let node = Node::start(&server.transport(), sharing());
    eventually("it has a lease", || (1..=80_000).contains(&lease_ms(&server)));
    node.broker.leave();
    eventually("it is longer", || (100_001..=120_000).contains(&lease_ms(&server)));
}

#[test]
fn members_that_no_node_has_written_are_deleted_and_others_go_on() {
    let Some(server) = RedisServer::start(&[]) else { return };
    server.ask("SET test:p:loaded b");
    let node = Node::start(&server.transport(), sharing());
    let counters = node.broker.counters();
    node.follow("loaded");
    assert_eq!(server.ask("EXISTS test:p:loaded"), ":0");
    let member: Arc<str> = "ann".into();
    server.ask("SET test:p:written b");
    for topic in ["written", "fine"] {
        node.broker.set_member(topic, &member, Some(None));
        eventually("it is written", || server.ask(&format!("TYPE test:p:{topic}")) == "+hash");
    }
    assert_eq!(counters.reset.load(Ordering::Relaxed), 2);
    assert_eq!(counters.connected.load(Ordering::Relaxed), 1);
}
