//! [`Following`]: threads of the control plane that wait until a topic is followed.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::now;

/// Those that wait.
#[derive(Default)]
pub(super) struct Following {
    waiting: Mutex<usize>,
    changed: Condvar,
}

impl Following {
    /// A topic was confirmed or loaded.
    pub(super) fn changed(&self) {
        if *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until this holds, which changes with [`Following::changed`]. False if it does not in time.
    pub(super) fn wait(&self, until: Instant, holds: impl Fn() -> bool) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting += 1;
        let left = until.saturating_duration_since(now());
        let (mut waiting, result) = self
            .changed
            .wait_timeout_while(waiting, left, |_| !holds())
            .unwrap_or_else(PoisonError::into_inner);
        *waiting -= 1;
        !result.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wait_ends_when_it_holds_or_with_its_time() {
        let (following, followed) = (Following::default(), AtomicBool::new(false));
        let is = || followed.load(Ordering::SeqCst);
        assert!(!following.wait(now(), is));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| following.wait(now() + Duration::from_secs(60), is));
            followed.store(true, Ordering::SeqCst);
            following.changed();
            assert!(waits.join().unwrap());
        });
        assert!(following.wait(now(), is), "it is not too late for what holds already");
        assert_eq!(*following.waiting.lock().unwrap(), 0);
    }
}
