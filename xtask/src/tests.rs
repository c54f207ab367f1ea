//! The workspace's test executables: built by cargo, run here, so that some can run beside others and
//! each test's time is known.
//!
//! Not a test framework: libtest runs the tests, as under `cargo test`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::step;

/// One executable of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestExecutable {
    /// `engine` for the unit tests of a package, `engine/at_capacity` for a file in its `tests`.
    pub(crate) name: String,
    path: PathBuf,
    /// The package's folder: where cargo runs it.
    folder: PathBuf,
}

impl TestExecutable {
    /// Runs it, with the time of each test.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(["-Zunstable-options", "--report-time"]).current_dir(&self.folder);
        if self.name == EXECUTABLE_TESTS {
            command.args(["--test-threads", &(2 * cores()).to_string()]);
        }
        // What libtest wants on a stable toolchain before it reports times. It changes no build, as
        // these tests build nothing.
        command.env("RUSTC_BOOTSTRAP", "1");
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        // `tests/harness/executable.rs` runs this instead of a debug build.
        command.env("STANDFAST_EXECUTABLE", step::release_executable());
        command
    }
}

/// The tests of the executable wait for sockets and timeouts most of their time (126 s of CPU in 712 s of
/// tests), so twice as many run at a time as there are cores.
pub(crate) const EXECUTABLE_TESTS: &str = "executable, over sockets";

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The arguments of cargo that build every test: the same for all tasks, so that nothing is built twice.
pub(crate) const BUILD: [&str; 3] = ["test", "--workspace", "--no-run"];

/// Builds the tests that `selection` (such as `--lib`) names, every one without it.
///
/// # Errors
/// When a test does not compile; the compiler's messages are on standard error.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<TestExecutable>> {
    let mut cargo = step::cargo(&BUILD);
    cargo.args(selection).args(["--quiet", "--message-format=json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8(output.stdout)?;
    let mut executables: Vec<TestExecutable> = messages.lines().filter_map(read).collect();
    executables.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(executables)
}

/// Reads a message of cargo (<https://doc.rust-lang.org/cargo/reference/external-tools.html>) about a
/// test executable.
fn read(message: &str) -> Option<TestExecutable> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let target = &message["target"];
    let name = match target["kind"][0].as_str()? {
        "test" if target["name"] == "standfast" => EXECUTABLE_TESTS.to_owned(),
        "test" => format!("{}/{}", folder.file_name()?.to_str()?, target["name"].as_str()?),
        "bin" => format!("{}, units", target["name"].as_str()?),
        _ => target["name"].as_str()?.to_owned(),
    };
    Some(TestExecutable { name, path: message["executable"].as_str()?.into(), folder })
}

#[cfg(test)]
mod reading {
    use super::*;

    #[test]
    fn only_test_executables_are_read_from_cargos_messages() {
        let message = |test: bool, kind: &str| {
            format!(
                r#"{{"reason": "compiler-artifact", "manifest_path": "/r/crates/engine/Cargo.toml",
                "target": {{"kind": ["{kind}"], "name": "raw"}}, "profile": {{"test": {test}}},
                "executable": "/t/raw-1"}}"#
            )
        };
        let executable = read(&message(true, "test")).unwrap();
        assert_eq!(executable.name, "engine/raw");
        assert_eq!(executable.folder, PathBuf::from("/r/crates/engine"));
        assert_eq!(read(&message(true, "lib")).unwrap().name, "raw");
        assert_eq!(read(&message(true, "bin")).unwrap().name, "raw, units");
        assert_eq!(read(&message(false, "test")), None);
        assert_eq!(read(r#"{"reason": "build-finished", "success": true}"#), None);
    }
}
