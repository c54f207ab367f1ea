//! What servers send on HTTP/2 connections, and what it means to the sockets there.

use std::io::ErrorKind;

use engine::sys::Sys;
use engine::{Closed, READ_BUFFER_BYTES, ServerFault, TlsState};
use wire::http2::{ErrorCode, Event, HeadKind};

use super::carrier::{Ending, Phase, is_later};
use super::socket::{Socket, SocketFailure, State};
use super::{StreamKernel, handshake, request};

impl<S: Sys> StreamKernel<S> {
    /// One bounded read of a connection, and everything that follows from it.
    pub(super) fn read_carrier(&mut self, c: u32) {
        let mut plain = std::mem::take(&mut self.plain);
        if plain.is_empty() {
            plain = vec![0; READ_BUFFER_BYTES];
        }
        let is_secure = self.carriers.get(c).is_some_and(|carrier| carrier.tls.is_some());
        let ending = if is_secure {
            self.read_records(c, &mut plain)
        } else {
            self.read_plain(c, &mut plain)
        };
        self.plain = plain;
        match ending {
            None => self.after_read(c),
            Some(ending) => self.end_carrier(c, &ending),
        }
    }

    fn read_plain(&mut self, c: u32, plain: &mut [u8]) -> Option<Ending> {
        let carrier = self.carriers.get(c)?;
        match self.sys.recv(carrier.fd, plain) {
            Ok(0) => Some(Ending::Closed),
            Ok(got) => {
                let bytes = plain.get(..got).unwrap_or_default();
                match carrier.tunnel {
                    None => self.receive(c, bytes),
                    Some(_) => self.on_tunnel(c, bytes),
                }
            }
            Err(error) if is_later(&error) => None,
            Err(error) => Some(Ending::of(&error)),
        }
    }

    fn read_records(&mut self, c: u32, plain: &mut [u8]) -> Option<Ending> {
        if self.cipher.is_empty() {
            self.cipher = vec![0; READ_BUFFER_BYTES];
        }
        let carrier = self.carriers.get_mut(c)?;
        let tls = carrier.tls.as_deref_mut()?;
        let failed = || Some(Ending::fault(ServerFault::Carrier(Closed::TlsFailed)));
        let (was_open, kept) = (tls.is_open(), tls.kept());
        let got = match self.sys.recv(carrier.fd, self.cipher.get_mut(kept..).unwrap_or_default()) {
            Ok(0) if was_open => return Some(Ending::Closed),
            Ok(0) => return failed(),
            Ok(got) => got,
            Err(error) if is_later(&error) => return None,
            Err(_) if !was_open => return failed(),
            Err(error) => return Some(Ending::of(&error)),
        };
        let bytes = self.cipher.get_mut(..kept + got).unwrap_or_default();
        let (got, state) = tls.receive(bytes, plain, &mut carrier.sending);
        let is_open = tls.is_open();
        if state == TlsState::Failed {
            // The alert, if the server still reads.
            self.flush(c);
            return failed();
        }
        if is_open && !was_open {
            self.greet(c);
        } else {
            self.flush(c);
        }
        let ending = match plain.get(..got).filter(|bytes| !bytes.is_empty()) {
            Some(bytes) => self.receive(c, bytes),
            None => None,
        };
        ending.or((state == TlsState::Ended).then_some(Ending::Closed))
    }

    /// Takes bytes of HTTP/2.
    pub(super) fn receive(&mut self, c: u32, bytes: &[u8]) -> Option<Ending> {
        let mut rest = bytes;
        loop {
            let carrier = self.carriers.get_mut(c)?;
            let connection = carrier.connection.as_mut()?;
            match connection.receive(rest, &mut self.fields, &mut carrier.out) {
                Ok(Some((used, event))) => {
                    rest = rest.get(used..).unwrap_or_default();
                    if let Some(ending) = self.on_event(c, &event) {
                        return Some(ending);
                    }
                }
                Ok(None) => return None,
                Err(violation) => {
                    connection.go_away_for(violation, &mut carrier.out);
                    self.flush(c);
                    return Some(Ending::fault(ServerFault::Violation(violation)));
                }
            }
        }
    }

    /// Sends answers of the protocol with what the turn sends, and closes what is not needed any more.
    fn after_read(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get(c) else { return };
        if carrier.members.is_empty() && carrier.phase == Phase::Leaving {
            return self.drop_unused(c);
        }
        if carrier.backlog() > 0 {
            self.sends(c);
        }
    }

    fn on_event(&mut self, c: u32, event: &Event<'_>) -> Option<Ending> {
        match *event {
            Event::Head { tag, kind: HeadKind::Response(status), end_stream, .. } => {
                self.answered(tag, status, end_stream);
            }
            Event::Head { tag, kind: HeadKind::Trailers, .. } => self.ended(tag, true),
            Event::Head { .. } | Event::Pong(_) => {}
            Event::Data { tag, data, end_stream, .. } => {
                let is_here = self.sockets.get(tag).is_some_and(|socket| socket.carrier == c);
                if let Some(held) = self.sockets.held(tag).filter(|_| is_here) {
                    held.received.extend_from_slice(data);
                }
                if end_stream {
                    self.ended(tag, false);
                }
                self.list(tag);
            }
            Event::Reset { tag, code, .. } => {
                let leaving = self.carriers.get(c).is_some_and(|one| one.phase == Phase::Leaving);
                let fault = match code {
                    ErrorCode::REFUSED_STREAM if leaving => ServerFault::GoAway,
                    code => ServerFault::StreamReset(code),
                };
                self.lost(c, tag, fault);
            }
            Event::StreamFailed { tag, violation, .. } => {
                self.lost(c, tag, ServerFault::Violation(violation));
            }
            Event::GoAway { code, .. } => {
                self.metrics.counts.http2_goaways.add(1);
                if let Some(carrier) = self.carriers.get_mut(c) {
                    let connection = carrier.connection.as_ref();
                    let debug = connection.map_or(&[][..], |connection| connection.go_away_debug());
                    self.metrics.goaways.note(code, debug);
                    carrier.is_expelled |= code != ErrorCode::NO_ERROR;
                }
                self.retire(c);
            }
            Event::Settings => return self.on_settings(c),
            Event::WindowOpened(Some((_, tag))) => self.list(tag),
            Event::WindowOpened(None) => self.list_writers(c),
        }
        None
    }

    /// The server's SETTINGS have arrived, or have changed.
    fn on_settings(&mut self, c: u32) -> Option<Ending> {
        let carrier = self.carriers.get_mut(c)?;
        let connection = carrier.connection.as_ref()?;
        let needs_websockets = !self.settings.has_requests;
        if needs_websockets && !connection.peer_accepts_extended_connect() {
            return Some(Ending::fault(ServerFault::NoExtendedConnect));
        }
        let allowed = connection.open_streams().saturating_add(connection.free_streams());
        if carrier.phase == Phase::Greeting {
            carrier.phase = Phase::Ready;
            self.metrics.counts.http2_opened.add(1);
            self.metrics.counts.http2_open.add(1);
        }
        if self.carriers.get(c).is_some_and(|carrier| carrier.phase == Phase::Ready) {
            self.limit(c, allowed);
            self.wake_waiting(c);
        }
        self.list_writers(c);
        None
    }

    /// The answer to the request of a socket.
    fn answered(&mut self, at: u32, status: u16, end_stream: bool) {
        let Some(socket) = self.sockets.get_mut(at).filter(|one| one.state == State::Opening)
        else {
            return;
        };
        socket.state = State::Open;
        socket.has_ended |= end_stream;
        let (is_request, is_call) = (socket.is_request, socket.is_call());
        if let Some(held) = self.sockets.held(at) {
            let accept = held.accept;
            match is_request {
                true => request::answer(status, &self.fields, is_call, &mut held.received),
                false => handshake::answer(status, &self.fields, &accept, &mut held.received),
            }
            held.answer_bytes = held.received.len();
        }
        if end_stream && is_call {
            return self.ended(at, false);
        }
        self.list(at);
    }

    /// Handles the end of a stream by the server. A call gets its trailers as a frame after the body, or an empty frame
    /// if there were none: without that frame its connection was lost.
    fn ended(&mut self, at: u32, has_trailers: bool) {
        let is_call = self.sockets.get(at).is_some_and(Socket::is_call);
        if is_call && let Some(held) = self.sockets.held(at) {
            let fields = self.fields.iter().filter(|_| has_trailers);
            held.trailer_bytes = request::trailers(fields, &mut held.received);
        }
        if let Some(socket) = self.sockets.get_mut(at) {
            socket.has_ended = true;
        }
        self.list(at);
    }

    /// A stream is gone.
    fn lost(&mut self, c: u32, at: u32, fault: ServerFault) {
        let Some(socket) = self.sockets.get(at).filter(|socket| socket.carrier == c) else {
            return;
        };
        let (stream, unread, had_ended) = (socket.stream, socket.unread(), socket.has_ended);
        if let Some(stream) = stream.filter(|_| unread > 0) {
            self.release(c, stream, unread);
        }
        self.leave(at);
        if !had_ended {
            let error = ErrorKind::ConnectionReset;
            self.fail_socket(at, SocketFailure { error, fault: Some(fault) });
        }
    }
}
