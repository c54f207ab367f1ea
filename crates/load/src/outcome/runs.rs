//! How a run of WebSockets ([`SocketRun`]) and a run of requests ([`RequestRun`]) become an
//! [`Outcome`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::outcome::failure::Failure;
use crate::outcome::histograms::Histograms;
use crate::outcome::messages::{MessageCounts, MessageSummary};
use crate::outcome::sections::{
    BroadcastSummary, Connections, EchoSummary, FanoutSummary, HeartbeatSummary, RequestCounts,
};
use crate::outcome::{OUTCOME_VERSION, Outcome};
use crate::requests::{Messages, RequestSnapshot};
use crate::{Cause, Recorder, Series, Snapshot, Times};

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
    /// Sockets are pinged.
    pub(crate) pings: bool,
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
    /// What was timed of fan-out and arrival times.
    pub(crate) histograms: Histograms,
    /// The sockets share HTTP/2 connections.
    pub(crate) http2: bool,
    /// When connecting began, and sending.
    pub(crate) began_unix_us: Option<u64>,
    pub(crate) measured_unix_us: Option<u64>,
}

impl SocketRun<'_> {
    pub(crate) fn outcome(self) -> Outcome {
        let SocketRun { counts, recorder, .. } = self;
        let mut histograms = self.histograms;
        let [latency, service_time, send_lag] = [
            ("latency", Series::Latency),
            ("service_time", Series::ServiceTime),
            ("send_lag", Series::SendLag),
        ]
        .map(|(name, series)| histograms.latency(name, recorder, series));
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
            http2_opened: self.http2.then_some(counts.http2_opened),
            http2_failed: self.http2.then_some(counts.http2_failed),
            http2_ended: self.http2.then_some(counts.http2_ended),
            http2_goaways: self.http2.then_some(counts.http2_goaways),
            http2_streams_allowed: counts.streams_allowed,
            ..Connections::default()
        };
        let heartbeats = HeartbeatSummary {
            sent: counts.heartbeats_sent,
            received: counts.heartbeats_received,
            unanswered_sockets: counts.unanswered,
            not_due_sockets: self
                .pings
                .then(|| counts.open.saturating_sub(counts.answered + counts.unanswered)),
            awaited: self.awaits_pongs,
            latency: histograms.latency("heartbeats.latency", recorder, Series::Heartbeat),
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
        histograms.of_all("heartbeats.latency", 0, unponged);
        if let Some(unanswered) = unanswered {
            histograms.of_all("latency", 0, unanswered);
        }
        let sending = self.sending.map(|time| time.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let sending = sending.filter(|_| echo.is_some());
        let never = self.fanout.as_ref().map_or(0, |fanout| {
            [fanout.publish_rejected, fanout.publish_unsent].into_iter().flatten().sum()
        });
        let mut broadcast = self.expected.map(|expected| BroadcastSummary {
            fanout: self.fanout,
            times: self.times,
            ..broadcast(expected, counts, recorder, never, &mut histograms)
        });
        if let Some(broadcast) = broadcast.as_mut().filter(|_| self.interrupted) {
            broadcast.unknown = self.unknown.map_or(broadcast.lost, |n| n.min(broadcast.lost));
            broadcast.lost -= broadcast.unknown;
        }
        let mut outcome = Outcome {
            version: OUTCOME_VERSION,
            standfast: env!("CARGO_PKG_VERSION").to_owned(),
            connections,
            seconds: sending,
            per_second: sending.map(|seconds| counts.echo_answered as f64 / seconds),
            good_per_second: sending.map(|seconds| {
                let good = counts.echo_answered.saturating_sub(self.wrong);
                good as f64 / seconds
            }),
            latency,
            service_time,
            send_lag,
            began_unix_us: self.began_unix_us,
            measured_unix_us: self.measured_unix_us,
            connect_errors: by_cause(&counts.ends.failed),
            retried_by: by_cause(&counts.ends.retried),
            closed: by_cause(&counts.ends.closed),
            heartbeats: Some(heartbeats),
            warm_up_messages: self.warm_up,
            echo,
            broadcast,
            histograms: Some(histograms),
            ..Outcome::default()
        };
        outcome.set_latency_of_all();
        outcome
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
    /// The messages of calls.
    pub(crate) messages: Option<(&'a Messages, MessageCounts)>,
    /// When the run began, and the measured time.
    pub(crate) began_unix_us: Option<u64>,
    pub(crate) measured_unix_us: Option<u64>,
}

impl RequestRun<'_> {
    pub(crate) fn outcome(self) -> Outcome {
        let RequestRun { counts, timed, unsent, .. } = self;
        let seconds = self.measured.as_secs_f64();
        let RequestSnapshot { ok, sent, answered, redirects, stragglers, stragglers_ok, .. } =
            *counts;
        let repeated = Some(counts.repeated);
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
        let mut histograms = Histograms::default();
        let [latency, service_time, time_to_first_byte, send_lag, scheduling_error] = [
            ("latency", Series::Latency),
            ("service_time", Series::ServiceTime),
            ("time_to_first_byte", Series::FirstByte),
            ("send_lag", Series::SendLag),
            ("scheduling_error", Series::SchedulingError),
        ]
        .map(|(name, series)| histograms.latency(name, timed, series));
        let latency_of_all = histograms.of_all("latency", wrong, never);
        let messages = self.messages.map(|(config, counts)| {
            let timed = (timed, seconds);
            MessageSummary::new(config, &counts, timed, self.interrupted, &mut histograms)
        });
        Outcome {
            messages,
            version: OUTCOME_VERSION,
            standfast: env!("CARGO_PKG_VERSION").to_owned(),
            interrupted: self.interrupted,
            connections: Connections {
                requested: self.requested,
                opened: Some(counts.opened),
                failed: counts.connects_failed,
                closed_idle: Some(counts.closed_idle),
                unasked: Some(counts.unasked),
                closed_surplus: Some(counts.closed_surplus),
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
                repeated,
            }),
            dropped: self.dropped,
            seconds: Some(seconds),
            per_second: rate(answered - stragglers),
            good_per_second: rate(ok - stragglers_ok),
            latency,
            service_time,
            time_to_first_byte,
            send_lag,
            latency_of_all,
            scheduling_error,
            began_unix_us: self.began_unix_us,
            measured_unix_us: self.measured_unix_us,
            histograms: Some(histograms),
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
    histograms: &mut Histograms,
) -> BroadcastSummary {
    let latency = histograms.latency("broadcast.latency", recorder, Series::Broadcast);
    let received = counts.delivery.expected();
    let lost = expected.total().saturating_sub(received);
    let due = lost.saturating_add(never.saturating_mul(expected.receivers));
    let latency_of_all = histograms.of_all("broadcast.latency", 0, due);
    BroadcastSummary {
        published: expected.messages,
        receivers: expected.receivers,
        expected: expected.total(),
        received,
        refused: counts.delivery.refused,
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
        from_send: histograms.latency("broadcast.from_send", recorder, Series::FromSend),
        latency_of_all,
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
            pings: false,
            sending: None,
            http2: false,
            warm_up: None,
            interrupted: false,
            expected,
            fanout: None,
            unknown: None,
            times: Times::default(),
            histograms: Histograms::default(),
            began_unix_us: None,
            measured_unix_us: None,
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
