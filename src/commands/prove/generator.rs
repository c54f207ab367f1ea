//! [`Load`]: what opens the sockets of a proof, a `load` process of this machine or the agents of a fleet. It
//! takes commands and reports events (see `load::control`).

use std::io::Write;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::sys::process;
use serde_json::{Value, json};

use super::broadcast::Admin;
use super::child::{END_TIMEOUT, READY_TIMEOUT, Started, command, reap, start, usage_of};
use super::link::Namespaces;
use super::phases::Stop;
use super::plan::Plan;
use super::server::TOPIC;
use crate::commands::fleet::controlled::{Controlled, Halt};
use crate::commands::fleet::leader::Waited;
use crate::commands::fleet::whole::Fleet;
use crate::commands::load::connect_flag;
use crate::report::screen::{self, AgentRow};
use load::control::{Command, Event, Finish, ProgressRow};
use load::{Connect, Latency, Outcome, SampleLatency, Usage};

/// Connects in flight of all agents together, as many as may wait in the queue of a listener.
const IN_FLIGHT: u64 = 4_096;
/// How often agents hear of this process while it does something else.
const BEAT: Duration = Duration::from_millis(50);

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
fn load_words(
    urls: &[String],
    connections: u64,
    plan: &Plan,
    admin: Option<&Admin>,
) -> Vec<String> {
    let connections = format!("--connections={connections}");
    let connect = format!("--connect={}", connect_flag(plan.connect));
    let mut words = urls.to_vec();
    words.extend(["--control", &connections, &connect].map(String::from));
    if let Some((churn, admin)) = plan.churn.as_ref().zip(admin) {
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
        urls: &[String],
        connections: u64,
        plan: &Plan,
        admin: Option<&Admin>,
        namespaces: Option<&Namespaces>,
    ) -> Result<Load<'a>> {
        let mut arguments = vec!["load".to_owned(), "--force".to_owned()];
        arguments.extend(load_words(urls, connections, plan, admin));
        let sources = namespaces.map(Namespaces::sources).unwrap_or_default();
        arguments.extend(sources.iter().map(|source| format!("--source={source}")));
        let before = namespaces.map(Namespaces::at_clients).unwrap_or_default();
        let started = start(command(&before, &arguments)?, screen::aside)?;
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
        urls: &[String],
        connections: u64,
        plan: &Plan,
        mut agents: Controlled<'a>,
    ) -> Result<Option<Load<'a>>> {
        let mut words = load_words(urls, connections, plan, None);
        if plan.connect == Connect::Windowed {
            // Together no more than the queues of all listeners have room for.
            let most = (IN_FLIGHT * urls.len() as u64).max(agents.agents() as u64);
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
            Generator::Agents(agents) => match agents.agents() {
                1 => "the load is of 1 agent".to_owned(),
                count => format!("the load is of {count} agents"),
            },
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

    /// Does something that takes a while, such as a publication. Agents hear of this process meanwhile. If the proof
    /// has to stop, `hurry` is called.
    pub(super) fn during<T: Send>(
        &mut self,
        work: impl FnOnce() -> T + Send,
        hurry: impl Fn(),
    ) -> Result<T, Stop> {
        if matches!(self.generator, Generator::Process { .. }) {
            return Ok(work());
        }
        std::thread::scope(|scope| {
            let working = scope.spawn(work);
            let mut seen = Ok(());
            while !working.is_finished() {
                match seen {
                    Ok(()) => seen = self.progress(BEAT).map(drop),
                    Err(_) => {
                        hurry();
                        self.keep();
                    }
                }
            }
            let done = working.join().map_err(|_| Stop::Broken("a thread has failed".into()))?;
            seen.map(|()| done)
        })
    }

    /// Agents hear of this process although the proof stops: their results are still to come.
    fn keep(&mut self) {
        match &mut self.generator {
            Generator::Agents(agents) => agents.keep(BEAT),
            Generator::Process { .. } => std::thread::sleep(BEAT),
        }
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

    /// Waits for a process that has nothing left to do.
    pub(super) fn reap(&mut self, look: &mut dyn FnMut()) {
        if let Generator::Process { child, .. } = &mut self.generator {
            reap(child, look);
        }
    }
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
