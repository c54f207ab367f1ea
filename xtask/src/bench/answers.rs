//! Answers: latency of `/health` and of the admin listener during a connection storm and a broadcast.
//!
//! One thread for each path sends a request every few milliseconds over a keep-alive connection, as a
//! health checker or a scraper does. No process is pinned: the clients compete for the cores too.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::json;

use super::Context;
use super::report::{self, Target};
use super::server::Server;

const SOCKETS: usize = 10_000;
const PATHS: [&str; 2] = ["/health", "/api/stats"];
const EVERY: Duration = Duration::from_millis(5);
const LIMIT_MS: f64 = 50.0;
const PUBLISH: &str = "publish 300 100";

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    println!(
        "\n=== answers: {} storms of {sockets} sockets, then a broadcast to them",
        bench.pairs
    );
    let server = Server::start_ours(&bench.tools, &[])?;
    let admin = server.admin().context("the ready line names no admin")?;
    let ports = [server.port(), admin];
    let mut crowd = None;
    let storm = while_probing(ports, || {
        for _ in 0..bench.pairs {
            drop(crowd.take()); // the last storm's sockets are closed before the next begins
            let mut next = server.crowd(&bench.tools, sockets, "storm")?;
            next.receive(Duration::from_secs(90))?;
            crowd = Some(next);
        }
        Ok(())
    })?;
    let mut publisher = server.publisher(&bench.tools, 32)?;
    let broadcast =
        while_probing(ports, || publisher.request(PUBLISH, Duration::from_secs(60)).map(drop))?;

    let mut targets = Vec::new();
    let mut results = Vec::new();
    for (phase, latencies) in [("a storm", storm), ("a broadcast", broadcast)] {
        for (path, mut ms) in PATHS.iter().zip(latencies) {
            ms.sort_by(f64::total_cmp);
            let p99 = ms.get(ms.len() * 99 / 100).copied().context("no response was received")?;
            targets.push(Target::at_most(format!("{path} in {phase}, p99 ms"), p99, LIMIT_MS));
            results.push(json!({ "path": path, "during": phase, "asked": ms.len(),
                                 "p50_ms": ms.get(ms.len() / 2), "p99_ms": p99, "max_ms": ms.last() }));
        }
    }
    let settings = json!({ "sockets": sockets, "storms": bench.pairs, "broadcast": PUBLISH });
    report::finish(&bench.out, "answers", settings, json!(results), &targets)
}

/// Sends requests to each path on its port until `work` is done. Returns the latencies of each path, in
/// milliseconds.
fn while_probing(ports: [u16; 2], work: impl FnOnce() -> Result<()>) -> Result<[Vec<f64>; 2]> {
    let stop = Arc::new(AtomicBool::new(false));
    let start = |index: usize| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || probe(ports[index], PATHS[index], &stop))
    };
    let probes = [start(0), start(1)];
    let done = work();
    stop.store(true, Ordering::Relaxed);
    let [health, admin] = probes.map(finish);
    done?;
    Ok([health?, admin?])
}

fn finish(probe: JoinHandle<Result<Vec<(Instant, f64)>>>) -> Result<Vec<f64>> {
    let latencies = probe.join().map_err(|_| anyhow!("a probe panicked"))??;
    Ok(latencies.into_iter().map(|(_, ms)| ms).collect())
}

/// Latencies of `path` in milliseconds, until `stop`, each with when it was requested.
pub(super) fn probe(port: u16, path: &str, stop: &AtomicBool) -> Result<Vec<(Instant, f64)>> {
    let mut stream = connect(port)?;
    let mut latencies = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let keep = get(&mut stream, path).with_context(|| format!("requesting {path}"))?;
        latencies.push((started, started.elapsed().as_secs_f64() * 1e3));
        if !keep {
            stream = connect(port)?;
        }
        std::thread::sleep(EVERY);
    }
    Ok(latencies)
}

fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

/// Sends one request and reads the complete response, which must be 200. Returns whether the
/// connection is kept.
fn get(stream: &mut TcpStream, path: &str) -> Result<bool> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 16 * 1024];
    loop {
        let length = stream.read(&mut piece)?;
        ensure!(length > 0, "the connection ended within a response");
        answer.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        ensure!(head.starts_with("http/1.1 200"), "unexpected status: {head}");
        let declared = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let declared: usize = declared.context("no content-length")?.trim().parse()?;
        if body.len() >= declared {
            return Ok(!head.contains("connection: close"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn response_is_read_completely_and_must_be_200() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for pieces in [
                ["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", "cd"],
                ["HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-", "length: 0\r\n\r\n"],
                ["HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n", "\r\n"],
            ] {
                assert_ne!(stream.read(&mut [0; 1024]).unwrap(), 0);
                for piece in pieces {
                    stream.write_all(piece.as_bytes()).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        let mut stream = connect(port).unwrap();
        assert!(get(&mut stream, "/health").unwrap());
        assert!(!get(&mut stream, "/health").unwrap());
        assert!(get(&mut stream, "/health").is_err());
        server.join().unwrap();
    }
}
