//! Client CPU per HTTP request: `standfast load` beside wrk, k6 and go-stress-testing, all against nginx,
//! client and server pinned to a core each. Kept connections, the same with the live screen on a
//! terminal of `script` (util-linux), and a new connection per request. Then the send delay at half of
//! the capacity.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::peer::{Core, pinning};
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};
use super::{Context, proc, tools};

const CONNECTIONS: usize = 100;
const SECONDS: f64 = 5.0;
const LOOK: Duration = Duration::from_millis(10);
/// CPU of a request ÷ wrk's, without and with the live screen.
const SHARE_MOST: f64 = 0.90;
const LIVE_SHARE_MOST: f64 = 0.95;
const RSS_MOST: f64 = 20e6;
const GO_STRESS_PER_SECOND: f64 = 15_000.0;
const LONG_SECONDS: f64 = 300.0;

/// Lower limits of their CPU per request ÷ ours.
const K6_LEAST: f64 = 5.0;
const GO_STRESS_LEAST: f64 = 2.0;
/// They differ by far more than the machine does.
const RIVAL_PAIRS: usize = 3;
/// How late the latest thousandth of the requests may go at half of the capacity.
const LATE_MOST_MS: f64 = 1.0;
/// Runs after which the search for runs on an idle machine ends.
const IDLE_RUNS_MOST: usize = 60;

const CPU: &str = "µs cpu per request";
const REQUESTS: &str = "requests";
const FAILED: &str = "failed";
const RSS: &str = "resident bytes";
const LATE: &str = "p99.9 ms late";
const STOLEN: &str = "ticks stolen";
const PER_SECOND: &str = "requests per second";

/// A load generator and its mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Wrk,
    Ours,
    Live,
    WrkNew,
    OursNew,
    K6,
    GoStress,
}

impl Contestant for Way {
    fn name(self) -> &'static str {
        match self {
            Way::Wrk => "wrk",
            Way::Ours => "ours",
            Way::Live => "live",
            Way::WrkNew => "wrk_new",
            Way::OursNew => "ours_new",
            Way::K6 => "k6",
            Way::GoStress => "go-stress-testing",
        }
    }
}

/// Measures. Returns whether the targets were met.
///
/// Generators that are compared run one after the other, because the machine changes speed by the second.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let connections = bench.connections.unwrap_or(CONNECTIONS);
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== http: {connections} connections, nginx on one core, client on the other");
    let nginx = Nginx::start()?;
    let compare = |ways: &[Way], pairs: usize| {
        let rounds =
            Rounds::run(ways, pairs, |way| once(bench, &nginx, way, connections, seconds))?;
        rounds.print(&[CPU, PER_SECOND, FAILED, RSS]);
        anyhow::Ok(rounds)
    };
    let kept = compare(&[Way::Wrk, Way::Ours, Way::Live], bench.pairs)?;
    let new = compare(&[Way::WrkNew, Way::OursNew], bench.pairs)?;
    let rivals: Vec<Way> = [Way::K6, Way::GoStress].into_iter().filter(is_here).collect();
    let rivals = compare(&[&[Way::Ours], &rivals[..]].concat(), bench.pairs.min(RIVAL_PAIRS))?;
    let rate = Rate { per_second: kept.median(Way::Ours, PER_SECOND) / 2.0, connections };
    let (late, idle) = lateness(bench, &nginx, &rate)?;

    let most = |rounds: &Rounds<Way>, way, figure| {
        rounds.values(way, figure).into_iter().fold(0.0, f64::max)
    };
    let rss = most(&kept, Way::Ours, RSS).max(most(&kept, Way::Live, RSS));
    let rss = rss.max(most(&new, Way::OursNew, RSS));
    let share = |way| median(kept.ratios(way, Way::Wrk, CPU));
    let mut targets = vec![
        Target::at_most("CPU of a request, ours ÷ wrk's", share(Way::Ours), SHARE_MOST),
        Target::at_most("the same with the screen", share(Way::Live), LIVE_SHARE_MOST),
        Target::at_least(
            "requests per CPU on new connections, ours ÷ wrk's",
            median(new.ratios(Way::WrkNew, Way::OursNew, CPU)),
            1.0,
        ),
        Target::at_most("of them failed", most(&new, Way::OursNew, FAILED), 0.0),
        Target::at_most("resident bytes of ours", rss, RSS_MOST),
        Target::at_most(
            "ms late at half of the capacity, p99.9, on the idle machine",
            if idle.is_empty() { f64::INFINITY } else { median(idle.clone()) },
            LATE_MOST_MS,
        ),
    ];
    for (rival, least) in [(Way::K6, K6_LEAST), (Way::GoStress, GO_STRESS_LEAST)] {
        if rivals.have(Way::Ours, rival) {
            let what = format!("requests per CPU, ours ÷ those of {}", rival.name());
            let ratio = median(rivals.ratios(rival, Way::Ours, CPU));
            targets.push(Target::at_least(what, ratio, least));
        }
    }
    let settings = json!({ "connections": connections, "seconds": seconds, "pairs": bench.pairs,
                           "server": "nginx, one worker, a body of 6 bytes" });
    let results = json!({ "kept": kept.json(), "new_connections": new.json(),
                          "rivals": rivals.json(), "late": late.json(), "late_on_the_idle_machine": idle });
    report::finish(&bench.out, "http", settings, results, &targets)
}

fn is_here(rival: &Way) -> bool {
    let here = tools::is_installed(rival.name());
    if !here {
        println!("{} is not installed and stays out", rival.name());
    }
    here
}

/// A program that keeps a schedule: `load` at normal priority; `load` at real-time priority, as on an
/// idle machine (`chrt`, which needs root); a thread that only sleeps until each deadline; or one that
/// also computes half of the time, as a generator at half of its capacity does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timed {
    Ours,
    OursFirst,
    Floor,
    BusyFloor,
}

impl Contestant for Timed {
    fn name(self) -> &'static str {
        match self {
            Timed::Ours => "ours",
            Timed::OursFirst => "ours, before others",
            Timed::Floor => "bare timer",
            Timed::BusyFloor => "busy timer",
        }
    }
}

/// By how much the latest thousandth goes later than due, at a constant rate of requests; beside it
/// what this machine is late by itself. Then ours again until there are as many runs as rounds in which
/// the machine was idle, which is: the kernel counted nothing stolen from it. Those runs come second.
fn lateness(bench: &Context, nginx: &Nginx, rate: &Rate) -> Result<(Rounds<Timed>, Vec<f64>)> {
    println!("\n{:.0} requests a second", rate.per_second);
    let all = [Timed::Ours, Timed::OursFirst, Timed::Floor, Timed::BusyFloor];
    let rounds = Rounds::run(&all, bench.pairs, |who| kept_schedule(bench, nginx, rate, who))?;
    rounds.print(&["p50 ms late", LATE, STOLEN]);
    let mut idle = Vec::new();
    let mut runs = 0;
    while idle.len() < bench.pairs && runs < IDLE_RUNS_MOST {
        let figures = kept_schedule(bench, nginx, rate, Timed::OursFirst)?;
        runs += 1;
        idle.extend((figures[STOLEN] == 0.0).then_some(figures[LATE]));
    }
    println!("nothing was stolen in {} of {runs} runs: {LATE} {idle:?}", idle.len());
    Ok((rounds, idle))
}

/// A request rate and its connections.
struct Rate {
    per_second: f64,
    connections: usize,
}

fn kept_schedule(bench: &Context, nginx: &Nginx, rate: &Rate, who: Timed) -> Result<Figures> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let file = nginx.folder.join("rate.json");
    let timer = bench.tools.floor("timer");
    let Rate { per_second, connections } = rate;
    let line = match who {
        Timed::Ours | Timed::OursFirst => format!(
            "{}{} load {} --connections {connections} --rate {per_second:.0} --duration {seconds}s --plain --json {}",
            if who == Timed::OursFirst { "chrt -f 1 " } else { "" },
            bench.tools.standfast().display(),
            nginx.url(),
            file.display()
        ),
        Timed::Floor => format!("{} {seconds} > {}", timer.display(), file.display()),
        Timed::BusyFloor => {
            format!("{} {seconds} {per_second:.0} 0.5 > {}", timer.display(), file.display())
        }
    };
    let stolen = proc::stolen_ticks()?;
    let mut command = pinned(Core::Client, "sh");
    command.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status()?;
    let stolen = proc::stolen_ticks()? - stolen;
    // 1: the machine lost its core for a while, so the rate was not reached.
    ensure!(matches!(status.code(), Some(0 | 1)), "`{line}` failed ({status})");
    let said: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let ours = matches!(who, Timed::Ours | Timed::OursFirst);
    let said = if ours { &said["scheduling_error"] } else { &said };
    let of = |name: &str| said[name].as_f64().with_context(|| format!("no {name}: {said}"));
    Ok(Figures::from([
        ("p50 ms late", of("p50_ms")?),
        (LATE, of("p999_ms")?),
        (STOLEN, stolen as f64),
    ]))
}

/// Five minutes in which every request has its own connection. Returns whether none failed.
pub(super) fn new_connections(bench: &Context) -> Result<bool> {
    let connections = bench.connections.unwrap_or(CONNECTIONS);
    let seconds = bench.seconds.unwrap_or(LONG_SECONDS);
    println!("\n=== new-connections: one for each request, {seconds} s");
    let nginx = Nginx::start()?;
    let figures = once(bench, &nginx, Way::OursNew, connections, seconds)?;
    let said: Value = serde_json::from_str(&fs::read_to_string(nginx.folder.join("load.json"))?)?;
    println!("{figures:#?}\n{:#}\n{:#}", said["connections"], said["errors"]);
    let targets = [
        Target::at_most("requests that failed", figures[FAILED], 0.0),
        Target::at_most("resident bytes", figures[RSS], RSS_MOST),
    ];
    let settings = json!({ "connections": connections, "seconds": seconds });
    let results = json!({ "figures": figures, "connections": said["connections"],
                          "errors": said["errors"], "latency": said["latency"] });
    report::finish(&bench.out, "new-connections", settings, results, &targets)
}

/// One run, with the CPU of the process that sends.
fn once(
    bench: &Context,
    nginx: &Nginx,
    way: Way,
    connections: usize,
    seconds: f64,
) -> Result<Figures> {
    let line = command_line(bench, nginx, way, connections, seconds)?;
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
    let begun = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {}", way.name()))?;
    let mut stdout = child.stdout.take().context("no pipe")?;
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        stdout.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
    });
    let (mut cpu, mut rss) = (0.0_f64, 0.0_f64);
    while child.try_wait()?.is_none() {
        let pid = if way == Way::Live { child_of(child.id()) } else { Some(child.id()) };
        if let Some(pid) = pid {
            // The CPU of threads that have ended is missing.
            cpu = cpu.max(proc::cpu_seconds(pid).unwrap_or(0.0));
            rss = rss.max(proc::rss_bytes(pid).unwrap_or(0) as f64);
        }
        std::thread::sleep(LOOK);
    }
    let took = begun.elapsed().as_secs_f64();
    let said = said.join().ok().context("the reader panicked")??;
    let (requests, failed) = match way {
        Way::Wrk | Way::WrkNew => of_wrk(&said)?,
        Way::Ours | Way::Live | Way::OursNew => of_ours(&nginx.folder.join("load.json"))?,
        Way::K6 => of_k6(&nginx.folder.join("k6.json"))?,
        Way::GoStress => of_go_stress(&said)?,
    };
    ensure!(requests > 0.0 && cpu > 0.0, "{} did nothing:\n{said}", way.name());
    Ok(Figures::from([
        (REQUESTS, requests),
        (FAILED, failed),
        (CPU, cpu * 1e6 / requests),
        (PER_SECOND, requests / took),
        (RSS, rss),
    ]))
}

/// The command line for the shell.
fn command_line(
    bench: &Context,
    nginx: &Nginx,
    way: Way,
    connections: usize,
    seconds: f64,
) -> Result<String> {
    let url = nginx.url();
    Ok(match way {
        Way::Wrk | Way::WrkNew => format!(
            "wrk -t1 -c{connections} -d{seconds}s {} {url}",
            if way == Way::WrkNew { "-H 'Connection: close'" } else { "" }
        ),
        Way::Ours | Way::Live | Way::OursNew => format!(
            "{} load {url} --connections {connections} --duration {seconds}s --json {} {} {}",
            bench.tools.standfast().display(),
            nginx.folder.join("load.json").display(),
            if way == Way::OursNew { "--new-connections" } else { "" },
            if way == Way::Live { "" } else { "--plain" },
        ),
        Way::K6 => {
            let script = nginx.folder.join("script.js");
            fs::write(
                &script,
                format!(
                    "import http from 'k6/http';\n\
                     export const options = {{ vus: {connections}, duration: '{seconds}s' }};\n\
                     export default function () {{ http.get('{url}'); }}\n"
                ),
            )?;
            format!(
                "k6 run --quiet --no-usage-report --summary-export {} {}",
                nginx.folder.join("k6.json").display(),
                script.display()
            )
        }
        // It counts requests, not seconds: about as many as it sends in that time.
        Way::GoStress => format!(
            "go-stress-testing -k -c {connections} -n {:.0} -u {url}",
            GO_STRESS_PER_SECOND * seconds / connections as f64
        ),
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

/// The summary that k6 exports.
fn of_k6(file: &Path) -> Result<(f64, f64)> {
    let said: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let requests = said["metrics"]["http_reqs"]["count"].as_f64().context("no http_reqs")?;
    let failed = said["metrics"]["http_req_failed"]["passes"].as_f64().unwrap_or(0.0);
    Ok((requests, failed))
}

/// "… successNum: 123 failureNum: 0" at the end.
fn of_go_stress(said: &str) -> Result<(f64, f64)> {
    let after = |key: &str| {
        let rest = said.rsplit_once(key)?.1;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    let (good, bad) = (after("successNum:"), after("failureNum:"));
    let good = good.with_context(|| format!("go-stress-testing said:\n{said}"))?;
    Ok((good + bad.unwrap_or(0.0), bad.unwrap_or(0.0)))
}

/// A program pinned to its core.
fn pinned(core: Core, program: &str) -> Command {
    let mut words = pinning(core);
    words.push(program.into());
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_else(|| program.into()));
    command.args(words);
    command
}

/// The only child of `script`, while it runs.
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
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

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
        // These fail only when nothing is left to stop.
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

    #[test]
    fn what_go_stress_testing_says_is_read() {
        let said = "(-c * -n): 100 total: 0.055 successNum: 98 failureNum: 2\n";
        assert_eq!(of_go_stress(said).unwrap(), (100.0, 2.0));
        assert!(of_go_stress("nothing").is_err());
    }
}
