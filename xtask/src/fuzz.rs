//! `cargo xtask fuzz`: builds the targets of `fuzz/` with the compiler's coverage counters and runs
//! libFuzzer on them.
//!
//! The counters are LLVM options that every toolchain accepts, so stable Rust is enough and `cargo-fuzz`
//! is not needed; the address sanitizer (`--address`) needs nightly. libFuzzer's corpus stays in the
//! target folder; only `fuzz/seeds` is committed.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::step;

/// Time for each target in the suite: 12 s of CPU, as what runs at a higher priority takes a quarter.
const SUITE_SECONDS: u64 = 16;
/// libFuzzer's random seed in the suite. With an empty corpus the same executable tries nearly the same inputs
/// on every machine, so what fails in one run of the suite fails in the next.
const SUITE_SEED: u32 = 1;
/// An input that takes longer is a failure.
const TIMEOUT_SECONDS: u32 = 10;
/// A process that uses more is a failure: no input needs much memory, whatever length it announces.
const MEMORY_MIB: u32 = 512;
/// Longest input.
const INPUT_BYTES: u32 = 4096;
/// The options for the instrumentation (LLVM's SanitizerCoverage).
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Which targets to run, and for how long.
#[derive(Args)]
pub(crate) struct FuzzArgs {
    /// Targets: names of files in fuzz/targets [default: all]
    targets: Vec<String>,
    /// Minutes for each target
    #[arg(long, value_name = "N", default_value_t = 1)]
    minutes: u64,
    /// Run one target once with this input instead
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Use the address sanitizer; needs the nightly toolchain
    #[arg(long)]
    address: bool,
    /// As in the suite: for a short time, from the committed seeds alone, the same on every machine
    #[arg(long, hide = true)]
    suite: bool,
}

/// Runs the targets. Returns whether no target failed.
pub(crate) fn run(args: &FuzzArgs) -> Result<bool> {
    if args.suite {
        return suite();
    }
    let mut targets = targets()?;
    for named in &args.targets {
        let known = targets.join(", ");
        ensure!(targets.contains(named), "unknown target {named}: expected one of {known}");
    }
    if !args.targets.is_empty() {
        targets.retain(|target| args.targets.contains(target));
    }
    let folder = build(args.address)?;
    if let Some(input) = &args.input {
        let [target] = targets.as_slice() else { bail!("--input needs the name of one target") };
        return Ok(Command::new(folder.join(target)).arg(input).status()?.success());
    }
    Ok(run_all(&folder, targets, args.minutes * 60, None)?.iter().all(|good| *good))
}

/// Runs every target for a short time, from its seeds alone.
fn suite() -> Result<bool> {
    println!("{SUITE_SECONDS} s a target");
    let good = run_all(&build(false)?, targets()?, SUITE_SECONDS, Some(SUITE_SEED))?;
    let failed = good.iter().filter(|good| !**good).count();
    // Read by the suite.
    println!("test result: {} passed; {failed} failed; 0 ignored", good.len() - failed);
    Ok(failed == 0)
}

/// The command that builds all targets, for the suite.
pub(crate) fn build_command() -> Result<Command> {
    Ok(building(false)?.0)
}

fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(step::root().join("fuzz/targets"))? {
        names.extend(entry?.path().file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The folder for everything that is not committed.
fn work_folder() -> PathBuf {
    step::target_folder().join("fuzz")
}

/// Builds all targets. Returns their folder.
fn build(address: bool) -> Result<PathBuf> {
    let (mut cargo, folder) = building(address)?;
    ensure!(
        cargo.status().context("cannot start the build")?.success(),
        "the fuzz targets do not build{}",
        if address { ": rustup toolchain install nightly" } else { "; they need a C++ compiler" }
    );
    Ok(folder)
}

/// The command that builds all targets, and their folder.
fn building(address: bool) -> Result<(Command, PathBuf)> {
    let host = host()?;
    let (mut cargo, mut flags) = (step::cargo(&[]), COVERAGE.to_owned());
    let mut work = work_folder();
    if address {
        cargo = Command::new("rustup");
        cargo.args(["run", "nightly", "cargo"]).current_dir(step::root());
        flags.push_str(" -Zsanitizer=address");
        work.push("address");
    }
    cargo.args(["build", "--release", "--locked", "--manifest-path", "fuzz/Cargo.toml"]);
    // With --target the flags apply to the targets and not to build scripts.
    cargo.args(["--target", &host]).arg("--target-dir").arg(&work).env("RUSTFLAGS", flags);
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTUP_TOOLCHAIN");
    Ok((cargo, work.join(host).join("release")))
}

/// The name of this machine's target, from the compiler.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Runs the targets, as many at a time as there are cores. Which of them did not fail.
fn run_all(
    folder: &Path,
    targets: Vec<String>,
    seconds: u64,
    seed: Option<u32>,
) -> Result<Vec<bool>> {
    let queue = Mutex::new(VecDeque::from(targets));
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    let lanes = thread::available_parallelism().map_or(1, usize::from);
    let lane = || {
        let mut found = Vec::new();
        while let Some(target) = next() {
            found.push(fuzz(folder, &target, seconds, seed));
        }
        found
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_default()).collect()
    })
}

/// Runs one target from its committed seeds and the corpus of earlier runs, or from the committed ones alone
/// if libFuzzer gets a random seed. Returns whether it did not fail.
fn fuzz(folder: &Path, target: &str, seconds: u64, seed: Option<u32>) -> Result<bool> {
    let (seeds, dictionary) = (format!("fuzz/seeds/{target}"), dictionary(target));
    let corpus = work_folder().join(if seed.is_some() { "suite" } else { "corpus" }).join(target);
    if seed.is_some() && corpus.exists() {
        fs::remove_dir_all(&corpus)?;
    }
    let findings = work_folder().join("findings").join(target);
    let log = work_folder().join(format!("{target}.log"));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&findings)?;
    let mut command = Command::new(folder.join(target));
    command.current_dir(step::root()).arg(&corpus).arg(&seeds).args(dictionary);
    command.arg(format!("-max_total_time={seconds}"));
    command.args(seed.map(|seed| format!("-seed={seed}")));
    command.arg(format!("-timeout={TIMEOUT_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB}"));
    command.arg(format!("-max_len={INPUT_BYTES}"));
    command.arg(format!("-artifact_prefix={}/", findings.display()));
    let output = File::create(&log)?;
    command.stdout(output.try_clone()?).stderr(output);
    let good = command.status().with_context(|| format!("cannot start {target}"))?.success();
    let output = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if good {
        println!("ok     {target:<20} {}", figures(&output));
    } else {
        println!("FAILED {target:<20} {}", explain(target, &output, &log));
    }
    Ok(good)
}

/// Words that are hard to find by chance, for the targets that read text.
fn dictionary(target: &str) -> Option<String> {
    let file = match target {
        "request_head"
        | "response_head"
        | "http_body"
        | "server_machine"
        | "client_machine"
        | "proxy_relay"
        | "handshake_extensions" => "http",
        "config" | "routes" => "config",
        "cable" | "cable_encodings" | "positions" => "cable",
        "app_answers" => "answers",
        _ => return None,
    };
    Some(format!("-dict=fuzz/dictionaries/{file}.dict"))
}

/// From libFuzzer's last lines: the runs, and the edges of the code that were covered.
fn figures(output: &str) -> String {
    let word_after = |mark: &str| {
        output.lines().rev().find_map(|line| line.split(mark).nth(1)?.split_whitespace().next())
    };
    let (runs, covered) = (word_after("Done ").unwrap_or("?"), word_after(" cov: ").unwrap_or("?"));
    format!("{runs} runs, {covered} edges covered")
}

/// What failed, with which input, and how to repeat it.
fn explain(target: &str, output: &str, log: &Path) -> String {
    let mut lines = output.lines();
    let panic = lines.find(|line| line.contains(" panicked at ")).unwrap_or("no panic");
    let what = lines.next().unwrap_or_default();
    let after = |mark: &str| output.lines().find_map(|line| line.split(mark).nth(1));
    let input = after("Base64: ").map_or_else(String::new, |text| format!("input: {text}\n  "));
    match after("Test unit written to ") {
        Some(file) => format!(
            "{panic} {what}\n  {input}\
             see it again: cargo xtask fuzz {target} --input {file}\n  \
             when it is mended: mv {file} fuzz/seeds/{target}/\n  \
             complete output: {}",
            log.display()
        ),
        None => format!("it ended without a failing input; its output: {}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_summarised_from_its_last_lines() {
        let output =
            "#2 INITED cov: 7 ft: 7\n#90 NEW    cov: 31 ft: 40\nDone 123 runs in 9 second(s)";
        assert_eq!(figures(output), "123 runs, 31 edges covered");
    }

    #[test]
    fn failure_is_reported_with_its_input_and_how_to_repeat_it() {
        let output = "thread 'x' panicked at src/a.rs:1:2:\nleft is not right\nstack\n\
                    artifact_prefix='f/'; Test unit written to f/crash-1\nBase64: AAEC";
        let text = explain("decoder", output, Path::new("log"));
        assert!(text.contains("src/a.rs:1:2: left is not right"), "{text}");
        assert!(text.contains("cargo xtask fuzz decoder --input f/crash-1"), "{text}");
        assert!(text.contains("input: AAEC"), "the file may be on another machine: {text}");
        assert!(explain("decoder", "killed", Path::new("log")).contains("log"));
    }

    #[test]
    fn every_target_has_seeds_and_is_in_the_manifest() {
        let manifest = fs::read_to_string(step::root().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert!(targets.len() >= 7, "{targets:?}");
        for target in targets {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
            let seeds = fs::read_dir(step::root().join("fuzz/seeds").join(&target));
            assert!(seeds.is_ok_and(|mut seeds| seeds.next().is_some()), "{target} has no seeds");
        }
    }
}
