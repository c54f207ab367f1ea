//! [`MessageIds`]: which message ids were used within 12 hours.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hashbrown::HashTable;

/// How long an id is remembered, in seconds.
pub(crate) const REMEMBERED_SECONDS: u32 = 12 * 3_600;

/// The message ids of the last 12 hours, as 64-bit hashes: at most about 44 bytes each.
pub(crate) struct MessageIds {
    seen: Mutex<Seen>,
    /// Ids that are remembered at most; beyond it the oldest are forgotten early.
    limit: usize,
    hasher: RandomState,
    duplicates: AtomicU64,
    forgotten: AtomicU64,
}

#[derive(Default)]
struct Seen {
    hashes: HashTable<u64>,
    /// The same, oldest first, and when each is forgotten, in seconds of the clock.
    order: VecDeque<u64>,
    until: VecDeque<u32>,
}

impl Seen {
    fn forget_oldest(&mut self) {
        self.until.pop_front();
        if let Some(hash) = self.order.pop_front()
            && let Ok(entry) = self.hashes.find_entry(hash, |other| *other == hash)
        {
            entry.remove();
        }
    }
}

impl MessageIds {
    pub(crate) fn new(limit: usize) -> Self {
        MessageIds {
            seen: Mutex::default(),
            limit,
            hasher: RandomState::new(),
            duplicates: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Remembers an id; returns `false` if it was used within 12 hours. An empty id is always new.
    pub(crate) fn is_new(&self, id: &str, now_seconds: u32) -> bool {
        if id.is_empty() || self.limit == 0 {
            return true;
        }
        let hash = self.hasher.hash_one(id);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        while seen.until.front().is_some_and(|until| *until <= now_seconds) {
            seen.forget_oldest();
        }
        if seen.hashes.find(hash, |other| *other == hash).is_some() {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if seen.order.len() >= self.limit {
            seen.forget_oldest();
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        seen.hashes.insert_unique(hash, hash, |hash| *hash);
        seen.order.push_back(hash);
        seen.until.push_back(now_seconds.saturating_add(REMEMBERED_SECONDS));
        true
    }

    /// Ids that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).order.len()
    }

    /// Messages that were refused because their id was used before.
    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Ids that were forgotten before their time.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_new_again_after_twelve_hours() {
        let ids = MessageIds::new(10);
        assert!(ids.is_new("a", 5));
        assert!(!ids.is_new("a", 5) && ids.is_new("b", 6));
        assert!(!ids.is_new("a", 4 + REMEMBERED_SECONDS));
        assert!(ids.is_new("a", 5 + REMEMBERED_SECONDS));
        assert!(!ids.is_new("b", 5 + REMEMBERED_SECONDS));
        assert_eq!((ids.len(), ids.duplicates(), ids.forgotten()), (2, 3, 0));
        assert!(ids.is_new("", 0) && ids.is_new("", 0));
    }

    #[test]
    fn beyond_the_limit_the_oldest_are_forgotten() {
        let ids = MessageIds::new(100);
        for number in 0..1_000 {
            assert!(ids.is_new(&number.to_string(), number));
        }
        assert_eq!((ids.len(), ids.forgotten()), (100, 900));
        assert!(!ids.is_new("900", 1_000) && ids.is_new("899", 1_000));
    }
}
