//! [`User`]: one user in a flow: its step, random state, captures and received messages, from which its
//! next request is rendered. [`crate::workload::scenario::users::Users`] are all users of a worker.

use std::time::Duration;

use crate::workload::scenario::cookies::{CookieJar, Site};
use crate::workload::scenario::render::{Follow, RenderContext, Renderer};
use crate::workload::scenario::sockets::Inbox;
use crate::workload::scenario::template::{Values, mixed};
use crate::workload::scenario::{Scenario, Step};
use engine::invariant;

use crate::Endpoint;
use crate::delivery::publication::Publication;
use crate::outcome::failure::Failure;
use crate::transport::target_table::TargetTable;
use crate::workload::requests::answer::Answer;

#[derive(Debug)]
pub(crate) struct User {
    /// State of its random numbers.
    pub(crate) random: u64,
    /// Passes in total, and those begun after the warm-up.
    /// Where its random numbers began.
    seed: u64,
    pub(crate) passes: u64,
    pub(crate) counted: u64,
    /// Whether the current pass is counted.
    pub(crate) is_counted: bool,
    pub(crate) flow: usize,
    /// The current step; `None` before a pass.
    pub(crate) step: Option<usize>,
    pub(crate) think: Option<Duration>,
    /// Completed `once` steps, as a bit set.
    pub(crate) done_once: u64,
    pub(crate) seq: u64,
    pub(crate) draw: u64,
    pub(crate) now_ms: u64,
    pub(crate) rows: Box<[u32]>,
    pub(crate) captures: Box<[Option<Box<[u8]>>]>,
    jar: CookieJar,
    pub(crate) follow: Option<Box<Follow>>,
    /// Repetitions of the current step.
    pub(crate) repeated: u32,
    /// Whether it stayed until the end of its group.
    pub(crate) is_done: bool,
    pub(crate) inbox: Inbox,
    /// The stamp of its last message.
    pub(crate) stamp: Publication,
    /// When its next message is due, with a rate.
    pub(crate) due_ns: Option<u64>,
    /// When it started to wait for its group.
    pub(crate) waits_since_ns: Option<u64>,
    /// Group and member index.
    pub(crate) place: (u32, u32),
    /// The receiver of its message, and the number of that user.
    pub(crate) to: Option<u32>,
    pub(crate) to_number: u64,
}

impl User {
    pub(crate) fn new(scenario: &Scenario, random: u64) -> User {
        User {
            random,
            passes: 0,
            counted: 0,
            is_counted: false,
            flow: 0,
            seed: random,
            step: None,
            think: None,
            done_once: 0,
            seq: 0,
            draw: 0,
            now_ms: 0,
            rows: vec![0; scenario.feeds.len()].into(),
            captures: vec![None; scenario.captures].into(),
            jar: CookieJar::default(),
            follow: None,
            repeated: 0,
            is_done: false,
            inbox: Inbox::default(),
            stamp: Publication::new(0, u32::MAX, 0),
            due_ns: None,
            waits_since_ns: None,
            place: (0, 0),
            to: None,
            to_number: 0,
        }
    }

    /// Marks a `once` step as done.
    pub(crate) fn do_once(&mut self, number: usize) {
        self.done_once |= 1_u64.checked_shl(number as u32).unwrap_or(0);
    }

    pub(crate) fn chance(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mixed(self.random)
    }

    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
    /// A random number of the next pass, which does not depend on what earlier passes did: failures
    /// do not change the mix of flows.
    pub(crate) fn chance_of_pass(&self) -> u64 {
        mixed(!self.seed ^ mixed(self.passes))
    }

        let span = most.saturating_sub(least).as_nanos();
        least + Duration::from_nanos(((u128::from(self.chance()) * span) >> 64) as u64)
    }

    /// Moves to the next step, or to the end of the pass.
    pub(crate) fn advance(&mut self, scenario: &Scenario) {
        let Some(flow) = scenario.flows.get(self.flow) else {
            return invariant::broken("a user is in a flow of the scenario");
        };
        let from = self.step.map_or(flow.steps.start, |step| step + 1);
        let is_due = |&at: &usize| {
            let once = scenario.steps.get(at).is_some_and(|step| step.once);
            !once || self.done_once >> at & 1 == 0
        };
        self.step = (from..flow.steps.end).find(is_due);
    }

    pub(crate) fn keep_cookies(&mut self, scenario: &Scenario, step: &Step, answer: &Answer<'_>) {
        let Some(endpoint) = self.endpoint(scenario, step) else {
            return invariant::broken("a step has an endpoint of the scenario");
        };
        let mut headers = [wire::http::EMPTY_HEADER; wire::http::MAX_HEADERS];
        let Ok(head) = wire::http::parse_response(answer.head, &mut headers) else { return };
        let lines = head.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("set-cookie"));
        let mut lines = lines.peekable();
        if lines.peek().is_none() {
            return;
        }
        let path = self.target(scenario, step);
        let (host, secure) = (endpoint.server_name().to_owned(), endpoint.tls);
        let site = Site { host: &host, path: &path, secure };
        for line in lines {
            self.jar.set(line.value, &site, self.now_ms);
        }
    }

    /// The target of its request.
    fn endpoint<'a>(&'a self, scenario: &'a Scenario, step: &Step) -> Option<&'a Endpoint> {
        match &self.follow {
            Some(follow) => Some(&follow.at),
            None => scenario.endpoints.get(usize::from(step.endpoint)),
        }
    }

    /// The request target, rendered again.
    fn target(&self, scenario: &Scenario, step: &Step) -> String {
        let Some(endpoint) = self.endpoint(scenario, step) else {
            invariant::broken("a step has an endpoint of the scenario");
            return String::new();
        };
        let asked = RenderContext {
            scenario,
            step,
            endpoint,
            values: self.values(scenario, 0),
            jar: None,
            follow: self.follow.as_deref(),
        };
        String::from_utf8_lossy(Renderer::default().target(&asked)).into_owned()
    }

    pub(crate) fn redirected(
        &self,
        scenario: &Scenario,
        targets: &TargetTable,
        step: &Step,
        status: u16,
        answer: &Answer<'_>,
    ) -> Option<Result<Follow, Failure>> {
        if scenario.redirects == 0 || !matches!(status, 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        let location = std::str::from_utf8(answer.header("location")?).ok()?;
        let before = self.follow.as_deref();
        let hops = before.map_or(0, |follow| follow.hops) + 1;
        if hops > scenario.redirects {
            return Some(Err(Failure::TooManyRedirects));
        }
        let from = before.map_or(step.endpoint, |follow| follow.endpoint);
        let found = targets.resolve_location(from, &self.target(scenario, step), location);
        let found =
            found.and_then(|(number, target)| Some((number, targets.endpoint(number)?, target)));
        let Some((endpoint, at, target)) = found else {
            return Some(Err(Failure::RedirectElsewhere));
        };
        let becomes_get = before.is_some_and(|follow| follow.becomes_get)
            || match status {
                303 => step.method != "HEAD",
                301 | 302 => step.method == "POST",
                _ => false,
            };
        let moved = endpoint != step.endpoint || before.is_some_and(|follow| follow.moved);
        Some(Ok(Follow { endpoint, at, target, hops, becomes_get, moved }))
    }

    pub(crate) fn values<'a>(&'a self, scenario: &'a Scenario, number: u64) -> Values<'a> {
        Values {
            seq: self.seq,
            user: number,
            pass: self.passes.saturating_sub(1),
            now_ms: self.now_ms,
            random: self.draw,
            feeds: &scenario.feeds,
            rows: &self.rows,
            captures: &self.captures,
            stamp: self.stamp,
            group: self.place,
            to: self.to_number,
        }
    }
}

/// The parts of its next request.
pub(crate) fn render_context<'a>(
    scenario: &'a Scenario,
    user: &'a User,
    number: u64,
) -> Option<RenderContext<'a>> {
    let step = scenario.steps.get(user.step?)?;
    Some(RenderContext {
        scenario,
        step,
        endpoint: user.endpoint(scenario, step)?,
        values: user.values(scenario, number),
        jar: scenario.cookies.then_some(&user.jar),
        follow: user.follow.as_deref(),
    })
}
