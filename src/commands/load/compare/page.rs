//! A [`Comparison`] as an HTML page: the figures of [`super::judge`] in the form of [`crate::report::comparison`].

use capacity::{Bytes, Count, Decimal, Milliseconds};

use super::judge::{Comparison, Errors, Row, Verdict};
use super::run::{Figure, Side};
use super::text;
use crate::report::comparison::{
    ComparedFigure, ComparedSide, ComparisonPage, Interval, Mark, bars,
};

/// The page of a comparison of these two sides.
pub(super) fn page<'a>(
    comparison: &'a Comparison,
    before: &Side,
    after: &Side,
) -> ComparisonPage<'a> {
    let (verdict, mark) = verdict(comparison);
    let figures = comparison.figures.iter().filter_map(|row| figure(row, before, after));
    let errors = comparison.errors.as_ref().map(|errors| self::errors(errors, before, after));
    let side = |name, when, side: &Side| ComparedSide {
        name,
        runs: match side.count() {
            1 => format!("{when}, 1 run"),
            runs => format!("{when}, {runs} runs"),
        },
        files: side.files(),
    };
    let heads = [("A", before), ("B", after)];
    ComparisonPage {
        title: format!("{} before (A) and after (B)", before.kind().name()),
        verdict,
        mark,
        result: text::conclusion(comparison),
        sides: [side("A", "before", before), side("B", "after", after)],
        notes: &comparison.notes,
        figures: figures.chain(errors).collect(),
        heads: heads
            .into_iter()
            .flat_map(|(name, side)| (1..=side.count()).map(move |run| format!("{name} {run}")))
            .collect(),
        explained: text::explained(comparison).lines().map(str::to_owned).collect(),
    }
}

fn verdict(comparison: &Comparison) -> (&'static str, Mark) {
    let is = |wanted| comparison.verdicts().any(|(_, verdict)| verdict == wanted);
    match () {
        () if comparison.regressed() => ("WORSE", Mark::Bad),
        () if comparison.is_not_judged() => ("NOT JUDGED", Mark::Open),
        () if is(Verdict::Undecided) => ("UNDECIDED", Mark::Open),
        () => ("NOT WORSE", Mark::Good),
    }
}

fn mark(verdict: Verdict) -> (&'static str, Mark) {
    match verdict {
        Verdict::Worse => ("worse", Mark::Bad),
        Verdict::NotWorse => ("not worse", Mark::Good),
        Verdict::Undecided => ("undecided", Mark::Open),
        Verdict::NotJudged => ("not judged", Mark::Open),
    }
}

/// `None` only where a row's figure is not one of the runs.
fn figure(row: &Row, before: &Side, after: &Side) -> Option<ComparedFigure> {
    let figure = Figure::ALL.into_iter().find(|figure| figure.name() == row.figure)?;
    let (a, b) = (before.of(figure)?, after.of(figure)?);
    let worse = |share: f64| if figure.more_is_better() { -share } else { share };
    let interval = row.change.zip(row.interval);
    let (verdict, mark) = mark(row.verdict);
    Some(ComparedFigure {
        name: row.figure,
        meaning: format!(
            "{}, {} is better",
            meaning(figure),
            if figure.more_is_better() { "more" } else { "less" }
        ),
        verdict,
        mark,
        bars: bars(
            [row.before, row.after],
            [&a, &b],
            [row.before, row.after].map(|value| shown(figure, value)),
        ),
        change: change(
            row.change.map(text::signed),
            row.interval.map(|(low, high)| [low, high].map(text::signed)),
            row.allowed.map(|allowed| text::signed(worse(allowed))),
        ),
        interval: interval.map(|(change, range)| {
            Interval::draw(change, range, row.allowed.map(worse), text::signed)
        }),
        values: a.iter().chain(&b).map(|value| shown(figure, *value)).collect(),
    })
}

fn errors(errors: &Errors, before: &Side, after: &Side) -> ComparedFigure {
    let share = |(bad, all): (u64, u64)| if all > 0 { bad as f64 / all as f64 } else { 0.0 };
    let of = |side: &Side| side.errors().into_iter().map(share).collect::<Vec<_>>();
    let counts = |(bad, all): (u64, u64)| format!("{} of {}", Count(bad), Count(all));
    let (a, b) = (of(before), of(after));
    let rise = share(errors.after) - share(errors.before);
    let (verdict, mark) = mark(errors.verdict);
    ComparedFigure {
        name: "errors",
        meaning: "share of what was due, less is better".to_owned(),
        verdict,
        mark,
        bars: bars(
            [share(errors.before), share(errors.after)],
            [&a, &b],
            [errors.before, errors.after].map(counts),
        ),
        change: change(
            Some(text::points(rise)),
            errors.interval.map(|(low, high)| [low, high].map(text::points)),
            None,
        ),
        interval: errors.interval.map(|range| Interval::draw(rise, range, None, text::points)),
        values: before.errors().into_iter().chain(after.errors()).map(counts).collect(),
    }
}

/// `change +3.1 %`, `95 % interval −1.0 % … +7.2 %` and `allowed +5.0 %`, as far as they are known.
fn change(
    change: Option<String>,
    interval: Option<[String; 2]>,
    allowed: Option<String>,
) -> Vec<String> {
    let change = change.map_or_else(
        || "no change in percent: A is zero".to_owned(),
        |change| format!("change {change}"),
    );
    let interval = interval.map_or_else(
        || "no interval".to_owned(),
        |[low, high]| format!("95 % interval {low} … {high}"),
    );
    let allowed = allowed.map(|allowed| format!("allowed {allowed}"));
    [change, interval].into_iter().chain(allowed).collect()
}

fn meaning(figure: Figure) -> &'static str {
    match figure {
        Figure::Rate => "per second",
        Figure::Messages => "messages received per second",
        Figure::ReceiptP50 | Figure::ReceiptP99 | Figure::ReceiptMax => "latency of messages",
        Figure::Connecting => "connections opened per second",
        Figure::Memory => "memory per connection",
        Figure::Cpu => "CPU per 1,000 messages",
        _ => "latency",
    }
}

fn shown(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Rate | Figure::Messages | Figure::Connecting if value >= 100.0 => {
            format!("{}/s", Count(value.round() as u64))
        }
        Figure::Rate | Figure::Messages | Figure::Connecting => format!("{}/s", Decimal(value, 2)),
        // It may have shrunk.
        Figure::Memory if value < 0.0 => format!("{} B", Decimal(value, 0)),
        Figure::Memory => Bytes(value.round() as u64).to_string(),
        _ => Milliseconds(value).to_string(),
    }
}
