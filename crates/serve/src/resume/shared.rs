//! Sessions that another node can resume, with `--pubsub`: they are in the store of the broker as well.
//!
//! **Who has a session is who has taken its value from the store, which is possible once.** While a value is in
//! the store, or on the way there, the session in this process is a copy: this process takes the value, too,
//! before it resumes the session or tells the application of its end. So a session is never resumed twice and
//! its end is told once. A session whose value could not be stored has no copy elsewhere, and is resumed here as
//! without a broker.
//!
//! The process that stored a session tells of its end, at the end of its time. One that drains leaves the values
//! to the other nodes: who takes one tells of its end, and `due.rs` has those that no client has come for.
//! `ended.rs` has requests to end sessions that lie there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_lc_rs::hmac;
use brokers::{Broker, OnAnswer, StoreAction, StoreAnswer};
use engine::{ConnId, Remote};

use super::due::DueSessions;
use super::encoded::SessionKey;
use super::{Claim, Entry, StoredSession, StoredSessions};
use crate::app::Calls;
use crate::auth::Secret;
use crate::handler::Post;
use crate::shared::UnixClock;
use crate::sid::Sids;

/// How long after its time the value of a session stays whose end the application is to be told of, so that a process
/// can take it as soon as there is room for the call.
pub(crate) const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(600);

/// Where a session is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// In this process only.
    Here,
    /// On its way to the store.
    Sent,
    /// In the store, unless another node has taken it. This is a copy.
    Shared,
}

/// What a client can have of the session of this process that it names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Nothing.
    Nowhere,
    /// [`StoredSessions::take`] returns it.
    Here,
    /// It has to be taken from the store.
    Shared,
}

/// Whether a session of a connection that is about to be closed is in the store.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    Stored,
    /// [`Post::HandedOver`] tells it.
    Waits,
    NotStored,
}

/// What a store that nodes share is used with.
pub(crate) struct SharedSettings {
    pub(crate) broker: Arc<Broker>,
    pub(crate) sids: Arc<Sids>,
    /// Time for the broker.
    pub(crate) timeout: Duration,
    pub(crate) clock: UnixClock,
    /// All nodes have it.
    pub(crate) secret: Secret,
    /// Sessions are ended by what Rails names them, too.
    pub(crate) rails_names: bool,
}

/// The store that the nodes share.
pub(crate) struct SharedSessions {
    pub(super) broker: Arc<Broker>,
    pub(super) sids: Arc<Sids>,
    /// Time for the broker.
    pub(super) timeout: Duration,
    pub(super) clock: UnixClock,
    pub(super) nodes_key: hmac::Key,
    /// Sessions are ended by what Rails names them, too.
    pub(super) rails_names: bool,
    /// Set where an application is told of ends.
    pub(crate) due: Option<Arc<DueSessions>>,
    /// Sessions stored.
    pub(crate) stored: AtomicU64,
    /// Those that the store did not take, or too much waited for it.
    pub(crate) refused: AtomicU64,
    /// Sessions of other processes that a client named and that were in the store.
    pub(crate) taken: AtomicU64,
    /// Those that were not, and bytes that are no session of this version.
    pub(crate) missing: AtomicU64,
    /// Those about which the store did not answer in time.
    pub(crate) unavailable: AtomicU64,
}

impl SharedSessions {
    fn new(settings: SharedSettings, calls: Option<&Arc<Calls>>) -> Self {
        let SharedSettings { broker, sids, timeout, clock, secret, rails_names } = settings;
        let due = |calls| {
            let (broker, clock) = (Arc::clone(&broker), clock.clone());
            DueSessions::new(broker, Arc::clone(calls), timeout, clock, &secret)
        };
        SharedSessions {
            due: calls.map(due),
            broker,
            sids,
            timeout,
            clock,
            nodes_key: hmac::Key::new(hmac::HMAC_SHA256, secret.bytes()),
            rails_names,
            stored: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            missing: AtomicU64::new(0),
            unavailable: AtomicU64::new(0),
        }
    }

    /// Whether the store can be asked for the session of this id now.
    fn is_up(&self, key: &SessionKey) -> bool {
        self.broker.stores(&store_key(key))
    }

    /// Takes the value of a session from the store. False if it cannot be asked.
    pub(crate) fn take(&self, sid: &str, on_answer: OnAnswer) -> bool {
        let Some(key) = SessionKey::of(sid) else { return false };
        let key = store_key(&key);
        self.broker.store(&key, StoreAction::Take, self.timeout, on_answer).is_ok()
    }

    fn take_own(&self, id: ConnId, on_answer: OnAnswer) -> bool {
        self.take(&self.sids.of(id), on_answer)
    }
}

pub(super) fn store_key(key: &SessionKey) -> String {
    format!("s:{}", key.name)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl StoredSessions {
    /// With a store that other nodes share.
    pub(crate) fn with_store(self, settings: SharedSettings) -> Self {
        let shared = Some(SharedSessions::new(settings, self.calls.as_ref()));
        StoredSessions { shared, ..self }
    }

    pub(super) fn due(&self) -> Option<&Arc<DueSessions>> {
        self.shared.as_ref()?.due.as_ref()
    }

    pub(crate) fn shared(&self) -> Option<&SharedSessions> {
        self.shared.as_ref()
    }

    /// Keeps the session of a connection that has ended, and stores it for the other nodes.
    pub(crate) fn keep(
        self: &Arc<Self>,
        id: ConnId,
        session: StoredSession,
        now_ns: u64,
        remote: &Remote<Post>,
    ) {
        let sealed = self.shared.as_ref().and_then(|shared| {
            let key = SessionKey::of(&shared.sids.of(id))?;
            let stored_ms = shared.clock.unix_ms(now_ns);
            // Not to be sealed in vain.
            let value = if shared.is_up(&key) { key.seal(&session, stored_ms) } else { None };
            if value.is_none() {
                count(&shared.refused);
            }
            Some((shared, key, value?))
        });
        let Some((shared, key, value)) = sealed else { return self.put(id, session, now_ns) };
        let told = self.calls.is_some() && session.app.as_ref().is_some_and(|app| app.reports_end);
        let ttl = Duration::from_nanos(self.age_ns);
        let ttl = if told { ttl.saturating_add(TAKEN_BACK_WITHIN) } else { ttl };
        if !self.put_as(id, session, now_ns, Held::Sent) {
            return;
        }
        let (sessions, remote) = (Arc::clone(self), remote.clone());
        let on_answer = Box::new(move |answer: &StoreAnswer| sessions.stored(id, answer, &remote));
        let action = StoreAction::Put(value, ttl);
        let sent = shared.broker.store(&store_key(&key), action, shared.timeout, on_answer);
        if sent.is_err() {
            count(&shared.refused);
            self.lock().by_id.entry(id).and_modify(|entry| entry.held = Held::Here);
        }
    }

    /// What became of a session that was sent to the store. False to be told again.
    fn stored(&self, id: ConnId, answer: &StoreAnswer, remote: &Remote<Post>) -> bool {
        let is_stored = !matches!(answer, StoreAnswer::Refused(_));
        let mut stored = self.lock();
        let Some(entry) = stored.by_id.get_mut(&id) else { return true };
        let closes = entry.closes;
        if entry.held == Held::Sent {
            entry.held = if is_stored { Held::Shared } else { Held::Here };
            let is_copy = is_stored && !entry.ended;
            stored.copies += usize::from(is_copy);
            let shared = self.shared.as_ref();
            shared.iter().for_each(|shared| {
                count(if is_stored { &shared.stored } else { &shared.refused });
            });
        }
        drop(stored);
        let worker = usize::from(id.worker());
        !closes || remote.post(worker, Post::HandedOver(id, is_stored), 0).is_ok()
    }

    /// The connection of a session is to be closed once it is stored.
    pub(crate) fn close_when_stored(&self, id: ConnId) -> Closing {
        match self.lock().by_id.get_mut(&id) {
            Some(entry) if entry.held == Held::Sent => {
                entry.closes = true;
                Closing::Waits
            }
            Some(entry) if entry.held == Held::Shared => Closing::Stored,
            _ => Closing::NotStored,
        }
    }

    /// Where the session of a connection is that a client names. One of another client ends it.
    pub(crate) fn whereabouts(&self, id: ConnId, claim: Claim<'_>, now_ns: u64) -> Whereabouts {
        let mut stored = self.lock();
        let Some(entry) = stored.by_id.get(&id).filter(|entry| self.is_live(entry, now_ns)) else {
            return Whereabouts::Nowhere;
        };
        if entry.held == Held::Here {
            return Whereabouts::Here;
        }
        if entry.session.is_of(claim) {
            return Whereabouts::Shared;
        }
        stored.end(id);
        count(&self.ended);
        Whereabouts::Nowhere
    }

    /// The value of this process's session was taken from the store. Returns whether it may be resumed.
    pub(crate) fn settle(&self, id: ConnId) -> bool {
        let mut stored = self.lock();
        // What has been removed meanwhile is told of by who has asked the store for it.
        let Some(entry) = stored.by_id.get(&id).filter(|entry| entry.held != Held::Here) else {
            return true;
        };
        let ended = entry.ended;
        stored.remove(id);
        !ended
    }

    /// Whether a session that was taken from the store is of this client.
    pub(crate) fn accepts(&self, session: &StoredSession, claim: Claim<'_>, now_ns: u64) -> bool {
        let own = session.is_of(claim) && !self.was_ended(session, now_ns);
        if !own {
            count(&self.ended);
        }
        own
    }

    /// A session that was taken from the store is not resumed: it ends here.
    pub(crate) fn finish(&self, id: ConnId, session: &StoredSession) {
        self.report(id, session, engine::sys::process::now_ns());
    }

    /// A session of this process is gone, unless another node has it.
    pub(super) fn dropped(&self, id: ConnId, entry: Entry, now_ns: u64) {
        let Some(shared) = self.shared.as_ref().filter(|_| entry.held != Held::Here) else {
            return self.report(id, &entry.session, now_ns);
        };
        if !self.takes_back(&entry) {
            // It stays for the other nodes, and expires there.
            if let Some(due) = self.due().filter(|_| self.is_told(&entry)) {
                due.leave(shared.sids.of(id), entry.since_ns.saturating_add(self.age_ns));
            }
            return;
        }
        let (calls, session) = (self.calls.clone(), entry.session);
        let on_answer = Box::new(move |answer: &StoreAnswer| {
            if let (StoreAnswer::Taken(_), Some(calls), Some(app)) = (answer, &calls, &session.app)
                && app.reports_end
            {
                calls.submit_disconnect(engine::sys::process::now_ns(), id, app.disconnect());
            }
            true
        });
        if !shared.take_own(id, on_answer) {
            count(&shared.unavailable);
        }
    }

    /// Whether a session that is gone has to be taken from the store: so that nobody resumes it, or to find out
    /// whether somebody has.
    fn takes_back(&self, entry: &Entry) -> bool {
        let told = self.is_told(entry) && !self.draining.load(Ordering::Relaxed);
        entry.held != Held::Here && (told || entry.ended)
    }

    /// Whether the application is to be told of the end of a session.
    fn is_told(&self, entry: &Entry) -> bool {
        self.calls.is_some() && entry.session.app.as_ref().is_some_and(|app| app.reports_end)
    }

    /// A session that was taken from the store is ended by request.
    pub(super) fn end_taken(&self, sid: &str, value: &[u8]) {
        if let Some(opened) = SessionKey::of(sid).and_then(|key| key.open(value)) {
            count(&self.ended);
            self.finish(ConnId::from_u64(0), &opened.session);
        }
    }

    /// Whether a session cannot be dropped yet, as the store has not answered or cannot be asked.
    pub(super) fn waits(&self, id: ConnId, entry: &Entry) -> bool {
        let Some(shared) = self.shared.as_ref().filter(|_| entry.held != Held::Here) else {
            return false;
        };
        // One that drains has to know whether it has left the session to the others.
        entry.held == Held::Sent
            || self.takes_back(entry)
                && SessionKey::of(&shared.sids.of(id)).is_some_and(|key| !shared.is_up(&key))
    }
}
