//! Sessions of the extended protocol that continue on another connection. What the application has said of
//! them is in `application/resume.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use engine::{ConnId, Core, Sys};
use wire::http::Request;

use super::ServeHandler;
use super::channels::unsigned;
use crate::app::call::Env;
use crate::auth::TokenIdentity;
use crate::identifiers::{Form, Group};
use crate::path::parameter;
use crate::resume::{Claim, StoredSession, StoredSessions};
use crate::session::SessionProtocol;
use crate::sid::Sids;

impl ServeHandler {
    /// Sessions that can be resumed.
    pub(super) fn stored_sessions(&self) -> Option<&Arc<StoredSessions>> {
        self.shared.stored_sessions.as_ref()
    }

    /// Whether a client names a session that is kept. It may not be its own.
    pub(super) fn names_session<S: Sys>(
        &self,
        core: &Core<S, Self>,
        head: &Request<'_, '_>,
    ) -> bool {
        let Some(sessions) = self.stored_sessions() else { return false };
        let Some(sid) = named_sid(head) else { return false };
        match self.shared.sids.find(&sid) {
            Some(id) => sessions.has(id, core.now_ns()),
            None => sessions.shared().is_some() && Sids::is_secret(&sid),
        }
    }

    /// The session that a client names by its id, if it may resume it.
    pub(super) fn find_session<S: Sys>(
        &self,
        core: &Core<S, Self>,
        sid: &str,
        identity: Option<&TokenIdentity>,
        env: Option<&Env>,
    ) -> Option<StoredSession> {
        let id = self.shared.sids.find(sid)?;
        let identity = identity.map(|identity| &*identity.identifiers);
        self.take_session(core, id, Claim { identity, env })
    }

    /// A session, if it may be resumed and nothing is missing that the broker would have sent meanwhile.
    fn take_session<S: Sys>(
        &self,
        core: &Core<S, Self>,
        id: ConnId,
        claim: Claim<'_>,
    ) -> Option<StoredSession> {
        let sessions = self.stored_sessions()?;
        let session = sessions.take(id, claim, core.now_ns())?;
        if self.awaits_brokers() && !self.is_followed(core, &session) {
            // Something may be missing: the client begins anew, and the session ends with its age.
            sessions.put(id, session, core.now_ns());
            return None;
        }
        Some(session)
    }

    /// Whether the broker has confirmed all topics of a session.
    fn is_followed<S: Sys>(&self, core: &Core<S, Self>, session: &StoredSession) -> bool {
        self.unconfirmed_topic(core, session).is_none()
    }

    /// A topic of a session that the broker has not confirmed. It is asked for all of them.
    pub(super) fn unconfirmed_topic<S: Sys>(
        &self,
        core: &Core<S, Self>,
        session: &StoredSession,
    ) -> Option<Box<str>> {
        let now = self.shared.unix_s(core.now_ns());
        let stream = |identifier: &Arc<str>| {
            let channel = action_cable::channel(identifier).ok()?;
            Some(self.policy.access.stream(&channel, now).ok()?.stream)
        };
        let own = session.identifiers.iter().filter_map(stream);
        let channels = session.app.iter().flat_map(|app| &app.channels);
        let of_app = channels.flat_map(|channel| channel.streams.iter().cloned());
        // Each of them: what is not confirmed is asked for.
        own.chain(of_app).filter(|topic| !self.is_confirmed(topic)).last()
    }

    /// Subscribes a client to what it was subscribed to before, as far as it still may be. Returns the
    /// identifiers; `None` if there is nothing of a session to continue.
    pub(super) fn resume<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        session: StoredSession,
        env: Option<Env>,
    ) -> Option<Vec<String>> {
        let StoredSession { identifiers, app, .. } = session;
        let known = app.is_some();
        let mut restored = match app.zip(env) {
            Some((app, env)) => self.resume_app_session(core, id, env, *app),
            None => Vec::new(),
        };
        self.note_connect(core, id);
        for identifier in identifiers {
            match self.grant(core, id, &identifier) {
                Ok(grant) => {
                    self.join(core, id, &identifier, &grant);
                    self.await_history(core, id, &identifier);
                    restored.push((*identifier).to_owned());
                }
                Err(cause) => self.refuse_access(core.worker(), cause, unsigned(&identifier)),
            }
        }
        (known || !restored.is_empty()).then_some(restored)
    }

    /// Keeps the session of a client that has lost its connection. Where an application is called,
    /// [`ServeHandler::end_app_session`] does.
    pub(super) fn store_session<S: Sys>(&self, core: &Core<S, Self>, id: ConnId) {
        let (Some(stored), Some(session)) = (self.stored_sessions(), core.user(id)) else {
            return;
        };
        let extended = session.protocol() == SessionProtocol::CableExt;
        if !extended || self.app.is_some() || session.subscriptions().is_empty() {
            return;
        }
        let identifier = |(group, _, _): (u32, &str, usize)| match Group::of(group).form {
            Form::Cable(index) | Form::CablePositions(index) => self.identifiers.get(index),
            Form::Plain | Form::Event => None,
        };
        let groups = self.topics.groups_of(session.subscriptions());
        let identifiers = groups.filter_map(identifier).map(|found| Arc::clone(found.text()));
        let session = StoredSession {
            identity: self.sessions.identifiers(id).cloned(),
            identifiers: identifiers.collect(),
            app: None,
        };
        stored.keep(id, session, core.now_ns(), core.remote());
    }
}

/// The session id that a client names.
pub(super) fn named_sid<'h>(head: &'h Request<'_, 'h>) -> Option<Cow<'h, str>> {
    let header = || str::from_utf8(head.header("x-anycable-restore-sid")?).ok();
    parameter(head.query(), "sid").or_else(|| header().map(Into::into))
}
