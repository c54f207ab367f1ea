//! The siege: attacks by many clients that are refused, that reset, and that never finish their request
//! heads; then those of [`siege_holders`]. Measures the server's memory during the attack, what remains after it, and the latency of a
//! bystander: a well-behaved client.
//!
//! The attackers are threads of this process and use all the CPU they get. The bystander's latency shows
//! what it is to share two cores with them; it is not a target.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::Context;
use super::proc;
use super::report::{self, Target};
use super::server::Server;
use super::siege_holders;

const CLIENTS: usize = 100_000;
/// Share of the attackers that send endless request heads, all at once.
const SLOWLORIS_SHARE: usize = 10;
/// Share of a warm-up, so that one-time allocations are done when the measurement begins.
const FIRST_SHARE: usize = 10;
pub(super) const THREADS: usize = 4;
/// Small enough to find a leak of ten bytes for each of 100,000 clients.
pub(super) const LEFT_BYTES: f64 = (1 << 20) as f64;
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
pub(super) const HANDSHAKE: &str = "GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const REFUSED: &str = "GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n";
const SLOW: &str = "GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ";
/// A text message with the mask 0, and its echo.
pub(super) const MESSAGE: &[u8] = b"\x81\x84\0\0\0\0beat";
pub(super) const ECHO: &[u8] = b"\x81\x04beat";

/// An attack on the server.
struct Attack {
    name: &'static str,
    count: usize,
    /// The label of the metric that counts each of them when it has ended.
    cause: &'static str,
    /// Sends that many to the port.
    send: fn(u16, usize) -> Result<()>,
}

/// Runs the attacks. Returns whether everything was released.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let count = bench.connections.unwrap_or(CLIENTS);
    raise_descriptors(count / SLOWLORIS_SHARE + 2_000)?;
    let attacks = [
        Attack { name: "refused handshakes", count, cause: "violation", send: refused },
        Attack { name: "resets", count, cause: "reset", send: resets },
        Attack {
            name: "slowloris heads",
            count: count / SLOWLORIS_SHARE,
            cause: "handshake_timeout",
            send: slowloris,
        },
    ];
    let (mut targets, mut results) = (Vec::new(), Vec::new());
    for attack in &attacks {
        println!("\n=== siege: {} {}", attack.count, attack.name);
        results.push(run_attack(bench, attack, &mut targets)?);
    }
    results.extend(siege_holders::run(bench, count, &mut targets)?);
    let settings = json!({ "masses": count, "threads": THREADS, "handshake_timeout_seconds": 10 });
    report::finish(&bench.out, "siege", settings, json!(results), &targets)
}

fn run_attack(bench: &Context, attack: &Attack, targets: &mut Vec<Target>) -> Result<Value> {
    let server = Server::start_ours(&bench.tools, &[])?;
    let admin = server.admin().context("the ready line names no admin")?;
    let mut bystander = websocket(server.port())?;
    let in_peace = while_beating(&mut bystander, || {
        thread::sleep(Duration::from_secs(2));
        Ok(())
    })?;
    (attack.send)(server.port(), attack.count / FIRST_SHARE)?;
    settle(admin)?;
    let before = (server.rss_bytes()?, descriptors(server.pid())?, closed(admin, attack.cause)?);
    let (pid, port, send) = (server.pid(), server.port(), attack.send);
    let (begun, mut most) = (Instant::now(), 0);
    let under_siege = while_beating(&mut bystander, || {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| watch_memory(pid, &done));
            let senders: Vec<_> =
                (0..THREADS).map(|_| scope.spawn(|| send(port, attack.count / THREADS))).collect();
            let sent: Vec<_> = senders.into_iter().map(thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::Relaxed);
            most = watch.join().map_err(|_| anyhow::anyhow!("the watch panicked"))??;
            for result in sent {
                result.map_err(|_| anyhow::anyhow!("a sender panicked"))??;
            }
            Ok(())
        })
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    settle(admin)?;
    let after = (server.rss_bytes()?, descriptors(server.pid())?, closed(admin, attack.cause)?);
    let left = after.0.saturating_sub(before.0) as f64;
    let sent = attack.count / THREADS * THREADS;
    let counted = (after.2 - before.2) as f64;
    let name = attack.name;
    println!("in {seconds:.1} s; resident {} before, peak {most}, {} after", before.0, after.0);
    println!("bystander: {in_peace} before, {under_siege} during the attack");
    targets.push(Target::at_most(format!("{name}: resident bytes left"), left, LEFT_BYTES));
    targets.push(Target::at_most(
        format!("{name}: descriptors after"),
        after.1 as f64,
        before.1 as f64,
    ));
    targets.push(Target::at_least(
        format!("{name}: counted as {}", attack.cause),
        counted,
        sent as f64,
    ));
    Ok(json!({ "what": name, "sent": sent, "seconds": seconds, "counted": counted,
               "rss_before": before.0, "rss_most": most, "rss_after": after.0,
               "descriptors_before": before.1, "descriptors_after": after.1,
               "neighbour_in_peace": in_peace, "neighbour_under_siege": under_siege }))
}

// ---- the attackers ----

fn refused(port: u16, count: usize) -> Result<()> {
    for _ in 0..count {
        let mut stream = connect(port)?;
        stream.write_all(REFUSED.as_bytes())?;
        ensure!(head(&mut stream)?.starts_with(b"HTTP/1.1 400 "), "not refused");
    }
    Ok(())
}

fn resets(port: u16, count: usize) -> Result<()> {
    for _ in 0..count {
        let stream = websocket(port)?;
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    }
    Ok(())
}

fn slowloris(port: u16, count: usize) -> Result<()> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connect(port)?;
        stream.write_all(SLOW.as_bytes())?;
        streams.push(stream);
    }
    for stream in &mut streams {
        stream.write_all(b"x")?;
    }
    for mut stream in streams {
        // The server closes it without a response, by RST if it has not read all of the request.
        ensure!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)), "a slow head got a response");
    }
    Ok(())
}

pub(super) fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

pub(super) fn websocket(port: u16) -> Result<TcpStream> {
    let mut stream = connect(port)?;
    stream.write_all(HANDSHAKE.as_bytes())?;
    ensure!(head(&mut stream)?.starts_with(b"HTTP/1.1 101 "), "no WebSocket");
    Ok(stream)
}

/// Reads the head of a response, and what arrived with it.
pub(super) fn head(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let got = stream.read(&mut piece)?;
        ensure!(got > 0, "the connection ended within a response");
        head.extend_from_slice(&piece[..got]);
    }
    Ok(head)
}

// ---- the bystander ----

/// Sends an echo each millisecond until `work` is done. Returns the latencies.
pub(super) fn while_beating(
    stream: &mut TcpStream,
    work: impl FnOnce() -> Result<()>,
) -> Result<Value> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let beats = scope.spawn(|| -> Result<Vec<f64>> {
            let (mut times, mut echo) = (Vec::new(), [0; ECHO.len()]);
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                stream.write_all(MESSAGE)?;
                stream.read_exact(&mut echo)?;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
                ensure!(echo == ECHO, "the bystander received something else");
                thread::sleep(Duration::from_millis(1));
            }
            Ok(times)
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let times = beats.join().map_err(|_| anyhow::anyhow!("the bystander panicked"))?;
        worked?;
        let mut times = times?;
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get((times.len() as f64 * share) as usize);
        Ok(json!({ "echoes": times.len(), "p50_ms": at(0.5), "p99_ms": at(0.99) }))
    })
}

// ---- what the server uses ----

/// Peak resident memory until `done`.
pub(super) fn watch_memory(pid: u32, done: &AtomicBool) -> Result<u64> {
    let mut most = 0;
    while !done.load(Ordering::Relaxed) {
        most = most.max(proc::rss_bytes(pid)?);
        thread::sleep(Duration::from_millis(50));
    }
    Ok(most)
}

/// Open descriptors in the tables of all threads.
pub(super) fn descriptors(pid: u32) -> Result<usize> {
    let mut open = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        open += std::fs::read_dir(task?.path().join("fd"))?.count();
    }
    Ok(open)
}

/// Waits until only the bystander is connected and no deadline of an attacker is left.
pub(super) fn settle(admin: u16) -> Result<()> {
    let begun = Instant::now();
    while sample(admin, "standfast_connections")? > 1 {
        ensure!(begun.elapsed() < PATIENCE, "the server keeps connections of disconnected clients");
        thread::sleep(Duration::from_millis(100));
    }
    // The handshake timeout, by default.
    thread::sleep(Duration::from_secs(11));
    Ok(())
}

fn closed(admin: u16, cause: &str) -> Result<u64> {
    sample(admin, &format!("standfast_closed_total{{cause=\"{cause}\"}}"))
}

/// One sample of the metrics.
pub(super) fn sample(admin: u16, name: &str) -> Result<u64> {
    sample_with(admin, name, None)
}

/// The same with the admin key.
pub(super) fn sample_with(admin: u16, name: &str, key: Option<&str>) -> Result<u64> {
    let mut stream = connect(admin)?;
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head =
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}\r\n");
    stream.write_all(head.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name} in the metrics"))?.trim().parse()?)
}

/// Raises the limit of this process, as the slow heads are all open at once.
pub(super) fn raise_descriptors(needed: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let enough = limit.maximum.is_none_or(|most| most >= needed as u64);
    ensure!(enough, "the hard limit of descriptors is below {needed}: ulimit -Hn");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn server_that_accepts_every_attacker_fails_the_checks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream.unwrap().write_all(b"HTTP/1.1 101 Y\r\n\r\n");
            }
        });
        assert!(refused(port, 1).is_err());
        assert!(slowloris(port, 1).is_err());
        assert!(resets(port, 3).is_ok());
    }
}
