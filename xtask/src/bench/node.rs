//! The package of npm, `packages/node`, beside uWebSockets.js, `ws` and `node:http`, each on one core: messages and
//! requests per second of the server's CPU, CPU of a publication for each socket, memory of an idle socket.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::admin::Admin;
use super::peer::{Core, Peer, pinning, words};
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::server::Server;
use super::{Context, proc, wrapped};
use crate::step;

const SOCKETS: usize = 100;
const SMALL: usize = 20;
const LARGE: usize = 4096;
const SECONDS: f64 = 2.0;
/// Long enough for a JIT to have compiled the path.
const WARM_UP_SECONDS: f64 = 1.0;
const SUBSCRIBERS: usize = 9_000;
const PUBLISHED_BYTES: usize = 32;
const PUBLISHED: usize = 100;
const WARM_UP_PUBLISHED: usize = 20;
/// Idle sockets, and those before them, which take pools and pages of the executable.
const IDLE: usize = 15_000;
const FIRST: usize = 2_000;
const COLLECTIONS: usize = 4;
const SETTLES: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

const ECHO: &str = "20 B/cpu-s";
const ECHO_LARGE: &str = "4 KiB/cpu-s";
const DEFLATED: &str = "compressed/cpu-s";
const REQUESTS: &str = "requests/cpu-s";
const DELIVERY: &str = "µs cpu per delivery";
const IDLE_BYTES: &str = "bytes of an idle socket";
const FIGURES: [&str; 6] = [ECHO, ECHO_LARGE, DEFLATED, REQUESTS, DELIVERY, IDLE_BYTES];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Package {
    Ours,
    Uws,
    Ws,
    NodeHttp,
}

impl Contestant for Package {
    fn name(self) -> &'static str {
        match self {
            Package::Ours => "standfast",
            Package::Uws => "uWebSockets.js",
            Package::Ws => "ws",
            Package::NodeHttp => "node:http",
        }
    }
}

impl Package {
    fn measures(self, figure: &str) -> bool {
        match self {
            Package::Ours | Package::Uws => true,
            Package::Ws => [ECHO, ECHO_LARGE].contains(&figure),
            Package::NodeHttp => figure == REQUESTS,
        }
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let (subscribers, idle) =
        (bench.connections.unwrap_or(SUBSCRIBERS), bench.connections.unwrap_or(IDLE));
    build()?;
    let settings = json!({ "sockets": SOCKETS, "bytes": [SMALL, LARGE], "seconds": seconds,
                           "warm_up_seconds": WARM_UP_SECONDS, "subscribers": subscribers,
                           "published": PUBLISHED, "published_bytes": PUBLISHED_BYTES, "idle": idle,
                           "idle_first": FIRST, "node": node_version() });
    let earlier = match bench.add {
        true => report::earlier(&bench.out, "node", &settings)?,
        false => None,
    };
    println!(
        "\n=== node: {SOCKETS} sockets, {subscribers} subscribers, one core, {seconds} s each"
    );
    let all = [Package::Ours, Package::Uws, Package::Ws, Package::NodeHttp];
    let mut rounds = Rounds::run(&all, bench.pairs, |package| {
        let mut figures = Figures::new();
        for figure in FIGURES.into_iter().filter(|figure| package.measures(figure)) {
            let value = match figure {
                ECHO => echo(bench, package, SMALL, seconds),
                ECHO_LARGE => echo(bench, package, LARGE, seconds),
                DEFLATED => deflated(bench, package, seconds),
                REQUESTS => requests(bench, package, seconds),
                DELIVERY => delivery(bench, package, subscribers),
                _ => idle_bytes(bench, package, idle),
            }?;
            figures.insert(figure, value);
        }
        Ok(figures)
    })?;
    if let Some(earlier) = earlier {
        rounds.add_earlier(&earlier, &FIGURES);
        println!("\nof {} rounds", rounds.count());
    }
    rounds.print(&FIGURES);
    let ratio = |other, figure| median(rounds.ratios(Package::Ours, other, figure));
    let least = |figure: &'static str, other: Package, least| {
        let what = format!("{figure}, ours ÷ that of {}", other.name());
        Target::at_least(what, ratio(other, figure), least)
    };
    let most = |figure: &'static str, most| {
        let what = format!("{figure}, ours ÷ that of uWebSockets.js");
        Target::at_most(what, ratio(Package::Uws, figure), most)
    };
    let targets = [
        least(ECHO, Package::Uws, 1.0),
        least(ECHO_LARGE, Package::Uws, 1.0),
        least(DEFLATED, Package::Uws, 1.0),
        least(REQUESTS, Package::Uws, 1.0),
        least(ECHO, Package::Ws, 2.0),
        least(REQUESTS, Package::NodeHttp, 5.0),
        most(DELIVERY, 0.9),
        most(IDLE_BYTES, 0.6),
    ];
    report::finish(&bench.out, "node", settings, rounds.json(), &targets)
}

/// Builds the addon as it is published.
pub(super) fn build() -> Result<()> {
    let script = step::root().join("packages/node/build.sh");
    let status = Command::new(script).env("PROFILE", "dist").status()?;
    ensure!(status.success(), "packages/node/build.sh failed ({status})");
    Ok(())
}

pub(super) fn node_version() -> Option<String> {
    let output = Command::new("node").arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn start(bench: &Context, package: Package, deflate: bool) -> Result<Server> {
    let script = bench.tools.competitor("node_server.js");
    let ours = step::root().join("packages/node");
    let theirs = bench.tools.peers().join("node_modules/@uwsjs/linux-x64-20");
    let mut command = words([&"node", &"--expose-gc"]);
    command.extend(match package {
        Package::Ours => words([&script, &"uws", &ours]),
        Package::Uws => words([&script, &"uws", &theirs]),
        Package::Ws => words([&bench.tools.competitor("ws_server.js"), &bench.tools.peers()]),
        Package::NodeHttp => words([&script, &"http"]),
    });
    command.extend(deflate.then(|| "deflate".into()));
    Server::start_foreign(package.name(), &command)
}

/// Starts ours with so many threads for sockets.
pub(super) fn start_with_workers(bench: &Context, workers: usize) -> Result<Server> {
    let script = bench.tools.competitor("node_server.js");
    let package = step::root().join("packages/node");
    let workers = format!("workers={workers}");
    Server::start_unpinned("node", &words([&"node", &script, &"uws", &package, &workers]))
}

/// How often and how long a server started with threads has stood still for its garbage.
pub(super) fn pauses(server: &Server) -> Result<Value> {
    let answer = Admin::connect_to(server.port())?.request("GET", "/pauses", "")?;
    serde_json::from_str(&answer).with_context(|| format!("not JSON: {answer}"))
}

/// Messages of a closed loop on all sockets.
fn echo(bench: &Context, package: Package, bytes: usize, seconds: f64) -> Result<f64> {
    let server = start(bench, package, false)?;
    let mut client = server.echo_client(&bench.tools, SOCKETS, bytes)?;
    let mut timed = |seconds: f64| {
        client.request(&format!("run {seconds}"), PATIENCE + Duration::from_secs_f64(seconds))
    };
    timed(WARM_UP_SECONDS)?;
    let before = server.cpu_seconds()?;
    let messages = timed(seconds)?["messages"].as_f64().context("no messages")?;
    Ok(messages / (server.cpu_seconds()? - before))
}

fn deflated(bench: &Context, package: Package, seconds: f64) -> Result<f64> {
    let server = start(bench, package, true)?;
    let (url, message) = (format!("ws://127.0.0.1:{}/echo", server.port()), wrapped::document());
    let flags = ["--message", &message, "--compression", "shared", "--timeout", "5s"];
    load(bench, &url, WARM_UP_SECONDS, &flags)?;
    let before = server.cpu_seconds()?;
    let result = load(bench, &url, seconds, &flags)?;
    let messages = result["echo"]["received"].as_f64().context("no echo.received")?;
    Ok(messages / (server.cpu_seconds()? - before))
}

fn requests(bench: &Context, package: Package, seconds: f64) -> Result<f64> {
    let server = start(bench, package, false)?;
    let url = format!("http://127.0.0.1:{}/", server.port());
    load(bench, &url, WARM_UP_SECONDS, &[])?;
    let before = server.cpu_seconds()?;
    let result = load(bench, &url, seconds, &[])?;
    let answered = result["requests"]["ok"].as_f64().context("no requests.ok")?;
    Ok(answered / (server.cpu_seconds()? - before))
}

/// One run of `load`. Returns its JSON.
fn load(bench: &Context, url: &str, seconds: f64, flags: &[&str]) -> Result<Value> {
    let (sockets, duration) = (SOCKETS.to_string(), format!("{seconds}s"));
    let mut all: Vec<OsString> = pinning(Core::Client);
    all.push(bench.tools.standfast().into());
    let own = ["load", url, "--json", "-", "--connections", &sockets, "--duration", &duration];
    all.extend(own.iter().chain(flags).map(OsString::from));
    let (program, arguments) = all.split_first().context("nothing to start")?;
    let output = Command::new(program).args(arguments).output().context("cannot start load")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "load fell short: {errors}");
    serde_json::from_slice(&output.stdout).context("load printed something other than JSON")
}

/// Publishes each message when all sockets have received the one before.
fn delivery(bench: &Context, package: Package, subscribers: usize) -> Result<f64> {
    let server = start(bench, package, false)?;
    let mut crowd = server.crowd(&bench.tools, subscribers, "paced:10000")?;
    let opened = crowd.receive(PATIENCE)?;
    ensure!(opened["opened"].as_u64() == Some(subscribers as u64), "not all opened: {opened}");
    let mut publisher = server.publisher(&bench.tools, PUBLISHED_BYTES)?;
    let mut publish = |crowd: &mut Peer, count: usize| {
        crowd.request("mark", PATIENCE)?;
        for sent in 1..=count {
            let answer = publisher.request("publish 1 0", PATIENCE)?;
            ensure!(answer["refused"].as_u64() == Some(0), "the publish was refused");
            let expected = sent * subscribers;
            let result = crowd.request(&format!("expect {expected} 10"), PATIENCE)?;
            let received = result["received"].as_u64();
            ensure!(received == Some(expected as u64), "message {sent}: {result}");
        }
        anyhow::Ok(())
    };
    publish(&mut crowd, WARM_UP_PUBLISHED)?;
    let before = server.cpu_seconds()?;
    publish(&mut crowd, PUBLISHED)?;
    let cpu = server.cpu_seconds()? - before;
    Ok(cpu * 1e6 / (subscribers * PUBLISHED) as f64)
}

fn idle_bytes(bench: &Context, package: Package, idle: usize) -> Result<f64> {
    let server = start(bench, package, false)?;
    let collected = || {
        // What one leaves behind is found by the next, and freed meanwhile.
        for _ in 0..COLLECTIONS {
            collect(&server)?;
            std::thread::sleep(SETTLES);
        }
        proc::rss_bytes(server.pid())
    };
    let _first = server.echo_client(&bench.tools, FIRST, SMALL)?;
    let before = collected()?;
    let _others = server.echo_client(&bench.tools, idle, SMALL)?;
    Ok((collected()? as f64 - before as f64) / idle as f64)
}

/// Has a server collect garbage.
fn collect(server: &Server) -> Result<()> {
    Admin::connect_to(server.port())?.request("GET", "/gc", "")?;
    Ok(())
}
