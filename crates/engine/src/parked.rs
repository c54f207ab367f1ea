//! [`ParkedListeners`]: the listeners that no worker accepts from, because none has room.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Listeners of a process at most: every worker's table holds all of them. Enough for 128 workers
/// that accept on eight addresses.
pub const LISTENERS_MAX: usize = 1024;

const WORD_BITS: usize = u64::BITS as usize;

/// A bit per listener. The worker that clears a bit owns that listener from then on.
///
/// A worker that inserts a listener must look afterwards, behind a `SeqCst` fence, whether a worker
/// has room; one that gets room must look here behind such a fence. Then at least one of two that
/// do so at the same time sees the other.
#[derive(Debug)]
pub(crate) struct ParkedListeners {
    words: [AtomicU64; LISTENERS_MAX / WORD_BITS],
    /// How many bits are set, a moment late.
    count: AtomicUsize,
}

impl Default for ParkedListeners {
    fn default() -> Self {
        ParkedListeners {
            words: [const { AtomicU64::new(0) }; LISTENERS_MAX / WORD_BITS],
            count: AtomicUsize::new(0),
        }
    }
}

impl ParkedListeners {
    fn word(&self, index: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.words.get(index / WORD_BITS)?, 1 << (index % WORD_BITS)))
    }

    /// Whether one of the first `listeners` is parked. One load per 64 of them.
    pub(crate) fn any(&self, listeners: usize) -> bool {
        let words = self.words.iter().take(listeners.div_ceil(WORD_BITS));
        words.into_iter().any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Parks a listener.
    pub(crate) fn insert(&self, index: usize) {
        if let Some((word, bit)) = self.word(index)
            && word.fetch_or(bit, Ordering::AcqRel) & bit == 0
        {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a listener out; whether it was parked, and now belongs to the caller.
    pub(crate) fn take(&self, index: usize) -> bool {
        self.word(index).is_some_and(|(word, bit)| {
            // Reading first leaves the cache line shared in the usual case.
            let taken = word.load(Ordering::Acquire) & bit != 0
                && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
            if taken {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            taken
        })
    }

    /// Whether a listener was parked a moment ago: one load, for a hint only.
    pub(crate) fn seems_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_its_own_bit() {
        let parked = ParkedListeners::default();
        for index in 0..LISTENERS_MAX {
            assert!(!parked.take(index), "{index}");
            parked.insert(index);
            assert!(parked.any(LISTENERS_MAX) && parked.any(index + 1), "{index}");
            assert!(!parked.take((index + 1) % LISTENERS_MAX), "{index}");
            assert!(parked.take(index) && !parked.take(index), "{index}");
        }
        assert!(!parked.seems_any());
        parked.insert(100);
        parked.insert(100);
        assert!(parked.seems_any());
        assert!(!parked.any(64) && parked.any(128), "only the words of this many listeners");
        parked.insert(LISTENERS_MAX);
        assert!(!parked.take(LISTENERS_MAX), "there is no such listener");
        assert!(parked.take(100) && !parked.seems_any());
    }

    #[test]
    fn a_parked_listener_is_taken_by_one_thread_only() {
        const ROUNDS: usize = 2_000;
        let parked = ParkedListeners::default();
        let (taken, inserted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < ROUNDS {
                        for index in [0, 63, 64, 255] {
                            taken.fetch_add(usize::from(parked.take(index)), Ordering::Relaxed);
                        }
                        std::thread::yield_now();
                    }
                });
            }
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let index = [0, 63, 64, 255][round % 4];
                    while parked
                        .word(index)
                        .is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
                    {
                        std::thread::yield_now();
                    }
                    parked.insert(index);
                    inserted.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        assert_eq!(taken.into_inner(), inserted.into_inner());
        assert!(!parked.any(LISTENERS_MAX));
    }
}
