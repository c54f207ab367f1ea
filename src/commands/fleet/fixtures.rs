//! `[setup]` and `[teardown]` of a scenario that agents share. The first agent makes the setup once all agents are
//! prepared, and what it captured travels to the others before they are ready. When all agents have sent their
//! results, the first that has one and is still heard makes the teardown; if it is lost meanwhile, the next one.

use std::sync::Arc;
use std::time::Duration;

use load::scenario::Captured;
use serde::{Deserialize, Serialize};

use super::coordinator::{Coordinator, Outbox, nanoseconds};
use super::member::Agent;
use super::message::{Says, ToAgent};
use super::{REPEAT, message};

/// How long a teardown may take beyond its limit until its agent has said so.
const GRACE: Duration = Duration::from_secs(15);

/// How long each may take; `None`: the scenario has none.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Fixtures {
    pub(crate) setup: Option<Duration>,
    pub(crate) teardown: Option<Duration>,
}

/// What a setup captured, with a character for each byte.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Captures(Vec<Option<String>>);

impl Captures {
    pub(crate) fn of(captured: &Captured) -> Captures {
        let text = |value: &Arc<[u8]>| value.iter().map(|byte| char::from(*byte)).collect();
        Captures(captured.iter().map(|value| value.as_ref().map(text)).collect())
    }

    /// Other characters are left out.
    pub(crate) fn captured(&self) -> Captured {
        let bytes =
            |text: &String| text.chars().filter_map(|byte| u8::try_from(byte).ok()).collect();
        self.0.iter().map(|value| value.as_ref().map(bytes)).collect()
    }
}

/// The teardown of a run.
#[derive(Clone, Default, Debug)]
pub(crate) struct Teardown {
    /// The agent that made it, or failed to; `None`: there is none with a result.
    pub(crate) agent: Option<String>,
    /// `None` if it was made.
    pub(crate) failed: Option<String>,
}

impl Teardown {
    /// The agent that made it; `None` if none did.
    pub(crate) fn made_by(&self) -> Option<&str> {
        self.agent.as_deref().filter(|_| self.failed.is_none())
    }

    /// Why it failed, and where.
    pub(crate) fn failure(&self) -> Option<String> {
        let why = self.failed.as_ref()?;
        Some(self.agent.as_ref().map_or(why.clone(), |agent| format!("agent {agent}: {why}")))
    }
}

/// A teardown under way.
pub(super) struct TeardownOrder {
    agent: usize,
    until_ns: u64,
    told_ns: u64,
    /// Ctrl-C before it.
    interrupts: u32,
}

impl Coordinator {
    /// Tells the first agent to make the setup, and then others what it has captured, once all are prepared. It is
    /// repeated until the agent has it.
    pub(super) fn set_up(&mut self, at: usize, now: u64, out: &mut impl Outbox) {
        let Some(agent) = self.agents.get_mut(at) else { return };
        let is_due = now >= agent.planned_ns.saturating_add(nanoseconds(REPEAT));
        let can_be_told = at == 0 || self.captured.is_some();
        if can_be_told && is_due && matches!(agent.last, Says::Prepared) {
            agent.planned_ns = now;
            self.is_set_up_ordered = true;
            let captured = self.captured.clone().filter(|_| at > 0);
            let order = ToAgent::SetUp { run: self.run.clone(), captured };
            out.send(&message::inbox(&self.fleet, &agent.id), message::encode(&order, &[]));
        }
    }

    /// Has the teardown made, if there is one. Returns whether it has ended.
    pub(super) fn tear_down(&mut self, now: u64, interrupts: u32, out: &mut impl Outbox) -> bool {
        let Some(limit) = self.fixtures.teardown.filter(|_| self.teardown.is_none()) else {
            return true;
        };
        if self.teardown_order.is_none() {
            let Some(agent) = self.able_to_tear_down(0, now) else {
                let failed = Some("no agent is left that can make it".to_owned());
                self.teardown = Some(Teardown { agent: None, failed });
                return true;
            };
            let until_ns = now + nanoseconds(limit) + nanoseconds(GRACE);
            self.teardown_order = Some(TeardownOrder { agent, until_ns, told_ns: 0, interrupts });
        }
        let Some(order) = &self.teardown_order else { return true };
        let Some(agent) = self.agents.get(order.agent) else { return true };
        let failed = match &agent.last {
            Says::TornDown { failed } => Some(failed.clone()),
            _ if now > order.until_ns => Some(Some("it has not ended in time".to_owned())),
            _ => agent.is_lost(now).map(Some),
        };
        let has_answered = matches!(agent.last, Says::TornDown { .. });
        // Whether a lost agent made it is unknown: twice is better than never, unless the user has stopped it.
        let next = match failed {
            Some(_) if !has_answered && now <= order.until_ns && interrupts <= order.interrupts => {
                self.able_to_tear_down(order.agent + 1, now)
            }
            _ => None,
        };
        if let Some(failed) = failed.filter(|_| next.is_none()) {
            self.teardown = Some(Teardown { agent: Some(agent.name.clone()), failed });
            return true;
        }
        if let Some(next) = next {
            let Some(name) = self.agents.get(next).map(|agent| &agent.name) else { return true };
            out.note(format!("agent {} was lost in [teardown]: agent {name} makes it", agent.name));
            let until_ns = now + nanoseconds(limit) + nanoseconds(GRACE);
            let order = TeardownOrder { agent: next, until_ns, told_ns: 0, interrupts };
            self.teardown_order = Some(order);
        }
        let Some(order) = &mut self.teardown_order else { return true };
        let Some(agent) = self.agents.get(order.agent) else { return true };
        if now >= order.told_ns.saturating_add(nanoseconds(REPEAT)) {
            order.told_ns = now;
            let at = order.agent;
            let order = ToAgent::TearDown { run: self.run.clone() };
            out.send(&message::inbox(&self.fleet, &agent.id), message::encode(&order, &[]));
            // The others would begin at the time that they were told.
            let others = self.agents.iter().enumerate().filter(|(other, _)| *other != at);
            for (_, other) in others.filter(|_| self.is_start_ordered && !self.has_begun) {
                let release = ToAgent::Release { run: self.run.clone() };
                out.send(&message::inbox(&self.fleet, &other.id), message::encode(&release, &[]));
            }
        }
        let is_stopped = interrupts > order.interrupts;
        self.beat(now, is_stopped, out);
        false
    }

    /// The first agent from this one on that has sent its result and is not lost; before the start one that has what
    /// the setup has captured.
    fn able_to_tear_down(&self, from: usize, now: u64) -> Option<usize> {
        // After a start that was ordered and taken back the others were released.
        if from > 0 && self.is_start_ordered && !self.has_begun {
            return None;
        }
        let mut agents = self.agents.iter().enumerate().skip(from);
        let is_free = |agent: &Agent| match self.has_begun {
            true => agent.outcome.is_some(),
            false => matches!(agent.last, Says::Ready { .. } | Says::Waiting),
        };
        let able = |agent: &Agent| is_free(agent) && agent.is_lost(now).is_none();
        agents.find(|(_, agent)| able(agent)).map(|(at, _)| at)
    }

    /// Whether a setup was made, and there is a teardown for it.
    pub(super) fn can_undo(&self) -> bool {
        self.captured.is_some() && self.fixtures.teardown.is_some()
    }

    /// What a setup has left behind if the run does not start.
    pub(super) fn left_behind(&self) -> Option<String> {
        let first = self.agents.first().filter(|_| self.is_set_up_ordered)?;
        let name = &first.name;
        let made = match &self.captured {
            Some(_) => format!("[setup] was made on agent {name}"),
            // Also if it failed: some of its steps may have been made.
            None => format!("[setup] was begun on agent {name} and may have been made"),
        };
        let failed = match (&self.teardown, self.fixtures.teardown) {
            (_, None) => return Some(made),
            (None, _) => "was not made".to_owned(),
            (Some(teardown), _) => match (teardown.made_by(), teardown.failure()) {
                (Some(agent), _) => return Some(format!("{made}, [teardown] on agent {agent}")),
                (None, failure) => format!("failed: {}", failure.unwrap_or_default()),
            },
        };
        Some(format!("{made}; [teardown] {failed}: undo by hand what [setup] has made"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_travel_whatever_their_bytes_are() {
        let all: Arc<[u8]> = (0..=255).collect();
        let captured: Captured = Arc::new([None, Some(all), Some(Arc::default())]);
        let json = serde_json::to_string(&Captures::of(&captured)).unwrap();
        let read: Captures = serde_json::from_str(&json).unwrap();
        assert_eq!(read.captured(), captured);
        let other: Captures = serde_json::from_str("[\"a\u{20ac}b\"]").unwrap();
        assert_eq!(other.captured()[0].as_deref(), Some(&b"ab"[..]));
    }
}
