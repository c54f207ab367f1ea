//! What the live screen costs the generator: `load` echoes at one rate on a terminal of `script`
//! (util-linux), with the screen and with rows of text, in turn.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::report::{self, Target};
use super::rounds::{median, shuffled};
use super::server::Server;

const SOCKETS: usize = 100;
const MESSAGES_PER_SECOND: u32 = 20_000;
const SECONDS: f64 = 15.0;
/// CPU with the screen ÷ CPU without.
const RATIO_MOST: f64 = 1.02;

const LIVE: &str = "live";
const PLAIN: &str = "plain";

/// CPU seconds of the generator, both ways.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!(
        "\n=== screen: {MESSAGES_PER_SECOND} messages/s over {sockets} sockets for {seconds} s"
    );
    let server = Server::start_ours(&bench.tools, &[])?;
    let mut rounds = Vec::new();
    for number in 1..=bench.pairs {
        let mut round = BTreeMap::new();
        for way in shuffled(&[LIVE, PLAIN]) {
            let cpu = once(bench, &server, sockets, seconds, way == PLAIN)?;
            println!("round {number}  {way:<6} {cpu:.3} CPU seconds");
            round.insert(way, cpu);
        }
        rounds.push(round);
    }
    let ratios: Vec<f64> = rounds.iter().map(|round| round[LIVE] / round[PLAIN]).collect();
    let of = |way: &str| median(rounds.iter().map(|round| round[way]).collect());
    let ratio = median(ratios.clone());
    println!("\nmedian: {LIVE} {:.3}, {PLAIN} {:.3} CPU seconds", of(LIVE), of(PLAIN));
    let targets = [Target::at_most("CPU with the screen ÷ without", ratio, RATIO_MOST)];
    report::finish(
        &bench.out,
        "screen",
        json!({ "sockets": sockets, "messages_per_second": MESSAGES_PER_SECOND,
                "seconds": seconds, "pairs": bench.pairs, "terminal": "80x24" }),
        json!({ "cpu_seconds": rounds, "ratios": ratios,
                "medians": { "live": of(LIVE), "plain": of(PLAIN), "ratio": ratio } }),
        &targets,
    )
}

/// CPU seconds of one run, as it says itself.
fn once(
    bench: &Context,
    server: &Server,
    sockets: usize,
    seconds: f64,
    plain: bool,
) -> Result<f64> {
    let json = std::env::temp_dir().join(format!("standfast-screen-{}.json", std::process::id()));
    let load = format!(
        "{} load ws://127.0.0.1:{}/echo --connections {sockets} --rate {MESSAGES_PER_SECOND} \
         --duration {seconds}s --json {}{}",
        bench.tools.standfast().display(),
        server.port(),
        json.display(),
        if plain { " --plain" } else { "" }
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &load, "/dev/null"]);
    script.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    let output = script.stdin(Stdio::null()).output().context("cannot start script")?;
    // A rate that was not quite reached on a busy machine is no reason to stop; no result is.
    let text = fs::read_to_string(&json)
        .with_context(|| format!("no result: {}", String::from_utf8_lossy(&output.stdout)))?;
    fs::remove_file(&json)?;
    let drew = String::from_utf8_lossy(&output.stdout).contains("\x1b[?1049h");
    ensure!(drew != plain, "the terminal was {}taken", if drew { "" } else { "not " });
    let document: Value = serde_json::from_str(&text)?;
    document["generator"]["cpu_seconds"].as_f64().context("the result has no CPU seconds")
}
