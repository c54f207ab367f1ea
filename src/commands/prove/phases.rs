//! A running proof: its phases in order, and the measurements of each.

use std::time::Duration;

use anyhow::Result;
use capacity::{Count, KernelMemory};
use engine::sys::process::{self, Signal};

use super::broadcast::PUBLISHER;
use super::churn::{self, ChurnMemory};
use super::generator::{Load, Progress};
use super::link::Namespaces;
use super::plan::{Messages, Plan};
use super::result::{Mark, Measured, ProcessFigures};
use super::screen::Screen;
use super::server::{Serve, Server};
use crate::commands::fleet::controlled::Controlled;
use crate::commands::fleet::servers::Chosen;
use load::Sample;

/// Connection counts at which memory is measured, as in the reference experiment's table.
const MARKS: [u64; 4] = [10_000, 100_000, 200_000, 500_000];
/// Seconds that a pong may take.
const PONG_WAIT: f64 = 10.0;
/// Time limit for a broadcast to reach every socket, and for the last answers.
const LAST_WAIT: Duration = Duration::from_secs(30);
/// Sampling interval.
const LOOK: Duration = Duration::from_millis(250);

/// The two processes and their measurements.
pub(super) struct Run<'a> {
    plan: &'a Plan,
    screen: &'a mut Screen,
    serve: Server,
    load: Load<'a>,
    measured: Measured,
    /// Kernel and system memory before the processes were started, and before the first socket.
    kernel_before: Option<KernelMemory>,
    kernel_ramp: Option<KernelMemory>,
    began_ns: u64,
    hold_began_ns: Option<u64>,
    is_held_taken: bool,
    // Last: dropped after the processes that run in the namespaces.
    namespaces: Option<Namespaces>,
}

/// The agents that run the servers, and those that open the sockets; `None`: this machine does.
pub(super) type Fleets<'a> = (Option<Chosen>, Option<Controlled<'a>>);

/// Why a proof stops early: Ctrl-C, a child process that ended, or an agent that is lost. The summary is still made.
pub(super) enum Stop {
    Interrupted,
    Broken(String),
    Incomplete,
}

impl<'a> Run<'a> {
    /// Starts the server and the load; `None` after Ctrl-C.
    ///
    /// # Errors
    /// A process that does not start, agents that cannot do their part, or namespaces that cannot be created.
    pub(super) fn start(
        connections: u64,
        plan: &'a Plan,
        screen: &'a mut Screen,
        (servers, agents): Fleets<'a>,
    ) -> Result<Option<Self>> {
        let kernel_before = KernelMemory::read().ok();
        let namespaces = plan.link.map(|link| Namespaces::create(link, connections)).transpose()?;
        if let Some(namespaces) = &namespaces {
            screen.note(&namespaces.describe());
        }
        let serve = match servers {
            None => Server::Here(Serve::start(connections, plan, namespaces.as_ref())?),
            Some(servers) => {
                let Some(servers) = servers.start(&plan.serve)? else { return Ok(None) };
                Server::Agents(servers)
            }
        };
        let urls = serve.urls(plan);
        let load = match agents {
            None => {
                let admin = serve.admin();
                Some(Load::start(&urls, connections, plan, admin, namespaces.as_ref())?)
            }
            Some(agents) => Load::share(&urls, connections, plan, agents)?,
        };
        let Some(load) = load else { return Ok(None) };
        if let Server::Agents(servers) = &serve {
            servers.look();
        }
        screen.note(&format!(
            "{}, {}; opening {} WebSockets on {}",
            serve.describe(),
            load.describe(),
            Count(connections),
            urls.join(" "),
        ));
        let mut measured = Measured::new(connections);
        measured.server.start = serve.usage();
        measured.client.start = load.usage();
        let began_ns = process::now_ns();
        let before = Sample {
            server: measured.server.start,
            client: measured.client.start,
            kernel_bytes: Some(0),
            ..Sample::default()
        };
        screen.begin(plan, connections, before);
        Ok(Some(Run {
            plan,
            screen,
            serve,
            load,
            measured,
            kernel_before,
            kernel_ramp: KernelMemory::read().ok(),
            began_ns,
            hold_began_ns: None,
            is_held_taken: false,
            namespaces,
        }))
    }

    /// Runs all phases in order; an early stop keeps the measurements so far.
    pub(super) fn measure(mut self) -> Measured {
        let phases = self.connect().and_then(|()| self.hold()).and_then(|()| self.broadcast());
        if phases.is_err() && !self.is_held_taken {
            self.take_held();
            if self.hold_began_ns.is_some() {
                let row = self.load.last_progress().row.clone();
                self.screen.held(&self.measured, &row);
            }
        }
        match phases {
            Ok(()) => {}
            Err(Stop::Interrupted) => self.measured.interrupted = true,
            Err(Stop::Broken(why)) => self.measured.broken.push(why),
            // The agents say what is missing.
            Err(Stop::Incomplete) => {
                self.screen
                    .note("an agent is lost: stopping the others, as the proof is incomplete");
            }
        }
        self.finish();
        self.measured
    }

    /// Opens sockets up to each mark and measures memory there.
    fn connect(&mut self) -> Result<(), Stop> {
        let requested = self.measured.requested;
        let marks = MARKS.iter().copied().filter(|&mark| mark < requested);
        for mark in marks.chain([requested]).collect::<Vec<_>>() {
            let began_ns = process::now_ns();
            self.load.target(mark)?;
            loop {
                let (progress, sample) = match self.look("connect") {
                    Ok(seen) => seen,
                    Err(stop) => {
                        // The last sample: what was open, after how long, and in what memory.
                        self.measured.connect_seconds += seconds_since(began_ns);
                        self.mark(self.load.last_progress().row.open);
                        return Err(stop);
                    }
                };
                self.screen.connecting(&sample, requested);
                if progress.reached(mark) {
                    break;
                }
            }
            self.measured.connect_seconds += self.load.last_progress().connecting_seconds;
            self.mark(mark);
        }
        let row = &self.load.last_progress().row;
        self.measured.failed = row.failed;
        self.screen.connected(&self.measured, row);
        Ok(())
    }

    fn mark(&mut self, connections: u64) {
        let (server, client) = self.measure_now();
        let mark = Mark {
            connections,
            server_rss_bytes: server.map(|memory| memory.rss_bytes),
            client_rss_bytes: client.map(|memory| memory.rss_bytes),
            kernel_bytes: self.kernel_growth().and_then(|bytes| u64::try_from(bytes).ok()),
        };
        // The last one counts: later growth is not that of opening sockets.
        self.measured.kernel_ramp = self.kernel_growth().map(|bytes| (bytes, connections));
        self.screen.mark(&mark);
        self.measured.marks.push(mark);
    }

    /// Holds the sockets open for the requested time, and until each has answered.
    fn hold(&mut self) -> Result<(), Stop> {
        (self.measured.server.hold_began, self.measured.client.hold_began) = self.measure_now();
        if !self.plan.heartbeat.is_zero() {
            self.load.heartbeat(self.plan.heartbeat)?;
        }
        let began_ns = process::now_ns();
        self.hold_began_ns = Some(began_ns);
        match (self.plan.messages, self.plan.churn) {
            (Some(messages), _) => self.exchange(messages, began_ns)?,
            (None, Some(_)) => self.churn(began_ns)?,
            (None, None) => self.wait_for_heartbeats(began_ns)?,
        }
        if self.plan.messages.is_some() || self.plan.churn.is_some() {
            self.wait_for_pongs()?;
        }
        self.take_held();
        let row = &self.load.last_progress().row.clone();
        self.screen.held(&self.measured, row);
        Ok(())
    }

    /// Takes what is held now: at the end of the hold, or when the proof stops before it.
    fn take_held(&mut self) {
        if self.is_held_taken {
            return;
        }
        self.is_held_taken = true;
        self.measured.hold_seconds = self.hold_began_ns.map_or(0.0, seconds_since);
        let row = self.load.last_progress().row.clone();
        (self.measured.open, self.measured.failed) = (row.open, row.failed);
        let pings = !self.plan.heartbeat.is_zero();
        self.measured.unanswered = pings.then_some(row.unanswered_sockets);
        let pinged = row.answered + row.unanswered_sockets;
        self.measured.not_due = pings.then(|| row.open.saturating_sub(pinged));
        let (server, client) = self.measure_now();
        self.measured.server.held = server;
        self.measured.client.held = client;
        if let Server::Agents(servers) = &self.serve {
            self.measured.servers = servers.all();
        }
        self.measured.system_growth = self.system_growth();
    }

    /// Waits for the answers to the pings that were sent, so that one in flight does not count as missing.
    fn wait_for_pongs(&mut self) -> Result<(), Stop> {
        if self.plan.heartbeat.is_zero() {
            return Ok(());
        }
        self.load.heartbeat(Duration::ZERO)?;
        let began_ns = process::now_ns();
        while self.look("hold")?.0.row.unanswered_sockets > 0 && seconds_since(began_ns) < PONG_WAIT
        {
        }
        self.load.heartbeat(self.plan.heartbeat)
    }

    /// Holds until each socket has answered a ping, if there are any.
    fn wait_for_heartbeats(&mut self, began_ns: u64) -> Result<(), Stop> {
        let (hold, period) = (self.plan.hold.as_secs_f64(), self.plan.heartbeat.as_secs_f64());
        // Every socket is pinged within one period.
        let longest = hold.max(period + PONG_WAIT);
        loop {
            let (progress, sample) = self.look("hold")?;
            let held = seconds_since(began_ns);
            self.screen.holding(&sample, held, hold.max(period));
            let answered =
                progress.row.heartbeats_received > 0 && progress.row.answered >= progress.row.open;
            let waits = !answered && period > 0.0;
            if held >= longest || (held >= hold && !waits) {
                return Ok(());
            }
        }
    }

    /// Holds while subscriptions begin and end, and until all are checked.
    fn churn(&mut self, began_ns: u64) -> Result<(), Stop> {
        let server = |run: &Self| run.measure_processes().0.map_or(0, |memory| memory.rss_bytes);
        let mut memory = ChurnMemory { start: server(self), ..ChurnMemory::default() };
        self.load.churn()?;
        let hold = self.plan.hold.as_secs_f64();
        let longest = hold + 2.0 * LAST_WAIT.as_secs_f64();
        loop {
            let (progress, sample) = self.look("hold")?;
            let held = seconds_since(began_ns);
            self.screen.churning(&sample, held, hold);
            memory.end = server(self);
            if memory.settled == 0 && held >= churn::SETTLED.as_secs_f64() {
                memory.settled = memory.end;
            }
            if progress.churned() || progress.row.open == 0 || held >= longest {
                break;
            }
        }
        if memory.settled == 0 {
            memory.settled = memory.end;
        }
        self.measured.churn = Some(memory);
        Ok(())
    }

    /// Holds while each socket sends its messages and receives the echoes.
    fn exchange(&mut self, messages: Messages, began_ns: u64) -> Result<(), Stop> {
        let rate = messages.rate(self.load.last_progress().row.open);
        self.load.echo(messages.size, rate, messages.per_socket(self.plan.hold))?;
        let hold = self.plan.hold.as_secs_f64();
        let longest = hold + LAST_WAIT.as_secs_f64();
        loop {
            let (progress, sample) = self.look("hold")?;
            let held = seconds_since(began_ns);
            self.screen.exchanging(&sample, held, hold);
            let over = progress.echoed() || progress.row.open == 0;
            if held >= longest || (held >= hold && over) {
                // The next row contains the last answers.
                return self.look("hold").map(drop);
            }
        }
    }

    /// Publishes to all sockets, each message after the one before has arrived everywhere.
    fn broadcast(&mut self) -> Result<(), Stop> {
        if self.plan.broadcasts == 0 {
            return Ok(());
        }
        // Heartbeats would disturb the timing of the broadcast.
        self.load.heartbeat(Duration::ZERO)?;
        let open = self.load.last_progress().row.open;
        self.load.expect(PUBLISHER, self.plan.broadcasts)?;
        for sequence in 0..self.plan.broadcasts {
            let began_ns = process::now_ns();
            let server = &self.serve;
            let took = self
                .load
                .during(|| server.publish(sequence), || server.hurry())?
                .map_err(|error| Stop::Broken(format!("publishing failed: {error:#}")))?;
            self.measured.publish_seconds.push(took.as_secs_f64());
            loop {
                let (progress, sample) = self.look("broadcast")?;
                self.screen.broadcasting(&sample, sequence, open, &progress.row);
                let everywhere = progress.row.publications >= open * u64::from(sequence + 1);
                if everywhere || seconds_since(began_ns) > LAST_WAIT.as_secs_f64() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes the last figures and ends both processes.
    fn finish(&mut self) {
        let (server, client) = self.measure_now();
        self.measured.server.end = server;
        self.measured.client.end = client;
        self.measured.seconds = seconds_since(self.began_ns);
        self.measured.link = self.namespaces.as_ref().map(Namespaces::result);
        let last = self.measured.series.samples().last().cloned().unwrap_or_default();
        let mut sample = Sample { elapsed_seconds: self.measured.seconds, ..last };
        self.screen.closing(&mut sample);
        match self.load.finish(self.measured.interrupted) {
            Ok(summary) => self.measured.load = Some(summary),
            Err(why) => self.measured.broken.push(why),
        }
        self.measured.fleet = self.load.take_fleet();
        if let Server::Agents(servers) = &self.serve
            && let Some(fleet) = &mut self.measured.fleet
        {
            fleet.missing.extend(servers.lost());
        }
        self.measured.interrupted |= self.measured.fleet.as_ref().is_some_and(|of| of.interrupted);
        if self.measured.fleet.as_ref().is_some_and(|fleet| !fleet.missing.is_empty()) {
            // What a lost agent has open is unknown.
            let connections = self.measured.load.as_ref().map(|load| &load.connections);
            self.measured.open = connections.and_then(|of| of.open).unwrap_or(0);
        }
        let (screen, began_ns) = (&mut *self.screen, self.began_ns);
        self.serve.end_with(&mut self.load, || {
            sample.elapsed_seconds = seconds_since(began_ns);
            screen.closing(&mut sample);
        });
    }

    /// Waits for progress and records a sample.
    fn look(&mut self, phase: &'static str) -> Result<(Progress, Sample), Stop> {
        self.check_signals()?;
        let progress = self.load.progress(LOOK)?.clone();
        let (server, client) = self.measure_processes();
        let row = &progress.row;
        let sample = Sample {
            elapsed_seconds: seconds_since(self.began_ns),
            phase: phase.into(),
            open: row.open,
            failed: row.failed,
            closed: row.closed,
            sent: row.heartbeats_sent + row.messages_sent,
            received: row.heartbeats_received + row.messages_received + row.publications,
            latency: progress.latency(),
            server,
            client,
            kernel_bytes: self.kernel_growth().and_then(|bytes| u64::try_from(bytes).ok()),
            errors: row.errors.iter().map(|(cause, count)| (cause.clone(), *count)).collect(),
        };
        self.measured.series.push(&sample);
        self.screen.timed(row, self.load.agent_rows());
        Ok((progress, sample))
    }

    fn measure_processes(&self) -> ProcessFigures {
        (self.serve.usage(), self.load.usage())
    }

    /// The same as of now, also of servers elsewhere.
    fn measure_now(&mut self) -> ProcessFigures {
        if let Server::Agents(servers) = &self.serve {
            // If an agent is lost meanwhile, that is noticed next.
            let _ = self.load.during(|| servers.look(), || servers.hurry());
        }
        self.measure_processes()
    }

    /// Returns the growth of the kernel's own memory since before the first socket; negative if other
    /// programs freed more, and `None` if agents may have their ends of the connections elsewhere.
    fn kernel_growth(&self) -> Option<i64> {
        if self.plan.ends_here() < 2 {
            return None;
        }
        let now = KernelMemory::read().ok()?;
        let before = i64::try_from(self.kernel_ramp?.total()).ok()?;
        i64::try_from(now.total()).ok()?.checked_sub(before)
    }

    /// Returns the decrease of available memory since before the proof; `None` if it grew, as other
    /// programs freed more.
    fn system_growth(&self) -> Option<u64> {
        if self.plan.ends_here() == 0 {
            return None;
        }
        let now = KernelMemory::read().ok()?;
        self.kernel_before?.available_bytes.checked_sub(now.available_bytes)
    }

    fn check_signals(&mut self) -> Result<(), Stop> {
        let signal = process::wait_signal(Duration::ZERO);
        if matches!(signal, Some(Signal::Interrupt | Signal::Terminate)) {
            return Err(Stop::Interrupted);
        }
        self.serve.stop().map_or(Ok(()), Err)
    }
}

fn seconds_since(began_ns: u64) -> f64 {
    (process::now_ns() - began_ns) as f64 / 1e9
}
