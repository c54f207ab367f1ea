//! Requests to end sessions that lie in the store. The node that gets one leaves a mark by the identifiers there,
//! for as long as a session that was stored before it can be resumed, and a node that takes a session looks for it:
//! the node that has stored the session may have ended, or have missed the request.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use brokers::{Broker, StoreAction, StoreAnswer, Unavailable};

use super::shared::TAKEN_BACK_WITHIN;
use super::{ENDED_NS, SharedSessions, StoredSession, StoredSessions};
use crate::broadcast::{Disconnect, sid_of};
use crate::rails_identity::rails_name;

/// How long after a request sessions are stored that it ends as well, in milliseconds. Clocks of nodes may differ by
/// so much.
const ENDED_MS: u64 = ENDED_NS / 1_000_000;

/// Called with whether a session was ended; `None` if the store did not tell. False to be called again soon.
pub(crate) type OnMarks = Arc<dyn Fn(Option<bool>) -> bool + Send + Sync>;

impl SharedSessions {
    /// The key of a mark, which does not tell the identifiers.
    fn mark_key(&self, rails: bool, identifiers: &str) -> String {
        let kind: &[u8] =
            if rails { b"standfast rails name\0" } else { b"standfast identifiers\0" };
        let tag = hmac::sign(&self.nodes_key, &[kind, identifiers.as_bytes()].concat());
        tag.as_ref()
            .iter()
            .take(16)
            .fold("s:x:".to_owned(), |key, byte| key + &format!("{byte:02x}"))
    }

    /// Finds out whether a session that was stored at this Unix time was ended by a request. False if the store cannot
    /// be asked.
    pub(crate) fn ask_marks(
        &self,
        session: &StoredSession,
        stored_ms: u64,
        on_marks: OnMarks,
    ) -> bool {
        let Some(identity) = &session.identity else { return on_marks(Some(false)) };
        let rails = Some(identity).filter(|_| self.rails_names).and_then(|own| rails_name(own));
        let keys = rails.iter().map(|name| self.mark_key(true, name));
        let keys = keys.chain([self.mark_key(false, identity)]).collect();
        let marks = Marks { broker: Arc::clone(&self.broker), within: self.timeout, stored_ms };
        marks.ask(keys, on_marks).is_ok()
    }
}

/// What is looked for.
#[derive(Clone)]
struct Marks {
    broker: Arc<Broker>,
    within: Duration,
    stored_ms: u64,
}

impl Marks {
    /// Reads one mark after the other, the last one first.
    fn ask(self, mut keys: Vec<String>, on_marks: OnMarks) -> Result<(), Unavailable> {
        let Some(key) = keys.pop() else {
            on_marks(Some(false));
            return Ok(());
        };
        let (broker, within) = (Arc::clone(&self.broker), self.within);
        let on_answer = Box::new(move |answer: &StoreAnswer| match answer {
            StoreAnswer::Found(mark) if is_ended(mark, self.stored_ms) => on_marks(Some(true)),
            StoreAnswer::Found(_) | StoreAnswer::Missing if !keys.is_empty() => {
                let asked = self.clone().ask(keys.clone(), Arc::clone(&on_marks));
                asked.is_ok() || on_marks(None)
            }
            // A broker without marks has none.
            StoreAnswer::Found(_) | StoreAnswer::Missing | StoreAnswer::Unsupported => {
                on_marks(Some(false))
            }
            _ => on_marks(None),
        });
        broker.read(&key, within, on_answer)
    }
}

fn mark(now_ms: u64) -> Arc<[u8]> {
    now_ms.to_le_bytes().into()
}

/// Whether a mark ends a session that was stored at this time. One that cannot be read does.
fn is_ended(mark: &[u8], stored_ms: u64) -> bool {
    match mark.try_into().map(u64::from_le_bytes) {
        Ok(marked_ms) => stored_ms <= marked_ms.saturating_add(ENDED_MS),
        Err(_) => true,
    }
}

impl StoredSessions {
    /// Ends the sessions of a request that lie in the store. `told` is called with whether the store knows of the
    /// request; false if it cannot be told.
    pub(crate) fn end_in_store(
        self: &Arc<Self>,
        request: &Disconnect,
        now_ns: u64,
        told: impl Fn(bool) + Send + 'static,
    ) -> bool {
        let Some(shared) = self.shared() else {
            told(true);
            return true;
        };
        if let Some(sid) = sid_of(&request.identifiers).filter(|_| !request.rails_name) {
            let (own, key) = (Arc::clone(self), sid.clone());
            let on_answer = Box::new(move |answer: &StoreAnswer| {
                if let StoreAnswer::Taken(value) = answer {
                    own.end_taken(&key, value);
                }
                told(*answer != StoreAnswer::Unknown);
                true
            });
            return shared.take(&sid, on_answer);
        }
        let now_ms = shared.clock.unix_ms(now_ns);
        let ttl = Duration::from_nanos(self.age_ns).saturating_add(TAKEN_BACK_WITHIN);
        let key = shared.mark_key(request.rails_name, &request.identifiers);
        let on_answer = Box::new(move |answer: &StoreAnswer| {
            // What it refuses it has no sessions of, either.
            told(*answer != StoreAnswer::Unknown);
            true
        });
        let put = StoreAction::Put(mark(now_ms), ttl);
        shared.broker.store(&key, put, shared.timeout, on_answer).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_ends_what_was_stored_before_it_and_a_moment_later() {
        for (stored_ms, ended) in [(0, true), (70_000, true), (80_000, true), (80_001, false)] {
            assert_eq!(is_ended(&mark(70_000), stored_ms), ended, "{stored_ms}");
        }
        assert!(is_ended(b"", 1) && is_ended(&[0; 9], 1));
        assert!(is_ended(&mark(u64::MAX), 1));
    }
}
