//! [`Observers`]: the outputs of a running run. Each second's [`Row`] goes to the screen, the CSV file,
//! the metrics and the samples, with memory and CPU of the processes.
//!
//! Not here: the run itself and its summary.

use anyhow::Result;
use capacity::Machine;
use load::{Generator, Row, Watched};

use super::flags::Args;
use super::screen::Screen;
use crate::report::csv::Csv;
use crate::report::prometheus::Metrics;
use crate::report::screen::AgentRow;
use load::{SampleSeries, Usage};

/// The screen, the CSV file and the metrics of a run.
pub(super) struct Observers<'a, 's> {
    screen: Screen<'s>,
    csv: Option<&'a mut Csv>,
    metrics: Option<&'a Metrics>,
    observed: Observed,
}

/// What was observed during a run.
pub(super) struct Observed {
    pub(super) generator: Generator,
    pub(super) watched: Option<Watched>,
    pub(super) samples: SampleSeries,
}

impl<'a, 's> Observers<'a, 's> {
    /// Starts right before the run; `screen` receives the usage of the watched process until then.
    ///
    /// # Errors
    /// A process for `--watch-pid` that does not exist.
    pub(super) fn begin(
        args: &Args,
        machine: &Machine,
        (csv, metrics): (Option<&'a mut Csv>, Option<&'a Metrics>),
        screen: impl FnOnce(Option<Usage>) -> Screen<'s>,
    ) -> Result<Observers<'a, 's>> {
        let mut watched =
            args.watch_pid.map(Watched::begin).transpose().map_err(anyhow::Error::msg)?;
        let before = watched.as_mut().and_then(Watched::sample);
        let generator = Generator::new(machine.cores);
        let observed = Observed { generator, watched, samples: SampleSeries::new() };
        Ok(Observers { screen: screen(before), csv, metrics, observed })
    }

    pub(super) fn row(&mut self, row: &Row) {
        let Observed { generator, watched, samples } = &mut self.observed;
        let usage = watched.as_mut().and_then(|watched| watched.sample_with(row));
        if row.is_mark {
            return generator.row(row, super::screen::usage());
        }
        let sample = self.screen.row(row, usage);
        generator.row(row, sample.client);
        self.csv.iter_mut().for_each(|csv| csv.row(row));
        self.metrics.iter().for_each(|metrics| metrics.row(row));
        samples.push(&sample);
    }

    /// Takes the row of a run that agents share, with the usage of their processes.
    pub(super) fn fleet_row(&mut self, row: &Row, client: Option<Usage>, agents: Vec<AgentRow>) {
        self.screen.set_fleet(client, agents);
        let sample = self.screen.row(row, None);
        self.csv.iter_mut().for_each(|csv| csv.row(row));
        self.metrics.iter().for_each(|metrics| metrics.row(row));
        self.observed.samples.push(&sample);
    }

    /// Ends the observation and restores the terminal.
    pub(super) fn end(self) -> Observed {
        self.observed
    }
}
