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
use crate::units::time_as_said;

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
    let mut say = |name: &str, value: String| rows.push((name.to_owned(), value));
    let of = &summary.requests;
    say("requests", format!("{} ok, {} failed", Count(of.ok), Count(of.failed)));
    say("due and never sent", Count(of.unsent).to_string());
    let (per_second, seconds) = (summary.per_second, summary.seconds);
    say("answers", format!("{per_second:.1} per second over {seconds:.2} s"));
    say("from due to answer", times(summary.latency.as_ref()));
    say("from send to answer", times(summary.service_time.as_ref()));
    if summary.scheduling_error.is_some() {
        say("sent late by", times(summary.scheduling_error.as_ref()));
    }
    let c = &summary.connections;
    say("connections", format!("{} opened, {} failed", Count(c.opened), Count(c.failed)));
    say("in TIME_WAIT on this machine, at most", Count(c.time_wait_most).to_string());
    say("bytes of bodies", Count(summary.body_bytes).to_string());
    if summary.decoded_bytes > 0 {
        say("bytes of coded bodies, decoded", Count(summary.decoded_bytes).to_string());
    }
    generated(generator, watched, say);
    rows
}

/// Returns the table of statuses and failures.
pub(in crate::commands::load) fn by_name(summary: &RequestSummary) -> Option<Table> {
    let statuses = summary.status.iter().map(|(status, n)| (status.to_string(), *n));
    let errors = summary.errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n));
    let rows: Vec<Vec<String>> =
        statuses.chain(errors).map(|(name, n)| vec![name, Count(n).to_string()]).collect();
    let (title, heads) = ("Statuses of answers, and failures", vec!["", "requests"]);
    (!rows.is_empty()).then_some(Table { title, heads, rows })
}

pub(in crate::commands::load) fn configuration(asked: &Requests) -> Rows {
    let mut rows = Vec::new();
    let mut say = |name: &str, value: String| rows.push((name.to_owned(), value));
    say("connections", Count(asked.connections).to_string());
    say(
        "sent",
        match &asked.pace {
            Pace::Closed => "when the last was answered".to_owned(),
            Pace::Users(stages) => format!("when the last was answered, {}", staged(stages, "")),
            Pace::Rate(rate) => format!("{} per second", Count(*rate)),
            Pace::Rates(stages) => staged(stages, " per second"),
        },
    );
    let number = asked.requests.filter(|requests| *requests < u64::MAX >> 1);
    let number = number.map(|requests| format!("{} requests", Count(requests)));
    let ends: Vec<String> = number.into_iter().chain(asked.duration.map(time_as_said)).collect();
    if !ends.is_empty() {
        say("sent for", ends.join(" or "));
    }
    if !asked.warm_up.is_zero() {
        say("warm-up before", time_as_said(asked.warm_up));
    }
    if let Some(timeout) = asked.connect_timeout {
        say("time to connect", time_as_said(timeout));
    }
    say("time to answer", time_as_said(asked.timeout));
    let each = if asked.new_connections { "a new one for each request" } else { "kept" };
    say("connections are", each.to_owned());
    match asked.endpoints.first().map(|endpoint| &endpoint.route) {
        Some(Route::Asked(proxy) | Route::Tunnel(proxy)) => say("by proxy", proxy.host.clone()),
        Some(Route::Unix(path)) => say("by UNIX socket", path.display().to_string()),
        _ => {}
    }
    if asked.pipeline > 1 {
        say("requests under way on each", asked.pipeline.to_string());
    }
    if asked.redirects > 0 {
        say("redirects followed", asked.redirects.to_string());
    }
    rows
}
