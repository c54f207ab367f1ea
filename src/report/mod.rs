//! How a run is shown: [`Report`] is one self-contained HTML file with verdict and reasons, figures,
//! charts over time, the machine, and the command that repeats the run; [`comparison`] is one of runs before and
//! after a change; [`csv`], [`prometheus`] and
//! [`screen`] follow a run while it lasts. The text and the JSON are of [`load::Outcome`] itself.
//!
//! The commands supply rows of text; [`outcome`] makes them of an outcome. The template escapes all
//! values.

mod chart;
pub(crate) mod comparison;
pub(crate) mod csv;
mod histogram;
mod outcome;
pub(crate) mod prometheus;
mod scale;
pub(crate) mod screen;
mod timeline;
mod timings;

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use capacity::{Bytes, Count, Machine, Milliseconds};
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use self::chart::{Chart, Drawing, Line};
use self::scale::Unit;
pub(crate) use self::timeline::{Lane, Timeline};
pub(crate) use self::timings::Timings;
use crate::output;
use load::{Latency, Sample, SampleSeries, Usage};

/// Rows of a name and a text.
pub(crate) type Rows = Vec<(String, String)>;

/// The content of a report.
pub(crate) struct Report<'a> {
    /// Title of the run.
    pub(crate) title: String,
    /// The verdict, and whether it is a success.
    pub(crate) verdict: (&'a str, bool),
    /// The result in one sentence.
    pub(crate) result: String,
    pub(crate) reasons: &'a [String],
    /// Of which of several runs the figures are.
    pub(crate) scope: Option<String>,
    /// What to look at first.
    pub(crate) tiles: Vec<Tile>,
    pub(crate) timings: Timings,
    /// The other figures, each with a text.
    pub(crate) figures: Rows,
    pub(crate) tables: Vec<Table>,
    /// What is compared.
    pub(crate) bars: Vec<Bars>,
    /// What happened when.
    pub(crate) timeline: Option<Timeline>,
    /// The configuration, including defaults.
    pub(crate) configuration: Rows,
    pub(crate) series: &'a SampleSeries,
    pub(crate) machine: &'a Machine,
    pub(crate) command: String,
}

/// A table of the report. Its first column are names.
#[derive(Serialize)]
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) heads: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Further columns with text instead of figures.
    pub(crate) texts: &'static [usize],
}

/// A large figure with what it is.
#[derive(Serialize)]
pub(crate) struct Tile {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// What qualifies it; may be empty.
    pub(crate) note: String,
    pub(crate) is_bad: bool,
}

impl Tile {
    pub(crate) fn new(name: &'static str, value: String, note: impl Into<String>) -> Tile {
        Tile { name, value, note: note.into(), is_bad: false }
    }

    pub(crate) fn percentiles(p50: f64, p99: f64, max: f64) -> [Tile; 3] {
        [("p50", p50), ("p99", p99), ("max", max)]
            .map(|(name, ms)| Tile::new(name, Milliseconds(ms).to_string(), "latency"))
    }

    /// A count of what should not happen.
    pub(crate) fn bad(name: &'static str, count: u64, note: impl Into<String>) -> Tile {
        Tile { is_bad: count > 0, ..Tile::new(name, Count(count).to_string(), note) }
    }
}

/// Values next to each other as bars, on a scale from zero to the highest.
#[derive(Serialize)]
pub(crate) struct Bars {
    title: &'static str,
    rows: Vec<Bar>,
}

#[derive(Serialize)]
struct Bar {
    name: String,
    /// Length in percent of the longest.
    length: String,
    text: String,
    is_bad: bool,
}

impl Bars {
    /// Of names, values, their texts, and whether they are bad. `None` without values.
    pub(crate) fn new(
        title: &'static str,
        values: impl IntoIterator<Item = (String, f64, String, bool)>,
    ) -> Option<Bars> {
        let values: Vec<_> = values.into_iter().collect();
        let most = values.iter().map(|(_, value, ..)| *value).fold(0.0, f64::max);
        let length = |value: f64| if most > 0.0 { 100.0 * value / most } else { 0.0 };
        let bar = |(name, value, text, is_bad): (String, f64, String, bool)| Bar {
            name,
            length: format!("{:.2}", length(value)),
            text,
            is_bad,
        };
        let rows: Vec<Bar> = values.into_iter().map(bar).collect();
        (!rows.is_empty()).then_some(Bars { title, rows })
    }
}

impl Report<'_> {
    /// Writes the report.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn write(&self, file: &str) -> Result<()> {
        output::write_file(Path::new(file), &self.render()?)
    }

    fn render(&self) -> Result<String> {
        let samples = self.series.samples();
        let (verdict, good) = self.verdict;
        render(
            include_str!("report.html"),
            context! {
                title => self.title.as_str(),
                verdict => verdict,
                good => good,
                result => self.result.as_str(),
                reasons => Serde(self.reasons),
                scope => self.scope.as_deref(),
                tiles => Serde(&self.tiles),
                percentiles => Serde(percentiles(&self.timings)),
                histogram => Serde(&self.timings.histogram),
                figures => Serde(&self.figures),
                tables => Serde(&self.tables),
                bars => Serde(&self.bars),
                timeline => Serde(self.timeline.as_ref().map(Timeline::draw)),
                configuration => Serde(&self.configuration),
                ended => now(),
                charts => Serde(charts(samples)),
                quiet => quiet(samples, self.reasons),
                machine => Serde(machine(self.machine)),
                command => self.command.as_str(),
                script => include_str!("report.js"),
            },
        )
    }
}

/// Fills in a template, which also has `head`, `style` and `version`; values are escaped.
fn render(template: &str, values: Value) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let values = context! {
        version => env!("CARGO_PKG_VERSION"),
        head => admin::PAGE_HEAD,
        style => include_str!("report.css"),
        ..values
    };
    let template = environment.template_from_str(template);
    template.and_then(|template| template.render(values)).context("cannot render the report")
}

/// The date of a page; measurements use the engine's clock.
fn now() -> String {
    #[allow(clippy::disallowed_methods, reason = "a calendar date, not a measurement")]
    let now = SystemTime::now();
    output::utc(now)
}

/// Returns each name with p50, p90, p95, p99, p99.9 and the maximum.
fn percentiles(timings: &Timings) -> Vec<(&'static str, [String; 6])> {
    let times = |l: &Latency| {
        [l.p50_ms, l.p90_ms, l.p95_ms, l.p99_ms, l.p999_ms, l.max_ms]
            .map(|ms| Milliseconds(ms).to_string())
    };
    timings.rows.iter().map(|(name, latency)| (*name, times(latency))).collect()
}

/// Returns whether the samples are of requests, not of WebSockets.
fn is_of_requests(samples: &[Sample]) -> bool {
    samples.iter().any(|sample| sample.phase == "requests")
}

/// Returns the failed requests so far.
fn failed_requests(sample: &Sample) -> u64 {
    sample.errors.iter().map(|(_, count)| count).sum()
}

/// Returns the text that replaces the chart of errors. The reasons count as well, as samples may miss the
/// end of a run.
fn quiet(samples: &[Sample], reasons: &[String]) -> Option<&'static str> {
    let failed = samples.iter().any(|sample| sample.failed > 0);
    match is_of_requests(samples) {
        true => (!failed && reasons.is_empty()).then_some("No request failed."),
        false => (!failed && samples.iter().all(|sample| sample.closed == 0))
            .then_some("No connection failed to open and none was closed."),
    }
}

/// Returns the lines of errors so far, without empty ones.
fn errors(samples: &[Sample]) -> Vec<Line> {
    let line = |name, value: &dyn Fn(&Sample) -> u64| Line {
        name,
        values: samples.iter().map(|sample| Some(value(sample) as f64)).collect(),
    };
    let lines = match is_of_requests(samples) {
        true => [line("requests failed", &failed_requests), line("failed to open", &|s| s.failed)],
        false => [line("failed to open", &|s| s.failed), line("closed", &|s| s.closed)],
    };
    let some = |line: &Line| line.values.iter().flatten().any(|value| *value > 0.0);
    lines.into_iter().filter(some).collect()
}

fn charts(samples: &[Sample]) -> Vec<Drawing> {
    let seconds: Vec<f64> = samples.iter().map(|sample| sample.elapsed_seconds).collect();
    let phases = phases(samples);
    let chart = |title, unit, lines| {
        Chart { title, seconds: &seconds, lines, unit, phases: &phases }.draw()
    };
    let line = |name, value: &dyn Fn(&Sample) -> Option<f64>| Line {
        name,
        values: samples.iter().map(value).collect(),
    };
    let rate = |name, count: &dyn Fn(&Sample) -> Option<f64>| Line {
        name,
        values: per_second(samples, count),
    };
    let rss = |usage: Option<Usage>| usage.map(|usage| usage.rss_bytes as f64);
    let cpu = |usage: Option<Usage>| usage.map(|usage| usage.cpu_seconds);
    let (open, messages) = match is_of_requests(samples) {
        true => ("Open connections", "Requests and answers"),
        false => ("Open sockets", "Messages and heartbeats"),
    };
    let open = chart(open, Unit::Count, vec![line("open", &|s| Some(s.open as f64))]);
    let messages = chart(
        messages,
        Unit::PerSecond,
        vec![
            rate("sent", &|s| Some(s.sent as f64)),
            rate("received", &|s| Some(s.received as f64)),
        ],
    );
    let latency = chart(
        "Latency in each second",
        Unit::Milliseconds,
        vec![
            line("p50", &|s| s.latency.map(|latency| latency.p50_ms)),
            line("p99", &|s| s.latency.map(|latency| latency.p99_ms)),
            line("max", &|s| s.latency.map(|latency| latency.max_ms)),
        ],
    );
    let errors = chart("Errors so far", Unit::Count, errors(samples));
    let cpu = chart(
        "CPU, in cores",
        Unit::Cores,
        vec![rate("server", &|s| cpu(s.server)), rate("client", &|s| cpu(s.client))],
    );
    let memory = chart(
        "Process memory",
        Unit::Bytes,
        vec![line("server", &|s| rss(s.server)), line("client", &|s| rss(s.client))],
    );
    let kernel = chart(
        "Kernel memory growth",
        Unit::Bytes,
        vec![line("both ends", &|s| s.kernel_bytes.map(|bytes| bytes as f64))],
    );
    match is_of_requests(samples) {
        // Sockets in the kernel are few, and other programs have more.
        true => [messages, latency, errors, open, cpu, memory, None],
        false => [open, messages, latency, errors, cpu, memory, kernel],
    }
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the growth of a count per second between samples.
fn per_second(samples: &[Sample], count: &dyn Fn(&Sample) -> Option<f64>) -> Vec<Option<f64>> {
    let growth = |pair: &[Sample]| {
        let [before, after] = pair else { return None };
        let seconds = after.elapsed_seconds - before.elapsed_seconds;
        let grown = count(after)? - count(before)?;
        (seconds > 0.0).then(|| (grown / seconds).max(0.0))
    };
    let first = samples.first().map(|_| None);
    first.into_iter().chain(samples.windows(2).map(growth)).collect()
}

/// Returns where each phase begins.
fn phases(samples: &[Sample]) -> Vec<(f64, &str)> {
    let mut phases: Vec<(f64, &str)> = Vec::new();
    for sample in samples {
        if phases.last().is_none_or(|(_, last)| *last != sample.phase) {
            let begins = if phases.is_empty() { 0.0 } else { sample.elapsed_seconds };
            phases.push((begins, &*sample.phase));
        }
    }
    phases
}

fn machine(machine: &Machine) -> Rows {
    let unknown = || "unknown".to_owned();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| Bytes(bytes).to_string());
    let count = |count: Option<u64>| count.map_or_else(unknown, |count| Count(count).to_string());
    let pages = machine
        .tcp
        .mem_pages
        .map_or_else(unknown, |pages| pages.map(|pages| Count(pages).to_string()).join(" · "));
    let range = machine.ports.range.map_or_else(unknown, |(a, b)| format!("{a}–{b}"));
    [
        ("processor", machine.cpu_model.clone().unwrap_or_else(unknown)),
        ("cores", machine.cores.to_string()),
        ("memory", bytes(machine.memory.total_bytes)),
        ("memory available before", bytes(machine.memory.available_bytes)),
        ("kernel", format!("Linux {}", machine.kernel.clone().unwrap_or_else(unknown))),
        ("in a container", if machine.container { "yes" } else { "no" }.to_owned()),
        ("descriptors per table", Count(machine.files.table()).to_string()),
        ("open files, whole machine", count(machine.files.file_max)),
        ("ports", range),
        ("accept queue (somaxconn)", count(machine.tcp.somaxconn)),
        ("TCP memory, pages", pages),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(series: &SampleSeries) -> String {
        let reasons = ["<script>alert(1)</script> & more".to_owned()];
        Report {
            title: "a <b>bold</b> run".to_owned(),
            verdict: ("FELL SHORT", false),
            result: "9 of 10".to_owned(),
            reasons: &reasons,
            scope: None,
            tiles: vec![Tile::bad("Failed", 1_234, "of <b>all</b>")],
            timings: Timings::default(),
            figures: vec![("open".into(), "9".into())],
            tables: Vec::new(),
            bars: Bars::new("By <i>name</i>", [("x".into(), 0.0, "0".into(), false)])
                .into_iter()
                .collect(),
            timeline: None,
            configuration: vec![("subprotocol".into(), "☃ & <i>co</i>".into())],
            series,
            machine: &Machine::read(),
            command: "standfast load -H 'X: \"</script>\"'".to_owned(),
        }
        .render()
        .unwrap()
    }

    #[test]
    fn values_are_escaped() {
        let page = report(&SampleSeries::new());
        assert!(!page.contains("<b>bold") && !page.contains("<script>alert"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)") && page.contains("a &lt;b&gt;bold"));
        assert!(page.contains("☃ &amp; &lt;i&gt;co"), "{page}");
        assert!(page.contains("of &lt;b&gt;all") && page.contains("By &lt;i&gt;name"), "{page}");
        assert!(page.contains("1,234") && !page.contains("NaN"), "{page}");
        assert_eq!(page.matches("</script>").count(), 1);
    }

    #[test]
    fn unmeasured_values_have_no_chart() {
        let mut series = SampleSeries::new();
        for second in 0..5 {
            let elapsed_seconds = f64::from(second);
            let phase = if second < 2 { "connect" } else { "hold" };
            series.push(&Sample {
                elapsed_seconds,
                phase: phase.into(),
                open: 7,
                ..Sample::default()
            });
        }
        let page = report(&series);
        assert!(page.contains("Open sockets") && page.contains("<polyline"));
        assert!(!page.contains("Process memory") && !page.contains("Latency"));
        assert!(page.contains(">connect<") || page.contains(">hold<"));
        let (charts, rows) =
            (page.matches("<svg viewBox").count(), page.matches("<th scope=\"row\">").count());
        assert_eq!(rows, 5 * charts, "each moment is also a row of the table");
    }

    #[test]
    fn rates_are_computed_between_samples() {
        let at = |elapsed_seconds, sent| Sample { elapsed_seconds, sent, ..Sample::default() };
        let samples = [at(0.0, 0), at(2.0, 10), at(2.0, 10), at(3.0, 10)];
        let rates = per_second(&samples, &|s| Some(s.sent as f64));
        assert_eq!(rates, [None, Some(5.0), None, Some(0.0)]);
    }
}
