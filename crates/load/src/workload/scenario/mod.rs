//! A scenario: the steps of users as compiled plain data ([`Scenario`]), and the users that execute them
//! ([`Users`], a [`crate::workload::requests::script::Script`]).
//!
//! It does not read scenario files, which the command line does, and has no access to sockets or clocks.

pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod condition;
pub(crate) mod cookies;
pub(crate) mod extract;
pub(crate) mod feed;
pub(crate) mod groups;
pub(crate) mod list;
pub(crate) mod parallel;
pub(crate) mod prepared;
pub(crate) mod render;
pub(crate) mod sockets;
pub(crate) mod speak;
pub(crate) mod template;
pub(crate) mod user;
pub(crate) mod users;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Endpoint;
use crate::workload::requests::generators::Generators;

pub use self::call::{CALL_MESSAGES_MAX, Call};
pub use self::check::{Bound, Check, Expected, Rule, statuses};
pub use self::condition::{Condition, ITEMS_MAX, Items};
pub use self::cookies::{COOKIE_BYTES_MAX, COOKIES_MAX};
use self::extract::AnswerView;
pub use self::extract::{BODY_KEPT_MAX, CAPTURE_BYTES_MAX, Source, Take};
pub use self::feed::{FEED_BYTES_MAX, FEED_COLUMNS_MAX, Feed, Order};
pub use self::groups::{GROUP_PAIRS_MAX, Group, Kind as GroupKind, Role};
pub use self::sockets::{INBOX_BYTES_MAX, INBOX_MESSAGES_MAX};
pub use self::speak::{Action, Match, Receive};
pub use self::template::{BadTemplate, FUNCTIONS, Names, Template, TemplateContext};
pub use self::users::{Clock, Users};
pub use crate::outcome::groups::GroupSummary;
pub use crate::outcome::tally::{CheckSummary, FlowSummary, SocketSummary, StepSummary, Tallies};

/// The most WebSockets of a user.
pub const SOCKETS_MAX: u8 = 16;
/// The most steps of a scenario in all flows, as each has its own histograms.
pub const STEPS_MAX: usize = 64;

/// The steps of users.
#[derive(Clone, Default, Debug)]
pub struct Scenario {
    /// The targets of steps, the same as those of the run.
    pub endpoints: Vec<Endpoint>,
    /// Alternative sequences of steps; at least one.
    pub flows: Vec<Flow>,
    /// The steps of all flows, concatenated; at most [`STEPS_MAX`].
    pub steps: Vec<Step>,
    /// Sources of values.
    pub feeds: Vec<Arc<Feed>>,
    /// The number of capture slots.
    pub captures: usize,
    /// Passes of each user; `None` for no limit.
    pub passes: Option<u64>,
    /// Whether users keep cookies.
    pub cookies: bool,
    /// Redirects followed per step.
    pub redirects: u8,
    /// Ask servers to close the connection after each answer.
    pub close: bool,
    /// Offer permessage-deflate on WebSockets, and compress messages of at least this many bytes.
    pub compress_above: Option<usize>,
    /// Groups of users that send to each other.
    pub group: Option<Group>,
    /// Users that start at the same time, and the interval to the next ones.
    pub arrive: Option<(u64, Duration)>,
    /// Made once by one user before all others, which then have its captures.
    pub setup: Option<Flow>,
    /// Made once by one user after all others.
    pub teardown: Option<Flow>,
    /// The captures that users begin with, by slot.
    pub captured: Captured,
    /// Whether the captures of the only user are kept, for [`Tallies::captured`].
    pub keeps_captures: bool,
    /// Whether passes of users without a flow of their own begin at a rate.
    pub arrives: bool,
}

/// Values of captures by slot.
pub type Captured = Arc<[Option<Arc<[u8]>>]>;

impl Scenario {
    /// Whether users have WebSockets.
    #[must_use]
    pub fn has_sockets(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step.action, Action::Request))
    }

    /// Whether steps are gRPC calls.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.steps.iter().any(|step| step.call.is_some())
    }

    /// Whether calls are of gRPC-Web, as all of a scenario are or none.
    #[must_use]
    pub fn has_web_calls(&self) -> bool {
        self.steps.iter().filter_map(|step| step.call.as_ref()).any(|call| call.variant.is_web())
    }

    /// Whether steps may be skipped.
    fn has_conditions(&self) -> bool {
        self.steps.iter().any(|step| step.when.is_some() || step.items.is_some())
    }

    /// The most connections for requests that a user needs at a time, as it keeps those to `hosts` hosts
    /// and sends `per_host` requests to one at the same time.
    #[must_use]
    pub fn links(&self, hosts: usize, per_host: usize) -> u64 {
        let (mut most, mut at_once) = (BTreeMap::<u8, usize>::new(), 1);
        for (at, step) in self.steps.iter().enumerate() {
            let mut to = BTreeMap::<u8, usize>::new();
            let together = self.steps.get(at..at + step.width()).unwrap_or_default();
            for step in together.iter().filter(|step| matches!(step.action, Action::Request)) {
                *to.entry(step.endpoint).or_default() += 1;
            }
            at_once = at_once.max(to.len());
            for (endpoint, count) in to {
                let most = most.entry(endpoint).or_default();
                *most = count.min(per_host).max(*most);
            }
        }
        let mut most: Vec<usize> = most.into_values().collect();
        most.sort_unstable_by(|one, other| other.cmp(one));
        most.iter().take(hosts.max(at_once)).sum::<usize>().max(1) as u64
    }

    /// The WebSockets of a user.
    #[must_use]
    pub fn sockets(&self) -> u8 {
        self.steps.iter().map(|step| step.socket).max().unwrap_or(0)
    }

    /// One pass through a flow by one user, whose captures are then in [`Tallies::captured`].
    #[must_use]
    pub fn once_through(&self, flow: &Flow) -> Scenario {
        let (flows, passes) = (vec![flow.clone()], Some(1));
        let (group, arrive, arrives, keeps_captures) = (None, None, false, true);
        Scenario { flows, passes, group, arrive, arrives, keeps_captures, ..self.clone() }
    }

    /// The flow of which a user is.
    pub(crate) fn own_flow(&self, user: u64) -> Option<usize> {
        self.flows.iter().position(|flow| flow.users.contains(&user))
    }

    /// Whether the passes of a user begin at a rate.
    pub(crate) fn arrives(&self, user: u64) -> bool {
        match self.own_flow(user) {
            Some(own) => self.flows.get(own).is_some_and(|flow| flow.arrival_rate.is_some()),
            None => self.arrives,
        }
    }

    /// Chooses the flow of a pass by weight, among those for a role.
    fn chosen(&self, role: Option<Role>, chance: u64) -> usize {
        let weight = |flow: &Flow| match flow.role {
            _ if !flow.users.is_empty() => 0,
            Some(of) if role.is_some_and(|role| role != of) => 0,
            _ => u64::from(flow.weight),
        };
        let all: u64 = self.flows.iter().map(weight).sum();
        let mut left = ((u128::from(chance) * u128::from(all)) >> 64) as u64;
        let lands = |flow: &Flow| {
            let here = left < weight(flow);
            left = left.saturating_sub(weight(flow));
            here
        };
        self.flows.iter().position(lands).unwrap_or_default()
    }
}

impl Scenario {
    /// Rewinds the feeds at the start of a run, which generators share.
    pub fn begin(&self, generators: Generators) {
        self.feeds.iter().for_each(|feed| feed.rewind(generators));
    }
}

/// A sequence of steps.
#[derive(Clone, Default, Debug)]
pub struct Flow {
    /// The name in summaries.
    pub name: String,
    /// How often it is chosen, relative to the others.
    pub weight: u32,
    /// Its range of [`Scenario::steps`].
    pub steps: Range<usize>,
    /// The role of its users; `None` for all.
    pub role: Option<Role>,
    /// Messages per second of each user in it, sent when due.
    pub rate: Option<u64>,
    /// Its own users by number, which do nothing else; empty for a flow chosen by weight.
    pub users: Range<u64>,
    /// Passes per second of its own users; `None`: each begins when the last one ended.
    pub arrival_rate: Option<u64>,
    /// When its own users begin, from the end of the warm-up.
    pub start: Duration,
}

/// A request or a message on a WebSocket, and the handling of the answer.
#[derive(Clone, Debug)]
pub struct Step {
    /// The name in summaries.
    pub name: String,
    /// Labels for thresholds.
    pub tags: BTreeMap<String, String>,
    /// Index of [`Scenario::endpoints`].
    pub endpoint: u8,
    /// The method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: Template,
    /// Headers in order.
    pub headers: Vec<(String, Template)>,
    /// The action.
    pub action: Action,
    /// Its WebSocket, from 1 to [`SOCKETS_MAX`]; 0 for none.
    pub socket: u8,
    /// The body of the request, or the message.
    pub body: Option<Template>,
    /// The call, if the request is one of gRPC.
    pub call: Option<Arc<Call>>,
    /// A message to await, after sending or alone.
    pub receive: Option<Receive>,
    /// Its timeout, if it differs from that of the run.
    pub limit: Option<Duration>,
    /// How often it is repeated in a row, at least 1.
    pub repeat: u32,
    /// Whether it is repeated for each receiver of the user.
    pub each: bool,
    /// Whether it carries a stamp, and so is expected at receivers.
    pub stamped: bool,
    /// User and password for Basic authentication (RFC 7617).
    pub basic: Option<Template>,
    /// Values captured from the answer.
    pub captures: Vec<Capture>,
    /// Conditions on the answer.
    pub checks: Vec<Check>,
    /// Random pause after it, from minimum to maximum.
    pub think: Option<(Duration, Duration)>,
    /// Whether it is done only until it succeeds once.
    pub once: bool,
    /// It is only made if this is true.
    pub when: Option<Condition>,
    /// It is repeated for each of these.
    pub items: Option<Items>,
    /// Whether it opens a WebSocket that stays open over passes; then it is also `once`.
    pub holds: bool,
    /// Whether the pass goes on after it failed.
    pub continues: bool,
    /// The number of requests that are sent at the same time, of which this is the first: this step and
    /// those after it. 0: it is sent alone, or is another one of them. Of the first are `repeat`, `think`,
    /// `once`, `when`, `items` and `continues` of all together.
    pub parallel: u8,
}

impl Step {
    /// A minimal step; a request is a GET.
    #[must_use]
    pub fn new(name: String, endpoint: u8, action: Action, target: Template) -> Step {
        let socket = match action {
            Action::Request | Action::Meet | Action::Stay => 0,
            _ => 1,
        };
        Step {
            name,
            tags: BTreeMap::new(),
            endpoint,
            socket,
            method: "GET".to_owned(),
            target,
            headers: Vec::new(),
            action,
            body: None,
            call: None,
            receive: None,
            limit: None,
            repeat: 1,
            each: false,
            stamped: false,
            basic: None,
            captures: Vec::new(),
            checks: Vec::new(),
            think: None,
            once: false,
            when: None,
            items: None,
            holds: false,
            continues: false,
            parallel: 0,
        }
    }

    /// The steps that it makes: itself, or all those of which it is the first.
    pub(crate) fn width(&self) -> usize {
        usize::from(self.parallel).max(1)
    }
}

/// A value of an answer for later templates.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The name that templates use.
    pub name: String,
    /// Its slot, below [`Scenario::captures`].
    pub slot: usize,
    /// Where to find it.
    pub source: Source,
    /// Which of several matches.
    pub take: Take,
    /// Of a list: the values that it needs, as later steps use them by their number.
    pub least: usize,
}

impl Capture {
    /// Returns the value, if there is one of at most [`CAPTURE_BYTES_MAX`] bytes. `random` chooses one
    /// of several matches.
    pub(crate) fn find<'s>(&self, seen: &'s AnswerView<'_>, random: u64) -> Option<Cow<'s, [u8]>> {
        let fits = |value: &Cow<'_, [u8]>| value.len() <= CAPTURE_BYTES_MAX;
        match self.take {
            Take::First => self.source.find(seen).filter(fits),
            Take::Random => {
                let all = self.source.find_all(seen);
                let at = template::below(template::mixed(random ^ self.slot as u64), all.len());
                all.into_iter().nth(at).filter(fits)
            }
            Take::All => {
                let all = self.source.find_all(seen);
                if all.len() < self.least.max(1) {
                    return None;
                }
                list::encoded(all.into_iter(), CAPTURE_BYTES_MAX).map(Cow::Owned)
            }
        }
    }
}
