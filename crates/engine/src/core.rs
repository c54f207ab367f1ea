//! [`Core`]: everything of a worker except its handler, and the handler's interface to it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use wire::Violation;

use crate::admission::Client;
use crate::buffers::BufferPool;
use crate::coalescing::Coalescing;
use crate::conn::{Conn, Flags, Mode};
use crate::deferred::Deferred;
use crate::deflate::{NegotiatedDeflate, SharedCodec};
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{READ_BUFFER_BYTES, READS_OF_SOCKETS, TAIL_BYTES_MAX};
use crate::slab::Slab;
use crate::sys::{Fd, Interest, Sys, ThreadWaits};
use crate::timers::Timers;
use crate::{
    Closed, ConnId, Counters, Handler, Histograms, Limits, Remote, ServerFault, SharedFrame,
    Target, TlsServer, tls,
};

/// A report on one connection.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Its id.
    pub id: ConnId,
    /// The peer's address, if it still has one.
    pub peer: Option<SocketAddr>,
    /// The client's address, if a trusted proxy reported it.
    pub client: Option<IpAddr>,
    /// Its state.
    pub mode: Mode,
    /// Bytes in its queue.
    pub queued_bytes: usize,
    /// Seconds since something was received, in steps of the keep-alive tick.
    pub idle_seconds: f64,
}

/// A worker without its handler: connections, buffers, timers and the kernel interface.
pub struct Core<S: Sys, H: Handler> {
    pub(crate) sys: S,
    pub(crate) index: u16,
    pub(crate) limits: Limits,
    /// The shortest queue limit of [`Limits`] and its classes.
    pub(crate) least_queue_bytes: usize,
    pub(crate) remote: Remote<H::Post>,
    pub(crate) slab: Slab<Conn<H::User>>,
    pub(crate) generation: u32,
    pub(crate) now_ns: u64,
    /// The tick of `now_ns`, in the form that connections keep.
    pub(crate) tick: u16,
    pub(crate) timers: Timers,
    pub(crate) targets: Vec<Target>,
    /// The TLS configuration of accepted connections, if they use TLS.
    pub(crate) tls_server: Option<TlsServer>,
    /// How many listeners, counted from the first, have no TLS all the same.
    pub(crate) plain_listeners: usize,
    /// Shared frames that were dropped, if the handler reports them.
    pub(crate) dropped: Option<Vec<(ConnId, SharedFrame)>>,
    /// The handler is asked for certificates by name.
    pub(crate) reports_server_names: bool,
    pub(crate) tls_buffers: tls::Buffers,
    /// TLS handshake steps carried out in this turn.
    pub(crate) tls_handshakes: usize,
    /// The secret from which client handshake keys are derived.
    pub(crate) key_secret: u64,
    /// Taken out while a read is processed; empty while there are no connections.
    pub(crate) read_buffer: Vec<u8>,
    /// Replies to the connection being read.
    pub(crate) cork: Vec<u8>,
    pub(crate) cork_messages: u32,
    pub(crate) deferred: Deferred,
    /// Bytes that the handler left unread in the current call.
    pub(crate) unread: usize,
    /// The handler resumed the connection in the current call, after it left bytes unread.
    pub(crate) unread_resumed: bool,
    /// Room is reserved for an outgoing connection beside each accepted one.
    pairs: bool,
    /// Outgoing connections.
    pub(crate) outgoing: u32,
    pub(crate) corked: Option<u32>,
    /// Scratch buffer in which frames for other connections are encoded.
    pub(crate) scratch: Vec<u8>,
    /// Ended connections, to be reported and freed at the end of the turn.
    pub(crate) dead: Vec<u32>,
    /// WebSockets that are no longer open, to be reported before the next ended ones.
    pub(crate) closing: Vec<ConnId>,
    /// Protocol faults of servers, by slot of our connection to them, until its end is reported.
    pub(crate) server_faults: BTreeMap<u32, ServerFault>,
    /// What WebSockets have violated, until their end is reported.
    pub(crate) violated: Vec<(ConnId, Violation)>,
    /// Connections that resumed reading.
    pub(crate) resumed: VecDeque<u32>,
    /// Connections whose queue became empty while flushing.
    pub(crate) drained: Vec<u32>,
    /// Polled connections with something to take, since the handler last asked.
    pub(crate) pollable: Vec<ConnId>,
    /// Compressors and inflater that all connections share.
    pub(crate) codec: SharedCodec,
    /// What is known of clients besides their connections, by slot; empty unless a limit needs it.
    pub(crate) clients: BTreeMap<u32, Client>,
    /// At capacity with clients waiting, and a connection may give way soon.
    pub(crate) full: bool,
    pub(crate) wakes: Coalescing,
    pool: BufferPool,
}

impl<S: Sys, H: Handler> Core<S, H> {
    pub(crate) fn new(mut sys: S, index: u16, limits: Limits, remote: Remote<H::Post>) -> Self {
        let now_ns = sys.now_ns();
        let key_secret = sys.random();
        let timers = Timers::new(&limits, now_ns);
        Core {
            sys,
            index,
            least_queue_bytes: limits.least_queue_bytes(),
            limits,
            remote,
            slab: Slab::new(),
            generation: 0,
            now_ns,
            tick: 0,
            timers,
            targets: Vec::new(),
            tls_server: None,
            plain_listeners: 0,
            dropped: None,
            reports_server_names: false,
            tls_buffers: tls::Buffers::default(),
            tls_handshakes: 0,
            key_secret,
            read_buffer: Vec::new(),
            cork: Vec::new(),
            cork_messages: 0,
            deferred: Deferred::default(),
            unread: 0,
            unread_resumed: false,
            pairs: false,
            outgoing: 0,
            corked: None,
            scratch: Vec::new(),
            dead: Vec::new(),
            closing: Vec::new(),
            server_faults: BTreeMap::new(),
            violated: Vec::new(),
            resumed: VecDeque::new(),
            drained: Vec::new(),
            pollable: Vec::new(),
            codec: SharedCodec::default(),
            clients: BTreeMap::new(),
            full: false,
            wakes: Coalescing::default(),
            pool: BufferPool::default(),
        }
    }

    // ---- inspection ----

    /// Which worker of the process this is, from 0.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.index
    }

    /// Monotonic time in nanoseconds, read once at the start of the turn.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Monotonic time in nanoseconds, read now: for measuring.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.sys.now_ns()
    }

    /// How long this worker's thread has waited for a core, if the system tells: for measuring. It costs
    /// a system call.
    pub fn thread_waits(&mut self) -> Option<ThreadWaits> {
        self.sys.thread_waits()
    }

    /// From now on the worker may sleep for `ns` nanoseconds before it waits for events, so that a wake
    /// finds several: while turns would follow each other faster, and their work takes less than that. It
    /// delays what happens by at most this time. 0 ends it.
    pub fn coalesce_wakes(&mut self, ns: u32) {
        self.wakes.set(ns);
    }

    /// 64 random bits.
    pub fn random(&mut self) -> u64 {
        self.sys.random()
    }

    /// The limits in effect.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Replaces the limits; open connections follow them from their next event on, and handshakes and
    /// closes under way follow the new timeouts from their begin. The tick of the keep-alive sweep
    /// stays as it was: see [`Core::renew_tick`].
    pub fn set_limits(&mut self, limits: Limits) {
        self.timers.set_timeouts(&limits);
        self.least_queue_bytes = limits.least_queue_bytes();
        self.limits = limits;
    }

    /// Adapts the keep-alive tick to the limits in effect: fine enough, and without wrapping around
    /// within the idle timeout. Idle times measured so far are kept.
    pub fn renew_tick(&mut self) {
        let Some(timers) = self.timers.renewed(&self.limits, self.now_ns) else { return };
        let before = std::mem::replace(&mut self.timers, timers);
        let tick = std::mem::replace(&mut self.tick, self.timers.tick(self.now_ns));
        for slot in 0..self.slab.end() {
            let Some(conn) = self.slab.get_mut(slot) else { continue };
            let silent = self.timers.ticks(before.ns_between(conn.last_active, tick));
            conn.last_active = self.tick.wrapping_sub(silent);
        }
        (self.timers.handshake, self.timers.closing) = (before.handshake, before.closing);
    }

    /// The handle to the other workers.
    #[must_use]
    pub fn remote(&self) -> &Remote<H::Post> {
        &self.remote
    }

    /// This worker's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        let mailboxes = &self.remote.shared.mailboxes;
        &mailboxes[usize::from(self.index)].counters
    }

    /// This worker's histograms.
    #[must_use]
    pub fn histograms(&self) -> &Histograms {
        let mailboxes = &self.remote.shared.mailboxes;
        &mailboxes[usize::from(self.index)].histograms
    }

    /// Connections of this worker, whatever their state.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.slab.live()
    }

    /// One more than the highest slot in use, to iterate over all connections with [`Core::id_at`].
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slab.end()
    }

    /// The connection in a slot, unless it has ended.
    #[must_use]
    pub fn id_at(&self, slot: u32) -> Option<ConnId> {
        let conn = self.slab.get(slot)?;
        (conn.mode != Mode::Dead).then(|| ConnId::new(self.index, slot, conn.generation))
    }

    /// The handler's data of a connection that exists, ended or not.
    #[must_use]
    pub fn user(&self, id: ConnId) -> Option<&H::User> {
        let conn = self.slab.get(id.slot())?;
        (conn.generation == id.generation()).then_some(&conn.user)
    }

    /// The handler's data of a connection, mutable.
    pub fn user_mut(&mut self, id: ConnId) -> Option<&mut H::User> {
        let conn = self.slab.get_mut(id.slot())?;
        (conn.generation == id.generation()).then_some(&mut conn.user)
    }

    /// The handler's data of the connection in a slot.
    pub fn user_at(&mut self, slot: u32) -> Option<&mut H::User> {
        self.slab.get_mut(slot).map(|conn| &mut conn.user)
    }

    /// The state of the connection, if it still exists.
    #[must_use]
    pub fn mode(&self, id: ConnId) -> Option<Mode> {
        self.live(id).map(|conn| conn.mode)
    }

    /// The peer's address, and the client's if a trusted proxy reported another.
    #[must_use]
    pub fn addresses(&self, id: ConnId) -> (Option<IpAddr>, Option<IpAddr>) {
        let Some(conn) = self.live(id) else { return (None, None) };
        let peer = self.peer(conn).map(|peer| peer.ip().to_canonical());
        (peer, self.clients.get(&id.slot()).and_then(|client| client.address))
    }

    /// Both endpoints of an accepted connection for a PROXY header: the client, or the one that a
    /// trusted proxy reported (with port 0 if unknown), and our address that it connected to.
    #[must_use]
    pub fn endpoints(&self, id: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        let conn = self.live(id)?;
        let client = self.reported_client(id).or_else(|| self.sys.peer(conn.fd))?;
        // A UNIX socket has no address.
        let any = if client.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        Some((client, self.sys.local(conn.fd).unwrap_or(SocketAddr::new(any, 0))))
    }

    /// The certificate that the client of a connection has proved to own, in DER: with TLS that asks for one
    /// ([`ClientAuth`](crate::ClientAuth)), once the handshake is complete.
    #[must_use]
    pub fn client_certificate(&self, id: ConnId) -> Option<&[u8]> {
        self.live(id)?.cold.as_ref()?.tls.as_ref()?.peer_certificate()
    }

    /// Whether a connection is one of a UNIX socket.
    pub(crate) fn came_by_unix_socket(&self, id: ConnId) -> bool {
        self.live(id).is_some_and(|conn| self.sys.local(conn.fd).is_none())
    }

    /// Whether the peer has reset the connection, so that its address is no longer available, while
    /// data received before is still being read.
    #[must_use]
    pub fn is_reset(&self, id: ConnId) -> bool {
        self.live(id).is_some_and(|conn| self.sys.is_broken(conn.fd))
    }

    /// Bytes in the send queue of a connection.
    #[must_use]
    pub fn queued(&self, id: ConnId) -> usize {
        self.live(id).map_or(0, Conn::backlog)
    }

    /// Whether messages may be sent to the connection: an open WebSocket, or a polled connection.
    #[must_use]
    pub fn is_open(&self, id: ConnId) -> bool {
        self.live(id).is_some_and(|conn| matches!(conn.mode, Mode::WebSocket | Mode::Polled))
    }

    /// The fault of the server of an outgoing connection, until its end is reported.
    #[must_use]
    pub fn server_fault(&self, id: ConnId) -> Option<ServerFault> {
        let conn = self.slab.get(id.slot()).filter(|conn| conn.generation == id.generation())?;
        let known = self.server_faults.get(&id.slot()).copied();
        known.or_else(|| self.sys.fault(conn.fd))
    }

    /// What the peer of a WebSocket has violated, in [`Handler::closing`] for [`Closed::Violation`].
    #[must_use]
    pub fn violation(&self, id: ConnId) -> Option<Violation> {
        self.violated.iter().find(|(own, _)| *own == id).map(|(_, violation)| *violation)
    }

    /// Time since something was last received, in nanoseconds and steps of the keep-alive tick.
    #[must_use]
    pub fn idle_ns(&self, id: ConnId) -> Option<u64> {
        let conn = self.live(id)?;
        Some(self.timers.ns_between(conn.last_active, self.tick))
    }

    /// As [`Core::idle_ns`], rounded down: never more than the time that has passed.
    #[must_use]
    pub fn idle_at_least_ns(&self, id: ConnId) -> Option<u64> {
        self.idle_ns(id).map(|idle_ns| idle_ns.saturating_sub(self.timers.tick_ns()))
    }

    /// A report on one connection.
    #[must_use]
    pub fn info(&self, id: ConnId) -> Option<ConnInfo> {
        let conn = self.live(id)?;
        Some(ConnInfo {
            id,
            peer: self.peer(conn),
            client: self.clients.get(&id.slot()).and_then(|client| client.address),
            mode: conn.mode,
            queued_bytes: conn.backlog(),
            idle_seconds: self.timers.ns_between(conn.last_active, self.tick) as f64 / 1e9,
        })
    }

    fn peer(&self, conn: &Conn<H::User>) -> Option<SocketAddr> {
        if conn.has_socket() { self.sys.peer(conn.fd) } else { None }
    }

    pub(crate) fn live(&self, id: ConnId) -> Option<&Conn<H::User>> {
        let conn = self.slab.get(id.slot())?;
        (conn.generation == id.generation() && conn.mode != Mode::Dead).then_some(conn)
    }

    pub(crate) fn live_mut(&mut self, id: ConnId) -> Option<&mut Conn<H::User>> {
        let conn = self.slab.get_mut(id.slot())?;
        (conn.generation == id.generation() && conn.mode != Mode::Dead).then_some(conn)
    }

    // ---- reading ----

    /// Stops reading a connection; what was read but not yet delivered is kept.
    pub fn pause(&mut self, id: ConnId) {
        self.unread_resumed &= self.corked != Some(id.slot());
        if let Some(conn) = self.live_mut(id) {
            conn.flags.set(Flags::PAUSED);
            self.sync_interest(id.slot());
        }
    }

    /// Resumes reading, first with what was kept.
    pub fn resume(&mut self, id: ConnId) {
        self.unread_resumed |= self.unread > 0 && self.corked == Some(id.slot());
        if let Some(conn) = self.live_mut(id) {
            conn.flags.clear(Flags::PAUSED);
            self.resume_soon(id.slot());
        }
    }

    pub(crate) fn resume_soon(&mut self, slot: u32) {
        self.sync_interest(slot);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if conn.has_tail() && !conn.flags.has(Flags::RESUMED) {
            conn.flags.set(Flags::RESUMED);
            self.resumed.push_back(slot);
        }
    }

    // ---- connections ----

    /// From now on, room is reserved for an outgoing connection beside each accepted one.
    pub fn keep_room_for_pairs(&mut self) {
        self.pairs = true;
    }

    /// How many of the worker's slots are used or reserved.
    pub(crate) fn slots_used(&self) -> u32 {
        let live = self.slab.live();
        if self.pairs { live.max(2 * (live - self.outgoing.min(live))) } else { live }
    }

    /// Whether the worker has as many connections as it may have.
    pub(crate) fn is_at_capacity(&self) -> bool {
        let mailbox = &self.remote.shared.mailboxes[usize::from(self.index)];
        self.slots_used() >= mailbox.capacity.load(Ordering::Relaxed)
    }

    /// Uncounts a closed connection if it was an outgoing one.
    pub(crate) fn count_outgoing_closed(&mut self, flags: Flags) {
        let outgoing = u32::from(flags.has(Flags::CLIENT));
        match self.outgoing.checked_sub(outgoing) {
            Some(left) => self.outgoing = left,
            None => broken("an outgoing connection was counted when it began"),
        }
    }

    /// Ids of connections are those of this worker alone, not of another one with its number: for ids that are known
    /// beyond it.
    pub fn begin_ids_at_random(&mut self) {
        self.generation = self.sys.random() as u32;
    }

    /// Puts a new connection into the slab.
    pub(crate) fn insert(&mut self, fd: Fd, mode: Mode) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        let slot = self.slab.insert(Conn {
            user: H::User::default(),
            cold: None,
            decoder: wire::websocket::Decoder::default(),
            fd,
            generation: self.generation,
            last_active: self.tick,
            flags: Flags::default(),
            mode,
            closed: Closed::Aborted,
            target: 0,
            deflate: NegotiatedDeflate::default(),
        });
        self.counters().connections.add(1);
        self.publish_open();
        slot
    }

    /// Puts a new outgoing connection into the slab: counted as such before the room is published,
    /// which would have two slots too few otherwise.
    pub(crate) fn insert_outgoing(&mut self, fd: Fd) -> u32 {
        self.outgoing += 1;
        self.insert(fd, Mode::Connecting)
    }

    /// Publishes to the other workers how full this one is.
    pub(crate) fn publish_open(&self) {
        let mailbox = &self.remote.shared.mailboxes[usize::from(self.index)];
        mailbox.open.store(self.slots_used(), Ordering::Relaxed);
        mailbox.exhausted.store(false, Ordering::Relaxed);
    }

    /// Makes epoll watch exactly the events that the connection now waits for.
    pub(crate) fn sync_interest(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let paused = conn.flags.has(Flags::PAUSED | Flags::STALLED);
        let interest = Interest {
            read: !paused
                && (matches!(
                    conn.mode,
                    Mode::Http | Mode::WebSocket | Mode::Raw | Mode::Closing | Mode::Lingering
                ) || conn.is_watched()),
            write: conn.mode == Mode::Connecting || conn.waits(),
        };
        let now = Interest {
            read: conn.flags.has(Flags::WATCHED_READ),
            write: conn.flags.has(Flags::WATCHED_WRITE),
        };
        if conn.mode == Mode::Dead || !conn.flags.has(Flags::WATCHED) || interest == now {
            return;
        }
        self.watch(slot, interest);
    }

    /// Registers a new connection with epoll.
    pub(crate) fn watch_first(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if conn.mode == Mode::Dead || conn.flags.has(Flags::WATCHED) {
            return;
        }
        let interest = match conn.mode {
            Mode::Connecting => Interest::WRITE,
            Mode::Parked => Interest::NONE,
            _ => {
                let paused = conn.flags.has(Flags::PAUSED | Flags::STALLED);
                Interest { read: !paused, write: conn.waits() }
            }
        };
        self.watch(slot, interest);
        self.sync_interest(slot);
    }

    fn watch(&mut self, slot: u32, interest: Interest) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let key = key_of(slot, conn.generation);
        let known = conn.flags.has(Flags::WATCHED);
        conn.flags.clear(Flags::WATCHED_READ | Flags::WATCHED_WRITE);
        conn.flags.set(
            Flags::WATCHED
                | if interest.read { Flags::WATCHED_READ } else { 0 }
                | if interest.write { Flags::WATCHED_WRITE } else { 0 },
        );
        let fd = conn.fd;
        let result = if known {
            self.sys.rewatch(fd, interest, key)
        } else {
            self.sys.watch(fd, interest, key)
        };
        if result.is_err() {
            // ENOMEM or ENOSPC: an unwatched connection would hang forever.
            self.end(slot, Closed::NoMemory);
        }
    }

    // ---- buffers ----

    /// Takes out the read buffer; the caller puts it back. A worker without connections has none.
    #[inline]
    pub(crate) fn take_read_buffer(&mut self) -> Vec<u8> {
        let buffer = std::mem::take(&mut self.read_buffer);
        let reads = if H::READS_SOCKETS_TOGETHER { READS_OF_SOCKETS } else { 1 };
        if buffer.is_empty() { vec![0; TAIL_BYTES_MAX + reads * READ_BUFFER_BYTES] } else { buffer }
    }

    /// Frees the buffers that only connections need, when there are none.
    pub(crate) fn release_buffers(&mut self) {
        self.read_buffer = Vec::new();
        self.cork = Vec::new();
        self.deferred = Deferred::default();
        self.scratch = Vec::new();
        self.tls_buffers = tls::Buffers::default();
        self.resumed = VecDeque::new();
        self.drained = Vec::new();
        self.pollable = Vec::new();
        self.dead = Vec::new();
        self.closing = Vec::new();
        self.violated = Vec::new();
        self.codec = SharedCodec::default();
        self.pool = BufferPool::default();
    }

    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.pool.take()
    }

    /// A buffer that stays with a connection for `bytes` bytes.
    pub(crate) fn take_buffer_to_keep(&mut self, bytes: usize) -> Vec<u8> {
        self.pool.take_to_keep(bytes)
    }

    pub(crate) fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.pool.give(buffer);
    }
}

/// The key under which a connection is watched: an event for an earlier user of the slot does not
/// match its generation.
pub(crate) fn key_of(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}
