//! The HTTP/2 connections that carry the sockets of a worker: opening them, sending, and their end.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use engine::sys::{Event, Fd, Interest, Sys};
use engine::{Closed, ServerFault, TlsSession};
use wire::http2::{Connection, ErrorCode, StreamId};

use super::socket::{Destination, SocketFailure, State};
use super::{BACKLOG_BYTES_MAX, StreamKernel};
use crate::transport::tunnel::Tunnel;

/// Plaintext that is encrypted at a time.
const SEALED_BYTES: usize = 32 * 1024;
/// The longest buffer that a connection keeps while it has nothing to send.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Keys from here on are those of an engine.
const FIRST_OTHER_KEY: u64 = u64::MAX << 32;

/// The progress of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// TCP.
    Connecting,
    /// The answer of a proxy.
    Tunnelling,
    /// The handshake of TLS.
    Securing,
    /// The server's SETTINGS are awaited.
    Greeting,
    /// It takes streams.
    Ready,
    /// It takes no further streams.
    Leaving,
}

/// An HTTP/2 connection.
pub(super) struct Carrier {
    pub(super) fd: Fd,
    pub(super) upstream: u16,
    pub(super) source: Option<IpAddr>,
    pub(super) phase: Phase,
    pub(super) connection: Option<Box<Connection>>,
    pub(super) tls: Option<Box<TlsSession>>,
    /// While a proxy is asked.
    pub(super) tunnel: Option<Box<Tunnel>>,
    /// Its sockets.
    pub(super) members: Vec<u32>,
    /// Sockets that it takes.
    pub(super) limit: u32,
    /// Frames to send, and before them what is being sent: with TLS ciphertext.
    pub(super) out: Vec<u8>,
    pub(super) sending: Vec<u8>,
    sent: usize,
    /// Listed among those with something to send.
    pub(super) is_listed: bool,
    /// Listed among those with room.
    pub(super) is_roomy: bool,
    /// A socket waits for a stream to end.
    pub(super) has_waiting: bool,
    /// A socket could not write because of the backlog.
    pub(super) is_clogged: bool,
    /// The server left it by a GOAWAY with a code of an error.
    pub(super) is_expelled: bool,
    watches_write: bool,
    generation: u32,
}

impl Carrier {
    /// Bytes that wait to be sent.
    pub(super) fn backlog(&self) -> usize {
        self.out.len() + self.sending.len() - self.sent
    }

    /// Whether a stream can send more.
    pub(super) fn takes(&self, stream: StreamId) -> bool {
        let open = self.connection.as_ref().is_some_and(|one| one.send_window(stream) > 0);
        open && self.backlog() < BACKLOG_BYTES_MAX
    }
}

/// The table of connections.
#[derive(Default)]
pub(super) struct Carriers {
    all: Vec<Option<Box<Carrier>>>,
    generation: u32,
}

impl Carriers {
    /// The connection that is watched under a key; `None` if it is a key of the engine's own.
    pub(super) fn index(key: u64) -> Option<u32> {
        (key < FIRST_OTHER_KEY).then_some(key as u32)
    }

    pub(super) fn get(&self, c: u32) -> Option<&Carrier> {
        self.all.get(c as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, c: u32) -> Option<&mut Carrier> {
        self.all.get_mut(c as usize)?.as_deref_mut()
    }

    /// Adds a connection; returns its number, and the key to watch it under.
    fn add(&mut self, mut carrier: Carrier) -> (u32, u64) {
        self.generation = self.generation % (u32::MAX - 1) + 1;
        carrier.generation = self.generation;
        let carrier = Some(Box::new(carrier));
        // There are few, and connecting takes longer than a search.
        let at = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        match self.all.get_mut(at) {
            Some(place) => *place = carrier,
            None => self.all.push(carrier),
        }
        (at as u32, u64::from(self.generation) << 32 | at as u64)
    }

    fn remove(&mut self, c: u32) -> Option<Box<Carrier>> {
        self.all.get_mut(c as usize)?.take()
    }
}

/// The failure of a socket whose connection could not be opened.
pub(super) fn failed_connect(error: &io::Error) -> SocketFailure {
    let fault = Some(ServerFault::Carrier(Closed::from_connect_error(error)));
    SocketFailure { error: ErrorKind::ConnectionAborted, fault }
}

/// How a connection ended.
pub(super) enum Ending {
    /// The server closed it.
    Closed,
    /// It failed: sockets do as well.
    Failed(SocketFailure),
}

impl Ending {
    /// An error of reading or writing.
    pub(super) fn of(error: &io::Error) -> Ending {
        let given_up = matches!(
            error.kind(),
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
        );
        let fault = given_up.then_some(ServerFault::Carrier(Closed::GivenUp));
        Ending::Failed(SocketFailure { error: ErrorKind::ConnectionReset, fault })
    }

    /// A fault of the server.
    pub(super) fn fault(fault: ServerFault) -> Ending {
        let error = ErrorKind::ConnectionReset;
        Ending::Failed(SocketFailure { error, fault: Some(fault) })
    }
}

impl<S: Sys> StreamKernel<S> {
    /// Begins a connection.
    ///
    /// # Errors
    /// The error of the connect.
    pub(super) fn open_carrier(
        &mut self,
        upstream: u16,
        source: Option<IpAddr>,
    ) -> io::Result<u32> {
        let destination = self.settings.upstreams.get(usize::from(upstream));
        let begun = match destination.map(|upstream| &upstream.destination) {
            Some(Destination::Tcp(address)) => self.sys.connect(*address, source),
            Some(Destination::Unix(path)) => self.sys.connect_unix(path),
            None => Err(ErrorKind::InvalidInput.into()),
        };
        let fd = begun.map_err(|error| match error.kind() {
            // The queue of a UNIX socket is full. The engine would wait for an event.
            ErrorKind::WouldBlock => io::Error::from(ErrorKind::ConnectionRefused),
            _ => error,
        });
        let fd = fd.inspect_err(|_| self.metrics.counts.http2_failed.add(1))?;
        let limit = self.expected_limit(upstream, source);
        let carrier = Carrier {
            fd,
            upstream,
            source,
            phase: Phase::Connecting,
            connection: None,
            tls: None,
            tunnel: None,
            members: Vec::new(),
            limit,
            out: Vec::new(),
            sending: Vec::new(),
            sent: 0,
            is_listed: false,
            is_roomy: false,
            has_waiting: false,
            is_clogged: false,
            is_expelled: false,
            watches_write: true,
            generation: 0,
        };
        let (c, key) = self.carriers.add(carrier);
        if let Err(error) = self.sys.watch(fd, Interest::WRITE, key) {
            self.carriers.remove(c);
            self.sys.close(fd);
            self.metrics.counts.http2_failed.add(1);
            return Err(error);
        }
        Ok(c)
    }

    /// Handles an event of a connection.
    pub(super) fn on_carrier(&mut self, event: &Event) {
        let Some(c) = super::Carriers::index(event.key) else { return };
        let generation = (event.key >> 32) as u32;
        let Some(carrier) = self.carriers.get(c).filter(|one| one.generation == generation) else {
            return;
        };
        if carrier.phase == Phase::Connecting {
            return self.connected(c);
        }
        if event.writable {
            self.flush(c);
        }
        if event.readable {
            self.read_carrier(c);
        }
    }

    /// Handles the result of a connect.
    fn connected(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        if let Err(error) = self.sys.connect_outcome(carrier.fd) {
            return self.end_carrier(c, &Ending::Failed(failed_connect(&error)));
        }
        let upstream = self.settings.upstreams.get(usize::from(carrier.upstream));
        let Some(connect) = upstream.and_then(|upstream| upstream.connect.as_ref()) else {
            return self.secure(c);
        };
        carrier.phase = Phase::Tunnelling;
        carrier.tunnel = Some(Box::default());
        carrier.sending.extend_from_slice(connect);
        self.flush(c);
    }

    /// Handles what a proxy answers.
    pub(super) fn on_tunnel(&mut self, c: u32, bytes: &[u8]) -> Option<Ending> {
        let carrier = self.carriers.get_mut(c)?;
        let upstream = self.settings.upstreams.get(usize::from(carrier.upstream));
        let is_plain = upstream.is_some_and(|upstream| upstream.tls.is_none());
        match carrier.tunnel.as_mut()?.receive(bytes, is_plain) {
            Ok(None) => None,
            Err(_) => Some(Ending::fault(ServerFault::ProxyRefused)),
            Ok(Some(first)) => {
                carrier.tunnel = None;
                self.secure(c);
                self.receive(c, &first)
            }
        }
    }

    /// Begins TLS or, without it, HTTP/2.
    fn secure(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        let upstream = self.settings.upstreams.get(usize::from(carrier.upstream));
        match upstream.and_then(|upstream| upstream.tls.as_ref()) {
            None => self.greet(c),
            Some(client) => match TlsSession::begin(client, &mut carrier.sending) {
                Ok(session) => {
                    carrier.tls = Some(Box::new(session));
                    carrier.phase = Phase::Securing;
                    self.flush(c);
                }
                Err(_) => {
                    let fault = ServerFault::Carrier(Closed::TlsFailed);
                    self.end_carrier(c, &Ending::fault(fault));
                }
            },
        }
    }

    /// Begins HTTP/2.
    pub(super) fn greet(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        let connection = Connection::client(&self.settings.config, &mut carrier.out);
        carrier.connection = Some(Box::new(connection));
        carrier.phase = Phase::Greeting;
        self.flush(c);
    }

    /// Sends what waits, as far as the kernel takes it.
    pub(super) fn flush(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        if carrier.phase == Phase::Connecting {
            return;
        }
        let result = loop {
            if carrier.sent == carrier.sending.len() {
                carrier.sending.clear();
                carrier.sent = 0;
                if carrier.out.is_empty() {
                    break Ok(());
                }
                match carrier.tls.as_deref_mut() {
                    None => std::mem::swap(&mut carrier.out, &mut carrier.sending),
                    Some(tls) => {
                        let taken = carrier.out.len().min(SEALED_BYTES);
                        let plain = carrier.out.get(..taken).unwrap_or_default();
                        if !tls.seal(plain, &mut carrier.sending) {
                            break Err(ErrorKind::BrokenPipe.into());
                        }
                        carrier.out.drain(..taken);
                    }
                }
            }
            let rest = carrier.sending.get(carrier.sent..).unwrap_or_default();
            match self.sys.send(carrier.fd, rest) {
                Ok(sent) => carrier.sent += sent,
                Err(error) => break Err(error),
            }
        };
        let waits = carrier.backlog() > 0;
        match result {
            Ok(()) => {
                if let Some(connection) = carrier.connection.as_mut() {
                    connection.written();
                }
                for buffer in [&mut carrier.out, &mut carrier.sending] {
                    if buffer.capacity() > KEPT_BYTES_MAX {
                        *buffer = Vec::new();
                    }
                }
            }
            Err(error) if is_later(&error) => {}
            Err(error) => return self.end_carrier(c, &Ending::of(&error)),
        }
        if waits != carrier.watches_write {
            carrier.watches_write = waits;
            let interest = Interest { read: true, write: waits };
            let key = u64::from(carrier.generation) << 32 | u64::from(c);
            if let Err(error) = self.sys.rewatch(carrier.fd, interest, key) {
                return self.end_carrier(c, &Ending::of(&error));
            }
        }
        if carrier.is_clogged && carrier.backlog() < BACKLOG_BYTES_MAX / 2 {
            carrier.is_clogged = false;
            self.list_writers(c);
        }
    }

    /// Looks at the sockets of a connection that have something to write.
    pub(super) fn list_writers(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get(c) else { return };
        let writes = |at: &u32| self.sockets.get(*at).is_some_and(|socket| socket.interest.write);
        let writers: Vec<u32> = carrier.members.iter().copied().filter(writes).collect();
        writers.into_iter().for_each(|at| self.list(at));
    }

    /// Takes no further sockets on a connection. Those without a stream get others.
    pub(super) fn retire(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        if carrier.phase == Phase::Leaving {
            return;
        }
        if carrier.phase == Phase::Ready {
            carrier.phase = Phase::Leaving;
        }
        let (upstream, source) = (carrier.upstream, carrier.source);
        if carrier.phase != Phase::Leaving {
            // It never took any.
            return self.end_carrier(c, &Ending::fault(ServerFault::GoAway));
        }
        self.update_room(c);
        let Some(carrier) = self.carriers.get(c) else { return };
        let may_move = |at: &u32| self.sockets.get(*at).is_some_and(|socket| socket.may_move());
        let moved: Vec<u32> = carrier.members.iter().copied().filter(may_move).collect();
        self.move_away(&moved, upstream, source);
    }

    /// Ends a socket whose stream or connection has failed.
    pub(super) fn fail_socket(&mut self, at: u32, failure: SocketFailure) {
        if let Some(held) = self.sockets.held(at) {
            held.failure = Some(failure);
        }
        if let Some(socket) = self.sockets.get_mut(at) {
            socket.state = State::Failed;
        }
        self.list(at);
    }

    /// Ends a connection, and what is left of its sockets.
    pub(super) fn end_carrier(&mut self, c: u32, ending: &Ending) {
        let is_unexplained = match ending {
            Ending::Closed => true,
            Ending::Failed(failure) => failure.fault.is_none(),
        };
        let is_expelled = self.carriers.get(c).is_some_and(|carrier| carrier.is_expelled);
        let expelled = Ending::fault(ServerFault::GoAway);
        let ending = if is_unexplained && is_expelled { &expelled } else { ending };
        let Some(members) = self.remove_carrier(c, true) else { return };
        for at in members {
            let Some(socket) = self.sockets.get_mut(at) else { continue };
            socket.carrier = super::NONE;
            socket.stream = None;
            match (ending, socket.state) {
                // As a connection of its own would: a socket ends in order only after END_STREAM.
                (Ending::Closed, State::Opening | State::Open) => {
                    socket.has_ended = true;
                    self.list(at);
                }
                (Ending::Closed, _) => {
                    let fault = Some(ServerFault::Carrier(Closed::Gone));
                    let error = ErrorKind::ConnectionAborted;
                    self.fail_socket(at, SocketFailure { error, fault });
                }
                (Ending::Failed(_), State::Open) if socket.has_ended => {}
                (Ending::Failed(failure), State::Opening | State::Open) => {
                    self.fail_socket(at, *failure);
                }
                (Ending::Failed(failure), _) => {
                    let reset = ServerFault::Carrier(Closed::Reset);
                    let fault = Some(failure.fault.unwrap_or(reset));
                    let error = ErrorKind::ConnectionAborted;
                    self.fail_socket(at, SocketFailure { error, fault });
                }
            }
        }
    }

    /// Closes a connection without sockets that is not usable.
    pub(super) fn drop_unused(&mut self, c: u32) {
        self.remove_carrier(c, false);
    }

    /// Closes a connection; returns its sockets.
    fn remove_carrier(&mut self, c: u32, is_ended: bool) -> Option<Vec<u32>> {
        let carrier = self.carriers.get_mut(c)?;
        let was_open = matches!(carrier.phase, Phase::Ready | Phase::Leaving);
        carrier.phase = Phase::Leaving;
        self.update_room(c);
        let carrier = self.carriers.remove(c)?;
        self.sys.close(carrier.fd);
        let counts = &self.metrics.counts;
        match was_open {
            false => counts.http2_failed.add(1),
            true => {
                counts.http2_open.sub(1);
                counts.http2_ended.add(u64::from(is_ended));
            }
        }
        Some(carrier.members)
    }

    /// Ends all connections.
    pub(super) fn end_all(&mut self) {
        for c in 0..self.carriers.all.len() as u32 {
            let Some(carrier) = self.carriers.get_mut(c) else { continue };
            if let Some(connection) = carrier.connection.as_mut() {
                connection.go_away(ErrorCode::NO_ERROR, &mut carrier.out);
            }
            self.flush(c);
            if let Some(mut carrier) = self.carriers.remove(c) {
                if let Some(tls) = carrier.tls.as_deref_mut()
                    && carrier.sending.is_empty()
                {
                    tls.close(&mut carrier.sending);
                    // If it is not taken, there is nobody to wait for it.
                    let _ = self.sys.send(carrier.fd, &carrier.sending);
                }
                self.sys.close(carrier.fd);
            }
        }
    }
}

/// Whether a call is to be repeated when the kernel has room or bytes.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
