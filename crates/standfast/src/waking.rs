//! [`Waking`]: how workers wake the futures of other threads.

use std::sync::mpsc::Sender;
use std::task::Waker;

/// A waker may write to a descriptor, whose number means something else in a private descriptor table:
/// workers with such tables leave waking to a thread that shares the table of the process.
#[derive(Clone, Debug)]
pub(crate) enum Waking {
    Here,
    #[expect(dead_code, reason = "for workers with private descriptor tables")]
    Thread(Sender<Waker>),
}

impl Waking {
    pub(crate) fn wake(&self, waker: Waker) {
        match self {
            Waking::Here => waker.wake(),
            // It ends with the server only.
            Waking::Thread(thread) => drop(thread.send(waker)),
        }
    }
}
