//! The comparison: each figure before and after, its confidence interval if there is one, and the verdict.
//!
//! A regression is *established* if the whole 95 % interval lies beyond the allowed one, for all figures
//! together, and excluded if the whole interval lies within it. Between the two it is undecided, and more runs
//! would narrow the interval.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::Serialize;

use super::interval::{self, BEYOND, Means};
use super::run::{Figure, Side};
use super::{exact, several, text};
use crate::units;

/// Allowed regression if `--max-regression` does not say.
const ALLOWED: f64 = 0.05;

/// What `--max-regression` may name.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Subject {
    All,
    Figure(Figure),
    Errors,
}

/// Allowed regression as a share, for all figures or for one; for errors in percentage points.
#[derive(Clone, Debug)]
pub(super) struct Tolerance {
    subject: Subject,
    share: f64,
}

impl FromStr for Tolerance {
    type Err = String;

    fn from_str(text: &str) -> Result<Tolerance, String> {
        let Some((name, share)) = text.split_once('=') else {
            return Ok(Tolerance { subject: Subject::All, share: units::percent(text)? });
        };
        let figure = Figure::ALL.into_iter().find(|figure| figure.name() == name.trim());
        let subject = match figure {
            Some(figure) => Subject::Figure(figure),
            None if name.trim() == "errors" => Subject::Errors,
            None => {
                let known = Figure::ALL.map(Figure::name).join(", ");
                return Err(format!("unknown figure {name:?}: expected one of {known}, errors"));
            }
        };
        Ok(Tolerance { subject, share: units::percent(share.trim())? })
    }
}

/// The data behind an interval.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Basis {
    Runs,
    /// No interval, only the difference.
    None,
}

/// What is known about a regression beyond the allowed one.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Established.
    Worse,
    /// Excluded.
    NotWorse,
    /// The interval contains the allowed regression.
    Undecided,
    /// Without an interval, and not named by `--max-regression`.
    NotJudged,
}

impl Verdict {
    /// The verdict of an interval of the change towards worse.
    fn of((low, high): (f64, f64), allowed: f64) -> Verdict {
        match () {
            () if low > allowed => Verdict::Worse,
            () if high <= allowed => Verdict::NotWorse,
            () => Verdict::Undecided,
        }
    }
}

#[derive(Serialize, Debug)]
pub(super) struct Row {
    pub(super) figure: &'static str,
    pub(super) unit: &'static str,
    /// Means over the runs.
    pub(super) before: f64,
    pub(super) after: f64,
    /// `after ÷ before − 1`; null if the first has no value.
    pub(super) change: Option<f64>,
    /// 95 % interval of the change.
    pub(super) interval: Option<(f64, f64)>,
    pub(super) basis: Basis,
    /// Allowed regression; null if the figure is not judged.
    pub(super) allowed: Option<f64>,
    /// Probability of a change as bad as this by chance, if the true one is the allowed one; null without
    /// an interval.
    probability: Option<f64>,
    pub(super) verdict: Verdict,
    worse: bool,
}

/// Errors of all runs of each side: what went wrong, of all that was due.
#[derive(Serialize, Debug)]
pub(super) struct Errors {
    pub(super) before: (u64, u64),
    pub(super) after: (u64, u64),
    /// 95 % interval of the difference of the mean shares of the runs.
    pub(super) interval: Option<(f64, f64)>,
    /// Probability of as many errors by chance, if the share did not rise and errors were independent.
    pub(super) probability: f64,
    pub(super) verdict: Verdict,
    worse: bool,
}

/// The comparison of two runs, or of several of each.
#[derive(Serialize, Debug)]
pub(super) struct Comparison {
    pub(super) before: String,
    pub(super) after: String,
    of: &'static str,
    pub(super) runs: (usize, usize),
    pub(super) figures: Vec<Row>,
    /// Null if nothing was due.
    pub(super) errors: Option<Errors>,
    regressed: bool,
    pub(super) notes: Vec<String>,
}

impl Comparison {
    /// # Errors
    /// Runs that have no figure in common.
    pub(super) fn new(before: &Side, after: &Side, allowed: &[Tolerance]) -> Result<Comparison> {
        let rows = Figure::ALL
            .into_iter()
            .filter_map(|figure| Row::new(figure, before, after, tolerance(figure, allowed)));
        let figures: Vec<Row> = rows.collect();
        let errors = Errors::new(&before.errors(), &after.errors(), allowed);
        if figures.is_empty() && errors.is_none() {
            bail!("{} and {} have no figures in common", before.name(), after.name());
        }
        let mut comparison = Comparison {
            before: before.name(),
            after: after.name(),
            of: before.kind().json_name(),
            runs: (before.count(), after.count()),
            figures,
            errors,
            regressed: false,
            notes: before.notes(),
        };
        comparison.notes.extend(after.notes());
        comparison.hold_together();
        let regressed = comparison.verdicts().any(|(_, verdict)| verdict == Verdict::Worse);
        comparison.regressed = regressed;
        Ok(comparison)
    }

    /// Leaves undecided which figures are not established beside all others that have an interval. Errors stand
    /// for themselves: two tests have to agree on them.
    fn hold_together(&mut self) {
        let judged = |row: &&mut Row| row.allowed.is_some() && row.probability.is_some();
        let rows: Vec<&mut Row> = self.figures.iter_mut().filter(judged).collect();
        let probabilities: Vec<f64> = rows.iter().filter_map(|row| row.probability).collect();
        let established = several::established(&probabilities, BEYOND);
        for (row, established) in rows.into_iter().zip(established) {
            if row.verdict == Verdict::Worse && !established {
                (row.verdict, row.worse) = (Verdict::Undecided, false);
            }
        }
    }

    pub(super) fn regressed(&self) -> bool {
        self.regressed
    }

    /// Returns whether no figure and no errors could be judged.
    pub(super) fn is_not_judged(&self) -> bool {
        self.verdicts().all(|(_, verdict)| verdict == Verdict::NotJudged)
    }

    /// Returns each figure and `errors` with the verdict.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = (&'static str, Verdict)> {
        let figures = self.figures.iter().map(|row| (row.figure, row.verdict));
        figures.chain(self.errors.iter().map(|errors| ("errors", errors.verdict)))
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        text::write(f, self)
    }
}

/// Allowed regression of a figure, and whether it was given for this figure.
#[derive(Copy, Clone)]
struct Allowed {
    share: f64,
    by_name: bool,
}

/// The last value given for a subject counts.
fn given(subject: Subject, allowed: &[Tolerance]) -> Option<f64> {
    allowed.iter().rev().find(|one| one.subject == subject).map(|one| one.share)
}

/// A value for the figure overrides one for all.
fn tolerance(figure: Figure, allowed: &[Tolerance]) -> Allowed {
    let by_name = given(Subject::Figure(figure), allowed);
    let share = by_name.or(given(Subject::All, allowed)).unwrap_or(ALLOWED);
    Allowed { share, by_name: by_name.is_some() }
}

impl Row {
    fn new(figure: Figure, before: &Side, after: &Side, allowed: Allowed) -> Option<Row> {
        let (a, b) = (before.of(figure)?, after.of(figure)?);
        let (from, to) = (mean(&a)?, mean(&b)?);
        let change = (from > 0.0).then(|| to / from - 1.0);
        let means = Means::of(&a).zip(Means::of(&b));
        let interval = means.and_then(|(a, b)| interval::change(a, b));
        let towards_worse = |(low, high): (f64, f64)| match figure.more_is_better() {
            true => (-high, -low),
            false => (low, high),
        };
        // Without an interval the difference alone is judged, if that was asked for.
        let judged = interval.or(change.filter(|_| allowed.by_name).map(|change| (change, change)));
        let verdict = judged
            .filter(|_| figure.is_judged())
            .map_or(Verdict::NotJudged, |range| Verdict::of(towards_worse(range), allowed.share));
        let worst = match figure.more_is_better() {
            true => 1.0 - allowed.share,
            false => 1.0 + allowed.share,
        };
        let probability = means
            .filter(|_| interval.is_some())
            .map(|(a, b)| interval::probability(a, b, worst, !figure.more_is_better()));
        Some(Row {
            figure: figure.name(),
            unit: figure.unit(),
            before: from,
            after: to,
            change,
            interval,
            basis: if interval.is_some() { Basis::Runs } else { Basis::None },
            allowed: (verdict != Verdict::NotJudged).then_some(allowed.share),
            probability,
            verdict,
            worse: verdict == Verdict::Worse,
        })
    }
}

impl Errors {
    fn new(before: &[(u64, u64)], after: &[(u64, u64)], allowed: &[Tolerance]) -> Option<Errors> {
        let sum = |runs: &[(u64, u64)]| {
            runs.iter().fold((0_u64, 0_u64), |(bad, all), (more, of)| {
                (bad.saturating_add(*more), all.saturating_add(*of))
            })
        };
        let (a, b) = (sum(before), sum(after));
        if a.1 == 0 || b.1 == 0 {
            return None;
        }
        let probability = exact::probability(a, b);
        let means = Means::of_shares(before).zip(Means::of_shares(after));
        let interval = means.map(|(a, b)| interval::difference(a, b));
        let rise = b.0 as f64 / b.1 as f64 - a.0 as f64 / a.1 as f64;
        let named = given(Subject::Errors, allowed);
        let verdict = match (interval, named) {
            // Errors are rare and their shares no normal distribution: what the interval says of a rise has
            // to hold for the counts, too.
            (Some(range), _) => match Verdict::of(range, named.unwrap_or(0.0)) {
                Verdict::Worse if probability > BEYOND => Verdict::Undecided,
                verdict => verdict,
            },
            (None, Some(allowed)) => Verdict::of((rise, rise), allowed),
            (None, None) => {
                let allowed = given(Subject::All, allowed).unwrap_or(ALLOWED);
                // One stall makes many errors, so counts of one run do not establish a rise. One as large
                // as a regression of the rate that is not allowed is none that may pass.
                let lost = rise > allowed && probability <= BEYOND;
                if lost { Verdict::Worse } else { Verdict::NotJudged }
            }
        };
        let worse = verdict == Verdict::Worse;
        Some(Errors { before: a, after: b, interval, probability, verdict, worse })
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
