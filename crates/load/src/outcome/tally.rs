//! [`Tally`]: the results of each step and check. Each worker counts on its own and merges its counts
//! when its users are done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use engine::invariant;
use serde::{Deserialize, Serialize};

use crate::delivery::group::GroupStats;
use crate::outcome::Outcome;
use crate::outcome::failure::Failure;
use crate::outcome::groups::GroupSummary;
use crate::workload::requests::answer::Times;
use crate::workload::requests::config::Requests;
use crate::workload::scenario::groups::GroupState;
use crate::workload::scenario::{Captured, Scenario};
use crate::{Latency, Recorder, Series};

/// How often tallies are merged for views during the run.
const MERGE_NS: u64 = 250_000_000;

/// The results of a scenario's steps and checks.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    steps: Vec<StepTally>,
    /// Passes begun, by flow.
    passes: Vec<u64>,
    /// Passes that reached the end of their flow.
    completed: Vec<u64>,
    pub(crate) sockets: SocketSummary,
    /// Stats of groups.
    pub(crate) stats: GroupStats,
    /// The captures of the user of a setup.
    pub(crate) captured: Option<Captured>,
}

/// Events on users' WebSockets outside their steps.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, Debug)]
pub struct SocketSummary {
    /// Messages received.
    pub received: u64,
    /// Messages dropped because no step waited for them and too many were received.
    pub unread_dropped: u64,
    /// WebSockets that the server closed, by code; 1005 for none.
    pub closed_by: BTreeMap<u16, u64>,
    /// WebSockets that were held over passes and opened again after they had ended.
    pub reopened: u64,
    /// WebSockets that ended without a close frame.
    pub gone: u64,
    /// WebSockets on which the server violated the protocol, by kind.
    pub broken: BTreeMap<String, u64>,
    /// Open gRPC calls that the server ended before a step closed them, by status.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ended_by: BTreeMap<String, u64>,
}

#[derive(Clone, Default)]
struct StepTally {
    requests: u64,
    redirects: u64,
    errors: BTreeMap<&'static str, u64>,
    /// Failed requests with a complete answer, which is timed.
    wrong: u64,
    recorder: Recorder,
    /// Passed and failed, by check; then by capture.
    checks: Vec<(u64, u64)>,
}

/// The merged tallies of all workers.
#[derive(Clone, Default)]
pub struct Tallies {
    all: Arc<Mutex<Tally>>,
    /// Whether they are merged during the run.
    live: bool,
    /// Stats of groups.
    state: Option<Arc<GroupState>>,
}

/// A flow in the summary.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct FlowSummary {
    /// Its name.
    pub name: String,
    /// Passes that users began.
    pub begun: u64,
    /// Passes that completed the flow.
    pub completed: u64,
    /// Its steps in order.
    pub steps: Vec<StepSummary>,
}

/// A step in the summary.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct StepSummary {
    /// Its name.
    pub name: String,
    /// Its tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Requests that ended, without redirects.
    pub requests: u64,
    /// Failed requests.
    pub failed: u64,
    /// Failed requests by kind.
    pub errors: BTreeMap<String, u64>,
    /// Redirects followed.
    pub redirects: u64,
    /// From the due time to the complete answer, including redirects.
    pub latency: Option<Latency>,
    /// From when a user took it up.
    pub service_time: Option<Latency>,
    /// Its checks, then its captures, in order.
    pub checks: Vec<CheckSummary>,
}

/// A check, or whether a capture found something.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CheckSummary {
    /// Its name.
    pub name: String,
    /// How often it held.
    pub passed: u64,
    /// How often not.
    pub failed: u64,
}

impl Tally {
    pub(crate) fn new(scenario: &Scenario) -> Tally {
        let steps = scenario.steps.iter().map(|step| StepTally {
            checks: vec![(0, 0); step.checks.len() + step.captures.len()],
            ..StepTally::default()
        });
        let none = vec![0; scenario.flows.len()];
        let (sockets, stats) = (SocketSummary::default(), GroupStats::default());
        let (steps, passes) = (steps.collect(), none.clone());
        Tally { steps, passes, completed: none, sockets, stats, captured: None }
    }

    pub(crate) fn pass(&mut self, flow: usize) {
        if let Some(passes) = self.passes.get_mut(flow) {
            *passes += 1;
        } else {
            invariant::broken("each step, flow and check has a tally");
        }
    }

    pub(crate) fn completed(&mut self, flow: usize) {
        if let Some(completed) = self.completed.get_mut(flow) {
            *completed += 1;
        } else {
            invariant::broken("each step, flow and check has a tally");
        }
    }

    pub(crate) fn check(&mut self, step: usize, check: usize, held: bool) {
        let Some(count) = self.steps.get_mut(step).and_then(|step| step.checks.get_mut(check))
        else {
            return invariant::broken("each step, flow and check has a tally");
        };
        if held { count.0 += 1 } else { count.1 += 1 }
    }

    pub(crate) fn redirect(&mut self, step: usize) {
        if let Some(step) = self.steps.get_mut(step) {
            step.redirects += 1;
        } else {
            invariant::broken("each step, flow and check has a tally");
        }
    }

    /// Counts the end of a step. Only complete answers are timed, as in the summary of the run.
    pub(crate) fn step(&mut self, step: usize, failure: Option<Failure>, times: Option<&Times>) {
        let Some(tally) = self.steps.get_mut(step) else {
            return invariant::broken("each step, flow and check has a tally");
        };
        tally.requests += 1;
        if let Some(failure) = failure {
            *tally.errors.entry(failure.name()).or_default() += 1;
            tally.wrong += u64::from(times.is_some());
        }
        if let Some(times) = times {
            let since = |begin_ns| times.done_ns.saturating_sub(begin_ns);
            tally.recorder.record(Series::Latency, since(times.due_ns));
            tally.recorder.record(Series::ServiceTime, since(times.begun_ns));
        }
    }

    /// Resets all counts and keeps the memory.
    fn clear(&mut self) {
        self.passes.fill(0);
        self.completed.fill(0);
        self.sockets = SocketSummary::default();
        self.stats = GroupStats::default();
        for step in &mut self.steps {
            (step.requests, step.redirects, step.wrong) = (0, 0, 0);
            step.errors.clear();
            step.recorder.clear();
            step.checks.fill((0, 0));
        }
    }

    fn merge(&mut self, other: &Tally) {
        if self.steps.is_empty() {
            *self = other.clone();
            return;
        }
        let add = |mine: &mut Vec<u64>, theirs: &[u64]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        };
        add(&mut self.passes, &other.passes);
        add(&mut self.completed, &other.completed);
        self.stats.merge(&other.stats);
        self.captured = self.captured.take().or_else(|| other.captured.clone());
        self.sockets.merge(&other.sockets);
        for (mine, theirs) in self.steps.iter_mut().zip(&other.steps) {
            mine.requests += theirs.requests;
            mine.redirects += theirs.redirects;
            mine.wrong += theirs.wrong;
            mine.recorder.merge(&theirs.recorder);
            for (name, count) in &theirs.errors {
                *mine.errors.entry(name).or_default() += count;
            }
            for (mine, theirs) in mine.checks.iter_mut().zip(&theirs.checks) {
                *mine = (mine.0 + theirs.0, mine.1 + theirs.1);
            }
        }
    }
}

impl SocketSummary {
    pub(crate) fn merge(&mut self, other: &SocketSummary) {
        self.received += other.received;
        self.unread_dropped += other.unread_dropped;
        self.gone += other.gone;
        self.reopened += other.reopened;
        for (code, count) in &other.closed_by {
            *self.closed_by.entry(*code).or_default() += count;
        }
        for (kind, count) in &other.broken {
            *self.broken.entry(kind.clone()).or_default() += count;
        }
        for (status, count) in &other.ended_by {
            *self.ended_by.entry(status.clone()).or_default() += count;
        }
    }
}

impl Tallies {
    /// Tallies of a run of a scenario. With `live` workers merge several times a second, for views during the run.
    #[must_use]
    pub fn new(scenario: &Scenario, requests: &Requests, live: bool) -> Tallies {
        let (all, own) = (requests.connections, requests.own_users());
        let state = scenario.group.map(|group| Arc::new(GroupState::new(group, all, own)));
        Tallies { all: Arc::default(), live, state }
    }

    /// Tallies of a scenario without groups.
    pub(crate) fn without_groups(live: bool) -> Tallies {
        Tallies { live, ..Tallies::default() }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    pub(crate) fn state(&self) -> Option<Arc<GroupState>> {
        self.state.clone()
    }

    /// The captures of a run of [`Scenario::once_through`].
    #[must_use]
    pub fn captured(&self) -> Captured {
        let tally = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        tally.captured.clone().unwrap_or_default()
    }

    /// Adds the results of all workers to the outcome of the run: flows, groups and, if the scenario has
    /// them, sockets.
    pub fn add_to(&self, scenario: &Scenario, outcome: &mut Outcome) {
        outcome.flows = self.summary(scenario);
        let tally = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let histograms = outcome.histograms.get_or_insert_default();
        for (flow, of) in scenario.flows.iter().enumerate() {
            for (step, at) in of.steps.clone().enumerate() {
                let Some(tally) = tally.steps.get(at) else { continue };
                let name = |what| format!("flows[{flow}].steps[{step}].{what}");
                let latency = name("latency");
                histograms.latency(&latency, &tally.recorder, Series::Latency);
                let failed: u64 = tally.errors.values().sum();
                histograms.of_all(&latency, tally.wrong, failed.saturating_sub(tally.wrong));
                histograms.latency(&name("service_time"), &tally.recorder, Series::ServiceTime);
            }
        }
        outcome.sockets = scenario.has_sockets().then(|| tally.sockets.clone());
        drop(tally);
        self.add_groups_to(outcome);
    }

    /// Adds the results of groups, if there are any.
    pub fn add_groups_to(&self, outcome: &mut Outcome) {
        let Some(state) = &self.state else { return };
        let tally = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let histograms = outcome.histograms.get_or_insert_default();
        outcome.groups = Some(GroupSummary::new(state, &tally.stats, histograms));
    }

    pub(crate) fn merge(&self, tally: &Tally) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).merge(tally);
    }

    /// Merges several times a second during a run, unless the lock is taken; `merged_ns` is when it was last done.
    pub(crate) fn publish(&self, tally: &mut Tally, merged_ns: &mut u64, now_ns: u64) {
        if now_ns.saturating_sub(*merged_ns) >= MERGE_NS {
            *merged_ns = now_ns;
            self.try_merge(tally);
        }
    }

    /// Merges during a run, unless the lock is taken, as a worker must not wait.
    pub(crate) fn try_merge(&self, tally: &mut Tally) {
        if let Ok(mut all) = self.all.try_lock() {
            all.merge(tally);
            tally.clear();
        }
    }

    /// The merged results of all workers, with the scenario's names.
    #[must_use]
    pub fn summary(&self, scenario: &Scenario) -> Vec<FlowSummary> {
        let mut tally = self.all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if tally.steps.is_empty() {
            tally = Tally::new(scenario);
        }
        let flows = scenario.flows.iter().enumerate().map(|(at, flow)| FlowSummary {
            name: flow.name.clone(),
            begun: tally.passes.get(at).copied().unwrap_or_default(),
            completed: tally.completed.get(at).copied().unwrap_or_default(),
            steps: flow
                .steps
                .clone()
                .filter_map(|at| Some(summary(scenario.steps.get(at)?, tally.steps.get(at)?)))
                .collect(),
        });
        flows.collect()
    }
}

fn summary(step: &crate::workload::scenario::Step, tally: &StepTally) -> StepSummary {
    let captures = step.captures.iter().map(|capture| format!("capture {}", capture.name));
    let names = step.checks.iter().map(|check| check.name.clone()).chain(captures);
    let checks = names.zip(&tally.checks);
    StepSummary {
        name: step.name.clone(),
        tags: step.tags.clone(),
        requests: tally.requests,
        failed: tally.errors.values().sum(),
        errors: tally.errors.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect(),
        redirects: tally.redirects,
        latency: tally.recorder.latency(Series::Latency),
        service_time: tally.recorder.latency(Series::ServiceTime),
        checks: checks
            .map(|(name, &(passed, failed))| CheckSummary { name, passed, failed })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_merged_during_a_run_is_counted_once() {
        let tallies = Tallies::default();
        let step = StepTally { requests: 2, ..StepTally::default() };
        let mut tally = Tally { steps: vec![step], passes: vec![3], ..Tally::default() };
        tally.completed.push(1);
        (tally.stats.sent, tally.stats.lost) = (5, 4);
        tally.stats.recorder.record(Series::Broadcast, 1_000_000);
        tally.sockets.received = 7;
        (0..3).for_each(|_| tallies.try_merge(&mut tally));
        let all = tallies.all.lock().unwrap();
        assert_eq!(
            (all.steps[0].requests, &all.passes[..], &all.completed[..]),
            (2, &[3][..], &[1][..])
        );
        assert_eq!((all.stats.sent, all.stats.lost, all.sockets.received), (5, 4, 7));
        assert_eq!(all.stats.recorder.latency(Series::Broadcast).unwrap().count, 1);
    }
}
