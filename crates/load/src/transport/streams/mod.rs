//! WebSockets on streams of HTTP/2 connections (RFC 8441): [`StreamKernel`] is a kernel whose sockets are
//! streams. The workers of a run use it instead of the kernel that it is built on, so everything above
//! stays as it is: the WebSocket engine, workloads and checks. Runs without HTTP/2 do not have it.
//!
//! A connect is complete when a connection takes another stream, which needs the server's SETTINGS. The
//! request that the engine then writes opens the stream, and the answer is passed on as one of HTTP/1.1
//! (`handshake.rs`). Frames of WebSockets become DATA, as far as the windows allow: the engine keeps the rest
//! in its queue, as with a socket whose buffer is full. What the server sends is bounded by its window,
//! which opens when the engine reads. What is written in a turn is sent at its end, for all streams of a
//! connection together. Connections are in `carrier.rs`, their sockets in `socket.rs`.
//!
//! In scenarios with sockets requests are streams, too: each is a socket that takes one request of HTTP/1.1 and
//! ends after its answer (`request.rs`).

mod carrier;
mod handshake;
mod receive;
mod request;
mod rooms;
mod send;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::invariant;
use engine::sys::{Event, Fd, Interest, Sys, ThreadWaits};
use engine::{ServerFault, TlsClient};
use wire::http2;
use wire::http2::ErrorCode;
use wire::http2::hpack::HeaderList;

use self::carrier::Carriers;
use self::rooms::Rooms;
use self::socket::{Destination, NONE, Sockets, State};
use crate::outcome::metrics::Metrics;
use crate::transport::connect_options::Route;
use crate::transport::tunnel::TunnelRequest;
use crate::{Config, Endpoint};

/// Window of a stream: the most that is kept of what a server sends, in bytes.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Window of a connection: without effect, as a stream that is not read would otherwise stop all others.
const CONNECTION_WINDOW_BYTES: u32 = i32::MAX as u32;
/// Bytes that wait for a connection, beyond which its streams take no more.
const BACKLOG_BYTES_MAX: usize = 256 * 1024;
/// Bytes that are sent before the end of a turn.
const FLUSH_BYTES: usize = 32 * 1024;

/// What the workers of a run share.
#[derive(Debug)]
pub(crate) struct StreamSettings {
    /// Sockets on a connection.
    streams: u32,
    /// Sockets may be requests, which servers without WebSockets answer.
    has_requests: bool,
    upstreams: Vec<Upstream>,
    config: Arc<http2::Config>,
}

/// A target of connections.
#[derive(Debug)]
struct Upstream {
    destination: Destination,
    /// As in the Host header.
    host: String,
    tls: Option<TlsClient>,
    /// The request for a tunnel, if the destination is a proxy.
    connect: Option<Vec<u8>>,
}

impl StreamSettings {
    /// Of a run with HTTP/2; `None` for others.
    pub(crate) fn of(config: &Config) -> Option<Arc<StreamSettings>> {
        let streams = config.streams?;
        Some(StreamSettings::new(streams, false, &config.endpoints))
    }

    /// For so many sockets on a connection, with requests or without.
    pub(crate) fn new(
        streams: u32,
        has_requests: bool,
        endpoints: &[Endpoint],
    ) -> Arc<StreamSettings> {
        let upstream = |endpoint: &Endpoint| Upstream {
            destination: match &endpoint.route {
                Route::Unix(path) => Destination::Unix(Arc::clone(path)),
                _ => Destination::Tcp(endpoint.address),
            },
            host: endpoint.host.clone(),
            tls: endpoint.client.clone().filter(|_| endpoint.tls),
            connect: match &endpoint.route {
                Route::Forward(proxy) | Route::Tunnel(proxy) => {
                    Some(TunnelRequest::new(proxy, endpoint).connect)
                }
                _ => None,
            },
        };
        Arc::new(StreamSettings {
            streams: streams.max(1),
            has_requests,
            upstreams: endpoints.iter().map(upstream).collect(),
            config: Arc::new(http2::Config {
                stream_window_bytes: STREAM_WINDOW_BYTES,
                connection_window_bytes: CONNECTION_WINDOW_BYTES,
                explicit_release: true,
                ..http2::Config::of_client()
            }),
        })
    }

    /// The target with this address and Host header.
    fn find(&self, destination: &Destination, host: &[u8]) -> Option<u16> {
        let is_it = |one: &Upstream| {
            one.destination == *destination && one.host.as_bytes().eq_ignore_ascii_case(host)
        };
        self.upstreams.iter().position(is_it).and_then(|at| u16::try_from(at).ok())
    }
}

/// A kernel whose sockets are streams of HTTP/2 connections, which are sockets of `sys`.
pub(crate) struct StreamKernel<S: Sys> {
    sys: S,
    settings: Arc<StreamSettings>,
    metrics: Arc<Metrics>,
    sockets: Sockets,
    carriers: Carriers,
    rooms: Rooms,
    /// Sockets that may be ready.
    listed: VecDeque<u32>,
    /// Connections with something to send.
    unsent: Vec<u32>,
    /// Events of `sys`, and what is read: plaintext and, with TLS, ciphertext.
    events: Vec<Event>,
    plain: Vec<u8>,
    cipher: Vec<u8>,
    fields: HeaderList,
    names: Vec<u8>,
}

impl<S: Sys> StreamKernel<S> {
    pub(crate) fn new(sys: S, settings: Arc<StreamSettings>, metrics: Arc<Metrics>) -> Self {
        StreamKernel {
            sys,
            settings,
            metrics,
            sockets: Sockets::default(),
            carriers: Carriers::default(),
            rooms: Rooms::default(),
            listed: VecDeque::new(),
            unsent: Vec::new(),
            events: Vec::new(),
            plain: Vec::new(),
            cipher: Vec::new(),
            fields: HeaderList::new(),
            names: Vec::new(),
        }
    }

    /// Looks at a socket in the next wait.
    fn list(&mut self, at: u32) {
        if let Some(socket) = self.sockets.get_mut(at).filter(|socket| !socket.is_listed) {
            socket.is_listed = true;
            self.listed.push_back(at);
        }
    }

    /// What a socket is ready for: to read, to write, or it has failed.
    fn readiness(&self, at: u32) -> Option<Event> {
        let socket = self.sockets.get(at)?;
        let failed = socket.state == State::Failed;
        let readable = socket.has_received() || socket.has_ended || failed;
        let writable = socket.interest.write
            && match socket.state {
                State::Ready | State::Failed => true,
                State::Open => self.carriers.get(socket.carrier).is_some_and(|carrier| {
                    socket.stream.is_some_and(|stream| carrier.takes(stream))
                }),
                State::Opening if socket.is_request => {
                    self.carriers.get(socket.carrier).is_some_and(|carrier| {
                        socket.stream.is_some_and(|stream| carrier.takes(stream))
                    })
                }
                _ => false,
            };
        let readable = readable && socket.interest.read;
        let event = Event { key: socket.key, readable, writable, failed };
        (readable || writable || failed).then_some(event)
    }

    /// Drops sockets that are not ready from the list; returns whether any is.
    fn prune(&mut self) -> bool {
        for _ in 0..self.listed.len() {
            let Some(at) = self.listed.pop_front() else { break };
            if self.readiness(at).is_some() {
                self.listed.push_back(at);
            } else {
                self.sockets.unlist(at);
            }
        }
        !self.listed.is_empty()
    }

    /// Notes that a connection has something to send, and sends it if that is much.
    pub(super) fn sends(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        if !carrier.is_listed {
            carrier.is_listed = true;
            self.unsent.push(c);
        }
        if carrier.out.len() >= FLUSH_BYTES {
            self.flush(c);
        }
    }

    /// Reads what was received for a socket.
    fn read_socket(&mut self, at: u32, into: &mut [u8]) -> io::Result<usize> {
        let Some(socket) = self.sockets.get_mut(at) else {
            return Err(ErrorKind::NotConnected.into());
        };
        if !socket.has_received() {
            return match socket.state {
                State::Failed => Err(socket.error()),
                _ if socket.has_ended => Ok(0),
                _ => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let before = socket.unread();
        let (c, stream, failed) = (socket.carrier, socket.stream, socket.state == State::Failed);
        let Some(held) = socket.held.as_deref_mut() else {
            return Err(ErrorKind::WouldBlock.into());
        };
        let rest = held.received.get(held.at..).unwrap_or_default();
        let taken = rest.len().min(into.len());
        if let (Some(into), Some(rest)) = (into.get_mut(..taken), rest.get(..taken)) {
            into.copy_from_slice(rest);
        }
        held.at += taken;
        let released = before - socket.unread();
        if !socket.has_received() && !failed && !socket.is_request {
            self.sockets.put_back(at);
        }
        if let Some(stream) = stream.filter(|_| released > 0) {
            self.release(c, stream, released);
        }
        Ok(taken)
    }

    /// Lets the server send as much again as was read of a stream.
    fn release(&mut self, c: u32, stream: http2::StreamId, bytes: usize) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        if let Some(connection) = carrier.connection.as_mut() {
            connection.release(stream, bytes, &mut carrier.out);
            if !carrier.out.is_empty() {
                self.sends(c);
            }
        }
    }

    /// Ends our side of a stream.
    fn finish_stream(&mut self, at: u32) {
        let Some(socket) = self.sockets.get_mut(at) else { return };
        socket.is_finished = true;
        let (c, Some(stream)) = (socket.carrier, socket.stream) else { return };
        if let Some(carrier) = self.carriers.get_mut(c)
            && let Some(connection) = carrier.connection.as_mut()
        {
            // A stream that has ended needs no end.
            let _ = connection.send_data(stream, &[], true, &mut carrier.out);
            self.sends(c);
        }
    }

    /// Closes a socket. A stream that the server has not ended is cancelled, as TCP would reset it (RFC
    /// 8441 section 5).
    fn close_socket(&mut self, at: u32) {
        let Some(socket) = self.sockets.get(at) else {
            return invariant::broken("a socket that is closed is in the table");
        };
        let (c, unread) = (socket.carrier, socket.unread());
        if let Some(stream) = socket.stream {
            if unread > 0 {
                self.release(c, stream, unread);
            }
            if self.sockets.get(at).is_some_and(|socket| socket.has_ended && !socket.is_finished) {
                self.finish_stream(at);
            }
            if let Some(carrier) = self.carriers.get_mut(c)
                && let Some(connection) = carrier.connection.as_mut()
                && connection.reset(stream, ErrorCode::CANCEL, &mut carrier.out)
            {
                self.sends(c);
            }
        }
        if c != NONE {
            self.leave(at);
        }
        self.sockets.free(at);
    }
}

impl<S: Sys> Sys for StreamKernel<S> {
    fn now_ns(&self) -> u64 {
        self.sys.now_ns()
    }

    fn thread_waits(&mut self) -> Option<ThreadWaits> {
        self.sys.thread_waits()
    }

    fn pause(&mut self, ns: u32) {
        self.sys.pause(ns);
    }

    fn random(&mut self) -> u64 {
        self.sys.random()
    }

    fn wait(
        &mut self,
        events: &mut Vec<Event>,
        events_max: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        while let Some(c) = self.unsent.pop() {
            if let Some(carrier) = self.carriers.get_mut(c) {
                carrier.is_listed = false;
                self.flush(c);
            }
        }
        let timeout = if self.prune() { Some(Duration::ZERO) } else { timeout };
        let mut received = std::mem::take(&mut self.events);
        received.clear();
        let waited = self.sys.wait(&mut received, events_max, timeout);
        for event in &received {
            match Carriers::index(event.key) {
                Some(_) => self.on_carrier(event),
                None => events.push(*event),
            }
        }
        self.events = received;
        waited?;
        for _ in 0..self.listed.len() {
            if events.len() >= events_max {
                break;
            }
            let Some(at) = self.listed.pop_front() else { break };
            match self.readiness(at) {
                Some(event) => {
                    events.push(event);
                    self.listed.push_back(at);
                }
                None => self.sockets.unlist(at),
            }
        }
        Ok(())
    }

    fn poll_fd(&self) -> Option<i32> {
        self.sys.poll_fd()
    }

    fn watch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        let Some(at) = Sockets::index(fd) else { return self.sys.watch(fd, interest, key) };
        if let Some(socket) = self.sockets.get_mut(at) {
            (socket.interest, socket.key) = (interest, key);
        }
        self.list(at);
        Ok(())
    }

    fn watch_listener(&mut self, listener: Fd, key: u64) -> io::Result<()> {
        self.sys.watch_listener(listener, key)
    }

    fn rewatch(&mut self, fd: Fd, interest: Interest, key: u64) -> io::Result<()> {
        if Sockets::index(fd).is_none() {
            return self.sys.rewatch(fd, interest, key);
        }
        self.watch(fd, interest, key)
    }

    fn unwatch(&mut self, fd: Fd) -> io::Result<()> {
        match Sockets::index(fd) {
            None => self.sys.unwatch(fd),
            Some(_) => self.watch(fd, Interest::NONE, 0),
        }
    }

    fn wake_fd(&self) -> Option<Fd> {
        self.sys.wake_fd()
    }

    fn clear_wake(&mut self) {
        self.sys.clear_wake();
    }

    fn accept(&mut self, listener: Fd) -> io::Result<Fd> {
        self.sys.accept(listener)
    }

    fn accept_with_peer(&mut self, listener: Fd) -> io::Result<(Fd, Option<IpAddr>)> {
        self.sys.accept_with_peer(listener)
    }

    fn connect(&mut self, destination: SocketAddr, source: Option<IpAddr>) -> io::Result<Fd> {
        Ok(Sockets::fd(self.sockets.add(Destination::Tcp(destination), source)))
    }

    fn connect_unix(&mut self, path: &Path) -> io::Result<Fd> {
        Ok(Sockets::fd(self.sockets.add(Destination::Unix(path.into()), None)))
    }

    fn connect_outcome(&mut self, fd: Fd) -> io::Result<()> {
        let Some(at) = Sockets::index(fd) else { return self.sys.connect_outcome(fd) };
        match self.sockets.get(at) {
            Some(socket) if socket.state == State::Failed => Err(socket.error()),
            _ => Ok(()),
        }
    }

    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> io::Result<usize> {
        match Sockets::index(fd) {
            None => self.sys.recv(fd, into),
            Some(at) => self.read_socket(at, into),
        }
    }

    fn send(&mut self, fd: Fd, bytes: &[u8]) -> io::Result<usize> {
        let Some(at) = Sockets::index(fd) else { return self.sys.send(fd, bytes) };
        let Some(socket) = self.sockets.get(at) else {
            return Err(ErrorKind::NotConnected.into());
        };
        match socket.state {
            State::Open => self.send_data(at, bytes),
            State::Opening if socket.is_request => self.send_data(at, bytes),
            State::New => {
                self.place_new(at, bytes)?;
                self.begin_stream(at, bytes)
            }
            State::Ready => self.begin_stream(at, bytes),
            State::Waiting | State::Opening => Err(ErrorKind::WouldBlock.into()),
            State::Failed => Err(socket.error()),
            State::Free => Err(ErrorKind::NotConnected.into()),
        }
    }

    fn send_vectored(&mut self, fd: Fd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if Sockets::index(fd).is_none() {
            return self.sys.send_vectored(fd, pieces);
        }
        let mut sent = 0;
        for piece in pieces {
            match self.send(fd, piece) {
                Ok(taken) => {
                    sent += taken;
                    if taken < piece.len() {
                        break;
                    }
                }
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    fn shutdown_write(&mut self, fd: Fd) {
        match Sockets::index(fd) {
            None => self.sys.shutdown_write(fd),
            Some(at) => self.finish_stream(at),
        }
    }

    fn close(&mut self, fd: Fd) {
        match Sockets::index(fd) {
            None => self.sys.close(fd),
            Some(at) => self.close_socket(at),
        }
    }

    fn stop_listening(&mut self, listener: Fd) {
        self.sys.stop_listening(listener);
    }

    fn reset_on_close(&mut self, fd: Fd) {
        // A stream is cancelled in any case unless the server has ended it.
        if Sockets::index(fd).is_none() {
            self.sys.reset_on_close(fd);
        }
    }

    fn fault(&self, fd: Fd) -> Option<ServerFault> {
        let at = Sockets::index(fd)?;
        self.sockets.get(at)?.failure()?.fault
    }

    fn peer(&self, fd: Fd) -> Option<SocketAddr> {
        let Some(at) = Sockets::index(fd) else { return self.sys.peer(fd) };
        let carrier = self.carriers.get(self.sockets.get(at)?.carrier)?;
        self.sys.peer(carrier.fd)
    }

    fn local(&self, fd: Fd) -> Option<SocketAddr> {
        let Some(at) = Sockets::index(fd) else { return self.sys.local(fd) };
        let carrier = self.carriers.get(self.sockets.get(at)?.carrier)?;
        self.sys.local(carrier.fd)
    }

    fn is_broken(&self, fd: Fd) -> bool {
        let Some(at) = Sockets::index(fd) else { return self.sys.is_broken(fd) };
        self.sockets.get(at).is_some_and(|socket| socket.state == State::Failed)
    }

    fn peer_has_left(&self, fd: Fd) -> bool {
        let Some(at) = Sockets::index(fd) else { return self.sys.peer_has_left(fd) };
        self.sockets.get(at).is_none_or(|socket| socket.has_ended || socket.state == State::Failed)
    }
}

impl<S: Sys> Drop for StreamKernel<S> {
    fn drop(&mut self) {
        self.end_all();
    }
}
