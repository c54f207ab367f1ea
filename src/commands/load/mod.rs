//! `standfast load`: reads flags into a [`Config`], shows progress and a summary, and sets the exit
//! code. Runs of requests (http, https, tcp, tls) are in [`requests`].

mod cable;
mod compare;
mod config;
mod csv;
mod destinations;
mod flags;
mod from_curl;
mod metrics;
mod observers;
mod page;
mod requests;
mod run_config;
mod scenario;
mod screen;
mod threshold;
mod urls;
mod watch;

use std::io::{self, BufReader};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use capacity::Machine;
use clap::ArgMatches;
use engine::sys::process::{self, Signal};
use load::{
    BroadcastSummary, ChurnSummary, Config, Connections, EchoSummary, Latency, Publish, RunOutcome,
    Summary,
};
use serde::Serialize;

use self::csv::Csv;
pub(crate) use self::destinations::warn_unresolved;
use self::flags::Command;
pub(crate) use self::flags::{Args, connect, connect_flag};
use self::metrics::Metrics;
use self::observers::{Observed, Observers};
use self::run_config::RunConfig;
use self::screen::Screen;
use self::threshold::{Figure, Metric, Outcome};
use self::watch::{Generator, Watched};
use crate::output;
use crate::progress::Series;

/// Runs the command. Exit code 0: all held; 1: something fell short; 130: interrupted.
///
/// # Errors
/// Invalid flags or an unsuitable environment: exit code 2.
pub(crate) fn run(args: &Args, flags: &ArgMatches) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Compare(args)) => return compare::run(args),
        Some(Command::FromCurl(args)) => return from_curl::run(args),
        Some(Command::Init(args)) => return scenario::init(args),
        None => {}
    }
    for file in [&args.json, &args.html, &args.csv].into_iter().flatten() {
        output::check_writable(file)?;
    }
    let interrupted =
        |wait| matches!(process::wait_signal(wait), Some(Signal::Interrupt | Signal::Terminate));
    if scenario::is_scenario(&args.urls) {
        return scenario::run(args, flags, interrupted);
    }
    scenario::check_without_scenario(args)?;
    destinations::check_first(&args.urls)?;
    if requests::is_meant(&args.urls) {
        return requests::run(args, flags, interrupted);
    }
    requests::flags::check(flags, false)?;
    let config = config::config(args)?;
    warn_unresolved(&config.endpoints, "connections");
    if let Some(Publish::Http(http)) = config.fanout.as_ref().map(|fanout| &fanout.publish) {
        warn_unresolved(std::slice::from_ref(&http.endpoint), "publications");
    }
    let ended = if args.control {
        process::end_with_parent();
        let input = BufReader::new(io::stdin());
        load::control::run_commands(&config, input, io::stdout(), || interrupted(Duration::ZERO))?
    } else {
        return measure(args, &config, interrupted);
    };
    Ok(match ended {
        RunOutcome { interrupted: true, .. } => ExitCode::from(130),
        RunOutcome { summary, .. } => ExitCode::from(u8::from(!summary.held)),
    })
}

/// The document of `--json`: the summary and the run's settings and measurements.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(flatten)]
    asked: &'a RunConfig,
    generator: &'a Generator,
    watched: Option<&'a Watched>,
    thresholds: &'a [Outcome],
    /// Samples over time, at most some thousand.
    samples: &'a Series,
}

fn measure(
    args: &Args,
    config: &Config,
    interrupted: impl FnMut(Duration) -> bool,
) -> Result<ExitCode> {
    let machine = Machine::read();
    let mut csv = args.csv.as_deref().map(Csv::create).transpose()?;
    let metrics = Metrics::start(args)?;
    let screen = |before| Screen::of_sockets(config, &args.urls, args.plain, before);
    let files = (csv.as_mut(), metrics.as_ref());
    let mut observers = Observers::begin(args, &machine, files, screen)?;
    let mut ended = load::drive(config, |row| drop(observers.row(row)), interrupted)?;
    let Observed { mut generator, mut watched, samples } = observers.end();
    generator.finish(&ended.summary, requested_rate(config), sending_seconds(config));
    if let Some(watched) = &mut watched {
        let summary = &ended.summary;
        watched.finish(summary.connections.open, watch::received(summary));
    }
    if generator.missed_the_rate() {
        // The figures belong to a different rate than the requested one.
        ended.summary.held = false;
        ended.summary.reasons.push("the requested rate was not reached on time".to_owned());
    }
    let rate = generator.messages_per_second();
    let figure = |metric| Figure {
        value: value(metric, &ended.summary, rate),
        is_answered: is_answered(&ended.summary),
    };
    let outcomes: Vec<Outcome> =
        args.threshold.iter().map(|threshold| threshold.judge(figure)).collect();
    let (generator, thresholds) = (&generator, &outcomes[..]);
    let (summary, watched, samples) = (&ended.summary, watched.as_ref(), &samples);
    let asked = &RunConfig::of_sockets(&args.urls, config);
    let document = Document { summary, asked, generator, watched, thresholds, samples };
    let missed = outcomes.iter().any(|outcome| !outcome.met);
    let short = match outcomes.as_slice() {
        [] => !ended.summary.held,
        _ => missed || generator.missed_the_rate(),
    };
    report(args.json.as_deref(), &document, (ended.interrupted, short))?;
    if let Some(file) = &args.html {
        let (asked, came) = ((&args.urls[..], config), (&document, ended.interrupted));
        page::report(asked, came, samples, &machine).write(file)?;
    }
    csv.map_or(Ok(()), Csv::finish)?;
    Ok(if ended.interrupted { ExitCode::from(130) } else { ExitCode::from(u8::from(short)) })
}

/// Returns the messages per second of an open model.
fn requested_rate(config: &Config) -> Option<f64> {
    let fanout = config.fanout.as_ref().map(|fanout| fanout.rate);
    fanout.or(config.echo.as_ref().and_then(|echo| echo.rate)).map(|rate| rate as f64)
}

/// Returns how long messages are due, if a duration is set.
fn sending_seconds(config: &Config) -> Option<f64> {
    let echo = config.echo.as_ref()?;
    echo.duration
        .filter(|_| echo.messages.is_none() || echo.turnover)
        .map(|time| time.as_secs_f64())
}

/// Prints the summary: text to standard output unless JSON goes there.
fn report(
    json: Option<&str>,
    document: &Document<'_>,
    (interrupted, short): (bool, bool),
) -> Result<()> {
    let mut text = document.summary.figures().to_string();
    text += &document.asked.text();
    text += &document.generator.to_string();
    text += &document.watched.map(Watched::to_string).unwrap_or_default();
    document.thresholds.iter().for_each(|outcome| text += &outcome.to_string());
    let (outcomes, reasons) = (document.thresholds, &document.summary.reasons);
    text += &threshold::result(interrupted, short, outcomes, reasons, "all held");
    output::report(json, &text, document)
}

/// Returns whether anything was received: messages if the run expects some, else open WebSockets.
fn is_answered(summary: &Summary) -> bool {
    let echo = summary.echo.as_ref().map(|echo| echo.received);
    let broadcast = summary.broadcast.as_ref().map(|broadcast| broadcast.received);
    let churn = summary.churn.as_ref().map(|churn| churn.received);
    let messages: Option<u64> = [echo, broadcast, churn].into_iter().flatten().reduce(u64::max);
    let Connections { open, retired, replaced, .. } = summary.connections;
    messages.unwrap_or(open + retired + replaced + summary.closed.values().sum::<u64>()) > 0
}

/// Returns the value of a threshold's metric; `rate` is in messages per second.
fn value(metric: Metric, summary: &Summary, rate: Option<f64>) -> Option<f64> {
    let broadcast = summary.broadcast.as_ref();
    let published = broadcast.and_then(|broadcast| broadcast.latency.as_ref());
    let churn = summary.churn.as_ref();
    let churned = churn.and_then(|churn| churn.latency.as_ref());
    let received = published.or(churned);
    let latency = summary.latency.as_ref().or(received).or(summary.heartbeats.latency.as_ref());
    let of = |pick: fn(&Latency) -> f64| latency.map(pick);
    let closed = summary.closed.values().sum::<u64>();
    let echo = summary.echo.as_ref();
    let of_all = |of_echo: fn(&EchoSummary) -> u64,
                  of_broadcast: fn(&BroadcastSummary) -> u64,
                  of_churn: fn(&ChurnSummary) -> u64| {
        // Without messages nothing can be lost, which counts as not measured.
        let counts = [echo.map(of_echo), broadcast.map(of_broadcast), churn.map(of_churn)];
        counts.into_iter().flatten().reduce(|one, other| one + other)
    };
    let lost = of_all(|e| e.lost, |b| b.lost, |c| c.lost);
    let wrong = of_all(
        |e| e.duplicated + e.reordered + e.corrupted + e.late,
        |b| b.duplicated + b.reordered + b.corrupted + b.late + b.stale,
        |c| {
            c.duplicated
                + c.reordered
                + c.corrupted
                + c.late
                + c.stale
                + c.unexpected
                + c.unconfirmed
        },
    );
    let count = |count: u64| Some(count as f64);
    let of_messages = |count: Option<u64>| count.map(|count| count as f64);
    let errors =
        summary.connections.failed + closed + lost.unwrap_or_default() + wrong.unwrap_or_default();
    let errors = errors + echo.map_or(0, |echo| echo.unsent);
    match metric {
        Metric::P50 => of(|latency| latency.p50_ms),
        Metric::P90 => of(|latency| latency.p90_ms),
        Metric::P95 => of(|latency| latency.p95_ms),
        Metric::P99 => of(|latency| latency.p99_ms),
        Metric::P999 => of(|latency| latency.p999_ms),
        Metric::Max => of(|latency| latency.max_ms),
        Metric::Failed => count(summary.connections.failed),
        Metric::Closed => count(closed),
        Metric::Lost => of_messages(lost),
        Metric::Duplicated => {
            of_messages(of_all(|e| e.duplicated, |b| b.duplicated, |c| c.duplicated))
        }
        Metric::Reordered => of_messages(of_all(|e| e.reordered, |b| b.reordered, |c| c.reordered)),
        Metric::Late => of_messages(of_all(|e| e.late, |b| b.late, |c| c.late)),
        Metric::ReceiptP50 => received.map(|latency| latency.p50_ms),
        Metric::ReceiptP99 => received.map(|latency| latency.p99_ms),
        Metric::ReceiptMax => received.map(|latency| latency.max_ms),
        Metric::Errors => count(errors),
        // Share of all attempts: connections and messages.
        Metric::ErrorShare => {
            let expected =
                of_all(|e| e.sent + e.unsent, |b| b.expected, |c| c.owed).unwrap_or_default();
            let attempted = summary.connections.requested + expected;
            Some(100.0 * errors as f64 / attempted.max(1) as f64)
        }
        Metric::Rate => rate,
    }
}
