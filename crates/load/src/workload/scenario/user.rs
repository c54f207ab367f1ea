//! [`User`]: one user in a flow: its step, random state, captures and received messages, from which its
//! next request is rendered. [`crate::workload::scenario::users::Users`] are all users of a worker.

use std::sync::Arc;
use std::time::Duration;

use crate::workload::scenario::condition::{ITEMS_MAX, Items, Operands, elements};
use crate::workload::scenario::cookies::{CookieJar, Site};
use crate::workload::scenario::list;
use crate::workload::scenario::parallel::{InGroup, Position};
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
    /// Where its random numbers began.
    seed: u64,
    /// Passes in total, and those begun after the warm-up.
    pub(crate) passes: u64,
    pub(crate) counted: u64,
    /// Whether the current pass is counted.
    pub(crate) is_counted: bool,
    pub(crate) flow: usize,
    /// The current step, `None` before a pass, and the values of its request.
    pub(crate) at: Position,
    /// The requests that its branches send.
    pub(crate) group: Option<InGroup>,
    pub(crate) think: Option<Duration>,
    /// Completed `once` steps, as a bit set.
    pub(crate) done_once: u64,
    pub(crate) rows: Box<[u32]>,
    pub(crate) captures: Box<[Option<Arc<[u8]>>]>,
    jar: CookieJar,
    /// Repetitions of the current step, and its item.
    pub(crate) repeated: u32,
    pub(crate) at_item: u32,
    /// The items of a loop over a capture, as they were when it began.
    pub(crate) items: Option<Arc<[Box<[u8]>]>>,
    /// Whether a step of the pass was made.
    pub(crate) has_sent: bool,
    /// Whether it stayed until the end of its group.
    pub(crate) is_done: bool,
    /// Messages by WebSocket.
    inboxes: Box<[Inbox]>,
    /// Held WebSockets that were opened and not closed by a step, as a bit set.
    pub(crate) opened: u32,
    /// The stamp of its last message.
    pub(crate) stamp: Publication,
    /// When its next message is due, with a rate.
    pub(crate) due_ns: Option<u64>,
    /// Whether its passes begin at a rate, and when the pass was due whose first step was not sent yet.
    pub(crate) arrives: bool,
    pub(crate) arrived_ns: Option<u64>,
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
            seed: random,
            passes: 0,
            counted: 0,
            is_counted: false,
            flow: 0,
            at: Position::default(),
            group: None,
            think: None,
            done_once: 0,
            rows: vec![0; scenario.feeds.len()].into(),
            captures: captures(scenario),
            jar: CookieJar::default(),
            repeated: 0,
            at_item: 0,
            items: None,
            has_sent: false,
            is_done: false,
            inboxes: (0..scenario.sockets()).map(|_| Inbox::default()).collect(),
            opened: 0,
            stamp: Publication::new(0, u32::MAX, 0),
            due_ns: None,
            arrives: false,
            arrived_ns: None,
            waits_since_ns: None,
            place: (0, 0),
            to: None,
            to_number: 0,
        }
    }

    /// The messages of a WebSocket.
    pub(crate) fn inbox(&self, socket: u8) -> Option<&Inbox> {
        self.inboxes.get(usize::from(socket.saturating_sub(1)))
    }

    pub(crate) fn inbox_mut(&mut self, socket: u8) -> Option<&mut Inbox> {
        self.inboxes.get_mut(usize::from(socket.saturating_sub(1)))
    }

    /// Marks a `once` step as done.
    pub(crate) fn do_once(&mut self, number: usize) {
        self.done_once |= 1_u64.checked_shl(number as u32).unwrap_or(0);
    }

    /// A random number of the next pass, which does not depend on what earlier passes did: failures
    /// do not change the mix of flows.
    pub(crate) fn chance_of_pass(&self) -> u64 {
        mixed(!self.seed ^ mixed(self.passes))
    }

    pub(crate) fn chance(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mixed(self.random)
    }

    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_nanos();
        least + Duration::from_nanos(((u128::from(self.chance()) * span) >> 64) as u64)
    }

    /// Moves to the next step, or to the end of the pass.
    pub(crate) fn advance(&mut self, scenario: &Scenario) {
        let Some(flow) = scenario.flows.get(self.flow) else {
            return invariant::broken("a user is in a flow of the scenario");
        };
        let after = |at: usize| at + scenario.steps.get(at).map_or(1, Step::width);
        let first = self.at.step.map_or(flow.steps.start, after);
        let within = |at: &usize| *at < flow.steps.end;
        let mut rest =
            std::iter::successors(Some(first).filter(within), |at| Some(after(*at)).filter(within));
        let is_due = |&at: &usize| {
            let once = scenario.steps.get(at).is_some_and(|step| step.once);
            !once || self.done_once >> at & 1 == 0
        };
        self.at.step = rest.find(is_due);
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
            self.jar.set(line.value, &site, self.at.now_ms);
        }
    }

    /// The target of its request.
    fn endpoint<'a>(&'a self, scenario: &'a Scenario, step: &Step) -> Option<&'a Endpoint> {
        match &self.at.follow {
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
            follow: self.at.follow.as_deref(),
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
        let before = self.at.follow.as_deref();
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

    /// The item of the current step.
    fn item<'a>(&'a self, scenario: &'a Scenario) -> &'a [u8] {
        let step = self.looping().and_then(|step| scenario.steps.get(step));
        let Some(items) = step.and_then(|step| step.items.as_ref()) else { return &[] };
        let at = self.at_item as usize;
        let item = match items {
            Items::Values(values) => values.get(at).map(|item| &**item),
            Items::Column(feed, column) => {
                scenario.feeds.get(*feed).map(|feed| feed.cell(self.at_item, *column))
            }
            Items::List(slot) => {
                let list = self.captures.get(*slot).and_then(Option::as_deref);
                list::nth(list.unwrap_or_default(), at)
            }
            Items::Capture(_) => {
                self.items.as_ref().and_then(|items| items.get(at)).map(|item| &**item)
            }
        };
        item.unwrap_or_default()
    }

    /// The number of items of a step; `None` if it has no list.
    fn items_of(&mut self, scenario: &Scenario, number: usize) -> Option<u32> {
        let items = scenario.steps.get(number)?.items.as_ref()?;
        let count = match items {
            Items::Values(values) => values.len(),
            Items::Column(feed, _) => {
                scenario.feeds.get(*feed).map_or(0, |feed| feed.rows() as usize)
            }
            Items::List(slot) => {
                let list = self.captures.get(*slot).and_then(Option::as_deref);
                list::count(list.unwrap_or_default())
            }
            Items::Capture(slot) => {
                let read = || {
                    let capture = self.captures.get(*slot).and_then(Option::as_deref);
                    elements(capture.unwrap_or_default())
                };
                self.items.get_or_insert_with(read).len()
            }
        };
        Some(count.min(ITEMS_MAX) as u32)
    }

    /// Whether the current step is to be made: it has items, and its condition is true.
    pub(crate) fn is_due(
        &mut self,
        scenario: &Scenario,
        user: u64,
        operands: &mut Operands,
    ) -> bool {
        let Some(number) = self.at.step else { return true };
        let Some(step) = scenario.steps.get(number) else { return true };
        if step.items.is_some() && self.items_of(scenario, number) == Some(0) {
            return false;
        }
        let Some(when) = &step.when else { return true };
        let values = self.values(scenario, user);
        // The same whenever it is asked, and other numbers than those of the last request.
        let random = mixed(values.random ^ mixed(number as u64 ^ (self.passes << 32)));
        when.is_true(&Values { random, ..values }, operands)
    }

    /// Moves to the next item of a step; false after the last.
    pub(crate) fn next_item(&mut self, scenario: &Scenario, number: usize) -> bool {
        let Some(items) = self.items_of(scenario, number) else { return false };
        self.at_item += 1;
        if self.at_item < items {
            return true;
        }
        (self.at_item, self.items) = (0, None);
        false
    }

    pub(crate) fn values<'a>(&'a self, scenario: &'a Scenario, number: u64) -> Values<'a> {
        Values {
            seq: self.at.seq,
            user: number,
            pass: self.passes.saturating_sub(1),
            now_ms: self.at.now_ms,
            random: self.at.draw,
            feeds: &scenario.feeds,
            rows: &self.rows,
            captures: &self.captures,
            item: self.item(scenario),
            stamp: self.stamp,
            group: self.place,
            to: self.to_number,
        }
    }
}

/// The captures that a user begins with.
fn captures(scenario: &Scenario) -> Box<[Option<Arc<[u8]>>]> {
    let given = |slot| scenario.captured.get(slot).cloned().flatten();
    (0..scenario.captures).map(given).collect()
}

/// The parts of its next request.
pub(crate) fn render_context<'a>(
    scenario: &'a Scenario,
    user: &'a User,
    number: u64,
) -> Option<RenderContext<'a>> {
    let step = scenario.steps.get(user.at.step?)?;
    Some(RenderContext {
        scenario,
        step,
        endpoint: user.endpoint(scenario, step)?,
        values: user.values(scenario, number),
        jar: scenario.cookies.then_some(&user.jar),
        follow: user.at.follow.as_deref(),
    })
}
