//! [`Whole`]: the result of a run that agents share, merged and judged. A run that misses a part is INCOMPLETE
//! and never holds.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;

use capacity::{Count, Milliseconds};
use load::scenario::GroupSummary;
use load::{Bars, INCOMPLETE, Outcome, RunConfig, Selector, Threshold, judge};
use serde::{Serialize, Serializer};

use super::fixtures::Teardown;
use super::leader::Led;
use super::member::Agent;
use super::message::plain;
use crate::output;
use crate::report::Table;

/// The result of all agents together, and of each.
pub(crate) struct Whole<'a> {
    /// `None` if no agent has a result.
    pub(crate) outcome: Option<Outcome>,
    agents: &'a [Agent],
    /// Messages that the leader has discarded.
    discarded: usize,
    /// The number of agents whose results are in the outcome.
    parts: u64,
    /// What is missing; empty if nothing is.
    missing: Vec<String>,
    /// The agents that made the setup and the teardown.
    fixtures: [Option<&'a str>; 2],
    /// Why the teardown failed or is missing.
    teardown_failed: Option<String>,
}

/// The document of `--json`: that of a run, and of its agents.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    #[serde(flatten)]
    whole: Option<Cow<'a, Outcome>>,
    #[serde(flatten)]
    none: Option<NoResult>,
    fleet: FleetSummary<'a>,
}

/// The verdict if no agent has a result.
#[derive(Serialize)]
struct NoResult {
    held: bool,
    tolerated: bool,
    reasons: Vec<String>,
}

/// The agents of a controlled run, and what is missing of it.
pub(crate) struct Fleet {
    pub(crate) agents: Vec<Agent>,
    /// Empty if nothing is.
    pub(crate) missing: Vec<String>,
    /// By Ctrl-C.
    pub(crate) interrupted: bool,
    /// Messages of the leader.
    discarded: usize,
}

impl Fleet {
    /// Also merges the results; `None` if there is none.
    pub(crate) fn new(led: Led) -> (Option<Outcome>, Fleet) {
        let configs = led.agents.iter().filter_map(|agent| agent.outcome.as_ref());
        let config = configs.map(|outcome| outcome.config.clone()).next().unwrap_or_default();
        let Whole { outcome, missing, .. } = Whole::new(&led, &config, &[]);
        let Led { agents, interrupted, discarded, .. } = led;
        (outcome, Fleet { agents, missing, interrupted, discarded })
    }

    /// The figures of each agent, for a page.
    pub(crate) fn table(&self) -> Table {
        page_table(&self.agents)
    }
}

impl Serialize for Fleet {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        FleetSummary::new(&self.agents, &self.missing, self.discarded, &[]).serialize(to)
    }
}

#[derive(Serialize)]
struct FleetSummary<'a> {
    complete: bool,
    missing: Cow<'a, [String]>,
    /// What was left out for --json-max; empty if nothing was.
    left_out: &'a [&'a str],
    /// Messages of the leader that were discarded, as NATS was not connected or a queue was full.
    discarded_messages: usize,
    /// The agents that made the setup and the teardown; absent without.
    #[serde(skip_serializing_if = "Option::is_none")]
    setup: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    teardown: Option<&'a str>,
    /// Why the teardown failed or is missing; absent if it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    teardown_failed: Option<&'a str>,
    agents: Vec<AgentSummary<'a>>,
}

#[derive(Serialize)]
struct AgentSummary<'a> {
    name: &'a str,
    labels: &'a [String],
    /// By how much its start may differ from the leader's plan, by its clock; null if it was not started.
    start_error_ms: Option<f64>,
    /// By how much it began after its time for it; null if unknown.
    start_late_ms: Option<f64>,
    /// Its messages that were discarded; null if unknown.
    discarded_messages: Option<usize>,
    /// Why its result is missing; null if it is there.
    missing: Option<&'a str>,
    /// The most important figures; null if unknown.
    open: Option<u64>,
    sent: Option<u64>,
    answered: Option<u64>,
    errors: Option<u64>,
    p99_ms: Option<f64>,
    outcome: Option<Cow<'a, Outcome>>,
}

/// What documents leave out to be short enough, in this order: each level includes those before.
const LEFT_OUT: [&str; 5] = [
    "samples, histograms and workers of agents",
    "outcomes of agents",
    "samples, histograms and workers of the whole",
    "agents",
    "all but a few texts of missing and of reasons",
];
/// The level without agents.
const NO_AGENTS: usize = 4;
/// The texts of a list that the last level keeps, and their characters.
const TEXTS_MAX: usize = 10;
const CHARS_MAX: usize = 300;

/// The first texts, shortened, and how many more there are.
fn few(texts: &[String]) -> Vec<String> {
    let short = |text: &String| match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.clone(),
    };
    let more = texts.len().saturating_sub(TEXTS_MAX);
    let more = (more > 0).then(|| format!("… {} more", Count(more as u64)));
    texts.iter().take(TEXTS_MAX).map(short).chain(more).collect()
}

/// Takes at most so many bytes and keeps none.
struct Limit(u64);

impl io::Write for Limit {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(bytes.len() as u64);
        self.0 = left.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> FleetSummary<'a> {
    fn new(
        agents: &'a [Agent],
        missing: &'a [String],
        discarded_messages: usize,
        left_out: &'a [&'a str],
    ) -> FleetSummary<'a> {
        let outcome = |agent: &'a Agent| match (left_out.len(), agent.outcome.as_ref()?) {
            (0, outcome) => Some(Cow::Borrowed(outcome)),
            (1, outcome) => Some(Cow::Owned(outcome.without_series())),
            _ => None,
        };
        let summary = |agent: &'a Agent| AgentSummary {
            name: &agent.name,
            labels: &agent.labels,
            start_error_ms: agent.start_error_ns.map(|ns| ns as f64 / 1e6),
            start_late_ms: agent.late_us.map(|us| us as f64 / 1e3),
            discarded_messages: agent.discarded,
            missing: agent.lost.as_deref(),
            open: agent.outcome.as_ref().and_then(|outcome| outcome.connections.open),
            sent: agent.outcome.as_ref().and_then(|outcome| sent_and_answered(outcome)[0]),
            answered: agent.outcome.as_ref().and_then(|outcome| sent_and_answered(outcome)[1]),
            errors: agent.outcome.as_ref().map(Outcome::error_count),
            p99_ms: agent.outcome.as_ref().and_then(p99_ms),
            outcome: outcome(agent),
        };
        let some = if left_out.len() < NO_AGENTS { agents } else { &[] };
        let agents = some.iter().map(summary).collect();
        FleetSummary {
            complete: missing.is_empty(),
            missing: match left_out.len() {
                0..=NO_AGENTS => Cow::Borrowed(missing),
                _ => Cow::Owned(few(missing)),
            },
            left_out,
            discarded_messages,
            setup: None,
            teardown: None,
            teardown_failed: None,
            agents,
        }
    }
}

impl<'a> Whole<'a> {
    /// Merges the results of agents, and judges them as one of this configuration.
    pub(crate) fn new(led: &'a Led, config: &RunConfig, thresholds: &[&Threshold]) -> Whole<'a> {
        let Led { agents, interrupted, discarded, has_setup, teardown } = led;
        let mut missing: Vec<String> = Vec::new();
        let mut merged: Option<Outcome> = None;
        let began_us = agents.iter().find_map(|one| one.outcome.as_ref()?.began_unix_us);
        let mut parts = 0;
        let mut hosts: BTreeSet<&str> = BTreeSet::new();
        for agent in agents {
            if let Some(why) = &agent.lost {
                missing.push(format!("agent {}: {why}", agent.name));
            }
            // Loads are interrupted when another agent is lost, or on Ctrl-C. Without these it has lost its leader.
            let is_stopped = agent.outcome.as_ref().is_some_and(|outcome| outcome.interrupted);
            if is_stopped && !*interrupted && agents.iter().all(|one| one.lost.is_none()) {
                missing.push(format!("agent {}: its load stopped before the end", agent.name));
            }
            let Some(outcome) = &agent.outcome else { continue };
            let mut outcome = part(outcome, &agent.name, began_us);
            // The cores of a machine count once.
            if !agent.host.is_empty() && !hosts.insert(&agent.host) {
                outcome.generator.iter_mut().for_each(|generator| generator.set_cores(0));
            }
            let added = match &mut merged {
                None => {
                    merged = Some(outcome);
                    Ok(())
                }
                Some(whole) => whole.merge_in(outcome),
            };
            match added {
                Ok(()) => parts += 1,
                Err(why) => {
                    missing.push(format!("agent {}: cannot be merged: {why}", agent.name));
                }
            }
        }
        if let Some(outcome) = &mut merged {
            let (tls_error, message_error) =
                (outcome.config.tls_error.take(), outcome.config.message_error.take());
            outcome.config = RunConfig { tls_error, message_error, ..config.clone() };
            if outcome.requests.is_some() {
                // Each says what the stages of the whole lead to; of WebSockets its own part of it.
                outcome.stages.iter_mut().for_each(|stage| stage.target /= parts.max(1));
            }
            let selectors: Vec<&Selector> =
                thresholds.iter().filter_map(|threshold| threshold.selector.as_ref()).collect();
            outcome.select(&selectors);
            // Agents are interrupted, too, when another one is lost.
            outcome.interrupted = *interrupted;
            judge(outcome, thresholds);
            if !missing.is_empty() {
                (outcome.held, outcome.tolerated) = (false, false);
                outcome.reasons.insert(0, format!("{INCOMPLETE}{}", missing.join("; ")));
            }
        }
        let setup = agents.first().filter(|_| *has_setup).map(|agent| &*agent.name);
        let teardown_failed = teardown.as_ref().and_then(Teardown::failure);
        let fixtures = [setup, teardown.as_ref().and_then(Teardown::made_by)];
        let discarded = *discarded;
        Whole { outcome: merged, agents, discarded, parts, missing, fixtures, teardown_failed }
    }

    /// The figures of each agent, for a page.
    pub(crate) fn table(&self) -> Table {
        page_table(self.agents)
    }

    /// What is whole on one agent, and on which.
    fn placed(&self) -> String {
        let made = ["[setup]", "[teardown]"].into_iter().zip(self.fixtures);
        let made = made.filter_map(|(what, agent)| Some(format!("{what} on {}", agent?)));
        let made: Vec<String> = made.collect();
        let mut lines = Vec::new();
        if !made.is_empty() {
            lines.push(made.join(", "));
        }
        lines.extend(self.teardown_failed.as_ref().map(|why| format!("[teardown] failed: {why}")));
        let of_agents = self.agents.iter().filter_map(|agent| {
            let groups = agent.outcome.as_ref()?.groups.as_ref()?;
            Some((&agent.name, groups))
        });
        let of_agents: Vec<_> = of_agents.collect();
        if let Some((_, groups)) = of_agents.first() {
            let size = groups.size;
            let counts = || of_agents.iter().map(|(_, groups)| groups.groups);
            let each =
                |(name, groups): &(&String, &GroupSummary)| format!("{} on {name}", groups.groups);
            let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
            let each = match of_agents.len() {
                few if few <= NAMED_MAX => {
                    of_agents.iter().map(each).collect::<Vec<_>>().join(", ")
                }
                _ if least == most => format!("{} on each agent", Count(most)),
                _ => format!("{} or {} on each agent", Count(least), Count(most)),
            };
            lines.push(format!("groups of {size} users, each whole on one agent: {each}"));
        }
        let heads = std::iter::once("placed").chain(std::iter::repeat(""));
        heads.zip(lines).map(|(head, line)| format!("{head:<14}{line}\n")).collect()
    }

    /// The document, of which as little is left out as possible to have at most so many bytes. Tells the user if it
    /// has more even so.
    pub(crate) fn document(&self, bytes_max: u64) -> Document<'_> {
        let of = |left_out| self.document_without(LEFT_OUT.get(..left_out).unwrap_or(&LEFT_OUT));
        // A line break follows it.
        let fits = |document: &Document<'_>| {
            bytes_max == u64::MAX
                || serde_json::to_writer_pretty(Limit(bytes_max.saturating_sub(1)), document)
                    .is_ok()
        };
        (0..=LEFT_OUT.len()).map(of).find(fits).unwrap_or_else(|| {
            output::note(&format!(
                "standfast: the JSON is longer than --json-max ({bytes_max} bytes), although all that can be left out \
                 is: raise --json-max"
            ));
            of(LEFT_OUT.len())
        })
    }

    fn document_without<'s>(&'s self, left_out: &'s [&'s str]) -> Document<'s> {
        let missing = self.missing.as_slice();
        let fleet = FleetSummary::new(self.agents, missing, self.discarded, left_out);
        let [setup, teardown] = self.fixtures;
        let teardown_failed = self.teardown_failed.as_deref();
        let fleet = FleetSummary { setup, teardown, teardown_failed, ..fleet };
        let is_least = left_out.len() > NO_AGENTS;
        let none = self.outcome.is_none().then(|| {
            let reasons = vec![format!("{INCOMPLETE}{}", missing.join("; "))];
            let reasons = if is_least { few(&reasons) } else { reasons };
            NoResult { held: false, tolerated: false, reasons }
        });
        let whole = self.outcome.as_ref().map(|outcome| match left_out.len() {
            0..3 => Cow::Borrowed(outcome),
            _ => Cow::Owned(outcome.without_series()),
        });
        let whole = whole.map(|mut whole| {
            if is_least {
                let whole = whole.to_mut();
                whole.reasons = few(&whole.reasons);
                whole.generator.iter_mut().for_each(|generator| generator.shorten_reasons(few));
            }
            whole
        });
        Document { whole, none, fleet }
    }

    /// The result for people, with bars of these characters.
    pub(crate) fn text(&self, bars: Bars) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        if !self.missing.is_empty() {
            let of = self.agents.len();
            let _ = writeln!(
                text,
                "INCOMPLETE    {} of {of} agents have a result; all figures are of these only:",
                self.parts
            );
            for what in &self.missing {
                let _ = writeln!(text, "              {}", what.replace('\n', "\n              "));
            }
        }
        text += &table(self.agents);
        text += &self.placed();
        let discarded = self.agents.iter().filter_map(|agent| agent.discarded);
        let discarded = discarded.fold(self.discarded, usize::saturating_add);
        if discarded > 0 {
            let _ = writeln!(
                text,
                "NATS          {} control messages discarded, while not connected or as a queue was full; repeated",
                Count(discarded as u64)
            );
        }
        match &self.outcome {
            Some(outcome) => text += &outcome.text(bars).to_string(),
            None => text += "result        INCOMPLETE: no agent has a result\n",
        }
        // Results contain texts of agents and of what they were answered.
        plain(&text)
    }
}

/// Agents that are named with their groups; of more only the numbers are shown.
const NAMED_MAX: usize = 4;

fn page_table(agents: &[Agent]) -> Table {
    Table {
        title: "Agents",
        heads: vec!["agent", "open", "sent", "answered", "errors", "p99", "start ±"],
        rows: agents.iter().map(|agent| figures(agent).to_vec()).collect(),
        texts: &[],
    }
}

/// A row for each agent.
fn table(agents: &[Agent]) -> String {
    let widest = agents.iter().map(|agent| agent.name.len()).max().unwrap_or(0).max(12);
    let line = |[name, _, sent, answered, errors, p99, start]: [&str; 7]| {
        format!("{name:widest$}  {sent:>10} {answered:>10} {errors:>8} {p99:>9} {start:>9}\n")
    };
    let mut text = line(["fleet", "", "sent", "answered", "errors", "p99", "start ±"]);
    for agent in agents {
        text += &line(figures(agent).each_ref().map(String::as_str));
    }
    text
}

/// The name of an agent, its open connections, what it sent and was answered, errors, the 99th percentile, and by
/// how much its start may differ from the plan.
fn figures(agent: &Agent) -> [String; 7] {
    let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| Milliseconds(ms).to_string());
    let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| Count(count).to_string());
    let outcome = agent.outcome.as_ref();
    let [sent, answered] = outcome.map_or([None, None], sent_and_answered);
    // Lateness of the load is known, that of the clock bounded.
    let late_ns = agent.late_us.map(|us| us.saturating_mul(1_000));
    let start_ns =
        late_ns.zip(agent.start_error_ns).map(|(late, error)| late.saturating_add(error));
    [
        agent.name.clone(),
        count(outcome.and_then(|outcome| outcome.connections.open)),
        count(sent),
        count(answered),
        count(outcome.map(Outcome::error_count)),
        ms(outcome.and_then(p99_ms)),
        ms(start_ns.map(|ns| ns as f64 / 1e6)),
    ]
}

/// The 99th percentile of requests and messages, or of pongs.
fn p99_ms(outcome: &Outcome) -> Option<f64> {
    let of_pongs = || outcome.heartbeats.as_ref()?.latency;
    outcome.latency.or_else(of_pongs).map(|latency| latency.p99_ms)
}

/// Requests, messages or pings sent, and those that were answered.
fn sent_and_answered(outcome: &Outcome) -> [Option<u64>; 2] {
    let requests = outcome.requests.map(|of| (of.sent, of.answered));
    let echo = || outcome.echo.as_ref().map(|of| (of.sent, of.received));
    let pings = || outcome.heartbeats.as_ref().map(|of| (of.sent, of.received));
    let counts = requests.or_else(echo).or_else(pings);
    [counts.map(|(sent, _)| sent), counts.map(|(_, answered)| answered)]
}

/// The outcome of an agent as a part of the whole.
fn part(outcome: &Outcome, name: &str, began_us: Option<u64>) -> Outcome {
    let mut part = outcome.clone();
    part.thresholds.clear();
    part.generator.iter_mut().for_each(|generator| generator.set_name(name));
    // All began at the same time, whatever the time of day of each machine.
    if let (Some(first), Some(own)) = (began_us, part.began_unix_us) {
        let measured = part.measured_unix_us.map(|at| at.saturating_sub(own));
        part.measured_unix_us = measured.map(|after| first.saturating_add(after));
        part.began_unix_us = Some(first);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Agents with names and reasons as long as they may be.
    fn led(agents: usize, missing: usize) -> Led {
        let agent = |at: usize| {
            let mut agent = Agent::example(&at.to_string(), &format!("agent-{at:05}"), "", 0);
            match at < missing {
                true => agent.lost = Some("not heard ".repeat(100)),
                false => {
                    let mut value: serde_json::Value =
                        serde_json::from_str(include_str!("simulation/outcome.json")).unwrap();
                    value["version"] = load::OUTCOME_VERSION.into();
                    agent.outcome = Some(Outcome::read(value).unwrap());
                }
            }
            agent
        };
        Led {
            agents: (0..agents).map(agent).collect(),
            interrupted: false,
            discarded: 0,
            has_setup: true,
            teardown: Some(Teardown { agent: Some("agent-00001".to_owned()), failed: None }),
        }
    }

    #[test]
    fn a_document_is_as_short_as_asked_for_down_to_the_least() {
        for (agents, missing) in [(20, 0), (300, 100), (100, 100)] {
            let led = led(agents, missing);
            let whole = Whole::new(&led, &RunConfig::default(), &[]);
            let mut bytes_max = 100_000_000;
            let mut levels = Vec::new();
            while levels.last() != Some(&LEFT_OUT.len()) {
                let document = whole.document(bytes_max);
                let bytes = serde_json::to_string_pretty(&document).unwrap().len() as u64;
                assert!(bytes < bytes_max, "{bytes} of {bytes_max}: {:?}", document.fleet.left_out);
                levels.push(document.fleet.left_out.len());
                bytes_max = bytes;
                if missing == 0 && levels.last() == Some(&NO_AGENTS) {
                    break;
                }
            }
            assert!(levels.is_sorted() && levels.contains(&NO_AGENTS), "{levels:?}");
            assert!(missing == 0 || bytes_max < 16 * 1024, "{bytes_max}");
        }
    }

    #[test]
    fn the_cores_of_a_machine_count_once() {
        let mut led = led(5, 0);
        for (agent, host) in led.agents.iter_mut().zip(["a", "b", "a", "", ""]) {
            agent.host = host.to_owned();
        }
        let cores = |outcome: &Outcome| outcome.generator.as_ref().unwrap().cores();
        let each = cores(led.agents[0].outcome.as_ref().unwrap());
        let whole = Whole::new(&led, &RunConfig::default(), &[]);
        assert!(each > 0);
        // Of two without a name nothing is known.
        assert_eq!(cores(whole.outcome.as_ref().unwrap()), 4 * each);
    }

    #[test]
    fn the_least_of_a_list_says_how_many_more_there_are() {
        let texts: Vec<String> =
            (0..1_012).map(|at| format!("{at}: {}", "é".repeat(400))).collect();
        let few = few(&texts);
        assert_eq!((few.len(), &*few[TEXTS_MAX]), (TEXTS_MAX + 1, "… 1,002 more"));
        assert!(few[9].starts_with("9: é") && few[9].ends_with("é…"));
        assert_eq!(few[9].chars().count(), CHARS_MAX + 1);
    }

    #[test]
    fn a_failed_teardown_is_told_and_names_no_agent_that_made_it() {
        let mut led = led(2, 0);
        let made = Whole::new(&led, &RunConfig::default(), &[]);
        let document = serde_json::to_value(made.document(u64::MAX)).unwrap();
        assert_eq!(document["fleet"]["teardown"], "agent-00001");
        assert!(document["fleet"]["teardown_failed"].is_null());
        led.teardown = Some(Teardown {
            agent: Some("agent-00001".to_owned()),
            failed: Some("not heard for 6 s".to_owned()),
        });
        let failed = Whole::new(&led, &RunConfig::default(), &[]);
        let document = serde_json::to_value(failed.document(u64::MAX)).unwrap();
        assert!(document["fleet"]["teardown"].is_null(), "{}", document["fleet"]);
        let why = "agent agent-00001: not heard for 6 s";
        assert_eq!(document["fleet"]["teardown_failed"], why);
        assert!(failed.placed().contains(&format!("[teardown] failed: {why}")));
    }
}
