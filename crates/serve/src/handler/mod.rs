//! [`ServeHandler`]: the engine's handler of one worker. Requests become sessions, messages become
//! commands, and publications go to the worker's topics.

mod application;
mod authorize;
mod channels;
mod confirm;
mod disconnects;
mod encodings;
mod expiry;
mod handshake;
mod heartbeat;
mod history;
mod hooks;
mod inspect;
mod polling;
mod presence;
mod restore;
mod resume;
mod routing;

use std::sync::Arc;

use action_cable::{Encoding, Message, Protocol};
use admin::log;
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Sys, invariant};
use topics::{Position, Publication, Topics};
use wire::websocket::OpCode;

use self::application::Application;
use self::authorize::Authorizer;
use self::confirm::Awaiting;
use self::disconnects::Disconnects;
use self::heartbeat::Heartbeat;
use self::history::Replays;
use self::hooks::WorkerHooks;
pub(crate) use self::inspect::{
    CloseRequest, ConnectionEntry, ConnectionFilter, ListReply, ListRequest, TopicsQuery,
    TopicsReply, TopicsRequest,
};
use self::polling::{PollPost, Polling};
use self::presence::Members;
use self::restore::SessionAnswer;
use self::routing::not_found;
use crate::app::call::{Env, What};
use crate::app::decision::Publishing;
use crate::app::{Answered, AppConfig};
use crate::auth::{Cause, TokenIdentity};
use crate::broadcast;
use crate::broadcast_worker::BroadcastQueue;
use crate::hooks::EventKind;
use crate::identifiers::{Form, Group, Identifiers};
use crate::log_events::LogEvent;
use crate::protocols::{
    Cable, Command, Disconnect, Echo, Events, PlainTopic, ProtocolAdapter, encode,
};
use crate::resume::{Closing, StoredSession};
use crate::retry_queue::RetryQueue;
use crate::session::{Session, SessionProtocol};
use crate::session_index::SessionIndex;
use crate::shared::{Policy, Shared, WorkerCounters};

/// What other threads post to a worker.
pub(crate) enum Post {
    /// A publication for the subscribers of its topic.
    Publication(Arc<Publication>),
    /// Settings that apply from now on.
    Policy(Arc<Policy>),
    /// A request for a list of connections.
    List(Box<ListRequest>),
    /// A request to close one connection.
    Close(Box<CloseRequest>),
    /// A request for figures of topics.
    Topics(Box<TopicsRequest>),
    /// End the sessions with these identifiers.
    Disconnect(Arc<broadcast::Disconnect>),
    /// The end of a call of the application.
    Answered(Arc<Answered>),
    /// The broker has confirmed these topics.
    Confirmed(Arc<[Box<str>]>),
    /// The store has answered for a client that names its session.
    Session(Box<SessionAnswer>),
    /// A session of a connection that is about to be closed is in the store, or could not be stored.
    HandedOver(ConnId, bool),
    /// A message of long polling.
    Poll(Box<PollPost>),
}

impl From<Arc<Publication>> for Post {
    fn from(publication: Arc<Publication>) -> Self {
        Post::Publication(publication)
    }
}

/// The session that an accepted upgrade request opens.
enum PendingOpen {
    Echo {
        identity: Option<TokenIdentity>,
    },
    Topic {
        name: Box<str>,
        identity: Option<TokenIdentity>,
        /// The position of the first missed message, if some are requested.
        first: Option<Position>,
        publishing: Publishing,
    },
    /// With the identity of the token, if there is one, or the reason to disconnect at once.
    Cable {
        protocol: Protocol,
        identity: Result<Option<TokenIdentity>, Disconnect>,
        /// What calls of the application repeat of the handshake, where it is called.
        env: Option<Env>,
        /// The session that the client resumes.
        resumed: Option<StoredSession>,
    },
}

/// The engine's handler of one worker.
pub(crate) struct ServeHandler {
    shared: Arc<Shared>,
    policy: Arc<Policy>,
    topics: Topics,
    identifiers: Identifiers,
    sessions: SessionIndex,
    /// Set where an application is called.
    app: Option<Box<Application>>,
    /// Set with `--auth-url`.
    authorizer: Option<Box<Authorizer>>,
    /// Set where there are webhooks.
    hooks: Option<Box<WorkerHooks>>,
    /// Set with `--pubsub`.
    awaiting: Option<Box<Awaiting>>,
    retry_queue: RetryQueue,
    /// Subscriptions that get missed messages.
    replays: Replays,
    /// Connections that are present in topics.
    members: Members,
    /// Sessions that the application has ended.
    disconnects: Disconnects,
    /// Set where `/_broadcast` is served.
    broadcasts: Option<BroadcastQueue>,
    /// Set where long polling is served.
    polling: Option<Box<Polling>>,
    heartbeat: Heartbeat,
    /// Number of connections that get heartbeats.
    heartbeat_connections: u32,
    /// Scratch buffer for messages to clients.
    text: Vec<u8>,
    /// Two more, for messages in other encodings than JSON: from and to clients.
    json: Vec<u8>,
    binary: Vec<u8>,
    /// Set by `request` for the `open` that follows within the same call of the engine.
    pending_open: Option<PendingOpen>,
}

impl ServeHandler {
    pub(crate) fn new(
        worker: u16,
        shared: Arc<Shared>,
        broadcasts: Option<BroadcastQueue>,
    ) -> Self {
        shared.worker_started(worker);
        let calls_for =
            |what: fn(&AppConfig) -> bool| shared.calls.clone().filter(|calls| what(&calls.config));
        ServeHandler {
            policy: shared.policy(),
            topics: Topics::new(worker, shared.directory.clone()),
            app: calls_for(|config| config.target.is_some())
                .map(|calls| Box::new(Application::new(calls))),
            authorizer: calls_for(|config| config.auth.is_some())
                .map(|calls| Box::new(Authorizer::new(calls))),
            hooks: shared.hooks.clone().map(|hooks| Box::new(WorkerHooks::new(hooks))),
            awaiting: shared.confirmation.clone().map(|own| Box::new(Awaiting::new(own))),
            sessions: SessionIndex::new(shared.rails_names),
            polling: shared.long_polling.clone().map(|config| Box::new(Polling::new(config))),
            shared,
            identifiers: Identifiers::default(),
            retry_queue: RetryQueue::default(),
            replays: Replays::default(),
            members: Members::default(),
            disconnects: Disconnects::default(),
            broadcasts,
            heartbeat: Heartbeat::default(),
            heartbeat_connections: 0,
            text: Vec::new(),
            json: Vec::new(),
            binary: Vec::new(),
            pending_open: None,
        }
    }

    fn counters(&self, worker: u16) -> &WorkerCounters {
        // There is one for each planned worker.
        &self.shared.counters[usize::from(worker)]
    }

    /// Counts and reports a token or a subscription that was refused. `what` names it: never a token or
    /// a signed name.
    fn refuse_access(&self, worker: u16, cause: Cause, what: &str) {
        self.counters(worker).auth_refused.add(cause);
        let what = log::shown(what.as_bytes()).into();
        self.shared.log.post(LogEvent::AccessRefused(cause, what));
    }

    fn execute<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, command: Command<'_>) {
        match command {
            Command::Reply(opcode, data) => {
                core.send(id, opcode, data);
            }
            Command::Publish { data, binary } => {
                let session = core.user(id);
                let topic = session.and_then(|s| self.topics.only_topic(s.subscriptions()));
                let Some(topic) = topic else {
                    return invariant::broken("a session of /topics is subscribed to one topic");
                };
                let publication =
                    Publication::new(topic, data.into(), binary).accepted(core.now_ns());
                self.publish(core, id, Arc::new(publication));
            }
            Command::Subscribe { identifier, history, presence } => {
                let named = identifier.clone();
                let (since, member) = (history.as_ref(), presence.as_ref());
                let subscribed = self.subscribe(core, id, identifier, since, member);
                if let Some(history) = history.filter(|_| subscribed) {
                    self.request_history(core, id, named.clone(), &history);
                }
                if let Some(presence) = presence.filter(|_| subscribed) {
                    self.join_presence(core, id, named, &presence);
                }
            }
            Command::Unsubscribe { identifier } => self.unsubscribe(core, id, &identifier),
            Command::Whisper { identifier, data } => self.whisper(core, id, &identifier, data),
            Command::History { identifier, history } => {
                self.request_history(core, id, identifier, &history);
            }
            Command::Join { identifier, presence } => {
                self.join_presence(core, id, identifier, &presence);
            }
            Command::Leave { identifier } => self.leave_presence(core, id, &identifier),
            Command::Presence { identifier, records } => {
                self.request_members(core, id, identifier, records);
            }
            Command::Ping => self.send_message(core, id, &Message::Pong),
            Command::Nothing => {}
            Command::Unknown | Command::Perform { .. } => {
                self.counters(core.worker()).commands_ignored.add(1)
            }
            Command::Malformed => {
                self.counters(core.worker()).commands_malformed.add(1);
                self.disconnect(core, id, Disconnect::Malformed);
            }
        }
    }

    /// Publishes for a client. While a mailbox is full, the topic overloaded or the broker away, it is not
    /// read. Returns whether the publication waits.
    fn publish<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        publication: Arc<Publication>,
    ) -> bool {
        let published = self.try_publish(core, &publication);
        let counters = self.counters(core.worker());
        if published {
            counters.published.add(1);
            return false;
        }
        counters.publish_paused.add(1);
        if self.retry_queue.push(core.now_ns(), id, publication) {
            core.pause(id);
            return true;
        }
        if let Some(pubsub) = &self.shared.pubsub {
            pubsub.broker.count_refused(1);
        }
        self.disconnect(core, id, Disconnect::Overloaded);
        false
    }

    /// Publishes to all workers that have subscribers, or to none if one of them or the topic has no
    /// room.
    fn try_publish<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        publication: &Arc<Publication>,
    ) -> bool {
        if let Some(pubsub) = &self.shared.pubsub {
            return pubsub.publish(publication);
        }
        let identifiers = &self.identifiers;
        let encode = |core: &mut _, group, publication: &_, out: &mut _| {
            encode(identifiers, core, group, publication, out);
        };
        self.topics.publish(core, publication, encode).is_ok()
    }

    /// Retries publications that were refused, a portion per turn.
    fn retry_publications<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        let due = self.retry_queue.take_due(core.now_ns());
        if due.is_empty() {
            return;
        }
        let mut delivered = false;
        for (id, publication) in due {
            if self.try_publish(core, &publication) {
                delivered = true;
                self.counters(core.worker()).published.add(1);
                self.resume_publisher(core, id);
            } else {
                self.retry_queue.push_again(id, publication);
            }
        }
        self.retry_queue.attempted(core.now_ns(), delivered);
    }

    fn set_limits<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        core.set_limits(self.policy.limits.clone());
        core.renew_tick();
    }
}

impl Handler for ServeHandler {
    type User = Session;
    type Post = Post;

    fn begin<S: Sys>(&mut self, core: &mut Core<S, Self>) {
        // A worker that starts after a reload was given the limits of the start.
        self.set_limits(core);
        core.set_tls(self.policy.tls.clone());
        core.set_plain_listeners(self.shared.plain_listeners);
    }

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        self.answer(core, id, request)
    }

    /// Bodies of `/_broadcast` and of long polling: no other route reads one.
    fn body<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, body: Vec<u8>) -> Answer {
        if self.awaits_poll_body(id) {
            return self.poll_body(core, id, body);
        }
        match &self.broadcasts {
            Some(broadcasts) => broadcasts.submit(id, body),
            None => not_found(),
        }
    }

    fn late_answer<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Answer {
        match self.answer_held(core, id) {
            Some(answer) => answer,
            None => self.answer_decided(core, id),
        }
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        match self.pending_open.take() {
            Some(PendingOpen::Echo { identity }) => {
                let session = Session::new(SessionProtocol::Echo);
                self.begin_session(core, id, session, identity.as_ref());
                self.note_connect(core, id);
            }
            Some(PendingOpen::Topic { name, identity, first, publishing }) => {
                let session = Session::new(match publishing {
                    Publishing::Allowed => SessionProtocol::Topic,
                    Publishing::Forbidden => SessionProtocol::TopicReader,
                    Publishing::Asked => SessionProtocol::TopicAsker,
                });
                self.begin_session(core, id, session, identity.as_ref());
                self.note_connect(core, id);
                let (encoding, messages) = (core.encoding(id), Encoding::Json);
                let group = Group { encoding, messages, form: Form::Plain };
                self.topics.subscribe(core, id, &name, group.number());
                self.counters(core.worker()).subscriptions.add(1);
                self.note_topic(core, id, EventKind::Subscribe, &name);
                if let Some(first) = first {
                    self.send_from(core, id, &name, group, first);
                }
            }
            Some(PendingOpen::Cable { protocol, identity, env, resumed }) => {
                self.open_cable(core, id, protocol, identity, env, resumed);
            }
            None => {
                invariant::broken("a WebSocket opens after a request that was accepted");
                core.abort(id);
            }
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
        let Some(session) = core.user(id) else {
            return invariant::broken("a connection with a message has a session");
        };
        if session.encoding() != Encoding::Json {
            return self.encoded_message(core, id, opcode, data);
        }
        let command = match session.protocol() {
            SessionProtocol::Echo => Echo::decode(opcode, data),
            SessionProtocol::Topic => PlainTopic::decode(opcode, data),
            SessionProtocol::TopicReader => return self.refuse_publication(core, id),
            SessionProtocol::TopicAsker => return self.ask_to_publish(core, id, opcode, data),
            SessionProtocol::Cable | SessionProtocol::CableExt if self.app.is_some() => {
                return self.app_message(core, id, opcode, data);
            }
            SessionProtocol::Cable | SessionProtocol::CableExt => Cable::decode(opcode, data),
            SessionProtocol::Events => Events::decode(opcode, data),
            SessionProtocol::Http => return invariant::broken("a WebSocket has a protocol"),
        };
        self.execute(core, id, command);
    }

    fn going_away<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        if core.is_polled(id) {
            return self.drain_polled(core, id);
        }
        match self.hand_over(core, id) {
            Closing::Stored => false,
            Closing::Waits => true,
            Closing::NotStored => {
                if core.user(id).is_some_and(|session| session.protocol().has_heartbeat()) {
                    self.disconnect(core, id, Disconnect::Restart);
                }
                false
            }
        }
    }

    fn defers_drain<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        self.defers_poll(core, id)
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, _: bool) {
        let Some(session) = core.user(id) else {
            return invariant::broken("a closing connection has a session");
        };
        self.heartbeat_connections -= u32::from(session.protocol().has_heartbeat());
        self.store_session(core, id);
        self.note_end(core, id);
        self.sessions.remove(id);
        self.end_app_session(core, id, true);
        self.end_questions(id);
        self.unhold_all(id);
        self.unsubscribe_all(core, id);
        self.end_polling(core, id, why);
    }

    /// Nothing is sent to it any more, and it may take seconds to end.
    fn closing<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, _: Closed) {
        self.store_session(core, id);
        self.note_end(core, id);
        self.end_app_session(core, id, true);
        self.end_questions(id);
        self.unhold_all(id);
        self.unsubscribe_all(core, id);
    }

    fn drained<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        let _ = self.replays.drained(id);
    }

    fn held_bytes<S: Sys>(&self, core: &Core<S, Self>, id: ConnId) -> usize {
        let of_app = self.app_held(id) + self.questions_held(id) + self.held_commands(id).0;
        let of_session = of_app + self.members.held(id) + self.polling_held(id);
        self.subscriptions_held(core, id) + of_session
    }

    fn held_entries<S: Sys>(&self, core: &Core<S, Self>, id: ConnId) -> usize {
        core.user(id).map_or(0, |session| session.subscriptions().len())
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Post) {
        match post {
            Post::Publication(publication) => {
                let identifiers = &self.identifiers;
                self.topics.deliver(core, &publication, |core, group, publication, out| {
                    encode(identifiers, core, group, publication, out);
                });
            }
            Post::Policy(policy) => {
                self.policy = policy;
                self.heartbeat.policy_changed(core.now_ns(), self.policy.channels.pong_timeout);
                self.set_limits(core);
                core.set_tls(self.policy.tls.clone());
            }
            Post::List(list) => self.list(core, &list),
            Post::Close(request) => self.close_one(core, &request),
            Post::Topics(request) => self.report_topics(core, &request),
            Post::Disconnect(request) if request.rails_name => {
                for identifiers in self.sessions.named_by_rails(&request.identifiers) {
                    self.disconnect_all(core, &identifiers, request.reconnect);
                }
            }
            Post::Disconnect(request) => {
                self.disconnect_all(core, &request.identifiers, request.reconnect);
            }
            Post::Confirmed(topics) => self.topics_confirmed(&topics),
            Post::Session(answer) => self.store_answered(core, *answer),
            Post::HandedOver(id, stored) => self.close_handed_over(core, id, stored),
            Post::Answered(answered) => {
                let answered = Arc::try_unwrap(answered).unwrap_or_else(|shared| (*shared).clone());
                match &answered.call.what {
                    What::Authorize(_) => self.question_answered(core, answered),
                    _ => self.app_answered(core, answered),
                }
            }
            Post::Poll(post) => self.poll_post(core, *post),
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        self.retry_publications(core);
        let unencodable = self.identifiers.take_unencodable();
        if unencodable > 0 {
            self.counters(core.worker()).messages_unencodable.add(unencodable);
        }
        let identifiers = &self.identifiers;
        let sweep = self.topics.turn(core, |core, group, publication, out| {
            encode(identifiers, core, group, publication, out);
        });
        let missed = self.send_missed(core);
        let members = self.send_members(core);
        let disconnects = self.continue_disconnects(core);
        let held = self.continue_held(core);
        let (beat, expiry) = (self.beat(core), self.end_expired(core));
        // Last: it answers requests with what the others have sent.
        let polls = self.poll_turn(core);
        [sweep, self.retry_queue.next_ns(), missed, members, disconnects, held, beat, expiry, polls]
            .into_iter()
            .flatten()
            .min()
    }

    fn accepts_posts(&self) -> bool {
        self.topics.accepts_posts()
    }
}
