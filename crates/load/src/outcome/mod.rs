//! [`Outcome`]: the result of a run, of every kind. It is all that leaves a run: the text, the pages,
//! `prove`, `compare`, `plan` and `stress` read it and nothing else. The schema is in
//! `docs/protocol/load-json.md`.
//!
//! A section that a run does not have is `None`, as are figures that were not measured. Counts within
//! a section are required: a document without one of them is not read as zero.

pub(crate) mod bins;
pub(crate) mod cable;
pub(crate) mod call_errors;
pub(crate) mod cause;
pub(crate) mod churn;
pub(crate) mod failure;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod generator;
pub(crate) mod goaways;
pub(crate) mod groups;
pub(crate) mod histograms;
pub(crate) mod judge;
pub(crate) mod latency_text;
pub(crate) mod merge;
pub(crate) mod merged_samples;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod packed;
pub(crate) mod read;
pub(crate) mod recorder;
pub(crate) mod request_metrics;
pub(crate) mod run_config;
pub(crate) mod runs;
pub(crate) mod samples;
pub(crate) mod saturation;
pub(crate) mod sections;
pub(crate) mod selection;
pub(crate) mod shared_row;
pub(crate) mod stages;
pub(crate) mod stalls;
pub(crate) mod tally;
pub(crate) mod text;
pub(crate) mod threshold_text;
pub(crate) mod timed;
pub(crate) mod timings;

use std::collections::BTreeMap;

use capacity::Count;
use serde::{Deserialize, Serialize};

use self::generator::{Generator, Watched};
use self::goaways::GoAwaySummary;
use self::histograms::Histograms;
use self::judge::{Figure, Metric, ThresholdResult};
use self::messages::MessageSummary;
use self::run_config::RunConfig;
use self::samples::SampleSeries;
use self::sections::{
    BroadcastSummary, Connections, EchoSummary, FanoutSummary, HeartbeatSummary, Quantiles,
    RequestCounts,
};
use self::selection::Selection;
use self::stages::StageSummary;
use crate::scenario::{FlowSummary, GroupSummary, SocketSummary};
use crate::{CableSummary, ChurnSummary, Latency};

/// The version of the schema that is written. Documents without a version are of version 1.
pub const OUTCOME_VERSION: u32 = 2;
/// Reasons of runs in which nothing happened.
const NO_ANSWER: &str = "nothing was answered";
const NO_RECEIVER: &str = "no message was expected by any receiver";

/// The result of a run.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// [`OUTCOME_VERSION`].
    pub version: u32,
    /// The version of the program.
    pub standfast: String,
    /// No shortfall, and not interrupted.
    pub held: bool,
    /// It was interrupted.
    pub interrupted: bool,
    /// The shortfalls; empty if there were none.
    pub reasons: Vec<String>,
    /// Every shortfall is tolerated by a threshold that was met.
    pub tolerated: bool,
    /// What was run.
    #[serde(flatten)]
    pub config: RunConfig,
    /// Unix time in microseconds when the run began, from which samples and connects count; null if
    /// unknown.
    #[serde(default)]
    pub began_unix_us: Option<u64>,
    /// The same when `seconds` began.
    #[serde(default)]
    pub measured_unix_us: Option<u64>,
    /// Connections.
    pub connections: Connections,
    /// Requests; null for runs of WebSockets.
    pub requests: Option<RequestCounts>,
    /// Passes that were due at an arrival rate while no user was free; null without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Seconds in which requests or messages of an echo were measured.
    pub seconds: Option<f64>,
    /// Complete answers ÷ `seconds`.
    pub per_second: Option<f64>,
    /// Answers as expected ÷ `seconds`.
    pub good_per_second: Option<f64>,
    /// From when a message was due to its answer; null if nothing was timed.
    pub latency: Option<Latency>,
    /// From when it was sent.
    pub service_time: Option<Latency>,
    /// `latency` of everything that was due, where what was not answered took forever.
    #[serde(default)]
    pub latency_of_all: Option<Quantiles>,
    /// From when a request was sent to the first byte of its answer.
    #[serde(default)]
    pub time_to_first_byte: Option<Latency>,
    /// From when a message was due (open model), or from the end of a user's pause (closed loop), to
    /// when it was sent; null if nothing was due at a time.
    #[serde(default)]
    pub send_lag: Option<Latency>,
    /// The same of requests for which a user was free: the error of the generator.
    #[serde(default)]
    pub scheduling_error: Option<Latency>,
    /// Complete answers by status.
    pub status: BTreeMap<u16, u64>,
    /// Failed requests by kind.
    pub errors: BTreeMap<String, u64>,
    /// What the first failed call of each gRPC status said, by kind; absent without.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub call_errors: BTreeMap<String, String>,
    /// HTTP/2: how servers left connections (GOAWAY), by the name of the code; absent without.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub goaways: BTreeMap<String, GoAwaySummary>,
    /// Bytes of bodies received, without framing, before decoding.
    pub body_bytes: Option<u64>,
    /// Decoded bytes of bodies with a content coding that were used.
    pub decoded_bytes: Option<u64>,
    /// Failed connects by cause.
    pub connect_errors: BTreeMap<String, u64>,
    /// Retried attempts by cause.
    pub retried_by: BTreeMap<String, u64>,
    /// WebSockets that ended before the run, by cause.
    pub closed: BTreeMap<String, u64>,
    /// Messages and publications on WebSockets sent in the warm-up, which are in no other figure; null
    /// without one.
    #[serde(default)]
    pub warm_up_messages: Option<u64>,
    /// Pings and pongs of WebSockets.
    pub heartbeats: Option<HeartbeatSummary>,
    /// Messages sent and received back.
    pub echo: Option<EchoSummary>,
    /// Messages of calls that send or receive several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<MessageSummary>,
    /// Publications.
    pub broadcast: Option<BroadcastSummary>,
    /// Action Cable clients.
    pub cable: Option<CableSummary>,
    /// Churn of subscriptions.
    pub churn: Option<ChurnSummary>,
    /// What was reached in each stage; empty without stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageSummary>,
    /// The flows of a scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowSummary>,
    /// Figures of what thresholds select.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selections: Vec<Selection>,
    /// WebSockets of a scenario.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<SocketSummary>,
    /// Messages between the users of a scenario.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<GroupSummary>,
    /// The load generator; null if it was not observed.
    pub generator: Option<Generator>,
    /// The process of `--watch-pid`.
    pub watched: Option<Watched>,
    /// The thresholds.
    pub thresholds: Vec<ThresholdResult>,
    /// Why the target was never reached, if that is certain.
    #[serde(skip)]
    pub unreached: Option<String>,
    /// What the machine lacked for the run from the start, with `--force`.
    #[serde(skip)]
    pub machine_short: Vec<String>,
    /// Samples over time, at most some thousand.
    pub samples: SampleSeries,
    /// What was timed, for merging; null if unknown.
    #[serde(default)]
    pub histograms: Option<Histograms>,
}

/// What fell short, and the metrics on counts that include it.
#[derive(Clone, Debug)]
pub(crate) struct Shortfall {
    pub(crate) text: String,
    pub(crate) covered_by: &'static [Metric],
}

/// A count, what it counts, and the metrics that include it.
pub(crate) type CountedShortfall = (u64, &'static str, &'static [Metric]);

/// Metrics that include an error of any kind, and those that include certain ones.
pub(crate) const ANY: &[Metric] = &[Metric::Errors, Metric::ErrorShare];
const FAILED: &[Metric] = &[Metric::Failed, Metric::Errors, Metric::ErrorShare];
const CLOSED: &[Metric] = &[Metric::Closed, Metric::Errors, Metric::ErrorShare];
pub(crate) const LOST: &[Metric] = &[Metric::Lost, Metric::Errors, Metric::ErrorShare];
pub(crate) const DUPLICATED: &[Metric] = &[Metric::Duplicated, Metric::Errors, Metric::ErrorShare];
pub(crate) const REORDERED: &[Metric] = &[Metric::Reordered, Metric::Errors, Metric::ErrorShare];
const DROPPED: &[Metric] = &[Metric::Dropped, Metric::Errors, Metric::ErrorShare];
pub(crate) const LATE: &[Metric] = &[Metric::Late, Metric::Errors, Metric::ErrorShare];

impl Outcome {
    /// The same without what grows with the time or the number of generators: samples, histograms and what each
    /// worker did.
    #[must_use]
    pub fn without_series(&self) -> Outcome {
        let mut outcome =
            Outcome { samples: SampleSeries::EMPTY, histograms: None, ..self.clone() };
        outcome.generator.iter_mut().for_each(Generator::forget_workers);
        outcome
    }

    /// Failed connects and requests, ended connections, and messages lost or wrong.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        self.counted_shortfalls().iter().map(|(count, ..)| count).sum()
    }

    /// What was due: requests, or connections and messages.
    #[must_use]
    pub fn due_count(&self) -> u64 {
        let dropped = self.dropped.unwrap_or(0);
        let requests = self.requests.map(|of| of.ok + of.failed + of.unsent + dropped);
        let groups = self.groups.as_ref().map_or(0, |groups| groups.expected);
        let messages = self.messages.as_ref().map_or(0, |messages| messages.sent + messages.unsent);
        if let Some(requests) = requests {
            return requests + groups + messages;
        }
        let echo = self.echo.as_ref().map_or(0, |echo| echo.sent + echo.unsent);
        let broadcast = self.broadcast.as_ref().map_or(0, |broadcast| {
            let fanout = broadcast.fanout.as_ref();
            let unsent = fanout.and_then(|fanout| fanout.publish_unsent).unwrap_or(0);
            broadcast.expected + fanout.map_or(0, FanoutSummary::failed) + unsent
        });
        let churn = self.churn.as_ref().map_or(0, |churn| churn.owed);
        self.connections.requested + echo + broadcast + churn
    }

    /// Whether all calls of several messages lasted until the run ended, so that their rate and length are
    /// those of the run.
    #[must_use]
    pub fn all_calls_lasted(&self) -> bool {
        let requests = self.requests.filter(|_| self.messages.is_some());
        requests.is_some_and(|of| of.answered > 0 && of.answered == of.stragglers)
    }

    /// Whether the generator was saturated, so that latencies and rates describe it and not the
    /// server.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.generator.as_ref().is_some_and(|generator| generator.saturated().is_some())
    }

    /// Whether the rate of an open model was missed, or met far too late.
    fn missed_the_rate(&self) -> bool {
        self.generator.as_ref().is_some_and(Generator::missed_the_rate)
    }

    /// Whether anything was received that the metric is about.
    pub(crate) fn is_answered(&self, metric: Metric) -> bool {
        let receipts = [
            self.broadcast.as_ref().map(|broadcast| broadcast.received),
            self.churn.as_ref().map(|churn| churn.received),
            self.groups.as_ref().map(|groups| groups.received),
            self.messages.as_ref().map(|messages| messages.received),
        ];
        let receipts: Option<u64> = receipts.into_iter().flatten().reduce(u64::max);
        if is_of_receipts(metric)
            && let Some(receipts) = receipts
        {
            return receipts > 0;
        }
        if let Some(requests) = &self.requests {
            return requests.answered > 0;
        }
        let messages = [self.echo.as_ref().map(|echo| echo.received), receipts];
        let messages: Option<u64> = messages.into_iter().flatten().reduce(u64::max);
        let opened = || self.connections.opened.or(self.connections.open).unwrap_or(0);
        messages.unwrap_or_else(opened) > 0
    }

    /// The value of a metric.
    pub(crate) fn figure(&self, metric: Metric) -> Figure {
        let all = self.latency_of_all;
        let receipts = self.receipts();
        let of = |quantiles: Option<Quantiles>, pick: fn(&Quantiles) -> Option<f64>| {
            quantiles
                .map_or(Figure::Unknown, |all| pick(&all).map_or(Figure::Infinite, Figure::Value))
        };
        let count =
            |count: Option<u64>| count.map_or(Figure::Unknown, |count| Figure::Value(count as f64));
        let value = |value: Option<f64>| value.map_or(Figure::Unknown, Figure::Value);
        match metric {
            Metric::P50 => of(all, |all| all.p50_ms),
            Metric::P90 => of(all, |all| all.p90_ms),
            Metric::P95 => of(all, |all| all.p95_ms),
            Metric::P99 => of(all, |all| all.p99_ms),
            Metric::P999 => of(all, |all| all.p999_ms),
            Metric::Max => of(all, |all| all.max_ms),
            Metric::ReceiptP50 => of(receipts, |all| all.p50_ms),
            Metric::ReceiptP99 => of(receipts, |all| all.p99_ms),
            Metric::ReceiptMax => of(receipts, |all| all.max_ms),
            Metric::Failed => {
                count(Some(self.requests.map_or(self.connections.failed, |of| of.failed)))
            }
            Metric::Closed => count(match self.requests {
                Some(_) => self.connections.closed_idle,
                None => Some(self.closed.values().sum()),
            }),
            Metric::Lost => count(self.delivered(
                |echo| echo.lost,
                |broadcast| broadcast.lost,
                |churn| churn.lost,
                |groups| groups.lost,
                |messages| messages.lost,
            )),
            Metric::Duplicated => count(self.delivered(
                |echo| echo.duplicated,
                |broadcast| broadcast.duplicated,
                |churn| churn.duplicated,
                |groups| groups.duplicated,
                |messages| messages.duplicated,
            )),
            Metric::Reordered => count(self.delivered(
                |echo| echo.reordered,
                |broadcast| broadcast.reordered,
                |churn| churn.reordered,
                |groups| groups.reordered,
                |messages| messages.reordered,
            )),
            Metric::Late => count(self.delivered(
                |echo| echo.late,
                |broadcast| broadcast.late,
                |churn| churn.late,
                |groups| groups.late,
                |messages| messages.late,
            )),
            Metric::Dropped => count(self.dropped),
            Metric::Errors => count(Some(self.error_count())),
            Metric::ErrorShare => {
                let due = self.due_count();
                value((due > 0).then(|| 100.0 * self.error_count() as f64 / due as f64))
            }
            Metric::Rate => value(self.good_rate()),
            // Of a selection, also if that is everything.
            Metric::Checks => Figure::Unknown,
        }
    }

    /// Good answers per second; of a fan-out or a churn accepted publications per second.
    #[must_use]
    pub fn good_rate(&self) -> Option<f64> {
        let fanout = self.broadcast.as_ref().and_then(|broadcast| broadcast.fanout.as_ref());
        let accepted = match (fanout, &self.churn) {
            (Some(FanoutSummary { accepted_rate, reached_rate, publish_failed, .. }), _)
            | (None, Some(ChurnSummary { accepted_rate, reached_rate, publish_failed, .. })) => {
                // Files of earlier versions have only the rate of all that were sent.
                accepted_rate.or(publish_failed.is_empty().then_some(*reached_rate))
            }
            (None, None) => None,
        };
        self.good_per_second.or(accepted)
    }

    /// Receipts of publications and of users in groups, where what was lost took forever.
    fn receipts(&self) -> Option<Quantiles> {
        let broadcast = self.broadcast.as_ref().and_then(|broadcast| broadcast.latency_of_all);
        let churn = self.churn.as_ref().and_then(|churn| churn.latency_of_all);
        let groups = self.groups.as_ref().and_then(|groups| groups.latency_of_all);
        let messages = self.messages.as_ref().and_then(|messages| messages.latency_of_all);
        broadcast.or(churn).or(groups).or(messages)
    }

    /// A count of messages over all that were checked; `None` without messages.
    fn delivered(
        &self,
        of_echo: fn(&EchoSummary) -> u64,
        of_broadcast: fn(&BroadcastSummary) -> u64,
        of_churn: fn(&ChurnSummary) -> u64,
        of_groups: fn(&GroupSummary) -> u64,
        of_messages: fn(&MessageSummary) -> Option<u64>,
    ) -> Option<u64> {
        let counts = [
            self.echo.as_ref().map(of_echo),
            self.broadcast.as_ref().map(of_broadcast),
            self.churn.as_ref().map(of_churn),
            self.groups.as_ref().map(of_groups),
            self.messages.as_ref().and_then(of_messages),
        ];
        counts.into_iter().flatten().reduce(|one, other| one + other)
    }

    /// All shortfalls.
    pub(crate) fn shortfalls(&self) -> Vec<Shortfall> {
        let counted = self.counted_shortfalls().into_iter().filter(|(count, ..)| *count > 0);
        let mut shortfalls: Vec<Shortfall> = counted
            .map(|(count, what, covered_by)| Shortfall {
                text: format!("{} {what}", Count(count)),
                covered_by,
            })
            .collect();
        let mut add = |is: bool, text: &str| {
            if is {
                shortfalls.push(Shortfall { text: text.to_owned(), covered_by: &[] });
            }
        };
        let received = self.messages.as_ref().map_or(0, |messages| messages.received);
        let silent = self.requests.is_some_and(|of| of.answered == 0);
        let silent = silent && received == 0 && !self.interrupted;
        add(silent, NO_ANSWER);
        let nothing = self.groups.as_ref().is_some_and(|groups| groups.expected == 0);
        add(nothing, NO_RECEIVER);
        self.machine_short.iter().for_each(|text| add(true, text));
        add(self.missed_the_rate(), "the requested rate was not reached on time");
        // First, as the rest follows from it.
        let unreached = self.unreached.iter();
        let unreached = unreached.map(|why| Shortfall { text: why.clone(), covered_by: &[] });
        unreached.chain(shortfalls).collect()
    }

    /// Counts that should be zero, what they count, and the metrics that include them.
    fn counted_shortfalls(&self) -> Vec<CountedShortfall> {
        let mut all = Vec::new();
        match &self.requests {
            Some(of) => all.extend([
                (of.failed, "requests failed", FAILED),
                (of.unsent, "requests were due and never sent", ANY),
                (self.dropped.unwrap_or(0), "passes were dropped", DROPPED),
            ]),
            None => {
                let Connections { requested, failed, reconnects, .. } = self.connections;
                let ended: u64 = self.closed.values().sum();
                let gone = ended.saturating_sub(reconnects.unwrap_or(0));
                let open = self.connections.open.unwrap_or(0);
                let never = requested.saturating_sub(open + failed + gone);
                let never = if self.interrupted { 0 } else { never };
                all.extend([
                    (failed, "connections failed", FAILED),
                    (never, "connections were not opened", FAILED),
                    (ended, "connections ended before the run did", CLOSED),
                ]);
            }
        }
        if let Some(heartbeats) = self.heartbeats.as_ref().filter(|of| of.awaited) {
            all.push((heartbeats.unanswered_sockets, "connections answered no ping", ANY));
        }
        if let Some(echo) = &self.echo {
            all.extend([
                // Those of an interrupted run would have been sent later.
                (if self.interrupted { 0 } else { echo.unsent }, "messages were never sent", ANY),
                (echo.lost, "messages were lost", LOST),
                (echo.duplicated, "answers were duplicated", DUPLICATED),
                (echo.reordered, "answers were reordered", REORDERED),
                (echo.corrupted, "answers did not match a message that was sent", ANY),
                (echo.late, "answers were late", LATE),
            ]);
        }
        if let Some(broadcast) = &self.broadcast {
            let fanout = broadcast.fanout.as_ref();
            let refused = fanout.map_or(0, FanoutSummary::failed);
            let unsent = fanout.and_then(|fanout| fanout.publish_unsent).unwrap_or(0);
            all.extend([
                (broadcast.lost, "publications were lost", LOST),
                (broadcast.duplicated, "publications were duplicated", DUPLICATED),
                (broadcast.reordered, "publications were reordered", REORDERED),
                (broadcast.corrupted, "publications were corrupted", ANY),
                (broadcast.late, "publications were late", LATE),
                (broadcast.stale, "publications were 64 or more behind", ANY),
                (broadcast.refused, "messages were delivered although refused", ANY),
                (refused, "publications were rejected or not answered", ANY),
                (unsent, "publications were due and not sent", ANY),
            ]);
        }
        if let Some(cable) = &self.cable {
            all.extend(cable.shortfalls().map(|(count, what)| (count, what, ANY)));
        }
        if let Some(churn) = &self.churn {
            all.extend(churn.shortfalls());
        }
        if let Some(messages) = &self.messages {
            all.extend(messages.shortfalls());
        }
        if let Some(groups) = &self.groups {
            all.extend([
                (groups.groups.saturating_sub(groups.met), "groups were never complete", ANY),
                (groups.not_sent, "messages could not be sent", ANY),
                (groups.lost, "messages were lost", LOST),
                (groups.duplicated, "messages were duplicated", DUPLICATED),
                (groups.reordered, "messages were reordered", REORDERED),
                (groups.late, "messages were late", LATE),
                (groups.stale, "messages were 64 or more behind", ANY),
                (groups.refused, "messages were delivered although refused", ANY),
                (groups.corrupted, "messages were corrupted", ANY),
                (groups.foreign, "messages were delivered to the wrong user", ANY),
            ]);
        }
        all
    }
}

/// Whether a metric is of messages that were received, where a run also has requests.
fn is_of_receipts(metric: Metric) -> bool {
    use Metric::{Duplicated, Late, Lost, ReceiptMax, ReceiptP50, ReceiptP99, Reordered};
    matches!(metric, Duplicated | Late | Lost | ReceiptMax | ReceiptP50 | ReceiptP99 | Reordered)
}
