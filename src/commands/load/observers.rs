//! [`Observers`]: the outputs of a running run. Each second's [`Row`] goes to the screen, the CSV file,
//! the metrics and the samples, with memory and CPU of the processes.
//!
//! Not here: the run itself and its summary.

use anyhow::Result;
use capacity::Machine;
use load::Row;

use super::csv::Csv;
use super::flags::Args;
use super::metrics::Metrics;
use super::screen::Screen;
use super::watch::{Generator, Watched};
use crate::progress::{Sample, Series, Usage};

/// Those that look on.
pub(super) struct Onlookers<'a> {
    screen: Screen<'a>,
    csv: Option<&'a mut Csv>,
    metrics: Option<&'a Metrics>,
    seen: Seen,
}

/// What they have seen.
pub(super) struct Seen {
    pub(super) generator: Generator,
    pub(super) watched: Option<Watched>,
    pub(super) samples: Series,
}

impl<'a> Onlookers<'a> {
    /// Begins, right before the run; `screen` is told what the watched process takes until then.
    ///
    /// # Errors
    /// A process for `--watch-pid` that does not exist.
    pub(super) fn begin(
        args: &Args,
        machine: &Machine,
        (csv, metrics): (Option<&'a mut Csv>, Option<&'a Metrics>),
        screen: impl FnOnce(Option<Usage>) -> Screen<'a>,
    ) -> Result<Onlookers<'a>> {
        let mut watched =
            args.watch_pid.map(Watched::begin).transpose().map_err(anyhow::Error::msg)?;
        let before = watched.as_mut().and_then(Watched::look);
        let generator = Generator::new(machine.cores);
        let seen = Seen { generator, watched, samples: Series::new() };
        Ok(Onlookers { screen: screen(before), csv, metrics, seen })
    }

    pub(super) fn row(&mut self, row: &Row) -> Sample {
        let Seen { generator, watched, samples } = &mut self.seen;
        let usage = watched.as_mut().and_then(|watched| watched.look_during(row));
        let sample = self.screen.row(row, usage);
        generator.row(row, sample.client);
        self.csv.iter_mut().for_each(|csv| csv.row(row));
        self.metrics.iter().for_each(|metrics| metrics.row(row));
        samples.push(&sample);
        sample
    }

    /// Ends; the terminal is as it was.
    pub(super) fn end(self) -> Seen {
        self.seen
    }
}
