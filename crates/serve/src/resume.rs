//! [`StoredSessions`]: sessions of clients that have lost their connection, kept for a while so that the
//! clients can resume them. Bounded by age and by bytes: the oldest is dropped first.
//!
//! A session is named by its session id, which nobody can guess ([`crate::sid`]); it is resumed once, and
//! only by a client with the same identity.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::ConnId;

/// Memory of an entry beyond its texts, and of one of its subscriptions, in bytes.
const SESSION_BYTES: usize = 160;
const SUBSCRIPTION_BYTES: usize = 32;

/// A session without a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredSession {
    /// The identity of its token.
    pub(crate) identity: Option<Arc<str>>,
    /// The identifiers of its subscriptions.
    pub(crate) identifiers: Vec<Arc<str>>,
}

impl StoredSession {
    /// The bytes that count for it. Texts that others hold as well are counted: they may leave.
    fn bytes(&self) -> usize {
        let texts: usize =
            self.identifiers.iter().map(|text| text.len() + SUBSCRIPTION_BYTES).sum();
        SESSION_BYTES + texts + self.identity.as_ref().map_or(0, |text| text.len())
    }
}

#[derive(Default)]
struct Stored {
    by_id: HashMap<ConnId, StoredSession>,
    /// The oldest first, and some that were resumed.
    order: VecDeque<(u64, ConnId)>,
    bytes: usize,
}

/// The sessions of a process that can be resumed.
pub(crate) struct StoredSessions {
    stored: Mutex<Stored>,
    age_ns: u64,
    bytes_max: usize,
    pub(crate) resumed: AtomicU64,
    /// Sessions that a client named by its id but that are not kept, or are another identity's.
    pub(crate) unknown: AtomicU64,
    /// Sessions dropped by age and by bytes.
    pub(crate) expired: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

impl StoredSessions {
    pub(crate) fn new(age_ns: u64, bytes_max: usize) -> Self {
        StoredSessions {
            stored: Mutex::default(),
            age_ns,
            bytes_max,
            resumed: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Number of sessions and their bytes.
    pub(crate) fn held(&self) -> (usize, usize) {
        let stored = self.lock();
        (stored.by_id.len(), stored.bytes)
    }

    /// Keeps the session of a connection that has ended.
    pub(crate) fn put(&self, id: ConnId, session: StoredSession, now_ns: u64) {
        let bytes = session.bytes();
        if bytes > self.bytes_max {
            self.evicted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut stored = self.lock();
        while stored.bytes + bytes > self.bytes_max {
            let Some((_, oldest)) = stored.order.pop_front() else { break };
            let evicted = stored.remove(oldest).is_some();
            self.evicted.fetch_add(evicted.into(), Ordering::Relaxed);
        }
        stored.bytes += bytes;
        stored.order.push_back((now_ns, id));
        stored.by_id.insert(id, session);
    }

    /// Takes out the session of a connection for a client with this identity; no other one gets it later.
    pub(crate) fn take(
        &self,
        id: ConnId,
        identity: Option<&str>,
        now_ns: u64,
    ) -> Option<StoredSession> {
        self.expire(now_ns);
        let session = self.lock().remove(id);
        let session = session.filter(|session| session.identity.as_deref() == identity);
        let count = if session.is_some() { &self.resumed } else { &self.unknown };
        count.fetch_add(1, Ordering::Relaxed);
        session
    }

    /// Drops sessions that are too old. To be called periodically.
    pub(crate) fn expire(&self, now_ns: u64) {
        let mut stored = self.lock();
        while let Some((since_ns, id)) = stored.order.front().copied() {
            if now_ns.saturating_sub(since_ns) < self.age_ns {
                break;
            }
            stored.order.pop_front();
            let expired = stored.remove(id).is_some();
            self.expired.fetch_add(expired.into(), Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
    fn remove(&mut self, id: ConnId) -> Option<StoredSession> {
        let session = self.by_id.remove(&id)?;
        self.bytes -= session.bytes();
        let Stored { by_id, order, .. } = self;
        if order.len() > 2 * by_id.len() + 64 {
            order.retain(|(_, id)| by_id.contains_key(id));
            order.shrink_to(2 * order.len());
        }
        if by_id.capacity() > 64 && by_id.len() < by_id.capacity() / 8 {
            by_id.shrink_to(2 * by_id.len());
        }
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(identity: Option<&str>) -> StoredSession {
        StoredSession { identity: identity.map(Into::into), identifiers: vec!["x".into(); 3] }
    }

    fn id(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    #[test]
    fn a_session_is_resumed_once_by_its_own_identity() {
        let sessions = StoredSessions::new(100, 1 << 20);
        for number in 0..4 {
            sessions.put(id(number), session((number < 2).then_some("ann")), 10);
        }
        assert_eq!(sessions.take(id(0), Some("ann"), 20), Some(session(Some("ann"))));
        assert_eq!(sessions.take(id(0), Some("ann"), 20), None, "it was resumed");
        assert_eq!(sessions.take(id(1), Some("bob"), 20), None);
        assert_eq!(sessions.take(id(1), Some("ann"), 20), None, "somebody else has tried it");
        assert_eq!(sessions.take(id(2), Some("ann"), 20), None);
        assert_eq!(sessions.take(id(3), None, 109), Some(session(None)));
        assert_eq!(sessions.held(), (0, 0));
        assert_eq!(sessions.resumed.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn sessions_are_bounded_by_age_and_bytes() {
        let each = session(None).bytes();
        let sessions = StoredSessions::new(100, 10 * each);
        for number in 0..1_000 {
            sessions.put(id(number), session(None), 10);
            assert!(sessions.held().1 <= 10 * each);
        }
        assert_eq!(sessions.evicted.load(Ordering::Relaxed), 990);
        assert_eq!((sessions.take(id(989), None, 20), sessions.held()), (None, (10, 10 * each)));
        assert!(sessions.take(id(990), None, 20).is_some());
        assert_eq!(sessions.take(id(999), None, 110), None);
        assert_eq!((sessions.held(), sessions.expired.load(Ordering::Relaxed)), ((0, 0), 9));
        // Resumed ones leave nothing behind.
        for number in 0..10_000 {
            sessions.put(id(number), session(None), 200);
            assert!(sessions.take(id(number), None, 200).is_some());
        }
        assert!(sessions.lock().order.len() <= 65);
        let long = StoredSession { identity: None, identifiers: vec!["x".into(); 1_000] };
        sessions.put(id(1), long, 200);
        assert_eq!(sessions.held(), (0, 0), "longer than all may be");
    }
}
