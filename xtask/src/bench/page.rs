//! The admin page of a server with many connections and topics: when it is painted, and what the server spends on it
//! while it is open and after it was closed.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Context;
use super::hold;
use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::rounds::median;
use super::server::Server;
use crate::step;

const SOCKETS: usize = 100_000;
const TOPICS: usize = 10_000;
const SECONDS: f64 = 60.0;
const LOADS: usize = 10;
const PAINT_MS_MOST: f64 = 100.0;
/// Share of a core, while a page is open.
const SHARE_MOST: f64 = 0.01;
/// The same after it was closed: what two measurements of the server alone differ by.
const CLOSED_MOST: f64 = 0.002;
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures both. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== page: {sockets} sockets, {TOPICS} topics, {seconds} s");
    let silent = ["--pings", "off", "--idle-timeout", "off", "--ping-interval", "1h"];
    let server = Server::start_ours(&bench.tools, &silent)?;
    let mut load = subscribers(bench, &server, sockets, seconds)?;
    hold::wait_open(&mut load, sockets)?;
    // Until the last subscription is confirmed.
    thread::sleep(Duration::from_secs(5));
    let spent = || -> Result<f64> {
        let before = server.cpu_seconds()?;
        thread::sleep(Duration::from_secs_f64(seconds));
        Ok((server.cpu_seconds()? - before) / seconds)
    };
    let before = spent()?;
    let admin = server.admin().context("the ready line names no admin")?;
    let script = step::root().join("bench/page_client.js");
    let modules = format!("NODE_PATH={}", bench.tools.peers().join("node_modules").display());
    let url = format!("http://127.0.0.1:{admin}/");
    let client = words([&"env", &modules, &"node", &script, &url, &LOADS.to_string()]);
    let mut client = Peer::start("page", Core::Any, &client)?;
    let (mut paints, mut figures) = (Vec::new(), Vec::new());
    for _ in 0..LOADS {
        let times = client.receive(PATIENCE)?;
        println!("{times}");
        paints.extend(times["first_paint"].as_f64());
        figures.extend(times["figures"].as_f64());
    }
    client.receive(PATIENCE)?;
    let open = spent()?;
    drop(client);
    thread::sleep(Duration::from_secs(2));
    let after = spent()?;
    drop(load);
    println!("share of a core: {before:.5} before, {open:.5} with the page, {after:.5} after");
    let targets = [
        Target::at_most("first paint, median, ms", median(paints.clone()), PAINT_MS_MOST),
        Target::at_most("share of a core for an open page", open - before, SHARE_MOST),
        Target::at_most("share of a core after it was closed", after - before, CLOSED_MOST),
    ];
    let settings = json!({ "sockets": sockets, "topics": TOPICS, "seconds": seconds });
    let results = json!({
        "first_paint_ms": paints, "first_figures_ms": figures,
        "cores": { "before": before, "open": open, "after": after },
    });
    report::finish(&bench.out, "page", settings, results, &targets)
}

/// Clients of Action Cable with a topic each, silent once they have subscribed.
fn subscribers(bench: &Context, server: &Server, sockets: usize, seconds: f64) -> Result<Peer> {
    let channel = format!(r#"{{"channel":"$pubsub","stream_name":"room-{{1..{TOPICS}}}"}}"#);
    let hold = format!("{}s", 3.0 * seconds + 600.0);
    let command = words([
        &bench.tools.standfast(),
        &"load",
        &format!("cable://127.0.0.1:{}/cable", server.port()),
        &"--connections",
        &sockets.to_string(),
        &"--channel",
        &channel,
        &"--stale-after",
        &"1h",
        &"--hold",
        &hold,
        &"--plain",
    ]);
    // Killed, as servers are.
    let log = Stdio::null();
    Peer::start_logging_to("server's subscribers", Core::Any, &command, log)
}
