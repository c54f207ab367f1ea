//! Connects: server CPU for 10,000 connects at once, and how many of them fail.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Context;
use super::report::{self, Target};
use super::rounds::{Figures, Rounds, median};
use super::server::{Kind, Server};

const SOCKETS: usize = 10_000;
const FIGURE: &str = "cpu-s per 10,000";
/// Time for what a server does after it has sent its responses.
const SETTLE: Duration = Duration::from_millis(300);

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    println!("\n=== connects: {sockets} at once, one worker");
    let servers = bench.servers(&[Kind::Standfast, Kind::Bun, Kind::Floor]);
    let rounds = Rounds::run(&servers, bench.pairs, |kind| once(bench, kind, sockets))?;
    rounds.print(&[FIGURE, "failed", "seconds", "bytes each"]);

    let mut targets = Vec::new();
    if rounds.have(Kind::Standfast, Kind::Standfast) {
        let failed: f64 = rounds.values(Kind::Standfast, "failed").iter().sum();
        targets.push(Target::at_most("failed connects, all rounds", failed, 0.0));
    }
    if rounds.have(Kind::Standfast, Kind::Bun) {
        let ratio = median(rounds.ratios(Kind::Standfast, Kind::Bun, FIGURE));
        targets.push(Target::at_most("server CPU, ours ÷ Bun's", ratio, 0.9));
    }
    let settings = json!({ "sockets": sockets, "path": "/topics/bench", "workers": 1 });
    report::finish(&bench.out, "connects", settings, rounds.json(), &targets)
}

fn once(bench: &Context, kind: Kind, sockets: usize) -> Result<Figures> {
    let server = Server::start(kind, &bench.tools)?;
    let (before, rss_before) = (server.cpu_seconds()?, server.rss_bytes()?);
    let mut crowd = server.crowd(&bench.tools, sockets, "storm")?;
    let opened = crowd.receive(Duration::from_secs(90))?;
    std::thread::sleep(SETTLE);
    let cpu = server.cpu_seconds()? - before;
    let grown = server.rss_bytes()?.saturating_sub(rss_before);
    let get = |key: &str| opened[key].as_f64().with_context(|| format!("no {key}"));
    Ok(Figures::from([
        (FIGURE, cpu * 10_000.0 / sockets as f64),
        ("failed", get("failed")?),
        ("seconds", get("seconds")?),
        ("bytes each", grown as f64 / sockets as f64),
    ]))
}
