//! [`GroupSummary`]: the summary of the messages of all groups.

use std::fmt::{self, Display, Formatter};

use capacity::{Count, Decimal};
use serde::{Deserialize, Serialize};

use crate::delivery::group::GroupStats;
use crate::outcome::histograms::Histograms;
use crate::outcome::latency_text::write_latencies;
use crate::outcome::sections::Quantiles;
use crate::workload::scenario::groups::GroupState;
use crate::{Latency, Receiver, Series};

/// Messages between users in groups. received + lost = expected; reordered and late messages were
/// received too.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct GroupSummary {
    /// The kind of group: `1:1`, `1:N`, `N:1` or `N:N`.
    pub kind: String,
    /// Users of a group.
    pub size: u32,
    /// Groups.
    pub groups: u64,
    /// Groups whose users had all arrived.
    pub met: u64,
    /// Users that sent.
    pub senders: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages that could not be sent; they are not expected.
    pub not_sent: u64,
    /// Messages sent in the warm-up; they are not expected and in no other figure.
    pub warm_up: u64,
    /// Rate of all senders, from the first message to the last.
    pub sent_per_second: f64,
    /// From the due time of a message to its send, with a rate.
    pub send_lag: Option<Latency>,
    /// Users that received.
    pub receivers: u64,
    /// Messages expected at all receivers.
    pub expected: u64,
    /// Expected messages received, each counted once.
    pub received: u64,
    /// Rate of all receivers, from the first message sent to the last receipt.
    pub received_per_second: f64,
    /// Received although the message was refused; not in `received`.
    pub refused: u64,
    /// Expected and not received.
    pub lost: u64,
    /// Received again.
    pub duplicated: u64,
    /// Received after a later one of its sender.
    pub reordered: u64,
    /// Received later than allowed.
    pub late: u64,
    /// Received 64 or more behind the newest of its sender, for the first time or again.
    pub stale: u64,
    /// Received with changes.
    pub corrupted: u64,
    /// Received by a user for which it was not meant.
    pub foreign: u64,
    /// Sent before its receiver arrived; not expected.
    pub early: u64,
    /// From sending to receipt.
    pub latency: Option<Latency>,
    /// `latency` of everything that was expected, where what was lost took forever.
    #[serde(default)]
    pub latency_of_all: Option<Quantiles>,
    /// Receivers that lost some.
    pub receivers_short: u64,
    /// The receivers that lost most, at most ten.
    pub worst: Vec<Receiver>,
}

impl GroupSummary {
    pub(crate) fn new(
        state: &GroupState,
        stats: &GroupStats,
        histograms: &mut Histograms,
    ) -> GroupSummary {
        let latency = histograms.latency("groups.latency", &stats.recorder, Series::Broadcast);
        let latency_of_all = histograms.of_all("groups.latency", 0, stats.lost);
        let rate = |count: u64, last_ns: u64, intervals: u64| {
            let seconds = last_ns.saturating_sub(stats.first_sent_ns) as f64 / 1e9;
            let count = count.saturating_sub(intervals);
            if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
        };
        let sent = stats.sent.saturating_sub(stats.failed);
        GroupSummary {
            kind: state.group.kind.to_string(),
            size: state.group.size,
            groups: state.groups,
            met: state.met(),
            senders: stats.senders,
            sent,
            not_sent: stats.failed,
            warm_up: stats.warm_up,
            // n messages take n - 1 intervals.
            sent_per_second: rate(sent, stats.last_sent_ns, 1),
            send_lag: histograms.latency("groups.send_lag", &stats.recorder, Series::PublishLag),
            receivers: stats.receivers,
            expected: stats.expected,
            received: stats.delivery.expected(),
            received_per_second: rate(stats.delivery.expected(), stats.last_received_ns, 0),
            refused: stats.delivery.refused,
            lost: stats.lost,
            duplicated: stats.delivery.duplicated,
            reordered: stats.delivery.reordered,
            late: stats.delivery.late,
            stale: stats.delivery.stale,
            corrupted: stats.delivery.corrupted,
            foreign: stats.delivery.foreign,
            early: stats.delivery.early,
            latency,
            latency_of_all,
            receivers_short: stats.short,
            worst: stats.worst.clone(),
        }
    }
}

impl Display for GroupSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [groups, met] = [self.groups, self.met].map(Count);
        let (size, kind) = (Count(self.size.into()), &self.kind);
        writeln!(f, "groups        {groups} of {size} users, {kind}; {met} complete")?;
        let (senders, rate) = (Count(self.senders), Decimal(self.sent_per_second, 1));
        write!(f, "  sent        {} by {senders} senders, {rate} per second", Count(self.sent))?;
        match self.not_sent {
            0 => writeln!(f)?,
            failed => writeln!(f, "; {} could not be sent", Count(failed))?,
        }
        let [received, expected, receivers] =
            [self.received, self.expected, self.receivers].map(Count);
        let rate = Decimal(self.received_per_second, 1);
        writeln!(
            f,
            "  received    {received} of {expected} by {receivers} receivers, {rate} per second"
        )?;
        let [lost, duplicated, reordered, late] =
            [self.lost, self.duplicated, self.reordered, self.late].map(Count);
        writeln!(
            f,
            "              {lost} lost, {duplicated} duplicated, {reordered} reordered, {late} late"
        )?;
        for (count, what) in [
            (self.warm_up, "sent in the warm-up, not counted otherwise"),
            (self.stale, "far behind the newest of their sender"),
            (self.refused, "delivered although refused"),
            (self.corrupted, "corrupted"),
            (self.foreign, "delivered to the wrong user"),
            (self.early, "sent before their receiver arrived, not expected"),
        ] {
            if count > 0 {
                writeln!(f, "              {} {what}", Count(count))?;
            }
        }
        write_latencies(
            f,
            &[("sent late by", self.send_lag.as_ref()), ("receipt after", self.latency.as_ref())],
        )?;
        for Receiver { connection, received, lost } in &self.worst {
            let [received, lost] = [received, lost].map(|count| Count(*count));
            writeln!(f, "  short       user {connection}: {received} received, {lost} lost")?;
        }
        Ok(())
    }
}
