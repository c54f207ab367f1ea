//! [`Agent`]: an agent as its leader knows it.

use std::net::SocketAddr;

use load::control::Event;
use load::{Outcome, SharedRow, Usage};

use super::clocks::Offset;
use super::leader::{PREPARE, Parts};
use super::message::{
    FromAgent, HOST_CHARS_MAX, Says, TEXT_CHARS_MAX, WORD_CHARS_MAX, one_line, version,
};
use super::{LEASE, word};
use crate::report::screen::AgentRow;

/// Characters of an id that are shown.
const ID_CHARS: usize = 8;

/// An agent of a run.
pub(crate) struct Agent {
    pub(super) id: String,
    pub(crate) name: String,
    pub(super) host: String,
    pub(crate) labels: Vec<String>,
    pub(super) version: String,
    pub(super) cores: usize,
    pub(super) busy: bool,
    pub(super) targets: Vec<String>,
    /// Where it runs servers of proofs; `None`: it runs loads.
    pub(super) serves: Option<SocketAddr>,
    pub(super) offset: Offset,
    pub(super) last: Says,
    pub(super) heard_ns: u64,
    /// When its clock was asked for, and when the plan was sent.
    pub(super) pinged_ns: u64,
    pub(super) planned_ns: u64,
    /// The number of the latest row.
    pub(super) number: u64,
    /// `None` before the first.
    pub(crate) row: Option<SharedRow>,
    pub(super) obeyed: Obeyed,
    pub(crate) late_us: Option<u64>,
    /// By how much the start may differ from the plan, by its clock.
    pub(crate) start_error_ns: Option<u64>,
    /// Messages that it has discarded, as NATS was not connected or a queue was full; `None`: unknown.
    pub(crate) discarded: Option<usize>,
    pub(super) result: Vec<u8>,
    /// The next piece of its result was requested and has not come.
    pub(super) is_fetched: bool,
    pub(crate) outcome: Option<Outcome>,
    /// Why its result is missing.
    pub(crate) lost: Option<String>,
}

/// What an agent of a controlled run said last.
#[derive(Default)]
pub(super) struct Obeyed {
    /// The number of the message.
    pub(super) number: u64,
    /// Commands that it has taken.
    pub(super) taken: u64,
    /// Its latest event of each kind, with the number of commands that it had taken before.
    pub(super) events: Vec<(u64, Event)>,
}

/// What agents are looked for.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Purpose {
    Any,
    /// To run loads.
    Loads,
    /// To run servers of proofs.
    Servers,
}

impl Purpose {
    /// The flag that selects them, and how one is started.
    fn flags(self) -> [&'static str; 2] {
        match self {
            Purpose::Any | Purpose::Loads => ["--agents", "standfast agent --name NAME"],
            Purpose::Servers => ["--servers", "standfast agent --name NAME --serve IP"],
        }
    }
}

/// How far an agent is with its preparation.
#[derive(PartialEq, Eq)]
pub(super) enum Readiness {
    Open,
    /// It waits for the setup, or makes it.
    Prepared,
    Ready,
    Refused,
}

impl Agent {
    /// An agent that is free.
    #[cfg(test)]
    pub(super) fn example(id: &str, name: &str, version: &str, now: u64) -> Agent {
        let here = Says::Here {
            name: name.to_owned(),
            host: String::new(),
            labels: Vec::new(),
            version: version.to_owned(),
            cores: 1,
            busy: false,
            targets: Vec::new(),
            serves: None,
        };
        let message = FromAgent { agent: id.to_owned(), run: String::new(), says: here };
        Agent::new(message, now).expect("its id and name can be an agent's")
    }

    /// The agent that answered a call; `None` for other messages, and for names that cannot be of an agent: its
    /// id becomes part of a subject.
    pub(super) fn new(message: FromAgent, now: u64) -> Option<Agent> {
        let last = message.says.clone();
        let Says::Here { name, host, labels, version, cores, busy, targets, serves } = message.says
        else {
            return None;
        };
        if word(&message.agent).is_err() || word(&name).is_err() {
            return None;
        }
        let line = |text: &String| one_line(text, WORD_CHARS_MAX);
        let shown = |texts: Vec<String>| texts.iter().map(line).collect();
        let (labels, targets) = (shown(labels), shown(targets));
        Some(Agent {
            id: message.agent,
            name,
            host: one_line(&host, HOST_CHARS_MAX),
            labels,
            version: one_line(&version, HOST_CHARS_MAX),
            cores,
            busy,
            targets,
            serves,
            offset: Offset::default(),
            last,
            heard_ns: now,
            pinged_ns: 0,
            planned_ns: 0,
            number: 0,
            row: None,
            obeyed: Obeyed::default(),
            late_us: None,
            start_error_ns: None,
            discarded: None,
            result: Vec::new(),
            is_fetched: false,
            outcome: None,
            lost: None,
        })
    }

    pub(super) fn is(&self, message: &FromAgent) -> bool {
        self.id == message.agent
    }

    pub(super) fn is_selected(&self, who: &str, purpose: Purpose) -> bool {
        let is_fit = match purpose {
            Purpose::Any => true,
            Purpose::Loads => self.serves.is_none(),
            Purpose::Servers => self.serves.is_some(),
        };
        is_fit && (!who.contains('=') || self.labels.iter().any(|label| label == who))
    }

    pub(super) fn is_settled(&self) -> bool {
        self.outcome.is_some() || self.lost.is_some()
    }

    pub(super) fn readiness(&self, now: u64) -> Readiness {
        match &self.last {
            Says::Refused { .. } | Says::Failed { .. } => Readiness::Refused,
            _ if self.is_silent(now) => Readiness::Refused,
            Says::Ready { .. } if self.offset.is_known(now) => Readiness::Ready,
            Says::Prepared | Says::SettingUp => Readiness::Prepared,
            _ => Readiness::Open,
        }
    }

    /// After a second Ctrl-C nothing is waited for.
    pub(super) fn give_up(&mut self) {
        if !self.is_settled() {
            self.lost = Some("interrupted before it had sent its result".to_owned());
        }
    }

    fn is_silent(&self, now: u64) -> bool {
        now > self.heard_ns + LEASE.as_nanos() as u64
    }

    pub(super) fn problem(&self, now: u64) -> Option<String> {
        let what = match &self.last {
            Says::Refused { why } | Says::Failed { why } => why.replace('\n', "\n    "),
            _ if self.is_silent(now) => format!(
                "not heard for {} s: is it running, and does it reach the NATS server?",
                LEASE.as_secs()
            ),
            Says::Ready { .. } if self.offset.is_known(now) => return None,
            // Another agent is the reason.
            Says::Prepared | Says::SettingUp => return None,
            Says::Ready { .. } => "its clock could not be measured, or jumps".to_owned(),
            _ => format!("not ready within {} s", PREPARE.as_secs()),
        };
        Some(format!("agent {}: {what}", self.name))
    }

    pub(super) fn is_lost(&self, now: u64) -> Option<String> {
        if let Says::Failed { why } | Says::Refused { why } = &self.last {
            return Some(one_line(why, TEXT_CHARS_MAX));
        }
        if !self.is_silent(now) {
            return None;
        }
        let seconds = LEASE.as_secs();
        Some(match &self.row {
            Some(SharedRow { elapsed_seconds, sent, received, .. }) => format!(
                "not heard for {seconds} s; {elapsed_seconds:.0} s after the start it had sent {sent} and \
                 received {received}"
            ),
            None => format!("not heard for {seconds} s; what it has sent is unknown"),
        })
    }
}

/// What the processes of all agents use; `None` if one is unknown.
pub(crate) fn usage(agents: &[Agent]) -> Option<Usage> {
    sum(agents.iter().map(|agent| agent.row.as_ref()?.usage))
}

/// What several processes use; `None` if one is unknown.
pub(super) fn sum(mut of_each: impl Iterator<Item = Option<Usage>>) -> Option<Usage> {
    of_each.try_fold(Usage::default(), |sum, own| {
        let own = own?;
        Some(Usage {
            rss_bytes: sum.rss_bytes.saturating_add(own.rss_bytes),
            cpu_seconds: sum.cpu_seconds + own.cpu_seconds,
        })
    })
}

/// What the screen shows of an agent.
pub(crate) fn agent_row(agent: &Agent) -> AgentRow {
    let row = agent.row.as_ref();
    AgentRow {
        name: agent.name.clone(),
        is_lost: agent.lost.is_some(),
        open: row.map(|row| row.open),
        sent: row.map(|row| row.sent),
        received: row.map(|row| row.received),
        errors: row.map(|row| row.errors),
        p99_ms: row.and_then(SharedRow::p99_ms),
    }
}

fn names(agents: &[Agent]) -> String {
    match agents {
        [] => "none".to_owned(),
        agents => agents.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

pub(super) fn too_few(purpose: Purpose, wanted: usize, free: &[Agent], busy: &[Agent]) -> String {
    let [flag, start] = purpose.flags();
    let of = if purpose == Purpose::Servers { format!(" for {flag}") } else { String::new() };
    let mut text = format!("{} of {wanted} agents are free{of}: {}", free.len(), names(free));
    if !busy.is_empty() {
        text += &format!("; busy: {}", names(busy));
    }
    text + &format!("\n  start more, each with {start} and the same --nats and --fleet")
}

/// Agents of one name, of a list that is sorted by names. Results and upgrades know agents by their names.
pub(super) fn namesakes(agents: &[Agent]) -> Vec<String> {
    let same = agents.chunk_by(|one, other| one.name == other.name);
    let problem = |agents: &[Agent]| {
        let place = |agent: &Agent| {
            let id: String = agent.id.chars().take(ID_CHARS).collect();
            match agent.host.as_str() {
                "" => format!("id {id}"),
                host => format!("on {host} (id {id})"),
            }
        };
        let (name, places) = (&agents.first()?.name, agents.iter().map(place));
        let places = places.collect::<Vec<_>>().join(", ");
        let count = agents.len();
        (count > 1).then(|| {
            format!("{count} agents are named {name}: {places}: give each a unique --name")
        })
    };
    same.filter_map(problem).collect()
}

/// All that is wrong with the agents of a run of so many parts.
pub(super) fn problems(
    purpose: Purpose,
    (agents, busy): (&[Agent], &[Agent]),
    who: &str,
    parts: Parts,
) -> Vec<String> {
    let [flag, start] = purpose.flags();
    let mut problems = Vec::new();
    if agents.is_empty() {
        let label = if who.contains('=') { format!(" --label {who}") } else { String::new() };
        let found = match busy {
            [] => "none has answered".to_owned(),
            busy => format!("busy: {}", names(busy)),
        };
        problems.push(format!(
            "no agent is free for {flag} {who} ({found}): start one with {start}{label} and the same --nats and --fleet"
        ));
    }
    let mine = version();
    for agent in agents.iter().filter(|agent| agent.version != mine) {
        let (name, theirs) = (&agent.name, &agent.version);
        problems.push(format!(
            "agent {name} has version {theirs}, this leader {mine}: install the same release, then run \
             standfast fleet upgrade"
        ));
    }
    let Parts { count, name, remedy } = parts;
    if agents.len() as u64 > count {
        let agents = agents.len();
        problems
            .push(format!("{count} {name} cannot be shared by {agents} agents: raise {remedy}"));
    }
    problems
}
