//! Outgoing connections after their connect: the first bytes of raw ones, and a client's handshake. Opening them:
//! `connect.rs`.

use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_response};
use wire::websocket::check_upgrade_response;

use crate::conn::{Conn, Mode};
use crate::core::Core;
use crate::deflate::NegotiatedDeflate;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::send::would_block;
use crate::sys::Sys;
use crate::target::key_for;
use crate::worker::Worker;
use crate::{Closed, ConnId, Handler, ServerFault, Target};

impl<S: Sys, H: Handler> Worker<S, H> {
    /// Handles the success or failure of a connect.
    pub(crate) fn on_connected(&mut self, slot: u32) {
        let Some(conn) = self.core.slab.get(slot) else { return broken(SLOT_IN_USE) };
        let target = self.core.targets.get(usize::from(conn.target));
        let raw = match target {
            Some(target) => target.is_raw() && target.tls.is_none(),
            None => conn.cold.as_ref().is_none_or(|cold| cold.tls.is_none()),
        };
        match self.core.sys.connect_outcome(conn.fd) {
            Ok(()) if raw => self.connected_raw(slot),
            Ok(()) => self.core.begin_handshake(slot),
            Err(error) => self.core.end(slot, Closed::from_connect_error(&error)),
        }
    }

    /// Makes an outgoing connection raw: bytes in both directions from here.
    pub(crate) fn connected_raw(&mut self, slot: u32) {
        let tick = self.core.tick;
        let Some(conn) = self.core.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        conn.mode = Mode::Raw;
        conn.last_active = tick;
        let (id, fd) = (ConnId::new(self.core.index, slot, conn.generation), conn.fd);
        if let Some(timeout) = self.core.limits.peer_timeout {
            // Only now: TCP_USER_TIMEOUT would limit the connect, too.
            self.core.sys.notice_dead_peer(fd, timeout);
        }
        self.handler.connected(&mut self.core, id);
        self.core.sync_interest(slot);
    }

    /// Handles the server's answer to our handshake.
    pub(crate) fn on_response(&mut self, slot: u32, head: &[u8]) {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let Some(conn) = self.core.slab.get(slot) else { return broken(SLOT_IN_USE) };
        let key = key_for(self.core.key_secret, slot, conn.generation);
        let target = self.core.targets.get(usize::from(conn.target));
        let deflate = target.is_some_and(|target| target.deflate);
        let offered = target.map(|target| target.protocols.as_slice()).unwrap_or_default();
        let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
        let mut status = None;
        let checked = parse_response(head, &mut headers)
            .and_then(|response| {
                status = (response.status != 101).then_some(response.status);
                check_upgrade_response(&response, &key, &offered, deflate)
            })
            .map(|switched| {
                (switched.deflate.as_ref().map(NegotiatedDeflate::as_client), switched.protocol)
            });
        let id = ConnId::new(self.core.index, slot, conn.generation);
        match checked {
            Ok((deflate, protocol)) => {
                self.handler.accepted(&mut self.core, id, protocol);
                self.open_websocket(slot, deflate);
            }
            Err(violation) => {
                self.core.counters().count_violation(violation);
                let fault = status.map_or(ServerFault::Violation(violation), ServerFault::Status);
                self.core.server_faults.insert(slot, fault);
                self.core.end(slot, Closed::HandshakeRejected);
            }
        }
    }
}

impl<S: Sys, H: Handler> Core<S, H> {
    /// Sends the handshake if the connection is already established, as it usually is on loopback;
    /// otherwise waits for that.
    pub(crate) fn begin_handshake(&mut self, slot: u32) {
        let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
        let has_session = conn.tls().is_some();
        let target = self.targets.get(usize::from(conn.target));
        if has_session || target.is_some_and(|target| target.tls.is_some()) {
            return self.begin_tls_handshake(slot);
        }
        let Some(target) = target else { return self.watch_first(slot) };
        if target.is_raw() {
            return self.watch_first(slot);
        }
        let mut head = self.take_buffer();
        let Some(conn) = self.slab.get(slot) else { return broken(SLOT_IN_USE) };
        let (fd, generation) = (conn.fd, conn.generation);
        let Some(target) = self.targets.get(usize::from(conn.target)) else {
            return broken("a connecting client has its target");
        };
        target.encode(&mut head, &key_for(self.key_secret, slot, generation));
        match self.sys.send(fd, &head) {
            Ok(sent) => {
                self.counters().bytes_out.add(sent as u64);
                let Some(conn) = self.slab.get_mut(slot) else { return broken(SLOT_IN_USE) };
                conn.mode = Mode::Http;
                if sent < head.len() {
                    conn.cold().queue.push_owned(head.get(sent..).unwrap_or_default(), 0);
                    self.counters().queued_bytes.add((head.len() - sent) as u64);
                }
            }
            Err(error)
                if would_block(&error) || error.kind() == std::io::ErrorKind::NotConnected => {}
            Err(error) => self.end(slot, Closed::from_connect_error(&error)),
        }
        self.give_buffer(head);
        self.watch_first(slot);
        self.sync_interest(slot);
    }

    /// Sends the first bytes of a raw connection if it is already established. Returns `false` if
    /// it is not, or must begin TLS first. An error means that the connect failed.
    pub(crate) fn send_first(&mut self, slot: u32, first: &[u8]) -> std::io::Result<bool> {
        let tick = self.tick;
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Ok(false);
        };
        let target = self.targets.get(usize::from(conn.target));
        if !target.is_some_and(|target| target.is_raw() && target.tls.is_none()) {
            return Ok(false);
        }
        let waits = |error: &std::io::Error| {
            would_block(error) || error.kind() == std::io::ErrorKind::NotConnected
        };
        let sent = match self.sys.send(conn.fd, first) {
            Err(error) if waits(&error) => return Ok(false),
            sent => sent?,
        };
        (conn.mode, conn.last_active) = (Mode::Raw, tick);
        self.counters().bytes_out.add(sent as u64);
        self.watch_first(slot);
        let rest = first.get(sent..).unwrap_or_default();
        if !rest.is_empty() {
            self.write_out(slot, rest, 0);
        }
        Ok(true)
    }

    /// Sends the handshake request on an established connection.
    pub(crate) fn send_request(&mut self, slot: u32) {
        let mut head = self.take_buffer();
        let Some(conn) = self.slab.get(slot) else { return broken(SLOT_IN_USE) };
        let key = key_for(self.key_secret, slot, conn.generation);
        let Some(target) = self.targets.get(usize::from(conn.target)) else {
            return broken("a connecting client has its target");
        };
        target.encode(&mut head, &key);
        self.write_out(slot, &head, 0);
        self.give_buffer(head);
    }

    /// Begins a target's WebSocket handshake on an outgoing raw connection, as after a proxy has
    /// answered CONNECT. The handler's `open` or `closed` reports the result, at the latest after the
    /// handshake timeout.
    ///
    /// # Errors
    /// `NotConnected` if there is no such connection, or bytes written to it are not sent yet;
    /// `NotFound` if the target is not a WebSocket target.
    pub fn upgrade(&mut self, id: ConnId, target: u8) -> std::io::Result<()> {
        if self.targets.get(usize::from(target)).is_none_or(Target::is_raw) {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let usable =
            |conn: &&mut Conn<H::User>| conn.mode == Mode::Raw && conn.is_client() && !conn.waits();
        let Some(conn) = self.live_mut(id).filter(usable) else {
            return Err(std::io::ErrorKind::NotConnected.into());
        };
        conn.mode = Mode::Http;
        conn.target = target;
        self.arm_handshake(id.slot());
        self.send_request(id.slot());
        Ok(())
    }
}
