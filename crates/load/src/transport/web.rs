//! [`Web`]: the driver of scenarios with WebSockets. A connection uses HTTP/1.1 unless its first
//! request makes it a WebSocket or an Action Cable client.

use crate::transport::cable::{Cable, CableState};
use crate::transport::driver::Push;
use crate::transport::driver::{Driver, Received};
use crate::transport::http1::Http1;
use crate::transport::http1::Http1State;
use crate::transport::websocket::WebSocket;
use crate::transport::websocket::WebSocketState;
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Kind;
use crate::workload::requests::request::Request;

/// One worker's drivers of all three protocols.
#[derive(Default)]
pub struct Web {
    http: Http1,
    /// Including the WebSocket driver.
    cable: Cable,
    /// The last message is that of Action Cable.
    is_cable: bool,
}

/// The state of a connection.
pub struct WebState(ProtocolState);

enum ProtocolState {
    Http(Http1State),
    WebSocket(Box<WebSocketState>),
    Cable(Box<CableState>),
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
        match request.kind() {
            Kind::Connect => *state = WebState(ProtocolState::WebSocket(Box::default())),
            Kind::ConnectCable => *state = WebState(ProtocolState::Cable(Box::default())),
            _ => {}
        }
        match &mut state.0 {
            ProtocolState::Http(state) => self.http.encode(state, request),
            ProtocolState::WebSocket(state) => self.cable.socket.encode(state, request),
            ProtocolState::Cable(state) => self.cable.encode(state, request),
        }
    }

    fn receive(&mut self, state: &mut WebState, bytes: &[u8], awaited: &mut Awaited) -> Received {
        match &mut state.0 {
            ProtocolState::Http(state) => {
                self.cable.socket.forget_reply();
                self.http.receive(state, bytes, awaited)
            }
            ProtocolState::WebSocket(state) => {
                self.is_cable = false;
                self.cable.socket.receive(state, bytes, awaited)
            }
            ProtocolState::Cable(state) => {
                self.is_cable = true;
                self.cable.receive(state, bytes, awaited)
            }
        }
    }

    fn ended(&mut self, state: &mut WebState) -> Received {
        match &mut state.0 {
            ProtocolState::Http(state) => self.http.ended(state),
            ProtocolState::WebSocket(state) => self.cable.socket.ended(state),
            ProtocolState::Cable(state) => self.cable.ended(state),
        }
    }

    fn message(&self) -> Push<'_> {
        if self.is_cable { self.cable.message() } else { self.cable.socket.message() }
    }

    fn reply(&self) -> &[u8] {
        self.cable.reply()
    }

    fn close<'a>(&'a mut self, state: &mut WebState) -> &'a [u8] {
        match &mut state.0 {
            ProtocolState::Http(_) => &[],
            ProtocolState::WebSocket(state) => self.cable.socket.close_frame(state),
            ProtocolState::Cable(state) => self.cable.close(state),
        }
    }
}
