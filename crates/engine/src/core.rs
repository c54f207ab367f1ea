//! [`Core`]: what a worker has beside its handler, and what a handler may do with it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use wire::websocket::{self, CloseCode, FrameHeader, OpCode};

use crate::conn::{Cold, Conn, Flags, Mode};
use crate::limits::{
    CORK_BYTES, FLUSH_BYTES_PER_TURN, POOLED_BUFFER_BYTES, POOLED_BUFFERS, READ_BUFFER_BYTES,
    TAIL_BYTES_MAX, VECTORED_BYTES,
};
use crate::planted::{self, Bug};
use crate::queue::PIECES_MAX;
use crate::slab::Slab;
use crate::sys::{Fd, Interest, Sys};
use crate::timers::Timers;
use crate::{Closed, ConnId, Counters, Handler, Limits, Remote, SharedFrame, SlowConsumer, Target};

/// What became of a message given to [`Core::send`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The kernel has it, or it leaves at the end of this read.
    Sent,
    /// It waits; so many bytes are in the queue now.
    Queued(usize),
    /// The connection is gone or closing, or its queue was full. Counted.
    Dropped,
}

/// What a report tells of one connection.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Its name.
    pub id: ConnId,
    /// The peer's address, if it still has one.
    pub peer: Option<SocketAddr>,
    /// Where it is in its life.
    pub mode: Mode,
    /// Bytes in its queue.
    pub queued_bytes: usize,
    /// Seconds since something was heard, in steps of the keep-alive tick.
    pub idle_seconds: f64,
}

/// A worker without its handler: connections, buffers, timers and the way to the kernel.
pub struct Core<S: Sys, H: Handler> {
    pub(crate) sys: S,
    pub(crate) index: u16,
    pub(crate) limits: Limits,
    pub(crate) remote: Remote<H::Post>,
    pub(crate) slab: Slab<Conn<H::User>>,
    pub(crate) generation: u32,
    pub(crate) now_ns: u64,
    pub(crate) timers: Timers,
    pub(crate) targets: Vec<Target>,
    /// From which client handshake keys are drawn.
    pub(crate) key_secret: u64,
    /// Taken out while a read is worked on; empty while there are no connections.
    pub(crate) read_buffer: Vec<u8>,
    /// Replies to the connection being read.
    pub(crate) cork: Vec<u8>,
    cork_messages: u32,
    pub(crate) corked: Option<u32>,
    /// Where frames for other connections are encoded.
    scratch: Vec<u8>,
    /// Ended connections, to be told and freed at the end of the turn.
    pub(crate) dead: Vec<u32>,
    /// Connections whose reading was taken up again.
    pub(crate) resumed: VecDeque<u32>,
    /// Connections whose queue became empty while flushing.
    pub(crate) drained: Vec<u32>,
    pool: Vec<Vec<u8>>,
}

impl<S: Sys, H: Handler> Core<S, H> {
    pub(crate) fn new(mut sys: S, index: u16, limits: Limits, remote: Remote<H::Post>) -> Self {
        let now_ns = sys.now_ns();
        let key_secret = sys.random();
        let timers = Timers::new(&limits, now_ns);
        Core {
            sys,
            index,
            limits,
            remote,
            slab: Slab::new(),
            generation: 0,
            now_ns,
            timers,
            targets: Vec::new(),
            key_secret,
            read_buffer: Vec::new(),
            cork: Vec::new(),
            cork_messages: 0,
            corked: None,
            scratch: Vec::new(),
            dead: Vec::new(),
            resumed: VecDeque::new(),
            drained: Vec::new(),
            pool: Vec::new(),
        }
    }

    // ---- what everybody may know ----

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

    /// 64 random bits.
    pub fn random(&mut self) -> u64 {
        self.sys.random()
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Replaces the limits; open connections obey from their next event on. The tick of the
    /// keep-alive sweep stays as it was.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Reaches the other workers.
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

    /// Connections of this worker, whatever their state.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.slab.live()
    }

    /// One more than the highest slot in use, for walking over all by [`Core::id_at`].
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slab.end()
    }

    /// The connection in a slot, unless it is ended.
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

    /// The handler's data of a connection, to change it.
    pub fn user_mut(&mut self, id: ConnId) -> Option<&mut H::User> {
        let conn = self.slab.get_mut(id.slot())?;
        (conn.generation == id.generation()).then_some(&mut conn.user)
    }

    /// The handler's data of whatever lives in a slot.
    pub fn user_at(&mut self, slot: u32) -> Option<&mut H::User> {
        self.slab.get_mut(slot).map(|conn| &mut conn.user)
    }

    /// Whether frames may be sent to the connection.
    #[must_use]
    pub fn is_open(&self, id: ConnId) -> bool {
        self.live(id).is_some_and(|conn| conn.mode == Mode::WebSocket)
    }

    /// A report on one connection.
    #[must_use]
    pub fn info(&self, id: ConnId) -> Option<ConnInfo> {
        let conn = self.live(id)?;
        Some(ConnInfo {
            id,
            peer: self.sys.peer(conn.fd),
            mode: conn.mode,
            queued_bytes: conn.backlog(),
            idle_seconds: self
                .timers
                .seconds_between(conn.last_active, self.timers.tick(self.now_ns)),
        })
    }

    fn live(&self, id: ConnId) -> Option<&Conn<H::User>> {
        let conn = self.slab.get(id.slot())?;
        (conn.generation == id.generation() && conn.mode != Mode::Dead).then_some(conn)
    }

    pub(crate) fn live_mut(&mut self, id: ConnId) -> Option<&mut Conn<H::User>> {
        let conn = self.slab.get_mut(id.slot())?;
        (conn.generation == id.generation() && conn.mode != Mode::Dead).then_some(conn)
    }

    // ---- sending ----

    /// Sends one message to an open WebSocket. A reply to the connection being read leaves with
    /// all others at the end of that read; anything else leaves now as far as the kernel takes it.
    pub fn send(&mut self, id: ConnId, opcode: OpCode, data: &[u8]) -> Sent {
        let slot = id.slot();
        self.counters().messages_out.add(1);
        let Some(conn) = self
            .slab
            .get(slot)
            .filter(|conn| {
                conn.generation == id.generation() || planted::on(Bug::GenerationIgnored)
            })
            .filter(|conn| conn.mode == Mode::WebSocket)
        else {
            self.counters().dropped_gone.add(1);
            return Sent::Dropped;
        };
        let (client, backlog, weight) = (conn.is_client(), conn.backlog(), conn.weight());
        if weight > self.limits.send_queue_bytes && !self.relieve(slot, data.len(), 1) {
            return Sent::Dropped;
        }
        let mask = client.then(|| (self.sys.random() as u32).to_ne_bytes());
        if self.corked == Some(slot) {
            encode(&mut self.cork, opcode, data, mask);
            self.cork_messages += 1;
            if self.cork.len() >= CORK_BYTES {
                self.flush_cork();
            }
            return Sent::Sent;
        }
        if backlog == 0 && mask.is_none() && data.len() >= VECTORED_BYTES {
            let header = FrameHeader::new(opcode, true, data.len(), None);
            return self.write_pieces(slot, header.as_slice(), data);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(&mut scratch, opcode, data, mask);
        let sent = self.write_out(slot, &scratch, 1);
        scratch.shrink_to(CORK_BYTES);
        self.scratch = scratch;
        sent
    }

    /// Sends a frame that many connections share to an open WebSocket or raw connection that we
    /// accepted. What the kernel refuses is queued as a reference.
    pub fn send_shared(&mut self, id: ConnId, frame: &SharedFrame) -> Sent {
        let messages = u64::from(frame.messages());
        self.counters().messages_out.add(messages);
        let Some(conn) =
            self.live(id).filter(|conn| matches!(conn.mode, Mode::WebSocket | Mode::Raw))
        else {
            self.counters().dropped_gone.add(messages);
            return Sent::Dropped;
        };
        let (fd, backlog, weight, slot) = (conn.fd, conn.backlog(), conn.weight(), id.slot());
        debug_assert!(!conn.is_client(), "a client's frames are masked one by one");
        let length = frame.bytes().len();
        if backlog > 0
            && weight + length > self.limits.send_queue_bytes
            && !self.relieve(slot, length, messages)
        {
            return Sent::Dropped;
        }
        if self.corked == Some(slot) {
            self.cork.extend_from_slice(frame.bytes());
            self.cork_messages += frame.messages();
            return Sent::Sent;
        }
        let mut sent = 0;
        if backlog == 0 {
            sent = match self.sys.send(fd, frame.bytes()) {
                Ok(sent) => sent,
                Err(error) if would_block(&error) => 0,
                Err(_) => return self.lost(slot, messages),
            };
            self.counters().bytes_out.add(sent as u64);
            if sent == length {
                return Sent::Sent;
            }
        }
        self.queue(slot, |cold| cold.queue.push_shared(frame, sent))
    }

    /// Sends bytes on a raw connection.
    pub fn write(&mut self, id: ConnId, bytes: &[u8]) -> Sent {
        let slot = id.slot();
        let Some(conn) = self.live(id).filter(|conn| conn.mode == Mode::Raw) else {
            return Sent::Dropped;
        };
        if conn.weight() > self.limits.send_queue_bytes && !self.relieve(slot, bytes.len(), 0) {
            return Sent::Dropped;
        }
        if self.corked == Some(slot) {
            self.cork.extend_from_slice(bytes);
            return Sent::Sent;
        }
        self.write_out(slot, bytes, 0)
    }

    /// Sends a ping with at most 125 bytes. Like pongs and close frames it is exempt from the
    /// queue's limit.
    pub fn ping(&mut self, id: ConnId, payload: &[u8]) -> Sent {
        let Some(conn) = self.live(id).filter(|conn| conn.mode == Mode::WebSocket) else {
            return Sent::Dropped;
        };
        let client = conn.is_client();
        self.counters().pings_out.add(1);
        self.send_control(id.slot(), client, OpCode::Ping, payload)
    }

    pub(crate) fn send_control(
        &mut self,
        slot: u32,
        client: bool,
        opcode: OpCode,
        payload: &[u8],
    ) -> Sent {
        let mask = client.then(|| (self.sys.random() as u32).to_ne_bytes());
        let payload = payload.get(..125).unwrap_or(payload);
        if self.corked == Some(slot) {
            encode(&mut self.cork, opcode, payload, mask);
            return Sent::Sent;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(&mut scratch, opcode, payload, mask);
        let sent = self.write_out(slot, &scratch, 0);
        self.scratch = scratch;
        sent
    }

    /// Makes room in a full queue as the policy says. False: the new messages are dropped.
    fn relieve(&mut self, slot: u32, room: usize, messages: u64) -> bool {
        let (policy, limit) = (self.limits.slow_consumer, self.limits.send_queue_bytes);
        let Some(conn) = self.slab.get_mut(slot) else { return false };
        let queue = &mut conn.cold.get_or_insert_default().queue;
        let before = queue.len();
        let dropped = match policy {
            SlowConsumer::Disconnect => 0,
            SlowConsumer::DropOldest => queue.drop_oldest(room, limit),
            SlowConsumer::LatestOnly => queue.drop_publications(),
        };
        let freed = (before - queue.len()) as u64;
        let fits = queue.weight() + room <= limit;
        self.counters().queued_bytes.sub(freed);
        self.counters().dropped_slow.add(dropped + if fits { 0 } else { messages });
        if policy == SlowConsumer::Disconnect {
            let reason = "reading too slowly";
            self.close_with(slot, Closed::SlowConsumer, Some(CloseCode::TRY_AGAIN_LATER), reason);
        }
        fits
    }

    /// Writes bytes of one connection, behind what waits already.
    pub(crate) fn write_out(&mut self, slot: u32, bytes: &[u8], messages: u32) -> Sent {
        let Some(conn) = self.slab.get(slot).filter(|conn| conn.mode != Mode::Dead) else {
            self.counters().dropped_gone.add(u64::from(messages));
            return Sent::Dropped;
        };
        let mut sent = 0;
        if conn.backlog() == 0 {
            sent = match self.sys.send(conn.fd, bytes) {
                Ok(sent) => sent,
                Err(error) if would_block(&error) => 0,
                Err(_) => return self.lost(slot, u64::from(messages)),
            };
            self.counters().bytes_out.add(sent as u64);
            if sent == bytes.len() {
                return Sent::Sent;
            }
        }
        self.queue(slot, |cold| cold.queue.push_rest(bytes, sent, messages))
    }

    /// The kernel says that the peer is gone, and messages for it with it.
    fn lost(&mut self, slot: u32, messages: u64) -> Sent {
        self.counters().dropped_gone.add(messages);
        self.end(slot, Closed::Reset);
        Sent::Dropped
    }

    /// Writes a header and a payload without copying them together.
    fn write_pieces(&mut self, slot: u32, header: &[u8], data: &[u8]) -> Sent {
        let Some(conn) = self.slab.get(slot) else { return Sent::Dropped };
        let pieces = [IoSlice::new(header), IoSlice::new(data)];
        let sent = match self.sys.send_vectored(conn.fd, &pieces) {
            Ok(sent) => sent,
            Err(error) if would_block(&error) => 0,
            Err(_) => return self.lost(slot, 1),
        };
        self.counters().bytes_out.add(sent as u64);
        if sent == header.len() + data.len() {
            return Sent::Sent;
        }
        self.queue(slot, |cold| {
            cold.queue.push_torn(header.get(sent..).unwrap_or_default(), false);
            let cut = if planted::on(Bug::CutMiscounted) { 0 } else { header.len() };
            let skip = sent.saturating_sub(cut);
            cold.queue.push_torn(data.get(skip..).unwrap_or_default(), true);
        })
    }

    /// Adds to a queue by `push` and sees that it will be flushed.
    fn queue(&mut self, slot: u32, push: impl FnOnce(&mut Cold)) -> Sent {
        let stall = self.limits.send_queue_bytes / 4;
        let Some(conn) = self.slab.get_mut(slot) else { return Sent::Dropped };
        let cold = conn.cold();
        let before = cold.queue.len();
        push(cold);
        let waiting = cold.queue.len();
        if waiting > stall {
            conn.flags.set(Flags::STALLED);
        }
        conn.flags.set(Flags::TELL_DRAINED);
        self.counters().queued_bytes.add((waiting - before) as u64);
        self.sync_interest(slot);
        Sent::Queued(waiting)
    }

    /// Writes what was gathered for the connection being read.
    pub(crate) fn flush_cork(&mut self) {
        let Some(slot) = self.corked else { return };
        if self.cork.is_empty() {
            return;
        }
        let mut cork = std::mem::take(&mut self.cork);
        let messages = std::mem::take(&mut self.cork_messages);
        self.write_out(slot, &cork, messages);
        cork.clear();
        if cork.capacity() > CORK_BYTES * 2 {
            cork.shrink_to(CORK_BYTES * 2);
        }
        self.cork = cork;
    }

    /// Flushes a queue after the kernel reported room.
    pub(crate) fn flush(&mut self, slot: u32) {
        let mut budget = FLUSH_BYTES_PER_TURN;
        while budget > 0 {
            let Some(conn) = self.slab.get_mut(slot) else { return };
            let fd = conn.fd;
            let Some(cold) = conn.cold.as_mut().filter(|cold| !cold.queue.is_empty()) else {
                break;
            };
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let filled = cold.queue.slices(&mut pieces);
            let result = match pieces.get(..filled) {
                Some([one]) => self.sys.send(fd, one),
                Some(many) => self.sys.send_vectored(fd, many),
                None => Ok(0),
            };
            match result {
                Ok(0) => break,
                Ok(sent) => {
                    cold.queue.advance(sent);
                    if conn.flags.has(Flags::STALLED) {
                        // Its pongs are not read, so that it takes bytes is the sign of life.
                        conn.last_active = self.timers.tick(self.now_ns);
                    }
                    self.counters().bytes_out.add(sent as u64);
                    self.counters().queued_bytes.sub(sent as u64);
                    budget = budget.saturating_sub(sent);
                }
                Err(error) if would_block(&error) => break,
                Err(_) => return self.end(slot, Closed::Reset),
            }
        }
        self.after_flush(slot);
    }

    fn after_flush(&mut self, slot: u32) {
        let stall = self.limits.send_queue_bytes / 8;
        let Some(conn) = self.slab.get_mut(slot) else { return };
        if conn.mode == Mode::Dead {
            return;
        }
        let backlog = conn.backlog();
        if backlog <= stall && conn.flags.has(Flags::STALLED) {
            conn.flags.clear(Flags::STALLED);
            self.resume_soon(slot);
        }
        if backlog > 0 {
            return;
        }
        let Some(conn) = self.slab.get_mut(slot) else { return };
        let client = conn.is_client();
        let pong = conn.cold.as_mut().and_then(|cold| cold.pong.take());
        conn.thaw();
        let finish = conn.flags.has(Flags::FINISH);
        let close_sent = conn.flags.has(Flags::CLOSE_SENT);
        let tell = conn.flags.has(Flags::TELL_DRAINED);
        conn.flags.clear(Flags::TELL_DRAINED);
        if let Some(pong) = pong.filter(|_| !close_sent) {
            self.send_control(slot, client, OpCode::Pong, &pong);
        }
        if tell {
            self.drained.push(slot);
        }
        if finish {
            self.finish(slot);
        }
        self.sync_interest(slot);
    }

    // ---- reading ----

    /// Stops reading a connection; what was read but not yet delivered is kept.
    pub fn pause(&mut self, id: ConnId) {
        if let Some(conn) = self.live_mut(id) {
            conn.flags.set(Flags::PAUSED);
            self.sync_interest(id.slot());
        }
    }

    /// Takes up reading again, first with what was kept.
    pub fn resume(&mut self, id: ConnId) {
        if let Some(conn) = self.live_mut(id) {
            conn.flags.clear(Flags::PAUSED);
            self.resume_soon(id.slot());
        }
    }

    pub(crate) fn resume_soon(&mut self, slot: u32) {
        self.sync_interest(slot);
        let Some(conn) = self.slab.get_mut(slot) else { return };
        let has_tail = conn.cold.as_ref().is_some_and(|cold| !cold.tail.is_empty());
        if has_tail && !conn.flags.has(Flags::RESUMED) {
            conn.flags.set(Flags::RESUMED);
            self.resumed.push_back(slot);
        }
    }

    // ---- ending ----

    /// Begins the closing handshake of a WebSocket; a connection in another mode is ended.
    pub fn close(&mut self, id: ConnId, code: CloseCode, reason: &str) {
        if self.live(id).is_some() {
            self.close_with(id.slot(), Closed::ByUs, Some(code), reason);
        }
    }

    /// Ends a connection at once, without a close frame.
    pub fn abort(&mut self, id: ConnId) {
        if self.live(id).is_some() {
            self.end(id.slot(), Closed::Aborted);
        }
    }

    /// Ends a connection at once by RST, which leaves no `TIME_WAIT` behind.
    pub fn reset(&mut self, id: ConnId) {
        if let Some(fd) = self.live(id).map(|conn| conn.fd) {
            self.sys.reset_on_close(fd);
            self.end(id.slot(), Closed::Aborted);
        }
    }

    pub(crate) fn close_with(
        &mut self,
        slot: u32,
        cause: Closed,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        let Some(conn) = self.slab.get_mut(slot) else { return };
        match conn.mode {
            Mode::WebSocket => {
                conn.mode = Mode::Closing;
                conn.closed = cause;
                conn.flags.clear(Flags::PAUSED | Flags::STALLED);
                let client = conn.is_client();
                self.send_close(slot, client, code, reason);
                self.arm_close(slot);
                self.resume_soon(slot);
            }
            Mode::Raw => {
                conn.closed = cause;
                self.finish(slot);
            }
            Mode::Closing | Mode::Lingering | Mode::Dead => {}
            Mode::Connecting | Mode::Http | Mode::Parked => self.end(slot, cause),
        }
    }

    pub(crate) fn send_close(
        &mut self,
        slot: u32,
        client: bool,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        let Some(conn) = self.slab.get_mut(slot) else { return };
        if conn.flags.has(Flags::CLOSE_SENT) {
            return;
        }
        conn.flags.set(Flags::CLOSE_SENT);
        let mask = client.then(|| (self.sys.random() as u32).to_ne_bytes());
        if self.corked == Some(slot) {
            websocket::encode_close(&mut self.cork, code, reason, mask);
            return;
        }
        let mut frame = Vec::new();
        websocket::encode_close(&mut frame, code, reason, mask);
        self.write_out(slot, &frame, 0);
    }

    /// Ends our side of the stream once everything has left, and waits for the peer's end.
    pub(crate) fn finish(&mut self, slot: u32) {
        let corked = self.corked == Some(slot) && !self.cork.is_empty();
        let Some(conn) = self.slab.get_mut(slot) else { return };
        if conn.mode == Mode::Dead {
            return;
        }
        if conn.mode != Mode::Lingering {
            conn.mode = Mode::Lingering;
            self.arm_close(slot);
        }
        let Some(conn) = self.slab.get_mut(slot) else { return };
        conn.flags.clear(Flags::PAUSED | Flags::STALLED);
        if corked || conn.backlog() > 0 {
            conn.flags.set(Flags::FINISH);
        } else {
            conn.flags.clear(Flags::FINISH);
            let fd = conn.fd;
            self.sys.shutdown_write(fd);
        }
        self.sync_interest(slot);
    }

    /// Marks a connection as ended; it is told and freed at the end of the turn.
    pub(crate) fn end(&mut self, slot: u32, cause: Closed) {
        let Some(conn) = self.slab.get_mut(slot) else { return };
        match conn.mode {
            Mode::Dead => return,
            // Why it is closing was settled when that began.
            Mode::Closing | Mode::Lingering => {}
            _ => conn.closed = cause,
        }
        conn.mode = Mode::Dead;
        self.dead.push(slot);
    }

    fn arm_close(&mut self, slot: u32) {
        let timeout = self.limits.close_timeout;
        if let Some(conn) = self.slab.get(slot) {
            self.timers.closing.push(self.now_ns, timeout, slot, conn.generation);
        }
    }

    // ---- connections ----

    /// Begins a connect and the WebSocket handshake of one of this worker's targets. How it went
    /// is told by the handler's `open` or `closed`.
    ///
    /// # Errors
    /// What the kernel refused at once; nothing was counted then. `EADDRNOTAVAIL` means that the
    /// source has no port left for this destination.
    pub fn connect(&mut self, target: u8, source: Option<IpAddr>) -> io::Result<ConnId> {
        let address = self.targets.get(usize::from(target)).ok_or(io::ErrorKind::NotFound)?.address;
        let fd = self.sys.connect(address, source)?;
        self.counters().connects.add(1);
        let slot = self.insert(fd, Mode::Connecting);
        let generation = {
            let Some(conn) = self.slab.get_mut(slot) else {
                return Err(io::ErrorKind::Other.into());
            };
            conn.flags.set(Flags::CLIENT | Flags::DEADLINE);
            conn.target = target;
            conn.generation
        };
        let timeout = self.limits.handshake_timeout;
        self.timers.handshake.push(self.now_ns, timeout, slot, generation);
        self.begin_handshake(slot);
        Ok(ConnId::new(self.index, slot, generation))
    }

    /// Adds a place to connect to; at most 256 per worker.
    ///
    /// # Errors
    /// The 257th is refused.
    pub fn add_target(&mut self, target: Target) -> io::Result<u8> {
        let index = u8::try_from(self.targets.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.targets.push(target);
        Ok(index)
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
            last_active: self.timers.tick(self.now_ns),
            flags: Flags::default(),
            mode,
            closed: Closed::Aborted,
            target: 0,
        });
        self.counters().connections.add(1);
        self.publish_open();
        slot
    }

    /// Tells the other workers how full this one is.
    pub(crate) fn publish_open(&self) {
        let mailbox = &self.remote.shared.mailboxes[usize::from(self.index)];
        mailbox.open.store(self.slab.live(), Ordering::Relaxed);
        mailbox.exhausted.store(false, Ordering::Relaxed);
    }

    /// Makes epoll watch exactly what the connection now waits for.
    pub(crate) fn sync_interest(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return };
        let paused = conn.flags.has(Flags::PAUSED | Flags::STALLED);
        let interest = Interest {
            read: !paused
                && matches!(
                    conn.mode,
                    Mode::Http | Mode::WebSocket | Mode::Raw | Mode::Closing | Mode::Lingering
                ),
            write: conn.mode == Mode::Connecting
                || conn.backlog() > 0 && !planted::on(Bug::RoomForgotten),
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

    /// Hands a new connection to epoll.
    pub(crate) fn watch_first(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return };
        if conn.mode == Mode::Dead || conn.flags.has(Flags::WATCHED) {
            return;
        }
        let interest = match conn.mode {
            Mode::Connecting => Interest::WRITE,
            Mode::Parked => Interest::NONE,
            _ => Interest { read: true, write: conn.backlog() > 0 },
        };
        self.watch(slot, interest);
        self.sync_interest(slot);
    }

    fn watch(&mut self, slot: u32, interest: Interest) {
        let Some(conn) = self.slab.get_mut(slot) else { return };
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
            // ENOMEM or ENOSPC: a connection nobody watches would hang for ever.
            self.end(slot, Closed::NoMemory);
        }
    }

    // ---- buffers ----

    /// The read buffer, to be put back. An empty worker has none.
    #[inline]
    pub(crate) fn take_read_buffer(&mut self) -> Vec<u8> {
        let buffer = std::mem::take(&mut self.read_buffer);
        if buffer.is_empty() { vec![0; TAIL_BYTES_MAX + READ_BUFFER_BYTES] } else { buffer }
    }

    /// Gives back what only connections need, when there are none.
    pub(crate) fn release_buffers(&mut self) {
        self.read_buffer = Vec::new();
        self.cork = Vec::new();
        self.scratch = Vec::new();
        self.resumed = VecDeque::new();
        self.drained = Vec::new();
        self.dead = Vec::new();
        self.pool = Vec::new();
    }

    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    pub(crate) fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        if self.pool.len() < POOLED_BUFFERS && buffer.capacity() <= POOLED_BUFFER_BYTES {
            buffer.clear();
            self.pool.push(buffer);
        }
    }
}

/// The key under which a connection is watched: an event for an earlier user of the slot does not
/// match its generation.
pub(crate) fn key_of(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn encode(out: &mut Vec<u8>, opcode: OpCode, data: &[u8], mask: Option<[u8; 4]>) {
    match mask {
        None => websocket::encode(out, opcode, data),
        Some(mask) => websocket::encode_masked(out, opcode, data, mask),
    }
}
