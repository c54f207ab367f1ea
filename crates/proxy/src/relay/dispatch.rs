//! Dispatch: routes a client's request to an upstream, queues it, retries it and refuses it. A request
//! is retried only while no part of a response was received and nothing was sent that cannot be sent
//! twice (RFC 9110 section 9.2.2).

use std::sync::Arc;
use std::time::Duration;

use engine::{Answer, Closed, ConnId, Core, Incoming, Response, Sys, retry_after};
use wire::http::{
    BodyDecoder, HeadScanner, Request, encode_response, expects_continue, keep_alive,
};
use wire::websocket::accept_key;

use super::body::{refusal_of_body, request_limits};
use super::context::{RequestContext, for_own_response};
use super::exchange::{Exchange, RequestInfo};
use super::waiters::Position;
use super::{ConnectionKind, Relay, bound};
use crate::access_log::Side;
use crate::balance::{Fault, PickContext, PickError, Pool};
use crate::counters::{Refusal, Stage};
use crate::headers::{ClientIdentity, Framing, encode_request};

/// Maximum number of upstreams tried for one request.
const TRIES: usize = 3;
/// Status in the access log of a request whose client left before the response, as in nginx.
const CLIENT_GONE: u16 = 499;
/// Limits of a body. Its length is unlimited: only part of it is in memory.
const BODY_LIMITS: wire::Limits = wire::Limits {
    head_bytes: wire::Limits::HEAD_BYTES,
    headers: wire::Limits::HEADERS,
    message_bytes: wire::Limits::MESSAGE_BYTES,
    body_bytes: u64::MAX,
    chunk_line_bytes: wire::Limits::CHUNK_LINE_BYTES,
    trailer_bytes: wire::Limits::TRAILER_BYTES,
};

pub(super) const fn body_limits() -> &'static wire::Limits {
    &BODY_LIMITS
}

/// Limits of a response head: the default, or those of a request head where they are larger, with the
/// number of lines in proportion.
pub(super) fn answer_limits(request_bytes: usize) -> wire::Limits {
    let head_bytes = request_bytes.max(BODY_LIMITS.head_bytes);
    let headers = BODY_LIMITS.headers * head_bytes / BODY_LIMITS.head_bytes;
    wire::Limits { head_bytes, headers, ..BODY_LIMITS }
}

impl Relay {
    pub(super) fn on_request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        client: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Answer {
        let request = incoming.head;
        self.counters().requests.add(1);
        self.shared.observe(self.worker, |timed| &timed.handshake, incoming.took_ns);
        let identity = self.identity(core, client);
        let ids = self.live.request_ids;
        let mut context = RequestContext::new(request, identity, ids, || core.random());
        if request.method == "CONNECT" {
            return self.refuse_unrouted(core, request, &context, (Refusal::Connect, true));
        }
        let upgrade = incoming.upgrade.is_some();
        let host = request.authority().and_then(|host| std::str::from_utf8(host).ok());
        let host = host.unwrap_or_default();
        let routes = self.routes.get(&self.shared.table);
        let Some(route) = routes.find(host, path_of(request)) else {
            return self.refuse_unrouted(core, request, &context, (Refusal::NoRoute, upgrade));
        };
        if identity.peer.is_none() && core.is_reset(client) {
            // The client is gone. Without its address it is not taken for the client of a UNIX socket, and its
            // request must not reach an upstream.
            core.reset(client);
            return Answer::Raw;
        }
        context.routed(route.settings.as_ref(), || core.random());
        let allowed = routes.allows(route, identity.address(), host, path_of(request));
        let pool = Arc::clone(&route.pool);
        if !allowed {
            return self.refuse_unrouted(core, request, &context, (Refusal::Denied, upgrade));
        }
        if let Some(redirect) = self.redirect_to_https(core, client, incoming, &pool) {
            return redirect;
        }
        let body = BodyDecoder::for_request(request, &request_limits(&context.bodies(&self.live)));
        let body = match body {
            Ok(body) => body,
            Err(violation) => {
                let why = refusal_of_body(violation);
                return self.refuse_unrouted(core, request, &context, (why, true));
            }
        };
        let exchange = self.exchange(core, client, incoming, (pool, context), body);
        let index = self.exchanges.insert(exchange);
        self.counters().exchanges.add(1);
        self.counters().move_stage(None, Some(Stage::Waiting));
        Self::set(core, client, ConnectionKind::RequestClient(index));
        if self.begin_buffering(index, core.now_ns()) {
            return if expects_continue(request) { Answer::RawContinue } else { Answer::Raw };
        }
        match self.attempt(core, index) {
            Ok(()) => Answer::Raw,
            Err(why) => {
                Self::set(core, client, ConnectionKind::Unused);
                let mut lines = Vec::new();
                if let Some(mut exchange) = self.take_exchange(index) {
                    let by = (Side::Proxy, why.name());
                    self.log_refused(&mut exchange, why, by, core.now_ns());
                    lines = exchange.answer_lines;
                }
                self.refusal_answer(why, upgrade, core.random(), &lines)
            }
        }
    }

    fn exchange<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        client: ConnId,
        incoming: &Incoming<'_, '_>,
        (pool, context): (Arc<Pool>, RequestContext),
        body: BodyDecoder,
    ) -> Exchange {
        let request = incoming.head;
        let chunked = request.header("transfer-encoding").is_some();
        let framing = if chunked { Framing::Chunked } else { Framing::Counted };
        let upgrade = incoming.upgrade.is_some();
        let mut head = Vec::with_capacity(1024);
        let changes = context.request_changes(request);
        encode_request(&mut head, request, upgrade, framing, &context.identity, &changes);
        head.shrink_to_fit();
        let random = core.random();
        let from = context.identity.address();
        let hash = pool.hash(from, path_of(request), |name| request.header(name), random);
        let sticky = pool.sticky_value(request.header("cookie"));
        let now_ns = core.now_ns();
        let answer_lines = context.answer_lines(request);
        let answers_id = context.answers_id();
        let mut log_entry = self.shared.begin_log_entry(request, from, Some(pool.name()), now_ns);
        if let Some(log_entry) = &mut log_entry {
            log_entry.request_id = context.id;
        }
        Exchange {
            client,
            upstream: None,
            stage: Stage::Waiting,
            deadline_ns: u64::MAX,
            began_ns: now_ns,
            connect_ns: now_ns,
            pool,
            permit: None,
            waiting: None,
            position: Position::default(),
            hash,
            sticky,
            tried: Vec::new(),
            head,
            info: RequestInfo {
                accept: incoming.upgrade.map(|upgrade| accept_key(upgrade.key)),
                http10: request.version == 0,
                head_only: request.method == "HEAD",
                keep_alive: keep_alive(request),
                idempotent: is_idempotent(request),
            },
            request: body,
            request_framing: framing,
            body_begun: false,
            awaits_continue: expects_continue(request) && !upgrade,
            buffer: Vec::new(),
            buffered_bytes: 0,
            unsent_bytes: 0,
            clock: None,
            partial_head: Vec::new(),
            scanner: HeadScanner::default(),
            answered: false,
            interim: 0,
            reused: false,
            connection_key: 0,
            config_generation: self.config_generation,
            private: bound::has_credentials(request.headers),
            challenged: false,
            new_connection_only: false,
            answer: None,
            unread_bytes: 0,
            settings: context.settings,
            answer_lines,
            answers_id,
            log_entry,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    fn identity<S: Sys>(&self, core: &Core<S, Self>, client: ConnId) -> ClientIdentity {
        let (peer, named) = core.addresses(client);
        let proxies = &core.limits().proxies;
        // With PROXY headers the trusted proxy says everything there; its HTTP headers are the clients'.
        let trusted = peer.filter(|peer| proxies.trusts_forwarded(*peer));
        ClientIdentity {
            peer,
            client: named,
            trusted: trusted.map(|_| proxies.forwarded),
            secure: core.is_encrypted(client),
            forwarded: self.live.forwarded,
            real_ip: self.live.real_ip,
        }
    }

    /// Chooses an upstream for the request and sends it or starts a connect.
    pub(super) fn attempt<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
    ) -> Result<(), Refusal> {
        self.refresh_pool(index)?;
        let now_ns = core.now_ns();
        let mut failed = None;
        loop {
            let random = core.random();
            let Some(exchange) = self.exchanges.get(index) else { return Ok(()) };
            if exchange.tried.len() >= TRIES {
                return Err(failed.unwrap_or(Refusal::Unreachable));
            }
            // An older request gets the next permit.
            let behind = match &exchange.waiting {
                Some(waiting) => !waiting.is_first(),
                None => exchange.tried.is_empty() && exchange.pool.has_queue(),
            };
            if behind {
                return self.wait_for_permit(index, now_ns);
            }
            let (hash, sticky) = (exchange.hash, exchange.sticky);
            let key = PickContext { now_ns, random, hash, sticky, tried: &exchange.tried };
            let bound = self.bound.pick(exchange.client, &exchange.pool, &key);
            let permit = match bound.unwrap_or_else(|| exchange.pool.pick(&key)) {
                Ok(permit) => permit,
                Err(PickError::Busy) => return self.wait_for_permit(index, now_ns),
                Err(PickError::Down) if exchange.tried.is_empty() => return Err(Refusal::Down),
                Err(PickError::Down) => return Err(failed.unwrap_or(Refusal::Unreachable)),
            };
            if exchange.waiting.take().is_some() {
                self.waiters.remove(exchange.position);
            }
            let upstream = Arc::clone(permit.upstream());
            exchange.connection_key = exchange.pool.connection_key(&upstream);
            let (pool, client) = (Arc::clone(&exchange.pool), exchange.client);
            exchange.permit = Some(permit);
            exchange.challenged = false;
            let again = !exchange.tried.is_empty();
            self.counters().retries.add(u64::from(again));
            if self.take_bound(core, index) || self.take_idle_connection(core, index) {
                return Ok(());
            }
            match self.connect(core, &upstream, pool.transport(), client) {
                Ok((id, port)) => {
                    self.begin_connect(core, index, id, port);
                    return Ok(());
                }
                Err(error) => failed = Some(self.connect_failed(index, &error, now_ns)),
            }
        }
    }

    /// Gives a request that was queued, buffered or retried the current upstreams of its pool: added ones may be
    /// chosen, removed ones may not.
    fn refresh_pool(&mut self, index: u32) -> Result<(), Refusal> {
        let routes = self.routes.get(&self.shared.table);
        let Some(exchange) = self.exchanges.get(index) else { return Ok(()) };
        let received_late = exchange.clock.is_some();
        let retried = !exchange.tried.is_empty() || exchange.new_connection_only;
        if exchange.waiting.is_none() && !retried && !received_late {
            return Ok(());
        }
        let pool = routes.pool(exchange.pool.name()).ok_or(Refusal::Down)?;
        if !Arc::ptr_eq(pool, &exchange.pool) {
            exchange.pool = Arc::clone(pool);
            if let Some(waiting) = &mut exchange.waiting {
                waiting.move_to(pool);
                exchange.position = self.waiters.move_to(pool.queue_id(), index, exchange.position);
            }
        }
        Ok(())
    }

    /// Every upstream is at its maximum: queues the request, if the queue has room.
    fn wait_for_permit(&mut self, index: u32, now_ns: u64) -> Result<(), Refusal> {
        let Some(exchange) = self.exchanges.get(index) else { return Ok(()) };
        if exchange.waiting.is_none() {
            exchange.waiting = exchange.pool.enqueue(self.worker);
            if exchange.waiting.is_some() {
                exchange.position = self.waiters.push(exchange.pool.queue_id(), index);
            }
            exchange.deadline_ns = after(now_ns, exchange.pool.limits().queue_timeout);
        }
        exchange.enter(Stage::Waiting, &self.shared.counters[self.worker]);
        if exchange.waiting.is_some() { Ok(()) } else { Err(Refusal::Busy) }
    }

    // ---- when it fails ----

    /// Gives up the upstream of a request after a timeout.
    pub(super) fn abandon_upstream<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32) {
        let now_ns = core.now_ns();
        let Some(exchange) = self.exchanges.get(index) else { return };
        let upstream = exchange.upstream.take();
        let permit = exchange.permit.take();
        if let Some(permit) = &permit {
            exchange.tried.push(permit.upstream().number());
            if exchange.is_upstreams_turn() {
                let connecting = exchange.stage == Stage::Connecting;
                let fault = if connecting { Fault::Unreached } else { Fault::Silent };
                permit.upstream().failed(now_ns, fault);
            }
        }
        if let Some(id) = upstream {
            Self::set(core, id, ConnectionKind::Unused);
            core.reset(id);
        }
        self.release(core, permit);
    }

    /// The upstream connection closed before the response was complete.
    pub(super) fn upstream_closed<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        why: Closed,
    ) {
        let now_ns = core.now_ns();
        let Some(exchange) = self.exchanges.get(index) else { return };
        exchange.upstream = None;
        if exchange.stage == Stage::Answering {
            return self.answer_ended_early(core, index, why);
        }
        let permit = exchange.permit.take();
        let ours = is_ours(why);
        if exchange.reused {
            // It was closed while idle, which is no failure.
            exchange.new_connection_only = true;
        } else if let Some(permit) = &permit {
            if !ours && exchange.is_upstreams_turn() {
                permit.upstream().failed(now_ns, Fault::of(why));
            }
            exchange.tried.push(permit.upstream().number());
        }
        let may_retry = exchange.may_retry() && why != Closed::Draining;
        if may_retry {
            self.release(core, permit);
            self.retry(core, index);
        } else {
            // For the access log.
            exchange.permit = permit;
            let why = if exchange.answered { Refusal::BadAnswer } else { refusal_of(why) };
            self.refuse(core, index, why);
        }
    }

    /// Retries the request, or refuses it if no upstream is left.
    pub(super) fn retry<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32) {
        if let Err(why) = self.attempt(core, index) {
            self.refuse(core, index, why);
        }
    }

    /// The client has disconnected: drops the request.
    pub(super) fn client_closed<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32) {
        let Some(exchange) = self.take_exchange(index) else { return };
        if let Some(upstream) = exchange.upstream {
            Self::set(core, upstream, ConnectionKind::Unused);
            core.reset(upstream);
        }
        let mut exchange = *exchange;
        if let Some(mut log_entry) = exchange.log_entry.take() {
            log_entry.status = if log_entry.status == 0 { CLIENT_GONE } else { log_entry.status };
            let upstream = exchange.last_upstream();
            let bytes = (exchange.bytes_in, exchange.bytes_out);
            let why = (Side::Client, "client_gone");
            self.shared.record(*log_entry, upstream, bytes, why, core.now_ns());
        }
        self.release(core, exchange.permit);
    }

    /// Answers a request with an error and closes the client's connection.
    pub(super) fn refuse<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, why: Refusal) {
        self.refuse_as(core, index, why, (Side::Proxy, why.name()));
    }

    /// Like `refuse`, with this side and reason for the access log.
    pub(super) fn refuse_as<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        why: Refusal,
        by: (Side, &'static str),
    ) {
        let Some(mut exchange) = self.take_exchange(index) else { return };
        let client = exchange.client;
        if let Some(upstream) = exchange.upstream {
            Self::set(core, upstream, ConnectionKind::Unused);
            core.reset(upstream);
        }
        Self::set(core, client, ConnectionKind::Unused);
        if exchange.stage == Stage::Answering {
            // Within a response no error can be sent.
            core.reset(client);
        } else {
            self.counters().count_refused(why);
            let mut out = std::mem::take(&mut self.scratch);
            let headers = [("Content-Type", "text/plain; charset=utf-8"), ("Connection", "close")];
            let seconds = (why.status() == 503).then(|| retry_after(core.random()));
            let again = seconds.as_deref().map(|seconds| ("Retry-After", seconds));
            let headers = headers.into_iter().chain(again);
            let headers = headers.chain(for_own_response(&exchange.answer_lines));
            let text = if exchange.info.head_only { "" } else { why.text() };
            encode_response(&mut out, why.status(), headers, text.as_bytes());
            core.write(client, &out);
            out.clear();
            self.scratch = out;
            core.end_after(client, Closed::Refused);
        }
        self.log_refused(&mut exchange, why, by, core.now_ns());
        self.release(core, exchange.permit.take());
    }

    /// Refuses a request before an upstream is chosen.
    fn refuse_unrouted<S: Sys>(
        &self,
        core: &mut Core<S, Self>,
        request: &Request<'_, '_>,
        context: &RequestContext,
        (why, close): (Refusal, bool),
    ) -> Answer {
        if self.shared.has_log() {
            let client = context.identity.address();
            let log_entry = self.shared.begin_log_entry(request, client, None, core.now_ns());
            if let Some(mut log_entry) = log_entry {
                log_entry.status = why.status();
                log_entry.request_id = context.id.clone();
                let by = (Side::Proxy, why.name());
                self.shared.record(*log_entry, None, (0, 0), by, core.now_ns());
            }
        }
        self.refusal_answer(why, close, core.random(), &context.answer_lines(request))
    }

    /// Builds the error response. A client that asked for a tunnel may have sent tunnel bytes already,
    /// which must not be parsed as a request (RFC 9931): then `close` is set. `lines` are further
    /// headers.
    fn refusal_answer(&self, why: Refusal, close: bool, random: u64, lines: &[u8]) -> Answer {
        self.counters().count_refused(why);
        let mut response = Response { close, ..Response::text(why.status(), why.text()) };
        if why.status() == 503 {
            response.headers.push(("Retry-After".into(), retry_after(random).into()));
        }
        if why == Refusal::Connect {
            response.headers.push(("Allow".into(), "GET, HEAD, POST, PUT, DELETE, OPTIONS".into()));
        }
        let further = for_own_response(lines);
        let further =
            further.map(|(name, value)| (name.to_owned().into(), value.to_owned().into()));
        response.headers.extend(further);
        Answer::Respond(response)
    }

    fn log_refused(
        &self,
        exchange: &mut Exchange,
        why: Refusal,
        by: (Side, &'static str),
        now_ns: u64,
    ) {
        let Some(mut log_entry) = exchange.log_entry.take() else { return };
        log_entry.status = if log_entry.status == 0 { why.status() } else { log_entry.status };
        let bytes = (exchange.bytes_in, exchange.bytes_out);
        self.shared.record(*log_entry, exchange.last_upstream(), bytes, by, now_ns);
    }

    #[track_caller]
    pub(super) fn take_exchange(&mut self, index: u32) -> Option<Box<Exchange>> {
        let exchange = self.exchanges.remove(index)?;
        self.counters().exchanges.sub(1);
        self.counters().move_stage(Some(exchange.stage), None);
        if exchange.waiting.is_some() {
            self.waiters.remove(exchange.position);
        }
        if exchange.buffered_bytes > 0 {
            self.uncount_buffer(exchange.buffered_bytes);
        }
        Some(exchange)
    }
}

/// Whether a connection closed for a reason of this proxy: a lack of resources, or draining.
pub(super) fn is_ours(why: Closed) -> bool {
    let short = matches!(why, Closed::NoDescriptors | Closed::NoMemory | Closed::NoAddress);
    short || matches!(why, Closed::Draining | Closed::Shed)
}

/// The refusal for a connection that could not be made.
pub(super) fn refusal_of(why: Closed) -> Refusal {
    match why {
        Closed::NoAddress => Refusal::NoSource,
        _ if is_ours(why) => Refusal::Exhausted,
        _ => Refusal::Unreachable,
    }
}

/// The path for the route lookup: `OPTIONS *` (RFC 9110 section 9.3.7) is routed like `/`.
fn path_of<'b>(request: &Request<'_, 'b>) -> &'b str {
    if request.target == "*" { "/" } else { request.path() }
}

fn is_idempotent(request: &Request<'_, '_>) -> bool {
    matches!(request.method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

pub(super) fn after(now_ns: u64, time: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_shortages_have_their_own_reason() {
        for (why, name) in [
            (Closed::NoAddress, "no_source"),
            (Closed::NoDescriptors, "exhausted"),
            (Closed::ConnectRefused, "unreachable"),
        ] {
            assert_eq!(refusal_of(why).name(), name);
        }
    }

    #[test]
    fn response_limits_grow_with_request_limits() {
        let of = |bytes| (answer_limits(bytes).head_bytes, answer_limits(bytes).headers);
        assert_eq!(of(1024), (16 * 1024, 100));
        assert_eq!(of(64 * 1024), (64 * 1024, 400));
    }
}
