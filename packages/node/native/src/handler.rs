//! [`Js`]: the engine's handler, whose events are calls of JavaScript.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Response, Sys, TlsServer, invariant,
};
use napi_sys::{napi_ref, napi_value};
use topics::{Directory, Memberships, Publication, Subscriber, Topics};
use wire::Violation;
use wire::http::{BodyDecoder, Request as Head, expects_continue, keep_alive};
use wire::websocket::{CloseCode, OpCode};

use crate::app::App;
use crate::exchange::{Exchange, Place};
use crate::napi::Env;
use crate::router::{Route, Router, Span};
use crate::setup::Certificates;

/// How long the engine keeps the request of a WebSocket that is decided about later.
const DECISION_NS: u64 = 600_000_000_000;
/// A request or an answer that does not move for this long is given up.
const STUCK_NS: u64 = 10_000_000_000;
const CHECK_NS: u64 = 1_000_000_000;
/// Sockets whose lifetime is over, ended in one turn.
const LIFETIMES_PER_TURN: usize = 1024;
/// Memory that is kept for the next answer.
const OUT_KEPT_BYTES: usize = 64 * 1024;

/// What is called in JavaScript: the members of the object that the app was created with, in this order.
#[derive(Copy, Clone)]
pub(crate) enum Event {
    /// `(slot, route, upgrades) → passed on`
    Request,
    /// `(slot)`: the request's client has left.
    Aborted,
    /// `(slot, bytes, last)`: a piece of the request's body.
    Data,
    /// `(slot, offset)`: the answer can go on.
    Writable,
    /// `(slot, route)`
    Open,
    /// `(slot * 2 + binary, bytes)`
    Message,
    /// `(slot)`
    Drain,
    /// `(slot, code, reason)`
    Close,
    /// `(slot, bytes)`
    Ping,
    /// `(slot, bytes)`
    Pong,
}

const EVENTS: [&std::ffi::CStr; 10] = [
    c"request",
    c"aborted",
    c"data",
    c"writable",
    c"open",
    c"message",
    c"drain",
    c"close",
    c"ping",
    c"pong",
];

/// What is kept of a connection.
#[derive(Default)]
pub(crate) struct User {
    pub(crate) memberships: Memberships,
    /// The route of a WebSocket.
    pub(crate) route: u16,
    /// JavaScript knows of the socket's end.
    pub(crate) told: bool,
}

impl Subscriber for User {
    type Mark = u16;

    fn memberships(&mut self) -> &mut Memberships {
        &mut self.memberships
    }
}

/// What other threads post: publications.
pub(crate) struct Post(Arc<Publication>);

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post(publication)
    }
}

/// A route for WebSockets. Its index is the class of its connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketRoute {
    pub(crate) route: Route,
    pub(crate) message_bytes: usize,
    pub(crate) lifetime_ns: u64,
    /// The bytes of messages stay with JavaScript.
    pub(crate) keep: bool,
    /// Which handlers there are.
    pub(crate) upgrade: bool,
    pub(crate) open: bool,
    pub(crate) message: bool,
    pub(crate) drain: bool,
    pub(crate) ping: bool,
    pub(crate) pong: bool,
}

/// The request whose handler is being called. Its head lives as long as the call.
pub(crate) struct Now {
    pub(crate) exchange: Exchange,
    pub(crate) head: *const Head<'static, 'static>,
    pub(crate) spans: Vec<Span>,
}

struct CloseFrame {
    id: ConnId,
    code: Option<CloseCode>,
    reason: Box<str>,
}

pub(crate) struct Js {
    app: &'static App,
    env: Env,
    events: [napi_ref; EVENTS.len()],
    pub(crate) topics: Topics,
    /// Those of all hosts, then those of single ones.
    pub(crate) routers: Vec<(Box<str>, Router)>,
    /// By route, the index of those for WebSockets.
    pub(crate) routes: Vec<Option<u16>>,
    pub(crate) sockets: Vec<SocketRoute>,
    /// The shortest limit of messages.
    pub(crate) message_bytes_least: usize,
    pub(crate) now: Option<Now>,
    pub(crate) exchanges: BTreeMap<u32, Box<Exchange>>,
    frames: Vec<CloseFrame>,
    lifetimes: BinaryHeap<Reverse<(u64, ConnId)>>,
    checked_ns: u64,
    /// Buffers that are used again.
    pub(crate) scratch: Vec<u8>,
    out: Vec<u8>,
    spans: Vec<Span>,
    pub(crate) tls: Option<Certificates>,
    pub(crate) tls_server: Option<TlsServer>,
}

impl Js {
    pub(crate) fn new(app: &'static App, env: Env, events: napi_value, tls: bool) -> Js {
        Js {
            app,
            env,
            events: EVENTS.map(|name| env.keep(env.property(events, name))),
            topics: Topics::new(0, Directory::new()),
            routers: vec![("".into(), Router::default())],
            routes: Vec::new(),
            sockets: Vec::new(),
            message_bytes_least: usize::MAX,
            now: None,
            exchanges: BTreeMap::new(),
            frames: Vec::new(),
            lifetimes: BinaryHeap::new(),
            checked_ns: 0,
            scratch: Vec::new(),
            out: Vec::new(),
            spans: Vec::new(),
            tls: tls.then(Certificates::default),
            tls_server: None,
        }
    }

    /// Calls JavaScript.
    #[inline]
    fn emit<S: Sys, const N: usize>(
        &mut self,
        core: &mut Core<S, Self>,
        event: Event,
        arguments: impl FnOnce(Env) -> [napi_value; N],
    ) {
        self.emit_then(core, event, arguments, |_, _, _| {});
    }

    /// Calls JavaScript, and `then` with the arguments and the result.
    #[inline]
    fn emit_then<S: Sys, T: Default, const N: usize>(
        &mut self,
        core: &mut Core<S, Self>,
        event: Event,
        arguments: impl FnOnce(Env) -> [napi_value; N],
        then: impl FnOnce(Env, [napi_value; N], napi_value) -> T,
    ) -> T {
        let (env, app) = (self.env, self.app);
        if app.ended.get() {
            return T::default();
        }
        let function = self.events.get(event as usize).copied();
        env.scope(|| {
            let arguments = arguments(env);
            let function = env.kept(function.unwrap_or(std::ptr::null_mut()));
            let result = app.call_out(self, core, || env.emit(function, &arguments));
            then(env, arguments, result)
        })
    }

    pub(crate) fn socket_route(&self, user: Option<&User>) -> Option<&SocketRoute> {
        self.sockets.get(usize::from(user?.route))
    }

    /// The exchange of a connection.
    #[inline]
    pub(crate) fn exchange(&mut self, slot: u32) -> Option<&mut Exchange> {
        if let Some(now) = self.now.as_mut().filter(|now| now.exchange.id.slot() == slot) {
            return Some(&mut now.exchange);
        }
        self.exchanges.get_mut(&slot).map(|own| &mut **own)
    }

    // ---- requests ----

    /// Finds the routes of a request, and calls their handlers until one has it.
    fn on_request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Answer {
        let head = incoming.head;
        let router = self.router(head);
        let mut spans = std::mem::take(&mut self.spans);
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
            let exchange = self.begin(id, head, socket.is_some(), core.now_ns());
            // Only read while the handler is called: see `Now`.
            let head = std::ptr::from_ref(head).cast();
            self.now = Some(Now { exchange, head, spans });
            let slot = id.slot() as i32;
            let passed = self.emit_then(
                core,
                Event::Request,
                |env| [env.int(slot), env.int(route as i32), env.bool(socket.is_some())],
                |env, _, passed| env.to_u32(passed),
            );
            let Some(now) = self.now.take() else {
                // It was aborted.
                return Answer::Written { keep_alive: false };
            };
            spans = now.spans;
            if passed == 1 && !now.exchange.has_begun() {
                self.out = now.exchange.out;
                continue;
            }
            self.spans = spans;
            return self.after_request(core, now.exchange, socket.is_some());
        }
        self.spans = spans;
        not_found()
    }

    /// The router of the host that a request is for.
    fn router(&self, head: &Head<'_, '_>) -> usize {
        if self.routers.len() == 1 {
            return 0;
        }
        let host = head.authority().unwrap_or_default();
        let host = host.split(|byte| *byte == b':').next().unwrap_or_default();
        let is = |(name, _): &(Box<str>, Router)| name.as_bytes().eq_ignore_ascii_case(host);
        self.routers.iter().position(is).unwrap_or(0)
    }

    fn begin(&mut self, id: ConnId, head: &Head<'_, '_>, upgrades: bool, now_ns: u64) -> Exchange {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let mut exchange = Exchange::new(id, out, now_ns);
        exchange.keep_alive = keep_alive(head);
        exchange.head_only = head.method == "HEAD";
        exchange.http_1_0 = head.version == 0;
        if !upgrades {
            let limits = wire::Limits { body_bytes: u64::MAX, ..wire::Limits::default() };
            exchange.decoder = BodyDecoder::for_request(head, &limits).ok();
            exchange.expects_continue = expects_continue(head);
        }
        exchange
    }

    /// A handler has returned: the answer may be complete, or follow.
    fn after_request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        mut exchange: Exchange,
        upgrades: bool,
    ) -> Answer {
        let id = exchange.id;
        if let Some(protocol) = exchange.upgrade.take() {
            return opened(protocol, &mut exchange);
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

    fn keep_out(&mut self, mut out: Vec<u8>) {
        out.clear();
        out.shrink_to(OUT_KEPT_BYTES);
        self.out = out;
    }

    /// The answer to a request that the engine has kept.
    fn decided<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Answer {
        let Some(mut exchange) = self.exchanges.remove(&id.slot()) else {
            return Answer::Written { keep_alive: false };
        };
        if let Some(protocol) = exchange.upgrade.take() {
            return opened(protocol, &mut exchange);
        }
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

    /// Passes on what was written to a connection, and ends the exchange if it is over.
    pub(crate) fn pass_on<S: Sys>(&mut self, core: &mut Core<S, Self>, slot: u32) {
        let Some(exchange) = self.exchanges.get_mut(&slot) else { return };
        let id = exchange.id;
        match exchange.place {
            // It is passed on when the handler returns.
            Place::Handler => return,
            Place::Parked => {
                let decided = exchange.upgrade.is_some() || exchange.has_ended();
                let begun = !exchange.corked && !exchange.out.is_empty();
                if (decided || begun) && !std::mem::replace(&mut exchange.told, true) {
                    core.remote().answer(id, Answer::ByHandler);
                }
                return;
            }
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
        if exchange.has_ended() && exchange.body_is_complete() {
            let keep = exchange.keep_alive;
            if let Some(exchange) = self.exchanges.remove(&slot) {
                self.keep_out(exchange.out);
            }
            core.counters().requests.add(1);
            if keep {
                core.next_request(id);
            } else {
                core.end_after(id, Closed::Answered);
            }
        }
    }

    /// Bytes of a request's body.
    fn on_data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        let (slot, mut at) = (id.slot(), 0);
        loop {
            let rest = data.get(at..).unwrap_or_default();
            let Some(exchange) = self.exchanges.get_mut(&slot) else { return };
            let decoder = exchange.decoder.as_mut().filter(|decoder| !decoder.is_done());
            let Some(decoder) = decoder.filter(|_| !exchange.paused) else {
                if !rest.is_empty() {
                    // What follows the body is the next request.
                    core.leave_unread(rest.len());
                }
                return;
            };
            exchange.moved_ns = core.now_ns();
            let decoded = decoder.decode(rest);
            let ends = decoder.is_done();
            let (used, piece) = match decoded {
                Ok(wire::Status::Partial) => return,
                Ok(wire::Status::Complete((used, wire::http::BodyEvent::Data(piece)))) => {
                    (used, piece)
                }
                Ok(wire::Status::Complete((used, wire::http::BodyEvent::End))) => (used, &[][..]),
                Err(violation) => {
                    core.counters().count_violation(violation);
                    return core.reset(id);
                }
            };
            at += used;
            if ends {
                core.counters().bodies_in.add(1);
                if at < data.len() {
                    core.leave_unread(data.len() - at);
                }
            }
            if exchange.wants_data && !exchange.has_ended() && (ends || !piece.is_empty()) {
                self.emit(core, Event::Data, |env| {
                    [env.int(slot as i32), env.array_buffer(piece), env.bool(ends)]
                });
            }
            if ends {
                return self.pass_on(core, slot);
            }
        }
    }

    /// Gives up what does not move. Returns when to look again.
    fn check_exchanges<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if self.exchanges.is_empty() {
            return None;
        }
        let now_ns = core.now_ns();
        if now_ns >= self.checked_ns.saturating_add(CHECK_NS) {
            self.checked_ns = now_ns;
            for exchange in self.exchanges.values_mut() {
                let queued = core.queued(exchange.id);
                let receives = !exchange.body_is_complete() && !exchange.paused;
                if queued < exchange.queued || queued == 0 && !receives {
                    exchange.moved_ns = now_ns;
                }
                exchange.queued = queued;
                if now_ns.saturating_sub(exchange.moved_ns) >= STUCK_NS {
                    core.reset(exchange.id);
                }
            }
        }
        Some(self.checked_ns.saturating_add(CHECK_NS))
    }

    // ---- WebSockets ----

    /// Tells JavaScript that a socket is closed, once.
    fn tell_closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        let frame = self.frames.iter().position(|frame| frame.id == id);
        let frame = frame.map(|at| self.frames.swap_remove(at));
        let told = core.user_mut(id).is_none_or(|user| std::mem::replace(&mut user.told, true));
        if !told {
            let (code, reason) = match (&frame, why) {
                (Some(frame), _) => (frame.code.map_or(1005, |code| code.0), &*frame.reason),
                (None, Closed::IdleTimeout) => (1006, "WebSocket timed out from inactivity"),
                (None, Closed::SlowConsumer) => (1006, "Backpressure limit exceeded"),
                (None, Closed::Gone) => (1006, "Received TCP FIN before WebSocket close frame"),
                (None, why) => (1006, why.name()),
            };
            self.emit(core, Event::Close, |env| {
                let slot = env.int(id.slot() as i32);
                [slot, env.int(code.into()), env.array_buffer(reason.as_bytes())]
            });
        }
        self.topics.unsubscribe_all(core, id, |_| {});
    }

    /// Ends sockets that have lived for as long as their route allows.
    fn end_lifetimes<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        for _ in 0..LIFETIMES_PER_TURN {
            let Reverse((at_ns, id)) = self.lifetimes.peek().copied()?;
            if at_ns > core.now_ns() {
                return Some(at_ns);
            }
            self.lifetimes.pop();
            if core.is_open(id) {
                let (code, reason) = (CloseCode::NORMAL, "please reconnect");
                self.frames.push(CloseFrame { id, code: Some(code), reason: reason.into() });
                self.tell_closed(core, id, Closed::ByUs);
                core.close(id, code, reason);
            }
        }
        self.lifetimes.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    fn for_socket(&self, user: Option<&User>, has: impl Fn(&SocketRoute) -> bool) -> bool {
        let told = user.is_none_or(|user| user.told);
        !told && self.socket_route(user).is_some_and(has)
    }
}

/// Encodes a publication for subscribers with this compression. A publication with a kind is compressed.
pub(crate) fn encode<S: Sys>(
    core: &mut Core<S, Js>,
    encoding: u32,
    publication: &Publication,
    out: &mut Vec<u8>,
) {
    let opcode = if publication.binary { OpCode::Binary } else { OpCode::Text };
    if publication.kind.is_none() {
        wire::websocket::encode(out, opcode, &publication.data);
    } else {
        core.encode_message(encoding, opcode, &publication.data, out);
    }
}

fn opened(protocol: Option<Box<str>>, exchange: &mut Exchange) -> Answer {
    let headers = exchange.take_headers();
    if headers.is_empty() {
        return Answer::Upgrade(protocol);
    }
    Answer::UpgradeWith(protocol, headers.into())
}

fn not_found() -> Answer {
    let mut response = Response::text(404, "<html><body><h1>File Not Found</h1></body></html>\n");
    response.content_type = "text/html; charset=utf-8";
    response.close = true;
    Answer::Respond(response)
}

impl Handler for Js {
    type User = User;
    type Post = Post;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.set_tls(self.tls_server.clone());
    }

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Answer {
        self.on_request(core, id, incoming)
    }

    fn late_answer<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Answer {
        self.decided(core, id)
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(own) = self.socket_route(core.user(id)) else {
            return invariant::broken("an open socket has a route");
        };
        let (route, lifetime_ns, open) = (own.route, own.lifetime_ns, own.open);
        if lifetime_ns > 0 {
            let at_ns = core.now_ns().saturating_add(lifetime_ns);
            self.lifetimes.push(Reverse((at_ns, id)));
        }
        if open {
            let slot = id.slot() as i32;
            self.emit(core, Event::Open, |env| [env.int(slot), env.int(route as i32)]);
        }
    }

    #[inline]
    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        let user = core.user(id);
        if data.len() > self.message_bytes_least
            && self.socket_route(user).is_some_and(|own| data.len() > own.message_bytes)
        {
            let reason = "Received too big message";
            self.frames.push(CloseFrame { id, code: Some(CloseCode(1006)), reason: reason.into() });
            self.tell_closed(core, id, Closed::Violation);
            core.counters().count_violation(Violation::MessageTooBig);
            return core.close(id, CloseCode::TOO_BIG, reason);
        }
        let route = user.filter(|user| !user.told).and_then(|user| self.socket_route(Some(user)));
        if let Some(keep) = route.filter(|own| own.message).map(|own| own.keep) {
            // The slot and, as its lowest bit, whether the message is binary.
            let slot = id.slot() << 1 | u32::from(opcode == OpCode::Binary);
            self.emit_then(
                core,
                Event::Message,
                |env| [env.int(slot as i32), env.array_buffer(data)],
                |env, [_, bytes], _| {
                    if !keep {
                        // Its memory is used again at once, instead of after the next collection.
                        env.detach(bytes);
                    }
                },
            );
        }
    }

    fn ping<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        if self.for_socket(core.user(id), |own| own.ping) {
            let slot = id.slot() as i32;
            self.emit(core, Event::Ping, |env| [env.int(slot), env.array_buffer(data)]);
        }
    }

    fn pong<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        if self.for_socket(core.user(id), |own| own.pong) {
            let slot = id.slot() as i32;
            self.emit(core, Event::Pong, |env| [env.int(slot), env.array_buffer(data)]);
        }
    }

    fn close_frame<S: Sys>(
        &mut self,
        _core: &mut Core<S, Self>,
        id: ConnId,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        self.frames.push(CloseFrame { id, code, reason: reason.into() });
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        self.on_data(core, id, data);
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let slot = id.slot();
        if let Some(exchange) = self.exchanges.get_mut(&slot) {
            exchange.moved_ns = core.now_ns();
            let offset = exchange.offset as f64;
            self.emit(core, Event::Writable, |env| [env.int(slot as i32), env.number(offset)]);
        } else if core.is_open(id) && self.for_socket(core.user(id), |own| own.drain) {
            self.emit(core, Event::Drain, |env| [env.int(slot as i32)]);
        }
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        self.tell_closed(core, id, why);
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        if opened {
            return self.tell_closed(core, id, why);
        }
        let exchange = self.exchanges.remove(&id.slot());
        if exchange.is_some_and(|exchange| !exchange.has_ended()) {
            self.emit(core, Event::Aborted, |env| [env.int(id.slot() as i32)]);
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, Post(publication): Post) {
        self.topics.deliver(core, &publication, encode);
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let topics_ns = self.topics.turn(core, encode);
        let exchanges_ns = self.check_exchanges(core);
        let lifetimes_ns = self.end_lifetimes(core);
        topics_ns.into_iter().chain(exchanges_ns).chain(lifetimes_ns).min()
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}
