//! The summary of a churn.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use capacity::{Count, Decimal};
use serde::{Deserialize, Serialize};

use crate::outcome::histograms::Histograms;
use crate::outcome::latency_text::write_latencies;
use crate::outcome::sections::Quantiles;
use crate::outcome::{ANY, CountedShortfall, DUPLICATED, LATE, LOST, REORDERED};
use crate::workload::fanout::publisher::PublishStats;
use crate::{Latency, Recorder, Series, Snapshot};

/// Subscriptions that began and ended during publishing.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct ChurnSummary {
    /// Streams that were published to in turn.
    pub streams: u64,
    /// Publications that were accepted, or may have been.
    pub published: u64,
    /// Publications that were rejected or not answered, by cause.
    pub publish_failed: BTreeMap<String, u64>,
    /// Publications that were due and not sent, as too many were unanswered.
    #[serde(default)]
    pub publish_unsent: Option<u64>,
    /// Publications per second: configured, and reached.
    pub rate: f64,
    /// See `rate`.
    pub reached_rate: f64,
    /// The part of `reached_rate` that the server accepted.
    #[serde(default)]
    pub accepted_rate: Option<f64>,
    /// Subscriptions confirmed during the churn.
    pub begun: u64,
    /// Subscriptions that were judged, including those from before the churn.
    pub judged: u64,
    /// Publications expected: begun after the confirmation was received, and accepted at least the
    /// grace before the unsubscribe was sent.
    pub owed: u64,
    /// Receipts, each counted once per subscription: expected ones, and those allowed while a
    /// subscription begins or ends.
    pub received: u64,
    /// Received although the server had refused the publication; not in `received`.
    pub refused: u64,
    /// Expected publications that a subscription did not receive.
    pub lost: u64,
    /// Repeated receipts.
    pub duplicated: u64,
    /// Receipts after that of a later publication.
    pub reordered: u64,
    /// Receipts later than the grace after the publication.
    pub late: u64,
    /// Receipts 64 or more behind the newest.
    pub stale: u64,
    /// Receipts that were changed or are no publication.
    pub corrupted: u64,
    /// Messages for subscriptions that had ended or did not exist, or published long before them.
    pub unexpected: u64,
    /// Subscribes that were never confirmed.
    pub unconfirmed: u64,
    /// From the time a publication was due to its receipt.
    pub latency: Option<Latency>,
    /// From the time it was sent to its receipt.
    #[serde(default)]
    pub from_send: Option<Latency>,
    /// `latency` of everything that was expected, where what was lost took forever.
    #[serde(default)]
    pub latency_of_all: Option<Quantiles>,
    /// From the due time of a publication to its send.
    pub publish_lag: Option<Latency>,
    /// From the send to the server's answer.
    pub publish: Option<Latency>,
}

impl ChurnSummary {
    pub(crate) fn new(
        streams: u64,
        published: u64,
        (rate, reached_rate, accepted_rate): (f64, f64, f64),
        stats: PublishStats,
        counts: &Snapshot,
        recorder: &Recorder,
        histograms: &mut Histograms,
    ) -> ChurnSummary {
        let latency = histograms.latency("churn.latency", recorder, Series::Broadcast);
        let latency_of_all = histograms.of_all("churn.latency", 0, counts.churn_lost);
        ChurnSummary {
            streams,
            published,
            rate,
            reached_rate,
            accepted_rate: Some(accepted_rate),
            begun: counts.churn_begun,
            judged: counts.churn_judged,
            owed: counts.churn_owed,
            received: counts.delivery.expected(),
            refused: counts.delivery.refused,
            lost: counts.churn_lost,
            duplicated: counts.delivery.duplicated,
            reordered: counts.delivery.reordered,
            late: counts.delivery.late,
            stale: counts.delivery.stale,
            corrupted: counts.delivery.corrupted + counts.delivery.foreign,
            unexpected: counts.delivery.unexpected,
            unconfirmed: counts.churn_unconfirmed,
            latency,
            from_send: histograms.latency("churn.from_send", recorder, Series::FromSend),
            latency_of_all,
            publish_lag: histograms.latency(
                "churn.publish_lag",
                &stats.recorder,
                Series::PublishLag,
            ),
            publish: histograms.latency("churn.publish", &stats.recorder, Series::Publish),
            publish_failed: stats.failed,
            publish_unsent: Some(stats.unsent),
        }
    }

    /// The shortfalls as clauses.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let some = self.shortfalls().into_iter().filter(|(count, ..)| *count > 0);
        some.map(|(count, what, _)| format!("{} {what}", Count(count))).collect()
    }

    pub(crate) fn shortfalls(&self) -> [CountedShortfall; 11] {
        [
            (self.lost, "publications were lost", LOST),
            (self.duplicated, "publications were duplicated", DUPLICATED),
            (self.reordered, "publications were reordered", REORDERED),
            (self.late, "publications were late", LATE),
            (self.stale, "publications were 64 or more behind", ANY),
            (self.corrupted, "publications were corrupted", ANY),
            (self.unexpected, "messages were for subscriptions that did not exist", ANY),
            (self.refused, "messages were delivered although refused", ANY),
            (self.unconfirmed, "subscribes were not confirmed", ANY),
            (self.publish_failed.values().sum(), "publications were rejected or not answered", ANY),
            (self.publish_unsent.unwrap_or(0), "publications were due and not sent", ANY),
        ]
    }
}

impl Display for ChurnSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [begun, judged, streams] = [self.begun, self.judged, self.streams].map(Count);
        writeln!(
            f,
            "churn         {begun} subscriptions begun, {judged} judged, {streams} streams"
        )?;
        let [reached, rate] = [self.reached_rate, self.rate].map(|rate| Decimal(rate, 1));
        let published = Count(self.published);
        writeln!(f, "  published     {published}, {reached} per second of {rate} requested")?;
        write!(f, "  expected      {}, {} received", Count(self.owed), Count(self.received))?;
        if self.published > 0 {
            let received = self.reached_rate * self.received as f64 / self.published as f64;
            write!(f, ", {} per second", Decimal(received, 1))?;
        }
        let [lost, duplicated, reordered] = [self.lost, self.duplicated, self.reordered].map(Count);
        writeln!(f, "; {lost} lost,")?;
        write!(f, "                {duplicated} duplicated, {reordered} reordered, ")?;
        writeln!(f, "{} late, {} unexpected", Count(self.late), Count(self.unexpected))?;
        if self.refused > 0 {
            writeln!(f, "                {} delivered although refused", Count(self.refused))?;
        }
        write_latencies(
            f,
            &[
                ("from due", self.latency.as_ref()),
                ("from send", self.from_send.as_ref()),
                ("sent late by", self.publish_lag.as_ref()),
                ("answered in", self.publish.as_ref()),
            ],
        )?;
        for (cause, count) in &self.publish_failed {
            writeln!(f, "  failed        {}: {cause}", Count(*count))?;
        }
        Ok(())
    }
}
