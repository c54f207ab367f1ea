//! [`measure`]: one run from its start to its judged [`Outcome`], and [`report`], which writes it.
//! All kinds of runs go through here.

use std::process::ExitCode;

use anyhow::Result;
use capacity::Machine;
use load::{Outcome, Row, SampleSeries, Threshold, Usage, Verdict, judge};
use serde::Serialize;

use super::flags::Args;
use super::observers::{Observed, Observers};
use super::screen::Screen;
use crate::output;
use crate::report::csv::Csv;
use crate::report::prometheus::Metrics;
use crate::report::{Report, Table};

/// The files that are written while a run lasts.
pub(super) struct Files {
    csv: Option<Csv>,
    pub(super) metrics: Option<Metrics>,
}

impl Files {
    /// Opens the files of `--csv` and `--metrics`.
    ///
    /// # Errors
    /// A file that cannot be written, an address that cannot be bound.
    pub(super) fn open(args: &Args) -> Result<Files> {
        let csv = args.csv.as_deref().map(Csv::create).transpose()?;
        let metrics = args.metrics.as_ref();
        let metrics = metrics.map(|address| Metrics::start(address, args.metrics_key.clone()));
        Ok(Files { csv, metrics: metrics.transpose()? })
    }

    /// Both, for [`Observers`].
    pub(super) fn outputs(&mut self) -> (Option<&mut Csv>, Option<&Metrics>) {
        (self.csv.as_mut(), self.metrics.as_ref())
    }
}

/// Runs `drive` under observation; `screen` receives the usage of the watched process before the run.
///
/// # Errors
/// Those of `drive`, and a process of `--watch-pid` that does not exist.
pub(super) fn measure<'s>(
    args: &Args,
    files: &mut Files,
    screen: impl FnOnce(Option<Usage>) -> Screen<'s>,
    thresholds: &[&Threshold],
    drive: impl FnOnce(&mut dyn FnMut(&Row)) -> Result<Outcome>,
) -> Result<Outcome> {
    let mut observers = Observers::begin(args, &Machine::read(), files.outputs(), screen)?;
    let mut outcome = drive(&mut |row| {
        if let Some(share) = &args.agent_share {
            share.row(row);
        }
        observers.row(row);
    })?;
    let Observed { mut generator, mut watched, samples } = observers.end();
    generator.finish(&outcome);
    if let Some(watched) = &mut watched {
        let open = outcome.connections.open.unwrap_or_else(|| samples.most_open());
        watched.finish(open);
    }
    outcome.generator = Some(generator);
    outcome.watched = watched;
    outcome.samples = samples;
    judge(&mut outcome, thresholds);
    Ok(outcome)
}

/// Writes the text, the JSON and the page of a run, with further tables, and returns the exit code of the worst of its
/// `outcomes`.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn report(
    args: &Args,
    files: Files,
    text: &str,
    document: &impl Serialize,
    (outcomes, samples): (&[Outcome], &SampleSeries),
    tables: Vec<Table>,
) -> Result<ExitCode> {
    if let (Some(share), [outcome]) = (&args.agent_share, outcomes) {
        share.finish(outcome);
        return Ok(ExitCode::SUCCESS);
    }
    output::report(args.json.as_deref(), text, document)?;
    if let Some(file) = &args.html {
        let machine = Machine::read();
        let mut report = Report::of_outcomes(outcomes, samples, &machine);
        report.tables.extend(tables);
        report.write(file)?;
    }
    files.csv.map_or(Ok(()), Csv::finish)?;
    let worst = outcomes.iter().map(|outcome| Verdict::of(outcome).exit_code()).max();
    Ok(ExitCode::from(worst.unwrap_or(1)))
}
