//! The churn of a scenario: while the sockets are held, clients of Action Cable begin and end
//! subscriptions and publications go to all streams. What the load process is told, what the server's
//! memory was meanwhile, and what is said of it.

use std::time::Duration;

use capacity::{Bytes, Count};
use serde::Serialize;
use serde_json::{Value, json};

use super::broadcast::Admin;
use super::processes::TOPIC;

/// When memory has come to what it stays at.
pub(super) const SETTLED: Duration = Duration::from_secs(10);
/// How much more it may be in the end to be called flat: a twentieth, and an arena of the allocator.
const GROWTH: (u64, u64) = (20, 1 << 20);

/// Subscriptions that begin and end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Churn {
    /// Begun or ended a second.
    pub(super) rate: u64,
    pub(super) streams: u64,
    /// Publications a second, over all streams.
    pub(super) publish: u64,
    /// How long a publication may take, and a subscription's end.
    pub(super) grace: Duration,
}

impl Churn {
    /// Further flags of `standfast load`.
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
    /// As it began.
    pub(super) start: u64,
    /// After ten seconds; of a shorter churn at its end.
    pub(super) settled: u64,
    pub(super) end: u64,
}

/// A churn as stored: the load process's own account of it, and the server's memory.
#[derive(Serialize)]
pub(super) struct ChurnResult {
    #[serde(flatten)]
    pub(super) counts: Value,
    pub(super) server_rss_bytes: ChurnMemory,
}

impl ChurnResult {
    /// `None` of a summary without a churn.
    pub(super) fn new(load: Option<&Value>, memory: Option<ChurnMemory>) -> Option<ChurnResult> {
        let counts = load?.get("churn").filter(|churn| churn.is_object())?.clone();
        Some(ChurnResult { counts, server_rss_bytes: memory? })
    }

    fn count(&self, key: &str) -> u64 {
        self.counts[key].as_u64().unwrap_or(0)
    }

    /// Why it fell short.
    pub(super) fn reasons(&self) -> Vec<String> {
        let ChurnMemory { settled, end, .. } = self.server_rss_bytes;
        let failed = self.counts["publish_failed"].as_object().into_iter().flatten();
        let failed = failed.filter_map(|(_, count)| count.as_u64()).sum();
        let counts = [
            ("lost", "publications were lost"),
            ("duplicated", "publications came twice"),
            ("reordered", "publications came out of order"),
            ("late", "publications came late"),
            ("stale", "publications came 64 or more behind"),
            ("corrupted", "publications came changed"),
            ("unexpected", "messages came for subscriptions that were not there"),
            ("unconfirmed", "subscribes were not confirmed"),
        ];
        let counts = counts.map(|(key, what)| (self.count(key), what));
        let more = [(failed, "publications were not taken")];
        let some = counts.into_iter().chain(more).filter(|(count, _)| *count > 0);
        let mut reasons: Vec<String> =
            some.map(|(count, what)| format!("{count} {what}")).collect();
        if self.count("owed") == 0 {
            reasons.push("no subscription was there long enough to be owed anything".to_owned());
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

    /// Its lines among those of the verdict.
    pub(super) fn lines(&self) -> [(&'static str, String); 2] {
        let of = |key| Count(self.count(key));
        let ChurnMemory { start, settled, end } = self.server_rss_bytes;
        let counts = format!(
            "{} subscriptions judged, {} publications, {} owed, {} received, {} lost, {} twice, {} unexpected",
            of("judged"),
            of("published"),
            of("owed"),
            of("received"),
            of("lost"),
            of("duplicated"),
            of("unexpected"),
        );
        let memory = format!(
            "server {} as it began, {} after 10 s, {} in the end",
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

    fn result(counts: Value, end: u64) -> Option<ChurnResult> {
        let memory = ChurnMemory { start: 5 << 20, settled: 10 << 20, end };
        ChurnResult::new(Some(&json!({ "churn": counts })), Some(memory))
    }

    #[test]
    fn clean_and_flat_is_no_reason_and_anything_else_is() {
        let clean = json!({ "owed": 7, "lost": 0, "publish_failed": {} });
        assert!(result(clean.clone(), 11 << 20).unwrap().reasons().is_empty());
        let grown = result(clean, 12 << 20).unwrap().reasons();
        assert!(grown.len() == 1 && grown[0].contains("memory grew"), "{grown:?}");
        let lost = json!({ "owed": 7, "lost": 2, "publish_failed": { "HTTP 503": 3 } });
        let reasons = result(lost, 0).unwrap().reasons();
        assert_eq!(reasons, ["2 publications were lost", "3 publications were not taken"]);
        assert!(result(json!({ "owed": 0 }), 0).unwrap().reasons()[0].contains("long enough"));
        assert!(result(Value::Null, 0).is_none());
    }
}
