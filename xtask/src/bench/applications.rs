//! Applications: thousands of clients at once before an application that takes its time, and what a call costs.
//!
//! `standfast serve` beside AnyCable, if its executable is given (`--anycable`). The application is
//! `bench/floor/app_server.c`; each client connects and subscribes, which is two calls.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::Context;
use super::answers;
use super::peer::{Core, Peer, words};
use super::proc;
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};

const CLIENTS: usize = 10_000;
const CALLS_EACH: f64 = 2.0;
/// What the application of the storm takes for a call, and how many it performs at a time.
const DELAY: Duration = Duration::from_millis(20);
const SLOTS: usize = 28;
/// Time without a ping after which clients of Rails leave.
const STALE: &str = "6s";
const NEVER: &str = "1h";
const PATIENCE: Duration = Duration::from_secs(180);
const SUBSCRIBED: &str = "s to the last subscribed";
const HEALTH: &str = "/health p99, ms";
const THROUGHPUT: &str = "calls per CPU second";
const MEMORY: &str = "MB resident at most";
const GROWTH: &str = "KB more than at the start, a client";
/// When the storm is over: of clients that are connected and subscribed.
const SETTLED: Duration = Duration::from_secs(10);
const MEMORY_AFTER: &str = "MB resident 10 s after the storm";
const GROWTH_AFTER: &str = "KB more than at the start, a client, 10 s after";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Standfast,
    AnyCable,
}

impl Contestant for Server {
    fn name(self) -> &'static str {
        match self {
            Server::Standfast => "standfast",
            Server::AnyCable => "anycable",
        }
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let clients = bench.connections.unwrap_or(CLIENTS);
    let least = DELAY.as_secs_f64() * CALLS_EACH * clients as f64 / SLOTS as f64;
    let mut servers = vec![Server::Standfast];
    servers.extend(bench.anycable.is_some().then_some(Server::AnyCable));
    println!(
        "\n=== applications: {clients} clients at once, {SLOTS} calls at a time, {DELAY:?} each"
    );
    println!("    the application alone takes {least:.1} s");
    let patient = Rounds::run(&servers, bench.pairs, |server| {
        once(
            bench,
            server,
            clients,
            &Storm { delay: DELAY, stale: NEVER, hold: 15, core: Core::Any },
        )
    })?;
    patient.print(&[
        SUBSCRIBED,
        "failed",
        "waiting",
        HEALTH,
        MEMORY,
        GROWTH,
        MEMORY_AFTER,
        GROWTH_AFTER,
        "CPU seconds",
        "calls",
    ]);
    println!("\n=== applications: the same with clients that leave after {STALE} without a ping");
    let leaving = Rounds::run(&servers, bench.pairs, |server| {
        once(
            bench,
            server,
            clients,
            &Storm { delay: DELAY, stale: STALE, hold: 20, core: Core::Any },
        )
    })?;
    leaving.print(&[
        SUBSCRIBED,
        "failed",
        "waiting",
        "left",
        HEALTH,
        MEMORY,
        "CPU seconds",
        "calls",
    ]);
    println!("\n=== applications: an application that answers at once, one core");
    let fast = Rounds::run(&servers, bench.pairs, |server| {
        let storm = Storm { delay: Duration::ZERO, stale: NEVER, hold: 1, core: Core::Server };
        once(bench, server, clients, &storm)
    })?;
    fast.print(&[THROUGHPUT, SUBSCRIBED, "failed", MEMORY, GROWTH]);

    let ours = Server::Standfast;
    let worst = |rounds: &Rounds<Server>, figure| {
        rounds.values(ours, figure).into_iter().fold(0.0, f64::max)
    };
    let mut targets = vec![
        Target::at_most("clients not subscribed, all rounds", worst(&patient, "waiting"), 0.0),
        Target::at_most("failed connects, all rounds", worst(&patient, "failed"), 0.0),
        Target::at_most("the same, clients that leave", worst(&leaving, "waiting"), 0.0),
        Target::at_most("to the last subscribed, s", patient.median(ours, SUBSCRIBED), 1.1 * least),
        Target::at_most("health in a storm, p99 ms", patient.median(ours, HEALTH), 50.0),
    ];
    if servers.contains(&Server::AnyCable) {
        let ratio =
            |rounds: &Rounds<Server>, figure| median(rounds.ratios(ours, Server::AnyCable, figure));
        targets.extend([
            Target::at_least(
                "calls per CPU second, ours ÷ AnyCable's",
                ratio(&fast, THROUGHPUT),
                2.0,
            ),
            Target::at_most("memory at most, ours ÷ AnyCable's", ratio(&patient, MEMORY), 0.05),
            Target::at_most("the same by client", ratio(&patient, GROWTH), 0.05),
            Target::at_most("memory after, ours ÷ AnyCable's", ratio(&patient, MEMORY_AFTER), 0.05),
            Target::at_most("the same by client, after", ratio(&patient, GROWTH_AFTER), 0.05),
        ]);
    }
    let settings =
        json!({ "clients": clients, "delay_ms": DELAY.as_millis() as u64, "slots": SLOTS });
    let results =
        json!({ "patient": patient.json(), "leaving": leaving.json(), "fast": fast.json() });
    report::finish(&bench.out, "applications", settings, results, &targets)
}

struct Storm {
    delay: Duration,
    /// When clients leave without a ping.
    stale: &'static str,
    /// Seconds that they stay when the last is subscribed.
    hold: u64,
    core: Core,
}

fn once(bench: &Context, server: Server, clients: usize, storm: &Storm) -> Result<Figures> {
    let delay = (storm.delay.as_secs_f64() * 1e3).to_string();
    let app = words([&bench.tools.floor("app_server"), &delay, &SLOTS.to_string()]);
    let mut app = Peer::start("server application", Core::Client, &app)?;
    let port = app.receive(Duration::from_secs(5))?["port"].as_u64().context("no port")?;
    let url = format!("http://127.0.0.1:{port}/_anycable");
    let started = start(bench, server, &url, storm.core)?;
    let (pid, public) = (started.0.pid(), started.1);
    thread::sleep(Duration::from_millis(500));
    let (cpu, at_start) = (proc::cpu_seconds(pid)?, proc::rss_bytes(pid)?);

    let stop = Arc::new(AtomicBool::new(false));
    let (of_watch, of_probe) = (Arc::clone(&stop), Arc::clone(&stop));
    let watch = thread::spawn(move || {
        let mut resident = Vec::new();
        while !of_watch.load(Ordering::Relaxed) {
            resident.push((Instant::now(), proc::rss_bytes(pid).unwrap_or(0)));
            thread::sleep(Duration::from_millis(100));
        }
        resident
    });
    let probe = thread::spawn(move || answers::probe(public, "/health", &of_probe));
    let outcome = load(bench, public, clients, storm);
    let ended = Instant::now();
    stop.store(true, Ordering::Relaxed);
    let resident = watch.join().map_err(|_| anyhow!("the watch panicked"))?;
    let health = probe.join().map_err(|_| anyhow!("the probe panicked"))??;
    let outcome = outcome?;
    let spent = proc::cpu_seconds(pid)? - cpu;
    // Those of the storm, without the time that all have been subscribed for.
    let subscribed = ended.checked_sub(Duration::from_secs(storm.hold)).unwrap_or(ended);
    let in_storm = health.into_iter().filter(|(at, _)| *at <= subscribed).map(|(_, ms)| ms);
    let mut health: Vec<f64> = in_storm.collect();
    health.sort_by(f64::total_cmp);
    let p99 = health.get(health.len() * 99 / 100).copied().context("no answer of /health")?;

    let most = resident.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
    let settled = resident.iter().find(|(at, _)| *at >= subscribed + SETTLED);
    // Of shorter storms: at the end.
    let after = settled.or(resident.last()).map_or(0, |(_, bytes)| *bytes);
    let growth = |bytes: u64| bytes.saturating_sub(at_start) as f64 / 1e3 / clients as f64;
    let calls = app.request("figures", Duration::from_secs(5))?;
    let of =
        |value: &Value| value.as_f64().with_context(|| format!("a figure is missing: {outcome}"));
    let calls = of(&calls["connects"])? + of(&calls["commands"])?;
    let (connections, cable) = (&outcome["connections"], &outcome["cable"]);
    Ok(Figures::from([
        (SUBSCRIBED, of(&cable["to_subscribed"]["max_ms"])? / 1e3),
        ("failed", of(&connections["failed"])?),
        ("waiting", clients as f64 - of(&cable["subscribed"])?),
        ("left", of(&cable["stale"])? + of(&connections["reconnects"])?),
        (HEALTH, p99),
        (MEMORY, most as f64 / 1e6),
        (GROWTH, growth(most)),
        (MEMORY_AFTER, after as f64 / 1e6),
        (GROWTH_AFTER, growth(after)),
        ("MB at the start", at_start as f64 / 1e6),
        ("CPU seconds", spent),
        ("calls", calls),
        (THROUGHPUT, calls / spent),
    ]))
}

/// A server with the application at `url`, and its public port.
fn start(bench: &Context, server: Server, url: &str, core: Core) -> Result<(Peer, u16)> {
    let silent = Stdio::null();
    match server {
        Server::Standfast => {
            let listen = words([&"serve", &"--listen", &"127.0.0.1:0", &"--admin", &"127.0.0.1:0"]);
            let mut command = words([&bench.tools.standfast()]);
            command.extend(listen);
            command.extend(words([&"--ready-json", &"--rpc-host", &url]));
            let mut peer = Peer::start_logging_to("server standfast", core, &command, silent)?;
            let ready = peer.receive(Duration::from_secs(20))?;
            let port =
                ready["listen"].as_str().and_then(|listen| listen.rsplit(':').next()?.parse().ok());
            Ok((peer, port.context("the ready line names no port")?))
        }
        Server::AnyCable => {
            let anycable = bench.anycable.as_deref().context("no executable of AnyCable")?;
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let command = anycable_at(anycable, port, url);
            let mut peer = Peer::start_logging_to("server anycable", core, &command, silent)?;
            let began = Instant::now();
            while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
                ensure!(peer.is_running(), "AnyCable does not start");
                ensure!(began.elapsed() < Duration::from_secs(20), "AnyCable does not listen");
                thread::sleep(Duration::from_millis(20));
            }
            Ok((peer, port))
        }
    }
}

fn anycable_at(executable: &Path, port: u16, url: &str) -> Vec<std::ffi::OsString> {
    words([
        &executable,
        &"--host=127.0.0.1",
        &format!("--port={port}"),
        &format!("--rpc_host={url}"),
        &format!("--rpc_concurrency={SLOTS}"),
        &"--broadcast_adapter=http",
        &"--log_level=error",
    ])
}

/// Clients at once; the outcome of their run.
fn load(bench: &Context, port: u16, clients: usize, storm: &Storm) -> Result<Value> {
    let file =
        std::env::temp_dir().join(format!("standfast-applications-{}.json", std::process::id()));
    let command = words([
        &bench.tools.standfast(),
        &"load",
        &format!("cable://127.0.0.1:{port}/cable"),
        &"--channel",
        &r#"{"channel":"Bench"}"#,
        &"--connections",
        &clients.to_string(),
        &"--connect",
        &"storm",
        &"--stale-after",
        &storm.stale,
        &"--connect-timeout",
        &"120s",
        &"--hold",
        &format!("{}s", storm.hold),
        &"--plain",
        &"--json",
        &file,
    ]);
    let mut load = Peer::start_logging_to("clients", Core::Any, &command, Stdio::null())?;
    let began = Instant::now();
    while load.is_running() {
        ensure!(began.elapsed() < PATIENCE, "the clients do not end within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(50));
    }
    let text = std::fs::read_to_string(&file).context("the clients left no outcome")?;
    std::fs::remove_file(&file)?;
    Ok(serde_json::from_str(&text)?)
}
