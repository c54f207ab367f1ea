//! [`ErrorCounts`]: answers of an upstream and how many of them were 5xx, if its pool ejects upstreams by
//! that share. Workers count; the control plane judges ([`crate::health`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// When an upstream is ejected because of its 5xx answers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ErrorEjection {
    /// Percentage of 5xx among the answers; 0 disables it.
    pub percent: u8,
    /// The time over which answers are counted.
    pub window: Duration,
    /// Minimum number of answers in the window; fewer are not judged.
    pub answers: u32,
    /// Duration of the first ejection; it doubles with each further one in a row.
    pub first: Duration,
    /// The longest duration.
    pub longest: Duration,
}

impl Default for ErrorEjection {
    fn default() -> Self {
        ErrorEjection {
            percent: 0,
            window: Duration::from_secs(10),
            answers: 20,
            first: Duration::from_secs(30),
            longest: Duration::from_secs(300),
        }
    }
}

/// The counts of one upstream.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    counting: AtomicBool,
    answers: AtomicU64,
    errors: AtomicU64,
    ejections: AtomicU64,
    ejected_until_ns: AtomicU64,
}

impl ErrorCounts {
    /// Counts an answer, if its pool ejects by 5xx.
    pub(crate) fn count(&self, status: u16) {
        if self.counting.load(Ordering::Relaxed) {
            self.answers.fetch_add(1, Ordering::Relaxed);
            self.errors.fetch_add(u64::from((500..=599).contains(&status)), Ordering::Relaxed);
        }
    }

    /// Begins or ends counting. Without it no ejection remains.
    pub(crate) fn set_counting(&self, counting: bool) {
        self.counting.store(counting, Ordering::Relaxed);
        if !counting {
            self.ejected_until_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Answers, and 5xx among them.
    pub(crate) fn counts(&self) -> (u64, u64) {
        // Errors first: they are counted last, and must not exceed the answers.
        let errors = self.errors.load(Ordering::Relaxed);
        (self.answers.load(Ordering::Relaxed).max(errors), errors)
    }

    /// Times it was ejected.
    pub(crate) fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// When its ejection ends or has ended.
    pub(crate) fn ejected_until_ns(&self) -> u64 {
        self.ejected_until_ns.load(Ordering::Relaxed)
    }

    pub(super) fn eject(&self, until_ns: u64) {
        self.ejected_until_ns.store(until_ns, Ordering::Relaxed);
        self.ejections.fetch_add(1, Ordering::Relaxed);
    }
}
