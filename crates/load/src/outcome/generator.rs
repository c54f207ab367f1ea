//! Memory, CPU and descriptors of the watched target (`--watch-pid`) and of the load generator, which
//! reports if it was the bottleneck.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::fs;

use capacity::{Bytes, Count, ProcessMemory};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::outcome::samples::Usage;
use crate::{Latency, Row};

/// Share of the cores from which the generator counts as saturated.
const BUSY: f64 = 0.9;
/// Lateness in milliseconds from which a message no longer counts as sent at the requested rate.
const LATE_MS: f64 = 100.0;
/// Lateness in milliseconds from which the requested rate counts as missed.
const TOO_LATE_MS: f64 = 1_000.0;
/// Share of the requested rate that counts as reached.
const REACHED: f64 = 0.98;

/// The process of `--watch-pid`.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Watched {
    pid: u32,
    rss_bytes_before: u64,
    rss_bytes: u64,
    descriptors_before: u64,
    /// The maximum of all samples.
    descriptors: u64,
    /// CPU time during the run.
    cpu_seconds: f64,
    /// Growth of its memory per open connection; null without connections.
    rss_bytes_per_connection: Option<f64>,
    /// CPU time per 1,000 messages or publications received; null without.
    cpu_ms_per_1000_messages: Option<f64>,
    #[serde(skip)]
    cpu_before: f64,
    /// Connections open, and the phase, when the descriptors were counted last.
    #[serde(skip)]
    counted_at: (u64, String),
}

impl Watched {
    /// # Errors
    /// A process that does not exist or cannot be read.
    pub fn begin(pid: u32) -> Result<Watched, String> {
        let now = ProcessMemory::of(pid).map_err(|error| format!("--watch-pid {pid}: {error}"))?;
        let descriptors = descriptors(pid);
        Ok(Watched {
            pid,
            rss_bytes_before: now.rss_bytes,
            rss_bytes: now.rss_bytes,
            descriptors_before: descriptors,
            descriptors,
            cpu_seconds: 0.0,
            rss_bytes_per_connection: None,
            cpu_ms_per_1000_messages: None,
            cpu_before: now.cpu_seconds,
            counted_at: (0, String::new()),
        })
    }

    /// Samples the process with a row of the run. Returns `None` once it has ended.
    pub fn sample_with(&mut self, row: &Row) -> Option<Usage> {
        let (open, phase) = (self.counted_at.0, self.counted_at.1.as_str());
        // Counting a million takes a second, so it is done as they grow by a quarter or when
        // another phase begins with more of them.
        if row.open > open + open / 4 || (row.open > open && row.phase != phase) {
            self.counted_at = (row.open, row.phase.to_owned());
            self.descriptors = self.descriptors.max(descriptors(self.pid));
        }
        self.sample()
    }

    /// Samples memory and CPU. Returns `None` once it has ended.
    pub fn sample(&mut self) -> Option<Usage> {
        let now = ProcessMemory::of(self.pid).ok()?;
        self.rss_bytes = now.rss_bytes;
        self.cpu_seconds = now.cpu_seconds - self.cpu_before;
        Some(Usage { rss_bytes: now.rss_bytes, cpu_seconds: now.cpu_seconds })
    }

    /// Growth of its memory per open connection, in bytes.
    #[must_use]
    pub fn rss_bytes_per_connection(&self) -> Option<f64> {
        self.rss_bytes_per_connection
    }

    /// CPU time per 1,000 messages received, in milliseconds.
    #[must_use]
    pub fn cpu_ms_per_1000_messages(&self) -> Option<f64> {
        self.cpu_ms_per_1000_messages
    }

    /// Returns memory, CPU and descriptors as texts.
    pub fn figures(&self) -> [String; 3] {
        let (before, after) = (Bytes(self.rss_bytes_before), Bytes(self.rss_bytes));
        let memory = self.rss_bytes_per_connection;
        let memory = memory.map(|each| format!(", {each:.0} B per connection")).unwrap_or_default();
        let cpu = self.cpu_ms_per_1000_messages;
        let cpu = cpu.map(|each| format!(", {each:.2} ms per 1,000 messages")).unwrap_or_default();
        let (first, last) = (Count(self.descriptors_before), Count(self.descriptors));
        let seconds = self.cpu_seconds;
        [
            format!("{before} → {after} resident{memory}"),
            format!("{seconds:.2} CPU seconds{cpu}"),
            format!("{first} → {last} descriptors (maximum)"),
        ]
    }

    /// Computes the ratios from the open connections and the messages received in total.
    pub fn finish(&mut self, open: u64, messages: u64) {
        let grown = self.rss_bytes.saturating_sub(self.rss_bytes_before) as f64;
        self.rss_bytes_per_connection = (open > 0).then(|| grown / open as f64);
        self.cpu_ms_per_1000_messages =
            (messages > 0).then(|| self.cpu_seconds * 1e6 / messages as f64);
    }
}

impl Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "process {}  {}", self.pid, self.figures().join("; "))
    }
}

/// Counts the open descriptors of a process: those of its main thread's table and those of the
/// private tables of standfast's workers.
fn descriptors(pid: u32) -> u64 {
    let count = |task: &str| {
        fs::read_dir(format!("/proc/{pid}/task/{task}/fd")).map_or(0, |fds| fds.count() as u64)
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let own: BTreeSet<String> = tasks
        .filter_map(|task| task.file_name().into_string().ok())
        .filter(|task| {
            fs::read_to_string(format!("/proc/{pid}/task/{task}/comm"))
                .is_ok_and(|name| name.starts_with("worker-"))
        })
        .collect();
    count(&pid.to_string()) + own.iter().map(|task| count(task)).sum::<u64>()
}

/// The load generator during a run.
#[derive(Clone, Serialize, Deserialize, Default, Debug)]
pub struct Generator {
    cores: usize,
    cpu_seconds: f64,
    /// Maximum CPU of any second, in cores.
    cpu_cores_most: f64,
    /// Messages per second while messages were sent; null without messages.
    messages_per_second: Option<f64>,
    /// Why the figures describe the generator instead of the target; null if they do not.
    saturated: Option<String>,
    /// Whether the rate of an open model was missed, or met far too late.
    rate_missed: bool,
    #[serde(skip)]
    last: Option<(f64, f64)>,
    /// Total and busy seconds while messages were sent.
    #[serde(skip)]
    seconds: (f64, f64),
}

impl Generator {
    /// The generator on a machine with `cores`.
    #[must_use]
    pub fn new(cores: usize) -> Generator {
        Generator { cores, ..Generator::default() }
    }

    /// Adds a row of the run with the generator's usage so far.
    pub fn row(&mut self, row: &Row, usage: Option<Usage>) {
        let elapsed = row.elapsed.as_secs_f64();
        let cpu = usage.map_or(0.0, |usage| usage.cpu_seconds);
        if let Some((before, cpu_before)) = self.last.replace((elapsed, cpu)) {
            let seconds = (elapsed - before).max(1e-3);
            let cores = (cpu - cpu_before) / seconds;
            self.cpu_cores_most = self.cpu_cores_most.max(cores);
            if matches!(row.phase, "echo" | "fanout" | "churn" | "requests") {
                let busy = cores >= BUSY * self.cores as f64;
                self.seconds.0 += seconds;
                self.seconds.1 += if busy { seconds } else { 0.0 };
            }
        }
        self.cpu_seconds = cpu;
    }

    /// Evaluates a run.
    pub fn finish(&mut self, outcome: &Outcome) {
        match outcome.requests {
            Some(_) => self.finish_requests(outcome),
            None => self.finish_sockets(outcome),
        }
    }

    fn finish_sockets(&mut self, outcome: &Outcome) {
        let requested = outcome.config.pace.rate;
        let fanout = outcome.broadcast.as_ref().and_then(|broadcast| broadcast.fanout.as_ref());
        let echoed =
            outcome.echo.as_ref().zip(outcome.seconds).map(|(echo, s)| echo.sent as f64 / s);
        let reached = fanout.map(|fanout| fanout.reached_rate).or(echoed);
        self.messages_per_second = reached;
        let lag = match (fanout.and_then(|fanout| fanout.publish_lag.as_ref()), &outcome.latency) {
            (Some(lag), _) => lag.p99_ms,
            (None, Some(latency)) => {
                let service = outcome.service_time.as_ref().map_or(0.0, |time| time.p99_ms);
                latency.p99_ms - service
            }
            (None, None) => 0.0,
        };
        // In a short run a moment is more than two percent.
        let on_time = fanout
            .and_then(|fanout| fanout.publish_lag.as_ref())
            .is_some_and(|lag| lag.max_ms <= LATE_MS);
        // Connections that failed to open send nothing, which is not the generator's fault.
        let c = &outcome.connections;
        let opened = c.requested.saturating_sub(c.failed) as f64 / c.requested.max(1) as f64;
        // Nor are publications that were unsent because too many were unanswered.
        let published = outcome.broadcast.as_ref().map_or(0, |broadcast| broadcast.published);
        let opened = fanout.map_or(opened, |fanout| fanout.sent_share(published));
        let below =
            |(requested, reached): &(f64, f64)| !on_time && *reached < REACHED * requested * opened;
        let short = requested.zip(reached).filter(below);
        self.rate_missed = requested.is_some() && (short.is_some() || lag > TOO_LATE_MS);
        self.saturated = if let Some((requested, reached)) = short {
            Some(format!("sent {reached:.0} of {requested:.0} requested messages per second"))
        } else if requested.is_some() && lag > LATE_MS {
            Some(format!("1 % of the messages were sent more than {lag:.0} ms late"))
        } else {
            self.was_busy()
        };
    }

    /// Evaluates a run of requests. If the server is too slow, the rate is missed but the generator is not
    /// at fault; it is at fault for requests sent late although a connection was free.
    fn finish_requests(&mut self, outcome: &Outcome) {
        self.messages_per_second = outcome.per_second;
        let p99 = |times: &Option<Latency>| times.as_ref().map_or(0.0, |times| times.p99_ms);
        let lag = p99(&outcome.scheduling_error);
        let waited = p99(&outcome.latency) - p99(&outcome.service_time);
        let of = outcome.requests.unwrap_or_default();
        let sent = (of.ok + of.failed) as f64;
        let short = sent < REACHED * (sent + of.unsent as f64);
        let is_open = outcome.config.pace.is_open();
        self.rate_missed = is_open && (short || lag.max(waited) > TOO_LATE_MS);
        self.saturated = if lag > LATE_MS {
            Some(format!("1 % of the requests were sent more than {lag:.0} ms late"))
        } else {
            self.was_busy()
        };
    }

    /// Returns a text if the generator used nearly all cores for most of the time.
    fn was_busy(&self) -> Option<String> {
        let (seconds, busy) = self.seconds;
        let most = seconds > 0.0 && busy > seconds / 2.0;
        most.then(|| format!("it used 90 % or more of the {} cores", self.cores))
    }

    /// See the field.
    #[must_use]
    pub fn messages_per_second(&self) -> Option<f64> {
        self.messages_per_second
    }

    /// Cores of its machine.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Returns the CPU usage as one line.
    pub fn figures(&self) -> String {
        let Generator { cpu_seconds, cpu_cores_most, cores, .. } = self;
        format!("{cpu_seconds:.1} CPU seconds, at most {cpu_cores_most:.1} of {cores} cores")
    }

    /// Returns why the figures describe the generator instead of the target, if they do.
    pub fn saturated(&self) -> Option<&str> {
        self.saturated.as_deref()
    }

    /// Returns whether the rate of an open model was missed.
    pub fn missed_the_rate(&self) -> bool {
        self.rate_missed
    }
}

impl Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "generator     {}", self.figures())?;
        match &self.saturated {
            Some(why) => writeln!(
                f,
                "              warning: the generator or this machine was the bottleneck: {why}"
            ),
            None => Ok(()),
        }
    }
}
