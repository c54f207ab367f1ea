//! [`Bell`]: wakes the thread of the connections. A worker must wake no tokio task, as the descriptor of the
//! runtime is not in its table; so it wakes a thread that does nothing but pass that on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Rung by any thread.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    waits: Mutex<()>,
    rings: Condvar,
}

impl Bell {
    /// Wakes the thread, unless it is about to look anyway.
    pub(crate) fn ring(&self) {
        if self.rung.swap(true, Ordering::SeqCst) {
            return;
        }
        drop(self.waits.lock().unwrap_or_else(PoisonError::into_inner));
        self.rings.notify_one();
    }

    /// Waits until it is rung.
    fn wait(&self) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.rung.swap(false, Ordering::SeqCst) {
            waits = self.rings.wait(waits).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts the thread that calls `wake` after each ring.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        self: &Arc<Self>,
        wake: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<()> {
        let bell = Arc::clone(self);
        let run = move || {
            loop {
                bell.wait();
                if !wake() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("pubsub queue".to_owned()).spawn(run).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn no_ring_is_missed() {
        let (bell, (told, rings)) = (Arc::new(Bell::default()), sync_channel(0));
        bell.ring();
        bell.start(move || told.send(()).is_ok()).unwrap();
        rings.recv().unwrap();
        for _ in 0..1_000 {
            bell.ring();
            rings.recv().unwrap();
        }
        drop(rings);
        bell.ring();
    }
}
