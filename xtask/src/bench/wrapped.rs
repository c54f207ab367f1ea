//! Echo through a layer between frames and sockets: compressed JSON of 1 KiB, or TLS. Messages that a
//! server echoes per second of its own CPU, and memory of idle TLS sockets. The client is
//! `standfast load` for all servers.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::peer::{Core, pinning};
use super::report::{self, Target};
use super::rounds::{Figures, Rounds, median};
use super::server::{Kind, Server};
use crate::{cert, step};

const SOCKETS: usize = 100;
const SECONDS: f64 = 3.0;
const FIGURE: &str = "messages/cpu-s";
const DOCUMENT_BYTES: usize = 1024;
/// Idle sockets, and the memory limit of a process with so many.
const IDLE_SOCKETS: u64 = 15_000;
const IDLE_BYTES: u64 = (32 << 20) + IDLE_SOCKETS * 4096;

/// The layer under test.
struct Layer {
    name: &'static str,
    message: String,
    scheme: &'static str,
    ours: Vec<String>,
    buns: Vec<String>,
    load: Vec<String>,
}

/// Compressed echo. Returns whether the targets were met.
pub(super) fn deflate(bench: &Context) -> Result<bool> {
    let layer = Layer {
        name: "deflate",
        message: document(),
        scheme: "ws",
        ours: Vec::new(),
        buns: strings(&["0", "deflate"]),
        load: strings(&["--compression", "shared"]),
    };
    let (rounds, targets) = compare(bench, &layer)?;
    finish(bench, &layer, rounds.json(), &targets)
}

/// Echo over TLS and the memory of idle sockets. Returns whether the targets were met.
pub(super) fn tls(bench: &Context) -> Result<bool> {
    let folder = certificates()?;
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (certificate, key) = (file("server.pem"), file("server.key"));
    let layer = Layer {
        name: "tls",
        message: "twenty bytes of text".into(),
        scheme: "wss",
        ours: strings(&["--tls-cert", &certificate, "--tls-key", &key]),
        buns: strings(&["0", "tls", &certificate, &key]),
        load: strings(&["--ca", &file("ca.pem")]),
    };
    let (rounds, mut targets) = compare(bench, &layer)?;
    let held = idle(bench, &layer)?;
    println!("\n{IDLE_SOCKETS} idle sockets: {held} bytes resident, {IDLE_BYTES} allowed");
    targets.push(Target::at_most(
        "memory of idle sockets ÷ allowed",
        held as f64 / IDLE_BYTES as f64,
        1.0,
    ));
    let results =
        json!({ "echo": rounds.json(), "idle": { "sockets": IDLE_SOCKETS, "rss_bytes": held } });
    finish(bench, &layer, results, &targets)
}

fn finish(bench: &Context, layer: &Layer, results: Value, targets: &[Target]) -> Result<bool> {
    let settings = json!({ "sockets": bench.connections.unwrap_or(SOCKETS), "workers": 1,
                           "bytes": layer.message.len(), "seconds": bench.seconds.unwrap_or(SECONDS) });
    report::finish(&bench.out, layer.name, settings, results, targets)
}

fn compare(bench: &Context, layer: &Layer) -> Result<(Rounds<Kind>, Vec<Target>)> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let (name, bytes) = (layer.name, layer.message.len());
    println!("\n=== {name}: {sockets} sockets, {bytes} bytes, one worker, {seconds} s each");
    let servers = bench.servers(&[Kind::Standfast, Kind::Control, Kind::Bun]);
    let rounds =
        Rounds::run(&servers, bench.pairs, |kind| once(bench, layer, kind, sockets, seconds))?;
    rounds.print(&[FIGURE, "messages/s"]);
    let mut targets = Vec::new();
    let ratio = |other| median(rounds.ratios(Kind::Standfast, other, FIGURE));
    if rounds.have(Kind::Standfast, Kind::Bun) {
        targets.push(Target::at_least("messages per CPU, ours ÷ Bun's", ratio(Kind::Bun), 1.0));
    }
    if rounds.have(Kind::Standfast, Kind::Control) {
        println!("\ncontrol: ours ÷ ours again = {:.3}", ratio(Kind::Control));
    }
    Ok((rounds, targets))
}

fn once(
    bench: &Context,
    layer: &Layer,
    kind: Kind,
    sockets: usize,
    seconds: f64,
) -> Result<Figures> {
    let more = if kind.is_ours() { &layer.ours } else { &layer.buns };
    let server = Server::start_with(kind, &bench.tools, more)?;
    let echoes = |seconds: f64| {
        let (sockets, time) = (sockets.to_string(), format!("{seconds}s"));
        let echo = [
            "--connections",
            &sockets,
            "--message",
            &layer.message,
            "--duration",
            &time,
            "--timeout",
            "5s",
        ];
        load(bench, layer, &server, &echo)
    };
    echoes(1.0)?; // Long enough for a JIT to have compiled the path.
    let before = server.cpu_seconds()?;
    let result = echoes(seconds)?;
    let cpu = server.cpu_seconds()? - before;
    let messages = result["echo"]["received"].as_f64().context("no echo.received")?;
    Ok(Figures::from([
        (FIGURE, messages / cpu),
        ("messages/s", messages / seconds),
        ("cpu share", cpu / seconds),
    ]))
}

/// Resident bytes of the whole server process while it holds silent sockets.
fn idle(bench: &Context, layer: &Layer) -> Result<u64> {
    let flags: Vec<&str> = layer.ours.iter().map(String::as_str).collect();
    let server = Server::start_ours(&bench.tools, &flags)?;
    let (pid, sockets) = (server.pid().to_string(), IDLE_SOCKETS.to_string());
    let hold = ["--connections", &sockets, "--hold", "3s", "--watch-pid", &pid];
    let result = load(bench, layer, &server, &hold)?;
    ensure!(result["connections"]["open"] == IDLE_SOCKETS, "not all were open");
    result["watched"]["rss_bytes"].as_u64().context("no watched.rss_bytes")
}

/// One run of `load`. Returns its JSON.
fn load(bench: &Context, layer: &Layer, server: &Server, flags: &[&str]) -> Result<Value> {
    let url = format!("{}://127.0.0.1:{}/echo", layer.scheme, server.port());
    let mut words = pinning(Core::Client);
    words.push(bench.tools.standfast().into());
    words.extend(["load", &url, "--json", "-"].map(Into::into));
    words.extend(layer.load.iter().map(Into::into));
    words.extend(flags.iter().map(Into::into));
    let (program, args) = words.split_first().context("nothing to start")?;
    let output = Command::new(program).args(args).output().context("cannot start load")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "load fell short: {errors}");
    serde_json::from_slice(&output.stdout).context("load printed something other than JSON")
}

/// A folder with a CA and a server certificate.
fn certificates() -> Result<PathBuf> {
    let folder = step::target_folder().join("cert");
    cert::write_all(&folder, &[])?;
    Ok(folder)
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// Orders of a shop: repeated names, different values.
pub(super) fn document() -> String {
    let mut text = String::from("{\"orders\":[");
    for number in 0_u32.. {
        let (price, seed) = (number * 7919 % 100_000, number.wrapping_mul(2_654_435_761));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{{\"id\":{number},\"token\":\"{seed:08x}\",\"price\":{price},\"state\":\"open\"}},"
        );
        if text.len() > DOCUMENT_BYTES - 100 {
            break;
        }
    }
    text.pop();
    let pad = DOCUMENT_BYTES - text.len() - "],\"note\":\"\"}".len();
    let words = "the quick brown fox ".repeat(5);
    let _ = write!(text, "],\"note\":\"{}\"}}", words.get(..pad).unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn document_is_json_of_the_configured_length() {
        let text = super::document();
        assert_eq!(text.len(), super::DOCUMENT_BYTES);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    }
}
