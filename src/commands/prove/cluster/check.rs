//! The checker: what became of every publication at every subscriber of its topic. Each pair is delivered
//! once, lost with a cause that was told, or unexplained. Pure.
//!
//! Owed are publications that were acknowledged, to clients that had subscribed before at any time. A loss is
//! explained only if its subscriber can know of it:
//!
//! - its connection ended, within a fault's window, and nothing later of the same publisher arrived before;
//! - it was without a subscription when the publication was sent, for such a reason;
//! - the server told it of a gap, or, to clients that are not told, its node counted one, in time: [`TELL_WITHIN`]
//!   after the publication or after the end of the faults that it was sent in, and of those that hit the same node
//!   before it had recovered; but at most [`NOTICED`] after the client received a later one of the same publisher.
//!
//! A publication that arrives twice, or before an earlier one of its publisher that was acknowledged before it was
//! sent, is explained only across two connections of a client, within a fault's window.
//!
//! Where clients recover by the history that the broker keeps, none of this explains anything, on any number of
//! connections: only that the broker was killed with its data, and this client was told. Nothing does where the
//! broker has its data in files that survive it.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::Closed;
use load::subscribers::{Event, SubscriberLog};
use serde::Serialize;

use super::evidence::{Answer, Evidence, Publication, Tell, Topic, Window};
use super::faults::Fault;

/// How long a gap may stay untold after the fault, and a fault may have effects after its end: a node's
/// reconnect to the broker, a client's to a node, a stopped node's backlog.
pub(super) const TELL_WITHIN: Duration = Duration::from_secs(15);
/// How long a node may take after a fault until it has told: a further fault that begins earlier delays that.
const RECOVERY: Duration = Duration::from_secs(5);
/// How long after a hole was seen its gap is told: the counters of nodes are read four times a second.
const NOTICED: Duration = Duration::from_secs(2);
/// Tells and ends are noticed by other clocks than publications are: a poll, another thread.
const SLACK: Duration = Duration::from_secs(1);
/// The name of a cause that is none.
const NO_FAULT: &str = "gap told, no fault near";
/// Examples of what is unexplained that are kept.
const EXAMPLES_MAX: usize = 20;

/// What was found.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub(super) struct Findings {
    /// Acknowledged publications times the subscribers that they were owed to.
    pub(super) pairs: u64,
    pub(super) delivered: u64,
    /// The same of what was published when all had recovered.
    pub(super) calm_pairs: u64,
    pub(super) calm_delivered: u64,
    /// Losses with a cause that was told, by kind of fault.
    pub(super) explained: BTreeMap<&'static str, u64>,
    pub(super) unexplained: Unexplained,
    /// Not delivered when the proof ended early, and not explained by then.
    pub(super) unknown: u64,
    /// Delivered a second time, with a cause.
    pub(super) doubled_explained: u64,
    /// Refused or unanswered publications that arrived at somebody all the same.
    pub(super) refused_delivered: u64,
    pub(super) unanswered_delivered: u64,
    /// Deliveries of what was published while the client had no subscription.
    pub(super) recovered: u64,
    /// Losses whose gap was told with no fault near.
    pub(super) told_without_fault: u64,
    pub(super) examples: Vec<String>,
    /// The same for each window.
    #[serde(skip)]
    pub(super) by_window: Vec<u64>,
    /// Per second from the first publication on: explained and unexplained losses.
    #[serde(skip)]
    pub(super) by_second: Vec<(u64, u64)>,
}

/// What no fault and no tell explains.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Unexplained {
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) reordered: u64,
    /// Received of a topic that the client is not subscribed to, or never published.
    pub(super) foreign: u64,
    pub(super) damaged: u64,
}

impl Unexplained {
    pub(super) fn total(&self) -> u64 {
        self.lost + self.doubled + self.reordered + self.foreign + self.damaged
    }
}

/// Judges all pairs.
pub(super) fn check(evidence: &Evidence) -> Findings {
    let topics = evidence.by_topic();
    let first_ns = evidence.publications.iter().map(|one| one.sent_ns).min().unwrap_or(0);
    let by_window = vec![0; evidence.windows.len()];
    let findings = Findings { by_window, ..Findings::default() };
    let mut checker = Checker { evidence, first_ns, findings };
    let none = Topic::default();
    for log in &evidence.subscribers {
        checker.subscriber(log, topics.get(&log.topic).unwrap_or(&none));
    }
    checker.findings
}

struct Checker<'a> {
    evidence: &'a Evidence,
    first_ns: u64,
    findings: Findings,
}

/// One subscription of a client, from its confirmation to its end.
struct Session {
    endpoint: usize,
    from_ns: u64,
    until_ns: u64,
    /// `None` if it was there at the end.
    ended: Option<Closed>,
    /// Of each publisher, the newest position that arrived.
    newest: BTreeMap<u32, usize>,
    told_ns: Vec<u64>,
    /// When the newest publication that arrived was sent.
    newest_sent_ns: u64,
    /// When the last publication arrived; 0 if none has.
    last_ns: u64,
}

/// When a publication arrived first, and in which session.
#[derive(Copy, Clone)]
struct Arrival {
    session: usize,
    at_ns: u64,
}

/// Why a loss is none of ours.
enum Explanation {
    /// The fault of this window.
    Fault(usize),
    /// A gap was told, without a fault.
    Told,
}

impl Checker<'_> {
    fn subscriber(&mut self, log: &SubscriberLog, topic: &Topic<'_>) {
        let mut arrived = vec![None; topic.publications.len()];
        let sessions = self.replay(log, topic, &mut arrived);
        let Some(since_ns) = sessions.first().map(|first| first.from_ns) else { return };
        for (at, publication) in topic.publications.iter().enumerate() {
            let is_here = arrived.get(at).is_some_and(Option::is_some);
            match publication.answer {
                Answer::Acknowledged if publication.sent_ns > since_ns => {
                    let is_calm = publication.sent_ns >= self.evidence.calm_from_ns;
                    self.findings.pairs += 1;
                    self.findings.calm_pairs += u64::from(is_calm);
                    self.findings.calm_delivered += u64::from(is_calm && is_here);
                    match is_here {
                        true => self.findings.delivered += 1,
                        false => self.lost(log, topic, at, &sessions, &arrived),
                    }
                }
                Answer::Acknowledged => {}
                Answer::Refused(_) => self.findings.refused_delivered += u64::from(is_here),
                Answer::Unknown => self.findings.unanswered_delivered += u64::from(is_here),
            }
        }
    }

    /// Goes through a log: its sessions, and in which of them each publication arrived first.
    fn replay(
        &mut self,
        log: &SubscriberLog,
        topic: &Topic<'_>,
        arrived: &mut [Option<Arrival>],
    ) -> Vec<Session> {
        let mut sessions: Vec<Session> = Vec::new();
        let mut told_ns = 0;
        for record in &log.records {
            let number = sessions.len().saturating_sub(1);
            let Some(session) = sessions.last_mut() else {
                match record.event {
                    Event::Subscribed { endpoint } => {
                        sessions.push(Session::new(endpoint, record.at_ns));
                    }
                    // Nothing can arrive before the first subscription.
                    Event::Received { .. } => self.findings.unexplained.foreign += 1,
                    Event::Damaged => self.findings.unexplained.damaged += 1,
                    Event::Ended { .. } | Event::Gap => {}
                }
                continue;
            };
            match record.event {
                Event::Subscribed { endpoint } => {
                    let mut next = Session::new(endpoint, record.at_ns);
                    if self.evidence.clients_recover {
                        // The order goes on.
                        next.newest = std::mem::take(&mut session.newest);
                    }
                    sessions.push(next);
                }
                Event::Ended { why } => {
                    (session.until_ns, session.ended) = (record.at_ns, Some(why))
                }
                Event::Gap => {
                    session.told_ns.push(record.at_ns);
                    told_ns = record.at_ns;
                    if self.evidence.clients_recover {
                        session.newest.clear();
                    }
                }
                Event::Damaged => self.findings.unexplained.damaged += 1,
                Event::Received { publisher, sequence } => {
                    let Some(&at) = topic.position.get(&(publisher, sequence)) else {
                        self.foreign(log, publisher, sequence);
                        continue;
                    };
                    let arrival = Arrival { session: number, at_ns: record.at_ns };
                    self.received(log, topic, at, arrival, arrived, session, told_ns);
                }
            }
        }
        sessions
    }

    #[expect(clippy::too_many_arguments, reason = "the state of one client's replay")]
    fn received(
        &mut self,
        log: &SubscriberLog,
        topic: &Topic<'_>,
        at: usize,
        now: Arrival,
        arrived: &mut [Option<Arrival>],
        session: &mut Session,
        told_ns: u64,
    ) {
        let (Some(publication), Some(before)) = (topic.publications.get(at), arrived.get_mut(at))
        else {
            return;
        };
        if let Some(first) = *before {
            let (restarted, fault) = if self.evidence.clients_recover {
                let mut windows = self.evidence.windows.iter();
                let kill = windows.position(|window| self.may_take(window, publication.sent_ns));
                (told_ns >= first.at_ns, kill)
            } else {
                let fault = self.fault_between(publication.sent_ns, now.at_ns, None, |_| 1);
                (first.session != now.session, fault)
            };
            if restarted && fault.is_some() {
                self.findings.doubled_explained += 1;
            } else {
                self.findings.unexplained.doubled += 1;
                self.example("doubled", log, publication, "");
            }
            return;
        }
        *before = Some(now);
        session.newest_sent_ns = session.newest_sent_ns.max(publication.sent_ns);
        session.last_ns = now.at_ns;
        self.findings.recovered += u64::from(publication.sent_ns < session.from_ns);
        let newest = session.newest.entry(publication.publisher).or_insert(at);
        let is_late = *newest > at
            && topic.publications.get(*newest).is_some_and(|newer| {
                publication.answer == Answer::Acknowledged && publication.ended_ns <= newer.sent_ns
            });
        *newest = (*newest).max(at);
        if is_late {
            self.findings.unexplained.reordered += 1;
            self.example("reordered", log, publication, "");
        }
    }

    fn foreign(&mut self, log: &SubscriberLog, publisher: u32, sequence: u32) {
        self.findings.unexplained.foreign += 1;
        if self.findings.examples.len() < EXAMPLES_MAX {
            let client = log.client;
            self.findings.examples.push(format!(
                "foreign: client {client} of topic {} received number {sequence} of publisher {publisher}",
                log.topic
            ));
        }
    }

    fn lost(
        &mut self,
        log: &SubscriberLog,
        topic: &Topic<'_>,
        at: usize,
        sessions: &[Session],
        arrived: &[Option<Arrival>],
    ) {
        let Some(publication) = topic.publications.get(at) else { return };
        let explanation = self.explain(topic, publication, at, sessions, arrived);
        let second = (publication.sent_ns.saturating_sub(self.first_ns) / 1_000_000_000) as usize;
        if self.findings.by_second.len() <= second {
            self.findings.by_second.resize(second + 1, (0, 0));
        }
        let bin = self.findings.by_second.get_mut(second);
        match &explanation {
            Some(_) => bin.into_iter().for_each(|bin| bin.0 += 1),
            None if self.evidence.ended_early => {}
            None => bin.into_iter().for_each(|bin| bin.1 += 1),
        }
        match explanation {
            Some(Explanation::Fault(window)) => {
                self.findings.by_window.get_mut(window).into_iter().for_each(|count| *count += 1);
                let fault = self.evidence.windows.get(window).map(|window| window.fault);
                let kind = fault.map_or(NO_FAULT, Fault::name);
                *self.findings.explained.entry(kind).or_default() += 1;
            }
            Some(Explanation::Told) => {
                self.findings.told_without_fault += 1;
                *self.findings.explained.entry(NO_FAULT).or_default() += 1;
            }
            None if self.evidence.ended_early => self.findings.unknown += 1,
            None => {
                self.findings.unexplained.lost += 1;
                let whereabouts = self.whereabouts(publication.sent_ns, sessions);
                self.example("lost", log, publication, &whereabouts);
            }
        }
    }

    /// Why a subscriber could know that it misses this publication.
    fn explain(
        &self,
        topic: &Topic<'_>,
        publication: &Publication,
        at: usize,
        sessions: &[Session],
        arrived: &[Option<Arrival>],
    ) -> Option<Explanation> {
        let sent_ns = publication.sent_ns;
        if self.evidence.clients_recover {
            let kills = self.evidence.windows.iter().enumerate();
            let takes = |window: &Window| {
                window.fault == Fault::KillBroker
                    && !self.evidence.broker_keeps_data
                    && self.is_taken(window, sent_ns, sessions)
            };
            let mut kills = kills.filter(|(_, window)| takes(window));
            return kills.next().map(|(at, _)| Explanation::Fault(at));
        }
        // The last subscription that began before the publication was sent.
        let number = sessions.iter().rposition(|session| session.from_ns <= sent_ns)?;
        let session = sessions.get(number)?;
        let node = self.evidence.endpoints_are_nodes.then_some(session.endpoint);
        let until_ns = self.deadline_ns(sent_ns, node);
        if let Some(ended) = session.ended {
            let is_passed =
                session.newest.get(&publication.publisher).is_some_and(|&newest| newest > at);
            let was_away = session.until_ns <= sent_ns;
            if was_away || (!is_passed && session.until_ns <= until_ns) {
                let back_ns = sessions.get(number + 1).map_or(u64::MAX, |next| next.from_ns);
                return self.away(session.until_ns, back_ns, node, ended);
            }
        }
        // A later one of the same sender shows its node the hole at once: a gap that is told long after is another one.
        let until_ns = match passed_ns(topic, at, number, arrived) {
            Some(passed_ns) => until_ns.min(self.noticed_by(passed_ns, node)),
            None => until_ns,
        };
        let counts = |tell: &&Tell| {
            !self.evidence.clients_are_told && node.is_none_or(|node| tell.node == node)
        };
        let of_node = self.evidence.tells.iter().filter(counts);
        let told = session.told_ns.iter().copied().chain(of_node.map(|tell| tell.at_ns));
        let told_ns = told.filter(|&told_ns| is_within(told_ns, sent_ns, until_ns)).min()?;
        // What ends connections to the broker loses what was sent meanwhile; a stopped or delayed node is late.
        let weight = |fault| match fault {
            Fault::CutLink { .. } | Fault::SwallowLink { .. } | Fault::KillBroker => 2,
            Fault::StopNode { .. } | Fault::DelayLink { .. } | Fault::KillNode { .. } => 1,
            Fault::DropClients { .. } => 0,
        };
        // A publication may as well be lost between its node and the broker.
        let window = self
            .fault_between(sent_ns, told_ns.max(sent_ns), node, weight)
            .or_else(|| self.fault_between(sent_ns, told_ns.max(sent_ns), None, weight));
        Some(match window {
            Some(window) => Explanation::Fault(window),
            None => Explanation::Told,
        })
    }

    /// Until when a node has told of a hole that it saw then: any time if it is killed or stopped meanwhile.
    fn noticed_by(&self, passed_ns: u64, node: Option<usize>) -> u64 {
        let until_ns = passed_ns.saturating_add(nanoseconds(NOTICED));
        let hinders = |window: &Window| {
            matches!(window.fault, Fault::KillNode { .. } | Fault::StopNode { .. })
                && (node.is_none() || window.fault.node() == node)
                && window.from_ns <= until_ns
                && window.until_ns >= passed_ns
        };
        if self.evidence.windows.iter().any(hinders) { u64::MAX } else { until_ns }
    }

    /// The cause of an end that a client noticed. It must be back in time, if it ever is: what keeps it away
    /// longer is no effect of the fault.
    fn away(
        &self,
        ended_ns: u64,
        back_ns: u64,
        node: Option<usize>,
        why: Closed,
    ) -> Option<Explanation> {
        // A client ends its connection itself only if the plan drops it.
        let weight = |fault| match (fault, why) {
            (Fault::DropClients { .. }, why) => u8::from(why == Closed::Aborted),
            (_, Closed::Aborted) => 0,
            (Fault::KillNode { .. }, _) => 2,
            _ => 1,
        };
        let window = self.fault_between(ended_ns, ended_ns, node, weight)?;
        let fault = Explanation::Fault(window);
        (back_ns <= self.deadline_ns(ended_ns, None)).then_some(fault)
    }

    /// The fault to which what happened between these times is attributed: of those that may have had an effect then,
    /// the one with most weight, then one of the node, one that was not over, the latest. Without weight it is
    /// none.
    fn fault_between(
        &self,
        from_ns: u64,
        until_ns: u64,
        node: Option<usize>,
        weight: impl Fn(Fault) -> u8,
    ) -> Option<usize> {
        let (within, slack) = (nanoseconds(TELL_WITHIN), nanoseconds(SLACK));
        let covers = |(_, window): &(usize, &Window)| {
            let is_of_other =
                node.is_some() && window.fault.node().is_some_and(|of| Some(of) != node);
            let reaches = window.until_ns.saturating_add(within);
            weight(window.fault) > 0
                && !is_of_other
                && window.from_ns <= until_ns
                && from_ns <= reaches
        };
        let rank = |(_, window): &(usize, &Window)| {
            let is_near = from_ns <= window.until_ns.saturating_add(slack);
            (weight(window.fault), is_near, window.fault.node().is_some(), window.from_ns)
        };
        let windows = self.evidence.windows.iter().enumerate();
        windows.filter(covers).max_by_key(rank).map(|(at, _)| at)
    }

    /// Whether a kill of the broker took a publication with it, and the client was told. It was sent before, and faults
    /// may have kept it from its subscribers until then. Or the client was away, and its position that of the time
    /// before the kill: what was sent until it was told so is unknown to it.
    fn is_taken(&self, kill: &Window, sent_ns: u64, sessions: &[Session]) -> bool {
        let until_ns = self.deadline_ns(sent_ns, None);
        let took = self.may_take(kill, sent_ns);
        let killed_ns = kill.from_ns.saturating_add(nanoseconds(SLACK));
        let mut newest_sent_ns = 0;
        for session in sessions {
            let was_away = kill.from_ns <= sent_ns && sent_ns < session.from_ns;
            let is_old = was_away && newest_sent_ns <= killed_ns;
            let mut told = session.told_ns.iter().filter(|&&at_ns| at_ns >= kill.from_ns);
            if (took || is_old) && told.any(|&told_ns| is_within(told_ns, sent_ns, until_ns)) {
                return true;
            }
            newest_sent_ns = newest_sent_ns.max(session.newest_sent_ns);
        }
        false
    }

    /// Whether a publication may have been at the broker only when it was killed.
    fn may_take(&self, kill: &Window, sent_ns: u64) -> bool {
        let faults_end_ns = self.deadline_ns(sent_ns, None) - nanoseconds(TELL_WITHIN);
        !self.evidence.broker_keeps_data
            && kill.fault == Fault::KillBroker
            && sent_ns <= kill.from_ns.saturating_add(nanoseconds(SLACK))
            && kill.from_ns <= faults_end_ns.saturating_add(nanoseconds(RECOVERY))
    }

    /// Until when a gap of a node that begins at this time must be told: within the limit, after the end of all
    /// faults that follow one another from there. Those of other nodes do not count, if the node is known.
    fn deadline_ns(&self, from_ns: u64, node: Option<usize>) -> u64 {
        let (within, recovery) = (nanoseconds(TELL_WITHIN), nanoseconds(RECOVERY));
        let mut end_ns = from_ns;
        // Windows are in the order of their beginnings.
        for window in &self.evidence.windows {
            let is_of_other =
                node.is_some() && window.fault.node().is_some_and(|of| Some(of) != node);
            let reaches_ns = window.until_ns.saturating_add(recovery);
            if !is_of_other
                && from_ns < reaches_ns
                && window.from_ns < end_ns.saturating_add(recovery)
            {
                end_ns = end_ns.max(window.until_ns);
            }
        }
        end_ns.saturating_add(within)
    }

    /// Where a client was when a publication was sent that it lost.
    fn whereabouts(&self, sent_ns: u64, sessions: &[Session]) -> String {
        let Some(session) = sessions.iter().rfind(|session| session.from_ns <= sent_ns) else {
            return String::new();
        };
        let seconds = |at_ns: u64| at_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        let node = match self.evidence.endpoints_are_nodes {
            true => format!(" at node {}", session.endpoint + 1),
            false => String::new(),
        };
        let until = match session.ended {
            Some(_) => format!(" until {:.3} s", seconds(session.until_ns)),
            None => String::new(),
        };
        let last = match session.last_ns {
            0 => "nothing".to_owned(),
            at_ns => format!("its last message after {:.3} s", seconds(at_ns)),
        };
        format!(
            "; the client was subscribed{node} from {:.3} s{until} and received {last}",
            seconds(session.from_ns)
        )
    }

    fn example(
        &mut self,
        what: &str,
        log: &SubscriberLog,
        publication: &Publication,
        further: &str,
    ) {
        if self.findings.examples.len() >= EXAMPLES_MAX {
            return;
        }
        let seconds = publication.sent_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        let Publication { topic, node, sequence, .. } = publication;
        self.findings.examples.push(format!(
            "{what}: client {}, number {sequence} of topic {topic}, published at node {} after \
             {seconds:.3} s{further}",
            log.client,
            node + 1
        ));
    }
}

impl Session {
    fn new(endpoint: u8, from_ns: u64) -> Session {
        Session {
            endpoint: endpoint.into(),
            from_ns,
            until_ns: u64::MAX,
            ended: None,
            newest: BTreeMap::new(),
            told_ns: Vec::new(),
            newest_sent_ns: 0,
            last_ns: 0,
        }
    }
}

/// When a client received, in this session, a later publication of the same publisher than the one at this position.
fn passed_ns(
    topic: &Topic<'_>,
    at: usize,
    number: usize,
    arrived: &[Option<Arrival>],
) -> Option<u64> {
    let publisher = topic.publications.get(at)?.publisher;
    let later = topic.publications.iter().zip(arrived).skip(at + 1);
    let mut of_publisher = later.filter(|(one, _)| one.publisher == publisher);
    of_publisher.find_map(|(_, arrival)| {
        arrival.filter(|arrival| arrival.session == number).map(|arrival| arrival.at_ns)
    })
}

fn is_within(told_ns: u64, sent_ns: u64, until_ns: u64) -> bool {
    told_ns.saturating_add(nanoseconds(SLACK)) >= sent_ns && told_ns <= until_ns
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
