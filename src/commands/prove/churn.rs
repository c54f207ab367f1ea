//! The churn of a scenario: during the hold, Action Cable clients subscribe and unsubscribe while
//! messages are published to all streams. Flags for the load process, the server's memory, and the
//! result.

use std::time::Duration;

use capacity::{Bytes, Count};
use load::{ChurnSummary, Outcome};
use serde::Serialize;
use serde_json::json;

use super::broadcast::Admin;
use super::server::TOPIC;

/// Time after which the server's memory should be stable.
pub(super) const SETTLED: Duration = Duration::from_secs(10);
/// Growth allowed from then to the end: one part in 20, plus one allocator arena in bytes.
const GROWTH: (u64, u64) = (20, 1 << 20);

/// Subscriptions that begin and end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Churn {
    /// Subscribes and unsubscribes per second.
    pub(super) rate: u64,
    pub(super) streams: u64,
    /// Publications per second over all streams.
    pub(super) publish: u64,
    /// Time limit for a delivery and for an unsubscribe.
    pub(super) grace: Duration,
}

impl Churn {
    /// Returns the additional flags for `standfast load`.
    pub(super) fn flags(&self, hold: Duration, admin: &Admin) -> Vec<String> {
        let Churn { rate, streams, publish, grace } = self;
        let channel =
            json!({ "channel": "$pubsub", "stream_name": format!("{TOPIC}-{{1..{streams}}}") });
        vec![
            format!("--channel={channel}"),
            format!("--churn={rate}"),
            format!("--fanout={publish}"),
            format!("--duration={}ms", hold.as_millis()),
            format!("--late-after={}ms", grace.as_millis()),
            format!("--publish-url=http://{admin}/_broadcast"),
        ]
    }
}

/// The server's resident memory during a churn, in bytes.
#[derive(Copy, Clone, Default, Serialize)]
pub(super) struct ChurnMemory {
    /// At the start of the churn.
    pub(super) start: u64,
    /// After ten seconds, or at the end of a shorter churn.
    pub(super) settled: u64,
    pub(super) end: u64,
}

/// A churn in the JSON result: the counts of the load process and the server's memory.
#[derive(Serialize)]
pub(super) struct ChurnResult {
    #[serde(flatten)]
    pub(super) counts: ChurnSummary,
    pub(super) server_rss_bytes: ChurnMemory,
}

impl ChurnResult {
    /// Returns `None` if the outcome has no churn.
    pub(super) fn new(load: &Outcome, memory: Option<ChurnMemory>) -> Option<ChurnResult> {
        Some(ChurnResult { counts: load.churn.clone()?, server_rss_bytes: memory? })
    }

    /// Returns why the churn fell short.
    pub(super) fn reasons(&self) -> Vec<String> {
        let ChurnMemory { settled, end, .. } = self.server_rss_bytes;
        let mut reasons = self.counts.reasons();
        if self.counts.owed == 0 {
            reasons.push("no subscription lasted long enough to expect a publication".to_owned());
        }
        let (share, least) = GROWTH;
        if end > settled + settled / share + least {
            reasons.push(format!(
                "the server's memory grew from {} to {}",
                Bytes(settled),
                Bytes(end)
            ));
        }
        reasons
    }

    /// Returns its lines of the summary.
    pub(super) fn lines(&self) -> [(&'static str, String); 2] {
        let of = &self.counts;
        let ChurnMemory { start, settled, end } = self.server_rss_bytes;
        let counts = format!(
            "{} subscriptions checked, {} publications, {} expected, {} received, {} lost, {} duplicated, {} unexpected",
            Count(of.judged),
            Count(of.published),
            Count(of.owed),
            Count(of.received),
            Count(of.lost),
            Count(of.duplicated),
            Count(of.unexpected),
        );
        let memory = format!(
            "server {} at the start, {} after 10 s, {} at the end",
            Bytes(start),
            Bytes(settled),
            Bytes(end)
        );
        [("churn", counts), ("", memory)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(counts: ChurnSummary, end: u64) -> ChurnResult {
        let memory = ChurnMemory { start: 5 << 20, settled: 10 << 20, end };
        let load = Outcome { churn: Some(counts), ..Outcome::default() };
        ChurnResult::new(&load, Some(memory)).unwrap()
    }

    #[test]
    fn loss_and_memory_growth_are_reasons() {
        let clean = ChurnSummary { owed: 7, ..ChurnSummary::default() };
        assert!(result(clean.clone(), 11 << 20).reasons().is_empty());
        let grown = result(clean.clone(), 12 << 20).reasons();
        assert!(grown.len() == 1 && grown[0].contains("memory grew"), "{grown:?}");
        let publish_failed = [("HTTP 503".to_owned(), 3)].into();
        let lost = ChurnSummary { lost: 2, publish_failed, ..clean };
        assert_eq!(
            result(lost, 0).reasons(),
            ["2 publications were lost", "3 publications were rejected or not answered"]
        );
        assert!(result(ChurnSummary::default(), 0).reasons()[0].contains("long enough"));
        assert!(ChurnResult::new(&Outcome::default(), Some(ChurnMemory::default())).is_none());
    }
}
