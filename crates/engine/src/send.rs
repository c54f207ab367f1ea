//! Sending: replies are collected and sent together, publications are shared, and what the kernel
//! does not take waits in a queue with a limit.

use std::io::{self, IoSlice};

use wire::websocket::{self, CloseCode, FrameHeader, OpCode};

use crate::conn::{Cold, Conn, Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{CORK_BYTES, FLUSH_BYTES_PER_TURN, VECTORED_BYTES};
use crate::queue::PIECES_MAX;
use crate::sys::Sys;
use crate::tls::Transmitter;
use crate::{Closed, ConnId, Handler, SharedFrame, SlowConsumer};

/// What became of a message, or of bytes, that were sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The kernel took it, or it is sent at the end of this read.
    Sent,
    /// It waits; the queue now holds this many bytes.
    Queued(usize),
    /// The connection is closed or closing, or its queue was full. Counted.
    Dropped,
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Sends one message to an open WebSocket. A reply to the connection being read is sent with
    /// all others at the end of that read; anything else at once, as far as the kernel takes it.
    pub fn send(&mut self, id: ConnId, opcode: OpCode, data: &[u8]) -> Sent {
        self.send_as(id, opcode, data, true)
    }

    /// As [`Core::send`], but never compressed: for data that is compressed already.
    pub fn send_uncompressed(&mut self, id: ConnId, opcode: OpCode, data: &[u8]) -> Sent {
        self.send_as(id, opcode, data, false)
    }

    /// Always inlined, with a constant `compress`: [`Core::send`] does not pay for the choice.
    #[inline(always)]
    fn send_as(&mut self, id: ConnId, opcode: OpCode, data: &[u8], compress: bool) -> Sent {
        let slot = id.slot();
        self.counters().messages_out.add(1);
        if self.corked != Some(slot) {
            self.settle();
        }
        let Some(conn) = self.slab.get(slot).filter(|conn| conn.generation == id.generation())
        else {
            self.counters().dropped_gone.add(1);
            return Sent::Dropped;
        };
        if conn.mode != Mode::WebSocket {
            return self.send_line(slot, data);
        }
        let (compresses, weight) = (conn.deflate.compresses(), conn.weight());
        if weight > self.least_queue_bytes
            && self.exceeds_queue(slot, weight)
            && !self.relieve(slot, data.len(), 1)
        {
            return Sent::Dropped;
        }
        if compress && compresses && data.len() >= self.limits.compress_above_bytes {
            return self.send_deflated(slot, opcode, data);
        }
        self.send_frame(slot, opcode, false, data)
    }

    /// Sends one message as a frame to an open WebSocket whose queue has room.
    #[inline]
    pub(crate) fn send_frame(
        &mut self,
        slot: u32,
        opcode: OpCode,
        deflated: bool,
        data: &[u8],
    ) -> Sent {
        let Some(conn) = self.slab.get(slot) else {
            broken(SLOT_IN_USE);
            return Sent::Dropped;
        };
        let (client, backlog) = (conn.is_client(), conn.backlog());
        let mask = client.then(|| (self.sys.random() as u32).to_ne_bytes());
        if self.corked == Some(slot) {
            encode(&mut self.cork, opcode, deflated, data, mask);
            self.cork_messages += 1;
            if self.cork.len() >= CORK_BYTES {
                self.flush_cork();
            }
            return Sent::Sent;
        }
        if backlog == 0 && mask.is_none() && data.len() >= VECTORED_BYTES {
            let header = FrameHeader::new(opcode, true, data.len(), None);
            let header = if deflated { header.deflated() } else { header };
            return self.write_pieces(slot, header.as_slice(), data);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(&mut scratch, opcode, deflated, data, mask);
        let sent = self.write_out(slot, &scratch, 1);
        scratch.shrink_to(CORK_BYTES);
        self.scratch = scratch;
        sent
    }

    /// Sends a frame that many connections share to an accepted connection, an open WebSocket or
    /// raw. What the kernel does not take is queued as a reference.
    pub fn send_shared(&mut self, id: ConnId, frame: &SharedFrame) -> Sent {
        let messages = u64::from(frame.messages());
        self.counters().messages_out.add(messages);
        let slot = id.slot();
        self.settle();
        let Some(conn) = self.live(id) else {
            self.counters().dropped_gone.add(messages);
            return Sent::Dropped;
        };
        if !matches!(conn.mode, Mode::WebSocket | Mode::Raw) {
            return self.send_shared_lines(slot, frame);
        }
        let (backlog, weight) = (conn.backlog(), conn.weight());
        debug_assert!(!conn.is_client(), "each frame of a client has its own mask");
        if conn.deflate.keeps_out() {
            self.reset_compressor(slot);
        }
        let length = frame.bytes().len();
        if backlog > 0
            && weight + length > self.least_queue_bytes
            && self.exceeds_queue(slot, weight + length)
            && !self.relieve(slot, length, messages)
        {
            self.keep_dropped(id, frame);
            return Sent::Dropped;
        }
        if self.corked == Some(slot) {
            self.cork.extend_from_slice(frame.bytes());
            self.cork_messages += frame.messages();
            return Sent::Sent;
        }
        let mut sent = 0;
        if backlog == 0 {
            sent = match self.transmit(slot, frame.bytes()) {
                Ok(sent) => sent,
                Err(error) => return self.lost(slot, messages, &error),
            };
            if sent == length {
                return Sent::Sent;
            }
        }
        self.queue(slot, |cold| cold.queue.push_shared(frame, sent))
    }

    /// Sends a small frame ahead of everything that waits for an accepted connection, an open
    /// WebSocket or raw, but never in the middle of another frame: a heartbeat by which the client
    /// judges the connection. It counts as no message, is exempt from the queue's limit, and of
    /// several that wait only the last is sent.
    pub fn send_urgent(&mut self, id: ConnId, frame: &SharedFrame) -> Sent {
        let slot = id.slot();
        self.settle();
        let open = |mode| matches!(mode, Mode::WebSocket | Mode::Raw);
        let Some(conn) = self.live(id).filter(|conn| open(conn.mode)) else {
            return Sent::Dropped;
        };
        debug_assert!(!conn.is_client(), "each frame of a client has its own mask");
        if conn.backlog() > 0 {
            return self.queue(slot, |cold| cold.queue.push_urgent(frame));
        }
        if self.corked == Some(slot) {
            self.cork.extend_from_slice(frame.bytes());
            return Sent::Sent;
        }
        self.write_out(slot, frame.bytes(), 0)
    }

    /// Sends bytes on a raw connection.
    #[inline]
    pub fn write(&mut self, id: ConnId, bytes: &[u8]) -> Sent {
        let slot = id.slot();
        if H::READS_SOCKETS_TOGETHER && self.corked != Some(slot) {
            self.settle();
        }
        let raw = |mode| matches!(mode, Mode::Raw | Mode::HalfClosed);
        let Some(conn) = self.live(id).filter(|conn| raw(conn.mode)) else {
            return Sent::Dropped;
        };
        if conn.cold.is_some() || self.corked == Some(slot) {
            return self.write_behind(id, bytes);
        }
        // Nothing waits and nothing is encrypted.
        let fd = conn.fd;
        let sent = self.split().1.sent(|sys| sys.send(fd, bytes));
        if matches!(sent, Ok(sent) if sent == bytes.len()) {
            return Sent::Sent;
        }
        self.written(slot, bytes, 0, sent)
    }

    /// Sends bytes on a raw connection after what waits or is collected.
    #[inline(never)]
    fn write_behind(&mut self, id: ConnId, bytes: &[u8]) -> Sent {
        let slot = id.slot();
        let Some(conn) = self.live(id) else {
            broken(SLOT_IN_USE);
            return Sent::Dropped;
        };
        let weight = conn.weight();
        if weight > self.least_queue_bytes
            && self.exceeds_queue(slot, weight)
            && !self.relieve(slot, bytes.len(), 0)
        {
            return Sent::Dropped;
        }
        self.write_after(slot, bytes)
    }

    fn write_after(&mut self, slot: u32, bytes: &[u8]) -> Sent {
        if self.corked == Some(slot) {
            self.cork.extend_from_slice(bytes);
            return Sent::Sent;
        }
        self.write_out(slot, bytes, 0)
    }

    /// As [`Core::write`], however much waits: for programs that limit themselves what they write, and whose
    /// bytes must not be left out in between.
    pub fn write_unlimited(&mut self, id: ConnId, bytes: &[u8]) -> Sent {
        match self.live(id).map(|conn| (conn.mode, conn.cold.is_some())) {
            Some((Mode::Raw | Mode::HalfClosed, true)) => self.write_after(id.slot(), bytes),
            _ => self.write(id, bytes),
        }
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
            encode(&mut self.cork, opcode, false, payload, mask);
            return Sent::Sent;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(&mut scratch, opcode, false, payload, mask);
        let sent = self.write_out(slot, &scratch, 0);
        self.scratch = scratch;
        sent
    }

    /// Makes room in a full queue according to the policy. Returns `false` if the new messages are
    /// dropped.
    pub(crate) fn relieve(&mut self, slot: u32, room: usize, messages: u64) -> bool {
        let (limit, policy) = self.queue_limit(slot);
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return false;
        };
        let queue = &mut conn.cold.get_or_insert_default().queue;
        let before = queue.len();
        let dropped = match policy {
            SlowConsumer::Disconnect | SlowConsumer::RefuseNew => 0,
            SlowConsumer::DropOldest => queue.drop_oldest(room, limit),
            SlowConsumer::LatestOnly => queue.drop_publications(),
        };
        let freed = (before - queue.len()) as u64;
        let fits = queue.weight() + room <= limit;
        let polled = !conn.has_socket();
        self.counters().queued_bytes.sub(freed);
        self.counters().polled_bytes.sub(if polled { freed } else { 0 });
        self.counters().dropped_slow.add(dropped + if fits { 0 } else { messages });
        if policy == SlowConsumer::Disconnect {
            let reason = "reading too slowly";
            self.close_with(slot, Closed::SlowConsumer, Some(CloseCode::TRY_AGAIN_LATER), reason);
        }
        fits
    }

    /// Writes bytes of one connection, after what already waits.
    pub(crate) fn write_out(&mut self, slot: u32, bytes: &[u8], messages: u32) -> Sent {
        self.settle();
        let Some(conn) = self.slab.get(slot).filter(|conn| conn.mode != Mode::Dead) else {
            self.counters().dropped_gone.add(u64::from(messages));
            return Sent::Dropped;
        };
        let sent = if conn.backlog() == 0 { self.transmit(slot, bytes) } else { Ok(0) };
        self.written(slot, bytes, messages, sent)
    }

    /// Queues the bytes that the kernel did not take.
    #[inline(never)]
    fn written(&mut self, slot: u32, bytes: &[u8], messages: u32, sent: io::Result<usize>) -> Sent {
        match sent {
            Ok(sent) if sent == bytes.len() => Sent::Sent,
            Ok(sent) => self.queue(slot, |cold| cold.queue.push_rest(bytes, sent, messages)),
            Err(error) if would_block(&error) => {
                self.queue(slot, |cold| cold.queue.push_rest(bytes, 0, messages))
            }
            Err(error) => self.lost(slot, u64::from(messages), &error),
        }
    }

    /// Sends what the kernel takes now, encrypted if the connection uses TLS; returns the number of
    /// bytes taken.
    #[inline]
    fn transmit(&mut self, slot: u32, bytes: &[u8]) -> io::Result<usize> {
        self.transmit_by(slot, |transmitter, conn| transmitter.send(conn, bytes))
    }

    #[inline]
    fn transmit_by(
        &mut self,
        slot: u32,
        send: impl FnOnce(&mut Transmitter<'_, S>, &mut Conn<H::User>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let (slab, mut transmitter) = self.split();
        let Some(conn) = slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Ok(0);
        };
        let sent = send(&mut transmitter, conn);
        if conn.cold.is_some() && conn.waits() {
            // TLS records wait for room in the kernel.
            self.sync_interest(slot);
        }
        match sent {
            Err(error) if would_block(&error) => Ok(0),
            other => other,
        }
    }

    /// Ends a connection after a write error; its messages count as dropped.
    fn lost(&mut self, slot: u32, messages: u64, error: &io::Error) -> Sent {
        self.counters().dropped_gone.add(messages);
        self.end(slot, Closed::from_io_error(error));
        Sent::Dropped
    }

    /// Writes a header and a payload without copying them together.
    fn write_pieces(&mut self, slot: u32, header: &[u8], data: &[u8]) -> Sent {
        let pieces = [IoSlice::new(header), IoSlice::new(data)];
        let sent = self.transmit_by(slot, |transmitter, conn| {
            let tls = conn.cold.as_mut().and_then(|cold| cold.tls.as_deref_mut());
            transmitter.send_pieces(conn.fd, tls, &pieces)
        });
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => return self.lost(slot, 1, &error),
        };
        if sent == header.len() + data.len() {
            return Sent::Sent;
        }
        self.queue(slot, |cold| {
            cold.queue.push_partial(header.get(sent..).unwrap_or_default(), false);
            let skip = sent.saturating_sub(header.len());
            cold.queue.push_partial(data.get(skip..).unwrap_or_default(), true);
        })
    }

    /// Adds to a queue with `push` and makes sure that it will be flushed.
    fn queue(&mut self, slot: u32, push: impl FnOnce(&mut Cold)) -> Sent {
        let stall = self.queue_limit(slot).0 / 4;
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Sent::Dropped;
        };
        // The handler of a raw connection pauses what feeds the queue itself. Its peer may send
        // something that ends the need for the queue, which must be read.
        let raw = matches!(conn.mode, Mode::Raw | Mode::HalfClosed);
        let cold = conn.cold();
        let before = cold.queue.len();
        push(cold);
        let waiting = cold.queue.len();
        if waiting > stall && !raw {
            conn.flags.set(Flags::STALLED);
        }
        conn.flags.set(Flags::NOTIFY_DRAINED);
        self.counters().queued_bytes.add(waiting.saturating_sub(before) as u64);
        self.counters().queued_bytes.sub(before.saturating_sub(waiting) as u64);
        self.sync_interest(slot);
        Sent::Queued(waiting)
    }

    /// From now on, collects what is sent to an open WebSocket, until [`Core::end_cork`]. Returns
    /// `false` and has no effect if something is being collected already, as it is during a read.
    pub fn begin_cork(&mut self, id: ConnId) -> bool {
        let open = self.live(id).is_some_and(|conn| conn.mode == Mode::WebSocket);
        let begins = open && self.corked.is_none();
        if begins {
            self.corked = Some(id.slot());
        }
        begins
    }

    /// Sends what was collected since [`Core::begin_cork`] returned `true`, with one system call.
    pub fn end_cork(&mut self) {
        self.flush_cork();
        self.corked = None;
    }

    /// Writes what was collected for the connection being read.
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
        if !self.flush_records(slot) {
            return;
        }
        let mut budget = FLUSH_BYTES_PER_TURN;
        let tick = self.tick;
        while budget > 0 {
            let (slab, mut transmitter) = self.split();
            let Some(conn) = slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
            let fd = conn.fd;
            let Some(cold) = conn.cold.as_mut().filter(|cold| !cold.queue.is_empty()) else {
                break;
            };
            let Cold { queue, tls, .. } = &mut **cold;
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let filled = queue.slices(&mut pieces);
            let pieces = pieces.get(..filled).unwrap_or_default();
            match transmitter.send_pieces(fd, tls.as_deref_mut(), pieces) {
                Ok(0) => break,
                Ok(sent) => {
                    queue.advance(sent);
                    if conn.flags.has(Flags::STALLED)
                        || matches!(conn.mode, Mode::Raw | Mode::HalfClosed)
                    {
                        // Its pongs are not read, so taking bytes counts as activity.
                        conn.last_active = tick;
                    }
                    self.counters().queued_bytes.sub(sent as u64);
                    budget = budget.saturating_sub(sent);
                }
                Err(error) if would_block(&error) => break,
                Err(error) => return self.end(slot, Closed::from_io_error(&error)),
            }
        }
        self.after_flush(slot);
    }

    fn after_flush(&mut self, slot: u32) {
        let stall = self.queue_limit(slot).0 / 8;
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if conn.mode == Mode::Dead {
            return;
        }
        let backlog = conn.backlog();
        if backlog <= stall && conn.flags.has(Flags::STALLED) {
            conn.flags.clear(Flags::STALLED);
            self.resume_soon(slot);
        }
        let Some(conn) = self.slab.get_mut(slot).filter(|conn| !conn.waits()) else { return };
        let client = conn.is_client();
        let pong = conn.cold.as_mut().and_then(|cold| cold.pong.take());
        conn.release_cold();
        let finish = conn.flags.has(Flags::FINISH);
        let close_sent = conn.flags.has(Flags::CLOSE_SENT);
        let notify = conn.flags.has(Flags::NOTIFY_DRAINED);
        conn.flags.clear(Flags::NOTIFY_DRAINED);
        if let Some(pong) = pong.filter(|_| !close_sent) {
            self.send_control(slot, client, OpCode::Pong, &pong);
        }
        if notify {
            self.drained.push(slot);
        }
        if finish {
            self.continue_finish(slot);
        }
        self.sync_interest(slot);
    }
}

pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[inline]
fn encode(out: &mut Vec<u8>, opcode: OpCode, deflated: bool, data: &[u8], mask: Option<[u8; 4]>) {
    match mask {
        _ if deflated => websocket::encode_deflated(out, opcode, data, mask),
        None => websocket::encode(out, opcode, data),
        Some(mask) => websocket::encode_masked(out, opcode, data, mask),
    }
}
