//! Sessions that the nodes leave for each other in the store of the broker: a handshake that names one waits
//! until it is taken and the broker has confirmed its topics, and a node that drains leaves those of its clients
//! before it closes them. Who has a session is said in [`crate::resume`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use action_cable::Protocol;
use brokers::StoreAnswer;
use engine::{Answer, ConnId, Core, Sys};
use wire::websocket::CloseCode;

use super::{PendingOpen, Post, ServeHandler};
use crate::app::call::Env;
use crate::auth::TokenIdentity;
use crate::protocols::Disconnect;
use crate::resume::{
    Claim, Closing, Opened, SessionKey, SharedSessions, StoredSession, Whereabouts,
};
use crate::session::SessionProtocol;
use crate::sid::Sids;

/// A session that the store may have.
pub(super) struct Named {
    sid: Box<str>,
    /// The connection of this process that had it.
    own: Option<ConnId>,
}

/// What a client opens that names a session.
pub(super) enum Opens {
    /// With the subprotocol of the answer.
    WebSocket(Protocol, Option<Box<str>>),
    /// A session of long polling, by a request with this body.
    Polled(Vec<u8>),
}

/// A handshake, or a first request of long polling, whose session the store is asked for.
pub(super) struct Restoring {
    named: Named,
    opens: Opens,
    identity: Option<TokenIdentity>,
    env: Option<Env>,
    /// Set once it is taken.
    session: Option<StoredSession>,
}

/// An answer of the store to a client.
pub(crate) struct SessionAnswer {
    id: ConnId,
    told: Told,
}

enum Told {
    /// The sealed session; `None` if there is none, or the store did not answer.
    Taken { named: Named, taken: Option<Vec<u8>>, answered: bool },
    /// Whether the session that was taken was ended by request; `None` if the store did not answer.
    Marks(Option<bool>),
}

impl Restoring {
    pub(super) fn new(
        named: Named,
        opens: Opens,
        identity: Option<TokenIdentity>,
        env: Option<Env>,
    ) -> Self {
        Restoring { named, opens, identity, env, session: None }
    }

    fn claim(&self) -> Claim<'_> {
        let identity = self.identity.as_ref().map(|identity| &*identity.identifiers);
        Claim { identity, env: self.env.as_ref() }
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl ServeHandler {
    fn shared_sessions(&self) -> Option<&SharedSessions> {
        self.stored_sessions()?.shared()
    }

    /// The session that a client names, if the store has to be asked for it.
    pub(super) fn session_in_store<S: Sys>(
        &self,
        core: &Core<S, Self>,
        sid: &str,
        identity: Option<&TokenIdentity>,
        env: Option<&Env>,
    ) -> Option<Named> {
        self.shared_sessions()?;
        let own = self.shared.sids.find(sid);
        let asks = match own {
            Some(id) => {
                let identity = identity.map(|identity| &*identity.identifiers);
                let claim = Claim { identity, env };
                let found = self.stored_sessions()?.whereabouts(id, claim, core.now_ns());
                found == Whereabouts::Shared
            }
            None => Sids::is_secret(sid),
        };
        asks.then(|| Named { sid: sid.into(), own })
    }

    /// Asks the store for the session of a handshake, which is answered later.
    pub(super) fn ask_store<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        restoring: Restoring,
    ) -> Answer {
        let (remote, worker) = (core.remote().clone(), usize::from(id.worker()));
        let (sid, own) = (restoring.named.sid.clone(), restoring.named.own);
        let on_answer = Box::new(move |answer: &StoreAnswer| {
            let taken = match answer {
                StoreAnswer::Taken(value) => Some(value.clone()),
                _ => None,
            };
            let bytes = taken.as_ref().map_or(0, Vec::len);
            let answered = taken.is_some() || *answer == StoreAnswer::Missing;
            let named = Named { sid: sid.clone(), own };
            let answer = SessionAnswer { id, told: Told::Taken { named, taken, answered } };
            remote.post(worker, Post::Session(Box::new(answer)), bytes).is_ok()
        });
        let asked = self.shared_sessions().is_some_and(|shared| {
            let asked = shared.take(&restoring.named.sid, on_answer);
            if !asked {
                add(&shared.unavailable);
            }
            asked
        });
        match self.awaiting.as_mut().filter(|_| asked) {
            Some(awaiting) => {
                Answer::LaterWithin(awaiting.hold_session(core.now_ns(), id, restoring))
            }
            None => self.open_restoring(core, id, restoring),
        }
    }

    /// The store has answered.
    pub(super) fn store_answered<S: Sys>(&mut self, core: &Core<S, Self>, answer: SessionAnswer) {
        let SessionAnswer { id, told } = answer;
        let goes_on = match told {
            Told::Taken { named, taken, answered } => {
                self.session_taken(core, id, &named, taken, answered)
            }
            Told::Marks(ended) => self.marks_read(id, ended),
        };
        if let Some(awaiting) = self.awaiting.as_mut().filter(|_| goes_on) {
            awaiting.restored(id);
            core.remote().answer(id, Answer::ByHandler);
        }
    }

    /// Returns whether the handshake can go on.
    fn session_taken<S: Sys>(
        &mut self,
        core: &Core<S, Self>,
        id: ConnId,
        named: &Named,
        taken: Option<Vec<u8>>,
        answered: bool,
    ) -> bool {
        let Some(sessions) = self.stored_sessions().cloned() else { return false };
        let Some(shared) = sessions.shared() else { return false };
        let opened = taken.and_then(|sealed| SessionKey::of(&named.sid)?.open(&sealed));
        match (&opened, named.own) {
            (None, _) if !answered => add(&shared.unavailable),
            (None, None) => add(&shared.missing),
            (Some(_), None) => add(&shared.taken),
            (_, Some(_)) => {}
        }
        let may = match named.own.filter(|_| answered) {
            Some(own) => sessions.settle(own),
            None => true,
        };
        let restoring = self.awaiting.as_mut().and_then(|awaiting| awaiting.restoring(id));
        let Some(restoring) = restoring else {
            // The client has left, or was told to begin anew.
            opened.iter().for_each(|opened| sessions.finish(id, &opened.session));
            return false;
        };
        let Some(Opened { session, stored_ms }) = opened else { return true };
        if !may || !sessions.accepts(&session, restoring.claim(), core.now_ns()) {
            sessions.finish(id, &session);
            return true;
        }
        let is_marked = session.identity.is_some();
        let session = restoring.session.insert(session);
        if !is_marked {
            return true;
        }
        let (remote, worker) = (core.remote().clone(), usize::from(id.worker()));
        let on_marks = Arc::new(move |ended| {
            let answer = SessionAnswer { id, told: Told::Marks(ended) };
            remote.post(worker, Post::Session(Box::new(answer)), 0).is_ok()
        });
        if shared.ask_marks(session, stored_ms, on_marks) {
            return false;
        }
        self.marks_read(id, None)
    }

    /// Returns whether the handshake can go on.
    fn marks_read(&mut self, id: ConnId, ended: Option<bool>) -> bool {
        let Some(sessions) = self.stored_sessions().cloned() else { return false };
        let restoring = self.awaiting.as_mut().and_then(|awaiting| awaiting.restoring(id));
        let Some(restoring) = restoring else { return false };
        if ended != Some(false)
            && let Some(session) = restoring.session.take()
        {
            match ended {
                Some(_) => add(&sessions.ended),
                None => sessions.shared().iter().for_each(|shared| add(&shared.unavailable)),
            }
            sessions.finish(id, &session);
        }
        true
    }

    /// A topic that the broker has to confirm before a session goes on.
    pub(super) fn awaited_topic<S: Sys>(
        &self,
        core: &Core<S, Self>,
        restoring: &Restoring,
    ) -> Option<Box<str>> {
        self.unconfirmed_topic(core, restoring.session.as_ref()?)
    }

    /// Opens what a client has requested, with its session if it was found.
    pub(super) fn open_restoring<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        restoring: Restoring,
    ) -> Answer {
        let Restoring { opens, identity, env, mut session, .. } = restoring;
        if let Some(sessions) = self.stored_sessions()
            && let Some(ended) = session.take_if(|own| sessions.was_ended(own, core.now_ns()))
        {
            add(&sessions.ended);
            sessions.finish(id, &ended);
        }
        match opens {
            Opens::WebSocket(protocol, subprotocol) => {
                self.count_asked(session.is_some());
                let (identity, resumed) = (Ok(identity), session);
                self.pending_open = Some(PendingOpen::Cable { protocol, identity, env, resumed });
                Answer::Upgrade(subprotocol)
            }
            Opens::Polled(body) => match self.admit_polled(core, id) {
                Ok(polled) => {
                    self.count_asked(session.is_some());
                    self.open_polled_session(core, (id, polled), identity, env, session, body)
                }
                Err(refused) => {
                    if let Some((sessions, session)) = self.stored_sessions().zip(session) {
                        sessions.finish(id, &session);
                    }
                    refused
                }
            },
        }
    }

    fn count_asked(&self, found: bool) {
        if let Some(sessions) = self.stored_sessions() {
            add(if found { &sessions.resumed } else { &sessions.unknown });
        }
    }

    /// The store did not answer in time, or the broker did not confirm a topic: the client begins anew.
    pub(super) fn open_anew<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        mut restoring: Restoring,
    ) -> Answer {
        self.shared_sessions().iter().for_each(|shared| add(&shared.unavailable));
        if let Some((sessions, session)) = self.stored_sessions().zip(restoring.session.take()) {
            sessions.finish(id, &session);
        }
        self.open_restoring(core, id, restoring)
    }

    /// The client of a handshake has left.
    pub(super) fn give_up(&self, id: ConnId, restoring: Restoring) {
        if let Some((sessions, session)) = self.stored_sessions().zip(restoring.session) {
            sessions.finish(id, &session);
        }
    }

    /// The server drains and is about to close a connection: leaves its session in the store. Nothing is sent
    /// to its client any more.
    pub(super) fn hand_over<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> Closing {
        let Some(sessions) = self.stored_sessions().filter(|own| own.shared().is_some()).cloned()
        else {
            return Closing::NotStored;
        };
        if core.user(id).is_none_or(|user| user.protocol() != SessionProtocol::CableExt) {
            return Closing::NotStored;
        }
        self.store_session(core, id);
        self.end_app_session(core, id, true);
        let closing = sessions.close_when_stored(id);
        if closing != Closing::NotStored {
            self.note_end(core, id);
            self.unhold_all(id);
            self.unsubscribe_all(core, id);
        }
        closing
    }

    /// The session of a client of a server that drains is in the store, or could not be stored.
    pub(super) fn close_handed_over<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        stored: bool,
    ) {
        if !core.is_open(id) {
            return;
        }
        match stored {
            // Without a message: clients forget the session that they are disconnected from.
            true => core.close(id, CloseCode::GOING_AWAY, "server is shutting down"),
            false => self.disconnect(core, id, Disconnect::Restart),
        }
    }
}
