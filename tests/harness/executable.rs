//! Runs the built executable to its end and returns exit code, standard output and standard error.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

use serde_json::Value;

use super::eventually;

/// The result of a finished run.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Returns the run and the JSON on its standard output (`--json -`).
    ///
    /// # Panics
    /// If there is no JSON.
    pub(crate) fn with_json(self) -> (Finished, Value) {
        let document = self.json();
        (self, document)
    }

    /// Checks that the run held. A loaded machine may have sent at less than the requested rate, which is
    /// then the only reason allowed.
    ///
    /// # Panics
    /// If it fell short for another reason.
    pub(crate) fn assert_held_at_any_rate(&self) {
        let missed = |summary: Value| {
            summary["reasons"] == serde_json::json!(["the requested rate was not reached on time"])
        };
        let held = self.code == Some(0) || self.code == Some(1) && missed(self.json());
        assert!(held, "{self:?}");
    }

    /// Returns the JSON on standard output.
    ///
    /// # Panics
    /// If there is no JSON.
    pub(crate) fn json(&self) -> Value {
        let document = serde_json::from_str(&self.stdout);
        document.unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Returns a command that runs the executable with `args`.
pub(crate) fn standfast(args: &[&str]) -> Command {
    let mut command = Command::new(path());
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// As [`standfast`], with a limit of `nofile` descriptors per table.
pub(crate) fn limited(nofile: u64, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {nofile} && exec \"$0\" \"$@\"");
    command.args(["-c", &script]).arg(path()).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the executable in `STANDFAST_EXECUTABLE` (`cargo xtask test`: the release build), or else the
/// one built with the tests.
pub(crate) fn path() -> OsString {
    env::var_os("STANDFAST_EXECUTABLE").unwrap_or_else(|| env!("CARGO_BIN_EXE_standfast").into())
}

/// Returns whether the executable is a debug build, whose times mean little.
pub(crate) fn is_debug() -> bool {
    PathBuf::from(path()).components().any(|part| part.as_os_str() == "debug")
}

/// Returns a copy of the executable that every user can run.
pub(crate) fn copy_for_anybody() -> PathBuf {
    let copy = env::temp_dir().join(format!("standfast-{}", std::process::id()));
    if !copy.exists() {
        fs::copy(path(), &copy).expect("the executable can be copied");
    }
    copy
}

/// Runs the executable and waits for its end.
///
/// # Panics
/// If it does not end within [`PATIENCE`](super::PATIENCE); it is killed then.
pub(crate) fn run(args: &[&str]) -> Finished {
    run_command(standfast(args))
}

/// Runs `command`, made by [`standfast`] or [`limited`], and waits for its end.
pub(crate) fn run_command(mut command: Command) -> Finished {
    finish(Running(command.spawn().expect("the executable starts")))
}

/// Waits for the end of a run and collects its output.
pub(crate) fn finish(mut running: Running) -> Finished {
    let stdout = collect(running.0.stdout.take().expect("stdout is piped"));
    let stderr = collect(running.0.stderr.take().expect("stderr is piped"));
    let status = running.wait();
    let text = |reader: JoinHandle<String>| reader.join().expect("the reader does not panic");
    Finished { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// A child process that is killed at the end of its test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Waits for the child's end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the child process ends", || {
            status = self.0.try_wait().expect("the child is ours to wait for");
            status.is_some()
        });
        status.expect("the condition held")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the child has exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("a pipe reads");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
