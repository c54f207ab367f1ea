//! [`Share`]: this process is one of several generators that share a run, started by `standfast agent`. It takes
//! lines of JSON on standard input and writes lines of JSON to standard output. It writes no files and connects
//! only to allowed targets.

use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use engine::sys::process::{self, now_ns};
use load::control::{Command, Event, Output, run_commands};
use load::requests::{Gate, Generators, Requests};
use load::{Config, Counts, Outcome, Progress, Recorder, Row, SharedRow, Snapshot, Usage, Verdict};
use serde::{Deserialize, Serialize};

use super::flags::Args;
use super::scenario::Ended;
use crate::commands::fleet::LEASE;
use crate::commands::fleet::fixtures::Captures;
use crate::output;

/// The last part of the wait for the start is without sleeping, as a sleep may take longer.
const SPIN_NS: u64 = 200_000;

/// What the agent says when it starts this process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) nth: u32,
    pub(crate) of: u32,
    pub(crate) seed: u64,
    /// Targets of --allow-target.
    pub(crate) allow: Vec<String>,
}

/// A line of standard input.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Begin at this time of the engine's clock.
    Begin(u64),
    Stop,
    /// Make the setup; or another agent has made it and captured this.
    SetUp(Option<Captures>),
    /// Make the teardown.
    TearDown,
    /// The leader lives.
    Beat,
    /// Of a controlled run.
    Command(Command),
}

/// A line of standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// It waits for the setup.
    Prepared,
    /// With what its setup has captured.
    Ready(Option<Captures>),
    /// It began, so many microseconds late.
    Began(u64),
    Row(Box<SharedRow>),
    Outcome(Box<Outcome>),
    /// It has made the teardown, or failed to.
    TornDown(Option<String>),
    /// So many commands were executed.
    Taken(u64),
    /// After so many commands.
    Event(u64, Box<Event>),
}

#[derive(Clone, Debug)]
pub(crate) struct Share {
    spec: Spec,
    state: Arc<State>,
}

#[derive(Default, Debug)]
struct State {
    told: Mutex<Told>,
    changed: Condvar,
    /// When an order came last, in nanoseconds of the engine's clock.
    heard_ns: AtomicU64,
    /// To the run that is controlled; `None`: it is not.
    commands: Mutex<Option<PipeWriter>>,
    /// By the setup that this generator has made.
    captured: Mutex<Option<Captures>>,
}

/// What was ordered.
#[derive(Default, Debug)]
struct Told {
    begin_ns: Option<u64>,
    stop: bool,
    /// The first order to set up.
    setup: Option<Option<Captures>>,
    teardown: bool,
    /// There will be no more orders.
    end: bool,
}

impl Share {
    /// Parses the hidden flag.
    pub(super) fn parse(text: &str) -> Result<Share, String> {
        let spec = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(Share { spec, state: Arc::default() })
    }

    /// Refuses what an agent does not do for a leader.
    ///
    /// # Errors
    /// Names the flag.
    pub(super) fn check(args: &Args) -> Result<()> {
        let Args { json, html, csv, .. } = args;
        let is_file = [json, html, csv].into_iter().any(Option::is_some);
        let is_served = args.metrics.is_some() || args.watch_pid.is_some();
        if is_file || is_served || args.agents.is_some() {
            bail!("a plan for agents writes no files, listens nowhere and watches no processes");
        }
        Ok(())
    }

    /// Takes orders from now on. The process ends with its parent.
    pub(super) fn begin(&self) -> Result<()> {
        process::end_with_parent();
        load::allow_only(self.spec.allow.clone());
        self.state.heard_ns.store(now_ns(), Ordering::Relaxed);
        let state = Arc::clone(&self.state);
        std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                state.heard_ns.store(now_ns(), Ordering::Relaxed);
                match serde_json::from_str(&line) {
                    Ok(Order::Begin(at_ns)) => state.told().begin_ns = Some(at_ns),
                    Ok(Order::Stop) => state.told().stop = true,
                    Ok(Order::SetUp(captured)) => {
                        state.told().setup.get_or_insert(captured);
                    }
                    Ok(Order::TearDown) => {
                        let mut told = state.told();
                        // It comes again. The first one also ends a run that waits for its start.
                        told.stop |= !told.teardown;
                        told.teardown = true;
                    }
                    Ok(Order::Command(command)) => state.pass_on(&command),
                    Ok(Order::Beat) | Err(_) => {}
                }
                state.changed.notify_all();
            }
            {
                let mut told = state.told();
                (told.stop, told.end) = (true, true);
            }
            state.changed.notify_all();
        })?;
        Ok(())
    }

    pub(super) fn seed(&self) -> u64 {
        self.spec.seed
    }

    /// Whether the run is to end, once for each order, or as its leader was not heard for a while; waits for
    /// this time at most.
    pub(super) fn stopped(&self, wait: Duration) -> bool {
        let heard_ns = self.state.heard_ns.load(Ordering::Relaxed);
        if now_ns() > heard_ns + LEASE.as_nanos() as u64 {
            // Also if the agent is stopped, which could not end this process.
            self.state.told().stop = true;
            self.state.heard_ns.store(u64::MAX / 2, Ordering::Relaxed);
        }
        let told = self.state.told();
        let waited = self.state.changed.wait_timeout_while(told, wait, |told| !told.stop);
        std::mem::take(&mut waited.unwrap_or_else(PoisonError::into_inner).0.stop)
    }

    /// Waits for an order before the start; `None` if the order to stop comes first.
    fn told<T>(&self, order: impl Fn(&Told) -> Option<T>) -> Option<T> {
        let is_awaited = |told: &mut Told| order(told).is_none() && !told.stop;
        let waited = self.state.changed.wait_while(self.state.told(), is_awaited);
        let told = waited.unwrap_or_else(PoisonError::into_inner);
        if told.stop { None } else { order(&told) }
    }

    /// Makes the setup if this generator is the one that does. Otherwise waits for what it has captured.
    ///
    /// # Errors
    /// Those of the setup.
    pub(super) fn set_up(&self, make: impl FnOnce() -> Result<Ended>) -> Result<Ended> {
        say(&Report::Prepared);
        let ended = match self.told(|told| told.setup.clone()) {
            None => Ended::Interrupted,
            Some(Some(captures)) => return Ok(Ended::Completed(captures.captured())),
            Some(None) => make()?,
        };
        if let Ended::Completed(captured) = &ended {
            let mut own = self.state.captured.lock().unwrap_or_else(PoisonError::into_inner);
            *own = Some(Captures::of(captured));
        }
        Ok(ended)
    }

    /// Whether the leader has said to make the teardown.
    pub(super) fn is_to_tear_down(&self) -> bool {
        self.state.told().teardown
    }

    /// Makes the teardown, which returns why it failed, if the leader says so before it ends this process.
    pub(super) fn tear_down(&self, make: impl FnOnce() -> Result<Option<String>>) {
        let is_awaited = |told: &mut Told| !told.teardown && !told.end;
        let waited = self.state.changed.wait_while(self.state.told(), is_awaited);
        let is_ordered = {
            let mut told = waited.unwrap_or_else(PoisonError::into_inner);
            // Earlier orders to stop were to the run. One to stop the teardown comes again.
            told.stop = told.end;
            told.teardown
        };
        if is_ordered {
            say(&Report::TornDown(make().unwrap_or_else(|error| Some(format!("{error:#}")))));
        }
    }

    /// Makes a run of requests the part of this generator.
    ///
    /// # Errors
    /// Targets that are not allowed.
    pub(super) fn apply(&self, requests: &mut Requests) -> Result<()> {
        if let Some(why) = load::refused() {
            bail!("{why}");
        }
        requests.generators = Generators { nth: self.spec.nth, of: self.spec.of };
        requests.gate = Some(Arc::new(self.clone()));
        Ok(())
    }

    /// The part of this generator of a run of WebSockets.
    ///
    /// # Errors
    /// Targets that are not allowed, and what cannot be shared.
    pub(super) fn part(&self, config: &Config) -> Result<Config> {
        if let Some(why) = load::refused() {
            bail!("{why}");
        }
        let share = Generators { nth: self.spec.nth, of: self.spec.of };
        let part = config.part(share).map_err(anyhow::Error::msg)?;
        Ok(Config { gate: Some(Arc::new(self.clone())), ..part })
    }

    /// Runs this part under the commands of the leader.
    ///
    /// # Errors
    /// Those of the run.
    pub(super) fn obey(&self, config: &Config) -> Result<ExitCode> {
        let (commands, to_run) = io::pipe()?;
        *self.state.commands.lock().unwrap_or_else(PoisonError::into_inner) = Some(to_run);
        let stopped = || self.stopped(Duration::ZERO);
        let outcome = run_commands(config, BufReader::new(commands), Reports, stopped)?;
        Ok(ExitCode::from(Verdict::of(&outcome).exit_code()))
    }

    pub(super) fn row(&self, row: &Row) {
        if !row.is_mark {
            say(&Report::Row(Box::new(SharedRow::of(row, super::screen::usage()))));
        }
    }

    pub(super) fn finish(&self, outcome: &Outcome) {
        say(&Report::Outcome(Box::new(outcome.clone())));
    }
}

/// Events of a controlled run. Publications are of the leader, which has another clock.
struct Reports;

impl Output for Reports {
    fn event(&mut self, taken: u64, event: &Event) -> io::Result<()> {
        match event {
            Event::Ready { .. } | Event::Row(_) => {}
            Event::Summary(outcome) => {
                let mut outcome = outcome.clone();
                outcome.forget_receipt_times();
                say(&Report::Outcome(outcome));
            }
            event => say(&Report::Event(taken, Box::new(event.clone()))),
        }
        Ok(())
    }

    fn taken(&mut self, taken: u64) -> io::Result<()> {
        say(&Report::Taken(taken));
        Ok(())
    }

    fn second(&mut self, elapsed: Duration, counts: &Snapshot, timed: &Recorder) {
        let causes = counts.errors();
        let row = Row {
            elapsed,
            open: counts.open,
            failed: counts.failed_total(),
            closed: counts.closed_total(),
            sent: counts.echo_sent + counts.heartbeats_sent,
            received: counts.echo_received + counts.heartbeats_received + counts.delivery.received,
            errors: causes.iter().map(|(_, count)| count).sum(),
            causes,
            progress: Progress {
                counts: Counts::Sockets(Box::new(counts.clone())),
                timed: Arc::new(timed.clone()),
                ..Progress::default()
            },
            ..Row::default()
        };
        let usage: Option<Usage> = super::screen::usage();
        say(&Report::Row(Box::new(SharedRow::of(&row, usage).without_receipts())));
    }
}

impl State {
    /// A run that does not take its commands cannot be controlled any more.
    fn pass_on(&self, command: &Command) {
        let line = serde_json::to_string(command).unwrap_or_default() + "\n";
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = commands.as_mut().map(|to_run| to_run.write_all(line.as_bytes()));
        if !matches!(sent, Some(Ok(()))) {
            self.told().stop = true;
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for Share {
    fn pass(&self) -> Result<u64, String> {
        let captured = self.state.captured.lock().unwrap_or_else(PoisonError::into_inner).take();
        say(&Report::Ready(captured));
        let begin_ns = self.told(|told| told.begin_ns);
        let begin_ns = begin_ns.ok_or_else(|| "stopped before the start".to_owned())?;
        let rest_ns = begin_ns.saturating_sub(now_ns()).saturating_sub(SPIN_NS);
        if self.stopped(Duration::from_nanos(rest_ns)) {
            return Err("stopped before the start".to_owned());
        }
        while now_ns() < begin_ns {
            std::hint::spin_loop();
        }
        say(&Report::Began(now_ns().saturating_sub(begin_ns) / 1_000));
        Ok(begin_ns)
    }
}

/// The agent may be gone: then this process ends, too.
fn say(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        let _ = output::print(&(line + "\n"));
    }
}
