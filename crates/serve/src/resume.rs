//! [`StoredSessions`]: sessions of clients that have lost their connection, kept for a while so that the
//! clients can resume them. Bounded by age and by bytes: the oldest is dropped first.
//!
//! A session is named by its session id, which nobody can guess ([`crate::sid`]); it is resumed once, and
//! only by a client with the same identity. If the application knows the session, Disconnect is
//! called once, when the session is dropped; not for a session that is resumed. Where nodes share a store,
//! `resume/shared.rs` says who has a session.

mod due;
mod encoded;
mod ended;
mod shared;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::ConnId;

pub(crate) use self::encoded::{Opened, SessionKey};
use self::shared::Held;
pub(crate) use self::shared::{
    Closing, SharedSessions, SharedSettings, TAKEN_BACK_WITHIN, Whereabouts,
};
use crate::app::call::Env;
use crate::app::stored::StoredApp;
use crate::app::{Calls, Room};

/// Memory of an entry beyond its texts, and of one of its subscriptions, in bytes.
const SESSION_BYTES: usize = 240;
const SUBSCRIPTION_BYTES: usize = 32;
/// How long sessions of an identity that was ended by request are not kept: the workers end them one after
/// the other, and one could pass from a worker that has yet to do so to one that has done so.
const ENDED_NS: u64 = 10_000_000_000;
/// Identities remembered for it. Beyond that no session is kept for as long.
const ENDED_MAX: usize = 16 * 1024;

/// A session without a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredSession {
    /// Its identity: that of its token, or the one that the application gave.
    pub(crate) identity: Option<Arc<str>>,
    /// The identifiers of its subscriptions, without those to channels of the application.
    pub(crate) identifiers: Vec<Arc<str>>,
    /// What the application has said of it, where one is called.
    pub(crate) app: Option<Box<StoredApp>>,
}

/// Who wants to resume a session.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Claim<'c> {
    /// The identity of its token.
    pub(crate) identity: Option<&'c str>,
    /// Its handshake, where an application is called.
    pub(crate) env: Option<&'c Env>,
}

impl StoredSession {
    /// The bytes that count for it. Texts that others hold as well are counted: they may leave.
    fn bytes(&self) -> usize {
        let texts: usize =
            self.identifiers.iter().map(|text| text.len() + SUBSCRIPTION_BYTES).sum();
        let identity = self.identity.as_ref().map_or(0, |text| text.len());
        SESSION_BYTES + texts + identity + self.app.as_ref().map_or(0, |app| app.bytes())
    }

    /// Whether it is this client's: it has a token of the same identity, or none as before. One that the
    /// application identified by its handshake has the same handshake.
    fn is_of(&self, claim: Claim<'_>) -> bool {
        match self.app.as_ref().filter(|app| !app.has_token) {
            Some(app) => {
                let same = claim.env.is_some_and(|env| env.is_same_client(&app.env));
                claim.identity.is_none() && same
            }
            None => self.identity.as_deref() == claim.identity,
        }
    }
}

struct Entry {
    since_ns: u64,
    /// It is not to be resumed any more.
    ended: bool,
    held: Held,
    /// Its connection is closed once it is stored.
    closes: bool,
    session: StoredSession,
}

#[derive(Default)]
struct Stored {
    by_id: HashMap<ConnId, Entry>,
    by_identity: BTreeSet<(Arc<str>, ConnId)>,
    /// The oldest first, and some that were resumed.
    order: VecDeque<(u64, ConnId)>,
    /// Those that have ended.
    ended: VecDeque<ConnId>,
    /// Number of those that are still held.
    ended_held: usize,
    /// Number of copies of those in the store of the nodes that have not ended.
    copies: usize,
    bytes: usize,
    /// Identities whose sessions are not kept, and until when.
    identities_ended: HashMap<Box<str>, u64>,
    none_until_ns: u64,
}

/// The sessions of a process that can be resumed.
pub(crate) struct StoredSessions {
    stored: Mutex<Stored>,
    age_ns: u64,
    bytes_max: usize,
    /// The application to be told of ends, if there is one.
    calls: Option<Arc<Calls>>,
    /// Where the other nodes find them, if there are any.
    shared: Option<SharedSessions>,
    draining: AtomicBool,
    pub(crate) resumed: AtomicU64,
    /// Sessions that a client named by its id but that are not kept, or are another identity's.
    pub(crate) unknown: AtomicU64,
    /// Sessions dropped by age and by bytes, and those ended by request or by a client of another identity.
    pub(crate) expired: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) ended: AtomicU64,
}

impl StoredSessions {
    pub(crate) fn new(age_ns: u64, bytes_max: usize, calls: Option<Arc<Calls>>) -> Self {
        StoredSessions {
            stored: Mutex::default(),
            age_ns,
            bytes_max,
            calls,
            shared: None,
            draining: AtomicBool::new(false),
            resumed: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    /// Number of sessions that have not ended and that only this process has, and the bytes of all.
    pub(crate) fn held(&self) -> (usize, usize) {
        let stored = self.lock();
        (stored.by_id.len() - stored.ended_held - stored.copies, stored.bytes)
    }

    /// Number of copies of sessions that are in the store of the nodes, unless another node has resumed them.
    pub(crate) fn copies(&self) -> usize {
        self.lock().copies
    }

    /// Whether the session of a connection can be resumed.
    pub(crate) fn has(&self, id: ConnId, now_ns: u64) -> bool {
        self.lock().by_id.get(&id).is_some_and(|entry| self.is_live(entry, now_ns))
    }

    /// The same, or maybe at another node while this one drains.
    pub(crate) fn may_return(&self, id: ConnId, now_ns: u64) -> bool {
        let draining = self.draining.load(Ordering::Relaxed);
        self.has(id, now_ns) || draining && self.shared.is_some()
    }

    /// Keeps the session of a connection that has ended.
    pub(crate) fn put(&self, id: ConnId, session: StoredSession, now_ns: u64) {
        self.put_as(id, session, now_ns, Held::Here);
    }

    /// Returns whether it is kept.
    fn put_as(&self, id: ConnId, session: StoredSession, now_ns: u64, held: Held) -> bool {
        let bytes = session.bytes();
        if bytes > self.bytes_max {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            self.report(id, &session, now_ns);
            return false;
        }
        let mut evicted = Vec::new();
        let mut stored = self.lock();
        while stored.bytes + bytes > self.bytes_max {
            let Some(oldest) = stored.oldest() else { break };
            evicted.extend(stored.remove(oldest).map(|entry| (oldest, entry)));
        }
        stored.bytes += bytes;
        stored.order.push_back((now_ns, id));
        let ended = stored.is_ended(&session, now_ns);
        if ended {
            stored.ended.push_back(id);
            stored.ended_held += 1;
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
        stored.by_identity.extend(session.identity.clone().map(|identity| (identity, id)));
        let entry = Entry { since_ns: now_ns, ended, held, closes: false, session };
        stored.by_id.insert(id, entry);
        drop(stored);
        self.evicted.fetch_add(evicted.len() as u64, Ordering::Relaxed);
        evicted.into_iter().for_each(|(id, entry)| self.dropped(id, entry, now_ns));
        true
    }

    /// Takes out the session of a connection for a client; no other one gets it later.
    pub(crate) fn take(&self, id: ConnId, claim: Claim<'_>, now_ns: u64) -> Option<StoredSession> {
        let mut stored = self.lock();
        let found = stored.by_id.get(&id).filter(|entry| self.is_live(entry, now_ns));
        let own = found.map(|entry| entry.session.is_of(claim));
        let entry = match own {
            Some(true) if found.is_some_and(|entry| entry.held != Held::Here) => None,
            Some(true) => stored.remove(id),
            Some(false) => {
                stored.end(id);
                self.ended.fetch_add(1, Ordering::Relaxed);
                None
            }
            None => None,
        };
        let count = if entry.is_some() { &self.resumed } else { &self.unknown };
        count.fetch_add(1, Ordering::Relaxed);
        entry.map(|entry| entry.session)
    }

    /// Ends all sessions of an identity, and those that lose their connection soon.
    pub(crate) fn end_identity(&self, identity: &str, now_ns: u64) {
        let mut stored = self.lock();
        let first = (Arc::from(identity), ConnId::from_u64(0));
        let found = stored.by_identity.range(first..);
        let own = found.take_while(|(own, _)| **own == *identity).map(|(_, id)| *id);
        let own: Vec<ConnId> = own.collect();
        let ended = own.into_iter().filter(|id| stored.end(*id)).count() as u64;
        if stored.identities_ended.len() >= ENDED_MAX {
            stored.identities_ended.retain(|_, until_ns| *until_ns > now_ns);
        }
        let until_ns = now_ns.saturating_add(ENDED_NS);
        if stored.identities_ended.len() >= ENDED_MAX {
            stored.none_until_ns = until_ns;
        } else {
            stored.identities_ended.insert(identity.into(), until_ns);
        }
        self.ended.fetch_add(ended, Ordering::Relaxed);
    }

    /// The identities of stored sessions for which this holds.
    pub(crate) fn identities(&self, wanted: impl Fn(&str) -> bool) -> BTreeSet<Arc<str>> {
        let stored = self.lock();
        let all = stored.by_identity.iter().map(|(identity, _)| identity);
        all.filter(|identity| wanted(identity)).cloned().collect()
    }

    /// Ends the session of one connection.
    pub(crate) fn end(&self, id: ConnId) {
        let ended = self.lock().end(id);
        self.ended.fetch_add(ended.into(), Ordering::Relaxed);
    }

    /// Drops sessions that are too old or have ended: as many as the application can be told of now. To be
    /// called periodically.
    pub(crate) fn expire(&self, now_ns: u64) {
        let room = Room { calls: usize::MAX, bytes: usize::MAX };
        let mut room = self.calls.as_ref().map_or(room, |calls| calls.disconnect_room());
        let draining = self.draining.load(Ordering::Relaxed);
        let mut dropped = Vec::new();
        let mut stored = self.lock();
        while let Some(id) = stored.ended.front().copied()
            && !stored.by_id.get(&id).is_some_and(|entry| self.waits(id, entry))
            && stored.fits(id, &mut room)
        {
            stored.ended.pop_front();
            dropped.extend(stored.remove(id).map(|entry| (id, entry)));
        }
        while let Some((since_ns, id)) = stored.order.front().copied() {
            let keeps = !draining && now_ns.saturating_sub(since_ns) < self.age_ns;
            let keeps = keeps || stored.by_id.get(&id).is_some_and(|entry| self.waits(id, entry));
            if keeps || !stored.fits(id, &mut room) {
                break;
            }
            stored.order.pop_front();
            let Some(entry) = stored.remove(id) else { continue };
            self.expired.fetch_add(u64::from(!entry.ended), Ordering::Relaxed);
            dropped.push((id, entry));
        }
        if !stored.identities_ended.is_empty() {
            stored.identities_ended.retain(|_, until_ns| *until_ns > now_ns);
        }
        drop(stored);
        dropped.into_iter().for_each(|(id, entry)| self.dropped(id, entry, now_ns));
        if let Some(due) = self.due() {
            due.flush();
            due.go_on(now_ns);
        }
    }

    /// From now on no session is resumed: [`StoredSessions::expire`] drops all. Returns whether an application
    /// is to be told of some.
    pub(crate) fn drain(&self, now_ns: u64) -> bool {
        self.draining.store(true, Ordering::Relaxed);
        self.due().into_iter().for_each(|due| due.stop());
        self.expire(now_ns);
        self.calls.is_some() && !self.lock().by_id.is_empty()
    }

    /// Tells the application that a session has ended.
    fn report(&self, id: ConnId, session: &StoredSession, now_ns: u64) {
        if let (Some(calls), Some(app)) = (&self.calls, &session.app)
            && app.reports_end
        {
            calls.submit_disconnect(now_ns, id, app.disconnect());
        }
    }

    /// Whether a session is of an identity that was ended a moment ago.
    pub(crate) fn was_ended(&self, session: &StoredSession, now_ns: u64) -> bool {
        self.lock().is_ended(session, now_ns)
    }

    fn is_live(&self, entry: &Entry, now_ns: u64) -> bool {
        !entry.ended
            && now_ns.saturating_sub(entry.since_ns) < self.age_ns
            && !self.draining.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
    /// The session to be dropped first.
    fn oldest(&mut self) -> Option<ConnId> {
        self.ended.pop_front().or_else(|| self.order.pop_front().map(|(_, id)| id))
    }

    /// Whether a session is of an identity that was ended a moment ago.
    fn is_ended(&self, session: &StoredSession, now_ns: u64) -> bool {
        self.none_until_ns > now_ns
            || session.identity.as_ref().is_some_and(|identity| {
                self.identities_ended.get(&**identity).is_some_and(|until| *until > now_ns)
            })
    }

    /// Takes room for the call that tells of a session's end, if there is a session and a call.
    fn fits(&self, id: ConnId, room: &mut Room) -> bool {
        let session = self.by_id.get(&id).map(|entry| &entry.session);
        let Some(session) = session.filter(|own| own.app.is_some()) else { return true };
        if room.calls == 0 || room.bytes == 0 {
            return false;
        }
        room.calls -= 1;
        room.bytes = room.bytes.saturating_sub(session.bytes());
        true
    }

    /// Marks a session that is not to be resumed any more. Returns whether it was.
    fn end(&mut self, id: ConnId) -> bool {
        let Some(entry) = self.by_id.get_mut(&id).filter(|entry| !entry.ended) else {
            return false;
        };
        entry.ended = true;
        self.copies -= usize::from(entry.held == Held::Shared);
        self.ended.push_back(id);
        self.ended_held += 1;
        true
    }

    fn remove(&mut self, id: ConnId) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        self.bytes -= entry.session.bytes();
        self.ended_held -= usize::from(entry.ended);
        self.copies -= usize::from(entry.held == Held::Shared && !entry.ended);
        if let Some(identity) = &entry.session.identity {
            self.by_identity.remove(&(Arc::clone(identity), id));
        }
        let Stored { by_id, order, .. } = self;
        if order.len() > 2 * by_id.len() + 64 {
            order.retain(|(_, id)| by_id.contains_key(id));
            order.shrink_to(2 * order.len());
        }
        if by_id.capacity() > 64 && by_id.len() < by_id.capacity() / 8 {
            by_id.shrink_to(2 * by_id.len());
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
