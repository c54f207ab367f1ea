//! How a run is shown: [`Report`] is one self-contained HTML file with verdict and reasons, figures,
//! charts over time, the machine, and the command that repeats the run; [`csv`], [`prometheus`] and
//! [`screen`] follow a run while it lasts. The text and the JSON are of [`load::Outcome`] itself.
//!
//! The commands supply rows of text; [`outcome`] makes them of an outcome. The template escapes all
//! values.

mod chart;
pub(crate) mod csv;
mod outcome;
pub(crate) mod prometheus;
pub(crate) mod screen;

use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use capacity::{Bytes, Count, Machine};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use self::chart::{Chart, Drawing, Line, Unit};
use crate::output;
use load::{Sample, SampleSeries, Usage};

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
    /// The main figures, each with a text.
    pub(crate) figures: Rows,
    pub(crate) tables: Vec<Table>,
    /// The configuration, including defaults.
    pub(crate) configuration: Rows,
    pub(crate) series: &'a SampleSeries,
    pub(crate) machine: &'a Machine,
    pub(crate) command: String,
}

/// A table of the report.
#[derive(Serialize)]
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) heads: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
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
        // The date of the report; measurements use the engine's clock.
        #[allow(clippy::disallowed_methods, reason = "a calendar date, not a measurement")]
        let now = SystemTime::now();
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        let template = environment.template_from_str(include_str!("report.html"));
        let samples = self.series.samples();
        let (verdict, good) = self.verdict;
        template
            .and_then(|template| {
                template.render(context! {
                    title => self.title.as_str(),
                    verdict => verdict,
                    good => good,
                    result => self.result.as_str(),
                    reasons => Serde(self.reasons),
                    figures => Serde(&self.figures),
                    tables => Serde(&self.tables),
                    configuration => Serde(&self.configuration),
                    ended => output::utc(now),
                    charts => Serde(charts(samples)),
                    quiet => quiet(samples, self.reasons),
                    machine => Serde(machine(self.machine)),
                    command => self.command.as_str(),
                    version => env!("CARGO_PKG_VERSION"),
                    style => include_str!("report.css"),
                    script => include_str!("report.js"),
                })
            })
            .context("cannot render the report")
    }
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
    if lines.iter().any(some) { lines.into() } else { Vec::new() }
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
    [
        chart(open, Unit::Count, vec![line("open", &|s| Some(s.open as f64))]),
        chart(
            "Process memory",
            Unit::Bytes,
            vec![line("server", &|s| rss(s.server)), line("client", &|s| rss(s.client))],
        ),
        chart(
            "Kernel memory growth",
            Unit::Bytes,
            vec![line("both ends", &|s| s.kernel_bytes.map(|bytes| bytes as f64))],
        ),
        chart(
            "CPU, in cores",
            Unit::Cores,
            vec![rate("server", &|s| cpu(s.server)), rate("client", &|s| cpu(s.client))],
        ),
        chart(
            messages,
            Unit::PerSecond,
            vec![
                rate("sent", &|s| Some(s.sent as f64)),
                rate("received", &|s| Some(s.received as f64)),
            ],
        ),
        chart(
            "Latency",
            Unit::Milliseconds,
            vec![
                line("p50", &|s| s.latency.map(|latency| latency.p50_ms)),
                line("p99", &|s| s.latency.map(|latency| latency.p99_ms)),
                line("longest", &|s| s.latency.map(|latency| latency.max_ms)),
            ],
        ),
        chart("Errors so far", Unit::Count, errors(samples)),
    ]
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
            figures: vec![("open".into(), "9".into())],
            tables: Vec::new(),
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
            (page.matches("<svg ").count(), page.matches("<th scope=\"row\">").count());
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
