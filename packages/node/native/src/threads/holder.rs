//! [`Holder`]: the engine's handler on a thread that holds sockets for JavaScript.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Remote, Sys, TlsServer, invariant};
use topics::{Directory, History, Topics};
use wire::Violation;
use wire::http::Request as Head;
use wire::websocket::{CloseCode, OpCode};

use super::batch::{Batch, Command, Event, Peer, take};
use super::transfers::Transfer;
use crate::dropped;
use crate::handler::{CloseFrame, Post, SocketRoute, User, close_reason, encode};
use crate::replays::{Beginning, Replay, Replays, Sent};
use crate::requests::router_of;
use crate::router::{Router, Span};

/// Events are passed on before the end of a turn when they hold so many bytes.
const BATCH_BYTES: usize = 256 * 1024;
/// How long a thread waits before it looks again whether JavaScript takes more.
const LOOK: Duration = Duration::from_millis(10);

/// The routes of an app when it began to listen.
pub(crate) struct Routes {
    pub(crate) routers: Vec<(Box<str>, Router)>,
    pub(crate) routes: Vec<Option<u16>>,
    pub(crate) sockets: Vec<SocketRoute>,
    pub(crate) message_bytes_least: usize,
    pub(crate) reports_dropped: bool,
    pub(crate) tls: Option<TlsServer>,
    /// Where the members of topics are, if those have a history.
    pub(crate) history: Option<Directory>,
}

/// Where threads wait while JavaScript is behind by as much as a mailbox holds.
#[derive(Default)]
pub(crate) struct Gate {
    waits: Mutex<()>,
    taken: Condvar,
    any: AtomicBool,
    /// Nobody takes events any more.
    pub(crate) ended: AtomicBool,
    /// Threads that have ended their connections.
    pub(crate) closed: AtomicUsize,
    /// The number of this start of the threads: events of earlier ones may come later.
    pub(crate) start: u32,
}

impl Gate {
    pub(crate) fn new(start: u32) -> Gate {
        Gate { start, ..Gate::default() }
    }

    /// JavaScript has taken events.
    pub(crate) fn open(&self) {
        if self.any.swap(false, Ordering::Relaxed) {
            self.taken.notify_all();
        }
    }

    fn wait(&self) {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(true, Ordering::Relaxed);
        // A moment when nobody waited yet costs one look.
        drop(self.taken.wait_timeout(waits, LOOK));
    }
}

pub(crate) struct Holder {
    routes: Arc<Routes>,
    inlet: Remote<Post>,
    gate: Arc<Gate>,
    topics: Topics,
    history: Option<Arc<History>>,
    replays: Replays,
    frames: Vec<CloseFrame>,
    events: Batch<Event>,
    /// By slot, requests that JavaScript answers.
    pub(super) transfers: BTreeMap<u32, Transfer>,
    /// Requests with bytes written in this turn: at its end [`Event::Flowed`] is sent for each empty queue.
    pub(super) flowing: Vec<ConnId>,
    pub(super) checked_ns: u64,
    /// What is being sent to a socket is reported when nothing of it waits.
    reports: bool,
    spans: Vec<Span>,
}

impl Holder {
    pub(crate) fn new(
        thread: u16,
        routes: Arc<Routes>,
        inlet: Remote<Post>,
        gate: Arc<Gate>,
    ) -> Holder {
        // Which threads have members of a topic is known where it is published: see `Mirror`.
        let directory = routes.history.as_ref().map_or_else(Directory::new, Directory::aside);
        Holder {
            routes,
            inlet,
            gate,
            history: directory.history().map(Arc::clone),
            topics: Topics::new(thread, directory),
            replays: Replays::default(),
            frames: Vec::new(),
            events: Batch::default(),
            transfers: BTreeMap::new(),
            flowing: Vec::new(),
            checked_ns: 0,
            reports: false,
            spans: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, event: Event, bytes: &[u8]) {
        self.events.push(event, bytes);
        if self.events.weight() >= BATCH_BYTES {
            self.pass_on();
        }
    }

    /// Posts the events to JavaScript's thread. While that is far behind nothing is read: this thread waits.
    fn pass_on(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let batch = Box::new(std::mem::take(&mut self.events));
        let weight = batch.weight();
        let mut post = Post::Events(self.gate.start, batch);
        while !self.gate.ended.load(Ordering::Relaxed) {
            match self.inlet.post_or_return(0, post, weight) {
                Ok(()) => return,
                Err(_) if self.inlet.is_closed(0) => return,
                Err(back) => post = back,
            }
            self.gate.wait();
        }
    }

    fn route(&self, user: Option<&User>) -> Option<&SocketRoute> {
        self.routes.sockets.get(usize::from(user?.route))
    }

    fn for_socket(&self, user: Option<&User>, has: impl Fn(&SocketRoute) -> bool) -> bool {
        user.is_some_and(|user| !user.told) && self.route(user).is_some_and(has)
    }

    fn tell_closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        let frame = self.frames.iter().position(|frame| frame.id == id);
        let frame = frame.map(|at| self.frames.swap_remove(at));
        let told = core.user_mut(id).is_none_or(|user| std::mem::replace(&mut user.told, true));
        if !told {
            let (code, reason) = close_reason(frame.as_ref(), why, core.violation(id));
            let event = Event::Close { id, code, length: reason.len() as u32 };
            self.push(event, reason.as_bytes());
        }
        self.replays.remove_all(id);
        self.topics.unsubscribe_all(core, id, |_| {});
    }

    /// Whether a request is to be decided about by JavaScript, or what becomes of it.
    fn decide<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Option<Answer> {
        let (head, routes) = (incoming.head, Arc::clone(&self.routes));
        let router = routes.routers.get(router_of(&routes.routers, head));
        for skip in 0..=routes.routes.len() {
            let found = router.and_then(|(_, router)| {
                router.find(head.method, head.path(), skip, &mut self.spans)
            });
            let Some(route) = found else { break };
            let index = routes.routes.get(route as usize).copied().flatten()?;
            let Some(upgrade) = incoming.upgrade else { continue };
            core.set_class(id, u8::try_from(index).unwrap_or(u8::MAX));
            if let Some(user) = core.user_mut(id) {
                user.route = index;
            }
            if routes.sockets.get(usize::from(index)).is_some_and(|own| own.upgrade) {
                return None;
            }
            return Some(Answer::Upgrade(upgrade.protocols().next().map(Into::into)));
        }
        // JavaScript answers with 404.
        None
    }

    /// Executes a command.
    fn execute<S: Sys>(&mut self, core: &mut Core<S, Self>, command: Command, rest: &mut &[u8]) {
        match command {
            Command::Send { id, binary, compress, reports, length } => {
                let data = take(rest, length);
                self.reports |= reports;
                self.topics.catch_up(core, id);
                let opcode = if binary { OpCode::Binary } else { OpCode::Text };
                let sent = match compress {
                    true => core.send(id, opcode, data),
                    false => core.send_uncompressed(id, opcode, data),
                };
                if sent == engine::Sent::Dropped
                    && core.is_open(id)
                    && self.for_socket(core.user(id), |own| own.dropped)
                {
                    self.push(Event::Dropped { id, binary, length }, data);
                }
            }
            Command::Ping { id, length } => drop(core.ping(id, take(rest, length))),
            Command::End { id, code, length } => {
                let reason = std::str::from_utf8(take(rest, length)).unwrap_or_default();
                self.is_told(core, id);
                self.topics.catch_up(core, id);
                self.topics.unsubscribe_all(core, id, |_| {});
                let code = CloseCode(code);
                match code.is_sendable() {
                    true => core.close(id, code, reason),
                    false => core.close_without_code(id),
                }
            }
            Command::Close(id) => {
                self.is_told(core, id);
                self.topics.unsubscribe_all(core, id, |_| {});
                core.abort(id);
            }
            Command::Reset(id) => core.reset(id),
            Command::Pause { id, paused } if self.on_pause(core, id, paused) => {}
            Command::Pause { id, paused: true } => core.pause(id),
            Command::Pause { id, paused: false } => core.resume(id),
            Command::Subscribe { id, length } => {
                let topic = std::str::from_utf8(take(rest, length)).unwrap_or_default();
                if core.is_open(id) {
                    let encoding = core.encoding(id);
                    self.topics.subscribe(core, id, topic, encoding);
                }
            }
            Command::Unsubscribe { id, length } => {
                let topic = std::str::from_utf8(take(rest, length)).unwrap_or_default();
                self.end_subscription(core, id, topic);
            }
            Command::SubscribeFrom { id, beginning, ticket, length } => {
                let topic = std::str::from_utf8(take(rest, length)).unwrap_or_default();
                if core.is_open(id) {
                    self.subscribe_from(core, id, topic, *beginning, ticket);
                }
            }
            Command::Publish(publication) => self.topics.deliver(core, &publication, encode),
            Command::Answer { id, ends, keep_alive, length } => {
                self.on_answer(core, id, ends.then_some(keep_alive), take(rest, length));
            }
            Command::WantData(id) => self.on_wanted(core, id),
            Command::Upgrade(upgrade) => {
                let id = upgrade.id;
                core.set_class(id, u8::try_from(upgrade.route).unwrap_or(u8::MAX));
                if let Some(user) = core.user_mut(id) {
                    user.route = upgrade.route;
                }
                let opened = core.open_late(id, upgrade.protocol.as_deref(), &upgrade.headers);
                // If its client has left, JavaScript has the event that says so, or gets it with the next batch.
                match opened {
                    true => drop(self.transfers.remove(&id.slot())),
                    false => core.reset(id),
                }
            }
            Command::CloseAll => {
                for slot in 0..core.slots() {
                    if let Some(id) = core.id_at(slot) {
                        self.is_told(core, id);
                        core.abort(id);
                    }
                }
                self.gate.closed.fetch_add(1, Ordering::Release);
            }
        }
    }

    fn end_subscription<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, topic: &str) {
        let has_history = self.history.is_some();
        self.replays.end_subscription(core, &mut self.topics, id, topic, has_history);
    }

    fn subscribe_from<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &str,
        beginning: Beginning,
        ticket: u32,
    ) {
        self.end_subscription(core, id, topic);
        let (Beginning::At { kind, .. } | Beginning::After { kind, .. }) = beginning;
        let (kind, topic) = (core.encoding(id) | kind, Arc::from(topic));
        self.topics.subscribe(core, id, &topic, kind);
        let sent = match (beginning, &self.history) {
            (Beginning::After { last, .. }, _) => {
                if let Some(last) = last {
                    self.topics.skip_until(core, id, &topic, kind, last);
                }
                return;
            }
            (Beginning::At { next: Some(next), why, .. }, Some(history)) => {
                let replay = Replay { id, topic, kind, next, why, ticket };
                self.replays.begin(core, &mut self.topics, history, replay)
            }
            (Beginning::At { why, .. }, _) => Some(Sent { id, topic, ticket, why, last: None }),
        };
        self.tell_sent(core, id, sent);
    }

    /// A subscription was sent a portion of what it missed, or the last one.
    fn tell_sent<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId, sent: Option<Sent>) {
        self.tell_queued(core, id);
        if let Some(sent) = sent {
            self.push(Event::Sent(Box::new(sent)), &[]);
        }
    }

    /// Sends sockets what they missed. Returns when to be called again.
    fn send_missed<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let history = self.history.as_ref().filter(|_| self.replays.has_ready())?;
        for (id, sent) in self.replays.turn(core, &mut self.topics, history) {
            self.tell_sent(core, id, sent);
        }
        self.replays.has_ready().then(|| core.now_ns())
    }

    /// Writes what was sent to a socket in a row, and tells what of it waits.
    fn end_cork<S: Sys>(&mut self, core: &mut Core<S, Self>, corked: Option<ConnId>) {
        let reports = std::mem::take(&mut self.reports);
        let Some(id) = corked else { return };
        core.end_cork();
        if !self.tell_queued(core, id) && reports {
            self.push(Event::Drain(id), &[]);
        }
    }

    /// Tells what waits for a socket. Returns `false` if nothing does.
    fn tell_queued<S: Sys>(&mut self, core: &Core<S, Self>, id: ConnId) -> bool {
        let bytes = u32::try_from(core.queued(id)).unwrap_or(u32::MAX);
        if bytes > 0 {
            self.push(Event::Buffered { id, bytes }, &[]);
        }
        bytes > 0
    }

    fn is_told<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        if let Some(user) = core.user_mut(id) {
            user.told = true;
        }
    }
}

/// Whose command it is, for those that are written to a socket.
fn written_to(command: &Command) -> Option<ConnId> {
    match command {
        Command::Send { id, .. } | Command::Ping { id, .. } => Some(*id),
        _ => None,
    }
}

/// The bytes of a head, to be parsed again.
pub(super) fn head_bytes(head: &Head<'_, '_>, out: &mut Vec<u8>) {
    let version = if head.version == 0 { " HTTP/1.0\r\n" } else { " HTTP/1.1\r\n" };
    for part in [head.method, " ", head.target, version] {
        out.extend_from_slice(part.as_bytes());
    }
    for header in head.headers {
        for part in [header.name.as_bytes(), b": ", header.value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
}

impl Handler for Holder {
    type User = User;
    type Post = Box<Batch<Command>>;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.set_tls(self.routes.tls.clone());
        if self.history.is_some() {
            // Publications name their publisher for all apps that share topics.
            core.begin_ids_at_random();
        }
        if self.routes.reports_dropped {
            core.keep_dropped_frames();
        }
    }

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming<'_, '_>,
    ) -> Answer {
        if let Some(answer) = self.decide(core, id, incoming) {
            return answer;
        }
        self.keep_request(core, id, incoming)
    }

    fn late_answer<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Answer {
        self.go_on(core, id)
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        self.on_body(core, id, data);
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let Some(route) = core.user(id).map(|user| user.route) else {
            return invariant::broken("an open socket has a route");
        };
        let peer = Peer::new(core.info(id).and_then(|info| info.peer)).to_bytes();
        self.push(Event::Open { id, route, length: peer.len() as u32 }, &peer);
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
        if data.len() > self.routes.message_bytes_least
            && self.route(user).is_some_and(|own| data.len() > own.message_bytes)
        {
            let reason = "Received too big message";
            self.frames.push(CloseFrame { id, code: Some(CloseCode(1006)), reason: reason.into() });
            self.tell_closed(core, id, Closed::Violation);
            core.counters().count_violation(Violation::MessageTooBig);
            return core.close(id, CloseCode::TOO_BIG, reason);
        }
        if self.for_socket(user, |own| own.message) {
            let binary = opcode == OpCode::Binary;
            self.push(Event::Message { id, binary, length: data.len() as u32 }, data);
        }
    }

    fn ping<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        if self.for_socket(core.user(id), |own| own.ping) {
            self.push(Event::Ping { id, length: data.len() as u32 }, data);
        }
    }

    fn pong<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        if self.for_socket(core.user(id), |own| own.pong) {
            self.push(Event::Pong { id, length: data.len() as u32 }, data);
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

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let open = core.is_open(id) && core.user(id).is_some_and(|user| !user.told);
        self.replays.drained(id);
        if !self.tell_flowed(core, id) && open {
            self.push(Event::Drain(id), &[]);
        }
        // This may be called behind the handler's turn.
        self.pass_on();
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        self.tell_closed(core, id, why);
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        if opened {
            self.tell_closed(core, id, why);
        } else {
            self.on_gone(id);
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, batch: Self::Post) {
        let (mut rest, mut corked) = (&*batch.bytes, None);
        for command in batch.list {
            // What is sent to one socket in a row leaves together.
            let socket = written_to(&command);
            if corked != socket {
                self.end_cork(core, corked);
                corked = socket.filter(|id| core.begin_cork(*id));
            }
            self.execute(core, command, &mut rest);
        }
        self.end_cork(core, corked);
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let topics_ns = self.topics.turn(core, encode);
        if self.routes.reports_dropped {
            dropped::each(core, |core, id, binary, data| {
                let reported =
                    core.is_open(id) && self.for_socket(core.user(id), |own| own.dropped);
                if reported {
                    self.push(Event::Dropped { id, binary, length: data.len() as u32 }, data);
                }
                reported
            });
        }
        let transfers_ns = self.check_transfers(core);
        let history_ns = self.send_missed(core);
        self.pass_on();
        [topics_ns, transfers_ns, history_ns].into_iter().flatten().min()
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}
