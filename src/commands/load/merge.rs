//! `standfast load merge A.json B.json …`: the result of generators that ran at the same time against one
//! target, judged as a whole.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use load::{Outcome, Selector, Threshold, Verdict, judge};

use super::threshold;
use crate::commands::plan::read_json;
use crate::output;

/// Merge the results of generators that ran at the same time
///
/// Counts and histograms are added, and percentiles computed from the sum. Thresholds of the runs are judged
/// again, on the whole
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Results of the generators (`standfast load … --json FILE`)
    #[arg(value_name = "A.json B.json", required = true, num_args = 2..)]
    files: Vec<PathBuf>,
    /// Condition for exit code 0, as of `standfast load`; repeatable
    #[arg(long, value_parser = threshold::parse, visible_alias = "fail", value_name = "CONDITION")]
    threshold: Vec<Threshold>,
    /// Write the merged result as JSON to a file, or - for standard output
    #[arg(long, visible_alias = "json-out", value_name = "FILE")]
    json: Option<String>,
}

/// Runs the command. Exit codes are those of a run.
///
/// # Errors
/// Files that are not results of `load`, or not of parts of one run: exit code 2.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(file) = &args.json {
        output::check_writable(file)?;
    }
    let mut merged = merge(&args.files)?;
    let mut thresholds = Vec::new();
    for result in &merged.thresholds {
        let text = &result.threshold;
        let parsed = threshold::parse(text);
        thresholds.push(parsed.map_err(|why| anyhow!("threshold {text} of a result: {why}"))?);
    }
    for threshold in &args.threshold {
        if !thresholds.iter().any(|known| known.text == threshold.text) {
            thresholds.push(threshold.clone());
        }
    }
    check_selectors(&merged, &thresholds)?;
    let selectors: Vec<&Selector> =
        thresholds.iter().filter_map(|threshold| threshold.selector.as_ref()).collect();
    merged.select(&selectors);
    judge(&mut merged, &thresholds.iter().collect::<Vec<_>>());
    let bars = output::bars(args.json.as_deref());
    let text = format!("merged        {}\n{}", names(&args.files), merged.text(bars));
    output::report(args.json.as_deref(), &text, &merged)?;
    notes(&merged).iter().for_each(|note| output::note(&format!("note: {note}")));
    Ok(ExitCode::from(Verdict::of(&merged).exit_code()))
}

fn merge(files: &[PathBuf]) -> Result<Outcome> {
    let mut merged: Option<Outcome> = None;
    for (number, file) in files.iter().enumerate() {
        let same = |other: &PathBuf| {
            other == file
                || matches!((other.canonicalize(), file.canonicalize()), (Ok(a), Ok(b)) if a == b)
        };
        if files.iter().take(number).any(same) {
            bail!("{} is given twice: each file is one generator", file.display());
        }
        let outcome = read(file)?;
        merged = Some(match merged {
            None => outcome,
            Some(before) => before.merge(outcome).map_err(|why| {
                let before = names(files.get(..number).unwrap_or_default());
                anyhow!("cannot merge {} with {before}: {why}", file.display())
            })?,
        });
    }
    merged.ok_or_else(|| anyhow!("missing file name"))
}

fn read(path: &Path) -> Result<Outcome> {
    let file = path.display();
    let value = read_json(path)?;
    if value["verdict"].is_string() {
        bail!("{file} is a result of `standfast prove`: expected a result of `standfast load`");
    }
    if value["rounds"].is_array() {
        bail!("{file} has several rounds: expected the result of one round");
    }
    Outcome::read(value).map_err(|why| {
        anyhow!("{file} is not a result of `standfast load`, written by --json FILE: {why}")
    })
}

fn names(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Refuses thresholds of steps, checks and tags that the runs do not have.
fn check_selectors(merged: &Outcome, thresholds: &[Threshold]) -> Result<()> {
    if merged.flows.is_empty() {
        return threshold::check_whole(thresholds).map_err(anyhow::Error::msg);
    }
    for threshold in thresholds {
        let selector = threshold.selector.as_ref().filter(|selector| !selector.labels.is_empty());
        if let Some(problem) = selector.and_then(|selector| selector.problem(&merged.flows)) {
            bail!("threshold {}: {problem}", threshold.text);
        }
    }
    Ok(())
}

/// What a reader of the figures should know.
fn notes(merged: &Outcome) -> Vec<String> {
    let mut notes = Vec::new();
    let unknown = merged.unknown_latencies();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        notes.push(format!("percentiles are unknown, as a result has no histogram: {unknown}"));
    }
    if merged.began_unix_us.is_none() {
        notes.push("rates are unknown, as a result does not say when the run began".to_owned());
    }
    notes
}
