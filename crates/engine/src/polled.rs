//! Polled connections: slots of the slab without a socket. Their client sends requests, and takes with
//! each what was sent to it since the last one: long polling. Until then it waits in the connection's
//! queue, with the limits of any queue.
//!
//! Messages for them are lines ([`LINES`]), not frames. Nothing here is on the path of sockets: the send
//! functions come here for a connection that is not an open WebSocket.

use crate::admission::Client;
use crate::conn::{Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::queue::SendQueue;
use crate::sys::{Fd, Sys};
use crate::{
    Closed, ConnId, Counters, Handler, Refusal, Response, Sent, SharedFrame, SlowConsumer,
};

/// The [encoding](Core::encoding) of polled connections. Not the window of a compressor, which all others
/// but 0 are.
pub(crate) const LINES: u8 = 1;

/// Memory of a polled connection beyond its queue, in bytes: its slot, its address, and what the handler
/// keeps of it.
const POLLED_BYTES: usize = 1024;

/// Appends a message as a line. JSON has line breaks only where a space has the same meaning.
pub(crate) fn encode_line(message: &[u8], out: &mut Vec<u8>) {
    let space = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
    out.extend(message.iter().map(space));
    out.push(b'\n');
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Opens a polled connection for the client of a request. It counts for its address as a further
    /// connection.
    ///
    /// # Errors
    /// The limit that admits no further connection. It is counted.
    pub fn open_polled(&mut self, request: ConnId) -> Result<ConnId, Refusal> {
        self.admit_polled(request).inspect_err(|why| self.counters().count_refused(*why))
    }

    fn admit_polled(&mut self, request: ConnId) -> Result<ConnId, Refusal> {
        if self.is_short_of_memory() {
            return Err(Refusal::MemoryLimit);
        }
        if self.is_at_capacity() {
            return Err(Refusal::Connections);
        }
        // With as much for its first messages.
        if !self.has_room_for_polled(2 * POLLED_BYTES) {
            return Err(Refusal::PolledBytes);
        }
        let (peer, client) = self.addresses(request);
        let address = client.or(peer);
        let key = match address.filter(|_| self.limits.admission.by_address()) {
            Some(address) => self.count_address(address)?,
            None => None,
        };
        let slot = self.insert(Fd::NONE, Mode::Polled);
        self.clients.insert(slot, Client { key, address, ..Client::default() });
        self.counters().polled_opened.add(1);
        self.counters().polled.add(1);
        self.id_at(slot).ok_or(Refusal::Connections)
    }

    /// Whether it is an open polled connection.
    #[must_use]
    pub fn is_polled(&self, id: ConnId) -> bool {
        self.mode(id) == Some(Mode::Polled)
    }

    /// Whether the handler has paused the connection.
    #[must_use]
    pub fn has_paused(&self, id: ConnId) -> bool {
        self.live(id).is_some_and(|conn| conn.flags.has(Flags::PAUSED))
    }

    /// A request of a polled connection brought this many messages.
    pub fn polled(&mut self, id: ConnId, messages: u64) {
        self.counters().messages_in.add(messages);
        let tick = self.tick;
        if let Some(conn) = self.live_mut(id) {
            conn.last_active = tick;
        }
    }

    /// Polled connections with something to take: their queue was empty before or has passed a quarter of
    /// its limit, or they are closing. Each call returns those since the last one.
    pub fn take_pollable(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.pollable)
    }

    /// Appends what waits for a polled connection to `out`; returns how many messages that is. One that is
    /// closing has ended then.
    pub fn take_output(&mut self, id: ConnId, out: &mut Vec<u8>) -> u32 {
        let Some(conn) = self.live_mut(id).filter(|conn| !conn.has_socket()) else { return 0 };
        let closing = conn.mode == Mode::Closing;
        let mut queue = conn.cold.as_mut().map(|cold| std::mem::take(&mut cold.queue));
        conn.release_cold();
        let (bytes, messages) = queue.as_mut().map_or((0, 0), |queue| queue.take_all(out));
        self.counters().queued_bytes.sub(bytes);
        self.counters().polled_bytes.sub(bytes);
        if closing {
            self.end(id.slot(), Closed::ByUs);
        }
        u32::try_from(messages).unwrap_or(u32::MAX)
    }

    /// Returns to a polled connection what was taken and could not be delivered: it is the next to be taken.
    /// If it has ended, the messages count as dropped.
    pub fn give_back(&mut self, id: ConnId, bytes: &[u8], messages: u32) {
        let Some(conn) = self.live_mut(id).filter(|conn| !conn.has_socket()) else {
            return self.counters().dropped_gone.add(messages.into());
        };
        let waited = conn.backlog() > 0;
        conn.cold().queue.push_front(bytes, messages);
        self.counters().queued_bytes.add(bytes.len() as u64);
        self.counters().polled_bytes.add(bytes.len() as u64);
        if !waited {
            self.pollable.push(id);
        }
    }

    /// Answers a request of this worker that waits for its answer, at once; not within a call for a
    /// connection that is being read. Returns `false` if it does not wait any more: its client has left.
    pub fn answer(&mut self, id: ConnId, response: &Response) -> bool {
        let slot = id.slot();
        if self.corked.is_some() {
            broken("no connection is being read while another is answered");
            return false;
        }
        let parked = self.live(id).filter(|conn| conn.mode == Mode::Parked);
        if parked.is_none_or(|conn| self.sys.peer_has_left(conn.fd)) {
            // Its end is read soon.
            return false;
        }
        let Some(conn) = self.live_mut(id) else { return false };
        conn.mode = Mode::Http;
        let context = conn.take_parked();
        self.corked = Some(slot);
        self.respond_to(slot, response, &context);
        self.flush_cork();
        self.corked = None;
        self.after_read(slot, b"");
        if self.id_at(slot).is_some() {
            self.resume_soon(slot);
        }
        true
    }

    /// Sends a message to a connection that is not an open WebSocket: only a polled one takes it.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_line(&mut self, slot: u32, message: &[u8]) -> Sent {
        let mut line = Vec::with_capacity(message.len() + 1);
        encode_line(message, &mut line);
        self.push_polled(slot, line.len(), 1, |queue| queue.push_owned(&line, 1))
    }

    /// The same with lines that many connections share.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_shared_lines(&mut self, slot: u32, lines: &SharedFrame) -> Sent {
        let messages = u64::from(lines.messages());
        self.push_polled(slot, lines.bytes().len(), messages, |queue| queue.push_shared(lines, 0))
    }

    /// Adds to the queue of a polled connection. As from a socket, `Queued` tells that it should get no more
    /// for now.
    fn push_polled(
        &mut self,
        slot: u32,
        bytes: usize,
        messages: u64,
        push: impl FnOnce(&mut SendQueue),
    ) -> Sent {
        let limit = self.limits.send_queue_bytes;
        if self.slab.get(slot).is_none_or(|conn| conn.mode != Mode::Polled) {
            self.counters().dropped_gone.add(messages);
            return Sent::Dropped;
        }
        if !self.has_room_for_polled(bytes) {
            self.counters().dropped_slow.add(messages);
            if self.limits.slow_consumer == SlowConsumer::Disconnect {
                self.end(slot, Closed::SlowConsumer);
            }
            return Sent::Dropped;
        }
        let Some(conn) = self.slab.get(slot) else {
            broken(SLOT_IN_USE);
            return Sent::Dropped;
        };
        let weight = conn.weight();
        if weight > 0 && weight + bytes > limit && !self.relieve(slot, bytes, messages) {
            return Sent::Dropped;
        }
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Sent::Dropped;
        };
        let queue = &mut conn.cold().queue;
        let before = queue.len();
        push(queue);
        let waiting = queue.len();
        self.counters().queued_bytes.add((waiting - before) as u64);
        self.counters().polled_bytes.add((waiting - before) as u64);
        let much = limit / 4;
        if before == 0 || before <= much && waiting > much {
            self.pollable.extend(self.id_at(slot));
        }
        if waiting > much { Sent::Queued(waiting) } else { Sent::Sent }
    }

    /// Whether the polled connections of the process may hold this much more.
    fn has_room_for_polled(&self, bytes: usize) -> bool {
        let most = self.limits.polled_bytes as u64;
        let held = |worker: &Counters| {
            worker.polled_bytes.get() + worker.polled.get() * POLLED_BYTES as u64
        };
        self.remote.counters().map(held).sum::<u64>() + bytes as u64 <= most
    }

    /// Begins to close a polled connection: its client gets what waits with its next request, if that comes
    /// within the close timeout. One that is closed because of what it holds gets nothing.
    pub(crate) fn close_polled(&mut self, slot: u32, cause: Closed) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if conn.backlog() == 0 || matches!(cause, Closed::SlowConsumer | Closed::Shed) {
            return self.end(slot, cause);
        }
        conn.mode = Mode::Closing;
        conn.closed = cause;
        conn.flags.clear(Flags::PAUSED);
        self.arm_close(slot);
        self.pollable.extend(self.id_at(slot));
    }

    /// Uncounts a polled connection that has ended, with what still waited.
    pub(crate) fn count_polled_ended(&self, backlog: usize) {
        self.counters().polled.sub(1);
        self.counters().polled_bytes.sub(backlog as u64);
    }
}

#[cfg(test)]
mod tests;
