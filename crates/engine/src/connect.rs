//! Outgoing connections: the targets of a worker, and how a connect begins. The result is reported
//! to the handler; what follows a successful connect is in `http.rs` and `tls/`.

use std::io;
use std::net::IpAddr;

use crate::conn::{Flags, Mode};
use crate::core::Core;
use crate::invariant::{SLOT_IN_USE, broken};
use crate::sys::Sys;
use crate::target::NO_TARGET;
use crate::{ConnId, Destination, Handler, Target, TlsClient, TlsConnect};

impl<S: Sys, H: Handler> Core<S, H> {
    /// Adds a target to connect to; at most 255 per worker.
    ///
    /// # Errors
    /// The 256th is refused.
    pub fn add_target(&mut self, target: Target) -> io::Result<u8> {
        let index = u8::try_from(self.targets.len()).ok().filter(|&index| index != NO_TARGET);
        let index = index.ok_or(io::ErrorKind::OutOfMemory)?;
        self.targets.push(target);
        Ok(index)
    }

    /// Replaces a target that no connection uses any more.
    ///
    /// # Errors
    /// `NotFound` if there is no such target.
    pub fn replace_target(&mut self, index: u8, target: Target) -> io::Result<()> {
        let place = self.targets.get_mut(usize::from(index)).ok_or(io::ErrorKind::NotFound)?;
        *place = target;
        Ok(())
    }

    /// Begins a connect and the WebSocket handshake of one of this worker's targets. The handler's
    /// `open` or `closed` reports the result.
    ///
    /// # Errors
    /// An error that the kernel reports at once; then nothing was counted. `EADDRNOTAVAIL` means
    /// that the source has no port left for this destination.
    pub fn connect(&mut self, target: u8, source: Option<IpAddr>) -> io::Result<ConnId> {
        let id = self.begin_connect(target, source)?;
        match self.slab.get_mut(id.slot()) {
            Some(conn) => conn.flags.set(Flags::DEADLINE),
            None => broken(SLOT_IN_USE),
        }
        self.timers.handshake.push(self.now_ns, id.slot(), id.generation());
        self.begin_handshake(id.slot());
        Ok(id)
    }

    /// Begins a connect to a raw target, and sends `first` if it succeeds at once, as it usually
    /// does on loopback: then the result is `true`, and the connection can be written to. Otherwise
    /// nothing was sent, and the handler's `connected` or `closed` reports the result. No timeout
    /// is set: that is up to the handler.
    ///
    /// # Errors
    /// As [`Core::connect`].
    pub fn connect_with_data(
        &mut self,
        target: u8,
        source: Option<IpAddr>,
        first: &[u8],
    ) -> io::Result<(ConnId, bool)> {
        let id = self.begin_connect(target, source)?;
        match self.send_first(id.slot(), first) {
            Ok(true) => return Ok((id, true)),
            Ok(false) => self.begin_handshake(id.slot()),
            Err(error) => {
                // It was never reported to the handler.
                let Some(conn) = self.slab.remove(id.slot()) else {
                    broken(SLOT_IN_USE);
                    return Err(error);
                };
                self.count_outgoing_closed(conn.flags);
                self.sys.close(conn.fd);
                self.counters().connections.sub(1);
                self.publish_open();
                return Err(error);
            }
        }
        Ok((id, false))
    }

    fn begin_connect(&mut self, target: u8, source: Option<IpAddr>) -> io::Result<ConnId> {
        let destination =
            self.targets.get(usize::from(target)).ok_or(io::ErrorKind::NotFound)?.destination();
        let fd = match destination {
            Destination::Tcp(address) => self.sys.connect(address, source)?,
            Destination::Unix(path) => self.sys.connect_unix(path)?,
        };
        self.counters().connects.add(1);
        let slot = self.insert_outgoing(fd);
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Err(io::ErrorKind::Other.into());
        };
        conn.flags.set(Flags::CLIENT);
        conn.target = target;
        let id = ConnId::new(self.index, slot, conn.generation);
        Ok(id)
    }

    /// Begins a raw connect to a destination that need not be a target. With `tls`, the TLS
    /// handshake comes first. The handler's `connected` or `closed` reports the result. No timeout
    /// is set: that is up to the handler.
    ///
    /// # Errors
    /// An error that the kernel reports at once, as with [`Core::connect`]; a UNIX socket whose
    /// queue is full is `WouldBlock`.
    pub fn connect_raw(
        &mut self,
        to: Destination<'_>,
        tls: Option<TlsConnect<'_>>,
        source: Option<IpAddr>,
    ) -> io::Result<ConnId> {
        let session = tls.map(|tls| tls.client.begin()).transpose();
        let session = session.map_err(|_| io::ErrorKind::InvalidInput)?;
        let fd = match to {
            Destination::Tcp(address) => self.sys.connect(address, source)?,
            Destination::Unix(path) => self.sys.connect_unix(path)?,
        };
        self.counters().connects.add(1);
        let slot = self.insert_outgoing(fd);
        let Some(conn) = self.slab.get_mut(slot) else {
            broken(SLOT_IN_USE);
            return Err(io::ErrorKind::Other.into());
        };
        conn.flags.set(Flags::CLIENT);
        conn.target = NO_TARGET;
        if let (Some(mut session), Some(tls)) = (session, tls) {
            session.queue_client_hello(tls.prefix);
            conn.cold().tls = Some(Box::new(session));
        }
        let generation = conn.generation;
        self.begin_handshake(slot);
        Ok(ConnId::new(self.index, slot, generation))
    }

    /// Starts TLS on an outgoing raw connection, as after a proxy has answered CONNECT. Nothing may
    /// be written to it until the handler's `connected` reports that the handshake is complete;
    /// `closed` reports that it failed. No timeout is set.
    ///
    /// # Errors
    /// `NotConnected` if there is no such connection, or it uses TLS already.
    pub fn secure(&mut self, id: ConnId, tls: &TlsClient) -> io::Result<()> {
        let slot = id.slot();
        let mut session = tls.begin().map_err(|_| io::ErrorKind::InvalidInput)?;
        let Some(conn) = self.live_mut(id) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if conn.mode != Mode::Raw || !conn.is_client() || conn.waits() || conn.tls().is_some() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        session.queue_client_hello(&[]);
        conn.cold().tls = Some(Box::new(session));
        // Bytes that arrive before the ClientHello is sent belong to the handshake, too.
        conn.mode = Mode::Http;
        self.begin_tls_handshake(slot);
        Ok(())
    }
}
