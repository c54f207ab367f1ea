//! One step of a chore: a command, run in the repository's root, and how many tests it passed.
//!
//! Not a build system: steps know nothing of each other. libtest's result lines are read from
//! the step's standard output; a step that prints none counts as one test.

use std::env;
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

/// The cargo that runs this chore, about to run in the repository's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Where cargo builds.
pub(crate) fn target_folder() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Where `cargo build --release` puts the executable.
pub(crate) fn release_executable() -> PathBuf {
    target_folder().join("release/standfast")
}

/// Whether `command` starts and succeeds; nothing it prints is shown.
pub(crate) fn succeeds(mut command: Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether this run may skip nothing: the environment says `CI`.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Runs `command` to its end, showing its output as it comes.
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
}
