//! `[setup]` and `[teardown]` of a scenario: one user makes their steps once, before and after all others.
//! Their requests are in no figure.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use load::requests::{Generators, Pace, Requests};
use load::scenario::{Captured, Clock, Flow, FlowSummary, Tallies, Users};

use super::file::Round;
use super::run::drive;

/// How the steps ended.
pub(in crate::commands::load) enum Ended {
    /// The last one was made: the captures.
    Completed(Captured),
    /// Ctrl-C.
    Interrupted,
    /// What went wrong.
    Failed(String),
}

/// Makes the steps of `flow` within `limit`.
///
/// # Errors
/// The machine does not suffice, or an error of the system.
pub(super) fn make(
    flow: &Flow,
    round: &Round,
    limit: Duration,
    (seed, clock, force): (u64, Clock, bool),
    mut interrupted: impl FnMut(Duration) -> bool,
) -> Result<Ended> {
    let scenario = Arc::new(round.scenario.once_through(flow));
    // Steps before have used rows of the same feeds.
    scenario.begin(Generators::ONE);
    let config = Requests {
        connections: 1,
        pace: Pace::Closed,
        arrivals: Vec::new(),
        duration: Some(limit),
        requests: Some(u64::MAX >> 1),
        warm_up: Duration::ZERO,
        force,
        group: 1,
        // Of several generators one makes them, when its leader says so.
        generators: Generators::ONE,
        gate: None,
        ..round.requests.clone()
    };
    let tallies = Tallies::new(&scenario, &config, false);
    let (own, all) = (Arc::clone(&scenario), tallies.clone());
    let script = move |part| Users::new(Arc::clone(&own), part, all.clone(), seed, clock);
    let mut is_interrupted = false;
    let wait = |time| {
        is_interrupted |= interrupted(time);
        is_interrupted
    };
    let outcome = drive(&config, &scenario, script, |_| {}, wait)?;
    let summary = tallies.summary(&scenario);
    Ok(match summary.first() {
        Some(summary) if summary.completed > 0 => Ended::Completed(tallies.captured()),
        _ if is_interrupted => Ended::Interrupted,
        summary => Ended::Failed(failure(summary, outcome.status.keys(), limit)),
    })
}

/// Describes the first step that failed. `statuses` are those of all answers.
fn failure<'a>(
    summary: Option<&FlowSummary>,
    statuses: impl Iterator<Item = &'a u16>,
    limit: Duration,
) -> String {
    let steps = summary.map(|summary| summary.steps.as_slice()).unwrap_or_default();
    let failed = steps.iter().find(|step| step.failed > 0);
    match failed {
        Some(step) => {
            // The pass ends at the step that fails.
            let refused = statuses.filter(|status| (400..1_000).contains(*status));
            let refused: Vec<String> = refused.map(u16::to_string).collect();
            let kind = |kind: &String| match kind.as_str() {
                // Of several it is not known which is that of this step.
                "status" if refused.len() == 1 => format!("status {}", refused.join("")),
                kind => kind.to_owned(),
            };
            let kinds: Vec<String> = step.errors.keys().map(kind).collect();
            let checks = step.checks.iter().filter(|check| check.failed > 0);
            let checks: Vec<&str> = checks.map(|check| check.name.as_str()).collect();
            let checks =
                if checks.is_empty() { String::new() } else { format!(" ({})", checks.join(", ")) };
            format!("step {:?} failed: {}{checks}", step.name, kinds.join(", "))
        }
        None => {
            let limit = crate::units::format_duration(limit);
            format!("its steps were not complete after {limit}")
        }
    }
}
