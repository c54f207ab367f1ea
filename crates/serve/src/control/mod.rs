//! [`Control`]: the server's side of the admin listener: metrics, statistics, connections, publishing.
//! It runs in the control plane's threads and reaches workers only through their mailboxes and
//! counters.

mod adapters;
mod api;
mod application;
mod cluster;
mod connections;
mod history;
mod long_polling;
mod page;
mod page_parts;
mod presence;
mod top_topics;
mod webhooks;

pub(crate) use self::cluster::Answer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admin::{
    ApiRequest, AppEndpoint, Exposition, Kind, Page, Program, Reply, engine_metrics, engine_stats,
};
use engine::sys::process::now_ns;
use engine::{Remote, Totals};
use serde_json::{Value, json};
use topics::{Eviction, Publication, Refused, Unavailable};

use crate::auth::Cause;
use crate::broadcast::{self, Broadcast, BroadcastRequest, Disconnect};
use crate::handler::Post;
use crate::publish::{self, BodyError};
use crate::pubsub::Posted;
use crate::resume::StoredSessions;
use crate::shared::Shared;

/// Time for an answer of the workers. One that does not answer in time is left out.
const WAIT: Duration = Duration::from_secs(1);

/// A server's part of the admin listener.
pub(crate) struct Control {
    shared: Arc<Shared>,
    remote: Remote<Post>,
    started_ns: u64,
    published: AtomicU64,
    broadcast: AtomicU64,
    overloaded: AtomicU64,
    /// Publish requests refused because a topic has too much pending.
    topic_overloaded: AtomicU64,
}

impl Control {
    pub(crate) fn new(shared: Arc<Shared>, remote: Remote<Post>) -> Self {
        Control {
            shared,
            remote,
            started_ns: now_ns(),
            published: AtomicU64::new(0),
            broadcast: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            topic_overloaded: AtomicU64::new(0),
        }
    }

    fn uptime_seconds(&self) -> f64 {
        now_ns().saturating_sub(self.started_ns) as f64 / 1e9
    }

    fn sum(&self, of: impl Fn(&crate::shared::WorkerCounters) -> u64) -> u64 {
        self.shared.counters.iter().map(of).sum()
    }

    pub(crate) fn message_bytes_max(&self) -> usize {
        self.shared.policy().limits.wire.message_bytes as usize
    }

    /// Converts items to publications. An excluded session that is unknown or closed excludes nobody.
    pub(crate) fn publications(&self, items: Vec<Broadcast>) -> Vec<Posted> {
        let publication = |item: Broadcast| {
            let exclude = item.exclude.map(String::into_boxed_str);
            let except = exclude.as_ref().and_then(|sid| self.shared.sids.find(sid));
            let data = item.data.into_bytes().into();
            let mut publication =
                Publication::new(item.stream.into(), data, false).accepted(now_ns());
            publication.except = except;
            publication.kind = item.kind.map(Into::into);
            publication.transient = item.transient;
            Posted { publication: Arc::new(publication), exclude }
        };
        items.into_iter().map(publication).collect()
    }

    /// Publishes in order. `status` is the answer if all are accepted; `taken` counts. The answer has
    /// the number of receivers if it is known: because there are none, or because they are counted.
    fn publish_all(
        &self,
        publications: Vec<Posted>,
        status: u16,
        taken: &AtomicU64,
        count_receivers: bool,
    ) -> Reply {
        if let Some(pubsub) = &self.shared.pubsub {
            return self.publish_to_nodes(pubsub, publications, status, taken, count_receivers);
        }
        let (mut published, mut reached) = (0u64, 0);
        let (mut topics, mut refused) = (Vec::new(), None);
        let (history, mut offsets) = (self.shared.history(), Vec::new());
        // By value: a publication counts as pending while it is kept.
        for Posted { publication, .. } in publications {
            let workers = match self.shared.directory.publish(&self.remote, &publication) {
                Ok(workers) => workers,
                Err(why) => {
                    refused = Some((why, publication));
                    break;
                }
            };
            published += 1;
            if history.is_some() {
                offsets.push(publication.position().map(|position| position.offset));
            }
            reached += workers;
            if count_receivers {
                topics.push(Arc::clone(&publication.topic));
            }
        }
        taken.fetch_add(published, Ordering::Relaxed);
        let Some((why, publication)) = refused else {
            let mut reply = json!({ "published": published });
            if let Some(history) = history {
                reply["epoch"] = history.epoch().to_string().into();
                reply["offsets"] = offsets.into();
            }
            if reached == 0 {
                reply["receivers"] = 0.into();
            } else if count_receivers {
                reply["receivers"] = self.receivers(&topics).into();
            }
            return Reply::json_with(status, &reply);
        };
        let again = again(published);
        let (status, error, count, message) = match why {
            Refused::MailboxFull => {
                let message = format!("a worker's mailbox is full: {again}");
                (503, "overloaded", &self.overloaded, message)
            }
            Refused::TopicOverloaded => {
                let topic = &publication.topic;
                let message =
                    format!("topic {topic} has more pending than can be delivered soon: {again}");
                (429, "topic_overloaded", &self.topic_overloaded, message)
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        let reply = json!({ "error": error, "message": message, "published": published });
        Reply::json_with(status, &reply)
    }

    /// Posts a disconnect to every running worker. They end the sessions when they read it.
    fn end_sessions(&self, request: Disconnect, status: u16) -> Answer {
        let request = Arc::new(request);
        let in_store = self.end_in_store(&request);
        let Ok(notified) = self.post_disconnect(&request) else {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            let message = "a worker's mailbox is full: send the request again";
            return Answer::Now(Reply::error(503, "overloaded", message));
        };
        match &self.shared.pubsub {
            Some(pubsub) => {
                Self::end_sessions_on_nodes(pubsub, &request, status, notified, in_store)
            }
            None => Answer::Now(Reply::json_with(status, &json!({ "workers": notified }))),
        }
    }

    /// Begins to execute a body of `/_broadcast`, which is in order then with those before and after it.
    pub(crate) fn begin_broadcast(&self, body: &[u8]) -> Answer {
        match broadcast::parse(body, self.message_bytes_max()) {
            Ok(BroadcastRequest::Publications(items)) => {
                let publications = self.publications(items);
                let Some(pubsub) = self.shared.pubsub.clone() else {
                    return Answer::Now(self.publish_all(
                        publications,
                        201,
                        &self.broadcast,
                        false,
                    ));
                };
                let submitted = pubsub.submit(publications);
                Answer::Later(Box::new(move |control| {
                    control.await_published(&pubsub, submitted, 201, &control.broadcast, None)
                }))
            }
            Ok(BroadcastRequest::Disconnect(request)) => self.end_sessions(request, 201),
            Err(BodyError::Malformed(what)) => Answer::Now(Reply::error(422, "unreadable", &what)),
            Err(BodyError::TooLarge(what)) => Answer::Now(Reply::error(413, "too_large", &what)),
        }
    }

    fn history_metrics(&self, exposition: &mut Exposition) {
        let stats = self.shared.history().map(|history| history.stats()).unwrap_or_default();
        let mut gauge = |name, help, value: usize| {
            exposition.single(name, Kind::Gauge, help, value as f64);
        };
        gauge("history_topics", "Topics in the history.", stats.topics);
        gauge("history_messages", "Publications kept in the history.", stats.messages);
        gauge("history_bytes", "Memory counted for the history.", stats.bytes);
        let help = "Publications that got a position in the history of their topic.";
        exposition.single("history_published", Kind::Counter, help, stats.kept_total as f64);
        let causes = Eviction::ALL.map(Eviction::name).into_iter().zip(stats.evicted);
        let evicted = causes.map(|(cause, count)| (cause.to_owned(), count as f64));
        let help = "Publications removed from the history, by the limit: messages, age, topic_bytes, \
                    bytes.";
        exposition.labelled("history_evicted", Kind::Counter, help, "cause", evicted);
        let rejected = Unavailable::ALL.map(|why| {
            (why.name(), self.sum(|worker| worker.history_rejected[why as usize].get()))
        });
        let others = [
            ("confirmed", self.sum(|worker| worker.history_confirmed.get())),
            ("off", self.sum(|worker| worker.history_off.get())),
        ];
        let results = others.into_iter().chain(rejected);
        let results = results.map(|(result, count)| (result.to_owned(), count as f64));
        let help = "Requests for missed messages: confirmed, or why not all were available.";
        exposition.labelled("history_requests", Kind::Counter, help, "result", results);
        let sent = self.sum(|worker| worker.history_messages.get());
        let sessions = self.shared.stored_sessions.as_ref();
        let (held, bytes) = sessions.map(|sessions| sessions.held()).unwrap_or_default();
        let mut gauge = |name, help, value: usize| {
            exposition.single(name, Kind::Gauge, help, value as f64);
        };
        let help = "Sessions without a connection that can be resumed at this node only.";
        gauge("sessions_stored", help, held);
        let help = "Copies of sessions that any node can resume, until their time has passed.";
        gauge("sessions_stored_copies", help, sessions.map_or(0, |sessions| sessions.copies()));
        gauge("sessions_stored_bytes", "Memory counted for both.", bytes);
        let count = |of: fn(&StoredSessions) -> &AtomicU64| {
            sessions.map_or(0, |sessions| of(sessions).load(Ordering::Relaxed)) as f64
        };
        let results = [
            ("resumed", count(|sessions| &sessions.resumed)),
            ("unknown", count(|sessions| &sessions.unknown)),
            ("expired", count(|sessions| &sessions.expired)),
            ("evicted", count(|sessions| &sessions.evicted)),
            ("ended", count(|sessions| &sessions.ended)),
        ];
        let results = results.map(|(result, count)| (result.to_owned(), count));
        let help = "Stored sessions resumed, asked for in vain, dropped by age and by bytes, and ended by \
                    request or by a client of another identity.";
        exposition.labelled("sessions_ended", Kind::Counter, help, "result", results);
        let help = "Messages sent from the history.";
        exposition.single("history_messages_sent", Kind::Counter, help, sent as f64);
    }

    /// Refusals by cause, without causes that did not occur.
    fn auth_refused(&self) -> Value {
        let counts = Cause::ALL.into_iter().filter_map(|cause| {
            let times = self.sum(|worker| worker.auth_refused.get(cause));
            (times > 0).then(|| (cause.name().to_owned(), times.into()))
        });
        Value::Object(counts.collect())
    }

    fn status(&self) -> &'static str {
        if self.healthy() { "ok" } else { "draining" }
    }
}

/// What a publisher is to do after a batch of which only so many were published.
fn again(published: u64) -> String {
    match published {
        0 => "nothing was published: publish again".to_owned(),
        1 => "the first one is published: publish the others again".to_owned(),
        many => format!("the first {many} are published: publish the others again"),
    }
}

impl Program for Control {
    fn healthy(&self) -> bool {
        !self.shared.is_draining()
    }

    fn ready(&self) -> (u16, String) {
        let pubsub = self.shared.pubsub.as_ref().and_then(|pubsub| pubsub.trouble());
        let pubsub = pubsub.map(|(what, why)| format!("{what}: {why}"));
        match (self.shared.readiness(&self.remote), pubsub.or_else(|| self.adapter_trouble())) {
            ((503, _), Some(why)) if self.healthy() => (503, format!("{why}\n")),
            (ready, _) => ready,
        }
    }

    fn metrics(&self, exposition: &mut Exposition) {
        self.shared.watchdog.metrics(&self.remote, exposition);
        engine_metrics(exposition, &Totals::sum(self.remote.counters()));
        admin::engine_histograms(exposition, &self.remote);
        let help = "Time from the acceptance of a publication to its last send in a worker.";
        let deliveries = self.remote.histograms().map(|worker| &worker.delivery_ns);
        exposition.times_by_worker("delivery_seconds", help, deliveries);
        admin::network_metrics(exposition);
        let mut gauge = |name, help, value: u64| {
            exposition.single(name, Kind::Gauge, help, value as f64);
        };
        let handshakes = self.remote.handshakes().into();
        gauge("handshakes", "Requests whose head is incomplete.", handshakes);
        let addresses = self.remote.addresses() as u64;
        gauge("addresses", "Addresses tracked for the limits per address.", addresses);
        let subscriptions = self.sum(|worker| worker.subscriptions.get());
        gauge("subscriptions", "Subscriptions of connections to topics.", subscriptions);
        let bytes = self.sum(|worker| worker.subscription_bytes.get());
        gauge("subscription_bytes", "Memory counted for subscriptions.", bytes);
        let topics = self.shared.directory.topics() as u64;
        gauge("topics", "Topics that have a subscriber.", topics);
        let bytes = self.shared.directory.pending_bytes() as u64;
        gauge("publications_pending_bytes", "Publications that are not encoded yet.", bytes);
        let running = self.shared.running().count() as u64;
        gauge("workers", "Workers started so far.", running);
        gauge("workers_max", "Workers that can be started.", self.remote.workers() as u64);
        let capacity = self.remote.open().map(|(_, capacity)| u64::from(capacity)).sum();
        gauge("connections_max", "Connections that all workers may hold.", capacity);
        if let Some(rss_bytes) = admin::rss_bytes() {
            gauge("resident_memory_bytes", "Resident memory of the process.", rss_bytes);
        }
        let help = "CPU time of all threads of the process.";
        exposition.single("cpu_seconds", Kind::Counter, help, admin::cpu_seconds());
        let sources = [
            ("api", self.published.load(Ordering::Relaxed)),
            ("broadcast", self.broadcast.load(Ordering::Relaxed)),
            ("socket", self.sum(|worker| worker.published.get())),
        ];
        let sources = sources.into_iter().chain(self.adapter_published());
        let sources = sources.map(|(source, count)| (source.to_owned(), count as f64));
        let help = "Publications accepted, by entry point: api, broadcast, socket or a broadcast adapter's name.";
        exposition.labelled("published", Kind::Counter, help, "source", sources);
        let mut counter = |name, help, value: u64| {
            exposition.single(name, Kind::Counter, help, value as f64);
        };
        let refused = self.sum(|worker| worker.broadcast_refused.get());
        let help = "Requests to /_broadcast on a client listener without its key.";
        counter("broadcast_refused", help, refused);
        let overloaded = self.overloaded.load(Ordering::Relaxed);
        counter("publish_overloaded", "Publish requests answered 503.", overloaded);
        let overloaded = self.topic_overloaded.load(Ordering::Relaxed);
        counter("topic_overloaded", "Publish requests answered 429.", overloaded);
        let paused = self.sum(|worker| worker.publish_paused.get());
        counter("publish_paused", "Times a publishing client was paused.", paused);
        let refused = self.sum(|worker| worker.origin_refused.get());
        counter("origin_refused", "Handshakes refused for their Origin.", refused);
        let refused = self.sum(|worker| worker.host_refused.get());
        counter("host_refused", "Requests refused for their Host.", refused);
        let refused = self.sum(|worker| worker.public_refused.get());
        let help = "Handshakes at /topics refused because access is not public.";
        counter("public_refused", help, refused);
        let redirected = self.sum(|worker| worker.https_redirects.get());
        counter("https_redirects", "Plain requests redirected to https.", redirected);
        let ignored = self.sum(|worker| worker.commands_ignored.get());
        counter("commands_ignored", "Commands without effect here.", ignored);
        let malformed = self.sum(|worker| worker.commands_malformed.get());
        counter("commands_malformed", "Sessions ended for a malformed command.", malformed);
        let unencodable = self.sum(|worker| worker.messages_unencodable.get());
        let help = "Messages that the encoding of their clients has no place for.";
        counter("messages_unencodable", help, unencodable);
        let no_pong = self.sum(|worker| worker.no_pong.get());
        counter("no_pong", "Sessions ended because pings were not answered.", no_pong);
        let disconnected = self.sum(|worker| worker.disconnected.get());
        counter("disconnected", "Sessions ended by the application or an operator.", disconnected);
        self.history_metrics(exposition);
        self.long_polling_metrics(exposition);
        let refused = Cause::ALL.map(|cause| {
            (cause.name().to_owned(), self.sum(|worker| worker.auth_refused.get(cause)) as f64)
        });
        let help = "Connections and subscriptions refused, by cause.";
        exposition.labelled("auth_refused", Kind::Counter, help, "cause", refused);
        self.presence_metrics(exposition);
        self.application_metrics(exposition);
        self.webhook_metrics(exposition);
        self.cluster_metrics(exposition);
        self.adapter_metrics(exposition);
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
            "subscriptions": self.sum(|worker| worker.subscriptions.get()),
            "subscription_bytes": self.sum(|worker| worker.subscription_bytes.get()),
            "published": {
                "api": self.published.load(Ordering::Relaxed),
                "broadcast": self.broadcast.load(Ordering::Relaxed),
                "socket": self.sum(|worker| worker.published.get()),
            },
            "publications_pending_bytes": self.shared.directory.pending_bytes(),
            "topic_overloaded": self.topic_overloaded.load(Ordering::Relaxed),
            "publish_overloaded": self.overloaded.load(Ordering::Relaxed),
            "broadcast_refused": self.sum(|worker| worker.broadcast_refused.get()),
            "publish_paused": self.sum(|worker| worker.publish_paused.get()),
            "origin_refused": self.sum(|worker| worker.origin_refused.get()),
            "host_refused": self.sum(|worker| worker.host_refused.get()),
            "public_refused": self.sum(|worker| worker.public_refused.get()),
            "https_redirects": self.sum(|worker| worker.https_redirects.get()),
            "auth_refused": self.auth_refused(),
            "commands_ignored": self.sum(|worker| worker.commands_ignored.get()),
            "commands_malformed": self.sum(|worker| worker.commands_malformed.get()),
            "messages_unencodable": self.sum(|worker| worker.messages_unencodable.get()),
            "no_pong": self.sum(|worker| worker.no_pong.get()),
            "disconnected": self.sum(|worker| worker.disconnected.get()),
            "workers_max": self.remote.workers(),
            "presence": self.presence_stats(),
            "application": self.application_stats(),
            "webhooks": self.webhook_stats(),
            "cluster": self.cluster_stats(),
            "adapters": self.adapter_stats(),
        });
        stats.extend(self.shared.watchdog.stats(&self.remote));
        if let Value::Object(own) = own {
            stats.extend(own);
        }
        let running: Vec<usize> = self.shared.running().collect();
        let all = self.remote.counters().zip(self.remote.open()).zip(&self.shared.counters);
        let workers = all.enumerate().filter(|(worker, _)| running.contains(worker));
        let workers = workers.map(|(worker, ((counters, (open, capacity)), own))| {
            let mut entry = engine_stats([counters]);
            entry.insert("worker".to_owned(), worker.into());
            entry.insert("open".to_owned(), open.into());
            entry.insert("capacity".to_owned(), capacity.into());
            entry.insert("subscriptions".to_owned(), own.subscriptions.get().into());
            Value::from(entry)
        });
        stats.insert("workers".to_owned(), workers.collect());
        stats.into()
    }

    fn connections(&self, page: &Page, filter: &[(String, String)]) -> Reply {
        self.list_connections(page, filter)
    }

    fn api(&self, request: &ApiRequest<'_>) -> Option<Reply> {
        api::answer(self, request)
    }

    fn paths(&self) -> String {
        admin::paths().chain(api::paths()).collect::<Vec<_>>().join(", ")
    }

    fn page(&self) -> Option<Value> {
        Some(page::sections(self.part_sections()))
    }

    fn sample(&self, complete: bool) -> Value {
        self.sample_page(complete)
    }

    fn publish(&self, body: &[u8], count_receivers: bool) -> Reply {
        match publish::parse(body, self.message_bytes_max()) {
            Ok(publications) => {
                let posted = |publication| Posted { publication, exclude: None };
                let publications = publications.into_iter().map(posted).collect();
                self.publish_all(publications, 200, &self.published, count_receivers)
            }
            Err(BodyError::Malformed(what)) => Reply::error(400, "bad_request", &what),
            Err(BodyError::TooLarge(what)) => Reply::error(413, "too_large", &what),
        }
    }

    fn broadcast(&self, body: &[u8]) -> Reply {
        self.begin_broadcast(body).wait(self)
    }

    fn disconnect(&self, body: &[u8]) -> Reply {
        match broadcast::parse_disconnect(body) {
            Ok(request) => self.end_sessions(request, 200).wait(self),
            Err(BodyError::Malformed(what) | BodyError::TooLarge(what)) => {
                Reply::error(400, "bad_request", &what)
            }
        }
    }

    fn waits_for_others(&self) -> bool {
        self.shared.pubsub.is_some()
    }

    fn requires_key(&self, endpoint: AppEndpoint) -> bool {
        let policy = self.shared.policy();
        match endpoint {
            AppEndpoint::Broadcast => policy.access.broadcasts_are_keyed(),
            AppEndpoint::Api => policy.access.api_is_keyed(),
        }
    }

    fn accepts_key(&self, endpoint: AppEndpoint, key: &[u8]) -> bool {
        let policy = self.shared.policy();
        match endpoint {
            AppEndpoint::Broadcast => policy.access.opens_broadcast(key),
            AppEndpoint::Api => policy.access.opens_api(key),
        }
    }
}
