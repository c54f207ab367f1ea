//! Progress of a run of `load`: each second's [`Row`] becomes a sample and a line of text.
//! [`crate::report::screen`] puts them on the terminal.

use std::time::Duration;

use capacity::{KernelMemory, ProcessMemory};
use load::requests::{Pace, Requests};
use load::{Config, Endpoint, Row};

use crate::report::screen::{self, About, Rows, Step};
use load::{Sample, SampleLatency, Usage};

/// Number of rows after which the column titles are repeated.
const TITLES_EVERY: u32 = 20;
const TITLES: &str =
    " elapsed  phase        open    failed     msgs/s     p50 ms     p99 ms   errors\n";

/// Returns the completed share of a phase from a sample and the seconds since the phase began.
type Done<'a> = Box<dyn Fn(&Sample, f64) -> f64 + 'a>;

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
        let done = Box::new(|sample: &Sample, since| of_sockets_done(config, sample, since));
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
        let done = Box::new(|sample: &Sample, since| of_requests_done(config, sample, since));
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
        }
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
        let done = (self.done)(&sample, sample.elapsed_seconds - self.phase_began_seconds);
        let titles = if self.rows.is_multiple_of(TITLES_EVERY) { TITLES } else { "" };
        self.rows += 1;
        let step = Step { row: format!("{titles}{}", line(row)), done };
        self.screen.show(&sample, &step);
        sample
    }

    fn sample(&self, row: &Row, server: Option<Usage>) -> Sample {
        let latency = row.latency.map(|latency| SampleLatency {
            p50_ms: latency.p50_ms,
            p99_ms: latency.p99_ms,
            max_ms: latency.max_ms,
        });
        let kernel = KernelMemory::read().ok().map(|memory| memory.total());
        let growth = kernel.zip(self.kernel_before).map(|(now, then)| now.saturating_sub(then));
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
            client: usage(),
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
    let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"));
    format!(
        "{:>7.1}s  {:<7} {:>9} {:>9} {:>10.0} {:>10} {:>10} {:>8}",
        row.elapsed.as_secs_f64(),
        row.phase,
        row.open,
        row.failed,
        row.messages_per_second,
        ms(row.latency.map(|latency| latency.p50_ms)),
        ms(row.latency.map(|latency| latency.p99_ms)),
        row.errors,
    )
}
