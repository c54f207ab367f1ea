//! `standfast load compare A.json B.json`: the change from run A to run B with confidence intervals; exit
//! code 1 if B is worse than allowed.
//!
//! **Statistics.** The unit is the run, because runs are what differs from day to day: several of each
//! side give Welch's t interval ([`interval`]). One run each has no interval. Its seconds are no
//! substitute: they are correlated, and they share what makes this run unlike the next one (placement,
//! caches, neighbours). Counts of errors are tested exactly besides ([`exact`]), and a regression has to hold
//! beside all other figures ([`several`]).
//!
//! Runs with other settings ([`settings`]), interrupted ones and those whose generator was saturated
//! are refused.

mod exact;
mod interval;
mod judge;
mod page;
mod run;
mod settings;
mod several;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use self::judge::{Comparison, Tolerance};
use self::run::Side;
use crate::output;

/// Compare runs before and after a change; exit code 1 if it made them worse
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Results of the runs before a change (`standfast load … --json FILE`): A1.json,A2.json,A3.json
    #[arg(value_name = "A.json,…")]
    before: String,
    /// Results of the runs after it
    #[arg(value_name = "B.json,…")]
    after: String,
    /// Allowed regression: 5%, or for one figure p99=10%, or errors=0.1% of what was due; repeatable
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    max_regression: Vec<Tolerance>,
    /// Write the comparison as JSON to a file, or - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Write the comparison as one HTML page with bars and intervals
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
}

/// Runs the command. Exit code 0: no regression beyond the allowed one is established; 1: one is.
///
/// # Errors
/// Files that are not results of `load`, that cannot be compared, or that cannot be judged: exit code 2.
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
    if let Some(file) = args.html.as_deref() {
        page::page(&comparison, &before, &after).write(file)?;
    }
    if comparison.is_not_judged() {
        bail!(
            "not judged: one run each gives no interval. Give several runs of each \
             (A1.json,A2.json,A3.json B1.json,B2.json,B3.json), or name the figures to judge by their \
             difference alone (--max-regression p99=10%)"
        );
    }
    Ok(ExitCode::from(u8::from(comparison.regressed())))
}

#[cfg(test)]
mod tests;
