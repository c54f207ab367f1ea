//! [`Waking`]: how workers wake the futures of other threads.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::task::Waker;

/// A waker may write to a descriptor, whose number means something else in a private descriptor table:
/// workers with such tables leave waking to a thread that shares the table of the process.
#[derive(Clone, Debug)]
pub(crate) enum Waking {
    Here,
    Thread(Sender<Waker>),
}

impl Waking {
    /// Starts a thread that wakes, for workers with private descriptor tables. It ends with the last handle
    /// to the server.
    pub(crate) fn by_thread() -> io::Result<Waking> {
        let (thread, wakers) = channel::<Waker>();
        let wake = move || wakers.into_iter().for_each(Waker::wake);
        std::thread::Builder::new().name("wakers".into()).stack_size(128 * 1024).spawn(wake)?;
        Ok(Waking::Thread(thread))
    }

    pub(crate) fn wake(&self, waker: Waker) {
        match self {
            Waking::Here => waker.wake(),
            // It ends with the server only.
            Waking::Thread(thread) => drop(thread.send(waker)),
        }
    }
}
