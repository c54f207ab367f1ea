//! The sections of an [`Outcome`]: connections, requests, heartbeats, echoes and publications; and how
//! a run of WebSockets and a run of requests become an outcome.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::outcome::failure::Failure;
use crate::outcome::{OUTCOME_VERSION, Outcome};
use crate::requests::RequestSnapshot;
use crate::{Cause, Latency, Recorder, Series, Snapshot, Times};

/// Connections of a run. What a kind of run does not measure is null.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Connections {
    /// Requested: WebSockets, or concurrent connections of requests.
    pub requested: u64,
    /// Opened.
    pub opened: Option<u64>,
    /// Open at the end.
    pub open: Option<u64>,
    /// Failed connects.
    pub failed: u64,
    /// Closed because the target fell.
    pub retired: Option<u64>,
    /// Closed after their messages and replaced.
    pub replaced: Option<u64>,
    /// Opened after a retry.
    pub opened_late: Option<u64>,
    /// Failed attempts that were retried.
    pub retries: Option<u64>,
    /// WebSockets that ended and were to be reopened.
    pub reconnects: Option<u64>,
    /// From the first connect to the last that opened.
    pub seconds: Option<f64>,
    /// Opened ÷ seconds, without replacements.
    pub per_second: Option<f64>,
    /// The most connects in flight at once.
    pub in_flight_max: Option<u64>,
    /// Times a source address had no port left and the next was used.
    pub sources_changed: Option<u64>,
    /// Closed by the server while idle.
    pub closed_idle: Option<u64>,
    /// Closed because the server sent unsolicited data.
    pub unasked: Option<u64>,
    /// The most sockets of this machine in `TIME_WAIT` at any sample.
    pub time_wait_most: Option<u64>,
}

/// Requests by result. Requests due in the warm-up are only in the figures that name it.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Answered as expected.
    pub ok: u64,
    /// Not answered, or not as expected; together with `ok` all that were begun.
    pub failed: u64,
    /// Passed to the kernel; other failed requests had no connection.
    pub sent: u64,
    /// Answered completely with any status.
    pub answered: u64,
    /// Answered after the time of the run was over; in `answered`, and in no rate.
    #[serde(default)]
    pub stragglers: u64,
    /// Without an answer when the run ended: failed, or unknown if it was interrupted.
    pub unfinished: u64,
    /// In flight when the run was interrupted; not in `failed`.
    #[serde(default)]
    pub unknown: u64,
    /// Due in the open model but never sent, as no user was free.
    pub unsent: u64,
    /// Sent in the warm-up.
    pub warm_up: u64,
    /// Sent to follow redirects.
    pub redirects: u64,
}

/// Percentiles in milliseconds of everything that was due; null where they lie among what was never
/// answered.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantiles {
    /// Everything that was due.
    pub count: u64,
    /// The median.
    pub p50_ms: Option<f64>,
    /// The 90th percentile.
    pub p90_ms: Option<f64>,
    /// The 95th percentile.
    pub p95_ms: Option<f64>,
    /// The 99th percentile.
    pub p99_ms: Option<f64>,
    /// The 99.9th percentile.
    pub p999_ms: Option<f64>,
    /// The maximum.
    pub max_ms: Option<f64>,
}

/// Pings and pongs of a run.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct HeartbeatSummary {
    /// Pings sent.
    pub sent: u64,
    /// Pongs that answered one.
    pub received: u64,
    /// Sockets open at the end that were pinged and never answered.
    pub unanswered_sockets: u64,
    /// Whether the end of the run waited for pongs, so that one that is missing did not come.
    #[serde(skip)]
    pub awaited: bool,
    /// Ping to pong; null when nothing was timed.
    pub latency: Option<Latency>,
}

/// Messages of an echo. received = sent − lost + duplicated + corrupted + those late ones that
/// came 64 or more messages behind.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct EchoSummary {
    /// Messages sent.
    pub sent: u64,
    /// Requested and never sent, as the connection was not open; 0 if the sending ended by time.
    pub unsent: u64,
    /// Messages received.
    pub received: u64,
    /// Sent and never answered.
    pub lost: u64,
    /// In flight when the run was interrupted; not in `lost`.
    #[serde(default)]
    pub unknown: u64,
    /// Duplicate answers.
    pub duplicated: u64,
    /// Answered after a later message (open model).
    pub reordered: u64,
    /// Received, but no answer to a message of that socket.
    pub corrupted: u64,
    /// Answered after being given up, or 64 or more messages behind.
    pub late: u64,
}

/// Publications at all receivers. received = expected − lost − unknown; late and reordered ones are
/// received too.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
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
    /// Not received yet when the run was interrupted; not in `lost`.
    #[serde(default)]
    pub unknown: u64,
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
    /// `latency`: the median.
    pub p50_ms: Option<f64>,
    /// The 99th percentile.
    pub p99_ms: Option<f64>,
    /// The maximum.
    pub last_ms: Option<f64>,
    /// From the time a publication was due to its receipt.
    pub latency: Option<Latency>,
    /// From the time it was sent to its receipt.
    #[serde(default)]
    pub from_send: Option<Latency>,
    /// `latency` of everything that was expected, where what was lost took forever.
    #[serde(default)]
    pub latency_of_all: Option<Quantiles>,
    /// Arrival times of each publication.
    #[serde(flatten)]
    pub times: Times,
    /// Only of a fan-out.
    #[serde(flatten)]
    pub fanout: Option<FanoutSummary>,
}

/// Additional figures of a fan-out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FanoutSummary {
    /// The number of publishers, which took turns.
    pub publishers: u32,
    /// Publications that were rejected or not answered, by cause. Those not answered may have been
    /// published and are expected.
    pub publish_failed: BTreeMap<String, u64>,
    /// Those that were rejected or could not be sent, and are not expected.
    #[serde(default)]
    pub publish_rejected: Option<u64>,
    /// Those that were sent and not answered.
    #[serde(default)]
    pub publish_unanswered: Option<u64>,
    /// Publications that were unanswered when the run was interrupted: neither expected nor failed.
    #[serde(default)]
    pub publish_unknown: Option<u64>,
    /// Publications that were due and not sent, as each publisher had too many unanswered ones or the
    /// generator was too slow.
    #[serde(default)]
    pub publish_unsent: Option<u64>,
    /// Publications per second: configured, and reached.
    pub rate: f64,
    /// See `rate`.
    pub reached_rate: f64,
    /// The part of `reached_rate` that the server accepted.
    #[serde(default)]
    pub accepted_rate: Option<f64>,
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
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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

impl FanoutSummary {
    /// Publications that were rejected or not answered.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.publish_failed.values().sum()
    }

    /// The share of due publications that were sent, of which `published` are expected.
    #[must_use]
    pub fn sent_share(&self, published: u64) -> f64 {
        let [rejected, unknown, unsent] =
            [self.publish_rejected, self.publish_unknown, self.publish_unsent]
                .map(Option::unwrap_or_default);
        let sent = published + rejected + unknown;
        sent as f64 / (sent + unsent).max(1) as f64
    }
}

/// A run of WebSockets as its main thread knows it.
pub(crate) struct SocketRun<'a> {
    pub(crate) requested: u64,
    pub(crate) connecting: Duration,
    pub(crate) in_flight_max: u64,
    pub(crate) counts: &'a Snapshot,
    pub(crate) recorder: &'a Recorder,
    /// Messages that echoes were to send, without those limited by time only; `None` without an echo.
    pub(crate) messages: Option<u64>,
    /// The end of the run waited for pongs.
    pub(crate) awaits_pongs: bool,
    /// Answers that a validator rejected. Without one, what differs is no answer.
    pub(crate) wrong: u64,
    /// How long messages of an echo were due.
    pub(crate) sending: Option<Duration>,
    pub(crate) interrupted: bool,
    /// Messages and publications sent in the warm-up; `None` without one.
    pub(crate) warm_up: Option<u64>,
    pub(crate) expected: Option<Expected>,
    pub(crate) fanout: Option<FanoutSummary>,
    /// Receipts of a fan-out that were still arriving when it was interrupted.
    pub(crate) unknown: Option<u64>,
    pub(crate) times: Times,
}

impl SocketRun<'_> {
    pub(crate) fn outcome(self) -> Outcome {
        let SocketRun { counts, recorder, .. } = self;
        let seconds = self.connecting.as_secs_f64();
        let at_first = counts.opened.saturating_sub(counts.replaced);
        let connections = Connections {
            requested: self.requested,
            opened: Some(counts.opened),
            open: Some(counts.open),
            failed: counts.failed_total(),
            retired: Some(counts.retired),
            replaced: Some(counts.replaced),
            opened_late: Some(counts.opened_late),
            retries: Some(counts.retried_total()),
            reconnects: Some(counts.reconnects),
            seconds: Some(seconds),
            per_second: (seconds > 0.0).then(|| at_first as f64 / seconds),
            in_flight_max: Some(self.in_flight_max),
            sources_changed: Some(counts.sources_changed),
            ..Connections::default()
        };
        let heartbeats = HeartbeatSummary {
            sent: counts.heartbeats_sent,
            received: counts.heartbeats_received,
            unanswered_sockets: counts.unanswered,
            awaited: self.awaits_pongs,
            latency: recorder.latency(Series::Heartbeat),
        };
        // When a run is interrupted nobody knows what would have become of messages in flight; those
        // given up had their time.
        let unanswered = counts.unanswered_messages();
        let given_up = counts.given_up.saturating_sub(counts.late);
        let unknown = if self.interrupted { unanswered.saturating_sub(given_up) } else { 0 };
        let echo = self.messages.map(|requested| EchoSummary {
            sent: counts.echo_sent,
            unsent: requested.saturating_sub(counts.echo_sent),
            received: counts.echo_received,
            lost: unanswered - unknown,
            unknown,
            duplicated: counts.duplicated,
            reordered: counts.reordered,
            corrupted: counts.corrupted,
            late: counts.late,
        });
        let unanswered = echo.as_ref().map(|echo| echo.lost + echo.unsent);
        let in_flight = if self.awaits_pongs { 0 } else { counts.waiting };
        let ended = counts.heartbeats_received + counts.heartbeats_cut + in_flight;
        let unponged = counts.heartbeats_sent.saturating_sub(ended);
        let of_heartbeats = recorder.quantiles(Series::Heartbeat, 0, unponged);
        let latency_of_all = match unanswered {
            Some(unanswered) => recorder.quantiles(Series::Latency, 0, unanswered),
            None => of_heartbeats,
        };
        let sending = self.sending.map(|time| time.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let sending = sending.filter(|_| echo.is_some());
        let never = self.fanout.as_ref().map_or(0, |fanout| {
            [fanout.publish_rejected, fanout.publish_unsent].into_iter().flatten().sum()
        });
        let mut broadcast = self.expected.map(|expected| BroadcastSummary {
            fanout: self.fanout,
            times: self.times,
            ..broadcast(expected, counts, recorder, never)
        });
        if let Some(broadcast) = broadcast.as_mut().filter(|_| self.interrupted) {
            broadcast.unknown = self.unknown.map_or(broadcast.lost, |n| n.min(broadcast.lost));
            broadcast.lost -= broadcast.unknown;
        }
        let receipts = broadcast.as_ref().and_then(|broadcast| broadcast.latency_of_all);
        Outcome {
            version: OUTCOME_VERSION,
            standfast: env!("CARGO_PKG_VERSION").to_owned(),
            connections,
            seconds: sending,
            per_second: sending.map(|seconds| counts.echo_answered as f64 / seconds),
            good_per_second: sending.map(|seconds| {
                let good = counts.echo_answered.saturating_sub(self.wrong);
                good as f64 / seconds
            }),
            latency: recorder.latency(Series::Latency),
            service_time: recorder.latency(Series::ServiceTime),
            send_lag: recorder.latency(Series::SendLag),
            latency_of_all: if echo.is_none() {
                receipts.or(latency_of_all)
            } else {
                latency_of_all
            },
            connect_errors: by_cause(&counts.ends.failed),
            retried_by: by_cause(&counts.ends.retried),
            closed: by_cause(&counts.ends.closed),
            heartbeats: Some(heartbeats),
            warm_up_messages: self.warm_up,
            echo,
            broadcast,
            ..Outcome::default()
        }
    }
}

/// A run of requests as its main thread knows it.
pub(crate) struct RequestRun<'a> {
    pub(crate) requested: u64,
    pub(crate) interrupted: bool,
    pub(crate) counts: &'a RequestSnapshot,
    pub(crate) timed: &'a Recorder,
    pub(crate) measured: Duration,
    pub(crate) unsent: u64,
    pub(crate) dropped: Option<u64>,
    pub(crate) time_wait_most: u64,
}

impl RequestRun<'_> {
    pub(crate) fn outcome(self) -> Outcome {
        let RequestRun { counts, timed, unsent, .. } = self;
        let seconds = self.measured.as_secs_f64();
        let RequestSnapshot { ok, sent, answered, redirects, stragglers, stragglers_ok, .. } =
            *counts;
        let unfinished = counts.failed.get(Failure::Unfinished.index()).copied();
        let unfinished = unfinished.unwrap_or_default();
        // When a run is interrupted nobody knows what would have become of requests in flight.
        let unknown = if self.interrupted { unfinished } else { 0 };
        let failed = counts.failed_total() - unknown;
        let mut errors = counts.errors();
        errors.retain(|(kind, _)| !self.interrupted || *kind != Failure::Unfinished.name());
        let rate = |count: u64| (seconds > 0.0).then(|| count as f64 / seconds);
        // Complete answers that were not accepted are timed too.
        let answers = timed.latency(Series::Latency).map_or(0, |latency| latency.count);
        let dropped = self.dropped.unwrap_or(0);
        let never = (ok + failed + unsent + dropped).saturating_sub(answers);
        let wrong = answers.saturating_sub(ok);
        Outcome {
            version: OUTCOME_VERSION,
            standfast: env!("CARGO_PKG_VERSION").to_owned(),
            interrupted: self.interrupted,
            connections: Connections {
                requested: self.requested,
                opened: Some(counts.opened),
                failed: counts.connects_failed,
                closed_idle: Some(counts.closed_idle),
                unasked: Some(counts.unasked),
                time_wait_most: Some(self.time_wait_most),
                ..Connections::default()
            },
            requests: Some(RequestCounts {
                ok,
                failed,
                sent,
                answered,
                stragglers,
                unfinished,
                unknown,
                unsent,
                warm_up: counts.warm_up_sent,
                redirects,
            }),
            dropped: self.dropped,
            seconds: Some(seconds),
            per_second: rate(answered - stragglers),
            good_per_second: rate(ok - stragglers_ok),
            latency: timed.latency(Series::Latency),
            service_time: timed.latency(Series::ServiceTime),
            time_to_first_byte: timed.latency(Series::FirstByte),
            send_lag: timed.latency(Series::SendLag),
            latency_of_all: timed.quantiles(Series::Latency, wrong, never),
            scheduling_error: timed.latency(Series::SchedulingError),
            status: counts.statuses().collect(),
            errors: errors.into_iter().map(|(kind, n)| (kind.to_owned(), n)).collect(),
            body_bytes: Some(counts.body_bytes),
            decoded_bytes: Some(counts.decoded_bytes),
            ..Outcome::default()
        }
    }
}

/// `never`: publications that were due and not published.
fn broadcast(
    expected: Expected,
    counts: &Snapshot,
    recorder: &Recorder,
    never: u64,
) -> BroadcastSummary {
    let latency = recorder.latency(Series::Broadcast);
    let lost = expected.total().saturating_sub(counts.delivery.received);
    BroadcastSummary {
        published: expected.messages,
        receivers: expected.receivers,
        expected: expected.total(),
        received: counts.delivery.received,
        lost,
        unknown: 0,
        duplicated: counts.delivery.duplicated,
        reordered: counts.delivery.reordered,
        corrupted: counts.delivery.corrupted,
        late: counts.delivery.late,
        stale: counts.delivery.stale,
        foreign: counts.delivery.foreign,
        p50_ms: latency.map(|latency| latency.p50_ms),
        p99_ms: latency.map(|latency| latency.p99_ms),
        last_ms: latency.map(|latency| latency.max_ms),
        latency,
        from_send: recorder.latency(Series::FromSend),
        latency_of_all: recorder.quantiles(Series::Broadcast, 0, lost + never * expected.receivers),
        times: Times::default(),
        fanout: None,
    }
}

fn by_cause(counts: &BTreeMap<Cause, u64>) -> BTreeMap<String, u64> {
    counts.iter().map(|(cause, count)| (cause.name().to_owned(), *count)).collect()
}

#[cfg(test)]
mod tests {
    use engine::Closed;
    use wire::Violation;

    use super::*;
    use crate::DeliveryCounts;
    use crate::outcome::judge::judge;

    fn run(counts: &Snapshot, expected: Option<Expected>) -> SocketRun<'_> {
        SocketRun {
            requested: 10,
            connecting: Duration::from_secs(2),
            in_flight_max: 0,
            counts,
            recorder: Box::leak(Box::default()),
            messages: Some(9),
            wrong: 0,
            awaits_pongs: false,
            sending: None,
            warm_up: None,
            interrupted: false,
            expected,
            fanout: None,
            unknown: None,
            times: Times::default(),
        }
    }

    fn of(counts: &Snapshot, expected: Option<Expected>) -> Outcome {
        let mut outcome = run(counts, expected).outcome();
        judge(&mut outcome, &[]);
        outcome
    }

    #[test]
    fn run_without_shortfalls_is_held() {
        let counts = Snapshot {
            opened: 10,
            open: 10,
            echo_sent: 9,
            echo_received: 9,
            echo_answered: 9,
            delivery: DeliveryCounts { received: 30, ..DeliveryCounts::default() },
            ..Snapshot::default()
        };
        let expected = Expected { publisher: 0, receivers: 10, messages: 3 };
        let summary = of(&counts, Some(expected));
        assert!(summary.held, "{:?}", summary.reasons);
        assert_eq!(summary.connections.per_second, Some(5.0));
        assert!(summary.to_string().contains("all held"), "{summary}");
    }

    #[test]
    fn connections_that_answer_no_ping_are_not_held() {
        let counts = Snapshot {
            opened: 10,
            open: 10,
            heartbeats_sent: 20,
            heartbeats_received: 18,
            unanswered: 1,
            ..Snapshot::default()
        };
        for (awaits_pongs, reasons) in [(true, 1), (false, 0)] {
            let run = SocketRun { awaits_pongs, messages: None, ..run(&counts, None) };
            let mut outcome = run.outcome();
            judge(&mut outcome, &[]);
            assert_eq!(outcome.reasons.len(), reasons, "{:?}", outcome.reasons);
            assert_eq!(outcome.held, reasons == 0);
        }
    }

    #[test]
    fn pings_in_flight_at_the_end_or_at_a_close_by_us_are_not_unanswered() {
        let mut recorder = Recorder::default();
        (0..15).for_each(|_| recorder.record(Series::Heartbeat, 1_000_000));
        let counts = Snapshot {
            heartbeats_sent: 20,
            heartbeats_received: 15,
            heartbeats_cut: 3,
            waiting: 2,
            ..Snapshot::default()
        };
        for (awaits_pongs, count) in [(false, 15), (true, 17)] {
            let run = run(&counts, None);
            let run = SocketRun { awaits_pongs, messages: None, recorder: &recorder, ..run };
            let all = run.outcome().latency_of_all.unwrap();
            assert_eq!((all.count, all.max_ms.is_some()), (count, !awaits_pongs), "{all:?}");
        }
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
        let read = Outcome::read(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), json, "and back");
    }

    #[test]
    fn a_renamed_count_is_not_read_as_zero() {
        let mut json = serde_json::to_value(of(&Snapshot::default(), None)).unwrap();
        let echo = json["echo"].as_object_mut().unwrap();
        let lost = echo.remove("lost").unwrap();
        echo.insert("missing".to_owned(), lost);
        let error = Outcome::read(json.clone()).unwrap_err();
        assert!(error.contains("lost"), "{error}");
        json["version"] = 3.into();
        assert!(Outcome::read(json).unwrap_err().contains("version 3"));
    }
}
