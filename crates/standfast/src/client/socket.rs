//! [`ClientHandler`] and [`ClientSocket`]: what a program does with a connection of its client.

use engine::{ConnId, Core, Sent, Sys};

use super::worker::ClientWorker;
use super::{ClientRemote, Lost};
use crate::{CloseCode, Message};

/// What a program does with one connection of a client: it is called by the thread that drives the
/// connection, and must not wait.
pub trait ClientHandler: 'static {
    /// The WebSocket is open, for the first time or again, with the subprotocol that the server chose.
    fn open(&mut self, _socket: &mut ClientSocket<'_>, _protocol: Option<&str>) {}

    /// A complete message was received. Answers leave by one system call, with all of the same read.
    fn message(&mut self, socket: &mut ClientSocket<'_>, message: Message<'_>);

    /// Everything that waited was taken by the kernel: after [`Sent::Queued`], the time to send more.
    fn drain(&mut self, _socket: &mut ClientSocket<'_>) {}

    /// A pong was received, with the payload of a ping.
    fn pong(&mut self, _socket: &mut ClientSocket<'_>, _payload: &[u8]) {}

    /// The connection has ended, or could not be opened. Without [`Lost::again_in`] this is the last call.
    fn close(&mut self, _lost: &Lost) {}
}

/// What a worker of clients does with a connection, whatever its handler is.
pub(super) trait Operations {
    fn send(&mut self, id: ConnId, message: Message<'_>, compress: bool) -> Sent;
    fn begin_cork(&mut self, id: ConnId) -> bool;
    fn end_cork(&mut self);
    fn ping(&mut self, id: ConnId, payload: &[u8]) -> Sent;
    fn queued_bytes(&self, id: ConnId) -> usize;
    fn pause(&mut self, id: ConnId);
    fn resume(&mut self, id: ConnId);
    fn close(&mut self, id: ConnId, code: CloseCode, reason: &str);
    fn abort(&mut self, id: ConnId);
    fn is_open(&self, id: ConnId) -> bool;
}

impl<S: Sys, H: ClientHandler> Operations for Core<S, ClientWorker<H>> {
    fn send(&mut self, id: ConnId, message: Message<'_>, compress: bool) -> Sent {
        let (opcode, data) = (message.opcode(), message.as_bytes());
        match compress {
            true => Core::send(self, id, opcode, data),
            false => self.send_uncompressed(id, opcode, data),
        }
    }

    fn begin_cork(&mut self, id: ConnId) -> bool {
        Core::begin_cork(self, id)
    }

    fn end_cork(&mut self) {
        Core::end_cork(self);
    }

    fn ping(&mut self, id: ConnId, payload: &[u8]) -> Sent {
        Core::ping(self, id, payload)
    }

    fn queued_bytes(&self, id: ConnId) -> usize {
        self.queued(id)
    }

    fn pause(&mut self, id: ConnId) {
        Core::pause(self, id);
    }

    fn resume(&mut self, id: ConnId) {
        Core::resume(self, id);
    }

    fn close(&mut self, id: ConnId, code: CloseCode, reason: &str) {
        let code = if code.is_sendable() { code } else { CloseCode::INTERNAL };
        Core::close(self, id, code, reason);
    }

    fn abort(&mut self, id: ConnId) {
        Core::abort(self, id);
    }

    fn is_open(&self, id: ConnId) -> bool {
        Core::is_open(self, id)
    }
}

/// The connection that a handler is called for. It lives as long as the call: keep [`ClientSocket::remote`] to
/// reach the connection later.
pub struct ClientSocket<'a> {
    pub(super) operations: &'a mut dyn Operations,
    pub(super) id: ConnId,
    pub(super) remote: &'a ClientRemote,
    /// This client closes: it is not opened again.
    pub(super) leaves: bool,
}

impl ClientSocket<'_> {
    /// Sends a message. What the kernel does not take waits, up to
    /// [`Limits::send_queue_bytes`](crate::Limits::send_queue_bytes).
    #[inline]
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Sent {
        self.operations.send(self.id, message.into(), true)
    }

    /// As [`ClientSocket::send`], never compressed.
    pub fn send_uncompressed<'m>(&mut self, message: impl Into<Message<'m>>) -> Sent {
        self.operations.send(self.id, message.into(), false)
    }

    /// Sends all messages of a call together, by one system call, as is done within `message` anyway.
    pub fn cork<T>(&mut self, send: impl FnOnce(&mut Self) -> T) -> T {
        let begun = self.operations.begin_cork(self.id);
        let result = send(self);
        if begun {
            self.operations.end_cork();
        }
        result
    }

    /// Sends a ping with at most 125 bytes.
    pub fn ping(&mut self, payload: &[u8]) -> Sent {
        self.operations.ping(self.id, payload)
    }

    /// Bytes that wait to be sent.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.operations.queued_bytes(self.id)
    }

    /// Stops reading: the server feels it by the flow control of TCP.
    pub fn pause(&mut self) {
        self.operations.pause(self.id);
    }

    /// Goes on reading.
    pub fn resume(&mut self) {
        self.operations.resume(self.id);
    }

    /// Closes the connection, which is not opened again, with a code and a reason of at most 123 bytes.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.leaves = true;
        self.operations.close(self.id, code, reason);
    }

    /// Ends the connection at once, without a close frame. With [`Reconnect`](super::Reconnect) it is opened
    /// again.
    pub fn abort(&mut self) {
        self.operations.abort(self.id);
    }

    /// Whether messages can be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.operations.is_open(self.id)
    }

    /// The handle to this connection for other threads, also after it was opened again.
    #[must_use]
    pub fn remote(&self) -> &ClientRemote {
        self.remote
    }
}
