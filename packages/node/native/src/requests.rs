//! From requests to their answers: routes, handlers of JavaScript, bodies.

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Sys};
use napi_sys::napi_value;
use wire::http::{BodyDecoder, BodyEvent, Request as Head, expects_continue, keep_alive};

use crate::exchange::{Exchange, Place};
use crate::handler::{Event, Js, Now};
use crate::http::TRY_BYTES;
use crate::napi::Env;
use crate::router::Router;

pub(crate) const NOT_FOUND: &str = "<html><body><h1>File Not Found</h1></body></html>\n";
/// How long the engine keeps the request of a WebSocket that is decided about later.
pub(crate) const DECISION_NS: u64 = 600_000_000_000;
/// A request or an answer that does not move for this long is given up.
const STUCK_NS: u64 = 10_000_000_000;
pub(crate) const CHECK_NS: u64 = 1_000_000_000;
/// Memory that is kept for the next answer.
pub(crate) const OUT_KEPT_BYTES: usize = 64 * 1024;

/// The router of the host that a request is for.
pub(crate) fn router_of(routers: &[(Box<str>, Router)], head: &Head<'_, '_>) -> usize {
    if routers.len() == 1 {
        return 0;
    }
    let host = head.authority().unwrap_or_default();
    let host = host.split(|byte| *byte == b':').next().unwrap_or_default();
    let is = |(name, _): &(Box<str>, Router)| name.as_bytes().eq_ignore_ascii_case(host);
    routers.iter().position(is).unwrap_or(0)
}

/// What is to come of the body of a request, however long it is.
pub(crate) fn body_of(head: &Head<'_, '_>) -> Option<BodyDecoder> {
    let limits = wire::Limits { body_bytes: u64::MAX, ..wire::Limits::default() };
    BodyDecoder::for_request(head, &limits).ok()
}

/// The next bytes of a request's body: how many bytes were used, the piece, and whether it is the last one. Without
/// a body that is read now, and behind its end, they stay unread.
pub(crate) fn body_piece<'a, S: Sys, H: Handler>(
    core: &mut Core<S, H>,
    id: ConnId,
    decoder: Option<&mut BodyDecoder>,
    data: &'a [u8],
) -> Option<(usize, &'a [u8], bool)> {
    let Some(decoder) = decoder.filter(|decoder| !decoder.is_done()) else {
        if !data.is_empty() {
            // What follows the body is the next request.
            core.leave_unread(data.len());
        }
        return None;
    };
    let (used, piece) = match decoder.decode(data) {
        Ok(wire::Status::Partial) => return None,
        Ok(wire::Status::Complete((used, BodyEvent::Data(piece)))) => (used, piece),
        Ok(wire::Status::Complete((used, BodyEvent::End))) => (used, &[][..]),
        Err(violation) => {
            core.counters().count_violation(violation);
            core.reset(id);
            return None;
        }
    };
    let ends = decoder.is_done();
    if ends {
        core.counters().bodies_in.add(1);
        if used < data.len() {
            core.leave_unread(data.len() - used);
        }
    }
    Some((used, piece, ends))
}

/// Ends an exchange whose connection is the handler's: its answer was written.
pub(crate) fn end_exchange<S: Sys, H: Handler>(
    core: &mut Core<S, H>,
    id: ConnId,
    keep_alive: bool,
) {
    core.counters().requests.add(1);
    if keep_alive {
        core.next_request(id);
    } else {
        core.end_after(id, Closed::Answered);
    }
}

/// Whether an exchange has not moved for too long: what waits has not become less, and nothing has arrived of a body
/// that is read. `moved_ns` and `before` are when it last moved and what waited then.
pub(crate) fn is_stuck(
    (moved_ns, before): (&mut u64, &mut usize),
    queued: usize,
    receives: bool,
    now_ns: u64,
) -> bool {
    if queued < *before || queued == 0 && !receives {
        *moved_ns = now_ns;
    }
    *before = queued;
    now_ns.saturating_sub(*moved_ns) >= STUCK_NS
}

impl Js {
    /// Finds the routes of a request, and calls their handlers until one has it.
    pub(crate) fn on_request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Answer {
        let head = incoming.head;
        let router = router_of(&self.routers, head);
        let mut spans = std::mem::take(&mut self.spans);
        // Of a handler that has passed the request on: what it wrote goes before the next one's.
        let mut begun = None;
        for skip in 0..=self.routes.len() {
            let routers = self.routers.get(router);
            let found = routers
                .and_then(|(_, router)| router.find(head.method, head.path(), skip, &mut spans));
            let Some(route) = found else { break };
            let socket = self.routes.get(route as usize).copied().flatten();
            if let Some(index) = socket {
                let Some(upgrade) = incoming.upgrade else { continue };
                core.set_class(id, u8::try_from(index).unwrap_or(u8::MAX));
                if let Some(user) = core.user_mut(id) {
                    user.route = index;
                }
                if !self.sockets.get(usize::from(index)).is_some_and(|own| own.upgrade) {
                    self.spans = spans;
                    return Answer::Upgrade(upgrade.protocols().next().map(Into::into));
                }
            }
            let opening = socket.and_then(|_| core.opening(id, incoming));
            let mut exchange =
                self.begin_or_go_on(begun.take(), id, head, socket.is_some(), core.now_ns());
            let kept = self.answer_from_cache(route, head, core.now_ns(), &mut exchange);
            if kept == Some(false) {
                self.spans = spans;
                return self.after_request(core, exchange, false);
            }
            // Only read while the handler is called: see `Now`.
            let head = std::ptr::from_ref(head).cast();
            self.now = Some(Now { exchange, head, spans, opening });
            let slot = id.slot() as i32;
            let passed = self.emit_then(
                core,
                Event::Request,
                |env| {
                    let answered_or_upgrades = kept.is_some() || socket.is_some();
                    [env.int(slot), env.int(route as i32), env.bool(answered_or_upgrades)]
                },
                |env, _, passed| env.to_u32(passed),
            );
            if passed != 1
                && let Some(now) = self.now.as_mut().filter(|now| now.exchange.is_answered())
            {
                // As `after_request`, without moving the exchange.
                let keep_alive = now.exchange.keep_alive;
                if let Some(buffer) = core.answer_buffer(id) {
                    buffer.extend_from_slice(&now.exchange.out);
                }
                let out = std::mem::take(&mut now.exchange.out);
                self.spans = std::mem::take(&mut now.spans);
                self.now = None;
                self.keep_out(out);
                return Answer::Written { keep_alive };
            }
            let Some(now) = self.now.take() else {
                // It was aborted.
                return Answer::Written { keep_alive: false };
            };
            spans = now.spans;
            if passed == 1 {
                begun = self.passed_on(now.exchange);
                continue;
            }
            self.spans = spans;
            return self.after_request(core, now.exchange, socket.is_some());
        }
        self.spans = spans;
        let mut exchange = self.begin_or_go_on(begun, id, head, false, core.now_ns());
        exchange.not_found();
        self.after_request(core, exchange, false)
    }

    /// Begins the answer for a handler, or goes on with what the one before it has written.
    fn begin_or_go_on(
        &mut self,
        begun: Option<Exchange>,
        id: ConnId,
        head: &Head<'_, '_>,
        upgrades: bool,
        now_ns: u64,
    ) -> Exchange {
        let Some(mut exchange) = begun else { return self.begin(id, head, upgrades, now_ns) };
        if !upgrades {
            exchange.decoder = body_of(head);
            exchange.expects_continue = expects_continue(head);
        }
        exchange
    }

    /// What the next handler of a request goes on with, if anything was written.
    pub(crate) fn passed_on(&mut self, exchange: Exchange) -> Option<Exchange> {
        if exchange.has_begun() {
            return Some(exchange);
        }
        self.out = exchange.out;
        None
    }

    pub(crate) fn begin(
        &mut self,
        id: ConnId,
        head: &Head<'_, '_>,
        upgrades: bool,
        now_ns: u64,
    ) -> Exchange {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let mut exchange = Exchange::new(id, out, now_ns);
        exchange.set_keep_alive(keep_alive(head));
        exchange.head_only = head.method == "HEAD";
        exchange.http_1_0 = head.version == 0;
        if !upgrades {
            exchange.decoder = body_of(head);
            exchange.expects_continue = expects_continue(head);
        }
        exchange
    }

    /// A handler has returned: the answer may be complete, or follow.
    pub(crate) fn after_request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        mut exchange: Exchange,
        upgrades: bool,
    ) -> Answer {
        let id = exchange.id;
        if exchange.opened {
            self.keep_out(exchange.out);
            return Answer::Written { keep_alive: true };
        }
        if upgrades && !exchange.has_begun() {
            exchange.place = Place::Parked;
            self.exchanges.insert(id.slot(), Box::new(exchange));
            return Answer::LaterWithin(DECISION_NS);
        }
        if !exchange.has_ended() && exchange.wants_data && exchange.body_is_complete() {
            // There is no body: that is its end.
            exchange.wants_data = false;
            let slot = id.slot();
            self.now = Some(Now {
                exchange,
                head: std::ptr::null(),
                spans: std::mem::take(&mut self.spans),
                opening: None,
            });
            self.emit(core, Event::Data, |env| {
                [env.int(slot as i32), env.array_buffer(&[]), env.bool(true)]
            });
            let Some(now) = self.now.take() else { return Answer::Written { keep_alive: false } };
            (exchange, self.spans) = (now.exchange, now.spans);
        }
        if let Some(buffer) = core.answer_buffer(id) {
            buffer.extend_from_slice(&exchange.out);
        }
        let ended = exchange.has_ended();
        if ended && (exchange.body_is_complete() || !exchange.keep_alive) {
            let keep_alive = exchange.keep_alive;
            self.keep_out(exchange.out);
            return Answer::Written { keep_alive };
        }
        let waits = exchange.expects_continue && !exchange.has_begun();
        exchange.out.clear();
        exchange.place = Place::Raw;
        if ended && exchange.expects_continue {
            // Its client sends the body only if it is asked to.
            exchange.keep_alive = false;
            exchange.decoder = None;
        }
        if ended && exchange.decoder.is_none() {
            return Answer::Written { keep_alive: false };
        }
        self.exchanges.insert(id.slot(), Box::new(exchange));
        if waits { Answer::RawContinue } else { Answer::Raw }
    }

    pub(crate) fn keep_out(&mut self, mut out: Vec<u8>) {
        out.clear();
        out.shrink_to(OUT_KEPT_BYTES);
        self.out = out;
    }

    /// The answer to a request that the engine has kept.
    pub(crate) fn decided<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Answer {
        let Some(mut exchange) = self.exchanges.remove(&id.slot()) else {
            return Answer::Written { keep_alive: false };
        };
        if let Some(buffer) = core.answer_buffer(id) {
            buffer.extend_from_slice(&exchange.out);
        }
        exchange.out.clear();
        if exchange.has_ended() {
            return Answer::Written { keep_alive: exchange.keep_alive };
        }
        exchange.place = Place::Raw;
        self.exchanges.insert(id.slot(), exchange);
        Answer::Raw
    }

    /// Opens the WebSocket that a request asks for, now or after its handler has returned. `None` if there is no
    /// such request, `false` if its client has left: then `aborted` follows.
    pub(crate) fn upgrade<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        slot: u32,
        protocol: Option<&str>,
    ) -> Option<bool> {
        let now = self.now.as_mut().filter(|now| now.exchange.id.slot() == slot);
        let (id, opened) = if let Some(Now { exchange, opening, .. }) = now {
            let headers = exchange.take_headers();
            let opened = opening.take().is_some_and(|opening| {
                core.open_request(exchange.id, &opening, protocol, &headers)
            });
            exchange.opened = opened;
            (exchange.id, opened)
        } else {
            let parked = |own: &&mut Box<Exchange>| own.place == Place::Parked;
            let exchange = self.exchanges.get_mut(&slot).filter(parked)?;
            let (id, headers) = (exchange.id, exchange.take_headers());
            let opened = core.open_late(id, protocol, &headers);
            if opened {
                self.exchanges.remove(&slot);
            }
            (id, opened)
        };
        if opened {
            self.begin_lifetime(core, id);
        }
        Some(opened)
    }

    /// Passes on what was written to a connection, and ends the exchange if it is over.
    pub(crate) fn pass_on<S: Sys>(&mut self, core: &mut Core<S, Self>, slot: u32) {
        let Some(exchange) = self.exchanges.get_mut(&slot) else { return };
        let id = exchange.id;
        match exchange.place {
            // It is passed on when the handler returns.
            Place::Handler => return,
            Place::Parked => {
                let decided = exchange.has_ended();
                let begun = !exchange.corked && !exchange.out.is_empty();
                if (decided || begun) && !std::mem::replace(&mut exchange.told, true) {
                    core.remote().answer(id, Answer::ByHandler);
                }
                return;
            }
            Place::Thread => return self.answer_by_thread(slot),
            Place::Raw => {}
        }
        if exchange.corked && !exchange.has_ended() && exchange.out.len() < OUT_KEPT_BYTES {
            return;
        }
        if !exchange.out.is_empty() {
            core.write_unlimited(id, &exchange.out);
            exchange.out.clear();
            exchange.moved_ns = core.now_ns();
        }
        // Of a connection that serves no more, the rest of the body is discarded.
        if exchange.has_ended() && (exchange.body_is_complete() || !exchange.keep_alive) {
            let keep = exchange.keep_alive;
            if let Some(exchange) = self.exchanges.remove(&slot) {
                self.keep_out(exchange.out);
            }
            end_exchange(core, id, keep);
        }
    }

    /// Passes a piece of a body to JavaScript, which has its bytes until it returns, or keeps them.
    pub(crate) fn emit_data<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        arguments: impl FnOnce(Env) -> [napi_value; 3],
    ) {
        self.emit_then(core, Event::Data, arguments, |env, [_, bytes, _], kept| {
            if env.to_u32(kept) != 1 {
                // As after messages: collecting it later takes longer.
                env.detach(bytes);
            }
        });
    }

    /// Bytes of a request's body.
    pub(crate) fn on_data<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        data: &mut [u8],
    ) {
        let (slot, mut at) = (id.slot(), 0);
        loop {
            let rest = data.get(at..).unwrap_or_default();
            let Some(exchange) = self.exchanges.get_mut(&slot) else { return };
            let decoder = exchange.decoder.as_mut().filter(|_| !exchange.paused);
            exchange.moved_ns = core.now_ns();
            let Some((used, piece, ends)) = body_piece(core, id, decoder, rest) else { return };
            at += used;
            if exchange.wants_data && !exchange.has_ended() && (ends || !piece.is_empty()) {
                self.emit_data(core, |env| {
                    [env.int(slot as i32), env.array_buffer(piece), env.bool(ends)]
                });
            }
            if ends {
                return self.pass_on(core, slot);
            }
        }
    }

    /// Bytes of an answer that wait for its client; with threads, for them to have written it.
    pub(crate) fn waiting<S: Sys>(&mut self, core: &Core<S, Self>, slot: u32) -> usize {
        if self.threads.is_some() {
            return self.exchange(slot).map_or(0, |exchange| exchange.queued);
        }
        core.id_at(slot).map_or(0, |id| core.queued(id))
    }

    /// Whether JavaScript may write more of an answer now: its queue is empty, or with threads shorter than
    /// [`TRY_BYTES`]. If `false`, `onWritable` is called once the queue is empty.
    pub(crate) fn flows<S: Sys>(&mut self, core: &Core<S, Self>, slot: u32) -> bool {
        let waiting = self.waiting(core, slot);
        let flows = waiting == 0 || self.threads.is_some() && waiting < TRY_BYTES;
        if !flows && let Some(exchange) = self.exchange(slot) {
            exchange.waits = true;
        }
        flows
    }

    /// JavaScript goes on with an answer when nothing of it waits.
    pub(crate) fn await_flow(&mut self, id: ConnId) {
        if let Some(exchange) = self.exchange(id.slot()) {
            exchange.waits = true;
        }
        if self.threads.is_none() {
            self.ready.push(id);
        }
    }

    /// Tells answers that nothing of theirs waits. The others are told when they have drained.
    pub(crate) fn go_on<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        self.go_on_with_bodies(core);
        if self.ready.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.ready) {
            if core.queued(id) == 0 {
                self.tell_writable(core, id);
            }
        }
    }

    pub(crate) fn tell_writable<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(exchange) = self.exchanges.get_mut(&id.slot()).filter(|own| own.id == id) else {
            return;
        };
        exchange.moved_ns = core.now_ns();
        // Otherwise it would write again what it knows to be written.
        if !std::mem::take(&mut exchange.waits) {
            return;
        }
        let offset = exchange.offset as f64;
        self.emit(core, Event::Writable, |env| [env.int(id.slot() as i32), env.number(offset)]);
    }

    /// Gives up what does not move. Returns when to look again.
    pub(crate) fn check_exchanges<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        // Threads check theirs.
        if self.exchanges.is_empty() || self.threads.is_some() {
            return None;
        }
        let now_ns = core.now_ns();
        if now_ns >= self.checked_ns.saturating_add(CHECK_NS) {
            self.checked_ns = now_ns;
            for exchange in self.exchanges.values_mut() {
                let queued = core.queued(exchange.id);
                let receives = !exchange.body_is_complete() && !exchange.paused;
                let moved = (&mut exchange.moved_ns, &mut exchange.queued);
                if is_stuck(moved, queued, receives, now_ns) {
                    core.reset(exchange.id);
                }
            }
        }
        Some(self.checked_ns.saturating_add(CHECK_NS))
    }
}
