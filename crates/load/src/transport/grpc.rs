//! [`Grpc`]: a client of gRPC over HTTP/2 ("gRPC over HTTP2", `doc/PROTOCOL-HTTP2.md` of gRPC). A request is a
//! call: its body has messages, and the call ends with a status in trailers. Calls that send or receive
//! several messages have [`GrpcStream`] (`grpc/stream.rs`).

mod stream;

use engine::invariant;

pub use self::stream::GrpcStream;
use crate::grpc::limits::KEPT_BYTES;
use crate::grpc::{Code, Encoding, FrameError, MessageDecoder, PREFIX_BYTES, ReplyType};
use crate::outcome::failure::Failure;
use crate::transport::driver::{Driver, Opened, Received, StreamEvent};
use crate::transport::http2::{Http2, Http2State};
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Request;

/// The content type of answers, perhaps with a codec behind it.
const CONTENT_TYPE: &[u8] = b"application/grpc";

/// The gRPC driver of one worker.
pub struct Grpc {
    pub(crate) http2: Http2,
    /// Exactly one message answers a call.
    pub(crate) unary: bool,
    message_bytes_max: usize,
    /// The type of the messages that are received, if there is one.
    reply: Option<ReplyType>,
    /// By user.
    calls: Vec<Call>,
    /// The last message that was compressed.
    inflated: Vec<u8>,
}

/// What has arrived of an answer.
#[derive(Default)]
struct Call {
    messages: u32,
    coding: Coding,
    /// While a message is partial.
    decoder: Option<Box<MessageDecoder>>,
}

impl Grpc {
    /// A driver; `unary` if exactly one message answers a call, of at most so many bytes.
    #[must_use]
    pub fn new(unary: bool, message_bytes_max: usize) -> Grpc {
        Grpc {
            http2: Http2::new(),
            unary,
            message_bytes_max,
            reply: None,
            calls: Vec::new(),
            inflated: Vec::new(),
        }
    }

    /// The same, where messages that are not of this type fail their call.
    #[must_use]
    pub fn expecting(self, reply: ReplyType) -> Grpc {
        Grpc { reply: Some(reply), ..self }
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

    /// Takes bytes of a body up to the end of the next message; see [`Driver::next_message`].
    fn take_message<'m>(
        &'m mut self,
        user: u32,
        bytes: &'m [u8],
    ) -> Result<(usize, Option<&'m [u8]>), Failure> {
        let most = self.message_bytes_max;
        let Grpc { calls, inflated, reply, .. } = self;
        let reply = reply.as_ref();
        let checked = |message: &'m [u8]| match reply {
            Some(reply) if !reply.accepts(message) => Err(Failure::GrpcReplyUndecodable),
            _ => Ok(message),
        };
        let Some(call) = calls.get_mut(user as usize) else {
            invariant::broken("a call begins with its request");
            return Err(Failure::GrpcMessage);
        };
        if call.decoder.as_ref().is_some_and(|decoder| decoder.finish().is_ok()) {
            call.decoder = None;
        }
        if bytes.is_empty() {
            return Ok((0, None));
        }
        if call.decoder.is_none()
            && let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>()
        {
            let [flag, length @ ..] = *prefix;
            let length = u32::from_be_bytes(length) as usize;
            // Usual: one complete message.
            if flag <= 1
                && length <= most
                && let Some(message) = rest.get(..length)
            {
                call.messages = call.messages.saturating_add(1);
                let message = match flag {
                    0 => message,
                    _ => call.coding.inflate(message, most, inflated)?,
                };
                return Ok((PREFIX_BYTES + length, Some(checked(message)?)));
            }
        }
        let coding = call.coding;
        let decoder = call.decoder.get_or_insert_with(|| Box::new(MessageDecoder::new(most)));
        let (used, message) = decoder.next(bytes).map_err(|why| of_frame(&why))?;
        let Some(message) = message else { return Ok((used, None)) };
        call.messages = call.messages.saturating_add(1);
        let message = match message.compressed {
            false => message.bytes,
            true => coding.inflate(message.bytes, most, inflated)?,
        };
        Ok((used, Some(checked(message)?)))
    }

    /// Counts the messages in bytes of a body.
    fn receive_messages(&mut self, user: u32, bytes: &[u8]) -> Result<(), Failure> {
        let mut rest = bytes;
        loop {
            let (used, message) = self.take_message(user, rest)?;
            if message.is_none() {
                return Ok(());
            }
            rest = rest.get(used..).unwrap_or_default();
        }
    }

    /// The head of an answer that goes on.
    fn on_head(&mut self, state: &mut Http2State, user: u32, status: u16) -> StreamEvent<'static> {
        if status != 200 {
            return self.give_up(state, user, of_code(Code::of_http(status)));
        }
        let (mut is_grpc, mut coding) = (false, Coding::Identity);
        for (name, value) in self.http2.fields() {
            match name {
                b"content-type" => is_grpc = is_type(value, CONTENT_TYPE),
                b"grpc-encoding" => coding = Coding::of(value),
                _ => {}
            }
        }
        if !is_grpc {
            return self.give_up(state, user, Failure::GrpcContentType);
        }
        if let Some(call) = self.calls.get_mut(user as usize) {
            call.coding = coding;
        }
        StreamEvent::Head(user, 0, false)
    }

    /// The end of a call, whose status is in the last fields: trailers, or a head with this HTTP status and nothing
    /// behind it.
    fn finish(&mut self, user: u32, only_head: Option<u16>) -> StreamEvent<'static> {
        let failure = match self.http2.field(b"grpc-status").map(Code::parse) {
            Some(Code::OK) => {
                let call = self.calls.get_mut(user as usize);
                let is_whole = call.is_some_and(|call| {
                    let decoder = call.decoder.as_ref();
                    decoder.is_none_or(|decoder| decoder.finish().is_ok())
                        && (!self.unary || call.messages == 1)
                });
                if is_whole {
                    return StreamEvent::Complete(user);
                }
                Failure::GrpcMessage
            }
            Some(code) => of_code(code),
            None => match only_head {
                Some(200) if self.is_grpc() => Failure::GrpcNoStatus,
                Some(200) => Failure::GrpcContentType,
                Some(status) => of_code(Code::of_http(status)),
                None => Failure::GrpcNoStatus,
            },
        };
        StreamEvent::Failed(user, failure)
    }

    /// Whether the last head is one of gRPC.
    fn is_grpc(&self) -> bool {
        self.http2.field(b"content-type").is_some_and(|value| is_type(value, CONTENT_TYPE))
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
            StreamEvent::Head(user, status, true) => self.finish(user, Some(status)),
            StreamEvent::Head(user, status, false) => self.on_head(state, user, status),
            StreamEvent::Body(user, data, is_end) => match self.receive_messages(user, data) {
                Err(failure) => self.give_up(state, user, failure),
                Ok(()) if is_end => StreamEvent::Failed(user, Failure::GrpcNoStatus),
                Ok(()) => StreamEvent::Body(user, data, false),
            },
            StreamEvent::Complete(user) => self.finish(user, None),
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

/// The encoding of compressed messages, by `grpc-encoding`.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Coding {
    #[default]
    Identity,
    Gzip,
    Deflate,
    Unknown,
}

impl Coding {
    pub(crate) fn of(value: &[u8]) -> Coding {
        match Encoding::parse(value) {
            Encoding::Identity => Coding::Identity,
            Encoding::Gzip => Coding::Gzip,
            Encoding::Deflate => Coding::Deflate,
            Encoding::Other(_) => Coding::Unknown,
        }
    }

    /// Decompresses a message into `out`.
    pub(crate) fn inflate<'m>(
        self,
        bytes: &[u8],
        most: usize,
        out: &'m mut Vec<u8>,
    ) -> Result<&'m [u8], Failure> {
        let encoding = match self {
            Coding::Gzip => Encoding::Gzip,
            Coding::Deflate => Encoding::Deflate,
            Coding::Identity | Coding::Unknown => return Err(Failure::GrpcEncoding),
        };
        if out.capacity() > KEPT_BYTES {
            *out = Vec::new();
        }
        encoding.decompress(bytes, most, out).map_err(|why| of_frame(&why))?;
        Ok(out)
    }
}

/// The failure of a call whose answer is not messages.
pub(crate) fn of_frame(why: &FrameError) -> Failure {
    match why {
        FrameError::TooLong { .. } => Failure::TooLarge,
        FrameError::Encoding(_) | FrameError::Compressed(_) => Failure::GrpcEncoding,
        FrameError::Flag(_) | FrameError::Truncated(_) => Failure::GrpcMessage,
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

    fn leaving_debug<'s>(&self, state: &'s Http2State) -> &'s [u8] {
        self.http2.leaving_debug(state)
    }

    fn is_held(&self, state: &Http2State) -> bool {
        self.http2.is_held(state)
    }

    fn taken(&mut self, state: &mut Http2State) {
        self.http2.taken(state);
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

/// Whether the value of a Content-Type is this type, perhaps with a codec (`+proto`) or parameters.
pub(crate) fn is_type(value: &[u8], of: &[u8]) -> bool {
    let rest = value.strip_prefix(of).map(<[u8]>::first);
    matches!(rest, Some(None | Some(b'+' | b';' | b' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types_are_compared_as_a_whole() {
        let grpc = b"application/grpc";
        for is in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
            assert!(is_type(is.as_bytes(), grpc), "{is}");
        }
        for other in ["application/grpcfoo", "application/grpc-web", "text/html", ""] {
            assert!(!is_type(other.as_bytes(), grpc), "{other}");
        }
    }

    #[test]
    fn each_status_is_a_failure_of_its_own() {
        for code in 1..=16 {
            assert_eq!(of_code(Code(code)).grpc_status(), u16::try_from(code).ok());
        }
        assert_eq!(of_code(Code(17)).grpc_status(), None);
        assert!(of_code(Code(17)).is_bad_grpc_answer());
    }
}
