//! [`Checked`]: another script whose answers are checked, as those of a step of a scenario: by the status of a call
//! and by [`Check`]s. Runs without checks do not use it.

use std::fmt;
use std::sync::Arc;

use crate::grpc::{Code, Method, answer_status, code_of};
use crate::outcome::Outcome;
use crate::outcome::failure::Failure;
use crate::outcome::selection::Selector;
use crate::outcome::tally::{Tallies, Tally};
use crate::transport::grpc::of_code;
use crate::transport::target_table::TargetTable;
use crate::workload::requests::answer::{Answer, Wants};
use crate::workload::requests::request::Request;
use crate::workload::requests::script::{Script, Step};
use crate::workload::scenario::call::shown;
use crate::workload::scenario::check::Check;
use crate::workload::scenario::extract::{AnswerView, BODY_KEPT_MAX};
use crate::workload::scenario::speak::Action;
use crate::workload::scenario::template::Template;
use crate::workload::scenario::{Flow, Scenario, Step as ScenarioStep};

/// What answers have to be, and how many were.
pub struct AnswerChecks {
    /// The checks are those of its only step.
    scenario: Arc<Scenario>,
    /// What is called, if the requests are calls.
    method: Option<Method>,
    /// Statuses of calls that are accepted.
    accepted: Vec<u16>,
    wants: Wants,
    tallies: Tallies,
    /// What thresholds select of it.
    selectors: Vec<Selector>,
}

impl AnswerChecks {
    /// Checks of requests with this name in the summary. Of calls the method is known, and the accepted
    /// statuses; without any it is OK.
    #[must_use]
    pub fn new(
        name: String,
        checks: Vec<Check>,
        method: Option<Method>,
        mut accepted: Vec<u16>,
    ) -> AnswerChecks {
        let wants =
            checks.iter().map(Check::wants).fold(Wants::Nothing, |all, one| match (all, one) {
                (Wants::Body(_), _) | (_, Wants::Body(_)) => Wants::Body(BODY_KEPT_MAX),
                (Wants::Head, _) | (_, Wants::Head) => Wants::Head,
                _ => Wants::Nothing,
            });
        if accepted.is_empty() {
            accepted.push(answer_status(Code::OK));
        }
        let step = ScenarioStep::new(name.clone(), 0, Action::Request, Template::of_bytes(b"/"));
        let step = ScenarioStep { checks, ..step };
        let flow = Flow { name, weight: 1, steps: 0..1, ..Flow::default() };
        let scenario = Scenario { flows: vec![flow], steps: vec![step], ..Scenario::default() };
        let tallies = Tallies::without_groups(false);
        let scenario = Arc::new(scenario);
        AnswerChecks { scenario, method, accepted, wants, tallies, selectors: Vec::new() }
    }

    /// Adds the figures of these selections to the outcome.
    ///
    /// # Errors
    /// One of them selects nothing.
    pub fn selecting(mut self, selectors: Vec<Selector>) -> Result<AnswerChecks, String> {
        let flows = self.tallies.summary(&self.scenario);
        if let Some(problem) = selectors.iter().find_map(|selector| selector.problem(&flows)) {
            return Err(problem);
        }
        self.selectors = selectors;
        Ok(self)
    }

    /// Publishes the results of checks during the run, too.
    #[must_use]
    pub fn published(mut self) -> AnswerChecks {
        self.tallies = Tallies::without_groups(true);
        self
    }

    /// The results so far as those of a scenario; `None` without checks.
    #[must_use]
    pub fn steps(&self) -> Option<(&Tallies, &Arc<Scenario>)> {
        (!self.checks().is_empty()).then_some((&self.tallies, &self.scenario))
    }

    fn checks(&self) -> &[Check] {
        self.scenario.steps.first().map(|step| step.checks.as_slice()).unwrap_or_default()
    }

    /// Adds the results of checks to the outcome of the run, if there are any.
    pub fn add_to(&self, outcome: &mut Outcome) {
        if !self.checks().is_empty() {
            self.tallies.add_to(&self.scenario, outcome);
            outcome.select(&self.selectors.iter().collect::<Vec<_>>());
        }
    }
}

impl fmt::Debug for AnswerChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.checks()).entries(&self.accepted).finish()
    }
}

/// The users of one worker.
pub struct Checked<S> {
    script: S,
    checks: Arc<AnswerChecks>,
    tally: Tally,
    /// When it was last merged for views during the run.
    merged_ns: u64,
    json: String,
}

impl<S: Script> Checked<S> {
    /// Checks the answers of a script.
    #[must_use]
    pub fn new(script: S, checks: Arc<AnswerChecks>) -> Checked<S> {
        let tally = Tally::new(&checks.scenario);
        Checked { script, tally, merged_ns: 0, checks, json: String::new() }
    }

    fn judge(&mut self, user: u32, status: u16, answer: &Answer<'_>) -> Option<Failure> {
        let wants_body = matches!(self.checks.wants, Wants::Body(_));
        if wants_body && answer.is_cut {
            return Some(Failure::TooLarge);
        }
        let mut decoded = Answer { ..*answer };
        if let Some(method) = self.checks.method.as_ref().filter(|_| wants_body) {
            self.json.clear();
            self.json.shrink_to(BODY_KEPT_MAX);
            if let Err(failure) = shown(method, answer, &mut self.json) {
                return Some(failure);
            }
            decoded.body = self.json.as_bytes();
        }
        let seen = AnswerView::new(status, &decoded);
        let mut failure = None;
        for (at, check) in self.checks.checks().iter().enumerate() {
            let held = check.holds(&seen);
            if !answer.is_warm_up {
                self.tally.check(0, at, held);
            }
            failure = failure.or((!held).then_some(Failure::Check));
        }
        match code_of(status) {
            Some(_) if self.checks.accepted.contains(&status) => failure,
            Some(Code::OK) => Some(Failure::Status),
            Some(code) => Some(of_code(code)),
            None => self.script.answered(user, answer).or(failure),
        }
    }
}

impl<S: Script> Script for Checked<S> {
    const KEEPS: bool = S::KEEPS;

    fn start(&mut self, targets: &TargetTable, measure_ns: u64) {
        self.script.start(targets, measure_ns);
    }

    fn next(&mut self, user: u32, now_ns: u64) -> Step {
        self.script.next(user, now_ns)
    }

    fn request(&mut self, user: u32) -> &Request {
        self.script.request(user)
    }

    fn unanswered(&mut self, user: u32, nth: usize) -> &Request {
        self.script.unanswered(user, nth)
    }

    fn begin(&mut self, user: u32, due_ns: u64, now_ns: u64) {
        self.script.begin(user, due_ns, now_ns);
    }

    fn wants(&self, _user: u32) -> Wants {
        self.checks.wants
    }

    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure> {
        let failure = match answer.outcome {
            Ok(status) => self.judge(user, status, answer),
            Err(failure) => Some(failure),
        };
        if !answer.is_warm_up && !self.checks.checks().is_empty() {
            let is_whole = answer.outcome.is_ok() && !failure.is_some_and(Failure::is_of_call);
            self.tally.pass(0);
            self.tally.step(0, failure, is_whole.then_some(&answer.times));
            if failure.is_none() {
                self.tally.completed(0);
            }
        }
        if self.checks.tallies.is_live() {
            self.checks.tallies.publish(&mut self.tally, &mut self.merged_ns, answer.times.done_ns);
        }
        failure.filter(|_| answer.outcome.is_ok())
    }
}

impl<S> Drop for Checked<S> {
    fn drop(&mut self) {
        self.checks.tallies.merge(&self.tally);
    }
}
