//! A broker that is killed and started again: how long a node takes until it has subscribed to all its topics, and
//! until a publication is delivered.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::Context;
use super::admin::Admin;
use super::broker::{Broker, Kind};
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds};
use super::server::Server;

const SOCKETS: usize = 5_000;
/// Topics of each socket, all different.
const TOPICS_EACH: usize = 20;
/// Publications in a request.
const BATCH: usize = 1_000;
/// How long the broker is away.
const AWAY: f64 = 1.0;
const PATIENCE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(10);
const CONFIRMED: &str = "s to the last topic";
const DELIVERED: &str = "s to a delivery";
const LIMIT_S: f64 = 5.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Setup {
    Redis,
    RedisHistory,
    Nats,
    NatsHistory,
}

impl Contestant for Setup {
    fn name(self) -> &'static str {
        match self {
            Setup::Redis => "redis",
            Setup::RedisHistory => "redis, history",
            Setup::Nats => "nats",
            Setup::NatsHistory => "nats, history",
        }
    }
}

const ALL: [Setup; 4] = [Setup::Redis, Setup::RedisHistory, Setup::Nats, Setup::NatsHistory];

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let away = bench.seconds.unwrap_or(AWAY);
    let topics = sockets * TOPICS_EACH;
    println!(
        "\n=== resubscribe: {topics} topics of {sockets} clients, the broker away for {away} s"
    );
    let rounds = Rounds::run(&ALL, bench.pairs, |setup| once(bench, setup, sockets, away))?;
    rounds.print(&[CONFIRMED, DELIVERED, "node cpu s", "broker cpu s", "MB resident"]);
    let mut targets = Vec::new();
    for setup in ALL {
        for figure in [CONFIRMED, DELIVERED] {
            let what = format!("{}: {figure}", setup.name());
            targets.push(Target::at_most(what, rounds.median(setup, figure), LIMIT_S));
        }
    }
    let settings = json!({ "sockets": sockets, "topics": topics, "away_s": away, "workers": 1 });
    report::finish(&bench.out, "resubscribe", settings, rounds.json(), &targets)
}

fn once(bench: &Context, setup: Setup, sockets: usize, away: f64) -> Result<Figures> {
    let (kind, history) = match setup {
        Setup::Redis => (Kind::Redis, None),
        Setup::RedisHistory => (Kind::Redis, Some("redis")),
        Setup::Nats => (Kind::Nats, None),
        Setup::NatsHistory => (Kind::JetStream, Some("nats")),
    };
    let topics = sockets * TOPICS_EACH;
    let mut broker = Broker::start(kind)?;
    let mut flags = broker.flags();
    flags.extend(["--workers", "1"].map(str::to_owned));
    flags.extend(history.into_iter().flat_map(|at| ["--history".to_owned(), at.to_owned()]));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_ours(&bench.tools, &flags)?;
    let mut admin = Admin::connect(&server)?;
    wait(&mut admin, |connection| connection["state"] == "connected")?;
    let mut crowd =
        super::server::cable_clients(&bench.tools, server.port(), sockets, TOPICS_EACH, "topic")?;
    let subscribed = crowd.receive(PATIENCE)?;
    ensure!(subscribed["subscribed"] == topics, "not all subscribed: {subscribed}");
    // One in each topic: with a history it has to be found out whether there was another one.
    for from in (0..topics).step_by(BATCH) {
        let one = |number| json!({ "stream": format!("topic{number}"), "data": "1" });
        let batch: Value = (from..topics.min(from + BATCH)).map(one).collect();
        let (status, body) = admin.ask("POST", "/_broadcast", &batch.to_string())?;
        ensure!(matches!(status, 200..=299), "a publication was refused: {status} {body}");
    }
    let received = crowd.request(&format!("expect {topics} 60"), PATIENCE)?;
    ensure!(received["received"] == topics, "not all received: {received}");

    broker.kill()?;
    wait(&mut admin, |connection| connection["state"] == "disconnected")?;
    thread::sleep(Duration::from_secs_f64(away));
    crowd.request("mark", PATIENCE)?;
    crowd.send("expect 1 80")?;
    let cpu = server.cpu_seconds()?;
    let publisher = Admin::connect(&server)?;
    let accepted = broker.start_again()?;
    let (confirmed, delivered) = thread::scope(|scope| {
        let confirmed = scope.spawn(|| {
            wait(&mut admin, |connection| {
                connection["state"] == "connected" && connection["unconfirmed"] == 0
            })
        });
        let publishing = scope.spawn(|| publish(publisher));
        let delivered = crowd.receive(PATIENCE).map(|answer| (Instant::now(), answer));
        let ended = |_| anyhow!("a thread panicked");
        publishing.join().map_err(ended)??;
        Ok::<_, anyhow::Error>((confirmed.join().map_err(ended)??, delivered?))
    })?;
    let (delivered, answer) = delivered;
    ensure!(answer["received"].as_u64() >= Some(1), "nothing was delivered: {answer}");
    Ok(Figures::from([
        (CONFIRMED, confirmed.duration_since(accepted).as_secs_f64()),
        (DELIVERED, delivered.duration_since(accepted).as_secs_f64()),
        ("node cpu s", server.cpu_seconds()? - cpu),
        ("broker cpu s", broker.cpu_seconds()?),
        ("MB resident", server.rss_bytes()? as f64 / 1e6),
    ]))
}

/// Waits until the connection to the broker is as expected; returns when it was.
fn wait(admin: &mut Admin, is: impl Fn(&Value) -> bool) -> Result<Instant> {
    let began = Instant::now();
    loop {
        let cluster: Value = serde_json::from_str(&admin.request("GET", "/api/cluster", "")?)?;
        if is(&cluster["connections"][0]) {
            return Ok(Instant::now());
        }
        ensure!(began.elapsed() < PATIENCE, "the broker's state is {}", cluster["connections"]);
        thread::sleep(POLL);
    }
}

/// Publishes to one topic, again until it is accepted.
fn publish(mut admin: Admin) -> Result<()> {
    let began = Instant::now();
    let body = r#"{"stream":"topic0","data":"1"}"#;
    while !matches!(admin.ask("POST", "/_broadcast", body)?, (200..=299, _)) {
        ensure!(began.elapsed() < PATIENCE, "no publication is accepted");
        thread::sleep(POLL);
    }
    Ok(())
}
