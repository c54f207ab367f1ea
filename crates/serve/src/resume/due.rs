//! Sessions that a node has left in the store when it drained: the other nodes tell the application of the ends
//! of those that nobody has resumed.
//!
//! The node leaves lists of their session ids in the store, by the interval of time in which they are due and a
//! number from 0 on; no list replaces another one. Once the interval has passed, a node that adds the lease of a
//! list takes the sessions in it, and tells of each that it gets: one that was resumed is not there. The lease of a
//! node that ends before it is through expires, and the next pass over the interval goes over that list again.
//!
//! Lists are sealed with a key that all nodes derive from their secret.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brokers::{Broker, StoreAction, StoreAnswer};
use engine::ConnId;
use engine::sys::process::now_ns;

use super::encoded::{Sealer, SessionKey};
use super::shared::{TAKEN_BACK_WITHIN, store_key};
use crate::app::Calls;
use crate::auth::Secret;
use crate::shared::UnixClock;

/// The intervals of time by which lists are found, in milliseconds.
const INTERVAL_MS: u64 = 5_000;
/// How long after its end the lists of an interval are gone over, in milliseconds: again for those of a node that
/// has ended meanwhile.
const PASSES_MS: [u64; 4] = [1_000, 30_000, 120_000, 480_000];
/// Intervals that a node looks back to when it starts.
const LOOKED_BACK: u64 = TAKEN_BACK_WITHIN.as_secs() * 1000 / INTERVAL_MS;
/// Sessions in a list.
const LIST_SESSIONS: usize = 256;
/// Lists of an interval; the sessions beyond are counted as untold.
const LISTS_MAX: u32 = 8192;
/// How long a node has a list for itself.
const LEASE: Duration = Duration::from_secs(15);

/// The lists of the sessions that are due.
pub(crate) struct DueSessions {
    broker: Arc<Broker>,
    calls: Arc<Calls>,
    timeout: Duration,
    clock: UnixClock,
    /// `None` if the cipher is not available.
    sealer: Option<Sealer>,
    /// Sessions that are in no list yet, by interval.
    leaving: Mutex<BTreeMap<u64, Vec<String>>>,
    scan: Mutex<Scan>,
    has_stopped: AtomicBool,
    /// Sessions left in lists for the other nodes.
    pub(crate) left: AtomicU64,
    /// Sessions of nodes that have drained that this node has told the application of.
    pub(crate) told: AtomicU64,
    /// Sessions left without a list: the store did not take it.
    pub(crate) untold: AtomicU64,
}

/// What is gone over.
#[derive(Default)]
struct Scan {
    /// The next interval of each pass; 0 before the first.
    next: [u64; PASSES_MS.len()],
    /// The pass under way.
    pass: Option<usize>,
    /// A list that waits until there is room for Disconnect calls.
    waiting: Option<Leased>,
}

/// A list that this node has the lease of.
struct Leased {
    interval: u64,
    number: u32,
    /// Those that are not taken yet.
    sids: Vec<String>,
    /// The store did not answer for all.
    failed: bool,
}

/// The sessions of a list that are being taken.
struct Taking {
    unanswered: AtomicUsize,
    failed: AtomicBool,
    rest: Mutex<Option<Leased>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn list_key(interval: u64, number: u32) -> String {
    format!("s:d:{interval}:{number}")
}

fn lease_key(interval: u64, number: u32) -> String {
    format!("s:l:{interval}:{number}")
}

impl DueSessions {
    pub(super) fn new(
        broker: Arc<Broker>,
        calls: Arc<Calls>,
        timeout: Duration,
        clock: UnixClock,
        key: &Secret,
    ) -> Arc<Self> {
        Arc::new(DueSessions {
            broker,
            calls,
            timeout,
            clock,
            sealer: Sealer::of(key.bytes(), b"standfast due sessions"),
            leaving: Mutex::default(),
            scan: Mutex::default(),
            has_stopped: AtomicBool::new(false),
            left: AtomicU64::new(0),
            told: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        })
    }

    /// A session stays in the store, and is due at this time of the monotonic clock. [`DueSessions::flush`] follows.
    pub(super) fn leave(self: &Arc<Self>, sid: String, due_ns: u64) {
        let interval = self.clock.unix_ms(due_ns) / INTERVAL_MS;
        let full = {
            let mut leaving = lock(&self.leaving);
            let sids = leaving.entry(interval).or_default();
            sids.push(sid);
            (sids.len() >= LIST_SESSIONS).then(|| std::mem::take(sids))
        };
        full.into_iter().for_each(|sids| self.list(interval, &sids));
    }

    /// Stores the lists of all sessions that have been left.
    pub(super) fn flush(self: &Arc<Self>) {
        let all = std::mem::take(&mut *lock(&self.leaving));
        all.into_iter().filter(|(_, sids)| !sids.is_empty()).for_each(|(interval, sids)| {
            self.list(interval, &sids);
        });
    }

    fn list(self: &Arc<Self>, interval: u64, sids: &[String]) {
        match self.sealer.as_ref().and_then(|sealer| sealer.seal(encode(sids))) {
            Some(list) => self.add(interval, 0, list, sids.len() as u64),
            None => self.count_untold(sids.len() as u64),
        }
    }

    /// Stores a list by the first number that is free.
    fn add(self: &Arc<Self>, interval: u64, number: u32, list: Arc<[u8]>, sessions: u64) {
        let due_ms = (interval + 1).saturating_mul(INTERVAL_MS);
        let now_ms = self.clock.unix_ms(now_ns());
        let ttl = Duration::from_millis(due_ms.saturating_sub(now_ms)) + TAKEN_BACK_WITHIN;
        let (own, again) = (Arc::clone(self), Arc::clone(&list));
        let on_answer = Box::new(move |answer: &StoreAnswer| {
            match answer {
                StoreAnswer::Stored => {
                    own.left.fetch_add(sessions, Ordering::Relaxed);
                }
                StoreAnswer::Exists if number + 1 < LISTS_MAX => {
                    own.add(interval, number + 1, Arc::clone(&again), sessions);
                }
                _ => own.count_untold(sessions),
            }
            true
        });
        let key = list_key(interval, number);
        if self.broker.add(&key, (list, ttl), self.timeout, on_answer).is_err() {
            self.count_untold(sessions);
        }
    }

    fn count_untold(&self, sessions: u64) {
        self.untold.fetch_add(sessions, Ordering::Relaxed);
    }

    /// Goes over the lists that are due. To be called periodically.
    pub(super) fn go_on(self: &Arc<Self>, now_ns: u64) {
        if self.has_stopped.load(Ordering::Relaxed) {
            return;
        }
        let now_ms = self.clock.unix_ms(now_ns);
        let mut scan = lock(&self.scan);
        if let Some(leased) = scan.waiting.take() {
            drop(scan);
            return self.take(leased);
        }
        if scan.pass.is_some() {
            return;
        }
        for (pass, after_ms) in PASSES_MS.into_iter().enumerate() {
            let end = now_ms.saturating_sub(after_ms) / INTERVAL_MS;
            let Some(next) = scan.next.get_mut(pass) else { return };
            let looked_back = if pass == 0 || *next > 0 { LOOKED_BACK } else { 0 };
            *next = (*next).max(end.saturating_sub(looked_back));
            if *next < end {
                let interval = *next;
                scan.pass = Some(pass);
                drop(scan);
                return self.lease(interval, 0);
            }
        }
    }

    /// The pass over an interval is over; if the store could not be asked, it is gone over again.
    fn passed(self: &Arc<Self>, was_asked: bool) {
        let mut scan = lock(&self.scan);
        let Some(pass) = scan.pass.take() else { return };
        if !was_asked {
            return;
        }
        if let Some(next) = scan.next.get_mut(pass) {
            *next += 1;
        }
        drop(scan);
        self.go_on(now_ns());
    }

    /// This node drains: it goes over no more lists.
    pub(super) fn stop(&self) {
        self.has_stopped.store(true, Ordering::Relaxed);
    }

    fn lease(self: &Arc<Self>, interval: u64, number: u32) {
        if number >= LISTS_MAX {
            return self.passed(true);
        }
        let own = Arc::clone(self);
        let on_answer = Box::new(move |answer: &StoreAnswer| {
            match answer {
                StoreAnswer::Stored => own.read(interval, number),
                StoreAnswer::Exists => own.lease(interval, number + 1),
                answer => own.passed(!matches!(answer, StoreAnswer::Unknown)),
            }
            true
        });
        let lease = (Arc::default(), LEASE);
        let asked = self.broker.add(&lease_key(interval, number), lease, self.timeout, on_answer);
        if asked.is_err() {
            self.passed(false);
        }
    }

    fn read(self: &Arc<Self>, interval: u64, number: u32) {
        let own = Arc::clone(self);
        let on_answer = Box::new(move |answer: &StoreAnswer| {
            match answer {
                StoreAnswer::Found(list) => {
                    let opened = own.sealer.as_ref().and_then(|sealer| sealer.open(list));
                    // Of another secret or version: it is left to those who can read it.
                    let sids = opened.and_then(|list| decode(&list)).unwrap_or_default();
                    own.take(Leased { interval, number, sids, failed: false });
                }
                answer => own.passed(!matches!(answer, StoreAnswer::Unknown)),
            }
            true
        });
        if self.broker.read(&list_key(interval, number), self.timeout, on_answer).is_err() {
            self.passed(false);
        }
    }

    /// Takes the sessions of a list, as many as there is room for calls.
    fn take(self: &Arc<Self>, mut leased: Leased) {
        if leased.sids.is_empty() {
            return self.done(&leased);
        }
        let room = self.calls.disconnect_room();
        let room = if room.bytes == 0 { 0 } else { room.calls };
        if room == 0 {
            lock(&self.scan).waiting = Some(leased);
            return;
        }
        let portion = leased.sids.split_off(leased.sids.len().saturating_sub(room));
        let taking = Arc::new(Taking {
            unanswered: AtomicUsize::new(portion.len()),
            failed: AtomicBool::new(false),
            rest: Mutex::new(Some(leased)),
        });
        for sid in portion {
            let Some(key) = SessionKey::of(&sid) else {
                self.taken(&taking, false);
                continue;
            };
            let (name, own, of) = (store_key(&key), Arc::clone(self), Arc::clone(&taking));
            let on_answer = Box::new(move |answer: &StoreAnswer| {
                if let StoreAnswer::Taken(value) = answer {
                    own.tell(&key, value);
                }
                own.taken(&of, matches!(answer, StoreAnswer::Taken(_) | StoreAnswer::Missing));
                true
            });
            if self.broker.store(&name, StoreAction::Take, self.timeout, on_answer).is_err() {
                self.taken(&taking, false);
            }
        }
    }

    fn tell(&self, key: &SessionKey, value: &[u8]) {
        let Some(opened) = key.open(value) else { return };
        if let Some(app) = opened.session.app.filter(|app| app.reports_end) {
            self.told.fetch_add(1, Ordering::Relaxed);
            self.calls.submit_disconnect(now_ns(), ConnId::from_u64(0), app.disconnect());
        }
    }

    /// The store has answered for a session of a list, or could not.
    fn taken(self: &Arc<Self>, taking: &Arc<Taking>, answered: bool) {
        taking.failed.fetch_or(!answered, Ordering::Relaxed);
        if taking.unanswered.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(mut leased) = lock(&taking.rest).take()
        {
            leased.failed |= taking.failed.load(Ordering::Relaxed);
            self.take(leased);
        }
    }

    /// A list is gone over: nobody needs to do so again, unless the store did not answer for all of it.
    fn done(self: &Arc<Self>, leased: &Leased) {
        let Leased { interval, number, failed, .. } = *leased;
        if !failed {
            let kept = StoreAction::Put(Arc::default(), 2 * TAKEN_BACK_WITHIN);
            let on_answer = Box::new(|_: &StoreAnswer| true);
            // Otherwise it is gone over in vain.
            let _ = self.broker.store(&lease_key(interval, number), kept, self.timeout, on_answer);
        }
        self.lease(interval, number + 1);
    }
}

/// The ids, each after its length.
fn encode(sids: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    for sid in sids {
        if let Ok(length) = u8::try_from(sid.len()) {
            out.push(length);
            out.extend_from_slice(sid.as_bytes());
        }
    }
    out
}

fn decode(mut list: &[u8]) -> Option<Vec<String>> {
    let mut sids = Vec::new();
    while let Some((length, rest)) = list.split_first() {
        let (sid, rest) = rest.split_at_checked(usize::from(*length))?;
        sids.push(str::from_utf8(sid).ok()?.to_owned());
        list = rest;
    }
    (sids.len() <= LIST_SESSIONS).then_some(sids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive_the_way_and_others_are_refused() {
        let sids: Vec<String> = (0..LIST_SESSIONS).map(|number| format!("{number:048x}")).collect();
        let list = encode(&sids);
        assert_eq!(decode(&list), Some(sids.clone()));
        assert_eq!(decode(&[]), Some(Vec::new()));
        assert_eq!(decode(&list[..list.len() - 1]), None);
        assert_eq!(decode(&[&list[..], b"\x01x"].concat()), None, "too many");
        assert_eq!(decode(b"\x01\xff"), None);
        let sealer = |key: &[u8]| Sealer::of(key, b"x").unwrap();
        let sealed = sealer(b"one").seal(list.clone()).unwrap();
        assert_eq!(sealer(b"one").open(&sealed), Some(list));
        assert_eq!(sealer(b"other").open(&sealed), None);
        assert!(!sealed.windows(8).any(|bytes| bytes == b"00000000"));
    }
}
