//! Echo: messages that a server echoes per second of its own CPU.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::report::{self, Target};
use super::rounds::{Figures, Rounds, median};
use super::server::{Kind, Server};
use super::{Context, peer::Peer};

const SOCKETS: usize = 100;
const BYTES: usize = 20;
const SECONDS: f64 = 3.0;
/// Long enough for a JIT to have compiled the path.
const WARM_UP_SECONDS: f64 = 1.0;
const FIGURE: &str = "messages/cpu-s";

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== echo: {sockets} sockets, {BYTES} bytes, one worker, {seconds} s each");
    let servers = bench.servers(&[Kind::Standfast, Kind::Control, Kind::Bun, Kind::Floor]);
    let rounds = Rounds::run(&servers, bench.pairs, |kind| once(bench, kind, sockets, seconds))?;
    rounds.print(&[FIGURE, "messages/s", "p50 µs", "p99 µs"]);

    let mut targets = Vec::new();
    let ratio = |other| median(rounds.ratios(Kind::Standfast, other, FIGURE));
    if rounds.have(Kind::Standfast, Kind::Bun) {
        targets.push(Target::at_least("messages per CPU, ours ÷ Bun's", ratio(Kind::Bun), 1.0));
    }
    if rounds.have(Kind::Standfast, Kind::Floor) {
        targets.push(Target::at_least(
            "messages per CPU, ours ÷ floor's",
            ratio(Kind::Floor),
            0.95,
        ));
    }
    if rounds.have(Kind::Standfast, Kind::Control) {
        println!("\ncontrol: ours ÷ ours again = {:.3}", ratio(Kind::Control));
    }
    let settings = json!({ "sockets": sockets, "bytes": BYTES, "seconds": seconds,
                           "warm_up_seconds": WARM_UP_SECONDS, "workers": 1 });
    report::finish(&bench.out, "echo", settings, rounds.json(), &targets)
}

fn once(bench: &Context, kind: Kind, sockets: usize, seconds: f64) -> Result<Figures> {
    let server = Server::start(kind, &bench.tools)?;
    let mut client = server.echo_client(&bench.tools, sockets, BYTES)?;
    timed(&mut client, WARM_UP_SECONDS)?;
    let before = server.cpu_seconds()?;
    let result = timed(&mut client, seconds)?;
    let cpu = server.cpu_seconds()? - before;
    let get = |key: &str| result[key].as_f64().with_context(|| format!("no {key}"));
    Ok(Figures::from([
        (FIGURE, get("messages")? / cpu),
        ("messages/s", get("messages")? / get("seconds")?),
        ("cpu share", cpu / get("seconds")?),
        ("p50 µs", get("p50_us")?),
        ("p99 µs", get("p99_us")?),
    ]))
}

fn timed(client: &mut Peer, seconds: f64) -> Result<serde_json::Value> {
    client.request(&format!("run {seconds}"), Duration::from_secs_f64(seconds + 20.0))
}
