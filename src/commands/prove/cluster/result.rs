//! The result of a proof: figures, verdict with its reasons, as JSON (`docs/protocol/prove-cluster-json.md`) and
//! as text. What was not measured is a reason to fall short.

use std::collections::BTreeMap;

use capacity::{Count, Machine};
use load::SampleSeries;
use load::subscribers::Event;
use serde::Serialize;

use super::check::{self, Findings};
use super::evidence::{Answer, Evidence, Window};
use super::faults::Planned;
use super::run::Seen;
use super::settings::Settings;
use crate::{output, units};

pub(super) const HELD: &str = "HELD";
pub(super) const FELL_SHORT: &str = "FELL SHORT";
pub(super) const INTERRUPTED: &str = "INTERRUPTED";

/// The version of the JSON.
const VERSION: u32 = 1;

/// All of it.
#[derive(Serialize)]
pub(super) struct ClusterProof {
    version: u32,
    standfast: &'static str,
    pub(super) command: String,
    pub(super) machine: Machine,
    pub(super) settings: SettingsResult,
    /// The plan as it was drawn.
    planned: Vec<Planned>,
    /// What was carried out, with times from the first publication on.
    pub(super) faults: Vec<FaultResult>,
    pub(super) publications: PublicationCounts,
    pub(super) subscribers: SubscriberCounts,
    /// How often each node's counter of gaps was seen to grow.
    pub(super) gaps_told: Vec<u64>,
    #[serde(flatten)]
    pub(super) findings: Findings,
    pub(super) seconds: f64,
    pub(super) verdict: &'static str,
    pub(super) reasons: Vec<String>,
    /// Losses in each second from the first publication on.
    losses: Vec<Losses>,
    #[serde(rename = "samples")]
    pub(super) series: SampleSeries,
}

#[derive(Serialize)]
pub(super) struct SettingsResult {
    pub(super) seed: u64,
    pub(super) broker: &'static str,
    /// Null if it is the user's.
    pub(super) broker_version: Option<String>,
    pub(super) nodes: usize,
    pub(super) clients: u32,
    pub(super) topics: usize,
    pub(super) rate: u64,
    pub(super) duration_seconds: f64,
    pub(super) cable: bool,
    pub(super) history: bool,
    pub(super) proxy: bool,
    pub(super) serve: Vec<String>,
}

/// A fault that was carried out.
#[derive(Serialize)]
pub(super) struct FaultResult {
    pub(super) text: String,
    pub(super) kind: &'static str,
    /// Counted from 1; null for the broker and the clients.
    pub(super) node: Option<usize>,
    pub(super) from_seconds: f64,
    pub(super) until_seconds: f64,
    /// Explained losses that are attributed to it.
    pub(super) losses: u64,
}

#[derive(Default, Serialize)]
pub(super) struct PublicationCounts {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    /// By HTTP status.
    pub(super) refused: BTreeMap<u16, u64>,
    pub(super) unanswered: u64,
}

#[derive(Default, Serialize)]
pub(super) struct SubscriberCounts {
    pub(super) clients: u64,
    pub(super) subscribed_at_the_end: u64,
    pub(super) subscriptions: u64,
    /// Lost subscriptions by cause.
    pub(super) ended: BTreeMap<&'static str, u64>,
    /// Events beyond what a client may log.
    pub(super) unlogged: u64,
}

#[derive(Serialize)]
struct Losses {
    second: usize,
    explained: u64,
    unexplained: u64,
}

impl ClusterProof {
    /// Judges what was seen.
    pub(super) fn judge(
        settings: &Settings,
        plan: &[Planned],
        seen: Seen,
        machine: Machine,
    ) -> ClusterProof {
        let findings = check::check(&seen.evidence);
        let began_ns = seen.began_ns;
        let windows = seen.evidence.windows.iter().zip(&findings.by_window);
        let faults = windows.map(|(window, &losses)| FaultResult::of(window, losses, began_ns));
        let faults: Vec<FaultResult> = faults.collect();
        let publications = PublicationCounts::of(&seen.evidence);
        let subscribers = SubscriberCounts::of(&seen.evidence, seen.subscribed);
        let told = |node| seen.evidence.tells.iter().filter(|tell| tell.node == node).count();
        let gaps_told = (0..settings.nodes).map(|node| told(node) as u64).collect();
        let reasons = reasons(plan, &seen, &findings, &publications, &subscribers);
        let numbered = findings.by_second.iter().copied().enumerate();
        let losses = numbered.filter(|(_, (one, other))| one + other > 0);
        let losses = losses.map(|(second, (explained, unexplained))| Losses {
            second,
            explained,
            unexplained,
        });
        ClusterProof {
            version: VERSION,
            standfast: env!("CARGO_PKG_VERSION"),
            command: command(settings),
            machine,
            settings: SettingsResult {
                seed: settings.seed,
                broker: settings.broker.name(),
                broker_version: seen.broker_version,
                nodes: settings.nodes,
                clients: settings.clients,
                topics: settings.topics().len(),
                rate: settings.rate,
                duration_seconds: settings.duration.as_secs_f64(),
                cable: settings.cable,
                history: settings.history,
                proxy: settings.proxy,
                serve: settings.serve.clone(),
            },
            planned: plan.to_vec(),
            faults,
            publications,
            subscribers,
            gaps_told,
            losses: losses.collect(),
            findings,
            seconds: seen.series.samples().last().map_or(0.0, |sample| sample.elapsed_seconds),
            verdict: match (seen.interrupted, reasons.is_empty()) {
                (true, _) => INTERRUPTED,
                (false, true) => HELD,
                (false, false) => FELL_SHORT,
            },
            reasons,
            series: seen.series,
        }
    }

    /// The sentence beside the verdict.
    pub(super) fn sentence(&self) -> String {
        let findings = &self.findings;
        let unknown = match findings.unknown {
            0 => String::new(),
            count => format!(", {} unknown", Count(count)),
        };
        format!(
            "{} of {} deliveries arrived once, {} losses explained, {} unexplained{unknown}",
            Count(findings.delivered),
            Count(findings.pairs),
            Count(findings.explained.values().sum()),
            Count(findings.unexplained.total())
        )
    }

    /// The summary for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = format!("\n{}: {}\n\n", self.verdict, self.sentence());
        for reason in &self.reasons {
            text += &format!("  ! {reason}\n");
        }
        for example in &self.findings.examples {
            text += &format!("      {example}\n");
        }
        if !self.reasons.is_empty() {
            text.push('\n');
        }
        for (name, value) in self.rows() {
            text += &format!("  {name:<14} {value}\n");
        }
        if !self.findings.explained.is_empty() {
            text += "\n  losses by cause\n";
        }
        for (cause, count) in &self.findings.explained {
            text += &format!("  {:>14} {cause}\n", Count(*count).to_string());
        }
        text
    }

    /// The figures, for text and page.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let (settings, findings) = (&self.settings, &self.findings);
        let (publications, subscribers) = (&self.publications, &self.subscribers);
        let named = |counts: &mut dyn Iterator<Item = (String, u64)>| {
            let texts: Vec<String> =
                counts.map(|(name, count)| format!("{} {name}", Count(count))).collect();
            if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
        };
        let by_kind = self.faults.iter().fold(BTreeMap::new(), |mut all, fault| {
            *all.entry(fault.kind).or_insert(0) += 1;
            all
        });
        let version = settings.broker_version.as_ref().map_or(String::new(), |v| format!(" {v}"));
        let mut rows = vec![
            ("seed", settings.seed.to_string()),
            (
                "cluster",
                format!(
                    "{} nodes, broker {}{version}, {} clients, {} topics",
                    settings.nodes,
                    settings.broker,
                    Count(settings.clients.into()),
                    settings.topics
                ),
            ),
            ("faults", named(&mut by_kind.iter().map(|(kind, n)| ((*kind).to_owned(), *n)))),
            (
                "publications",
                format!(
                    "{} sent, {} acknowledged, {} refused, {} unanswered",
                    Count(publications.sent),
                    Count(publications.acknowledged),
                    Count(publications.refused.values().sum()),
                    Count(publications.unanswered)
                ),
            ),
            (
                "subscriptions",
                format!(
                    "{}, lost: {}",
                    Count(subscribers.subscriptions),
                    named(&mut subscribers.ended.iter().map(|(why, n)| ((*why).to_owned(), *n)))
                ),
            ),
            ("gaps told", {
                let of = |(node, count): (usize, &u64)| format!("node {}: {count}", node + 1);
                self.gaps_told.iter().enumerate().map(of).collect::<Vec<_>>().join(", ")
            }),
            (
                "after recovery",
                format!(
                    "{} of {} deliveries",
                    Count(findings.calm_delivered),
                    Count(findings.calm_pairs)
                ),
            ),
        ];
        let extra = [
            ("recovered", findings.recovered, "deliveries of what was missed meanwhile"),
            ("twice", findings.doubled_explained, "deliveries on two connections, with a cause"),
            ("refused", findings.refused_delivered, "deliveries of publications that were refused"),
            ("unanswered", findings.unanswered_delivered, "deliveries without an answer"),
            (
                "told, no fault",
                findings.told_without_fault,
                "losses in gaps that no fault explains",
            ),
        ];
        let some = extra.into_iter().filter(|(_, count, _)| *count > 0);
        rows.extend(some.map(|(name, count, what)| (name, format!("{} {what}", Count(count)))));
        rows
    }

    /// Losses of each second: explained and unexplained.
    pub(super) fn losses(&self) -> impl Iterator<Item = (f64, u64, u64)> + '_ {
        self.losses.iter().map(|one| (one.second as f64, one.explained, one.unexplained))
    }
}

/// Everything that is missing or wrong.
fn reasons(
    plan: &[Planned],
    seen: &Seen,
    findings: &Findings,
    publications: &PublicationCounts,
    subscribers: &SubscriberCounts,
) -> Vec<String> {
    let mut reasons = seen.broken.clone();
    let unexplained = findings.unexplained;
    for (count, what) in [
        (
            findings.unknown,
            "deliveries had not arrived when the proof ended early: they could still have come",
        ),
        (unexplained.lost, "deliveries are lost and unexplained"),
        (unexplained.doubled, "deliveries were doubled"),
        (unexplained.reordered, "deliveries arrived out of order"),
        (unexplained.foreign, "messages arrived that the client should not get"),
        (unexplained.damaged, "messages arrived damaged"),
        (subscribers.unlogged, "events of clients were not logged, so it is unknown what arrived"),
    ] {
        if count > 0 {
            reasons.push(format!("{} {what}", Count(count)));
        }
    }
    if seen.interrupted {
        reasons.push("interrupted before the end".to_owned());
        return reasons;
    }
    let mut unknown = |is_unknown: bool, text: String| {
        if is_unknown {
            reasons.push(text);
        }
    };
    unknown(findings.pairs == 0, "nothing was measured: no publication was acknowledged".into());
    unknown(plan.is_empty(), "no fault was planned: choose a longer --duration".into());
    let done = seen.evidence.windows.len();
    let missing = plan.len().saturating_sub(done);
    unknown(missing > 0, format!("{missing} of {} faults were not carried out", plan.len()));
    let away = subscribers.clients.saturating_sub(subscribers.subscribed_at_the_end);
    unknown(away > 0, format!("{} clients are not subscribed at the end", Count(away)));
    let is_calm = seen.recovered_ns.is_some() && findings.calm_pairs > 0;
    unknown(!is_calm, "it is unknown whether all recovered: nothing was published after".into());
    let late = findings.calm_pairs - findings.calm_delivered;
    unknown(late > 0, format!("{} deliveries were lost after all had recovered", Count(late)));
    unknown(publications.acknowledged == 0, "no publication was acknowledged".into());
    reasons
}

/// The command that repeats the proof: with the seed, even if that was drawn.
fn command(settings: &Settings) -> String {
    let typed = output::command_line();
    match typed.contains("--seed") {
        true => typed,
        false => format!("{typed} --seed {}", settings.seed),
    }
}

impl FaultResult {
    fn of(window: &Window, losses: u64, began_ns: u64) -> FaultResult {
        let seconds = |ns: u64| ns.saturating_sub(began_ns) as f64 / 1e9;
        FaultResult {
            text: window.fault.text(),
            kind: window.fault.name(),
            node: window.fault.node().map(|node| node + 1),
            from_seconds: seconds(window.from_ns),
            until_seconds: seconds(window.until_ns),
            losses,
        }
    }
}

impl PublicationCounts {
    fn of(evidence: &Evidence) -> PublicationCounts {
        let mut counts = PublicationCounts::default();
        for publication in &evidence.publications {
            counts.sent += 1;
            match publication.answer {
                Answer::Acknowledged => counts.acknowledged += 1,
                Answer::Refused(status) => *counts.refused.entry(status).or_default() += 1,
                Answer::Unknown => counts.unanswered += 1,
            }
        }
        counts
    }
}

impl SubscriberCounts {
    fn of(evidence: &Evidence, subscribed: u64) -> SubscriberCounts {
        let clients = evidence.subscribers.len() as u64;
        let mut counts =
            SubscriberCounts { clients, subscribed_at_the_end: subscribed, ..Self::default() };
        for log in &evidence.subscribers {
            counts.unlogged += log.unlogged;
            for record in &log.records {
                match record.event {
                    Event::Subscribed { .. } => counts.subscriptions += 1,
                    Event::Ended { why } => *counts.ended.entry(why.name()).or_default() += 1,
                    _ => {}
                }
            }
        }
        counts
    }
}

/// The duration in a text.
pub(super) fn duration(settings: &SettingsResult) -> String {
    units::format_duration(std::time::Duration::from_secs_f64(settings.duration_seconds))
}
