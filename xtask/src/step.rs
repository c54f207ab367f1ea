//! One step of a task: a command, run in the repository's root; how many tests it passed, failed and
//! skipped, and the time it took.
//!
//! Not a build system: steps know nothing of each other. libtest's result lines are read from
//! the step's standard output; a step that prints none counts as one test.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) took: Duration,
}

/// The repository's root: where steps run and what paths are relative to.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_path_buf()
}

/// The cargo that runs this task, ready to run in the repository's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// The folder that cargo builds into.
pub(crate) fn target_folder() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Where `cargo build --release` puts the executable.
pub(crate) fn release_executable() -> PathBuf {
    target_folder().join("release/standfast")
}

/// Whether `command` starts and succeeds; none of its output is shown.
pub(crate) fn succeeds(mut command: Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether this run may skip nothing: the environment has `CI`.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Runs `command` to its end and shows its output as it arrives.
///
/// # Errors
/// Only when the command cannot be started or its output cannot be read.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<Outcome> {
    println!("\n=== {name}");
    let started = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let stdout = child.stdout.take().context("the step's output is not piped")?;
    let (mut passed, mut failed, mut told) = (0, 0, false);
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        if let Some((more_passed, more_failed)) = test_result(&line) {
            passed += more_passed;
            failed += more_failed;
            told = true;
        }
    }
    let success = child.wait()?.success();
    if success && !told {
        passed = 1;
    }
    if !success && failed == 0 {
        failed = 1;
    }
    Ok(Outcome { name: name.to_owned(), passed, failed, took: started.elapsed() })
}

/// Runs `command` while others run beside it: returns its output and its errors instead of showing
/// them.
///
/// # Errors
/// As of [`run`].
pub(crate) fn run_quietly(name: &str, command: &mut Command) -> Result<(Outcome, String)> {
    let started = Instant::now();
    let folder = target_folder().join("suite");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{}.log", name.replace([' ', ','], "-")));
    let log = File::create(&path)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    let said = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    let results: Vec<(u64, u64)> = said.lines().filter_map(test_result).collect();
    let mut passed = results.iter().map(|(passed, _)| passed).sum();
    let mut failed = results.iter().map(|(_, failed)| failed).sum();
    if status.success() && results.is_empty() {
        passed = 1;
    }
    if !status.success() && failed == 0 {
        failed = 1;
    }
    let outcome = Outcome { name: name.to_owned(), passed, failed, took: started.elapsed() };
    Ok((outcome, said))
}

/// The same command where it takes only the time that nobody else wants.
pub(crate) fn gently(command: &Command) -> Command {
    let mut gentle = Command::new("nice");
    gentle.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => gentle.env(name, value),
            None => gentle.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        gentle.current_dir(folder);
    }
    gentle
}

/// Reads `test result: ok. 12 passed; 0 failed; 0 ignored; …` as passed and failed.
fn test_result(line: &str) -> Option<(u64, u64)> {
    let counts = line.strip_prefix("test result: ")?;
    let count = |word: &str| {
        counts
            .split([';', '.'])
            .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
    };
    Some((count("passed")?, count("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_line_gives_both_counts() {
        let ok = "test result: ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(test_result(ok), Some((12, 3)));
        let bad = "test result: FAILED. 0 passed; 1 failed; 0 ignored; finished in 0.02s";
        assert_eq!(test_result(bad), Some((0, 1)));
        assert_eq!(test_result("test peers::node ... ok"), None);
    }

    #[test]
    fn a_step_without_result_lines_counts_once() {
        let ok = run("true", &mut Command::new("true")).unwrap();
        assert_eq!((ok.passed, ok.failed), (1, 0));
        let bad = run("false", &mut Command::new("false")).unwrap();
        assert_eq!((bad.passed, bad.failed), (0, 1));
        let said = "test result: ok. 0 passed; 0 failed; 1 ignored";
        let skipped = run("echo", Command::new("echo").arg(said)).unwrap();
        assert_eq!((skipped.passed, skipped.failed), (0, 0), "a skip is no success");
    }

    #[test]
    fn a_quiet_step_is_counted_alike_and_a_gentle_one_is_the_same_command() {
        let mut command = Command::new("sh");
        let result = "test result: ok. 2 passed; 0 failed; 0 ignored";
        command.args(["-c", "echo $SAID; nice >&2; pwd"]).env("SAID", result).current_dir("/");
        let (outcome, said) = run_quietly("quiet test", &mut gently(&command)).unwrap();
        assert_eq!((outcome.passed, outcome.failed), (2, 0));
        assert_eq!(said.lines().collect::<Vec<_>>(), [result, "19", "/"]);
        let (bad, _) = run_quietly("quiet failure", &mut Command::new("false")).unwrap();
        assert_eq!((bad.passed, bad.failed), (0, 1));
    }
}
