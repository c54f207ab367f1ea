//! [`Control`]: metrics, statistics and the admin API of a proxy. It runs in the control plane's
//! threads and reaches workers through their mailboxes and counters only.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use admin::{
    ApiRequest, Exposition, Kind, Page, Program, Reply, Watchdog, engine_metrics, engine_stats,
};
use engine::sys::process::now_ns;
use engine::{ConnId, Remote, Totals};
use serde_json::{Value, json};

use crate::access_log::Side;
use crate::api::{Api, Workers};
use crate::counters::{Counters, EndReason, Phase, Refusal, Stage};
use crate::drain::DrainOrder;
use crate::histogram::{Histogram, Timings};
use crate::page;
use crate::relay::{Post, TunnelInfo, TunnelPage, TunnelQuery};
use crate::shared::Shared;

/// Timeout for a page of tunnels. A worker that does not answer in time is listed as silent.
const LIST_WAIT: Duration = Duration::from_secs(1);
/// Bytes that one post counts in a mailbox.
const POST_BYTES: usize = 256;

/// A histogram: name, help and where it is counted.
type HistogramMetric = (&'static str, &'static str, fn(&Timings) -> &Histogram);

const HISTOGRAMS: [HistogramMetric; 4] = [
    ("handshake_seconds", "Seconds to receive the head of a request, including TLS.", |timed| {
        &timed.handshake
    }),
    ("connect_seconds", "Seconds to connect to an upstream, including TLS.", |timed| {
        &timed.connect
    }),
    ("switching_seconds", "Seconds from a WebSocket handshake to its 101.", |timed| {
        &timed.switching
    }),
    ("tunnel_seconds", "Lifetime of tunnels in seconds.", |timed| &timed.lifetime),
];

/// The admin view of a proxy.
pub(crate) struct Control {
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: Remote<Post>,
    pub(crate) api: Api,
    watchdog: Arc<Watchdog>,
    began_ns: u64,
}

impl Control {
    pub(crate) fn new(
        shared: Arc<Shared>,
        remote: Remote<Post>,
        api: Api,
        watchdog: Arc<Watchdog>,
    ) -> Self {
        Control { shared, remote, api, watchdog, began_ns: now_ns() }
    }

    pub(crate) fn uptime_seconds(&self) -> f64 {
        now_ns().saturating_sub(self.began_ns) as f64 / 1e9
    }

    pub(crate) fn sum(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.shared.counters.iter().map(of).sum()
    }

    /// Asks one worker for its tunnels from a slot on; `None` if it does not answer in time.
    fn query_worker(
        &self,
        worker: usize,
        (slot, limit): (u32, usize),
        upstreams: Option<&[u32]>,
        until_ns: u64,
    ) -> Option<TunnelPage> {
        let (reply, answer) = sync_channel(1);
        let upstreams = upstreams.map(Into::into);
        let list = Box::new(TunnelQuery { slot, limit, upstreams, reply });
        self.remote.post(worker, Post::ListTunnels(list), POST_BYTES).ok()?;
        let left = until_ns.saturating_sub(now_ns());
        answer.recv_timeout(Duration::from_nanos(left)).ok()
    }

    fn numbers(&self) -> [(&'static str, Kind, &'static str, u64); 16] {
        use Kind::{Counter, Gauge};
        [
            ("tunnels", Gauge, "Open tunnels.", self.sum(|c| c.tunnels.get())),
            ("exchanges", Gauge, "Requests in progress.", self.sum(|c| c.exchanges.get())),
            ("tunnels_opened", Counter, "Tunnels opened.", self.sum(|c| c.opened.get())),
            ("proxied", Counter, "Requests accepted for proxying.", self.sum(|c| c.requests.get())),
            (
                "declined",
                Counter,
                "WebSocket handshakes that an upstream answered with another status than 101.",
                self.sum(|c| c.declined.get()),
            ),
            ("retries", Counter, "Retries on another upstream.", self.sum(|c| c.retries.get())),
            (
                "reused",
                Counter,
                "Requests sent on a reused upstream connection.",
                self.sum(|c| c.reused.get()),
            ),
            (
                "bound_connections",
                Gauge,
                "Idle upstream connections that serve one client only.",
                self.sum(|c| c.bound.get()),
            ),
            (
                "bound_refused",
                Counter,
                "Upstream connections closed because too many were bound to clients.",
                self.sum(|c| c.unbound.get()),
            ),
            (
                "https_redirects",
                Counter,
                "Plain requests redirected to https.",
                self.sum(|c| c.https_redirects.get()),
            ),
            ("truncated", Counter, "Responses that ended early.", self.sum(|c| c.truncated.get())),
            (
                "bodies_buffered",
                Counter,
                "Request bodies received before an upstream was chosen.",
                self.sum(|c| c.bodies_buffered.get()),
            ),
            (
                "bodies_unbuffered",
                Counter,
                "Request bodies passed on as they arrived because the buffers were full.",
                self.sum(|c| c.bodies_unbuffered.get()),
            ),
            (
                "buffered_body_bytes",
                Gauge,
                "Bytes of buffered request bodies.",
                self.sum(|c| c.buffered_bytes.get()),
            ),
            (
                "tunnel_bytes_in",
                Counter,
                "Bytes from clients in closed tunnels.",
                self.sum(|c| c.bytes_up.get()),
            ),
            (
                "tunnel_bytes_out",
                Counter,
                "Bytes to clients in closed tunnels.",
                self.sum(|c| c.bytes_down.get()),
            ),
        ]
    }

    fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        EndReason::ALL.into_iter().map(|why| (why.name(), self.sum(|c| c.ended(why))))
    }

    fn ended_by(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [Side::Client, Side::Upstream, Side::Proxy].into_iter().map(|side| {
            let of_side = EndReason::ALL.into_iter().filter(move |why| why.side() == side);
            (side.name(), of_side.map(|why| self.sum(|c| c.ended(why))).sum())
        })
    }

    fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refusal::ALL.into_iter().map(|why| (why.name(), self.sum(|c| c.refused(why))))
    }
}

impl Control {
    /// Metrics of each started worker.
    fn worker_metrics(&self, exposition: &mut Exposition) {
        let begun = || {
            let counters = |worker: usize| Some((worker, self.shared.counters.get(worker)?));
            self.shared.running().filter_map(counters)
        };
        let labels = |worker: usize, state: &str| {
            vec![("worker", worker.to_string()), ("state", state.to_owned())]
        };
        let tunnels = begun().flat_map(|(worker, counters)| {
            let of =
                move |phase: Phase| (labels(worker, phase.name()), counters.in_phase(phase) as f64);
            Phase::ALL.into_iter().map(of)
        });
        let help = "Tunnels of each worker, by state.";
        exposition.tagged("worker_tunnels", Kind::Gauge, help, tunnels);
        let requests = begun().flat_map(|(worker, counters)| {
            let of = move |stage: Stage| (labels(worker, stage.name()), counters.at(stage) as f64);
            Stage::ALL.into_iter().map(of)
        });
        let help = "Requests in progress in each worker, by state.";
        exposition.tagged("worker_requests", Kind::Gauge, help, requests);
        let held = admin::descriptors().into_iter().filter_map(|(thread, held)| {
            let number: usize = thread.strip_prefix("worker-")?.parse().ok()?;
            let worker = self.shared.running().find(|worker| *worker == number)?;
            Some((worker.to_string(), held as f64))
        });
        let help = "Descriptors in use in the table of each worker.";
        exposition.labelled("descriptors", Kind::Gauge, help, "worker", held);
    }
}

impl Program for Control {
    fn healthy(&self) -> bool {
        !self.shared.is_draining()
    }

    fn ready(&self) -> (u16, String) {
        self.watchdog.readiness(&self.remote, self.shared.is_draining())
    }

    fn metrics(&self, exposition: &mut Exposition) {
        self.watchdog.metrics(&self.remote, exposition);
        let totals = Totals::sum(self.remote.counters());
        engine_metrics(exposition, &totals);
        admin::engine_histograms(exposition, &self.remote);
        admin::network_metrics(exposition);
        for (name, kind, help, value) in self.numbers() {
            exposition.single(name, kind, help, value as f64);
        }
        let float = |(name, value): (&str, u64)| (name.to_owned(), value as f64);
        let help = "Closed tunnels, by reason.";
        let ended = self.ended().map(float);
        exposition.labelled("tunnels_ended", Kind::Counter, help, "reason", ended);
        let help = "Closed tunnels, by the side that closed them.";
        let ended_by = self.ended_by().map(float);
        exposition.labelled("tunnels_ended_by", Kind::Counter, help, "side", ended_by);
        let help = "Requests that the proxy refused, by reason.";
        let refused = self.refused().map(float);
        exposition.labelled("requests_refused", Kind::Counter, help, "reason", refused);
        for (name, help, of) in HISTOGRAMS {
            exposition.histogram(name, help, Histogram::sum(self.shared.timings.iter().map(of)));
        }
        self.worker_metrics(exposition);
        let mut gauge = |name, help, value: u64| {
            exposition.single(name, Kind::Gauge, help, value as f64);
        };
        let capacity = self.remote.open().map(|(_, capacity)| u64::from(capacity)).sum();
        gauge("connections_max", "Maximum number of connections; a tunnel takes two.", capacity);
        let handshakes = self.remote.handshakes().into();
        gauge("handshakes", "Connections whose request head is not complete yet.", handshakes);
        let addresses = self.remote.addresses() as u64;
        gauge("addresses", "Addresses tracked for the limits per address.", addresses);
        gauge(
            "descriptors_max",
            "Maximum number of descriptors per table.",
            capacity::nofile().soft,
        );
        gauge("workers", "Started workers.", self.shared.running().count() as u64);
        if let Some(rss_bytes) = admin::rss_bytes() {
            gauge("resident_memory_bytes", "Resident memory of the process.", rss_bytes);
        }
        let help = "CPU time of all threads of the process.";
        exposition.single("cpu_seconds", Kind::Counter, help, admin::cpu_seconds());
        let [dropped, errors] = self.shared.log_counts();
        let help = "Lines of the access log that were dropped.";
        exposition.single("access_log_dropped", Kind::Counter, help, dropped as f64);
        let help = "Failed writes of the access log.";
        exposition.single("access_log_errors", Kind::Counter, help, errors as f64);
        exposition.single(
            "uptime_seconds",
            Kind::Gauge,
            "Seconds since the start.",
            self.uptime_seconds(),
        );
        self.api.metrics(exposition);
    }

    fn stats(&self) -> Value {
        let mut stats = engine_stats(self.remote.counters());
        for (name, _, _, value) in self.numbers() {
            stats.insert(name.to_owned(), value.into());
        }
        let object = |each: &mut dyn Iterator<Item = (&'static str, u64)>| -> Value {
            each.map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
        };
        stats.extend(self.watchdog.stats(&self.remote));
        stats.insert("pid".to_owned(), std::process::id().into());
        stats.insert("rss_bytes".to_owned(), admin::rss_bytes().into());
        stats.insert("tunnels_ended".to_owned(), object(&mut self.ended()));
        stats.insert("requests_refused".to_owned(), object(&mut self.refused()));
        stats.insert("uptime_seconds".to_owned(), self.uptime_seconds().into());
        stats.insert("upstreams".to_owned(), self.api.upstreams());
        stats.into()
    }

    fn api(&self, asked: &ApiRequest<'_>) -> Option<Reply> {
        self.api.answer(self, asked)
    }

    fn page(&self) -> Option<Value> {
        Some(page::sections())
    }

    fn sample(&self, _complete: bool) -> Value {
        self.sample_page()
    }

    fn paths(&self) -> String {
        Api::PATHS.to_owned()
    }
}

impl Workers for Control {
    fn drain(&self, order: &Arc<DrainOrder>) -> u32 {
        let mut reached = 0;
        for worker in self.shared.running() {
            let post = Post::Drain(Arc::clone(order));
            reached += u32::from(self.remote.post(worker, post, POST_BYTES).is_ok());
        }
        reached
    }

    fn wake_waiters(&self) {
        for worker in self.shared.running() {
            // If the mailbox is full, the worker looks by itself a moment later.
            let _ = self.remote.post(worker, Post::PermitReleased, 0);
        }
    }

    fn tunnels(&self, page: &Page, upstreams: Option<&[u32]>) -> Reply {
        let until_ns = now_ns() + LIST_WAIT.as_nanos() as u64;
        let after = (page.after > 0).then(|| ConnId::from_u64(page.after));
        let from = after.map_or(0, |after| usize::from(after.worker()));
        let (mut listed, mut silent) = (Vec::<TunnelInfo>::new(), Vec::new());
        for worker in self.shared.running().filter(|worker| *worker >= from) {
            let mut slot = after.filter(|_| worker == from).map_or(0, |after| after.slot() + 1);
            while listed.len() < page.limit {
                let range = (slot, page.limit - listed.len());
                let Some(answer) = self.query_worker(worker, range, upstreams, until_ns) else {
                    silent.push(worker);
                    break;
                };
                listed.extend(answer.tunnels);
                match answer.next_slot {
                    Some(next) => slot = next,
                    None => break,
                }
            }
        }
        let full = listed.len() >= page.limit;
        let next = listed.last().filter(|_| full).map(|tunnel| id_text(tunnel.id));
        let tunnels: Vec<Value> = listed.iter().map(tunnel_json).collect();
        Reply::json(&json!({ "tunnels": tunnels, "next": next, "silent_workers": silent }))
    }
}

/// A tunnel's id in JSON. It is a string because many readers parse numbers as floating point, which
/// has 53 bits; ids need more from the second worker on (RFC 8259 section 6).
fn id_text(id: ConnId) -> String {
    id.as_u64().to_string()
}

fn tunnel_json(tunnel: &TunnelInfo) -> Value {
    json!({
        "id": id_text(tunnel.id),
        "upstream": &*tunnel.upstream,
        "address": tunnel.address,
        "client": tunnel.client.map(|client| client.to_string()),
        "seconds": tunnel.seconds,
        "idle_seconds": tunnel.idle_seconds,
        "bytes_in": tunnel.bytes_in,
        "bytes_out": tunnel.bytes_out,
        "queued_bytes": tunnel.queued,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_ids_survive_json_readers_with_53_bit_numbers() {
        let id = ConnId::from_u64(1 << 54 | 3 << 32 | 5);
        assert_eq!((id.worker(), id.slot(), id.generation()), (1, 3, 5));
        let tunnel = TunnelInfo {
            id,
            upstream: "app:80".into(),
            address: "10.0.0.1:80".to_owned(),
            client: None,
            seconds: 1,
            idle_seconds: 0.5,
            bytes_in: 2,
            bytes_out: 3,
            queued: 0,
        };
        let number = id.as_u64();
        assert_ne!(number as f64 as u64, number, "JavaScript would round it");
        let shown = tunnel_json(&tunnel);
        assert_eq!(shown["id"], number.to_string());
        let read = shown["id"].as_str().and_then(|text| text.parse().ok()).map(ConnId::from_u64);
        assert_eq!(read, Some(id));
    }
}
