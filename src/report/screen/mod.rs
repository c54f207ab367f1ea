//! Progress display of a run on standard error: rows of text, or on a terminal, with the feature
//! `screen`, a live screen. Both take a [`Sample`], the completed share of the phase, and a row of text.
//!
//! It measures nothing and does not print the verdict, which follows after the screen has ended.

#[cfg(feature = "screen")]
mod figures;
#[cfg(feature = "screen")]
mod live;
#[cfg(feature = "screen")]
mod model;
mod plain;
#[cfg(feature = "screen")]
mod plot;
#[cfg(feature = "screen")]
mod table;
#[cfg(feature = "screen")]
mod terminal;
#[cfg(feature = "screen")]
mod view;
#[cfg(all(test, feature = "screen"))]
mod view_tests;

use std::env;
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use admin::log;

use self::plain::Plain;
use load::{Latency, Row, Sample};

/// The phase after the last measurement.
pub(crate) const CLOSE: &str = "close";

/// Description of a run.
#[cfg_attr(not(feature = "screen"), allow(dead_code, reason = "rows of text need no title"))]
pub(crate) struct About {
    /// The command and its target.
    pub(crate) title: String,
    /// Phase names as in the samples, in order.
    pub(crate) phases: Vec<&'static str>,
    /// Total number of sockets to open.
    pub(crate) sockets: u64,
    /// Ends of a connection on this machine, 1 or 2; each is a kernel socket.
    pub(crate) ends_here: u64,
    /// The sample before the first socket; memory per socket is the growth since then.
    pub(crate) before: Sample,
}

/// Progress of a run beside its sample.
#[derive(Default)]
#[cfg_attr(not(feature = "screen"), allow(dead_code, reason = "the row contains it as text"))]
pub(crate) struct Step<'a> {
    /// The row of text.
    pub(crate) row: String,
    /// Completed share of the phase, from 0 to 1.
    pub(crate) done: f64,
    /// Time until the end of the run, if known.
    pub(crate) left: Option<Left>,
    /// All percentiles of the last second and of the run so far, where `detail` is none.
    pub(crate) last_second: Option<Latency>,
    /// See `last_second`.
    pub(crate) so_far: Option<Latency>,
    /// What a run of `load` knows beside its sample.
    pub(crate) detail: Option<&'a Row>,
    /// The agents that share the run; empty if none do.
    pub(crate) agents: &'a [AgentRow],
}

/// An agent that shares a run. What it has not reported is unknown.
#[derive(Clone, Default, Debug)]
#[cfg_attr(not(feature = "screen"), allow(dead_code, reason = "rows of text are of the whole"))]
pub(crate) struct AgentRow {
    pub(crate) name: String,
    pub(crate) is_lost: bool,
    pub(crate) open: Option<u64>,
    pub(crate) sent: Option<u64>,
    pub(crate) received: Option<u64>,
    pub(crate) errors: Option<u64>,
    pub(crate) p99_ms: Option<f64>,
}

/// Time until the end of a run.
#[derive(Copy, Clone, PartialEq, Debug)]
#[cfg_attr(not(feature = "screen"), allow(dead_code, reason = "rows of text do not show it"))]
pub(crate) struct Left {
    pub(crate) seconds: f64,
    /// A later phase takes an unknown time.
    pub(crate) at_least: bool,
}

impl Left {
    /// From the completed share of a phase and the seconds since it began, with the known time of what
    /// follows. `None` while too little is done for an estimate.
    pub(crate) fn estimate(done: f64, since: f64, then: f64) -> Option<Left> {
        /// The share after which the rest of a phase is estimated.
        const ENOUGH: f64 = 0.02;
        let rest = (done >= ENOUGH).then(|| since * (1.0 - done.min(1.0)) / done)?;
        Some(Left { seconds: rest + then, at_least: false })
    }
}

/// How rows of text are printed without a live screen.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Rows {
    /// On a terminal each row replaces the one before.
    Replaced,
    /// All rows stay.
    Stay,
}

/// The progress display of a run. It restores the terminal, also when dropped early.
pub(crate) struct Screen {
    /// `None` if no live screen is wanted or possible.
    plain: bool,
    face: Box<dyn Face>,
}

/// A progress display.
trait Face {
    /// Prints a line that stays.
    fn note(&mut self, text: &str);
    fn show(&mut self, sample: &Sample, step: &Step<'_>);
    /// Ends the display; all notes stay on the terminal.
    fn end(&mut self);
}

/// Lines of other processes and threads, queued for the live screen.
static ASIDES: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Screen {
    /// `plain` selects rows of text.
    pub(crate) fn new(rows: Rows, plain: bool) -> Screen {
        let plain = plain || !is_capable();
        let replaced = rows == Rows::Replaced && !plain;
        Screen { plain, face: Box::new(Plain::new(replaced)) }
    }

    /// Starts the run; a live screen takes over the terminal here.
    pub(crate) fn begin(&mut self, about: About) {
        if self.plain {
            return;
        }
        // What was said so far is written by another thread, and must not land on the live screen.
        self.face.end();
        log::flush();
        if let Some(live) = live(about) {
            self.face = live;
        }
    }

    /// Prints a line that stays.
    pub(crate) fn note(&mut self, text: &str) {
        self.face.note(text);
    }

    /// Shows a sample. May be called at any rate; drawing is rate-limited.
    pub(crate) fn show(&mut self, sample: &Sample, step: &Step<'_>) {
        for line in take_asides() {
            self.face.note(&line);
        }
        self.face.show(sample, step);
    }

    /// Ends the display and restores the terminal, with all notes on it.
    pub(crate) fn end(&mut self) {
        for line in take_asides() {
            self.face.note(&line);
        }
        self.face.end();
        log::flush();
        self.face = Box::new(Plain::new(false));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end();
    }
}

/// Prints a line to standard error from outside the display, such as from a child process.
pub(crate) fn aside(line: String) {
    if is_live() {
        ASIDES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    } else {
        say(&line);
    }
}

fn take_asides() -> Vec<String> {
    std::mem::take(&mut *ASIDES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns whether standard error is a terminal with cursor movement and no setting disables the screen.
fn is_capable() -> bool {
    let says = |name, test: fn(&str) -> bool| env::var(name).is_ok_and(|value| test(&value));
    let dumb = says("TERM", |term| term == "dumb");
    let no_colour = says("NO_COLOR", |value| !value.is_empty());
    io::stderr().is_terminal() && !dumb && !no_colour
}

/// Prints a line to standard error. It neither fails nor blocks, so the run goes on.
fn say(line: &str) {
    log::write_line(line);
}

#[cfg(feature = "screen")]
fn live(about: About) -> Option<Box<dyn Face>> {
    Some(Box::new(live::Live::begin(about)?))
}

#[cfg(feature = "screen")]
fn is_live() -> bool {
    terminal::is_taken()
}

#[cfg(not(feature = "screen"))]
fn live(_: About) -> Option<Box<dyn Face>> {
    None
}

#[cfg(not(feature = "screen"))]
fn is_live() -> bool {
    false
}
