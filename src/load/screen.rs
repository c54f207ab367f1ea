//! A run of `load` under way: each second's [`Row`] becomes a sample and a line of text. How they
//! come to the terminal is [`crate::screen`]'s.

use std::time::Duration;

use host::{KernelMemory, ProcessMemory};
use load::{Config, Row};

use crate::progress::{Latency, Sample, Usage};
use crate::screen::{self, About, Rows, Step};

/// The titles come again after so many lines.
const TITLES_EVERY: u32 = 20;
const TITLES: &str =
    " elapsed  phase        open    failed     msgs/s     p50 ms     p99 ms   errors\n";

/// What people see of one run. Dropped, the terminal is as it was.
pub(super) struct Screen<'a> {
    config: &'a Config,
    screen: screen::Screen,
    /// What the live screen is to be told once the first row is there.
    about: Option<About>,
    rows: u32,
    phase: &'static str,
    phase_began_seconds: f64,
    kernel_before: Option<u64>,
}

impl<'a> Screen<'a> {
    /// `plain`: rows of text whatever the terminal can do. `server`: what the watched process takes
    /// before the run.
    pub(super) fn new(
        config: &'a Config,
        urls: &[String],
        plain: bool,
        server: Option<Usage>,
    ) -> Screen<'a> {
        let staged = !config.stages.is_empty();
        let phases = [
            ("stages", staged),
            ("connect", !staged),
            ("hold", !config.hold.is_zero()),
            ("echo", config.echo.is_some()),
            ("fanout", config.fanout.is_some()),
        ];
        let about = About {
            title: format!("standfast load {}", urls.join(" ")),
            phases: phases.iter().filter(|(_, is)| *is).map(|(phase, _)| *phase).collect(),
            sockets: most(config),
            ends_here: 1 + u64::from(config.endpoints.iter().all(|e| e.address.ip().is_loopback())),
            before: Sample { server, client: usage(), kernel_bytes: Some(0), ..Sample::default() },
        };
        Screen {
            config,
            screen: screen::Screen::new(Rows::Stay, plain),
            about: Some(about),
            rows: 0,
            phase: "",
            phase_began_seconds: 0.0,
            kernel_before: KernelMemory::read().ok().map(|memory| memory.total()),
        }
    }

    /// A second has passed, after which the watched process takes `server`.
    pub(super) fn row(&mut self, row: &Row, server: Option<Usage>) -> Sample {
        if let Some(about) = self.about.take() {
            self.screen.begin(about);
        }
        let sample = self.sample(row, server);
        if row.phase != self.phase {
            self.phase = row.phase;
            self.phase_began_seconds = sample.elapsed_seconds;
        }
        let titles = if self.rows.is_multiple_of(TITLES_EVERY) { TITLES } else { "" };
        self.rows += 1;
        let step = Step { row: format!("{titles}{}", line(row)), done: self.done(&sample) };
        self.screen.show(&sample, &step);
        sample
    }

    fn sample(&self, row: &Row, server: Option<Usage>) -> Sample {
        let latency = row.latency.map(|latency| Latency {
            p50_ms: latency.p50_ms,
            p99_ms: latency.p99_ms,
            max_ms: latency.max_ms,
        });
        let kernel = KernelMemory::read().ok().map(|memory| memory.total());
        let growth = kernel.zip(self.kernel_before).map(|(now, then)| now.saturating_sub(then));
        Sample {
            elapsed_seconds: row.elapsed.as_secs_f64(),
            phase: row.phase,
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

    /// How much of the phase is done.
    fn done(&self, sample: &Sample) -> f64 {
        let Config { connections, stages, hold, echo, fanout, .. } = self.config;
        let since = sample.elapsed_seconds - self.phase_began_seconds;
        let of_time = |whole: Duration| since / whole.as_secs_f64();
        let of_count = |done: u64, whole: u64| done as f64 / whole.max(1) as f64;
        let of_sending = |duration: Option<Duration>, messages: Option<u32>| match messages {
            Some(messages) => of_count(sample.received, u64::from(messages) * sample.open),
            None => duration.map_or(0.0, of_time),
        };
        match (self.phase, echo, fanout) {
            ("stages", ..) => of_time(stages.iter().map(|stage| stage.time).sum()),
            ("hold", ..) => of_time(*hold),
            ("echo", Some(echo), _) => of_sending(echo.duration, echo.messages),
            ("fanout", _, Some(fanout)) => of_sending(fanout.duration, fanout.messages),
            _ => of_count(sample.open + sample.failed, *connections),
        }
    }
}

/// Connections that are to be open at the same time.
fn most(config: &Config) -> u64 {
    let highest = config.stages.iter().map(|stage| stage.connections).max();
    highest.unwrap_or(config.connections)
}

/// What this process takes.
fn usage() -> Option<Usage> {
    let memory = ProcessMemory::of(std::process::id()).ok()?;
    Some(Usage { rss_bytes: memory.rss_bytes, cpu_seconds: memory.cpu_seconds })
}

fn line(row: &Row) -> String {
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
