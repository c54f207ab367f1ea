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
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// CPU of a request ÷ wrk's, without and with the live screen.
const SHARE_MOST: f64 = 0.90;
const LIVE_SHARE_MOST: f64 = 0.95;
const RSS_MOST: f64 = 20e6;
const GO_STRESS_PER_SECOND: f64 = 15_000.0;
const LONG_SECONDS: f64 = 300.0;

/// Lower limits of their CPU per request ÷ ours.
const K6_LEAST: f64 = 5.0;
const GO_STRESS_LEAST: f64 = 2.0;
/// Fewer rounds are enough: these differ by far more than the machine varies.
const COMPETITOR_PAIRS: usize = 3;
/// Upper limit of the send delay (p99.9) at half of the capacity.
const LATE_MOST_MS: f64 = 1.0;
/// Runs after which the search for runs on an idle machine ends.
const IDLE_RUNS_MOST: usize = 60;

pub(super) const CPU: &str = "µs cpu per request";
const REQUESTS: &str = "requests";
pub(super) const FAILED: &str = "failed";
pub(super) const RSS: &str = "resident bytes";
const LATE: &str = "p99.9 ms late";
const STOLEN: &str = "ticks stolen";
pub(super) const PER_SECOND: &str = "requests per second";

/// A load generator and its mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Generator {
    Wrk,
    Ours,
    Live,
    WrkNew,
    OursNew,
    K6,
    GoStress,
}

impl Contestant for Generator {
    fn name(self) -> &'static str {
        match self {
            Generator::Wrk => "wrk",
            Generator::Ours => "ours",
            Generator::Live => "live",
            Generator::WrkNew => "wrk_new",
            Generator::OursNew => "ours_new",
            Generator::K6 => "k6",
            Generator::GoStress => "go-stress-testing",
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
    let nginx = Nginx::start("", Content::Text)?;
    let compare = |generators: &[Generator], pairs: usize| {
        let rounds = Rounds::run(generators, pairs, |generator| {
            once(bench, &nginx, generator, connections, seconds)
        })?;
        rounds.print(&[CPU, PER_SECOND, FAILED, RSS]);
        anyhow::Ok(rounds)
    };
    let kept = compare(&[Generator::Wrk, Generator::Ours, Generator::Live], bench.pairs)?;
    let new = compare(&[Generator::WrkNew, Generator::OursNew], bench.pairs)?;
    let competitors: Vec<Generator> =
        [Generator::K6, Generator::GoStress].into_iter().filter(is_installed).collect();
    let competitors = compare(
        &[&[Generator::Ours], &competitors[..]].concat(),
        bench.pairs.min(COMPETITOR_PAIRS),
    )?;
    let rate = Rate { per_second: kept.median(Generator::Ours, PER_SECOND) / 2.0, connections };
    let (late, idle) = lateness(bench, &nginx, &rate)?;

    let most = |rounds: &Rounds<Generator>, generator, figure| {
        rounds.values(generator, figure).into_iter().fold(0.0, f64::max)
    };
    let rss = most(&kept, Generator::Ours, RSS).max(most(&kept, Generator::Live, RSS));
    let rss = rss.max(most(&new, Generator::OursNew, RSS));
    let share = |generator| median(kept.ratios(generator, Generator::Wrk, CPU));
    let mut targets = vec![
        Target::at_most("CPU of a request, ours ÷ wrk's", share(Generator::Ours), SHARE_MOST),
        Target::at_most("the same with the screen", share(Generator::Live), LIVE_SHARE_MOST),
        Target::at_least(
            "requests per CPU on new connections, ours ÷ wrk's",
            median(new.ratios(Generator::WrkNew, Generator::OursNew, CPU)),
            1.0,
        ),
        Target::at_most("of them failed", most(&new, Generator::OursNew, FAILED), 0.0),
        Target::at_most("resident bytes of ours", rss, RSS_MOST),
        Target::at_most(
            "ms late at half of the capacity, p99.9, on the idle machine",
            if idle.is_empty() { f64::INFINITY } else { median(idle.clone()) },
            LATE_MOST_MS,
        ),
    ];
    for (competitor, least) in [(Generator::K6, K6_LEAST), (Generator::GoStress, GO_STRESS_LEAST)] {
        if competitors.have(Generator::Ours, competitor) {
            let what = format!("requests per CPU, ours ÷ those of {}", competitor.name());
            let ratio = median(competitors.ratios(competitor, Generator::Ours, CPU));
            targets.push(Target::at_least(what, ratio, least));
        }
    }
    let settings = json!({ "connections": connections, "seconds": seconds, "pairs": bench.pairs,
                           "server": "nginx, one worker, a body of 6 bytes" });
    let results = json!({ "kept": kept.json(), "new_connections": new.json(),
                          "rivals": competitors.json(), "late": late.json(), "late_on_the_idle_machine": idle });
    report::finish(&bench.out, "http", settings, results, &targets)
}

fn is_installed(competitor: &Generator) -> bool {
    let here = tools::is_installed(competitor.name());
    if !here {
        println!("{} is not installed: left out", competitor.name());
    }
    here
}

/// A program that keeps a schedule: `load` at normal priority; `load` at real-time priority, as on an
/// idle machine (`chrt`, which needs root); a thread that only sleeps until each deadline; or one that
/// also computes half of the time, as a generator at half of its capacity does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheduler {
    Ours,
    OursFirst,
    Floor,
    BusyFloor,
}

impl Contestant for Scheduler {
    fn name(self) -> &'static str {
        match self {
            Scheduler::Ours => "ours",
            Scheduler::OursFirst => "ours, before others",
            Scheduler::Floor => "bare timer",
            Scheduler::BusyFloor => "busy timer",
        }
    }
}

/// Measures the send delay (p99.9) at a constant request rate, and how late this machine wakes a thread.
/// Then repeats `load` until as many runs as rounds had an idle machine, that is no steal time. Returns
/// the rounds and the delays of those runs.
fn lateness(bench: &Context, nginx: &Nginx, rate: &Rate) -> Result<(Rounds<Scheduler>, Vec<f64>)> {
    println!("\n{:.0} requests a second", rate.per_second);
    let all = [Scheduler::Ours, Scheduler::OursFirst, Scheduler::Floor, Scheduler::BusyFloor];
    let rounds =
        Rounds::run(&all, bench.pairs, |scheduler| send_delay(bench, nginx, rate, scheduler))?;
    rounds.print(&["p50 ms late", LATE, STOLEN]);
    let mut idle = Vec::new();
    let mut runs = 0;
    while idle.len() < bench.pairs && runs < IDLE_RUNS_MOST {
        let figures = send_delay(bench, nginx, rate, Scheduler::OursFirst)?;
        runs += 1;
        idle.extend((figures[STOLEN] == 0.0).then_some(figures[LATE]));
    }
    println!("no steal time in {} of {runs} runs: {LATE} {idle:?}", idle.len());
    Ok((rounds, idle))
}

/// A request rate and its connections.
struct Rate {
    per_second: f64,
    connections: usize,
}

fn send_delay(
    bench: &Context,
    nginx: &Nginx,
    rate: &Rate,
    scheduler: Scheduler,
) -> Result<Figures> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    let file = nginx.folder.join("rate.json");
    let timer = bench.tools.floor("timer");
    let Rate { per_second, connections } = rate;
    let line = match scheduler {
        Scheduler::Ours | Scheduler::OursFirst => format!(
            "{}{} load {} --connections {connections} --rate {per_second:.0} --duration {seconds}s --plain --json {}",
            if scheduler == Scheduler::OursFirst { "chrt -f 1 " } else { "" },
            bench.tools.standfast().display(),
            nginx.url(),
            file.display()
        ),
        Scheduler::Floor => format!("{} {seconds} > {}", timer.display(), file.display()),
        Scheduler::BusyFloor => {
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
    let output: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let ours = matches!(scheduler, Scheduler::Ours | Scheduler::OursFirst);
    let output = if ours { &output["scheduling_error"] } else { &output };
    let of = |name: &str| output[name].as_f64().with_context(|| format!("no {name}: {output}"));
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
    let nginx = Nginx::start("", Content::Text)?;
    let figures = once(bench, &nginx, Generator::OursNew, connections, seconds)?;
    let output: Value = serde_json::from_str(&fs::read_to_string(nginx.folder.join("load.json"))?)?;
    println!("{figures:#?}\n{:#}\n{:#}", output["connections"], output["errors"]);
    let targets = [
        Target::at_most("requests that failed", figures[FAILED], 0.0),
        Target::at_most("resident bytes", figures[RSS], RSS_MOST),
    ];
    let settings = json!({ "connections": connections, "seconds": seconds });
    let results = json!({ "figures": figures, "connections": output["connections"],
                          "errors": output["errors"], "latency": output["latency"] });
    report::finish(&bench.out, "new-connections", settings, results, &targets)
}

/// One run, with the CPU of the process that sends.
fn once(
    bench: &Context,
    nginx: &Nginx,
    generator: Generator,
    connections: usize,
    seconds: f64,
) -> Result<Figures> {
    let line = command_line(bench, nginx, generator, connections, seconds)?;
    let run = measured(generator.name(), &line, generator == Generator::Live)?;
    let output = &run.output;
    let (requests, failed) = match generator {
        Generator::Wrk | Generator::WrkNew => of_wrk(output)?,
        Generator::Ours | Generator::Live | Generator::OursNew => {
            of_ours(&nginx.folder.join("load.json"))?
        }
        Generator::K6 => of_k6(&nginx.folder.join("k6.json"))?,
        Generator::GoStress => of_go_stress(output)?,
    };
    run.figures(requests, failed)
}

/// A run of a generator.
pub(super) struct Measured {
    pub(super) output: String,
    name: &'static str,
    cpu: f64,
    rss: f64,
    took: f64,
}

impl Measured {
    /// The most resident memory of the process, in bytes.
    pub(super) fn rss(&self) -> f64 {
        self.rss
    }

    /// Its figures, by what it says of its requests.
    pub(super) fn figures(&self, requests: f64, failed: f64) -> Result<Figures> {
        let Measured { output, name, cpu, rss, took } = self;
        ensure!(requests > 0.0 && *cpu > 0.0, "{name} sent no request:\n{output}");
        Ok(Figures::from([
            (REQUESTS, requests),
            (FAILED, failed),
            (CPU, cpu * 1e6 / requests),
            (PER_SECOND, requests / took),
            (RSS, *rss),
        ]))
    }
}

/// Runs a command line on the clients' core; `live`: on a terminal.
pub(super) fn measured(name: &'static str, line: &str, live: bool) -> Result<Measured> {
    let mut command = pinned(Core::Client, "sh");
    if live {
        let inside = format!("exec {line}");
        command = pinned(Core::Client, "script");
        command.args(["--quiet", "--return", "--command", &inside, "/dev/null"]);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    } else {
        command.args(["-c", &format!("exec {line}")]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begun = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let mut stdout = child.stdout.take().context("no pipe")?;
    let output = std::thread::spawn(move || {
        let mut output = Vec::new();
        stdout.read_to_end(&mut output).map(|_| String::from_utf8_lossy(&output).into_owned())
    });
    let (mut cpu, mut rss) = (0.0_f64, 0.0_f64);
    while child.try_wait()?.is_none() {
        let pid = if live { child_of(child.id()) } else { Some(child.id()) };
        if let Some(pid) = pid {
            // The CPU of threads that have ended is missing.
            cpu = cpu.max(proc::cpu_seconds(pid).unwrap_or(0.0));
            rss = rss.max(proc::rss_bytes(pid).unwrap_or(0) as f64);
        }
        std::thread::sleep(SAMPLE_EVERY);
    }
    let took = begun.elapsed().as_secs_f64();
    let output = output.join().ok().context("the reader panicked")??;
    Ok(Measured { output, name, cpu, rss, took })
}

/// The command line for the shell.
fn command_line(
    bench: &Context,
    nginx: &Nginx,
    generator: Generator,
    connections: usize,
    seconds: f64,
) -> Result<String> {
    let url = nginx.url();
    Ok(match generator {
        Generator::Wrk | Generator::WrkNew => format!(
            "wrk -t1 -c{connections} -d{seconds}s {} {url}",
            if generator == Generator::WrkNew { "-H 'Connection: close'" } else { "" }
        ),
        Generator::Ours | Generator::Live | Generator::OursNew => format!(
            "{} load {url} --connections {connections} --duration {seconds}s --json {} {} {}",
            bench.tools.standfast().display(),
            nginx.folder.join("load.json").display(),
            if generator == Generator::OursNew { "--new-connections" } else { "" },
            if generator == Generator::Live { "" } else { "--plain" },
        ),
        Generator::K6 => {
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
        // It takes a number of requests, not a duration: about as many as it sends in that time.
        Generator::GoStress => format!(
            "go-stress-testing -k -c {connections} -n {:.0} -u {url}",
            GO_STRESS_PER_SECOND * seconds / connections as f64
        ),
    })
}

/// "  123456 requests in 5.00s, …", and perhaps "Socket errors: connect 0, read 1, …".
fn of_wrk(output: &str) -> Result<(f64, f64)> {
    let line = output.lines().find(|line| line.contains(" requests in "));
    let requests = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let errors = output.lines().find(|line| line.contains("Socket errors:")).unwrap_or_default();
    let failed = errors.split([' ', ',']).filter_map(|word| word.parse::<f64>().ok()).sum();
    Ok((requests.with_context(|| format!("unexpected output of wrk:\n{output}"))?, failed))
}

pub(super) fn of_ours(file: &Path) -> Result<(f64, f64)> {
    let output: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let of = |name: &str| output["requests"][name].as_f64().with_context(|| format!("no {name}"));
    Ok((of("answered")?, of("failed")?))
}

/// The summary that k6 exports.
fn of_k6(file: &Path) -> Result<(f64, f64)> {
    let output: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let requests = output["metrics"]["http_reqs"]["count"].as_f64().context("no http_reqs")?;
    let failed = output["metrics"]["http_req_failed"]["passes"].as_f64().unwrap_or(0.0);
    Ok((requests, failed))
}

/// "… successNum: 123 failureNum: 0" at the end.
fn of_go_stress(output: &str) -> Result<(f64, f64)> {
    let after = |key: &str| {
        let rest = output.rsplit_once(key)?.1;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    let (good, bad) = (after("successNum:"), after("failureNum:"));
    let good =
        good.with_context(|| format!("unexpected output of go-stress-testing:\n{output}"))?;
    Ok((good + bad.unwrap_or(0.0), bad.unwrap_or(0.0)))
}

/// A program pinned to its core.
pub(super) fn pinned(core: Core, program: &str) -> Command {
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

/// What nginx answers.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// A text of its configuration, of which the head and the body are two writes over HTTP/2.
    Text,
    /// A file of as many bytes, written together with its head.
    File,
}

/// nginx with one worker on the servers' core, stopped when dropped.
pub(super) struct Nginx {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Nginx {
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// `protocol` is a parameter of its listener.
    pub(super) fn start(protocol: &str, content: Content) -> Result<Nginx> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("standfast-nginx-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let config = folder.join("nginx.conf");
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {}/{name};", folder.display()))
            .join(" ");
        fs::write(folder.join("index.html"), "hello\n")?;
        let content = match content {
            Content::Text => "location / { return 200 'hello\\n'; }".to_owned(),
            Content::File => format!("root {}; sendfile on; tcp_nopush on;", folder.display()),
        };
        let text = format!(
            "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; {temporary}\n\
             server {{ listen 127.0.0.1:{port} {protocol} backlog=4096; {content} }} }}\n",
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
            std::thread::sleep(SAMPLE_EVERY);
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
    fn output_of_wrk_is_parsed() {
        let output = "  1 threads and 100 connections\n  42 requests in 5.00s, 6.66MB read\n\
                    \x20 Socket errors: connect 1, read 2, write 0, timeout 3\n";
        assert_eq!(of_wrk(output).unwrap(), (42.0, 6.0));
        assert!(of_wrk("nothing").is_err());
    }

    #[test]
    fn output_of_go_stress_testing_is_parsed() {
        let output = "(-c * -n): 100 total: 0.055 successNum: 98 failureNum: 2\n";
        assert_eq!(of_go_stress(output).unwrap(), (100.0, 2.0));
        assert!(of_go_stress("nothing").is_err());
    }
}
