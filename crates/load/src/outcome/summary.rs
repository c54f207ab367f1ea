//! [`Summary`]: the summary of a run, as JSON and as text. The schema is in
//! `docs/protocol/load-json.md`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use crate::{CableSummary, Cause, ChurnSummary, Latency, Recorder, Series, Snapshot, Times};

/// The summary of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Whether there were no shortfalls.
    pub held: bool,
    /// The shortfalls; empty if held.
    pub reasons: Vec<String>,
    /// Connections.
    pub connections: Connections,
    /// Failed connects, by cause.
    pub connect_errors: BTreeMap<&'static str, u64>,
    /// Retried attempts, by cause.
    pub retried_by: BTreeMap<&'static str, u64>,
    /// Pings and pongs.
    pub heartbeats: HeartbeatSummary,
    /// Messages sent and received back; null without an echo.
    pub echo: Option<EchoSummary>,
    /// Echo, from the due time; null if nothing was timed.
    pub latency: Option<Latency>,
    /// Echo, from the send.
    pub service_time: Option<Latency>,
    /// WebSockets that ended before the run, by cause.
    pub closed: BTreeMap<&'static str, u64>,
    /// Broadcasts; null if none was expected.
    pub broadcast: Option<BroadcastSummary>,
    /// Action Cable clients; null for plain WebSockets.
    pub cable: Option<CableSummary>,
    /// Churn of subscriptions; null without a churn.
    pub churn: Option<ChurnSummary>,
}

/// Connections of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Connections {
    /// Requested.
    pub requested: u64,
    /// Open at the end.
    pub open: u64,
    /// Closed because the target fell.
    pub retired: u64,
    /// Closed after their messages and replaced.
    pub replaced: u64,
    /// Failed connects.
    pub failed: u64,
    /// Opened after a retry.
    pub opened_late: u64,
    /// Failed attempts that were retried.
    pub retries: u64,
    /// WebSockets that ended and were to be reopened.
    pub reconnects: u64,
    /// From the first connect to the last that opened.
    pub seconds: f64,
    /// Opened ÷ seconds, without replacements.
    pub per_second: f64,
    /// The most connects in flight at once.
    pub in_flight_max: u64,
    /// Times a source address had no port left and the next was used.
    pub sources_changed: u64,
}

/// Pings and pongs of a run.
#[derive(Clone, Debug, Serialize)]
pub struct HeartbeatSummary {
    /// Pings sent.
    pub sent: u64,
    /// Pongs that answered one.
    pub received: u64,
    /// Sockets open at the end that never answered.
    pub unanswered_sockets: u64,
    /// Ping to pong; null when nothing was timed.
    pub latency: Option<Latency>,
}

/// Messages of an echo. received = sent − lost + duplicated + corrupted + those late ones that
/// came 64 or more messages behind.
#[derive(Clone, Debug, Serialize)]
pub struct EchoSummary {
    /// Messages sent.
    pub sent: u64,
    /// Requested and never sent, as the connection was not open; 0 if the sending ended by time.
    pub unsent: u64,
    /// Messages received.
    pub received: u64,
    /// Sent and never answered.
    pub lost: u64,
    /// Duplicate answers.
    pub duplicated: u64,
    /// Answered after a later message (open model).
    pub reordered: u64,
    /// Received, but no answer to a message of that socket.
    pub corrupted: u64,
    /// Answered after being given up, or 64 or more messages behind.
    pub late: u64,
}

/// Publications at all receivers. received = expected − lost; late and reordered
/// ones are received too.
#[derive(Clone, Debug, Serialize)]
pub struct BroadcastSummary {
    /// Publications.
    pub published: u64,
    /// Connections that were expected to receive each.
    pub receivers: u64,
    /// Receivers × publications.
    pub expected: u64,
    /// Received, each counted once per receiver.
    pub received: u64,
    /// Not received.
    pub lost: u64,
    /// Received again.
    pub duplicated: u64,
    /// Received after a later one.
    pub reordered: u64,
    /// Received with changes.
    pub corrupted: u64,
    /// Received later than allowed.
    pub late: u64,
    /// Received 64 or more behind the newest of their connection, for the first time or again.
    pub stale: u64,
    /// Messages that are no publication of this run.
    pub foreign: u64,
    /// Publication to receipt: the median.
    pub p50_ms: Option<f64>,
    /// The 99th percentile.
    pub p99_ms: Option<f64>,
    /// The maximum.
    pub last_ms: Option<f64>,
    /// Publication to receipt.
    pub latency: Option<Latency>,
    /// Arrival times of each publication.
    #[serde(flatten)]
    pub times: Times,
    /// Only of a fan-out.
    #[serde(flatten)]
    pub fanout: Option<FanoutSummary>,
}

/// Additional figures of a fan-out.
#[derive(Clone, Debug, Serialize)]
pub struct FanoutSummary {
    /// The number of publishers, which took turns.
    pub publishers: u32,
    /// Publications that were rejected or not answered, by cause. Those not answered may have been
    /// published and are expected.
    pub publish_failed: BTreeMap<String, u64>,
    /// Publications per second: configured, and reached.
    pub rate: f64,
    /// See `rate`.
    pub reached_rate: f64,
    /// From the due time of a publication to its send.
    pub publish_lag: Option<Latency>,
    /// From the send to the server's answer; null if published on sockets.
    pub publish: Option<Latency>,
    /// Receivers that lost some.
    pub receivers_short: u64,
    /// The receivers that lost most, at most ten.
    pub worst: Vec<Receiver>,
}

/// One receiver.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Receiver {
    /// Its number among the connections of the run, from 0.
    pub connection: u64,
    /// Publications it received, each counted once.
    pub received: u64,
    /// Publications it did not receive.
    pub lost: u64,
}

/// The expected broadcasts.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) publisher: u32,
    pub(crate) receivers: u64,
    pub(crate) messages: u64,
}

impl Expected {
    pub(crate) fn total(&self) -> u64 {
        self.receivers * self.messages
    }
}

impl Summary {
    pub(crate) fn new(
        requested: u64,
        connecting: Duration,
        counts: &Snapshot,
        recorder: &Recorder,
        asked: Option<u64>,
        expected: Option<Expected>,
        (fanout, times): (Option<FanoutSummary>, Times),
    ) -> Summary {
        let seconds = connecting.as_secs_f64();
        let at_first = counts.opened.saturating_sub(counts.replaced);
        let connections = Connections {
            requested,
            open: counts.open,
            retired: counts.retired,
            replaced: counts.replaced,
            failed: counts.failed_total(),
            opened_late: counts.opened_late,
            retries: counts.retried_total(),
            reconnects: counts.reconnects,
            seconds,
            per_second: if seconds > 0.0 { at_first as f64 / seconds } else { 0.0 },
            in_flight_max: 0,
            sources_changed: counts.sources_changed,
        };
        let heartbeats = HeartbeatSummary {
            sent: counts.heartbeats_sent,
            received: counts.heartbeats_received,
            unanswered_sockets: counts.unanswered_sockets(),
            latency: recorder.latency(Series::Heartbeat),
        };
        let echo = asked.map(|asked| EchoSummary {
            sent: counts.echo_sent,
            unsent: asked.saturating_sub(counts.echo_sent),
            received: counts.echo_received,
            lost: counts.unanswered_messages(),
            duplicated: counts.duplicated,
            reordered: counts.reordered,
            corrupted: counts.corrupted,
            late: counts.late,
        });
        let mut summary = Summary {
            held: false,
            reasons: Vec::new(),
            connections,
            connect_errors: by_cause(&counts.ends.failed),
            retried_by: by_cause(&counts.ends.retried),
            heartbeats,
            echo,
            latency: recorder.latency(Series::Latency),
            service_time: recorder.latency(Series::ServiceTime),
            closed: by_cause(&counts.ends.closed),
            broadcast: expected.map(|expected| BroadcastSummary {
                fanout,
                times,
                ..broadcast(expected, counts, recorder)
            }),
            cable: None,
            churn: None,
        };
        summary.reasons = summary.shortfalls();
        summary.held = summary.reasons.is_empty();
        summary
    }

    /// Adds the summary of Action Cable clients and its shortfalls.
    pub(crate) fn add_cable(&mut self, cable: CableSummary) {
        self.add_shortfalls(&cable.shortfalls());
        self.cable = Some(cable);
    }

    /// Adds the summary of a churn and its shortfalls.
    pub(crate) fn add_churn(&mut self, churn: ChurnSummary) {
        self.add_shortfalls(&churn.shortfalls());
        self.churn = Some(churn);
    }

    fn add_shortfalls(&mut self, shortfalls: &[(u64, &'static str)]) {
        let some = shortfalls.iter().filter(|(count, _)| *count > 0);
        self.reasons.extend(some.map(|(count, what)| format!("{count} {what}")));
        self.held = self.reasons.is_empty();
    }

    /// All shortfalls, as clauses.
    fn shortfalls(&self) -> Vec<String> {
        let Connections { requested, open, failed, .. } = self.connections;
        let ended: u64 = self.closed.values().sum();
        let gone = ended.saturating_sub(self.connections.reconnects);
        let never = requested.saturating_sub(open + failed + gone);
        let mut shortfalls = vec![
            (failed, "connections failed"),
            (never, "connections were not opened"),
            (ended, "connections ended before the run did"),
        ];
        if let Some(echo) = &self.echo {
            shortfalls.extend([
                (echo.unsent, "messages were never sent"),
                (echo.lost, "messages were lost"),
                (echo.duplicated, "answers were duplicated"),
                (echo.reordered, "answers were reordered"),
                (echo.corrupted, "answers did not match a message that was sent"),
                (echo.late, "answers were late"),
            ]);
        }
        if let Some(broadcast) = &self.broadcast {
            shortfalls.extend([
                (broadcast.lost, "publications were lost"),
                (broadcast.duplicated, "publications were duplicated"),
                (broadcast.reordered, "publications were reordered"),
                (broadcast.corrupted, "publications were corrupted"),
                (broadcast.late, "publications were late"),
                (broadcast.stale, "publications were 64 or more behind"),
            ]);
            let failed = broadcast.fanout.iter().flat_map(|fanout| fanout.publish_failed.values());
            shortfalls.push((failed.sum(), "publications were rejected or not answered"));
        }
        let some = shortfalls.into_iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!("{count} {what}")).collect()
    }
}

fn broadcast(expected: Expected, counts: &Snapshot, recorder: &Recorder) -> BroadcastSummary {
    let latency = recorder.latency(Series::Broadcast);
    BroadcastSummary {
        published: expected.messages,
        receivers: expected.receivers,
        expected: expected.total(),
        received: counts.publications,
        lost: expected.total().saturating_sub(counts.publications),
        duplicated: counts.publications_duplicated,
        reordered: counts.publications_reordered,
        corrupted: counts.corrupted,
        late: counts.publications_late,
        stale: counts.publications_stale,
        foreign: counts.publications_foreign,
        p50_ms: latency.map(|latency| latency.p50_ms),
        p99_ms: latency.map(|latency| latency.p99_ms),
        last_ms: latency.map(|latency| latency.max_ms),
        latency,
        times: Times::default(),
        fanout: None,
    }
}

fn by_cause(counts: &BTreeMap<Cause, u64>) -> BTreeMap<&'static str, u64> {
    counts.iter().map(|(cause, count)| (cause.name(), *count)).collect()
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_figures(f)?;
        match self.reasons.as_slice() {
            [] => writeln!(f, "result        all held"),
            reasons => writeln!(f, "result        fell short: {}", reasons.join("; ")),
        }
    }
}

/// The text of [`Summary::figures`].
pub struct Figures<'a>(&'a Summary);

impl Display for Figures<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.write_figures(f)
    }
}

impl Summary {
    /// The text without its last line, the result, which callers may extend.
    #[must_use]
    pub fn figures(&self) -> Figures<'_> {
        Figures(self)
    }

    fn write_figures(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Connections { requested, open, failed, seconds, per_second, .. } = self.connections;
        write!(f, "connections   {open} open of {requested}, {failed} failed")?;
        writeln!(f, "; {seconds:.2} s, {per_second:.0} per second")?;
        let Connections { opened_late, retries, reconnects, .. } = self.connections;
        if self.connections.retired > 0 {
            writeln!(
                f,
                "  retired       {} closed to reach a lower target",
                self.connections.retired
            )?;
        }
        if self.connections.replaced > 0 {
            writeln!(
                f,
                "  replaced      {} closed after their messages and replaced",
                self.connections.replaced
            )?;
        }
        if retries + reconnects > 0 {
            write!(f, "  retried       {retries} times, {opened_late} opened on a later attempt")?;
            writeln!(f, "; {reconnects} reopened after they ended")?;
        }
        write_causes(f, "  retried for ", &self.retried_by)?;
        write_causes(f, "  failed by   ", &self.connect_errors)?;
        write_causes(f, "  ended by    ", &self.closed)?;
        let HeartbeatSummary { sent, received, unanswered_sockets, latency } = &self.heartbeats;
        if *sent > 0 {
            write!(f, "heartbeats    {sent} sent, {received} answered")?;
            writeln!(f, "; {unanswered_sockets} sockets got no pong")?;
            write_latency(f, "  ping to pong", latency.as_ref())?;
        }
        if let Some(echo) = &self.echo {
            let EchoSummary { sent, unsent, received, lost, duplicated, .. } = echo;
            write!(f, "echo          {sent} sent, {received} received; ")?;
            if *unsent > 0 {
                write!(f, "{unsent} never sent, ")?;
            }
            write!(f, "{lost} lost, {duplicated} duplicated, {} reordered, ", echo.reordered)?;
            writeln!(f, "{} corrupted, {} late", echo.corrupted, echo.late)?;
            write_latency(f, "  from due    ", self.latency.as_ref())?;
            write_latency(f, "  from send   ", self.service_time.as_ref())?;
        }
        if let Some(cable) = &self.cable {
            write!(f, "{cable}")?;
        }
        if let Some(broadcast) = &self.broadcast {
            write!(f, "{broadcast}")?;
        }
        self.churn.iter().try_for_each(|churn| write!(f, "{churn}"))
    }
}

impl Display for BroadcastSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let BroadcastSummary { published, receivers, expected, received, lost, .. } = self;
        writeln!(
            f,
            "publications  {published} to {receivers} receivers, {received} of {expected} received"
        )?;
        write!(f, "              {lost} lost, {} duplicated, ", self.duplicated)?;
        write!(f, "{} reordered, {} corrupted, ", self.reordered, self.corrupted)?;
        writeln!(f, "{} late, {} stale, {} foreign", self.late, self.stale, self.foreign)?;
        write_latency(f, "  to receipt  ", self.latency.as_ref())?;
        write_latency(f, "  to the first", self.times.to_first.as_ref())?;
        write_latency(f, "  to the last ", self.times.to_last.as_ref())?;
        write_latency(f, "  first–last  ", self.times.first_to_last.as_ref())?;
        let Some(fanout) = &self.fanout else { return Ok(()) };
        let FanoutSummary { rate, reached_rate, receivers_short, worst, .. } = fanout;
        write!(f, "  published     {reached_rate:.1} per second of {rate:.1} requested, by ")?;
        match fanout.publishers {
            1 => writeln!(f, "1 publisher")?,
            publishers => writeln!(f, "{publishers} publishers in turn")?,
        }
        write_latency(f, "  sent late by", fanout.publish_lag.as_ref())?;
        write_latency(f, "  answered in ", fanout.publish.as_ref())?;
        for (cause, count) in &fanout.publish_failed {
            writeln!(f, "  failed        {count}: {cause}")?;
        }
        if *receivers_short > 0 {
            writeln!(f, "  {receivers_short} receivers lost some; the worst:")?;
        }
        for Receiver { connection, received, lost } in worst {
            writeln!(f, "    connection {connection}: {lost} lost, {received} received")?;
        }
        Ok(())
    }
}

fn write_causes(
    f: &mut Formatter<'_>,
    title: &str,
    causes: &BTreeMap<&'static str, u64>,
) -> fmt::Result {
    if causes.is_empty() {
        return Ok(());
    }
    let causes: Vec<String> =
        causes.iter().map(|(name, count)| format!("{name} {count}")).collect();
    writeln!(f, "{title}{}", causes.join(", "))
}

/// Writes a line of percentiles; none if nothing was timed.
pub(crate) fn write_latency(
    f: &mut Formatter<'_>,
    title: &str,
    latency: Option<&Latency>,
) -> fmt::Result {
    let Some(Latency { p50_ms, p90_ms, p99_ms, p999_ms, max_ms, .. }) = latency else {
        return Ok(());
    };
    write!(f, "{title}  p50 {p50_ms:.3} ms, p90 {p90_ms:.3} ms, p99 {p99_ms:.3} ms, ")?;
    writeln!(f, "p99.9 {p999_ms:.3} ms, max {max_ms:.3} ms")
}

#[cfg(test)]
mod tests {
    use engine::Closed;
    use wire::Violation;

    use super::*;

    fn of(counts: &Snapshot, expected: Option<Expected>) -> Summary {
        let second = Duration::from_secs(2);
        Summary::new(
            10,
            second,
            counts,
            &Recorder::default(),
            Some(9),
            expected,
            (None, Times::default()),
        )
    }

    #[test]
    fn run_without_shortfalls_is_held() {
        let counts = Snapshot {
            opened: 10,
            open: 10,
            echo_sent: 9,
            echo_received: 9,
            echo_answered: 9,
            publications: 30,
            ..Snapshot::default()
        };
        let expected = Expected { publisher: 0, receivers: 10, messages: 3 };
        let summary = of(&counts, Some(expected));
        assert!(summary.held, "{:?}", summary.reasons);
        assert_eq!(summary.connections.per_second, 5.0);
        assert!(summary.to_string().contains("all held"), "{summary}");
    }

    #[test]
    fn every_shortfall_is_reported() {
        let mut counts = Snapshot {
            opened: 8,
            open: 7,
            echo_sent: 7,
            echo_received: 7,
            echo_answered: 4,
            duplicated: 2,
            corrupted: 1,
            ..Snapshot::default()
        };
        counts.ends.failed.insert(Cause::End(Closed::ConnectRefused), 1);
        counts.ends.closed.insert(Cause::Rule(Violation::MaskedFrame), 1);
        let summary = of(&counts, None);
        assert!(!summary.held);
        assert_eq!(summary.connect_errors["connect_refused"], 1);
        assert_eq!(summary.closed["masked_frame"], 1);
        assert_eq!(summary.echo.as_ref().unwrap().lost, 3);
        let text = summary.to_string();
        let never = "2 messages were never sent";
        for told in
            ["1 connections failed", never, "3 messages were lost", "1 connections were not"]
        {
            assert!(text.contains(told), "{told}:\n{text}");
        }
    }

    #[test]
    fn json_has_the_names_of_the_schema() {
        let expected = Expected { publisher: 0, receivers: 1, messages: 1 };
        let json = serde_json::to_value(of(&Snapshot::default(), Some(expected))).unwrap();
        for name in ["requested", "open", "failed", "seconds", "per_second", "in_flight_max"] {
            assert!(json["connections"].get(name).is_some(), "{name}");
        }
        for name in ["sent", "unsent", "received", "lost", "duplicated", "reordered", "late"] {
            assert!(json["echo"].get(name).is_some(), "{name}");
        }
        for name in ["expected", "received", "lost", "duplicated", "p50_ms", "p99_ms", "last_ms"] {
            assert!(json["broadcast"].get(name).is_some(), "{name}");
        }
        assert_eq!(json["broadcast"]["lost"], 1);
        assert_eq!(json["latency"], serde_json::Value::Null);
    }
}
