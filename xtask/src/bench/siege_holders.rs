//! Attackers on the server who hold something: padded identifiers, messages that are begun and never
//! completed while their senders ping, silent connections to the admin listener, and refused clients
//! whose log lines cannot be written.

use std::io::{Read, Write, pipe};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::report::Target;
use super::server::Server;
use super::siege::{
    ECHO, LEFT_BYTES, MESSAGE, THREADS, connect, descriptors, head, sample, sample_with, settle,
    watch_memory, websocket, while_beating,
};

/// The subscriptions of one attacker: many more than its limit allows, each nearly as long as an
/// identifier may be.
const IDENTIFIERS: usize = 100;
const PADDING: usize = 3_500;
/// What a client's subscriptions may take by default, and what of it is counted. The rest is what the
/// allocator adds.
const SUBSCRIPTION_BYTES: usize = 64 << 10;
/// The memory limit of the attack by begun messages, and the messages: few long ones and many short
/// ones, each together more than the limit.
const MEMORY_LIMIT: &str = "48MiB";
const BEGUN: [(usize, usize); 2] = [(24, 4 << 20), (1_600, 60 << 10)];
/// How long attackers keep it up, unless `--seconds` is given.
const SECONDS: f64 = 5.0;
/// Lines that wait while the log cannot be written.
const LOG_QUEUE_BYTES: f64 = (1 << 20) as f64;
const PING: u8 = 0x89;
const TEXT: u8 = 0x81;
const KEY: &str = "correct-horse";

/// Runs the attacks with numbers in proportion to `count` masses.
pub(super) fn run(bench: &Context, count: usize, targets: &mut Vec<Target>) -> Result<Vec<Value>> {
    let share = |of: usize| (count / of).max(4);
    let mut results = vec![padded_identifiers(bench, share(1_000), targets)?];
    for (most, bytes) in BEGUN {
        let attackers = if most > THREADS * 8 { share(60).min(most) } else { most };
        results.push(begun_messages(bench, (attackers, bytes), share(100), targets)?);
    }
    results.push(silent_admin(bench, share(50), targets)?);
    results.push(noisy_log(bench, share(10), targets)?);
    Ok(results)
}

fn seconds(bench: &Context) -> Duration {
    Duration::from_secs_f64(bench.seconds.unwrap_or(SECONDS))
}

// ---- padded identifiers ----

fn padded_identifiers(bench: &Context, clients: usize, targets: &mut Vec<Target>) -> Result<Value> {
    println!("\n=== siege: {clients} clients with {IDENTIFIERS} padded identifiers each");
    let server = Server::start_ours(&bench.tools, &[])?;
    let admin = server.admin().context("the ready line names no admin")?;
    let mut bystander = websocket(server.port())?;
    // As many, so that every worker has allocated what it needs once.
    drop(subscribers(server.port(), clients)?);
    settle(admin)?;
    let (before, open_before) = (server.rss_bytes()?, descriptors(server.pid())?);
    let mut held = Vec::new();
    let under_siege = while_beating(&mut bystander, || {
        held = subscribers(server.port(), clients)?;
        Ok(())
    })?;
    let counted = sample(admin, "standfast_subscription_bytes")? as f64 / clients as f64;
    let each = server.rss_bytes()?.saturating_sub(before) as f64 / clients as f64;
    drop(held);
    settle(admin)?;
    let left = server.rss_bytes()?.saturating_sub(before) as f64;
    println!("bystander: {under_siege} during the attack");
    let name = "padded identifiers";
    let most = SUBSCRIPTION_BYTES as f64;
    targets.push(Target::at_most(format!("{name}: bytes counted for a client"), counted, most));
    targets.push(Target::at_most(format!("{name}: resident bytes a client"), each, 3.0 * most));
    targets.push(Target::at_most(format!("{name}: resident bytes left"), left, LEFT_BYTES));
    let open = descriptors(server.pid())? as f64;
    let name_of = format!("{name}: descriptors after");
    targets.push(Target::at_most(name_of, open, open_before as f64));
    Ok(json!({ "what": name, "clients": clients, "counted_bytes": counted, "resident_bytes": each,
               "left_bytes": left, "neighbour_under_siege": under_siege }))
}

/// Clients of Action Cable, each with as many subscriptions as it gets.
fn subscribers(port: u16, clients: usize) -> Result<Vec<TcpStream>> {
    let mut held = Vec::with_capacity(clients);
    for client in 0..clients {
        let mut stream = handshake(port, "/cable")?;
        for number in 0..IDENTIFIERS {
            let pad = format!("{client}-{number}-{}", "x".repeat(PADDING));
            let identifier =
                json!({ "channel": "$pubsub", "stream_name": "siege", "pad": pad }).to_string();
            let command = json!({ "command": "subscribe", "identifier": identifier }).to_string();
            stream.write_all(&frame(TEXT, command.as_bytes()))?;
            // Welcome and pings come in between.
            while !String::from_utf8_lossy(&read_frame(&mut stream)?).contains("_subscription") {}
        }
        held.push(stream);
    }
    Ok(held)
}

// ---- begun messages ----

fn begun_messages(
    bench: &Context,
    (attackers, bytes): (usize, usize),
    idle: usize,
    targets: &mut Vec<Target>,
) -> Result<Value> {
    println!(
        "\n=== siege: {attackers} attackers with {bytes} B of a message, who ping; {idle} idle"
    );
    let flags = ["--memory-limit", MEMORY_LIMIT, "--max-message", "8MiB", "--idle-timeout", "off"];
    let server = Server::start_ours(&bench.tools, &flags)?;
    let admin = server.admin().context("the ready line names no admin")?;
    let mut bystander = websocket(server.port())?;
    let mut innocents = (0..idle).map(|_| websocket(server.port())).collect::<Result<Vec<_>>>()?;
    let (pid, port) = (server.pid(), server.port());
    let (until, begun) = (Instant::now() + seconds(bench), AtomicU64::new(0));
    let mut most = 0;
    let under_siege = while_beating(&mut bystander, || {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| watch_memory(pid, &done));
            let parts = (0..THREADS)
                .map(|part| attackers / THREADS + usize::from(part < attackers % THREADS));
            let senders: Vec<_> = parts
                .map(|part| {
                    let begun = &begun;
                    scope.spawn(move || keep_begun(port, (part, bytes), until, begun))
                })
                .collect();
            for sender in senders {
                sender.join().map_err(|_| anyhow::anyhow!("an attacker panicked"))?;
            }
            done.store(true, Ordering::Relaxed);
            most = watch.join().map_err(|_| anyhow::anyhow!("the watch panicked"))??;
            Ok(())
        })
    })?;
    let served = innocents.iter_mut().filter_map(|stream| echoes(stream).ok()).count();
    let shed = sample(admin, "standfast_shed_total")?;
    let begun = begun.into_inner();
    println!("{begun} begun, {shed} closed; {served} of {idle} idle clients served; peak {most} B");
    println!("bystander: {under_siege} during the attack");
    let name = format!("messages of {bytes} B, begun");
    targets.push(Target::at_least(
        format!("{name}: idle clients left"),
        served as f64,
        idle as f64,
    ));
    targets.push(Target::at_most(format!("{name}: closed, of begun"), shed as f64, begun as f64));
    drop(innocents);
    settle(admin)?;
    Ok(json!({ "what": name, "attackers": attackers, "idle": idle, "begun": begun, "shed": shed,
               "idle_served": served, "rss_most": most, "neighbour_under_siege": under_siege }))
}

/// Begins messages on so many connections, pings on each, and opens others for those that are closed.
fn keep_begun(port: u16, (count, bytes): (usize, usize), until: Instant, begun: &AtomicU64) {
    let mut held: Vec<TcpStream> = Vec::new();
    while Instant::now() < until {
        while held.len() < count && Instant::now() < until {
            let Ok(stream) = begin(port, bytes) else { break };
            begun.fetch_add(1, Ordering::Relaxed);
            held.push(stream);
        }
        held.retain_mut(|stream| stream.write_all(&frame(PING, b"still here")).is_ok());
        thread::sleep(Duration::from_millis(50));
    }
}

/// A WebSocket with a message that lacks its last byte.
fn begin(port: u16, bytes: usize) -> Result<TcpStream> {
    let mut stream = websocket(port)?;
    // A first fragment, so that control frames may follow.
    let first = frame(TEXT & 0x0F, &vec![b'm'; bytes]);
    stream.write_all(&first)?;
    Ok(stream)
}

fn echoes(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(MESSAGE)?;
    let mut echo = [0; ECHO.len()];
    stream.read_exact(&mut echo)?;
    ensure!(echo == ECHO, "something else was received");
    Ok(())
}

// ---- silent admin connections ----

fn silent_admin(bench: &Context, silent: usize, targets: &mut Vec<Target>) -> Result<Value> {
    println!("\n=== siege: {silent} silent connections to the admin listener");
    let server = Server::start_ours(&bench.tools, &["--admin-key", KEY])?;
    let admin = server.admin().context("the ready line names no admin")?;
    let mut bystander = websocket(server.port())?;
    let (mut published, mut failed, mut slowest) = (0, 0, Duration::ZERO);
    let mut held = Vec::new();
    let under_siege = while_beating(&mut bystander, || {
        for number in 0..silent {
            let mut stream = connect(admin)?;
            if number % 2 == 0 {
                stream.write_all(b"GET /api/stats HT")?;
            }
            held.push(stream);
            if number % 10 == 0 {
                let begun = Instant::now();
                let is_published = publish(admin).is_ok();
                (published, failed) =
                    (published + u64::from(is_published), failed + u64::from(!is_published));
                slowest = slowest.max(begun.elapsed());
            }
        }
        Ok(())
    })?;
    let open = sample_with(admin, "standfast_admin_connections", Some(KEY))?;
    println!(
        "{published} published, {failed} failed, slowest {slowest:?}; {open} connections open"
    );
    println!("bystander: {under_siege} during the attack");
    let name = "silent admin connections";
    targets.push(Target::at_most(format!("{name}: publications failed"), failed as f64, 0.0));
    targets.push(Target::at_most(format!("{name}: open"), open as f64, 2.0 * 512.0));
    let slowest = slowest.as_secs_f64();
    targets.push(Target::at_most(format!("{name}: seconds to publish"), slowest, 2.0));
    Ok(json!({ "what": name, "silent": silent, "published": published, "failed": failed,
               "slowest_seconds": slowest, "neighbour_under_siege": under_siege }))
}

fn publish(admin: u16) -> Result<()> {
    let body = r#"{"topic":"siege","data":"x"}"#;
    let mut stream = connect(admin)?;
    let length = body.len();
    let request = format!(
        "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
         Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    ensure!(head(&mut stream)?.starts_with(b"HTTP/1.1 200 "), "not published");
    Ok(())
}

// ---- a log that cannot be written ----

fn noisy_log(bench: &Context, count: usize, targets: &mut Vec<Target>) -> Result<Value> {
    println!("\n=== siege: {count} refused pages of other sites, logged to a closed pipe");
    let (reader, writer) = pipe()?;
    let server = Server::start_logging_to(&bench.tools, &[], Stdio::from(writer))?;
    drop(reader);
    let admin = server.admin().context("the ready line names no admin")?;
    let mut bystander = websocket(server.port())?;
    refused_pages(server.port(), count.div_ceil(10))?;
    settle(admin)?;
    let before = server.rss_bytes()?;
    let under_siege = while_beating(&mut bystander, || refused_pages(server.port(), count))?;
    settle(admin)?;
    let left = server.rss_bytes()?.saturating_sub(before) as f64;
    let refused = sample(admin, "standfast_origin_refused_total")? as f64;
    let errors = sample(admin, "standfast_log_errors_total")? as f64;
    println!("{refused} refused; {errors} failed writes of the log");
    println!("bystander: {under_siege} during the attack");
    let name = "closed log";
    targets.push(Target::at_least(format!("{name}: refused"), refused, count as f64));
    targets.push(Target::at_least(format!("{name}: failed writes counted"), errors, 1.0));
    let most = LEFT_BYTES + LOG_QUEUE_BYTES;
    targets.push(Target::at_most(format!("{name}: resident bytes left"), left, most));
    Ok(json!({ "what": name, "refused": refused, "log_errors": errors, "left_bytes": left,
               "neighbour_under_siege": under_siege }))
}

/// Handshakes with a long Origin of another site.
fn refused_pages(port: u16, count: usize) -> Result<()> {
    for number in 0..count {
        let origin = format!("Origin: https://{number}.{}.example\r\n\r\n", "o".repeat(8_000));
        let request = super::siege::HANDSHAKE.replacen("\r\n\r\n", &format!("\r\n{origin}"), 1);
        let mut stream = connect(port)?;
        stream.write_all(request.as_bytes())?;
        ensure!(head(&mut stream)?.starts_with(b"HTTP/1.1 403 "), "not refused");
    }
    Ok(())
}

// ---- frames ----

fn handshake(port: u16, path: &str) -> Result<TcpStream> {
    let mut stream = connect(port)?;
    stream.write_all(super::siege::HANDSHAKE.replacen("/echo", path, 1).as_bytes())?;
    // One byte at a time: frames may follow at once.
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    ensure!(answer.starts_with(b"HTTP/1.1 101 "), "no WebSocket");
    Ok(stream)
}

/// A frame with the mask 0.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..=125 => frame.push(0x80 | short as u8),
        medium @ 126..=0xFFFF => {
            frame.push(0x80 | 126);
            frame.extend((medium as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// The payload of the next frame.
fn read_frame(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut start = [0; 2];
    stream.read_exact(&mut start)?;
    let length = match start[1] & 0x7F {
        126 => {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            u64::from(u16::from_be_bytes(length))
        }
        127 => {
            let mut length = [0; 8];
            stream.read_exact(&mut length)?;
            u64::from_be_bytes(length)
        }
        short => u64::from(short),
    };
    ensure!(length <= 1 << 20, "a frame of {length} B");
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn frames_of_every_length_are_read_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = connect(listener.local_addr().unwrap().port()).unwrap();
        let (mut reader, _) = listener.accept().unwrap();
        for length in [0, 125, 126, 0xFFFF, 0x1_0000] {
            let payload = vec![b'x'; length];
            let mut sent = frame(TEXT, &payload);
            // As a server sends it: without a mask.
            sent[1] &= 0x7F;
            let mask = sent.len() - length - 4;
            sent.drain(mask..mask + 4);
            let writing = thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer
            });
            assert!(read_frame(&mut reader).unwrap() == payload, "{length}");
            writer = writing.join().unwrap();
        }
    }
}
