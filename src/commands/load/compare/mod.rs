//! `standfast load compare A.json B.json`: the change from run A to run B with confidence intervals; exit
//! code 1 if B is worse.
//!
//! **Statistics.** The end result of a single run (one p99, one rate) has no spread, so its confidence is
//! unknown. Two kinds of data have a spread:
//! - *several runs of each* (`A1.json,A2.json B1.json,B2.json`): runs are what differs from day to
//!   day, so they are the right unit. Welch's t interval of the difference of means, 95 %; it
//!   assumes neither equal spreads nor equal numbers.
//! - *the seconds of one run each*: the same interval over means of batches of seconds, since
//!   neighbouring seconds are correlated and would make the interval too narrow. It tells what changed
//!   within these two runs, not what another pair would bring.
//!
//! Without either, only the difference is shown, with a note. Shares of errors are
//! compared by Newcombe's interval of two proportions (Statistics in Medicine 17, 1998, method 10).

mod interval;
mod judge;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use self::judge::{Comparison, Tolerance};
use self::run::Side;
use crate::output;

/// Compare two runs with confidence intervals; exit code 1 if the second is worse
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Results of the first run (`standfast load … --json FILE`), or of several: A1.json,A2.json
    #[arg(value_name = "A.json")]
    before: String,
    /// Results of the second run, or of several
    #[arg(value_name = "B.json")]
    after: String,
    /// Allowed regression: 5%, or for one figure p99=10%; repeatable
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    max_regression: Vec<Tolerance>,
    /// Write the comparison as JSON to a file, or - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

/// Runs the command. Exit code 0: not worse than allowed; 1: worse.
///
/// # Errors
/// Files that are not results of `load`, or that cannot be compared: exit code 2.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let files = |list: &str| list.split(',').map(PathBuf::from).collect::<Vec<_>>();
    let (before, after) = (Side::read(&files(&args.before))?, Side::read(&files(&args.after))?);
    if let Some(why) = before.differs_from(&after) {
        bail!("cannot compare {} and {}: {why}", before.name(), after.name());
    }
    let comparison = Comparison::new(&before, &after, &args.max_regression)?;
    match args.json.as_deref() {
        Some(output::STDOUT) => {}
        _ => output::print(&comparison.to_string())?,
    }
    args.json.as_deref().map_or(Ok(()), |file| output::write_json(file, &comparison))?;
    if !comparison.regressed() && comparison.is_undecided() {
        bail!(
            "not judged: one short run each gives no interval. Use runs of 10 s or more, or several \
             runs each (A1.json,A2.json B1.json,B2.json), or name the figures to judge by their \
             difference alone (--max-regression p99=10%)"
        );
    }
    Ok(ExitCode::from(u8::from(comparison.regressed())))
}

#[cfg(test)]
mod tests;
