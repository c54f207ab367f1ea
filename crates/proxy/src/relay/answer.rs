//! Responses of upstreams: the head is validated and passed on, the body streamed in a framing that
//! the client can read, and a valid 101 to a handshake opens a tunnel (RFC 9112 sections 6 and 9,
//! RFC 6455 section 4.1). Nothing else opens one.

use std::sync::Arc;

use engine::{Closed, ConnId, Core, Mode, Sent, Sys, invariant};
use wire::http::{
    BodyDecoder, BodyEvent, EMPTY_HEADER, HeadScanner, LAST_CHUNK, MAX_HEADERS, Response,
    encode_chunk, keep_alive, parse_response,
};
use wire::{Status, Violation};

use super::bound::{BoundConnection, is_challenge};
use super::connect::queued_bytes;
use super::dispatch::{after, answer_limits, body_limits, is_ours};
use super::exchange::{AnswerBody, Exchange};
use super::tunnel::{ClientLeg, UpstreamLeg, end_tunnel};
use super::{ConnectionKind, Flushing, Relay, port_of};
use crate::access_log::Side;
use crate::balance::Fault;
use crate::counters::{EndReason, Phase, Refusal, Stage};
use crate::headers::{AnswerChanges, Framing, encode_answer, push_header};

/// Maximum number of interim responses (1xx) to one request.
const INTERIM_MAX: u8 = 8;

/// The kind of a response head.
enum Head {
    /// Interim (1xx): another head follows.
    Interim,
    /// Final: a body follows, which may be empty.
    Final,
    /// 101: the tunnel is open.
    Switched,
}

impl Relay {
    /// Handles bytes from the upstream of a request.
    pub(super) fn on_answer<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        id: ConnId,
        data: &mut [u8],
    ) {
        let Some(exchange) = self.exchanges.get(index) else { return core.abort(id) };
        let deadline_ns = after(core.now_ns(), exchange.answer_timeout(&self.live.timeouts));
        if exchange.stage == Stage::Answering {
            exchange.deadline_ns = deadline_ns;
            return self.pass_body(core, index, data);
        }
        if !exchange.answered {
            exchange.answered = true;
            // It is not sent again.
            exchange.head = Vec::new();
            let bytes = std::mem::take(&mut exchange.buffered_bytes);
            if bytes > 0 {
                self.uncount_buffer(bytes);
            }
        }
        let Some(exchange) = self.exchanges.get(index) else { return core.abort(id) };
        if exchange.partial_head.is_empty() {
            return self.on_head(core, index, id, data);
        }
        let mut all = std::mem::take(&mut exchange.partial_head);
        all.extend_from_slice(data);
        self.on_head(core, index, id, &all);
    }

    /// Parses response heads at the start of `data`.
    fn on_head<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        id: ConnId,
        mut data: &[u8],
    ) {
        let limits = answer_limits(core.limits().wire.head_bytes);
        loop {
            let Some(exchange) = self.exchanges.get(index) else { return };
            let length = match exchange.scanner.scan(data, &limits) {
                Ok(Status::Complete(length)) => length,
                Ok(Status::Partial) => {
                    exchange.partial_head = data.to_vec();
                    return;
                }
                Err(_) => return self.bad_answer(core, index),
            };
            exchange.scanner = HeadScanner::default();
            let (head, rest) = data.split_at_checked(length).unwrap_or((data, &[]));
            match self.take_head(core, index, id, head, rest) {
                Ok(Head::Interim) if rest.is_empty() => return,
                Ok(Head::Interim) => data = rest,
                Ok(Head::Final) => return self.pass_body(core, index, rest),
                Ok(Head::Switched) => return,
                Err(_) => return self.bad_answer(core, index),
            }
        }
    }

    fn take_head<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        id: ConnId,
        head: &[u8],
        rest: &[u8],
    ) -> Result<Head, Violation> {
        let most = answer_limits(core.limits().wire.head_bytes).headers;
        let (mut few, mut many) = ([EMPTY_HEADER; MAX_HEADERS], Vec::new());
        let mut headers = &mut few[..];
        if most > MAX_HEADERS {
            let lines = head.iter().filter(|byte| **byte == b'\n').count();
            if lines > MAX_HEADERS {
                many.resize(lines.min(most), EMPTY_HEADER);
                headers = &mut many;
            }
        }
        let answer = parse_response(head, headers)?;
        let Some(exchange) = self.exchanges.get(index) else { return Ok(Head::Switched) };
        match answer.status {
            101 => {
                check_switched(exchange, &answer)?;
                self.open_tunnel(core, index, id, &answer, rest);
                Ok(Head::Switched)
            }
            100..=199 => {
                exchange.interim += 1;
                if exchange.interim > INTERIM_MAX {
                    return Err(Violation::BadStatusLine);
                }
                if !exchange.info.http10 && exchange.info.accept.is_none() {
                    let client = exchange.client;
                    let mut out = Vec::new();
                    let changes = AnswerChanges::default();
                    encode_answer(&mut out, &answer, Framing::Counted, &changes);
                    out.extend_from_slice(b"\r\n");
                    core.write(client, &out);
                }
                if answer.status == 100 {
                    self.end_continue_wait(index, core.now_ns());
                }
                Ok(Head::Interim)
            }
            _ => self.pass_head(index, &answer).map(|()| Head::Final),
        }
    }

    /// Encodes the head of the final response.
    fn pass_head(&mut self, index: u32, answer: &Response<'_, '_>) -> Result<(), Violation> {
        let draining = self.shared.is_draining();
        let mut out = std::mem::take(&mut self.scratch);
        let Some(exchange) = self.exchanges.get(index) else { return Ok(()) };
        let info = exchange.info;
        let method = if info.head_only { "HEAD" } else { "GET" };
        let decoder = BodyDecoder::for_response(answer, method, body_limits())?;
        let until_close = decoder.is_until_close();
        let chunked = answer.header("transfer-encoding").is_some();
        let framing = match decoder.is_done() || !(chunked || until_close) {
            true => Framing::Counted,
            false if info.http10 => Framing::UntilClose,
            false => Framing::Chunked,
        };
        // After a declined handshake both connections are closed: bytes that the client sent for the
        // tunnel must not be read as a request.
        let upgrade = info.accept.is_some();
        let last = upgrade
            || draining
            || framing == Framing::UntilClose
            || !info.keep_alive
            || !exchange.request.is_done();
        let is_challenge = is_challenge(answer.status, answer.headers);
        exchange.challenged |= is_challenge;
        exchange.private |= exchange.challenged;
        // A PROXY header names the client, which stays the same on a bound connection.
        let may_reuse = exchange.challenged || exchange.pool.transport().proxy_header.is_none();
        let reusable = may_reuse && !upgrade && !until_close && keep_alive(answer);
        encode_answer(&mut out, answer, framing, &exchange.answer_changes());
        let permit = exchange.permit.as_ref();
        if let Some(permit) = permit {
            permit.upstream().answered(answer.status);
        }
        let cookie = permit.and_then(|permit| exchange.pool.set_cookie(permit, exchange.sticky));
        if let Some(cookie) = cookie {
            push_header(&mut out, "Set-Cookie", cookie.as_bytes());
        }
        let connection = match (last, answer.status) {
            (true, 426) => Some("close, Upgrade"),
            (true, _) => Some("close"),
            (false, _) => info.http10.then_some("keep-alive"),
        };
        if let Some(connection) = connection {
            push_header(&mut out, "Connection", connection.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        exchange.enter(Stage::Answering, &self.shared.counters[self.worker]);
        exchange.answer = Some(AnswerBody { decoder, framing, reusable, last, is_challenge });
        if let Some(log_entry) = &mut exchange.log_entry {
            log_entry.status = answer.status;
        }
        self.counters().declined.add(u64::from(upgrade));
        // The received part of the body is sent with it.
        self.scratch = out;
        Ok(())
    }

    /// Passes bytes of a response body on, after an encoded head that is not sent yet.
    fn pass_body<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, data: &[u8]) {
        let mut out = std::mem::take(&mut self.scratch);
        let Some(exchange) = self.exchanges.get(index) else { return };
        let (client, upstream) = (exchange.client, exchange.upstream);
        let passed = decode_body(exchange, data, &mut out);
        let sent = if out.is_empty() { Sent::Sent } else { core.write(client, &out) };
        out.clear();
        self.scratch = out;
        match passed {
            Ok(Passed::More) => {
                exchange.unread_bytes = queued_bytes(sent);
                if let (Sent::Queued(_), Some(upstream)) = (sent, upstream) {
                    core.pause(upstream);
                }
            }
            Ok(Passed::All { and_more }) => self.finish_answer(core, index, and_more),
            Err(_) => {
                if let Some(upstream) = upstream {
                    Self::set(core, upstream, ConnectionKind::Unused);
                    core.reset(upstream);
                }
                self.truncate_answer(core, index, (Side::Upstream, Refusal::BadAnswer.name()));
            }
        }
    }

    /// The client has read all of the response so far: the time for more of it begins. Returns the
    /// upstream, which is read on.
    pub(super) fn answer_drained(&mut self, index: u32, now_ns: u64) -> Option<ConnId> {
        let exchange = self.exchanges.get(index)?;
        if exchange.stage == Stage::Answering {
            exchange.unread_bytes = 0;
            exchange.deadline_ns = after(now_ns, exchange.answer_timeout(&self.live.timeouts));
        }
        exchange.upstream
    }

    /// The response is complete.
    fn finish_answer<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32, and_more: bool) {
        let Some(exchange) = self.take_exchange(index) else { return };
        let whole_request = exchange.request.is_done();
        let (reusable, last, authenticating) = match &exchange.answer {
            Some(body) => (body.reusable, body.last, body.is_challenge),
            None => {
                invariant::broken("an answer that ends has begun");
                (false, true, false)
            }
        };
        if let Some(upstream) = exchange.upstream {
            let key = exchange.permit.as_ref().map(|_| exchange.connection_key);
            let of_now = exchange.config_generation == self.config_generation && !self.draining;
            // An early response: the rest of the request would delay the next one.
            let sent = whole_request && core.queued(upstream) == 0;
            match key.filter(|_| reusable && sent && !and_more && of_now) {
                Some(key) if exchange.challenged && !last => {
                    let pool = Arc::clone(&exchange.pool);
                    let bound = BoundConnection { upstream, key, pool, authenticating };
                    self.bind(core, exchange.client, bound);
                }
                Some(key) if !exchange.private => self.keep_idle_connection(core, upstream, key),
                _ => {
                    Self::set(core, upstream, ConnectionKind::Unused);
                    core.abort(upstream);
                }
            }
        }
        if let Some(log_entry) = exchange.log_entry {
            let upstream = exchange.permit.as_ref().map(|permit| &**permit.upstream());
            let bytes = (exchange.bytes_in, exchange.bytes_out);
            let why = (Side::Upstream, "answered");
            self.shared.record(*log_entry, upstream, bytes, why, core.now_ns());
        }
        self.release(core, exchange.permit);
        let client = exchange.client;
        let more = !last && whole_request;
        let timeout = exchange.settings.as_ref().and_then(|settings| settings.answer_timeout);
        Self::set(core, client, ConnectionKind::FlushingClient(Flushing { more, timeout }));
        if core.queued(client) == 0 {
            self.after_answer(core, client, more);
        }
    }

    /// The last response is sent: reads the next request or closes.
    pub(super) fn after_answer<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        client: ConnId,
        more: bool,
    ) {
        Self::set(core, client, ConnectionKind::Unused);
        if more {
            core.next_request(client);
        } else {
            core.end_after(client, Closed::Answered);
        }
    }

    /// The upstream closed its connection within a response, or at the end of one that is delimited
    /// by the close.
    pub(super) fn answer_ended_early<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        why: Closed,
    ) {
        let Some(exchange) = self.exchanges.get(index) else { return };
        let client = exchange.client;
        let whole = why == Closed::Gone
            && exchange.answer.as_mut().is_some_and(|body| body.decoder.finish_eof().is_ok());
        if !whole {
            let ours = is_ours(why);
            let by = if ours { (Side::Proxy, why.name()) } else { (Side::Upstream, "truncated") };
            return self.truncate_answer(core, index, by);
        }
        if exchange.answer.as_ref().is_some_and(|body| body.framing == Framing::Chunked) {
            core.write(client, LAST_CHUNK);
        }
        self.finish_answer(core, index, false);
    }

    /// Resets the client's connection within a response, so that the client cannot take the part for
    /// the complete response.
    pub(super) fn truncate_answer<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        by: (Side, &'static str),
    ) {
        self.counters().truncated.add(1);
        self.refuse_as(core, index, Refusal::BadAnswer, by);
    }

    /// Refuses an invalid response. No client can cause one, so it counts as a failure of the upstream.
    fn bad_answer<S: Sys>(&mut self, core: &mut Core<S, Self>, index: u32) {
        let now_ns = core.now_ns();
        if let Some(permit) = self.exchanges.get(index).and_then(|e| e.permit.as_ref()) {
            permit.upstream().failed(now_ns, Fault::BadAnswer);
        }
        self.refuse(core, index, Refusal::BadAnswer);
    }

    /// Opens the tunnel: from here on bytes are relayed both ways.
    fn open_tunnel<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        index: u32,
        upstream: ConnId,
        answer: &Response<'_, '_>,
        rest: &[u8],
    ) {
        let Some(mut exchange) = self.take_exchange(index) else { return };
        let Some(permit) = exchange.permit.take() else {
            invariant::broken("a request at an upstream holds a permit");
            return core.abort(upstream);
        };
        permit.upstream().answered(101);
        let closing = permit.upstream().is_closing();
        let client = exchange.client;
        // A tunnel makes no further request.
        self.unbind(core, client);
        let mut out = std::mem::take(&mut self.scratch);
        encode_answer(&mut out, answer, Framing::Counted, &exchange.answer_changes());
        out.extend_from_slice(b"Upgrade: websocket\r\nConnection: Upgrade\r\n");
        if let Some(cookie) = exchange.pool.set_cookie(&permit, exchange.sticky) {
            push_header(&mut out, "Set-Cookie", cookie.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(rest);
        let of_route = exchange.settings.as_ref().and_then(|settings| settings.idle_timeout);
        let idle_timeout = self.idle_timeouts.add(of_route);
        let client_leg = ClientLeg::new(upstream, permit, core.now_ns(), idle_timeout);
        Self::set(core, client, ConnectionKind::TunnelClient(client_leg));
        let upstream_leg =
            UpstreamLeg { peer: client, bytes: rest.len() as u64, _port: port_of(core, upstream) };
        Self::set(core, upstream, ConnectionKind::TunnelUpstream(upstream_leg));
        self.log_entries.keep(client, exchange.log_entry.take());
        let counters = self.counters();
        counters.opened.add(1);
        counters.tunnels.add(1);
        counters.move_phase(None, Some(Phase::Open));
        let time_ns = core.now_ns().saturating_sub(exchange.began_ns);
        self.shared.observe(self.worker, |timed| &timed.switching, time_ns);
        let sent = core.write(client, &out);
        out.clear();
        self.scratch = out;
        if let Sent::Queued(_) = sent {
            core.pause(upstream);
        }
        // Bytes that the client sent before the 101 belong to the tunnel.
        core.resume(client);
        if core.mode(client) == Some(Mode::HalfClosed) {
            self.half_closed(core, client);
        }
        if closing {
            end_tunnel(core, self.counters(), client, EndReason::Ordered);
        }
    }
}

/// Validates a 101 against the handshake that was sent (RFC 6455 section 4.1).
fn check_switched(exchange: &Exchange, answer: &Response<'_, '_>) -> Result<(), Violation> {
    let Some(accept) = exchange.info.accept else { return Err(Violation::NotSwitched) };
    if !answer.header_list_contains("upgrade", "websocket") {
        return Err(Violation::SwitchedWithoutUpgrade);
    }
    if !answer.header_list_contains("connection", "upgrade") {
        return Err(Violation::SwitchedWithoutConnection);
    }
    let named = |name: &str| name.eq_ignore_ascii_case("sec-websocket-accept");
    let mut accepts = answer.headers.iter().filter(|header| named(header.name));
    let right = accepts.next().is_some_and(|header| *header.value == accept);
    if right && accepts.next().is_none() { Ok(()) } else { Err(Violation::WrongAccept) }
}

enum Passed {
    More,
    All { and_more: bool },
}

/// Appends the body bytes in `data` to `out`, in the client's framing.
fn decode_body(
    exchange: &mut Exchange,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Result<Passed, Violation> {
    let Some(body) = &mut exchange.answer else {
        invariant::broken("an answer whose head was passed on has a body decoder");
        return Ok(Passed::More);
    };
    let mut at = 0;
    while !body.decoder.is_done() {
        let Some(rest) = data.get(at..).filter(|rest| !rest.is_empty()) else {
            return Ok(Passed::More);
        };
        let Status::Complete((used, event)) = body.decoder.decode(rest)? else {
            return Ok(Passed::More);
        };
        at += used;
        if let BodyEvent::Data(bytes) = event {
            exchange.bytes_out += bytes.len() as u64;
            match body.framing {
                Framing::Chunked => encode_chunk(out, bytes),
                _ => out.extend_from_slice(bytes),
            }
        }
    }
    if body.framing == Framing::Chunked {
        out.extend_from_slice(LAST_CHUNK);
    }
    Ok(Passed::All { and_more: at < data.len() })
}
