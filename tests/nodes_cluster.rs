//! Several nodes over a Redis Cluster: each topic is on the master of its slot, and on no other; slots that move take
//! their topics along; and what a failover loses lies in a gap that is told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::cable::Extended;
use crate::harness::executable;
use crate::harness::redis::Redis;
use crate::harness::redis_cluster::{Cluster, channel};
use crate::harness::server::Server;
use crate::harness::{eventually, http};
use crate::nodes::{node, publish, stream, until_ready};

/// No pings: a client of these tests may be read late.
const PATIENT: [&str; 3] = ["--redis-cluster", "--idle-timeout", "off"];
const HISTORY: [&str; 4] = ["--history", "redis", "--history-limit", "10k"];

fn member(cluster: &Cluster, more: &[&str]) -> Server {
    node(&cluster.url(), &[&PATIENT[..], more].concat())
}

fn members<const N: usize>(cluster: &Cluster, more: &[&str]) -> [Server; N] {
    std::array::from_fn(|_| member(cluster, more))
}

/// Publishes until the broker takes it.
fn insist(server: &Server, topic: &str, data: &str) {
    eventually("the publication is taken", || publish(server, topic, data).status == 200);
}

fn metric(server: &Server, name: &str) -> f64 {
    server.metrics().get(name).copied().unwrap_or_default()
}

#[test]
fn each_topic_is_exchanged_by_the_master_of_its_slot() {
    let Some(cluster) = Cluster::start(false) else { return };
    let nodes: [Server; 2] = members(&cluster, &[]);
    let connections = nodes[0].admin_get("/api/cluster").json()["connections"].clone();
    assert_eq!(connections.as_array().map(Vec::len), Some(3), "{connections}");
    let topics = cluster.topics(5);
    let mut names: Vec<&str> = topics.iter().flatten().map(String::as_str).collect();
    // Whose braces could be taken for hash tags.
    names.extend(["x}y", "{z}", "a{b}c"]);
    let mut client = Extended::connect(nodes[0].listen, "");
    for topic in &names {
        client.subscribe(&stream(topic));
    }
    for (number, topic) in names.iter().enumerate() {
        let answer = publish(&nodes[1], topic, &number.to_string());
        assert_eq!(answer.json(), json!({"published": 1, "nodes": 1}), "{topic}");
        assert_eq!(client.hear()["message"], json!(number));
    }
    eventually("the nodes know each other", || {
        nodes.iter().all(|node| {
            node.admin_get("/api/cluster").json()["nodes"].as_array().map(Vec::len) == Some(1)
        })
    });
    // What one topic costs the masters: input and output of clients, and messages between them.
    let traffic = |master: &Redis| {
        master.figure("total_net_input_bytes") + master.figure("total_net_output_bytes")
    };
    let before: Vec<u64> = cluster.masters.iter().map(traffic).collect();
    let (topic, many, body) = (&topics[0][0], 200, "x".repeat(10_000));
    for _ in 0..many {
        assert_eq!(publish(&nodes[1], topic, &json!(body).to_string()).status, 200);
        assert_eq!(client.hear()["message"], json!(body));
    }
    let cost: Vec<u64> = cluster
        .masters
        .iter()
        .zip(before)
        .map(|(master, before)| traffic(master) - before)
        .collect();
    println!("bytes of {many} publications of 10 kB at the masters: {cost:?}");
    assert!(cost[0] > 2 * many * 10_000, "{cost:?}");
    assert!(cost[1] < cost[0] / 20 && cost[2] < cost[0] / 20, "{cost:?}");
    for master in &cluster.masters {
        let info = master.text("CLUSTER INFO");
        assert!(!info.contains("messages_publish"), "{info}");
    }
}

#[test]
fn sessions_commands_and_presence_cross_the_nodes_of_a_cluster() {
    let Some(cluster) = Cluster::start(false) else { return };
    let flags = ["--history", "redis", "--presence", "redis", "--presence-window", "50ms"];
    let flags = [&flags[..], &["--presence-ttl", "5s"]].concat();
    let [a, mut b]: [Server; 2] = members(&cluster, &flags);
    let topics: Vec<String> = cluster.topics(2).concat();
    let mut watcher = Extended::connect(a.listen, "");
    topics.iter().for_each(|topic| watcher.subscribe(&stream(topic)));
    let mut client = Extended::connect(b.listen, "");
    for topic in &topics {
        client.subscribe(&stream(topic));
        let join = json!({"command": "join", "identifier": stream(topic),
            "presence": {"id": "ann", "info": 1}});
        client.send(&join);
        assert_eq!(client.hear()["message"]["type"], "join");
        let heard = watcher.hear();
        assert_eq!(
            (&heard["message"]["type"], &heard["identifier"]),
            (&json!("join"), &json!(stream(topic)))
        );
    }
    // Sessions are on any master.
    for _ in 0..6 {
        let before = metric(&b, "standfast_sessions_shared_total{result=\"stored\"}");
        let mut lost = Extended::connect(b.listen, "");
        lost.subscribe(&stream(&topics[0]));
        let sid = lost.sid.clone();
        drop(lost);
        eventually("the session is stored", || {
            metric(&b, "standfast_sessions_shared_total{result=\"stored\"}") > before
        });
        let back = Extended::connect(a.listen, &format!("?sid={sid}"));
        assert_eq!(back.welcome["restored"], true, "{}", back.welcome);
    }
    // The members of a node that is killed are removed by the others.
    b.signal(Signal::KILL);
    b.wait();
    for topic in &topics {
        eventually("the members of the killed node are gone", || {
            let users = http::get(a.admin, &format!("/api/presence/{topic}/users"));
            users.json()["records"] == json!([])
        });
    }
}

/// What a client heard of numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Those that did not come.
    pub(crate) missing: Vec<u64>,
    /// How often it was told that some may be missing.
    pub(crate) told: usize,
    /// Those that came again.
    pub(crate) repeated: usize,
}

/// Hears numbers up to one.
fn numbers(client: &mut Extended, last: u64) -> Heard {
    let (mut next, mut heard) = (1, Heard::default());
    while next <= last {
        // Nothing is published after the last one, so that it may be missing, too.
        let Some(message) = client.hear_within(Duration::from_secs(30)) else {
            heard.missing.extend(next..=last);
            break;
        };
        if message["type"] == "reject_history" {
            heard.told += 1;
            continue;
        }
        let number = message["message"].as_u64().unwrap_or_else(|| panic!("{message}"));
        if number < next {
            heard.repeated += 1;
            continue;
        }
        heard.missing.extend(next..number);
        next = number + 1;
    }
    heard
}

/// Publishes 1, 2, 3 … to a topic until it is told to end, and returns the last number.
fn publisher(server: &Server, topic: &str, ends: &AtomicBool, taken: &AtomicU64) -> u64 {
    for number in 1.. {
        insist(server, topic, &number.to_string());
        taken.store(number, Ordering::Relaxed);
        if ends.load(Ordering::Relaxed) {
            return number;
        }
        thread::sleep(Duration::from_millis(1));
    }
    0
}

/// Publishes while something happens, and returns what a client of another node heard. What happens gets a function
/// that waits until so many more are published.
pub(crate) fn while_publishing(
    nodes: &[Server; 2],
    topic: &str,
    happens: impl FnOnce(&dyn Fn(u64)),
) -> Heard {
    let mut client = Extended::connect(nodes[0].listen, "");
    client.subscribe(&stream(topic));
    let (ends, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher(&nodes[1], topic, &ends, &taken));
        let more = |many: u64| {
            let until = taken.load(Ordering::Relaxed) + many;
            eventually("more is taken", || taken.load(Ordering::Relaxed) >= until);
        };
        more(50);
        happens(&more);
        more(50);
        ends.store(true, Ordering::Relaxed);
        let last = publishing.join().unwrap();
        numbers(&mut client, last)
    })
}

#[test]
fn a_slot_that_moves_takes_its_topic_and_its_history_along() {
    let Some(cluster) = Cluster::start(false) else { return };
    let nodes: [Server; 2] = members(&cluster, &HISTORY);
    let topic = cluster.topics(1)[0][0].clone();
    let slot = cluster.slot(&channel(&topic));
    let [from, to, third] = &cluster.masters[..] else { panic!("three masters") };
    let epoch = |node: &Server| {
        http::get(node.admin, &format!("/api/history/{topic}")).json()["epoch"].clone()
    };
    let before = epoch(&nodes[0]);
    let heard = while_publishing(&nodes, &topic, |more| {
        for (from, to) in [(from, to), (to, third), (third, from)] {
            cluster.begin_move(slot, from, to);
            more(20);
            assert!(cluster.move_keys(slot, from, to) >= 2);
            more(20);
            cluster.end_move(slot, to);
            more(20);
        }
    });
    assert_eq!(heard, Heard::default(), "nothing is lost, and no gap is told");
    assert_eq!(epoch(&nodes[0]), before);
    for node in &nodes {
        assert_eq!(metric(node, "standfast_pubsub_connects_total"), 3.0, "no link has ended");
    }
    assert!(metric(&nodes[0], "standfast_pubsub_moved_total") >= 3.0);
}

#[test]
fn a_slot_that_moves_is_followed_without_a_history() {
    let Some(cluster) = Cluster::start(false) else { return };
    let nodes: [Server; 2] = members(&cluster, &[]);
    let topic = cluster.topics(1)[0][0].clone();
    let slot = cluster.slot(&channel(&topic));
    let heard = while_publishing(&nodes, &topic, |more| {
        let (from, to) = (&cluster.masters[0], &cluster.masters[1]);
        cluster.begin_move(slot, from, to);
        more(20);
        cluster.end_move(slot, to);
        more(20);
    });
    println!("moved without a history: {heard:?}");
    assert!(heard.told >= 1, "what may be missing is told");
}

/// Waits until a server is a master.
fn until_promoted(replica: &Redis) {
    eventually("the replica is promoted", || {
        replica.text("INFO replication").contains("role:master")
    });
}

fn failover(flags: &[&str], fail: impl FnOnce(&mut Cluster)) -> Option<Heard> {
    let mut cluster = Cluster::start(true)?;
    let nodes: [Server; 2] = members(&cluster, flags);
    let topics = cluster.topics(1);
    let heard = while_publishing(&nodes, &topics[1][0], |more| {
        fail(&mut cluster);
        until_promoted(&cluster.replicas[1]);
        more(1);
    });
    nodes.iter().for_each(until_ready);
    // All topics go on.
    for topic in topics.iter().flatten() {
        let mut client = Extended::connect(nodes[0].listen, "");
        client.subscribe(&stream(topic));
        let goes_on = (0..10).any(|_| {
            insist(&nodes[1], topic, "0");
            let mut heard = std::iter::from_fn(|| client.hear_within(Duration::from_secs(6)));
            heard.any(|message| message["message"] == json!(0))
        });
        assert!(goes_on, "{topic}");
    }
    Some(heard)
}

#[test]
fn what_a_failover_loses_is_told() {
    let kill = |cluster: &mut Cluster| cluster.masters[1].kill();
    for flags in [&HISTORY[..], &[]] {
        let Some(heard) = failover(flags, kill) else { return };
        println!("failover, {flags:?}: {heard:?}");
        assert!(heard.told >= 1, "{heard:?}");
    }
}

#[test]
fn a_failover_on_purpose_is_followed() {
    let fail = |cluster: &mut Cluster| {
        assert_eq!(cluster.replicas[1].ask("CLUSTER FAILOVER"), "+OK");
    };
    let Some(heard) = failover(&HISTORY, fail) else { return };
    println!("failover on purpose: {heard:?}");
    assert!(heard.told >= 1, "another epoch begins");
}

#[test]
fn servers_that_cannot_be_used_as_a_cluster_prevent_the_start() {
    let start = |url: &str| {
        let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "off", "--pubsub", "redis"];
        let finished =
            executable::run(&[&args[..], &["--redis-cluster", "--redis-url", url]].concat());
        assert_ne!(finished.code, Some(0));
        finished.stderr
    };
    let Some(alone) = Redis::start(&[]) else { return };
    let error = start(&alone.url());
    assert!(error.contains("not a node of a Redis Cluster: leave --redis-cluster out"), "{error}");
    // As Redis 6 answers.
    let flags = ["--rename-command", "SUNSUBSCRIBE", "", "--rename-command", "SSUBSCRIBE", ""];
    let Some(old) = Cluster::start_with(1, false, &flags) else { return };
    let error = start(&old.url());
    assert!(error.contains("needs Redis 7 or newer"), "{error}");
    let error = start(&format!("{}/1", old.url()));
    assert!(error.contains("no database but 0"), "{error}");
}

#[test]
fn a_cluster_that_comes_later_is_used() {
    let Some(cluster) = Cluster::start(false) else { return };
    let absent = crate::harness::Deserted::port();
    let urls = format!("redis://{},{}", absent.address, cluster.url());
    let [a, b] = [(); 2].map(|()| node(&urls, &["--redis-cluster"]));
    let mut client = Extended::connect(a.listen, "");
    client.subscribe(&stream("a"));
    assert_eq!(publish(&b, "a", "1").status, 200);
    assert_eq!(client.hear()["message"], json!(1));
    // Without any node at the start, and with other parts than the other nodes.
    let early =
        crate::nodes::unready_node(&format!("redis://{}", absent.address), &["--redis-cluster"]);
    let cluster: &Value = &early.admin_get("/api/cluster").json()["connections"];
    assert_eq!(cluster.as_array().map(Vec::len), Some(8), "{cluster}");
    assert_eq!(early.admin_get("/ready").status, 503);
}
