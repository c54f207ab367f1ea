//! [`Selector`]: some steps or checks of a scenario, as in `p99{step:login}`, and [`Selection`], their
//! figures together.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::outcome::histograms::Timed;
use crate::outcome::sections::Quantiles;
use crate::outcome::tally::{CheckSummary, FlowSummary, StepSummary};

/// Steps and checks that have all of some labels.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Selector {
    /// Pairs of key and value: the keys `step`, `flow`, `check` or that of a tag.
    pub labels: Vec<(String, String)>,
}

/// Key of a step's name.
pub(crate) const STEP: &str = "step";
/// Key of a flow's name.
pub(crate) const FLOW: &str = "flow";
/// Key of a check's name.
pub(crate) const CHECK: &str = "check";

/// The figures of what a selector selects.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Selection {
    /// As in a threshold, such as `{step:login}`; `{}` is everything.
    pub selector: String,
    /// Requests that ended, without redirects.
    pub requests: u64,
    /// Failed requests.
    pub failed: u64,
    /// Complete answers.
    pub answered: u64,
    /// Answers as expected per second.
    pub good_per_second: Option<f64>,
    /// From the due time to the complete answer; what failed took forever.
    pub latency_of_all: Option<Quantiles>,
    /// How often checks held.
    pub checks_passed: u64,
    /// How often not.
    pub checks_failed: u64,
}

impl Selector {
    /// Whether it selects a step, apart from its checks.
    #[must_use]
    pub fn selects(&self, flow: &str, step: &StepSummary) -> bool {
        self.labels.iter().all(|(key, value)| match key.as_str() {
            STEP => *value == step.name,
            FLOW => value == flow,
            CHECK => step.checks.iter().any(|check| check.name == *value),
            tag => step.tags.get(tag) == Some(value),
        })
    }

    /// Whether it selects a check of a selected step.
    #[must_use]
    pub fn selects_check(&self, check: &CheckSummary) -> bool {
        self.labels.iter().all(|(key, value)| key != CHECK || *value == check.name)
    }

    /// Whether it is about single checks.
    #[must_use]
    pub fn is_of_checks(&self) -> bool {
        self.labels.iter().any(|(key, _)| key == CHECK)
    }

    /// The failed requests of which this selector covers the reason: all failures of selected steps, or
    /// only their failed checks.
    pub(crate) fn covered(&self, flow: &str, step: &StepSummary, only_checks: bool) -> u64 {
        if !self.selects(flow, step) {
            return 0;
        }
        if !only_checks {
            return step.failed;
        }
        let mut failed = step.checks.iter().filter(|check| check.failed > 0);
        match failed.all(|check| self.selects_check(check)) {
            true => step.errors.get("check").copied().unwrap_or(0),
            false => 0,
        }
    }

    /// What is wrong with it for these flows; `None` if it selects something.
    #[must_use]
    pub fn problem(&self, flows: &[FlowSummary]) -> Option<String> {
        let steps =
            || flows.iter().flat_map(|flow| flow.steps.iter().map(move |step| (flow, step)));
        for (key, value) in &self.labels {
            let known: Vec<&str> = match key.as_str() {
                STEP => steps().map(|(_, step)| step.name.as_str()).collect(),
                FLOW => flows.iter().map(|flow| flow.name.as_str()).collect(),
                CHECK => steps()
                    .flat_map(|(_, step)| step.checks.iter().map(|check| check.name.as_str()))
                    .collect(),
                tag => {
                    steps().filter_map(|(_, step)| step.tags.get(tag).map(String::as_str)).collect()
                }
            };
            let is_tag = !matches!(key.as_str(), STEP | FLOW | CHECK);
            if is_tag && known.is_empty() {
                return Some(format!(
                    "no step has a tag {key}: expected step, check, flow or a tag"
                ));
            }
            if !known.contains(&value.as_str()) {
                let mut names: Vec<String> = Vec::new();
                for name in known {
                    let name = format!("{name:?}");
                    if !names.contains(&name) && names.len() < 20 {
                        names.push(name);
                    }
                }
                let names = names.join(", ");
                return Some(format!("no {key} is {value:?}: expected one of {names}"));
            }
        }
        let any = steps().any(|(flow, step)| self.selects(&flow.name, step));
        (!any).then(|| format!("no step has all of {self}"))
    }
}

impl Outcome {
    /// Sets the figures of what each selector selects, without duplicates.
    pub fn select(&mut self, selectors: &[&Selector]) {
        let mut selections: Vec<Selection> = Vec::new();
        for selector in selectors {
            let name = selector.to_string();
            if !selections.iter().any(|known| known.selector == name) {
                selections.push(self.selection(selector, name));
            }
        }
        self.selections = selections;
    }

    fn selection(&self, selector: &Selector, name: String) -> Selection {
        // Unknown as soon as a histogram is.
        let mut timed = Some(Timed::default());
        let (mut requests, mut failed, mut answered) = (0, 0, 0);
        let (mut checks_passed, mut checks_failed) = (0, 0);
        for (at, flow) in self.flows.iter().enumerate() {
            for (number, step) in flow.steps.iter().enumerate() {
                if !selector.selects(&flow.name, step) {
                    continue;
                }
                requests += step.requests;
                failed += step.failed;
                let name = format!("flows[{at}].steps[{number}].latency");
                let of_step = self.histograms.as_ref().and_then(|all| all.get(&name));
                let answers = |of: &Timed| step.requests.saturating_sub(of.never());
                answered += of_step.map_or(0, answers);
                timed = timed.zip(of_step).map(|(mut all, of_step)| {
                    all.merge(of_step);
                    all
                });
                for check in step.checks.iter().filter(|check| selector.selects_check(check)) {
                    checks_passed += check.passed;
                    checks_failed += check.failed;
                }
            }
        }
        let good = requests.saturating_sub(failed) as f64;
        let seconds = self.seconds.filter(|seconds| *seconds > 0.0);
        Selection {
            selector: name,
            requests,
            failed,
            answered,
            good_per_second: seconds.map(|seconds| good / seconds),
            latency_of_all: timed.and_then(|timed| timed.quantiles()),
            checks_passed,
            checks_failed,
        }
    }
}

impl Display for Selector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let labels = self.labels.iter().map(|(key, value)| format!("{key}:{value}"));
        write!(f, "{{{}}}", labels.collect::<Vec<_>>().join(","))
    }
}
