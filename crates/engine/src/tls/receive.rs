//! Receiving: turns ciphertext into plaintext between the kernel and the decoder of frames, and
//! carries out the handshakes of both roles.

use std::io;

use wire::Status;

use super::{Handshake, Received, StreamState, Tls};
use crate::conn::{Conn, Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::limits::{READ_BUFFER_BYTES, TLS_HANDSHAKES_PER_TURN, TLS_PARTIAL_BYTES_MAX};
use crate::send::would_block;
use crate::sys::Sys;
use crate::worker::Worker;
use crate::{Closed, ConnId, Handler, Target, TlsServer};

impl<S: Sys, H: Handler> Worker<S, H> {
    /// One bounded read of a TLS connection, and everything that follows from it.
    pub(crate) fn read_tls(&mut self, slot: u32) {
        let core = &mut self.core;
        let Some(conn) = core.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let fd = conn.fd;
        let Some(tls) = conn.tls() else {
            return broken("a connection that is read as TLS has a session");
        };
        if !tls.opened && core.tls_handshakes >= TLS_HANDSHAKES_PER_TURN {
            // The event is reported again in the next turn.
            return;
        }
        let kept = tls.partial.len();
        let mut cipher = core.take_cipher_buffer();
        let room = cipher.get_mut(kept..).unwrap_or_default();
        match core.sys.recv(fd, room) {
            Ok(0) => self.end_after_peer(slot),
            Ok(got) => {
                core.count_received(slot, got);
                match cipher.get_mut(..kept + got) {
                    Some(bytes) => self.decrypt(slot, bytes, kept),
                    None => broken("a read ends within its buffer"),
                }
            }
            Err(error) if would_block(&error) => {}
            Err(error) => core.end(slot, Closed::from_io_error(&error)),
        }
        self.core.tls_buffers.cipher = cipher;
    }

    /// Ends a connection whose peer has ended its side: first sends our close_notify, which the
    /// peer may wait for (RFC 8446 section 6.1).
    fn end_after_peer(&mut self, slot: u32) {
        if self.on_end_of_stream(slot) {
            self.core.end_records(slot);
        }
    }

    /// Begins TLS, if configured, with what was read after a PROXY header; returns the bytes used.
    pub(crate) fn begin_tls_after(&mut self, slot: u32, rest: Option<&mut [u8]>) -> usize {
        let Some(rest) = rest else {
            broken("a PROXY header ends within what was read");
            return 0;
        };
        let here = self.core.slab.get(slot).is_some_and(|conn| conn.mode == Mode::Http);
        if !here || !self.core.tls_follows(slot) {
            return 0;
        }
        self.core.begin_tls(slot);
        if !rest.is_empty() {
            self.decrypt(slot, rest, 0);
        }
        rest.len()
    }

    /// Decrypts complete records, answers the handshake, and passes the plaintext on.
    fn decrypt(&mut self, slot: u32, bytes: &mut [u8], kept: usize) {
        let Some((at, kept)) = self.core.pass_proxy_header(slot, bytes, kept) else { return };
        let Some(bytes) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) else { return };
        if self.core.reports_server_names
            && !self.report_server_name(slot, bytes.get(kept..).unwrap_or_default())
        {
            return;
        }
        let core = &mut self.core;
        let mut plain = core.take_read_buffer();
        let mut out = std::mem::take(&mut core.tls_buffers.out);
        let Some(conn) = core.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        // Once our side has ended, what arrives is discarded.
        let cold = conn.cold.as_deref_mut().filter(|_| conn.mode != Mode::Lingering);
        let tail = cold.as_ref().map_or(0, |cold| cold.tail.len());
        let tls = cold.and_then(|cold| cold.tls.as_deref_mut());
        let room = plain.get_mut(tail..).unwrap_or_default();
        let received = tls.map(|tls| tls.receive(bytes, kept, room, &mut out));
        let connected = core.answer_handshake(slot, &out);
        out.clear();
        core.tls_buffers.out = out;
        let (plain_bytes, then) =
            received.map_or((0, StreamState::Open), |got| (got.plain, got.then));
        if connected {
            self.connected_raw(slot);
        }
        let complete = plain
            .get_mut(..tail + plain_bytes)
            .filter(|_| plain_bytes > 0 && then != StreamState::Failed);
        if let Some(bytes) = complete {
            self.core.restore_tail(slot, bytes);
            self.ingest(slot, bytes, 0);
        }
        self.core.read_buffer = plain;
        match then {
            StreamState::Open => {}
            StreamState::Closed if self.core.is_paused(slot) => {
                // What was received before is still to be delivered; then the end of the stream
                // itself is read.
            }
            StreamState::Closed => self.end_after_peer(slot),
            StreamState::Failed => self.core.tls_failed(slot),
        }
    }
}

impl Tls {
    /// Queues the ClientHello, after unencrypted bytes; nothing was received yet.
    pub(crate) fn queue_client_hello(&mut self, behind: &[u8]) {
        self.out.extend_from_slice(behind);
        self.session.receive(&mut [], &mut [], &mut self.out);
    }

    /// Processes what was read after `kept` bytes of an incomplete record.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        kept: usize,
        plain: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Received {
        if self.ended {
            return Received { used: bytes.len(), plain: 0, then: StreamState::Open };
        }
        let partial = std::mem::take(&mut self.partial);
        match bytes.get_mut(..kept).filter(|front| front.len() == partial.len()) {
            Some(front) => front.copy_from_slice(&partial),
            None => broken("room was left for the partial record in front of the new bytes"),
        }
        let mut received = self.session.receive(bytes, plain, out);
        self.close_notify_received |= received.then == StreamState::Closed;
        self.keep_partial(bytes, &mut received);
        received
    }

    /// Keeps an incomplete record, unless it is longer than allowed.
    fn keep_partial(&mut self, bytes: &[u8], received: &mut Received) {
        let rest = bytes.get(received.used..).unwrap_or_default();
        if rest.len() > TLS_PARTIAL_BYTES_MAX {
            received.then = StreamState::Failed;
        }
        if received.then == StreamState::Failed {
            self.ended = true;
        } else if !rest.is_empty() {
            self.partial = rest.into();
        }
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Sets the TLS configuration of connections accepted from now on; `None` for no TLS. Open
    /// connections are not affected.
    pub fn set_tls(&mut self, tls: Option<TlsServer>) {
        self.tls_server = tls;
    }

    /// The first `count` of the worker's listeners have no TLS, whatever [`Core::set_tls`] says.
    /// Default 0.
    pub fn set_plain_listeners(&mut self, count: usize) {
        self.plain_listeners = count;
    }

    /// Whether connections of a listener use TLS.
    pub(crate) fn listener_has_tls(&self, index: usize) -> bool {
        self.tls_server.is_some() && index >= self.plain_listeners
    }

    /// Whether a connection uses TLS.
    #[must_use]
    pub fn is_encrypted(&self, id: ConnId) -> bool {
        self.live(id).is_some_and(Conn::is_encrypted)
    }

    /// Whether a connection, ended or not, uses TLS and its peer has not sent close_notify: then
    /// anyone on the path may have ended the stream (RFC 8446 section 6.1).
    #[must_use]
    pub fn may_be_truncated(&self, id: ConnId) -> bool {
        let conn = self.slab.get(id.slot()).filter(|conn| conn.generation == id.generation());
        let tls = conn.and_then(|conn| conn.cold.as_ref()?.tls.as_ref());
        tls.is_some_and(|tls| !tls.close_notify_received)
    }

    /// Whether a connection is not being read for now, or not before its kept bytes are processed.
    fn is_paused(&self, slot: u32) -> bool {
        let held = Flags::PAUSED | Flags::STALLED | Flags::RESUMED;
        self.slab.get(slot).is_some_and(|conn| conn.flags.has(held))
    }

    fn take_cipher_buffer(&mut self) -> Vec<u8> {
        let buffer = std::mem::take(&mut self.tls_buffers.cipher);
        // Plaintext is shorter, so what is kept and what is read together fit a read buffer.
        if buffer.is_empty() { vec![0; READ_BUFFER_BYTES] } else { buffer }
    }

    /// Gives an accepted connection its session.
    pub(crate) fn begin_tls(&mut self, slot: u32) {
        let Some(server) = &self.tls_server else { return };
        match (server.begin(), self.slab.get_mut(slot)) {
            (Ok(tls), Some(conn)) => {
                conn.cold().tls = Some(Box::new(tls));
                self.head_begins(slot);
            }
            _ => self.end(slot, Closed::TlsFailed),
        }
    }

    /// Passes over a PROXY header in front of TLS that need not be there. Returns where TLS begins, and
    /// how many bytes there are kept ones of an incomplete record; `None` if the header is incomplete, or the
    /// connection has ended because of it.
    #[inline]
    fn pass_proxy_header(
        &mut self,
        slot: u32,
        bytes: &mut [u8],
        kept: usize,
    ) -> Option<(usize, usize)> {
        match self.slab.get_mut(slot).and_then(|conn| conn.tls()) {
            Some(tls) if !tls.begun => self.find_tls(slot, bytes, kept),
            _ => Some((0, kept)),
        }
    }

    #[inline(never)]
    fn find_tls(&mut self, slot: u32, bytes: &mut [u8], kept: usize) -> Option<(usize, usize)> {
        let tls = self.slab.get_mut(slot)?.tls()?;
        let front = std::mem::take(&mut tls.partial);
        if let Some(room) = bytes.get_mut(..kept).filter(|room| room.len() == front.len()) {
            room.copy_from_slice(&front);
        }
        let found = match self.may_be_proxy_header(bytes) {
            true => self.take_proxy_header(slot, bytes),
            false => Ok(Status::Complete(0)),
        };
        let tls = self.slab.get_mut(slot)?.tls()?;
        match found {
            Ok(Status::Complete(at)) => {
                tls.begun = true;
                Some((at, 0))
            }
            Ok(Status::Partial) => {
                tls.partial = (&*bytes).into();
                None
            }
            Err(violation) => {
                self.counters().count_violation(violation);
                self.end(slot, Closed::Violation);
                None
            }
        }
    }

    /// Sends the handshake's answer, and notes its completion. Returns `true` if that completes an
    /// outgoing raw connect.
    fn answer_handshake(&mut self, slot: u32, out: &[u8]) -> bool {
        let (slab, mut transmitter) = self.split();
        let Some(conn) = slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return false;
        };
        let fd = conn.fd;
        let (client, target) = (conn.is_client(), usize::from(conn.target));
        let Some(tls) = conn.tls() else { return false };
        let worked = !tls.opened && !out.is_empty();
        let opened = tls.session.handshake().filter(|_| !tls.opened);
        tls.opened |= opened.is_some();
        let result = transmitter.send_or_keep(fd, tls, out);
        let waits = tls.has_records();
        self.tls_handshakes += usize::from(worked);
        if result.is_err() {
            self.end(slot, Closed::Reset);
            return false;
        }
        if waits {
            self.sync_interest(slot);
        }
        let Some(how) = opened else { return false };
        let counters = self.counters();
        counters.tls_handshakes.add(1);
        counters.tls_resumed.add(u64::from(how == Handshake::Resumed));
        let raw = client && self.targets.get(target).is_none_or(Target::is_raw);
        if client && !raw {
            self.send_request(slot);
        }
        raw
    }

    /// Ends a connection that did not speak TLS, or whose peer refused ours; the alert is already
    /// sent.
    fn tls_failed(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        if matches!(conn.mode, Mode::Lingering | Mode::Dead) {
            return;
        }
        if conn.is_client() {
            return self.end(slot, Closed::TlsFailed);
        }
        if conn.mode != Mode::Closing {
            conn.closed = Closed::TlsFailed;
        }
        // An alert is an answer: a lingering connection is no handshake in flight.
        let before = conn.set_answered();
        self.handshake_ended(before);
        self.finish(slot);
    }

    /// Begins the handshake of an outgoing connection, as soon as the kernel has connected it.
    pub(crate) fn begin_tls_handshake(&mut self, slot: u32) {
        if let Err(error) = self.try_tls_handshake(slot) {
            let cause = match error.kind() {
                io::ErrorKind::InvalidInput => Closed::TlsFailed,
                _ => Closed::from_connect_error(&error),
            };
            self.end(slot, cause);
        }
        self.watch_first(slot);
        self.sync_interest(slot);
    }

    fn try_tls_handshake(&mut self, slot: u32) -> io::Result<()> {
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Ok(());
        };
        if conn.tls().is_none() {
            let target = self.targets.get(usize::from(conn.target));
            let Some(client) = target.and_then(|target| target.tls.as_ref()) else {
                broken("a TLS handshake has a session or a target with TLS");
                return Ok(());
            };
            let mut tls = client.begin().map_err(|_| io::ErrorKind::InvalidInput)?;
            tls.queue_client_hello(b"");
            conn.cold().tls = Some(Box::new(tls));
        }
        let (slab, mut transmitter) = self.split();
        let Some(conn) = slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Ok(());
        };
        let fd = conn.fd;
        let Some(tls) = conn.tls() else {
            broken("a TLS handshake has a session or a target with TLS");
            return Ok(());
        };
        match transmitter.send_records(fd, tls) {
            Ok(_) => {
                conn.mode = Mode::Http;
                Ok(())
            }
            Err(error) if would_block(&error) || error.kind() == io::ErrorKind::NotConnected => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Sends waiting ciphertext. Returns `false` if the connection has ended.
    pub(crate) fn flush_records(&mut self, slot: u32) -> bool {
        let (slab, mut transmitter) = self.split();
        let Some(conn) = slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return false;
        };
        let fd = conn.fd;
        let Some(tls) = conn.tls() else { return true };
        match transmitter.send_records(fd, tls) {
            Err(error) if !would_block(&error) => {
                self.end(slot, Closed::Reset);
                false
            }
            _ => true,
        }
    }

    /// Sends close_notify if the connection uses TLS; returns whether the stream can be ended.
    pub(crate) fn end_records(&mut self, slot: u32) -> bool {
        let (slab, mut transmitter) = self.split();
        let Some(conn) = slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return true;
        };
        let fd = conn.fd;
        conn.tls().is_none_or(|tls| transmitter.close(fd, tls))
    }
}

impl<U> Conn<U> {
    /// Its TLS session, if it uses TLS.
    #[inline]
    pub(crate) fn tls(&mut self) -> Option<&mut Tls> {
        self.cold.as_mut()?.tls.as_deref_mut()
    }

    /// Whether anything waits to be sent.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| {
            !cold.queue.is_empty() || cold.tls.as_ref().is_some_and(|tls| tls.has_records())
        })
    }
}

// What is kept in front of a read leaves room for more.
const _: () = assert!(TLS_PARTIAL_BYTES_MAX < READ_BUFFER_BYTES);
