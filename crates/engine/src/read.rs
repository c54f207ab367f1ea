//! Reading: from a socket's bytes to the handler's calls. Bytes are processed in place in the
//! worker's one buffer; only an incomplete tail is copied to the connection.

use std::io;

use wire::websocket::{CloseCode, Event as FrameEvent, OpCode};
use wire::{Role, Status, Violation};

use crate::conn::{Conn, Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{MESSAGE_GROWS_BYTES, READ_BUFFER_BYTES};
use crate::send::would_block;
use crate::sys::{Event, Sys};
use crate::worker::Worker;
use crate::{Closed, ConnId, Handler, ServerFault};

impl<S: Sys, H: Handler> Worker<S, H> {
    /// One bounded read of a connection, and everything that follows from it.
    pub(crate) fn read(&mut self, slot: u32) {
        let core = &mut self.core;
        let Some(conn) = core.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        // The kept bytes of a resumed connection come first; they are processed in this same turn.
        if matches!(conn.mode, Mode::Dead | Mode::HalfClosed)
            || conn.mode == Mode::Parked && !conn.is_watched()
            || conn.flags.has(Flags::PAUSED | Flags::STALLED | Flags::RESUMED)
        {
            return;
        }
        if conn.mode == Mode::Parked && conn.has_tail() {
            // It has sent more than its request, and is not read before the answer.
            if let Some(parked) = conn.cold.as_mut().and_then(|cold| cold.parked.as_mut()) {
                parked.unwatch();
            }
            return core.sync_interest(slot);
        }
        let kept = match &conn.cold {
            None => 0,
            Some(cold) if cold.tls.is_some() => return self.read_tls(slot),
            Some(cold) => cold.tail.len(),
        };
        let fd = conn.fd;
        let mut buffer = core.take_read_buffer();
        let room = buffer.get_mut(kept..kept + READ_BUFFER_BYTES).unwrap_or_default();
        assert!(!room.is_empty(), "a tail is at most TAIL_BYTES_MAX");
        match core.sys.recv(fd, room) {
            Ok(got) if got > 0 => {
                core.count_received(slot, got);
                match buffer.get_mut(..kept + got) {
                    Some(bytes) => {
                        if kept > 0 {
                            self.core.restore_tail(slot, bytes);
                        }
                        self.ingest(slot, bytes, 0);
                    }
                    None => broken("a read ends within its buffer"),
                }
            }
            other => self.on_empty_read(slot, other),
        }
        self.core.read_buffer = buffer;
    }

    /// [`Worker::read`] of the connections that `events` begins with and that are
    /// [read together](Conn::is_read_together), in two steps: all are received, then each is passed to the
    /// handler, which usually sends the data on. This keeps code and data of each step in the processor's caches, and a receiver that
    /// wakes up finds more than one message. Returns how many events were handled.
    pub(crate) fn read_bare(&mut self, events: &[Event]) -> usize {
        let mut buffer = self.core.take_read_buffer();
        let mut ends = std::mem::take(&mut self.ends);
        let (mut at, mut odd) = (0, None);
        for event in events.iter().take(H::READS_TOGETHER) {
            let core = &mut self.core;
            // A read is never shortened because of those before it.
            let room = buffer.get_mut(at..at + READ_BUFFER_BYTES);
            let (Some(conn), Some(room)) = (core.slab.get_mut(event.slot()), room) else {
                break;
            };
            let is_its_own = event.readable
                && !event.writable
                && conn.is_read_together(H::READS_SOCKETS_TOGETHER);
            if conn.generation != event.generation() || !is_its_own {
                break;
            }
            match core.sys.recv(conn.fd, room) {
                Ok(got) if got > 0 => {
                    // A request head that trickles in does not count as activity.
                    if !H::READS_SOCKETS_TOGETHER || conn.mode != Mode::Http {
                        conn.last_active = core.tick;
                        conn.flags.clear(Flags::PINGED);
                    }
                    at += got;
                    ends.push((ConnId::new(core.index, event.slot(), conn.generation), at));
                }
                other => {
                    odd = Some((event.slot(), other));
                    break;
                }
            }
        }
        self.core.counters().bytes_in.add(at as u64);
        let mut from = 0;
        if H::READS_SOCKETS_TOGETHER && ends.len() > 1 {
            self.core.begin_deferring();
        }
        for &(id, to) in &ends {
            self.ingest_bare(id, buffer.get_mut(from..to).unwrap_or_default());
            from = to;
        }
        self.core.end_deferring();
        let handled = ends.len() + usize::from(odd.is_some());
        if let Some((slot, got)) = odd {
            // The end of a stream is reported again if the connection was paused meanwhile; an
            // error is not.
            let reads = |conn: &Conn<_>| conn.is_read_together(H::READS_SOCKETS_TOGETHER);
            if got.is_err() || self.core.slab.get(slot).is_some_and(reads) {
                self.on_empty_read(slot, got);
            }
        }
        ends.clear();
        self.ends = ends;
        self.core.read_buffer = buffer;
        handled
    }

    /// Handles a read that returned no bytes.
    #[cold]
    fn on_empty_read(&mut self, slot: u32, got: io::Result<usize>) {
        match got {
            Ok(_) => {
                self.on_end_of_stream(slot);
            }
            Err(error) if would_block(&error) => {}
            Err(error) => self.core.end(slot, Closed::from_io_error(&error)),
        }
    }

    /// Processes the kept bytes of a connection, without reading more.
    pub(crate) fn pump(&mut self, slot: u32) {
        let kept = self.core.slab.get(slot).and_then(|conn| conn.cold.as_ref());
        let kept = kept.map_or(0, |cold| cold.tail.len());
        let mut buffer = self.core.take_read_buffer();
        match buffer.get_mut(..kept) {
            Some(bytes) => {
                self.core.restore_tail(slot, bytes);
                self.ingest(slot, bytes, 0);
            }
            None => broken("a tail is at most TAIL_BYTES_MAX"),
        }
        self.core.read_buffer = buffer;
        self.core.sync_interest(slot);
    }

    /// [`Worker::ingest`] of a bare connection, unless those before it have changed that.
    #[inline]
    fn ingest_bare(&mut self, id: ConnId, bytes: &mut [u8]) {
        let slot = id.slot();
        if !self.core.slab.get(slot).is_some_and(Conn::is_bare) {
            return self.ingest(slot, bytes, 0);
        }
        self.core.corked = Some(slot);
        self.handler.data(&mut self.core, id, bytes);
        if self.core.unread > 0 {
            let used = bytes.len() - self.core.take_unread(slot).min(bytes.len());
            return self.ingest(slot, bytes, used);
        }
        if !self.core.cork.is_empty() {
            self.core.flush_cork();
        }
        self.core.corked = None;
        // The handler may have ended it, or sent on it.
        if !self.core.slab.get(slot).is_some_and(Conn::is_bare) {
            self.core.after_read(slot, &[]);
        }
    }

    /// Delivers everything complete in `bytes` from `at` on, writes the replies, keeps the rest.
    pub(crate) fn ingest(&mut self, slot: u32, bytes: &mut [u8], mut at: usize) {
        self.core.corked = Some(slot);
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let Some(conn) = self.core.slab.get(slot) else {
                broken(SLOT_IN_USE);
                break;
            };
            if conn.flags.has(Flags::PAUSED | Flags::STALLED) {
                break;
            }
            let before = (at, conn.mode);
            at += match conn.mode {
                Mode::Http => self.on_head(slot, rest),
                Mode::WebSocket | Mode::Closing => self.on_frames(slot, rest),
                Mode::Raw => self.on_raw(slot, rest),
                Mode::Lingering | Mode::HalfClosed | Mode::Dead => rest.len(),
                Mode::Connecting | Mode::Parked | Mode::Polled => break,
            };
            let mode = self.core.slab.get(slot).map(|conn| conn.mode);
            if before == (at, mode.unwrap_or(Mode::Dead)) {
                break;
            }
        }
        self.core.reply(slot);
        self.core.corked = None;
        self.core.after_read(slot, bytes.get(at..).unwrap_or_default());
        if std::mem::take(&mut self.core.unread_resumed)
            && let Some(id) = self.core.id_at(slot)
        {
            // The rest is kept only now.
            self.core.resume(id);
        }
    }

    #[inline(never)]
    fn on_raw(&mut self, slot: u32, bytes: &mut [u8]) -> usize {
        match self.core.id_at(slot) {
            Some(id) => self.handler.data(&mut self.core, id, bytes),
            None => broken("a raw connection is alive"),
        }
        bytes.len() - self.core.take_unread(slot).min(bytes.len())
    }

    /// Decodes frames until the bytes run out or the handler pauses; returns the bytes used.
    fn on_frames(&mut self, slot: u32, bytes: &mut [u8]) -> usize {
        let Some(conn) = self.core.slab.get(slot) else {
            broken(SLOT_IN_USE);
            return bytes.len();
        };
        let id = ConnId::new(self.core.index, slot, conn.generation);
        let role = if conn.is_client() { Role::Client } else { Role::Server };
        let mut open = conn.mode == Mode::WebSocket;
        let mut decoder = conn.decoder;
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            match decoder.decode(role, &self.core.limits.wire, rest) {
                Ok(Status::Complete((used, event))) => {
                    at += used;
                    self.on_event_of_peer(id, open, event);
                }
                Ok(Status::Partial) => break,
                Err(violation) => {
                    self.core.on_violation(slot, violation);
                    return bytes.len();
                }
            }
            // The handler may have closed, paused or ended it.
            let Some(conn) = self.core.slab.get_mut(slot) else {
                broken(SLOT_IN_USE);
                return bytes.len();
            };
            conn.decoder = decoder;
            open = conn.mode == Mode::WebSocket;
            if !(open || conn.mode == Mode::Closing)
                || conn.flags.has(Flags::PAUSED | Flags::STALLED)
            {
                break;
            }
        }
        at
    }

    #[inline]
    fn on_event_of_peer(&mut self, id: ConnId, open: bool, event: FrameEvent<'_>) {
        let core = &mut self.core;
        let slot = id.slot();
        let hears = open || H::HEARS_AFTER_CLOSE;
        match event {
            FrameEvent::Message { opcode, data, deflated: false } if hears => {
                core.counters().messages_in.add(1);
                self.handler.message(core, id, opcode, data);
            }
            FrameEvent::Message { opcode, data, deflated: true } if hears => {
                self.on_deflated(id, opcode, data);
            }
            FrameEvent::Fragment { opcode, data, last, deflated } if open => {
                if let Some(mut message) = core.gather(slot, data, last) {
                    if deflated {
                        self.on_deflated(id, opcode, &message);
                    } else {
                        core.counters().messages_in.add(1);
                        self.handler.message(core, id, opcode, &mut message);
                    }
                    self.core.give_buffer(message);
                }
            }
            FrameEvent::Ping(payload) if open => {
                core.answer_ping(slot, payload);
                self.handler.ping(core, id, payload);
            }
            FrameEvent::Pong(payload) if open => {
                core.counters().pongs_in.add(1);
                self.handler.pong(core, id, payload);
            }
            FrameEvent::Close { code, reason } => {
                if open {
                    self.handler.close_frame(core, id, code, reason);
                }
                core.peer_closes(slot, code);
            }
            // After our close frame the peer's data no longer matters (RFC 6455 section 5.5.1).
            _ => {}
        }
    }

    /// Handles the peer's end of the stream; returns `false` if the handler keeps our side open.
    pub(crate) fn on_end_of_stream(&mut self, slot: u32) -> bool {
        let Some(conn) = self.core.slab.get(slot) else {
            broken(SLOT_IN_USE);
            return true;
        };
        if conn.mode == Mode::Raw && !conn.flags.has(Flags::CLOSE_SENT) && self.keep_half_open(slot)
        {
            return false;
        }
        let Some(conn) = self.core.slab.get(slot) else {
            broken(SLOT_IN_USE);
            return true;
        };
        let cause = match conn.mode {
            Mode::Http if conn.flags.has(Flags::ANSWERED) => Closed::Answered,
            _ => Closed::Gone,
        };
        self.core.end(slot, cause);
        true
    }

    /// Asks the handler whether our side of a raw connection stays open without the peer's.
    fn keep_half_open(&mut self, slot: u32) -> bool {
        let Some(id) = self.core.id_at(slot) else {
            broken("a raw connection is alive");
            return false;
        };
        if !self.handler.ended(&mut self.core, id) {
            return false;
        }
        let Some(conn) = self.core.slab.get_mut(slot).filter(|conn| conn.mode == Mode::Raw) else {
            return true;
        };
        conn.mode = Mode::HalfClosed;
        let over = conn.flags.has(Flags::CLOSE_SENT);
        if over {
            self.core.end(slot, Closed::Gone);
        }
        self.core.sync_interest(slot);
        true
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Returns the last `bytes` of the data passed to [`Handler::data`]. They are delivered again,
    /// before what follows, when the connection is resumed or has returned to HTTP; until then it
    /// is not read. A later [`Core::resume`] in the same call counts, too.
    pub fn leave_unread(&mut self, bytes: usize) {
        self.unread = bytes;
        self.unread_resumed = false;
    }

    fn take_unread(&mut self, slot: u32) -> usize {
        let unread = std::mem::take(&mut self.unread);
        if unread > 0
            && let Some(conn) = self.slab.get_mut(slot).filter(|conn| conn.mode == Mode::Raw)
        {
            conn.flags.set(Flags::PAUSED);
            self.sync_interest(slot);
        }
        unread
    }

    /// Counts received bytes and marks an open connection as active.
    #[inline]
    pub(crate) fn count_received(&mut self, slot: u32, got: usize) {
        self.counters().bytes_in.add(got as u64);
        let tick = self.tick;
        // A request head that trickles in does not count as activity.
        if let Some(conn) = self.slab.get_mut(slot).filter(|c| c.mode != Mode::Http) {
            conn.last_active = tick;
            conn.flags.clear(Flags::PINGED);
        }
    }

    /// Puts the tail of the last read in front of the new bytes.
    pub(crate) fn restore_tail(&mut self, slot: u32, bytes: &mut [u8]) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let Some(cold) = conn.cold.as_mut().filter(|cold| !cold.tail.is_empty()) else { return };
        let tail = std::mem::take(&mut cold.tail);
        match bytes.get_mut(..tail.len()) {
            Some(front) => front.copy_from_slice(&tail),
            None => broken("room was left for the tail in front of the new bytes"),
        }
        self.give_buffer(tail);
    }

    /// Keeps what could not be delivered yet, or frees the connection's box if it holds nothing.
    pub(crate) fn after_read(&mut self, slot: u32, rest: &[u8]) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if conn.mode == Mode::Lingering {
            if conn.flags.has(Flags::FINISH) && !conn.waits() {
                self.finish(slot);
            }
        } else if !rest.is_empty() && conn.mode != Mode::Dead {
            let mut tail = self.take_buffer_to_keep(rest.len());
            tail.extend_from_slice(rest);
            let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
            conn.cold().tail = tail;
        } else if conn.cold.is_some() {
            conn.release_cold();
        }
    }

    /// Adds a fragment to the current message; returns the complete message with the last one.
    #[inline(never)]
    fn gather(&mut self, slot: u32, data: &[u8], last: bool) -> Option<Vec<u8>> {
        let Some(conn) = self.slab.get(slot) else {
            broken(SLOT_IN_USE);
            return None;
        };
        let fresh = conn.cold.as_ref().is_none_or(|cold| cold.message.capacity() == 0);
        let buffer = if fresh { self.take_buffer_to_keep(data.len()) } else { Vec::new() };
        let most = self.message_limit(slot);
        let conn = self.slab.get_mut(slot)?;
        let cold = conn.cold();
        if cold.message.len() + data.len() > most {
            self.on_violation(slot, Violation::MessageTooBig);
            return None;
        }
        if fresh {
            cold.message = buffer;
            cold.message_swept_bytes = 0;
        }
        cold.message.extend_from_slice(data);
        let message = last.then(|| std::mem::take(&mut cold.message))?;
        conn.flags.set_growth_span(0);
        conn.release_cold();
        Some(message)
    }

    #[inline(never)]
    fn answer_ping(&mut self, slot: u32, payload: &[u8]) {
        self.counters().pings_in.add(1);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let client = conn.is_client();
        if conn.backlog() > 0 {
            // Only the latest ping needs an answer (RFC 6455 section 5.5.3), so a peer that pings
            // without reading makes nothing grow.
            conn.cold().pong = Some(payload.into());
        } else {
            self.send_control(slot, client, OpCode::Pong, payload);
        }
    }

    #[inline(never)]
    fn peer_closes(&mut self, slot: u32, code: Option<CloseCode>) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let client = conn.is_client();
        if conn.mode == Mode::WebSocket {
            conn.closed = Closed::ByPeer;
            self.note_closing(slot);
        }
        self.send_close(slot, client, code, "");
        if client {
            // The server ends the stream first (RFC 6455 section 7.1.1); the timer guards us.
            self.await_end(slot);
        } else {
            self.finish(slot);
        }
    }

    /// Handles a protocol violation: sends its close code, ends our side, counts it.
    #[inline(never)]
    pub(crate) fn on_violation(&mut self, slot: u32, violation: Violation) {
        self.counters().count_violation(violation);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let client = conn.is_client();
        if conn.mode == Mode::WebSocket {
            conn.closed = Closed::Violation;
            self.note_closing(slot);
            self.violated.extend(self.id_at(slot).map(|id| (id, violation)));
            if client {
                self.server_faults.insert(slot, ServerFault::Violation(violation));
            }
        }
        let reason = violation.name();
        self.send_close(slot, client, Some(violation.close_code()), reason);
        self.finish(slot);
    }

    /// The keep-alive sweep's check of one slot.
    pub(crate) fn check_idle(&mut self, slot: u32) {
        let now = self.tick;
        let pings = self.limits.pings;
        let Some(conn) = self.slab.get(slot) else { return };
        let Some(idle_max) = self.timers.idle_after(self.idle_class(conn)) else { return };
        let ping_after = (idle_max / 2).max(1);
        let Some(conn) = self.slab.get_mut(slot) else { return };
        if conn.mode != Mode::WebSocket {
            return;
        }
        if conn.flags.has(Flags::PAUSED) {
            // The peer may be sending: we do not read.
            conn.last_active = now;
            return;
        }
        let idle = now.wrapping_sub(conn.last_active);
        if idle >= idle_max {
            let reason = "idle timeout";
            self.close_with(slot, Closed::IdleTimeout, Some(CloseCode::GOING_AWAY), reason);
        } else if pings && idle >= ping_after && !conn.flags.has(Flags::PINGED) {
            conn.flags.set(Flags::PINGED);
            let client = conn.is_client();
            self.counters().pings_out.add(1);
            self.send_control(slot, client, OpCode::Ping, b"");
        } else if idle < ping_after && self.is_unfinished(slot) {
            let reason = "message unfinished";
            self.close_with(slot, Closed::Unfinished, Some(CloseCode::POLICY), reason);
        }
    }

    /// Whether an active peer does not finish a message, which has hardly grown within the idle
    /// timeout, for example by empty fragments. For a silent peer the idle timeout itself applies.
    fn is_unfinished(&mut self, slot: u32) -> bool {
        let span = self.timers.span(self.now_ns);
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return false;
        };
        if !conn.decoder.is_within_message() || conn.flags.has(Flags::STALLED) {
            return false;
        }
        let length = conn.cold.as_ref().map_or(0, |cold| cold.message.len());
        let swept_bytes = conn.cold.as_ref().map_or(0, |cold| cold.message_swept_bytes);
        let begun = conn.flags.growth_span();
        if begun == 0 || length >= swept_bytes + MESSAGE_GROWS_BYTES {
            conn.flags.set_growth_span(span);
            if let Some(cold) = conn.cold.as_mut() {
                cold.message_swept_bytes = length;
            }
            return false;
        }
        (span + 3 - begun) % 3 == 2
    }
}
