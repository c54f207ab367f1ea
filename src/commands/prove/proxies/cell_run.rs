//! One cell through one proxy: starts server, proxy and clients as separate processes, opens tunnels,
//! sends messages, and measures the proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use capacity::{Machine, ProcessMemory};
use engine::sys::process::{self, Signal};
use load::Outcome;
use serde::Serialize;

use super::cell::{Cell, Traffic};
use super::competitor::{Competitor, Installed, Proxy};
use crate::commands::prove::generator::{Load, Progress};
use crate::commands::prove::phases::Stop;
use crate::commands::prove::plan::{Messages, Plan};
use crate::commands::prove::server::Serve;

/// Sampling interval, and the number of samples between memory measurements.
const LOOK: Duration = Duration::from_millis(250);
const MEMORY_EVERY: u32 = 4;
/// Time limits in seconds for opening tunnels and for the last answers.
const CONNECT_WAIT: f64 = 120.0;
const LAST_WAIT: f64 = 30.0;

/// The figures of one proxy for one cell.
#[derive(Default, Serialize, Debug)]
pub(super) struct Figures {
    pub(super) workers: u64,
    /// Resident memory of all its processes before the first tunnel, and the maximum while messages
    /// are sent.
    pub(super) rss_bytes_before: u64,
    pub(super) rss_bytes: u64,
    pub(super) rss_bytes_per_tunnel: f64,
    /// While messages are sent.
    pub(super) cpu_cores: f64,
    pub(super) server_cpu_cores: f64,
    pub(super) client_cpu_cores: f64,
    pub(super) cpu_us_per_message: Option<f64>,
    pub(super) seconds: f64,
    pub(super) connect_seconds: f64,
    /// Open at the end.
    pub(super) open: u64,
    /// Tunnels opened in total, including replacements.
    pub(super) opened: u64,
    pub(super) failed: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) corrupted: u64,
    /// Tunnels closed early, and failed connects, by cause.
    pub(super) closed: BTreeMap<String, u64>,
    pub(super) connect_errors: BTreeMap<String, u64>,
    /// Round trip of the messages that carry a timestamp.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

impl Figures {
    /// Returns the number of all failures.
    pub(super) fn failures(&self) -> u64 {
        let messages = self.lost + self.duplicated + self.reordered + self.corrupted;
        self.failed + self.closed.values().sum::<u64>() + messages
    }
}

/// The processes of one run.
struct Pass<'a> {
    cell: &'a Cell,
    serve: Serve,
    proxy: Proxy,
    load: Load<'static>,
}

/// Runs the cell.
///
/// # Errors
/// Ctrl-C, or a process that failed.
pub(super) fn run(
    cell: &Cell,
    competitor: Competitor,
    installed: &Installed,
    workers: u64,
    plan: &Plan,
    machine: &Machine,
) -> Result<Figures, Stop> {
    let broken = |error: anyhow::Error| Stop::Broken(format!("{error:#}"));
    let plan = cell.plan(plan);
    let serve = Serve::start(cell.tunnels, &plan, None).map_err(broken)?;
    let proxy =
        competitor.start(installed, cell, workers, serve.listen(), machine).map_err(broken)?;
    let urls = [format!("ws://{}/echo", proxy.listen)];
    let load = Load::start(&urls, cell.tunnels, &plan, None, None).map_err(broken)?;
    Pass { cell, serve, proxy, load }.measure()
}

impl Pass<'_> {
    fn measure(mut self) -> Result<Figures, Stop> {
        let before = self.proxy.measure_memory();
        let connect_seconds = self.connect()?;
        let began_ns = process::now_ns();
        let at_first = self.measure_memory()?;
        let most = self.exchange(began_ns, at_first[0].rss_bytes)?;
        let seconds = seconds_since(began_ns);
        let at_last = self.measure_memory()?;
        let outcome = self.load.finish(false).map_err(Stop::Broken)?;
        self.serve.end_with(&mut self.load, || {});
        let cores = |at: usize| match (at_first.get(at), at_last.get(at)) {
            (Some(first), Some(last)) => (last.cpu_seconds - first.cpu_seconds) / seconds,
            _ => 0.0,
        };
        let grown = most.saturating_sub(before.rss_bytes) as f64;
        let mut figures = Figures {
            workers: self.proxy.workers,
            rss_bytes_before: before.rss_bytes,
            rss_bytes: most,
            rss_bytes_per_tunnel: grown / self.cell.tunnels as f64,
            cpu_cores: cores(0),
            server_cpu_cores: cores(1),
            client_cpu_cores: cores(2),
            seconds,
            connect_seconds,
            ..Figures::default()
        };
        figures.take(outcome)?;
        Ok(figures)
    }

    /// Opens all tunnels; failures are reported later.
    fn connect(&mut self) -> Result<f64, Stop> {
        let began_ns = process::now_ns();
        self.load.target(self.cell.tunnels)?;
        loop {
            let tunnels = self.cell.tunnels;
            if self.look()?.reached(tunnels) || seconds_since(began_ns) > CONNECT_WAIT {
                return Ok(seconds_since(began_ns));
            }
        }
    }

    /// Sends the cell's messages until the last is answered or times out. Returns the proxy's maximum
    /// memory, which starts at `least`.
    fn exchange(&mut self, began_ns: u64, least: u64) -> Result<u64, Stop> {
        let Cell { size, hold, .. } = *self.cell;
        match self.cell.traffic {
            Traffic::Every(every) => {
                let messages = Messages { every, size };
                let rate = messages.rate(self.load.last_progress().row.open);
                self.load.echo(size, rate, messages.per_socket(hold))?;
            }
            Traffic::BackToBack(messages) => self.load.turnover(size, messages, hold)?,
        }
        let (mut most, mut looks) = (least, 0_u32);
        loop {
            let progress = self.look()?;
            looks += 1;
            let over =
                progress.echoed() || seconds_since(began_ns) > hold.as_secs_f64() + LAST_WAIT;
            if over || looks.is_multiple_of(MEMORY_EVERY) {
                most = most.max(self.proxy.measure_memory().rss_bytes);
            }
            if over {
                return Ok(most);
            }
        }
    }

    /// Waits for progress.
    fn look(&mut self) -> Result<&Progress, Stop> {
        let signal = process::wait_signal(Duration::ZERO);
        if matches!(signal, Some(Signal::Interrupt | Signal::Terminate)) {
            return Err(Stop::Interrupted);
        }
        if let Some(how) = self.proxy.ended() {
            let output = self.proxy.last_output();
            return Err(Stop::Broken(format!("the proxy ended during the run: {how}; {output}")));
        }
        if let Some(how) = self.serve.ended() {
            return Err(Stop::Broken(format!("the server ended during the run: {how}")));
        }
        self.load.progress(LOOK)
    }

    /// Measures proxy, server and clients.
    fn measure_memory(&self) -> Result<[ProcessMemory; 3], Stop> {
        let of = |pid| ProcessMemory::of(pid).context("cannot read the memory of a process");
        let load = self.load.pid().context("the load is no process");
        let others = of(self.serve.pid()).and_then(|serve| Ok([serve, of(load?)?]));
        let [serve, load] = others.map_err(|error| Stop::Broken(format!("{error:#}")))?;
        Ok([self.proxy.measure_memory(), serve, load])
    }
}

impl Figures {
    /// Takes the counts of the clients' outcome.
    ///
    /// # Errors
    /// An outcome without messages.
    fn take(&mut self, outcome: Outcome) -> Result<(), Stop> {
        let Some(echo) = outcome.echo else {
            return Err(Stop::Broken("the load process reported no messages".to_owned()));
        };
        let c = outcome.connections;
        self.open = c.open.unwrap_or(0);
        self.failed = c.failed;
        self.opened = c.opened.unwrap_or(0);
        self.sent = echo.sent;
        self.received = echo.received;
        self.lost = echo.lost + echo.unsent;
        self.duplicated = echo.duplicated;
        self.reordered = echo.reordered;
        self.corrupted = echo.corrupted;
        self.closed = outcome.closed;
        self.connect_errors = outcome.connect_errors;
        self.p50_ms = outcome.latency.map(|latency| latency.p50_ms);
        self.p99_ms = outcome.latency.map(|latency| latency.p99_ms);
        let messages = self.received as f64;
        self.cpu_us_per_message =
            (messages > 0.0).then(|| self.cpu_cores * self.seconds * 1e6 / messages);
        Ok(())
    }
}

fn seconds_since(began_ns: u64) -> f64 {
    (process::now_ns() - began_ns) as f64 / 1e9
}
