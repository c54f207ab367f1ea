//! Memory, CPU and descriptors of the watched target (`--watch-pid`) and of the load generator, which
//! reports if it was the bottleneck.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::fs;

use capacity::{Bytes, Count, Decimal, ProcessMemory};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::outcome::samples::Usage;
use crate::outcome::saturation::{self, Scheduling, WorkerLoad};
use crate::{Counts, Latency, Row};

/// Lateness in milliseconds from which a message no longer counts as sent at the requested rate.
const LATE_MS: f64 = 100.0;
/// Lateness in milliseconds from which the requested rate counts as missed.
const TOO_LATE_MS: f64 = 1_000.0;
/// Share of the requested rate that counts as reached.
const REACHED: f64 = 0.98;
/// Reasons for saturation that are shown.
const REASONS_SHOWN: usize = 6;

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
    /// CPU time per 1,000 messages or publications received, both in the measured time; null without.
    cpu_ms_per_1000_messages: Option<f64>,
    #[serde(skip)]
    cpu_before: f64,
    #[serde(skip)]
    window: Window,
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
            window: Window::default(),
            counted_at: (0, String::new()),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The same process as two generators saw it; [`Watched::finish`] has yet to be called.
    pub(crate) fn merge(self, other: Watched) -> Watched {
        Watched {
            rss_bytes_before: self.rss_bytes_before.min(other.rss_bytes_before),
            rss_bytes: self.rss_bytes.max(other.rss_bytes),
            descriptors_before: self.descriptors_before.min(other.descriptors_before),
            descriptors: self.descriptors.max(other.descriptors),
            cpu_seconds: self.cpu_seconds.max(other.cpu_seconds),
            // Neither knows the messages of the other in its measured time.
            cpu_ms_per_1000_messages: None,
            ..self
        }
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
        let usage = self.sample()?;
        self.window.add(row, usage.cpu_seconds);
        Some(usage)
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
        let memory = memory
            .map(|each| format!(", {} B per connection", Decimal(each, 0)))
            .unwrap_or_default();
        let cpu = self.cpu_ms_per_1000_messages;
        let cpu = cpu
            .map(|each| format!(", {} ms per 1,000 messages", Decimal(each, 2)))
            .unwrap_or_default();
        let (first, last) = (Count(self.descriptors_before), Count(self.descriptors));
        let seconds = Decimal(self.cpu_seconds, 2);
        [
            format!("{before} → {after} resident{memory}"),
            format!("{seconds} CPU seconds{cpu}"),
            format!("{first} → {last} descriptors (maximum)"),
        ]
    }

    /// Computes the ratios from the open connections and the samples.
    pub fn finish(&mut self, open: u64) {
        let grown = self.rss_bytes.saturating_sub(self.rss_bytes_before) as f64;
        self.rss_bytes_per_connection = (open > 0).then(|| grown / open as f64);
        self.cpu_ms_per_1000_messages = self.window.us_per_message();
    }
}

impl Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("process {}", self.pid);
        writeln!(f, "{name:<12}  {}", self.figures().join("\n              "))
    }
}

/// CPU time and messages of the measured time, each from the same samples.
#[derive(Clone, Default, Debug)]
struct Window {
    last: Option<(&'static str, f64, u64)>,
    cpu_seconds: f64,
    messages: u64,
}

impl Window {
    /// Adds a row with the CPU time of a process so far.
    fn add(&mut self, row: &Row, cpu_seconds: f64) {
        let messages = received(row);
        let last = self.last.replace((row.phase, cpu_seconds, messages));
        let Some((phase, cpu_before, before)) = last else { return };
        if phase == row.phase && saturation::is_measured(phase) {
            self.cpu_seconds += (cpu_seconds - cpu_before).max(0.0);
            self.messages += messages.saturating_sub(before);
        }
    }

    /// CPU time per message in microseconds; `None` without messages.
    fn us_per_message(&self) -> Option<f64> {
        (self.messages > 0).then(|| self.cpu_seconds * 1e6 / self.messages as f64)
    }
}

/// Returns the messages, publications and answers received so far.
fn received(row: &Row) -> u64 {
    match &row.progress.counts {
        Counts::Sockets(counts) => counts.echo_received + counts.delivery.received,
        Counts::Requests(counts) => counts.answered + counts.warm_up,
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
    /// What it sent in the measured time, per second: requests, messages or publications; null without.
    messages_per_second: Option<f64>,
    /// CPU time per message or publication received, both in the measured time, in microseconds; null
    /// without.
    #[serde(default)]
    cpu_us_per_message: Option<f64>,
    /// What each worker did in the measured time; empty if unknown.
    workers: Vec<WorkerLoad>,
    /// Share of the measured time that the worker with most of it spent in waits for a core of 1 ms or
    /// more; null if unknown.
    #[serde(default)]
    stalled: Option<f64>,
    /// Share of the CPU time of the machine that its host took in the measured time; null if unknown.
    #[serde(default)]
    stolen: Option<f64>,
    /// Whether the figures describe the generator instead of the target.
    saturated: bool,
    /// Why; empty if they do not.
    reasons: Vec<String>,
    /// Whether the rate of an open model was missed, or met far too late.
    rate_missed: bool,
    #[serde(skip)]
    last: Option<(f64, f64)>,
    #[serde(skip)]
    window: Window,
    #[serde(skip)]
    scheduling: Scheduling,
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
        let stalled_ns = match &row.progress.counts {
            Counts::Sockets(counts) => &counts.stalled_ns,
            Counts::Requests(counts) => &counts.stalled_ns,
        };
        self.scheduling.row(row.phase, elapsed, stalled_ns);
        let Some(Usage { cpu_seconds: cpu, .. }) = usage else { return };
        self.window.add(row, cpu);
        self.cpu_seconds = cpu;
        if row.is_mark {
            return;
        }
        if let Some((before, cpu_before)) = self.last.replace((elapsed, cpu)) {
            let seconds = (elapsed - before).max(1e-3);
            self.cpu_cores_most = self.cpu_cores_most.max((cpu - cpu_before) / seconds);
        }
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
        let churn = outcome.churn.as_ref();
        self.messages_per_second = reached.or(churn.map(|churn| churn.reached_rate));
        let lags = [
            fanout.and_then(|fanout| fanout.publish_lag.as_ref()),
            churn.and_then(|churn| churn.publish_lag.as_ref()),
            outcome.send_lag.as_ref(),
        ];
        let lag = lags.into_iter().flatten().map(|lag| lag.p99_ms).fold(0.0, f64::max);
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
        // Without a connection nothing can be sent.
        let has_connections = c.open.is_none_or(|open| open > 0);
        self.reasons = short
            .filter(|_| has_connections)
            .map(|(requested, reached)| {
                let [reached, requested] = [reached, requested].map(|rate| Decimal(rate, 0));
                format!("sent {reached} of {requested} requested messages per second")
            })
            .into_iter()
            .collect();
        let broadcast = outcome.broadcast.as_ref().and_then(|one| one.latency.as_ref());
        let received = broadcast.or(churn.and_then(|churn| churn.latency.as_ref()));
        let median = outcome.latency.as_ref().or(received).map_or(0.0, |latency| latency.p50_ms);
        self.judge(lag, median);
    }

    /// Evaluates a run of requests. If the server is too slow, the rate is missed but the generator is not
    /// at fault; it is at fault for requests sent late although a connection was free.
    fn finish_requests(&mut self, outcome: &Outcome) {
        let seconds = outcome.seconds.filter(|seconds| *seconds > 0.0);
        let requests = outcome.requests.zip(seconds);
        self.messages_per_second = requests.map(|(of, seconds)| of.sent as f64 / seconds);
        let p99 = |times: &Option<Latency>| times.as_ref().map_or(0.0, |times| times.p99_ms);
        let is_open = outcome.config.pace.is_open();
        let lag = p99(if is_open { &outcome.scheduling_error } else { &outcome.send_lag });
        let waited = p99(&outcome.latency) - p99(&outcome.service_time);
        let of = outcome.requests.unwrap_or_default();
        let sent = (of.ok + of.failed) as f64;
        let short = sent < REACHED * (sent + of.unsent as f64);
        self.rate_missed = is_open && (short || lag.max(waited) > TOO_LATE_MS);
        self.judge(lag, outcome.latency.as_ref().map_or(0.0, |latency| latency.p50_ms));
    }

    /// Decides whether the generator was saturated: by the 99th percentile of its send lag, and by what
    /// its workers did.
    fn judge(&mut self, lag_ms: f64, median_ms: f64) {
        self.cpu_us_per_message = self.window.us_per_message();
        self.workers = self.scheduling.workers();
        self.stalled = self.scheduling.stalled();
        self.stolen = self.scheduling.stolen(self.cores);
        self.reasons.extend(saturation::late(lag_ms, median_ms));
        self.reasons.extend(saturation::reasons(&self.workers, self.stalled, self.stolen));
        self.saturated = !self.reasons.is_empty();
    }

    /// Replaces the reasons by fewer or shorter ones.
    pub fn shorten_reasons(&mut self, shorten: impl Fn(&[String]) -> Vec<String>) {
        self.reasons = shorten(&self.reasons);
    }

    /// Replaces the number of cores of its machine: 0 if those count for another generator.
    pub fn set_cores(&mut self, cores: usize) {
        self.cores = cores;
    }

    /// Puts the name of its machine before each reason, so that it is known when several are merged.
    pub fn set_name(&mut self, name: &str) {
        self.reasons.iter_mut().for_each(|reason| *reason = format!("{name}: {reason}"));
    }

    pub(crate) fn forget_workers(&mut self) {
        self.workers = Vec::new();
    }

    /// Two generators together. CPU time per message is unknown, as are the messages that it divides by.
    pub(crate) fn merge(self, other: Generator) -> Generator {
        let mut workers: Vec<WorkerLoad> = self.workers.into_iter().chain(other.workers).collect();
        workers.sort_by(|one, other| {
            let parts = |of: &WorkerLoad| [of.busy, of.waited, of.wait_ms];
            let order = parts(one).into_iter().zip(parts(other)).map(|(a, b)| a.total_cmp(&b));
            order.fold(Ordering::Equal, Ordering::then)
        });
        let reasons: BTreeSet<String> = self.reasons.into_iter().chain(other.reasons).collect();
        let most = |one: Option<f64>, other| one.into_iter().chain(other).reduce(f64::max);
        let stalled = most(self.stalled, other.stalled);
        let stolen = most(self.stolen, other.stolen);
        let rates = self.messages_per_second.zip(other.messages_per_second);
        Generator {
            cores: self.cores.saturating_add(other.cores),
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            cpu_cores_most: self.cpu_cores_most + other.cpu_cores_most,
            messages_per_second: rates.map(|(one, other)| one + other),
            cpu_us_per_message: None,
            workers,
            stalled,
            stolen,
            saturated: self.saturated || other.saturated,
            reasons: reasons.into_iter().collect(),
            rate_missed: self.rate_missed || other.rate_missed,
            last: None,
            window: Window::default(),
            scheduling: Scheduling::default(),
        }
    }

    /// Returns the first lines of a summary if the generator was saturated; otherwise nothing.
    pub fn headline(&self) -> String {
        if !self.saturated {
            return String::new();
        }
        let (shown, more) = self.shown_reasons();
        let lines = shown.iter().cloned().chain(more).map(|why| format!("              {why}\n"));
        let first = "SATURATED     the generator was the bottleneck, not the target:\n".to_owned();
        std::iter::once(first).chain(lines).collect()
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
        let seconds = Decimal(*cpu_seconds, 1);
        let mut text = format!("{seconds} CPU seconds");
        // A run that is shorter than a second has no second with most of it.
        text += &match *cpu_cores_most > 0.0 {
            true => format!(", at most {cpu_cores_most:.1} of {cores} cores"),
            false => format!(" on {cores} cores"),
        };
        if let Some(each) = self.cpu_us_per_message {
            text += &format!(", {} µs per message", Decimal(each, 2));
        }
        let most = |share: fn(&WorkerLoad) -> f64| {
            100.0 * self.workers.iter().map(share).fold(0.0, f64::max)
        };
        if !self.workers.is_empty() {
            let (busy, waited) = (most(|worker| worker.busy), most(|worker| worker.waited));
            text += &format!("; workers busy {busy:.0} %, waiting for a core {waited:.0} %");
        }
        text
    }

    /// Returns why the figures describe the generator instead of the target, if they do.
    pub fn saturated(&self) -> Option<String> {
        let (shown, more) = self.shown_reasons();
        let all = || shown.iter().cloned().chain(more).collect::<Vec<_>>().join("; ");
        self.saturated.then(all)
    }

    /// The first reasons, and how many more there are: many generators have many.
    fn shown_reasons(&self) -> (&[String], Option<String>) {
        let (shown, rest) = self.reasons.split_at(self.reasons.len().min(REASONS_SHOWN));
        (shown, (!rest.is_empty()).then(|| format!("… {} more", rest.len())))
    }

    /// Returns whether the rate of an open model was missed.
    pub fn missed_the_rate(&self) -> bool {
        self.rate_missed
    }
}

impl Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "generator     {}", self.figures().replace("; ", "\n              "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChurnSummary, EchoSummary, RequestCounts};

    #[test]
    fn a_run_without_a_measured_second_says_nothing_of_the_most() {
        let mut generator = Generator::new(4);
        assert_eq!(generator.figures(), "0.0 CPU seconds on 4 cores");
        generator.cpu_cores_most = 0.25;
        assert_eq!(generator.figures(), "0.0 CPU seconds, at most 0.2 of 4 cores");
    }

    #[test]
    fn messages_per_second_are_those_that_were_sent() {
        let seconds = Some(2.0);
        let requests = RequestCounts { sent: 30, answered: 10, ..RequestCounts::default() };
        let echo = EchoSummary { sent: 30, received: 10, ..EchoSummary::default() };
        let churn = ChurnSummary { reached_rate: 15.0, ..ChurnSummary::default() };
        let none = Outcome::default;
        for outcome in [
            Outcome { requests: Some(requests), seconds, per_second: Some(5.0), ..none() },
            Outcome { echo: Some(echo), seconds, per_second: Some(5.0), ..none() },
            Outcome { churn: Some(churn), ..none() },
        ] {
            let mut generator = Generator::new(2);
            generator.finish(&outcome);
            assert_eq!(generator.messages_per_second(), Some(15.0), "{outcome:?}");
        }
        let mut generator = Generator::new(2);
        generator.finish(&none());
        assert_eq!(generator.messages_per_second(), None);
    }
}
