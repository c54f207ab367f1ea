//! [`Timeline`]: what happened to several things over time, a lane for each, and below it how many of something
//! there were in each second, as SVG without script. The style sheet sets colours and sizes.

use std::fmt::Write;

use capacity::Count;
use serde::Serialize;

use super::chart::clock;
use super::scale::{Unit, nice_seconds, ticks};

/// Size of the drawing and its margins, in SVG units.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 8.0;
const LANE: f64 = 22.0;
const COUNTS: f64 = 90.0;
const BOTTOM: f64 = 26.0;
/// Least width of a span, so that a moment is seen.
const SPAN_MIN: f64 = 2.0;

/// Spans of several things, and counts by second.
pub(crate) struct Timeline {
    pub(crate) title: &'static str,
    /// The end of the time axis.
    pub(crate) seconds: f64,
    pub(crate) lanes: Vec<Lane>,
    /// Second, and how many good and bad ones begin there.
    pub(crate) counts: Vec<(f64, u64, u64)>,
}

/// One thing.
pub(crate) struct Lane {
    pub(crate) name: String,
    /// Beginning and end in seconds, and what happened.
    pub(crate) spans: Vec<(f64, f64, String)>,
}

/// A rendered timeline.
#[derive(Serialize)]
pub(super) struct TimelineDrawing {
    title: &'static str,
    height: f64,
    svg: String,
    summary: String,
}

impl Timeline {
    pub(super) fn draw(&self) -> TimelineDrawing {
        let last = self.lanes.iter().flat_map(|lane| lane.spans.iter().map(|span| span.1));
        let end = last.fold(self.seconds, f64::max).max(1.0);
        let bottom = TOP + LANE * self.lanes.len() as f64;
        let mut svg = String::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            draw_lane(&mut svg, lane, number, end);
        }
        self.draw_counts(&mut svg, bottom, end);
        let height = bottom + COUNTS + BOTTOM;
        for tick in ticks(end, nice_seconds(end / 10.0)) {
            let at = x(tick, end);
            // Writing to a String cannot fail.
            let _ = write!(
                svg,
                "<text class=\"tick x\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                height - 8.0,
                clock(tick)
            );
        }
        let spans: usize = self.lanes.iter().map(|lane| lane.spans.len()).sum();
        let summary = format!("{}: {spans} spans in {} lanes", self.title, self.lanes.len());
        TimelineDrawing { title: self.title, height, svg, summary }
    }

    /// Bars of what is explained and unexplained, one upon the other.
    fn draw_counts(&self, svg: &mut String, from: f64, end: f64) {
        let most = self.counts.iter().map(|(_, good, bad)| good + bad).max().unwrap_or(0);
        let top = Unit::Count.top(most as f64, 3.0);
        let (high, low) = (from + 12.0, from + COUNTS);
        let y = |value: f64| low - (low - high) * (value / top).clamp(0.0, 1.0);
        for tick in ticks(top, Unit::Count.step(top, 3.0)) {
            let (at, right) = (y(tick), WIDTH - RIGHT);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                Unit::Count.text(tick)
            );
        }
        for &(second, good, bad) in &self.counts {
            let (left, right) = (x(second, end), x(second + 1.0, end));
            let width = (right - left - 0.5).max(1.0);
            let mut bar = |class: &str, lower: u64, upper: u64| {
                let (bottom, top) = (y(lower as f64), y(upper as f64));
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
                     height=\"{:.1}\"><title>{}: {} explained, {} unexplained</title></rect>",
                    (bottom - top).max(if upper > lower { 1.0 } else { 0.0 }),
                    clock(second),
                    Count(good),
                    Count(bad)
                );
            };
            bar("bar", 0, good);
            bar("bar bad", good, good + bad);
        }
    }
}

fn draw_lane(svg: &mut String, lane: &Lane, number: usize, end: f64) {
    let top = TOP + LANE * number as f64;
    let (width, parity) = (WIDTH - LEFT - RIGHT, number % 2);
    let _ = write!(
        svg,
        "<rect class=\"band b{parity}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{LANE}\"/>\
         <text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        LEFT - 6.0,
        top + 15.0,
        escaped(&lane.name)
    );
    for (from, until, text) in &lane.spans {
        let (left, right) = (x(*from, end), x(*until, end));
        let _ = write!(
            svg,
            "<rect class=\"span\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
             <title>{}, {from:.1} s to {until:.1} s</title></rect>",
            top + 4.0,
            (right - left).max(SPAN_MIN),
            LANE - 8.0,
            escaped(text)
        );
    }
}

fn x(second: f64, end: f64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * (second / end).clamp(0.0, 1.0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_lie_in_their_lanes_and_losses_below_them() {
        let lane = |name: &str, spans: &[(f64, f64, &str)]| Lane {
            name: name.to_owned(),
            spans: spans.iter().map(|&(from, until, text)| (from, until, text.into())).collect(),
        };
        let drawing = Timeline {
            title: "Faults",
            seconds: 10.0,
            lanes: vec![
                lane("node 1", &[(1.0, 2.0, "a <b>")]),
                lane("clients", &[(3.0, 3.0, "x")]),
            ],
            counts: vec![(2.0, 10, 0), (3.0, 0, 5)],
        }
        .draw();
        assert_eq!(drawing.svg.matches("class=\"span\"").count(), 2);
        assert!(drawing.svg.contains("a &lt;b&gt;, 1.0 s to 2.0 s"), "{}", drawing.svg);
        assert!(drawing.svg.contains("width=\"2.0\""), "a moment is seen: {}", drawing.svg);
        assert!(drawing.svg.contains("3 s: 0 explained, 5 unexplained"), "{}", drawing.svg);
        assert!(!drawing.svg.contains("NaN"), "{}", drawing.svg);
    }
}
