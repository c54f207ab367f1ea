//! [`Driver`]: the protocol of a connection. It encodes requests and decodes answers; sockets, clocks,
//! pacing and counting belong to the requester.

use wire::http2::ErrorCode;

use crate::grpc::Code;
use crate::outcome::failure::Failure;
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Request;

/// A protocol of requests and answers. There is one per worker, and one [`Driver::State`] per
/// connection, which should be small while no answer is partial.
///
/// Implementations beside [`crate::transport::http1::Http1`], [`crate::transport::tcp::Tcp`] and [`crate::transport::web::Web`]: `examples/private_protocol.rs`.
pub trait Driver: Send + 'static {
    /// The state of a connection.
    type State: Default + Send;

    /// Whether the server pushes messages: [`Driver::receive`] may return [`Received::Pushed`],
    /// [`Received::Closing`] and [`Received::Ended`], and the methods below it are called. If false, pushes cost nothing.
    const PUSHES: bool = false;

    /// Whether connections have streams, so that users share them: [`Driver::start`] and the methods
    /// below it are called instead of [`Driver::encode`], [`Driver::receive`] and [`Driver::ended`].
    const STREAMS: bool = false;

    /// Whether the request and the answer on a stream are several messages, sent and received while both
    /// are open. Without [`Driver::STREAMS`] they are only received.
    const MESSAGES: bool = false;

    /// Encodes a request. Called once for each request of a connection, in order.
    #[inline]
    fn encode<'a>(&'a mut self, _state: &mut Self::State, request: &'a Request) -> &'a [u8] {
        request.bytes()
    }

    /// Takes received bytes, at least one. It is called again with unused bytes if they may belong to
    /// the next answer.
    fn receive(&mut self, state: &mut Self::State, bytes: &[u8], awaited: &mut Awaited)
    -> Received;

    /// Called when the server ends the stream while an answer is awaited.
    fn ended(&mut self, state: &mut Self::State) -> Received;

    /// Takes a random seed, once, before anything else.
    fn seed(&mut self, _random: u64) {}

    /// The last message, after [`Received::Pushed`].
    fn message(&self) -> Push<'_> {
        Push::default()
    }

    /// Bytes to send automatically, such as pongs, after each [`Driver::receive`].
    fn reply(&self) -> &[u8] {
        &[]
    }

    /// Whether our side of the connection ends after what [`Driver::encode`] returned.
    fn ends_our_side(&self, _state: &Self::State) -> bool {
        false
    }

    /// Whether a working connection is reset when it is left.
    fn is_reset(&self, _state: &Self::State) -> bool {
        false
    }

    /// Bytes to send before a working connection is closed.
    fn close<'a>(&'a mut self, _state: &mut Self::State) -> &'a [u8] {
        &[]
    }

    // Only with `STREAMS`. What they have to send is in `outgoing`, after what is there already.

    /// Begins a connection.
    fn start(&mut self, _state: &mut Self::State) {}

    /// Begins the request of a user on a stream; `secure` if over TLS.
    fn open(
        &mut self,
        _state: &mut Self::State,
        _request: &Request,
        _user: u32,
        _secure: bool,
    ) -> Opened {
        Opened::Never
    }

    /// Takes received bytes up to the first event. Returns the bytes used.
    fn receive_streams<'b>(
        &mut self,
        _state: &mut Self::State,
        bytes: &'b [u8],
    ) -> (usize, StreamEvent<'b>) {
        (bytes.len(), StreamEvent::More)
    }

    /// The head of the last [`StreamEvent::Head`], or of the last call that has ended, as in HTTP/1.1.
    fn head(&mut self) -> &[u8] {
        &[]
    }

    /// Gives up the request on a stream.
    fn cancel(&mut self, _state: &mut Self::State, _stream: u32) {}

    /// The debug data of the last [`StreamEvent::Leaving`].
    fn leaving_debug<'s>(&self, _state: &'s Self::State) -> &'s [u8] {
        &[]
    }

    /// All that was to be sent on a connection was passed to the kernel.
    fn sent(&mut self, _state: &mut Self::State) {}

    /// Whether it has more to send on a connection, when the kernel has taken what waits.
    fn is_held(&self, _state: &Self::State) -> bool {
        false
    }

    /// The kernel has taken all that waited on a connection: there is room for more.
    fn taken(&mut self, _state: &mut Self::State) {}

    // Only with `MESSAGES` and without `STREAMS`.

    /// The messages that the last [`Driver::receive`] completed.
    fn completed(&self) -> u32 {
        0
    }

    /// The answer so far, of a connection that is then closed, as the request has ended well.
    fn end_early(&mut self, _state: &mut Self::State) -> CompleteAnswer {
        CompleteAnswer { used: 0, status: 0, keep: false, body_bytes: 0 }
    }

    // Only with `MESSAGES` and `STREAMS`.

    /// Sends bytes of a message on a stream, after which our side ends if `ends`. Returns how many the
    /// windows allow, and which of them allows no more.
    fn send_message(
        &mut self,
        _state: &mut Self::State,
        _stream: u32,
        _bytes: &[u8],
        _ends: bool,
    ) -> (usize, Window) {
        (0, Window::Ended)
    }

    /// Takes bytes of the answer to a user up to the end of the next message. Returns the bytes used, and
    /// the message if it is complete; the rest is for the next call.
    ///
    /// # Errors
    /// The bytes are no messages.
    fn next_message<'m>(
        &'m mut self,
        _user: u32,
        bytes: &'m [u8],
    ) -> Result<(usize, Option<&'m [u8]>), Failure> {
        Ok((bytes.len(), None))
    }

    /// Takes the bytes to send: the caller clears them.
    fn outgoing(&mut self) -> Option<&mut Vec<u8>> {
        None
    }
}

/// Whether a request has begun.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Opened {
    /// On this stream.
    Stream(u32),
    /// Not now: as many streams are in use as the server allows.
    Later,
    /// Not on this connection, which takes no further streams.
    Never,
    /// The protocol cannot express it.
    Invalid,
}

/// What happened on a connection with streams.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StreamEvent<'b> {
    /// All bytes were used.
    More,
    /// Something that concerns no user; there may be more.
    Other,
    /// The head of the answer to this user, with its status; true if the answer is complete.
    Head(u32, u16, bool),
    /// Bytes of the body of the answer to this user; true if the answer is complete.
    Body(u32, &'b [u8], bool),
    /// The answer to this user is complete.
    Complete(u32),
    /// The answer to this user is complete, with this status in its last fields, which are the last head.
    Trailers(u32, u16),
    /// The request of this user failed; the connection goes on.
    Failed(u32, Failure),
    /// The server has not processed the request of this user, which may be sent on another connection.
    Unprocessed(u32),
    /// More can be sent on these streams.
    Writable(Writable),
    /// The server takes no further streams, with this code of GOAWAY.
    Leaving(ErrorCode),
    /// The connection is unusable.
    Broken(Failure),
}

/// Streams on which more can be sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Writable {
    /// That of this user.
    Stream(u32),
    /// Those that wait for the window of the connection.
    Connection,
    /// Perhaps any.
    All,
}

/// What allows no more bytes after those that were sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Window {
    /// Nothing: all were sent.
    Open,
    /// The window of the stream.
    Stream,
    /// The window of the connection.
    Connection,
    /// The stream has ended.
    Ended,
}

/// A message that the server pushed.
#[derive(Copy, Clone, Default, Debug)]
pub struct Push<'a> {
    /// The message.
    pub data: &'a [u8],
    /// Whether it is text, and so UTF-8.
    pub is_text: bool,
    /// Whether it is a message of Protocol Buffers.
    pub is_protobuf: bool,
    /// The identifier of its subscription, with Action Cable.
    pub identifier: Option<&'a str>,
}

/// The result of received bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// All bytes were used, and the answer is not complete yet.
    More,
    /// The answer is complete.
    Complete(CompleteAnswer),
    /// The answer failed, and the connection is unusable.
    Failed(Failure),
    /// The server pushed a message; this many bytes of the call were used.
    Pushed(usize),
    /// The server closes the connection with this close code.
    Closing(u16),
    /// The server has ended the call of this connection, and no step was waiting for that.
    Ended(Code),
}

/// A complete answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CompleteAnswer {
    /// Used bytes of this call.
    pub used: usize,
    /// The status; 0 if the protocol has none.
    pub status: u16,
    /// Whether the connection can be reused.
    pub keep: bool,
    /// Bytes of the complete body, without framing.
    pub body_bytes: u64,
}
