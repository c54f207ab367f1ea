//! The sections of an [`Outcome`](crate::Outcome): connections, requests, heartbeats, echoes and
//! publications.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::outcome::read;
use crate::{Latency, Snapshot, Times};

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
    /// HTTP/2 connections of WebSockets that took streams; `None` without HTTP/2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http2_opened: Option<u64>,
    /// HTTP/2 connections that failed before they took a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http2_failed: Option<u64>,
    /// HTTP/2 connections that the server ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http2_ended: Option<u64>,
    /// Times the server took no further streams on one (GOAWAY).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http2_goaways: Option<u64>,
    /// The fewest streams that a server allows on a connection, if fewer than wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http2_streams_allowed: Option<u64>,
    /// Closed by the server while idle.
    pub closed_idle: Option<u64>,
    /// Closed because the server sent unsolicited data.
    pub unasked: Option<u64>,
    /// Closed because a user had connections to too many hosts.
    pub closed_surplus: Option<u64>,
    /// The most sockets of this machine in `TIME_WAIT` at any sample.
    pub time_wait_most: Option<u64>,
}

impl Connections {
    /// Adds the HTTP/2 connections of a scenario, whose sockets and requests are streams on them.
    pub(crate) fn count_carriers(&mut self, counts: &Snapshot) {
        self.http2_opened = Some(counts.http2_opened);
        self.http2_failed = Some(counts.http2_failed);
        self.http2_ended = Some(counts.http2_ended);
        self.http2_goaways = Some(counts.http2_goaways);
        self.http2_streams_allowed = counts.streams_allowed;
    }
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
    pub stragglers: u64,
    /// Without an answer when the run ended: failed, or unknown if it was interrupted.
    pub unfinished: u64,
    /// In flight when the run was interrupted; not in `failed`.
    pub unknown: u64,
    /// Due in the open model but never sent, as no user was free.
    pub unsent: u64,
    /// Sent in the warm-up.
    pub warm_up: u64,
    /// Sent to follow redirects.
    pub redirects: u64,
    /// Times the server had not processed a request, by its GOAWAY or the end of its connection, so that it is
    /// sent again, and is in `sent` once; with the warm-up. `None` in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
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
    /// Sockets open at the end that were never pinged, as no ping was due yet; null without pings.
    #[serde(default)]
    pub not_due_sockets: Option<u64>,
    /// Whether the end of the run waited for pongs, so that one that is missing did not come.
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
    /// Received although the server had refused the publication; not in `received`.
    pub refused: u64,
    /// Not received.
    pub lost: u64,
    /// Not received yet when the run was interrupted; not in `lost`.
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
    #[serde(flatten, deserialize_with = "read::fanout")]
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

impl BroadcastSummary {
    /// Receipts per second while a fan-out was published; `None` without one.
    #[must_use]
    pub fn received_per_second(&self) -> Option<f64> {
        let fanout = self.fanout.as_ref()?;
        let sent = fanout.sent(self.published);
        (sent > 0).then(|| fanout.reached_rate * self.received as f64 / sent as f64)
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
        let (sent, unsent) = (self.sent(published), self.publish_unsent.unwrap_or_default());
        sent as f64 / (sent + unsent).max(1) as f64
    }

    /// Publications that were sent, of which `published` are expected.
    fn sent(&self, published: u64) -> u64 {
        let [rejected, unknown] =
            [self.publish_rejected, self.publish_unknown].map(Option::unwrap_or_default);
        published + rejected + unknown
    }
}
