//! [`Handler`]: what a program does with its connections, and the answers it may give.

use std::borrow::Cow;

use wire::http::Request;
use wire::websocket::{OpCode, Upgrade};

use crate::{Closed, ConnId, Core, Sys};

/// A request on the public listener, borrowed from the read buffer.
pub struct Incoming<'r, 'b> {
    /// Method, target and headers.
    pub head: &'r Request<'r, 'b>,
    /// What a WebSocket handshake asks for, if it is one.
    pub upgrade: Option<&'r Upgrade<'b>>,
    /// Nanoseconds that its head took to come, with TLS where it is the first behind that, from turn
    /// to turn of the worker.
    pub took_ns: u64,
}

/// A request that came to nothing before the handler was asked.
pub struct RefusedHead<'r, 'b> {
    /// Its head, where that could be read.
    pub head: Option<&'r Request<'r, 'b>>,
    /// The status it is answered with; 408 where it did not come in time, which is answered nothing.
    pub status: u16,
    /// Why, by the name that counters use: of a violation, or of [`Closed::HandshakeTimeout`].
    pub why: &'static str,
    /// As [`Incoming::took_ns`], so far.
    pub took_ns: u64,
}

/// What a handler says to a request.
#[derive(Debug)]
pub enum Answer {
    /// Become a WebSocket, speaking this subprotocol if any. Something that is no handshake is
    /// told so with 426.
    Upgrade(Option<Box<str>>),
    /// A whole answer.
    Respond(Response),
    /// A head and the first bytes of a body that goes on: the connection becomes raw, and
    /// [`Core::write`] sends the rest.
    Stream(Response),
    /// Read the request's body, up to so many bytes, and hand it to [`Handler::body`]; without this no
    /// body is read. One that is longer is answered 413, one that does not come in the time for a
    /// handshake 408, and 503 where the worker holds as much as it may.
    Body(u64),
    /// Somebody will say it later by [`crate::Remote::answer`]; reading stops until then.
    Later,
    /// Nothing: the connection becomes raw, [`Core::write`] is how to answer, and what follows the
    /// head goes to [`Handler::data`]. [`Core::next_request`] makes it speak HTTP again.
    Raw,
}

/// A small HTTP answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Headers beside Content-Length, Content-Type and Connection.
    pub headers: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    /// Content-Type.
    pub content_type: &'static str,
    /// The body, or with [`Answer::Stream`] its beginning.
    pub body: Cow<'static, [u8]>,
    /// Close the connection afterwards.
    pub close: bool,
}

impl Response {
    /// A short text for people, with a line end.
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

/// What a program does with its connections. One handler per worker, called in its thread only;
/// it may send to any connection of this worker from any call, the calling one included.
pub trait Handler: Sized {
    /// Kept with each connection: it should be small, 16 bytes fill the slot to 64.
    type User: Default;
    /// What other threads may post to this worker.
    type Post: Send + 'static;

    /// Raw connections whose bytes are received before the first of them is shown to [`Handler::data`]:
    /// several cost less CPU where most of it is passed on, and one is shown as soon as it is here.
    const READS_TOGETHER: usize = 1;

    /// The worker begins: before it accepts, connects or takes a post.
    fn begin<S: Sys>(&mut self, _core: &mut Core<S, Self>) {}

    /// A request head has arrived whole and obeys the rules.
    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer;

    /// The head of a request broke a rule or did not come in time, so that [`Handler::request`] is not
    /// asked: the connection is about to end.
    fn refused<S: Sys>(&mut self, _core: &Core<S, Self>, _id: ConnId, _head: &RefusedHead<'_, '_>) {
    }

    /// The body that [`Answer::Body`] asked for has come, whole. What kind of request it belongs to is
    /// to be kept with the connection; asking for another is an error.
    fn body<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _body: Vec<u8>) -> Answer {
        Answer::Respond(Response::text(501, "Nobody reads bodies here.\n"))
    }

    /// A WebSocket is open, in either role.
    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId);

    /// A connect to a raw [`crate::Target`] is through: bytes both ways from here.
    fn connected<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) {}

    /// A whole message; `data` is void after the call.
    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    );

    /// A pong arrived.
    fn pong<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _data: &[u8]) {}

    /// The peer of a raw connection has ended its side. True keeps ours open, until
    /// [`Core::finish_writing`]; else the connection is over. Where ours has ended before it is over
    /// without a question.
    fn ended<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) -> bool {
        false
    }

    /// Bytes on a raw connection. What it has no use for yet it gives back by
    /// [`Core::leave_unread`].
    fn data<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _data: &mut [u8]) {}

    /// A queue that had grown is empty again.
    fn drained<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) {}

    /// The server begins to drain and accepts no more: what is only kept for later may go.
    fn draining<S: Sys>(&mut self, _core: &mut Core<S, Self>) {}

    /// The server drains and an open WebSocket is about to be closed with 1001: the last chance to
    /// say something.
    fn leaving<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) {}

    /// The server drains and a connection that is no open WebSocket is about to be ended. True leaves it
    /// alone for now; it is asked again until it has ended by itself, and cut off once
    /// [`crate::Limits::drain_grace`] has passed, too.
    fn holds<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId) -> bool {
        false
    }

    /// A WebSocket is open no longer, for another reason than an order of ours: the peer said goodbye or
    /// broke a rule, its queue was full. Called at most once for each, after [`Handler::open`]; the
    /// connection itself lives on until [`Handler::closed`] tells its end, up to
    /// [`crate::Limits::close_timeout`] later. One that ends at once is told only there.
    fn closing<S: Sys>(&mut self, _core: &mut Core<S, Self>, _id: ConnId, _why: Closed) {}

    /// A connection has ended; called once for each, with [`Core::user_mut`] still there. `opened`
    /// tells whether [`Handler::open`] was called for it.
    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool);

    /// A post from another thread.
    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, post: Self::Post);

    /// Once per turn, after events and posts: background work in small portions. Returns the time
    /// at which it wants to be called at the latest, in the nanoseconds of [`Core::now_ns`]; a
    /// time that has come means that there is more to do now.
    fn turn<S: Sys>(&mut self, _core: &mut Core<S, Self>) -> Option<u64> {
        None
    }

    /// Whether the handler takes posts now. While it says no they stay in the mailbox, which fills
    /// and pushes back on those who post.
    fn takes_posts(&self) -> bool {
        true
    }
}
