//! Ending a connection: by the closing handshake, by ending the stream, or at once. Each path leads
//! to [`Mode::Dead`]; then the worker reaps the connection: it notifies the handler and frees the
//! slot.

use wire::websocket::{self, CloseCode};

use crate::conn::{Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::sys::Sys;
use crate::{Closed, ConnId, Handler};

impl<S: Sys, H: Handler> Core<S, H> {
    /// Begins the closing handshake of a WebSocket; a connection in another mode is ended.
    pub fn close(&mut self, id: ConnId, code: CloseCode, reason: &str) {
        if self.live(id).is_some() {
            self.close_with(id.slot(), Closed::ByUs, Some(code), reason);
        }
    }

    /// As [`Core::close`] of a WebSocket, with an empty close frame: for its peer that is 1005.
    pub fn close_without_code(&mut self, id: ConnId) {
        if self.live(id).is_some() {
            self.close_with(id.slot(), Closed::ByUs, None, "");
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
        if self.live(id).is_some() {
            self.reset_with(id.slot(), Closed::Aborted);
        }
    }

    /// Ends a connection at once by RST, for this cause: the peer must not take a partial message
    /// for a complete one.
    pub(crate) fn reset_with(&mut self, slot: u32, cause: Closed) {
        let Some(conn) = self.slab.get(slot) else { return broken(SLOT_IN_USE) };
        if conn.has_socket() {
            self.sys.reset_on_close(conn.fd);
        }
        self.end(slot, cause);
    }

    /// Ends a raw connection for this cause, once everything written has been sent.
    pub fn end_after(&mut self, id: ConnId, cause: Closed) {
        if self.live(id).is_some_and(|conn| matches!(conn.mode, Mode::Raw | Mode::HalfClosed)) {
            self.close_with(id.slot(), cause, None, "");
        }
    }

    /// Ends our side of a raw connection once everything written has been sent; the peer's side
    /// stays open. With both ended, the connection is closed.
    pub fn finish_writing(&mut self, id: ConnId) {
        let slot = id.slot();
        let raw = |mode| matches!(mode, Mode::Raw | Mode::HalfClosed);
        if self.live(id).is_some_and(|conn| raw(conn.mode))
            && let Some(conn) = self.slab.get_mut(slot)
        {
            conn.flags.set(Flags::FINISH);
            self.finish_half(slot);
        }
    }

    fn finish_half(&mut self, slot: u32) {
        self.settle();
        let corked = self.corked == Some(slot) && !self.cork.is_empty();
        let Some(conn) = self.slab.get(slot) else { return broken(SLOT_IN_USE) };
        let fd = conn.fd;
        if corked || conn.backlog() > 0 || !self.end_records(slot) {
            return self.sync_interest(slot);
        }
        self.sys.shutdown_write(fd);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        conn.flags.clear(Flags::FINISH);
        conn.flags.set(Flags::CLOSE_SENT);
        if conn.mode == Mode::HalfClosed {
            self.end(slot, Closed::Gone);
        }
    }

    pub(crate) fn close_with(
        &mut self,
        slot: u32,
        cause: Closed,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        match conn.mode {
            Mode::WebSocket => {
                conn.mode = Mode::Closing;
                conn.closed = cause;
                conn.flags.clear(Flags::PAUSED | Flags::STALLED);
                conn.discard_unread();
                let client = conn.is_client();
                // The handler is not notified of a close that it requested or was notified of
                // before.
                if !matches!(cause, Closed::ByUs | Closed::Draining) {
                    self.note_closing(slot);
                }
                self.send_close(slot, client, code, reason);
                self.arm_close(slot);
                self.resume_soon(slot);
            }
            Mode::Raw | Mode::HalfClosed => {
                conn.closed = cause;
                self.finish(slot);
            }
            Mode::Polled => self.close_polled(slot, cause),
            Mode::Closing | Mode::Lingering | Mode::Dead => {}
            Mode::Connecting | Mode::Http | Mode::Parked => self.end(slot, cause),
        }
    }

    /// Schedules the handler's notification that a WebSocket is no longer open.
    pub(crate) fn note_closing(&mut self, slot: u32) {
        self.closing.extend(self.id_at(slot));
    }

    pub(crate) fn send_close(
        &mut self,
        slot: u32,
        client: bool,
        code: Option<CloseCode>,
        reason: &str,
    ) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
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

    /// Ends our side of the stream once everything has been sent, and waits for the peer to end its
    /// side.
    pub(crate) fn finish(&mut self, slot: u32) {
        self.settle();
        let corked = self.corked == Some(slot) && !self.cork.is_empty();
        let half = self.slab.get(slot).is_some_and(|conn| conn.mode == Mode::HalfClosed);
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if conn.mode == Mode::Dead {
            return;
        }
        if conn.mode != Mode::Lingering {
            conn.mode = Mode::Lingering;
            self.arm_close(slot);
        }
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        conn.flags.clear(Flags::PAUSED | Flags::STALLED);
        conn.discard_unread();
        conn.flags.set(Flags::FINISH);
        let waits = corked || conn.backlog() > 0;
        let fd = conn.fd;
        if !waits && self.end_records(slot) {
            self.sys.shutdown_write(fd);
            let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
            conn.flags.clear(Flags::FINISH);
            if half {
                // The peer's end of stream was already read.
                return self.end(slot, Closed::Gone);
            }
        }
        self.sync_interest(slot);
    }

    /// Continues ending our side, after the queue was sent.
    pub(crate) fn continue_finish(&mut self, slot: u32) {
        match self.slab.get(slot).map(|conn| conn.mode) {
            Some(Mode::Raw | Mode::HalfClosed) => self.finish_half(slot),
            Some(_) => self.finish(slot),
            None => broken(SLOT_IN_USE),
        }
    }

    /// Marks a connection as ended; it is reaped at the end of the turn.
    pub(crate) fn end(&mut self, slot: u32, cause: Closed) {
        self.settle();
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        match conn.mode {
            Mode::Dead => return,
            // The cause was set when the close began.
            Mode::Closing | Mode::Lingering => {}
            _ => conn.closed = cause,
        }
        conn.mode = Mode::Dead;
        self.dead.push(slot);
    }

    pub(crate) fn arm_close(&mut self, slot: u32) {
        let Some(conn) = self.slab.get(slot) else { return broken(SLOT_IN_USE) };
        self.timers.closing.push(self.now_ns, slot, conn.generation);
    }
}
