//! [`Worker`]: one thread's loop over its connections, a turn at a time.
//!
//! The driving contract: call [`Worker::turn`] until it returns [`Turn::Stopped`]. Each turn waits
//! (at most the given timeout, and no longer than [`Worker::deadline`]), reads what is ready, takes
//! posts, runs timers, gives the handler its turn, flushes and reaps. A worker owns no loop, no
//! signal handling and no descriptor table, so it can be driven from another event loop by
//! [`Worker::poll_fd`].

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wire::websocket::CloseCode;

use crate::accept::Listener;
use crate::admission::ShedPass;
use crate::conn::{Conn, Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{DEADLINES_PER_TURN, EVENTS_PER_TURN, POSTS_PER_TURN};
use crate::mailbox::{Envelope, Mailbox};
use crate::parked::LISTENERS_MAX;
use crate::sys::process::trim_own_arena;
use crate::sys::{Event, Interest, Sys};
use crate::timers::nanoseconds;
use crate::{Closed, ConnId, Handler, Limits, Remote};

pub(crate) const KEY_WAKE: u64 = u64::MAX;
/// Listener `i` is watched under this minus `i`.
pub(crate) const KEY_LISTENER: u64 = u64::MAX - 1;
/// Connections closed in one turn of a drain, and the time between two such turns.
const DRAINS_PER_TURN: u32 = 4096;
const DRAIN_STEP: Duration = Duration::from_millis(10);
/// Slots examined in such a turn for idle keep-alive connections.
const IDLE_LOOKS: u32 = 64 * 1024;

/// The result of a turn.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Call again.
    Running,
    /// The drain is complete: no connection is left and none is accepted.
    Stopped,
}

struct Drain {
    began_ns: u64,
    over_ns: u64,
    next_slot: u32,
    /// The slot at which the search for idle keep-alive connections continues.
    idle_slot: u32,
}

/// One thread's share of the server: its slab of connections, its buffers, its kernel interface.
pub struct Worker<S: Sys, H: Handler> {
    pub(crate) core: Core<S, H>,
    pub(crate) handler: H,
    pub(crate) listeners: Vec<Listener>,
    /// How many of them it accepts from.
    pub(crate) listeners_owned: usize,
    /// No listener's pause ends before this time.
    pub(crate) pause_ends_ns: Option<u64>,
    events: Vec<Event>,
    /// For connections that are read together, where the bytes of each end; otherwise empty.
    pub(crate) ends: Vec<(ConnId, usize)>,
    envelopes: VecDeque<Envelope<H::Post>>,
    /// The mailbox may hold something, and may hold more than at the last look.
    posts_pending: bool,
    woken: bool,
    pub(crate) handler_wants_ns: Option<u64>,
    /// When a handshake in flight can be evicted, while there are too many.
    evict_due_ns: Option<u64>,
    drain: Option<Drain>,
    pub(crate) shed_pass: Option<ShedPass>,
}

/// Nobody takes what is posted to a worker that has ended.
impl<S: Sys, H: Handler> Drop for Worker<S, H> {
    fn drop(&mut self) {
        self.core.remote.shared.mailboxes[usize::from(self.core.index)].close();
    }
}

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Creates worker `index` of those that `remote` addresses. `listeners` are the numbers of the
    /// process's listeners in this worker's table; it accepts from none of them until it is given
    /// one.
    ///
    /// # Errors
    /// The error of registering the wake-up descriptor with epoll.
    pub fn new(
        mut sys: S,
        index: u16,
        limits: Limits,
        remote: Remote<H::Post>,
        listeners: &[i32],
        capacity: u32,
        mut handler: H,
    ) -> io::Result<Self> {
        if let Some(wake) = sys.wake_fd() {
            sys.watch(wake, Interest::READ, KEY_WAKE)?;
        }
        let mailbox =
            remote.shared.mailboxes.get(usize::from(index)).ok_or(io::ErrorKind::InvalidInput)?;
        mailbox.capacity.store(capacity, Ordering::Relaxed);
        let mut core = Core::new(sys, index, limits, remote);
        handler.begin(&mut core);
        let listeners = listeners.iter().map(|&number| Listener::new(number, &core.sys)).collect();
        Ok(Worker {
            core,
            handler,
            listeners,
            listeners_owned: 0,
            pause_ends_ns: None,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            ends: Vec::new(),
            envelopes: VecDeque::new(),
            posts_pending: true,
            woken: true,
            handler_wants_ns: None,
            evict_due_ns: None,
            drain: None,
            shed_pass: None,
        })
    }

    /// The handler, for inspection.
    #[must_use]
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Handler and core together, for the code that drives the worker.
    pub fn parts(&mut self) -> (&mut H, &mut Core<S, H>) {
        (&mut self.handler, &mut self.core)
    }

    /// Readable when a turn would find something to do, for embedding in another loop.
    #[must_use]
    pub fn poll_fd(&self) -> Option<i32> {
        self.core.sys.poll_fd()
    }

    /// When the next turn is due even if nothing happens, in nanoseconds of the monotonic clock.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let core = &self.core;
        let mut next = core.timers.next_ns(core.slab.live());
        let ended = !core.dead.is_empty() || !core.closing.is_empty();
        if !core.resumed.is_empty() || ended || !core.pollable.is_empty() {
            next = Some(core.now_ns);
        }
        next = if self.shed_pass.is_some() { Some(core.now_ns) } else { next };
        let drain = self.drain.as_ref().map(|_| core.now_ns + nanoseconds(DRAIN_STEP));
        let takes_posts = self.posts_pending && (self.woken || self.handler.accepts_posts());
        let posts = takes_posts.then_some(core.now_ns);
        [next, self.handler_wants_ns, self.evict_due_ns, self.pause_ends_ns, drain, posts]
            .into_iter()
            .flatten()
            .min()
    }

    /// One turn; waits at most `timeout` for something to do.
    ///
    /// # Errors
    /// Only what makes the worker unusable: a failure of epoll itself.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<Turn> {
        self.wait(timeout)?;
        self.core.now_ns = self.core.sys.now_ns();
        self.core.tick = self.core.timers.tick(self.core.now_ns);
        self.core.tls_handshakes = 0;
        self.core.counters().turns.add(1);
        // What was posted before a client has sent something takes effect before it.
        self.look_for_wake();
        self.on_posts();
        let events = std::mem::take(&mut self.events);
        let mut rest = &events[..];
        while let Some(event) = rest.first() {
            let handled = if self.on_event(event) { self.read_bare(rest) } else { 1 };
            rest = rest.get(handled.max(1)..).unwrap_or_default();
        }
        self.events = events;
        self.continue_shedding();
        self.on_resumed();
        self.on_timers();
        self.on_drain();
        self.reap();
        self.notify_drained();
        self.handler_wants_ns = self.handler.turn(&mut self.core);
        if self.notify_drained() | self.reap() {
            // The last notifications may have changed what the handler wants.
            self.handler_wants_ns = Some(self.core.now_ns);
        }
        let stopped =
            self.drain.is_some() && self.core.slab.live() == 0 && self.refuses_listeners();
        Ok(if stopped { Turn::Stopped } else { Turn::Running })
    }

    /// From now on no other worker can give a listener to this one; `false` if one has.
    fn refuses_listeners(&self) -> bool {
        let mailbox = &self.core.remote.shared.mailboxes[usize::from(self.core.index)];
        mailbox.refuse_listeners()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let now_ns = self.core.sys.now_ns();
        self.record_turn(now_ns);
        let due_ns = self.deadline();
        let mut until = due_ns.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)));
        let core = &mut self.core;
        if let Some(sleep_ns) = core.wakes.next(core.now_ns, now_ns, due_ns) {
            core.sys.pause(sleep_ns);
            until = until.map(|time| time.saturating_sub(Duration::from_nanos(sleep_ns.into())));
        }
        let timeout = match (timeout, until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.events.clear();
        match self.core.sys.wait(&mut self.events, EVENTS_PER_TURN, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }

    /// Records the turn that has ended, with the clock that is read for the wait anyway.
    fn record_turn(&self, now_ns: u64) {
        let (core, counters) = (&self.core, self.core.counters());
        if counters.turns.get() > 0 {
            let histograms = core.histograms();
            histograms.turn_ns.record(now_ns.saturating_sub(core.now_ns));
            histograms.queued_bytes.record(counters.queued_bytes.get());
        }
    }

    /// Handles an event; returns `true` if that is left to [`Worker::read_bare`].
    fn on_event(&mut self, event: &Event) -> bool {
        if event.key == KEY_WAKE {
            self.core.sys.clear_wake();
            // Who has posted since the turn began does not wake this worker again.
            self.look_for_wake();
            return false;
        }
        if event.key > KEY_LISTENER - LISTENERS_MAX as u64 {
            self.on_listener((KEY_LISTENER - event.key) as usize);
            return false;
        }
        let slot = event.slot();
        let Some(conn) = self.core.slab.get(slot) else { return false };
        if conn.generation != event.generation() || conn.mode == Mode::Dead {
            return false;
        }
        if conn.is_read_together(H::READS_SOCKETS_TOGETHER) && event.readable && !event.writable {
            return true;
        }
        if conn.mode == Mode::Connecting {
            self.on_connected(slot);
            return false;
        }
        let flags = conn.flags;
        if event.failed
            && !flags.has(Flags::WATCHED_READ)
            && let Some(why) = self.unread_close_reason(slot)
        {
            // No read will find out why.
            self.core.end(slot, why);
            return false;
        }
        if event.writable && flags.has(Flags::WATCHED_WRITE) {
            // Even an empty queue: one whose publications were all dropped is still watched.
            self.core.flush(slot);
        }
        if event.readable {
            self.read(slot);
        }
        false
    }

    /// Why a connection that is not being read has failed. `None` for a paused raw connection that
    /// ended in order: its peer has closed it, or both sides have ended theirs. Data received
    /// before that is still in the kernel, and is read when the connection is resumed.
    fn unread_close_reason(&mut self, slot: u32) -> Option<Closed> {
        let conn = self.core.slab.get(slot)?;
        let paused = conn.flags.has(Flags::PAUSED | Flags::STALLED);
        match self.core.sys.connect_outcome(conn.fd) {
            Ok(()) if conn.mode == Mode::Raw && paused => None,
            Ok(()) => Some(Closed::Reset),
            Err(error) => Some(Closed::from_io_error(&error)),
        }
    }

    pub(crate) fn mailbox(&self) -> &Mailbox<H::Post> {
        &self.core.remote.shared.mailboxes[usize::from(self.core.index)]
    }

    /// Notes whether another thread has woken this worker.
    fn look_for_wake(&mut self) {
        if self.mailbox().is_woken() {
            self.posts_pending = true;
            self.woken = true;
        }
    }

    fn on_posts(&mut self) {
        let accepts_posts = self.handler.accepts_posts();
        if !self.posts_pending || !(accepts_posts || self.woken) {
            return;
        }
        self.woken = false;
        let mut envelopes = std::mem::take(&mut self.envelopes);
        let mailbox = &self.core.remote.shared.mailboxes[usize::from(self.core.index)];
        mailbox.acknowledge_wake();
        let posts_max = if accepts_posts { POSTS_PER_TURN } else { 0 };
        self.posts_pending = mailbox.take(posts_max, &mut envelopes);
        for envelope in envelopes.drain(..) {
            match envelope {
                Envelope::Post(post) => self.handler.post(&mut self.core, post),
                Envelope::Answer(id, answer) => self.answer_parked(id, answer),
                Envelope::Listen(index) => self.start_listening(index),
                Envelope::Drain(over) => self.start_draining(over),
                Envelope::Shed(order) => self.begin_shedding(order),
                Envelope::Trim => trim_own_arena(),
            }
        }
        self.envelopes = envelopes;
    }

    /// Processes the kept bytes of resumed connections.
    fn on_resumed(&mut self) {
        for _ in 0..self.core.resumed.len() {
            let Some(slot) = self.core.resumed.pop_front() else {
                return broken("only this loop takes from the resumed list");
            };
            // It may have been reaped since it was resumed.
            let Some(conn) = self.core.slab.get_mut(slot) else { continue };
            conn.flags.clear(Flags::RESUMED);
            if conn.mode != Mode::Dead && !conn.flags.has(Flags::PAUSED | Flags::STALLED) {
                self.pump(slot);
            }
        }
    }

    fn on_timers(&mut self) {
        let now_ns = self.core.now_ns;
        for _ in 0..DEADLINES_PER_TURN {
            let Some(deadline) = self.core.timers.handshake.pop(now_ns) else { break };
            self.on_handshake_deadline(deadline.slot, deadline.generation);
        }
        for _ in 0..DEADLINES_PER_TURN {
            let Some(deadline) = self.core.timers.closing.pop(now_ns) else { break };
            let conn = self.core.slab.get(deadline.slot);
            let late = conn.is_some_and(|conn| {
                conn.generation == deadline.generation
                    && matches!(conn.mode, Mode::Closing | Mode::Lingering)
            });
            if late {
                self.core.end(deadline.slot, Closed::ByUs);
            }
        }
        self.evict_due_ns = self.evict_excess_handshakes();
        let slots = self.core.slab.end();
        for slot in self.core.timers.sweep(now_ns, slots) {
            self.core.check_idle(slot);
        }
        self.wake_listeners();
    }

    /// Returns whether there was anything to notify of.
    fn notify_drained(&mut self) -> bool {
        let mut notified = false;
        while let Some(slot) = self.core.drained.pop() {
            // If more was sent since, the handler is notified once that is sent, too.
            let empty = self.core.slab.get(slot).is_some_and(|conn| !conn.waits());
            if let Some(id) = self.core.id_at(slot).filter(|_| empty) {
                self.handler.drained(&mut self.core, id);
                notified = true;
            }
        }
        notified
    }

    /// Notifies the handler of WebSockets that are no longer open. Connections that have ended
    /// since are reported as closed instead.
    fn notify_closing(&mut self) {
        while let Some(id) = self.core.closing.pop() {
            if let Some(why) = self.core.live(id).map(|conn| conn.closed) {
                self.handler.closing(&mut self.core, id, why);
            }
        }
    }

    /// Notifies the handler of ended connections and frees them; returns whether there were any. A
    /// notification can end further connections.
    pub(crate) fn reap(&mut self) -> bool {
        self.notify_closing();
        let reaped = !self.core.dead.is_empty();
        while let Some(slot) = self.core.dead.pop() {
            let Some(conn) = self.core.slab.get(slot) else {
                broken(SLOT_IN_USE);
                continue;
            };
            let id = ConnId::new(self.core.index, slot, conn.generation);
            let (cause, opened) = (conn.closed, conn.flags.has(Flags::OPENED));
            self.core.handshake_ended(conn.flags);
            if let Some(client) = self.core.clients.remove(&slot) {
                self.core.release_client(client);
            }
            self.handler.closed(&mut self.core, id, cause, opened);
            if !self.core.server_faults.is_empty() {
                self.core.server_faults.remove(&slot);
            }
            let Some(conn) = self.core.slab.remove(slot) else {
                broken(SLOT_IN_USE);
                continue;
            };
            if conn.has_socket() {
                self.core.sys.close(conn.fd);
            } else {
                self.core.count_polled_ended(conn.backlog());
            }
            self.core.count_outgoing_closed(conn.flags);
            let counters = self.core.counters();
            counters.count_closed(cause);
            counters.connections.sub(1);
            counters.websockets.sub(u64::from(opened));
            counters.queued_bytes.sub(conn.backlog() as u64);
            let body = conn.cold.as_ref().and_then(|cold| cold.body.as_ref());
            counters.body_bytes.sub(body.map_or(0, |body| body.len() as u64));
            // What still waited is not delivered: sent = delivered + dropped.
            let undelivered = conn.cold.as_ref().map_or(0, |cold| cold.queue.messages(opened));
            let dropped = match cause {
                Closed::SlowConsumer => &counters.dropped_slow,
                _ => &counters.dropped_gone,
            };
            dropped.add(undelivered);
        }
        self.core.violated.clear();
        if reaped {
            if self.core.slab.live() == 0 {
                self.core.release_buffers();
            }
            self.core.publish_open();
            self.core.full &= self.is_at_capacity();
            self.adopt_parked_listeners();
        }
        reaped
    }

    // ---- draining ----

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    fn start_draining(&mut self, over: Duration) {
        if self.is_draining() {
            return;
        }
        let over_ns = nanoseconds(over);
        self.drain =
            Some(Drain { began_ns: self.core.now_ns, over_ns, next_slot: 0, idle_slot: 0 });
        self.stop_listening();
        self.handler.draining(&mut self.core);
    }

    /// Ends idle keep-alive connections at once, including those that become idle later: no client
    /// waits for an answer, so there is no need to spread the closes.
    fn end_idle(&mut self) {
        let Some(drain) = &mut self.drain else { return };
        let slots = self.core.slab.end();
        let from = if drain.idle_slot >= slots { 0 } else { drain.idle_slot };
        let to = from.saturating_add(IDLE_LOOKS).min(slots);
        drain.idle_slot = to;
        let mut ended = 0;
        for slot in from..to {
            if !self.core.slab.get(slot).is_some_and(Conn::is_between_requests) {
                continue;
            }
            self.core.close_with(slot, Closed::Draining, None, "");
            ended += 1;
            if ended == DRAINS_PER_TURN {
                drain.idle_slot = slot + 1;
                return;
            }
        }
    }

    /// Closes the share of connections that is due, in the order of their slots.
    fn on_drain(&mut self) {
        self.end_idle();
        let Some(drain) = &mut self.drain else { return };
        let slots = u64::from(self.core.slab.end());
        let elapsed = self.core.now_ns.saturating_sub(drain.began_ns);
        let grace_ns = nanoseconds(self.core.limits.drain_grace);
        let over = elapsed >= drain.over_ns.saturating_add(grace_ns);
        let due = if elapsed >= drain.over_ns {
            slots
        } else {
            (u128::from(slots) * u128::from(elapsed) / u128::from(drain.over_ns)) as u64
        };
        // Closing all at once would make for a long turn with a full slab.
        let from = drain.next_slot;
        let to = (due as u32).min(from.saturating_add(DRAINS_PER_TURN));
        // After one round, start again: a listener that was passed on may bring new connections.
        let round_is_over = u64::from(to) == slots && elapsed >= drain.over_ns;
        drain.next_slot = if round_is_over { 0 } else { to };
        for slot in from..to {
            let Some(id) = self.core.id_at(slot) else { continue };
            match self.core.mode(id) {
                Some(Mode::WebSocket | Mode::Polled) => {
                    if self.handler.going_away(&mut self.core, id) && !over {
                        continue;
                    }
                }
                Some(Mode::Closing | Mode::Lingering) => {}
                _ if !self.handler.defers_drain(&mut self.core, id) => {}
                _ => {
                    if over {
                        self.core.reset_with(slot, Closed::Draining);
                    }
                    continue;
                }
            }
            let reason = "server is shutting down";
            let going = Some(CloseCode::GOING_AWAY);
            self.core.close_with(slot, Closed::Draining, going, reason);
        }
    }
}
