//! [`Handler`]: what a program does with the WebSockets of one route.

use engine::Closed;

use crate::decision::Undecided;
use crate::header;
use crate::{CloseCode, Context, InvalidHeader, Message, Response, Socket, UpgradeRequest};

/// What a program does with the WebSockets of one route.
///
/// Each worker has a clone and calls it in its own thread only, so the methods take `&mut self` and need no
/// lock. What all workers share goes into an `Arc`; what concerns one socket into [`Handler::Data`].
///
/// # Cost
/// A call blocks the worker and with it every other socket of that worker: do not wait in it. Hand over
/// what takes long to another thread, which answers by a [`Remote`](crate::Remote).
///
/// # Panics
/// A panic in a method ends its worker. The server then closes the sockets of all workers, and
/// [`Server::run`](crate::Server::run) or [`Running::wait`](crate::Running::wait) returns an error.
pub trait Handler: Clone + Send + 'static {
    /// What is kept for each socket. It lies in the connection's own slot, without an allocation, and is
    /// moved out and back for each call: put what is larger than a few hundred bytes into a `Box`.
    type Data: 'static;

    /// A client asks for a WebSocket. The result is the data of the socket, or the answer that refuses it:
    /// `?` on a `Result` with a [`Response`] refuses. To decide later, in another thread, see
    /// [`UpgradeRequest::later`].
    ///
    /// Browsers send the page's origin, and open WebSockets to any server: a server that trusts cookies has
    /// to compare `request.header("origin")`.
    ///
    /// # Errors
    /// The answer for a client that is refused.
    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<Self::Data>, Response>;

    /// The socket is open. What is sent here leaves together with the answer to the handshake.
    fn open(&mut self, _socket: &mut Socket<'_>, _data: &mut Self::Data) {}

    /// A complete message was received. It is at most as long as the limit of the route, and text is valid
    /// UTF-8. What is sent to this socket here leaves by one system call, with the answers to all messages
    /// of the same read.
    fn message(&mut self, socket: &mut Socket<'_>, data: &mut Self::Data, message: Message<'_>);

    /// Everything that waited for the socket was taken by the kernel: after
    /// [`Sent::Queued`](crate::Sent::Queued), the time to send more.
    fn drain(&mut self, _socket: &mut Socket<'_>, _data: &mut Self::Data) {}

    /// The time of [`Socket::set_timer`] has passed.
    fn timer(&mut self, _socket: &mut Socket<'_>, _data: &mut Self::Data) {}

    /// A pong was received, with the payload of a [`Socket::ping`]. Pings of clients are answered by the crate, and
    /// are not reported.
    fn pong(&mut self, _socket: &mut Socket<'_>, _data: &mut Self::Data, _payload: &[u8]) {}

    /// The server stops and is about to close this socket with 1001: the last chance to send something.
    fn stopping(&mut self, _socket: &mut Socket<'_>, _data: &mut Self::Data) {}

    /// The socket is closed, for whatever reason; called exactly once after [`Handler::open`], with the
    /// data. Nothing can be sent to it any more, and it is subscribed to no topic. After
    /// [`Socket::close`] this is called when the peer has answered, or
    /// [`Limits::close_timeout`](crate::Limits::close_timeout) has passed.
    fn close(&mut self, _socket: &mut Socket<'_>, _data: Self::Data, _close: &Close<'_>) {}

    /// Called on each worker at the interval of [`RouteOptions::tick`](crate::RouteOptions::tick), if that
    /// is set: the time for what belongs to no socket, such as rooms that the handler keeps. What is to happen
    /// once for the whole server is for [`Server::every`](crate::Server::every).
    fn tick(&mut self, _context: &mut Context<'_>) {}

    /// Publications of other processes to a topic may have been missed: the connection to the broker was
    /// lost meanwhile, or too much arrived. Called on each worker with subscribers of it, for each route;
    /// [`Context::publish_here`] tells them. Only with a broker.
    fn missed(&mut self, _context: &mut Context<'_>, _topic: &str) {}
}

/// A client that is let in: the data of its socket, and the subprotocol.
pub struct Accept<D>(pub(crate) Decided<D>);

pub(crate) enum Decided<D> {
    Now { data: D, answer: Opening },
    Later(Undecided<D>),
}

/// What the answer that opens a WebSocket contains.
#[derive(Default)]
pub struct Opening {
    pub(crate) protocol: Option<Box<str>>,
    pub(crate) headers: Vec<(Box<str>, Box<str>)>,
}

impl Opening {
    /// # Errors
    /// Why this header cannot be sent.
    pub(crate) fn add(&mut self, name: &str, value: &str) -> Result<(), InvalidHeader> {
        header::check(name, value)?;
        self.headers.push((name.into(), value.into()));
        Ok(())
    }
}

impl<D> Accept<D> {
    /// Lets the client in, without a subprotocol.
    #[must_use]
    pub fn new(data: D) -> Self {
        Accept(Decided::Now { data, answer: Opening::default() })
    }

    /// Lets the client in with this subprotocol, which has to be one of
    /// [`UpgradeRequest::protocols`]: browsers end the connection otherwise.
    #[must_use]
    pub fn with_protocol(data: D, protocol: &str) -> Self {
        let answer = Opening { protocol: Some(protocol.into()), ..Opening::default() };
        Accept(Decided::Now { data, answer })
    }

    /// Adds a header to the answer that opens the socket (status 101), for example a cookie. Clients in
    /// browsers do not see it, except cookies. Headers of an answer that is given later are those of
    /// [`Decision::header`](crate::Decision::header).
    ///
    /// ```
    /// # use standfast::{Accept, Response, UpgradeRequest};
    /// # fn upgrade(_: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
    /// Ok(Accept::new(()).header("X-Node", "eu-1")?)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidHeader`]: a line break, or a header that the server sets itself.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, InvalidHeader> {
        if let Decided::Now { answer, .. } = &mut self.0 {
            answer.add(name, value)?;
        }
        Ok(self)
    }
}

impl<D: Default> Default for Accept<D> {
    fn default() -> Self {
        Accept::new(D::default())
    }
}

impl<D> std::fmt::Debug for Accept<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Decided::Now { .. } => "Accept",
            Decided::Later(_) => "Accept (later)",
        })
    }
}

/// Why a socket was closed.
#[derive(Copy, Clone, Debug)]
pub struct Close<'a> {
    /// The cause, as counted in [`Totals::closed`](crate::Totals).
    pub cause: Closed,
    /// The peer's close code; `None` unless the peer began to close and sent one.
    pub code: Option<CloseCode>,
    /// The peer's reason, at most 123 bytes; usually empty.
    pub reason: &'a str,
}
