//! Routing and authorization of requests on the public listener.

use std::borrow::Cow;

use action_cable::{Channel, Encoding, Protocol};
use admin::log;
use engine::{Answer, ConnId, Core, Incoming, Response, Sys, retry_after};
use topics::{Position, Unavailable};
use wire::http::Request;

use super::authorize::AskedForm;
use super::confirm::Handshake;
use super::restore::{Opens, Restoring};
use super::resume::named_sid;
use super::{PendingOpen, ServeHandler};
use crate::app::decision::Publishing;
use crate::auth::{Cause, Connect, TokenIdentity};
use crate::broadcast_worker::BODY_BYTES_MAX;
use crate::identifiers::{Form, Group};
use crate::log_events::LogEvent;
use crate::path::{Route, check_topic, parameter};
use crate::protocols::{Cable, Disconnect, Echo, Events, PlainTopic, ProtocolAdapter};
use crate::session::{Session, SessionProtocol};

/// The topic of a request for a stream of events.
struct RequestedTopic {
    topic: Box<str>,
    /// Of its token.
    identity: Option<TokenIdentity>,
    /// The application has to be asked.
    is_asked: bool,
}

impl ServeHandler {
    /// Answers a request head.
    pub(super) fn answer<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        let worker = core.worker();
        if !self.policy.origins.admit_host(request.head.authority()) {
            return self.refuse_host(worker, request.head);
        }
        if let Some(redirect) = self.redirect_to_https(core, id, request.head) {
            return redirect;
        }
        let long_polling = self.shared.long_polling.as_ref().map(|config| &*config.path);
        match Route::of(request.head.path(), &self.shared.cable_path, long_polling) {
            Route::Health => {
                let draining = self.shared.is_draining();
                let (status, body) = if draining { (503, "draining\n") } else { (200, "ok\n") };
                status_page(request.head, status, body, core.random())
            }
            Route::Ready => {
                let (status, body) = self.shared.readiness(core.remote());
                status_page(request.head, status, body, core.random())
            }
            Route::Echo if self.shared.echo => match self.required_identity(core, request) {
                Ok(identity) => self.admit(core, id, request, PendingOpen::Echo { identity }),
                Err(refused) => refused,
            },
            Route::Topic(name) if self.authorizer.is_some() => {
                self.ask_for_topic(core, id, request, &name)
            }
            Route::Topic(_) if !self.shared.public => {
                self.counters(worker).public_refused.add(1);
                refuse(403, "Subscribing without credentials is off: the server is not public.\n")
            }
            Route::Topic(name) => match self.required_identity(core, request) {
                Ok(identity) if self.awaiting.is_some() => {
                    self.admit_topic(core, id, request, &name, identity)
                }
                Ok(identity) => {
                    let since = parameter(request.head.query(), "since");
                    let first = match self.first_missed(core, &name, since.as_deref()) {
                        Ok(first) => first,
                        Err(refused) => return refused,
                    };
                    let (name, publishing) = (name.into(), Publishing::Allowed);
                    let pending_open = PendingOpen::Topic { name, identity, first, publishing };
                    self.admit(core, id, request, pending_open)
                }
                Err(refused) => refused,
            },
            Route::BadTopic(why) => refuse(400, format!("{why}\n")),
            Route::Cable => {
                let identity = self.authenticate(core, request);
                let known = !matches!(identity, Ok(None));
                let identified = known || self.names_session(core, request.head);
                match self.app_env(core, id, request, identified) {
                    Ok(env) => {
                        let protocol = Protocol::default();
                        let pending_open =
                            PendingOpen::Cable { protocol, identity, env, resumed: None };
                        self.admit(core, id, request, pending_open)
                    }
                    Err(refused) => refused,
                }
            }
            Route::LongPolling => self.long_poll(core, id, request),
            Route::Events => self.stream_events(core, id, request),
            Route::Broadcast if self.broadcasts.is_some() => self.broadcast(worker, request.head),
            Route::Broadcast => refuse(404, ON_ADMIN),
            Route::Echo => refuse(404, "Not found: /echo needs --echo.\n"),
            Route::Unknown => match request.head.path() {
                path if path == "/metrics" || path.starts_with("/api/") => refuse(404, ON_ADMIN),
                _ => refuse(404, PATHS),
            },
        }
    }

    /// The redirect of a plain request to https, if it is to be redirected.
    fn redirect_to_https<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        head: &Request<'_, '_>,
    ) -> Option<Answer> {
        let redirect = self.policy.redirect.as_ref()?;
        let response = redirect.answer(core, id, head, self.shared.tls_port)?;
        let redirected = response.status == 308;
        self.counters(core.worker()).https_redirects.add(u64::from(redirected));
        Some(Answer::Respond(response))
    }

    /// Answers an upgrade request at a path that serves WebSockets.
    fn admit<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
        pending_open: PendingOpen,
    ) -> Answer {
        let Some(upgrade) = request.upgrade else { return Answer::Upgrade(None) };
        if let Some(origin) = upgrade.origin
            && let Some(refused) = self.refuse_origin(core, id, request.head, origin)
        {
            return refused;
        }
        let subprotocol = match pending_open {
            PendingOpen::Echo { .. } => Echo::accept(upgrade.protocols()),
            PendingOpen::Topic { .. } => PlainTopic::accept(upgrade.protocols()),
            PendingOpen::Cable { .. } => Cable::accept(upgrade.protocols()),
        };
        let protocol = subprotocol.as_deref().and_then(Protocol::from_name).unwrap_or_default();
        self.pending_open = Some(match pending_open {
            PendingOpen::Cable { identity: Ok(identity), env, .. } if protocol.extended => {
                let sid = named_sid(request.head);
                let (sid, of) = (sid.as_deref(), identity.as_ref());
                let named = sid.and_then(|sid| self.session_in_store(core, sid, of, env.as_ref()));
                if let Some(named) = named {
                    let opens = Opens::WebSocket(protocol, subprotocol);
                    return self.ask_store(core, id, Restoring::new(named, opens, identity, env));
                }
                let resumed = sid.and_then(|sid| self.find_session(core, sid, of, env.as_ref()));
                PendingOpen::Cable { protocol, identity: Ok(identity), env, resumed }
            }
            PendingOpen::Cable { identity, env, .. } => {
                PendingOpen::Cable { protocol, identity, env, resumed: None }
            }
            pending_open => pending_open,
        });
        Answer::Upgrade(subprotocol)
    }

    /// Verifies the token of a handshake. Clients that are refused get the reason in a message, so the
    /// WebSocket is opened for them, too.
    fn authenticate<S: Sys>(
        &self,
        core: &Core<S, Self>,
        request: &Incoming<'_, '_>,
    ) -> Result<Option<TokenIdentity>, Disconnect> {
        let Some(upgrade) = request.upgrade else { return Ok(None) };
        match self.check_token(core, request.head, upgrade.protocols()) {
            Connect::Identified(identity) => Ok(Some(identity)),
            Connect::Anonymous => Ok(None),
            Connect::Expired => Err(self.refuse_token(core.worker(), Cause::TokenExpired)),
            Connect::Refused(cause) => Err(self.refuse_token(core.worker(), cause)),
        }
    }

    /// Counts and reports a token that was refused. Returns what its client is told.
    pub(super) fn refuse_token(&self, worker: u16, cause: Cause) -> Disconnect {
        self.refuse_access(worker, cause, "");
        match cause {
            Cause::TokenExpired => Disconnect::TokenExpired,
            _ => Disconnect::Unauthorized,
        }
    }

    pub(super) fn check_token<'b, S: Sys>(
        &self,
        core: &Core<S, Self>,
        head: &Request<'_, 'b>,
        protocols: impl IntoIterator<Item = &'b str>,
    ) -> Connect {
        let access = &self.policy.access;
        let token = access.token(head.query(), |name| head.header(name), protocols);
        access.connect(token.as_deref(), self.shared.unix_s(core.now_ns()))
    }

    /// Where tokens are required: the identity of a handshake at a path whose protocol has no message
    /// for a refusal, or the refusal. Elsewhere tokens are ignored there.
    pub(super) fn required_identity<S: Sys>(
        &self,
        core: &Core<S, Self>,
        request: &Incoming<'_, '_>,
    ) -> Result<Option<TokenIdentity>, Answer> {
        let requires_token = self.policy.access.requires_token();
        let Some(upgrade) = request.upgrade.filter(|_| requires_token) else { return Ok(None) };
        let cause = match self.check_token(core, request.head, upgrade.protocols()) {
            Connect::Identified(identity) => return Ok(Some(identity)),
            Connect::Anonymous => return Ok(None),
            Connect::Expired => Cause::TokenExpired,
            Connect::Refused(cause) => cause,
        };
        self.refuse_access(core.worker(), cause, "");
        Err(refuse(403, "A valid token is required.\n"))
    }

    /// `/events`: a stream of events of the topic in the query.
    fn stream_events<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        let head = request.head;
        if head.method != "GET" {
            let mut response = Response::text(405, "GET /events?topic=NAME\n");
            response.headers.push((Cow::Borrowed("Allow"), Cow::Borrowed("GET")));
            return Answer::Respond(response);
        }
        let origin = head.header("origin");
        if let Some(origin) = origin
            && let Some(refused) = self.refuse_origin(core, id, head, origin)
        {
            return refused;
        }
        // Browsers send no Origin with a GET of the same origin.
        let encrypted = core.is_encrypted(id);
        if origin.is_none() && !self.policy.origins.admit_same_origin(head.authority(), encrypted) {
            return self.refuse_host(core.worker(), head);
        }
        let requested = match self.requested_topic(core, head) {
            Ok(requested) => requested,
            Err(refused) => return refused,
        };
        let last_id = head.header("last-event-id").and_then(|id| str::from_utf8(id).ok());
        let start = last_id.filter(|id| !id.is_empty()).map(Cow::Borrowed);
        let start = start.or_else(|| parameter(head.query(), "since"));
        let origin = origin.and_then(|origin| str::from_utf8(origin).ok());
        let RequestedTopic { topic, identity, is_asked } = requested;
        if is_asked {
            let form = AskedForm::Events {
                start: start.map(|start| start.into()),
                origin: origin.map(Into::into),
            };
            return self.ask_to_connect(core, id, head, &topic, identity, form);
        }
        let (start, origin) = (start.map(|start| (*start).into()), origin.map(Into::into));
        self.open_confirmed(core, id, Handshake::Events { topic, identity, start, origin })
    }

    /// As [`ServeHandler::admit`] for a plain topic, which the broker may have to confirm first.
    fn admit_topic<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
        name: &str,
        identity: Option<TokenIdentity>,
    ) -> Answer {
        let Some(upgrade) = request.upgrade else { return Answer::Upgrade(None) };
        if let Some(origin) = upgrade.origin
            && let Some(refused) = self.refuse_origin(core, id, request.head, origin)
        {
            return refused;
        }
        let since = parameter(request.head.query(), "since").map(|since| (*since).into());
        let (name, publishing) = (name.into(), Publishing::Allowed);
        self.open_confirmed(core, id, Handshake::Topic { name, identity, since, publishing })
    }

    /// Begins a stream of events.
    pub(super) fn open_events<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &str,
        identity: Option<&TokenIdentity>,
        start: Option<&str>,
        origin: Option<&str>,
    ) -> Answer {
        self.begin_session(core, id, Session::new(SessionProtocol::Events), identity);
        self.note_connect(core, id);
        self.subscribe_to_events(core, id, topic);
        let mut response = Response::text(200, "");
        response.body = self.first_events(core, id, topic, start).into();
        response.content_type = "text/event-stream";
        let mut header = |name, value| response.headers.push((Cow::Borrowed(name), value));
        header("Cache-Control", Cow::Borrowed("no-store"));
        // nginx buffers responses by default.
        header("X-Accel-Buffering", Cow::Borrowed("no"));
        if let Some(origin) = origin {
            header("Access-Control-Allow-Origin", Cow::Owned(origin.to_owned()));
            header("Vary", Cow::Borrowed("Origin"));
        }
        Answer::Stream(response)
    }

    /// The position of the first message that a client of `/topics` requests with `since`.
    pub(super) fn first_missed<S: Sys>(
        &self,
        core: &Core<S, Self>,
        topic: &str,
        since: Option<&str>,
    ) -> Result<Option<Position>, Answer> {
        let Some(since) = since else { return Ok(None) };
        self.first_requested(topic, since, core.now_ns()).map(Some).map_err(|why| {
            self.count_unavailable(core.worker(), why);
            let why = why.map_or("off", Unavailable::name);
            refuse(410, format!("Not all messages since then are available ({why}).\n"))
        })
    }

    /// The first events of a stream: a comment, and the position of the client or why it missed messages. With
    /// a history the stream continues from there.
    fn first_events<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        topic: &str,
        start: Option<&str>,
    ) -> Vec<u8> {
        let mut events = b":\n\n".to_vec();
        let now_ns = core.now_ns();
        let first = start.map(|start| self.first_requested(topic, start, now_ns));
        if let Some(Err(why)) = first {
            self.count_unavailable(core.worker(), why);
            self.put_reset(topic, why, now_ns, &mut events);
        }
        let Some(history) = self.shared.history() else { return events };
        let next = match first {
            Some(Ok(next)) => next,
            _ => {
                let Some(last) = history.last(topic, now_ns) else { return events };
                if first.is_none() {
                    Events::position(last, &mut events);
                }
                last.next()
            }
        };
        let group = Group { encoding: 0, messages: Encoding::Json, form: Form::Event };
        self.send_from(core, id, topic, group, next);
        events
    }

    /// The topic that a client of `/events` may subscribe to.
    fn requested_topic<S: Sys>(
        &self,
        core: &Core<S, Self>,
        head: &Request<'_, '_>,
    ) -> Result<RequestedTopic, Answer> {
        let query = head.query();
        let field = |name| parameter(query, name);
        let topic = field("topic").or_else(|| field("stream"));
        let (signed, turbo) = (field("signed_stream"), field("turbo_signed_stream"));
        let channel = match (signed, turbo, topic) {
            (Some(signed), ..) => Channel::PubSubSigned(signed),
            (_, Some(turbo), _) => Channel::Turbo(turbo),
            (.., Some(topic)) => {
                check_topic(&topic).map_err(|why| refuse(400, format!("{why}\n")))?;
                Channel::PubSubPublic(topic)
            }
            _ => {
                let what = "No topic: request /events?topic=NAME or /events?signed_stream=SIGNED\n";
                return Err(refuse(400, what));
            }
        };
        let refused = |cause| {
            let public = match &channel {
                Channel::PubSubPublic(name) => name,
                _ => "",
            };
            self.refuse_access(core.worker(), cause, public);
            refuse(403, "Not authorized for this stream.\n")
        };
        let identity = match self.check_token(core, head, []) {
            Connect::Identified(identity) => Some(identity),
            Connect::Anonymous => None,
            Connect::Expired => return Err(refused(Cause::TokenExpired)),
            Connect::Refused(cause) => return Err(refused(cause)),
        };
        if let Channel::PubSubPublic(name) = &channel
            && self.authorizer.is_some()
        {
            return Ok(RequestedTopic { topic: (&**name).into(), identity, is_asked: true });
        }
        let now = self.shared.unix_s(core.now_ns());
        let grant = self.policy.access.stream(&channel, now).map_err(refused)?;
        Ok(RequestedTopic { topic: grant.stream, identity, is_asked: false })
    }

    /// `/_broadcast`: the body is read only with a valid key.
    fn broadcast(&self, worker: u16, head: &Request<'_, '_>) -> Answer {
        let access = &self.policy.access;
        if !access.broadcasts_are_keyed() {
            return not_found();
        }
        let key = head.header("authorization").and_then(admin::bearer);
        if !key.is_some_and(|key| access.opens_broadcast(key)) {
            self.counters(worker).broadcast_refused.add(1);
            let mut response = Response::text(401, "Send Authorization: Bearer with the key.\n");
            response.headers.push((Cow::Borrowed("WWW-Authenticate"), Cow::Borrowed("Bearer")));
            response.close = true;
            return Answer::Respond(response);
        }
        if head.method != "POST" {
            let mut response = Response::text(405, "POST /_broadcast\n");
            response.headers.push((Cow::Borrowed("Allow"), Cow::Borrowed("POST")));
            return Answer::Respond(response);
        }
        Answer::Body(BODY_BYTES_MAX)
    }

    pub(super) fn refuse_origin<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        head: &Request<'_, '_>,
        origin: &[u8],
    ) -> Option<Answer> {
        let scheme = if core.is_encrypted(id) { "https" } else { "http" };
        if self.policy.origins.admit(origin, head.authority(), scheme) {
            return None;
        }
        self.counters(core.worker()).origin_refused.add(1);
        let origin = log::shown(origin).into();
        self.shared.log.post(LogEvent::OriginRefused(origin));
        Some(refuse(403, "This origin is not allowed.\n"))
    }

    /// Refuses a request whose Host is not this machine's, or not an allowed one.
    fn refuse_host(&self, worker: u16, request: &Request<'_, '_>) -> Answer {
        self.counters(worker).host_refused.add(1);
        let host = log::shown(request.authority().unwrap_or_default()).into();
        if self.policy.origins.loopback {
            self.shared.log.post(LogEvent::HostRefused(host));
            return refuse(
                421,
                "This server listens on loopback only, and Host is not this machine: use \
                 127.0.0.1 or localhost, or allow the site with --allow-origin.\n",
            );
        }
        self.shared.log.post(LogEvent::HostNotAllowed(host));
        refuse(
            421,
            "This server has another name: use its address, or allow it with --allow-host.\n",
        )
    }
}

/// Of a path that operators and publishers have.
const ON_ADMIN: &str = "Not found: this path is on the listener of --admin (127.0.0.1:8090).\n";
/// Of a path that no listener has.
const PATHS: &str = "Not found: expected /topics/NAME, /events?topic=NAME or /cable.\n";

/// 404.
pub(super) fn not_found() -> Answer {
    refuse(404, "Not found.\n")
}

/// `/health` and `/ready`.
fn status_page(
    request: &Request<'_, '_>,
    status: u16,
    body: impl Into<Cow<'static, str>>,
    random: u64,
) -> Answer {
    if !matches!(request.method, "GET" | "HEAD") {
        let mut response = Response::text(405, "GET this path\n");
        response.headers.push((Cow::Borrowed("Allow"), Cow::Borrowed("GET, HEAD")));
        return Answer::Respond(response);
    }
    let mut response = Response::text(status, body);
    if status == 503 {
        response.headers.push((Cow::Borrowed("Retry-After"), retry_after(random).into()));
    }
    Answer::Respond(response)
}

pub(super) fn refuse(status: u16, why: impl Into<Cow<'static, str>>) -> Answer {
    let mut response = Response::text(status, why);
    response.close = true;
    Answer::Respond(response)
}
