//! Sessions that the application knows and that continue on another connection: it is not called for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{ConnId, Core, Sys};

use super::ServeHandler;
use crate::app::call::Env;
use crate::app::session::{AppSession, Channel};
use crate::app::stored::{StoredApp, StoredChannel};
use crate::auth::{TokenIdentity, Whispers};
use crate::identifiers::{Form, Group, Index};
use crate::resume::StoredSession;
use crate::session::SessionProtocol;

impl ServeHandler {
    /// Keeps the session of a client that has lost its connection. Returns false if it is not to be kept: the
    /// client does not know how to resume it, or it has ended a subscription that the application still has.
    pub(super) fn store_app_session<S: Sys>(
        &self,
        core: &Core<S, Self>,
        session: &AppSession,
    ) -> bool {
        let (Some(stored), Some(user)) = (self.stored_sessions(), core.user(session.id)) else {
            return false;
        };
        let extended = user.protocol() == SessionProtocol::CableExt;
        if !extended || !session.open || session.awaits_unsubscribe() {
            return false;
        }
        let (channels, identifiers) = self.channels_of(core, session);
        let app = StoredApp {
            sid: self.shared.sids.of(session.id).into(),
            env: session.env.clone(),
            identifiers: Arc::clone(&session.identifiers),
            cstate: session.cstate.clone(),
            channels,
            has_token: session.has_token,
            known: session.known,
            reports_end: self.reports_end(session),
        };
        let identity = (!session.identifiers.is_empty()).then(|| Arc::clone(&session.identifiers));
        let stored_session = StoredSession { identity, identifiers, app: Some(Box::new(app)) };
        stored.keep(session.id, stored_session, core.now_ns(), core.remote());
        true
    }

    /// The subscriptions of a session with their streams, and the identifiers of those without the
    /// application.
    fn channels_of<S: Sys>(
        &self,
        core: &Core<S, Self>,
        session: &AppSession,
    ) -> (Vec<StoredChannel>, Vec<Arc<str>>) {
        let mut positions: BTreeMap<Index, usize> = BTreeMap::new();
        let mut channels = Vec::with_capacity(session.channels.len());
        for Channel { identifier, istate } in &session.channels {
            let Some(found) = self.identifiers.get(*identifier) else { continue };
            positions.insert(*identifier, channels.len());
            let (identifier, istate) = (Arc::clone(found.text()), istate.clone());
            channels.push(StoredChannel { identifier, istate, streams: Vec::new() });
        }
        let mut identifiers = Vec::new();
        let Some(user) = core.user(session.id) else { return (channels, identifiers) };
        for (group, topic, _) in self.topics.groups_of(user.subscriptions()) {
            let (Form::Cable(index) | Form::CablePositions(index)) = Group::of(group).form else {
                continue;
            };
            match positions.get(&index).and_then(|at| channels.get_mut(*at)) {
                Some(channel) => channel.streams.push(topic.into()),
                None => identifiers
                    .extend(self.identifiers.get(index).map(|found| Arc::clone(found.text()))),
            }
        }
        (channels, identifiers)
    }

    /// Continues a session. Returns the identifiers of its subscriptions.
    pub(in crate::handler) fn resume_app_session<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        env: Env,
        stored: StoredApp,
    ) -> Vec<String> {
        let StoredApp { identifiers, cstate, channels, has_token, known, .. } = stored;
        if !has_token && !identifiers.is_empty() {
            let identity =
                TokenIdentity { identifiers: (*identifiers).into(), expires_unix_s: None };
            self.sessions.add(id, &identity);
        }
        let identifiers = self.sessions.identifiers(id).cloned().unwrap_or(identifiers);
        let Some(app) = &mut self.app else { return Vec::new() };
        let mut session = Box::new(AppSession::new(id, env, identifiers));
        (session.open, session.known, session.has_token) = (true, known, has_token);
        session.cstate = cstate;
        app.by_slot.insert(id.slot(), session);
        self.note_connect(core, id);
        let mut restored = Vec::with_capacity(channels.len());
        for StoredChannel { identifier, istate, streams } in channels {
            let index = self.identifiers.begin(&identifier, "", Whispers::Never);
            if let Some(session) = self.app.as_mut().and_then(|app| app.session(id)) {
                session.channels.reserve_exact(1);
                session.channels.push(Channel { identifier: index, istate });
            }
            match self.start_streams(core, id, &identifier, &streams) {
                Ok(()) => {
                    self.await_history(core, id, &identifier);
                    restored.push((*identifier).to_owned());
                }
                Err(cause) => {
                    self.refuse_access(core.worker(), cause, &identifier);
                    self.end_channel(core, id, &identifier);
                }
            }
        }
        self.count_app_bytes(core, id);
        restored
    }
}
