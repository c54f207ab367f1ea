//! Layout of the live screen, from the top: phases, sockets, rates, memory and CPU of both sides,
//! latency, errors, and the latest notes in the remaining rows. Small terminals get less space, then no
//! curves. Colours are the terminal's sixteen, on its own background.

use std::iter;

use capacity::{Bytes, Count};
use ratatui::Frame;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

use super::model::{Curve, Model};
use load::{Sample, Usage};

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const GOOD: Style = Style::new().fg(Color::Green);
const NOW: Style = Style::new().fg(Color::Cyan);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Width of the names in the left column.
const NAME_WIDTH: usize = 10;
/// Number of columns from which there is a margin and the table columns are spread.
const WIDE: u16 = 60;
/// Rows of everything except curves, gaps and notes.
const ROWS_MIN: u16 = 13;
const CURVES: u16 = 3;
const GAPS: u16 = 5;
/// Number of rows beyond a default terminal for which curves grow by one row.
const CURVE_GROWS: u16 = 6;
const CURVE_ROWS_MAX: u16 = 4;
const ROWS_USUAL: u16 = 24;

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    let margin = u16::from(area.width >= WIDE);
    let inner = Rect { x: area.x + margin, width: area.width - 2 * margin, ..area };
    let curve_rows = match area.height {
        height if height >= ROWS_USUAL => {
            (1 + (height - ROWS_USUAL) / CURVE_GROWS).min(CURVE_ROWS_MAX)
        }
        height => u16::from(height >= ROWS_MIN + CURVES),
    };
    let gaps = area.height >= ROWS_MIN + CURVES * curve_rows + GAPS;
    let mut pen = Pen { frame, left: inner, curve_rows, gaps };
    top(&mut pen, model);
    sockets(&mut pen, model);
    rates(&mut pen, model);
    table(&mut pen, model);
    latency(&mut pen, model);
    errors(&mut pen, model);
    notes(&mut pen, model);
}

/// Places elements below each other until the space is used.
struct Pen<'a, 'b> {
    frame: &'a mut Frame<'b>,
    /// The free area.
    left: Rect,
    curve_rows: u16,
    gaps: bool,
}

impl Pen<'_, '_> {
    fn take(&mut self, rows: u16) -> Rect {
        let rows = rows.min(self.left.height);
        let taken = Rect { height: rows, ..self.left };
        self.left.y += rows;
        self.left.height -= rows;
        taken
    }

    fn line(&mut self, line: Line<'_>) {
        let area = self.take(1);
        self.frame.render_widget(line, area);
    }

    fn gap(&mut self) {
        if self.gaps {
            self.take(1);
        }
    }

    /// Draws a curve over the whole run, with its maximum at the left if there is space.
    fn curve(&mut self, model: &Model, curve: Curve, style: Style) {
        if self.curve_rows == 0 {
            return;
        }
        let mut area = self.take(self.curve_rows);
        let indent = if self.is_wide() { NAME_WIDTH as u16 } else { 0 };
        let scale = Rect { width: indent, height: 1, ..area };
        area.x += indent;
        area.width = area.width.saturating_sub(indent);
        let values = model.curve(curve, usize::from(area.width));
        let top = match curve {
            Curve::Open => model.sockets,
            Curve::Received | Curve::P99 => values.iter().copied().max().unwrap_or(0),
        };
        let text = match curve {
            _ if top == 0 => String::new(),
            Curve::Open => short(top),
            Curve::Received => format!("{}/s", short(top)),
            Curve::P99 => milliseconds(top as f64 / 1e3),
        };
        self.frame.render_widget(Line::styled(text, DIM), scale);
        self.frame
            .render_widget(Sparkline::default().data(values).max(top.max(1)).style(style), area);
    }

    fn is_wide(&self) -> bool {
        self.left.width + 2 >= WIDE
    }
}

/// Draws the title, the elapsed time and the phases: done, current, next.
fn top(pen: &mut Pen<'_, '_>, model: &Model) {
    let area = pen.take(1);
    pen.frame.render_widget(Line::styled(model.title.as_str(), BOLD), area);
    let clock = Line::from(format!(" {}", clock(model.now.elapsed_seconds)));
    pen.frame.render_widget(clock.alignment(Alignment::Right), right(area, 9));
    let mut spans = Vec::new();
    for (place, phase) in model.phases.iter().enumerate() {
        let span = if place < model.at {
            Span::styled(format!("✓ {phase}  "), GOOD)
        } else if place == model.at {
            let percent = (model.done * 100.0).floor();
            Span::styled(format!("▶ {phase} {percent:.0}%  "), NOW.add_modifier(Modifier::BOLD))
        } else {
            Span::styled(format!("· {phase}  "), DIM)
        };
        spans.push(span);
    }
    pen.line(Line::from(spans));
    pen.gap();
}

fn sockets(pen: &mut Pen<'_, '_>, model: &Model) {
    let (open, all) = (model.now.open, model.sockets);
    let text = format!(" {} of {}", Count(open), Count(all));
    let indent = if pen.is_wide() { NAME_WIDTH } else { 0 };
    let width = usize::from(pen.left.width).saturating_sub(indent + text.chars().count());
    let share = if all == 0 { 0.0 } else { (open as f64 / all as f64).min(1.0) };
    let filled = (share * width as f64) as usize;
    let mut line = Line::default();
    if pen.is_wide() {
        line.push_span(Span::styled(format!("{:NAME_WIDTH$}", "sockets"), DIM));
    }
    line.push_span(Span::styled("█".repeat(filled), NOW));
    line.push_span(Span::styled("░".repeat(width.saturating_sub(filled)), DIM));
    line.push_span(Span::styled(text, BOLD));
    pen.line(line);
    pen.curve(model, Curve::Open, NOW);
    pen.gap();
}

fn rates(pen: &mut Pen<'_, '_>, model: &Model) {
    let rates = model.rates();
    let figures = [("opened", rates.opened), ("sent", rates.sent), ("received", rates.received)];
    let figures = figures.map(|(name, rate)| (name, format!("{}/s", Count(rate as u64))));
    row(pen, "rates", &figures);
    pen.curve(model, Curve::Received, NOW);
    pen.gap();
}

/// Draws memory, memory per socket and CPU of each side.
fn table(pen: &mut Pen<'_, '_>, model: &Model) {
    let rates = model.rates();
    let rss = |usage: Option<Usage>| usage.map(|usage| usage.rss_bytes);
    let each = |of: fn(&Sample) -> Option<u64>| model.bytes_per_socket(of);
    let server = each(|sample| sample.server.map(|usage| usage.rss_bytes));
    let client = each(|sample| sample.client.map(|usage| usage.rss_bytes));
    let kernel = model.kernel_bytes_per_socket();
    pen.line(Line::styled(columns(pen.is_wide(), ["", "memory", "per socket", "CPU"]), DIM));
    for (name, memory, each, cpu) in [
        ("server", rss(model.now.server), server, rates.server_cpu),
        ("client", rss(model.now.client), client, rates.client_cpu),
        ("kernel", model.now.kernel_bytes, kernel, None),
    ] {
        let Some(memory) = memory else { continue };
        let each = each.map_or("–".to_owned(), |bytes| Bytes(bytes).to_string());
        let cpu = cpu.map_or(String::new(), |cores| format!("{:.0}%", cores * 100.0));
        let memory = Bytes(memory).to_string();
        let line = columns(pen.is_wide(), [name, &memory, &each, &cpu]);
        let (name, figures) = line.split_at(NAME_WIDTH.min(line.len()));
        pen.line(Line::from(vec![Span::styled(name, DIM), Span::raw(figures)]));
    }
    pen.gap();
}

fn columns(wide: bool, [name, memory, each, cpu]: [&str; 4]) -> String {
    let width = if wide { 14 } else { 10 };
    format!("{name:NAME_WIDTH$}{memory:>width$}{each:>width$}{cpu:>width$}")
}

fn latency(pen: &mut Pen<'_, '_>, model: &Model) {
    let latency = model.now.latency;
    let ms = |value: Option<f64>| value.map_or("–".to_owned(), milliseconds);
    let figures = [
        ("p50", ms(latency.map(|latency| latency.p50_ms))),
        ("p99", ms(latency.map(|latency| latency.p99_ms))),
        ("max", ms(latency.map(|latency| latency.max_ms))),
    ];
    row(pen, "latency", &figures);
    pen.curve(model, Curve::P99, Style::new().fg(Color::Yellow));
    pen.gap();
}

fn errors(pen: &mut Pen<'_, '_>, model: &Model) {
    let name = Span::styled(format!("{:NAME_WIDTH$}", "errors"), DIM);
    if model.now.errors.is_empty() && model.now.failed + model.now.closed == 0 {
        pen.line(Line::from(vec![name, Span::styled("none", GOOD)]));
        return;
    }
    let mut causes: Vec<_> = model
        .now
        .errors
        .iter()
        .map(|(cause, count)| format!("{} {}", cause.replace('_', " "), Count(*count)))
        .collect();
    if causes.is_empty() {
        let totals = [("failed", model.now.failed), ("closed", model.now.closed)];
        let totals = totals.into_iter().filter(|(_, count)| *count > 0);
        causes = totals.map(|(name, count)| format!("{name} {}", Count(count))).collect();
    }
    let width = usize::from(pen.left.width).saturating_sub(NAME_WIDTH);
    let lines = packed(&causes, width);
    let names = iter::once(name).chain(iter::repeat(Span::raw(" ".repeat(NAME_WIDTH))));
    for (name, line) in names.zip(lines) {
        pen.line(Line::from(vec![name, Span::styled(line, BAD)]));
    }
}

/// Draws the latest notes in the remaining rows, and the hint at the bottom.
fn notes(pen: &mut Pen<'_, '_>, model: &Model) {
    if pen.left.height == 0 {
        return;
    }
    let bottom = Rect { y: pen.left.bottom() - 1, height: 1, ..pen.left };
    pen.frame.render_widget(
        Line::styled("Ctrl-C stops the run and prints the results so far", DIM),
        bottom,
    );
    pen.left.height -= 1;
    if pen.left.height > 1 {
        pen.take(1);
    }
    let lines = model.last_notes(usize::from(pen.left.height));
    let lines: Vec<Line<'_>> = lines.iter().map(|line| Line::from(line.trim_end())).collect();
    pen.frame.render_widget(Paragraph::new(lines), pen.left);
}

/// Draws a name and three figures in fixed columns; on a narrow terminal the third is on its own line.
fn row(pen: &mut Pen<'_, '_>, name: &str, figures: &[(&str, String); 3]) {
    let indent = Span::raw(" ".repeat(NAME_WIDTH));
    let mut line = Line::from(Span::styled(format!("{name:NAME_WIDTH$}"), DIM));
    let room = usize::from(pen.left.width).saturating_sub(NAME_WIDTH);
    let wide = pen.is_wide();
    let width = if wide { (room / 3).min(22) } else { room / 2 };
    for (at, (name, value)) in figures.iter().enumerate() {
        if !wide && at == 2 {
            pen.line(std::mem::take(&mut line));
            line.push_span(indent.clone());
        }
        let width = width.saturating_sub(name.len() + 1);
        line.push_span(Span::styled(format!("{name} "), DIM));
        line.push_span(Span::raw(format!("{value:width$}")));
    }
    pen.line(line);
}

/// Wraps words into lines of at most `width`, unless one word is longer.
fn packed(words: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() + 3 <= width => {
                *line += " · ";
                *line += word;
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}

/// Formats a count briefly: 950, 34k, 1.2M.
fn short(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..10_000 => format!("{:.1}k", count as f64 / 1e3),
        10_000..999_500 => format!("{:.0}k", count as f64 / 1e3),
        _ => format!("{:.1}M", count as f64 / 1e6),
    }
}

fn milliseconds(value: f64) -> String {
    let digits = if value < 10.0 { 2 } else { 0 };
    format!("{value:.digits$} ms")
}

fn clock(seconds: f64) -> String {
    let whole = seconds as u64;
    let (hours, minutes, seconds) = (whole / 3_600, whole / 60 % 60, whole % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

fn right(area: Rect, width: u16) -> Rect {
    let width = width.min(area.width);
    Rect { x: area.right() - width, width, ..area }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::report::screen::{About, Step};
    use load::SampleLatency;

    fn model() -> Model {
        let usage = |rss_bytes, cpu_seconds| Some(Usage { rss_bytes, cpu_seconds });
        let before = Sample { server: usage(0, 0.0), kernel_bytes: Some(0), ..Sample::default() };
        let phases = vec!["connect", "hold", "broadcast"];
        let title = "standfast prove million".to_owned();
        let mut model =
            Model::new(About { title, phases, sockets: 1_000_000, ends_here: 2, before });
        for second in 0..3_700 {
            let sample = Sample {
                elapsed_seconds: f64::from(second),
                phase: if second < 30 { "connect" } else { "hold" }.into(),
                open: (u64::from(second as u32) * 30_000).min(900_000),
                failed: 3,
                closed: 2,
                received: u64::from(second as u32) * 34_567,
                latency: Some(SampleLatency { p50_ms: 1.25, p99_ms: 88.0, max_ms: 120.0 }),
                server: usage(63_000_000, f64::from(second) * 1.5),
                client: usage(70_000_000, f64::from(second) * 0.5),
                kernel_bytes: Some(7_560_000_000),
                errors: vec![("connect_timeout".to_owned(), 3), ("reset".to_owned(), 2)],
                ..Sample::default()
            };
            model.take(&sample, &Step { row: String::new(), done: 0.42 });
        }
        model.note("connected: 900,000 open");
        model
    }

    fn drawn(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn default_and_large_terminals_show_everything() {
        for (width, height) in [(80, 24), (120, 40), (200, 60)] {
            let screen = drawn(&model(), width, height);
            for text in [
                "standfast prove million",
                "1:01:39",
                "✓ connect  ▶ hold 42%  · broadcast",
                "900,000 of 1,000,000",
                "received 34,567/s",
                "server             63 MB          70 B          150%",
                "client             70 MB             –           50%",
                "kernel            7.6 GB        4.2 kB",
                "p50 1.25 ms",
                "p99 88 ms",
                "connect timeout 3 · reset 2",
                "connected: 900,000 open",
                "Ctrl-C",
            ] {
                assert!(screen.contains(text), "{width}x{height}: no {text:?} in\n{screen}");
            }
        }
    }

    #[test]
    fn small_terminals_keep_the_figures() {
        for (width, height) in [(40, 24), (40, 16)] {
            let screen = drawn(&model(), width, height);
            for text in ["▶ hold 42%", "900,000 of 1,000,000", "34,567/s", "63 MB", "p99 88 ms"] {
                assert!(screen.contains(text), "{width}x{height}: no {text:?} in\n{screen}");
            }
        }
        let low = drawn(&model(), 80, 13);
        assert!(low.contains("connect timeout 3") && low.contains("Ctrl-C"), "{low}");
    }

    #[test]
    fn no_size_is_too_small() {
        for width in 1..30 {
            for height in 1..14 {
                drawn(&model(), width, height);
            }
        }
    }

    #[test]
    fn counts_are_brief_and_times_are_clocks() {
        let counts = [950, 1_234, 34_567, 999_499, 999_500].map(short);
        assert_eq!(counts, ["950", "1.2k", "35k", "999k", "1.0M"]);
        assert_eq!([59.9, 61.0, 3_600.0].map(clock), ["0:59", "1:01", "1:00:00"]);
    }
}
