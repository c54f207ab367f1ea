//! Holding: memory of many sockets while held and after, and the CPU of a million silent ones.
//!
//! The clients are `standfast load` in a process of its own, so both programs are measured. The kernel
//! counts the open sockets (`/proc/net/sockstat`) and the resident memory (`smaps_rollup`).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::Context;
use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::server::Server;
use super::{node, proc};

const MEMORY_SOCKETS: usize = 100_000;
const MEMORY_HOLD_S: f64 = 60.0;
const IDLE_SOCKETS: usize = 1_000_000;
const IDLE_SECONDS: f64 = 60.0;
/// The byte budget: a fixed part and a part for each socket.
const FIXED_BYTES: usize = 32 << 20;
const BYTES_PER_SOCKET: usize = 128;
/// Permitted growth from the first tenth of the hold to its end.
const FLAT_BYTES: f64 = (1 << 20) as f64;
const OPEN_TIMEOUT: Duration = Duration::from_secs(240);
const NODE_SOCKETS: usize = 1_000_000;
const NODE_HOLD_S: f64 = 600.0;
/// Sockets of a thread: its table of 20,000 files has room for a few more.
const NODE_SOCKETS_PER_WORKER: usize = 18_600;
/// Permitted growth of a Node.js process, whose heap is collected when it has grown by some megabytes.
const NODE_FLAT_BYTES: f64 = (16 << 20) as f64;

/// Resident memory during heartbeats, at the end of the hold and after all have disconnected.
pub(super) fn memory(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(MEMORY_SOCKETS);
    let hold = bench.seconds.unwrap_or(MEMORY_HOLD_S);
    println!("\n=== memory: {sockets} sockets, held {hold} s with a heartbeat each 30 s");
    let server = Server::start_ours(&bench.tools, &[])?;
    let start = server.rss_bytes()?;
    let hold_most = hold + OPEN_TIMEOUT.as_secs_f64();
    let mut load = load(bench, &server, "/topics/bench", sockets, hold_most, "30s")?;
    wait_open(&mut load, sockets)?;
    let samples = samples(&server, &load, hold)?;
    drop(load);
    wait_gone(sockets)?;
    let end = server.rss_bytes()?;

    let most = |values: &dyn Fn(&(u64, u64)) -> u64| samples.iter().map(values).max().unwrap_or(0);
    let (serve, client) = (most(&|s| s.0), most(&|s| s.1));
    let crept = crept(&samples);
    let budget = (FIXED_BYTES + BYTES_PER_SOCKET * sockets) as f64;
    let kept = end.saturating_sub(start) as f64;
    let targets = [
        Target::at_most("serve, resident bytes at most", serve as f64, budget),
        Target::at_most("load, resident bytes at most", client as f64, budget),
        Target::at_most("serve grows while held", crept as f64, FLAT_BYTES),
        Target::at_most(
            "serve keeps after all have disconnected",
            kept,
            (serve - start) as f64 * 0.05,
        ),
    ];
    let per_socket = (serve - start) as f64 / sockets as f64;
    println!("serve grew {per_socket:.1} bytes per socket");
    let settings = json!({ "sockets": sockets, "hold_seconds": hold, "heartbeat_seconds": 30 });
    let results = json!({
        "serve_bytes_at_start": start, "serve_bytes_most": serve, "load_bytes_most": client,
        "serve_bytes_after": end, "serve_growth_per_socket": per_socket,
        "samples_serve_load": samples,
    });
    report::finish(&bench.out, "memory", settings, results, &targets)
}

/// Resident bytes of a server and of the generator, each second.
fn samples(server: &Server, load: &Peer, hold: f64) -> Result<Vec<(u64, u64)>> {
    let mut samples = Vec::new();
    let opened = Instant::now();
    while opened.elapsed().as_secs_f64() < hold {
        samples.push((server.rss_bytes()?, proc::rss_bytes(load.pid())?));
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(samples)
}

/// Growth of the server from the first tenth of the hold to its end.
fn crept(samples: &[(u64, u64)]) -> u64 {
    let settled = samples.get(samples.len() / 10).map_or(0, |sample| sample.0);
    samples.last().map_or(0, |sample| sample.0).saturating_sub(settled)
}

/// One Node.js process with the package of npm and threads of its own for sockets: memory while they are held, and the
/// pauses for garbage.
pub(super) fn node(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(NODE_SOCKETS);
    let hold = bench.seconds.unwrap_or(NODE_HOLD_S);
    let workers = sockets.div_ceil(NODE_SOCKETS_PER_WORKER);
    node::build()?;
    println!(
        "\n=== node-hold: {sockets} sockets on {workers} threads of one process, held {hold} s"
    );
    let server = node::start_with_workers(bench, workers)?;
    let start = server.rss_bytes()?;
    let hold_most = hold + OPEN_TIMEOUT.as_secs_f64();
    let mut load = load(bench, &server, "/echo", sockets, hold_most, "30s")?;
    wait_open(&mut load, sockets)?;
    let samples = samples(&server, &load, hold)?;
    let still = proc::tcp_sockets()?;
    let pauses = node::pauses(&server)?;
    drop(load);

    let most = samples.iter().map(|sample| sample.0).max().unwrap_or(0);
    let crept = crept(&samples);
    let targets = [
        Target::at_least("open at the end, both ends", still as f64, 2.0 * sockets as f64),
        Target::at_most("grows while held, bytes", crept as f64, NODE_FLAT_BYTES),
    ];
    let per_socket = most.saturating_sub(start) as f64 / sockets as f64;
    println!("grew {per_socket:.1} bytes per socket; garbage collection: {pauses}");
    let settings = json!({ "sockets": sockets, "workers": workers, "hold_seconds": hold,
                           "heartbeat_seconds": 30, "node": node::node_version() });
    let results = json!({ "bytes_at_start": start, "bytes_most": most, "growth_per_socket": per_socket,
                          "garbage_collection": pauses, "samples_server_load": samples });
    report::finish(&bench.out, "node-hold", settings, results, &targets)
}

/// CPU that `serve` uses for silent sockets, with pings off.
pub(super) fn idle(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(IDLE_SOCKETS);
    let seconds = bench.seconds.unwrap_or(IDLE_SECONDS);
    println!("\n=== idle: {sockets} sockets, no pings, {seconds} s");
    let server = Server::start_ours(&bench.tools, &["--idle-timeout", "off"])?;
    let hold_most = seconds + OPEN_TIMEOUT.as_secs_f64();
    let mut load = load(bench, &server, "/topics/bench", sockets, hold_most, "0")?;
    wait_open(&mut load, sockets)?;
    std::thread::sleep(Duration::from_secs(3));
    let before = (server.cpu_seconds()?, proc::cpu_seconds(load.pid())?);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let cpu = server.cpu_seconds()? - before.0;
    let load_cpu = proc::cpu_seconds(load.pid())? - before.1;
    let still = proc::tcp_sockets()?;
    ensure!(still >= 2 * sockets as u64, "sockets were lost during the hold: {still} are open");

    let allowed = 0.6 * seconds / IDLE_SECONDS;
    let targets = [Target::at_most("server CPU seconds", cpu, allowed)];
    let settings = json!({ "sockets": sockets, "seconds": seconds });
    let results = json!({ "serve_cpu_seconds": cpu, "load_cpu_seconds": load_cpu,
                          "serve_rss_bytes": server.rss_bytes()? });
    report::finish(&bench.out, "idle", settings, results, &targets)
}

fn load(
    bench: &Context,
    server: &Server,
    path: &str,
    n: usize,
    hold: f64,
    heartbeat: &str,
) -> Result<Peer> {
    let command = words([
        &bench.tools.standfast(),
        &"load",
        &format!("ws://127.0.0.1:{}{path}", server.port()),
        &"--connections",
        &n.to_string(),
        &"--hold",
        &format!("{}s", hold.ceil()),
        &"--heartbeat",
        &heartbeat,
    ]);
    // The name begins with "server" because a signal stops it, not the end of its input.
    Peer::start("server's crowd", Core::Any, &command)
}

/// Waits until the kernel counts both ends of every connection.
pub(super) fn wait_open(load: &mut Peer, sockets: usize) -> Result<()> {
    let started = Instant::now();
    while proc::tcp_sockets()? < 2 * sockets as u64 {
        ensure!(load.is_running(), "the load generator ended before all were open");
        ensure!(started.elapsed() < OPEN_TIMEOUT, "not open after {} s", OPEN_TIMEOUT.as_secs());
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("open after {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Waits until nearly all sockets are closed, and a little longer for what the server does then.
fn wait_gone(sockets: usize) -> Result<()> {
    let started = Instant::now();
    while proc::tcp_sockets()? > sockets as u64 / 100 + 50 {
        ensure!(
            started.elapsed() < OPEN_TIMEOUT,
            "the server keeps sockets of disconnected clients"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_secs(5));
    Ok(())
}
