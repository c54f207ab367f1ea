//! [`MessageSummary`]: the messages of calls, and the counters behind it.

use std::fmt::{self, Display, Formatter};

use capacity::{Count, Decimal};
use engine::Counter;
use serde::{Deserialize, Serialize};

use crate::delivery::checker::{DeliveryCounters, DeliveryCounts};
use crate::outcome::histograms::Histograms;
use crate::outcome::latency_text::write_latencies;
use crate::outcome::sections::Quantiles;
use crate::outcome::{ANY, CountedShortfall, DUPLICATED, LATE, LOST, REORDERED};
use crate::workload::requests::conversation::{MessageCheck, Messages};
use crate::{Latency, Recorder, Series};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The messages of one worker.
        #[derive(Default)]
        pub(crate) struct MessageCounters {
            $($(#[$doc])* pub(crate) $name: Counter,)*
            pub(crate) delivery: DeliveryCounters,
        }

        /// The messages of all workers.
        #[derive(Clone, Default, Debug)]
        pub(crate) struct MessageCounts {
            $($(#[$doc])* pub(crate) $name: u64,)*
            pub(crate) delivery: DeliveryCounts,
        }

        impl MessageCounts {
            pub(crate) fn add(&mut self, counters: &MessageCounters) {
                $(self.$name += counters.$name.get();)*
                self.delivery.merge(&counters.delivery.counts());
            }
        }
    };
}

counts! {
    /// Passed to the kernel.
    sent,
    /// Due and not sent, or not completely, when their call ended.
    unsent,
    /// Sent in the warm-up.
    warm_up,
    /// Received.
    received,
    /// Calls whose answer was complete before our side had ended.
    early,
    /// Calls that we ended, as they had received what they should.
    held,
    /// Not answered when the run ended.
    unfinished,
}

/// Messages of calls that send or receive several. Those of the warm-up are only in `warm_up`. What was not
/// checked is null: only messages that are echoed or carry a stamp are.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct MessageSummary {
    /// Sent.
    pub sent: u64,
    /// Due and not sent, or not completely, when their call ended.
    pub unsent: u64,
    /// Sent in the warm-up.
    pub warm_up: u64,
    /// Received.
    pub received: u64,
    /// Sent ÷ seconds.
    pub sent_per_second: Option<f64>,
    /// Received ÷ seconds.
    pub received_per_second: Option<f64>,
    /// Calls that were answered before all was sent.
    pub calls_answered_early: u64,
    /// Calls that the client cancelled after their messages or their time, and that are good.
    pub calls_ended_by_client: u64,
    /// How received messages were matched with those that were sent: `order` or `stamp`.
    pub matched_by: Option<String>,
    /// Messages that were answered, each counted once.
    pub answered: Option<u64>,
    /// Sent and never answered.
    pub lost: Option<u64>,
    /// Not answered when the run was interrupted; not in `lost`.
    pub unknown: Option<u64>,
    /// Received again.
    pub duplicated: Option<u64>,
    /// Answered after a later message.
    pub reordered: Option<u64>,
    /// Received with changes.
    pub corrupted: Option<u64>,
    /// Answered later than allowed.
    pub late: Option<u64>,
    /// Received 64 or more behind the newest of their user, for the first time or again.
    pub stale: Option<u64>,
    /// Received, and no answer to a message of this call.
    pub unexpected: Option<u64>,
    /// From when a message was due to its answer.
    pub latency: Option<Latency>,
    /// From when it was sent.
    pub from_send: Option<Latency>,
    /// `latency` of everything that was due, where what was lost took forever.
    pub latency_of_all: Option<Quantiles>,
    /// From when a call was sent to its first message.
    pub first: Option<Latency>,
    /// Between two messages of a call.
    pub interval: Option<Latency>,
    /// From when a message was due to when it was sent, at an interval.
    pub send_lag: Option<Latency>,
}

impl MessageSummary {
    pub(crate) fn new(
        config: &Messages,
        counts: &MessageCounts,
        (timed, seconds): (&Recorder, f64),
        interrupted: bool,
        histograms: &mut Histograms,
    ) -> MessageSummary {
        let rate = |count: u64| (seconds > 0.0).then(|| count as f64 / seconds);
        let delivery = &counts.delivery;
        let matched_by = match config.check {
            MessageCheck::None => None,
            MessageCheck::Order => Some("order"),
            MessageCheck::Stamp => Some("stamp"),
        };
        let checked = |count: u64| matched_by.map(|_| count);
        let unanswered = counts.sent.saturating_sub(delivery.expected());
        // When a run is interrupted nobody knows what would have become of messages in flight.
        let unknown = if interrupted { counts.unfinished.min(unanswered) } else { 0 };
        let lost = unanswered - unknown;
        let [latency, from_send, first, interval, send_lag] = [
            ("messages.latency", Series::Broadcast),
            ("messages.from_send", Series::FromSend),
            ("messages.first", Series::First),
            ("messages.interval", Series::Spread),
            ("messages.send_lag", Series::PublishLag),
        ]
        .map(|(name, series)| histograms.latency(name, timed, series));
        let never = if matched_by.is_some() { lost + counts.unsent } else { 0 };
        MessageSummary {
            sent: counts.sent,
            unsent: counts.unsent,
            warm_up: counts.warm_up,
            received: counts.received,
            sent_per_second: rate(counts.sent),
            received_per_second: rate(counts.received),
            calls_answered_early: counts.early,
            calls_ended_by_client: counts.held,
            matched_by: matched_by.map(str::to_owned),
            answered: checked(delivery.expected()),
            lost: checked(lost),
            unknown: checked(unknown),
            duplicated: checked(delivery.duplicated),
            reordered: checked(delivery.reordered),
            corrupted: checked(delivery.corrupted),
            late: checked(delivery.late),
            stale: checked(delivery.stale),
            unexpected: checked(delivery.foreign),
            latency,
            from_send,
            latency_of_all: histograms.of_all("messages.latency", 0, never),
            first,
            interval,
            send_lag,
        }
    }
}

impl MessageSummary {
    /// Counts that should be zero.
    pub(crate) fn shortfalls(&self) -> [CountedShortfall; 8] {
        let of = |count: Option<u64>| count.unwrap_or(0);
        [
            (self.unsent, "messages were due and not sent", ANY),
            (of(self.lost), "messages were lost", LOST),
            (of(self.duplicated), "messages were duplicated", DUPLICATED),
            (of(self.reordered), "messages were reordered", REORDERED),
            (of(self.late), "messages were late", LATE),
            (of(self.stale), "messages were 64 or more behind", ANY),
            (of(self.corrupted), "messages were corrupted", ANY),
            (of(self.unexpected), "messages answered none that was sent", ANY),
        ]
    }
}

impl Display for MessageSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [sent, received] = [self.sent, self.received].map(Count);
        write!(f, "messages      {sent} sent, {received} received")?;
        if let Some((sent, received)) = self.sent_per_second.zip(self.received_per_second) {
            write!(f, "; {} and {} per second", Decimal(sent, 1), Decimal(received, 1))?;
        }
        writeln!(f)?;
        if let Some(answered) = self.answered {
            let of = |count: Option<u64>| Count(count.unwrap_or(0));
            let by = self.matched_by.as_deref().unwrap_or_default();
            let (lost, duplicated) = (of(self.lost), of(self.duplicated));
            let (reordered, late) = (of(self.reordered), of(self.late));
            write!(f, "              {} answered (by {by}), {lost} lost, ", Count(answered))?;
            writeln!(f, "{duplicated} duplicated, {reordered} reordered, {late} late")?;
        }
        let optional = [self.unknown, self.corrupted, self.stale, self.unexpected];
        let [unknown, corrupted, stale, unexpected] = optional.map(Option::unwrap_or_default);
        for (count, what) in [
            (self.unsent, "were due and not sent when their call ended"),
            (unknown, "in flight at the end: their result is unknown"),
            (corrupted, "corrupted"),
            (stale, "far behind the newest of their call"),
            (unexpected, "answered no message of their call"),
            (self.warm_up, "sent in the warm-up, not counted otherwise"),
            (self.calls_answered_early, "calls were answered before all was sent"),
            (self.calls_ended_by_client, "calls ended by this client after their messages or time"),
        ] {
            if count > 0 {
                writeln!(f, "              {} {what}", Count(count))?;
            }
        }
        write_latencies(
            f,
            &[
                ("from due", self.latency.as_ref()),
                ("from send", self.from_send.as_ref()),
                ("first message", self.first.as_ref()),
                ("interval", self.interval.as_ref()),
                ("sent late by", self.send_lag.as_ref()),
            ],
        )
    }
}
