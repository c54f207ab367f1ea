//! The HTML report of a WebSocket run of `load`: its figures as rows of a [`Report`].

use std::collections::BTreeMap;
use std::time::Duration;

use capacity::{Count, Machine};
use load::stages::Stage;
use load::{BroadcastSummary, CableSummary, Config, Echo, Fanout, Latency, Publish, Summary};

use super::threshold::Outcome;
use super::watch::{Generator, Watched};
use super::{Document, connect_flag};
use crate::output;
use crate::progress::Series;
use crate::report::{Report, Rows, Table};
use crate::units::format_duration;

/// Returns the report of a run.
pub(super) fn report<'a>(
    (urls, config): (&[String], &Config),
    (document, interrupted): (&Document<'a>, bool),
    series: &'a Series,
    machine: &'a Machine,
) -> Report<'a> {
    let summary = document.summary;
    let missed = document.thresholds.iter().any(|outcome| !outcome.met);
    let verdict = match (interrupted, summary.held) {
        (true, _) => ("INTERRUPTED", false),
        (false, false) => ("FELL SHORT", false),
        (false, true) if missed => ("THRESHOLD MISSED", false),
        (false, true) => ("HELD", true),
    };
    let connections = &summary.connections;
    Report {
        title: format!("Load on {}", urls.join(", ")),
        verdict,
        result: format!(
            "{} of {} WebSockets open at the end",
            Count(connections.open),
            Count(connections.requested)
        ),
        reasons: &summary.reasons,
        figures: figures(document),
        tables: thresholds(document.thresholds).into_iter().collect(),
        configuration: configuration(config),
        series,
        machine,
        command: output::command_line(),
    }
}

/// Returns the table of thresholds, if there are any.
pub(super) fn thresholds(outcomes: &[Outcome]) -> Option<Table> {
    let row = |outcome: &Outcome| {
        let [value, verdict] = outcome.texts();
        vec![outcome.threshold.clone(), value, verdict]
    };
    (!outcomes.is_empty()).then(|| Table {
        title: "Thresholds",
        heads: vec!["condition", "measured", ""],
        rows: outcomes.iter().map(row).collect(),
    })
}

fn configuration(config: &Config) -> Rows {
    let mut rows = Vec::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    add("connections", Count(config.connections).to_string());
    if !config.stages.is_empty() {
        add("stages", staged(&config.stages, ""));
    }
    add("opened", connect_flag(config.connect));
    if let Some(most) = config.in_flight {
        add("connects in flight", format!("at most {}", Count(most)));
    }
    add("connect timeout", format_duration(config.connect_timeout));
    if !config.hold.is_zero() {
        add("held for", format_duration(config.hold));
    }
    let heartbeat = config.heartbeat.map(|every| format!("every {}", format_duration(every)));
    add("heartbeats", heartbeat.unwrap_or_else(|| "none".to_owned()));
    if !config.headers.is_empty() {
        // Only the names: values may be secrets. The command line shows them anyway.
        let names: Vec<_> = config.headers.iter().map(|(name, _)| name.as_str()).collect();
        add("headers", names.join(", "));
    }
    if !config.protocols.is_empty() {
        add("subprotocols", config.protocols.join(", "));
    }
    if let Some(cable) = &config.cable {
        let first = cable.identifiers.first().map(String::as_str).unwrap_or_default();
        match cable.identifiers.len() {
            1 => add("channel", first.to_owned()),
            all => add("channels", format!("{}, the first {first}", Count(all as u64))),
        }
    }
    if let Some(echo) = &config.echo {
        echo_settings(echo, &mut add);
    }
    if let Some(fanout) = &config.fanout {
        fanout_settings(fanout, &mut add);
    }
    rows
}

/// Formats stages; `unit` follows each number.
pub(super) fn staged(stages: &[Stage], unit: &str) -> String {
    let one = |stage: &Stage| {
        format!("{}{unit} in {}", Count(stage.connections), format_duration(stage.time))
    };
    stages.iter().map(one).collect::<Vec<_>>().join(", then ")
}

fn echo_settings(echo: &Echo, mut add: impl FnMut(&str, String)) {
    let size = echo.content.as_ref().map_or(echo.size, |content| content.data.len());
    add("message size in bytes", Count(size as u64).to_string());
    let rate = echo.rate.map(|rate| format!("{} per second", Count(rate)));
    add(
        "messages sent",
        rate.unwrap_or_else(|| "when the last was answered (closed loop)".to_owned()),
    );
    if echo.turnover {
        let each = Count(echo.messages.unwrap_or(0).into());
        add("connections are replaced", format!("after {each} messages"));
        add("duration", end(None, echo.duration, ""));
    } else {
        add("duration", end(echo.messages, echo.duration, "messages each"));
    }
    if let Some((least, most)) = echo.think {
        add("think time", format!("{}..{}", format_duration(least), format_duration(most)));
    }
    add("answer timeout", format_duration(echo.timeout));
}

fn fanout_settings(fanout: &Fanout, mut add: impl FnMut(&str, String)) {
    let way = match &fanout.publish {
        Publish::Http(_) => "over HTTP",
        Publish::Socket => "over WebSocket",
    };
    add("publications", format!("{} per second, {way}", Count(fanout.rate)));
    add("publishing duration", end(fanout.messages, fanout.duration, "messages"));
    add("late after", format_duration(fanout.late_after));
}

/// Formats the end of sending: a number, a time, or whichever comes first.
fn end(messages: Option<u32>, duration: Option<Duration>, unit: &str) -> String {
    let number = messages.map(|messages| format!("{} {unit}", Count(messages.into())));
    let parts: Vec<String> = number.into_iter().chain(duration.map(format_duration)).collect();
    parts.join(" or ")
}

fn figures(document: &Document<'_>) -> Rows {
    let summary: &Summary = document.summary;
    let mut rows = Vec::new();
    let mut add = |name: &str, value: String| rows.push((name.to_owned(), value));
    let c = &summary.connections;
    add("opened in", format!("{:.2} s, {} per second", c.seconds, Count(c.per_second as u64)));
    add("failed to open", causes(&summary.connect_errors));
    add("closed before the end", causes(&summary.closed));
    if c.replaced > 0 {
        add("replaced after their messages", Count(c.replaced).to_string());
    }
    let h = &summary.heartbeats;
    if h.sent > 0 {
        add("heartbeats", format!("{} of {} answered", Count(h.received), Count(h.sent)));
        add("ping round trip", times(h.latency.as_ref()));
    }
    if let Some(cable) = &summary.cable {
        subscribed(cable, &mut add);
    }
    if let Some(echo) = &summary.echo {
        add("messages", format!("{} sent, {} received", Count(echo.sent), Count(echo.received)));
        if echo.unsent > 0 {
            add("not sent", Count(echo.unsent).to_string());
        }
        add("lost, duplicated", format!("{}, {}", Count(echo.lost), Count(echo.duplicated)));
        let rest = [echo.reordered, echo.corrupted, echo.late].map(|n| Count(n).to_string());
        add("reordered, corrupted, late", rest.join(", "));
        add("latency (due to answer)", times(summary.latency.as_ref()));
        add("service time (sent to answer)", times(summary.service_time.as_ref()));
    }
    if let Some(broadcast) = &summary.broadcast {
        fan_out(broadcast, &mut add);
    }
    generated(document.generator, document.watched, add);
    rows
}

/// Returns the figures of the generator and of the watched process.
pub(super) fn generated(
    generator: &Generator,
    watched: Option<&Watched>,
    mut add: impl FnMut(&str, String),
) {
    add("generator", generator.figures());
    if let Some(why) = generator.saturated() {
        add("generator or machine saturated", why.to_owned());
    }
    if let Some(watched) = watched {
        let [memory, cpu, descriptors] = watched.figures();
        add("watched process, memory", memory);
        add("watched process, CPU", cpu);
        add("watched process, descriptors", descriptors);
    }
}

fn subscribed(cable: &CableSummary, mut add: impl FnMut(&str, String)) {
    let CableSummary { subscribed, rejected, waiting, repeated, stale, .. } = cable;
    let waits = rejected + waiting;
    add("subscribed, not subscribed", format!("{}, {}", Count(*subscribed), Count(waits)));
    add("repeated subscribes", Count(*repeated).to_string());
    add("stale, without pings", Count(*stale).to_string());
    add("connect to welcome", times(cable.to_welcome.as_ref()));
    add("subscribe to confirmation", times(cable.to_confirm.as_ref()));
    add("connect to confirmation", times(cable.to_subscribed.as_ref()));
}

fn fan_out(broadcast: &BroadcastSummary, mut add: impl FnMut(&str, String)) {
    let b = broadcast;
    add("published", format!("{} to {} receivers", Count(b.published), Count(b.receivers)));
    add("deliveries", format!("{} of {}", Count(b.received), Count(b.expected)));
    add("lost, duplicated", format!("{}, {}", Count(b.lost), Count(b.duplicated)));
    let rest = [b.reordered, b.corrupted, b.late].map(|n| Count(n).to_string());
    add("reordered, corrupted, late", rest.join(", "));
    add("delivery latency", times(b.latency.as_ref()));
    add("publish to first receipt", times(b.times.to_first.as_ref()));
    add("publish to last receipt", times(b.times.to_last.as_ref()));
    add("first to last receipt", times(b.times.first_to_last.as_ref()));
    if let Some(fanout) = &b.fanout {
        add(
            "rate reached, requested",
            format!("{:.1}, {:.1} per second", fanout.reached_rate, fanout.rate),
        );
        add("lateness of publications", times(fanout.publish_lag.as_ref()));
    }
}

fn causes(by_cause: &BTreeMap<&'static str, u64>) -> String {
    let all: u64 = by_cause.values().sum();
    if all == 0 {
        return "0".to_owned();
    }
    let named: Vec<_> =
        by_cause.iter().map(|(cause, count)| format!("{cause} {}", Count(*count))).collect();
    format!("{} ({})", Count(all), named.join(", "))
}

/// Formats p50, p99 and maximum.
pub(super) fn times(latency: Option<&Latency>) -> String {
    latency.map_or("not measured".to_owned(), |l| {
        format!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", l.p50_ms, l.p99_ms, l.max_ms)
    })
}
