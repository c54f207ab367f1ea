//! A scenario: what users do, step by step, as plain data that was compiled once ([`Scenario`]), and
//! the users who do it ([`Users`], a [`crate::requests::Script`]).
//!
//! What it is not: it reads no scenario file (the command line's hands do that), opens no socket and
//! knows no clock.

mod check;
mod cookies;
mod extract;
mod feed;
mod render;
mod tally;
mod template;
mod users;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::Endpoint;

pub use self::check::{Bound, Check, Expected, Rule};
pub use self::cookies::{COOKIE_BYTES_MAX, COOKIES_MAX};
pub use self::extract::{BODY_KEPT_MAX, CAPTURE_BYTES_MAX, Source};
pub use self::feed::{FEED_BYTES_MAX, FEED_COLUMNS_MAX, Feed, Order};
pub use self::render::basic;
pub use self::tally::{CheckSummary, FlowSummary, StepSummary, Tallies};
pub use self::template::{BadTemplate, FUNCTIONS, Names, Place, Template};
pub use self::users::{Clock, Users};

/// The most steps of a scenario, all flows together: each has histograms of its own.
pub const STEPS_MAX: usize = 64;

/// What users do.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Whom steps may ask; those of the run are the same.
    pub endpoints: Vec<Endpoint>,
    /// Endpoints without TLS are asked by an HTTP proxy, to which their addresses lead.
    pub proxy: Option<Proxy>,
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
}

/// An HTTP proxy that is asked in the place of servers (RFC 9112 section 3.2.2).
#[derive(Clone, Default, Debug)]
pub struct Proxy {
    /// A whole value of Proxy-Authorization; empty without.
    pub authorization: String,
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
}

/// A request, and what becomes of its answer.
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
    /// What is sent after the head.
    pub body: Option<Template>,
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
