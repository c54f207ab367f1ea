//! [`GrpcStream`]: calls that send or receive several messages. When messages are sent, and what is expected of
//! those that are received, is decided by the requester (`workload/requests/conversation.rs`).

use engine::invariant;

use crate::grpc::ReplyType;
use crate::outcome::failure::Failure;
use crate::transport::driver::{Driver, Opened, Received, StreamEvent, Window};
use crate::transport::grpc::Grpc;
use crate::transport::http2::Http2State;
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Request;

/// The gRPC driver of one worker for calls of several messages.
pub struct GrpcStream {
    grpc: Grpc,
    /// A request without a body sends its messages later.
    sends: bool,
}

impl GrpcStream {
    /// A driver; `sends` if calls send several messages, `unary` if exactly one answers them, of at most so many
    /// bytes.
    #[must_use]
    pub fn new(sends: bool, unary: bool, message_bytes_max: usize) -> GrpcStream {
        GrpcStream { grpc: Grpc::new(unary, message_bytes_max), sends }
    }

    /// The same, where messages that are not of this type fail their call.
    #[must_use]
    pub fn expecting(self, reply: ReplyType) -> GrpcStream {
        GrpcStream { grpc: self.grpc.expecting(reply), ..self }
    }

    /// The end of an answer: a server may answer before all was sent.
    fn finish(
        &mut self,
        state: &mut Http2State,
        user: u32,
        only_head: Option<u16>,
    ) -> StreamEvent<'static> {
        self.grpc.http2.end_last(state);
        self.grpc.finish(user, only_head)
    }
}

impl Driver for GrpcStream {
    type State = Http2State;

    const STREAMS: bool = true;
    const MESSAGES: bool = true;

    fn start(&mut self, state: &mut Http2State) {
        self.grpc.http2.start(state);
    }

    fn open(
        &mut self,
        state: &mut Http2State,
        request: &Request,
        user: u32,
        secure: bool,
    ) -> Opened {
        let opened = self.grpc.http2.open_until(state, request, user, secure, !self.sends);
        if let Opened::Stream(_) = opened {
            self.grpc.begin(user);
        }
        opened
    }

    fn receive_streams<'b>(
        &mut self,
        state: &mut Http2State,
        bytes: &'b [u8],
    ) -> (usize, StreamEvent<'b>) {
        let (used, event) = self.grpc.http2.receive_streams(state, bytes);
        let event = match event {
            // Only trailers.
            StreamEvent::Head(user, status, true) => self.finish(state, user, Some(status)),
            StreamEvent::Head(user, status, false) => self.grpc.on_head(state, user, status),
            StreamEvent::Body(user, data, true) => {
                self.grpc.http2.end_last(state);
                StreamEvent::Body(user, data, true)
            }
            StreamEvent::Complete(user) => self.finish(state, user, None),
            other => other,
        };
        (used, event)
    }

    fn send_message(
        &mut self,
        state: &mut Http2State,
        stream: u32,
        bytes: &[u8],
        ends: bool,
    ) -> (usize, Window) {
        self.grpc.http2.send(state, stream, bytes, ends)
    }

    #[inline]
    fn next_message<'m>(
        &'m mut self,
        user: u32,
        bytes: &'m [u8],
    ) -> Result<(usize, Option<&'m [u8]>), Failure> {
        self.grpc.take_message(user, bytes)
    }

    fn head(&mut self) -> &[u8] {
        self.grpc.http2.head()
    }

    fn cancel(&mut self, state: &mut Http2State, stream: u32) {
        self.grpc.http2.cancel(state, stream);
    }

    fn leaving_debug<'s>(&self, state: &'s Http2State) -> &'s [u8] {
        self.grpc.http2.leaving_debug(state)
    }

    fn is_held(&self, state: &Http2State) -> bool {
        self.grpc.http2.is_held(state)
    }

    fn taken(&mut self, state: &mut Http2State) {
        self.grpc.http2.taken(state);
    }

    fn sent(&mut self, state: &mut Http2State) {
        self.grpc.http2.sent(state);
    }

    fn outgoing(&mut self) -> Option<&mut Vec<u8>> {
        self.grpc.http2.outgoing()
    }

    /// Not called, as connections have streams.
    fn receive(&mut self, _: &mut Http2State, _: &[u8], _: &mut Awaited) -> Received {
        invariant::broken("a connection with streams receives events of streams");
        Received::More
    }

    /// Not called, as connections have streams.
    fn ended(&mut self, _: &mut Http2State) -> Received {
        Received::Failed(Failure::Closed)
    }
}
