//! [`Document`]: the results of a scenario as text and as JSON.

use std::fmt::{self, Display, Formatter};

use load::Latency;
use load::requests::RequestSummary;
use load::scenario::{FlowSummary, GroupSummary, SocketSummary, StepSummary};
use serde::Serialize;

use super::file::Experiment;
use crate::commands::load::requests;
use crate::commands::load::run_config::RunConfig;
use crate::commands::load::threshold::{Figure, Metric, Outcome, result};
use crate::commands::load::watch::{Generator, Watched};
use crate::progress::Series;

/// The document of `--json`. The figures of a single round are at the top level, as in a run without a
/// scenario.
#[derive(Serialize)]
pub(super) struct Document {
    pub(super) scenario: String,
    pub(super) about: Option<String>,
    /// Seed of all random choices.
    seed: u64,
    #[serde(skip)]
    has_rounds: bool,
    #[serde(flatten, serialize_with = "rounds")]
    pub(super) rounds: Vec<RoundResult>,
}

/// The result of one round.
#[derive(Serialize)]
pub(super) struct RoundResult {
    pub(super) users: u64,
    pub(super) rate: Option<f64>,
    pub(super) passes: Option<u64>,
    pub(super) keep_alive: bool,
    pub(super) beside: Option<f64>,
    #[serde(flatten)]
    pub(super) summary: RequestSummary,
    #[serde(flatten)]
    pub(super) config: RunConfig,
    pub(super) flows: Vec<FlowSummary>,
    /// `None` for a scenario without sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sockets: Option<SocketSummary>,
    /// `None` for a scenario without a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) groups: Option<GroupSummary>,
    pub(super) held: bool,
    pub(super) reasons: Vec<String>,
    pub(super) generator: Generator,
    pub(super) watched: Option<Watched>,
    pub(super) thresholds: Vec<Outcome>,
    pub(super) interrupted: bool,
    /// Samples over time, at most some thousand.
    pub(super) samples: Series,
}

fn rounds<S: serde::Serializer>(rounds: &[RoundResult], serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap;
    if let [one] = rounds {
        return one.serialize(serializer);
    }
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry("rounds", rounds)?;
    map.end()
}

impl Document {
    pub(super) fn new(name: &str, experiment: &Experiment, seed: u64) -> Document {
        Document {
            scenario: name.to_owned(),
            about: experiment.about.clone(),
            seed,
            has_rounds: experiment.has_rounds,
            rounds: Vec::new(),
        }
    }
}

impl RoundResult {
    pub(super) fn fell_short(&self) -> bool {
        requests::fell_short(&self.summary, &self.generator, &self.thresholds, &self.reasons)
    }
}

impl Display for Document {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let about = self.about.as_ref().map(|about| format!(": {about}")).unwrap_or_default();
        writeln!(f, "scenario      {}{about}", self.scenario)?;
        if self.has_rounds {
            table(f, &self.rounds)?;
        }
        for (number, result) in self.rounds.iter().enumerate() {
            if self.has_rounds && !result.fell_short() {
                continue;
            }
            if self.has_rounds {
                writeln!(f, "round         {}", number + 1)?;
            }
            write!(f, "{result}")?;
        }
        Ok(())
    }
}

impl Display for RoundResult {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.summary)?;
        for flow in &self.flows {
            let FlowSummary { name, begun, completed, steps } = flow;
            writeln!(f, "flow          {name}: {begun} passes begun, {completed} completed")?;
            steps.iter().try_for_each(|step| write_step(f, step))?;
        }
        self.sockets.iter().try_for_each(|sockets| write_sockets(f, sockets))?;
        self.groups.iter().try_for_each(|groups| write!(f, "{groups}"))?;
        f.write_str(&self.config.text())?;
        write!(f, "{}", self.generator)?;
        self.watched.iter().try_for_each(|watched| write!(f, "{watched}"))?;
        self.thresholds.iter().try_for_each(|outcome| write!(f, "{outcome}"))?;
        let (short, outcomes) = (self.fell_short(), &self.thresholds);
        f.write_str(&result(self.interrupted, short, outcomes, &self.reasons, "all answered"))
    }
}

/// Returns the value of a metric of users in groups; `None` if the metric belongs to the run.
pub(super) fn of_groups(metric: Metric, groups: &GroupSummary) -> Option<Figure> {
    let latency = groups.latency.as_ref();
    let value = match metric {
        Metric::Lost => Some(groups.lost as f64),
        Metric::Duplicated => Some(groups.duplicated as f64),
        Metric::Reordered => Some(groups.reordered as f64),
        Metric::Late => Some(groups.late as f64),
        Metric::ReceiptP50 => latency.map(|latency| latency.p50_ms),
        Metric::ReceiptP99 => latency.map(|latency| latency.p99_ms),
        Metric::ReceiptMax => latency.map(|latency| latency.max_ms),
        _ => return None,
    };
    Some(Figure { value, is_answered: groups.received > 0 })
}

fn write_sockets(f: &mut Formatter<'_>, sockets: &SocketSummary) -> fmt::Result {
    writeln!(f, "sockets       {} messages received", sockets.received)?;
    for (code, count) in &sockets.closed_by {
        writeln!(f, "              {count} closed by the server with {code}")?;
    }
    for (kind, count) in &sockets.broken {
        writeln!(f, "              {count} broken by the server: {kind}")?;
    }
    for (count, what) in [
        (sockets.gone, "ended without a close frame"),
        (sockets.unread_dropped, "messages dropped because no step waited for them"),
    ] {
        if count > 0 {
            writeln!(f, "              {count} {what}")?;
        }
    }
    Ok(())
}

fn write_step(f: &mut Formatter<'_>, step: &StepSummary) -> fmt::Result {
    let StepSummary { name, requests, failed, errors, redirects, latency, checks, .. } = step;
    write!(f, "  step        {name}: {requests} requests, {failed} failed")?;
    if !errors.is_empty() {
        let named: Vec<String> = errors.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        write!(f, " ({})", named.join(", "))?;
    }
    if *redirects > 0 {
        write!(f, ", {redirects} redirects followed")?;
    }
    if let Some(Latency { p50_ms, p99_ms, max_ms, .. }) = latency {
        write!(f, "; p50 {p50_ms:.3}, p99 {p99_ms:.3}, max {max_ms:.3} ms")?;
    }
    writeln!(f)?;
    for check in checks {
        writeln!(
            f,
            "    check     {}: {} passed, {} failed",
            check.name, check.passed, check.failed
        )?;
    }
    Ok(())
}

/// Writes a line per round, with its reference figure.
fn table(f: &mut Formatter<'_>, rounds: &[RoundResult]) -> fmt::Result {
    writeln!(
        f,
        "   users  connections  requests   failed  per second      beside    p50 ms    p99 ms"
    )?;
    for result in rounds {
        let kind = if result.keep_alive { "kept" } else { "new each" };
        let ms = |pick: fn(&Latency) -> f64| {
            result.summary.latency.as_ref().map_or("-".to_owned(), |l| format!("{:.3}", pick(l)))
        };
        let beside = result.beside.map_or("-".to_owned(), |beside| format!("{beside:.0}"));
        let counts = &result.summary.requests;
        writeln!(
            f,
            "{:>8}  {kind:<11} {:>9} {:>8} {:>11.0} {beside:>11} {:>9} {:>9}",
            result.users,
            counts.ok + counts.failed,
            counts.failed,
            result.summary.per_second,
            ms(|latency| latency.p50_ms),
            ms(|latency| latency.p99_ms),
        )?;
    }
    Ok(())
}
