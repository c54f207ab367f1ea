//! Accepting connections: a budget per turn, a listener that pauses when the kernel is out of
//! resources, and one that a worker at capacity passes on so that no queued connection is lost.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{Ordering, fence};

use crate::Handler;
use crate::accept::batch::Batch;
use crate::admission::{Client, Room};
use crate::conn::Mode;
use crate::invariant::broken;
use crate::limits::{ACCEPT_PAUSE, ACCEPTS_MIN, ACCEPTS_PER_TURN, TLS_ARRIVALS_PER_TURN};
use crate::sys::{Fd, Sys};
use crate::timers::nanoseconds;
use crate::worker::{KEY_LISTENER, Worker};

mod batch;

/// Turns' worth of connections accepted from a listener that is about to stop: as many as the
/// longest accept queue holds.
const DRAIN_ROUNDS: usize = 65_536 / ACCEPTS_PER_TURN;

/// One worker's view of a listener. All workers' tables share the socket behind it.
pub(crate) struct Listener {
    fd: Fd,
    /// This worker currently accepts from it.
    owned: bool,
    watched: bool,
    /// Other workers watch the same socket, by descriptors of their own.
    shared: bool,
    /// Paused until this time.
    paused_until_ns: Option<u64>,
    batch: Batch,
}

impl Listener {
    pub(crate) fn new(number: i32, sys: &impl Sys) -> Self {
        let fd = Fd::new(number);
        let shared = sys.is_shared(fd);
        let batch = Batch::new();
        Listener { fd, owned: false, watched: false, shared, paused_until_ns: None, batch }
    }

    fn accepts(&self) -> bool {
        self.owned && self.paused_until_ns.is_none()
    }

    /// Whether its place can be used again: see [`Worker::remove_listener`].
    pub(crate) fn is_removed(&self) -> bool {
        self.fd.number() < 0
    }
}

/// Whether the error means that the kernel may have room again later.
fn is_exhaustion(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// The listener at an index that this worker was given or watches.
#[track_caller]
fn listener_at(listeners: &mut [Listener], index: usize) -> Option<&mut Listener> {
    let listener = listeners.get_mut(index);
    if listener.is_none() {
        broken("a listener's index is one of this worker's");
    }
    listener
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Takes the listener over: from now on this worker accepts from it.
    pub(crate) fn start_listening(&mut self, index: usize) {
        let draining = self.is_draining();
        let Some(listener) = listener_at(&mut self.listeners, index) else { return };
        if listener.is_removed() {
            return;
        }
        listener.owned = true;
        listener.paused_until_ns = None;
        if draining {
            return self.stop_listening();
        }
        self.set_accepting();
        if self.is_at_capacity() {
            return self.wait_for_room(index, false);
        }
        self.watch_listener(index);
        self.accept_from(index);
    }

    /// Stops accepting for good, after accepting what is already queued. Only this worker's own
    /// listeners: each of the others is stopped by the worker that owns it.
    pub(crate) fn stop_listening(&mut self) {
        for index in 0..self.listeners.len() {
            // What a paused one has queued is accepted, too.
            let _ = self.listeners.get_mut(index).and_then(|one| one.paused_until_ns.take());
            for _ in 0..DRAIN_ROUNDS {
                if self.accept_from(index) == 0 {
                    break;
                }
            }
            self.unwatch_listener(index);
            if let Some(listener) = self.listeners.get_mut(index).filter(|l| l.owned) {
                listener.owned = false;
                listener.paused_until_ns = None;
                self.core.sys.stop_listening(listener.fd);
            }
        }
        self.set_accepting();
    }

    /// Closes a listener of a worker that is the only one of its server; clients that it has queued are reset.
    /// Its index may be used again.
    pub fn remove_listener(&mut self, index: usize) {
        self.unwatch_listener(index);
        let Some(listener) = self.listeners.get_mut(index).filter(|one| !one.is_removed()) else {
            return;
        };
        let fd = std::mem::replace(&mut listener.fd, Fd::new(-1));
        (listener.owned, listener.paused_until_ns) = (false, None);
        self.core.remote.shared.parked.take(index);
        self.core.sys.close(fd);
        self.set_accepting();
    }

    /// Accepts from a listener that epoll has reported.
    pub(crate) fn on_listener(&mut self, index: usize) {
        let taken = self.accept_from(index);
        let watches = self.listeners.get(index).is_some_and(|one| one.shared && one.watched);
        if taken > 0 && watches {
            // Otherwise a worker that is idle again gets every connection: the kernel reports it to the
            // first one that waits, in the order in which they began to watch.
            self.unwatch_listener(index);
            self.watch_listener(index);
        }
    }

    /// Accepts a batch of connections; returns how many were taken, admitted or refused. If there are
    /// more, epoll reports the listener again.
    pub(crate) fn accept_from(&mut self, index: usize) -> usize {
        let batch = self.batch_of(index);
        for taken in 0..batch {
            let Some(listener) = self.listeners.get(index).filter(|l| l.accepts()) else {
                return taken;
            };
            if self.must_wait_for_handshakes() {
                return taken;
            }
            if self.is_at_capacity() {
                // Nobody may wait behind the last one taken: epoll reports whether somebody does.
                self.wait_for_room(index, taken == 0);
                return taken;
            }
            self.core.full = false;
            let accepted = if self.core.wants_peers() {
                self.core.sys.accept_with_peer(listener.fd)
            } else {
                self.core.sys.accept(listener.fd).map(|fd| (fd, None))
            };
            match accepted {
                Ok((fd, peer)) => self.admit_or_refuse(fd, peer, self.core.listener_has_tls(index)),
                Err(error) if is_exhaustion(&error) => {
                    self.accept_failed(index, &error);
                    return taken;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(listener) = listener_at(&mut self.listeners, index) {
                        listener.batch.found_the_end(taken);
                    }
                    return taken;
                }
                // It no longer listens: another worker has stopped it for all.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.unwatch_listener(index);
                    return taken;
                }
                // The peer gave up while it was queued (ECONNABORTED), or a signal arrived: try the
                // next.
                Err(_) => {}
            }
        }
        if let Some(listener) = listener_at(&mut self.listeners, index) {
            listener.batch.was_full(batch);
        }
        batch
    }

    /// Connections to accept from a listener now. Those of this worker share a budget, so that many of
    /// them make no longer turns; of one that is about to stop, all are accepted.
    fn batch_of(&self, index: usize) -> usize {
        if self.is_draining() {
            return ACCEPTS_PER_TURN;
        }
        let budget = (ACCEPTS_PER_TURN / self.listeners_owned.max(1)).max(ACCEPTS_MIN);
        self.listeners.get(index).map_or(0, |listener| listener.batch.length().min(budget))
    }

    /// TLS handshakes under way come first: for this turn, new connections stay in the kernel's
    /// queue.
    fn must_wait_for_handshakes(&self) -> bool {
        self.core.tls_handshakes >= TLS_ARRIVALS_PER_TURN && !self.is_draining()
    }

    fn admit_or_refuse(&mut self, fd: Fd, peer: Option<IpAddr>, tls: bool) {
        match self.core.admit(peer, tls) {
            Ok(client) => self.add_accepted(fd, client, tls),
            Err(why) => self.core.refuse_connection(fd, why, tls),
        }
    }

    fn add_accepted(&mut self, fd: Fd, client: Option<Client>, tls: bool) {
        self.core.counters().accepted.add(1);
        let slot = self.core.insert(fd, Mode::Http);
        if let Some(client) = client {
            self.core.clients.insert(slot, client);
        }
        if let Some(id) = self.core.id_at(slot) {
            self.handler.arrived(&mut self.core, id);
        }
        // A PROXY header precedes TLS, unencrypted.
        if tls && !client.is_some_and(|client| client.awaits_proxy_header) {
            self.core.begin_tls(slot);
        }
        // With TCP_DEFER_ACCEPT the request has already arrived: most connections are WebSockets
        // before epoll reports them. What was posted meanwhile comes before it, in the next turn.
        if !self.mailbox().is_woken() {
            self.read(slot);
        }
        self.core.arm_handshake(slot);
        self.core.watch_first(slot);
        if self.core.dead.len() > ACCEPTS_PER_TURN {
            self.reap();
        }
    }

    pub(crate) fn is_at_capacity(&self) -> bool {
        self.core.is_at_capacity()
    }

    /// The kernel has no descriptor or memory: passes the listener to a worker with room, or pauses
    /// all listeners of this worker.
    fn accept_failed(&mut self, index: usize, error: &io::Error) {
        self.core.counters().accept_paused.add(1);
        self.unwatch_listener(index);
        // A worker without connections would never learn that there is room again.
        if error.raw_os_error() == Some(libc::EMFILE)
            && self.core.slab.live() > 0
            && !self.is_draining()
        {
            let me = usize::from(self.core.index);
            self.core.remote.shared.mailboxes[me].exhausted.store(true, Ordering::Relaxed);
            if let Some(next) = self.core.remote.worker_with_room(me) {
                if let Some(listener) = listener_at(&mut self.listeners, index) {
                    listener.owned = false;
                }
                self.set_accepting();
                return self.hand_on(next, index);
            }
        }
        // The others of this worker would fail for the same reason.
        let until_ns = self.core.now_ns + nanoseconds(ACCEPT_PAUSE);
        for index in 0..self.listeners.len() {
            if self.listeners.get(index).is_some_and(|listener| listener.owned) {
                self.unwatch_listener(index);
                self.pause_listener(index, until_ns);
            }
        }
    }

    /// At capacity: a worker with room takes over this listener. If there is none and a client
    /// waits, a connection that can gives way to it, here or on another worker.
    fn wait_for_room(&mut self, index: usize, client_waits: bool) {
        let me = usize::from(self.core.index);
        let own = !self.is_draining()
            && self.core.may_make_room()
            && self.core.remote.worker_with_room(me).is_none();
        if !own {
            return self.pass_listener_on(index);
        }
        if !client_waits {
            return self.watch_listener(index);
        }
        match self.core.make_room() {
            Room::Made => {}
            Room::Soon => {
                if !self.core.full {
                    self.core.counters().accept_full.add(1);
                }
                self.core.full = true;
                self.unwatch_listener(index);
                self.pause_listener(index, self.core.now_ns + nanoseconds(ACCEPT_PAUSE));
            }
            Room::None => {
                self.core.set_may_make_room(false);
                self.pass_listener_on(index);
            }
        }
    }

    /// At capacity: a worker with room, or else one that can make room, takes over this listener; if
    /// there is none, it is parked.
    fn pass_listener_on(&mut self, index: usize) {
        self.unwatch_listener(index);
        if let Some(listener) = listener_at(&mut self.listeners, index) {
            listener.owned = false;
        }
        self.set_accepting();
        // Clients of this listener wait for another worker, or for any if it is parked.
        self.core.full = false;
        let me = usize::from(self.core.index);
        let remote = &self.core.remote;
        match remote.worker_with_room(me).or_else(|| remote.worker_that_makes_room(me)) {
            _ if self.is_draining() => {
                if let Some(listener) = listener_at(&mut self.listeners, index) {
                    self.core.sys.stop_listening(listener.fd);
                }
            }
            Some(next) => self.hand_on(next, index),
            None => self.park_listener(index, me),
        }
    }

    /// Gives a listener to another worker. If that has stopped, the server drains: this worker is about
    /// to learn that, and stops the listener itself.
    fn hand_on(&mut self, next: usize, index: usize) {
        if self.core.remote.try_give_listener(next, index) {
            return self.core.counters().listener_handed_on.add(1);
        }
        if let Some(listener) = listener_at(&mut self.listeners, index) {
            self.core.sys.stop_listening(listener.fd);
        }
    }

    fn park_listener(&mut self, index: usize, me: usize) {
        let remote = &self.core.remote;
        let next = || remote.worker_with_room(me).or_else(|| remote.worker_that_makes_room(me));
        loop {
            remote.shared.parked.insert(index);
            fence(Ordering::SeqCst);
            if next().is_none() {
                return self.core.counters().accept_full.add(1);
            }
            // A worker got room, or a connection that may give way, before the listener was parked,
            // and may not have seen it. If it is full again by now, the listener is parked once more,
            // with the same care.
            if !remote.shared.parked.take(index) {
                return;
            }
            if let Some(next) = next() {
                return self.hand_on(next, index);
            }
        }
    }

    /// After connections ended: takes over parked listeners, as long as there is room.
    pub(crate) fn adopt_parked_listeners(&mut self) {
        // Pairs with the fence in `park_listener`: of a worker that parks a listener and one that
        // gets room at the same time, at least one sees the other.
        fence(Ordering::SeqCst);
        if !self.core.remote.shared.parked.any(self.listeners.len()) {
            return;
        }
        for index in 0..self.listeners.len() {
            if self.is_at_capacity() {
                return;
            }
            if self.core.remote.shared.parked.take(index) {
                self.start_listening(index);
            }
        }
    }

    fn pause_listener(&mut self, index: usize, until_ns: u64) {
        if let Some(listener) = listener_at(&mut self.listeners, index) {
            listener.paused_until_ns = Some(until_ns);
            let ends_ns = self.pause_ends_ns.map_or(until_ns, |ends_ns| ends_ns.min(until_ns));
            self.pause_ends_ns = Some(ends_ns);
        }
    }

    /// Watches again the listeners whose pause is over.
    pub(crate) fn wake_listeners(&mut self) {
        if self.pause_ends_ns.is_none_or(|ends_ns| ends_ns > self.core.now_ns) {
            return;
        }
        self.pause_ends_ns = None;
        for index in 0..self.listeners.len() {
            let due = self.listeners.get(index).is_some_and(|listener| {
                listener.paused_until_ns.is_some_and(|until| until <= self.core.now_ns)
            });
            if due {
                if let Some(listener) = self.listeners.get_mut(index) {
                    listener.paused_until_ns = None;
                }
                self.watch_listener(index);
            }
        }
        // Those still paused, and those that could not be watched.
        self.pause_ends_ns = self.listeners.iter().filter_map(|one| one.paused_until_ns).min();
    }

    fn watch_listener(&mut self, index: usize) {
        let Some(listener) = listener_at(&mut self.listeners, index) else { return };
        if !listener.watched && listener.owned {
            let key = KEY_LISTENER - index as u64;
            match self.core.sys.watch_listener(listener.fd, key) {
                Ok(()) => listener.watched = true,
                Err(_) => self.pause_listener(index, self.core.now_ns + nanoseconds(ACCEPT_PAUSE)),
            }
        }
    }

    fn unwatch_listener(&mut self, index: usize) {
        if let Some(listener) = listener_at(&mut self.listeners, index)
            && listener.watched
        {
            if self.core.sys.unwatch(listener.fd).is_err() {
                broken("a watched listener is registered with epoll");
            }
            listener.watched = false;
        }
    }

    fn set_accepting(&mut self) {
        self.listeners_owned = self.listeners.iter().filter(|listener| listener.owned).count();
        let mailbox = &self.core.remote.shared.mailboxes[usize::from(self.core.index)];
        mailbox.accepting.store(self.listeners_owned > 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
