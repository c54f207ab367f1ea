//! Metrics in Prometheus's text format 0.0.4, and the engine's figures as JSON.

use std::fmt::Write;

use engine::{Closed, Counters, Histogram, Refusal, Remote, Totals};
use serde_json::{Map, Value};
use wire::Violation;

/// The type of a metric.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only increases; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Metrics text under construction. Every name gets the prefix `standfast_`.
#[derive(Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// One metric without labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        let name = self.family(name, kind, help);
        let _ = writeln!(self.text, "{name} {value}");
    }

    /// One metric with a sample for each value of a label.
    pub fn labelled(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        label: &str,
        samples: impl IntoIterator<Item = (String, f64)>,
    ) {
        let name = self.family(name, kind, help);
        for (of, value) in samples {
            let _ = writeln!(self.text, "{name}{{{label}=\"{}\"}} {value}", escaped(&of));
        }
    }

    /// One metric with a sample for each set of labels.
    pub fn tagged(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) {
        let name = self.family(name, kind, help);
        for (labels, value) in samples {
            let labels: Vec<String> =
                labels.iter().map(|(label, of)| format!("{label}=\"{}\"", escaped(of))).collect();
            let _ = writeln!(self.text, "{name}{{{}}} {value}", labels.join(","));
        }
    }

    /// A histogram: (upper bound, cumulative count) for each bucket, the last bound infinity; then the
    /// sum of all values and their count.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        (ends, sum, count): (Vec<(f64, u64)>, f64, u64),
    ) {
        let name = format!("standfast_{name}");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (end, count) in ends {
            let end = if end.is_finite() { end.to_string() } else { "+Inf".to_owned() };
            let _ = writeln!(self.text, "{name}_bucket{{le=\"{end}\"}} {count}");
        }
        let _ = writeln!(self.text, "{name}_sum {sum}\n{name}_count {count}");
    }

    /// A histogram of times for each worker that has recorded any.
    pub fn times_by_worker<'h>(
        &mut self,
        name: &str,
        help: &str,
        workers: impl Iterator<Item = &'h Histogram>,
    ) {
        self.histograms(name, help, workers, 1e9);
    }

    /// A histogram for each worker that has recorded anything, with its values divided.
    fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        workers: impl Iterator<Item = &'h Histogram>,
        per_unit: f64,
    ) {
        let name = format!("standfast_{name}");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (worker, histogram) in workers.enumerate() {
            // The buckets are read one after the other while the worker counts on.
            let mut count = histogram.count();
            if count == 0 {
                continue;
            }
            for (bound, within) in histogram.within() {
                let bound = bound as f64 / per_unit;
                let _ = writeln!(
                    self.text,
                    "{name}_bucket{{worker=\"{worker}\",le=\"{bound}\"}} {within}"
                );
                count = count.max(within);
            }
            let sum = histogram.sum() as f64 / per_unit;
            let _ = writeln!(
                self.text,
                "{name}_bucket{{worker=\"{worker}\",le=\"+Inf\"}} {count}\n\
                 {name}_sum{{worker=\"{worker}\"}} {sum}\n\
                 {name}_count{{worker=\"{worker}\"}} {count}"
            );
        }
    }

    fn family(&mut self, name: &str, kind: Kind, help: &str) -> String {
        let (ending, kind) = match kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
        };
        let name = format!("standfast_{name}{ending}");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        name
    }

    /// The text written so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.text.into_bytes()
    }
}

/// Escapes a label value.
fn escaped(of: &str) -> String {
    of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The engine's plain figures that are gauges.
const GAUGES: [&str; 6] =
    ["connections", "websockets", "polled", "polled_bytes", "queued_bytes", "body_bytes"];

/// Writes everything the engine counts, summed over workers.
pub fn engine_metrics(exposition: &mut Exposition, totals: &Totals) {
    for (name, help, value) in totals.described() {
        let kind = if GAUGES.contains(&name) { Kind::Gauge } else { Kind::Counter };
        exposition.single(name, kind, help, value as f64);
    }
    let causes = Closed::ALL.iter().map(|cause| cause.name().to_owned());
    let closed = causes.zip(totals.closed.iter().map(|count| *count as f64));
    let help = "Connections ended, by cause.";
    exposition.labelled("closed", Kind::Counter, help, "cause", closed);
    let reasons = Refusal::ALL.iter().map(|refusal| refusal.name().to_owned());
    let refused = reasons.zip(totals.refused.iter().map(|count| *count as f64));
    let help = "Connections refused, by the limit that was reached.";
    exposition.labelled("refused", Kind::Counter, help, "limit", refused);
    let rules = Violation::ALL.iter().map(|violation| violation.name().to_owned());
    let broken = rules.zip(totals.violations.iter().map(|count| *count as f64));
    let help = "Protocol violations of peers, HTTP and WebSocket; /api/stats names the sections.";
    exposition.labelled("violations", Kind::Counter, help, "violation", broken);
}

/// Writes the histograms that the engine records, by worker.
pub fn engine_histograms<P>(exposition: &mut Exposition, remote: &Remote<P>) {
    let each = || remote.histograms();
    let help = "Time of a turn of a worker's event loop.";
    exposition.times_by_worker("turn_seconds", help, each().map(|worker| &worker.turn_ns));
    let help = "Posts in a worker's mailbox when it takes some of them.";
    exposition.histograms("mailbox_posts", help, each().map(|worker| &worker.mailbox_posts), 1.0);
    let help = "Memory of the posts in a worker's mailbox when it takes some of them.";
    exposition.histograms("mailbox_bytes", help, each().map(|worker| &worker.mailbox_bytes), 1.0);
    let help = "Bytes in a worker's send queues at the end of a turn.";
    let queued = each().map(|worker| &worker.queued_bytes);
    exposition.histograms("worker_queued_bytes", help, queued, 1.0);
}

/// Writes what the kernel counts of connects that it dropped before they were accepted.
pub fn network_metrics(exposition: &mut Exposition) {
    let Some(losses) = capacity::AcceptLosses::read() else { return };
    let each = [
        (
            "listen_overflows",
            losses.listen_overflows,
            "Connects dropped because an accept queue was full, in this network namespace.",
        ),
        (
            "listen_drops",
            losses.listen_drops,
            "Connects dropped by listeners for any reason, in this network namespace.",
        ),
        (
            "syncookies_sent",
            losses.syncookies_sent,
            "SYN cookies sent because a queue was full, in this network namespace.",
        ),
        (
            "syncookies_received",
            losses.syncookies_received,
            "Valid answers to SYN cookies, each a connection, in this network namespace.",
        ),
        (
            "syncookies_failed",
            losses.syncookies_failed,
            "Answers to SYN cookies that were invalid or too late, in this network namespace.",
        ),
    ];
    for (name, value, help) in each {
        exposition.single(name, Kind::Counter, help, value as f64);
    }
}

/// The same figures as a JSON object: plain numbers, `closed` by cause, and `violations` by name with
/// the section that forbids each. Causes and violations with count 0 are left out.
#[must_use]
pub fn engine_stats<'a>(workers: impl IntoIterator<Item = &'a Counters>) -> Map<String, Value> {
    let totals = Totals::sum(workers);
    let mut stats: Map<String, Value> =
        totals.plain().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let causes = Closed::ALL.iter().zip(&totals.closed).filter(|(_, count)| **count > 0);
    let closed: Map<String, Value> =
        causes.map(|(cause, count)| (cause.name().to_owned(), (*count).into())).collect();
    let reasons = Refusal::ALL.iter().zip(&totals.refused).filter(|(_, count)| **count > 0);
    let refused: Map<String, Value> =
        reasons.map(|(refusal, count)| (refusal.name().to_owned(), (*count).into())).collect();
    let rules = Violation::ALL.iter().zip(&totals.violations).filter(|(_, count)| **count > 0);
    let violations: Map<String, Value> = rules
        .map(|(rule, count)| {
            let entry = serde_json::json!({ "count": count, "section": rule.section() });
            (rule.name().to_owned(), entry)
        })
        .collect();
    stats.insert("closed".to_owned(), closed.into());
    stats.insert("refused".to_owned(), refused.into());
    stats.insert("violations".to_owned(), violations.into());
    stats
}

#[cfg(test)]
mod tests {
    use engine::Histograms;

    use super::*;

    #[test]
    fn every_counter_of_the_engine_is_written_once() {
        let counters = Counters::default();
        counters.accepted.add(3);
        counters.count_closed(Closed::Gone);
        counters.count_violation(Violation::InvalidUtf8);
        counters.count_refused(Refusal::PerAddress);
        let totals = Totals::sum([&counters]);
        let mut exposition = Exposition::default();
        engine_metrics(&mut exposition, &totals);
        let text = String::from_utf8(exposition.finish()).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected =
            totals.plain().count() + Closed::ALL.len() + Violation::ALL.len() + Refusal::ALL.len();
        assert_eq!(samples.len(), expected);
        for line in [
            "standfast_accepted_total 3",
            "standfast_connections 0",
            "standfast_closed_total{cause=\"gone\"} 1",
            "standfast_refused_total{limit=\"max_per_address\"} 1",
            "standfast_violations_total{violation=\"invalid_utf8\"} 1",
        ] {
            assert_eq!(samples.iter().filter(|sample| **sample == line).count(), 1, "{line}");
        }
        assert!(text.contains("# HELP standfast_turns_total Turns of the worker.\n"));
        assert!(text.contains("# TYPE standfast_connections gauge\n"));
        assert!(text.contains("# TYPE standfast_accepted_total counter\n"));
    }

    #[test]
    fn several_labels_and_a_histogram_are_in_the_text_format() {
        let mut exposition = Exposition::default();
        let labels = vec![("pool", "a\"b".to_owned()), ("upstream", "c".to_owned())];
        exposition.tagged("x", Kind::Gauge, "h", [(labels, 2.0)]);
        exposition.histogram("t", "h", (vec![(0.5, 1), (f64::INFINITY, 3)], 7.5, 3));
        let text = String::from_utf8(exposition.finish()).unwrap();
        for line in [
            "standfast_x{pool=\"a\\\"b\",upstream=\"c\"} 2",
            "# TYPE standfast_t histogram",
            "standfast_t_bucket{le=\"0.5\"} 1",
            "standfast_t_bucket{le=\"+Inf\"} 3",
            "standfast_t_sum 7.5",
            "standfast_t_count 3",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} in {text}");
        }
    }

    #[test]
    fn histograms_of_workers_are_in_the_text_format() {
        let (busy, idle) = (Histograms::default(), Histograms::default());
        for time_ns in [5_000, 2_000_000, 60_000_000_000] {
            busy.turn_ns.record(time_ns);
        }
        let mut exposition = Exposition::default();
        exposition.times_by_worker("t", "h", [&idle, &busy].into_iter().map(|all| &all.turn_ns));
        let lines: Vec<&str> = exposition.text().lines().collect();
        assert_eq!(lines[..2], ["# HELP standfast_t h", "# TYPE standfast_t histogram"]);
        assert!(!exposition.text().contains("worker=\"0\""), "an idle worker has no samples");
        for line in [
            "standfast_t_bucket{worker=\"1\",le=\"0.00001\"} 1",
            "standfast_t_bucket{worker=\"1\",le=\"0.001\"} 1",
            "standfast_t_bucket{worker=\"1\",le=\"0.003\"} 2",
            "standfast_t_bucket{worker=\"1\",le=\"10\"} 2",
            "standfast_t_bucket{worker=\"1\",le=\"+Inf\"} 3",
            "standfast_t_sum{worker=\"1\"} 60.002005",
            "standfast_t_count{worker=\"1\"} 3",
        ] {
            assert!(lines.contains(&line), "{line} in {lines:?}");
        }
    }

    #[test]
    fn label_values_are_escaped() {
        let mut exposition = Exposition::default();
        let sample = ("a\"b\\c\nd".to_owned(), 1.0);
        exposition.labelled("x", Kind::Gauge, "h", "of", [sample]);
        let text = String::from_utf8(exposition.finish()).unwrap();
        assert!(text.ends_with("standfast_x{of=\"a\\\"b\\\\c\\nd\"} 1\n"), "{text}");
    }
}
