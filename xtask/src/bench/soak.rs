//! The soak: an hour of killed clients and an application that is killed, slow and wrong. Each message has to arrive
//! once, and each action to be performed at most once.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Context;
use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::server::Server;
use crate::step;

const CLIENTS: usize = 60;
const SECONDS: f64 = 3600.0;
/// Messages kept per topic, and for how many seconds: enough for every absence.
const HISTORY: (usize, usize) = (1_000, 180);
const HISTORY_TTL: &str = "180s";
/// Shorter than some absences, so that sessions are resumed and expire.
const SESSIONS_TTL: &str = "20s";
/// Counts of a minute, and the time until everyone has come back.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let clients = bench.connections.unwrap_or(CLIENTS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== soak: {clients} clients, {seconds} s");
    let log = std::env::temp_dir().join(format!("standfast-soak-{}.log", std::process::id()));
    let script = step::root().join("bench/soak/soak.js");
    let modules = format!("NODE_PATH={}", bench.tools.peers().join("node_modules").display());
    let (count, time) = (clients.to_string(), seconds.to_string());
    let (limit, ttl) = (HISTORY.0.to_string(), HISTORY.1.to_string());
    let client = words([&"env", &modules, &"node", &script, &count, &time, &limit, &ttl, &log]);
    let mut client = Peer::start("soak", Core::Any, &client)?;
    let app = client.receive(PATIENCE)?["app"].as_u64().context("no port")?;
    let url = format!("http://127.0.0.1:{app}/_anycable");
    let flags = ["--rpc-host", &url, "--history", "memory", "--history-limit", &limit];
    let times = ["--history-ttl", HISTORY_TTL, "--sessions-ttl", SESSIONS_TTL];
    let server = Server::start_ours(&bench.tools, &[&flags[..], &times[..]].concat())?;
    let admin = server.admin().context("the ready line names no admin")?;
    client.send(&format!("ws://127.0.0.1:{} http://127.0.0.1:{admin}", server.port()))?;
    let (result, resident) = follow(&mut client, &server)?;
    std::fs::remove_file(&log)?;
    println!("{result:#}");
    let targets = targets(&result, &resident)?;
    let settings = json!({ "clients": clients, "seconds": seconds, "history_limit": HISTORY.0,
                           "history_seconds": HISTORY.1, "sessions_ttl": SESSIONS_TTL });
    let cpu = server.cpu_seconds()?;
    let results = json!({ "soak": result, "resident_bytes": resident, "server_cpu_seconds": cpu });
    report::finish(&bench.out, "soak", settings, results, &targets)
}

/// The last counts, and the server's resident bytes at each of them.
fn follow(client: &mut Peer, server: &Server) -> Result<(Value, Vec<u64>)> {
    let (began, mut resident) = (Instant::now(), Vec::new());
    loop {
        let counts = client.receive(PATIENCE)?;
        resident.push(server.rss_bytes()?);
        if counts["ended"] == true {
            return Ok((counts, resident));
        }
        let of = |key: &str| counts["delivered"][key].as_u64().unwrap_or_default();
        println!(
            "{:5.0} s: {} received, {} lost, {} doubled, {} wrong, {} kills, resident {:.1} MB",
            began.elapsed().as_secs_f64(),
            of("received"),
            of("lost"),
            of("doubled"),
            of("wrong"),
            counts["events"]["kills"],
            resident.last().map_or(0.0, |bytes| *bytes as f64 / 1e6),
        );
    }
}

fn targets(result: &Value, resident: &[u64]) -> Result<Vec<Target>> {
    let get = |group: &str, key: &str| {
        result[group][key].as_f64().with_context(|| format!("no {group} {key}: {result}"))
    };
    let mut targets = vec![
        Target::at_most("messages lost without a reason", get("delivered", "lost")?, 0.0),
        Target::at_most("messages doubled", get("delivered", "doubled")?, 0.0),
        Target::at_most("messages in the wrong place", get("delivered", "wrong")?, 0.0),
        Target::at_most("acknowledged with a wrong offset", get("publishing", "wrong")?, 0.0),
        Target::at_most("actions performed twice", get("app", "performed_twice")?, 0.0),
        Target::at_most("actions out of order", get("app", "out_of_order")?, 0.0),
        Target::at_most("ends of sessions told twice", get("app", "ended_twice")?, 0.0),
        Target::at_most(
            "requests for history without an answer",
            result["events"]["unanswered history"].as_f64().unwrap_or_default(),
            0.0,
        ),
        Target::at_most(
            "clients not connected at the end",
            result["unconnected"].as_f64().context("no unconnected")?,
            0.0,
        ),
        Target::at_most(
            "broken invariants",
            result["broken"].as_f64().context("no metric invariant_broken")?,
            0.0,
        ),
    ];
    // Once everything is full: sessions, histories, pools.
    if let (Some(middle), Some(last)) = (resident.get(resident.len() / 2), resident.last())
        && resident.len() >= 20
    {
        let grown = last.saturating_sub(*middle) as f64 / 1e6;
        targets.push(Target::at_most("MB grown in the second half", grown, 2.0));
    }
    Ok(targets)
}
