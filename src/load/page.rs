//! A run of `load` as a page: its figures as rows for [`Report`].

use std::collections::BTreeMap;

use host::{Count, Machine};
use load::{BroadcastSummary, Ended, Latency, Summary};

use crate::output;
use crate::progress::Series;
use crate::report::{Report, Rows};

/// The run, ready to be written.
pub(super) fn report<'a>(
    urls: &[String],
    ended: &'a Ended,
    series: &'a Series,
    machine: &'a Machine,
) -> Report<'a> {
    let summary = &ended.summary;
    let verdict = match (ended.interrupted, summary.held) {
        (true, _) => ("INTERRUPTED", false),
        (false, true) => ("HELD", true),
        (false, false) => ("FELL SHORT", false),
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
        figures: figures(summary),
        table: None,
        series,
        machine,
        command: output::command_line(),
    }
}

fn figures(summary: &Summary) -> Rows {
    let mut rows = Vec::new();
    let mut say = |name: &str, value: String| rows.push((name.to_owned(), value));
    let c = &summary.connections;
    say("opened in", format!("{:.2} s, {} per second", c.seconds, Count(c.per_second as u64)));
    say("failed to open", causes(&summary.connect_errors));
    say("closed before the end", causes(&summary.closed));
    let h = &summary.heartbeats;
    if h.sent > 0 {
        say("heartbeats", format!("{} of {} answered", Count(h.received), Count(h.sent)));
        say("ping to pong", times(h.latency.as_ref()));
    }
    if let Some(echo) = &summary.echo {
        say("messages", format!("{} sent, {} received", Count(echo.sent), Count(echo.received)));
        say("lost, twice", format!("{}, {}", Count(echo.lost), Count(echo.duplicated)));
        let rest = [echo.reordered, echo.corrupted, echo.late].map(|n| Count(n).to_string());
        say("out of order, changed, late", rest.join(", "));
        say("from due to answer", times(summary.latency.as_ref()));
        say("from send to answer", times(summary.service_time.as_ref()));
    }
    if let Some(broadcast) = &summary.broadcast {
        fan_out(broadcast, say);
    }
    rows
}

fn fan_out(broadcast: &BroadcastSummary, mut say: impl FnMut(&str, String)) {
    let b = broadcast;
    say("published", format!("{} to {} receivers", Count(b.published), Count(b.receivers)));
    say("receipts", format!("{} of {}", Count(b.received), Count(b.expected)));
    say("lost, twice", format!("{}, {}", Count(b.lost), Count(b.duplicated)));
    let rest = [b.reordered, b.corrupted, b.late].map(|n| Count(n).to_string());
    say("out of order, changed, late", rest.join(", "));
    say("publish to receipt", times(b.latency.as_ref()));
    if let Some(fanout) = &b.fanout {
        say("to the first receipt", times(fanout.to_first.as_ref()));
        say("to the last receipt", times(fanout.to_last.as_ref()));
        say("from first to last", times(fanout.first_to_last.as_ref()));
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

/// Half, 99 %, longest.
fn times(latency: Option<&Latency>) -> String {
    latency.map_or("not timed".to_owned(), |l| {
        format!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", l.p50_ms, l.p99_ms, l.max_ms)
    })
}
