//! The tests that judge mutants: the commands, and what a run with one mutant chosen says.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Mutant, Package, Verdict};
use crate::step;

/// Names the mutant that is chosen.
const SWITCH: &str = "STANDFAST_MUTATION";
/// A test hangs if it takes this many times as long as without a mutant, and this in addition: of CPU
/// time, or of time, which on a busy machine says less.
const SLOWDOWN: u32 = 4;
const CPU_PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(90);
/// Clock ticks per second in /proc (proc(5)).
const TICKS: u64 = 100;
const POLL_EVERY: Duration = Duration::from_millis(10);
/// Runs the rest of a command with at most 8 GB of memory, which a loop could fill.
pub(super) const LIMITED: [&str; 4] = ["sh", "-c", "ulimit -v 8000000 && exec \"$@\"", "sh"];
/// Stands for the module of a mutant's file in a command.
const MODULE: &str = "{module}";
/// What wire's property tests have in common in their names, and its long other tests.
const PROPERTIES: &[&str] = &["_any_reads", "_round_trip", "encoded_", "anything_"];
const LONG: &[&str] = &["bi_04_", "bi_05_", "bi_07_", "bi_13_", "every_pair", "masking_"];
/// For property tests: fewer cases than usual, always the same ones, and no search for smaller ones.
const PROPERTY_TESTS: &[(&str, &str)] = &[
    ("PROPTEST_CASES", "40"),
    ("PROPTEST_RNG_SEED", "6455"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true"),
];

/// A test that judges, and how long it takes with no mutant chosen.
pub(super) struct Judge {
    test: Vec<String>,
    time: Duration,
    pub(super) cpu: Duration,
}

/// The simulation and the tests' executables.
pub(super) fn commands(package: Package, messages: &[Value]) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for message in messages.iter().filter(|message| message["profile"]["test"] == true) {
        let Some(executable) = message["executable"].as_str() else { continue };
        if matches!(package, Package::Wire) {
            commands.extend(stages(executable, message["target"]["kind"][0] == "lib"));
            continue;
        }
        commands.push(vec![executable.to_owned(), "--quiet".to_owned()]);
    }
    let path = step::target_folder().join("debug/standfast-sim-mutants").display().to_string();
    for words in package.simulations() {
        let words = words.iter().map(|word| (*word).to_owned());
        commands.push([path.clone()].into_iter().chain(words).collect());
    }
    commands
}

/// A test executable of wire, as commands of which each does more: most mutants are found by the short
/// tests of their own module.
fn stages(executable: &str, unit_tests: bool) -> Vec<Vec<String>> {
    let stage = |words: &[&str], skipped: &[&[&str]]| -> Vec<String> {
        let skips = skipped.concat().into_iter().flat_map(|name| ["--skip", name]);
        let program = LIMITED.into_iter().chain([executable, "--quiet"]);
        program.chain(words.iter().copied()).chain(skips).map(str::to_owned).collect()
    };
    let all = stage(&[], &[]);
    if !unit_tests {
        return vec![all];
    }
    vec![stage(&[MODULE], &[PROPERTIES, LONG]), stage(&[], &[PROPERTIES]), all]
}

/// The outermost module of the mutant's file.
fn module(mutant: &Mutant) -> String {
    let path = mutant.file.iter().skip_while(|part| *part != "src").nth(1).unwrap_or_default();
    format!("{}::", path.to_string_lossy().trim_end_matches(".rs"))
}

/// Runs a test with no mutant chosen, which must pass.
pub(super) fn time(test: Vec<String>, copy: &Path) -> Result<Judge> {
    let started = Instant::now();
    let mut child = start(&test, 0, "", copy)?;
    let mut cpu = Duration::ZERO;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        cpu = cpu_time(&child).unwrap_or(cpu);
        thread::sleep(POLL_EVERY);
    };
    ensure!(status.success(), "{} fails with no mutant chosen", test.join(" "));
    Ok(Judge { test, time: started.elapsed(), cpu })
}

/// The CPU time of a child that runs, as /proc/PID/stat shows it (proc(5)).
fn cpu_time(child: &Child) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // The name before may hold spaces. The user and system times are the fields 14 and 15.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

fn start(test: &[String], number: usize, module: &str, copy: &Path) -> Result<Child> {
    let (program, words) = test.split_first().context("no test")?;
    let mut command = Command::new(program);
    let words = words.iter().map(|word| if word == MODULE { module } else { word });
    command.args(words).current_dir(copy).env(SWITCH, number.to_string());
    command.envs(PROPERTY_TESTS.iter().copied()).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.spawn()?)
}

/// Runs the tests until one finds the mutant.
pub(super) fn judge(
    number: usize,
    mutant: &Mutant,
    judges: &[Judge],
    copy: &Path,
) -> Result<Verdict> {
    let module = module(mutant);
    for judge in judges {
        let mut child = start(&judge.test, number, &module, copy)?;
        let deadline = Instant::now() + judge.time * SLOWDOWN + PATIENCE;
        let cpu_max = judge.cpu * SLOWDOWN + CPU_PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline || cpu_time(&child).is_some_and(|cpu| cpu > cpu_max) {
                child.kill()?;
                child.wait()?;
                return Ok(Verdict::Timeout);
            }
            thread::sleep(POLL_EVERY);
        };
        if !status.success() {
            return Ok(Verdict::Caught);
        }
    }
    Ok(Verdict::Missed)
}
