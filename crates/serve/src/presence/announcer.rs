//! The thread that tells subscribers who has joined and left, and the alarm that wakes it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use engine::Remote;
use engine::sys::process::now_ns;
use topics::Publication;

use crate::handler::Post;
use crate::shared::Shared;

/// Longest sleep: then it looks whether the server still exists.
const SLEEP_MAX: Duration = Duration::from_secs(5);

/// When the thread is to wake. Workers ring it without a lock, unless it has to wake earlier than planned.
#[derive(Default)]
pub(crate) struct Alarm {
    next_ns: AtomicU64,
    changed: Mutex<()>,
    wakes: Condvar,
}

impl Alarm {
    /// Wakes the thread at this time.
    pub(super) fn ring_at(&self, next_ns: u64) {
        if next_ns >= self.next_ns.load(Ordering::SeqCst) {
            return;
        }
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.next_ns.fetch_min(next_ns, Ordering::SeqCst) > next_ns {
            drop(changed);
            self.wakes.notify_one();
        }
    }

    /// Notes all times from now on.
    fn begin(&self) {
        self.next_ns.store(u64::MAX, Ordering::SeqCst);
    }

    /// Sleeps until `next_ns`, or until an earlier time that is rung meanwhile; [`SLEEP_MAX`] at most.
    fn sleep(&self, next_ns: u64) {
        let until_ns = now_ns().saturating_add(SLEEP_MAX.as_nanos() as u64);
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        self.next_ns.fetch_min(next_ns.min(until_ns), Ordering::SeqCst);
        loop {
            let left_ns = self.next_ns.load(Ordering::SeqCst).saturating_sub(now_ns());
            if left_ns == 0 {
                return;
            }
            let left = Duration::from_nanos(left_ns);
            let woken = self.wakes.wait_timeout(changed, left);
            changed = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Starts the thread. It ends with the server.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(shared: &Arc<Shared>, remote: Remote<Post>) -> io::Result<()> {
    let (shared, kind): (Weak<Shared>, Arc<str>) = (Arc::downgrade(shared), "presence".into());
    let run = move || {
        while let Some(shared) = shared.upgrade() {
            let Some(presence) = shared.presence.clone() else { return };
            presence.alarm.begin();
            let next_ns = presence.turn(now_ns(), |topic, json| {
                let mut publication = Publication::new(Arc::clone(topic), json.into(), false);
                publication.kind = Some(Arc::clone(&kind));
                (publication.transient, publication.typed_only) = (true, true);
                let publication = Arc::new(publication.accepted(now_ns()));
                shared.directory.publish(&remote, &publication).is_ok()
            });
            drop(shared);
            presence.alarm.sleep(next_ns);
        }
    };
    std::thread::Builder::new().name("presence".to_owned()).spawn(run).map(drop)
}
