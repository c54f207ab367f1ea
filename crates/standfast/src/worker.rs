//! [`WorkerHandler`]: the engine's handler of one worker, which calls the routes.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use engine::{
    Answer, Closed, ConnId, Core, Incoming, Response as EngineResponse, Sys, TlsServer, invariant,
};
use topics::{Directory, Memberships, Subscriber, Topics};
use wire::http::{EMPTY_HEADER, MAX_HEADERS, Request as Head, parse_request};
use wire::websocket::{CloseCode, OpCode};

use crate::exchanges::{Exchanges, Unattended, decoder};
use crate::handler::Opening;
use crate::intervals::Every;
use crate::operations::{Tools, WorkerOperations, encode};
use crate::pubsub::Link;
use crate::remote::{Gone, Hub, Post};
use crate::request::Connected;
use crate::routes::{RouteList, Upgraded, nanoseconds};
use crate::table::{Begin, Service, Table, Target};
use crate::timers::{SocketTimers, TIMERS_PER_TURN};
use crate::{Close, Context, Message, Remote, Reply, Request, Socket, UpgradeRequest};

/// What is kept of a connection: its subscriptions, with the slot of its route as their mark.
#[derive(Default)]
pub(crate) struct Connection<D: Default>(pub(crate) Memberships<D>);

impl<D: Default> Connection<D> {
    #[inline]
    fn slot(&mut self) -> &mut D {
        self.0.mark_mut()
    }
}

impl<D: Default> Subscriber for Connection<D> {
    type Mark = D;

    fn memberships(&mut self) -> &mut Memberships<D> {
        &mut self.0
    }
}

/// A request whose body is being received.
struct PendingRequest {
    head: Vec<u8>,
    /// Its route in the table.
    index: usize,
}

/// A close frame whose connection is reported as closed at the end of the turn.
struct CloseFrame {
    id: ConnId,
    code: Option<CloseCode>,
    reason: Box<str>,
}

/// Whether a worker of the server has ended.
#[derive(Default)]
pub(crate) struct Ended {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Waits until one has ended.
    pub(crate) fn wait(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            ended = self.changed.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Reports the end of its worker, also by a panic.
struct EndGuard(Arc<Ended>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

pub(crate) struct WorkerHandler<R: RouteList> {
    routes: R,
    waiting: R::Waiting,
    table: Arc<Table>,
    pub(crate) tools: Tools,
    tls: Option<TlsServer>,
    /// Routes have limits of their own.
    by_route: bool,
    pub(crate) exchange_timeout: Duration,
    pub(crate) exchanges: Exchanges,
    /// Requests whose bodies are being received.
    pending: BTreeMap<ConnId, PendingRequest>,
    /// What the first worker does at intervals.
    every: Vec<Every>,
    close_frames: Vec<CloseFrame>,
    _guard: EndGuard,
}

/// What all workers of a server share.
pub(crate) struct Shared {
    pub(crate) table: Arc<Table>,
    pub(crate) directory: Directory,
    pub(crate) link: Link,
    pub(crate) tls: Option<TlsServer>,
    pub(crate) by_route: bool,
    pub(crate) reply_timeout: Duration,
    pub(crate) exchange_timeout: Duration,
    pub(crate) every: Mutex<Vec<Every>>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) ended: Arc<Ended>,
}

impl<R: RouteList> WorkerHandler<R> {
    pub(crate) fn new(
        worker: u16,
        routes: R,
        shared: &Shared,
        workers: &engine::Remote<Post>,
    ) -> Self {
        let every = &mut *shared.every.lock().unwrap_or_else(PoisonError::into_inner);
        let every = if worker == 0 { std::mem::take(every) } else { Vec::new() };
        WorkerHandler {
            routes,
            waiting: R::Waiting::default(),
            table: Arc::clone(&shared.table),
            tools: Tools {
                topics: Topics::new(worker, shared.directory.clone()),
                remote: Remote::new(
                    workers.clone(),
                    shared.directory.clone(),
                    shared.link.clone(),
                    Arc::clone(&shared.hub),
                ),
                timers: SocketTimers::default(),
                reply_timeout: shared.reply_timeout,
            },
            tls: shared.tls.clone(),
            by_route: shared.by_route,
            exchange_timeout: shared.exchange_timeout,
            exchanges: Exchanges::default(),
            pending: BTreeMap::new(),
            every,
            close_frames: Vec::new(),
            _guard: EndGuard(Arc::clone(&shared.ended)),
        }
    }

    /// Calls a route with a socket and its data, which is moved out of the connection meanwhile: the
    /// handler may do anything with the worker.
    #[inline]
    fn call<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        call: impl FnOnce(&mut R, &mut Socket<'_>, &mut R::Slot),
    ) {
        let Some(connection) = core.user_mut(id) else { return };
        let mut slot = std::mem::take(connection.slot());
        let WorkerHandler { routes, tools, .. } = self;
        let mut operations = WorkerOperations { core: &mut *core, tools };
        call(routes, &mut Socket::new(&mut operations, id), &mut slot);
        // A connection that has ended meanwhile is there until the end of the turn.
        if let Some(connection) = core.user_mut(id) {
            *connection.slot() = slot;
        }
    }

    /// Ends the session of a WebSocket, unless that was done before.
    fn end_session<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, cause: Closed) {
        self.tools.topics.unsubscribe_all(core, id, |_| {});
        self.tools.timers.clear(id);
        let frame = self.close_frames.iter().position(|frame| frame.id == id);
        let frame = frame.map(|at| self.close_frames.swap_remove(at));
        let Some(connection) = core.user_mut(id) else { return };
        let slot = std::mem::take(connection.slot());
        let code = frame.as_ref().and_then(|frame| frame.code);
        let reason = frame.as_ref().map_or("", |frame| &frame.reason);
        let close = Close { cause, code, reason };
        let WorkerHandler { routes, tools, .. } = self;
        let mut operations = WorkerOperations { core, tools };
        routes.close(&mut Socket::new(&mut operations, id), slot, &close);
    }

    /// Calls the timers that are due, some in each turn.
    fn on_timers<S: Sys>(&mut self, core: &mut Core<S, Self>, now_ns: u64) {
        for _ in 0..TIMERS_PER_TURN {
            let Some(id) = self.tools.timers.pop(now_ns) else { break };
            if core.is_open(id) {
                self.call(core, id, |routes, socket, slot| routes.timer(socket, slot));
            }
        }
    }

    fn answer_upgrade<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        upgraded: Upgraded<R::Slot>,
    ) -> Answer {
        match upgraded {
            Upgraded::Open(slot, Opening { protocol, headers }) => {
                if let Some(connection) = core.user_mut(id) {
                    *connection.slot() = slot;
                }
                if headers.is_empty() {
                    return Answer::Upgrade(protocol);
                }
                Answer::UpgradeWith(protocol, headers.into())
            }
            Upgraded::Refuse(response) => Answer::Respond(response.0),
            Upgraded::Later => Answer::LaterWithin(nanoseconds(core.limits().handshake_timeout)),
        }
    }

    /// Answers a plain request, or asks for its body.
    fn answer_plain<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        head: &Head<'_, '_>,
    ) -> Answer {
        if self.by_route {
            // It may have been refused as a WebSocket before.
            core.set_class(id, u8::MAX);
        }
        let index = match self.table.http(head.method, head.path()) {
            Ok(index) => index,
            Err(answer) => return answer,
        };
        match self.table.entry(index).map(|entry| &entry.target) {
            Some(Target::Http { service: Service::Exchange(begin), body_bytes, .. }) => {
                let (begin, bytes) = (Arc::clone(begin), body_bytes.unwrap_or(0));
                self.begin_exchange(core, id, index, head, bytes, &begin)
            }
            Some(Target::Http { body_bytes: Some(bytes), .. }) => {
                let bytes = *bytes;
                self.pending.insert(id, PendingRequest { head: copy_of(head), index });
                Answer::Body(bytes)
            }
            _ => self.respond(core, id, index, head, None),
        }
    }

    fn respond<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        index: usize,
        head: &Head<'_, '_>,
        body: Option<&[u8]>,
    ) -> Answer {
        let (body, body_is_complete) = (body.unwrap_or_default(), body.is_some());
        let Some(entry) = self.table.entry(index) else {
            return lost("a request is for an entry of the table");
        };
        let client = Connected(core, id);
        let (pattern, remote) = (&entry.pattern, &self.tools.remote);
        let request = Request { head, pattern, body, client: &client, remote };
        let ask = match &entry.target {
            Target::Http { service: Service::Now(respond), .. } => {
                return Answer::Respond(respond(&request).0);
            }
            Target::Http { service: Service::Later(ask), .. } => ask,
            _ => return lost("a plain request is for a plain route"),
        };
        let rest = if body_is_complete { Ok(None) } else { decoder(head, 0).map(Some) };
        let rest = match rest {
            Ok(rest) => rest,
            Err(response) => return Answer::Respond(response.0),
        };
        let (reply, shared) = Reply::new(id, remote.clone());
        ask(&request, reply);
        let now_ns = core.now_ns();
        let until_ns = now_ns.saturating_add(nanoseconds(self.tools.reply_timeout));
        let reply = Some((shared, until_ns));
        let exchange = Box::new(Unattended);
        self.exchanges.begin(id, head, exchange, rest, now_ns, reply)
    }

    fn begin_exchange<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        index: usize,
        head: &Head<'_, '_>,
        body_bytes: u64,
        begin: &Begin,
    ) -> Answer {
        let Some(entry) = self.table.entry(index) else {
            return lost("a request is for an entry of the table");
        };
        let client = Connected(core, id);
        let (pattern, remote) = (&entry.pattern, &self.tools.remote);
        let request = Request { head, pattern, body: &[], client: &client, remote };
        let began = decoder(head, body_bytes).and_then(|decoder| Ok((decoder, begin(&request)?)));
        match began {
            Ok((decoder, exchange)) => {
                self.exchanges.begin(id, head, exchange, Some(decoder), core.now_ns(), None)
            }
            Err(response) => Answer::Respond(response.0),
        }
    }
}

impl<R: RouteList> engine::Handler for WorkerHandler<R> {
    type User = Connection<R::Slot>;
    type Post = Post;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.set_tls(self.tls.clone());
    }

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Answer {
        let head = incoming.head;
        let upgraded = match (incoming.upgrade, self.table.socket(head.path())) {
            (Some(upgrade), Some((pattern, index))) => {
                if self.by_route {
                    core.set_class(id, u8::try_from(index).unwrap_or(u8::MAX));
                }
                let client = Connected(core, id);
                let remote = &self.tools.remote;
                let request = Request { head, pattern, body: &[], client: &client, remote };
                let request = UpgradeRequest { request: &request, upgrade, id };
                self.routes.upgrade(&mut self.waiting, index, &request)
            }
            _ => return self.answer_plain(core, id, head),
        };
        self.answer_upgrade(core, id, upgraded)
    }

    fn body<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, body: Vec<u8>) -> Answer {
        let Some(PendingRequest { head, index }) = self.pending.remove(&id) else {
            return lost("a request whose body is received is kept");
        };
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        match parse_request(&head, &mut headers) {
            Ok(head) => self.respond(core, id, index, &head, Some(&body)),
            Err(_) => lost("a head that was parsed can be parsed again"),
        }
    }

    fn late_answer<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Answer {
        match R::decided(&mut self.waiting, id) {
            Some(upgraded) => self.answer_upgrade(core, id, upgraded),
            None => lost("a client that waits for a decision is kept"),
        }
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.call(core, id, |routes, socket, slot| routes.open(socket, slot));
    }

    #[inline]
    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        let Some(message) = Message::received(opcode, data) else { return };
        self.call(core, id, |routes, socket, slot| routes.message(socket, slot, message));
    }

    fn pong<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        // Those to the keep-alive's own pings are empty.
        if !data.is_empty() {
            self.call(core, id, |routes, socket, slot| routes.pong(socket, slot, data));
        }
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if core.is_open(id) {
            self.call(core, id, |routes, socket, slot| routes.drain(socket, slot));
        } else {
            self.on_exchange_drained(core, id);
        }
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        self.on_body_data(core, id, data);
    }

    fn defers_drain<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        self.on_exchange_stopping(core, id)
    }

    fn going_away<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        self.call(core, id, |routes, socket, slot| routes.stopping(socket, slot));
        false
    }

    fn close_frame<S: Sys>(
        &mut self,
        _core: &mut Core<S, Self>,
        id: ConnId,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        if code.is_some() {
            self.close_frames.push(CloseFrame { id, code, reason: reason.into() });
        }
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        self.end_session(core, id, why);
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        if opened {
            return self.end_session(core, id, why);
        }
        self.on_exchange_closed(id);
        R::forget(&mut self.waiting, id);
        if !self.pending.is_empty() {
            self.pending.remove(&id);
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Publication(publication) if publication.gap => {
                let WorkerHandler { routes, tools, .. } = self;
                let mut operations = WorkerOperations { core, tools };
                routes.missed(&mut Context::new(&mut operations), &publication.topic);
            }
            Post::Publication(publication) => self.tools.topics.deliver(core, &publication, encode),
            Post::Send { to, binary, data, receipt } => {
                let open = core.is_open(to);
                let opcode = if binary { OpCode::Binary } else { OpCode::Text };
                let sent = core.send(to, opcode, &data);
                if let Some(receipt) = receipt {
                    receipt.tell(if open { Ok(sent) } else { Err(Gone) });
                }
            }
            Post::Close { to, code, reason } => {
                self.call(core, to, |_, socket, _| socket.close(code, &reason));
            }
            Post::Pause { to, paused } if self.exchanges.contains(to) => {
                self.pause_exchange(core, to, paused);
            }
            Post::Pause { to, paused: true } => core.pause(to),
            Post::Pause { to, paused: false } => core.resume(to),
            Post::Call { to, task } if core.is_open(to) => {
                self.call(core, to, |routes, socket, slot| routes.call(socket, slot, task));
            }
            Post::Call { .. } => {}
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        let WorkerHandler { routes, tools, every, .. } = self;
        let mut operations = WorkerOperations { core: &mut *core, tools };
        let context = &mut Context::new(&mut operations);
        let tick_ns = routes.tick(now_ns, context);
        let every_ns = every.iter_mut().map(|every| every.turn(now_ns, context)).min();
        self.on_timers(core, now_ns);
        let topics_ns = self.tools.topics.turn(core, encode);
        let exchanges_ns = self.turn_exchanges(core);
        tick_ns
            .into_iter()
            .chain(every_ns)
            .chain(exchanges_ns)
            .chain(topics_ns)
            .chain(self.tools.timers.next_ns())
            .min()
    }

    fn accepts_posts(&self) -> bool {
        self.tools.topics.accepts_posts()
    }
}

/// The bytes of a head, which is needed once its body is complete.
fn copy_of(head: &Head<'_, '_>) -> Vec<u8> {
    let mut copy = Vec::new();
    copy.extend_from_slice(head.method.as_bytes());
    copy.push(b' ');
    copy.extend_from_slice(head.target.as_bytes());
    copy.extend_from_slice(if head.version == 0 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    for header in head.headers {
        copy.extend_from_slice(header.name.as_bytes());
        copy.extend_from_slice(b": ");
        copy.extend_from_slice(header.value);
        copy.extend_from_slice(b"\r\n");
    }
    copy.extend_from_slice(b"\r\n");
    copy
}

#[track_caller]
fn lost(what: &'static str) -> Answer {
    invariant::broken(what);
    Answer::Respond(EngineResponse::text(500, "The server lost track of this request.\n"))
}
