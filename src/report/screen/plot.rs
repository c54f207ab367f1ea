//! [`Panel`]: curves over the time of the run, as lines of dots between two axes; and the distribution of
//! latency, as solid bars with their share.

use capacity::Count;
use load::Bin;
use ratatui::Frame;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::canvas::{Canvas, Line as Segment, Points};

use super::table::count;
use super::view::{DIM, TITLE, clock};
use crate::report::scale::{Unit, milliseconds, ticks};

/// Smallest panel: the title, three rows, and the time.
pub(super) const ROWS_MIN: u16 = 5;
pub(super) const COLUMNS_MIN: u16 = 36;
/// Columns between panels.
const BETWEEN: u16 = 3;
/// Rows of a panel from which panels are placed below each other.
const ROWS_SHARED: u16 = 9;
/// Rows per tick of the vertical axis, where there are many.
const TICK_ROWS: u16 = 3;
/// Columns from which the middle of the time is named.
const MIDDLE_COLUMNS: u16 = 40;
/// Parts of a bar's last column, in eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const BAR: Style = Style::new().fg(Color::LightBlue);

pub(super) enum Panel {
    Curves { title: &'static str, unit: Unit, curves: Vec<Curve>, seconds: f64 },
    Bars { title: String, bins: Vec<Bin> },
}

pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) color: Color,
    /// Seconds and values.
    pub(super) points: Vec<(f64, f64)>,
}

/// Fills an area with the first panels that have space, side by side, in two rows if that is high enough.
pub(super) fn fill(frame: &mut Frame<'_>, area: Rect, panels: &[Panel]) {
    if area.height < ROWS_MIN || panels.is_empty() {
        return;
    }
    let most = usize::from(((area.width + BETWEEN) / (COLUMNS_MIN + BETWEEN)).max(1));
    let rows = match area.height > 2 * ROWS_SHARED && panels.len() > most.min(2) {
        true => 2,
        false => 1,
    };
    let across = panels.len().div_ceil(rows).min(most);
    let (rows, across) = (rows as u16, across as u16);
    let (width, height) = ((area.width + BETWEEN) / across, (area.height + 1) / rows);
    for (nth, panel) in (0_u16..).zip(panels).take(usize::from(rows * across)) {
        let (row, column) = (nth / across, nth % across);
        let last_column = column + 1 == across;
        let last_row = row + 1 == rows;
        let place = Rect {
            x: area.x + column * width,
            y: area.y + row * height,
            width: if last_column { area.width - column * width } else { width - BETWEEN },
            height: if last_row { area.height - row * height } else { height - 1 },
        };
        draw(frame, place, panel);
    }
}

fn draw(frame: &mut Frame<'_>, area: Rect, panel: &Panel) {
    let title = Rect { height: 1, ..area };
    let body = Rect { y: area.y + 1, height: area.height - 1, ..area };
    match panel {
        Panel::Curves { title: text, unit, curves, seconds } => {
            frame.render_widget(Line::styled(*text, TITLE), title);
            if curves.len() > 1 {
                let named = curves.iter().flat_map(|curve| {
                    [Span::styled("  ━ ", curve.color), Span::styled(curve.name, DIM)]
                });
                let legend = Line::from(named.collect::<Vec<_>>());
                frame.render_widget(legend.alignment(Alignment::Right), title);
            }
            draw_curves(frame, body, (*unit, curves, *seconds));
        }
        Panel::Bars { title: text, bins } => {
            frame.render_widget(Line::styled(text.as_str(), TITLE), title);
            draw_bars(frame, body, bins);
        }
    }
}

fn draw_curves(frame: &mut Frame<'_>, area: Rect, (unit, curves, end): (Unit, &[Curve], f64)) {
    let height = area.height - 1;
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1));
    let most = values.fold(0.0, f64::max);
    let wanted = f64::from((height / TICK_ROWS).max((height.min(5) - 1) / 2).clamp(1, 5));
    let (top, step) = (unit.top(most, wanted), unit.step(most, wanted));
    let labels: Vec<(f64, String)> = ticks(top, step)
        .map(|tick| (tick, if tick > 0.0 { unit.text(tick) } else { "0".into() }))
        .collect();
    let indent = labels.iter().map(|(_, label)| count(label)).max().unwrap_or(0) as u16;
    let plot = Rect {
        x: area.x + indent + 1,
        width: area.width.saturating_sub(indent + 1),
        height,
        ..area
    };
    let axis = |row: u16| Rect { y: area.y + row, width: indent + 1, height: 1, ..area };
    for row in 0..height {
        let line = Line::styled("│", DIM).alignment(Alignment::Right);
        frame.render_widget(line, axis(row));
    }
    for (tick, label) in &labels {
        let row = ((1.0 - tick / top) * f64::from(height - 1)).round() as u16;
        let width = usize::from(indent);
        frame.render_widget(Line::styled(format!("{label:>width$}┤"), DIM), axis(row));
    }
    let canvas =
        Canvas::default().marker(Marker::Braille).x_bounds([0.0, end]).y_bounds([0.0, top]).paint(
            |context| {
                for Curve { color, points, .. } in curves {
                    for pair in points.windows(2) {
                        if let [(x1, y1), (x2, y2)] = *pair {
                            context.draw(&Segment::new(x1, y1, x2, y2, *color));
                        }
                    }
                    if let [only] = points.as_slice() {
                        context.draw(&Points::new(&[*only], *color));
                    }
                }
            },
        );
    frame.render_widget(canvas, plot);
    let times = Rect { y: plot.bottom(), height: 1, ..plot };
    frame.render_widget(Line::styled("0:00", DIM), times);
    if times.width >= MIDDLE_COLUMNS {
        let middle = Line::styled(clock(end / 2.0), DIM);
        frame.render_widget(middle.alignment(Alignment::Center), times);
    }
    frame.render_widget(Line::styled(clock(end), DIM).alignment(Alignment::Right), times);
}

fn draw_bars(frame: &mut Frame<'_>, area: Rect, bins: &[Bin]) {
    let bins = merged(bins, usize::from(area.height));
    let all: u64 = bins.iter().map(|bin| bin.count).sum();
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let labels: Vec<String> = bins.iter().map(label).collect();
    let indent = labels.iter().map(|label| count(label)).max().unwrap_or(0);
    // A space, the bar, and a share such as ` 100.0%`.
    let room = usize::from(area.width).saturating_sub(indent + 1 + 7);
    for ((row, bin), label) in (0_u16..).zip(&bins).zip(labels) {
        let eighths = (bin.count as f64 / most as f64 * room as f64 * 8.0).round() as usize;
        // What is there can be seen.
        let eighths = eighths.max(usize::from(bin.count > 0));
        let part = EIGHTHS.get(eighths % 8).copied().unwrap_or_default();
        let bar = format!("{}{part}", "█".repeat(eighths / 8));
        let share = format!("{:.1}%", 100.0 * bin.count as f64 / all.max(1) as f64);
        let line = Line::from(vec![
            Span::styled(format!("{label:>indent$} "), DIM),
            Span::styled(format!("{bar:room$}"), BAR),
            Span::raw(format!("{share:>7}")),
        ]);
        frame.render_widget(line, Rect { y: area.y + row, height: 1, ..area });
    }
}

/// At most so many bars: neighbours become one.
fn merged(bins: &[Bin], most: usize) -> Vec<Bin> {
    let each = bins.len().div_ceil(most.max(1)).max(1);
    let one = |bins: &[Bin]| {
        let count = bins.iter().map(|bin| bin.count).sum();
        Some(Bin { from_ms: bins.first()?.from_ms, to_ms: bins.last()?.to_ms, count })
    };
    bins.chunks(each).filter_map(one).collect()
}

/// `< 1 ms`, `1–2 ms`, `500 ms–1 s`, `≥ 1 s`.
fn label(bin: &Bin) -> String {
    let (from, to) = (milliseconds(bin.from_ms), milliseconds(bin.to_ms));
    match (from.split_once(' '), to.split_once(' ')) {
        _ if bin.from_ms <= 0.0 && !bin.to_ms.is_finite() => "all".to_owned(),
        _ if bin.from_ms <= 0.0 => format!("< {to}"),
        _ if !bin.to_ms.is_finite() => format!("≥ {from}"),
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number}–{to}"),
        _ => format!("{from}–{to}"),
    }
}

/// The title of the panel of bars.
pub(super) fn bars_title(name: &str, bins: &[Bin]) -> String {
    let all: u64 = bins.iter().map(|bin| bin.count).sum();
    format!("{name} so far, {} timed", Count(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(from_ms: f64, to_ms: f64, count: u64) -> Bin {
        Bin { from_ms, to_ms, count }
    }

    #[test]
    fn bars_are_named_by_their_edges() {
        let inf = f64::INFINITY;
        let edges =
            [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5), (500.0, 1_000.0), (1_000.0, inf), (0.0, inf)];
        let labels = edges.map(|(from, to)| label(&bin(from, to, 1)));
        let expected = ["< 0.5 ms", "0.5–1 ms", "1–1.5 ms", "500 ms–1 s", "≥ 1 s", "all"];
        assert_eq!(labels, expected);
    }

    #[test]
    fn neighbours_are_merged_where_rows_are_few() {
        let bins = [bin(1.0, 2.0, 3), bin(2.0, 5.0, 4), bin(5.0, 10.0, 5)];
        assert_eq!(merged(&bins, 3), bins);
        assert_eq!(merged(&bins, 2), [bin(1.0, 5.0, 7), bin(5.0, 10.0, 5)]);
        assert_eq!(merged(&bins, 1), [bin(1.0, 10.0, 12)]);
    }
}
