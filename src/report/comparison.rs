//! [`ComparisonPage`]: runs before and after a change as one HTML page: each figure as bars, its change with the
//! interval, and the verdict. It has no script.
//!
//! Not here: what is compared and how it is judged (`commands/load/compare`).

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use minijinja::context;
use minijinja::value::{Serde, Value};
use serde::Serialize;

use crate::output;

/// Size of the drawing of an interval and its margins, in SVG units.
const WIDTH: f64 = 480.0;
const MARGIN: f64 = 40.0;
const AXIS_Y: f64 = 36.0;
const INTERVAL_Y: f64 = 18.0;

/// What is known of a figure, as the class of its mark.
#[derive(Copy, Clone, Serialize, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    Good,
    Bad,
    /// Nothing is established.
    Open,
}

/// The content of a page.
#[derive(Serialize)]
pub(crate) struct ComparisonPage<'a> {
    pub(crate) title: String,
    pub(crate) verdict: &'static str,
    #[serde(rename = "class")]
    pub(crate) mark: Mark,
    /// What can be concluded, in one sentence.
    pub(crate) result: String,
    pub(crate) sides: [ComparedSide; 2],
    pub(crate) notes: &'a [String],
    pub(crate) figures: Vec<ComparedFigure>,
    /// Of the columns of the table of all runs.
    pub(crate) heads: Vec<String>,
    /// What the intervals are of.
    pub(crate) explained: Vec<String>,
}

/// One side: its letter and its files.
#[derive(Serialize)]
pub(crate) struct ComparedSide {
    pub(crate) name: &'static str,
    /// `before, 3 runs`
    pub(crate) runs: String,
    pub(crate) files: Vec<String>,
}

/// A figure of both sides.
#[derive(Serialize)]
pub(crate) struct ComparedFigure {
    pub(crate) name: &'static str,
    /// Unit, and which direction is better.
    pub(crate) meaning: String,
    pub(crate) verdict: &'static str,
    #[serde(rename = "class")]
    pub(crate) mark: Mark,
    pub(crate) bars: [ComparedBar; 2],
    /// The change as text, in parts that are not broken.
    pub(crate) change: Vec<String>,
    pub(crate) interval: Option<Interval>,
    /// Of each run, those of the first side first.
    pub(crate) values: Vec<String>,
}

/// The mean of a side as a bar, with a line for each of its runs.
#[derive(Serialize)]
pub(crate) struct ComparedBar {
    name: &'static str,
    /// In percent of the highest value of both sides.
    length: String,
    runs: Vec<String>,
    text: String,
}

/// Bars of both sides on one scale from zero.
pub(crate) fn bars(means: [f64; 2], runs: [&[f64]; 2], texts: [String; 2]) -> [ComparedBar; 2] {
    let most = runs.into_iter().flatten().chain(&means).copied().fold(0.0, f64::max);
    let part = |value: f64| format!("{:.2}", if most > 0.0 { 100.0 * value / most } else { 0.0 });
    let [before, after] = texts;
    [("A", means[0], runs[0], before), ("B", means[1], runs[1], after)].map(
        |(name, mean, runs, text)| ComparedBar {
            name,
            length: part(mean),
            // One run is the mean.
            runs: runs.iter().filter(|_| runs.len() > 1).map(|run| part(*run)).collect(),
            text,
        },
    )
}

/// A change and its interval on an axis around zero.
#[derive(Serialize)]
pub(crate) struct Interval {
    svg: String,
    summary: String,
}

impl Interval {
    /// Of a change, the ends of its interval, and the allowed change if the figure is judged: positive if more
    /// is worse, else negative. `text` formats a value.
    pub(crate) fn draw(
        change: f64,
        (low, high): (f64, f64),
        allowed: Option<f64>,
        text: impl Fn(f64) -> String,
    ) -> Interval {
        let allowed = allowed.filter(|allowed| allowed.is_finite());
        let reach = [change, low, high, 2.0 * allowed.unwrap_or_default()];
        let most = reach.into_iter().map(f64::abs).fold(0.0, f64::max);
        let end = round_up(most);
        let x = |value: f64| {
            let share = (value / end).clamp(-1.0, 1.0);
            WIDTH / 2.0 + (WIDTH / 2.0 - MARGIN) * share
        };
        let mut svg = String::new();
        // Writing to a String cannot fail.
        if let Some(allowed) = allowed {
            let edge = if allowed < 0.0 || allowed.is_sign_negative() { -end } else { end };
            let (left, right) = (x(allowed.min(edge)), x(allowed.max(edge)));
            let _ = write!(
                svg,
                r#"<rect class="beyond" x="{left:.1}" y="4" width="{:.1}" height="{:.1}"/>"#,
                right - left,
                AXIS_Y - 4.0
            );
        }
        let (left, right) = (x(-end), x(end));
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{left:.1}" x2="{right:.1}" y1="{AXIS_Y}" y2="{AXIS_Y}"/><line class="zero" x1="{0:.1}" x2="{0:.1}" y1="4" y2="{AXIS_Y}"/>"#,
            x(0.0)
        );
        for at in [-end, 0.0, end] {
            let label = if at == 0.0 { "0".to_owned() } else { text(at) };
            let _ = write!(
                svg,
                r#"<text class="tick x" x="{:.1}" y="{:.1}">{label}</text>"#,
                x(at),
                AXIS_Y + 17.0
            );
        }
        let _ = write!(
            svg,
            r#"<line class="interval" x1="{0:.1}" x2="{1:.1}" y1="{INTERVAL_Y}" y2="{INTERVAL_Y}"/><line class="interval" x1="{0:.1}" x2="{0:.1}" y1="{2}" y2="{3}"/><line class="interval" x1="{1:.1}" x2="{1:.1}" y1="{2}" y2="{3}"/><circle class="change" cx="{4:.1}" cy="{INTERVAL_Y}" r="4"/>"#,
            x(low),
            x(high),
            INTERVAL_Y - 5.0,
            INTERVAL_Y + 5.0,
            x(change)
        );
        let bound = allowed.map_or(String::new(), |allowed| format!("; allowed {}", text(allowed)));
        let summary = format!(
            "change {}, 95 % interval {} to {}{bound}",
            text(change),
            text(low),
            text(high)
        );
        Interval { svg, summary }
    }
}

/// The end of an axis: 1, 2 or 5 times a power of ten.
fn round_up(most: f64) -> f64 {
    let most = most.max(1e-6);
    let power = 10_f64.powf(most.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|n| *n >= most).unwrap_or(most)
}

impl ComparisonPage<'_> {
    /// Writes the page.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn write(&self, file: &str) -> Result<()> {
        output::write_file(Path::new(file), &self.render()?)
    }

    fn render(&self) -> Result<String> {
        let legend = "Bars are means over the runs of a side, lines in them the runs. The dot is the change, \
                      the line through it the 95 % interval, and the shaded part is worse than allowed.";
        super::render(
            include_str!("comparison.html"),
            context! {
                compared => super::now(),
                legend => legend,
                command => output::command_line(),
                ..Value::from(Serde(self))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> ComparisonPage<'static> {
        let text = |value: f64| format!("{:+} %", value * 100.0);
        ComparisonPage {
            title: "a <b>bold</b> run".to_owned(),
            verdict: "WORSE",
            mark: Mark::Bad,
            result: "B is WORSE than allowed: p99".to_owned(),
            sides: [("A", "a<1>.json"), ("B", "b.json")].map(|(name, file)| ComparedSide {
                name,
                runs: "2 runs".to_owned(),
                files: vec![file.to_owned()],
            }),
            notes: &[],
            figures: vec![ComparedFigure {
                name: "p99",
                meaning: "ms, less is better".to_owned(),
                verdict: "worse",
                mark: Mark::Bad,
                bars: bars([2.0, 4.0], [&[1.0, 3.0], &[3.0, 5.0]], ["2 ms".into(), "4 ms".into()]),
                change: vec!["+100 %".to_owned()],
                interval: Some(Interval::draw(1.0, (0.5, 1.5), Some(0.05), text)),
                values: ["1", "3", "3", "5"].map(str::to_owned).to_vec(),
            }],
            heads: ["A 1", "A 2", "B 1", "B 2"].map(str::to_owned).to_vec(),
            explained: Vec::new(),
        }
    }

    #[test]
    fn values_are_shown_and_escaped() {
        let page = page().render().unwrap();
        assert!(page.contains("a &lt;b&gt;bold") && page.contains("a&lt;1&gt;.json"), "{page}");
        assert!(!page.contains("<b>bold") && !page.contains("<script"), "{page}");
        // The longest is a run, not a mean.
        for part in [r#"width="40.00""#, r#"width="80.00""#, r#"x1="20.00""#, r#"x1="100.00""#] {
            assert!(page.contains(part), "no {part}: {page}");
        }
        assert!(
            page.contains("change +100 %, 95 % interval +50 % to +150 %; allowed +5 %"),
            "{page}"
        );
        assert!(page.contains(r#"class="verdict bad""#) && page.contains("WORSE"), "{page}");
    }

    #[test]
    fn one_run_has_no_lines_and_zeros_no_length() {
        let [before, after] = bars([0.0, 0.0], [&[0.0], &[0.0]], ["0".into(), "0".into()]);
        assert_eq!((before.length.as_str(), before.runs.len(), after.runs.len()), ("0.00", 0, 0));
    }

    #[test]
    fn intervals_lie_on_their_axis() {
        let text = |value: f64| format!("{value}");
        // Less is worse: the shaded part is on the left of the allowed change.
        let drawn = Interval::draw(-0.3, (-0.4, -0.2), Some(-0.05), text);
        // The axis ends at 0.5: from 40 to 440 units, and 0.05 is 20 of them.
        assert!(drawn.svg.contains(r#"x="40.0" y="4" width="180.0""#), "{}", drawn.svg);
        assert!(drawn.svg.contains(r#"cx="120.0""#), "{}", drawn.svg);
        // None is allowed of what should be less.
        let none = Interval::draw(0.1, (0.0, 0.2), Some(0.0), text);
        assert!(none.svg.contains(r#"x="240.0" y="4" width="200.0""#), "{}", none.svg);
        for (most, end) in [(0.0, 1e-6), (0.11, 0.2), (3.0, 5.0), (100.0, 100.0)] {
            assert!((round_up(most) - end).abs() < 1e-9, "{most}");
        }
    }
}
