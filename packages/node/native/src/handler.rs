//! [`Js`]: the engine's handler, whose events are calls of JavaScript.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Opening, Sys, TlsServer, invariant};
use napi_sys::{napi_ref, napi_value};
use topics::{Memberships, Publication, Subscriber, Topics};
use wire::Violation;
use wire::http::Request as Head;
use wire::websocket::{CloseCode, OpCode};

use crate::app::{APP_BYTES, App};
use crate::cached::Cache;
use crate::children::{self, Family};
use crate::exchange::Exchange;
use crate::napi::{Env, Scope};
use crate::replays::{POSITIONS, Replays};
use crate::router::{Route, Router, Span};
use crate::setup::Certificates;
use crate::shared::Shared;
use crate::threads::{Batch, Event as ThreadEvent, Threads};

/// Sockets whose lifetime is over, ended in one turn.
const LIFETIMES_PER_TURN: usize = 1024;

/// Lifetimes of sockets that have ended, besides one for each slot, before they are taken out.
const LIFETIMES_ENDED_MAX: usize = 1024;

/// What is called in JavaScript: the members of the object that the app was created with, in this order.
#[derive(Copy, Clone)]
pub(crate) enum Event {
    /// `(slot, route, upgrades) → passed on`; of a route with a cache, `upgrades` is whether its client has an answer already
    Request,
    /// `(slot)`: the request's client has left.
    Aborted,
    /// `(slot, bytes, last) → 1 if the bytes are kept`: a piece of the request's body.
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
    /// `(slot, 1 or -1)`: a connection has come or gone.
    Filter,
    /// `(name)`: a client of TLS asks for a name that has no certificate.
    MissingName,
    /// `(slot * 2 + binary, bytes)`: a publication that a socket has lost.
    Dropped,
    /// `(topic)`: publications of other processes may be missing.
    Missed,
    /// `(topic)`: what the broker keeps of it can be read.
    Confirmed,
    /// `(slot, topic, reason or undefined, position)`: a subscription has got what it missed, or not all of it.
    Replayed,
}

const EVENTS: [&std::ffi::CStr; 16] = [
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
    c"filter",
    c"missing_name",
    c"dropped",
    c"missed",
    c"confirmed",
    c"replayed",
];

/// What is kept of a connection.
#[derive(Default)]
pub(crate) struct User {
    pub(crate) memberships: Memberships,
    /// The route of a WebSocket.
    pub(crate) route: u16,
    /// JavaScript knows of the socket's end.
    pub(crate) told: bool,
    /// Its end is reported to JavaScript as [`Event::Filter`].
    pub(crate) counted: bool,
}

impl Subscriber for User {
    type Mark = u16;

    fn memberships(&mut self) -> &mut Memberships {
        &mut self.memberships
    }
}

/// What other threads post.
pub(crate) enum Post {
    Publication(Arc<Publication>),
    /// The broker has confirmed topics.
    Confirmed(Arc<[Box<str>]>),
    Family(Family),
    /// From a thread that holds sockets, with the number of its start.
    Events(u32, Box<Batch<ThreadEvent>>),
}

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post::Publication(publication)
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
    pub(crate) dropped: bool,
    pub(crate) ping: bool,
    pub(crate) pong: bool,
}

/// The request whose handler is being called. Its head lives as long as the call.
pub(crate) struct Now {
    pub(crate) exchange: Exchange,
    pub(crate) head: *const Head<'static, 'static>,
    pub(crate) spans: Vec<Span>,
    /// What opens its WebSocket, if it asks for one.
    pub(crate) opening: Option<Opening>,
}

pub(crate) struct CloseFrame {
    pub(crate) id: ConnId,
    pub(crate) code: Option<CloseCode>,
    pub(crate) reason: Box<str>,
}

pub(crate) struct Js {
    app: &'static App,
    env: Env,
    events: [napi_ref; EVENTS.len()],
    /// The scope of the calls of this turn, and what is called, in it.
    scope: Scope,
    functions: [napi_value; EVENTS.len()],
    pub(crate) topics: Topics,
    pub(crate) replays: Replays,
    /// The part in topics of several apps, if they are such.
    pub(crate) shared: Option<Shared>,
    /// Threads that hold the sockets, if there are such.
    pub(crate) threads: Option<Box<Threads>>,
    /// Those of all hosts, then those of single ones.
    pub(crate) routers: Vec<(Box<str>, Router)>,
    /// By route, the index of those for WebSockets.
    pub(crate) routes: Vec<Option<u16>>,
    pub(crate) sockets: Vec<SocketRoute>,
    /// By route, its answers; empty without such routes.
    pub(crate) caches: Vec<Option<Box<Cache>>>,
    /// The shortest limit of messages.
    pub(crate) message_bytes_least: usize,
    pub(crate) now: Option<Now>,
    pub(crate) exchanges: BTreeMap<u32, Box<Exchange>>,
    frames: Vec<CloseFrame>,
    /// The socket whose end is being reported.
    pub(crate) ending: Option<ConnId>,
    /// Answers that can go on, in the next turn.
    pub(crate) ready: Vec<ConnId>,
    pub(crate) filters: bool,
    /// A route has a handler for what its sockets lose.
    pub(crate) reports_dropped: bool,
    lifetimes: BinaryHeap<Reverse<(u64, ConnId)>>,
    pub(crate) checked_ns: u64,
    /// Buffers that are used again.
    pub(crate) scratch: Vec<u8>,
    pub(crate) out: Vec<u8>,
    pub(crate) spans: Vec<Span>,
    pub(crate) tls: Option<Certificates>,
    pub(crate) tls_server: Option<TlsServer>,
}

impl Js {
    pub(crate) fn new(
        app: &'static App,
        env: Env,
        events: napi_value,
        tls: bool,
        topics: Topics,
        shared: Option<Shared>,
    ) -> Js {
        Js {
            app,
            env,
            events: EVENTS.map(|name| env.keep(env.property(events, name))),
            scope: Scope::default(),
            functions: [std::ptr::null_mut(); EVENTS.len()],
            topics,
            replays: Replays::default(),
            shared,
            threads: None,
            routers: vec![("".into(), Router::default())],
            routes: Vec::new(),
            sockets: Vec::new(),
            caches: Vec::new(),
            message_bytes_least: usize::MAX,
            now: None,
            exchanges: BTreeMap::new(),
            frames: Vec::new(),
            ending: None,
            ready: Vec::new(),
            filters: false,
            reports_dropped: false,
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
    pub(crate) fn emit<S: Sys, const N: usize>(
        &mut self,
        core: &mut Core<S, Self>,
        event: Event,
        arguments: impl FnOnce(Env) -> [napi_value; N],
    ) {
        self.emit_then(core, event, arguments, |_, _, _| {});
    }

    /// Calls JavaScript, and `then` with the arguments and the result.
    #[inline]
    pub(crate) fn emit_then<S: Sys, T: Default, const N: usize>(
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
        if self.scope.enter(env) {
            self.functions = [std::ptr::null_mut(); EVENTS.len()];
        }
        let at = event as usize;
        let (Some(function), Some(kept)) = (self.functions.get_mut(at), self.events.get(at)) else {
            return T::default();
        };
        if function.is_null() {
            *function = env.kept(*kept);
        }
        let (function, arguments) = (*function, arguments(env));
        let result = app.call_out(self, core, || env.emit(function, &arguments));
        then(env, arguments, result)
    }

    /// Whether JavaScript's half stays when nothing else has it.
    pub(crate) fn set_strong(&self, strong: bool) {
        self.events.iter().for_each(|kept| self.env.set_strong(*kept, strong));
    }

    /// No more JavaScript is called.
    pub(crate) fn forget_all(&self) {
        self.events.iter().for_each(|kept| self.env.forget(*kept));
        self.env.weigh(-APP_BYTES);
    }

    /// Frees the handles of the calls of a turn.
    pub(crate) fn end_scope(&mut self) {
        self.scope.close(self.env);
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

    /// Tells JavaScript that a socket is closed, once.
    fn tell_closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        let frame = self.frames.iter().position(|frame| frame.id == id);
        let frame = frame.map(|at| self.frames.swap_remove(at));
        let told = core.user_mut(id).is_none_or(|user| std::mem::replace(&mut user.told, true));
        if !told {
            let (code, reason) = close_reason(frame.as_ref(), why, core.violation(id));
            self.ending = Some(id);
            self.emit(core, Event::Close, |env| {
                let slot = env.int(id.slot() as i32);
                [slot, env.int(code.into()), env.array_buffer(reason.as_bytes())]
            });
            self.ending = None;
        }
        self.replays.remove_all(id);
        self.topics.unsubscribe_all(core, id, |_| {});
    }

    /// A socket has opened: its lifetime begins.
    pub(crate) fn begin_lifetime<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) {
        let lifetime_ns = self.socket_route(core.user(id)).map_or(0, |own| own.lifetime_ns);
        if lifetime_ns > 0 {
            if self.lifetimes.len() > LIFETIMES_ENDED_MAX + 2 * core.slots() as usize {
                self.lifetimes.retain(|Reverse((_, id))| core.is_open(*id));
            }
            let at_ns = core.now_ns().saturating_add(lifetime_ns);
            self.lifetimes.push(Reverse((at_ns, id)));
        }
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

    pub(crate) fn for_socket(
        &self,
        user: Option<&User>,
        has: impl Fn(&SocketRoute) -> bool,
    ) -> bool {
        let told = user.is_none_or(|user| user.told);
        !told && self.socket_route(user).is_some_and(has)
    }
}

/// Encodes a publication for subscribers with this compression, after its position for those with positions. A publication
/// with a kind is compressed.
pub(crate) fn encode<S: Sys, H: Handler>(
    core: &mut Core<S, H>,
    encoding: u32,
    publication: &Publication,
    out: &mut Vec<u8>,
) {
    let opcode = if publication.binary { OpCode::Binary } else { OpCode::Text };
    let whole: Vec<u8>;
    let mut data = &*publication.data;
    if encoding & POSITIONS != 0 {
        let position = publication.position().map(|position| position.to_string());
        whole = [position.unwrap_or_default().as_bytes(), b"\n", data].concat();
        data = &whole;
    }
    if publication.kind.is_none() {
        wire::websocket::encode(out, opcode, data);
    } else {
        core.encode_message(encoding, opcode, data, out);
    }
}

/// The code and the reason that close handlers get, in the words of uWebSockets.
pub(crate) fn close_reason(
    frame: Option<&CloseFrame>,
    why: Closed,
    violation: Option<Violation>,
) -> (u16, &str) {
    match (frame, why) {
        (Some(frame), _) => (frame.code.map_or(1005, |code| code.0), &*frame.reason),
        (None, Closed::IdleTimeout) => (1006, "WebSocket timed out from inactivity"),
        (None, Closed::SlowConsumer) => (1006, "Backpressure limit exceeded"),
        (None, Closed::Violation) => (1006, violated(violation)),
        (None, Closed::Gone) => (1006, "Received TCP FIN before WebSocket close frame"),
        (None, why) => (1006, why.name()),
    }
}

/// As uWebSockets.js says it.
fn violated(violation: Option<Violation>) -> &'static str {
    match violation {
        Some(Violation::MessageTooBig) => "Received too big message",
        Some(Violation::InvalidUtf8) => "Received invalid UTF-8",
        _ => "Received invalid WebSocket frame",
    }
}

impl Handler for Js {
    type User = User;
    type Post = Post;

    /// Fewer changes between the kernel's code and that of JavaScript.
    const READS_TOGETHER: usize = 32;
    const READS_SOCKETS_TOGETHER: bool = true;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.set_tls(self.tls_server.clone());
    }

    fn arrived<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if self.filters {
            if let Some(user) = core.user_mut(id) {
                user.counted = true;
            }
            self.emit(core, Event::Filter, |env| [env.int(id.slot() as i32), env.int(1)]);
        }
    }

    fn server_name<S: Sys>(&mut self, core: &mut Core<S, Self>, _id: ConnId, name: &str) {
        if !self.tls.as_ref().is_some_and(|own| own.is_named(name)) {
            self.emit(core, Event::MissingName, |env| [env.string(name)]);
        }
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
        let (route, open) = (own.route, own.open);
        self.begin_lifetime(core, id);
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
        self.replays.drained(id);
        if self.exchanges.contains_key(&slot) {
            self.tell_writable(core, id);
        } else if core.is_open(id) && self.for_socket(core.user(id), |own| own.drain) {
            self.emit(core, Event::Drain, |env| [env.int(slot as i32)]);
        }
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        self.tell_closed(core, id, why);
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        let slot = id.slot() as i32;
        if opened {
            self.tell_closed(core, id, why);
        } else if self.exchanges.remove(&id.slot()).is_some_and(|own| !own.has_ended()) {
            self.emit(core, Event::Aborted, |env| [env.int(slot)]);
        }
        if core.user(id).is_some_and(|user| user.counted) {
            self.emit(core, Event::Filter, |env| [env.int(slot), env.int(-1)]);
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Publication(notice) if notice.gap => {
                self.emit(core, Event::Missed, |env| [env.string(&notice.topic)]);
            }
            Post::Publication(publication) => self.deliver(core, &publication),
            Post::Confirmed(topics) => {
                for topic in &*topics {
                    self.emit(core, Event::Confirmed, |env| [env.string(topic)]);
                }
            }
            Post::Family(news) => children::heard(self.app, news),
            Post::Events(start, batch) => self.on_batch(core, start, &batch),
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let topics_ns = self.topics.turn(core, encode);
        let history_ns = self.turn_history(core);
        if self.reports_dropped {
            self.tell_dropped(core);
        }
        self.go_on(core);
        let exchanges_ns = self.check_exchanges(core);
        let lifetimes_ns = self.end_lifetimes(core);
        let threads_ns = self.pass_on_commands(core.now_ns());
        let all = [topics_ns, history_ns, exchanges_ns, lifetimes_ns, threads_ns];
        all.into_iter().flatten().min()
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}
