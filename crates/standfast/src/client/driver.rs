//! [`Driver`]: a worker of clients. Its owner calls it, turn by turn.

use std::io;
use std::time::Duration;

use engine::sys::linux::Linux;
use engine::sys::process;
use engine::{Core, Remote, SLOTS_MAX, Turn, Wake, Worker};

use super::connect::Checked;
use super::resolver::Resolver;
use super::worker::{ClientPost, ClientWorker, Connection};
use super::{ClientHandler, ClientRemote, Lost};
use crate::limits::Classes;
use crate::{CloseCode, Limits};

/// A wake-up descriptor, open as long as any thread may write to it.
struct WakeByDescriptor(i32);

impl Wake for WakeByDescriptor {
    fn wake(&self) {
        process::wake(self.0);
    }
}

impl Drop for WakeByDescriptor {
    fn drop(&mut self) {
        process::close(self.0);
    }
}

pub(super) struct Driver<H: ClientHandler> {
    worker: Worker<Linux, ClientWorker<H>>,
}

impl<H: ClientHandler> Driver<H> {
    pub(super) fn new(limits: &Limits, resolver: Resolver) -> io::Result<Self> {
        let wake = process::wake_descriptor()?;
        let remote = Remote::new(vec![Box::new(WakeByDescriptor(wake))], limits.mailbox_bytes);
        let kernel = Linux::new(Some(wake))?;
        let limits = limits.of_engine(limits.message_bytes, Classes::new(&[], limits));
        let handler = ClientWorker::new(resolver);
        let worker = Worker::new(kernel, 0, limits, remote, &[], SLOTS_MAX, handler)?;
        Ok(Driver { worker })
    }

    pub(super) fn core(&mut self) -> &mut Core<Linux, ClientWorker<H>> {
        self.worker.parts().1
    }

    pub(super) fn remote(&mut self) -> Remote<ClientPost> {
        self.core().remote().clone()
    }

    /// Begins a connection, the only one of this driver.
    pub(super) fn begin(&mut self, checked: Checked, handler: H) -> ClientRemote {
        let remote = ClientRemote { workers: self.remote(), number: 1 };
        let connection = Connection::new(checked, handler, remote.clone());
        let (worker, core) = self.worker.parts();
        worker.begin(core.now_ns(), connection);
        // The first turn connects.
        let _ = self.worker.turn(Some(Duration::ZERO));
        remote
    }

    /// Waits for something to do, and does it. False when the worker has ended.
    pub(super) fn turn(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        Ok(self.worker.turn(timeout)? == Turn::Running)
    }

    /// Closes the connection of [`Driver::begin`], whatever the mailbox has room for.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) {
        let (worker, core) = self.worker.parts();
        worker.close(core, 1, code, reason);
    }

    /// How the connection has ended, if it is not opened again.
    pub(super) fn take_ended(&mut self) -> Option<Lost> {
        self.worker.parts().0.take_ended()
    }
}

/// Sockets belong to the worker: they are closed with it.
impl<H: ClientHandler> Drop for Driver<H> {
    fn drop(&mut self) {
        let core = self.core();
        for slot in 0..core.slots() {
            if let Some(id) = core.id_at(slot) {
                core.abort(id);
            }
        }
        let _ = self.worker.turn(Some(Duration::ZERO));
    }
}
