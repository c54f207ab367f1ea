//! Figures of the calls of the application.

use admin::{Exposition, Kind};
use engine::sys::process::now_ns;
use serde_json::{Value, json};

use super::Control;
use crate::app::call::Method;

impl Control {
    /// Writes the metrics of an application, if there is one.
    pub(super) fn application_metrics(&self, exposition: &mut Exposition) {
        let Some(calls) = &self.shared.calls else { return };
        let (stats, queue) = calls.figures(now_ns());
        let mut gauge = |name, help, value: f64| exposition.single(name, Kind::Gauge, help, value);
        gauge("app_waiting", "Calls that wait for the application.", queue.waiting as f64);
        gauge("app_waiting_bytes", "Memory of these calls.", queue.bytes as f64);
        let oldest = queue.oldest_ns as f64 / 1e9;
        gauge("app_oldest_seconds", "Time that the oldest of these calls has waited.", oldest);
        gauge(
            "app_running",
            "Calls that the application has not answered yet.",
            queue.running as f64,
        );
        gauge("app_concurrency", "Calls that the application gets at a time.", queue.limit as f64);
        let ended = stats.ended.iter().map(|((method, status), times)| {
            let labels = vec![("method", (*method).to_owned()), ("status", (*status).to_owned())];
            (labels, *times as f64)
        });
        let help = "Calls of the application that have ended, by method and status.";
        exposition.tagged("app_calls", Kind::Counter, help, ended);
        let discarded = [
            ("gone", stats.gone),
            ("full", stats.full),
            ("disconnect_backlog", stats.disconnects_dropped),
        ];
        let discarded = discarded.map(|(cause, times)| (cause.to_owned(), times as f64));
        let help = "Calls that were not made: their client left, or too many waited.";
        exposition.labelled("app_discarded", Kind::Counter, help, "cause", discarded);
        let help = "Calls put back because the application was away or overloaded.";
        exposition.single("app_put_back", Kind::Counter, help, stats.put_back as f64);
        if calls.config.auth.is_some() {
            let (used, bytes) = calls.decision_figures();
            let help = "Decisions of --auth-url that were used again.";
            exposition.single("auth_decisions_reused", Kind::Counter, help, used as f64);
            let help = "Memory of the decisions of --auth-url that may be used again.";
            exposition.single("auth_decisions_bytes", Kind::Gauge, help, bytes as f64);
        }
        let help = "Time that calls waited before they were made.";
        exposition.histogram("app_wait_seconds", help, stats.waited.exposed());
        for (method, took) in Method::ALL.into_iter().zip(&stats.took) {
            let name = format!("app_{}_seconds", method.path());
            let help = format!("Time of calls of the method {}.", method.path());
            exposition.histogram(&name, &help, took.exposed());
        }
    }

    /// The same figures for `/api/stats`; null without an application.
    pub(super) fn application_stats(&self) -> Value {
        let Some(calls) = &self.shared.calls else { return Value::Null };
        let (stats, queue) = calls.figures(now_ns());
        let mut ended = serde_json::Map::new();
        for ((method, status), times) in &stats.ended {
            let of = ended.entry(*method).or_insert_with(|| json!({}));
            of[*status] = (*times).into();
        }
        json!({
            "waiting": queue.waiting,
            "waiting_bytes": queue.bytes,
            "oldest_seconds": queue.oldest_ns as f64 / 1e9,
            "running": queue.running,
            "concurrency": queue.limit,
            "calls": ended,
            "discarded": {
                "gone": stats.gone,
                "full": stats.full,
                "disconnect_backlog": stats.disconnects_dropped,
            },
            "put_back": stats.put_back,
            "decisions_reused": calls.decision_figures().0,
        })
    }
}
