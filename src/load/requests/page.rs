//! A run of requests as a page: its figures as rows for [`Report`].

use host::{Count, Machine};
use load::requests::{Pace, RequestSummary};
use load::stages::Stage;

use super::{Document, Plan};
use crate::load::page::{thresholds, times};
use crate::output;
use crate::progress::Series;
use crate::report::{Report, Rows, Table};
use crate::units::time_as_said;

/// The run, ready to be written.
pub(super) fn report<'a>(
    (urls, plan): (&[String], &Plan),
    (document, interrupted): (&Document<'a>, bool),
    series: &'a Series,
    machine: &'a Machine,
) -> Report<'a> {
    let summary = document.summary;
    let missed = document.thresholds.iter().any(|outcome| !outcome.met);
    let verdict = match (interrupted, document.thresholds) {
        (true, _) => ("INTERRUPTED", false),
        (false, _) if missed => ("THRESHOLD MISSED", false),
        (false, _) if document.fell_short() => ("FELL SHORT", false),
        (false, []) => ("ALL ANSWERED", true),
        (false, _) => ("THRESHOLDS MET", true),
    };
    let (answered, sent) = (summary.requests.answered, summary.requests.sent);
    Report {
        title: format!("Load on {}", urls.join(", ")),
        verdict,
        result: format!("{} of {} requests answered", Count(answered), Count(sent)),
        reasons: document.reasons,
        figures: figures(document),
        tables: [thresholds(document.thresholds), by_name(summary)].into_iter().flatten().collect(),
        configuration: configuration(plan),
        series,
        machine,
        command: output::command_line(),
    }
}

fn figures(document: &Document<'_>) -> Rows {
    let summary = document.summary;
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
    say("in TIME_WAIT at most", Count(c.time_wait_most).to_string());
    say("bytes of bodies", Count(summary.body_bytes).to_string());
    say("generator", document.generator.figures());
    if let Some(why) = document.generator.saturated() {
        say("it was the bottleneck, or its machine", why.to_owned());
    }
    if let Some(watched) = document.watched {
        let [memory, cpu, descriptors] = watched.figures();
        say("watched, memory", memory);
        say("watched, CPU", cpu);
        say("watched, descriptors", descriptors);
    }
    rows
}

/// Statuses and failures.
fn by_name(summary: &RequestSummary) -> Option<Table> {
    let statuses = summary.status.iter().map(|(status, n)| (status.to_string(), *n));
    let errors = summary.errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n));
    let rows: Vec<Vec<String>> =
        statuses.chain(errors).map(|(name, n)| vec![name, Count(n).to_string()]).collect();
    let (title, heads) = ("Statuses of answers, and failures", vec!["", "requests"]);
    (!rows.is_empty()).then_some(Table { title, heads, rows })
}

fn configuration(plan: &Plan) -> Rows {
    let mut rows = Vec::new();
    let mut say = |name: &str, value: String| rows.push((name.to_owned(), value));
    let asked = &plan.requests;
    say("connections", Count(asked.connections).to_string());
    let staged = |stages: &[Stage], unit: &str| {
        let one = |stage: &Stage| {
            format!("{}{unit} in {}", Count(stage.connections), time_as_said(stage.time))
        };
        stages.iter().map(one).collect::<Vec<_>>().join(", then ")
    };
    say(
        "sent",
        match &asked.pace {
            Pace::Closed => "when the last was answered".to_owned(),
            Pace::Users(stages) => format!("when the last was answered, {}", staged(stages, "")),
            Pace::Rate(rate) => format!("{} per second", Count(*rate)),
            Pace::Rates(stages) => staged(stages, " per second"),
        },
    );
    let number = asked.requests.map(|requests| format!("{} requests", Count(requests)));
    let ends: Vec<String> = number.into_iter().chain(asked.duration.map(time_as_said)).collect();
    if !ends.is_empty() {
        say("sent for", ends.join(" or "));
    }
    if !asked.warm_up.is_zero() {
        say("warm-up before", time_as_said(asked.warm_up));
    }
    say("time to answer", time_as_said(asked.timeout));
    let each = if asked.new_connections { "a new one for each request" } else { "kept" };
    say("connections are", each.to_owned());
    if asked.pipeline > 1 {
        say("requests under way on each", asked.pipeline.to_string());
    }
    if asked.redirects > 0 {
        say("redirects followed", asked.redirects.to_string());
    }
    rows
}
