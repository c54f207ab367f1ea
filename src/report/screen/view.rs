//! Layout of the live screen, from the top: title and phases, counts, percentiles, what failed, memory and
//! CPU, and charts in all of the space that is left. Small terminals have no gaps, then no charts, then
//! fewer columns. Text is on the left, figures are right-aligned, and a figure that does not fit is left
//! out as a whole. Colours are the terminal's sixteen, on its own background.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::figures::sections;
use super::model::{self, Model};
use super::plot::{self, Curve, Panel};
use super::table::count;
use crate::report::scale::Unit;

pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
const NOW: Style = Style::new().fg(Color::Cyan);
pub(super) const BAD: Style = Style::new().fg(Color::Red);
pub(super) const WARN: Style = Style::new().fg(Color::Yellow);

const HINT: &str = "Ctrl-C ends the run and prints its results";
const HINT_SHORT: &str = "Ctrl-C ends the run";
/// Number of columns from which there is a margin, and space for details.
pub(super) const WIDE: u16 = 60;
/// Shortest bar of a phase.
const BAR_MIN: usize = 10;
/// Free rows per note, and most notes.
const NOTE_ROWS: u16 = 8;
const NOTES_MAX: u16 = 5;

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    let margin = u16::from(area.width >= WIDE);
    let mut left = Rect { x: area.x + margin, width: area.width - 2 * margin, ..area };
    let width = usize::from(left.width);
    put(frame, &mut left, head(model, width));
    if left.height > 1 {
        let bottom = Rect { y: left.bottom() - 1, height: 1, ..left };
        let hint = if count(HINT) <= width { HINT } else { HINT_SHORT };
        frame.render_widget(Line::styled(hint, DIM), bottom);
        left.height -= 1;
    }
    let sections = sections(model, (width, usize::from(left.height)));
    let used: usize = sections.iter().map(Vec::len).sum();
    let room = left.height.saturating_sub(used as u16);
    let notes = model.last_notes(usize::from((room / NOTE_ROWS).min(NOTES_MAX)));
    let room = room.saturating_sub(notes.len() as u16);
    // Gaps do not cost the charts. Charts that have no space leave it to the gaps.
    let mut gaps = if room < plot::ROWS_MIN { room } else { room - plot::ROWS_MIN };
    let mut gap = || {
        let one = u16::from(gaps > 0);
        gaps -= one;
        one
    };
    for section in sections {
        skip(&mut left, gap());
        put(frame, &mut left, section);
    }
    skip(&mut left, gap());
    let above_notes = if notes.is_empty() { 0 } else { gap() };
    let below = notes.len() as u16 + above_notes + gap();
    let charts = left.height.saturating_sub(below);
    plot::fill(frame, Rect { height: charts, ..left }, &panels(model));
    skip(&mut left, charts + above_notes);
    let notes = notes.iter().map(|note| Line::from(note.trim_end())).collect();
    put(frame, &mut left, notes);
}

fn skip(left: &mut Rect, rows: u16) {
    let rows = rows.min(left.height);
    left.y += rows;
    left.height -= rows;
}

fn put(frame: &mut Frame<'_>, left: &mut Rect, lines: Vec<Line<'_>>) {
    let rows = (lines.len() as u16).min(left.height);
    frame.render_widget(Paragraph::new(lines), Rect { height: rows, ..*left });
    skip(left, rows);
}

/// Title and elapsed time; phases, the progress of the current one, and the time left.
fn head(model: &Model, width: usize) -> Vec<Line<'static>> {
    let elapsed = clock(model.now.elapsed_seconds);
    let elapsed = if width >= usize::from(WIDE) { format!("{elapsed} elapsed") } else { elapsed };
    let title = shortened(&model.title, width.saturating_sub(count(&elapsed) + 2));
    let first = ends(vec![Span::styled(title, TITLE)], vec![Span::raw(elapsed)], width);
    let left = model.left.map(|left| {
        let sign = if left.at_least { "≥ " } else { "" };
        // Rounded up, so that a run with time left never has none.
        format!("{sign}{} left", clock(left.seconds.ceil()))
    });
    let percent = format!("{:3.0}%", (model.done * 100.0).floor());
    let mut right = vec![Span::styled(percent, NOW)];
    right.extend(left.map(|left| Span::raw(format!("  {left}"))));
    let mut phases: Vec<Span<'static>> = Vec::new();
    for (place, phase) in model.phases.iter().enumerate() {
        phases.push(if place < model.at {
            Span::styled(format!("✓ {phase}  "), GOOD)
        } else if place == model.at {
            Span::styled(format!("▶ {phase}  "), NOW.add_modifier(Modifier::BOLD))
        } else {
            Span::styled(format!("· {phase}  "), DIM)
        });
    }
    let wide = |spans: &[Span<'_>]| spans.iter().map(Span::width).sum::<usize>();
    if wide(&phases) + wide(&right) > width {
        phases = phases.get(model.at).cloned().into_iter().collect();
    }
    while wide(&phases) + wide(&right) > width && right.pop().is_some() {}
    let room = width.saturating_sub(wide(&phases) + wide(&right) + 1);
    if room >= BAR_MIN {
        let filled = (model.done * room as f64) as usize;
        phases.push(Span::styled("━".repeat(filled), NOW));
        phases.push(Span::styled("─".repeat(room - filled), DIM));
    }
    vec![first, ends(phases, right, width)]
}

/// A line with something at both ends.
fn ends(left: Vec<Span<'static>>, right: Vec<Span<'static>>, width: usize) -> Line<'static> {
    let used: usize = left.iter().chain(&right).map(Span::width).sum();
    let mut line = Line::from(left);
    line.push_span(Span::raw(" ".repeat(width.saturating_sub(used))));
    line.extend(right);
    line
}

/// The charts, the most important first; those without values are left out.
fn panels(model: &Model) -> Vec<Panel> {
    let seconds = model.now.elapsed_seconds.max(1.0);
    let curve = |name, color, of| Curve { name, color, points: model.curve(of) };
    let panel = |title, unit, curves| Panel::Curves { title, unit, curves, seconds };
    let has = |curve: &Curve| curve.points.iter().any(|(_, value)| *value > 0.0);
    let (is_of_requests, open) = match model.requests {
        Some(_) => (true, "open connections"),
        None => (false, "open sockets"),
    };
    let open = Some(curve("open", Color::Blue, model::Curve::Open))
        .filter(has)
        .map(|open_| panel(open, Unit::Count, vec![open_]));
    let received = curve("answered", Color::Cyan, model::Curve::Received);
    let failed = curve("failed", Color::Red, model::Curve::FailedRequests);
    let rate = match is_of_requests {
        true if has(&failed) => Some(("requests/s", vec![received, failed])),
        true => Some(("answers/s", vec![received])),
        false if has(&received) => Some(("received/s", vec![received])),
        false => None,
    };
    let rate = rate.map(|(title, curves)| panel(title, Unit::Count, curves));
    let p50 = curve("p50", Color::Green, model::Curve::P50);
    let p99 = curve("p99", Color::Yellow, model::Curve::P99);
    let latency = has(&p99).then(|| panel(model.latency.name, Unit::Milliseconds, vec![p50, p99]));
    let bins = &model.latency.bins;
    let bars = (!bins.is_empty()).then(|| Panel::Bars {
        title: plot::bars_title(model.latency.name, bins),
        bins: bins.clone(),
    });
    let opens = matches!(&*model.now.phase, "connect" | "stages");
    match (is_of_requests, opens) {
        (true, _) => [rate, latency, bars, open],
        (false, true) => [open, rate, latency, bars],
        (false, false) => [rate, latency, open, bars],
    }
    .into_iter()
    .flatten()
    .collect()
}

/// A title that fits: without the name of the program, then without schemes, then up to the end of a word or
/// number.
fn shortened(text: &str, width: usize) -> String {
    let command = text.strip_prefix("standfast ").unwrap_or(text);
    let plain = command.replace("http://", "").replace("ws://", "");
    if let Some(whole) = [text, command, &plain].into_iter().find(|text| count(text) <= width) {
        return whole.to_owned();
    }
    let text = plain;
    let kept: Vec<char> = text.chars().take(width).collect();
    let end = kept.iter().rposition(|char| !char.is_alphanumeric() && *char != '.').unwrap_or(0);
    let kept: String = kept.into_iter().take(end.min(width.saturating_sub(1))).collect();
    format!("{kept}…")
}

/// 0:59, 1:00:00
pub(super) fn clock(seconds: f64) -> String {
    let whole = seconds as u64;
    let (hours, minutes, seconds) = (whole / 3_600, whole / 60 % 60, whole % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}
