//! The two processes of a proof: `serve`, which prints one JSON line when it is ready, and `load`,
//! which is controlled by JSON lines (see `load::control`).

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{self as child_process, Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use capacity::{Goal, Limit, Machine, ProcessMemory, Role};
use engine::sys::process;
use serde_json::{Value, json};

use super::broadcast::Admin;
use super::link::{self, Namespaces};
use super::phases::Stop;
use super::plan::Plan;
use crate::commands::fleet::controlled::{Controlled, Halt};
use crate::commands::fleet::leader::Waited;
use crate::commands::fleet::whole::Fleet;
use crate::commands::load::connect_flag;
use crate::report::screen::{self, AgentRow};
use load::control::{Command, Event, Finish, ProgressRow};
use load::{Connect, Latency, Outcome, SampleLatency, Usage};

/// The topic that every socket subscribes to.
pub(super) const TOPIC: &str = "prove";
/// Time limit for a child process to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a child process to end after it was told to.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Connects in flight of all agents together, as many as may wait in the queue of a listener.
const IN_FLIGHT: u64 = 4_096;
/// How often agents hear of this process while it does something else.
const BEAT: Duration = Duration::from_millis(50);
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

/// Waits for a child that was told to end; kills it after the time limit. Calls `look` from time to time.
fn reap(child: &mut Child, look: &mut dyn FnMut()) {
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
                let listen = plan.listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0));
                arguments.extend([format!("--listen={listen}"), "--admin=127.0.0.1:0".into()]);
                arguments.extend((!listen.ip().is_loopback()).then(|| "--public".into()));
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
    /// need not notice each of a million closed sockets: the kernel frees both ends at the same time. That takes
    /// seconds, during which `look` is called.
    pub(super) fn end_with(&mut self, load: &mut Load<'_>, mut look: impl FnMut()) {
        let _ = self.child.kill();
        if let Generator::Process { child, .. } = &mut load.generator {
            reap(child, &mut look);
        }
        reap(&mut self.child, &mut look);
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

/// The load: a process of this machine, or the agents of a fleet.
pub(super) struct Load<'a> {
    generator: Generator<'a>,
    progress: Progress,
    expecting: bool,
    /// The agents, when their run has ended.
    fleet: Option<Fleet>,
}

enum Generator<'a> {
    Process { child: Child, stdin: ChildStdin, lines: Receiver<Value> },
    Agents(Box<Controlled<'a>>),
}

/// The command line of the load.
fn load_words(url: &str, connections: u64, plan: &Plan, admin: &Admin) -> Vec<String> {
    let connections = format!("--connections={connections}");
    let connect = format!("--connect={}", connect_flag(plan.connect));
    let mut words = [url, "--control", &connections, &connect].map(String::from).to_vec();
    if let Some(churn) = &plan.churn {
        words.extend(churn.flags(plan.hold, admin));
    } else if plan.cable {
        let channel = json!({ "channel": "$pubsub", "stream_name": TOPIC });
        words.push(format!("--channel={channel}"));
    }
    if let Some(time) = plan.stale_after {
        words.push(format!("--stale-after={}ms", time.as_millis()));
    }
    words
}

impl<'a> Load<'a> {
    pub(super) fn start(
        url: &str,
        connections: u64,
        plan: &Plan,
        admin: &Admin,
        namespaces: Option<&Namespaces>,
    ) -> Result<Load<'a>> {
        let mut arguments = vec!["load".to_owned(), "--force".to_owned()];
        arguments.extend(load_words(url, connections, plan, admin));
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
        Ok(Load::of(Generator::Process { child, stdin, lines }))
    }

    /// Starts the loads of agents; `None` after Ctrl-C.
    pub(super) fn share(
        url: &str,
        connections: u64,
        plan: &Plan,
        admin: &Admin,
        mut agents: Controlled<'a>,
    ) -> Result<Option<Load<'a>>> {
        let mut words = load_words(url, connections, plan, admin);
        if plan.connect == Connect::Windowed {
            // Together no more than the queue of a listener has room for.
            let most = IN_FLIGHT.max(agents.agents() as u64);
            words.push(format!("--in-flight={most}"));
        }
        words.extend(plan.force.then(|| "--force".to_owned()));
        match agents.begin(words, connections)? {
            Waited::Interrupted => Ok(None),
            Waited::Done => Ok(Some(Load::of(Generator::Agents(Box::new(agents))))),
        }
    }

    fn of(generator: Generator<'a>) -> Load<'a> {
        Load { generator, progress: Progress::default(), expecting: false, fleet: None }
    }

    /// The process; `None` with agents.
    pub(super) fn pid(&self) -> Option<u32> {
        match &self.generator {
            Generator::Process { child, .. } => Some(child.id()),
            Generator::Agents(_) => None,
        }
    }

    /// Memory and CPU time of the process, or of those of all agents; `None` if unknown.
    pub(super) fn usage(&self) -> Option<Usage> {
        match &self.generator {
            Generator::Process { child, .. } => usage_of(child.id()),
            Generator::Agents(agents) => agents.usage(),
        }
    }

    /// What opens the sockets.
    pub(super) fn describe(&self) -> String {
        match &self.generator {
            Generator::Process { child, .. } => format!("load has PID {}", child.id()),
            Generator::Agents(agents) => format!("the load is of {} agents", agents.agents()),
        }
    }

    /// What the screen shows of each agent; empty without agents.
    pub(super) fn agent_rows(&self) -> Vec<AgentRow> {
        match &self.generator {
            Generator::Process { .. } => Vec::new(),
            Generator::Agents(agents) => agents.agent_rows(),
        }
    }

    /// The agents, when their run has ended.
    pub(super) fn take_fleet(&mut self) -> Option<Fleet> {
        self.fleet.take()
    }

    /// Does something that takes a while, such as a publication. Agents hear of this process meanwhile.
    pub(super) fn during<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> Result<T, Stop> {
        if matches!(self.generator, Generator::Process { .. }) {
            return Ok(work());
        }
        std::thread::scope(|scope| {
            let working = scope.spawn(work);
            let mut seen = Ok(());
            while !working.is_finished() {
                match seen {
                    Ok(()) => seen = self.progress(BEAT).map(drop),
                    Err(_) => std::thread::sleep(BEAT),
                }
            }
            let done = working.join().map_err(|_| Stop::Broken("a thread has failed".into()))?;
            seen.map(|()| done)
        })
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
        let deadline_ns = process::now_ns() + END_TIMEOUT.as_nanos() as u64;
        while !self.expecting {
            if process::now_ns() > deadline_ns {
                let seconds = END_TIMEOUT.as_secs();
                let what = format!("the load did not expect the broadcasts within {seconds} s");
                return Err(Stop::Broken(what));
            }
            self.progress(Duration::from_millis(250))?;
        }
        Ok(())
    }

    fn send(&mut self, command: &Command) -> Result<(), Stop> {
        let stdin = match &mut self.generator {
            Generator::Process { stdin, .. } => stdin,
            Generator::Agents(agents) => {
                return agents.command(command).map_err(Stop::from);
            }
        };
        let command =
            serde_json::to_string(command).map_err(|error| Stop::Broken(error.to_string()))?;
        writeln!(stdin, "{command}")
            .and_then(|()| stdin.flush())
            .map_err(|error| Stop::Broken(format!("cannot write to the load process: {error}")))
    }

    pub(super) fn last_progress(&self) -> &Progress {
        &self.progress
    }

    /// Waits at most `wait` for a report and returns the progress.
    pub(super) fn progress(&mut self, wait: Duration) -> Result<&Progress, Stop> {
        let event = match &mut self.generator {
            Generator::Agents(agents) => agents.next(wait)?,
            Generator::Process { child, lines, .. } => match lines.recv_timeout(wait) {
                Ok(line) => Some(event(line).map_err(Stop::Broken)?),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    let how = child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                    return Err(Stop::Broken(format!("load ended during the proof: {how}")));
                }
            },
        };
        event.into_iter().for_each(|event| self.update(event));
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

    /// Tells the load to end and returns its outcome. It may still be closing its sockets then.
    pub(super) fn finish(&mut self, interrupted: bool) -> Result<Outcome, String> {
        if let Generator::Agents(agents) = &mut self.generator {
            let (outcome, fleet) = Fleet::new(agents.finish(interrupted));
            self.fleet = Some(fleet);
            return outcome.ok_or_else(|| "no agent has a result".to_owned());
        }
        let sent = self.send(&Command::Finish(Finish::Abort));
        if let Err(Stop::Broken(why)) = sent {
            return Err(why);
        }
        let Generator::Process { lines, .. } = &self.generator else {
            return Err("the load is no process".to_owned());
        };
        let deadline_ns = process::now_ns() + END_TIMEOUT.as_nanos() as u64;
        while process::now_ns() < deadline_ns {
            match lines.recv_timeout(Duration::from_millis(250)) {
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

/// Memory and CPU time of a process; `None` if it cannot be read.
pub(super) fn usage_of(pid: u32) -> Option<Usage> {
    let memory = ProcessMemory::of(pid).ok()?;
    Some(Usage { rss_bytes: memory.rss_bytes, cpu_seconds: memory.cpu_seconds })
}

/// Reads an event of the load process. One that it cannot read proves nothing.
fn event(line: Value) -> Result<Event, String> {
    serde_json::from_value(line)
        .map_err(|error| format!("cannot read an event of the load process: {error}"))
}

impl From<Halt> for Stop {
    fn from(halt: Halt) -> Stop {
        match halt {
            Halt::Lost => Stop::Incomplete,
            Halt::Interrupted => Stop::Interrupted,
        }
    }
}

impl Drop for Generator<'_> {
    fn drop(&mut self) {
        if let Generator::Process { child, .. } = self {
            let _ = (child.kill(), child.wait());
        }
    }
}
