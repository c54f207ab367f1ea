//! Long polling: clients of Action Cable whose network lets no WebSocket pass. The first request opens a
//! session, further ones name it, bring commands and take messages, a line each
//! (`docs/protocol/long-polling.md`).
//!
//! A session is a polled connection of the engine: to all other parts of the handler it is a client of
//! Action Cable like those with a WebSocket. This file receives requests; `sessions.rs` has the sessions of
//! this worker and `answers.rs` answers requests, which may have arrived at another worker.

mod answers;
mod sessions;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use action_cable::{Encoding, Protocol};
use engine::{Answer, ConnId, Core, Incoming, Response, Sys, invariant};
use wire::http::Request;

pub(crate) use self::answers::PollAnswer;
use self::answers::{access_headers, disconnect_line, refused_answer};
use self::sessions::Sessions;
use super::handshake::unavailable;
use super::restore::{Opens, Restoring};
use super::resume::named_sid;
use super::{Post, ServeHandler};
use crate::app::call::Env;
use crate::auth::{Cause, Connect, TokenIdentity};
use crate::config::LongPolling;
use crate::protocols::Disconnect;
use crate::resume::{Closing, StoredSession};

/// The header with the id of a session.
const POLL_ID: &str = "X-Anycable-Poll-ID";
/// Time beyond the poll interval after which a request whose session's worker does not answer is given up.
const GRACE: Duration = Duration::from_secs(10);
/// Memory of a post beyond its body, in bytes.
const POST_BYTES: usize = 160;

/// One worker's part of long polling.
pub(super) struct Polling {
    config: Arc<LongPolling>,
    /// Requests of this worker's connections, by slot: their bodies are received, or they wait for their
    /// answers.
    requests: HashMap<u32, Box<PollRequest>>,
    sessions: Sessions,
    /// Answers that are due.
    answers: Vec<PollAnswer>,
}

/// A request under way.
struct PollRequest {
    id: ConnId,
    /// Of the page that sent it, if it was one.
    origin: Option<Box<str>>,
    stage: Stage,
}

enum Stage {
    /// The body of the request that opens a session is received.
    Opens(Box<Opening>),
    /// The body of a request for a session is received.
    Names { session: ConnId, identity: Option<Box<str>> },
    /// The store of the nodes is asked for the session that it resumes.
    Restores,
    /// It waits for the messages of a session.
    Waits { session: ConnId },
}

/// What a handshake has said of a session that is about to be opened.
struct Opening {
    identity: Option<TokenIdentity>,
    env: Option<Env>,
    /// The session that the client wants to continue.
    sid: Option<Box<str>>,
}

/// A request for a session, posted to the worker that has it.
pub(crate) struct Poll {
    pub(super) session: ConnId,
    pub(super) request: ConnId,
    /// Of the request's token.
    pub(super) identity: Option<Box<str>>,
    pub(super) body: Vec<u8>,
}

/// Messages of long polling between workers.
pub(crate) enum PollPost {
    /// A request for a session of this worker.
    Poll(Poll),
    /// The client of a request has left.
    Gone { session: ConnId, request: ConnId },
    /// The answer to a request of this worker.
    Answer(PollAnswer),
    /// The messages in an answer whose client has left.
    Undelivered { session: ConnId, lines: Vec<u8>, messages: u32 },
}

impl PollPost {
    fn bytes(&self) -> usize {
        let held = match self {
            PollPost::Poll(poll) => poll.body.len(),
            PollPost::Answer(answer) => answer.lines.len(),
            PollPost::Undelivered { lines, .. } => lines.len(),
            PollPost::Gone { .. } => 0,
        };
        POST_BYTES + held
    }
}

impl Polling {
    pub(super) fn new(config: Arc<LongPolling>) -> Self {
        let sessions = Sessions::new(&config);
        Polling { config, requests: HashMap::new(), sessions, answers: Vec::new() }
    }

    fn request(&mut self, id: ConnId) -> Option<&mut PollRequest> {
        let request = self.requests.get_mut(&id.slot())?;
        (request.id == id).then_some(request)
    }

    fn remove_request(&mut self, id: ConnId) -> Option<Box<PollRequest>> {
        self.request(id)?;
        let request = self.requests.remove(&id.slot());
        let (used, room) = (self.requests.len(), self.requests.capacity());
        if room > 64 && used < room / 8 {
            self.requests.shrink_to(2 * used);
        }
        request
    }

    /// How long the engine lets a request wait for its answer.
    fn waits_ns(&self) -> u64 {
        let waits = self.config.interval.saturating_add(GRACE);
        u64::try_from(waits.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl ServeHandler {
    /// Answers the head of a request for long polling.
    pub(super) fn long_poll<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        let head = request.head;
        let origin = head.header("origin");
        if let Some(origin) = origin
            && let Some(refused) = self.refuse_origin(core, id, head, origin)
        {
            return refused;
        }
        let origin: Option<Box<str>> = origin.map(|it| String::from_utf8_lossy(it).into());
        match head.method {
            "POST" => {}
            "OPTIONS" => return preflight(head, origin),
            _ => return wrong_method(),
        }
        let worker = core.worker();
        let named = head.header(POLL_ID).map(|text| {
            let text = str::from_utf8(text).unwrap_or_default();
            self.shared.poll_ids.as_ref().and_then(|ids| ids.find(text))
        });
        if let Some(None) = named {
            self.counters(worker).long_polling_stale.add(1);
            return refused_answer(self.stale_lines(core, None), origin.as_deref());
        }
        let identity = match self.check_token(core, head, []) {
            Connect::Identified(identity) => Ok(Some(identity)),
            Connect::Anonymous => Ok(None),
            Connect::Expired => Err(self.refuse_token(worker, Cause::TokenExpired)),
            Connect::Refused(cause) => Err(self.refuse_token(worker, cause)),
        };
        let identity = match identity {
            Ok(identity) => identity,
            Err(reason) => return refused_answer(disconnect_line(reason), origin.as_deref()),
        };
        let stage = match named.flatten() {
            Some(session) => Stage::Names { session, identity: identity.map(|it| it.identifiers) },
            None => match self.opening(core, id, head, identity) {
                Ok(opening) => Stage::Opens(opening),
                Err(refused) => return refused,
            },
        };
        let Some(polling) = &mut self.polling else {
            invariant::broken("a request for long polling has its part of the worker");
            return super::not_found();
        };
        polling.requests.insert(id.slot(), Box::new(PollRequest { id, origin, stage }));
        Answer::Body(polling.config.max_body)
    }

    /// What is known of a session that a request is about to open, or the refusal.
    fn opening<S: Sys>(
        &self,
        core: &mut Core<S, Self>,
        id: ConnId,
        head: &Request<'_, '_>,
        identity: Option<TokenIdentity>,
    ) -> Result<Box<Opening>, Answer> {
        if self.shared.is_draining() {
            return Err(unavailable("The server is shutting down: try again.\n", core.random()));
        }
        if self.shared.poll_ids.is_none() {
            // The system has no random numbers: an id could be guessed.
            return Err(unavailable("Long polling has no ids for sessions.\n", core.random()));
        }
        let sid = self.stored_sessions().and_then(|_| named_sid(head)).map(|sid| (*sid).into());
        let identified = identity.is_some() || self.names_session(core, head);
        let env = self.app_env_of(core, id, head, identified)?;
        Ok(Box::new(Opening { identity, env, sid }))
    }

    /// Whether a request of long polling has its body received.
    pub(super) fn awaits_poll_body(&mut self, id: ConnId) -> bool {
        let request = self.polling.as_mut().and_then(|polling| polling.request(id));
        request.is_some_and(|it| matches!(it.stage, Stage::Opens(_) | Stage::Names { .. }))
    }

    /// The body of a request is complete.
    pub(super) fn poll_body<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        body: Vec<u8>,
    ) -> Answer {
        let worker = core.worker();
        self.counters(worker).long_polling_requests.add(1);
        let Some(polling) = &mut self.polling else { return super::not_found() };
        let waits = Answer::LaterWithin(polling.waits_ns());
        let Some(request) = polling.request(id) else {
            invariant::broken("a request with a body is known");
            return super::not_found();
        };
        // Replaced below, once the session is known.
        let stage = std::mem::replace(&mut request.stage, Stage::Restores);
        match stage {
            Stage::Opens(opening) => return self.open_or_restore(core, id, *opening, body),
            Stage::Names { session, identity } => {
                self.wait_for(id, session);
                let poll = Poll { session, request: id, identity, body };
                if session.worker() == worker {
                    self.poll(core, poll);
                } else if post_poll(core, session, PollPost::Poll(poll)).is_err() {
                    self.polling.as_mut().and_then(|polling| polling.remove_request(id));
                    return unavailable("Too many requests wait: try again.\n", core.random());
                }
            }
            Stage::Restores | Stage::Waits { .. } => {
                invariant::broken("a request that waits has no body to come");
                return super::not_found();
            }
        }
        waits
    }

    fn wait_for(&mut self, id: ConnId, session: ConnId) {
        if let Some(request) = self.polling.as_mut().and_then(|polling| polling.request(id)) {
            request.stage = Stage::Waits { session };
        }
    }

    /// Opens the session of a request, once the store has been asked for the one that it names.
    fn open_or_restore<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        request: ConnId,
        opening: Opening,
        body: Vec<u8>,
    ) -> Answer {
        let Opening { identity, env, sid } = opening;
        let (sid, of) = (sid.as_deref(), identity.as_ref());
        let named = sid.and_then(|sid| self.session_in_store(core, sid, of, env.as_ref()));
        if let Some(named) = named {
            let restoring = Restoring::new(named, Opens::Polled(body), identity, env);
            return self.ask_store(core, request, restoring);
        }
        let session = match self.admit_polled(core, request) {
            Ok(session) => session,
            Err(refused) => return refused,
        };
        let stored = sid.and_then(|sid| self.find_session(core, sid, of, env.as_ref()));
        self.open_polled_session(core, (request, session), identity, env, stored, body)
    }

    /// A connection for the session of a request, or the refusal.
    pub(super) fn admit_polled<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        request: ConnId,
    ) -> Result<ConnId, Answer> {
        core.open_polled(request).map_err(|_| {
            // Counted by the limit.
            self.polling.as_mut().and_then(|polling| polling.remove_request(request));
            let why = "The server accepts no more connections right now.\n";
            unavailable(why, core.random())
        })
    }

    /// Begins the session of a request, and executes the commands in its body.
    pub(super) fn open_polled_session<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        (request, session): (ConnId, ConnId),
        identity: Option<TokenIdentity>,
        env: Option<Env>,
        stored: Option<StoredSession>,
        body: Vec<u8>,
    ) -> Answer {
        let token = identity.as_ref().map(|identity| identity.identifiers.clone());
        let now_ns = core.now_ns();
        let Some(polling) = &mut self.polling else { return super::not_found() };
        polling.sessions.open(session, token, request, now_ns);
        let waits = Answer::LaterWithin(polling.waits_ns());
        let protocol = Protocol { extended: true, encoding: Encoding::Json };
        self.open_cable(core, session, protocol, Ok(identity), env, stored);
        self.take_lines(core, session, body);
        self.wait_for(request, session);
        waits
    }

    /// A message of long polling from another worker.
    pub(super) fn poll_post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: PollPost) {
        match post {
            PollPost::Poll(poll) => self.poll(core, poll),
            PollPost::Gone { session, request } => self.poll_gone(core, session, request),
            PollPost::Answer(answer) => self.deliver(core, answer),
            PollPost::Undelivered { session, lines, messages } => {
                core.give_back(session, &lines, messages);
            }
        }
    }

    /// A connection has ended: a request whose client has left, or a session.
    pub(super) fn end_polling<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        why: engine::Closed,
    ) {
        let Some(polling) = &mut self.polling else { return };
        if let Some(request) = polling.remove_request(id)
            && let Stage::Waits { session } = request.stage
        {
            if session.worker() == core.worker() {
                self.poll_gone(core, session, id);
            } else {
                // With a full mailbox the session learns of it when it answers.
                let _ = post_poll(core, session, PollPost::Gone { session, request: id });
            }
        }
        self.end_polled_session(core, id, why);
    }

    /// The server drains and would end a connection: a request that waits is answered first.
    pub(super) fn defers_poll<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        let Some(request) = self.polling.as_mut().and_then(|polling| polling.request(id)) else {
            return false;
        };
        let Stage::Waits { session } = request.stage else { return false };
        if session.worker() == core.worker() {
            self.drain_polled(core, session);
        }
        // Another worker drains its own sessions.
        true
    }

    /// The session drains: it is left in the store of the nodes, if there is one. Otherwise its client is told
    /// with the answer to the request that waits; without one it could not come back to be told. Returns whether
    /// the store has yet to answer.
    pub(super) fn drain_polled<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        session: ConnId,
    ) -> bool {
        if !core.is_polled(session) {
            return false;
        }
        match self.hand_over(core, session) {
            Closing::Waits => return true,
            Closing::Stored => self.close_handed_over(core, session, true),
            Closing::NotStored => self.disconnect(core, session, Disconnect::Restart),
        }
        let waits = |polling: &Polling| polling.sessions.waits(session);
        if !self.polling.as_deref().is_some_and(waits) {
            core.abort(session);
        }
        false
    }

    /// Memory that long polling holds for a connection, in bytes.
    pub(super) fn polling_held(&self, id: ConnId) -> usize {
        self.polling.as_ref().map_or(0, |polling| polling.sessions.held(id))
    }
}

/// Posts to the worker of a connection; returns the post if its mailbox is full.
fn post_poll<S: Sys>(
    core: &Core<S, ServeHandler>,
    to: ConnId,
    post: PollPost,
) -> Result<(), PollPost> {
    let (worker, bytes) = (usize::from(to.worker()), post.bytes());
    let posted = core.remote().post_or_return(worker, Post::Poll(Box::new(post)), bytes);
    posted.map_err(|post| match post {
        Post::Poll(post) => *post,
        _ => PollPost::Gone { session: to, request: to },
    })
}

/// The answer to the request that browsers send before one with our header.
fn preflight(head: &Request<'_, '_>, origin: Option<Box<str>>) -> Answer {
    let mut response = Response::text(200, "");
    access_headers(&mut response, origin.as_deref());
    let mut header = |name, value| response.headers.push((Cow::Borrowed(name), value));
    header("Access-Control-Allow-Methods", Cow::Borrowed("POST"));
    header("Access-Control-Max-Age", Cow::Borrowed("600"));
    let requested = head.header("access-control-request-headers");
    let requested = requested.and_then(|names| str::from_utf8(names).ok());
    let plain = |names: &&str| {
        names.len() <= 1024
            && names.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_, ".contains(&b))
    };
    if let Some(names) = requested.filter(plain) {
        header("Access-Control-Allow-Headers", Cow::Owned(names.to_owned()));
    }
    Answer::Respond(response)
}

fn wrong_method() -> Answer {
    let mut response = Response::text(405, "POST here, with commands as lines of JSON\n");
    response.headers.push((Cow::Borrowed("Allow"), Cow::Borrowed("POST, OPTIONS")));
    response.close = true;
    Answer::Respond(response)
}
