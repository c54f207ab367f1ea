//! Attackers on the proxy who hold something: bodies that arrive byte by byte and take the places of an
//! upstream, tunnels that are half-closed and never read, and requests whose log lines nobody reads.

use std::io::{Read, Write, pipe};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::proc;
use super::report::Target;
use super::siege::{connect, head};
use super::siege_proxy::{Proxy, Upstream, handshake};

/// Requests that the upstream takes at a time, and clients that try to hold all of these places.
const PLACES: usize = 2;
const SLOW: usize = 4;
const HONEST: &[u8] = b"GET /404 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const SLOW_HEAD: &[u8] = b"POST /body HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
/// How long the attack by bodies goes on, unless `--seconds` is given.
const SECONDS: f64 = 10.0;
/// Seconds that an honest request may wait for a place.
const WAIT_MAX: f64 = 8.0;
/// How a tunnel is left: bytes that the upstream sends and nobody reads, before it ends.
const UNREAD: [usize; 3] = [0, 64 << 10, 8 << 20];
/// Turns per second of all workers that count as spinning, and how long they are counted.
const SPINS: f64 = 1_000.0;
const COUNTED: Duration = Duration::from_secs(2);
/// Lines of the access log that wait, and what they take at most.
const LINES_MAX: usize = 8 * 1024;
const LINES_BYTES: f64 = (24 << 20) as f64;
/// Lines that a FIFO and the writer's buffers take before others wait.
const LINES_WRITTEN: usize = 2_000;

/// Runs the attacks with numbers in proportion to `count` masses.
pub(super) fn run(bench: &Context, count: usize, targets: &mut Vec<Target>) -> Result<Vec<Value>> {
    let mut results = Vec::new();
    for buffer in ["off", "64KiB"] {
        results.push(slow_bodies(bench, buffer, targets)?);
    }
    for unread in UNREAD {
        results.push(half_closed(bench, (count / 1_000).max(4), unread, targets)?);
    }
    results.push(noisy_log(bench, (count / 4).max(LINES_MAX), targets)?);
    Ok(results)
}

// ---- slow bodies ----

fn slow_bodies(bench: &Context, buffer: &str, targets: &mut Vec<Target>) -> Result<Value> {
    println!("\n=== siege of the proxy: {SLOW} slow bodies for {PLACES} places, buffer {buffer}");
    let upstream = Upstream::start()?;
    let config = Scratch::new("slow-bodies.toml");
    let text = format!(
        "[pool.default]\nupstreams = ['127.0.0.1:{}']\nmax = {PLACES}\nqueue = 64\nqueue_timeout = '60s'\n",
        upstream.port
    );
    std::fs::write(&config.0, text)?;
    let path = config.text()?;
    let flags = ["--config", path, "--body-min-rate", "1KiB/1s", "--body-buffer", buffer];
    let proxy = Proxy::start_with(bench, upstream, &flags, Stdio::inherit())?;
    let (port, done) = (proxy.port, AtomicBool::new(false));
    let until = Instant::now() + Duration::from_secs_f64(bench.seconds.unwrap_or(SECONDS));
    let (answered, slowest) = thread::scope(|scope| -> Result<_> {
        let slow: Vec<_> = (0..SLOW)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        trickle(port, &done)
                    }
                })
            })
            .collect();
        let honest = honest(port, until);
        done.store(true, Ordering::Relaxed);
        for attacker in slow {
            attacker.join().map_err(|_| anyhow::anyhow!("an attacker panicked"))?;
        }
        honest
    })?;
    let ended = proxy.count("requests_refused_total{reason=\"slow_body\"}")?;
    proxy.settle(0)?;
    println!("{answered} honest requests answered, slowest {slowest:.2} s; {ended} bodies ended");
    let name = format!("slow bodies, buffer {buffer}");
    targets.push(Target::at_least(format!("{name}: bodies ended"), ended as f64, 1.0));
    targets.push(Target::at_most(format!("{name}: seconds for a request"), slowest, WAIT_MAX));
    let left = proxy.left(0)? as f64;
    targets.push(Target::at_most(format!("{name}: tunnels, places, bytes left"), left, 0.0));
    Ok(json!({ "what": name, "answered": answered, "slowest_seconds": slowest, "ended": ended }))
}

/// Requests of a well-behaved client, one after another: how many were answered, and the longest time.
fn honest(port: u16, until: Instant) -> Result<(u64, f64)> {
    let (mut answered, mut slowest) = (0, 0.0_f64);
    while answered == 0 || Instant::now() < until {
        let begun = Instant::now();
        let mut stream = connect(port)?;
        stream.write_all(HONEST)?;
        ensure!(head(&mut stream)?.starts_with(b"HTTP/1.1 404 "), "an honest request was refused");
        answered += 1;
        slowest = slowest.max(begun.elapsed().as_secs_f64());
    }
    Ok((answered, slowest))
}

/// A body that grows by a byte each tenth of a second, until the proxy ends it.
fn trickle(port: u16, done: &AtomicBool) {
    let Ok(mut stream) = connect(port) else { return thread::sleep(Duration::from_millis(100)) };
    let is_ended = |stream: &mut TcpStream| {
        let _ = stream.set_nonblocking(true);
        let ended = stream.read(&mut [0; 256]).is_ok();
        let _ = stream.set_nonblocking(false);
        ended
    };
    if stream.write_all(SLOW_HEAD).is_err() {
        return;
    }
    while !done.load(Ordering::Relaxed) {
        if stream.write_all(b"1\r\nx\r\n").is_err() || is_ended(&mut stream) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

// ---- half-closed tunnels ----

fn half_closed(
    bench: &Context,
    tunnels: usize,
    unread: usize,
    targets: &mut Vec<Target>,
) -> Result<Value> {
    println!("\n=== siege of the proxy: {tunnels} half-closed tunnels with {unread} B unread");
    let proxy = Proxy::start(bench)?;
    let mut held = Vec::new();
    for _ in 0..tunnels {
        let mut client = handshake(proxy.port, "/given")?;
        let upstream = proxy.upstream.given()?;
        ensure!(head(&mut client)?.starts_with(b"HTTP/1.1 101 "), "no tunnel");
        client.shutdown(Shutdown::Write)?;
        pour(&upstream, unread)?;
        // The upstream ends; what it sent stays unread.
        upstream.shutdown(Shutdown::Both)?;
        held.push((client, upstream));
    }
    thread::sleep(Duration::from_millis(200));
    let (pid, begun) = (proxy.peer.pid(), Instant::now());
    let (turns, cpu) = (proxy.count("turns_total")?, proc::cpu_seconds(pid)?);
    thread::sleep(COUNTED);
    let seconds = begun.elapsed().as_secs_f64();
    let turns = (proxy.count("turns_total")? - turns) as f64 / seconds;
    let cpu = (proc::cpu_seconds(pid)? - cpu) / seconds;
    println!("{turns:.0} turns and {cpu:.3} CPU seconds a second");
    drop(held);
    proxy.settle(0)?;
    let left = proxy.left(0)? as f64;
    let name = format!("half-closed tunnels with {unread} B unread");
    targets.push(Target::at_most(format!("{name}: turns a second"), turns, SPINS));
    targets.push(Target::at_most(format!("{name}: tunnels, places, bytes left"), left, 0.0));
    Ok(json!({ "what": name, "tunnels": tunnels, "turns_per_second": turns, "cores": cpu }))
}

/// Sends so much, or as much as is taken.
fn pour(mut stream: &TcpStream, bytes: usize) -> Result<()> {
    stream.set_nonblocking(true)?;
    let (piece, mut left, mut refused) = (vec![b'd'; 64 << 10], bytes, 0);
    while left > 0 && refused < 5 {
        match stream.write(piece.get(..left).unwrap_or(&piece)) {
            Ok(taken) => (left, refused) = (left - taken, 0),
            Err(_) => {
                refused += 1;
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
    Ok(())
}

// ---- logs that nobody reads ----

fn noisy_log(bench: &Context, count: usize, targets: &mut Vec<Target>) -> Result<Value> {
    println!("\n=== siege of the proxy: {count} requests logged to a FIFO that nobody reads");
    let fifo = Scratch::new("access-log.fifo");
    let made = Command::new("mkfifo").arg(&fifo.0).status().context("cannot start mkfifo")?;
    ensure!(made.success(), "no FIFO");
    let upstream = Upstream::start()?;
    let address = format!("127.0.0.1:{}", upstream.port);
    let flags = ["--upstream", &address, "--access-log", fifo.text()?];
    let (reader, writer) = pipe()?;
    let proxy = Proxy::start_with(bench, upstream, &flags, Stdio::from(writer))?;
    drop(reader);
    let pid = proxy.peer.pid();
    let mut slowest = honest_many(proxy.port, 100)?;
    let before = proc::rss_bytes(pid)?;
    slowest = slowest.max(honest_many(proxy.port, count)?);
    let grown = proc::rss_bytes(pid)?.saturating_sub(before) as f64;
    let dropped = proxy.count("access_log_dropped_total")? as f64;
    println!("{dropped} lines dropped, {grown} B more resident, slowest request {slowest:.3} s");
    let name = "unread access log";
    let least = count.saturating_sub(LINES_MAX + LINES_WRITTEN) as f64;
    targets.push(Target::at_least(format!("{name}: dropped lines counted"), dropped, least));
    targets.push(Target::at_most(format!("{name}: resident bytes more"), grown, LINES_BYTES));
    targets.push(Target::at_most(format!("{name}: seconds for a request"), slowest, WAIT_MAX));
    Ok(json!({ "what": name, "requests": count, "dropped": dropped, "resident_bytes": grown,
               "slowest_seconds": slowest }))
}

/// So many requests: the longest time of one.
fn honest_many(port: u16, count: usize) -> Result<f64> {
    let mut slowest = 0.0_f64;
    for _ in 0..count {
        slowest = slowest.max(honest(port, Instant::now())?.1);
    }
    Ok(slowest)
}

/// A file in the folder for temporary ones, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("standfast-siege-{}-{name}", std::process::id())))
    }

    fn text(&self) -> Result<&str> {
        Path::to_str(&self.0).context("the path of temporary files is not UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
