//! Who is present in a topic, for operators and applications, and the figures of presence.

use std::sync::atomic::Ordering;

use admin::{ApiRequest, Exposition, Kind, Reply};
use serde_json::{Map, Value, json};

use super::Control;
use super::cluster::trouble;
use crate::path::{check_topic, decode};
use crate::presence::{PresenceStats, Refused};
use crate::pubsub::Pubsub;

/// Types of events, as in [`PresenceStats::events`].
const EVENTS: [&str; 4] = ["join", "leave", "info", "changed"];

impl Control {
    /// Answers `/api/presence/{topic}/users`.
    pub(super) fn presence(&self, topic: &str, request: &ApiRequest<'_>) -> Reply {
        if request.method != "GET" {
            let message = "expected GET /api/presence/TOPIC/users";
            return Reply::error(405, "method_not_allowed", message);
        }
        let decoded = decode(topic).and_then(|topic| check_topic(&topic).map(|()| topic));
        match (decoded, &self.shared.presence) {
            (Err(why), _) => Reply::error(400, "bad_request", why),
            (_, None) => {
                let message = "presence is off: start with --presence memory";
                Reply::error(501, "presence_off", message)
            }
            (Ok(topic), Some(presence)) => {
                if let Some(pubsub) = self.unknown_members(&topic) {
                    pubsub.unavailable.fetch_add(1, Ordering::Relaxed);
                    let message = format!("{}: the members are not known", trouble(pubsub));
                    return Reply::error(503, "pubsub_unavailable", &message);
                }
                Reply { status: 200, content_type: "application/json", body: presence.list(&topic) }
            }
        }
    }

    /// Waits until the members of other nodes are known, if they are shared: a node knows those of topics that it
    /// follows. Returns the broker if that takes too long.
    fn unknown_members(&self, topic: &str) -> Option<&Pubsub> {
        let shared = self.shared.presence.as_ref().is_some_and(|presence| presence.is_shared());
        let pubsub = self.shared.pubsub.as_ref().filter(|_| shared)?;
        (!pubsub.follow(topic, || true)).then_some(pubsub)
    }

    pub(super) fn presence_figures(&self) -> PresenceStats {
        self.shared.presence.as_ref().map(|presence| presence.stats()).unwrap_or_default()
    }

    pub(super) fn presence_metrics(&self, exposition: &mut Exposition) {
        let stats = self.presence_figures();
        let mut gauge = |name, help, value: u64| {
            exposition.single(name, Kind::Gauge, help, value as f64);
        };
        gauge("presence_topics", "Topics with members.", stats.topics as u64);
        gauge("presence_members", "Members present in topics.", stats.members);
        gauge("presence_bytes", "Memory counted for members.", stats.bytes as u64);
        let changes = [("join", stats.joined), ("leave", stats.left), ("expire", stats.expired)];
        let labelled = |(name, times): (&str, u64)| (name.to_owned(), times as f64);
        let help = "Members that joined, left, and did not come back in time.";
        exposition.labelled(
            "presence_changes",
            Kind::Counter,
            help,
            "change",
            changes.into_iter().map(labelled),
        );
        let events = EVENTS.into_iter().zip(stats.events).map(labelled);
        let help = "Events sent to the subscribers of a topic: join, leave, info, changed.";
        exposition.labelled("presence_events", Kind::Counter, help, "type", events);
        let help = "Events that could not be sent; a summary made up for them.";
        exposition.single("presence_retried", Kind::Counter, help, stats.retried as f64);
        if let Some(nodes) = stats.nodes {
            let help = "Members at other nodes, each once for each node that has it.";
            exposition.single("presence_elsewhere", Kind::Gauge, help, nodes.held as f64);
            let help = "Changes of members that the broker does not have yet.";
            exposition.single("presence_waiting", Kind::Gauge, help, nodes.waiting as f64);
            let help = "Members of other nodes left out because the limit of memory is reached.";
            exposition.single("presence_omitted", Kind::Counter, help, nodes.omitted as f64);
        }
        let refused = Refused::ALL.map(Refused::name).into_iter().zip(stats.refused);
        let help = "Presence commands answered with an error, by cause.";
        let refused = refused.map(labelled);
        exposition.labelled("presence_refused", Kind::Counter, help, "cause", refused);
    }

    /// The same figures for `/api/stats`; null without presence.
    pub(super) fn presence_stats(&self) -> Value {
        if self.shared.presence.is_none() {
            return Value::Null;
        }
        let stats = self.presence_figures();
        let events: Map<String, Value> = EVENTS
            .into_iter()
            .zip(stats.events)
            .map(|(name, times)| (name.to_owned(), times.into()))
            .collect();
        let refused: Map<String, Value> = Refused::ALL
            .map(Refused::name)
            .into_iter()
            .zip(stats.refused)
            .filter(|(_, times)| *times > 0)
            .map(|(name, times)| (name.to_owned(), times.into()))
            .collect();
        json!({
            "topics": stats.topics,
            "members": stats.members,
            "bytes": stats.bytes,
            "joined": stats.joined,
            "left": stats.left,
            "expired": stats.expired,
            "events": events,
            "retried": stats.retried,
            "refused": refused,
            "elsewhere": stats.nodes.map(|nodes| nodes.held),
            "waiting": stats.nodes.map(|nodes| nodes.waiting),
            "omitted": stats.nodes.map(|nodes| nodes.omitted),
        })
    }
}
