//! The comparison: each figure before and after, its confidence interval if there is one, and whether it
//! regressed more than allowed.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::Serialize;

use super::interval::{self, Means};
use super::run::{Figure, Side};
use crate::units;

/// Allowed regression as a share, for all figures or for one.
#[derive(Clone, Debug)]
pub(super) struct Tolerance {
    figure: Option<Figure>,
    share: f64,
}

impl FromStr for Tolerance {
    type Err = String;

    fn from_str(text: &str) -> Result<Tolerance, String> {
        let Some((name, share)) = text.split_once('=') else {
            return Ok(Tolerance { figure: None, share: units::percent(text)? });
        };
        let figure = Figure::ALL.into_iter().find(|figure| figure.name() == name.trim());
        let known = || Figure::ALL.map(Figure::name).join(", ");
        let figure = figure
            .ok_or_else(|| format!("unknown figure {name:?}: expected one of {}", known()))?;
        Ok(Tolerance { figure: Some(figure), share: units::percent(share.trim())? })
    }
}

/// The data behind an interval.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Basis {
    Runs,
    Seconds,
    /// No interval, only the difference.
    None,
}

#[derive(Serialize, Debug)]
struct Row {
    figure: &'static str,
    unit: &'static str,
    before: f64,
    after: f64,
    /// `after ÷ before − 1`; null if the first run has no value.
    change: Option<f64>,
    /// 95 % interval of the change.
    interval: Option<(f64, f64)>,
    basis: Basis,
    /// Allowed regression; null if the figure is not judged.
    allowed: Option<f64>,
    worse: bool,
}

#[derive(Serialize, Debug)]
struct Errors {
    before: (u64, u64),
    after: (u64, u64),
    /// 95 % interval of the difference of the shares.
    interval: Option<(f64, f64)>,
    worse: bool,
}

/// The comparison of two runs.
#[derive(Serialize, Debug)]
pub(super) struct Comparison {
    before: String,
    after: String,
    of: &'static str,
    runs: (usize, usize),
    figures: Vec<Row>,
    errors: Errors,
    regressed: bool,
    notes: Vec<String>,
}

impl Comparison {
    /// # Errors
    /// Runs that have no figure in common.
    pub(super) fn new(before: &Side, after: &Side, allowed: &[Tolerance]) -> Result<Comparison> {
        let rows = Figure::ALL
            .into_iter()
            .filter_map(|figure| Row::new(figure, before, after, tolerance(figure, allowed)));
        let figures: Vec<Row> = rows.collect();
        let errors = Errors::new(before.errors(), after.errors());
        if figures.is_empty() && errors.interval.is_none() {
            bail!("{} and {} have no figures in common", before.name(), after.name());
        }
        let regressed = errors.worse || figures.iter().any(|row| row.worse);
        let mut notes = before.notes();
        notes.extend(after.notes());
        Ok(Comparison {
            before: before.name(),
            after: after.name(),
            of: before.kind().json_name(),
            runs: (before.count(), after.count()),
            figures,
            errors,
            regressed,
            notes,
        })
    }

    pub(super) fn regressed(&self) -> bool {
        self.regressed
    }

    /// Returns whether none of the figures could be judged; errors always can.
    pub(super) fn is_undecided(&self) -> bool {
        !self.figures.is_empty() && self.figures.iter().all(|row| row.allowed.is_none())
    }
}

/// Allowed regression of a figure, and whether it was given for this figure.
#[derive(Copy, Clone)]
struct Allowed {
    share: f64,
    by_name: bool,
}

/// The last value given for a figure counts; a value for the figure overrides one for all.
fn tolerance(figure: Figure, allowed: &[Tolerance]) -> Allowed {
    let of = |wanted| allowed.iter().rev().find(move |one| one.figure == wanted);
    let by_name = of(Some(figure));
    let share = by_name.or(of(None)).map_or(0.05, |found| found.share);
    Allowed { share, by_name: by_name.is_some() }
}

impl Row {
    fn new(figure: Figure, before: &Side, after: &Side, allowed: Allowed) -> Option<Row> {
        let (a, b) = (before.of(figure), after.of(figure));
        let (mut from, mut to) = (mean(&a)?, mean(&b)?);
        let of_runs = Means::of(&a).zip(Means::of(&b));
        let of_seconds = || {
            let (a, b) = (before.seconds(figure), after.seconds(figure));
            Means::of_seconds(&a).zip(Means::of_seconds(&b))
        };
        let (means, basis) = match of_runs {
            Some(means) => (Some(means), Basis::Runs),
            None => match of_seconds() {
                Some(means) => (Some(means), Basis::Seconds),
                None => (None, Basis::None),
            },
        };
        if let Some((a, b)) = means.filter(|_| basis == Basis::Seconds) {
            // Shown, judged and bounded by the same estimator: a run's percentile is not the mean of the
            // percentiles of its seconds.
            (from, to) = (a.mean, b.mean);
        }
        let interval = means.filter(|(a, _)| a.mean > 0.0).map(|(a, b)| {
            let (low, high) = interval::difference(a, b);
            (low / a.mean, high / a.mean)
        });
        let change = (from > 0.0).then(|| to / from - 1.0);
        let basis = if interval.is_some() { basis } else { Basis::None };
        let judged = figure.is_judged() && (basis != Basis::None || allowed.by_name);
        let change_of = Change { change, interval, basis };
        let worse = judged && change_of.is_worse(figure, allowed.share);
        Some(Row {
            figure: figure.name(),
            unit: figure.unit(),
            before: from,
            after: to,
            change,
            interval,
            basis,
            allowed: judged.then_some(allowed.share),
            worse,
        })
    }
}

/// The change of a figure and its interval.
struct Change {
    change: Option<f64>,
    interval: Option<(f64, f64)>,
    basis: Basis,
}

impl Change {
    /// Returns whether the figure is worse than allowed and, with several runs, significantly worse at all.
    /// The seconds of one run do not show how much runs differ, so there the whole interval must exceed
    /// the allowance.
    fn is_worse(&self, figure: Figure, allowed: f64) -> bool {
        let towards_worse = |change: f64| if figure.more_is_better() { -change } else { change };
        let beyond = self.change.is_some_and(|change| towards_worse(change) > allowed);
        let bound = if self.basis == Basis::Seconds { allowed } else { 0.0 };
        let surely = self
            .interval
            .is_none_or(|(low, high)| towards_worse(low).min(towards_worse(high)) > bound);
        beyond && surely
    }
}

impl Errors {
    fn new(before: (u64, u64), after: (u64, u64)) -> Errors {
        let interval = interval::of_shares(before, after);
        Errors { before, after, interval, worse: interval.is_some_and(|(low, _)| low > 0.0) }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "A  {}\nB  {}", self.before, self.after)?;
        writeln!(
            f,
            "{:<9}  {:>12}  {:>12}  {:>9}  {:<22}",
            "", "A", "B", "change", "95 % interval"
        )?;
        for row in &self.figures {
            writeln!(
                f,
                "{:<9}  {:>12}  {:>12}  {:>9}  {:<22}{}",
                row.figure,
                format!("{:.3} {}", row.before, row.unit),
                format!("{:.3} {}", row.after, row.unit),
                row.change.map_or("-".to_owned(), signed),
                row.shown_interval(),
                if row.worse { "  WORSE" } else { "" },
            )?;
        }
        let Errors { before, after, interval, worse } = &self.errors;
        let range = interval
            .map_or("-".to_owned(), |(low, high)| format!("{} … {}", points(low), points(high)));
        let count = |(bad, all): &(u64, u64)| format!("{bad}/{all}");
        let marked = if *worse { "  WORSE" } else { "" };
        let (a, b) = (count(before), count(after));
        writeln!(f, "{:<9}  {a:>12}  {b:>12}  {:>9}  {range:<22}{marked}", "errors", "")?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note       {note}"))?;
        writeln!(f, "\n{}", self.explained())?;
        let regressed =
            if self.regressed { "WORSE than allowed" } else { "not worse than allowed" };
        if self.is_undecided() && !self.regressed {
            return writeln!(f, "Not judged");
        }
        writeln!(f, "B is {regressed}")
    }
}

impl Comparison {
    /// Returns a short description of the intervals.
    fn explained(&self) -> String {
        let has = |basis| self.figures.iter().any(|row| row.basis == basis);
        let mut text = Vec::new();
        if has(Basis::Runs) {
            let (a, b) = self.runs;
            text.push(format!("Intervals: Welch's t over {a} and {b} runs."));
        }
        if has(Basis::Seconds) {
            text.push(
                "Intervals marked *: Welch's t over batches of seconds of one run each (for percentiles: \
                 those of each second). They hold for these two runs only; for more, give several \
                 runs: A1.json,A2.json B1.json,B2.json."
                    .to_owned(),
            );
        }
        if has(Basis::None) {
            text.push(
                "A figure without an interval has unknown confidence: it is shown, and judged only if \
                 --max-regression names it."
                    .to_owned(),
            );
        }
        text.push("Errors: Newcombe's interval of the difference of proportions.".to_owned());
        text.join("\n")
    }
}

impl Row {
    fn shown_interval(&self) -> String {
        let mark = if self.basis == Basis::Seconds { " *" } else { "" };
        let shown = |(low, high)| format!("{} … {}{mark}", signed(low), signed(high));
        self.interval.map_or("-".to_owned(), shown)
    }
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Formats percentage points.
fn points(share: f64) -> String {
    format!("{:+.3} pt", share * 100.0)
}
