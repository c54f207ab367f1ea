//! Sessions of the extended protocol that continue on another connection.

use std::sync::Arc;

use engine::{ConnId, Core, Sys};
use wire::http::Request;

use super::ServeHandler;
use super::channels::unsigned;
use crate::auth::TokenIdentity;
use crate::identifiers::{Form, Group};
use crate::path::parameter;
use crate::protocols::Disconnect;
use crate::resume::{StoredSession, StoredSessions};
use crate::session::SessionProtocol;

impl ServeHandler {
    /// Sessions that can be resumed. Where an application is called none is: it would not know.
    pub(super) fn stored_sessions(&self) -> Option<&StoredSessions> {
        self.shared.stored_sessions.as_ref().filter(|_| self.app.is_none())
    }

    /// The session that a client names by its id, if it may resume it.
    pub(super) fn find_session<S: Sys>(
        &self,
        core: &Core<S, Self>,
        head: &Request<'_, '_>,
        identity: &Result<Option<TokenIdentity>, Disconnect>,
    ) -> Option<StoredSession> {
        let sessions = self.stored_sessions()?;
        let identity = identity.as_ref().ok()?;
        let header = || str::from_utf8(head.header("x-anycable-restore-sid")?).ok();
        let sid = parameter(head.query(), "sid").or_else(|| header().map(Into::into))?;
        let id = self.shared.sids.find(&sid)?;
        let identity = identity.as_ref().map(|identity| &*identity.identifiers);
        sessions.take(id, identity, core.now_ns())
    }

    /// Subscribes a client to what it was subscribed to before, as far as it still may be. Returns the
    /// identifiers, if there are any.
    pub(super) fn resume<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        session: StoredSession,
    ) -> Option<Vec<String>> {
        let mut restored = Vec::new();
        for identifier in session.identifiers {
            match self.grant(core, id, &identifier) {
                Ok(grant) => {
                    self.join(core, id, &identifier, &grant);
                    self.await_history(core, id, &identifier);
                    restored.push((*identifier).to_owned());
                }
                Err(cause) => self.refuse_access(core.worker(), cause, unsigned(&identifier)),
            }
        }
        (!restored.is_empty()).then_some(restored)
    }

    /// Keeps the session of a client that has lost its connection.
    pub(super) fn store_session<S: Sys>(&self, core: &Core<S, Self>, id: ConnId) {
        let (Some(stored), Some(session)) = (self.stored_sessions(), core.user(id)) else {
            return;
        };
        let extended = session.protocol() == SessionProtocol::CableExt;
        if !extended || session.subscriptions().is_empty() {
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
        };
        stored.put(id, session, core.now_ns());
    }
}
