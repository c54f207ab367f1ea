//! [`Chart`]: lines over time as SVG without script: axes with round ticks, bands for the phases of a run,
//! a legend. The style sheet sets colours and sizes; the page's script reads the values for its
//! crosshair.

use std::fmt::Write;

use serde::Serialize;

/// Size of the drawing and its margins, in SVG units.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 26.0;
/// Approximate number of ticks per axis.
const TICKS_Y: f64 = 4.0;
const TICKS_X: f64 = 6.0;
/// Maximum rows of the table beside a chart.
const ROWS_MAX: usize = 25;

/// Lines over a common time axis.
pub(super) struct Chart<'a> {
    pub(super) title: &'static str,
    /// Time of each value in seconds.
    pub(super) seconds: &'a [f64],
    pub(super) lines: Vec<Line>,
    /// Format of values at the axis and in the crosshair.
    pub(super) unit: Unit,
    /// Start and name of each phase.
    pub(super) phases: &'a [(f64, &'a str)],
}

/// One line; an unknown value leaves a gap.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) values: Vec<Option<f64>>,
}

/// Unit of the values.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Count,
    Bytes,
    PerSecond,
    Milliseconds,
    Cores,
}

/// A rendered chart.
#[derive(Serialize)]
pub(super) struct Drawing {
    title: &'static str,
    svg: String,
    legend: Vec<&'static str>,
    /// Data of the crosshair: positions, times, and each line's values as text.
    data: String,
    /// The table: time and values at moments spread over the run.
    rows: Vec<Vec<String>>,
    summary: String,
}

impl Chart<'_> {
    /// Returns `None` if no line has a value.
    pub(super) fn draw(&self) -> Option<Drawing> {
        let known = self.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
        let most = known.reduce(f64::max)?;
        let top = nice_top(most);
        let end = self.seconds.last().copied().filter(|&end| end > 0.0).unwrap_or(1.0);
        let mut svg = String::new();
        self.draw_phases(&mut svg, end);
        self.draw_axes(&mut svg, end, top);
        for (index, line) in self.lines.iter().enumerate() {
            for path in self.paths(line, end, top) {
                let _ = write!(svg, "<polyline class=\"line s{index}\" points=\"{path}\"/>");
            }
        }
        let legend: Vec<_> = self.lines.iter().map(|line| line.name).collect();
        Some(Drawing {
            title: self.title,
            svg,
            data: self.data(end),
            rows: self.rows(),
            summary: format!(
                "{}: {}, maximum {}",
                self.title,
                legend.join(", "),
                self.unit.text(most)
            ),
            legend,
        })
    }

    fn draw_phases(&self, svg: &mut String, end: f64) {
        for (index, &(begin, name)) in self.phases.iter().enumerate() {
            let next = self.phases.get(index + 1).map_or(end, |next| next.0);
            let (from, to) = (x(begin, end), x(next, end));
            let (width, height) = ((to - from).max(0.0), HEIGHT - TOP - BOTTOM);
            let parity = index % 2;
            // Writing to a String cannot fail.
            let _ = write!(
                svg,
                "<rect class=\"band b{parity}\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" \
                 height=\"{height}\"/>"
            );
            if width > 7.0 * name.len() as f64 {
                let middle = from + width / 2.0;
                let _ =
                    write!(svg, "<text class=\"phase\" x=\"{middle:.1}\" y=\"14\">{name}</text>");
            }
        }
    }

    fn draw_axes(&self, svg: &mut String, end: f64, top: f64) {
        let step = nice_step(top / TICKS_Y);
        for tick in ticks(top, step) {
            let (at, right) = (y(tick, top), WIDTH - RIGHT);
            // Both axes begin at zero; only the lower one is labelled with it.
            let label = if tick > 0.0 { self.unit.text(tick) } else { String::new() };
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        let step = nice_seconds(end / TICKS_X);
        for tick in ticks(end, step) {
            let at = x(tick, end);
            let _ = write!(
                svg,
                "<text class=\"tick x\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                HEIGHT - 8.0,
                clock(tick)
            );
        }
    }

    /// Returns the segments of the line between gaps, as points.
    fn paths(&self, line: &Line, end: f64, top: f64) -> Vec<String> {
        let mut paths = vec![String::new()];
        for (&second, value) in self.seconds.iter().zip(&line.values) {
            match (value, paths.last_mut()) {
                (Some(value), Some(path)) => {
                    let _ = write!(path, "{:.1},{:.1} ", x(second, end), y(*value, top));
                }
                (None, Some(path)) if !path.is_empty() => paths.push(String::new()),
                _ => {}
            }
        }
        paths.retain(|path| !path.is_empty());
        paths
    }

    fn data(&self, end: f64) -> String {
        let times: Vec<_> = self.seconds.iter().map(|&second| clock(second)).collect();
        let places: Vec<_> = self.seconds.iter().map(|&second| x(second, end)).collect();
        let text = |value: &Option<f64>| self.text(*value);
        let values: Vec<Vec<_>> =
            self.lines.iter().map(|line| line.values.iter().map(text).collect()).collect();
        serde_json::json!({ "x": places, "times": times, "values": values }).to_string()
    }

    /// Returns evenly spaced moments, including the first and the last.
    fn rows(&self) -> Vec<Vec<String>> {
        let last = self.seconds.len().saturating_sub(1);
        let count = self.seconds.len().min(ROWS_MAX);
        let chosen = (0..count).map(|row| row * last / count.saturating_sub(1).max(1));
        let row = |moment: usize| {
            let second = self.seconds.get(moment).copied().unwrap_or_default();
            let value = |line: &Line| self.text(line.values.get(moment).copied().flatten());
            std::iter::once(clock(second)).chain(self.lines.iter().map(value)).collect()
        };
        chosen.map(row).collect()
    }

    fn text(&self, value: Option<f64>) -> String {
        value.map_or("–".to_owned(), |value| self.unit.text(value))
    }
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Unit::Bytes => capacity::Bytes(value.max(0.0) as u64).to_string(),
            Unit::Count => short(value),
            Unit::PerSecond => format!("{}/s", short(value)),
            Unit::Milliseconds if value >= 10_000.0 => format!("{:.0} s", value / 1e3),
            Unit::Milliseconds if value >= 1_000.0 => format!("{:.1} s", value / 1e3),
            Unit::Milliseconds if value >= 10.0 || value == 0.0 => format!("{value:.0} ms"),
            Unit::Milliseconds if value >= 1.0 => format!("{value:.1} ms"),
            Unit::Milliseconds => format!("{value:.2} ms"),
            Unit::Cores => format!("{value:.2}"),
        }
    }
}

/// 1,234 · 12.3 k · 1.23 M
fn short(value: f64) -> String {
    let trimmed = |scaled: f64, unit: &str| {
        let digits = if scaled >= 100.0 { 0 } else { 1 };
        let text = format!("{scaled:.digits$}");
        format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    if value >= 999_500.0 {
        trimmed(value / 1e6, "M")
    } else if value >= 10_000.0 {
        trimmed(value / 1e3, "k")
    } else if value < 10.0 && value.fract() > 0.0 {
        format!("{value:.1}")
    } else {
        capacity::Count(value.round() as u64).to_string()
    }
}

/// 45 s, 2:30, 1:00:00
fn clock(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3_600, whole / 60 % 60, whole % 60) {
        (0, 0, _) if seconds.fract() != 0.0 && seconds < 10.0 => format!("{seconds:.1} s"),
        (0, 0, second) => format!("{second} s"),
        (0, minute, second) => format!("{minute}:{second:02}"),
        (hour, minute, second) => format!("{hour}:{minute:02}:{second:02}"),
    }
}

fn x(second: f64, end: f64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * (second / end).clamp(0.0, 1.0)
}

fn y(value: f64, top: f64) -> f64 {
    HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top).clamp(0.0, 1.0)
}

fn ticks(top: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..=20)
        .map(move |number| f64::from(number) * step)
        .take_while(move |&tick| tick <= top * 1.001)
}

/// Returns the smallest 1, 2 or 5 times a power of ten that is not below the value.
fn nice_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|&n| n >= least).unwrap_or(least)
}

/// The same in steps of a clock.
fn nice_seconds(least: f64) -> f64 {
    const STEPS: [f64; 16] = [
        0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0,
        3_600.0,
    ];
    STEPS.into_iter().find(|&step| step >= least).unwrap_or_else(|| nice_step(least))
}

/// Returns the top of an axis: a multiple of the step above the highest value.
fn nice_top(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let step = nice_step(most / TICKS_Y);
    (most / step).ceil() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: Vec<Option<f64>>) -> Option<Drawing> {
        let seconds: Vec<f64> = (0..values.len()).map(|second| second as f64).collect();
        let lines = vec![Line { name: "open", values }];
        let phases = [(0.0, "connect"), (2.0, "hold")];
        Chart { title: "Sockets", seconds: &seconds, lines, unit: Unit::Count, phases: &phases }
            .draw()
    }

    #[test]
    fn a_gap_splits_the_line_and_no_values_draw_nothing() {
        let drawing = chart(vec![Some(1.0), Some(2.0), None, Some(4.0)]).unwrap();
        assert_eq!(drawing.svg.matches("<polyline").count(), 2);
        assert!(drawing.svg.contains(">connect<") && drawing.data.contains("–"));
        assert!(chart(vec![None, None]).is_none());
        assert!(chart(vec![Some(0.0)]).is_some(), "zero is a value");
    }

    #[test]
    fn the_table_spans_short_and_long_runs() {
        for (moments, rows) in [(1, 1), (2, 2), (25, 25), (1_000, ROWS_MAX)] {
            let values = (0..moments).map(|moment| Some(f64::from(moment))).collect();
            let table = chart(values).unwrap().rows;
            assert_eq!((table.len(), table[0][0].as_str()), (rows, "0 s"));
            assert_eq!(table[rows - 1][1], short(f64::from(moments - 1)), "the last sample");
        }
    }

    #[test]
    fn values_and_times_are_formatted_for_people() {
        for (value, text) in
            [(0.0, "0"), (1.5, "1.5"), (9_999.0, "9,999"), (250_000.0, "250 k"), (1e6, "1 M")]
        {
            assert_eq!(short(value), text);
        }
        for (seconds, text) in
            [(0.5, "0.5 s"), (45.0, "45 s"), (150.0, "2:30"), (3_600.0, "1:00:00")]
        {
            assert_eq!(clock(seconds), text);
        }
        assert_eq!(
            (Unit::Milliseconds.text(2_500.0), Unit::Bytes.text(5e6)),
            ("2.5 s".into(), "5.0 MB".into())
        );
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (most, top) in [(1_000_000.0, 1_000_000.0), (7.0, 8.0), (101.0, 150.0), (0.0, 1.0)] {
            assert!((nice_top(most) - top).abs() < 1e-6, "{most}: {}", nice_top(most));
        }
        assert_eq!((nice_seconds(0.7), nice_seconds(400.0)), (1.0, 600.0));
    }
}
