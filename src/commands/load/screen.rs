//! Progress of a run of `load`: each second's [`Row`] becomes a sample and a line of text.
//! [`crate::report::screen`] puts them on the terminal.

use std::time::Duration;

use capacity::{Count, Decimal, KernelMemory, ProcessMemory};
use load::requests::{Pace, Requests};
use load::{Config, Endpoint, Row};

use crate::report::screen::{self, About, AgentRow, Left, Rows, Step};
use load::{Sample, SampleLatency, Usage};

/// Number of rows after which the column titles are repeated.
const TITLES_EVERY: u32 = 20;
const TITLES: &str =
    " elapsed  phase         open    failed     msgs/s     p50 ms     p99 ms    errors\n";

/// Returns the completed share of a phase, and the time left of the run if known, from a sample and the
/// seconds since the phase began.
type Done<'a> = Box<dyn Fn(&Sample, f64) -> (f64, Option<Left>) + 'a>;

/// The progress display of one run. Dropping it restores the terminal.
pub(super) struct Screen<'a> {
    done: Done<'a>,
    screen: screen::Screen,
    /// Settings for the live screen until the first row arrives.
    about: Option<About>,
    rows: u32,
    phase: &'static str,
    phase_began_seconds: f64,
    kernel_before: Option<u64>,
    /// Of a run that agents share: the usage of their processes, and each of them.
    fleet: Option<(Option<Usage>, Vec<AgentRow>)>,
}

impl<'a> Screen<'a> {
    /// Creates the display of a WebSocket run. `plain` prints rows of text on every terminal; `server`
    /// is the usage of the watched process before the run.
    pub(super) fn of_sockets(
        config: &'a Config,
        urls: &[String],
        plain: bool,
        server: Option<Usage>,
    ) -> Screen<'a> {
        let staged = !config.stages.is_empty();
        let phases = [
            ("stages", staged),
            ("connect", !staged),
            ("warm-up", !config.warm_up.is_zero()),
            ("hold", !config.hold.is_zero()),
            ("echo", config.echo.is_some()),
            ("fanout", config.fanout.is_some() && config.churn.is_none()),
            ("churn", config.churn.is_some()),
        ];
        let (sockets, endpoints) = (most(config), &config.endpoints);
        let done = Box::new(|sample: &Sample, since| {
            let done = of_sockets_done(config, sample, since);
            (done, of_sockets_left(config, sample, done, since))
        });
        Screen::new(about(urls, &phases, sockets, endpoints, server), plain, done)
    }

    /// Creates the display of a run of requests.
    pub(super) fn of_requests(
        config: &'a Requests,
        urls: &[String],
        plain: bool,
        server: Option<Usage>,
    ) -> Screen<'a> {
        let phases = [("warm-up", !config.warm_up.is_zero()), ("requests", true)];
        let about = about(urls, &phases, config.connections, &config.endpoints, server);
        let done = Box::new(|sample: &Sample, since| {
            let done = of_requests_done(config, sample, since);
            (done, of_requests_left(config, sample, done, since))
        });
        Screen::new(about, plain, done)
    }

    fn new(about: About, plain: bool, done: Done<'a>) -> Screen<'a> {
        Screen {
            done,
            screen: screen::Screen::new(Rows::Stay, plain),
            about: Some(about),
            rows: 0,
            phase: "",
            phase_began_seconds: 0.0,
            kernel_before: KernelMemory::read().ok().map(|memory| memory.total()),
            fleet: None,
        }
    }

    /// Sets what the next rows have beside them of a run that agents share.
    pub(super) fn set_fleet(&mut self, client: Option<Usage>, agents: Vec<AgentRow>) {
        self.fleet = Some((client, agents));
    }

    /// Shows a row; `server` is the current usage of the watched process.
    pub(super) fn row(&mut self, row: &Row, server: Option<Usage>) -> Sample {
        if let Some(about) = self.about.take() {
            self.screen.begin(about);
        }
        let sample = self.sample(row, server);
        if row.phase != self.phase {
            self.phase = row.phase;
            self.phase_began_seconds = sample.elapsed_seconds;
        }
        let since = sample.elapsed_seconds - self.phase_began_seconds;
        let (done, left) = (self.done)(&sample, since);
        let titles = if self.rows.is_multiple_of(TITLES_EVERY) { TITLES } else { "" };
        self.rows += 1;
        let text = format!("{titles}{}", line(row));
        let agents = self.fleet.as_ref().map_or(&[][..], |(_, agents)| agents);
        let step = Step { row: text, done, left, detail: Some(row), agents, ..Step::default() };
        self.screen.show(&sample, &step);
        sample
    }

    fn sample(&self, row: &Row, server: Option<Usage>) -> Sample {
        let latency = row.latency.map(|latency| SampleLatency {
            p50_ms: latency.p50_ms,
            p99_ms: latency.p99_ms,
            max_ms: latency.max_ms,
        });
        // The sockets of agents are not of this machine.
        let kernel = KernelMemory::read().ok().filter(|_| self.fleet.is_none());
        let kernel = kernel.map(|memory| memory.total());
        // Unknown if other programs freed more than the sockets took.
        let growth = kernel.zip(self.kernel_before).and_then(|(now, then)| now.checked_sub(then));
        Sample {
            elapsed_seconds: row.elapsed.as_secs_f64(),
            phase: row.phase.into(),
            open: row.open,
            failed: row.failed,
            closed: row.closed,
            sent: row.sent,
            received: row.received,
            latency,
            server,
            client: self.fleet.as_ref().map_or_else(usage, |(client, _)| *client),
            kernel_bytes: growth,
            errors: row.causes.iter().map(|&(cause, n)| (cause.to_owned(), n)).collect(),
        }
    }
}

fn about(
    urls: &[String],
    phases: &[(&'static str, bool)],
    sockets: u64,
    endpoints: &[Endpoint],
    server: Option<Usage>,
) -> About {
    About {
        title: format!("standfast load {}", urls.join(" ")),
        phases: phases.iter().filter(|(_, is)| *is).map(|(phase, _)| *phase).collect(),
        sockets,
        ends_here: 1 + u64::from(endpoints.iter().all(|e| e.address.ip().is_loopback())),
        before: Sample { server, client: usage(), kernel_bytes: Some(0), ..Sample::default() },
    }
}

fn of_count(done: u64, whole: u64) -> f64 {
    done as f64 / whole.max(1) as f64
}

/// Returns the completed share of the phase.
fn of_sockets_done(config: &Config, sample: &Sample, since: f64) -> f64 {
    let Config { connections, stages, hold, echo, fanout, .. } = config;
    let of_time = |whole: Duration| since / whole.as_secs_f64();
    let of_sending = |duration: Option<Duration>, messages: Option<u32>| match messages {
        Some(messages) => of_count(sample.received, u64::from(messages) * sample.open),
        None => duration.map_or(0.0, of_time),
    };
    match (&*sample.phase, echo, fanout) {
        ("stages", ..) => of_time(stages.iter().map(|stage| stage.time).sum()),
        ("warm-up", ..) => of_time(config.warm_up),
        ("hold", ..) => of_time(*hold),
        ("echo", Some(echo), _) if echo.turnover => echo.duration.map_or(0.0, of_time),
        ("echo", Some(echo), _) => of_sending(echo.duration, echo.messages),
        ("fanout" | "churn", _, Some(fanout)) => of_sending(fanout.duration, fanout.messages),
        _ => of_count(sample.open + sample.failed, *connections),
    }
}

/// Returns the time left: what is left of the phase, and the later phases.
fn of_sockets_left(config: &Config, sample: &Sample, done: f64, since: f64) -> Option<Left> {
    let Config { warm_up, hold, echo, fanout, .. } = config;
    // A duration, or a number of messages that takes an unknown time.
    let sending = match (echo, fanout) {
        (Some(echo), _) => echo.duration.filter(|_| echo.messages.is_none() || echo.turnover),
        (_, Some(fanout)) => fanout.duration.filter(|_| fanout.messages.is_none()),
        (None, None) => Some(Duration::ZERO),
    };
    let (held, warmed) = match &*sample.phase {
        "connect" => (*hold, *warm_up),
        // Without messages the warm-up is before the hold.
        "stages" => (*hold, Duration::ZERO),
        "warm-up" if echo.is_none() && fanout.is_none() => (*hold, Duration::ZERO),
        "hold" if echo.is_some() || fanout.is_some() => (Duration::ZERO, *warm_up),
        _ => (Duration::ZERO, Duration::ZERO),
    };
    let sends = matches!(&*sample.phase, "connect" | "warm-up" | "hold");
    let then = held + warmed + sending.filter(|_| sends).unwrap_or_default();
    let left = Left::estimate(done, since, then.as_secs_f64())?;
    Some(Left { at_least: sends && sending.is_none(), ..left })
}

/// Returns the time left: by time or by number, whichever is shorter.
fn of_requests_left(config: &Requests, sample: &Sample, done: f64, since: f64) -> Option<Left> {
    let time = config.over_after().map(|time| time.as_secs_f64());
    if sample.phase == "warm-up" {
        let seconds = (config.warm_up.as_secs_f64() - since).max(0.0);
        return Some(Left { seconds: seconds + time.unwrap_or(0.0), at_least: time.is_none() });
    }
    let by_time = time.map(|time| Left { seconds: (time - since).max(0.0), at_least: false });
    let by_count = config.requests.and_then(|_| Left::estimate(done, since, 0.0));
    match (by_time, by_count) {
        (Some(time), Some(count)) if count.seconds < time.seconds => Some(count),
        (time, count) => time.or(count),
    }
}

/// Returns the completed share of a run of requests, by time or by number, whichever is higher.
fn of_requests_done(config: &Requests, sample: &Sample, since: f64) -> f64 {
    let of_time = |whole: Duration| since / whole.as_secs_f64();
    if sample.phase == "warm-up" {
        return of_time(config.warm_up);
    }
    let time = config.over_after().map_or(0.0, of_time);
    let warm_up = match config.pace {
        Pace::Rate(rate) => (rate as f64 * config.warm_up.as_secs_f64()) as u64,
        _ => 0,
    };
    let come = sample.received.saturating_sub(warm_up);
    time.max(config.requests.map_or(0.0, |requests| of_count(come, requests)))
}

/// Returns the maximum number of concurrent connections.
fn most(config: &Config) -> u64 {
    let highest = config.stages.iter().map(|stage| stage.connections).max();
    highest.unwrap_or(config.connections)
}

/// Returns the usage of this process.
pub(super) fn usage() -> Option<Usage> {
    let memory = ProcessMemory::of(std::process::id()).ok()?;
    Some(Usage { rss_bytes: memory.rss_bytes, cpu_seconds: memory.cpu_seconds })
}

/// Returns a row as text, without a line end.
pub(crate) fn line(row: &Row) -> String {
    let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| Decimal(ms, 3).to_string());
    format!(
        "{:>7.1}s  {:<8} {:>9} {:>9} {:>10} {:>10} {:>10} {:>9}",
        row.elapsed.as_secs_f64(),
        row.phase,
        Count(row.open),
        Count(row.failed),
        Decimal(row.messages_per_second, 0),
        ms(row.latency.map(|latency| latency.p50_ms)),
        ms(row.latency.map(|latency| latency.p99_ms)),
        Count(row.errors),
    )
}
