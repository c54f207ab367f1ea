//! [`Server`]: the simulated server's handler: echo, topics, deferred answers, plain HTTP and
//! streams, as a program on the engine would write it.

use std::sync::Arc;

use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Response, SharedFrame, Sys};
use topics::{Memberships, Publication, Subscriber, Topics};
use wire::websocket::{OpCode, encode};

use super::envelope::{Envelope, Kind};
use super::ledger::Ledger;
use super::polls::Polls;

/// Frames for WebSockets, and lines for streams.
const FRAMES: u32 = 0;
const LINES: u32 = 1;
/// Lines for polled connections, in another group: they get them in another way.
pub(super) const POLLED_LINES: u32 = 2;

/// Time for the answer of every second deferred request; the others have the handshake timeout.
const LATER_WITHIN_NS: u64 = 30_000_000_000;

/// The server is the first process.
pub(crate) const PROCESS: usize = 0;

/// Messages from other threads to a server's worker.
pub(crate) enum Post {
    Publication(Arc<Publication>),
    /// Send this to one connection, if it is still that one.
    Direct(ConnId, Envelope),
    /// End a connection in one of several ways.
    Kick(ConnId, u8),
    /// Nothing but a sign that posts arrive.
    Mark,
}

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post::Publication(publication)
    }
}

#[derive(Default)]
pub(crate) struct User {
    memberships: Memberships,
    /// The topic of its path, if it has one.
    topic: Option<u32>,
    /// The number that the peer gave.
    peer_id: u32,
    /// How many messages of it came.
    received: u32,
    /// The polled connection that its requests take messages from.
    pub(super) polled: Option<ConnId>,
}

impl Subscriber for User {
    type Mark = u16;

    fn memberships(&mut self) -> &mut Memberships {
        &mut self.memberships
    }
}

pub(crate) struct Server {
    ledger: Ledger,
    worker: u16,
    topics: Topics,
    /// Publications that found a full mailbox; their publishers are paused.
    waiting: Vec<(ConnId, u32, Envelope, Arc<Publication>)>,
    /// Paused connections with the time at which they are read again.
    paused: Vec<(u64, ConnId)>,
    /// Streams to be subscribed once their answer is out.
    streams: Vec<ConnId>,
    polls: Polls,
    /// A frame that is sent ahead of what waits.
    urgent: SharedFrame,
}

impl Server {
    pub(crate) fn new(ledger: Ledger, worker: u16, topics: Topics) -> Self {
        let (waiting, paused, streams) = (Vec::new(), Vec::new(), Vec::new());
        let mut pong = Vec::new();
        encode(&mut pong, OpCode::Pong, b"urgent");
        let urgent = SharedFrame::new(&pong, 0);
        let polls = Polls::default();
        Server { ledger, worker, topics, waiting, paused, streams, polls, urgent }
    }

    pub(crate) fn subscriptions(&self) -> u64 {
        self.topics.subscriptions()
    }

    fn on_topic<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        envelope: Envelope,
        on: u32,
    ) {
        match envelope.kind {
            Kind::Subscribe => {
                let joined = self.topics.subscribe(core, id, &on.to_string(), FRAMES);
                let mut book = self.ledger.book();
                book.require(joined, || format!("{id} could not subscribe"));
                book.subscribes(envelope.peer_id, on);
            }
            Kind::Unsubscribe => {
                let left = self.topics.unsubscribe(core, id, &on.to_string(), FRAMES);
                let mut book = self.ledger.book();
                book.require(left, || format!("{id} could not unsubscribe"));
                book.unsubscribes(envelope.peer_id);
            }
            Kind::Publish => {
                let data = envelope.write(envelope.number as usize % 300).into();
                let binary = envelope.opcode() == OpCode::Binary;
                let publication = Publication::new(on.to_string().into(), data, binary);
                self.waiting.push((id, on, envelope, Arc::new(publication)));
                if !self.publish_waiting(core, id) {
                    core.pause(id);
                }
            }
            Kind::Echo | Kind::Direct => {
                self.ledger.book().fail(format!("{envelope:?} on a topic"));
            }
        }
    }

    /// Sends at times what may overtake messages but never lands within one: an unsolicited pong
    /// (RFC 6455 section 5.5.3), which peers read past.
    fn send_urgent<S: Sys>(&self, core: &mut Core<S, Self>, id: ConnId) {
        if core.random().is_multiple_of(3) {
            core.send_urgent(id, &self.urgent);
        }
    }

    /// Publishes what waits of one connection; false if the mailboxes are still full.
    fn publish_waiting<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        let Some(at) = self.waiting.iter().position(|(of, ..)| *of == id) else { return true };
        let Some((_, topic, envelope, publication)) = self.waiting.get(at) else { return true };
        // Before it is delivered, as the deliveries are checked against it.
        if self.topics.publish(core, publication, write).is_err() {
            return false;
        }
        self.ledger.book().publishes(*topic, envelope.peer_id, envelope.number);
        self.waiting.remove(at);
        true
    }

    fn take_up_paused<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let now_ns = core.now_ns();
        let due = |&(at_ns, id): &(u64, ConnId)| (at_ns <= now_ns).then_some(id);
        let resumed: Vec<ConnId> = self.paused.iter().filter_map(due).collect();
        self.paused.retain(|(at_ns, _)| *at_ns > now_ns);
        for id in resumed {
            core.resume(id);
        }
        let publishers: Vec<ConnId> = self.waiting.iter().map(|(id, ..)| *id).collect();
        for id in publishers {
            if self.publish_waiting(core, id) {
                core.resume(id);
            }
        }
    }
}

/// A publication as WebSockets and as streams get it.
fn write<C>(_: &mut C, kind: u32, publication: &Publication, out: &mut Vec<u8>) {
    if kind == LINES || kind == POLLED_LINES {
        out.extend_from_slice(&publication.data);
        out.push(b'\n');
        return;
    }
    let opcode = if publication.binary { OpCode::Binary } else { OpCode::Text };
    encode(out, opcode, &publication.data);
}

impl Handler for Server {
    type User = User;
    type Post = Post;

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        self.ledger.book().called(PROCESS, id, "request");
        let path = request.head.target;
        let topic = path.strip_prefix("/topics/").and_then(|topic| topic.parse().ok());
        if let Some(user) = core.user_mut(id) {
            user.topic = topic;
        }
        if let Some(peer_id) = path.strip_prefix("/poll/") {
            let peer_id = peer_id.parse().unwrap_or_default();
            return self.polls.request(core, id, peer_id, &mut self.topics, &self.ledger);
        }
        match path {
            "/health" => Answer::Respond(Response::text(200, "ok\n")),
            "/stream" => {
                self.streams.push(id);
                Answer::Stream(Response::text(200, ""))
            }
            "/later" => {
                self.ledger.book().later.push(id);
                match id.slot() % 2 {
                    0 => Answer::Later,
                    _ => Answer::LaterWithin(LATER_WITHIN_NS),
                }
            }
            "/echo" => Answer::Upgrade(None),
            _ if topic.is_some() => Answer::Upgrade(None),
            _ => Answer::Respond(Response::text(404, "nothing here\n")),
        }
    }

    fn late_answer<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) -> Answer {
        self.ledger.book().called(PROCESS, id, "late_answer");
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.ledger.book().opened(PROCESS, id);
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        self.ledger.book().called(PROCESS, id, "message");
        let Some(envelope) = Envelope::read(data) else {
            return self.ledger.book().fail(format!("{id} sent an incomplete message"));
        };
        let Some(user) = core.user_mut(id) else {
            return self.ledger.book().fail(format!("{id} has no user data"));
        };
        let (first, expected, topic) = (user.received == 0, user.received, user.topic);
        if first {
            user.peer_id = envelope.peer_id;
            self.ledger.book().known.push((id, envelope.peer_id));
        }
        user.received += 1;
        let in_order = topic.is_some() || envelope.number == expected;
        let right = user.peer_id == envelope.peer_id && in_order && opcode == envelope.opcode();
        self.ledger.book().require(right, || {
            format!("{id} of {} got {envelope:?} as {opcode:?}, expected {expected}", user.peer_id)
        });
        match topic {
            Some(topic) => self.on_topic(core, id, envelope, topic),
            None => {
                core.send(id, opcode, data);
                self.send_urgent(core, id);
            }
        }
        if core.random().is_multiple_of(64) && self.waiting.iter().all(|(of, ..)| *of != id) {
            core.pause(id);
            self.paused.push((core.now_ns() + core.random() % 30_000_000, id));
        }
    }

    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed) {
        self.ledger.book().closing(PROCESS, id, why);
        self.ledger.book().require(!core.is_open(id), || format!("{id} is open after `closing`"));
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        match self.polls.ended(core, id) {
            true => self.ledger.book().ended_without_socket(PROCESS, id, why, opened),
            false => self.ledger.book().ended(PROCESS, id, why, opened),
        }
        let peer_id = core.user(id).map_or(0, |user| user.peer_id);
        if why == Closed::Violation && self.ledger.book().behaves(peer_id) {
            self.ledger
                .book()
                .fail(format!("{id} of {peer_id} was closed for a violation but keeps the rules"));
        }
        self.topics.unsubscribe_all(core, id, |_| {});
        self.waiting.retain(|(of, ..)| *of != id);
    }

    fn pong<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: &[u8]) {
        self.ledger.book().called(PROCESS, id, "pong");
    }

    fn data<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: &mut [u8]) {
        self.ledger.book().called(PROCESS, id, "data");
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        self.ledger.book().drained(PROCESS, id, core.info(id));
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Publication(publication) => self.topics.deliver(core, &publication, write),
            Post::Direct(id, envelope) => {
                // Some are long enough for a vectored write.
                let filler = if envelope.number.is_multiple_of(4) { 12_000 } else { 40 };
                core.send(id, envelope.opcode(), &envelope.write(filler));
                self.send_urgent(core, id);
                self.ledger.book().taken += 1;
            }
            Post::Kick(id, how) => {
                match how {
                    0 => core.close(id, wire::websocket::CloseCode::NORMAL, "enough"),
                    1 => core.abort(id),
                    _ => core.reset(id),
                }
                self.ledger.book().taken += 1;
            }
            Post::Mark => self.ledger.book().taken += 1,
        }
        // Other threads do not wait for the end of a turn: one of them posts just now.
        if core.random().is_multiple_of(4)
            && core.remote().post(usize::from(self.worker), Post::Mark, 0).is_ok()
        {
            self.ledger.book().posted += 1;
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        for id in std::mem::take(&mut self.streams) {
            self.topics.subscribe(core, id, "0", LINES);
        }
        self.take_up_paused(core);
        let sweep = self.topics.turn(core, write);
        let polls = self.polls.turn(core);
        let resume = self.paused.iter().map(|(at_ns, _)| *at_ns).min();
        let retry = (!self.waiting.is_empty()).then(|| core.now_ns() + 5_000_000);
        [sweep, resume, retry, polls].into_iter().flatten().min()
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}
