//! Routes of the admin listener. `/health`, `/ready` and the page at `/` need no key; everything else needs the admin key
//! if one is set. Endpoints for applications also accept a key of the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{Extensions, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use engine::invariant;
use serde_json::Value;

use crate::accept::Caller;
use crate::auth::{Key, bearer};
use crate::body::Posted;
use crate::connections::{Cause, Connections};
use crate::live::{Live, STREAMS_MAX, Streaming, page_event};
use crate::local::may_be_foreign_page;
use crate::metrics::{Exposition, Kind};
use crate::{ApiRequest, AppEndpoint, Page, Program, Reply};
use crate::{invariants, log, page};

/// The Content-Type of Prometheus's text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What answers a path.
type Answer = fn() -> MethodRouter<Shared>;

/// The paths that need no key.
const PAGE: &str = "/";
const HEALTH: &str = "/health";
const READY: &str = "/ready";
/// The others.
const GUARDED: [(&str, Answer); 7] = [
    ("/metrics", || get(metrics)),
    ("/_broadcast", || post(broadcast)),
    ("/api/publish", || post(publish)),
    ("/api/disconnect", || post(disconnect)),
    ("/api/stats", || get(stats)),
    ("/api/live", || get(live_events)),
    ("/api/connections", || get(connections)),
];

/// The paths of the listener itself.
pub fn paths() -> impl Iterator<Item = &'static str> {
    [PAGE, HEALTH, READY].into_iter().chain(GUARDED.map(|(path, _)| path))
}

/// Decides which requests are authorized.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) key: Key,
    /// Whether browsers can reach the listener: it is not a UNIX socket.
    pub(crate) browsers: bool,
    /// Requests refused for their Host or Origin.
    pub(crate) foreign: Arc<AtomicU64>,
}

/// Marks a request of a client that may change the program; see [`ApiRequest::may_change`].
#[derive(Copy, Clone)]
struct MayChange;

/// Marks a request with the admin key.
#[derive(Copy, Clone)]
struct HasKey;

/// State of the routes.
#[derive(Clone)]
pub(crate) struct Shared {
    program: Arc<dyn Program>,
    foreign: Arc<AtomicU64>,
    pub(crate) open: Arc<Connections>,
    live: Arc<Live>,
}

impl Shared {
    fn foreign(&self) -> u64 {
        self.foreign.load(Ordering::Relaxed)
    }
}

pub(crate) fn router(
    program: Arc<dyn Program>,
    guard: Guard,
    open: Arc<Connections>,
    live: Arc<Live>,
    body_bytes_max: usize,
) -> Router {
    let foreign = Arc::clone(&guard.foreign);
    let shared = Shared { program: Arc::clone(&program), foreign, open, live };
    let guarded = GUARDED
        .into_iter()
        .fold(Router::new(), |router, (path, answer)| router.route(path, answer()))
        .fallback(other)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state((guard.clone(), program), authorize));
    let page = Router::new()
        .route(PAGE, get(page_document))
        .layer(middleware::from_fn_with_state(guard, refuse_foreign));
    Router::new()
        .merge(page)
        .route(HEALTH, get(health))
        .route(READY, get(ready))
        .merge(guarded)
        .layer(DefaultBodyLimit::max(body_bytes_max))
        .with_state(shared)
}

async fn authorize(
    State((guard, program)): State<(Guard, Arc<dyn Program>)>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let endpoint = AppEndpoint::of(request.uri().path());
    let authorization = request.headers().get(header::AUTHORIZATION);
    let authorization = authorization.map(header::HeaderValue::as_bytes);
    let app_key = endpoint.zip(authorization.and_then(bearer));
    let accepted = app_key.is_some_and(|(endpoint, key)| program.accepts_key(endpoint, key));
    let has_key = guard.key.is_set() && guard.key.allows(authorization);
    let keyed = accepted || has_key;
    if let Some(Caller(connection)) = request.extensions().get() {
        connection.set_keyed(keyed);
    }
    if has_key {
        request.extensions_mut().insert(HasKey);
    }
    if has_key || !guard.browsers && !guard.key.is_set() {
        request.extensions_mut().insert(MayChange);
    }
    if keyed {
        return next.run(request).await;
    }
    if guard.key.is_set() || endpoint.is_some_and(|endpoint| program.requires_key(endpoint)) {
        let key = if endpoint.is_some() { "its key or the admin key" } else { "the admin key" };
        let message = format!("send Authorization: Bearer with {key}");
        let reply = Reply::error(401, "unauthorized", &message);
        return ([(header::WWW_AUTHENTICATE, "Bearer")], reply).into_response();
    }
    refuse_foreign(State(guard), request, next).await
}

/// Without a key every client that can connect is trusted. A web page of any site can send requests
/// through a local browser, and must not be.
async fn refuse_foreign(
    State(guard): State<Guard>,
    request: Request<Body>,
    next: Next,
) -> Response {
    if guard.browsers && !guard.key.is_set() && is_foreign(&request) {
        let why = "refused: Host or Origin is not this machine; use 127.0.0.1 or localhost, or set \
                   --admin-key";
        guard.foreign.fetch_add(1, Ordering::Relaxed);
        return Reply::error(403, "forbidden", why).into_response();
    }
    next.run(request).await
}

fn is_foreign(request: &Request<Body>) -> bool {
    let field = |name| request.headers().get(name).map(header::HeaderValue::as_bytes);
    may_be_foreign_page(field(header::HOST), field(header::ORIGIN))
}

/// The admin page. It has no data, so it needs no key: it asks its user for one.
async fn page_document(State(shared): State<Shared>) -> Response {
    match shared.program.page() {
        Some(_) => page::response(),
        None => Reply::not_found(&shared.program.paths()).into_response(),
    }
}

/// The samples that the page shows.
async fn live_events(State(shared): State<Shared>, extensions: Extensions) -> Response {
    let Some(page) = shared.program.page() else {
        return Reply::not_found(&shared.program.paths()).into_response();
    };
    let may_change = extensions.get::<MayChange>().is_some();
    let has_key = extensions.get::<HasKey>().is_some();
    let may_publish = has_key || !shared.program.requires_key(AppEndpoint::Api);
    let first = page_event(&page, may_change, may_publish);
    let Some(body) = shared.live.open("page", &first) else {
        let message = format!("{STREAMS_MAX} pages are open: close one");
        return Reply::error(503, "overloaded", &message).into_response();
    };
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (Extension(Streaming), headers, Body::new(body)).into_response()
}

async fn health(State(shared): State<Shared>) -> Reply {
    if shared.program.healthy() { Reply::text(200, "ok\n") } else { Reply::text(503, "draining\n") }
}

async fn ready(State(shared): State<Shared>) -> Reply {
    let (status, body) = shared.program.ready();
    Reply::text(status, &body)
}

async fn metrics(State(shared): State<Shared>) -> Reply {
    let mut exposition = Exposition::default();
    shared.program.metrics(&mut exposition);
    let help = "Requests at the admin listener refused for their Host or Origin.";
    exposition.single("admin_refused", Kind::Counter, help, shared.foreign() as f64);
    let broken = invariant::total() as f64;
    exposition.single("invariant_broken", Kind::Counter, invariants::HELP, broken);
    let open = shared.open.count() as f64;
    let help = "Connections of the admin listener.";
    exposition.single("admin_connections", Kind::Gauge, help, open);
    let help = "Connections that the admin listener closed, by cause.";
    let closed = Cause::ALL.map(|c| (c.name().to_owned(), shared.open.closed(c) as f64));
    exposition.labelled("admin_closed", Kind::Counter, help, "cause", closed);
    let open = shared.live.count() as f64;
    exposition.single("admin_pages", Kind::Gauge, "Open admin pages.", open);
    let help = "Admin pages refused because too many were open.";
    exposition.single("admin_pages_refused", Kind::Counter, help, shared.live.refused() as f64);
    let help = "Samples taken for open admin pages.";
    exposition.single("admin_samples", Kind::Counter, help, shared.live.samples() as f64);
    log::metrics(&mut exposition);
    Reply { status: 200, content_type: METRICS_TYPE, body: exposition.finish() }
}

async fn stats(State(shared): State<Shared>) -> Reply {
    let mut stats = shared.program.stats();
    if let Some(stats) = stats.as_object_mut() {
        stats.insert("admin_refused".to_owned(), shared.foreign().into());
        stats.insert("invariant_broken".to_owned(), invariant::total().into());
        stats.insert("admin_connections".to_owned(), shared.open.count().into());
        stats.insert("admin_pages".to_owned(), shared.live.count().into());
        stats.insert("admin_pages_refused".to_owned(), shared.live.refused().into());
        stats.insert("admin_samples".to_owned(), shared.live.samples().into());
        let closed = Cause::ALL.map(|c| (c.name().to_owned(), shared.open.closed(c).into()));
        stats.insert("admin_closed".to_owned(), Value::Object(closed.into_iter().collect()));
        let [dropped, errors] = log::counts();
        stats.insert("log_dropped".to_owned(), dropped.into());
        stats.insert("log_errors".to_owned(), errors.into());
    }
    Reply::json(&stats)
}

async fn connections(
    State(shared): State<Shared>,
    Query(query): Query<Vec<(String, String)>>,
) -> Reply {
    let (page, filter) = match page(query) {
        Ok(parts) => parts,
        Err(message) => return Reply::error(400, "bad_request", &message),
    };
    let list = move || shared.program.connections(&page, &filter);
    let reply = tokio::task::spawn_blocking(list).await;
    reply.unwrap_or_else(|_| Reply::error(500, "internal", "listing connections failed"))
}

/// The page that a query requests, and its other parameters.
fn page(query: Vec<(String, String)>) -> Result<(Page, Vec<(String, String)>), String> {
    let number = |name: &str, text: &str, max: u64| {
        let number = text.parse().ok().filter(|number: &u64| *number <= max);
        number.ok_or_else(|| format!("invalid {name} \"{text}\": expected a number up to {max}"))
    };
    let mut page = Page { limit: Page::LIMIT, after: 0 };
    let mut filter: Vec<(String, String)> = Vec::new();
    for (name, value) in query {
        match name.as_str() {
            "limit" => {
                page.limit = number("limit", &value, Page::LIMIT_MAX as u64)?.max(1) as usize;
            }
            "after" => page.after = number("after", &value, u64::MAX)?,
            _ if filter.iter().any(|(other, _)| *other == name) => {
                return Err(format!("{name} is given twice"));
            }
            _ => filter.push((name, value)),
        }
    }
    Ok((page, filter))
}

async fn publish(
    State(shared): State<Shared>,
    Query(query): Query<Vec<(String, String)>>,
    body: Posted,
) -> Reply {
    let receivers = query.iter().find(|(name, _)| name == "receivers");
    match receivers.map(|(_, value)| value.as_str()) {
        None | Some("false") => {
            change(shared, body, 400, |program, body| program.publish(body, false)).await
        }
        Some("true") => {
            let body = match body.read(400) {
                Ok(body) => body,
                Err(reply) => return reply,
            };
            elsewhere(shared, body, |program, body| program.publish(body, true)).await
        }
        Some(other) => {
            let message = format!("invalid receivers \"{other}\": expected true or false");
            Reply::error(400, "bad_request", &message)
        }
    }
}

async fn disconnect(State(shared): State<Shared>, body: Posted) -> Reply {
    change(shared, body, 400, |program, body| program.disconnect(body)).await
}

async fn broadcast(State(shared): State<Shared>, body: Posted) -> Reply {
    change(shared, body, 422, |program, body| program.broadcast(body)).await
}

/// Lets the program execute a body here, or on a thread for blocking calls if it waits for something.
/// `incomplete` is the status for a body that cannot be read.
async fn change(
    shared: Shared,
    body: Posted,
    incomplete: u16,
    execute: fn(&dyn Program, &[u8]) -> Reply,
) -> Reply {
    if !shared.program.waits_for_others() {
        return body.answer(incomplete, |body| execute(&*shared.program, body));
    }
    match body.read(incomplete) {
        Ok(body) => elsewhere(shared, body, execute).await,
        Err(reply) => reply,
    }
}

/// The same on a thread for blocking calls.
async fn elsewhere(
    shared: Shared,
    body: Bytes,
    execute: fn(&dyn Program, &[u8]) -> Reply,
) -> Reply {
    let execute = move || execute(&*shared.program, &body);
    let reply = tokio::task::spawn_blocking(execute).await;
    reply.unwrap_or_else(|_| Reply::error(500, "internal", "the request failed"))
}

/// Passes a request for any other path to the program.
async fn other(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    extensions: Extensions,
    body: Posted,
) -> Reply {
    let may_change = extensions.get::<MayChange>().is_some();
    let body = match body.read(400) {
        Ok(body) => body,
        Err(reply) => return reply,
    };
    let Ok(Query(parameters)) = Query::<Vec<(String, String)>>::try_from_uri(&uri) else {
        return Reply::error(400, "bad_request", "invalid query");
    };
    let answer = move || {
        let (method, path, parameters) = (method.as_str(), uri.path(), parameters.as_slice());
        let request = ApiRequest { method, path, parameters, body: &body, may_change };
        let reply = shared.program.api(&request);
        reply.unwrap_or_else(|| Reply::not_found(&shared.program.paths()))
    };
    let reply = tokio::task::spawn_blocking(answer).await;
    reply.unwrap_or_else(|_| Reply::error(500, "internal", "the request failed"))
}

async fn wrong_method() -> Reply {
    Reply::error(
        405,
        "method_not_allowed",
        "POST to /_broadcast, /api/publish and /api/disconnect, DELETE /api/connections/ID, GET \
         everything else",
    )
}
