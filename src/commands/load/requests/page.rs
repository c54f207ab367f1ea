//! The HTML report of a run of requests: its figures as rows of a [`Report`]. The report of a scenario
//! adds its own tables.

use capacity::{Count, Machine};
use load::Route;
use load::requests::{Pace, RequestSummary, Requests};

use super::{Document, Plan};
use crate::commands::load::page::{generated, staged, thresholds, times};
use crate::commands::load::threshold::Outcome;
use crate::commands::load::watch::{Generator, Watched};
use crate::output;
use crate::progress::Series;
use crate::report::{Report, Rows, Table};
use crate::units::format_duration;

/// Returns the report of a run.
pub(super) fn report<'a>(
    (urls, plan): (&[String], &Plan),
    (document, interrupted): (&Document<'a>, bool),
    series: &'a Series,
    machine: &'a Machine,
) -> Report<'a> {
    let summary = document.summary;
    let (answered, sent) = (summary.requests.answered, summary.requests.sent);
    Report {
        title: format!("Load on {}", urls.join(", ")),
        verdict: verdict(interrupted, document.fell_short(), document.thresholds),
        result: format!("{} of {} requests answered", Count(answered), Count(sent)),
        reasons: document.reasons,
        figures: figures(summary, document.generator, document.watched),
        tables: [thresholds(document.thresholds), by_name(summary)].into_iter().flatten().collect(),
        configuration: configuration(&plan.requests),
        series,
        machine,
        command: output::command_line(),
    }
}

/// Returns the verdict and whether it is a success. Thresholds decide if there are any.
pub(in crate::commands::load) fn verdict(
    interrupted: bool,
    fell_short: bool,
    thresholds: &[Outcome],
) -> (&'static str, bool) {
    let missed = thresholds.iter().any(|outcome| !outcome.met);
    match (interrupted, thresholds) {
        (true, _) => ("INTERRUPTED", false),
        (false, _) if missed => ("THRESHOLD MISSED", false),
        (false, _) if fell_short => ("FELL SHORT", false),
        (false, []) => ("ALL ANSWERED", true),
        (false, _) => ("THRESHOLDS MET", true),
    }
}

pub(in crate::commands::load) fn figures(
    summary: &RequestSummary,
    generator: &Generator,
    watched: Option<&Watched>,
) -> Rows {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let of = &summary.requests;
    row("requests", format!("{} ok, {} failed", Count(of.ok), Count(of.failed)));
    row("due but not sent", Count(of.unsent).to_string());
    let (per_second, seconds) = (summary.per_second, summary.seconds);
    row("answer rate", format!("{per_second:.1} per second over {seconds:.2} s"));
    row("latency (due to answer)", times(summary.latency.as_ref()));
    row("service time (sent to answer)", times(summary.service_time.as_ref()));
    if summary.scheduling_error.is_some() {
        row("scheduling delay", times(summary.scheduling_error.as_ref()));
    }
    let c = &summary.connections;
    row("connections", format!("{} opened, {} failed", Count(c.opened), Count(c.failed)));
    row("maximum in TIME_WAIT on this machine", Count(c.time_wait_most).to_string());
    row("body bytes", Count(summary.body_bytes).to_string());
    if summary.decoded_bytes > 0 {
        row("body bytes after decoding", Count(summary.decoded_bytes).to_string());
    }
    generated(generator, watched, row);
    rows
}

/// Returns the table of statuses and failures.
pub(in crate::commands::load) fn by_name(summary: &RequestSummary) -> Option<Table> {
    let statuses = summary.status.iter().map(|(status, n)| (status.to_string(), *n));
    let errors = summary.errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n));
    let rows: Vec<Vec<String>> =
        statuses.chain(errors).map(|(name, n)| vec![name, Count(n).to_string()]).collect();
    let (title, heads) = ("Response statuses and failures", vec!["", "requests"]);
    (!rows.is_empty()).then_some(Table { title, heads, rows })
}

pub(in crate::commands::load) fn configuration(config: &Requests) -> Rows {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("connections", Count(config.connections).to_string());
    row(
        "sent",
        match &config.pace {
            Pace::Closed => "when the last was answered (closed loop)".to_owned(),
            Pace::Users(stages) => {
                format!("when the last was answered (closed loop), {}", staged(stages, ""))
            }
            Pace::Rate(rate) => format!("{} per second", Count(*rate)),
            Pace::Rates(stages) => staged(stages, " per second"),
        },
    );
    let number = config.requests.filter(|requests| *requests < u64::MAX >> 1);
    let number = number.map(|requests| format!("{} requests", Count(requests)));
    let ends: Vec<String> =
        number.into_iter().chain(config.duration.map(format_duration)).collect();
    if !ends.is_empty() {
        row("duration", ends.join(" or "));
    }
    if !config.warm_up.is_zero() {
        row("warm-up", format_duration(config.warm_up));
    }
    if let Some(timeout) = config.connect_timeout {
        row("connect timeout", format_duration(timeout));
    }
    row("answer timeout", format_duration(config.timeout));
    let each = if config.new_connections { "new for each request" } else { "kept" };
    row("connections", each.to_owned());
    match config.endpoints.first().map(|endpoint| &endpoint.route) {
        Some(Route::Forward(proxy) | Route::Tunnel(proxy)) => row("proxy", proxy.host.clone()),
        Some(Route::Unix(path)) => row("UNIX socket", path.display().to_string()),
        _ => {}
    }
    if config.pipeline > 1 {
        row("requests in flight per connection", config.pipeline.to_string());
    }
    if config.redirects > 0 {
        row("redirects followed", config.redirects.to_string());
    }
    rows
}
