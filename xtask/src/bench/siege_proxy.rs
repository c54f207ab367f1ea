//! The siege of the proxy: many handshakes that upstreams refuse in every way, many resets on either
//! side, and floods towards peers that do not read; then those of [`siege_proxy_holders`]. Measures the proxy's memory during the attack, what
//! remains after it, and the latency of a bystander: a well-behaved client.
//!
//! Clients and upstreams are threads of this process.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::peer::{Core, Peer, words};
use super::report::{self, Target};
use super::siege::{
    ECHO, LEFT_BYTES, MESSAGE, PATIENCE, connect, descriptors, head, raise_descriptors, sample,
    watch_memory, websocket, while_beating,
};
use super::{Context, proc, siege_proxy_holders};

const CLIENTS: usize = 100_000;
/// Share of a warm-up, so that one-time allocations are done when the measurement begins.
const FIRST_SHARE: usize = 10;
const THREADS: usize = 4;
/// Tunnels flooded at a time, half of them towards the upstream.
const FLOODED: usize = 100;
const FLOOD_BYTES: [usize; 4] = [128, 4 * 1024, 64 * 1024, 1 << 20];
/// Bytes that may be buffered for a peer that does not read: one read from the other side.
const WAITING_BYTES: usize = 64 * 1024;
/// Failed writes, a few milliseconds apart, after which a tunnel counts as full.
const REFUSALS: u32 = 20;
const ACCEPT: &str = "HTTP/1.1 101 Y\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// How upstreams refuse: path, what the client receives, what the upstream sends.
const REFUSED: [(&str, &[u8], &str); 4] = [
    ("/404", b"HTTP/1.1 404 ", "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno"),
    ("/503", b"HTTP/1.1 503 ", "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"),
    ("/garbage", b"HTTP/1.1 502 ", "\x15\x03\x01 what?\r\n\r\n"),
    (
        "/wrong",
        b"HTTP/1.1 502 ",
        "HTTP/1.1 101 Y\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n",
    ),
];

/// Runs the attacks. Returns whether everything was released.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let count = bench.connections.unwrap_or(CLIENTS);
    raise_descriptors(4 * FLOODED + 100)?;
    let (mut targets, mut results) = (Vec::new(), Vec::new());
    println!("\n=== siege of the proxy: {count} refused handshakes");
    results.push(run_attack(bench, "refused handshakes", count, refused, &mut targets)?);
    println!("\n=== siege of the proxy: {count} resets, every second one by the upstream");
    results.push(run_attack(bench, "breaks", count, breaks, &mut targets)?);
    for bytes in FLOOD_BYTES {
        println!("\n=== siege of the proxy: {FLOODED} floods in pieces of {bytes} B");
        results.push(flood(bench, bytes, &mut targets)?);
    }
    results.extend(siege_proxy_holders::run(bench, count, &mut targets)?);
    let settings = json!({ "masses": count, "threads": THREADS, "flooded": FLOODED });
    report::finish(&bench.out, "proxy-siege", settings, json!(results), &targets)
}

/// The proxy and its upstream.
pub(super) struct Proxy {
    pub(super) peer: Peer,
    pub(super) port: u16,
    admin: u16,
    pub(super) upstream: Upstream,
}

impl Proxy {
    pub(super) fn start(bench: &Context) -> Result<Proxy> {
        let upstream = Upstream::start()?;
        let address = format!("127.0.0.1:{}", upstream.port);
        // Otherwise the proxy gives up peers that do not read.
        let flags = ["--upstream", &address, "--peer-timeout", "off"];
        Proxy::start_with(bench, upstream, &flags, Stdio::inherit())
    }

    /// Starts a proxy with these flags, which name the upstream, and its log to `log`.
    pub(super) fn start_with(
        bench: &Context,
        upstream: Upstream,
        flags: &[&str],
        log: Stdio,
    ) -> Result<Proxy> {
        let mut command = words([
            &bench.tools.standfast(),
            &"proxy",
            &"--listen",
            &"127.0.0.1:0",
            &"--admin",
            &"127.0.0.1:0",
            &"--ready-json",
        ]);
        command.extend(flags.iter().map(OsString::from));
        let name = "server standfast proxy";
        let mut peer = Peer::start_logging_to(name, Core::Any, &command, log)?;
        let ready = peer.receive(PATIENCE)?;
        let port = |key: &str| ready[key].as_str()?.rsplit(':').next()?.parse().ok();
        let port_of = |key| port(key).with_context(|| format!("the ready line names no {key}"));
        let (port, admin) = (port_of("listen")?, port_of("admin")?);
        Ok(Proxy { peer, port, admin, upstream })
    }

    pub(super) fn count(&self, name: &str) -> Result<u64> {
        sample(self.admin, &format!("standfast_{name}"))
    }

    /// Waits until only that many tunnels are open and no deadline of a closed one is left.
    pub(super) fn settle(&self, tunnels: u64) -> Result<()> {
        let begun = Instant::now();
        while self.count("connections")? > 2 * tunnels {
            ensure!(
                begun.elapsed() < PATIENCE,
                "the proxy keeps connections of disconnected clients"
            );
            thread::sleep(Duration::from_millis(100));
        }
        // The handshake timeout, by default.
        thread::sleep(Duration::from_secs(11));
        Ok(())
    }

    /// Everything that must be zero when only that many tunnels are open.
    pub(super) fn left(&self, tunnels: u64) -> Result<u64> {
        let open = self.count("tunnels")?.saturating_sub(tunnels);
        let address = format!("127.0.0.1:{}", self.upstream.port);
        let labels = format!("pool=\"default\",upstream=\"{address}\",address=\"{address}\"");
        let name = format!("upstream_tunnels{{{labels}}}");
        let places = self.count(&name)?.saturating_sub(tunnels);
        Ok(open + places + self.count("exchanges")? + self.count("queued_bytes")?)
    }

    /// Handshakes that ended in the ways that the attacks end.
    fn counted(&self) -> Result<u64> {
        let mut sum = self.count("declined_total")?;
        for name in [
            "requests_refused_total{reason=\"bad_answer\"}",
            "tunnels_ended_total{reason=\"client_reset\"}",
            "tunnels_ended_total{reason=\"upstream_reset\"}",
            "tunnels_ended_total{reason=\"client\"}",
            "tunnels_ended_total{reason=\"upstream\"}",
        ] {
            sum += self.count(name)?;
        }
        Ok(sum)
    }
}

type Send = fn(u16, usize) -> Result<()>;

fn run_attack(
    bench: &Context,
    name: &str,
    count: usize,
    send: Send,
    targets: &mut Vec<Target>,
) -> Result<Value> {
    let proxy = Proxy::start(bench)?;
    let mut bystander = websocket(proxy.port)?;
    let in_peace = while_beating(&mut bystander, || {
        thread::sleep(Duration::from_secs(2));
        Ok(())
    })?;
    send(proxy.port, count / FIRST_SHARE)?;
    proxy.settle(1)?;
    let (pid, port) = (proxy.peer.pid(), proxy.port);
    let before = (proc::rss_bytes(pid)?, descriptors(pid)?, proxy.counted()?);
    let (begun, mut most) = (Instant::now(), 0);
    let under_siege = while_beating(&mut bystander, || {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| watch_memory(pid, &done));
            let senders: Vec<_> =
                (0..THREADS).map(|_| scope.spawn(|| send(port, count / THREADS))).collect();
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
    proxy.settle(1)?;
    let after = (proc::rss_bytes(pid)?, descriptors(pid)?, proxy.counted()?);
    let sent = count / THREADS * THREADS;
    let (grown, counted) = (after.0.saturating_sub(before.0) as f64, (after.2 - before.2) as f64);
    println!("in {seconds:.1} s; resident {} before, peak {most}, {} after", before.0, after.0);
    println!("bystander: {in_peace} before, {under_siege} during the attack");
    let (open, open_before) = (after.1 as f64, before.1 as f64);
    let left = proxy.left(1)?;
    targets.push(Target::at_most(format!("{name}: resident bytes left"), grown, LEFT_BYTES));
    targets.push(Target::at_most(format!("{name}: descriptors after"), open, open_before));
    targets.push(Target::at_most(format!("{name}: tunnels, places, bytes left"), left as f64, 0.0));
    targets.push(Target::at_least(format!("{name}: counted"), counted, sent as f64));
    Ok(json!({ "what": name, "sent": sent, "seconds": seconds, "counted": counted,
               "rss_before": before.0, "rss_most": most, "rss_after": after.0,
               "descriptors_before": before.1, "descriptors_after": after.1, "left": left,
               "neighbour_in_peace": in_peace, "neighbour_under_siege": under_siege }))
}

// ---- the attackers ----

pub(super) fn handshake(port: u16, path: &str) -> Result<TcpStream> {
    let mut stream = connect(port)?;
    let request = super::siege::HANDSHAKE.replacen("/echo", path, 1);
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

fn refused(port: u16, count: usize) -> Result<()> {
    for number in 0..count {
        let (path, expected, _) = REFUSED[number % REFUSED.len()];
        let answer = head(&mut handshake(port, path)?)?;
        ensure!(answer.starts_with(expected), "{path}: {}", String::from_utf8_lossy(&answer));
    }
    Ok(())
}

/// Every second reset is the upstream's.
fn breaks(port: u16, count: usize) -> Result<()> {
    for number in 0..count {
        if number % 2 == 0 {
            let mut stream = handshake(port, "/hold")?;
            ensure!(head(&mut stream)?.starts_with(b"HTTP/1.1 101 "), "no tunnel");
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        } else {
            let mut stream = handshake(port, "/break")?;
            ensure!(head(&mut stream)?.starts_with(b"HTTP/1.1 101 "), "no tunnel");
            // The upstream resets when it receives this.
            stream.write_all(b"go")?;
            while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
        }
    }
    Ok(())
}

// ---- floods ----

fn flood(bench: &Context, bytes: usize, targets: &mut Vec<Target>) -> Result<Value> {
    let proxy = Proxy::start(bench)?;
    // One-time allocations are done when the measurement begins.
    drop(pour(&proxy, 1 << 20, 8)?);
    proxy.settle(0)?;
    let pid = proxy.peer.pid();
    let (before, open_before) = (proc::rss_bytes(pid)?, descriptors(pid)?);
    let held = pour(&proxy, bytes, FLOODED)?;
    let poured: usize = held.iter().map(|(_, _, poured)| poured).sum();
    let most = proc::rss_bytes(pid)?;
    let queued = proxy.count("queued_bytes")?;
    let tunnels = proxy.count("tunnels")?;
    drop(held);
    proxy.settle(0)?;
    let (after, open) = (proc::rss_bytes(pid)?, descriptors(pid)?);
    let grown = |now: u64| now.saturating_sub(before) as f64;
    println!("{poured} B sent, {queued} B buffered in the proxy; {} B more resident", grown(most));
    let (held_most, left) = (FLOODED * WAITING_BYTES, proxy.left(0)?);
    let name = format!("floods in pieces of {bytes} B");
    let most_allowed = held_most as f64 + LEFT_BYTES;
    targets.push(Target::at_most(
        format!("{name}: bytes that wait"),
        queued as f64,
        held_most as f64,
    ));
    targets.push(Target::at_most(
        format!("{name}: resident bytes more"),
        grown(most),
        most_allowed,
    ));
    targets.push(Target::at_least(
        format!("{name}: tunnels still open"),
        tunnels as f64,
        FLOODED as f64,
    ));
    targets.push(Target::at_most(format!("{name}: resident bytes left"), grown(after), LEFT_BYTES));
    targets.push(Target::at_most(
        format!("{name}: descriptors after"),
        open as f64,
        open_before as f64,
    ));
    targets.push(Target::at_most(format!("{name}: tunnels, places, bytes left"), left as f64, 0.0));
    Ok(json!({ "what": name, "poured": poured, "queued": queued, "tunnels": tunnels,
               "rss_before": before, "rss_most": most, "rss_after": after, "left": left }))
}

/// Opens that many tunnels; floods the even ones from the client and the odd ones from the upstream until
/// they accept no more.
fn pour(proxy: &Proxy, bytes: usize, count: usize) -> Result<Vec<(TcpStream, TcpStream, usize)>> {
    let piece = vec![b'f'; bytes];
    let mut held = Vec::new();
    for number in 0..count {
        let mut client = handshake(proxy.port, "/given")?;
        let upstream = proxy.upstream.given()?;
        ensure!(head(&mut client)?.starts_with(b"HTTP/1.1 101 "), "no tunnel");
        let mut writer = if number % 2 == 0 { &client } else { &upstream };
        writer.set_nonblocking(true)?;
        let (mut poured, mut refused) = (0, 0);
        while refused < REFUSALS {
            match writer.write(&piece) {
                Ok(taken) => (poured, refused) = (poured + taken, 0),
                Err(_) => {
                    refused += 1;
                    thread::sleep(Duration::from_millis(2));
                }
            }
            ensure!(poured < 64 << 20, "the proxy accepts data without a limit");
        }
        held.push((client, upstream, poured));
    }
    Ok(held)
}

// ---- the upstream ----

/// Responds by path, in a few threads.
pub(super) struct Upstream {
    pub(super) port: u16,
    given: Mutex<mpsc::Receiver<TcpStream>>,
}

impl Upstream {
    pub(super) fn start() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let (give, given) = mpsc::channel();
        let listener = Arc::new(listener);
        for _ in 0..2 * THREADS {
            let (listener, give) = (Arc::clone(&listener), give.clone());
            thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    // Resets are part of the attack.
                    let _ = serve(stream, &give);
                }
            });
        }
        Ok(Upstream { port, given: Mutex::new(given) })
    }

    /// The next connection to the path /given.
    pub(super) fn given(&self) -> Result<TcpStream> {
        let given = self.given.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        given.recv_timeout(PATIENCE).context("the upstream got no request")
    }
}

fn serve(mut stream: TcpStream, give: &mpsc::Sender<TcpStream>) -> Result<()> {
    stream.set_nodelay(true)?;
    let request = String::from_utf8_lossy(&head(&mut stream)?).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    if let Some((_, _, answer)) = REFUSED.iter().find(|(refused, ..)| *refused == path) {
        stream.write_all(answer.as_bytes())?;
        return Ok(());
    }
    if path == "/body" {
        while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
        return Ok(());
    }
    stream.write_all(ACCEPT.as_bytes())?;
    match path {
        "/break" => {
            stream.read_exact(&mut [0; 2])?;
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        }
        "/given" => give.send(stream)?,
        "/echo" => drop(thread::spawn(move || {
            let mut message = [0; MESSAGE.len()];
            while stream.read_exact(&mut message).is_ok() && stream.write_all(ECHO).is_ok() {}
        })),
        _ => while matches!(stream.read(&mut [0; 64]), Ok(1..)) {},
    }
    Ok(())
}
