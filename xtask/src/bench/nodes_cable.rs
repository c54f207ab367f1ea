//! Broadcasts to clients of Action Cable on three nodes over Redis, and a Redis that is killed meanwhile and started
//! again: `standfast serve`, beside AnyCable if its executable is given (`--anycable`).

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::Context;
use super::admin::Admin;
use super::broker::{Broker, Kind};
use super::peer::{Core, Peer, words};
use super::proc;
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::server::{Server, cable_clients};

const NODES: usize = 3;
const CLIENTS: usize = 10_000;
const MESSAGES: usize = 40;
const PER_SECOND: usize = 2;
const BYTES: usize = 100;
/// Clients while Redis is restarted, the time that it is away, and the pause between two publications.
const CLIENTS_IN_RESTART: usize = 900;
const AWAY: f64 = 1.0;
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(120);
/// What counts for a node that delivers nothing after the restart, in seconds.
const NEVER: f64 = 30.0;
const CPU: &str = "cpu s";
const FIRST: &str = "s to a delivery on all nodes";
const CPU_RATIO: f64 = 0.45;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rival {
    Standfast,
    AnyCable,
}

impl Contestant for Rival {
    fn name(self) -> &'static str {
        match self {
            Rival::Standfast => "standfast",
            Rival::AnyCable => "anycable",
        }
    }
}

/// A server of either kind: its process, the port for clients and that of `/_broadcast`.
struct Node {
    _ours: Option<Server>,
    _theirs: Option<Peer>,
    pid: u32,
    port: u16,
    publish: u16,
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let clients = bench.connections.unwrap_or(CLIENTS);
    let away = bench.seconds.unwrap_or(AWAY);
    let mut rivals = vec![Rival::Standfast];
    rivals.extend(bench.anycable.is_some().then_some(Rival::AnyCable));
    println!(
        "\n=== nodes-cable: {MESSAGES} broadcasts to {clients} clients on {NODES} nodes over Redis, \
         {PER_SECOND} per second"
    );
    let broadcasts = Rounds::run(&rivals, bench.pairs, |rival| broadcast(bench, rival, clients))?;
    broadcasts.print(&[CPU, "redis cpu s", "p50 ms", "p99 ms", "missing", "MB resident"]);
    println!(
        "\n=== nodes-cable: Redis killed and away for {away} s, {CLIENTS_IN_RESTART} clients, a \
         broadcast every {PAUSE:?}"
    );
    let restarts = Rounds::run(&rivals, bench.pairs, |rival| restart(bench, rival, away))?;
    restarts.print(&[FIRST, "nodes that ended"]);
    let ours = Rival::Standfast;
    let sum = |figure| broadcasts.values(ours, figure).iter().sum::<f64>();
    let mut targets = vec![Target::at_most("lost or closed, all rounds", sum("missing"), 0.0)];
    if broadcasts.have(ours, Rival::AnyCable) {
        let ratio = median(broadcasts.ratios(ours, Rival::AnyCable, CPU));
        targets.push(Target::at_most("CPU, ours ÷ AnyCable's", ratio, CPU_RATIO));
        let (first, theirs) =
            (restarts.median(ours, FIRST), restarts.median(Rival::AnyCable, FIRST));
        targets.push(Target::at_most("s to a delivery after a restart", first, theirs));
    }
    let settings = json!({ "nodes": NODES, "clients": clients, "messages": MESSAGES, "bytes": BYTES,
        "per_second": PER_SECOND, "clients_in_restart": CLIENTS_IN_RESTART, "away_s": away });
    let results = json!({ "broadcasts": broadcasts.json(), "restarts": restarts.json() });
    report::finish(&bench.out, "nodes-cable", settings, results, &targets)
}

/// Broadcasts at a rate.
fn broadcast(bench: &Context, rival: Rival, clients: usize) -> Result<Figures> {
    let redis = Broker::start(Kind::Redis)?;
    let nodes = start(bench, rival, &redis)?;
    let share = clients / NODES;
    let mut crowds = subscribed(bench, &nodes, share)?;
    let publisher = words([
        &bench.tools.floor("publish_client"),
        &"127.0.0.1",
        &nodes[0].publish.to_string(),
        &"/_broadcast",
        &"bench",
        &BYTES.to_string(),
        &"cable",
    ]);
    let mut publisher = Peer::start("publisher", Core::Any, &publisher)?;
    publish(&mut publisher, &mut crowds, 3, share)?;
    for crowd in &mut crowds {
        crowd.request("mark", PATIENCE)?;
    }
    let cpu = || nodes.iter().map(|node| proc::cpu_seconds(node.pid)).sum::<Result<f64>>();
    let (before, of_redis) = (cpu()?, redis.cpu_seconds()?);
    let results = publish(&mut publisher, &mut crowds, MESSAGES, share)?;
    let (used, of_redis) = (cpu()? - before, redis.cpu_seconds()? - of_redis);
    let (mut figures, mut received) = (Figures::new(), 0.0);
    for result in &results {
        let get = |key: &str| result[key].as_f64().with_context(|| format!("no {key}"));
        received += get("received")? - get("closed")?;
        // Of the slowest node.
        for (name, key) in [("p50 ms", "p50_ms"), ("p99 ms", "p99_ms")] {
            let worst = figures.entry(name).or_insert(0.0);
            *worst = worst.max(get(key)?);
        }
    }
    let resident = nodes.iter().map(|node| proc::rss_bytes(node.pid)).sum::<Result<u64>>()?;
    figures.insert(CPU, used);
    figures.insert("redis cpu s", of_redis);
    figures.insert("missing", ((MESSAGES * share * NODES) as f64 - received).abs());
    figures.insert("MB resident", resident as f64 / 1e6);
    Ok(figures)
}

/// Publishes and waits until all have received it; what each crowd has received.
fn publish(
    publisher: &mut Peer,
    crowds: &mut [Peer],
    messages: usize,
    share: usize,
) -> Result<Vec<Value>> {
    for crowd in &mut *crowds {
        crowd.send(&format!("expect {} 60", messages * share))?;
    }
    let answer = publisher.request(&format!("publish {messages} {PER_SECOND}"), PATIENCE)?;
    ensure!(answer["refused"] == 0, "a broadcast was refused: {answer}");
    crowds.iter_mut().map(|crowd| crowd.receive(PATIENCE)).collect()
}

/// Redis is killed and started again while messages are published.
fn restart(bench: &Context, rival: Rival, away: f64) -> Result<Figures> {
    let mut redis = Broker::start(Kind::Redis)?;
    let nodes = start(bench, rival, &redis)?;
    let mut crowds = subscribed(bench, &nodes, CLIENTS_IN_RESTART / NODES)?;
    let (stop, port) = (AtomicBool::new(false), nodes[0].publish);
    let figures = thread::scope(|scope| {
        let publishing = scope.spawn(|| keep_publishing(port, &stop));
        let restarted = restarted(&mut redis, &mut crowds, away);
        stop.store(true, Ordering::Relaxed);
        publishing.join().map_err(|_| anyhow!("the publisher panicked"))?;
        restarted
    })?;
    let ended = nodes.iter().filter(|node| proc::cpu_seconds(node.pid).is_err()).count();
    let figures = figures.into_iter().chain([("nodes that ended", ended as f64)]);
    Ok(figures.collect())
}

fn restarted(redis: &mut Broker, crowds: &mut [Peer], away: f64) -> Result<Figures> {
    for crowd in &mut *crowds {
        let received = crowd.request("expect 1 20", PATIENCE)?;
        ensure!(received["received"].as_u64() >= Some(1), "nothing was delivered: {received}");
    }
    redis.kill()?;
    // What was under way arrives meanwhile.
    thread::sleep(Duration::from_secs_f64(away));
    for crowd in &mut *crowds {
        crowd.request("mark", PATIENCE)?;
    }
    let accepted = redis.start_again()?;
    for crowd in &mut *crowds {
        crowd.send(&format!("expect 1 {NEVER}"))?;
    }
    let mut last = 0.0_f64;
    for crowd in &mut *crowds {
        let answer = crowd.receive(PATIENCE)?;
        let took = accepted.elapsed().as_secs_f64();
        last = last.max(if answer["received"] == 0 { NEVER } else { took });
    }
    Ok(Figures::from([(FIRST, last)]))
}

/// Publishes one message after another, whatever the answers are.
fn keep_publishing(port: u16, stop: &AtomicBool) {
    let mut line = None;
    while !stop.load(Ordering::Relaxed) {
        if line.is_none() {
            line = Admin::connect_to(port).ok();
        }
        let answer = line
            .as_mut()
            .map(|line| line.ask("POST", "/_broadcast", r#"{"stream":"bench","data":"1"}"#));
        if !matches!(answer, Some(Ok(_))) {
            line = None;
        }
        thread::sleep(PAUSE);
    }
}

/// Clients on each node, all subscribed to one stream.
fn subscribed(bench: &Context, nodes: &[Node], share: usize) -> Result<Vec<Peer>> {
    let crowd = |node: &Node| {
        let mut crowd = cable_clients(&bench.tools, node.port, share, 0, "bench")?;
        let subscribed = crowd.receive(PATIENCE)?;
        ensure!(subscribed["subscribed"] == share, "not all subscribed: {subscribed}");
        Ok(crowd)
    };
    nodes.iter().map(crowd).collect()
}

fn start(bench: &Context, rival: Rival, redis: &Broker) -> Result<Vec<Node>> {
    (0..NODES).map(|_| start_one(bench, rival, redis)).collect()
}

fn start_one(bench: &Context, rival: Rival, redis: &Broker) -> Result<Node> {
    if rival == Rival::Standfast {
        let mut flags = redis.flags();
        flags.extend(["--workers", "1"].map(str::to_owned));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start_logging_to(&bench.tools, &flags, Stdio::null())?;
        let (pid, port) = (server.pid(), server.port());
        let publish = server.admin().context("the ready line names no admin")?;
        return Ok(Node { _ours: Some(server), _theirs: None, pid, port, publish });
    }
    let anycable = bench.anycable.as_deref().context("no executable of AnyCable")?;
    let free = || Ok::<_, anyhow::Error>(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
    let (port, publish) = (free()?, free()?);
    let command = anycable_at(anycable, port, publish, &redis.url());
    let mut peer = Peer::start_logging_to("server anycable", Core::Any, &command, Stdio::null())?;
    let began = Instant::now();
    for port in [port, publish] {
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(peer.is_running(), "AnyCable does not start");
            ensure!(began.elapsed() < Duration::from_secs(20), "AnyCable does not listen");
            thread::sleep(Duration::from_millis(20));
        }
    }
    let pid = peer.pid();
    Ok(Node { _ours: None, _theirs: Some(peer), pid, port, publish })
}

/// As its documentation has it for several nodes: a publication is posted to one, and Redis passes it to the others.
fn anycable_at(executable: &Path, port: u16, publish: u16, redis: &str) -> Vec<std::ffi::OsString> {
    words([
        &executable,
        &"--host=127.0.0.1",
        &format!("--port={port}"),
        &"--public",
        &"--norpc",
        &"--broadcast_adapter=http",
        &format!("--http_broadcast_port={publish}"),
        &"--pubsub=redis",
        &format!("--redis_url={redis}"),
        &"--log_level=error",
    ])
}
