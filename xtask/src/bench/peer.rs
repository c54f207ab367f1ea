//! A child process that writes one JSON object per line to its standard output.
//!
//! Every wait is bounded, and a child is killed when its owner drops it. Not a shell: arguments are
//! passed unchanged. `taskset` can pin it to one core; that replaces itself with the program, so the
//! child's process id is the program's.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::proc;

/// Which core a process may use. Servers and clients get one each, so that neither takes CPU from the
/// other.
#[derive(Clone, Copy)]
pub(super) enum Core {
    Server,
    Client,
    Any,
}

/// A running child.
pub(super) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl Peer {
    /// Starts `words`.
    pub(super) fn start(name: &str, core: Core, words: &[OsString]) -> Result<Peer> {
        Peer::start_logging_to(name, core, words, Stdio::inherit())
    }

    /// The same with its standard error to `log`.
    pub(super) fn start_logging_to(
        name: &str,
        core: Core,
        words: &[OsString],
        log: Stdio,
    ) -> Result<Peer> {
        let mut all = pinning(core);
        all.extend(words.iter().cloned());
        let (program, args) = all.split_first().context("nothing to start")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().context("no pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Peer { stdin: child.stdin.take(), child, lines, name: name.to_owned() })
    }

    /// The process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends one command line.
    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("standard input is closed")?;
        writeln!(stdin, "{line}").with_context(|| format!("{} has ended", self.name))
    }

    /// The next line, as JSON.
    pub(super) fn receive(&mut self, within: Duration) -> Result<Value> {
        match self.lines.recv_timeout(within) {
            Ok(line) => serde_json::from_str(&line)
                .with_context(|| format!("{} printed a line that is not JSON: {line}", self.name)),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{} printed nothing for {} s", self.name, within.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("{} ended early ({})", self.name, self.child.wait()?)
            }
        }
    }

    /// Sends one command line and reads the response.
    pub(super) fn request(&mut self, line: &str, within: Duration) -> Result<Value> {
        self.send(line)?;
        self.receive(within)
    }

    /// Whether the process still runs.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Peer {
    /// Closes its input, which ends a client, and kills what still runs after that.
    fn drop(&mut self) {
        drop(self.stdin.take());
        for _ in 0..100 {
            if !self.is_running() {
                return;
            }
            // Servers do not read their input and are killed at once.
            if self.name.starts_with("server") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The words of an argument list.
pub(super) fn words<const N: usize>(list: [&dyn AsRef<std::ffi::OsStr>; N]) -> Vec<OsString> {
    list.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// The arguments that pin a program to its core.
pub(super) fn pinning(core: Core) -> Vec<OsString> {
    let last = proc::cores().saturating_sub(1);
    let cpu = match core {
        Core::Any => return Vec::new(),
        Core::Server => 0,
        Core::Client => last,
    };
    if last == 0 { Vec::new() } else { words([&"taskset", &"-c", &cpu.to_string()]) }
}
