//! [`Handler`]: what a program does with its connections, and the answers it can give.

use std::borrow::Cow;

use wire::http::Request;
use wire::websocket::{CloseCode, OpCode, Upgrade};

use crate::{Closed, ConnId, Core, Sys};

/// A request on the public listener, borrowed from the read buffer.
pub struct Incoming<'r, 'b> {
    /// Method, target and headers.
    pub head: &'r Request<'r, 'b>,
    /// The WebSocket handshake, if the request is one.
    pub upgrade: Option<&'r Upgrade<'b>>,
    /// Nanoseconds from the first byte of the head to its end, including the TLS handshake if it is
    /// the first request after that; measured in turns of the worker.
    pub took_ns: u64,
}

/// A request that was rejected before it reached the handler.
pub struct RejectedRequest<'r, 'b> {
    /// Its head, if that could be parsed.
    pub head: Option<&'r Request<'r, 'b>>,
    /// The status of the answer; 408 if it was not received in time, which is not answered.
    pub status: u16,
    /// The reason, named as in counters: a violation, or [`Closed::HandshakeTimeout`].
    pub why: &'static str,
    /// As [`Incoming::took_ns`], so far.
    pub took_ns: u64,
}

/// A handler's answer to a request.
#[derive(Debug)]
pub enum Answer {
    /// Becomes a WebSocket, with this subprotocol if any. A request that is no handshake is
    /// answered 426.
    Upgrade(Option<Box<str>>),
    /// As `Upgrade`, with further headers in the answer, which must not be those of the handshake.
    UpgradeWith(Option<Box<str>>, Box<[(Box<str>, Box<str>)]>),
    /// A complete answer.
    Respond(Response),
    /// A complete answer that the handler has appended to [`Core::answer_buffer`]. Another request may follow
    /// if both sides keep the connection.
    Written {
        /// The answer does not announce the end of the connection.
        keep_alive: bool,
    },
    /// A head and the first bytes of a body that continues: the connection becomes raw, and
    /// [`Core::write`] sends the rest.
    Stream(Response),
    /// Receives the request's body, up to this many bytes, and passes it to [`Handler::body`];
    /// otherwise no body is read. A longer one is answered 413, one not received within the
    /// handshake timeout 408, and 503 if the worker holds as many bytes of bodies as it may.
    Body(u64),
    /// The answer follows later by [`crate::Remote::answer`]; reading pauses until then.
    Later,
    /// As `Later`, within this many nanoseconds instead of the handshake timeout. The request does not count
    /// as a handshake in flight meanwhile, and a client that leaves is noticed.
    LaterWithin(u64),
    /// A late answer that the handler gives when it is due: [`Handler::late_answer`].
    ByHandler,
    /// No answer: the connection becomes raw, the handler answers with [`Core::write`], and what
    /// follows the head goes to [`Handler::data`]. [`Core::next_request`] returns it to HTTP.
    Raw,
    /// As `Raw`, after a 100 (Continue) that the client expects before it sends its body.
    RawContinue,
}

/// A small HTTP answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Headers other than Content-Length, Content-Type and Connection.
    pub headers: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    /// Content-Type.
    pub content_type: &'static str,
    /// The body, or with [`Answer::Stream`] its beginning.
    pub body: Cow<'static, [u8]>,
    /// Close the connection after the answer.
    pub close: bool,
}

impl Response {
    /// A short text for people; it should end with a line feed.
    #[must_use]
    pub fn text(status: u16, body: impl Into<Cow<'static, str>>) -> Self {
        let body = match body.into() {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        };
        let content_type = "text/plain; charset=utf-8";
        Response { status, headers: Vec::new(), content_type, body, close: false }
    }
}

/// What a program does with its connections. One handler per worker, called only in its thread; it
/// may send to any connection of this worker from any call, including the one it is called for.
pub trait Handler: Sized {
    /// Data kept with each connection: it should be small, 16 bytes fill the slot to 64.
    type User: Default;
    /// What other threads may post to this worker.
    type Post: Send + 'static;

    /// How many raw connections are received before the first of them is passed to
    /// [`Handler::data`]: several cost less CPU if most data is forwarded, one has the lowest
    /// latency.
    const READS_TOGETHER: usize = 1;

    /// Whether connections of WebSockets and of HTTP are received together, too, as far as nothing of theirs is kept
    /// or queued: [`Handler::message`] and the others are called when all were received. Replies are sent together, too,
    /// when the calls have taken 0.1 ms. So a reply can wait for one later call that is slow.
    const READS_SOCKETS_TOGETHER: bool = false;

    /// Whether [`Handler::message`] is also called for unfragmented messages that arrive behind our close
    /// frame, until the peer's: for load generators, which check what a server sends. Otherwise they are
    /// discarded (RFC 6455 section 5.5.1).
    const HEARS_AFTER_CLOSE: bool = false;

    /// The worker starts: before it accepts, connects or takes a post.
    fn begin<S: Sys>(&mut self, _core: &mut Core<S, Self>) {}

    /// A connection was accepted, and admitted. [`Handler::closed`] follows.
    fn arrived<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) {}

    /// The name that a client of TLS asks for (SNI, RFC 6066 section 3), if [`Core::set_reports_server_names`]
    /// says so. What [`Core::set_tls`] is called with here is used for this connection, too.
    fn server_name<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _name: &str) {}

    /// A complete and valid request head was received.
    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer;

    /// The head of a request violated the protocol or was not received in time, so
    /// [`Handler::request`] is not called: the connection is about to end.
    fn rejected<S: Sys>(
        &mut self,
        _core: &Core<S, Self>,
        _id: ConnId,
        _head: &RejectedRequest<'_, '_>,
    ) {
    }

    /// The body requested by [`Answer::Body`] is complete. The handler keeps with the connection
    /// which request it belongs to; requesting another body is an error.
    fn body<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _body: Vec<u8>) -> Answer {
        Answer::Respond(Response::text(501, "This server does not read request bodies.\n"))
    }

    /// A request whose answer was deferred is answered now, because [`crate::Remote::answer`] was called with
    /// [`Answer::ByHandler`].
    fn late_answer<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) -> Answer {
        Answer::Respond(Response::text(500, "This server has no answer to this request.\n"))
    }

    /// A WebSocket is open, in either role.
    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId);

    /// A server has accepted our handshake, with this subprotocol if any; [`Handler::open`] follows.
    fn accepted<S: Sys>(
        &mut self,
        _core: &mut Core<S, Self>,
        _id: ConnId,
        _protocol: Option<&str>,
    ) {
    }

    /// A connect to a raw [`crate::Target`] succeeded: bytes in both directions from here.
    fn connected<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) {}

    /// A complete message; the contents of `data` are undefined after the call.
    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    );

    /// A ping was received; its answer is sent already.
    fn ping<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _data: &[u8]) {}

    /// A pong was received.
    fn pong<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _data: &[u8]) {}

    /// The peer of an open WebSocket begins to close it, with this code and reason, at most 123
    /// bytes. [`Handler::closing`] or [`Handler::closed`] follows.
    fn close_frame<S: Sys>(
        &mut self,
        _core: &mut Core<S, Self>,
        _id: ConnId,
        _code: Option<CloseCode>,
        _reason: &str,
    ) {
    }

    /// The peer of a raw connection has ended its side. Returning `true` keeps ours open, until
    /// [`Core::finish_writing`]; otherwise the connection ends. Not called if our side has already
    /// ended.
    fn ended<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) -> bool {
        false
    }

    /// Bytes on a raw connection. The handler returns what it cannot use yet with
    /// [`Core::leave_unread`].
    fn data<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _data: &mut [u8]) {}

    /// A send queue that was used is empty again.
    fn drained<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) {}

    /// The server begins to drain and accepts no more: anything only kept for later can be freed.
    fn draining<S: Sys>(&mut self, _core: &mut Core<S, Self>) {}

    /// The server drains and an open WebSocket is about to be closed with 1001: the last chance to
    /// send something. Returning `true` defers that: the handler closes it, or is asked again, until
    /// [`crate::Limits::drain_grace`] has passed as well.
    fn going_away<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) -> bool {
        false
    }

    /// The server drains and a connection that is not an open WebSocket is about to be ended.
    /// Returning `true` defers that; the question is repeated until the connection has ended, or
    /// [`crate::Limits::drain_grace`] has passed as well and it is reset.
    fn defers_drain<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) -> bool {
        false
    }

    /// A WebSocket is no longer open, for a reason other than our own close: the peer closed it or
    /// violated the protocol, or its queue was full. Called at most once for each, after
    /// [`Handler::open`]; the connection still exists until [`Handler::closed`], up to
    /// [`crate::Limits::close_timeout`] later. For a connection that ends at once only
    /// [`Handler::closed`] is called.
    fn closing<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _why: Closed) {}

    /// A connection has ended; called once for each, while [`Core::user_mut`] still works. `opened`
    /// says whether [`Handler::open`] was called for it.
    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool);

    /// Memory that the handler holds for a connection beyond its [`Handler::User`], in bytes. While
    /// memory is short, the connections that hold most are closed.
    fn held_bytes<S: Sys>(&self, _core: &Core<S, Self>, _id: ConnId) -> usize {
        0
    }

    /// Number of entries that [`Handler::held_bytes`] goes through for a connection: it bounds how many
    /// connections are examined in one turn.
    fn held_entries<S: Sys>(&self, _core: &Core<S, Self>, _id: ConnId) -> usize {
        0
    }

    /// A post from another thread.
    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Self::Post);

    /// Called once per turn, after events and posts: background work in small portions. Returns the
    /// latest time for the next call, in the nanoseconds of [`Core::now_ns`]; a time in the past
    /// means that there is more to do now.
    fn turn<S: Sys>(&mut self, _core: &mut Core<S, Self>) -> Option<u64> {
        None
    }

    /// Whether the handler accepts posts now. While it does not, they stay in the mailbox, which
    /// fills up and pushes back on the senders.
    fn accepts_posts(&self) -> bool {
        true
    }
}
