//! Compressed echo: how many JSON messages of 1 KiB a server inflates, compresses and echoes per
//! second of its own CPU. The client is our `load`, for all servers alike.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::peer::{Core, pinning};
use super::report::{self, Target};
use super::rounds::{Figures, Rounds, median};
use super::server::{Kind, Server};

const SOCKETS: usize = 100;
const BYTES: usize = 1024;
const SECONDS: f64 = 3.0;
const FIGURE: &str = "messages/cpu-s";

/// Measures; whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!(
        "\n=== deflate: {sockets} sockets, {BYTES} bytes of JSON, one worker, {seconds} s each"
    );
    let servers = bench.servers(&[Kind::Standfast, Kind::Control, Kind::Bun]);
    let rounds = Rounds::run(&servers, bench.pairs, |kind| once(bench, kind, sockets, seconds))?;
    rounds.print(&[FIGURE, "messages/s"]);
    let mut targets = Vec::new();
    let ratio = |other| median(rounds.ratios(Kind::Standfast, other, FIGURE));
    if rounds.have(Kind::Standfast, Kind::Bun) {
        targets.push(Target::at_least("messages per CPU, ours ÷ Bun's", ratio(Kind::Bun), 1.0));
    }
    if rounds.have(Kind::Standfast, Kind::Control) {
        println!("\ncontrol: ours ÷ ours again = {:.3}", ratio(Kind::Control));
    }
    let settings = json!({ "sockets": sockets, "bytes": BYTES, "seconds": seconds, "workers": 1 });
    report::finish(&bench.out, "deflate", settings, rounds.json(), &targets)
}

fn once(bench: &Context, kind: Kind, sockets: usize, seconds: f64) -> Result<Figures> {
    let more: &[&str] = if kind.is_ours() { &[] } else { &["0", "deflate"] };
    let server = Server::start_with(kind, &bench.tools, more)?;
    echoes(bench, &server, sockets, 1.0)?; // Long enough for a JIT to have compiled the path.
    let cpu = server.cpu_seconds()?;
    let result = echoes(bench, &server, sockets, seconds)?;
    let cpu = server.cpu_seconds()? - cpu;
    let messages = result["echo"]["received"].as_f64().context("no echo.received")?;
    Ok(Figures::from([
        (FIGURE, messages / cpu),
        ("messages/s", messages / seconds),
        ("cpu share", cpu / seconds),
    ]))
}

fn echoes(bench: &Context, server: &Server, sockets: usize, seconds: f64) -> Result<Value> {
    let url = format!("ws://127.0.0.1:{}/echo", server.port());
    let mut words = pinning(Core::Client);
    words.push(bench.tools.standfast().into());
    words.extend(["load", &url, "--compression", "shared", "--json", "-"].map(Into::into));
    words.extend(["--connections", &sockets.to_string(), "--message", &document()].map(Into::into));
    words.extend(["--duration", &format!("{seconds}s"), "--timeout", "5s"].map(Into::into));
    let (program, args) = words.split_first().context("nothing to start")?;
    let output = Command::new(program).args(args).output().context("cannot start load")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "load fell short: {said}");
    serde_json::from_slice(&output.stdout).context("load said something else than JSON")
}

/// Orders of a shop, 1,024 bytes: names that come again and values that differ.
fn document() -> String {
    let mut text = String::from("{\"orders\":[");
    for number in 0_u32.. {
        let (price, seed) = (number * 7919 % 100_000, number.wrapping_mul(2_654_435_761));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{{\"id\":{number},\"token\":\"{seed:08x}\",\"price\":{price},\"state\":\"open\"}},"
        );
        if text.len() > BYTES - 100 {
            break;
        }
    }
    text.pop();
    let pad = BYTES - text.len() - "],\"note\":\"\"}".len();
    let _ = write!(
        text,
        "],\"note\":\"{}\"}}",
        "the quick brown fox ".repeat(5).get(..pad).unwrap_or_default()
    );
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_is_json_of_the_length_said() {
        let text = super::document();
        assert_eq!(text.len(), super::BYTES);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    }
}
