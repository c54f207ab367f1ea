//! The admin page of a proxy: its sections and their values. The form is described in
//! `crates/admin/src/page/README.md`.

use admin::WorkerColumn;
use engine::Totals;
use serde_json::{Value, json};

use crate::control::Control;
use crate::counters::{EndReason, Refusal};

/// Figures of workers, beside the engine's.
const WORKER_COLUMNS: [WorkerColumn; 2] =
    [WorkerColumn::now("tunnels", "Tunnels"), WorkerColumn::per_second("requests", "Requests/s")];

/// The sections and how they are shown.
pub(crate) fn sections() -> Value {
    let upstream = |action: &str| json!({ "action": action, "pool": "{pool}", "upstream": "{upstream}", "address": "{address}" });
    let drain = json!({
        "label": "Drain", "method": "POST", "path": "/api/upstreams", "needs": "change",
        "confirm": "Send no new requests to {upstream} of pool {pool}?",
        "done": "Draining. Open tunnels: {tunnels}", "body": upstream("drain"),
        "unless": { "column": "state", "values": ["draining", "removed", "unresolved"] },
        "fields": [{ "name": "over_seconds", "type": "number", "min": 0, "max": 86_400,
            "label": "Close its tunnels over so many seconds (empty: leave them open)" }],
    });
    let resume = json!({
        "label": "Resume", "method": "POST", "path": "/api/upstreams", "needs": "change",
        "done": "Resumed", "body": upstream("resume"),
        "when": { "column": "state", "values": ["draining"] },
    });
    let weight = json!({
        "label": "Weight", "method": "POST", "path": "/api/upstreams", "needs": "change",
        "confirm": "Change the weight of {upstream} in pool {pool}, with all its addresses?",
        "done": "Weight changed",
        "body": { "action": "set", "pool": "{pool}", "upstream": "{upstream}" },
        "unless": { "column": "state", "values": ["removed"] },
        "fields": [{ "name": "weight", "label": "Weight, 1 to 256", "type": "number", "min": 1,
            "max": 256, "value": "{weight}", "required": true }],
    });
    json!({
        "program": "proxy",
        "version": env!("CARGO_PKG_VERSION"),
        "sections": [
            { "id": "now", "title": "Now", "kind": "figures", "items": [
                { "id": "tunnels", "label": "Tunnels", "unit": "count", "chart": true },
                { "id": "proxied", "label": "Requests", "unit": "count", "rate": true, "chart": true },
                { "id": "bytes_in", "label": "Received", "unit": "bytes", "rate": true, "chart": true },
                { "id": "bytes_out", "label": "Sent", "unit": "bytes", "rate": true, "chart": true },
                { "id": "opened", "label": "New tunnels", "unit": "count", "rate": true, "chart": true },
                { "id": "connections", "label": "Connections", "unit": "count", "of": "connections_max", "chart": true },
                { "id": "cpu_seconds", "label": "CPU", "unit": "cores", "rate": true, "chart": true },
                { "id": "rss_bytes", "label": "Memory", "unit": "bytes", "chart": true },
            ] },
            { "id": "queues", "title": "Queues", "kind": "figures", "items": [
                { "id": "exchanges", "label": "In progress", "unit": "count", "chart": true },
                { "id": "waiting", "label": "Waiting", "unit": "count", "chart": true },
                { "id": "queued_bytes", "label": "Send queues", "unit": "bytes" },
                { "id": "handshakes", "label": "Incomplete requests", "unit": "count" },
                { "id": "retries", "label": "Retries", "unit": "count", "rate": true },
                { "id": "truncated", "label": "Truncated responses", "unit": "count" },
            ] },
            { "id": "pools", "title": "Pools and upstreams", "kind": "table",
              "key": ["pool", "upstream", "address"], "sort": "pool", "ascending": true,
              "empty": "No pool is configured.", "group": "pool",
              "find": { "section": "tunnels", "field": "upstream", "column": "upstream" },
              "columns": [
                { "id": "pool", "label": "Pool" },
                { "id": "upstream", "label": "Upstream", "wrap": true },
                { "id": "address", "label": "Address" },
                { "id": "state", "label": "State", "unit": "state",
                  "good": ["up"], "bad": ["down", "ejected", "unresolved"] },
                { "id": "tunnels", "label": "Tunnels", "unit": "count", "bar": true },
                { "id": "max", "label": "Max", "unit": "count" },
                { "id": "weight", "label": "Weight", "unit": "count" },
                { "id": "picked", "label": "Chosen/s", "unit": "count", "rate": true },
                { "id": "failed", "label": "Failed", "unit": "count" },
                { "id": "ejected_seconds", "label": "Ejected for", "unit": "seconds" },
              ],
              "actions": [drain, resume, weight] },
            { "id": "tunnels", "title": "Find tunnels", "kind": "find",
              "path": "/api/tunnels", "list": "tunnels", "limit": 50, "empty": "No tunnel matches.",
              "fields": [
                { "name": "pool", "label": "Pool" },
                { "name": "upstream", "label": "Upstream", "placeholder": "10.0.0.1:8080" },
                { "name": "address", "label": "Address of the upstream", "placeholder": "10.0.0.1:8080" },
              ],
              "columns": [
                { "id": "client", "label": "Client" },
                { "id": "upstream", "label": "Upstream" },
                { "id": "seconds", "label": "Age", "unit": "seconds" },
                { "id": "idle_seconds", "label": "Idle", "unit": "seconds" },
                { "id": "bytes_in", "label": "From client", "unit": "bytes" },
                { "id": "bytes_out", "label": "To client", "unit": "bytes" },
                { "id": "queued_bytes", "label": "Queued", "unit": "bytes" },
              ] },
            { "id": "close", "title": "Close tunnels", "kind": "form", "action": {
                "label": "Close tunnels", "method": "POST", "path": "/api/close", "needs": "change",
                "confirm": "Close {percent} % of the tunnels?", "done": "Closing", "body": {},
                "fields": [
                  { "name": "percent", "label": "Percent of the tunnels", "type": "number", "min": 0, "max": 100, "required": true },
                  { "name": "over_seconds", "label": "Seconds (empty: at once)", "type": "number", "min": 0, "max": 86_400 },
                  { "name": "pool", "label": "Pool (empty: all)" },
                  { "name": "upstream", "label": "Upstream (empty: all)" },
                ] } },
            admin::causes_section(
                "refusals", "Refusals", "What was refused", "What would admit it",
                "Nothing was refused."),
            admin::causes_section(
                "ended", "Closed tunnels", "Why tunnels were closed", "What changes it",
                "No tunnel was closed."),
            admin::workers_section(&WORKER_COLUMNS),
        ],
    })
}

impl Control {
    /// The values of the sections.
    pub(crate) fn sample_page(&self) -> Value {
        let totals = Totals::sum(self.remote.counters());
        let capacity: u64 = self.remote.open().map(|(_, capacity)| u64::from(capacity)).sum();
        let open: u64 = self.remote.open().map(|(open, _)| u64::from(open)).sum();
        let (upstreams, waiting) = self.page_upstreams();
        let status = if self.shared.is_draining() { "draining" } else { "ok" };
        let mut refusals = admin::engine_causes(&totals);
        refusals.extend(Refusal::ALL.into_iter().filter_map(|why| {
            let (what, hint) = refusal_text(why);
            admin::cause(why.name(), what, self.sum(|c| c.refused(why)), hint)
        }));
        let ended = EndReason::ALL.into_iter().filter_map(|why| {
            let (what, hint) = end_text(why);
            admin::cause(why.name(), what, self.sum(|c| c.ended(why)), hint)
        });
        json!({
            "at": self.uptime_seconds(),
            "status": status,
            "values": {
                "now": {
                    "tunnels": self.sum(|c| c.tunnels.get()),
                    "proxied": self.sum(|c| c.requests.get()),
                    "bytes_in": totals.bytes_in,
                    "bytes_out": totals.bytes_out,
                    "opened": self.sum(|c| c.opened.get()),
                    "connections": open,
                    "connections_max": capacity,
                    "cpu_seconds": admin::cpu_seconds(),
                    "rss_bytes": admin::rss_bytes(),
                },
                "queues": {
                    "exchanges": self.sum(|c| c.exchanges.get()),
                    "waiting": waiting,
                    "queued_bytes": totals.queued_bytes,
                    "handshakes": self.remote.handshakes(),
                    "retries": self.sum(|c| c.retries.get()),
                    "truncated": self.sum(|c| c.truncated.get()),
                },
                "pools": upstreams,
                "refusals": refusals,
                "ended": ended.collect::<Vec<_>>(),
                "workers": self.page_workers(),
            },
        })
    }

    /// All upstreams with their pools, and how many requests wait for one.
    fn page_upstreams(&self) -> (Vec<Value>, u64) {
        let mut all = self.api.upstreams();
        let pools = all["pools"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let mut waiting = 0;
        let rows = pools.into_iter().flat_map(|mut pool| {
            waiting += pool["waiting"].as_u64().unwrap_or_default();
            let name = pool["pool"].take();
            let upstreams = pool["upstreams"].as_array_mut().map(std::mem::take);
            upstreams.unwrap_or_default().into_iter().map(move |mut upstream| {
                upstream["pool"] = name.clone();
                upstream
            })
        });
        let rows = rows.collect();
        (rows, waiting)
    }

    fn page_workers(&self) -> Value {
        admin::worker_rows(&self.remote, self.shared.running(), &WORKER_COLUMNS, |worker, _| {
            let own = self.shared.counters.get(worker)?;
            Some([own.tunnels.get(), own.requests.get()])
        })
    }
}

/// What was refused for this reason, and what would admit it.
fn refusal_text(why: Refusal) -> (&'static str, &'static str) {
    match why {
        Refusal::NoRoute => {
            ("Requests without a route (404)", "A [[route]] for their host and path")
        }
        Refusal::Connect => ("CONNECT requests (405)", "No flag: the proxy makes no such tunnels"),
        Refusal::Denied => {
            ("Clients that the route does not allow (403)", "allow or deny of the route")
        }
        Refusal::Busy => {
            ("Every upstream was at its max (503)", "max, queue or queue_timeout of the pool")
        }
        Refusal::Down => (
            "No upstream was up (503)",
            "The upstreams; panic_threshold of the pool sends requests to them all the same",
        ),
        Refusal::Exhausted => (
            "No descriptors or memory for another connection (503)",
            "The descriptor limit; standfast doctor says what limits this machine",
        ),
        Refusal::NoSource => {
            ("No free source address or port (503)", "More addresses with --source")
        }
        Refusal::Unreachable => (
            "No upstream could be reached (502)",
            "The upstreams, named in the log; --connect-timeout",
        ),
        Refusal::BadAnswer => {
            ("Invalid responses of upstreams (502)", "The upstream; --max-head for long heads")
        }
        Refusal::NoAnswer => {
            ("Upstreams that did not respond in time (504)", "--answer-timeout, --upstream-timeout")
        }
        Refusal::BadBody => ("Invalid request bodies (400)", "No flag: the client has a fault"),
        Refusal::StalledBody => ("Request bodies that stalled (408)", "--answer-timeout"),
        Refusal::SlowBody => ("Request bodies below the minimum rate (408)", "--body-min-rate"),
        Refusal::LateBody => ("Request bodies that took too long (408)", "--body-timeout"),
        Refusal::BodyTooLarge => {
            ("Request bodies that were too large (413)", "--max-body, or max_body of the route")
        }
    }
}

/// Why tunnels were closed, and what changes it.
fn end_text(why: EndReason) -> (&'static str, &'static str) {
    match why {
        EndReason::ByClient => ("By the client", ""),
        EndReason::ByUpstream => ("By the upstream", ""),
        EndReason::ClientReset => ("Reset by the client", ""),
        EndReason::UpstreamReset => ("Reset by the upstream", ""),
        EndReason::ClientGivenUp => ("The client acknowledged or read nothing", "--peer-timeout"),
        EndReason::UpstreamGivenUp => {
            ("The upstream acknowledged or read nothing", "--peer-timeout")
        }
        EndReason::Idle => ("No data in either direction", "--idle-timeout"),
        EndReason::Fin => ("Half closed without data", "--fin-timeout"),
        EndReason::Lifetime => ("Maximum lifetime", "--max-lifetime"),
        EndReason::Draining => ("The proxy shuts down", "--drain"),
        EndReason::Ordered => ("By an operator", ""),
        EndReason::Exhausted => ("Out of memory", "standfast doctor"),
        EndReason::Shed => ("Shed above the memory limit", "--memory-limit"),
    }
}
