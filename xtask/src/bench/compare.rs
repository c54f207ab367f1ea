//! Verdicts of `load compare` on runs of one unchanged server, beside a program that comes and goes. A pair is
//! three runs of each side; whatever is `WORSE` is a false alarm.
//!
//! Each pair is judged twice from the same six runs: taken in turns (A B A B A B), as `docs/load/compare.md`
//! says, and one side after the other (A A A B B B).

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::Context;
use super::report::{self, Target};
use super::rounds::shuffled;
use super::server::Server;
use crate::step;

const PAIRS: usize = 20;
/// Runs of each side: the least that the documentation recommends.
const RUNS: usize = 3;
/// How often a run is repeated whose generator was saturated, as its user would.
const ATTEMPTS: usize = 5;
const SECONDS: f64 = 3.0;
const CONNECTIONS: usize = 8;
/// Share of the pairs that may be `WORSE`: that of a 95 % verdict.
const FALSE_ALARMS_MOST: f64 = 0.05;
/// How long the other program works, and how long it pauses.
const SPELLS_MS: [u64; 6] = [50, 200, 500, 1_000, 2_000, 4_000];
const WORKLOADS: [Workload; 2] = [("requests", "http", "/health"), ("echo", "ws", "/echo")];
/// Name, and which of the runs are of the first side.
type Order = (&'static str, fn(usize) -> bool);

const ORDERS: [Order; 2] =
    [("in turns", |run| run % 2 == 0), ("one after the other", |run| run < RUNS)];

/// Judges pairs of each workload. Returns whether few enough were `WORSE`.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let runs = Runs {
        bench,
        pairs: bench.pairs_wanted.unwrap_or(PAIRS),
        seconds: bench.seconds.unwrap_or(SECONDS),
        sockets: bench.connections.unwrap_or(CONNECTIONS),
        folder: step::target_folder().join("bench-compare"),
        server: Server::start_ours(&bench.tools, &[])?,
    };
    fs::create_dir_all(&runs.folder)?;
    let done = AtomicBool::new(false);
    let (mut results, mut targets) = (Vec::new(), Vec::new());
    let judged = thread::scope(|scope| {
        scope.spawn(|| be_busy_now_and_then(&done));
        let judged = WORKLOADS.iter().try_for_each(|workload| -> Result<()> {
            results.push(runs.judge_all(workload, &mut targets)?);
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        judged
    });
    judged?;
    let settings = json!({ "pairs": runs.pairs, "runs_of_each": RUNS, "seconds": runs.seconds,
        "connections": runs.sockets, "busy_and_pausing_ms": SPELLS_MS });
    report::finish(&bench.out, "compare", settings, json!(results), &targets)
}

const WORSE: &str = "worse";
const NOT_WORSE: &str = "not worse";
const UNDECIDED: &str = "undecided";
/// Runs that are not compared, as their generator was saturated.
const REFUSED: &str = "refused";

/// Name, scheme and path.
type Workload = (&'static str, &'static str, &'static str);

/// All runs are of one server.
struct Runs<'a> {
    bench: &'a Context,
    pairs: usize,
    seconds: f64,
    sockets: usize,
    folder: PathBuf,
    server: Server,
}

impl Runs<'_> {
    /// Makes and judges the pairs of a workload.
    fn judge_all(&self, workload: &Workload, targets: &mut Vec<Target>) -> Result<Value> {
        let (name, pairs) = (workload.0, self.pairs);
        println!(
            "\n=== compare, {name}: {pairs} pairs of {RUNS} + {RUNS} runs of {} s",
            self.seconds
        );
        let mut verdicts = Vec::new();
        for pair in 1..=pairs {
            let files = (0..2 * RUNS).map(|run| self.fit(workload, pair, run));
            let files = files.collect::<Result<Vec<_>>>()?;
            for (order, is_first) in ORDERS {
                let (verdict, worse) = self.judge(&files, is_first)?;
                println!("pair {pair:>2}  {order:<20} {verdict} {}", worse.join(" "));
                verdicts.push((order, verdict, worse));
            }
        }
        for (order, _) in ORDERS {
            let count =
                |wanted| verdicts.iter().filter(|one| (one.0, one.1) == (order, wanted)).count();
            let [worse, not_worse, undecided, refused] =
                [WORSE, NOT_WORSE, UNDECIDED, REFUSED].map(count);
            println!(
                "{name}, {order}: {worse} worse, {not_worse} not worse, {undecided} undecided, \
                 {refused} refused"
            );
            let judged = pairs - refused;
            let what = format!("{name}, {order}: pairs that are WORSE, of {judged} judged");
            let most = (judged as f64 * FALSE_ALARMS_MOST).max(1.0).floor();
            targets.push(Target::at_most(what, worse as f64, most));
        }
        Ok(json!({ "workload": name, "pairs": verdicts }))
    }

    /// A run whose generator was not saturated, if there is one in a few. Returns the file of its result.
    fn fit(&self, workload: &Workload, pair: usize, run: usize) -> Result<PathBuf> {
        let mut attempts = 1;
        loop {
            let file = self.load(workload, pair, run)?;
            let result: Value = serde_json::from_slice(&fs::read(&file)?)?;
            if attempts == ATTEMPTS || result["generator"]["saturated"] != true {
                return Ok(file);
            }
            attempts += 1;
        }
    }

    /// One run of the generator.
    fn load(&self, (_, scheme, path): &Workload, pair: usize, run: usize) -> Result<PathBuf> {
        let file = self.folder.join(format!("{scheme}-{pair}-{run}.json"));
        let url = format!("{scheme}://127.0.0.1:{}{path}", self.server.port());
        let mut load = Command::new(self.bench.tools.standfast());
        load.args(["load", &url, "--plain", "--connections", &self.sockets.to_string()]);
        load.args(["--duration", &format!("{}s", self.seconds), "--json"]).arg(&file);
        let finished = load.output().context("cannot start load")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, errors) = (text(&finished.stdout), text(&finished.stderr));
        ensure!(finished.status.success(), "{url}: {printed}{errors}");
        Ok(file)
    }

    /// The verdict on one order of the runs, and the figures that are worse.
    fn judge(
        &self,
        files: &[PathBuf],
        is_first: fn(usize) -> bool,
    ) -> Result<(&'static str, Vec<String>)> {
        let side = |first: bool| {
            let files = files.iter().enumerate().filter(|(run, _)| is_first(*run) == first);
            files.map(|(_, file)| file.display().to_string()).collect::<Vec<_>>().join(",")
        };
        let mut compare = Command::new(self.bench.tools.standfast());
        compare.args(["load", "compare", &side(true), &side(false), "--json", "-"]);
        let finished = compare.output().context("cannot start compare")?;
        let errors = String::from_utf8_lossy(&finished.stderr);
        match finished.status.code() {
            Some(0 | 1) => {}
            Some(2) if errors.contains("saturated") => return Ok((REFUSED, Vec::new())),
            _ => bail!("load compare: {errors}"),
        }
        let comparison: Value = serde_json::from_slice(&finished.stdout)?;
        let figures = comparison["figures"].as_array().context("a comparison has figures")?;
        let errors = json!({ "figure": "errors", "verdict": comparison["errors"]["verdict"] });
        let of = |verdict: &str| -> Vec<String> {
            let all = figures.iter().chain([&errors]).filter(|row| row["verdict"] == verdict);
            all.filter_map(|row| row["figure"].as_str().map(str::to_owned)).collect()
        };
        let worse = of("worse");
        Ok(match () {
            () if !worse.is_empty() => (WORSE, worse),
            () if !of("undecided").is_empty() => (UNDECIDED, Vec::new()),
            () => (NOT_WORSE, Vec::new()),
        })
    }
}

/// Uses a core for a while, pauses, and so on.
fn be_busy_now_and_then(done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let [busy, pause, ..] = shuffled(&SPELLS_MS)[..] else { return };
        let begun = Instant::now();
        let mut sum = 0_u64;
        while begun.elapsed() < Duration::from_millis(busy) && !done.load(Ordering::Relaxed) {
            sum = (0..10_000).fold(sum, |sum, value| black_box(sum ^ value));
        }
        thread::sleep(Duration::from_millis(pause));
    }
}
