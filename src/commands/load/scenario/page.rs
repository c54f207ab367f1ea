//! The HTML report of a scenario: the report of a run of requests plus tables of rounds, steps and
//! checks.

use capacity::{Count, Machine};
use load::Latency;
use load::scenario::StepSummary;

use super::file::Experiment;
use super::report::{Document, RoundResult};
use crate::commands::load::page::thresholds;
use crate::commands::load::requests::page::{by_name, configuration, figures, verdict};
use crate::output;
use crate::progress::Series;
use crate::report::{Report, Rows, Table};

/// Returns the report of a run. With several rounds a table compares them, and the rest shows the first
/// round that fell short, else the last.
pub(super) fn report<'a>(
    experiment: &Experiment,
    document: &'a Document,
    series: &'a Series,
    machine: &'a Machine,
) -> Report<'a> {
    let rounds = &document.rounds;
    let worst = rounds.iter().find(|result| result.interrupted || result.fell_short());
    let shown = worst.or(rounds.last());
    let all = |pick: fn(&RoundResult) -> u64| Count(rounds.iter().map(pick).sum());
    let answered = all(|result| result.summary.requests.answered);
    let sent = all(|result| result.summary.requests.sent);
    let mut tables = Vec::new();
    if rounds.len() > 1 {
        tables.push(table_of_rounds(rounds));
    }
    let mut rows: Rows = Vec::new();
    if let Some(result) = shown {
        rows = figures(&result.summary, &result.generator, result.watched.as_ref());
        tables.extend(thresholds(&result.thresholds));
        tables.push(steps(result));
        tables.extend(checks(result));
        tables.extend(by_name(&result.summary));
    }
    let about = document.about.as_ref().map(|about| format!(": {about}")).unwrap_or_default();
    let round = experiment.rounds.get(rounds.len().saturating_sub(1));
    Report {
        title: format!("{}{about}", document.scenario),
        verdict: shown.map_or(("NOTHING RAN", false), |result| {
            verdict(result.interrupted, result.fell_short(), &result.thresholds)
        }),
        result: format!("{answered} of {sent} requests answered"),
        reasons: shown.map_or(&[], |result| &result.reasons),
        figures: rows,
        tables,
        configuration: round.map(|round| configuration(&round.requests)).unwrap_or_default(),
        series,
        machine,
        command: output::command_line(),
    }
}

fn table_of_rounds(rounds: &[RoundResult]) -> Table {
    let row = |result: &RoundResult| {
        let of = &result.summary.requests;
        let beside = result.beside.map_or("-".to_owned(), |beside| format!("{beside:.0}"));
        let [p50, p99] = times(result.summary.latency.as_ref());
        let kind = if result.keep_alive { "kept" } else { "new each" };
        vec![
            Count(result.users).to_string(),
            kind.to_owned(),
            Count(of.ok + of.failed).to_string(),
            Count(of.failed).to_string(),
            format!("{:.0}", result.summary.per_second),
            beside,
            p50,
            p99,
        ]
    };
    Table {
        title: "Rounds",
        heads: vec![
            "users",
            "connections",
            "requests",
            "failed",
            "per second",
            "beside",
            "p50 ms",
            "p99 ms",
        ],
        rows: rounds.iter().map(row).collect(),
    }
}

fn steps(result: &RoundResult) -> Table {
    let row = |flow: &str, step: &StepSummary| {
        let [p50, p99] = times(step.latency.as_ref());
        let errors = step.errors.iter().map(|(kind, n)| format!("{kind} {n}"));
        vec![
            format!("{flow}: {}", step.name),
            Count(step.requests).to_string(),
            Count(step.failed).to_string(),
            errors.collect::<Vec<_>>().join(", "),
            Count(step.redirects).to_string(),
            p50,
            p99,
        ]
    };
    let each = result.flows.iter().flat_map(|flow| flow.steps.iter().map(|s| row(&flow.name, s)));
    Table {
        title: "Steps",
        heads: vec!["", "requests", "failed", "by", "redirects", "p50 ms", "p99 ms"],
        rows: each.collect(),
    }
}

fn checks(result: &RoundResult) -> Option<Table> {
    let steps = result.flows.iter().flat_map(|flow| &flow.steps);
    let each = steps.flat_map(|step| {
        step.checks.iter().map(|check| {
            let name = format!("{}: {}", step.name, check.name);
            vec![name, Count(check.passed).to_string(), Count(check.failed).to_string()]
        })
    });
    let rows: Vec<Vec<String>> = each.collect();
    let heads = vec!["", "passed", "failed"];
    (!rows.is_empty()).then_some(Table { title: "Checks and captures", heads, rows })
}

fn times(latency: Option<&Latency>) -> [String; 2] {
    let none = || "-".to_owned();
    latency.map_or([none(), none()], |l| [l.p50_ms, l.p99_ms].map(|ms| format!("{ms:.3}")))
}
