//! Child processes: this executable with other arguments, which writes lines of JSON to standard output.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capacity::ProcessMemory;
use engine::sys::process;
use load::Usage;
use serde_json::Value;

use crate::commands::fleet::own_file;
use crate::report::screen;

/// Time limit for a child process to become ready.
pub(in crate::commands) const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a child process to end after it was told to.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A child process, the JSON lines of its standard output, and the thread that forwards its standard
/// error to the screen.
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) lines: Receiver<Value>,
    stderr: JoinHandle<()>,
}

impl Started {
    /// Kills the process and forwards the rest of its standard error.
    pub(super) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.stderr.join();
    }
}

/// This executable with `arguments`; `before` is a command prefix, such as `ip netns exec`.
pub(super) fn command(before: &[String], arguments: &[String]) -> Result<Command> {
    let mut words = before.iter().map(OsString::from).chain([own_file()?.into()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).args(arguments);
    Ok(command)
}

/// Starts a command of [`command`]. The child has its own process group, so Ctrl-C reaches only the proof, which
/// then ends its children in order. Each line of its standard error is passed on.
pub(super) fn start(
    mut command: Command,
    pass_on: impl Fn(String) + Send + 'static,
) -> Result<Started> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    let stdout = child.stdout.take().context("the child has no standard output")?;
    let stderr = child.stderr.take().context("the child has no standard error")?;
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Ok(value) = serde_json::from_str(&line)
                && sender.send(value).is_err()
            {
                return;
            }
        }
    });
    let stderr = std::thread::spawn(move || {
        BufReader::new(stderr).lines().map_while(Result::ok).for_each(pass_on);
    });
    Ok(Started { child, lines, stderr })
}

/// Starts this executable and returns its first JSON line. Its standard error goes through the screen, which
/// may own the terminal.
pub(super) fn start_and_wait(arguments: &[String]) -> Result<(Child, Value)> {
    start_logged(arguments, screen::aside)
}

/// The same with the lines of its standard error passed on.
pub(super) fn start_logged(
    arguments: &[String],
    pass_on: impl Fn(String) + Send + 'static,
) -> Result<(Child, Value)> {
    let started = start(command(&[], arguments)?, pass_on)?;
    match started.lines.recv_timeout(READY_TIMEOUT) {
        Ok(ready) => Ok((started.child, ready)),
        Err(_) => {
            started.kill();
            bail!("the process did not start; see its messages above");
        }
    }
}

/// Waits for a child that was told to end; kills it after the time limit. Calls `look` from time to time.
pub(super) fn reap(child: &mut Child, look: &mut dyn FnMut()) {
    let deadline_ns = process::now_ns() + END_TIMEOUT.as_nanos() as u64;
    while process::now_ns() < deadline_ns {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        look();
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Memory and CPU time of a process; `None` if it cannot be read.
pub(in crate::commands) fn usage_of(pid: u32) -> Option<Usage> {
    let memory = ProcessMemory::of(pid).ok()?;
    Some(Usage { rss_bytes: memory.rss_bytes, cpu_seconds: memory.cpu_seconds })
}
