//! [`Http2Grpc`]: HTTP/2 whose requests may be gRPC calls, on the same connections. A call that ends with a status
//! other than OK is an answer with that status, so that scripts may expect it.

use engine::invariant;

use crate::grpc::{Code, ReplyType, answer_status};
use crate::outcome::failure::Failure;
use crate::transport::driver::{Driver, Opened, Received, StreamEvent};
use crate::transport::grpc::Grpc;
use crate::transport::http2::Http2State;
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::{Kind, Request};

/// The driver of one worker.
pub struct Http2Grpc {
    grpc: Grpc,
    /// The kind of requests that are [`Kind::Plain`].
    plain: Kind,
    /// By user.
    kinds: Vec<Kind>,
}

impl Http2Grpc {
    /// A driver whose requests are calls by their kind.
    #[must_use]
    pub fn new(message_bytes_max: usize) -> Http2Grpc {
        let grpc = Grpc::new(true, message_bytes_max);
        Http2Grpc { grpc, plain: Kind::Plain, kinds: Vec::new() }
    }

    /// A driver all of whose requests are calls; `unary` if exactly one message answers each.
    #[must_use]
    pub fn of_calls(unary: bool, message_bytes_max: usize) -> Http2Grpc {
        let plain = if unary { Kind::Unary } else { Kind::ServerStream };
        Http2Grpc { plain, ..Http2Grpc::new(message_bytes_max) }
    }

    /// The same, where messages that are not of this type fail their call.
    #[must_use]
    pub fn expecting(self, reply: ReplyType) -> Http2Grpc {
        Http2Grpc { grpc: self.grpc.expecting(reply), ..self }
    }

    fn begin(&mut self, user: u32, kind: Kind) {
        let at = user as usize;
        if self.kinds.len() <= at {
            self.kinds.resize(at + 1, Kind::Plain);
        }
        if let Some(place) = self.kinds.get_mut(at) {
            *place = kind;
        }
        if kind != Kind::Plain {
            self.grpc.begin(user);
        }
    }

    /// Whether the last request of a user is a call that one message answers; `None`: it is no call.
    fn unary(&self, user: u32) -> Option<bool> {
        match self.kinds.get(user as usize) {
            Some(Kind::Unary) => Some(true),
            Some(Kind::ServerStream) => Some(false),
            _ => None,
        }
    }

    fn interpret<'b>(&mut self, state: &mut Http2State, event: StreamEvent<'b>) -> StreamEvent<'b> {
        let (user, is_end) = match event {
            StreamEvent::Head(user, _, is_end) => (user, is_end),
            StreamEvent::Body(user, ..) => (user, false),
            StreamEvent::Complete(user) => (user, true),
            other => return other,
        };
        let Some(unary) = self.unary(user) else { return event };
        self.grpc.unary = unary;
        let status = self.grpc.http2.field(b"grpc-status").filter(|_| is_end).map(Code::parse);
        match (self.grpc.interpret(state, event), status) {
            (StreamEvent::Complete(user), _) => {
                StreamEvent::Trailers(user, answer_status(Code::OK))
            }
            (StreamEvent::Failed(user, _), Some(code)) if code != Code::OK => {
                StreamEvent::Trailers(user, answer_status(code))
            }
            (other, _) => other,
        }
    }
}

impl Driver for Http2Grpc {
    type State = Http2State;

    const STREAMS: bool = true;

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
        let kind = match request.kind() {
            Kind::Plain => self.plain,
            kind => kind,
        };
        let opened = self.grpc.http2.open(state, request, user, secure);
        if let Opened::Stream(_) = opened {
            self.begin(user, kind);
        }
        opened
    }

    fn receive_streams<'b>(
        &mut self,
        state: &mut Http2State,
        bytes: &'b [u8],
    ) -> (usize, StreamEvent<'b>) {
        let (used, event) = self.grpc.http2.receive_streams(state, bytes);
        (used, self.interpret(state, event))
    }

    fn head(&mut self) -> &[u8] {
        self.grpc.head()
    }

    fn cancel(&mut self, state: &mut Http2State, stream: u32) {
        self.grpc.cancel(state, stream);
    }

    fn leaving_debug<'s>(&self, state: &'s Http2State) -> &'s [u8] {
        self.grpc.leaving_debug(state)
    }

    fn is_held(&self, state: &Http2State) -> bool {
        self.grpc.is_held(state)
    }

    fn taken(&mut self, state: &mut Http2State) {
        self.grpc.taken(state);
    }

    fn sent(&mut self, state: &mut Http2State) {
        self.grpc.sent(state);
    }

    fn outgoing(&mut self) -> Option<&mut Vec<u8>> {
        self.grpc.outgoing()
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
