//! The HTML report of a WebSocket run of `load`: its figures as rows of a [`Report`].

use std::collections::BTreeMap;
use std::time::Duration;

use capacity::{Count, Machine};
use load::stages::Stage;
use load::{BroadcastSummary, CableSummary, Config, Echo, Fanout, Latency, Publish, Summary};

use super::threshold::Outcome;
use super::watch::{Generator, Watched};
use super::{Document, connect_as_said};
use crate::output;
use crate::progress::Series;
use crate::report::{Report, Rows, Table};
use crate::units::time_as_said;

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
        let [value, verdict] = outcome.said();
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
    let mut say = |name: &str, value: String| rows.push((name.to_owned(), value));
    say("connections", Count(config.connections).to_string());
    if !config.stages.is_empty() {
        say("stages", staged(&config.stages, ""));
    }
    say("opened", connect_as_said(config.connect));
    say("time to open", time_as_said(config.connect_timeout));
    if !config.hold.is_zero() {
        say("held for", time_as_said(config.hold));
    }
    let heartbeat = config.heartbeat.map(|every| format!("every {}", time_as_said(every)));
    say("heartbeats", heartbeat.unwrap_or_else(|| "none".to_owned()));
    if !config.headers.is_empty() {
        // Only the names: values may be secrets. The command line shows them anyway.
        let names: Vec<_> = config.headers.iter().map(|(name, _)| name.as_str()).collect();
        say("further header lines", names.join(", "));
    }
    if !config.protocols.is_empty() {
        say("subprotocols", config.protocols.join(", "));
    }
    if let Some(cable) = &config.cable {
        let first = cable.identifiers.first().map(String::as_str).unwrap_or_default();
        match cable.identifiers.len() {
            1 => say("subscribed by", first.to_owned()),
            all => {
                say("subscribed by", format!("{} channels, the first {first}", Count(all as u64)))
            }
        }
    }
    if let Some(echo) = &config.echo {
        echo_asked(echo, &mut say);
    }
    if let Some(fanout) = &config.fanout {
        fanout_asked(fanout, &mut say);
    }
    rows
}

/// Formats stages; `unit` follows each number.
pub(super) fn staged(stages: &[Stage], unit: &str) -> String {
    let one = |stage: &Stage| {
        format!("{}{unit} in {}", Count(stage.connections), time_as_said(stage.time))
    };
    stages.iter().map(one).collect::<Vec<_>>().join(", then ")
}

fn echo_asked(echo: &Echo, mut say: impl FnMut(&str, String)) {
    let size = echo.content.as_ref().map_or(echo.size, |content| content.data.len());
    say("bytes of a message", Count(size as u64).to_string());
    let rate = echo.rate.map(|rate| format!("{} per second", Count(rate)));
    say("messages sent", rate.unwrap_or_else(|| "when the last was answered".to_owned()));
    if echo.turnover {
        let each = Count(echo.messages.unwrap_or(0).into());
        say("a connection is replaced", format!("after {each} messages"));
        say("sent for", end(None, echo.duration, ""));
    } else {
        say("sent for", end(echo.messages, echo.duration, "messages each"));
    }
    if let Some((least, most)) = echo.think {
        say("time to think", format!("{}..{}", time_as_said(least), time_as_said(most)));
    }
    say("time to answer", time_as_said(echo.timeout));
}

fn fanout_asked(fanout: &Fanout, mut say: impl FnMut(&str, String)) {
    let way = match &fanout.publish {
        Publish::Http(_) => "by HTTP",
        Publish::Socket => "by socket",
    };
    say("publications", format!("{} per second, {way}", Count(fanout.rate)));
    say("published for", end(fanout.messages, fanout.duration, "messages"));
    say("late after", time_as_said(fanout.late_after));
}

/// Formats the end of sending: a number, a time, or whichever comes first.
fn end(messages: Option<u32>, duration: Option<Duration>, unit: &str) -> String {
    let number = messages.map(|messages| format!("{} {unit}", Count(messages.into())));
    let parts: Vec<String> = number.into_iter().chain(duration.map(time_as_said)).collect();
    parts.join(" or ")
}

fn figures(document: &Document<'_>) -> Rows {
    let summary: &Summary = document.summary;
    let mut rows = Vec::new();
    let mut say = |name: &str, value: String| rows.push((name.to_owned(), value));
    let c = &summary.connections;
    say("opened in", format!("{:.2} s, {} per second", c.seconds, Count(c.per_second as u64)));
    say("failed to open", causes(&summary.connect_errors));
    say("closed before the end", causes(&summary.closed));
    if c.replaced > 0 {
        say("closed after their messages and replaced", Count(c.replaced).to_string());
    }
    let h = &summary.heartbeats;
    if h.sent > 0 {
        say("heartbeats", format!("{} of {} answered", Count(h.received), Count(h.sent)));
        say("ping to pong", times(h.latency.as_ref()));
    }
    if let Some(cable) = &summary.cable {
        subscribed(cable, &mut say);
    }
    if let Some(echo) = &summary.echo {
        say("messages", format!("{} sent, {} received", Count(echo.sent), Count(echo.received)));
        if echo.unsent > 0 {
            say("never sent", Count(echo.unsent).to_string());
        }
        say("lost, twice", format!("{}, {}", Count(echo.lost), Count(echo.duplicated)));
        let rest = [echo.reordered, echo.corrupted, echo.late].map(|n| Count(n).to_string());
        say("out of order, changed, late", rest.join(", "));
        say("from due to answer", times(summary.latency.as_ref()));
        say("from send to answer", times(summary.service_time.as_ref()));
    }
    if let Some(broadcast) = &summary.broadcast {
        fan_out(broadcast, &mut say);
    }
    generated(document.generator, document.watched, say);
    rows
}

/// Returns the figures of the generator and of the watched process.
pub(super) fn generated(
    generator: &Generator,
    watched: Option<&Watched>,
    mut say: impl FnMut(&str, String),
) {
    say("generator", generator.figures());
    if let Some(why) = generator.saturated() {
        say("it was the bottleneck, or its machine", why.to_owned());
    }
    if let Some(watched) = watched {
        let [memory, cpu, descriptors] = watched.figures();
        say("watched, memory", memory);
        say("watched, CPU", cpu);
        say("watched, descriptors", descriptors);
    }
}

fn subscribed(cable: &CableSummary, mut say: impl FnMut(&str, String)) {
    let CableSummary { subscribed, rejected, waiting, repeated, stale, .. } = cable;
    let waits = rejected + waiting;
    say("subscribed, not subscribed", format!("{}, {}", Count(*subscribed), Count(waits)));
    say("subscribes sent again", Count(*repeated).to_string());
    say("given up without pings", Count(*stale).to_string());
    say("connect to welcome", times(cable.to_welcome.as_ref()));
    say("subscribe to confirmation", times(cable.to_confirm.as_ref()));
    say("connect to confirmation", times(cable.to_subscribed.as_ref()));
}

fn fan_out(broadcast: &BroadcastSummary, mut say: impl FnMut(&str, String)) {
    let b = broadcast;
    say("published", format!("{} to {} receivers", Count(b.published), Count(b.receivers)));
    say("receipts", format!("{} of {}", Count(b.received), Count(b.expected)));
    say("lost, twice", format!("{}, {}", Count(b.lost), Count(b.duplicated)));
    let rest = [b.reordered, b.corrupted, b.late].map(|n| Count(n).to_string());
    say("out of order, changed, late", rest.join(", "));
    say("publish to receipt", times(b.latency.as_ref()));
    say("to the first receipt", times(b.times.to_first.as_ref()));
    say("to the last receipt", times(b.times.to_last.as_ref()));
    say("from first to last", times(b.times.first_to_last.as_ref()));
    if let Some(fanout) = &b.fanout {
        say(
            "rate reached, asked for",
            format!("{:.1}, {:.1} per second", fanout.reached_rate, fanout.rate),
        );
        say("sent late by", times(fanout.publish_lag.as_ref()));
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
    latency.map_or("not timed".to_owned(), |l| {
        format!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", l.p50_ms, l.p99_ms, l.max_ms)
    })
}
