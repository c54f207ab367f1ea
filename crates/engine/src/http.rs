//! Connections in HTTP mode: a server's requests and answers. Handshakes of clients: `outgoing.rs`.

use wire::http::{
    CONTINUE, EMPTY_HEADER, HeadScanner, MAX_HEADERS, encode_response_head, expects_continue,
    is_bodiless, keep_alive, parse_request,
};
use wire::websocket::{Deflate, accept_key, check_upgrade, encode_upgrade_response_with};
use wire::{Status, Violation};

use crate::body::body_not_kept;
use crate::conn::{Flags, Mode};
use crate::core::Core;
use crate::deflate::NegotiatedDeflate;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::SILENT_TIMEOUTS;
use crate::sys::Sys;
use crate::timers::nanoseconds;
use crate::worker::Worker;
use crate::{Answer, Closed, Compression, ConnId, Handler, Incoming, Response};

/// Header lines of a short head that need no second attempt. A browser sends up to twenty.
const USUAL_HEADERS: usize = 24;
/// A longer head is not parsed twice: nobody gains much by one of many short lines.
const SHORT_HEAD_BYTES: usize = 1024;

/// What is needed of a request when it is answered, perhaps later.
#[derive(Copy, Clone, Default)]
pub(crate) struct RequestContext {
    /// The Sec-WebSocket-Accept of its handshake, if it is one.
    pub(crate) accept: Option<[u8; 28]>,
    /// The answer to its permessage-deflate offer.
    pub(crate) deflate: Option<Deflate>,
    /// Further requests can follow on this connection.
    keep_alive: bool,
    /// The answer has no body (HEAD).
    head_only: bool,
    /// Deadline for an answer that comes later.
    until_ns: u64,
    /// A client that leaves before it is noticed.
    watched: bool,
}

impl RequestContext {
    /// Whether the client is watched while it waits for the answer.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// The client has sent more: it is not read before the answer.
    pub(crate) fn unwatch(&mut self) {
        self.watched = false;
    }
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Looks for a complete head; returns the bytes used. Kept apart from the path of frames, which
    /// would otherwise pay for its stack and registers.
    #[inline(never)]
    pub(crate) fn on_head(&mut self, slot: u32, bytes: &mut [u8]) -> usize {
        let Some(conn) = self.core.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return bytes.len();
        };
        if conn.cold.as_ref().is_some_and(|cold| cold.body.is_some()) {
            return self.on_body(slot, bytes);
        }
        let client = conn.is_client();
        if !client && self.core.may_be_proxy_header(bytes) {
            match self.core.take_proxy_header(slot, bytes) {
                Ok(Status::Complete(0)) => {}
                Ok(Status::Complete(used)) => {
                    return used + self.begin_tls_after(slot, bytes.get_mut(used..));
                }
                Ok(Status::Partial) => {
                    self.core.offered_header_goes_on(slot);
                    return 0;
                }
                Err(violation) => {
                    self.reject_head(slot, violation, (None, 0));
                    return bytes.len();
                }
            }
        }
        let now_ns = self.core.now_ns;
        let Some(conn) = self.core.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return bytes.len();
        };
        let mut scanner = conn.cold.as_ref().map_or(HeadScanner::default(), |cold| cold.scanner);
        let length = match scanner.scan(bytes, &self.core.limits.wire) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) => {
                let cold = conn.cold();
                cold.scanner = scanner;
                if cold.since_ns == 0 {
                    self.core.head_begins(slot);
                }
                return 0;
            }
            Err(violation) => {
                let took_ns = self.core.head_took_ns(slot);
                self.reject_head(slot, violation, (None, took_ns));
                return bytes.len();
            }
        };
        let mut since_ns = 0;
        if let Some(cold) = conn.cold.as_mut() {
            cold.scanner = HeadScanner::default();
            since_ns = std::mem::take(&mut cold.since_ns);
        }
        let took_ns = if since_ns == 0 { 0 } else { now_ns.saturating_sub(since_ns) };
        let head = bytes.get(..length).unwrap_or_default();
        if client {
            self.on_response(slot, head);
        } else {
            self.on_request(slot, head, took_ns);
        }
        length
    }

    fn on_request(&mut self, slot: u32, head: &[u8], took_ns: u64) {
        let allowed = self.core.limits.wire.headers.min(MAX_HEADERS);
        // Clearing room for all that are allowed would take longer than parsing a short head.
        let mut usual = [EMPTY_HEADER; USUAL_HEADERS];
        let mut most;
        let few = if head.len() > SHORT_HEAD_BYTES { 0 } else { allowed.min(USUAL_HEADERS) };
        let mut parsed = Err(Violation::TooManyHeaders);
        if few > 0 {
            parsed = parse_request(head, usual.get_mut(..few).unwrap_or_default());
        }
        if few < allowed && matches!(parsed, Err(Violation::TooManyHeaders)) {
            most = [EMPTY_HEADER; MAX_HEADERS];
            parsed = parse_request(head, most.get_mut(..allowed).unwrap_or_default());
        }
        let request = match parsed {
            Ok(request) => request,
            Err(violation) => {
                self.core.set_client_from_header(slot, None);
                return self.reject_head(slot, violation, (None, took_ns));
            }
        };
        if !self.core.clients.is_empty() {
            self.core.set_client_from_header(slot, Some(&request));
            let mode = self.core.slab.get(slot).map(|conn| conn.mode);
            if mode != Some(Mode::Http) {
                return;
            }
        }
        let read = (Some(&request), took_ns);
        let upgrade = match check_upgrade(&request) {
            Ok(upgrade) => upgrade,
            Err(violation) => return self.reject_head(slot, violation, read),
        };
        let compression = self.core.limits.compression;
        let deflate = match upgrade.as_ref().filter(|_| compression != Compression::Off) {
            None => None,
            Some(upgrade) => match upgrade.deflate(compression == Compression::Takeover) {
                Ok(deflate) => deflate,
                Err(violation) => return self.reject_head(slot, violation, read),
            },
        };
        let Some(id) = self.core.id_at(slot) else {
            return broken("a connection whose head is parsed is alive");
        };
        let incoming = Incoming { head: &request, upgrade: upgrade.as_ref(), took_ns };
        let answer = self.handler.request(&mut self.core, id, &incoming);
        if self.core.live(id).is_none() {
            // The handler has ended it.
            return;
        }
        let deflate = self.core.deflate_of(slot, deflate, upgrade.as_ref());
        // An unrequested body is not read: the answer is sent and what arrives is discarded.
        let has_body = request.header("transfer-encoding").is_some()
            || request.header("content-length").is_some_and(|length| length != b"0")
            || expects_continue(&request);
        let wants_key = matches!(
            answer,
            Answer::Upgrade(_) | Answer::UpgradeWith(..) | Answer::Later | Answer::LaterWithin(_)
        );
        let context = RequestContext {
            accept: upgrade.filter(|_| wants_key).map(|upgrade| accept_key(upgrade.key)),
            deflate,
            keep_alive: keep_alive(&request) && (!has_body || matches!(answer, Answer::Body(_))),
            head_only: request.method == "HEAD",
            until_ns: 0,
            watched: false,
        };
        if let Answer::Body(bytes_max) = answer {
            return self.begin_body(slot, &request, bytes_max, context);
        }
        self.answer(slot, answer, &context);
    }

    /// Sends the late answer to a parked request.
    pub(crate) fn answer_parked(&mut self, id: ConnId, answer: Answer) {
        let slot = id.slot();
        let Some(conn) = self.core.live_mut(id).filter(|conn| conn.mode == Mode::Parked) else {
            return;
        };
        conn.mode = Mode::Http;
        let context = conn.take_parked();
        self.core.corked = Some(slot);
        self.answer(slot, answer, &context);
        self.core.flush_cork();
        self.core.corked = None;
        self.pump(slot);
    }

    pub(crate) fn answer(&mut self, slot: u32, answer: Answer, context: &RequestContext) {
        match answer {
            Answer::Upgrade(protocol) => self.upgrade(slot, protocol.as_deref(), &[], context),
            Answer::UpgradeWith(protocol, headers) => {
                self.upgrade(slot, protocol.as_deref(), &headers, context);
            }
            Answer::Respond(response) => self.core.respond_to(slot, &response, context),
            Answer::Body(_) => self.core.respond(slot, &body_not_kept(), false, context, false),
            Answer::Stream(response) => self.core.respond(slot, &response, false, context, true),
            Answer::Written { keep_alive } => {
                let keep = keep_alive && context.keep_alive && !self.core.clients_wait();
                if self.core.slab.get(slot).is_some_and(|conn| conn.mode == Mode::Http) {
                    self.core.answered(slot, keep, Closed::Answered, false);
                }
            }
            Answer::Raw => self.core.switch_to_raw(slot),
            Answer::RawContinue => {
                self.core.cork.extend_from_slice(CONTINUE);
                self.core.switch_to_raw(slot);
            }
            Answer::Later => {
                let within_ns = nanoseconds(self.core.limits.handshake_timeout);
                self.core.park(slot, within_ns, false, context);
            }
            Answer::LaterWithin(within_ns) => self.core.park(slot, within_ns, true, context),
            Answer::ByHandler => {
                let Some(id) = self.core.id_at(slot) else {
                    return broken("a request that is answered is alive");
                };
                match self.handler.late_answer(&mut self.core, id) {
                    _ if self.core.live(id).is_none() => {}
                    Answer::ByHandler => broken("a late answer is one"),
                    answer => self.answer(slot, answer, context),
                }
            }
        }
    }

    fn upgrade(
        &mut self,
        slot: u32,
        protocol: Option<&str>,
        headers: &[(Box<str>, Box<str>)],
        context: &RequestContext,
    ) {
        let Some(accept) = &context.accept else {
            return self.core.respond(slot, &upgrade_required(), false, context, false);
        };
        let deflate = context.deflate.as_ref();
        let headers = headers.iter().map(|(name, value)| (&**name, &**value));
        encode_upgrade_response_with(&mut self.core.cork, accept, protocol, deflate, headers);
        self.open_websocket(slot, deflate.map(NegotiatedDeflate::as_server));
    }

    /// Opens the WebSocket: the handshake is complete, and frames follow.
    pub(crate) fn open_websocket(&mut self, slot: u32, deflate: Option<NegotiatedDeflate>) {
        if let Some(id) = self.core.becomes_websocket(slot, deflate) {
            self.handler.open(&mut self.core, id);
        }
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    pub(crate) fn becomes_websocket(
        &mut self,
        slot: u32,
        deflate: Option<NegotiatedDeflate>,
    ) -> Option<ConnId> {
        let tick = self.tick;
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return None;
        };
        conn.mode = Mode::WebSocket;
        conn.last_active = tick;
        let before = conn.flags;
        conn.flags.set(Flags::OPENED);
        if let Some(deflate) = deflate {
            conn.deflate = deflate;
            conn.decoder.enable_deflate();
        }
        let id = ConnId::new(self.index, slot, conn.generation);
        self.handshake_completed(before);
        let counters = self.counters();
        counters.upgrades.add(1);
        counters.websockets.add(1);
        Some(id)
    }

    /// Keeps a request that is answered later.
    fn park(&mut self, slot: u32, within_ns: u64, watched: bool, context: &RequestContext) {
        let until_ns = self.now_ns.saturating_add(within_ns);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        conn.mode = Mode::Parked;
        conn.cold().parked = Some(RequestContext { until_ns, watched, ..*context });
        if watched {
            let before = conn.set_answered();
            self.handshake_completed(before);
        }
        self.sync_interest(slot);
    }

    /// Writes a complete late answer.
    pub(crate) fn respond_to(&mut self, slot: u32, response: &Response, context: &RequestContext) {
        let keep = context.keep_alive && !response.close;
        self.respond(slot, response, keep, context, false);
    }

    /// Writes an answer and sets the connection's next state.
    pub(crate) fn respond(
        &mut self,
        slot: u32,
        response: &Response,
        keep: bool,
        context: &RequestContext,
        stream: bool,
    ) {
        let keep = keep && !self.clients_wait();
        let mut length = [0u8; 20];
        let length = decimal(response.body.len(), &mut length);
        let connection = if keep { "keep-alive" } else { "close" };
        let own = [("Content-Type", response.content_type), ("Connection", connection)];
        let bodiless = is_bodiless(response.status);
        let framing = (!stream && !bodiless).then_some(("Content-Length", length));
        let extra = response.headers.iter().map(|(name, value)| (&**name, &**value));
        let headers = own.into_iter().chain(framing).chain(extra);
        encode_response_head(&mut self.cork, response.status, headers);
        if !context.head_only && !bodiless {
            self.cork.extend_from_slice(&response.body);
        }
        let cause = if response.status >= 400 { Closed::Refused } else { Closed::Answered };
        self.answered(slot, keep, cause, stream && !context.head_only);
    }

    /// Where an answer to the request that is being handled is collected, in [`Handler::request`] and
    /// [`Handler::late_answer`]: return [`Answer::Written`] once it is complete, or [`Answer::Raw`] if more
    /// follows. `None` if the connection has ended meanwhile, or in other calls.
    pub fn answer_buffer(&mut self, id: ConnId) -> Option<&mut Vec<u8>> {
        let http = self.live(id).is_some_and(|conn| conn.mode == Mode::Http);
        (http && self.corked == Some(id.slot())).then_some(&mut self.cork)
    }

    /// Sets the next state of a connection whose request was answered.
    fn answered(&mut self, slot: u32, keep: bool, cause: Closed, raw: bool) {
        self.counters().requests.add(1);
        let tick = self.tick;
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let before = conn.set_answered();
        conn.last_active = tick;
        if raw {
            conn.mode = Mode::Raw;
        } else if !keep {
            conn.closed = cause;
            self.finish(slot);
        } else {
            self.set_may_make_room(true);
        }
        self.handshake_completed(before);
    }

    /// Makes a request's connection raw: the handler answers it.
    fn switch_to_raw(&mut self, slot: u32) {
        let tick = self.tick;
        let Some(conn) = self.slab.get_mut(slot).filter(|conn| conn.mode == Mode::Http) else {
            return;
        };
        let before = conn.set_answered();
        conn.mode = Mode::Raw;
        conn.last_active = tick;
        self.handshake_completed(before);
    }

    /// Returns an accepted raw connection to HTTP: its request is answered, and another may follow.
    /// Bytes left unread after the last one are processed now. While clients wait for room, it ends
    /// instead if there are none.
    pub fn next_request(&mut self, id: ConnId) {
        let (slot, tick) = (id.slot(), self.tick);
        // Bytes of the connection being read are not kept until its read ends.
        let gives_way = self.clients_wait() && self.corked != Some(slot);
        match self.live_mut(id) {
            Some(conn) if gives_way && conn.mode == Mode::Raw && !conn.has_tail() => {
                self.end_after(id, Closed::Answered);
            }
            Some(conn) if conn.mode == Mode::Raw => {
                conn.mode = Mode::Http;
                conn.last_active = tick;
                self.arm_handshake(slot);
                self.resume(id);
            }
            Some(_) => self.end_after(id, Closed::Answered),
            None => {}
        }
    }

    /// Waits for the peer to end the stream.
    pub(crate) fn await_end(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if matches!(conn.mode, Mode::Lingering | Mode::Dead) {
            return;
        }
        conn.mode = Mode::Lingering;
        conn.flags.clear(Flags::PAUSED | Flags::STALLED);
        conn.discard_unread();
        let generation = conn.generation;
        self.timers.closing.push(self.now_ns, slot, generation);
        self.sync_interest(slot);
    }

    // ---- deadlines ----

    /// Sets the handshake deadline of a connection, unless the handshake is complete.
    pub(crate) fn arm_handshake(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if !matches!(conn.mode, Mode::Http | Mode::Parked) {
            return;
        }
        if !conn.flags.has(Flags::DEADLINE) {
            conn.flags.set(Flags::DEADLINE);
            let (generation, flags) = (conn.generation, conn.flags);
            self.timers.handshake.push(self.now_ns, slot, generation);
            if Self::is_in_flight(flags) {
                self.handshake_started();
            }
        }
        self.set_may_make_room(true);
    }

    /// Answers 504: [`Answer::Later`] was not followed by an answer in time.
    fn answer_timed_out(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        conn.mode = Mode::Http;
        let context = conn.take_parked();
        self.corked = Some(slot);
        let response =
            Response::text(504, "The application did not answer this request in time.\n");
        self.respond(slot, &response, false, &context, false);
        self.flush_cork();
        self.corked = None;
        self.after_read(slot, b"");
    }

    /// The handshake timeout, or the time between two requests, has passed. Returns `true` if the
    /// connection has to end because of it.
    #[must_use]
    pub(crate) fn handshake_timed_out(&mut self, slot: u32, generation: u32) -> bool {
        let head_ns = nanoseconds(self.limits.handshake_timeout);
        let idle_ns = nanoseconds(self.limits.keep_alive_timeout).min(self.timers.longest_ns());
        let now = self.tick;
        let Some(conn) = self.slab.get_mut(slot).filter(|conn| conn.generation == generation)
        else {
            return false;
        };
        let before = conn.flags;
        let (mode, last_active, silent) = (conn.mode, conn.last_active, conn.is_silent());
        let begun_ns = conn.cold.as_ref().map_or(0, |cold| cold.since_ns);
        if mode == Mode::Http
            && Self::is_in_flight(before)
            && begun_ns > 0
            && self.now_ns < begun_ns.saturating_add(head_ns)
        {
            // The head began later than this deadline, and has one of its own.
            return false;
        }
        conn.flags.clear(Flags::DEADLINE);
        let cold = conn.cold.as_ref();
        let body_ns = cold.and_then(|cold| cold.body.as_ref()).map(|body| body.until_ns);
        let parked_ns = cold.and_then(|cold| cold.parked.as_ref()).map(|parked| parked.until_ns);
        let since_ns = cold.map(|cold| cold.since_ns).filter(|since_ns| *since_ns > 0);
        self.handshake_ended(before);
        let waits = body_ns.or(parked_ns).is_some_and(|until_ns| self.now_ns < until_ns);
        match mode {
            Mode::Connecting => self.end(slot, Closed::ConnectTimeout),
            // The deadline belongs to the connection's last request; this one has its own.
            Mode::Http | Mode::Parked if waits => self.arm_handshake(slot),
            Mode::Http if body_ns.is_some() => self.body_timed_out(slot),
            Mode::Http if before.has(Flags::ANSWERED) => {
                // A further head has as long as the first one, however it trickles in.
                let begun = since_ns.map(|since_ns| self.now_ns.saturating_sub(since_ns));
                let idle = begun.is_none() && self.timers.ns_between(last_active, now) >= idle_ns;
                if idle {
                    self.end(slot, Closed::Answered);
                } else if begun.is_some_and(|begun| begun >= head_ns) {
                    return true;
                } else {
                    self.arm_handshake(slot);
                }
            }
            Mode::Http if silent && !before.has(Flags::CLIENT) => {
                // Checked once per timeout, so the last check may be a tick early.
                let silent_ns = self.timers.ns_between(last_active, now);
                let most_ns = head_ns.saturating_mul(SILENT_TIMEOUTS.into()) - head_ns / 2;
                if silent_ns >= most_ns.min(self.timers.longest_ns()) {
                    return true;
                }
                self.arm_handshake(slot);
            }
            Mode::Http => return true,
            Mode::Parked => self.answer_timed_out(slot),
            _ => {}
        }
        false
    }
}

/// The answer to a plain request on a WebSocket endpoint (RFC 9110 section 15.5.22).
fn upgrade_required() -> Response {
    let mut response =
        Response::text(426, "This is a WebSocket endpoint: connect with a WebSocket client.\n");
    response.headers =
        vec![("Upgrade".into(), "websocket".into()), ("Sec-WebSocket-Version".into(), "13".into())];
    response.close = true;
    response
}

fn decimal(number: usize, into: &mut [u8; 20]) -> &str {
    let mut at = into.len();
    let mut rest = number;
    loop {
        at -= 1;
        if let Some(place) = into.get_mut(at) {
            *place = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    std::str::from_utf8(into.get(at..).unwrap_or_default()).unwrap_or_default()
}
