//! Fan-out: messages published over HTTP to 10,000 subscribed sockets, one at a time and at a rate.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::peer::Peer;
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::server::{Kind, Server};

const SOCKETS: usize = 10_000;
const BYTES: usize = 32;
const MESSAGES: usize = 200;
const WARM_UP_MESSAGES: usize = 10;
const PER_SECOND: usize = 100;
const SECONDS: f64 = 10.0;
const SERVERS: [Kind; 2] = [Kind::Standfast, Kind::Bun];
const CPU: &str = "cpu s";
const PER_DELIVERY: &str = "µs cpu per delivery";

/// Publishes each message when all sockets have received the one before. Returns whether the targets
/// were met.
pub(super) fn one_at_a_time(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    println!("\n=== fanout: {MESSAGES} messages to {sockets} sockets, one at a time, one worker");
    let servers = bench.servers(&SERVERS);
    let rounds =
        Rounds::run(&servers, bench.pairs, |kind| one_by_one(Scene::open(bench, kind, sockets)?))?;
    rounds.print(&[CPU, PER_DELIVERY, "missing", "p50 ms", "p99 ms"]);
    let mut targets = missing_target(&rounds);
    if rounds.have(Kind::Standfast, Kind::Bun) {
        let ratio = median(rounds.ratios(Kind::Standfast, Kind::Bun, CPU));
        targets.push(Target::at_most("server CPU, ours ÷ Bun's", ratio, 1.0));
    }
    let settings =
        json!({ "sockets": sockets, "bytes": BYTES, "messages": MESSAGES, "workers": 1 });
    report::finish(&bench.out, "fanout", settings, rounds.json(), &targets)
}

/// Publishes 100 messages a second on a fixed schedule. Returns whether the targets were met.
pub(super) fn at_a_rate(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let messages = (seconds * PER_SECOND as f64) as usize;
    println!(
        "\n=== rate: {PER_SECOND} messages/s for {seconds} s to {sockets} sockets, one worker"
    );
    let servers = bench.servers(&SERVERS);
    let rounds = Rounds::run(&servers, bench.pairs, |kind| {
        let mut scene = Scene::open(bench, kind, sockets)?;
        for sent in 1..=WARM_UP_MESSAGES {
            scene.publish_one(sent)?;
        }
        scene.mark()?;
        let before = scene.server.cpu_seconds()?;
        scene.publisher.send(&format!("publish {messages} {PER_SECOND}"))?;
        let result = scene.expect(messages, seconds + 60.0)?;
        let published = scene.publisher.receive(Duration::from_secs(120))?;
        let cpu = scene.server.cpu_seconds()? - before;
        let mut figures = figures(&result, cpu, sockets * messages)?;
        figures.insert("refused", published["refused"].as_f64().context("no refused")?);
        Ok(figures)
    })?;
    rounds.print(&["p50 ms", "p99 ms", "last ms", CPU, "missing", "refused"]);
    let mut targets = missing_target(&rounds);
    if rounds.have(Kind::Standfast, Kind::Bun) {
        let ratio = |figure| median(rounds.ratios(Kind::Standfast, Kind::Bun, figure));
        targets.push(Target::at_most("p99, ours ÷ Bun's", ratio("p99 ms"), 0.7));
        targets.push(Target::at_most("server CPU, ours ÷ Bun's", ratio(CPU), 1.0));
    }
    let settings = json!({ "sockets": sockets, "bytes": BYTES, "per_second": PER_SECOND,
                           "seconds": seconds, "workers": 1 });
    report::finish(&bench.out, "rate", settings, rounds.json(), &targets)
}

/// A server with or without a history.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    History,
}

impl Contestant for Keeps {
    fn name(self) -> &'static str {
        match self {
            Keeps::Nothing => "without",
            Keeps::History => "with history",
        }
    }
}

/// [`one_at_a_time`] with and without a history. Returns whether the targets were met.
pub(super) fn with_history(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    println!("\n=== fanout-history: {MESSAGES} messages to {sockets} sockets, one worker");
    let both = [Keeps::Nothing, Keeps::History];
    let rounds = Rounds::run(&both, bench.pairs, |keeps| {
        let flags = match keeps {
            Keeps::Nothing => vec![],
            Keeps::History => vec!["--history".to_owned(), "memory".to_owned()],
        };
        one_by_one(Scene::open_with(bench, Kind::Standfast, sockets, &flags)?)
    })?;
    rounds.print(&[CPU, PER_DELIVERY, "missing", "p50 ms", "p99 ms"]);
    let ratios = rounds.ratios(Keeps::History, Keeps::Nothing, CPU);
    println!("with ÷ without, by round: {ratios:.3?}");
    let amiss = |keeps| {
        let sum = |figure| rounds.values(keeps, figure).iter().map(|n| n.abs()).sum::<f64>();
        sum("missing") + sum("uneven") + sum("closed")
    };
    let targets = [
        Target::at_most(
            "lost, doubled or closed, all rounds",
            both.into_iter().map(amiss).sum(),
            0.0,
        ),
        Target::at_most("server CPU, with ÷ without history", median(ratios), 1.1),
    ];
    let settings =
        json!({ "sockets": sockets, "bytes": BYTES, "messages": MESSAGES, "workers": 1 });
    report::finish(&bench.out, "fanout-history", settings, rounds.json(), &targets)
}

/// Publishes each message when all sockets have received the one before.
fn one_by_one(mut scene: Scene) -> Result<Figures> {
    for sent in 1..=WARM_UP_MESSAGES {
        scene.publish_one(sent)?;
    }
    scene.mark()?;
    let before = scene.server.cpu_seconds()?;
    for sent in 1..=MESSAGES {
        scene.publish_one(sent)?;
    }
    let cpu = scene.server.cpu_seconds()? - before;
    let result = scene.expect(MESSAGES, 1.0)?;
    let deliveries = scene.sockets * MESSAGES;
    let mut figures = figures(&result, cpu, deliveries)?;
    figures.insert(PER_DELIVERY, cpu * 1e6 / deliveries as f64);
    Ok(figures)
}

/// A server, its subscribers and a publisher.
struct Scene {
    publisher: Peer,
    crowd: Peer,
    server: Server,
    sockets: usize,
}

impl Scene {
    fn open(bench: &Context, kind: Kind, sockets: usize) -> Result<Scene> {
        Scene::open_with(bench, kind, sockets, &[])
    }

    /// The same with additional flags.
    fn open_with(bench: &Context, kind: Kind, sockets: usize, flags: &[String]) -> Result<Scene> {
        let server = Server::start_with(kind, &bench.tools, flags)?;
        // Paced: a storm's dropped connection requests would be retried during the measurement.
        let mut crowd = server.crowd(&bench.tools, sockets, "paced:10000")?;
        let opened = crowd.receive(Duration::from_secs(90))?;
        ensure!(opened["opened"].as_u64() == Some(sockets as u64), "not all opened: {opened}");
        let publisher = server.publisher(&bench.tools, BYTES)?;
        Ok(Scene { publisher, crowd, server, sockets })
    }

    fn mark(&mut self) -> Result<()> {
        self.crowd.request("mark", Duration::from_secs(10)).map(drop)
    }

    /// Waits until every socket has received `messages` since the mark, at most `seconds`.
    fn expect(&mut self, messages: usize, seconds: f64) -> Result<Value> {
        let command = format!("expect {} {seconds}", messages * self.sockets);
        self.crowd.request(&command, Duration::from_secs_f64(seconds + 30.0))
    }

    /// Publishes the `number`th message since the mark and waits until every socket has received it.
    fn publish_one(&mut self, number: usize) -> Result<()> {
        let answer = self.publisher.request("publish 1 0", Duration::from_secs(40))?;
        ensure!(answer["refused"].as_u64() == Some(0), "the publish was refused");
        let result = self.expect(number, 10.0)?;
        let received = result["received"].as_u64();
        ensure!(received == Some((number * self.sockets) as u64), "message {number}: {result}");
        Ok(())
    }
}

fn figures(result: &Value, cpu: f64, expected: usize) -> Result<Figures> {
    let get = |key: &str| result[key].as_f64().with_context(|| format!("no {key}"));
    Ok(Figures::from([
        (CPU, cpu),
        ("missing", expected as f64 - get("received")?),
        ("uneven", get("most")? - get("least")?),
        ("closed", get("closed")?),
        ("p50 ms", get("p50_ms")?),
        ("p99 ms", get("p99_ms")?),
        ("last ms", get("last_ms")?),
    ]))
}

/// The target that standfast delivered each message once to every socket and closed none.
fn missing_target(rounds: &Rounds<Kind>) -> Vec<Target> {
    let wrong =
        |figure| rounds.values(Kind::Standfast, figure).iter().map(|n| n.abs()).sum::<f64>();
    if !rounds.have(Kind::Standfast, Kind::Standfast) {
        return Vec::new();
    }
    let amiss = wrong("missing") + wrong("uneven") + wrong("closed");
    vec![Target::at_most("lost, doubled or closed, all rounds", amiss, 0.0)]
}
