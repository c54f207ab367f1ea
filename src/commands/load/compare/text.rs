//! A [`Comparison`] as text: a table, what the intervals are of, and what can be concluded.

use std::fmt::{self, Formatter};

use capacity::{Count, Decimal};

use super::judge::{Basis, Comparison, Errors, Row, Verdict};

pub(super) fn write(f: &mut Formatter<'_>, comparison: &Comparison) -> fmt::Result {
    writeln!(f, "A  {}\nB  {}", comparison.before, comparison.after)?;
    let titles = ["", "A", "B", "change", "95 % interval"];
    let names = comparison.figures.iter().map(|row| row.figure.len());
    let wide = names.max().unwrap_or_default().max(9);
    write_columns(f, wide, titles, Verdict::NotJudged)?;
    for row in &comparison.figures {
        let [before, after] =
            [row.before, row.after].map(|value| format!("{} {}", Decimal(value, 3), row.unit));
        let change = row.change.map_or("-".to_owned(), signed);
        write_columns(
            f,
            wide,
            [row.figure, &before, &after, &change, &range(row.interval, signed)],
            row.verdict,
        )?;
    }
    if let Some(Errors { before, after, interval, verdict, .. }) = &comparison.errors {
        let [a, b] = [before, after].map(|(bad, all)| format!("{}/{}", Count(*bad), Count(*all)));
        let share = |(bad, all): (u64, u64)| bad as f64 / all as f64;
        let change = points(share(*after) - share(*before));
        write_columns(f, wide, ["errors", &a, &b, &change, &range(*interval, points)], *verdict)?;
    }
    comparison.notes.iter().try_for_each(|note| writeln!(f, "note       {note}"))?;
    writeln!(f, "\n{}", explained(comparison))?;
    writeln!(f, "{}", conclusion(comparison))
}

fn write_columns(
    f: &mut Formatter<'_>,
    wide: usize,
    columns: [&str; 5],
    verdict: Verdict,
) -> fmt::Result {
    let [figure, before, after, change, interval] = columns;
    let mark = match verdict {
        Verdict::Worse => "  WORSE",
        Verdict::Undecided => "  undecided",
        Verdict::NotWorse | Verdict::NotJudged => "",
    };
    let line =
        format!("{figure:<wide$}  {before:>15}  {after:>15}  {change:>9}  {interval:<22}{mark}");
    writeln!(f, "{}", line.trim_end())
}

/// Returns a short description of the intervals.
pub(super) fn explained(comparison: &Comparison) -> String {
    let has = |basis| comparison.figures.iter().any(|row: &Row| row.basis == basis);
    let (a, b) = comparison.runs;
    let mut text = Vec::new();
    if has(Basis::Runs) {
        text.push(format!(
            "Intervals: Welch's t over {a} and {b} runs. WORSE holds for all figures together."
        ));
    }
    if a < 2 || b < 2 {
        text.push(
            "One run has no interval: how much runs differ by themselves is unknown, so a difference may \
             be chance. It is judged only if --max-regression names the figure."
                .to_owned(),
        );
    } else if has(Basis::None) {
        text.push(
            "A figure without an interval is judged only if --max-regression names it.".to_owned(),
        );
    }
    let errors = comparison.errors.as_ref().filter(|errors| errors.before.0 + errors.after.0 > 0);
    if let Some(Errors { probability, .. }) = errors {
        let chance = match probability {
            0.001.. => format!("{probability:.3}"),
            _ => "less than 0.001".to_owned(),
        };
        text.push(format!(
            "Errors: B has as many or more by chance with probability {chance}, if they are independent. \
             Within one run they rarely are."
        ));
    }
    text.join("\n")
}

/// Returns what can be concluded, in one sentence.
pub(super) fn conclusion(comparison: &Comparison) -> String {
    let of = |wanted| {
        let named = comparison.verdicts().filter(move |(_, verdict)| *verdict == wanted);
        named.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    };
    let undecided = of(Verdict::Undecided);
    let more = match undecided.as_str() {
        "" => String::new(),
        names => format!(". Undecided: {names}; more runs of each narrow the intervals"),
    };
    match () {
        () if comparison.regressed() => {
            format!("B is WORSE than allowed: {}{more}", of(Verdict::Worse))
        }
        () if comparison.is_not_judged() => "Not judged".to_owned(),
        () if undecided.is_empty() => "B is not worse than allowed".to_owned(),
        () => format!("No regression is established{more}"),
    }
}

fn range(interval: Option<(f64, f64)>, format: fn(f64) -> String) -> String {
    interval.map_or("-".to_owned(), |(low, high)| format!("{} … {}", format(low), format(high)))
}

pub(super) fn signed(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Formats percentage points.
pub(super) fn points(share: f64) -> String {
    format!("{:+.4} pt", share * 100.0)
}
