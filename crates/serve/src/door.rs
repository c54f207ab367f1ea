//! [`Door`]: one worker's public side. Requests become sessions, messages become commands, and
//! publications go to the worker's topics.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use engine::{Answer, Closed, ConnId, ConnInfo, Core, Handler, Incoming, Response, Sys};
use topics::{Memberships, Publication, Subscriber, Topics};
use wire::http::Request;
use wire::websocket::OpCode;

use crate::dialect::{Command, Dialect, Disconnect, Echo, PlainTopic};
use crate::held::Held;
use crate::path::Route;
use crate::records::Record;
use crate::shared::{DoorCounters, Policy, Shared};

/// Slots looked at for one question about connections, so that no question holds a worker up.
const LIST_SLOTS_MAX: u32 = 16 * 1024;

/// What a connection is, kept with it in the engine: 16 bytes, no allocation with one topic.
#[derive(Default)]
pub(crate) enum Session {
    /// Not a WebSocket (yet).
    #[default]
    Http,
    Echo,
    Topic(Memberships),
}

const _: () = assert!(size_of::<Session>() == 16);

impl Subscriber for Session {
    /// Whoever is asked for subscriptions has some from then on.
    fn memberships(&mut self) -> &mut Memberships {
        if !matches!(self, Session::Topic(_)) {
            *self = Session::Topic(Memberships::default());
        }
        match self {
            Session::Topic(memberships) => memberships,
            Session::Http | Session::Echo => unreachable!("it was made a topic's session above"),
        }
    }
}

/// What other threads post to a worker.
pub(crate) enum Post {
    /// For the subscribers of its topic.
    Publication(Arc<Publication>),
    /// Settings that hold from now on.
    Policy(Arc<Policy>),
    /// A question about connections.
    List(List),
}

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post::Publication(publication)
    }
}

/// A question for up to `limit` connections in slots from `slot` on.
pub(crate) struct List {
    pub(crate) slot: u32,
    pub(crate) limit: usize,
    /// Where the answer goes. It must have room for it: a worker waits for nobody.
    pub(crate) reply: SyncSender<Listed>,
}

/// The answer: connections in the order of their slots, and where to go on, unless it was all.
pub(crate) struct Listed {
    pub(crate) connections: Vec<(ConnInfo, Option<Arc<str>>)>,
    pub(crate) next_slot: Option<u32>,
}

/// What the request that is being answered opens.
enum Opening {
    Echo,
    Topic(Box<str>),
}

/// One worker's public side.
pub(crate) struct Door {
    shared: Arc<Shared>,
    policy: Arc<Policy>,
    /// The policy's limits are the engine's already.
    limits_set: bool,
    topics: Topics,
    held: Held,
    /// Set by `request` for the `open` that follows within the same call of the engine.
    opening: Option<Opening>,
}

impl Door {
    pub(crate) fn new(worker: u16, shared: Arc<Shared>) -> Self {
        shared.worker_started(worker);
        Door {
            policy: shared.policy(),
            limits_set: false,
            topics: Topics::new(worker, shared.directory.clone()),
            shared,
            held: Held::default(),
            opening: None,
        }
    }

    fn counters(&self, worker: u16) -> &DoorCounters {
        // There is one for each worker that the server planned.
        &self.shared.counters[usize::from(worker)]
    }

    /// Answers a request for a WebSocket at a path that has one.
    fn admit(&mut self, worker: u16, request: &Incoming<'_, '_>, opening: Opening) -> Answer {
        let Some(upgrade) = request.upgrade else { return Answer::Upgrade(None) };
        let scheme = if self.policy.tls.is_some() { "https" } else { "http" };
        if let Some(origin) = upgrade.origin
            && !self.policy.origins.admit(origin, request.head.authority(), scheme)
        {
            self.counters(worker).origin_refused.add(1);
            let origin = String::from_utf8_lossy(origin).into();
            self.shared.recorder.post(Record::OriginRefused(origin));
            return refuse(403, "Pages of this origin may not connect here.\n");
        }
        let protocol = match opening {
            Opening::Echo => Echo::accept(upgrade.protocols()),
            Opening::Topic(_) => PlainTopic::accept(upgrade.protocols()),
        };
        self.opening = Some(opening);
        Answer::Upgrade(protocol)
    }

    /// Answers a request that calls this machine by a name that is not its own.
    fn misdirected(&self, worker: u16, request: &Request<'_, '_>) -> Answer {
        self.counters(worker).host_refused.add(1);
        let host = String::from_utf8_lossy(request.authority().unwrap_or_default()).into();
        self.shared.recorder.post(Record::HostRefused(host));
        refuse(
            421,
            "This server listens on loopback only and Host does not mean this machine: use \
             127.0.0.1 or localhost, or allow the site by --allow-origin.\n",
        )
    }

    fn obey<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, command: Command<'_>) {
        match command {
            Command::Reply(opcode, data) => {
                core.send(id, opcode, data);
            }
            Command::Publish { data, binary } => {
                let Some(Session::Topic(memberships)) = core.user(id) else { return };
                let Some(topic) = self.topics.only_topic(memberships) else { return };
                let publication = Publication::new(topic, data.into(), binary);
                self.publish(core, id, Arc::new(publication));
            }
        }
    }

    /// Publishes for a socket; while mailboxes are full its publisher is not read.
    fn publish<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        publication: Arc<Publication>,
    ) {
        let result = self.topics.publish(core, &publication, PlainTopic::encode);
        let counters = self.counters(core.worker());
        if result.is_ok() {
            return counters.published.add(1);
        }
        counters.publish_paused.add(1);
        if self.held.hold(core.now_ns(), id, publication) {
            core.pause(id);
        } else {
            let (code, reason) = PlainTopic::disconnect(Disconnect::Overloaded);
            core.close(id, code, reason);
        }
    }

    /// Tries again what found mailboxes full.
    fn publish_held<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        for (id, publication) in self.held.due(core.now_ns()) {
            if self.topics.publish(core, &publication, PlainTopic::encode).is_ok() {
                self.counters(core.worker()).published.add(1);
                core.resume(id);
            } else {
                // It was held before, so there is room for it.
                self.held.hold(core.now_ns(), id, publication);
            }
        }
    }

    fn list<S: Sys>(&self, core: &Core<S, Self>, list: &List) {
        let end = core.slots().min(list.slot.saturating_add(LIST_SLOTS_MAX));
        let mut connections = Vec::new();
        let mut slot = list.slot;
        while slot < end && connections.len() < list.limit {
            if let Some(info) = core.id_at(slot).and_then(|id| core.info(id)) {
                let topic = match core.user(info.id) {
                    Some(Session::Topic(memberships)) => self.topics.only_topic(memberships),
                    _ => None,
                };
                connections.push((info, topic));
            }
            slot += 1;
        }
        let next_slot = (slot < core.slots()).then_some(slot);
        // Whoever asked may have given up.
        let _ = list.reply.try_send(Listed { connections, next_slot });
    }

    fn set_limits<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.set_limits(self.policy.limits.clone());
        self.limits_set = true;
    }
}

impl Handler for Door {
    type User = Session;
    type Post = Post;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.set_tls(self.policy.tls.clone());
    }

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        _: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        let worker = core.worker();
        if !self.policy.origins.admit_host(request.head.authority()) {
            return self.misdirected(worker, request.head);
        }
        match Route::of(request.head.path()) {
            Route::Health => health(request.head, self.shared.is_draining()),
            Route::Echo if self.shared.echo => self.admit(worker, request, Opening::Echo),
            Route::Topic(_) if !self.shared.public => {
                refuse(403, "Subscribing without credentials is off here.\n")
            }
            Route::Topic(name) => self.admit(worker, request, Opening::Topic(name.into())),
            Route::BadTopic(why) => refuse(400, format!("{why}\n")),
            Route::Echo | Route::Unknown => refuse(404, "There is nothing here.\n"),
        }
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        match self.opening.take() {
            Some(Opening::Echo) => {
                if let Some(session) = core.user_mut(id) {
                    *session = Session::Echo;
                }
            }
            Some(Opening::Topic(name)) => {
                let group = core.encoding(id);
                self.topics.subscribe(core, id, &name, group);
                self.counters(core.worker()).subscriptions.add(1);
            }
            None => core.abort(id),
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
        let command = match core.user(id) {
            Some(Session::Echo) => Echo::decode(opcode, data),
            Some(Session::Topic(_)) => PlainTopic::decode(opcode, data),
            Some(Session::Http) | None => return,
        };
        self.obey(core, id, command);
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        if let Some(Session::Topic(memberships)) = core.user(id) {
            let ended = memberships.len() as u64;
            self.counters(core.worker()).subscriptions.sub(ended);
            self.topics.forget(core, id, |_| {});
        }
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Publication(publication) => {
                self.topics.deliver(core, &publication, PlainTopic::encode);
            }
            Post::Policy(policy) => {
                self.policy = policy;
                self.set_limits(core);
                core.set_tls(self.policy.tls.clone());
            }
            Post::List(list) => self.list(core, &list),
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        if !self.limits_set {
            self.set_limits(core);
        }
        self.publish_held(core);
        let sweep = self.topics.turn(core);
        [sweep, self.held.next_ns()].into_iter().flatten().min()
    }

    fn takes_posts(&self) -> bool {
        self.topics.takes_posts()
    }
}

fn health(request: &Request<'_, '_>, draining: bool) -> Answer {
    if !matches!(request.method, "GET" | "HEAD") {
        let mut response = Response::text(405, "GET /health\n");
        response.headers.push((Cow::Borrowed("Allow"), Cow::Borrowed("GET, HEAD")));
        return Answer::Respond(response);
    }
    let (status, body) = if draining { (503, "draining\n") } else { (200, "ok\n") };
    Answer::Respond(Response::text(status, body))
}

fn refuse(status: u16, why: impl Into<Cow<'static, str>>) -> Answer {
    let mut response = Response::text(status, why);
    response.close = true;
    Answer::Respond(response)
}
