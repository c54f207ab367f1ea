//! [`WebSocket`]: a WebSocket client as a [`Driver`] (RFC 6455) on the codec of `wire`: handshake, masked
//! frames, pongs, fragments, closing handshake. Every message is [`Received::Pushed`]; the script
//! decides whether it is an answer.
//!
//! It is not the fast path: runs of WebSockets alone use the engine's WebSocket mode ([`crate::Run`]),
//! which copies nothing. It supports permessage-deflate.

use wire::http::{EMPTY_HEADER, HeadScanner, MAX_HEADERS, parse_request, parse_response};
use wire::websocket::{
    Decoder, Deflate, Event, OpCode, check_upgrade_response, encode_close, encode_deflated,
    encode_key, encode_masked,
};
use wire::{Limits, Role, Status, Violation};

use crate::outcome::failure::Failure;
use crate::transport::deflate::Compression;
use crate::transport::driver::Push;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Kind;
use crate::workload::requests::request::Request;
use crate::workload::scenario::template::mixed;

/// The code of a close frame without one (RFC 6455 section 7.1.5).
const NO_CODE: u16 = 1005;

/// The WebSocket driver of one worker.
pub struct WebSocket {
    limits: Limits,
    /// permessage-deflate, if offered.
    deflate: Option<Box<Compression>>,
    /// The state of masks and keys: fresh each time and begun at a random number, but no secret. A load
    /// generator sends nobody else's text, so nothing is gained by predicting them (RFC 6455 10.3).
    random: u64,
    /// Bytes to send.
    out: Vec<u8>,
    /// Automatic replies.
    reply: Vec<u8>,
    /// A complete or partial frame.
    frame: Vec<u8>,
    /// The last message.
    pub(crate) message: Vec<u8>,
    is_text: bool,
}

/// The state of a connection.
#[derive(Default)]
pub struct WebSocketState {
    phase: Phase,
    awaits: Awaits,
    key: [u8; 24],
    /// The offered subprotocols.
    offered: String,
    scanner: HeadScanner,
    decoder: Decoder,
    /// The window of its compressor in bits; 0: uncompressed.
    window: u8,
    /// Missing bytes of the current frame.
    left: u64,
    /// A partial head or frame.
    partial: Vec<u8>,
    /// The fragments of a message.
    fragments: Vec<u8>,
    /// The payload of the ping whose pong is awaited.
    ping: Vec<u8>,
}

#[derive(Copy, Clone, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Idle,
    Handshake,
    Open,
    /// Our close frame was sent.
    Closing,
}

#[derive(Copy, Clone, PartialEq, Eq, Default)]
enum Awaits {
    #[default]
    Nothing,
    Pong,
    Close,
}

/// The result of one frame.
enum FrameOutcome {
    Nothing,
    Message,
    /// The awaited pong or close frame.
    Answer,
    /// The server closes the connection.
    Close(u16),
}

impl Default for WebSocket {
    fn default() -> WebSocket {
        WebSocket::new()
    }
}

impl WebSocket {
    /// The longest message that is accepted, including all its fragments, in bytes.
    pub const MESSAGE_BYTES_MAX: u32 = 1 << 20;

    /// Messages of at most [`WebSocket::MESSAGE_BYTES_MAX`].
    #[must_use]
    pub fn new() -> WebSocket {
        let limits = Limits { message_bytes: Self::MESSAGE_BYTES_MAX, ..Limits::default() };
        let none = Vec::new;
        WebSocket {
            limits,
            deflate: None,
            random: 0,
            out: none(),
            reply: none(),
            frame: none(),
            message: none(),
            is_text: false,
        }
    }

    /// Offers permessage-deflate, and compresses messages of at least `above` bytes, without context
    /// takeover.
    #[must_use]
    pub fn compressing(self, above: usize) -> WebSocket {
        WebSocket { deflate: Some(Box::new(Compression::new(above))), ..self }
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mixed(self.random)
    }

    fn mask(&mut self) -> [u8; 4] {
        (self.draw() as u32).to_le_bytes()
    }

    fn push_control(&mut self, opcode: OpCode, data: &[u8]) {
        let mask = self.mask();
        encode_masked(&mut self.out, opcode, data, mask);
    }

    /// Appends a message, compressed if negotiated and shorter.
    fn push_message(&mut self, window: u8, opcode: OpCode, data: &[u8]) {
        let mask = self.mask();
        let deflate = self.deflate.as_mut().filter(|_| window > 0);
        match deflate.and_then(|deflate| deflate.compress(window, data)) {
            Some(payload) => encode_deflated(&mut self.out, opcode, payload, Some(mask)),
            None => encode_masked(&mut self.out, opcode, data, mask),
        }
    }

    /// Appends the handshake with a new key.
    fn begin(&mut self, state: &mut WebSocketState, head: &[u8]) {
        let (high, low) = (u128::from(self.draw()), u128::from(self.draw()));
        let key = encode_key((high << 64 | low).to_be_bytes());
        *state = WebSocketState { phase: Phase::Handshake, key, ..WebSocketState::default() };
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        if let Ok(asked) = parse_request(head, &mut headers) {
            let offered = asked.header("sec-websocket-protocol").unwrap_or_default();
            state.offered = String::from_utf8_lossy(offered).into_owned();
        }
        self.out.extend_from_slice(head.strip_suffix(b"\r\n").unwrap_or(head));
        if self.deflate.is_some() {
            for text in ["Sec-WebSocket-Extensions: ", Deflate::OFFER, "\r\n"] {
                self.out.extend_from_slice(text.as_bytes());
            }
        }
        for bytes in [b"Sec-WebSocket-Key: ".as_slice(), &key, b"\r\n\r\n"] {
            self.out.extend_from_slice(bytes);
        }
    }

    /// As [`Driver::receive`], but keeps earlier replies.
    pub(crate) fn next(
        &mut self,
        state: &mut WebSocketState,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Received {
        let result = match state.phase {
            Phase::Idle => return Received::Failed(Failure::Unexpected),
            Phase::Handshake => self.handshake(state, bytes, awaited),
            Phase::Open | Phase::Closing => self.frames(state, bytes),
        };
        result.unwrap_or_else(|violation| {
            if state.phase == Phase::Open {
                let mask = self.mask();
                encode_close(&mut self.reply, Some(violation.close_code()), "", Some(mask));
            }
            Received::Failed(Failure::Protocol(violation))
        })
    }

    fn handshake(
        &self,
        state: &mut WebSocketState,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Result<Received, Violation> {
        let before = state.partial.len();
        state.partial.extend_from_slice(bytes);
        let Status::Complete(length) = state.scanner.scan(&state.partial, &self.limits)? else {
            return Ok(Received::More);
        };
        let (head, rest) = state.partial.split_at_checked(length).unwrap_or_default();
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let response = parse_response(head, &mut headers)?;
        let status = response.status;
        awaited.head(status, head);
        if status != 101 {
            // The connection is unusable; only the bytes received so far are kept as the body.
            awaited.body(rest);
            let body_bytes = rest.len() as u64;
            return Ok(Received::Complete(CompleteAnswer {
                used: bytes.len(),
                status,
                keep: false,
                body_bytes,
            }));
        }
        let offered: Vec<&str> =
            state.offered.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let deflate = self.deflate.is_some();
        let switched = check_upgrade_response(&response, &state.key, &offered, deflate)?;
        if let Some(agreed) = &switched.deflate {
            state.window = Compression::window(agreed);
            state.decoder.enable_deflate();
        }
        (state.phase, state.partial) = (Phase::Open, Vec::new());
        let used = length.saturating_sub(before);
        Ok(Received::Complete(CompleteAnswer { used, status, keep: true, body_bytes: 0 }))
    }

    /// Receives frames up to the first with a result.
    fn frames(&mut self, state: &mut WebSocketState, bytes: &[u8]) -> Result<Received, Violation> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let (used, found) = self.frame(state, rest)?;
            at += used;
            let whole = |keep| CompleteAnswer { used: at, status: 0, keep, body_bytes: 0 };
            match found {
                FrameOutcome::Nothing => {}
                FrameOutcome::Message => return Ok(Received::Pushed(at)),
                FrameOutcome::Answer => {
                    return Ok(Received::Complete(whole(state.phase == Phase::Open)));
                }
                FrameOutcome::Close(code) => return Ok(Received::Closing(code)),
            }
        }
        Ok(Received::More)
    }

    /// Receives bytes of the next frame. They are copied, as the codec works in place.
    fn frame(
        &mut self,
        state: &mut WebSocketState,
        rest: &[u8],
    ) -> Result<(usize, FrameOutcome), Violation> {
        let partial = state.partial.len();
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.append(&mut state.partial);
        let begins = state.left == 0;
        let wanted = match begins {
            // A header is at most ten bytes without a mask: then its length is known.
            true => span(&frame, rest).unwrap_or(rest.len() as u64).saturating_sub(partial as u64),
            false => state.left,
        };
        let taken = usize::try_from(wanted).unwrap_or(usize::MAX).clamp(1, rest.len());
        frame.extend_from_slice(rest.get(..taken).unwrap_or(rest));
        let found = match state.decoder.decode(Role::Client, &self.limits, &mut frame) {
            Ok(Status::Complete((used, event))) => {
                let whole = if begins { wanted.saturating_add(partial as u64) } else { wanted };
                state.left = whole.saturating_sub(used as u64);
                let found = self.event(state, event);
                found.map(|found| (used.saturating_sub(partial).max(1), found))
            }
            Ok(Status::Partial) => {
                state.partial.extend_from_slice(&frame);
                Ok((taken, FrameOutcome::Nothing))
            }
            Err(violation) => Err(violation),
        };
        self.frame = frame;
        found
    }

    /// Stores a complete message.
    fn message_complete(
        &mut self,
        opcode: OpCode,
        data: &[u8],
        deflated: bool,
    ) -> Result<FrameOutcome, Violation> {
        self.message.clear();
        self.is_text = opcode == OpCode::Text;
        match self.deflate.as_mut().filter(|_| deflated) {
            None => self.message.extend_from_slice(data),
            Some(deflate) => {
                let most = Self::MESSAGE_BYTES_MAX as usize;
                deflate.inflate(data, &mut self.message, most, self.is_text)?;
            }
        }
        Ok(FrameOutcome::Message)
    }

    fn event(
        &mut self,
        state: &mut WebSocketState,
        event: Event<'_>,
    ) -> Result<FrameOutcome, Violation> {
        Ok(match event {
            Event::Message { opcode, data, deflated } => {
                self.message_complete(opcode, data, deflated)?
            }
            Event::Fragment { data, last: false, .. } => {
                state.fragments.extend_from_slice(data);
                FrameOutcome::Nothing
            }
            Event::Fragment { opcode, data, deflated, .. } => {
                state.fragments.extend_from_slice(data);
                let fragments = std::mem::take(&mut state.fragments);
                self.message_complete(opcode, &fragments, deflated)?
            }
            Event::Ping(payload) => {
                let mask = self.mask();
                encode_masked(&mut self.reply, OpCode::Pong, payload, mask);
                FrameOutcome::Nothing
            }
            Event::Pong(payload) => {
                let is_it = state.awaits == Awaits::Pong && *payload == *state.ping;
                if is_it { FrameOutcome::Answer } else { FrameOutcome::Nothing }
            }
            Event::Close { code, .. } => {
                let is_it = state.awaits == Awaits::Close;
                if state.phase == Phase::Open {
                    let mask = self.mask();
                    encode_close(&mut self.reply, code, "", Some(mask));
                }
                state.phase = Phase::Closing;
                if is_it {
                    FrameOutcome::Answer
                } else {
                    FrameOutcome::Close(code.map_or(NO_CODE, |code| code.0))
                }
            }
        })
    }

    /// Returns a close frame, unless it was sent before.
    pub(crate) fn close_frame(&mut self, state: &mut WebSocketState) -> &[u8] {
        self.out.clear();
        if state.phase == Phase::Open {
            let mask = self.mask();
            encode_close(&mut self.out, Some(wire::websocket::CloseCode::NORMAL), "", Some(mask));
            state.phase = Phase::Closing;
        }
        &self.out
    }

    pub(crate) fn forget_reply(&mut self) {
        self.reply.clear();
    }
}

impl Driver for WebSocket {
    type State = WebSocketState;

    const PUSHES: bool = true;

    fn seed(&mut self, random: u64) {
        self.random = random;
    }

    fn encode<'a>(&'a mut self, state: &mut WebSocketState, request: &'a Request) -> &'a [u8] {
        self.out.clear();
        let bytes = request.bytes();
        state.awaits = Awaits::Nothing;
        match request.kind() {
            Kind::Plain
            | Kind::Connect
            | Kind::ConnectCable
            | Kind::Unary
            | Kind::ServerStream
            | Kind::Call { .. } => self.begin(state, bytes),
            Kind::Text | Kind::Subscribe => self.push_message(state.window, OpCode::Text, bytes),
            Kind::Binary => self.push_message(state.window, OpCode::Binary, bytes),
            Kind::Await => {}
            Kind::Ping => {
                state.awaits = Awaits::Pong;
                let longest = bytes.len().min(wire::websocket::CONTROL_BYTES_MAX);
                let payload = bytes.get(..longest).unwrap_or_default();
                state.ping.clear();
                state.ping.extend_from_slice(payload);
                self.push_control(OpCode::Ping, payload);
            }
            Kind::Close => {
                self.close_frame(state);
                state.awaits = Awaits::Close;
            }
        }
        &self.out
    }

    fn receive(
        &mut self,
        state: &mut WebSocketState,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Received {
        self.forget_reply();
        self.next(state, bytes, awaited)
    }

    fn ended(&mut self, state: &mut WebSocketState) -> Received {
        let begun = !state.partial.is_empty() || state.left > 0 || !state.fragments.is_empty();
        Received::Failed(if begun { Failure::ClosedMidway } else { Failure::Closed })
    }

    fn message(&self) -> Push<'_> {
        Push { data: &self.message, is_text: self.is_text, ..Push::default() }
    }

    fn reply(&self) -> &[u8] {
        &self.reply
    }

    fn close<'a>(&'a mut self, state: &mut WebSocketState) -> &'a [u8] {
        self.close_frame(state)
    }
}

/// The length of the frame that begins with these two parts; `None` while its header is partial.
fn span(partial: &[u8], rest: &[u8]) -> Option<u64> {
    let byte =
        |at: usize| partial.get(at).or_else(|| rest.get(at.checked_sub(partial.len())?)).copied();
    let second = byte(1)?;
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let number = |from: usize, bytes: usize| {
        (from..from + bytes).try_fold(0_u64, |sum, at| Some(sum << 8 | u64::from(byte(at)?)))
    };
    let (header, payload) = match second & 0x7f {
        126 => (4, number(2, 2)?),
        127 => (10, number(2, 8)?),
        short => (2, u64::from(short)),
    };
    Some(payload.saturating_add(header + mask))
}

#[cfg(test)]
#[path = "websocket_tests.rs"]
mod tests;
