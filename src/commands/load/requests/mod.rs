//! `standfast load http://…`: runs of requests, from flags to the exit code.

mod config;
pub(super) mod flags;
pub(super) mod page;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use capacity::Machine;
use clap::ArgMatches;
use load::Row;
use load::requests::{
    Fixed, Http1, Pace, Part, RequestSummary, Requests, RequestsOutcome, Tcp, drive_requests,
};
use serde::Serialize;

use self::config::Plan;
pub(super) use self::config::is_meant;
use super::csv::Csv;
use super::destinations::warn_unresolved;
use super::flags::Args;
use super::metrics::Metrics;
use super::observers::{Observed, Observers};
use super::run_config::RunConfig;
use super::screen::Screen;
use super::threshold::{self, Figure, Metric, Outcome};
use super::watch::{Generator, Watched};
use crate::output;
use crate::progress::Series;

/// The document of `--json`: the summary and the run's settings and measurements.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    summary: &'a RequestSummary,
    #[serde(flatten)]
    config: &'a RunConfig,
    /// Whether all requests were answered and the rate was reached.
    held: bool,
    reasons: &'a [String],
    generator: &'a Generator,
    watched: Option<&'a Watched>,
    thresholds: &'a [Outcome],
    /// Requested number of concurrent connections.
    users: u64,
    /// Samples over time, at most some thousand.
    samples: &'a Series,
}

/// Runs the command. Exit code 0: all was answered, or the thresholds were met; 1: it fell short.
///
/// # Errors
/// Invalid flags or an unsuitable environment: exit code 2.
pub(super) fn run(
    args: &Args,
    flags: &ArgMatches,
    interrupted: impl FnMut(Duration) -> bool,
) -> Result<ExitCode> {
    flags::check(flags, true)?;
    let plan = config::plan(args)?;
    warn_unresolved(&plan.requests.endpoints, "requests");
    let machine = Machine::read();
    let mut csv = args.csv.as_deref().map(Csv::create).transpose()?;
    let metrics = Metrics::start(args)?;
    let screen = |before| Screen::of_requests(&plan.requests, &args.urls, args.plain, before);
    let files = (csv.as_mut(), metrics.as_ref());
    let mut observers = Observers::begin(args, &machine, files, screen)?;
    let ended = drive(&plan, |row| drop(observers.row(row)), interrupted)?;
    let Observed { mut generator, mut watched, samples } = observers.end();
    let RequestsOutcome { summary, interrupted } = &ended;
    generator.finish_requests(summary, is_open(&plan.requests));
    if let Some(watched) = &mut watched {
        watched.finish(samples.most_open(), summary.requests.answered);
    }
    let outcomes: Vec<Outcome> = args
        .threshold
        .iter()
        .map(|threshold| threshold.judge(|metric| figure(metric, summary)))
        .collect();
    let mut reasons = summary.reasons();
    if generator.missed_the_rate() {
        // The figures belong to a different rate than the requested one.
        reasons.push("the requested rate was not reached on time".to_owned());
    }
    let document = Document {
        summary,
        config: &RunConfig::of_requests(&args.urls, &plan.requests),
        held: reasons.is_empty(),
        reasons: &reasons,
        generator: &generator,
        watched: watched.as_ref(),
        thresholds: &outcomes,
        users: plan.requests.connections,
        samples: &samples,
    };
    report(args.json.as_deref(), &document, *interrupted)?;
    if let Some(file) = &args.html {
        let (input, outcome) = ((&args.urls[..], &plan), (&document, *interrupted));
        page::report(input, outcome, &samples, &machine).write(file)?;
    }
    csv.map_or(Ok(()), Csv::finish)?;
    let short = document.fell_short();
    Ok(if *interrupted { ExitCode::from(130) } else { ExitCode::from(u8::from(short)) })
}

fn drive(
    plan: &Plan,
    row: impl FnMut(&Row),
    interrupted: impl FnMut(Duration) -> bool,
) -> Result<RequestsOutcome> {
    let (sent, accepted) = (plan.sent.clone(), plan.accepted.clone());
    let script = move |part: Part| Fixed::new(sent.clone(), part, accepted.clone());
    let requests = &plan.requests;
    Ok(match plan.expect.clone() {
        None => drive_requests(requests, Http1::new, script, row, interrupted)?,
        Some(expect) => {
            let driver = move || Tcp::new(expect.clone());
            drive_requests(requests, driver, script, row, interrupted)?
        }
    })
}

impl Document<'_> {
    fn fell_short(&self) -> bool {
        fell_short(self.summary, self.generator, self.thresholds, self.reasons)
    }
}

/// Returns whether the run exits with 1. If there are thresholds they decide, except that a missed rate
/// and a run without any answer always fall short.
pub(super) fn fell_short(
    summary: &RequestSummary,
    generator: &Generator,
    thresholds: &[Outcome],
    reasons: &[String],
) -> bool {
    let missed = thresholds.iter().any(|outcome| !outcome.met);
    let besides = generator.missed_the_rate() || summary.requests.answered == 0;
    missed || besides || thresholds.is_empty() && !reasons.is_empty()
}

/// Returns whether the run has an open model.
pub(super) fn is_open(config: &Requests) -> bool {
    matches!(config.pace, Pace::Rate(_) | Pace::Rates(_))
}

/// Returns the value of a threshold's metric.
pub(super) fn figure(metric: Metric, summary: &RequestSummary) -> Figure {
    Figure { value: value(metric, summary), is_answered: summary.requests.answered > 0 }
}

fn value(metric: Metric, summary: &RequestSummary) -> Option<f64> {
    let latency = summary.latency.as_ref();
    Some(match metric {
        Metric::P50 => latency?.p50_ms,
        Metric::P90 => latency?.p90_ms,
        Metric::P95 => latency?.p95_ms,
        Metric::P99 => latency?.p99_ms,
        Metric::P999 => latency?.p999_ms,
        Metric::Max => latency?.max_ms,
        Metric::Failed => summary.requests.failed as f64,
        Metric::Errors | Metric::Lost => summary.errors() as f64,
        Metric::ErrorShare => summary.error_share()? * 100.0,
        Metric::Closed => summary.connections.closed_idle as f64,
        Metric::Rate => summary.per_second,
        Metric::Duplicated
        | Metric::Reordered
        | Metric::Late
        | Metric::ReceiptP50
        | Metric::ReceiptP99
        | Metric::ReceiptMax => return None,
    })
}

/// Prints the summary: text to standard output unless JSON goes there.
fn report(json: Option<&str>, document: &Document<'_>, interrupted: bool) -> Result<()> {
    let mut text = document.summary.to_string();
    text += &document.config.text();
    text += &document.generator.to_string();
    text += &document.watched.map(Watched::to_string).unwrap_or_default();
    document.thresholds.iter().for_each(|outcome| text += &outcome.to_string());
    let (short, outcomes) = (document.fell_short(), document.thresholds);
    text += &threshold::result(interrupted, short, outcomes, document.reasons, "all answered");
    output::report(json, &text, document)
}
