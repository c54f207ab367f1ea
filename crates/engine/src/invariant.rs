//! Broken invariants: states that only a mistake of this project can lead to.
//!
//! A debug build panics where one is found, so tests, simulations and fuzzing fail. A release build
//! counts it, keeps the first 64 locations and goes on: one lost message is better
//! than a process that ends with a million sockets. The control plane shows the count as
//! `invariant_broken_total` and logs each location once.
//!
//! Not for input: what a peer, a user or the operating system can cause is an error.

use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many locations are kept for the log. Others are only counted.
const SITES_MAX: usize = 64;

/// What does not hold when a slot that is being worked on is empty: connections leave the slab only
/// when they are reaped, never while one of them is read, written or ended.
pub(crate) const SLOT_IN_USE: &str = "a slot being worked on holds a connection";

static TOTAL: AtomicU64 = AtomicU64::new(0);
static SITES: Mutex<Vec<Site>> = Mutex::new(Vec::new());

/// Where an invariant was broken first, and which.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BrokenInvariant {
    /// What should have held.
    pub what: &'static str,
    /// The location in the source.
    pub location: &'static Location<'static>,
}

struct Site {
    broken: BrokenInvariant,
    reported: bool,
}

/// Counts a broken invariant, and panics in debug builds. Call it where the state cannot be, then
/// return: `let Some(x) = … else { return invariant::broken("a slot in use has a connection") };`
#[cold]
#[track_caller]
pub fn broken(what: &'static str) {
    record(what, Location::caller());
    debug_assert!(false, "invariant broken: {what}");
}

/// How many were broken since the process began.
#[must_use]
pub fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

/// The locations that were not returned before.
#[must_use]
pub fn take_unreported() -> Vec<BrokenInvariant> {
    if total() == 0 {
        return Vec::new();
    }
    let mut sites = SITES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let unreported = sites.iter_mut().filter(|site| !site.reported);
    unreported
        .map(|site| {
            site.reported = true;
            site.broken
        })
        .collect()
}

fn record(what: &'static str, location: &'static Location<'static>) {
    TOTAL.fetch_add(1, Ordering::Relaxed);
    let mut sites = SITES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if sites.len() < SITES_MAX && sites.iter().all(|site| site.broken.location != location) {
        sites.push(Site { broken: BrokenInvariant { what, location }, reported: false });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{MutexGuard, PoisonError};

    use super::*;

    /// The counter belongs to the process, and tests run at the same time.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn each_site_is_counted_every_time_and_reported_once() {
        let _alone = alone();
        let before = total();
        for _ in 0..3 {
            record("one", Location::caller());
        }
        assert_eq!(total() - before, 3);
        let reported = take_unreported();
        assert_eq!(reported.iter().filter(|broken| broken.what == "one").count(), 1);
        assert!(take_unreported().iter().all(|broken| broken.what != "one"));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "invariant broken: two and two are four")]
    fn debug_builds_panic() {
        let _alone = alone();
        broken("two and two are four");
    }
}
