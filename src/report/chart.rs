//! [`Chart`]: lines over time as SVG without script: axes with round ticks, bands for the phases of a run,
//! a legend. The style sheet sets colours and sizes; the page's script reads the values for its
//! crosshair.

use std::fmt::Write;

use serde::Serialize;

use super::scale::{Unit, nice_seconds, ticks};

/// Size of the drawing and its margins, in SVG units.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 26.0;
/// Approximate number of ticks per axis.
const TICKS_Y: f64 = 4.0;
const TICKS_X: f64 = 5.0;
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
    /// Leaves out lines without values. Returns `None` if no line has one.
    pub(super) fn draw(mut self) -> Option<Drawing> {
        self.lines.retain(|line| line.values.iter().any(Option::is_some));
        let known = self.lines.iter().flat_map(|line| line.values.iter().flatten().copied());
        let most = known.reduce(f64::max)?;
        let top = self.unit.top(most, TICKS_Y);
        let end = self.seconds.last().copied().filter(|&end| end > 0.0).unwrap_or(1.0);
        let mut svg = String::new();
        self.draw_phases(&mut svg, end);
        self.draw_axes(&mut svg, end, top);
        for (index, line) in self.lines.iter().enumerate() {
            for path in self.paths(line, end, top) {
                // A single point is a line of no length, which is drawn with round ends.
                let (dot, again) =
                    if path.matches(',').count() == 1 { (" dot", &*path) } else { ("", "") };
                let _ = write!(
                    svg,
                    "<polyline class=\"line{dot} s{index}\" points=\"{path}{again}\"/>"
                );
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
        let step = self.unit.step(top, TICKS_Y);
        for tick in ticks(top, step) {
            let (at, right) = (y(tick, top), WIDTH - RIGHT);
            let label = if tick > 0.0 { self.unit.text(tick) } else { "0".to_owned() };
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

/// 45 s, 2:30, 1:00:00
pub(super) fn clock(seconds: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::scale::short;

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
        assert_eq!(drawing.svg.matches("line dot").count(), 1, "the last value stands alone");
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
    fn times_are_formatted_for_people() {
        for (seconds, text) in
            [(0.5, "0.5 s"), (45.0, "45 s"), (150.0, "2:30"), (3_600.0, "1:00:00")]
        {
            assert_eq!(clock(seconds), text);
        }
    }
}
