//! The live screen: draws its [`Model`] on the terminal's alternate screen a few times a second.

use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};

use super::model::Model;
use super::terminal::{self, Backend};
use super::{About, Face, Step, say, view};
use load::Sample;

/// Minimum time between two drawings, unless the phase or the terminal size changed.
const DRAW_SECONDS: f64 = 0.24;

pub(super) struct Live {
    terminal: Terminal<Backend>,
    area: Rect,
    model: Model,
    drawn_seconds: f64,
}

impl Live {
    /// Takes over the terminal. Returns `None` if that is not possible.
    pub(super) fn begin(about: About) -> Option<Live> {
        let backend = terminal::take()?;
        let area = terminal::size();
        // A fixed viewport: the size comes from standard error, which may not be the controlling terminal.
        let options = TerminalOptions { viewport: Viewport::Fixed(area) };
        match Terminal::with_options(backend, options) {
            Ok(terminal) => {
                let model = Model::new(about);
                Some(Live { terminal, area, model, drawn_seconds: f64::NEG_INFINITY })
            }
            Err(_) => {
                terminal::restore();
                None
            }
        }
    }

    /// Ignores write errors: a closed terminal must not end the run.
    fn draw(&mut self, area: Rect) {
        if area != self.area {
            self.area = area;
            let _ = self.terminal.resize(area);
        }
        let model = &self.model;
        let _ = self.terminal.draw(|frame| view::draw(frame, model));
    }
}

impl Face for Live {
    fn note(&mut self, text: &str) {
        self.model.note(text);
    }

    fn show(&mut self, sample: &Sample, step: &Step<'_>) {
        let news = self.model.take(sample, step);
        let area = terminal::size();
        let due = sample.elapsed_seconds - self.drawn_seconds >= DRAW_SECONDS;
        if (due || news || area != self.area) && terminal::is_taken() {
            self.drawn_seconds = sample.elapsed_seconds;
            self.draw(area);
        }
    }

    fn end(&mut self) {
        terminal::restore();
        for note in self.model.take_notes() {
            say(&note);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        terminal::restore();
    }
}
