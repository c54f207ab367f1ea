//! A [`Worker`] without a thread of its own, which another event loop drives.
//!
//! The loop watches [`Worker::poll_fd`], calls [`Worker::turn`] when it is readable and at
//! [`Worker::deadline`], and may act on connections between two turns by [`Worker::act`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use crate::accept::Listener;
use crate::conn::Mode;
use crate::limits::TAIL_BYTES_MAX;
use crate::parked::LISTENERS_MAX;
use crate::sys::linux::Linux;
use crate::sys::{Fd, process};
use crate::workers::WakeByDescriptor;
use crate::{Closed, ConnId, Core, Handler, Limits, Remote, Sys, Wake, Worker};

impl<H: Handler> Worker<Linux, H> {
    /// A worker that is the only one of its server, without listeners. `handler` gets the way to it from
    /// other threads.
    ///
    /// # Errors
    /// No descriptors for the wake-up or the epoll instance (`EMFILE`).
    pub fn embedded(
        limits: Limits,
        capacity: u32,
        handler: impl FnOnce(&Remote<H::Post>) -> H,
    ) -> io::Result<Self> {
        let wake = process::wake_descriptor()?;
        let waker: Box<dyn Wake> = Box::new(WakeByDescriptor(wake));
        let remote = Remote::new(vec![waker], limits.mailbox_bytes);
        let handler = handler(&remote);
        let sys = Linux::new(Some(wake))?;
        let mut worker = Worker::new(sys, 0, limits, remote, &[], capacity, handler)?;
        // Those of the next worker with its number are others.
        worker.core.begin_ids_at_random();
        Ok(worker)
    }
}

impl<H: Handler> AsFd for Worker<Linux, H> {
    /// As [`Worker::poll_fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.sys.as_fd()
    }
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// The descriptor that other threads wake it by.
    #[must_use]
    pub fn wake_fd(&self) -> Option<i32> {
        self.core.sys.wake_fd().map(|fd| fd.number())
    }

    /// Handler and core between two turns, at the time of the clock. The next turn is due at once.
    pub fn act(&mut self) -> (&mut H, &mut Core<S, H>) {
        self.core.now_ns = self.core.sys.now_ns();
        self.core.tick = self.core.timers.tick(self.core.now_ns);
        self.handler_wants_ns = Some(self.core.now_ns);
        (&mut self.handler, &mut self.core)
    }

    /// Accepts from a further listener, from the next turn on. Returns its index; `None` if there are
    /// [`LISTENERS_MAX`] already.
    pub fn add_listener(&mut self, number: i32) -> Option<usize> {
        let listener = Listener::new(number, &self.core.sys);
        let free = self.listeners.iter().position(Listener::is_removed);
        let index = free.unwrap_or(self.listeners.len());
        match self.listeners.get_mut(index) {
            Some(place) => *place = listener,
            None if index < LISTENERS_MAX => self.listeners.push(listener),
            None => return None,
        }
        self.core.remote.give_listener(usize::from(self.core.index), index);
        Some(index)
    }

    /// Ends every connection at once, and reports them to the handler.
    pub fn end_all(&mut self) {
        for slot in 0..self.core.slab.end() {
            if self.core.id_at(slot).is_some() {
                self.core.end(slot, Closed::Aborted);
            }
        }
        while self.reap() {}
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Takes over a connection that another server of this program has accepted: a stream socket that does not
    /// block, and what was read from it already, which the next turn processes as if it had just arrived.
    /// [`Handler::arrived`] is not called. TLS begins as with connections of listeners. Without room, or with more than
    /// 80 KiB, or with any bytes where TLS begins, it closes the descriptor and returns `None`.
    pub fn adopt(&mut self, socket: OwnedFd, read: &[u8]) -> Option<ConnId> {
        let bytes_max = if self.tls_server.is_some() { 0 } else { TAIL_BYTES_MAX };
        if self.is_at_capacity() || read.len() > bytes_max {
            return None;
        }
        self.counters().accepted.add(1);
        let slot = self.insert(Fd::new(socket.into_raw_fd()), Mode::Http);
        let id = self.id_at(slot)?;
        if !read.is_empty() {
            let mut tail = self.take_buffer_to_keep(read.len());
            tail.extend_from_slice(read);
            self.live_mut(id)?.cold().tail = tail;
        }
        self.begin_tls(slot);
        // Before it is watched: what was read comes before what the kernel has.
        self.resume_soon(slot);
        self.arm_handshake(slot);
        self.watch_first(slot);
        self.live(id).map(|_| id)
    }
}
