//! Routing and authorization of requests on the public listener.

use std::borrow::Cow;

use action_cable::Channel;
use engine::{Answer, ConnId, Core, Incoming, Response, Sys};
use wire::http::Request;

use super::{Door, Opening};
use crate::auth::{Cause, Connect};
use crate::broadcast_worker::BODY_BYTES_MAX;
use crate::log_events::Record;
use crate::path::{Route, check_topic, parameter};
use crate::protocols::{Cable, Dialect, Disconnect, Echo, PlainTopic};
use crate::session::{Session, Speaks};

impl Door {
    /// Answers a request head.
    pub(super) fn answer<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        let worker = core.worker();
        if !self.policy.origins.admit_host(request.head.authority()) {
            return self.misdirected(worker, request.head);
        }
        match Route::of(request.head.path(), &self.shared.cable_path) {
            Route::Health => health(request.head, self.shared.is_draining()),
            Route::Echo if self.shared.echo => self.admit(worker, request, Opening::Echo),
            Route::Topic(_) if !self.shared.public => {
                refuse(403, "Subscribing without credentials is off here.\n")
            }
            Route::Topic(name) => self.admit(worker, request, Opening::Topic(name.into())),
            Route::BadTopic(why) => refuse(400, format!("{why}\n")),
            Route::Cable => {
                let opening = self.recognise(core, request);
                self.admit(worker, request, opening)
            }
            Route::Events => self.listen(core, id, request),
            Route::Broadcast if self.broadcasts.is_some() => self.broadcast(worker, request.head),
            Route::Echo | Route::Broadcast | Route::Unknown => not_here(),
        }
    }

    /// Answers a request for a WebSocket at a path that has one.
    fn admit(&mut self, worker: u16, request: &Incoming<'_, '_>, opening: Opening) -> Answer {
        let Some(upgrade) = request.upgrade else { return Answer::Upgrade(None) };
        if let Some(origin) = upgrade.origin
            && let Some(refused) = self.refuse_origin(worker, request.head, origin)
        {
            return refused;
        }
        let protocol = match opening {
            Opening::Echo => Echo::accept(upgrade.protocols()),
            Opening::Topic(_) => PlainTopic::accept(upgrade.protocols()),
            Opening::Cable { .. } => Cable::accept(upgrade.protocols()),
        };
        self.opening = Some(match opening {
            Opening::Cable { who, .. } => {
                let extended = protocol.as_deref() == Some(action_cable::V1_EXT);
                let speaks = if extended { Speaks::CableExt } else { Speaks::Cable };
                Opening::Cable { speaks, who }
            }
            opening => opening,
        });
        Answer::Upgrade(protocol)
    }

    /// What the token of a handshake says. Who may not come in is told so by a message, so the
    /// WebSocket is opened for that.
    fn recognise<S: Sys>(&self, core: &Core<S, Self>, request: &Incoming<'_, '_>) -> Opening {
        let speaks = Speaks::Cable;
        let Some(upgrade) = request.upgrade else {
            return Opening::Cable { speaks, who: Ok(None) };
        };
        let (head, access) = (request.head, &self.policy.access);
        let token = access.token(head.query(), |name| head.header(name), upgrade.protocols());
        let who = match access.connect(token.as_deref(), self.shared.unix_s(core.now_ns())) {
            Connect::Known(holder) => Ok(Some(holder)),
            Connect::Anonymous => Ok(None),
            Connect::Expired => {
                self.counters(core.worker()).auth_refused.add(Cause::TokenExpired);
                Err(Disconnect::TokenExpired)
            }
            Connect::Refused(cause) => {
                self.counters(core.worker()).auth_refused.add(cause);
                Err(Disconnect::Unauthorized)
            }
        };
        Opening::Cable { speaks, who }
    }

    /// `/events`: a stream of events, subscribed to what the query names.
    fn listen<S: Sys>(
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
            && let Some(refused) = self.refuse_origin(core.worker(), head, origin)
        {
            return refused;
        }
        let topic = match self.wanted_topic(core, head) {
            Ok(topic) => topic,
            Err(refused) => return refused,
        };
        self.begin_session(core, id, Session::new(Speaks::Events));
        self.subscribe_to_events(core, id, &topic);
        let mut response = Response::text(200, ":\n\n");
        response.content_type = "text/event-stream";
        let mut header = |name, value| response.headers.push((Cow::Borrowed(name), value));
        header("Cache-Control", Cow::Borrowed("no-store"));
        // nginx buffers responses by default.
        header("X-Accel-Buffering", Cow::Borrowed("no"));
        if let Some(origin) = origin.and_then(|origin| str::from_utf8(origin).ok()) {
            header("Access-Control-Allow-Origin", Cow::Owned(origin.to_owned()));
            header("Vary", Cow::Borrowed("Origin"));
        }
        Answer::Stream(response)
    }

    fn wanted_topic<S: Sys>(
        &self,
        core: &Core<S, Self>,
        head: &Request<'_, '_>,
    ) -> Result<Box<str>, Answer> {
        let query = head.query();
        let asked = |name| parameter(query, name);
        let topic = asked("topic").or_else(|| asked("stream"));
        let (signed, turbo) = (asked("signed_stream"), asked("turbo_signed_stream"));
        let channel = match (signed, turbo, topic) {
            (Some(signed), ..) => Channel::PubSubSigned(signed),
            (_, Some(turbo), _) => Channel::Turbo(turbo),
            (.., Some(topic)) => {
                check_topic(&topic).map_err(|why| refuse(400, format!("{why}\n")))?;
                Channel::PubSubPublic(topic)
            }
            _ => {
                let what = "Say what to listen to: /events?topic=NAME or \
                            /events?signed_stream=SIGNED\n";
                return Err(refuse(400, what));
            }
        };
        let now = self.shared.unix_s(core.now_ns());
        let access = &self.policy.access;
        let token = access.token(query, |name| head.header(name), []);
        let refused = |cause| {
            self.counters(core.worker()).auth_refused.add(cause);
            refuse(403, "This may not be listened to with these credentials.\n")
        };
        match access.connect(token.as_deref(), now) {
            Connect::Known { .. } | Connect::Anonymous => {}
            Connect::Expired => return Err(refused(Cause::TokenExpired)),
            Connect::Refused(cause) => return Err(refused(cause)),
        }
        access.stream(&channel, now).map(|granted| granted.stream).map_err(refused)
    }

    /// `/_broadcast`: the body is read only with a valid key.
    fn broadcast(&self, worker: u16, head: &Request<'_, '_>) -> Answer {
        let access = &self.policy.access;
        if !access.broadcasts_are_keyed() {
            return not_here();
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

    fn refuse_origin(&self, worker: u16, head: &Request<'_, '_>, origin: &[u8]) -> Option<Answer> {
        let scheme = if self.policy.tls.is_some() { "https" } else { "http" };
        if self.policy.origins.admit(origin, head.authority(), scheme) {
            return None;
        }
        self.counters(worker).origin_refused.add(1);
        let origin = String::from_utf8_lossy(origin).into();
        self.shared.recorder.post(Record::OriginRefused(origin));
        Some(refuse(403, "Pages of this origin may not connect here.\n"))
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
}

/// Nothing is served at this path.
pub(super) fn not_here() -> Answer {
    refuse(404, "There is nothing here.\n")
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
