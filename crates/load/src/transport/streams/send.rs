//! What sockets send: the request that opens a stream, and data as far as windows and backlog allow.

use std::io::{self, ErrorKind};

use engine::ServerFault;
use engine::sys::Sys;
use wire::http2::Refused;

use super::request::{self, Begun};
use super::socket::{SocketFailure, State};
use super::{BACKLOG_BYTES_MAX, StreamKernel, handshake};
use crate::transport::fields::{Form, translate};

impl<S: Sys> StreamKernel<S> {
    /// Gives a new socket a connection, by the request that it will send.
    pub(super) fn place_new(&mut self, at: u32, head: &[u8]) -> io::Result<()> {
        let Some(held) = self.sockets.get(at).and_then(|socket| socket.held.as_deref()) else {
            return Err(ErrorKind::NotConnected.into());
        };
        let (host, accept) = if self.settings.has_requests {
            (request::host(head).ok_or(ErrorKind::InvalidInput)?, None)
        } else {
            let request = handshake::read(head).ok_or(ErrorKind::InvalidInput)?;
            (request.host, Some(request.accept))
        };
        let upstream = self.settings.find(&held.destination, host);
        let (upstream, source) = (upstream.ok_or(ErrorKind::InvalidInput)?, held.source);
        if let Some((accept, held)) = accept.zip(self.sockets.held(at)) {
            held.accept = accept;
        }
        self.place(at, upstream, source)
    }

    /// Opens the stream of a socket, whose connection takes one.
    pub(super) fn begin_stream(&mut self, at: u32, head: &[u8]) -> io::Result<usize> {
        let Some(socket) = self.sockets.get_mut(at) else {
            return Err(ErrorKind::NotConnected.into());
        };
        if socket.state != State::Ready {
            return Err(ErrorKind::WouldBlock.into());
        }
        let c = socket.carrier;
        let Some(carrier) = self.carriers.get_mut(c) else {
            return Err(ErrorKind::NotConnected.into());
        };
        let upstream = self.settings.upstreams.get(usize::from(carrier.upstream));
        let secure = upstream.is_some_and(|upstream| upstream.tls.is_some());
        let out = &mut carrier.out;
        let Some(connection) = carrier.connection.as_mut() else {
            return Err(ErrorKind::NotConnected.into());
        };
        let begun = match self.settings.has_requests {
            true => request::read(head).ok_or(ErrorKind::InvalidInput)?,
            false => Begun::WebSocket(None),
        };
        let (opened, used) = match begun {
            Begun::WebSocket(Some(_)) if !connection.peer_accepts_extended_connect() => {
                let (error, fault) = (ErrorKind::ConnectionAborted, ServerFault::NoExtendedConnect);
                self.fail_socket(at, SocketFailure { error, fault: Some(fault) });
                // The socket is looked at again, and says why.
                return Err(ErrorKind::WouldBlock.into());
            }
            Begun::WebSocket(_) => {
                let opened = translate(head, Form::WebSocket, secure, &mut self.names, |fields| {
                    connection.open(fields, false, at, out)
                });
                (opened, head.len())
            }
            Begun::Request { head_bytes, body_bytes, .. } => {
                let head = head.get(..head_bytes).unwrap_or_default();
                let opened = translate(head, Form::Request, secure, &mut self.names, |fields| {
                    connection.open(fields, body_bytes == 0, at, out)
                });
                (opened, head_bytes)
            }
        };
        match opened {
            Some(Ok(stream)) => {
                socket.state = State::Opening;
                socket.stream = Some(stream);
                if let Begun::Request { body_bytes, .. } = begun {
                    socket.is_request = true;
                    socket.is_finished = body_bytes == 0;
                }
                if let Some(held) = self.sockets.held(at) {
                    begun.note(held);
                }
                self.sends(c);
                Ok(used)
            }
            Some(Err(Refused::TooManyStreams)) => {
                socket.state = State::Waiting;
                carrier.has_waiting = true;
                Err(ErrorKind::WouldBlock.into())
            }
            Some(Err(Refused::GoingAway | Refused::NoIdentifiers)) => {
                self.retire(c);
                Err(ErrorKind::WouldBlock.into())
            }
            None => Err(ErrorKind::InvalidInput.into()),
        }
    }

    /// Sends bytes of a socket, as far as windows and backlog allow.
    pub(super) fn send_data(&mut self, at: u32, bytes: &[u8]) -> io::Result<usize> {
        let Some(socket) = self.sockets.get(at).filter(|socket| !socket.is_finished) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let (c, Some(stream)) = (socket.carrier, socket.stream) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let Some(carrier) = self.carriers.get_mut(c) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        if carrier.backlog() >= BACKLOG_BYTES_MAX {
            carrier.is_clogged = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        let Some(connection) = carrier.connection.as_mut() else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        // The body of a request ends its stream.
        let left = self
            .sockets
            .get(at)
            .filter(|socket| socket.is_request)
            .map(|socket| socket.held.as_ref().map_or(0, |held| held.body_left));
        let ends = left.is_some_and(|left| bytes.len() as u64 >= left);
        match connection.send_data(stream, bytes, ends, &mut carrier.out) {
            Ok(0) if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Ok(sent) => {
                if left.is_some() {
                    self.note_body(at, sent as u64);
                }
                self.sends(c);
                Ok(sent)
            }
            Err(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    /// Notes bytes of the body of a request that were sent.
    fn note_body(&mut self, at: u32, sent: u64) {
        let Some(socket) = self.sockets.get_mut(at) else { return };
        if let Some(held) = &mut socket.held {
            held.body_left = held.body_left.saturating_sub(sent);
            socket.is_finished = held.body_left == 0;
        }
    }
}
