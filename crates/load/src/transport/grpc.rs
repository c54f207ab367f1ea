//! [`Grpc`]: a client of gRPC over HTTP/2 ("gRPC over HTTP2", `doc/PROTOCOL-HTTP2.md` of gRPC). A request is a
//! call: its body has messages, and the call ends with a status in trailers.

use engine::invariant;

use crate::grpc::{Code, MessageDecoder, PREFIX_BYTES};
use crate::outcome::failure::Failure;
use crate::transport::driver::{Driver, Opened, Received, StreamEvent};
use crate::transport::http2::{Http2, Http2State};
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Request;

/// The gRPC driver of one worker.
pub struct Grpc {
    pub(crate) http2: Http2,
    /// Exactly one message answers a call.
    pub(crate) unary: bool,
    message_bytes_max: usize,
    /// By user.
    calls: Vec<Call>,
}

/// What has arrived of an answer.
#[derive(Default)]
struct Call {
    messages: u32,
    /// While a message is partial.
    decoder: Option<Box<MessageDecoder>>,
}

impl Grpc {
    /// A driver; `unary` if exactly one message answers a call, of at most so many bytes.
    #[must_use]
    pub fn new(unary: bool, message_bytes_max: usize) -> Grpc {
        Grpc { http2: Http2::new(), unary, message_bytes_max, calls: Vec::new() }
    }

    pub(crate) fn begin(&mut self, user: u32) {
        let at = user as usize;
        if self.calls.len() <= at {
            self.calls.resize_with(at + 1, Call::default);
        }
        if let Some(call) = self.calls.get_mut(at) {
            *call = Call::default();
        }
    }

    /// Counts the messages in bytes of a body.
    fn receive_messages(&mut self, user: u32, bytes: &[u8]) -> Result<(), Failure> {
        let most = self.message_bytes_max;
        let Some(call) = self.calls.get_mut(user as usize) else {
            invariant::broken("a call begins with its request");
            return Err(Failure::GrpcMessage);
        };
        if call.decoder.is_none()
            && let Some((prefix, message)) = bytes.split_first_chunk::<PREFIX_BYTES>()
        {
            let [flag, length @ ..] = *prefix;
            // Usual: one complete message.
            if flag <= 1 && u32::from_be_bytes(length) as usize == message.len() {
                call.messages += 1;
                return if message.len() > most { Err(Failure::TooLarge) } else { Ok(()) };
            }
        }
        let decoder = call.decoder.get_or_insert_with(|| Box::new(MessageDecoder::new(most)));
        let mut rest = bytes;
        loop {
            let (used, message) = decoder.next(rest).map_err(|_| Failure::GrpcMessage)?;
            let is_message = message.is_some();
            call.messages += u32::from(is_message);
            rest = rest.get(used..).unwrap_or_default();
            if !is_message {
                break;
            }
        }
        if decoder.finish().is_ok() {
            call.decoder = None;
        }
        Ok(())
    }

    /// The end of a call, whose status is in the last fields.
    fn finish(&mut self, user: u32, http_status: u16) -> StreamEvent<'static> {
        let failure = match self.http2.field(b"grpc-status").map(Code::parse) {
            Some(Code::OK) => {
                let call = self.calls.get_mut(user as usize);
                let is_whole = call.is_some_and(|call| {
                    call.decoder.is_none() && (!self.unary || call.messages == 1)
                });
                if is_whole {
                    return StreamEvent::Complete(user);
                }
                Failure::GrpcMessage
            }
            Some(code) => of_code(code),
            None if http_status != 200 => of_code(Code::of_http(http_status)),
            None => Failure::GrpcNoStatus,
        };
        StreamEvent::Failed(user, failure)
    }

    /// What an event of HTTP/2 means for a call.
    #[inline]
    pub(crate) fn interpret<'b>(
        &mut self,
        state: &mut Http2State,
        event: StreamEvent<'b>,
    ) -> StreamEvent<'b> {
        match event {
            // Only trailers.
            StreamEvent::Head(user, status, true) => self.finish(user, status),
            StreamEvent::Head(user, status, false) => {
                let content_type = self.http2.field(b"content-type").unwrap_or_default();
                let is_grpc = content_type.starts_with(b"application/grpc");
                if status != 200 {
                    self.give_up(state, user, of_code(Code::of_http(status)))
                } else if !is_grpc {
                    self.give_up(state, user, Failure::GrpcContentType)
                } else {
                    StreamEvent::Head(user, 0, false)
                }
            }
            StreamEvent::Body(user, data, is_end) => match self.receive_messages(user, data) {
                Err(failure) => self.give_up(state, user, failure),
                Ok(()) if is_end => StreamEvent::Failed(user, Failure::GrpcNoStatus),
                Ok(()) => StreamEvent::Body(user, data, false),
            },
            StreamEvent::Complete(user) => self.finish(user, 200),
            other => other,
        }
    }

    /// Gives up a call whose answer is not what it should be.
    fn give_up(
        &mut self,
        state: &mut Http2State,
        user: u32,
        failure: Failure,
    ) -> StreamEvent<'static> {
        self.http2.cancel_last(state);
        StreamEvent::Failed(user, failure)
    }
}

/// The failure of a call with this status, which is not OK.
pub(crate) fn of_code(code: Code) -> Failure {
    match code.0 {
        1 => Failure::GrpcCancelled,
        2 => Failure::GrpcUnknown,
        3 => Failure::GrpcInvalidArgument,
        4 => Failure::GrpcDeadlineExceeded,
        5 => Failure::GrpcNotFound,
        6 => Failure::GrpcAlreadyExists,
        7 => Failure::GrpcPermissionDenied,
        8 => Failure::GrpcResourceExhausted,
        9 => Failure::GrpcFailedPrecondition,
        10 => Failure::GrpcAborted,
        11 => Failure::GrpcOutOfRange,
        12 => Failure::GrpcUnimplemented,
        13 => Failure::GrpcInternal,
        14 => Failure::GrpcUnavailable,
        15 => Failure::GrpcDataLoss,
        16 => Failure::GrpcUnauthenticated,
        _ => Failure::GrpcOther,
    }
}

impl Driver for Grpc {
    type State = Http2State;

    const STREAMS: bool = true;

    fn start(&mut self, state: &mut Http2State) {
        self.http2.start(state);
    }

    fn open(
        &mut self,
        state: &mut Http2State,
        request: &Request,
        user: u32,
        secure: bool,
    ) -> Opened {
        let opened = self.http2.open(state, request, user, secure);
        if let Opened::Stream(_) = opened {
            self.begin(user);
        }
        opened
    }

    fn receive_streams<'b>(
        &mut self,
        state: &mut Http2State,
        bytes: &'b [u8],
    ) -> (usize, StreamEvent<'b>) {
        let (used, event) = self.http2.receive_streams(state, bytes);
        (used, self.interpret(state, event))
    }

    fn head(&mut self) -> &[u8] {
        self.http2.head()
    }

    fn cancel(&mut self, state: &mut Http2State, stream: u32) {
        self.http2.cancel(state, stream);
    }

    fn sent(&mut self, state: &mut Http2State) {
        self.http2.sent(state);
    }

    fn outgoing(&mut self) -> Option<&mut Vec<u8>> {
        self.http2.outgoing()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_a_failure_of_its_own() {
        for code in 1..=16 {
            assert_eq!(of_code(Code(code)).grpc_status(), u16::try_from(code).ok());
        }
        assert_eq!(of_code(Code(17)).grpc_status(), None);
        assert!(of_code(Code(17)).is_bad_grpc_answer());
    }
}
