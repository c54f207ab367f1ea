//! Clients that are away while others publish: all leave, all come back at once, and each gets every message once.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds};
use super::server::Server;

const CLIENTS: usize = 10_000;
const BYTES: usize = 32;
const PER_SECOND: usize = 100;
/// Seconds of publishing before they leave, while they are away, and since they have come back.
const BEFORE: f64 = 1.0;
const AWAY: f64 = 5.0;
const AFTER: f64 = 6.0;
const CAUGHT_UP: f64 = 3.0;
const PATIENCE: f64 = 120.0;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Standfast;

impl Contestant for Standfast {
    fn name(self) -> &'static str {
        "standfast"
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let clients = bench.connections.unwrap_or(CLIENTS);
    let away = bench.seconds.unwrap_or(AWAY);
    println!("\n=== away: {clients} clients away for {away} s, {PER_SECOND} messages/s");
    let rounds = Rounds::run(&[Standfast], bench.pairs, |_| once(bench, clients, away))?;
    let figures = ["caught up s", "connect s", "cpu s", "MB resident, caught up", "received"];
    rounds.print(&figures);
    let worst = |figure: &str| rounds.values(Standfast, figure).into_iter().fold(0.0, f64::max);
    let targets = [
        Target::at_most("messages lost, all rounds", worst("lost"), 0.0),
        Target::at_most("messages doubled, all rounds", worst("doubled"), 0.0),
        Target::at_most("clients behind at the end, all rounds", worst("behind"), 0.0),
        Target::at_most("connections closed, all rounds", worst("closed"), 0.0),
        Target::at_most(
            "last caught up after the last reconnect, s",
            rounds.median(Standfast, "caught up s"),
            CAUGHT_UP,
        ),
    ];
    let settings = json!({ "clients": clients, "away_s": away, "per_second": PER_SECOND,
                           "bytes": BYTES });
    report::finish(&bench.out, "away", settings, rounds.json(), &targets)
}

fn once(bench: &Context, clients: usize, away: f64) -> Result<Figures> {
    let within = Duration::from_secs_f64(PATIENCE + 30.0);
    let count = |seconds: f64| (seconds * PER_SECOND as f64) as usize;
    let all = count(BEFORE + away + AFTER);
    let limit = (2 * all).to_string();
    let flags = ["--history", "memory", "--history-limit", &limit];
    let server = Server::start_ours(&bench.tools, &flags)?;
    let client = words([
        &bench.tools.floor("away_client"),
        &"127.0.0.1",
        &server.port().to_string(),
        &"bench",
        &clients.to_string(),
    ]);
    let mut crowd = Peer::start("crowd", Core::Any, &client)?;
    let subscribed = crowd.receive(within)?;
    ensure!(subscribed["subscribed"] == clients, "not all subscribed: {subscribed}");
    let mut publisher = server.publisher(&bench.tools, BYTES)?;
    // Everyone has a position.
    publisher.request("publish 1 0", within)?;
    crowd.request("until 1 30", within)?;
    let cpu = server.cpu_seconds()?;
    publisher.send(&format!("publish {all} {PER_SECOND}"))?;
    thread::sleep(Duration::from_secs_f64(BEFORE));
    let left = crowd.request("leave", within)?;
    ensure!(left["left"] == clients, "not all left: {left}");
    thread::sleep(Duration::from_secs_f64(away));
    let back = crowd.request(&format!("return {PATIENCE}"), within)?;
    let resident = server.rss_bytes()?;
    let published = publisher.receive(within)?;
    let accepted = published["published"].as_u64().context("no published")?;
    // What was refused has no offset.
    let end = crowd.request(&format!("until {} {PATIENCE}", accepted + 1), within)?;
    let spent = server.cpu_seconds()? - cpu;
    let get = |of: &Value, key: &str| of[key].as_f64().with_context(|| format!("no {key}: {of}"));
    Ok(Figures::from([
        ("connect s", get(&back, "connect_s")?),
        ("caught up s", get(&back, "caught_up_s")?),
        ("not caught up", clients as f64 - get(&back, "caught_up")?),
        ("rejected", get(&back, "rejected")?),
        ("refused", get(&published, "refused")?),
        ("received", get(&end, "received")?),
        ("lost", get(&end, "lost")?),
        ("doubled", get(&end, "doubled")?),
        ("behind", get(&end, "behind")? + clients as f64 - get(&back, "caught_up")?),
        ("closed", get(&end, "closed")?),
        ("cpu s", spent),
        ("MB resident, caught up", resident as f64 / 1e6),
    ]))
}
