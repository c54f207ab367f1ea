//! Figures of the webhooks.

use admin::{Exposition, Kind};
use engine::sys::process::now_ns;
use serde_json::{Value, json};

use super::Control;
use crate::hooks::{EventKind, ReceiverFigures};

impl Control {
    /// Writes the metrics of webhooks, if there are any.
    pub(super) fn webhook_metrics(&self, exposition: &mut Exposition) {
        let Some(hooks) = &self.shared.hooks else { return };
        let events = EventKind::ALL.map(EventKind::name).into_iter().zip(hooks.events());
        let events = events.map(|(kind, times)| (kind.to_owned(), times as f64));
        let help = "Events for webhooks, by kind.";
        exposition.labelled("webhook_events", Kind::Counter, help, "event", events);
        let all = hooks.figures(now_ns());
        let mut family = |name, kind, help, of: &dyn Fn(&ReceiverFigures) -> f64| {
            let samples = all.iter().map(|each| (each.url.clone(), of(each)));
            exposition.labelled(name, kind, help, "receiver", samples);
        };
        let help = "Events that wait for a receiver or are being sent to it.";
        family("webhook_waiting", Kind::Gauge, help, &|each| each.waiting as f64);
        let help = "Memory of these events.";
        family("webhook_waiting_bytes", Kind::Gauge, help, &|each| each.bytes as f64);
        let help = "Age of the oldest of these events.";
        let oldest = |each: &ReceiverFigures| each.oldest_ns as f64 / 1e9;
        family("webhook_oldest_seconds", Kind::Gauge, help, &oldest);
        let help = "Events that a receiver has accepted.";
        let delivered = |each: &ReceiverFigures| each.stats.delivered as f64;
        family("webhook_delivered", Kind::Counter, help, &delivered);
        let help = "Batches that a receiver has accepted.";
        family("webhook_batches", Kind::Counter, help, &|each| each.stats.batches as f64);
        let help = "Times that a batch was not accepted; it is sent again.";
        family("webhook_failed", Kind::Counter, help, &|each| each.stats.failed as f64);
        let dropped = all.iter().flat_map(|each| {
            let causes = [("bytes", each.stats.dropped_bytes), ("age", each.stats.dropped_age)];
            causes.map(|(cause, events)| {
                let labels = vec![("receiver", each.url.clone()), ("cause", cause.to_owned())];
                (labels, events as f64)
            })
        });
        let help = "Events dropped because too much waited or it waited for too long.";
        exposition.tagged("webhook_dropped", Kind::Counter, help, dropped);
        let mut took = crate::app::Times::default();
        all.iter().for_each(|each| took.add(&each.took));
        let help = "Time of requests to receivers.";
        exposition.histogram("webhook_seconds", help, took.exposed());
    }

    /// The same figures for `/api/stats`; null without webhooks.
    pub(super) fn webhook_stats(&self) -> Value {
        let Some(hooks) = &self.shared.hooks else { return Value::Null };
        let events = EventKind::ALL.map(EventKind::name).into_iter().zip(hooks.events());
        let events = events.map(|(kind, times)| (kind.to_owned(), times.into())).collect();
        let receivers = hooks.figures(now_ns()).into_iter().map(|each| {
            json!({
                "receiver": each.url,
                "waiting": each.waiting,
                "waiting_bytes": each.bytes,
                "oldest_seconds": each.oldest_ns as f64 / 1e9,
                "delivered": each.stats.delivered,
                "batches": each.stats.batches,
                "failed": each.stats.failed,
                "dropped": {
                    "bytes": each.stats.dropped_bytes,
                    "age": each.stats.dropped_age,
                },
            })
        });
        json!({ "events": Value::Object(events), "receivers": receivers.collect::<Value>() })
    }
}
