//! [`Socket`] and [`Context`]: what a handler can do in a call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::{ConnId, Sent};

use crate::operations::Operations;
use crate::{CloseCode, Message, Refused, Remote, SocketId};

/// The socket that a handler is called for. It lives as long as the call: to reach the socket later, keep
/// its [`Socket::id`] and a clone of [`Socket::remote`].
pub struct Socket<'a> {
    operations: &'a mut dyn Operations,
    id: ConnId,
}

impl<'a> Socket<'a> {
    #[inline]
    pub(crate) fn new(operations: &'a mut dyn Operations, id: ConnId) -> Self {
        Socket { operations, id }
    }

    /// Identifies the socket in this process, also after it has closed: an id is not used twice.
    #[must_use]
    pub fn id(&self) -> SocketId {
        self.id
    }

    // ---- sending ----

    /// Sends a message to this socket. It is compressed if that was negotiated and it is long enough
    /// ([`Limits::compress_above_bytes`](crate::Limits::compress_above_bytes)).
    ///
    /// [`Sent::Queued`] says how many bytes wait: a handler that produces much stops then, and goes on in
    /// [`Handler::drain`](crate::Handler::drain). Beyond
    /// [`Limits::send_queue_bytes`](crate::Limits::send_queue_bytes) the policy for slow consumers applies.
    ///
    /// Cost: a copy into the worker's buffer, no allocation and, within `message` and `open`, no system
    /// call of its own. What the kernel does not take is copied once more.
    #[inline]
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Sent {
        self.operations.send(self.id, message.into(), true)
    }

    /// As [`Socket::send`], never compressed: for what is compressed or encrypted already.
    pub fn send_uncompressed<'m>(&mut self, message: impl Into<Message<'m>>) -> Sent {
        self.operations.send(self.id, message.into(), false)
    }

    /// Sends all messages of a call together, by one system call. Within `message` and `open` that is
    /// so anyway; use it in `drain` and in calls from other threads.
    pub fn cork<T>(&mut self, send: impl FnOnce(&mut Socket<'_>) -> T) -> T {
        let begun = self.operations.begin_cork(self.id);
        let result = send(self);
        if begun {
            self.operations.end_cork();
        }
        result
    }

    /// Sends a ping with at most 125 bytes; a longer payload is cut. Idle sockets are pinged anyway
    /// ([`Limits::pings`](crate::Limits::pings)).
    pub fn ping(&mut self, payload: &[u8]) -> Sent {
        self.operations.ping(self.id, payload)
    }

    /// Bytes that wait for this socket.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.operations.queued_bytes(self.id)
    }

    // ---- topics ----

    /// Subscribes the socket to a topic of the server; it gets what is published from now on. Returns
    /// `false` if it was subscribed already.
    ///
    /// Cost: none for the first topic of a socket; with more, 8 bytes each and an allocation. A topic
    /// itself takes a few hundred bytes on each worker that has subscribers, as long as it has any.
    pub fn subscribe(&mut self, topic: &str) -> bool {
        self.operations.subscribe(self.id, topic)
    }

    /// Ends a subscription. Returns `false` if there was none.
    pub fn unsubscribe(&mut self, topic: &str) -> bool {
        self.operations.unsubscribe(self.id, topic)
    }

    /// Whether the socket is subscribed to a topic.
    #[must_use]
    pub fn is_subscribed(&self, topic: &str) -> bool {
        self.operations.is_subscribed(self.id, topic)
    }

    /// The topics that the socket is subscribed to, in no order. Allocates the list.
    #[must_use]
    pub fn topics(&self) -> Vec<Arc<str>> {
        self.operations.topics(self.id)
    }

    /// Publishes to all subscribers of a topic on all workers, this socket included if it is one. They get
    /// what one publisher publishes to one topic in that order.
    ///
    /// Cost: three allocations, and for each worker and each negotiated compression one encoding,
    /// whatever the number of subscribers.
    ///
    /// # Errors
    /// [`Refused`]: too much is pending, and nobody gets this message. Publish less, or
    /// [pause](Socket::pause) the publisher and try again.
    pub fn publish<'m>(
        &mut self,
        topic: &str,
        message: impl Into<Message<'m>>,
    ) -> Result<(), Refused> {
        self.operations.publish(topic, message.into(), None)
    }

    /// As [`Socket::publish`], to all subscribers except this socket.
    ///
    /// # Errors
    /// As [`Socket::publish`].
    pub fn publish_to_others<'m>(
        &mut self,
        topic: &str,
        message: impl Into<Message<'m>>,
    ) -> Result<(), Refused> {
        self.operations.publish(topic, message.into(), Some(self.id))
    }

    // ---- time ----

    /// Calls [`Handler::timer`](crate::Handler::timer) after this time, once; a timer that was set before is
    /// replaced. It is late by a turn of the worker, at most some milliseconds unless a handler waits, and
    /// ends with the socket.
    ///
    /// Cost: some 80 bytes while it is set, and a search among the timers of the worker. A socket without
    /// one pays nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use standfast::{Accept, CloseCode, Handler, Message, Response, Socket, UpgradeRequest};
    /// # #[derive(Clone)] struct Login;
    /// impl Handler for Login {
    ///     type Data = bool;
    /// #   fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<bool>, Response> {
    /// #       Ok(Accept::default())
    /// #   }
    ///
    ///     fn open(&mut self, socket: &mut Socket<'_>, _: &mut bool) {
    ///         socket.set_timer(Duration::from_secs(10));
    ///     }
    ///
    ///     fn message(&mut self, socket: &mut Socket<'_>, logged_in: &mut bool, _: Message<'_>) {
    ///         *logged_in = true;
    ///         socket.clear_timer();
    ///     }
    ///
    ///     fn timer(&mut self, socket: &mut Socket<'_>, _: &mut bool) {
    ///         socket.close(CloseCode::POLICY, "log in within 10 s");
    ///     }
    /// }
    /// ```
    pub fn set_timer(&mut self, after: Duration) {
        self.operations.set_timer(self.id, after);
    }

    /// Removes the timer. Returns `false` if there was none, or it was called already.
    pub fn clear_timer(&mut self) -> bool {
        self.operations.clear_timer(self.id)
    }

    // ---- flow, end ----

    /// Stops reading from the socket, also what was received already. The peer feels it by the flow
    /// control of TCP. A paused socket does not count as idle.
    pub fn pause(&mut self) {
        self.operations.pause(self.id);
    }

    /// Goes on reading.
    pub fn resume(&mut self) {
        self.operations.resume(self.id);
    }

    /// Closes the socket with a code and a reason of at most 123 bytes (a longer one is cut), after
    /// everything that was sent before. It gets no further publications. A code that must not be sent
    /// (1005, 1006, 1015 and others, RFC 6455 section 7.4) is sent as 1011.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.operations.close(self.id, code, reason);
    }

    /// Ends the connection at once, without a close frame and without what waits.
    pub fn abort(&mut self) {
        self.operations.abort(self.id);
    }

    /// Whether messages can be sent: `false` once either side has closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.operations.is_open(self.id)
    }

    // ---- surroundings ----

    /// The peer's address. Cost: a system call.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.operations.peer(self.id)
    }

    /// The handle to this server for other threads.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        self.operations.remote()
    }

    /// The worker that owns the socket, from 0.
    #[must_use]
    pub fn worker(&self) -> usize {
        usize::from(self.id.worker())
    }

    /// The worker, to reach its other sockets.
    pub fn context(&mut self) -> Context<'_> {
        Context::new(&mut *self.operations)
    }
}

/// A worker, in a call that concerns no socket, or between two turns of an [`Embedded`](crate::Embedded) one.
pub struct Context<'a> {
    operations: &'a mut dyn Operations,
}

impl<'a> Context<'a> {
    pub(crate) fn new(operations: &'a mut dyn Operations) -> Self {
        Context { operations }
    }

    /// A socket of this worker. What is done with one that has closed, or belongs to another worker, has no
    /// effect: sending returns [`Sent::Dropped`], and it is not [open](Socket::is_open).
    pub fn socket(&mut self, id: SocketId) -> Socket<'_> {
        Socket::new(&mut *self.operations, id)
    }

    /// As [`Socket::publish`].
    ///
    /// # Errors
    /// As [`Socket::publish`].
    pub fn publish<'m>(
        &mut self,
        topic: &str,
        message: impl Into<Message<'m>>,
    ) -> Result<(), Refused> {
        self.operations.publish(topic, message.into(), None)
    }

    /// Publishes to the subscribers of a topic on this worker only. Costs as [`Socket::publish`].
    pub fn publish_here<'m>(&mut self, topic: &str, message: impl Into<Message<'m>>) {
        self.operations.publish_here(topic, message.into());
    }

    /// The handle to this server for other threads.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        self.operations.remote()
    }

    /// Which worker this is, from 0.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.operations.worker()
    }
}
