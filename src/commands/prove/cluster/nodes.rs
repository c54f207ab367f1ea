//! The nodes of a proof: processes of `standfast serve` that are killed, stopped and started again at the same
//! address, and what they tell about gaps meanwhile.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use engine::sys::process::now_ns;
use rustix::process::{Pid, Signal, kill_process};

use super::evidence::Tell;
use super::publish;
use crate::commands::prove::child;

/// Lines of a node's log that are kept for error messages.
const LINES_KEPT: usize = 50;
/// How often the metrics of nodes are read.
const POLL: Duration = Duration::from_millis(250);
/// What counts gaps.
const GAPS: &str = "standfast_pubsub_gaps_total";

/// One node.
pub(super) struct Node {
    pub(super) number: usize,
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    arguments: Vec<String>,
    child: Option<Child>,
    log: Arc<Log>,
}

/// The last lines of a node's log, and all of them in a file if that is wanted.
struct Log {
    last: Mutex<VecDeque<String>>,
    file: Option<Mutex<File>>,
}

impl Node {
    /// Starts a node at these ports of the host.
    ///
    /// # Errors
    /// A node that does not start, with the end of its log.
    pub(super) fn start(
        number: usize,
        host: Ipv4Addr,
        further: Vec<String>,
        logs: Option<&Path>,
    ) -> Result<Node> {
        let port = |base: u16| SocketAddr::new(host.into(), base + number as u16);
        let (listen, admin) = (port(7_000), port(7_100));
        let mut arguments: Vec<String> =
            ["serve", "--ready-json", "--end-with-parent", "--drain=0s", "--log=info", "--public"]
                .map(String::from)
                .to_vec();
        arguments.extend([format!("--listen={listen}"), format!("--admin={admin}")]);
        arguments.extend(further);
        let file = logs.map(|folder| {
            let path = folder.join(format!("node-{}.log", number + 1));
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))
        });
        let file = file.transpose()?.map(Mutex::new);
        let log = Arc::new(Log { last: Mutex::default(), file });
        let mut node = Node { number, listen, admin, arguments, child: None, log };
        node.restart()?;
        Ok(node)
    }

    /// Starts it again.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub(super) fn restart(&mut self) -> Result<()> {
        let log = Arc::clone(&self.log);
        let started = child::start_logged(&self.arguments, move |line| log.keep(line));
        let (child, _) = started
            .map_err(|error| anyhow!("node {}: {error:#}\n{}", self.number + 1, self.log.end()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the process, or lets it go on.
    pub(super) fn set_stopped(&self, is_stopped: bool) {
        let signal = if is_stopped { Signal::STOP } else { Signal::CONT };
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        if let Some(pid) = pid {
            // It fails only for a process that has ended, which is noticed anyway.
            let _ = kill_process(pid, signal);
        }
    }

    /// Its exit status and the end of its log, if it has ended by itself.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(format!("node {} ended by itself: {status}; {}", self.number + 1, self.log.end()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Log {
    fn keep(&self, line: String) {
        if let Some(file) = &self.file {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(file, "{} {line}", now_ns() / 1_000_000);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= LINES_KEPT {
            last.pop_front();
        }
        last.push_back(line);
    }

    fn end(&self) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = last.iter().rev().take(3).rev().map(String::as_str).collect();
        if lines.is_empty() { "no output".to_owned() } else { lines.join("\n") }
    }
}

/// Reads the gap counters of all nodes while the proof runs, one thread per node: a stopped one does not
/// answer.
pub(super) struct Watch {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Watched>,
}

#[derive(Default)]
struct Watched {
    tells: Mutex<Vec<Tell>>,
    stops: AtomicBool,
}

impl Watch {
    /// # Errors
    /// A thread that cannot be started.
    pub(super) fn start(nodes: &[Node]) -> Result<Watch> {
        let shared = Arc::new(Watched::default());
        let mut threads = Vec::new();
        for node in nodes {
            let (number, admin, shared) = (node.number, node.admin, Arc::clone(&shared));
            let watch = move || watch(number, admin, &shared);
            let thread = thread::Builder::new().name("watch".into()).spawn(watch);
            threads.push(thread.context("cannot start a thread")?);
        }
        Ok(Watch { threads, shared })
    }

    /// Reads them once more and returns what was told.
    pub(super) fn finish(self) -> Vec<Tell> {
        self.shared.stops.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        std::mem::take(&mut *self.shared.tells.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn watch(node: usize, admin: SocketAddr, shared: &Watched) {
    let mut before = 0;
    loop {
        let is_last = shared.stops.load(Ordering::Relaxed);
        match publish::metrics(admin) {
            Ok(text) => {
                let gaps = gaps(&text);
                if gaps > before {
                    let tell = Tell { node, at_ns: now_ns() };
                    shared.tells.lock().unwrap_or_else(PoisonError::into_inner).push(tell);
                }
                before = gaps;
            }
            // A node that was killed counts from zero again; a stopped one does not answer, and goes on.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => before = 0,
            Err(_) => {}
        }
        if is_last {
            return;
        }
        thread::sleep(POLL);
    }
}

/// The sum over all labels.
fn gaps(metrics: &str) -> u64 {
    let rows = metrics.lines().filter_map(|line| line.strip_prefix(GAPS));
    let values = rows
        .filter(|row| row.starts_with([' ', '{']))
        .filter_map(|row| row.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()));
    values.sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_summed_over_their_labels() {
        let text = "# HELP standfast_pubsub_gaps_total Gaps\nstandfast_pubsub_gaps_total 2\n\
                    standfast_pubsub_gaps_total{reason=\"hole\"} 3\nstandfast_pubsub_gaps_totals 9\n";
        assert_eq!((gaps(text), gaps("")), (5, 0));
    }
}
