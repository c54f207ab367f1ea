//! Memory of an idle client of `/cable`: of the whole process, by the difference between two numbers of clients.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::Context;
use super::admin::Admin;
use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds};
use super::server::Server;

const CLIENTS: usize = 10_000;
/// Clients before these, so that pools and pages of the executable are not counted; few, as their calls leave
/// memory that the others would use.
const FIRST: usize = 1_000;
const PLAIN_MOST: f64 = 256.0;
const APPLICATION_MOST: f64 = 700.0;
const BYTES: &str = "bytes a client";
/// Until freed memory has been returned to the system.
const SETTLED: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// One subscription.
    Plain,
    /// The same with features that they do not use.
    Features,
    /// With an identity, one channel and two streams by the application, which keeps no state.
    Application,
}

impl Contestant for Clients {
    fn name(self) -> &'static str {
        match self {
            Clients::Plain => "plain",
            Clients::Features => "unused features",
            Clients::Application => "application",
        }
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let clients = bench.connections.unwrap_or(CLIENTS);
    println!("\n=== idle-bytes: {clients} clients of /cable in addition to {FIRST}");
    let all = [Clients::Plain, Clients::Features, Clients::Application];
    let rounds = Rounds::run(&all, bench.pairs, |kind| once(bench, kind, clients))?;
    rounds.print(&[BYTES, "MB before", "MB of all"]);
    let target = |what, kind, most| Target::at_most(what, rounds.median(kind, BYTES), most);
    let targets = [
        target("bytes with one subscription", Clients::Plain, PLAIN_MOST),
        target("the same with history, presence", Clients::Features, PLAIN_MOST),
        target("identity, a channel, two streams", Clients::Application, APPLICATION_MOST),
    ];
    let settings = json!({ "clients": clients, "first": FIRST });
    report::finish(&bench.out, "idle-bytes", settings, rounds.json(), &targets)
}

fn once(bench: &Context, kind: Clients, clients: usize) -> Result<Figures> {
    let app = words([&bench.tools.floor("app_server"), &"0", &"28", &"each"]);
    let mut app = Peer::start("server application", Core::Any, &app)?;
    let port = app.receive(Duration::from_secs(5))?["port"].as_u64().context("no port")?;
    let url = format!("http://127.0.0.1:{port}/_anycable");
    let flags: &[&str] = match kind {
        Clients::Plain => &[],
        Clients::Features => &["--history", "memory", "--presence", "memory"],
        Clients::Application => &["--rpc-host", &url],
    };
    let server = Server::start_ours(&bench.tools, flags)?;
    let mut admin = Admin::connect(&server)?;
    let streams = if kind == Clients::Application { 2 } else { 1 };
    let start = server.rss_bytes()?;
    let _first = connect(bench, &server, &mut admin, kind, FIRST, FIRST * streams)?;
    let before = server.rss_bytes()?;
    let more = (FIRST + clients) * streams;
    let _others = connect(bench, &server, &mut admin, kind, clients, more)?;
    let after = server.rss_bytes()?;
    let grown = after.saturating_sub(before) as f64;
    Ok(Figures::from([
        (BYTES, grown / clients as f64),
        ("MB at the start", start as f64 / 1e6),
        ("MB before", before as f64 / 1e6),
        ("MB of all", after as f64 / 1e6),
    ]))
}

/// Clients that stay; returns when the server has so many subscriptions in all and has settled.
fn connect(
    bench: &Context,
    server: &Server,
    admin: &mut Admin,
    kind: Clients,
    clients: usize,
    subscriptions: usize,
) -> Result<Peer> {
    let mut command = words([
        &bench.tools.standfast(),
        &"load",
        &format!("cable://127.0.0.1:{}/cable", server.port()),
        &"--connections",
        &clients.to_string(),
        &"--connect",
        &"paced:2000",
        &"--stale-after",
        &"1h",
        &"--hold",
        &"1h",
        &"--plain",
    ]);
    if kind == Clients::Application {
        command.extend(words([&"--channel", &r#"{"channel":"Bench"}"#]));
    }
    let load =
        Peer::start_logging_to("server clients", Core::Any, &command, std::process::Stdio::null())?;
    let began = Instant::now();
    loop {
        let metrics = admin.metrics("standfast_subscriptions")?;
        if metrics.iter().any(|(name, count)| name.is_empty() && *count == subscriptions) {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "not all are subscribed: {metrics:?}");
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(SETTLED);
    Ok(load)
}
