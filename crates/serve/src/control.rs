//! [`Control`]: the server's side of the admin listener: metrics, statistics, connections, publishing.
//! It runs in the control plane's threads and reaches workers only through their mailboxes and
//! counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use admin::{Entrance, Exposition, Kind, Page, Program, Reply, engine_metrics, engine_stats};
use engine::sys::process::now_ns;
use engine::{ConnId, Mode, Remote, Totals};
use serde_json::{Value, json};
use topics::Publication;

use crate::auth::Cause;
use crate::broadcast::{self, Broadcast, Disconnect, Posted};
use crate::handler::{List, Listed, Post};
use crate::publish::{self, Refused};
use crate::shared::Shared;

/// Time for a page of connections. A worker that does not answer in time is left out.
const LIST_WAIT: Duration = Duration::from_secs(1);
/// Bytes that a list request counts in a mailbox.
const LIST_BYTES: usize = 256;

/// A server's part of the admin listener.
pub(crate) struct Control {
    shared: Arc<Shared>,
    remote: Remote<Post>,
    began_ns: u64,
    published: AtomicU64,
    broadcast: AtomicU64,
    overloaded: AtomicU64,
}

impl Control {
    pub(crate) fn new(shared: Arc<Shared>, remote: Remote<Post>) -> Self {
        Control {
            shared,
            remote,
            began_ns: now_ns(),
            published: AtomicU64::new(0),
            broadcast: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
        }
    }

    fn uptime_seconds(&self) -> f64 {
        now_ns().saturating_sub(self.began_ns) as f64 / 1e9
    }

    fn sum(&self, of: impl Fn(&crate::shared::DoorCounters) -> u64) -> u64 {
        self.shared.counters.iter().map(of).sum()
    }

    /// Asks one worker for connections from a slot on; `None` if it did not answer in time.
    fn ask(&self, worker: usize, slot: u32, limit: usize, until_ns: u64) -> Option<Listed> {
        let (reply, answer) = sync_channel(1);
        let list = List { slot, limit, reply };
        self.remote.post(worker, Post::List(list), LIST_BYTES).ok()?;
        let left = until_ns.saturating_sub(now_ns());
        answer.recv_timeout(Duration::from_nanos(left)).ok()
    }

    fn message_bytes_max(&self) -> usize {
        self.shared.policy().limits.wire.message_bytes as usize
    }

    /// Converts items to publications. An excluded session that is unknown or closed excludes nobody.
    fn publications(&self, items: Vec<Broadcast>) -> Vec<Arc<Publication>> {
        let publication = |item: Broadcast| {
            let except = item.exclude.and_then(|sid| self.shared.sids.find(&sid));
            let data = item.data.into_bytes().into();
            let publication = Publication::new(item.stream.into(), data, false);
            let kind = item.kind.map(String::into_boxed_str);
            Arc::new(Publication { except, kind, ..publication })
        };
        items.into_iter().map(publication).collect()
    }

    /// Publishes in order. `status` is the answer if all are accepted; `taken` counts.
    fn publish_all(
        &self,
        publications: &[Arc<Publication>],
        status: u16,
        taken: &AtomicU64,
    ) -> Reply {
        let mut published = 0u64;
        for publication in publications {
            if self.shared.directory.publish(&self.remote, publication).is_err() {
                self.overloaded.fetch_add(1, Ordering::Relaxed);
                break;
            }
            published += 1;
        }
        taken.fetch_add(published, Ordering::Relaxed);
        if published as usize == publications.len() {
            return Reply::json_with(status, &json!({ "published": published }));
        }
        let message = "workers have more to deliver than their mailboxes hold: publish again \
                       what comes after the first `published`";
        let told = json!({ "error": "overloaded", "message": message, "published": published });
        Reply::json_with(503, &told)
    }

    /// Has every worker end the sessions of somebody; each does as it comes to it.
    fn end_sessions(&self, whose: Disconnect, status: u16) -> Reply {
        let bytes = size_of::<Disconnect>() + whose.identifiers.len();
        let whose = Arc::new(whose);
        let mut told = 0u64;
        for worker in self.shared.running() {
            if self.remote.post(worker, Post::Disconnect(Arc::clone(&whose)), bytes).is_err() {
                self.overloaded.fetch_add(1, Ordering::Relaxed);
                let message = "a worker's mailbox is full: ask again";
                return Reply::error(503, "overloaded", message);
            }
            told += 1;
        }
        Reply::json_with(status, &json!({ "workers": told }))
    }

    /// Refusals by cause, without causes that did not occur.
    fn auth_refused(&self) -> Value {
        let met = Cause::ALL.into_iter().filter_map(|cause| {
            let times = self.sum(|door| door.auth_refused.get(cause));
            (times > 0).then(|| (cause.name().to_owned(), times.into()))
        });
        Value::Object(met.collect())
    }

    fn status(&self) -> &'static str {
        if self.healthy() { "ok" } else { "draining" }
    }
}

impl Program for Control {
    fn healthy(&self) -> bool {
        !self.shared.is_draining()
    }

    fn metrics(&self, exposition: &mut Exposition) {
        engine_metrics(exposition, &Totals::sum(self.remote.counters()));
        let mut gauge = |name, help, value: u64| {
            exposition.single(name, Kind::Gauge, help, value as f64);
        };
        let handshakes = self.remote.handshakes().into();
        gauge("handshakes", "Requests whose head is not whole yet.", handshakes);
        let addresses = self.remote.addresses() as u64;
        gauge("addresses", "Addresses kept for the limits per address.", addresses);
        let subscriptions = self.sum(|door| door.subscriptions.get());
        gauge("subscriptions", "Subscriptions of connections to topics.", subscriptions);
        let topics = self.shared.directory.topics() as u64;
        gauge("topics", "Topics that have a subscriber.", topics);
        let running = self.shared.running().count() as u64;
        gauge("workers", "Workers that were needed so far.", running);
        gauge("workers_max", "Workers there may be.", self.remote.workers() as u64);
        let capacity = self.remote.open().map(|(_, capacity)| u64::from(capacity)).sum();
        gauge("connections_max", "Connections that all workers may hold.", capacity);
        if let Some(rss_bytes) = admin::rss_bytes() {
            gauge("resident_memory_bytes", "Resident memory of the process.", rss_bytes);
        }
        let help = "CPU time of all threads of the process.";
        exposition.single("cpu_seconds", Kind::Counter, help, admin::cpu_seconds());
        let doors = [
            ("api", self.published.load(Ordering::Relaxed)),
            ("broadcast", self.broadcast.load(Ordering::Relaxed)),
            ("socket", self.sum(|door| door.published.get())),
        ];
        let doors = doors.map(|(door, count)| (door.to_owned(), count as f64));
        let help = "Publications taken, by the door they came through.";
        exposition.labelled("published", Kind::Counter, help, "door", doors);
        let mut counter = |name, help, value: u64| {
            exposition.single(name, Kind::Counter, help, value as f64);
        };
        let refused = self.sum(|door| door.broadcast_refused.get());
        let help = "Posts to /_broadcast on a listener for clients without its key.";
        counter("broadcast_refused", help, refused);
        let overloaded = self.overloaded.load(Ordering::Relaxed);
        counter("publish_overloaded", "Publish requests answered 503.", overloaded);
        let paused = self.sum(|door| door.publish_paused.get());
        counter("publish_paused", "Times a publishing socket had to wait.", paused);
        let refused = self.sum(|door| door.origin_refused.get());
        counter("origin_refused", "Handshakes refused for their Origin.", refused);
        let refused = self.sum(|door| door.host_refused.get());
        counter("host_refused", "Requests on loopback refused for their Host.", refused);
        let ignored = self.sum(|door| door.commands_ignored.get());
        counter("commands_ignored", "Commands that nobody here carries out.", ignored);
        let malformed = self.sum(|door| door.commands_malformed.get());
        counter("commands_malformed", "Sessions ended for what cannot be understood.", malformed);
        let no_pong = self.sum(|door| door.no_pong.get());
        counter("no_pong", "Sessions ended because pings were not answered.", no_pong);
        let disconnected = self.sum(|door| door.disconnected.get());
        counter("disconnected", "Sessions ended by the application.", disconnected);
        let refused = Cause::ALL.map(|cause| {
            (cause.name().to_owned(), self.sum(|door| door.auth_refused.get(cause)) as f64)
        });
        let help = "Connections not let in, and subscriptions refused, by cause.";
        exposition.labelled("auth_refused", Kind::Counter, help, "cause", refused);
    }

    fn stats(&self) -> Value {
        let mut stats = engine_stats(self.remote.counters());
        let own = json!({
            "status": self.status(),
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": self.uptime_seconds(),
            "rss_bytes": admin::rss_bytes(),
            "cpu_seconds": admin::cpu_seconds(),
            "handshakes": self.remote.handshakes(),
            "addresses": self.remote.addresses(),
            "topics": self.shared.directory.topics(),
            "subscriptions": self.sum(|door| door.subscriptions.get()),
            "published": {
                "api": self.published.load(Ordering::Relaxed),
                "broadcast": self.broadcast.load(Ordering::Relaxed),
                "socket": self.sum(|door| door.published.get()),
            },
            "publish_overloaded": self.overloaded.load(Ordering::Relaxed),
            "broadcast_refused": self.sum(|door| door.broadcast_refused.get()),
            "publish_paused": self.sum(|door| door.publish_paused.get()),
            "origin_refused": self.sum(|door| door.origin_refused.get()),
            "host_refused": self.sum(|door| door.host_refused.get()),
            "auth_refused": self.auth_refused(),
            "commands_ignored": self.sum(|door| door.commands_ignored.get()),
            "commands_malformed": self.sum(|door| door.commands_malformed.get()),
            "no_pong": self.sum(|door| door.no_pong.get()),
            "disconnected": self.sum(|door| door.disconnected.get()),
            "workers_max": self.remote.workers(),
        });
        if let Value::Object(own) = own {
            stats.extend(own);
        }
        let running: Vec<usize> = self.shared.running().collect();
        let all = self.remote.counters().zip(self.remote.open()).zip(&self.shared.counters);
        let workers = all.enumerate().filter(|(worker, _)| running.contains(worker));
        let workers = workers.map(|(worker, ((counters, (open, capacity)), door))| {
            let mut told = engine_stats([counters]);
            told.insert("worker".to_owned(), worker.into());
            told.insert("open".to_owned(), open.into());
            told.insert("capacity".to_owned(), capacity.into());
            told.insert("subscriptions".to_owned(), door.subscriptions.get().into());
            Value::from(told)
        });
        stats.insert("workers".to_owned(), workers.collect());
        stats.into()
    }

    fn connections(&self, page: &Page) -> Reply {
        let until_ns = now_ns() + LIST_WAIT.as_nanos() as u64;
        let (from, mut slot) = match page.after {
            0 => (0, 0),
            after => {
                let after = ConnId::from_u64(after);
                (usize::from(after.worker()), after.slot() + 1)
            }
        };
        let mut listed = Vec::new();
        let mut silent = Vec::new();
        for worker in self.shared.running().filter(|worker| *worker >= from) {
            if worker > from {
                slot = 0;
            }
            while listed.len() < page.limit {
                let Some(answer) = self.ask(worker, slot, page.limit - listed.len(), until_ns)
                else {
                    silent.push(worker);
                    break;
                };
                listed.extend(answer.connections);
                match answer.next_slot {
                    Some(next) => slot = next,
                    None => break,
                }
            }
        }
        let full = listed.len() >= page.limit;
        let next = listed.last().filter(|_| full).map(|(info, _)| info.id.as_u64().to_string());
        let connections: Vec<Value> = listed
            .into_iter()
            .map(|(info, topic)| {
                json!({
                    "id": info.id.as_u64().to_string(),
                    "worker": info.id.worker(),
                    "peer": info.peer.map(|peer| peer.to_string()),
                    "client": info.client.map(|client| client.to_string()),
                    "state": state(info.mode),
                    "topic": topic.as_deref(),
                    "queued_bytes": info.queued_bytes,
                    "idle_seconds": info.idle_seconds,
                })
            })
            .collect();
        let told = json!({ "connections": connections, "next": next, "silent_workers": silent });
        Reply::json(&told)
    }

    fn publish(&self, body: &[u8]) -> Reply {
        match publish::parse(body, self.message_bytes_max()) {
            Ok(publications) => self.publish_all(&publications, 200, &self.published),
            Err(Refused::Malformed(what)) => Reply::error(400, "bad_request", &what),
            Err(Refused::TooLarge(what)) => Reply::error(413, "too_large", &what),
        }
    }

    fn broadcast(&self, body: &[u8]) -> Reply {
        match broadcast::parse(body, self.message_bytes_max()) {
            Ok(Posted::Publications(items)) => {
                self.publish_all(&self.publications(items), 201, &self.broadcast)
            }
            Ok(Posted::Disconnect(whose)) => self.end_sessions(whose, 201),
            Err(Refused::Malformed(what)) => Reply::error(422, "unreadable", &what),
            Err(Refused::TooLarge(what)) => Reply::error(413, "too_large", &what),
        }
    }

    fn disconnect(&self, body: &[u8]) -> Reply {
        match broadcast::parse_disconnect(body) {
            Ok(whose) => self.end_sessions(whose, 200),
            Err(Refused::Malformed(what) | Refused::TooLarge(what)) => {
                Reply::error(400, "bad_request", &what)
            }
        }
    }

    fn is_keyed(&self, entrance: Entrance) -> bool {
        entrance == Entrance::Broadcast && self.shared.policy().access.broadcasts_are_keyed()
    }

    fn opens(&self, entrance: Entrance, key: &[u8]) -> bool {
        let policy = self.shared.policy();
        match entrance {
            Entrance::Broadcast => policy.access.opens_broadcast(key),
            Entrance::Api => policy.access.opens_api(key),
        }
    }
}

fn state(mode: Mode) -> &'static str {
    match mode {
        Mode::Connecting => "connecting",
        Mode::Http => "http",
        Mode::Parked => "parked",
        Mode::WebSocket => "websocket",
        Mode::Raw => "raw",
        Mode::HalfClosed => "half_closed",
        Mode::Closing => "closing",
        Mode::Lingering => "lingering",
        Mode::Dead => "dead",
    }
}
