//! What people see of a run while it lasts: rows of text, or on a terminal, with the feature
//! `screen`, a live screen. Both are fed alike: a [`Sample`], how far the phase is, and a row in
//! the program's own words. It goes to standard error.
//!
//! What it is not: it measures nothing, and the verdict is none of its business. That is printed
//! when the screen has ended.

#[cfg(feature = "screen")]
mod live;
#[cfg(feature = "screen")]
mod model;
mod plain;
#[cfg(feature = "screen")]
mod terminal;
#[cfg(feature = "screen")]
mod view;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use self::plain::Plain;
use crate::progress::Sample;

/// What is about to run.
#[cfg_attr(not(feature = "screen"), allow(dead_code, reason = "rows of text need no title"))]
pub(crate) struct About {
    /// The command and what it works on.
    pub(crate) title: String,
    /// Names of the phases as samples give them, in order.
    pub(crate) phases: Vec<&'static str>,
    /// To be opened in all.
    pub(crate) sockets: u64,
    /// Ends of a connection that are on this machine, 1 or 2: each is a socket of the kernel.
    pub(crate) ends_here: u64,
    /// Before any of them; what sockets cost is growth since then.
    pub(crate) before: Sample,
}

/// Where a run stands, beside its sample.
pub(crate) struct Step {
    /// As a row of text.
    pub(crate) row: String,
    /// How much of the phase is done, from 0 to 1.
    #[cfg_attr(not(feature = "screen"), allow(dead_code, reason = "a row says it in words"))]
    pub(crate) done: f64,
}

/// How rows of text come where there is no live screen.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Rows {
    /// On a terminal each takes the place of the one before.
    Replaced,
    /// All stay.
    Stay,
}

/// What people see of a run. It leaves the terminal as it was, also when it is dropped early.
pub(crate) struct Screen {
    /// A live screen is not wanted, or not possible.
    plain: bool,
    face: Box<dyn Face>,
}

/// One way to show a run.
trait Face {
    /// A line that stays.
    fn note(&mut self, text: &str);
    fn show(&mut self, sample: &Sample, step: &Step);
    /// Nothing is shown after it; all notes stand on the terminal.
    fn end(&mut self);
}

/// Lines of other processes and threads that wait for a live screen to take them.
static ASIDES: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Screen {
    /// `plain`: somebody asked for rows of text.
    pub(crate) fn new(rows: Rows, plain: bool) -> Screen {
        let plain = plain || !is_capable();
        let replaced = rows == Rows::Replaced && !plain;
        Screen { plain, face: Box::new(Plain::new(replaced)) }
    }

    /// The run begins: from here on a live screen takes the terminal, if there is to be one.
    pub(crate) fn begin(&mut self, about: About) {
        if !self.plain
            && let Some(live) = live(about)
        {
            self.face.end();
            self.face = live;
        }
    }

    /// A line that stays.
    pub(crate) fn note(&mut self, text: &str) {
        self.face.note(text);
    }

    /// Call it as often as there is news; it draws as often as is good.
    pub(crate) fn show(&mut self, sample: &Sample, step: &Step) {
        for line in take_asides() {
            self.face.note(&line);
        }
        self.face.show(sample, step);
    }

    /// The terminal is as it was, with all notes on it.
    pub(crate) fn end(&mut self) {
        for line in take_asides() {
            self.face.note(&line);
        }
        self.face.end();
        self.face = Box::new(Plain::new(false));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end();
    }
}

/// A line for standard error from whoever does not have the screen, such as a child process.
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

/// Standard error is a terminal that moves a cursor, and nobody asked for less.
fn is_capable() -> bool {
    let says = |name, test: fn(&str) -> bool| env::var(name).is_ok_and(|value| test(&value));
    let dumb = says("TERM", |term| term == "dumb");
    let no_colour = says("NO_COLOR", |value| !value.is_empty());
    io::stderr().is_terminal() && !dumb && !no_colour
}

/// A line on standard error. Nobody may be reading; the run goes on.
fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
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
