//! Sections of the admin page for parts of the server that a flag turns on: history, presence, calls of the
//! application, webhooks. Without its flag a part has no section.

use engine::sys::process::now_ns;
use serde_json::{Map, Value, json};

use super::Control;

impl Control {
    /// The sections of the parts that are on.
    pub(super) fn part_sections(&self) -> Vec<Value> {
        let shared = &self.shared;
        let calls = shared.calls.as_ref().map(|_| application());
        let history = shared.history().map(|_| history());
        let presence = shared.presence.as_ref().map(|_| presence());
        let hooks = shared.hooks.as_ref().map(|_| webhooks());
        [calls, history, presence, hooks].into_iter().flatten().collect()
    }

    /// Their values, by section.
    pub(super) fn part_values(&self) -> Map<String, Value> {
        let mut values = Map::new();
        let mut add = |section: &str, of: Value| values.insert(section.to_owned(), of);
        if let Some(calls) = &self.shared.calls {
            let (stats, queue) = calls.figures(now_ns());
            let failed = stats.ended.iter().filter(|((_, status), _)| *status != "success");
            add(
                "application",
                json!({
                    "waiting": queue.waiting,
                    "running": queue.running,
                    "concurrency": queue.limit,
                    "oldest_seconds": queue.oldest_ns as f64 / 1e9,
                    "ended": stats.ended.values().sum::<u64>(),
                    "not_ok": failed.map(|(_, times)| times).sum::<u64>(),
                    "put_back": stats.put_back,
                    "discarded": stats.gone + stats.full + stats.disconnects_dropped,
                }),
            );
        }
        if let Some(history) = self.shared.history() {
            let stats = history.stats();
            let sessions = self.shared.stored_sessions.as_ref();
            let (held, _) = sessions.map(|sessions| sessions.held()).unwrap_or_default();
            add(
                "history",
                json!({
                    "bytes": stats.bytes,
                    "messages": stats.messages,
                    "topics": stats.topics,
                    "sent": self.sum(|worker| worker.history_messages.get()),
                    "sessions": held,
                }),
            );
        }
        if self.shared.presence.is_some() {
            let stats = self.presence_figures();
            add(
                "presence",
                json!({
                    "members": stats.members,
                    "topics": stats.topics,
                    "bytes": stats.bytes,
                    "joined": stats.joined,
                    "left": stats.left + stats.expired,
                }),
            );
        }
        if let Some(hooks) = &self.shared.hooks {
            let receivers = hooks.figures(now_ns()).into_iter().map(|each| {
                json!({
                    "receiver": each.url,
                    "waiting": each.waiting,
                    "oldest_seconds": each.oldest_ns as f64 / 1e9,
                    "delivered": each.stats.delivered,
                    "failed": each.stats.failed,
                    "dropped": each.stats.dropped_bytes + each.stats.dropped_age,
                })
            });
            add("webhooks", receivers.collect());
        }
        values
    }
}

fn application() -> Value {
    json!({ "id": "application", "title": "Application", "kind": "figures", "items": [
        { "id": "waiting", "label": "Calls waiting", "unit": "count", "chart": true },
        { "id": "running", "label": "Calls being answered", "unit": "count",
          "of": "concurrency", "chart": true },
        { "id": "ended", "label": "Calls ended", "unit": "count", "rate": true, "chart": true },
        { "id": "oldest_seconds", "label": "Longest wait now", "unit": "seconds" },
        { "id": "not_ok", "label": "Refused or failed", "unit": "count" },
        { "id": "put_back", "label": "Repeated later", "unit": "count" },
        { "id": "discarded", "label": "Not made", "unit": "count" },
    ] })
}

fn history() -> Value {
    json!({ "id": "history", "title": "History", "kind": "figures", "items": [
        { "id": "bytes", "label": "Memory", "unit": "bytes", "chart": true },
        { "id": "sent", "label": "Missed messages sent", "unit": "count", "rate": true, "chart": true },
        { "id": "messages", "label": "Messages kept", "unit": "count" },
        { "id": "topics", "label": "Topics", "unit": "count" },
        { "id": "sessions", "label": "Sessions that can be resumed", "unit": "count" },
    ] })
}

fn presence() -> Value {
    json!({ "id": "presence", "title": "Presence", "kind": "figures", "items": [
        { "id": "members", "label": "Members", "unit": "count", "chart": true },
        { "id": "joined", "label": "Joined", "unit": "count", "rate": true, "chart": true },
        { "id": "left", "label": "Left", "unit": "count", "rate": true, "chart": true },
        { "id": "topics", "label": "Topics", "unit": "count" },
        { "id": "bytes", "label": "Memory", "unit": "bytes" },
    ] })
}

fn webhooks() -> Value {
    json!({ "id": "webhooks", "title": "Webhooks", "kind": "table", "key": ["receiver"],
        "sort": "waiting", "empty": "", "columns": [
            { "id": "receiver", "label": "Receiver", "wrap": true },
            { "id": "waiting", "label": "Events waiting", "unit": "count" },
            { "id": "oldest_seconds", "label": "Oldest", "unit": "seconds" },
            { "id": "delivered", "label": "Delivered/s", "unit": "decimal", "rate": true },
            { "id": "failed", "label": "Failed attempts", "unit": "count" },
            { "id": "dropped", "label": "Dropped", "unit": "count" },
        ] })
}
