//! The admin page of a server: its sections and their values. The form is described in
//! `crates/admin/src/page/README.md`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use admin::WorkerColumn;
use engine::{Closed, Refusal, Totals};
use serde_json::{Value, json};
use wire::Violation;

use super::Control;
use crate::auth::Cause;
use crate::session::SessionProtocol;

/// Topics in each of the lists by subscribers, messages and bytes.
const TOPICS: usize = 50;

/// Figures of workers, beside those that all programs have.
const WORKER_COLUMNS: [WorkerColumn; 2] = [
    WorkerColumn::now("subscriptions", "Subscriptions"),
    WorkerColumn::per_second("messages_out", "Messages out/s"),
];

/// The sections and how they are shown. `parts` are those of parts that are on.
pub(super) fn sections(parts: Vec<Value>) -> Value {
    let protocols = SessionProtocol::names();
    let protocols: Vec<&str> = protocols.split(", ").collect();
    let end = json!({
        "label": "End session", "method": "DELETE",
        "path": "/api/connections/{id}?reconnect={reconnect}",
        "confirm": "End the session of {peer}?", "done": "Session ended", "needs": "change",
        "fields": [{ "name": "reconnect", "label": "The client may reconnect", "type": "flag" }],
    });
    let mut page = json!({
        "program": "serve",
        "version": env!("CARGO_PKG_VERSION"),
        "sections": [
            { "id": "now", "title": "Now", "kind": "figures", "items": [
                { "id": "connections", "label": "Connections", "unit": "count",
                  "of": "connections_max", "chart": true },
                { "id": "messages_in", "label": "Messages in", "unit": "count", "rate": true, "chart": true },
                { "id": "messages_out", "label": "Messages out", "unit": "count", "rate": true, "chart": true },
                { "id": "bytes_in", "label": "Received", "unit": "bytes", "rate": true, "chart": true },
                { "id": "bytes_out", "label": "Sent", "unit": "bytes", "rate": true, "chart": true },
                { "id": "cpu_seconds", "label": "CPU", "unit": "cores", "rate": true, "chart": true },
                { "id": "rss_bytes", "label": "Memory", "unit": "bytes", "chart": true },
                { "id": "accepted", "label": "New connections", "unit": "count", "rate": true, "chart": true },
                { "id": "websockets", "label": "WebSockets", "unit": "count" },
                { "id": "polled", "label": "Long polling", "unit": "count" },
                { "id": "subscriptions", "label": "Subscriptions", "unit": "count" },
                { "id": "topics", "label": "Topics", "unit": "count" },
                { "id": "published", "label": "Published", "unit": "count", "rate": true },
            ] },
            { "id": "queues", "title": "Queues", "kind": "figures", "items": [
                { "id": "queued_bytes", "label": "Send queues", "unit": "bytes", "chart": true },
                { "id": "publications_pending_bytes", "label": "To be encoded", "unit": "bytes", "chart": true },
                { "id": "handshakes", "label": "Incomplete requests", "unit": "count" },
                { "id": "dropped_slow", "label": "Dropped, queue full", "unit": "count" },
                { "id": "dropped_gone", "label": "Dropped, client gone", "unit": "count" },
                { "id": "publish_paused", "label": "Publishers paused", "unit": "count" },
            ] },
            { "id": "brokers", "title": "Brokers", "kind": "table", "key": ["server"],
              "sort": "server", "empty": "This node is alone (--pubsub none).", "limit": 20,
              "note": "What this node exchanges with others. While a broker is disconnected publishing is refused.",
              "columns": [
                { "id": "server", "label": "Server" },
                { "id": "state", "label": "State", "wrap": true },
                { "id": "seconds", "label": "For", "unit": "seconds" },
                { "id": "topics", "label": "Topics", "unit": "count" },
                { "id": "unconfirmed", "label": "Not confirmed", "unit": "count" },
                { "id": "waiting", "label": "Waiting", "unit": "count" },
                { "id": "check_seconds", "label": "Round trip", "unit": "seconds" },
              ] },
            { "id": "topics", "title": "Topics", "kind": "table", "key": ["topic"],
              "sort": "subscribers", "empty": "No topic has a subscriber.", "limit": 20,
              "note": "The largest and the busiest topics, every 5 s. Rates are averages over this minute and the one before.",
              "find": { "section": "connections", "field": "topic", "column": "topic" },
              "columns": [
                { "id": "topic", "label": "Topic", "wrap": true },
                { "id": "subscribers", "label": "Subscribers", "unit": "count", "bar": true },
                { "id": "messages", "label": "Messages/s", "unit": "decimal", "bar": true },
                { "id": "bytes", "label": "Bytes/s", "unit": "bytes", "bar": true },
              ] },
            { "id": "find_topics", "title": "Find topics", "kind": "find", "key": ["topic"],
              "path": "/api/topics", "list": "by_subscribers", "limit": 100,
              "note": "The largest topics that begin with this text, at most 100.",
              "empty": "No topic with a subscriber begins with this.",
              "find": { "section": "connections", "field": "topic", "column": "topic" },
              "fields": [{ "name": "prefix", "label": "Topics that begin with", "placeholder": "room:" }],
              "columns": [
                { "id": "topic", "label": "Topic", "wrap": true },
                { "id": "subscribers", "label": "Subscribers", "unit": "count", "bar": true },
                { "id": "messages", "label": "Messages, last two minutes at most", "unit": "count" },
                { "id": "bytes", "label": "Bytes", "unit": "bytes" },
              ] },
            { "id": "connections", "title": "Find connections", "kind": "find",
              "path": "/api/connections", "list": "connections", "limit": 50,
              "detail": "/api/connections/{id}", "empty": "No connection matches.",
              "fields": [
                { "name": "topic", "label": "Topic" },
                { "name": "identity", "label": "Identity", "placeholder": "{\"user_id\":1}" },
                { "name": "address", "label": "Address or network", "placeholder": "10.0.0.0/8" },
                { "name": "protocol", "label": "Protocol", "options": protocols },
              ],
              "about": { "field": "topic", "path": "/api/topics?topic={topic}", "columns": [
                { "id": "subscribers", "label": "Subscribers", "unit": "count" },
                { "id": "messages", "label": "Messages, last two minutes at most", "unit": "count" },
                { "id": "bytes", "label": "Bytes", "unit": "bytes" },
              ] },
              "columns": [
                { "id": "peer", "label": "Peer" },
                { "id": "client", "label": "Client" },
                { "id": "protocol", "label": "Protocol" },
                { "id": "identity", "label": "Identity", "wrap": true },
                { "id": "topics", "label": "Topics", "wrap": true },
                { "id": "queued_bytes", "label": "Queued", "unit": "bytes" },
                { "id": "idle_seconds", "label": "Idle", "unit": "seconds" },
              ],
              "actions": [end] },
            admin::causes_section(
                "refusals", "Refusals", "What was refused", "What would admit it",
                "Nothing was refused."),
            admin::workers_section(&WORKER_COLUMNS),
            { "id": "publish", "title": "Publish a test message", "kind": "form",
              "action": {
                "label": "Publish", "method": "POST", "path": "/api/publish?receivers=true",
                "needs": "publish", "done": "Published. Receivers: {receivers}",
                "body": { "topic": "{topic}", "data": "{data}" },
                "fields": [
                  { "name": "topic", "label": "Topic", "required": true },
                  { "name": "data", "label": "Message", "type": "lines", "required": true },
                ] } },
        ],
    });
    if let Some(sections) = page["sections"].as_array_mut() {
        let after_queues = 2;
        sections.splice(after_queues..after_queues, parts);
    }
    page
}

impl Control {
    /// The values of the sections; with `complete` those of topics, too, which workers count.
    pub(super) fn sample_page(&self, complete: bool) -> Value {
        let totals = Totals::sum(self.remote.counters());
        let capacity: u64 = self.remote.open().map(|(_, capacity)| u64::from(capacity)).sum();
        let open: u64 = self.remote.open().map(|(open, _)| u64::from(open)).sum();
        let published = self.published.load(Ordering::Relaxed)
            + self.broadcast.load(Ordering::Relaxed)
            + self.sum(|worker| worker.published.get());
        let mut values = json!({
            "now": {
                "connections": open,
                "connections_max": capacity,
                "messages_in": totals.messages_in,
                "messages_out": totals.messages_out,
                "bytes_in": totals.bytes_in,
                "bytes_out": totals.bytes_out,
                "cpu_seconds": admin::cpu_seconds(),
                "rss_bytes": admin::rss_bytes(),
                "accepted": totals.accepted,
                "websockets": totals.websockets,
                "polled": totals.polled,
                "subscriptions": self.sum(|worker| worker.subscriptions.get()),
                "topics": self.shared.directory.topics(),
                "published": published,
            },
            "queues": {
                "queued_bytes": totals.queued_bytes,
                "publications_pending_bytes": self.shared.directory.pending_bytes(),
                "handshakes": self.remote.handshakes(),
                "dropped_slow": totals.dropped_slow,
                "dropped_gone": totals.dropped_gone,
                "publish_paused": self.sum(|worker| worker.publish_paused.get()),
            },
            "refusals": self.refusals(&totals),
            "workers": self.page_workers(),
            "brokers": self.page_brokers(),
        });
        if let Some(values) = values.as_object_mut() {
            values.extend(self.part_values());
        }
        if complete {
            values["topics"] = self.page_topics();
        }
        json!({
            "at": self.uptime_seconds(),
            "status": self.status(),
            "values": values,
        })
    }

    fn page_brokers(&self) -> Value {
        let stats = self.cluster_stats();
        let connections = stats["connections"].as_array().cloned().unwrap_or_default();
        let row = |mut connection: Value| {
            if let Some(reason) = connection["reason"].as_str() {
                connection["state"] = format!("disconnected: {reason}").into();
            }
            connection
        };
        connections.into_iter().map(row).collect()
    }

    fn page_workers(&self) -> Value {
        let running = self.shared.running();
        admin::worker_rows(&self.remote, running, &WORKER_COLUMNS, |worker, counters| {
            let own = self.shared.counters.get(worker)?;
            Some([own.subscriptions.get(), counters.messages_out.get()])
        })
    }

    /// The topics of all lists, each once.
    fn page_topics(&self) -> Value {
        let top = self.top("", TOPICS);
        let lists = [&top.by_subscribers, &top.by_messages, &top.by_bytes];
        let names: BTreeSet<&Arc<str>> = lists.into_iter().flatten().collect();
        let per_second = |count: Option<(u64, u64)>| {
            let count = count.map_or(0, |(count, error)| count.saturating_sub(error));
            if top.covered_s > 0.0 { count as f64 / top.covered_s } else { 0.0 }
        };
        let rows = names.into_iter().map(|topic| {
            json!({
                "topic": &**topic,
                "subscribers": top.subscribers.get(topic).copied().unwrap_or_default(),
                "messages": per_second(top.figures.messages.get(topic)),
                "bytes": per_second(top.figures.bytes.get(topic)),
            })
        });
        rows.collect()
    }

    fn refusals(&self, totals: &Totals) -> Value {
        let mut rows = admin::engine_causes(totals);
        let closed = |why: Closed| totals.closed.get(why as usize).copied().unwrap_or_default();
        let polled = totals.refused.get(Refusal::PolledBytes as usize).copied();
        let violations = |which: Violation| {
            let each = Violation::ALL.iter().zip(&totals.violations);
            each.filter(|(other, _)| **other == which).map(|(_, count)| *count).sum::<u64>()
        };
        let each = [
            (
                "origin",
                "Handshakes of pages of another origin",
                self.sum(|worker| worker.origin_refused.get()),
                "--allow-origin ORIGIN; the log has the origin",
            ),
            (
                "host",
                "Requests for another host name",
                self.sum(|worker| worker.host_refused.get()),
                "--allow-host NAME; the log has the name",
            ),
            (
                Refusal::PolledBytes.name(),
                "Sessions of long polling above their memory limit",
                polled.unwrap_or_default(),
                "--long-polling-bytes; --long-polling-keepalive ends those without requests earlier",
            ),
            (
                "public",
                "Subscribers of /topics without public access",
                self.sum(|worker| worker.public_refused.get()),
                "--public",
            ),
            (
                "broadcast",
                "Requests to /_broadcast without the key",
                self.sum(|worker| worker.broadcast_refused.get()),
                "The publisher needs --broadcast-key, or the key derived from --secret",
            ),
            (
                "history_off",
                "Requests for missed messages, which are not kept",
                if self.shared.history().is_some() {
                    0
                } else {
                    self.sum(|worker| worker.history_off.get())
                },
                "--history memory",
            ),
            (
                "message_too_big",
                "Messages that were too long",
                violations(Violation::MessageTooBig) + violations(Violation::InflatedTooBig),
                "--max-message",
            ),
            (
                "slow_consumer",
                "Clients that read too slowly",
                closed(Closed::SlowConsumer),
                "--send-queue; --slow-consumer drop-oldest keeps them",
            ),
            (
                "idle_timeout",
                "Clients that were silent for too long",
                closed(Closed::IdleTimeout),
                "--idle-timeout; --pings on",
            ),
            (
                "no_pong",
                "Clients that answered no ping",
                self.sum(|worker| worker.no_pong.get()),
                "--pong-timeout",
            ),
            (
                "commands_malformed",
                "Clients with a malformed command",
                self.sum(|worker| worker.commands_malformed.get()),
                "No flag: the client has a fault",
            ),
            (
                "publish_overloaded",
                "Publish requests while a mailbox was full (503)",
                self.overloaded.load(Ordering::Relaxed),
                "No flag: publish again after Retry-After",
            ),
            (
                "topic_overloaded",
                "Publish requests to an overloaded topic (429)",
                self.topic_overloaded.load(Ordering::Relaxed),
                "No flag: publish less often to this topic",
            ),
        ];
        rows.extend(
            each.into_iter()
                .filter_map(|(name, what, count, hint)| admin::cause(name, what, count, hint)),
        );
        rows.extend(Cause::ALL.into_iter().filter_map(|why| {
            let count = self.sum(|worker| worker.auth_refused.get(why));
            let (what, hint) = auth_text(why);
            admin::cause(why.name(), what, count, hint)
        }));
        rows.into()
    }
}

/// What was refused for this cause, and what would admit it.
fn auth_text(cause: Cause) -> (&'static str, &'static str) {
    match cause {
        Cause::TokenMissing => (
            "Clients without a token",
            "The client needs a token; without --enforce-jwt it does not",
        ),
        Cause::TokenTooLong => ("Tokens longer than 8 KiB", "No flag: shorter claims"),
        Cause::TokenMalformed => (
            "Malformed tokens",
            "No flag: a JWT with a supported algorithm (HS, RS, PS, ES, EdDSA)",
        ),
        Cause::TokenKey => {
            ("Tokens that no key matches", "--jwt-keys FILE with its key, or --jwt-secret for HS")
        }
        Cause::TokenSignature => {
            ("Tokens signed by another key", "--jwt-secret or --jwt-keys of the application")
        }
        Cause::TokenEarly => ("Tokens that are not valid yet", "No flag: nbf, or the clocks"),
        Cause::TokenExpired => ("Expired tokens", "No flag: the client needs a new token"),
        Cause::TokenIdentifiers => ("Tokens without identifiers", "No flag: the claim ext"),
        Cause::StreamMalformed => {
            ("Malformed signed stream names", "No flag: the application signs it")
        }
        Cause::StreamSignature => (
            "Stream names signed with another secret",
            "--streams-secret, --turbo-secret or --cable-ready-secret of the application",
        ),
        Cause::StreamExpired => {
            ("Expired stream names", "No flag: the application signs a new one")
        }
        Cause::StreamPurpose => {
            ("Stream names signed for a purpose", "No flag: the application signs it without")
        }
        Cause::StreamName => ("Invalid stream names", "No flag: 1 to 256 bytes"),
        Cause::StreamOff => (
            "Signed stream names without a secret to check them",
            "--secret, or --streams-secret, --turbo-secret, --cable-ready-secret",
        ),
        Cause::StreamPublic => ("Unsigned stream names", "--public-streams"),
        Cause::Channel => (
            "Channels that the application refused, or that need one",
            "--rpc-host, if it is not set",
        ),
        Cause::Application => ("Clients that the application refused", "No flag: it decides"),
        Cause::Publish => (
            "Messages that the application refused",
            "No flag: publish in its answer to --auth-url",
        ),
        Cause::Identifier => ("Invalid identifiers of channels", "No flag: at most 4,096 bytes"),
        Cause::Subscriptions => ("Subscriptions above the limit", "--max-subscriptions"),
        Cause::SubscriptionBytes => {
            ("Subscriptions above the memory limit", "--max-subscription-bytes")
        }
        Cause::PollIdentity => (
            "Requests of long polling with another identity than their session's",
            "No flag: each client has its own session",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_text_and_no_two_are_alike() {
        let texts: BTreeSet<_> = Cause::ALL.into_iter().map(|cause| auth_text(cause).0).collect();
        assert_eq!(texts.len(), Cause::ALL.len());
    }
}
