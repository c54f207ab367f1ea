//! `--metrics`: Prometheus metrics of a run while it lasts. Names and meanings are in
//! `docs/load/load.md`.
//!
//! This module counts nothing: it keeps the row that a run produces each second, and a scrape, on a
//! separate thread, returns the last one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admin::{Address, Exposition, Kind, Program, StartError};
use anyhow::{Result, anyhow};
use load::requests::{Failure, RequestSnapshot};
use load::scenario::{FlowSummary, Scenario, Tallies};
use load::{Counts, Progress, Published, Row, Series, Snapshot};
use serde_json::{Value, json};

use crate::output;

/// Upper bounds of the histogram buckets, in seconds.
const ENDS: [f64; 18] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0,
];
/// The measured times with the name and the help of each histogram.
const TIMES: [(Series, &str, &str); 6] = [
    (Series::Latency, "load_latency_seconds", "Time from when it was due to the answer."),
    (Series::ServiceTime, "load_service_time_seconds", "Time from sending to the answer."),
    (Series::FirstByte, "load_first_byte_seconds", "Time from sending to the first byte."),
    (Series::SendLag, "load_send_lag_seconds", "Time from when it was due to its sending."),
    (Series::Heartbeat, "load_heartbeat_seconds", "Time from a ping to its pong."),
    (Series::Broadcast, "load_receipt_seconds", "Time from publishing to each receipt."),
];

/// The metrics endpoint of one run; it lasts until the process ends.
pub(crate) struct Metrics {
    shared: Arc<Shared>,
    /// Removes the file of a UNIX socket on drop.
    _running: admin::AdminListener,
}

#[derive(Default)]
struct Shared {
    row: Mutex<Row>,
    steps: Mutex<Option<Steps>>,
}

/// The counts of a scenario's steps.
#[derive(Clone)]
struct Steps {
    tallies: Tallies,
    scenario: Arc<Scenario>,
}

impl Metrics {
    /// Opens the listener of `--metrics` and prints its address to standard error.
    ///
    /// # Errors
    /// An address that cannot be bound, or one outside loopback without a key.
    pub(crate) fn start(address: &Address, key: Option<String>) -> Result<Metrics> {
        let config = admin::Config {
            address: address.clone(),
            key,
            tls: None,
            body_bytes_max: 0,
            connections: admin::ConnectionLimits::default(),
        };
        let shared: Arc<Shared> = Arc::default();
        let program = Arc::clone(&shared);
        let running = admin::start(&config, program).map_err(|error| match error {
            StartError::NeedsKey(address) => anyhow!(
                "--metrics {address} is reachable from other machines: add --metrics-key, or use \
                 127.0.0.1 or unix:/path"
            ),
            error => anyhow!(error).context("--metrics"),
        })?;
        match running.address() {
            Address::Tcp(address) => output::note(&format!("metrics at http://{address}/metrics")),
            Address::Unix(path) => output::note(&format!("metrics at unix:{}", path.display())),
        }
        Ok(Metrics { shared, _running: running })
    }

    /// Stores the row of a second.
    pub(crate) fn row(&self, row: &Row) {
        *lock(&self.shared.row) = row.clone();
    }

    /// Starts a round of a scenario.
    pub(crate) fn round(&self, tallies: &Tallies, scenario: &Arc<Scenario>) {
        let steps = Steps { tallies: tallies.clone(), scenario: Arc::clone(scenario) };
        *lock(&self.shared.steps) = Some(steps);
    }
}

/// Parses the address of `--metrics`; a port alone is on 127.0.0.1.
pub(crate) fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|error| format!("{error} (a port alone is on 127.0.0.1)"))
}

impl Program for Shared {
    fn healthy(&self) -> bool {
        true
    }

    fn metrics(&self, to: &mut Exposition) {
        let row = lock(&self.row).clone();
        of_any(to, &row);
        match &row.progress.counts {
            Counts::Sockets(counts) => of_sockets(to, counts, row.progress.published),
            Counts::Requests(counts) => of_requests(to, counts),
        }
        of_times(to, &row.progress);
        let steps = lock(&self.steps).clone();
        if let Some(Steps { tallies, scenario }) = steps {
            of_steps(to, &tallies.summary(&scenario));
        }
    }

    fn stats(&self) -> Value {
        let row = lock(&self.row).clone();
        json!({
            "elapsed_seconds": row.elapsed.as_secs_f64(),
            "phase": row.phase,
            "open": row.open,
            "connects_failed": row.failed,
            "closed": row.closed,
            "sent": row.sent,
            "received": row.received,
            "errors": row.errors,
        })
    }

    fn paths(&self) -> String {
        "/metrics, /health and /api/stats".to_owned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of_any(to: &mut Exposition, row: &Row) {
    let seconds = row.elapsed.as_secs_f64();
    to.single("load_elapsed_seconds", Kind::Gauge, "Seconds since the run began.", seconds);
    let phase = (row.phase.to_owned(), 1.0);
    to.labelled("load_phase", Kind::Gauge, "Current phase of the run.", "phase", [phase]);
    to.single("load_connections", Kind::Gauge, "Open connections.", row.open as f64);
    to.single(
        "load_cpu_seconds",
        Kind::Counter,
        "CPU time of the load process.",
        admin::cpu_seconds(),
    );
    if let Some(bytes) = admin::rss_bytes() {
        let help = "Resident memory of the load process.";
        to.single("load_resident_bytes", Kind::Gauge, help, bytes as f64);
    }
}

fn counter(to: &mut Exposition, name: &str, help: &str, count: u64) {
    to.single(name, Kind::Counter, help, count as f64);
}

fn of_sockets(to: &mut Exposition, counts: &Snapshot, published: Published) {
    for (name, help, count) in [
        ("load_connections_opened", "WebSockets opened.", counts.opened),
        ("load_connects_failed", "Failed connects.", counts.failed_total()),
        ("load_connects_retried", "Failed connects that were retried.", counts.retried_total()),
        ("load_connections_ended", "Closed WebSockets.", counts.closed_total()),
        ("load_heartbeats_sent", "Pings sent.", counts.heartbeats_sent),
        ("load_heartbeats_answered", "Pongs received for them.", counts.heartbeats_received),
        ("load_messages_sent", "Messages sent.", counts.echo_sent),
        (
            "load_messages_received",
            "Messages received while messages were sent.",
            counts.echo_received,
        ),
        ("load_messages_answered", "Messages that were answered.", counts.echo_answered),
        ("load_publications", "Publications accepted, or possibly accepted.", published.taken),
        ("load_publish_failed", "Publications refused or unanswered.", published.failed),
        ("load_receipts", "Publications received, once per socket.", counts.delivery.received),
        ("load_subscribes", "Subscribe commands sent (Action Cable).", counts.subscribes),
        ("load_cable_pings", "Action Cable pings received.", counts.cable_pings),
    ] {
        counter(to, name, help, count);
    }
    let help = "Connections with a confirmed subscription (Action Cable).";
    to.single("load_subscribed", Kind::Gauge, help, counts.subscribed as f64);
    let errors = counts.each_error().map(|(kind, count)| (kind.to_owned(), count as f64));
    let help = "Errors of connections and messages by kind.";
    to.labelled("load_errors", Kind::Counter, help, "kind", errors);
}

fn of_requests(to: &mut Exposition, counts: &RequestSnapshot) {
    for (name, help, count) in [
        ("load_connections_opened", "Connections opened.", counts.opened),
        ("load_connects_failed", "Failed connects.", counts.connects_failed),
        ("load_connections_ended", "Closed connections.", counts.ended),
        ("load_requests_sent", "Requests sent, without those of the warm-up.", counts.sent),
        ("load_requests_ok", "Requests answered successfully.", counts.ok),
        (
            "load_requests_warm_up",
            "Requests sent that were due in the warm-up.",
            counts.warm_up_sent,
        ),
        ("load_redirects", "Requests sent to follow redirects.", counts.redirects),
        (
            "load_requests_repeated",
            "Requests sent again, as the server had not processed them.",
            counts.repeated,
        ),
        ("load_body_bytes", "Bytes of response bodies.", counts.body_bytes),
    ] {
        counter(to, name, help, count);
    }
    let failed = Failure::all().map(Failure::name).zip(&counts.failed);
    let failed = failed.map(|(kind, count)| (kind.to_owned(), *count as f64));
    let help = "Failed requests by kind.";
    to.labelled("load_requests_failed", Kind::Counter, help, "kind", failed);
    let answers = counts.statuses().map(|(status, count)| (status.to_string(), count as f64));
    let help = "Complete responses by status.";
    to.labelled("load_answers", Kind::Counter, help, "status", answers);
    let goaways = counts.goaways().map(|(code, count)| (code.to_owned(), count as f64));
    let help = "HTTP/2 GOAWAY frames by code.";
    to.labelled("load_goaways", Kind::Counter, help, "code", goaways);
}

fn of_times(to: &mut Exposition, progress: &Progress) {
    for (series, name, help) in TIMES {
        if let Some(buckets) = progress.timed.buckets(series, &ENDS) {
            to.histogram(name, help, buckets);
        }
    }
}

/// Samples with their labels.
type Samples = Vec<(Vec<(&'static str, String)>, f64)>;

fn of_steps(to: &mut Exposition, flows: &[FlowSummary]) {
    let [mut passes, mut requests, mut failed, mut checks, mut slow] =
        [const { Samples::new() }; 5];
    for flow in flows {
        for (state, count) in [("begun", flow.begun), ("completed", flow.completed)] {
            let labels = vec![("flow", flow.name.clone()), ("state", state.to_owned())];
            passes.push((labels, count as f64));
        }
        for step in &flow.steps {
            let named = [("flow", flow.name.clone()), ("step", step.name.clone())];
            let with = |more: &[(&'static str, &str)]| {
                let more = more.iter().map(|(label, of)| (*label, (*of).to_owned()));
                named.iter().cloned().chain(more).collect::<Vec<_>>()
            };
            requests.push((with(&[]), step.requests as f64));
            let kinds = step.errors.iter();
            failed.extend(kinds.map(|(kind, count)| (with(&[("kind", kind)]), *count as f64)));
            for check in &step.checks {
                for (result, count) in [("passed", check.passed), ("failed", check.failed)] {
                    let labels = with(&[("check", &check.name), ("result", result)]);
                    checks.push((labels, count as f64));
                }
            }
            if let Some(latency) = &step.latency {
                for (quantile, ms) in
                    [("0.5", latency.p50_ms), ("0.95", latency.p95_ms), ("0.99", latency.p99_ms)]
                {
                    slow.push((with(&[("quantile", quantile)]), ms / 1e3));
                }
            }
        }
    }
    let help = "Passes of a flow.";
    to.tagged("load_passes", Kind::Counter, help, passes);
    to.tagged("load_step_requests", Kind::Counter, "Requests of a step.", requests);
    to.tagged("load_step_failed", Kind::Counter, "Failed requests of a step by kind.", failed);
    to.tagged("load_checks", Kind::Counter, "Checks and captures of a step.", checks);
    let help = "Time from when a step was due to its complete answer, over the run so far.";
    to.tagged("load_step_latency_seconds", Kind::Gauge, help, slow);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_loopback() {
        for text in ["9100", ":9100", "127.0.0.1:9100"] {
            assert_eq!(address(text).unwrap().to_string(), "127.0.0.1:9100");
        }
        assert_eq!(address("unix:/run/a").unwrap().to_string(), "unix:/run/a");
        assert!(address("localhost").unwrap_err().contains("a port alone"));
        assert!(address("70000").is_err());
    }
}
