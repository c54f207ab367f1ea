//! Presence: 10,000 members who join one topic within two seconds, what each receives, and what that costs
//! the server.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Context;
use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::server::Server;
use crate::step;

const MEMBERS: usize = 10_000;
const SECONDS: f64 = 2.0;
const EVENTS_MOST: f64 = 10.0;
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let members = bench.connections.unwrap_or(MEMBERS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== presence: {members} members join within {seconds} s");
    let server = Server::start_ours(&bench.tools, &["--presence", "memory"])?;
    let before = server.cpu_seconds()?;
    let script = step::root().join("bench/presence_client.js");
    let modules = format!("NODE_PATH={}", bench.tools.peers().join("node_modules").display());
    let url = format!("ws://127.0.0.1:{}", server.port());
    let (count, time) = (members.to_string(), seconds.to_string());
    let client = words([&"env", &modules, &"node", &script, &url, &count, &time]);
    let mut client = Peer::start("presence", Core::Any, &client)?;
    let result = client.receive(PATIENCE)?;
    let cpu = server.cpu_seconds()? - before;
    println!("{result}\nserver: {cpu:.2} CPU s, with the connects");
    let get = |key: &str| result[key].as_f64().with_context(|| format!("no {key}"));
    let targets = [
        Target::at_most("events per member, most", get("events_most")?, EVENTS_MOST),
        Target::at_most("members who do not know of all", get("missing")?, 0.0),
        Target::at_most("connections lost", get("closed")?, 0.0),
    ];
    let settings = json!({ "members": members, "seconds": seconds });
    let results = json!({ "client": result, "server_cpu_seconds": cpu });
    report::finish(&bench.out, "presence", settings, results, &targets)
}
