//! [`Web`]: the driver of scenarios with WebSockets or gRPC calls that stay open. A connection uses HTTP/1.1 unless its
//! first request makes it a WebSocket, an Action Cable client or a call.

use crate::grpc::limits;
use crate::transport::cable::{Cable, CableState};
use crate::transport::driver::Push;
use crate::transport::driver::{Driver, Received};
use crate::transport::grpc_web::{GrpcWeb, GrpcWebState};
use crate::transport::http1::Http1;
use crate::transport::http1::Http1State;
use crate::transport::open_call::{OpenCall, OpenCalls};
use crate::transport::websocket::WebSocket;
use crate::transport::websocket::WebSocketState;
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Kind;
use crate::workload::requests::request::Request;

/// One worker's drivers of all protocols.
#[derive(Default)]
pub struct Web {
    http: Http1,
    /// Including the WebSocket driver.
    cable: Cable,
    /// Requests and calls that end with their answer.
    grpc: Option<Box<GrpcWeb>>,
    calls: OpenCalls,
    /// Which protocol the last message has.
    last: Last,
}

#[derive(Copy, Clone, PartialEq, Eq, Default)]
enum Last {
    #[default]
    WebSocket,
    Cable,
    Call,
}

/// The state of a connection.
pub struct WebState(ProtocolState);

enum ProtocolState {
    Http(Http1State),
    WebSocket(Box<WebSocketState>),
    Cable(Box<CableState>),
    /// A connection of requests that had a gRPC call.
    Grpc(Box<GrpcWebState>),
    Call(Box<OpenCall>),
}

impl Default for WebState {
    fn default() -> WebState {
        WebState(ProtocolState::Http(Http1State::default()))
    }
}

impl Web {
    /// As [`Http1::new`] and [`crate::transport::websocket::WebSocket::new`].
    #[must_use]
    pub fn new() -> Web {
        Web { http: Http1::new(), ..Web::default() }
    }

    /// As [`crate::transport::websocket::WebSocket::compressing`], for all WebSockets; `None` for no compression.
    #[must_use]
    pub fn compressing(mut self, above: Option<usize>) -> Web {
        if let Some(above) = above {
            self.cable.socket = WebSocket::new().compressing(above);
        }
        self
    }
}

impl Driver for Web {
    type State = WebState;

    const PUSHES: bool = true;

    fn seed(&mut self, random: u64) {
        self.cable.seed(random);
    }

    fn encode<'a>(&'a mut self, state: &mut WebState, request: &'a Request) -> &'a [u8] {
        let is_http = matches!(state.0, ProtocolState::Http(_));
        match request.kind() {
            Kind::Unary | Kind::ServerStream if is_http => {
                *state = WebState(ProtocolState::Grpc(Box::default()));
            }
            Kind::Call { has_one_answer } => {
                let call = Box::new(OpenCall::new(has_one_answer));
                *state = WebState(ProtocolState::Call(call));
            }
            Kind::Connect => *state = WebState(ProtocolState::WebSocket(Box::default())),
            Kind::ConnectCable => *state = WebState(ProtocolState::Cable(Box::default())),
            _ => {}
        }
        match &mut state.0 {
            ProtocolState::Http(state) => self.http.encode(state, request),
            ProtocolState::WebSocket(state) => self.cable.socket.encode(state, request),
            ProtocolState::Cable(state) => self.cable.encode(state, request),
            ProtocolState::Grpc(state) => grpc(&mut self.grpc).encode(state, request),
            ProtocolState::Call(call) => {
                if request.kind() == Kind::Close {
                    call.await_end();
                }
                request.bytes()
            }
        }
    }

    fn receive(&mut self, state: &mut WebState, bytes: &[u8], awaited: &mut Awaited) -> Received {
        match &mut state.0 {
            ProtocolState::Http(state) => {
                self.cable.socket.forget_reply();
                self.http.receive(state, bytes, awaited)
            }
            ProtocolState::Grpc(state) => {
                self.cable.socket.forget_reply();
                grpc(&mut self.grpc).receive(state, bytes, awaited)
            }
            ProtocolState::Call(call) => {
                self.cable.socket.forget_reply();
                self.last = Last::Call;
                self.calls.receive(call, bytes, awaited)
            }
            ProtocolState::WebSocket(state) => {
                self.last = Last::WebSocket;
                self.cable.socket.receive(state, bytes, awaited)
            }
            ProtocolState::Cable(state) => {
                self.last = Last::Cable;
                self.cable.receive(state, bytes, awaited)
            }
        }
    }

    fn ended(&mut self, state: &mut WebState) -> Received {
        match &mut state.0 {
            ProtocolState::Http(state) => self.http.ended(state),
            ProtocolState::WebSocket(state) => self.cable.socket.ended(state),
            ProtocolState::Cable(state) => self.cable.ended(state),
            ProtocolState::Grpc(state) => grpc(&mut self.grpc).ended(state),
            ProtocolState::Call(call) => OpenCalls::ended(call),
        }
    }

    fn message(&self) -> Push<'_> {
        match self.last {
            Last::WebSocket => self.cable.socket.message(),
            Last::Cable => self.cable.message(),
            Last::Call => Push { data: &self.calls.message, is_protobuf: true, ..Push::default() },
        }
    }

    fn head(&mut self) -> &[u8] {
        &self.calls.head
    }

    fn ends_our_side(&self, state: &WebState) -> bool {
        matches!(&state.0, ProtocolState::Call(call) if call.is_ending())
    }

    fn is_reset(&self, state: &WebState) -> bool {
        matches!(state.0, ProtocolState::Call(_))
    }

    fn reply(&self) -> &[u8] {
        self.cable.reply()
    }

    fn close<'a>(&'a mut self, state: &mut WebState) -> &'a [u8] {
        match &mut state.0 {
            ProtocolState::Http(_) | ProtocolState::Grpc(_) | ProtocolState::Call(_) => &[],
            ProtocolState::WebSocket(state) => self.cable.socket.close_frame(state),
            ProtocolState::Cable(state) => self.cable.close(state),
        }
    }
}

/// The driver of calls, made when there is one.
fn grpc(calls: &mut Option<Box<GrpcWeb>>) -> &mut GrpcWeb {
    calls.get_or_insert_with(|| Box::new(GrpcWeb::beside_requests(limits::MESSAGE_BYTES)))
}
