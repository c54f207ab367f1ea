//! [`Client`]: a connection that its caller drives, and waits for.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use engine::sys::process::now_ns;
use engine::{Closed, ConnId, Sent};

use super::driver::Driver;
use super::resolver::Resolver;
use super::{ClientError, ClientHandler, ClientRemote, ClientSocket, Connect, Lost};
use crate::routes::nanoseconds;
use crate::{CloseCode, Message};

/// Memory for received bytes that is kept while it is not used.
const KEPT_BYTES_MAX: usize = 256 * 1024;
/// Bytes that wait to be sent at most when [`Client::send`] returns.
const SEND_AHEAD_BYTES: usize = 64 * 1024;
/// Received bytes beyond which nothing more is read before [`Client::receive`] has returned them.
const RECEIVED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A WebSocket that is read and written by the thread that opened it: [`connect`](crate::connect).
///
/// Pings are answered, and the connection is checked by pings of its own
/// ([`Limits::idle_timeout`](crate::Limits::idle_timeout)), while `receive` or `send` waits. A client cannot be
/// sent to another thread, but its [`Client::remote`] can.
///
/// Cost: a system call for each read of up to 64 KiB, with all messages in it, another to wait for it, and one for each `send`.
pub struct Client {
    driver: Driver<Inbox>,
    state: Rc<RefCell<State>>,
    remote: ClientRemote,
    /// What `receive` returns next: the payloads one after the other, and how long each is.
    bytes: Vec<u8>,
    at: usize,
    messages: VecDeque<(bool, usize)>,
}

/// What the handler has noted.
#[derive(Default)]
struct State {
    id: Option<ConnId>,
    protocol: Option<Box<str>>,
    opened: u64,
    bytes: Vec<u8>,
    messages: VecDeque<(bool, usize)>,
    paused: bool,
    /// How the connection was lost last.
    lost: Option<Lost>,
}

struct Inbox(Rc<RefCell<State>>);

impl ClientHandler for Inbox {
    fn open(&mut self, socket: &mut ClientSocket<'_>, protocol: Option<&str>) {
        let mut state = self.0.borrow_mut();
        state.id = Some(socket.id);
        state.protocol = protocol.map(Into::into);
        state.opened += 1;
        state.paused = false;
    }

    fn message(&mut self, socket: &mut ClientSocket<'_>, message: Message<'_>) {
        let mut state = self.0.borrow_mut();
        state.bytes.extend_from_slice(message.as_bytes());
        state.messages.push_back((matches!(message, Message::Binary(_)), message.len()));
        if state.bytes.len() > RECEIVED_BYTES_MAX && !state.paused {
            state.paused = true;
            socket.pause();
        }
    }

    fn close(&mut self, lost: &Lost) {
        let mut state = self.0.borrow_mut();
        (state.id, state.lost) = (None, Some(lost.clone()));
    }
}

impl Client {
    pub(super) fn open(connect: Connect) -> Result<Client, ClientError> {
        let checked = connect.check()?;
        let resolver = Resolver::new(1);
        let mut driver = Driver::new(&connect.limits, resolver).map_err(ClientError::Worker)?;
        let state = Rc::new(RefCell::new(State::default()));
        let remote = driver.begin(checked, Inbox(Rc::clone(&state)));
        let (bytes, messages) = Default::default();
        let mut client = Client { driver, state, remote, bytes, at: 0, messages };
        loop {
            let mut state = client.state.borrow_mut();
            if let Some(lost) = state.lost.take() {
                return Err(ClientError::Lost(lost));
            }
            if state.id.is_some() {
                break;
            }
            drop(state);
            client.turn(None)?;
        }
        Ok(client)
    }

    /// Sends a message. It waits while more than 64 KiB wait for the server, and with
    /// [`Connect::reconnect`] until there is a connection. A message on its way when the connection is lost
    /// is lost, too.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        let id = self.connected()?;
        let message = message.into();
        match self.driver.core().send(id, message.opcode(), message.as_bytes()) {
            Sent::Sent => Ok(()),
            Sent::Queued(_) => self.flush_below(id, SEND_AHEAD_BYTES),
            Sent::Dropped => Err(self.dropped()?),
        }
    }

    /// Sends several messages by one system call.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn send_all<'m>(
        &mut self,
        messages: impl IntoIterator<Item = Message<'m>>,
    ) -> Result<(), ClientError> {
        let id = self.connected()?;
        let mut begun = self.driver.core().begin_cork(id);
        for message in messages {
            let core = self.driver.core();
            let sent = core.send(id, message.opcode(), message.as_bytes());
            let is_behind = core.queued(id) > SEND_AHEAD_BYTES;
            if begun && (is_behind || sent == Sent::Dropped) {
                core.end_cork();
                begun = false;
            }
            if sent == Sent::Dropped {
                return Err(self.dropped()?);
            }
            if is_behind {
                self.flush_below(id, SEND_AHEAD_BYTES)?;
                begun = self.driver.core().begin_cork(id);
            }
        }
        if begun {
            self.driver.core().end_cork();
        }
        self.flush_below(id, SEND_AHEAD_BYTES)
    }

    /// Waits until the kernel has everything.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let id = self.connected()?;
        self.flush_below(id, 0)
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// [`ClientError::Lost`], once all messages received before were returned. With
    /// [`Connect::reconnect`] it waits for the next connection instead; [`Client::opened`] counts them.
    pub fn receive(&mut self) -> Result<Message<'_>, ClientError> {
        while self.messages.is_empty() {
            self.fill(None)?;
        }
        self.next().ok_or_else(gone)
    }

    /// As [`Client::receive`]; `None` if nothing arrives for this long.
    ///
    /// # Errors
    /// As [`Client::receive`].
    pub fn receive_for(&mut self, longest: Duration) -> Result<Option<Message<'_>>, ClientError> {
        let until_ns = now_ns().saturating_add(nanoseconds(longest));
        while self.messages.is_empty() {
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            self.fill(Some(left))?;
            if left.is_zero() && self.messages.is_empty() {
                return Ok(None);
            }
        }
        Ok(self.next())
    }

    /// The subprotocol that the server chose.
    #[must_use]
    pub fn protocol(&self) -> Option<String> {
        self.state.borrow().protocol.as_deref().map(str::to_owned)
    }

    /// How many times the connection was opened.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.state.borrow().opened
    }

    /// The handle for other threads. What they send leaves while this client waits in `receive` or `send`.
    #[must_use]
    pub fn remote(&self) -> &ClientRemote {
        &self.remote
    }

    /// Closes the connection with a code and a reason, and waits for the server's answer, at most
    /// [`Limits::close_timeout`](crate::Limits::close_timeout). What was not received before is discarded.
    ///
    /// # Errors
    /// [`ClientError::Worker`].
    pub fn close(mut self, code: CloseCode, reason: &str) -> Result<Lost, ClientError> {
        // Also if there is no connection at the moment.
        self.driver.close(code, reason);
        loop {
            if let Some(lost) = self.driver.take_ended() {
                return Ok(lost);
            }
            let mut state = self.state.borrow_mut();
            (state.bytes, state.messages) = Default::default();
            drop(state);
            self.turn(None)?;
        }
    }

    fn turn(&mut self, timeout: Option<Duration>) -> Result<(), ClientError> {
        self.driver.turn(timeout).map(drop).map_err(ClientError::Worker)
    }

    /// The connection, once there is one.
    fn connected(&mut self) -> Result<ConnId, ClientError> {
        loop {
            let state = self.state.borrow();
            if let Some(id) = state.id {
                return Ok(id);
            }
            let is_over = state.lost.as_ref().is_none_or(|lost| lost.again_in.is_none());
            drop(state);
            if is_over {
                return Err(self.lost());
            }
            self.turn(None)?;
        }
    }

    fn flush_below(&mut self, id: ConnId, bytes: usize) -> Result<(), ClientError> {
        while self.driver.core().queued(id) > bytes {
            self.turn(None)?;
        }
        match self.state.borrow().id {
            Some(now) if now == id => Ok(()),
            _ => Err(self.lost()),
        }
    }

    fn lost(&self) -> ClientError {
        self.lost_or(Closed::ByPeer)
    }

    /// Why a message was not taken: what is known, or else that too much waits for the server.
    fn dropped(&mut self) -> Result<ClientError, ClientError> {
        self.turn(Some(Duration::ZERO))?;
        Ok(self.lost_or(Closed::SlowConsumer))
    }

    fn lost_or(&self, cause: Closed) -> ClientError {
        let lost = self.state.borrow().lost.clone();
        ClientError::Lost(lost.unwrap_or_else(|| Lost::new(cause, true)))
    }

    /// Gets what has arrived, or waits for something to happen.
    fn fill(&mut self, timeout: Option<Duration>) -> Result<(), ClientError> {
        if self.take_received() {
            return Ok(());
        }
        let state = self.state.borrow();
        let is_over = |lost: &Lost| lost.again_in.is_none();
        if state.id.is_none() && state.lost.as_ref().is_none_or(is_over) {
            drop(state);
            return Err(self.lost());
        }
        drop(state);
        self.turn(timeout)?;
        self.take_received();
        Ok(())
    }

    fn take_received(&mut self) -> bool {
        let mut state = self.state.borrow_mut();
        if state.messages.is_empty() {
            return false;
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
        self.at = 0;
        std::mem::swap(&mut self.bytes, &mut state.bytes);
        std::mem::swap(&mut self.messages, &mut state.messages);
        let resumed = std::mem::take(&mut state.paused).then_some(state.id).flatten();
        drop(state);
        if let Some(id) = resumed {
            self.driver.core().resume(id);
        }
        true
    }

    fn next(&mut self) -> Option<Message<'_>> {
        let (binary, length) = self.messages.pop_front()?;
        let payload = self.bytes.get(self.at..self.at + length)?;
        self.at += length;
        Some(match binary {
            true => Message::Binary(payload),
            false => Message::Text(std::str::from_utf8(payload).ok()?),
        })
    }
}

/// No message is where one was counted.
fn gone() -> ClientError {
    engine::invariant::broken("a message that was counted is there");
    ClientError::Lost(Lost::new(Closed::Aborted, true))
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client(opened {} times)", self.opened())
    }
}
