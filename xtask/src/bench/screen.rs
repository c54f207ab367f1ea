//! CPU of the live screen: `load` echoes at one rate on a terminal of `script` (util-linux), in turn with
//! the screen and with rows of text.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::Context;
use super::proc;
use super::report::{self, Target};
use super::rounds::{median, shuffled};
use super::server::Server;

const SOCKETS: usize = 100;
const MESSAGES_PER_SECOND: u32 = 20_000;
const SECONDS: f64 = 15.0;
/// CPU of drawing ÷ CPU of the whole generator without it.
const SHARE_MOST: f64 = 0.02;
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Switches a terminal to its alternate screen.
const ALTERNATE_SCREEN: &str = "\x1b[?1049h";

const LIVE: &str = "live";
const PLAIN: &str = "plain";

/// CPU seconds of the generator in one run.
#[derive(Clone, Copy, Default, Serialize)]
struct Cpu {
    whole: f64,
    /// CPU of its main thread, which draws; the workers, which send and receive, are other threads.
    main_thread: f64,
}

/// Measures the generator's CPU in both modes. Returns whether the target was met.
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
        for mode in shuffled(&[LIVE, PLAIN]) {
            let cpu = once(bench, &server, sockets, seconds, mode == PLAIN)?;
            let Cpu { whole, main_thread } = cpu;
            println!(
                "round {number}  {mode:<6} {whole:.3} CPU seconds, {main_thread:.4} of the main thread"
            );
            round.insert(mode, cpu);
        }
        rounds.push(round);
    }
    let whole = median(rounds.iter().map(|round| round[PLAIN].whole).collect());
    let drawing =
        rounds.iter().map(|round| round[LIVE].main_thread - round[PLAIN].main_thread).collect();
    let drawing = median(drawing);
    let ratio = median(rounds.iter().map(|round| round[LIVE].whole / round[PLAIN].whole).collect());
    println!("\ndrawing took {drawing:.4} s of {whole:.3} s; whole processes differ by {ratio:.3}");
    // Other load on the machine affects the threads that send much more than the one that draws.
    let targets =
        [Target::at_most("CPU of drawing ÷ CPU of the generator", drawing / whole, SHARE_MOST)];
    report::finish(
        &bench.out,
        "screen",
        json!({ "sockets": sockets, "messages_per_second": MESSAGES_PER_SECOND,
                "seconds": seconds, "pairs": bench.pairs, "terminal": "80x24" }),
        json!({ "cpu_seconds": rounds,
                "medians": { "whole_plain": whole, "drawing": drawing, "whole_ratio": ratio } }),
        &targets,
    )
}

/// One run of `load` on a terminal.
fn once(
    bench: &Context,
    server: &Server,
    sockets: usize,
    seconds: f64,
    plain: bool,
) -> Result<Cpu> {
    let load = format!(
        "exec {} load ws://127.0.0.1:{}/echo --connections {sockets} --rate {MESSAGES_PER_SECOND} \
         --duration {seconds}s{}",
        bench.tools.standfast().display(),
        server.port(),
        if plain { " --plain" } else { "" }
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &load, "/dev/null"]);
    script.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    script.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut script = script.spawn().context("cannot start script of util-linux")?;
    let mut stdout = script.stdout.take().context("no pipe")?;
    let drawn = std::thread::spawn(move || {
        let mut drawn = Vec::new();
        stdout.read_to_end(&mut drawn).map(|_| String::from_utf8_lossy(&drawn).into_owned())
    });
    let mut last = Cpu::default();
    while script.try_wait()?.is_none() {
        if let Some(cpu) = cpu_of_child(script.id()) {
            // The CPU of threads that have ended is missing.
            last.whole = last.whole.max(cpu.whole);
            last.main_thread = last.main_thread.max(cpu.main_thread);
        }
        std::thread::sleep(SAMPLE_EVERY);
    }
    let drawn = drawn.join().ok().context("the reader panicked")??;
    ensure!(drawn.contains(ALTERNATE_SCREEN) != plain, "the wrong output was drawn:\n{drawn}");
    ensure!(last.whole > 0.0, "the CPU of the generator was not sampled:\n{drawn}");
    Ok(last)
}

/// CPU of the only child of `parent`, while it runs.
fn cpu_of_child(parent: u32) -> Option<Cpu> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    let main = fs::read_to_string(format!("/proc/{child}/task/{child}/schedstat")).ok()?;
    let nanoseconds: f64 = main.split_whitespace().next()?.parse().ok()?;
    let whole = proc::cpu_seconds(child).ok()?;
    Some(Cpu { whole, main_thread: nanoseconds / 1e9 })
}
