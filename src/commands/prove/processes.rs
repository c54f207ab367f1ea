//! The two processes of a proof: `serve`, which prints one JSON line when it is ready, and `load`,
//! which is controlled by JSON lines (see `load::control`).

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{self as child_process, Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use capacity::{Goal, Limit, Machine, Role};
use engine::sys::process;
use serde_json::{Value, json};

use super::broadcast::Admin;
use super::link::{self, Namespaces};
use super::phases::Stop;
use super::plan::Plan;
use crate::commands::load::connect_flag;
use crate::report::screen;
use load::control::{Command, Event, Finish, ProgressRow};
use load::{Latency, Outcome, SampleLatency};

/// The topic that every socket subscribes to.
pub(super) const TOPIC: &str = "prove";
/// Time limit for a child process to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a child process to end after it was told to.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Connection limit of the server above the number that is held.
const CONNECTION_RESERVE: u64 = 1_000;

/// A child process, the JSON lines of its standard output, and the thread that forwards its standard
/// error to the screen.
struct Started {
    child: Child,
    lines: Receiver<Value>,
    stderr: JoinHandle<()>,
}

impl Started {
    /// Kills the process and forwards the rest of its standard error.
    fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.stderr.join();
    }
}

/// Starts this executable with `arguments`; `before` is a command prefix, such as `ip netns exec`. The
/// child has its own process group, so Ctrl-C reaches only the proof, which then ends its children in
/// order. Each line of its standard error is passed on.
fn start(
    before: &[String],
    arguments: &[String],
    pass_on: impl Fn(String) + Send + 'static,
) -> Result<Started> {
    let program = std::env::current_exe().context("cannot find the path of this executable")?;
    let mut words = before.iter().map(OsString::from).chain([program.into()]);
    let mut child = child_process::Command::new(words.next().unwrap_or_default())
        .args(words)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start `standfast {}`", arguments.join(" ")))?;
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
    let started = start(&[], arguments, pass_on)?;
    match started.lines.recv_timeout(READY_TIMEOUT) {
        Ok(ready) => Ok((started.child, ready)),
        Err(_) => {
            started.kill();
            bail!("the process did not start; see its messages above");
        }
    }
}

/// Waits for a child that was told to end; kills it after the time limit.
fn reap(child: &mut Child) {
    let deadline_ns = process::now_ns() + END_TIMEOUT.as_nanos() as u64;
    while process::now_ns() < deadline_ns {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Returns the server's connection limit: the held number and a reserve for connections that arrive
/// before the server has noticed that others ended, as far as its descriptor tables allow.
fn connection_limit(connections: u64) -> u64 {
    let private_tables = process::private_tables_work();
    let goal = Goal { private_tables, ..Goal::new(Role::Serve, connections + CONNECTION_RESERVE) };
    let needs = capacity::check(&Machine::read(), &goal).needs;
    let tables = needs.iter().find(|need| need.limit == Limit::OpenFiles);
    goal.connections.min(tables.map_or(u64::MAX, |need| need.fits)).max(1)
}

/// The server process.
pub(super) struct Serve {
    child: Child,
    listen: SocketAddr,
    admin: Admin,
}

impl Serve {
    pub(super) fn start(
        connections: u64,
        plan: &Plan,
        namespaces: Option<&Namespaces>,
    ) -> Result<Serve> {
        let socket = std::env::temp_dir().join(format!("standfast-prove-{}", std::process::id()));
        let max = format!("--max-connections={}", connection_limit(connections));
        let mut arguments = [
            "serve",
            "--ready-json",
            "--end-with-parent",
            "--drain=0s",
            "--log=warn",
            "--echo",
            &max,
        ]
        .map(String::from)
        .to_vec();
        match namespaces {
            // Its loopback is not reachable from here, a UNIX socket is.
            Some(_) => arguments.extend([
                format!("--listen={}:0", link::SERVER),
                format!("--admin=unix:{}", socket.display()),
                "--public".into(),
            ]),
            None => {
                arguments.extend(["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"].map(String::from))
            }
        }
        arguments.extend(plan.serve.iter().cloned());
        let before = namespaces.map(Namespaces::at_server).unwrap_or_default();
        let started = start(&before, &arguments, screen::aside)?;
        let Ok(ready) = started.lines.recv_timeout(READY_TIMEOUT) else {
            started.kill();
            bail!("the server did not start; see its messages above");
        };
        let address = |key: &str| {
            let text = ready[key].as_str().and_then(|text| text.parse().ok());
            text.ok_or_else(|| anyhow!("the server's ready line lacks `{key}`: {ready}"))
        };
        let admin = match namespaces {
            Some(_) => Admin::Unix(socket),
            None => Admin::Tcp(address("admin")?),
        };
        Ok(Serve { listen: address("listen")?, admin, child: started.child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Returns the URL for the clients of this plan.
    pub(super) fn url(&self, plan: &Plan) -> String {
        let listen = self.listen;
        match (plan.cable, plan.messages) {
            (true, _) => format!("cable://{listen}/cable"),
            (false, Some(_)) => format!("ws://{listen}/echo"),
            (false, None) => format!("ws://{listen}/topics/{TOPIC}"),
        }
    }

    pub(super) fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Returns the exit status if the process has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Kills the server and waits for both processes. Nothing is measured any more, so the server
    /// need not notice each of a million closed sockets: the kernel frees both ends at the same time.
    pub(super) fn end_with(&mut self, load: &mut Load) {
        let _ = self.child.kill();
        reap(&mut load.child);
        reap(&mut self.child);
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last progress report of the load process.
#[derive(Clone, Default, Debug)]
pub(super) struct Progress {
    pub(super) row: ProgressRow,
    reached: u64,
    /// Seconds from the last target to the last connection that opened.
    pub(super) connecting_seconds: f64,
    echoed: bool,
    churned: bool,
}

impl Progress {
    /// Returns whether all connects up to `mark` have succeeded or failed.
    pub(super) fn reached(&self, mark: u64) -> bool {
        self.reached >= mark
    }

    /// Returns whether all subscriptions of a churn have been checked.
    pub(super) fn churned(&self) -> bool {
        self.churned
    }

    /// Returns whether all requested messages were answered or timed out.
    pub(super) fn echoed(&self) -> bool {
        self.echoed
    }

    /// Latency of the last full second.
    pub(super) fn latency(&self) -> Option<SampleLatency> {
        let Latency { p50_ms, p99_ms, max_ms, .. } = self.row.last_second?;
        Some(SampleLatency { p50_ms, p99_ms, max_ms })
    }
}

/// The load process.
pub(super) struct Load {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<Value>,
    progress: Progress,
    expecting: bool,
}

impl Load {
    pub(super) fn start(
        url: &str,
        connections: u64,
        plan: &Plan,
        admin: &Admin,
        namespaces: Option<&Namespaces>,
    ) -> Result<Load> {
        let connections = format!("--connections={connections}");
        let connect = format!("--connect={}", connect_flag(plan.connect));
        let mut arguments = ["load", url, "--control", "--force", &connections, &connect]
            .map(String::from)
            .to_vec();
        if let Some(churn) = &plan.churn {
            arguments.extend(churn.flags(plan.hold, admin));
        } else if plan.cable {
            let channel = json!({ "channel": "$pubsub", "stream_name": TOPIC });
            arguments.push(format!("--channel={channel}"));
        }
        if let Some(time) = plan.stale_after {
            arguments.push(format!("--stale-after={}ms", time.as_millis()));
        }
        let sources = namespaces.map(Namespaces::sources).unwrap_or_default();
        arguments.extend(sources.iter().map(|source| format!("--source={source}")));
        let before = namespaces.map(Namespaces::at_clients).unwrap_or_default();
        let started = start(&before, &arguments, screen::aside)?;
        if started.lines.recv_timeout(READY_TIMEOUT).is_err() {
            started.kill();
            bail!("the load process did not start; see its messages above");
        }
        let Started { mut child, lines, .. } = started;
        let stdin = child.stdin.take().context("the load process has no standard input")?;
        let progress = Progress::default();
        Ok(Load { child, stdin, lines, progress, expecting: false })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens sockets up to this number.
    pub(super) fn target(&mut self, connections: u64) -> Result<(), Stop> {
        self.send(&Command::Target(connections))
    }

    /// Starts heartbeats, one per socket and period.
    pub(super) fn heartbeat(&mut self, period: Duration) -> Result<(), Stop> {
        self.send(&Command::Heartbeat(period.as_secs_f64()))
    }

    /// Sends `messages` echo messages on every open socket, `rate` per second over all.
    pub(super) fn echo(&mut self, size: usize, rate: u64, messages: u32) -> Result<(), Stop> {
        self.progress.echoed = false;
        self.send(&Command::Echo { size, rate, messages })
    }

    /// Sends `messages` echo messages on every open socket, each after the last came back, then
    /// replaces the socket; repeats this for `time`.
    pub(super) fn turnover(
        &mut self,
        size: usize,
        messages: u32,
        time: Duration,
    ) -> Result<(), Stop> {
        self.progress.echoed = false;
        let seconds = time.as_secs_f64();
        self.send(&Command::Turnover { size, messages, seconds })
    }

    /// Starts the churn that its flags describe.
    pub(super) fn churn(&mut self) -> Result<(), Stop> {
        self.send(&Command::Churn)
    }

    /// Makes every open socket expect `messages` broadcasts of one publisher, and waits until it does.
    pub(super) fn expect(&mut self, publisher: u32, messages: u32) -> Result<(), Stop> {
        self.send(&Command::Expect { publisher, messages })?;
        while !self.expecting {
            self.progress(Duration::from_millis(250))?;
        }
        Ok(())
    }

    fn send(&mut self, command: &Command) -> Result<(), Stop> {
        let command =
            serde_json::to_string(command).map_err(|error| Stop::Broken(error.to_string()))?;
        writeln!(self.stdin, "{command}")
            .and_then(|()| self.stdin.flush())
            .map_err(|error| Stop::Broken(format!("cannot write to the load process: {error}")))
    }

    pub(super) fn last_progress(&self) -> &Progress {
        &self.progress
    }

    /// Waits at most `wait` for a report and returns the progress.
    pub(super) fn progress(&mut self, wait: Duration) -> Result<&Progress, Stop> {
        match self.lines.recv_timeout(wait) {
            Ok(line) => self.update(event(line).map_err(Stop::Broken)?),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let how = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                return Err(Stop::Broken(format!("load ended during the proof: {how}")));
            }
        }
        Ok(&self.progress)
    }

    fn update(&mut self, event: Event) {
        let progress = &mut self.progress;
        match event {
            Event::Reached { connections, open, failed, seconds } => {
                (progress.reached, progress.connecting_seconds) = (connections, seconds);
                (progress.row.open, progress.row.failed) = (open, failed);
            }
            Event::Echoed { sent, received } => {
                progress.echoed = true;
                (progress.row.messages_sent, progress.row.messages_received) = (sent, received);
            }
            Event::Churned { .. } => progress.churned = true,
            Event::Expecting { .. } => self.expecting = true,
            Event::Row(row) => progress.row = *row,
            Event::Received { received, .. } => progress.row.publications = received,
            Event::Ready { .. } | Event::Answered { .. } | Event::Error { .. } => {}
            Event::Summary(_) => {}
        }
    }

    /// Tells the process to end and returns its outcome. It may still be closing its sockets then.
    pub(super) fn finish(&mut self) -> Result<Outcome, String> {
        let sent = self.send(&Command::Finish(Finish::Abort));
        if let Err(Stop::Broken(why)) = sent {
            return Err(why);
        }
        let deadline_ns = process::now_ns() + END_TIMEOUT.as_nanos() as u64;
        while process::now_ns() < deadline_ns {
            match self.lines.recv_timeout(Duration::from_millis(250)) {
                // Its sockets are reset: a million closing handshakes would add nothing to the proof.
                Ok(line) => {
                    if let Event::Summary(outcome) = event(line)? {
                        return Ok(*outcome);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Err("the load process ended without a summary".into())
    }
}

/// Reads an event of the load process. One that it cannot read proves nothing.
fn event(line: Value) -> Result<Event, String> {
    serde_json::from_value(line)
        .map_err(|error| format!("cannot read an event of the load process: {error}"))
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
