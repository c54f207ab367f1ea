//! One stream of publications to subscribers on 1, 2, 3 and 8 nodes over Redis: what Redis sends, the CPU of all
//! nodes, and latency.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::broker::{Broker, Kind};
use super::peer::Peer;
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::server::Server;

const SOCKETS: usize = 10_000;
const MESSAGES: usize = 50;
const WARM_UP_MESSAGES: usize = 3;
const BYTES: usize = 100;
const CPU: &str = "cpu s";
const SENT: &str = "redis B";
const RATIO_SENT: &str = "B/message/node";
const P99: &str = "p99 ms";

/// So many nodes; 0 is one node without a broker.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Nodes(usize);

const ALL: [Nodes; 5] = [Nodes(0), Nodes(1), Nodes(2), Nodes(3), Nodes(8)];

impl Contestant for Nodes {
    fn name(self) -> &'static str {
        match self.0 {
            0 => "alone",
            1 => "1 node",
            2 => "2 nodes",
            3 => "3 nodes",
            _ => "8 nodes",
        }
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    println!("\n=== nodes: {MESSAGES} messages to {sockets} sockets, one at a time, over Redis");
    let redis = Broker::start(Kind::Redis)?;
    let rounds = Rounds::run(&ALL, bench.pairs, |nodes| one(bench, &redis, nodes, sockets))?;
    rounds.print(&[CPU, SENT, RATIO_SENT, "p50 ms", P99, "missing", "ping ms"]);
    let sum = |figure| ALL.iter().flat_map(|nodes| rounds.values(*nodes, figure)).sum::<f64>();
    let mut targets = vec![Target::at_most("lost or closed, all rounds", sum("missing"), 0.0)];
    for nodes in [Nodes(2), Nodes(3), Nodes(8)] {
        let ratio = |figure| median(rounds.ratios(nodes, Nodes(1), figure));
        let name = nodes.name();
        let growth = ratio(SENT) / nodes.0 as f64;
        targets.push(Target::at_most(format!("bytes of Redis, {name} ÷ nodes"), growth, 1.1));
        targets.push(Target::at_most(format!("CPU, {name} ÷ 1 node"), ratio(CPU), 1.15));
        // Twice that of one node, and the way to Redis and back.
        let allowed = 2.0 * rounds.median(Nodes(1), P99) + rounds.median(nodes, "ping ms");
        let p99 = rounds.median(nodes, P99) / allowed;
        targets.push(Target::at_most(format!("p99, {name} ÷ what is allowed"), p99, 1.0));
    }
    let settings =
        json!({ "sockets": sockets, "bytes": BYTES, "messages": MESSAGES, "workers": 1 });
    report::finish(&bench.out, "nodes", settings, rounds.json(), &targets)
}

/// A run with so many nodes.
fn one(bench: &Context, redis: &Broker, nodes: Nodes, sockets: usize) -> Result<Figures> {
    let url = redis.url();
    let flags: &[&str] = match nodes.0 {
        0 => &["--workers", "1"],
        _ => &["--workers", "1", "--pubsub", "redis", "--redis-url", &url],
    };
    let count = nodes.0.max(1);
    let servers = (0..count).map(|_| Server::start_ours(&bench.tools, flags));
    let servers: Vec<Server> = servers.collect::<Result<_>>()?;
    let share = sockets / count;
    let mut crowds = Vec::new();
    for server in &servers {
        let mut crowd = server.crowd(&bench.tools, share, "paced:5000")?;
        let opened = crowd.receive(Duration::from_secs(120))?;
        ensure!(opened["opened"].as_u64() == Some(share as u64), "not all opened: {opened}");
        crowds.push(crowd);
    }
    let mut publisher = servers[0].publisher(&bench.tools, BYTES)?;
    for sent in 1..=WARM_UP_MESSAGES {
        publish_one(&mut publisher, &mut crowds, share, sent)?;
    }
    for crowd in &mut crowds {
        crowd.request("mark", Duration::from_secs(10))?;
    }
    let cpu = |servers: &[Server]| servers.iter().map(Server::cpu_seconds).sum::<Result<f64>>();
    let (before, bytes) = (cpu(&servers)?, redis.sent_bytes()?);
    for sent in 1..=MESSAGES {
        publish_one(&mut publisher, &mut crowds, share, sent)?;
    }
    let bytes = redis.sent_bytes()? - bytes;
    let used = cpu(&servers)? - before;
    let (mut figures, mut received) = (Figures::new(), 0.0);
    for crowd in &mut crowds {
        let result = expect(crowd, MESSAGES * share)?;
        let get = |key: &str| result[key].as_f64().with_context(|| format!("no {key}"));
        received += get("received")? - get("closed")?;
        // Of the slowest node.
        for (name, key) in [("p50 ms", "p50_ms"), (P99, "p99_ms")] {
            let worst = figures.entry(name).or_insert(0.0);
            *worst = worst.max(get(key)?);
        }
    }
    figures.insert(CPU, used);
    figures.insert(SENT, bytes);
    figures.insert(RATIO_SENT, bytes / (MESSAGES * count) as f64);
    figures.insert("missing", ((MESSAGES * share * count) as f64 - received).abs());
    figures.insert("ping ms", redis.ping_ms()?);
    Ok(figures)
}

/// Publishes and waits until all have received it.
fn publish_one(
    publisher: &mut Peer,
    crowds: &mut [Peer],
    share: usize,
    number: usize,
) -> Result<()> {
    let answer = publisher.request("publish 1 0", Duration::from_secs(40))?;
    ensure!(answer["refused"].as_u64() == Some(0), "the publish was refused");
    for crowd in crowds {
        let result = expect(crowd, number * share)?;
        let received = result["received"].as_u64();
        ensure!(received == Some((number * share) as u64), "message {number}: {result}");
    }
    Ok(())
}

fn expect(crowd: &mut Peer, messages: usize) -> Result<Value> {
    crowd.request(&format!("expect {messages} 30"), Duration::from_secs(60))
}
