//! The distribution of a latency as bars in an SVG: a logarithmic axis of time with round ticks, the share
//! of each bar, and lines at percentiles.

use std::fmt::Write;

use capacity::{Count, Milliseconds};
use load::{Bin, Latency};
use serde::Serialize;

use super::scale::milliseconds;

/// Size of the drawing and its margins, in SVG units, as those of the charts.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 28.0;
/// Most bars.
pub(super) const BINS: usize = 40;
/// Distance of labels, at the axis and of percentiles.
const LABEL: f64 = 62.0;
const MARK_LABEL: f64 = 34.0;

/// A rendered histogram.
#[derive(Clone, Serialize)]
pub(crate) struct Histogram {
    title: String,
    svg: String,
    summary: String,
    /// From, to, number and share of each bar.
    rows: Vec<[String; 3]>,
}

impl Histogram {
    /// `None` without bars.
    pub(super) fn draw(name: &str, bins: &[Bin], latency: &Latency) -> Option<Histogram> {
        let (first, last) = (bins.first()?, bins.last()?);
        let all: u64 = bins.iter().map(|bin| bin.count).sum();
        let share = |count: u64| 100.0 * count as f64 / all.max(1) as f64;
        let most = bins.iter().map(|bin| share(bin.count)).fold(0.0, f64::max);
        let (low, high) = (first.from_ms.max(1e-3).ln(), last.to_ms.ln());
        let x = |ms: f64| {
            let share = (ms.max(1e-3).ln() - low) / (high - low).max(1e-9);
            LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
        };
        let step = if most > 40.0 {
            20.0
        } else if most > 16.0 {
            10.0
        } else {
            5.0
        };
        let top = (most / step).ceil().max(1.0) * step;
        let y = |share: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share / top;
        let mut svg = String::new();
        // Writing to a String cannot fail.
        for tick in super::scale::ticks(top, step) {
            let at = y(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick y\" x=\"{}\" y=\"{:.1}\">{tick:.0}%</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0
            );
        }
        for bin in bins.iter().filter(|bin| bin.count > 0) {
            let (from, to) = (x(bin.from_ms), x(bin.to_ms));
            let height = (y(0.0) - y(share(bin.count))).max(1.0);
            let _ = write!(
                svg,
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
                from + 0.5,
                y(0.0) - height,
                (to - from - 1.0).max(1.0),
            );
        }
        let fitting = |ticks: Vec<f64>| -> Vec<f64> {
            let mut after = f64::NEG_INFINITY;
            let fits = |tick: &f64| {
                let at = x(*tick);
                let fits = at >= after && at <= WIDTH - RIGHT - LABEL / 3.0;
                after = if fits { at + LABEL } else { after };
                fits
            };
            ticks.into_iter().filter(fits).collect()
        };
        let mut ticks = fitting(round(first.from_ms, last.to_ms));
        if ticks.len() < 2 {
            ticks = fitting(bins.iter().map(|bin| bin.from_ms.max(1e-3)).collect());
        }
        for tick in ticks {
            let at = x(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
                 <text class=\"tick x\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                y(0.0),
                y(0.0) + 4.0,
                HEIGHT - 9.0,
                milliseconds(tick)
            );
        }
        let marks = [("p50", latency.p50_ms), ("p95", latency.p95_ms), ("p99", latency.p99_ms)];
        let mut after = f64::NEG_INFINITY;
        for (name, ms) in marks {
            let at = x(ms);
            let _ = write!(
                svg,
                "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                TOP - 6.0,
                y(0.0)
            );
            // Percentiles that are close share a line of labels only if they have space.
            let up = if at < after { TOP - 22.0 } else { TOP - 10.0 };
            after = at + MARK_LABEL;
            let _ = write!(svg, "<text class=\"marked\" x=\"{at:.1}\" y=\"{up:.1}\">{name}</text>");
        }
        let row = |bin: &Bin| {
            [
                format!("{} – {}", milliseconds(bin.from_ms), milliseconds(bin.to_ms)),
                Count(bin.count).to_string(),
                format!("{:.2}%", share(bin.count)),
            ]
        };
        Some(Histogram {
            title: format!("Distribution of {}", lower_first(name)),
            svg,
            summary: format!(
                "{} timed: median {}, p99 {}, maximum {}",
                Count(all),
                Milliseconds(latency.p50_ms),
                Milliseconds(latency.p99_ms),
                Milliseconds(latency.max_ms)
            ),
            rows: bins.iter().map(row).collect(),
        })
    }
}

/// 1, 2 and 5 times the powers of ten between two times, in milliseconds.
fn round(from: f64, to: f64) -> Vec<f64> {
    let powers = (-3..8).map(|power| 10_f64.powi(power));
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * power));
    all.filter(|tick| (from * 0.999..to * 1.001).contains(tick)).collect()
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency() -> Latency {
        let (p50_ms, p90_ms, p95_ms) = (1.5, 3.0, 4.0);
        Latency {
            count: 7,
            p50_ms,
            p90_ms,
            p95_ms,
            p99_ms: 4.1,
            p999_ms: 9.0,
            max_ms: 9.5,
            above_range: 0,
        }
    }

    #[test]
    fn every_bar_is_drawn_and_listed() {
        let bins = [(1.0, 2.0, 4), (2.0, 5.0, 2), (5.0, 10.0, 1)];
        let bins = bins.map(|(from_ms, to_ms, count)| Bin { from_ms, to_ms, count });
        let drawn = Histogram::draw("Latency", &bins, &latency()).unwrap();
        assert_eq!(drawn.svg.matches("class=\"bar\"").count(), 3);
        assert_eq!(drawn.rows[1], ["2 ms – 5 ms", "2", "28.57%"]);
        assert!(drawn.svg.contains(">1 ms<") && drawn.svg.contains(">5 ms<"), "{}", drawn.svg);
        assert_eq!(drawn.title, "Distribution of latency");
        assert!(Histogram::draw("Latency", &[], &latency()).is_none());
        let one = [Bin { from_ms: 0.0, to_ms: 1.0, count: 0 }];
        let one = Histogram::draw("Latency", &one, &latency()).unwrap();
        assert!(!format!("{}{:?}", one.svg, one.rows).contains("NaN"));
    }
}
