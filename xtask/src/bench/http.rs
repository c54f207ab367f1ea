//! What a request costs the client: `standfast load` beside wrk, both against nginx, each pinned to a
//! core: kept connections, the same with the live screen on a terminal of `script` (util-linux), and a
//! new connection per request.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::Context;
use super::peer::{Core, pinning};
use super::proc;
use super::report::{self, Target};
use super::rounds::{median, shuffled};

const CONNECTIONS: usize = 100;
const SECONDS: f64 = 5.0;
const LOOK: Duration = Duration::from_millis(10);
/// CPU of a request ÷ wrk's, without and with the live screen.
const SHARE_MOST: f64 = 0.90;
const LIVE_SHARE_MOST: f64 = 0.95;
const RSS_MOST: f64 = 20e6;

/// Who sends, and how.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    Wrk,
    Ours,
    Live,
    WrkNew,
    OursNew,
}

const WAYS: [Way; 5] = [Way::Wrk, Way::Ours, Way::Live, Way::WrkNew, Way::OursNew];

/// What one run came to.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    requests: f64,
    failed: f64,
    cpu_seconds: f64,
    cpu_us_per_request: f64,
    rss_bytes: f64,
}

/// Measures; whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let connections = bench.connections.unwrap_or(CONNECTIONS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== http: {connections} connections, nginx on one core, client on the other");
    let nginx = Nginx::start()?;
    let mut rounds = Vec::new();
    for number in 1..=bench.pairs {
        let mut round = BTreeMap::new();
        for way in shuffled(&WAYS) {
            let cost = once(bench, &nginx, way, connections, seconds)?;
            println!(
                "round {number}  {:<8} {:.3} µs CPU a request, {:.0} requests, {:.0} failed, {:.1} MB",
                name(way),
                cost.cpu_us_per_request,
                cost.requests,
                cost.failed,
                cost.rss_bytes / 1e6
            );
            round.insert(name(way), cost);
        }
        rounds.push(round);
    }
    let ratio = |one: Way, other: Way| {
        let of = |round: &BTreeMap<&str, Cost>| {
            round[name(one)].cpu_us_per_request / round[name(other)].cpu_us_per_request
        };
        median(rounds.iter().map(of).collect())
    };
    let most = |way: Way| rounds.iter().map(|round| round[name(way)].rss_bytes).fold(0.0, f64::max);
    let rss = most(Way::Ours).max(most(Way::Live)).max(most(Way::OursNew));
    let failed = rounds.iter().map(|round| round[name(Way::OursNew)].failed).fold(0.0, f64::max);
    let (kept, live) = (ratio(Way::Ours, Way::Wrk), ratio(Way::Live, Way::Wrk));
    let targets = [
        Target::at_most("CPU of a request, ours ÷ wrk's", kept, SHARE_MOST),
        Target::at_most("the same with the live screen", live, LIVE_SHARE_MOST),
        Target::at_least(
            "requests per CPU on new connections, ours ÷ wrk's",
            1.0 / ratio(Way::OursNew, Way::WrkNew),
            1.0,
        ),
        Target::at_most("requests that failed on new connections", failed, 0.0),
        Target::at_most("resident bytes of ours", rss, RSS_MOST),
    ];
    let settings = json!({ "connections": connections, "seconds": seconds, "pairs": bench.pairs,
                           "server": "nginx, one worker, a body of 6 bytes" });
    report::finish(&bench.out, "http", settings, json!({ "rounds": rounds }), &targets)
}

fn name(way: Way) -> &'static str {
    match way {
        Way::Wrk => "wrk",
        Way::Ours => "ours",
        Way::Live => "live",
        Way::WrkNew => "wrk_new",
        Way::OursNew => "ours_new",
    }
}

/// One run, with the CPU of the one process that sends.
fn once(
    bench: &Context,
    nginx: &Nginx,
    way: Way,
    connections: usize,
    seconds: f64,
) -> Result<Cost> {
    let url = format!("http://127.0.0.1:{}/", nginx.port);
    let json = nginx.folder.join("load.json");
    let new = matches!(way, Way::WrkNew | Way::OursNew);
    let line = match way {
        Way::Wrk | Way::WrkNew => format!(
            "wrk -t1 -c{connections} -d{seconds}s {} {url}",
            if new { "-H 'Connection: close'" } else { "" }
        ),
        Way::Ours | Way::Live | Way::OursNew => format!(
            "{} load {url} --connections {connections} --duration {seconds}s --json {} {} {}",
            bench.tools.standfast().display(),
            json.display(),
            if new { "--new-connections" } else { "" },
            if way == Way::Live { "" } else { "--plain" },
        ),
    };
    let mut command = pinned(Core::Client, "sh");
    if way == Way::Live {
        let inside = format!("exec {line}");
        command = pinned(Core::Client, "script");
        command.args(["--quiet", "--return", "--command", &inside, "/dev/null"]);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    } else {
        command.args(["-c", &format!("exec {line}")]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", name(way)))?;
    let mut stdout = child.stdout.take().context("no pipe")?;
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        stdout.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
    });
    let (mut cpu, mut rss) = (0.0_f64, 0.0_f64);
    while child.try_wait()?.is_none() {
        let pid = if way == Way::Live { child_of(child.id()) } else { Some(child.id()) };
        if let Some(pid) = pid {
            // Threads that have ended take their share with them.
            cpu = cpu.max(proc::cpu_seconds(pid).unwrap_or(0.0));
            rss = rss.max(proc::rss_bytes(pid).unwrap_or(0) as f64);
        }
        std::thread::sleep(LOOK);
    }
    let said = said.join().ok().context("the reader panicked")??;
    let (requests, failed) = match way {
        Way::Wrk | Way::WrkNew => of_wrk(&said)?,
        Way::Ours | Way::Live | Way::OursNew => of_ours(&json)?,
    };
    ensure!(requests > 0.0 && cpu > 0.0, "{} did nothing:\n{said}", name(way));
    Ok(Cost {
        requests,
        failed,
        cpu_seconds: cpu,
        cpu_us_per_request: cpu * 1e6 / requests,
        rss_bytes: rss,
    })
}

/// "  123456 requests in 5.00s, …", and perhaps "Socket errors: connect 0, read 1, …".
fn of_wrk(said: &str) -> Result<(f64, f64)> {
    let line = said.lines().find(|line| line.contains(" requests in "));
    let requests = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let errors = said.lines().find(|line| line.contains("Socket errors:")).unwrap_or_default();
    let failed = errors.split([' ', ',']).filter_map(|word| word.parse::<f64>().ok()).sum();
    Ok((requests.with_context(|| format!("wrk said:\n{said}"))?, failed))
}

fn of_ours(file: &Path) -> Result<(f64, f64)> {
    let said: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let of = |name: &str| said["requests"][name].as_f64().with_context(|| format!("no {name}"));
    Ok((of("answered")?, of("failed")?))
}

/// A program that keeps to its core.
fn pinned(core: Core, program: &str) -> Command {
    let mut words = pinning(core);
    words.push(program.into());
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_else(|| program.into()));
    command.args(words);
    command
}

/// The one child of `script`, while it is there.
fn child_of(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// nginx with one worker on the servers' core, stopped when dropped.
struct Nginx {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Nginx {
    fn start() -> Result<Nginx> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("standfast-nginx-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let config = folder.join("nginx.conf");
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {}/{name};", folder.display()))
            .join(" ");
        let text = format!(
            "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; {temporary}\n\
             server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 'hello\\n'; }} }} }}\n",
            folder.display()
        );
        fs::write(&config, text)?;
        let mut command = pinned(Core::Server, "nginx");
        let child = command.arg("-c").arg(&config).stdin(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().context("cannot start nginx (apt install nginx-light wrk)")?;
        let nginx = Nginx { child, port, folder };
        for _ in 0..500 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(nginx);
            }
            std::thread::sleep(LOOK);
        }
        anyhow::bail!("nginx does not listen")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // All of these fail only when there is nothing left to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says_is_read() {
        let said = "  1 threads and 100 connections\n  42 requests in 5.00s, 6.66MB read\n\
                    \x20 Socket errors: connect 1, read 2, write 0, timeout 3\n";
        assert_eq!(of_wrk(said).unwrap(), (42.0, 6.0));
        assert!(of_wrk("nothing").is_err());
    }
}
