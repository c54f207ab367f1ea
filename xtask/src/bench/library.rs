//! The library's example `echo_server` beside `standfast serve --echo`, and beside servers on other libraries if their
//! executables are given (`--rival`): messages echoed per second of the server's CPU, and memory of an idle socket.
//!
//! A rival is called with `HOST:PORT` and echoes at `/echo`. All are bound to one core, and so have one worker if they
//! start one for each core.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::Context;
use super::peer::{Core, pinning, words};
use super::proc;
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::server::echo_client;
use crate::step;

const BYTES: usize = 100;
const SECONDS: f64 = 3.0;
const WARM_UP_SECONDS: f64 = 1.0;
const FEW: usize = 100;
const MANY: usize = 1_000;
/// Idle sockets, and those before them, which take pools and pages of the executable.
const IDLE: usize = 10_000;
const FIRST: usize = 1_000;
const BY_FEW: &str = "messages/cpu-s of 100";
const BY_MANY: &str = "messages/cpu-s of 1,000";
const IDLE_BYTES: &str = "bytes of an idle socket";
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Example,
    Serve,
    /// By its path.
    Rival(&'static str),
}

impl Contestant for Library {
    fn name(self) -> &'static str {
        match self {
            Library::Example => "echo_server",
            Library::Serve => "serve --echo",
            Library::Rival(path) => path.rsplit('/').next().unwrap_or(path),
        }
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let (seconds, idle) = (bench.seconds.unwrap_or(SECONDS), bench.connections.unwrap_or(IDLE));
    println!("\n=== library: {FEW} and {MANY} sockets, {BYTES} bytes, one core, {seconds} s each");
    let example = example(bench)?;
    let rivals = bench.rivals.iter().map(|path| {
        // As long as this program.
        Library::Rival(Box::leak(path.to_string_lossy().into_owned().into_boxed_str()))
    });
    let all: Vec<_> = [Library::Example, Library::Serve].into_iter().chain(rivals).collect();
    let rounds = Rounds::run(&all, bench.pairs, |kind| once(bench, &example, kind, seconds, idle))?;
    rounds.print(&[BY_FEW, BY_MANY, IDLE_BYTES]);
    let mut targets = Vec::new();
    for other in &all[1..] {
        let least = if *other == Library::Serve { 0.98 } else { 1.5 };
        for figure in [BY_FEW, BY_MANY] {
            let ratio = median(rounds.ratios(Library::Example, *other, figure));
            targets.push(Target::at_least(format!("{figure} ÷ {}'s", other.name()), ratio, least));
        }
    }
    // Its sockets have no data of their own: 64 bytes are promised, and memory grows in steps.
    targets.push(Target::at_most(IDLE_BYTES, rounds.median(Library::Example, IDLE_BYTES), 72.0));
    let settings = json!({ "sockets": [FEW, MANY], "bytes": BYTES, "seconds": seconds,
                           "warm_up_seconds": WARM_UP_SECONDS, "idle": idle, "idle_first": FIRST });
    report::finish(&bench.out, "library", settings, rounds.json(), &targets)
}

/// The example of the executable's build.
fn example(bench: &Context) -> Result<PathBuf> {
    let standfast = bench.tools.standfast();
    if standfast == step::release_executable() {
        let build = ["build", "--release", "--workspace", "--example", "echo_server"];
        ensure!(step::cargo(&build).status()?.success(), "the example cannot be built");
    }
    let folder = standfast.parent().context("the executable is in a folder")?;
    Ok(folder.join("examples/echo_server"))
}

fn once(
    bench: &Context,
    example: &Path,
    kind: Library,
    seconds: f64,
    idle: usize,
) -> Result<Figures> {
    let mut figures = Figures::new();
    for (sockets, figure) in [(FEW, BY_FEW), (MANY, BY_MANY)] {
        let server = Echo::start(bench, example, kind)?;
        let mut client = echo_client(&bench.tools, server.port, sockets, BYTES)?;
        let mut timed = |seconds: f64| {
            client.request(&format!("run {seconds}"), PATIENCE + Duration::from_secs_f64(seconds))
        };
        timed(WARM_UP_SECONDS)?;
        let before = proc::cpu_seconds(server.child.id())?;
        let messages = timed(seconds)?["messages"].as_f64().context("no messages")?;
        figures.insert(figure, messages / (proc::cpu_seconds(server.child.id())? - before));
    }
    let server = Echo::start(bench, example, kind)?;
    let _first = echo_client(&bench.tools, server.port, FIRST, BYTES)?;
    let before = proc::rss_bytes(server.child.id())?;
    let _others = echo_client(&bench.tools, server.port, idle, BYTES)?;
    let grown = proc::rss_bytes(server.child.id())?.saturating_sub(before);
    figures.insert(IDLE_BYTES, grown as f64 / idle as f64);
    Ok(figures)
}

/// A server that accepts connections, and is killed when dropped.
struct Echo {
    child: Child,
    port: u16,
}

impl Echo {
    fn start(bench: &Context, example: &Path, kind: Library) -> Result<Echo> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let mut command = pinning(Core::Server);
        command.extend(match kind {
            Library::Example => words([&example, &address]),
            Library::Rival(path) => words([&path, &address]),
            Library::Serve => {
                let flags = ["serve", "--echo", "--admin", "off", "--log", "error", "--listen"];
                let mut command = words([&bench.tools.standfast()]);
                command.extend(flags.map(OsString::from));
                command.push(address.clone().into());
                command
            }
        });
        let (program, arguments) = command.split_first().context("nothing to start")?;
        let mut started = Command::new(program);
        started.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = started.spawn().with_context(|| format!("cannot start {}", kind.name()))?;
        let mut server = Echo { child, port };
        let began = Instant::now();
        while std::net::TcpStream::connect(&*address).is_err() {
            ensure!(server.child.try_wait()?.is_none(), "{} has ended", kind.name());
            ensure!(began.elapsed() < PATIENCE, "{} does not listen", kind.name());
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
