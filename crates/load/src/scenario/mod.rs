//! A scenario: what users do, step by step, as plain data that was compiled once ([`Scenario`]), and
//! the users who do it ([`Users`], a [`crate::requests::Script`]).
//!
//! What it is not: it reads no scenario file (the command line's hands do that), opens no socket and
//! knows no clock.

mod check;
mod cookies;
mod extract;
mod feed;
mod groups;
mod render;
mod sockets;
mod speak;
mod tally;
mod template;
mod user;
mod users;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Endpoint;

pub use self::check::{Bound, Check, Expected, Rule, statuses};
pub use self::cookies::{COOKIE_BYTES_MAX, COOKIES_MAX};
pub use self::extract::{BODY_KEPT_MAX, CAPTURE_BYTES_MAX, Source};
pub use self::feed::{FEED_BYTES_MAX, FEED_COLUMNS_MAX, Feed, Order};
pub use self::groups::{GROUP_PAIRS_MAX, Group, GroupSummary, Kind as GroupKind, Role};
pub use self::sockets::{INBOX_BYTES_MAX, INBOX_MESSAGES_MAX};
pub use self::speak::{Action, Match, Receive};
pub use self::tally::{CheckSummary, FlowSummary, SocketSummary, StepSummary, Tallies};
pub(crate) use self::template::mixed;
pub use self::template::{BadTemplate, FUNCTIONS, Names, Place, Template};
pub use self::users::{Clock, Users};

/// The most steps of a scenario, all flows together: each has histograms of its own.
pub const STEPS_MAX: usize = 64;

/// What users do.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Whom steps may ask; those of the run are the same.
    pub endpoints: Vec<Endpoint>,
    /// Ways to go; at least one.
    pub flows: Vec<Flow>,
    /// The steps of all flows, one flow after another; at most [`STEPS_MAX`].
    pub steps: Vec<Step>,
    /// Where values come from.
    pub feeds: Vec<Arc<Feed>>,
    /// Slots that captures fill.
    pub captures: usize,
    /// Passes of each user; `None` leaves the end to the run.
    pub passes: Option<u64>,
    /// Each user keeps the cookies it is given.
    pub cookies: bool,
    /// Redirects followed for one step.
    pub redirects: u8,
    /// Ask servers to end the connection after each answer.
    pub close: bool,
    /// Offer permessage-deflate on sockets, and compress messages of so many bytes or more.
    pub compress_above: Option<usize>,
    /// Users send to each other.
    pub group: Option<Group>,
    /// So many users begin at a time, and so long after them the next.
    pub arrive: Option<(u64, Duration)>,
}

impl Scenario {
    /// Users have sockets too.
    #[must_use]
    pub fn has_sockets(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step.action, Action::Request))
    }

    /// The flow of a pass: by weight, among those of the role.
    fn chosen(&self, role: Option<Role>, chance: u64) -> usize {
        let weight = |flow: &Flow| match flow.role {
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
    /// A run begins: feeds whose rows are given out in turn begin with the first one.
    pub fn begin(&self) {
        self.feeds.iter().for_each(|feed| feed.rewind());
    }
}

/// A way to go.
#[derive(Clone, Debug)]
pub struct Flow {
    /// In summaries.
    pub name: String,
    /// How often it is taken, compared with the others.
    pub weight: u32,
    /// Its steps, of [`Scenario::steps`].
    pub steps: Range<usize>,
    /// Users of which role take it; `None`: all.
    pub role: Option<Role>,
    /// Messages a second of each user in it, sent when due.
    pub rate: Option<u64>,
}

/// A request or something said on a socket, and what becomes of the answer.
#[derive(Clone, Debug)]
pub struct Step {
    /// In summaries.
    pub name: String,
    /// Of [`Scenario::endpoints`].
    pub endpoint: u8,
    /// Such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: Template,
    /// Header lines in order; names are as said.
    pub headers: Vec<(String, Template)>,
    /// What is done.
    pub action: Action,
    /// What is sent after the head, or is the message.
    pub body: Option<Template>,
    /// After what is sent, or alone: a message that is awaited.
    pub receive: Option<Receive>,
    /// Time for it, where it is another than the run's.
    pub limit: Option<Duration>,
    /// How often it is done in a row, at least once.
    pub repeat: u32,
    /// The same for each user that is to receive from this one.
    pub each: bool,
    /// It carries a stamp, so that it is owed to receivers.
    pub stamped: bool,
    /// User and password, to be sent as Basic authentication (RFC 7617).
    pub basic: Option<Template>,
    /// What is kept of the answer.
    pub captures: Vec<Capture>,
    /// What it must be like.
    pub checks: Vec<Check>,
    /// How long the user thinks after it, at random between these two.
    pub think: Option<(Duration, Duration)>,
    /// A user does it in its first pass only, again if it failed.
    pub once: bool,
}

impl Step {
    /// A step that does so much and no more; a request is a GET.
    #[must_use]
    pub fn new(name: String, endpoint: u8, action: Action, target: Template) -> Step {
        Step {
            name,
            endpoint,
            method: "GET".to_owned(),
            target,
            headers: Vec::new(),
            action,
            body: None,
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
        }
    }
}

/// What is kept of an answer for later templates.
#[derive(Clone, Debug)]
pub struct Capture {
    /// By which templates name it.
    pub name: String,
    /// Of [`Scenario::captures`].
    pub slot: usize,
    /// Where it is.
    pub source: Source,
}
