//! Clients of plain topics that the application decides about (`--auth-url`): whether they may connect, and
//! with which rights; and whether they may publish a message (`publish.rs`).
//!
//! A handshake waits for its answer unanswered; what cannot be asked or is not understood is refused. Nothing
//! is kept of a connection afterwards, unless each of its messages is asked about.

mod publish;

use std::collections::HashMap;
use std::sync::Arc;

use engine::{Answer, ConnId, Core, Incoming, Sys, invariant};
use wire::http::Request;

use self::publish::Publisher;
use super::ServeHandler;
use super::confirm::Handshake;
use super::handshake::{Handshakes, too_many_wait, unavailable};
use super::routing::refuse;
use crate::app::call::{Call, Env, Question, State, What};
use crate::app::decision::{Credentials, Decision, Publishing, Verdict};
use crate::app::{Answered, Calls, Failure, Full};
use crate::auth::{Cause, TokenIdentity};
use crate::path::parameter;

/// Time beyond that in the queue and of the call, after which a handshake is given up: its answer is on the
/// way then.
const GRACE_NS: u64 = 5_000_000_000;
/// Memory of a handshake or a publisher beyond its texts, in bytes.
const ENTRY_BYTES: usize = 256;

/// One worker's part of the authorization by the application.
pub(super) struct Authorizer {
    calls: Arc<Calls>,
    handshakes: Handshakes,
    /// Handshakes that wait for their answer, by slot.
    waiting: HashMap<u32, Box<Waiting>>,
    /// Connections whose messages are asked about, by slot.
    publishers: HashMap<u32, Box<Publisher>>,
}

/// What a handshake asked for.
pub(super) enum AskedForm {
    /// A WebSocket, with missed messages since this position.
    Socket { since: Option<Box<str>> },
    /// A stream of events since this position, for a page of this origin.
    Events { start: Option<Box<str>>, origin: Option<Box<str>> },
}

impl AskedForm {
    /// The name of the protocol.
    fn protocol(&self) -> &'static str {
        match self {
            AskedForm::Socket { .. } => "topic",
            AskedForm::Events { .. } => "events",
        }
    }
}

/// A handshake that the application is asked about.
struct Waiting {
    id: ConnId,
    asked: Asked,
    /// Set once it is answered.
    outcome: Option<Result<Arc<Decision>, Failure>>,
}

struct Asked {
    env: Env,
    topic: Arc<str>,
    credentials: Credentials,
    /// Of its token.
    identity: Option<TokenIdentity>,
    form: AskedForm,
}

impl Authorizer {
    pub(super) fn new(calls: Arc<Calls>) -> Self {
        let handshakes = Handshakes::new(&calls.config);
        Authorizer { calls, handshakes, waiting: HashMap::new(), publishers: HashMap::new() }
    }

    fn publisher(&mut self, id: ConnId) -> Option<&mut Publisher> {
        let publisher = self.publishers.get_mut(&id.slot())?;
        (publisher.id == id).then_some(publisher)
    }
}

/// Removes the entry of a connection.
fn take<T>(
    entries: &mut HashMap<u32, Box<T>>,
    id: ConnId,
    id_of: impl Fn(&T) -> ConnId,
) -> Option<Box<T>> {
    if entries.get(&id.slot()).is_none_or(|entry| id_of(entry) != id) {
        return None;
    }
    let entry = entries.remove(&id.slot());
    if entries.capacity() > 64 && entries.len() < entries.capacity() / 8 {
        entries.shrink_to(2 * entries.len());
    }
    entry
}

impl ServeHandler {
    /// `/topics/NAME`, where the application decides who may.
    pub(super) fn ask_for_topic<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
        topic: &str,
    ) -> Answer {
        let Some(upgrade) = request.upgrade else { return Answer::Upgrade(None) };
        if let Some(origin) = upgrade.origin
            && let Some(refused) = self.refuse_origin(core, id, request.head, origin)
        {
            return refused;
        }
        let identity = match self.required_identity(core, request) {
            Ok(identity) => identity,
            Err(refused) => return refused,
        };
        let since = parameter(request.head.query(), "since").map(|since| (&*since).into());
        self.ask_to_connect(core, id, request.head, topic, identity, AskedForm::Socket { since })
    }

    /// Asks the application about a handshake, unless an earlier answer still holds.
    pub(super) fn ask_to_connect<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        head: &Request<'_, '_>,
        topic: &str,
        identity: Option<TokenIdentity>,
        form: AskedForm,
    ) -> Answer {
        let now_ns = core.now_ns();
        let Some(authorizer) = &self.authorizer else {
            invariant::broken("a question has an application");
            return unavailable("The application cannot be asked.\n", core.random());
        };
        let env = authorizer.handshakes.env(core, id, head);
        let known = identity.as_ref().map(|identity| &*identity.identifiers);
        let credentials = credentials(&form, &env, head.query(), known);
        let calls = Arc::clone(&authorizer.calls);
        let asked = Asked { env, topic: topic.into(), credentials, identity, form };
        if let Some(decision) = calls.decided(now_ns, credentials, topic) {
            return self.decided(core, id, asked, &decision);
        }
        let question = Question {
            protocol: asked.form.protocol(),
            topic: Arc::clone(&asked.topic),
            identity: asked.identity.as_ref().map(|identity| (&*identity.identifiers).into()),
            message: None,
        };
        let call = self.question(id, &asked.env, question);
        if let Err(Full) = calls.submit(now_ns, id, call) {
            return too_many_wait(core.random());
        }
        if let Some(authorizer) = &mut self.authorizer {
            let waiting = Waiting { id, asked, outcome: None };
            authorizer.waiting.insert(id.slot(), Box::new(waiting));
        }
        let longest = calls.config.queue_wait.saturating_add(calls.config.timeout);
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Answer::LaterWithin(longest_ns.saturating_add(GRACE_NS))
    }

    fn question(&self, id: ConnId, env: &Env, question: Question) -> Call {
        let sid = self.shared.sids.of(id).into();
        let (env, cstate) = (env.clone(), State::default());
        Call { sid, env, cstate, what: What::Authorize(question) }
    }

    /// The end of a call. One of a client that has left meanwhile has no effect.
    pub(super) fn question_answered<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        answered: Answered,
    ) {
        let Answered { id, outcome, .. } = answered;
        let outcome = outcome.and_then(|reply| reply.decision.ok_or(Failure::Invalid));
        let Some(authorizer) = &mut self.authorizer else {
            return invariant::broken("an answer has an application");
        };
        let waiting = authorizer.waiting.get_mut(&id.slot()).filter(|waiting| waiting.id == id);
        if let Some(waiting) = waiting {
            if let Ok(decision) = &outcome {
                let Asked { credentials, topic, .. } = &waiting.asked;
                authorizer.calls.keep_decision(core.now_ns(), *credentials, topic, decision);
            }
            waiting.outcome = Some(outcome);
            return core.remote().answer(id, Answer::ByHandler);
        }
        let publisher = authorizer.publisher(id);
        if let Some(message) = publisher.and_then(|publisher| publisher.in_flight.take()) {
            self.publish_decided(core, id, &message, outcome);
            self.publish_held(core, id);
        }
    }

    /// Answers a handshake that the application has decided about.
    pub(super) fn answer_decided<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
    ) -> Answer {
        let authorizer = self.authorizer.as_mut();
        let waiting = authorizer.and_then(|own| take(&mut own.waiting, id, |entry| entry.id));
        let Some(Waiting { asked, outcome: Some(outcome), .. }) = waiting.map(|waiting| *waiting)
        else {
            invariant::broken("a handshake that is answered late was decided about");
            return unavailable("The application did not decide.\n", core.random());
        };
        match outcome {
            Ok(decision) => self.decided(core, id, asked, &decision),
            Err(_) => {
                let why = "The application did not answer as it should: try again later.\n";
                unavailable(why, core.random())
            }
        }
    }

    fn decided<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        asked: Asked,
        decision: &Decision,
    ) -> Answer {
        let Asked { env, topic, identity, form, .. } = asked;
        let (status, permission) = match &decision.verdict {
            Verdict::Allowed(permission) if decision.covers(&topic) => (200, Some(permission)),
            Verdict::Allowed(_) => (403, None),
            Verdict::Denied(status) => (*status, None),
        };
        let Some(permission) = permission else {
            self.refuse_access(core.worker(), Cause::Application, &topic);
            return match &*decision.reason {
                "" => refuse(status, "Not allowed by the application.\n"),
                reason => refuse(status, format!("{reason}\n")),
            };
        };
        let expires_unix_s = permission.expires_in_s.map(|seconds| {
            // To the end of the last second.
            self.shared.unix_s(core.now_ns()).saturating_add(seconds).saturating_sub(1)
        });
        let own = identity.as_ref().and_then(|identity| identity.expires_unix_s);
        let expires_unix_s = expires_unix_s.into_iter().chain(own).min();
        let named = permission.identity.clone().or(identity.map(|identity| identity.identifiers));
        let named = named.or_else(|| {
            let sid = self.shared.sids.of(id);
            expires_unix_s.map(|_| format!(r#"{{"sid":"{sid}"}}"#).into())
        });
        let identity = named.map(|identifiers| TokenIdentity { identifiers, expires_unix_s });
        match form {
            AskedForm::Events { start, origin } => {
                let topic = (&*topic).into();
                self.open_confirmed(core, id, Handshake::Events { topic, identity, start, origin })
            }
            AskedForm::Socket { since } => {
                let publishing = permission.publishing;
                if publishing == Publishing::Asked
                    && let Some(authorizer) = &mut self.authorizer
                {
                    let publisher = Publisher::new(id, env, Arc::clone(&topic));
                    authorizer.publishers.insert(id.slot(), Box::new(publisher));
                }
                let name = (&*topic).into();
                self.open_confirmed(
                    core,
                    id,
                    Handshake::Topic { name, identity, since, publishing },
                )
            }
        }
    }

    /// A connection has ended or is about to: nobody waits for an answer.
    pub(super) fn end_questions(&mut self, id: ConnId) {
        let Some(authorizer) = &mut self.authorizer else { return };
        let waited = take(&mut authorizer.waiting, id, |entry| entry.id).is_some();
        let publisher = take(&mut authorizer.publishers, id, |entry| entry.id);
        if waited || publisher.is_some_and(|publisher| publisher.in_flight.is_some()) {
            authorizer.calls.cancel(id);
        }
    }

    /// The memory that is kept of a client for questions about it, in bytes.
    pub(super) fn questions_held(&self, id: ConnId) -> usize {
        let Some(authorizer) = &self.authorizer else { return 0 };
        let waiting = authorizer.waiting.get(&id.slot()).filter(|waiting| waiting.id == id);
        let waiting = waiting.map_or(0, |waiting| ENTRY_BYTES + waiting.asked.env.bytes());
        let publisher = authorizer.publishers.get(&id.slot()).filter(|own| own.id == id);
        let publisher = publisher.map_or(0, |publisher| ENTRY_BYTES + publisher.bytes());
        waiting + publisher
    }
}

/// What a decision about a handshake is made by, the topic aside.
fn credentials(
    form: &AskedForm,
    env: &Env,
    query: Option<&str>,
    identity: Option<&str>,
) -> Credentials {
    // A client that returns asks for other missed messages; the topic is compared separately.
    let varies: &[&str] = match form {
        AskedForm::Socket { .. } => &["since"],
        AskedForm::Events { .. } => &["since", "topic", "stream"],
    };
    let pairs = query.unwrap_or_default().split('&');
    let pairs = pairs.filter(|pair| !varies.contains(&pair.split('=').next().unwrap_or_default()));
    let host = env.url().split('/').nth(2).unwrap_or_default();
    let headers = env.headers().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    let first = [form.protocol(), host, identity.unwrap_or_default()].map(str::as_bytes);
    let separator = [b"?".as_slice()];
    let parts = first.into_iter().chain(pairs.map(str::as_bytes)).chain(separator).chain(headers);
    Credentials::of(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(form: &AskedForm, url: &str, cookie: &str, identity: Option<&str>) -> Credentials {
        let headers = [("cookie", cookie), ("REMOTE_ADDR", "::1")];
        let env = Env::new(url, headers.into_iter());
        credentials(form, &env, url.split_once('?').map(|(_, query)| query), identity)
    }

    #[test]
    fn a_decision_is_for_the_same_credentials_only() {
        let socket = AskedForm::Socket { since: None };
        let events = AskedForm::Events { start: None, origin: None };
        let base = of(&socket, "http://x/topics/a?token=1", "c=1", None);
        for (same, url) in [
            (true, "http://x/topics/b?token=1"),
            (true, "http://x/topics/a?since=7&token=1"),
            (false, "http://x/topics/a?token=2"),
            (false, "http://x/topics/a"),
            (false, "http://y/topics/a?token=1"),
            (false, "http://x/topics/a?token=1&topic=b"),
        ] {
            assert_eq!(of(&socket, url, "c=1", None) == base, same, "{url}");
        }
        assert_ne!(of(&socket, "http://x/topics/a?token=1", "c=2", None), base);
        assert_ne!(of(&socket, "http://x/topics/a?token=1", "c=1", Some("me")), base);
        assert_ne!(of(&events, "http://x/topics/a?token=1", "c=1", None), base);
        let stream = |url| of(&events, url, "", None);
        assert_eq!(stream("http://x/events?topic=a&since=1"), stream("http://x/events?topic=b"));
        assert_ne!(stream("http://x/events?topic=a&key=1"), stream("http://x/events?topic=a"));
    }
}
