//! Rows of text for files, pipes, terminals without cursor movement, and `--plain`.

use admin::log;

use super::{Face, Step, say};
use load::Sample;

/// Minimum time between rows that stay.
const ROW_SECONDS: f64 = 0.99;
/// Moves to the first column and clears the line.
const CLEAR_LINE: &str = "\r\x1b[K";

pub(super) struct Plain {
    /// Whether each row replaces the one before.
    replaced: bool,
    /// Whether the terminal shows a row that is to be replaced.
    standing: bool,
    last_seconds: f64,
}

impl Plain {
    pub(super) fn new(replaced: bool) -> Plain {
        Plain { replaced, standing: false, last_seconds: f64::NEG_INFINITY }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.standing) {
            log::write(CLEAR_LINE.as_bytes());
        }
    }
}

impl Face for Plain {
    fn note(&mut self, text: &str) {
        self.clear();
        say(text);
    }

    fn show(&mut self, sample: &Sample, step: &Step<'_>) {
        if self.replaced {
            log::write(format!("{CLEAR_LINE}{}", step.row).as_bytes());
            self.standing = true;
        } else if sample.elapsed_seconds - self.last_seconds >= ROW_SECONDS {
            self.last_seconds = sample.elapsed_seconds;
            say(&step.row);
        }
    }

    fn end(&mut self) {
        self.clear();
    }
}
