//! [`HttpPublishers`]: publishers over HTTP, on a worker of their own. Each has one connection and never
//! waits for an answer: it sends a publication when it is due, behind those that are unanswered. A
//! server answers the requests of a connection in order (RFC 9112 section 9.3.2), so the publications
//! of a publisher stay in order.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::invariant;
use engine::sys::process;
use engine::{Limits, Plan, Tables, Workers};
use serde_json::Value;

use crate::delivery::publication;
use crate::delivery::publication::Publication;
use crate::outcome::failure::Failure;
use crate::outcome::request_metrics::RequestMetrics;
use crate::transport::http1::Http1;
use crate::transport::sources::Sources;
use crate::transport::target_table::TargetTable;
use crate::workload::churn::publish_counters::PublishCounters;
use crate::workload::fanout::publisher::{PublishMetrics, Published};
use crate::workload::requests::answer::Answer;
use crate::workload::requests::config::{Pace, Requests};
use crate::workload::requests::request::{HttpRequest, Request};
use crate::workload::requests::requester::{Order, Requester};
use crate::workload::requests::script::{Part, Script, Step};
use crate::{Endpoint, Fanout};

/// Timeout of an answer, including a connect.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A connection idle for longer is not reused: its server may be closing it, and it would be unknown
/// whether a request lost in that was accepted.
const REUSE_WITHIN: Duration = Duration::from_secs(1);
/// Time for the worker to start before the first publication is due.
const START_NS: u64 = 10_000_000;
/// How long [`HttpPublishers::stop`] waits for the worker.
const STOP_NS: u64 = 1_000_000_000;

/// The settings of publishing over HTTP.
#[derive(Clone, Debug)]
pub struct HttpPublish {
    /// The target.
    pub endpoint: Endpoint,
    /// Additional headers.
    pub headers: Vec<(String, String)>,
    /// The body. `$DATA` is replaced by the message as a JSON string without quotes and, with several
    /// streams, `$STREAM` by the name of the stream as JSON.
    pub body: String,
    /// The most unanswered publications of a publisher. One that is due beyond it is not sent.
    pub in_flight: u32,
}

impl HttpPublish {
    /// The default of `in_flight`.
    pub const IN_FLIGHT: u32 = 1_000;

    /// The body for a topic of `standfast serve`.
    #[must_use]
    pub fn body_for(topic: &str) -> String {
        format!("{{\"topic\":{},\"data\":\"$DATA\"}}", Value::from(topic))
    }

    /// The body for several topics of `standfast serve`.
    pub const BODY_FOR_ALL: &str = r#"{"topic":$STREAM,"data":"$DATA"}"#;
    /// The body for several streams of AnyCable's `/_broadcast`.
    pub const BROADCAST_BODY_FOR_ALL: &str = r#"{"stream":$STREAM,"data":"\"$DATA\""}"#;

    /// The body for a stream of AnyCable's `/_broadcast`: `data` is JSON in a string.
    #[must_use]
    pub fn broadcast_body_for(stream: &str) -> String {
        format!(r#"{{"stream":{},"data":"\"$DATA\""}}"#, Value::from(stream))
    }
}

/// All publishers over HTTP.
pub(crate) struct HttpPublishers {
    workers: Workers<Order>,
    requests: Arc<RequestMetrics>,
}

impl HttpPublishers {
    /// Starts them. Returns also when the first publication is due.
    pub(crate) fn start(
        fanout: &Fanout,
        http: &HttpPublish,
        metrics: &Arc<PublishMetrics>,
        counters: Option<Arc<PublishCounters>>,
    ) -> io::Result<(HttpPublishers, u64)> {
        let (mut publishers, mut pipeline) = (fanout.publishers.max(1), http.in_flight.max(1));
        if let Some(counters) = &counters {
            // A stream has at most one publication in flight, so that the number of a rejected one can
            // be used again.
            let streams = u32::try_from(counters.streams()).unwrap_or(u32::MAX).max(1);
            publishers = publishers.min(streams);
            pipeline = pipeline.min(streams / publishers);
        }
        let config = Requests {
            pace: Pace::Rate(fanout.rate),
            duration: fanout.duration,
            requests: fanout.messages.map(u64::from),
            timeout: TIMEOUT,
            pipeline,
            in_turn: true,
            reuse_within: Some(REUSE_WITHIN),
            stops_at_once: true,
            ..Requests::new(vec![http.endpoint.clone()], publishers.into())
        };
        let config = Arc::new(config);
        let targets = TargetTable::new(&config.endpoints);
        let sources = Sources::plan(publishers.into(), &config.endpoints, &[], None, 0);
        let requests = Arc::new(RequestMetrics::new(false));
        let (book, metrics, http) = (Arc::clone(&requests), Arc::clone(metrics), http.clone());
        let size = fanout.size;
        let requester = move |worker, _: &_| {
            let part = Part::new(worker, 1, 1, publishers.into());
            let script = PublishScript::new(&http, size, publishers, &metrics, counters.as_ref());
            let (config, targets, book) = (Arc::clone(&config), targets.clone(), Arc::clone(&book));
            Requester::new(config, targets, book, sources.clone(), part, Http1::new(), script)
        };
        let tables = if process::private_tables_work() { Tables::Private } else { Tables::Shared };
        // A connection and the one that replaces it may exist at the same time.
        let plan = Plan { workers: 1, accepting: 1, capacity: 2 * publishers + 8, tables };
        let limits = Limits {
            idle_timeout: None,
            pings: false,
            send_queue_bytes: usize::try_from(pipeline).unwrap_or(usize::MAX) * (size + 64 * 1024),
            handshake_timeout: TIMEOUT,
            ..Limits::default()
        };
        let workers = Workers::start(plan, &limits, &[], requester)?;
        let begin_ns = process::now_ns() + START_NS;
        // A mailbox holds 8 MiB: it fills only if the worker is gone.
        let _ = workers.remote().post(0, Order::Begin(begin_ns), 0);
        Ok((HttpPublishers { workers, requests }, begin_ns))
    }

    /// Whether everything is answered, or given up.
    pub(crate) fn is_done(&self) -> bool {
        self.requests.is_done() || self.workers.any_ended()
    }

    /// Publications that were due and not sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.requests.untaken()
    }

    /// Stops publishing and waits for the worker. Answers are not awaited.
    pub(crate) fn stop(&self) {
        let _ = self.workers.remote().post(0, Order::Stop, 0);
        let over_ns = process::now_ns() + STOP_NS;
        while !self.is_done() && process::now_ns() < over_ns {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.workers.remote().drain(Duration::ZERO);
    }
}

/// What the publishers send.
struct PublishScript {
    http: HttpPublish,
    size: usize,
    metrics: Arc<PublishMetrics>,
    counters: Option<Arc<PublishCounters>>,
    publishers: Vec<Publisher>,
    none: Request,
}

#[derive(Default)]
struct Publisher {
    /// The number of the next publication.
    next: u32,
    /// Unanswered publications, oldest first.
    in_flight: VecDeque<InFlight>,
    /// With a churn: its streams without a publication in flight, the next first.
    streams: VecDeque<usize>,
}

struct InFlight {
    request: Request,
    stream: Option<usize>,
}

impl PublishScript {
    fn new(
        http: &HttpPublish,
        size: usize,
        publishers: u32,
        metrics: &Arc<PublishMetrics>,
        counters: Option<&Arc<PublishCounters>>,
    ) -> PublishScript {
        let mut http = http.clone();
        let is_type = |(name, _): &(String, String)| name.eq_ignore_ascii_case("content-type");
        if !http.headers.iter().any(is_type) {
            let json = ("Content-Type".to_owned(), "application/json".to_owned());
            http.headers.insert(0, json);
        }
        let streams = |publisher: usize| {
            let all = counters.map_or(0, |counters| counters.streams());
            (publisher..all).step_by(publishers as usize).collect()
        };
        let publisher = |number| Publisher { streams: streams(number), ..Publisher::default() };
        PublishScript {
            http,
            size,
            metrics: Arc::clone(metrics),
            counters: counters.cloned(),
            publishers: (0..publishers as usize).map(publisher).collect(),
            none: Request::default(),
        }
    }

    fn render(&self, stream: &str, data: &str) -> Request {
        let HttpPublish { endpoint, headers, body, .. } = &self.http;
        // A publication needs no escaping: it consists of letters, digits, signs and spaces.
        let mut body = body.replace("$DATA", data);
        if !stream.is_empty() {
            body = body.replace("$STREAM", stream);
        }
        let (method, target, body) = ("POST", endpoint.path.as_str(), body.as_bytes());
        let http = HttpRequest { method, target, host: "", headers, body, close: false };
        Request::to(0, endpoint, &http)
    }

    fn in_flight(&self, user: u32, nth: usize) -> &Request {
        let one = self.publishers.get(user as usize).and_then(|one| one.in_flight.get(nth));
        one.map_or_else(
            || {
                invariant::broken("a publisher keeps its unanswered publications");
                &self.none
            },
            |one| &one.request,
        )
    }
}

impl Script for PublishScript {
    const KEEPS: bool = true;

    fn next(&mut self, _user: u32, _now_ns: u64) -> Step {
        Step::Send
    }

    fn begin(&mut self, user: u32, due_ns: u64, now_ns: u64) {
        let Some(publisher) = self.publishers.get_mut(user as usize) else {
            return invariant::broken("each user is a publisher");
        };
        let counters = self.counters.clone();
        // With a churn each stream has its own numbers, and acts as a publisher.
        let stream = counters.as_deref().zip(publisher.streams.pop_front());
        let (which, sequence, name) = match stream {
            Some((counters, stream)) => {
                (stream as u32, counters.begin(stream, now_ns), counters.name(stream))
            }
            None => {
                publisher.next += 1;
                (user, publisher.next - 1, "")
            }
        };
        let publisher = Fanout::FIRST_PUBLISHER + which;
        let publication = Publication { publisher, sequence, due_ns, published_ns: now_ns };
        let request = self.render(name, &publication::encode(&publication, self.size));
        let stream = stream.map(|(_, stream)| stream);
        if let Some(publisher) = self.publishers.get_mut(user as usize) {
            publisher.in_flight.push_back(InFlight { request, stream });
        }
        self.metrics.sent(due_ns, now_ns);
    }

    fn request(&mut self, user: u32) -> &Request {
        let last = self.publishers.get(user as usize).map_or(0, |one| one.in_flight.len());
        self.in_flight(user, last.saturating_sub(1))
    }

    fn unanswered(&mut self, user: u32, nth: usize) -> &Request {
        self.in_flight(user, nth)
    }

    fn answered(&mut self, user: u32, answer: &Answer<'_>) -> Option<Failure> {
        let Some(publisher) = self.publishers.get_mut(user as usize) else {
            invariant::broken("each user is a publisher");
            return None;
        };
        let stream = publisher.in_flight.pop_front().and_then(|one| one.stream);
        publisher.streams.extend(stream);
        let outcome = match answer.outcome {
            Ok(200..300) => Published::Accepted,
            Ok(status) => Published::Rejected(format!("HTTP {status}")),
            Err(Failure::Unfinished) => Published::Unknown,
            Err(failure) if answer.times.sent_ns == 0 => {
                Published::Rejected(failure.name().to_owned())
            }
            Err(failure) => Published::Unanswered(failure.name().to_owned()),
        };
        if let Some((counters, stream)) = self.counters.as_deref().zip(stream) {
            match &outcome {
                Published::Accepted | Published::Unanswered(_) => counters.taken(stream),
                Published::Rejected(_) => counters.refused(stream),
                Published::Unknown => {}
            }
        }
        let took_ns = answer.times.done_ns.saturating_sub(answer.times.begun_ns);
        self.metrics.ended(user, outcome, answer.outcome.is_ok().then_some(took_ns));
        None
    }

    fn grace(&self) -> Duration {
        TIMEOUT
    }
}
