//! [`Http2`]: an HTTP/2 client (RFC 9113) whose connections carry the requests of several users, each on a
//! stream. Requests are rendered as in HTTP/1.1 and translated; content codings are not decoded.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::invariant;
use wire::Violation;
use wire::http2::hpack::{HeaderList, Shape};
use wire::http2::{Config, Connection, ErrorCode, Event, HeadKind, Refused, StreamId};

use crate::outcome::failure::Failure;
use crate::transport::driver::{Driver, Opened, Received, StreamEvent, Window, Writable};
use crate::transport::fields::{Form, head_bytes, translate};
use crate::workload::requests::answer::Awaited;
use crate::workload::requests::request::Request;

/// Bodies of at most so many bytes are passed on whole: cutting them would cost more than they take.
const SHORT_BODY_BYTES: usize = 4 * 1024;
/// Bytes of longer bodies that wait on a connection for the kernel before no further ones are passed on.
const WAITING_BYTES: usize = 256 * 1024;
/// Constant requests that are prepared; further ones are translated each time.
const PREPARED_MAX: usize = 1_024;

/// The HTTP/2 driver of one worker.
pub struct Http2 {
    config: Arc<Config>,
    out: Vec<u8>,
    fields: HeaderList,
    /// The last head, as in HTTP/1.1.
    head: Vec<u8>,
    status: u16,
    /// The stream of the last event of one.
    last: Option<StreamId>,
    names: Vec<u8>,
    prepared: Vec<Prepared>,
}

/// A constant request.
struct Prepared {
    id: u32,
    secure: bool,
    shape: Shape,
    /// Where its body begins.
    body: usize,
    /// The body, once it could not be sent at once: all streams share it.
    shared: Option<Arc<[u8]>>,
}

/// The state of a connection.
#[derive(Default)]
pub struct Http2State(Option<Box<Open>>);

/// A connection that has begun.
struct Open {
    connection: Connection,
    /// Bodies that are not sent yet, for lack of window or as others wait for the kernel, by stream.
    unsent: VecDeque<Unsent>,
    /// Bytes of bodies that may still be passed on until the kernel has taken what waits.
    room: usize,
    /// A body could be sent but for that.
    is_held: bool,
}

/// A body that is sent up to a place.
struct Unsent {
    stream: StreamId,
    bytes: Arc<[u8]>,
    at: usize,
}

impl Http2 {
    /// A driver with windows that never delay a server.
    #[must_use]
    pub fn new() -> Http2 {
        // Until the server has said how many it allows, a second stream may be refused.
        let config = Arc::new(Config { initial_max_streams: 1, ..Config::of_client() });
        Http2 {
            config,
            out: Vec::new(),
            fields: HeaderList::new(),
            head: Vec::new(),
            status: 0,
            last: None,
            names: Vec::new(),
            prepared: Vec::new(),
        }
    }

    /// The fields of the last head or trailers.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter()
    }

    /// The value of a field of the last head or trailers.
    pub(crate) fn field(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.get(name)
    }

    /// Ends our side of the request of the last event, whose answer is complete, if it is still open. An empty
    /// frame does that without a window. A reset (RFC 9113 section 8.1) would count towards the limit that
    /// servers have against rapid resets.
    pub(crate) fn end_last(&mut self, state: &mut Http2State) {
        if let (Some(open), Some(stream)) = (&mut state.0, self.last) {
            let _ = open.connection.send_data(stream, &[], true, &mut self.out);
        }
    }

    /// Sends bytes of a body on a stream; see [`Driver::send_message`].
    pub(crate) fn send(
        &mut self,
        state: &mut Http2State,
        stream: u32,
        bytes: &[u8],
        ends: bool,
    ) -> (usize, Window) {
        let Some(open) = &mut state.0 else { return (0, Window::Ended) };
        let Some(id) = open.connection.stream(stream) else { return (0, Window::Ended) };
        match open.connection.send_data(id, bytes, ends, &mut self.out) {
            Err(_) => (0, Window::Ended),
            Ok(sent) if sent == bytes.len() => (sent, Window::Open),
            Ok(sent) if open.connection.connection_window() == 0 => (sent, Window::Connection),
            Ok(sent) => (sent, Window::Stream),
        }
    }

    /// Begins a request. One without a body stays open unless it `ends`.
    pub(crate) fn open_until(
        &mut self,
        state: &mut Http2State,
        request: &Request,
        user: u32,
        secure: bool,
        ends: bool,
    ) -> Opened {
        let prepared = self.prepare(request, secure);
        let Some(open) = &mut state.0 else { return Opened::Never };
        let connection = &mut open.connection;
        let bytes = request.bytes();
        let out = &mut self.out;
        let (opened, body) = match prepared.and_then(|at| self.prepared.get_mut(at)) {
            Some(Prepared { shape, body, .. }) => {
                (connection.open_shape(shape, [], ends && *body == bytes.len(), user, out), *body)
            }
            None => {
                let Some((head, body)) = split(bytes) else { return Opened::Invalid };
                let ends = ends && body == bytes.len();
                let opened = translate(head, Form::Request, secure, &mut self.names, |fields| {
                    connection.open(fields, ends, user, out)
                });
                let Some(opened) = opened else { return Opened::Invalid };
                (opened, body)
            }
        };
        let stream = match opened {
            Ok(stream) => stream,
            Err(Refused::TooManyStreams) => return Opened::Later,
            Err(Refused::GoingAway | Refused::NoIdentifiers) => return Opened::Never,
        };
        let body = bytes.get(body..).unwrap_or_default();
        if !body.is_empty() {
            let is_short = body.len() <= SHORT_BODY_BYTES;
            let piece = if is_short { body } else { body.get(..open.room).unwrap_or(body) };
            let is_whole = piece.len() == body.len();
            let sent = connection.send_data(stream, piece, is_whole, out).unwrap_or(body.len());
            if !is_short {
                open.room = open.room.saturating_sub(sent);
            }
            if sent < body.len() {
                open.is_held |= sent == piece.len();
                let shared = prepared.and_then(|at| self.prepared.get_mut(at));
                let bytes = match shared {
                    Some(one) => Arc::clone(one.shared.get_or_insert_with(|| body.into())),
                    None => body.into(),
                };
                open.unsent.push_back(Unsent { stream, bytes, at: sent });
            }
        }
        Opened::Stream(stream.get())
    }

    /// Gives up the request of the last event.
    pub(crate) fn cancel_last(&mut self, state: &mut Http2State) {
        if let (Some(open), Some(stream)) = (&mut state.0, self.last) {
            open.cancel(stream, &mut self.out);
        }
    }

    /// The place of a constant request, which is prepared on its first use.
    fn prepare(&mut self, request: &Request, secure: bool) -> Option<usize> {
        let id = request.id()?;
        let is_it = |one: &Prepared| one.id == id && one.secure == secure;
        if let Some(at) = self.prepared.iter().position(is_it) {
            return Some(at);
        }
        if self.prepared.len() >= PREPARED_MAX {
            return None;
        }
        let (head, body) = split(request.bytes())?;
        let shape = translate(head, Form::Request, secure, &mut self.names, |fields| {
            Shape::new(fields.map(|(name, value)| (name, Some(value))))
        })?;
        self.prepared.push(Prepared { id, secure, shape, body, shared: None });
        Some(self.prepared.len() - 1)
    }

    /// Renders the last head for scripts, which read those of HTTP/1.1.
    fn render_head(&mut self) {
        self.head.clear();
        self.head.extend_from_slice(b"HTTP/1.1 ");
        for digit in [self.status / 100 % 10, self.status / 10 % 10, self.status % 10] {
            self.head.push(b'0' + digit as u8);
        }
        self.head.extend_from_slice(b"\r\n");
        for (name, value) in self.fields.iter().filter(|(name, _)| !name.starts_with(b":")) {
            for part in [name, b": ", value, b"\r\n"] {
                self.head.extend_from_slice(part);
            }
        }
        self.head.extend_from_slice(b"\r\n");
    }
}

impl Default for Http2 {
    fn default() -> Http2 {
        Http2::new()
    }
}

/// The head of a request, and where its body begins.
fn split(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let body = head_bytes(bytes)?;
    Some((bytes.get(..body)?, body))
}

/// Why a request failed whose stream was reset.
pub(crate) fn of_reset(code: ErrorCode) -> Failure {
    match code {
        ErrorCode::NO_ERROR => Failure::StreamNoError,
        ErrorCode::PROTOCOL_ERROR => Failure::StreamProtocolError,
        ErrorCode::INTERNAL_ERROR => Failure::StreamInternalError,
        ErrorCode::FLOW_CONTROL_ERROR => Failure::StreamFlowControlError,
        ErrorCode::STREAM_CLOSED => Failure::StreamClosed,
        ErrorCode::FRAME_SIZE_ERROR => Failure::StreamFrameSizeError,
        ErrorCode::REFUSED_STREAM => Failure::StreamRefused,
        ErrorCode::CANCEL => Failure::StreamCancelled,
        ErrorCode::ENHANCE_YOUR_CALM => Failure::StreamEnhanceYourCalm,
        ErrorCode::INADEQUATE_SECURITY => Failure::StreamInadequateSecurity,
        ErrorCode::HTTP_1_1_REQUIRED => Failure::StreamHttp11Required,
        _ => Failure::StreamReset,
    }
}

impl Open {
    /// Gives up the request on a stream.
    fn cancel(&mut self, stream: StreamId, out: &mut Vec<u8>) {
        self.connection.reset(stream, ErrorCode::CANCEL, out);
        self.forget(stream);
    }

    /// Forgets the body for a stream that has ended. Returns whether there was one.
    #[inline]
    fn forget(&mut self, stream: StreamId) -> bool {
        if self.unsent.is_empty() {
            return false;
        }
        let at = self.place_of(stream);
        at.map(|at| self.unsent.remove(at)).is_some()
    }

    /// The place of a body. Streams are opened in the order of their numbers.
    fn place_of(&self, stream: StreamId) -> Option<usize> {
        self.unsent.binary_search_by_key(&stream.get(), |unsent| unsent.stream.get()).ok()
    }

    /// Stops sending the body of a request that is answered.
    #[inline]
    fn answered(&mut self, stream: StreamId, out: &mut Vec<u8>) {
        if self.forget(stream) {
            self.connection.reset(stream, ErrorCode::NO_ERROR, out);
        }
    }

    /// Sends as much of the body for a stream as the windows and the kernel allow.
    fn send_body(&mut self, stream: StreamId, out: &mut Vec<u8>) {
        if let Some(at) = self.place_of(stream) {
            self.send_at(at, out);
        }
    }

    /// Sends as much of the bodies as the windows and the kernel allow.
    fn send_bodies(&mut self, out: &mut Vec<u8>) {
        let mut at = 0;
        while at < self.unsent.len() && self.room > 0 && self.connection.connection_window() > 0 {
            at += usize::from(self.send_at(at, out));
        }
        self.is_held |= at < self.unsent.len() && self.room == 0;
    }

    /// The same of the body at a place. Returns whether there is more to send.
    fn send_at(&mut self, at: usize, out: &mut Vec<u8>) -> bool {
        let Some(unsent) = self.unsent.get_mut(at) else { return false };
        let rest = unsent.bytes.get(unsent.at..).unwrap_or_default();
        let piece = rest.get(..self.room).unwrap_or(rest);
        let is_whole = piece.len() == rest.len();
        match self.connection.send_data(unsent.stream, piece, is_whole, out) {
            Ok(sent) if sent < rest.len() => {
                unsent.at += sent;
                self.room = self.room.saturating_sub(sent);
                self.is_held |= sent == piece.len();
                return true;
            }
            Ok(sent) => self.room = self.room.saturating_sub(sent),
            // The server has answered or reset it.
            Err(_) => {}
        }
        self.unsent.remove(at);
        false
    }
}

impl Driver for Http2 {
    type State = Http2State;

    const STREAMS: bool = true;

    fn start(&mut self, state: &mut Http2State) {
        let connection = Connection::client(&self.config, &mut self.out);
        let (unsent, room) = (VecDeque::new(), WAITING_BYTES);
        *state = Http2State(Some(Box::new(Open { connection, unsent, room, is_held: false })));
    }

    fn open(
        &mut self,
        state: &mut Http2State,
        request: &Request,
        user: u32,
        secure: bool,
    ) -> Opened {
        self.open_until(state, request, user, secure, true)
    }

    fn receive_streams<'b>(
        &mut self,
        state: &mut Http2State,
        bytes: &'b [u8],
    ) -> (usize, StreamEvent<'b>) {
        let Some(open) = &mut state.0 else {
            return (bytes.len(), StreamEvent::Broken(Failure::Unexpected));
        };
        let received = open.connection.receive(bytes, &mut self.fields, &mut self.out);
        let (used, event) = match received {
            Ok(Some(received)) => received,
            Ok(None) => return (bytes.len(), StreamEvent::More),
            Err(violation) => {
                return (bytes.len(), StreamEvent::Broken(self.broken(state, violation)));
            }
        };
        let event = match event {
            Event::Head { stream, tag, kind: HeadKind::Response(status), end_stream } => {
                (self.status, self.last) = (status, Some(stream));
                if end_stream {
                    open.answered(stream, &mut self.out);
                }
                StreamEvent::Head(tag, status, end_stream)
            }
            Event::Head { stream, tag, kind: HeadKind::Trailers, .. } => {
                self.last = Some(stream);
                open.answered(stream, &mut self.out);
                StreamEvent::Complete(tag)
            }
            Event::Head { .. } => StreamEvent::Other,
            Event::Data { stream, tag, data, end_stream } => {
                self.last = Some(stream);
                if end_stream {
                    open.answered(stream, &mut self.out);
                }
                StreamEvent::Body(tag, data, end_stream)
            }
            Event::Reset { stream, tag, code } => {
                open.forget(stream);
                match code {
                    ErrorCode::REFUSED_STREAM if open.connection.is_going_away() => {
                        StreamEvent::Unprocessed(tag)
                    }
                    _ => StreamEvent::Failed(tag, of_reset(code)),
                }
            }
            Event::StreamFailed { stream, tag, violation } => {
                open.forget(stream);
                StreamEvent::Failed(tag, Failure::Protocol(violation))
            }
            Event::GoAway { code, .. } => StreamEvent::Leaving(code),
            Event::Settings => {
                open.send_bodies(&mut self.out);
                StreamEvent::Writable(Writable::All)
            }
            Event::WindowOpened(of) => {
                match of {
                    Some((stream, _)) => open.send_body(stream, &mut self.out),
                    None => open.send_bodies(&mut self.out),
                }
                let of = of.map_or(Writable::Connection, |(_, user)| Writable::Stream(user));
                StreamEvent::Writable(of)
            }
            Event::Pong(_) => StreamEvent::Other,
        };
        (used, event)
    }

    fn head(&mut self) -> &[u8] {
        self.render_head();
        &self.head
    }

    fn cancel(&mut self, state: &mut Http2State, stream: u32) {
        if let Some(open) = &mut state.0
            && let Some(stream) = open.connection.stream(stream)
        {
            open.cancel(stream, &mut self.out);
        }
    }

    fn leaving_debug<'s>(&self, state: &'s Http2State) -> &'s [u8] {
        state.0.as_ref().map_or(&[], |open| open.connection.go_away_debug())
    }

    fn sent(&mut self, state: &mut Http2State) {
        if let Some(open) = &mut state.0 {
            open.connection.written();
        }
    }

    #[inline]
    fn is_held(&self, state: &Http2State) -> bool {
        state.0.as_ref().is_some_and(|open| open.is_held)
    }

    fn taken(&mut self, state: &mut Http2State) {
        if let Some(open) = &mut state.0 {
            open.room = WAITING_BYTES;
            if std::mem::take(&mut open.is_held) {
                open.send_bodies(&mut self.out);
            }
        }
    }

    fn outgoing(&mut self) -> Option<&mut Vec<u8>> {
        Some(&mut self.out)
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

impl Http2 {
    fn broken(&mut self, state: &mut Http2State, violation: Violation) -> Failure {
        if let Some(open) = &mut state.0 {
            open.connection.go_away_for(violation, &mut self.out);
        }
        Failure::Protocol(violation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::requests::request::HttpRequest;

    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    fn reset(stream: u8) -> [u8; 13] {
        [0, 0, 4, 3, 0, 0, 0, 0, stream, 0, 0, 0, 11]
    }

    fn upload_of(body: &[u8]) -> HttpRequest<'_> {
        HttpRequest { method: "POST", target: "/", host: "a", headers: &[], body, close: false }
    }

    /// A request whose body is longer than the first windows.
    fn upload() -> Request {
        Request::http(0, &upload_of(&[b'x'; 100_000]))
    }

    fn unsent(state: &Http2State) -> &VecDeque<Unsent> {
        state.0.as_ref().map(|open| &open.unsent).unwrap()
    }

    /// Opens the window of the connection, or of a stream, by almost as much as possible.
    fn window(stream: u8) -> [u8; 13] {
        [0, 0, 4, 8, 0, 0, 0, 0, stream, 0x7f, 0, 0, 0]
    }

    #[test]
    fn one_stream_is_open_until_the_server_says_how_many_it_allows() {
        let (mut driver, mut state, request) = (Http2::new(), Http2State::default(), upload());
        driver.start(&mut state);
        assert!(matches!(driver.open(&mut state, &request, 0, false), Opened::Stream(1)));
        assert!(matches!(driver.open(&mut state, &request, 1, false), Opened::Later));
        driver.receive_streams(&mut state, &SETTINGS);
        assert!(matches!(driver.open(&mut state, &request, 1, false), Opened::Stream(3)));
    }

    #[test]
    fn bodies_of_streams_that_were_reset_are_forgotten_and_constant_ones_are_shared() {
        for request in [upload(), upload().constant()] {
            let (mut driver, mut state) = (Http2::new(), Http2State::default());
            driver.start(&mut state);
            driver.open(&mut state, &request, 0, false);
            driver.receive_streams(&mut state, &SETTINGS);
            driver.open(&mut state, &request, 1, false);
            let is_shared = request.id().is_some();
            let holders = if is_shared { 3 } else { 1 };
            let held = unsent(&state).iter().map(|one| Arc::strong_count(&one.bytes));
            assert_eq!(held.collect::<Vec<_>>(), [holders; 2]);
            for (stream, rest) in [(1, 1), (3, 0)] {
                let frame = reset(stream);
                let event = driver.receive_streams(&mut state, &frame).1;
                assert!(matches!(event, StreamEvent::Failed(_, Failure::StreamEnhanceYourCalm)));
                assert_eq!(unsent(&state).len(), rest);
            }
        }
    }

    /// Bytes of DATA in frames.
    fn data_bytes(frames: &[u8]) -> usize {
        let (mut rest, mut total) = (frames, 0);
        while let Some((&[a, b, c, kind, ..], behind)) = rest.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            total += if kind == 0 { length } else { 0 };
            rest = &behind[length..];
        }
        total
    }

    #[test]
    fn bodies_are_passed_on_in_pieces_as_the_kernel_takes_them() {
        let body = vec![b'x'; 1_000_000];
        let http = HttpRequest { body: &body, ..upload_of(&[]) };
        for request in [Request::http(0, &http), Request::http(0, &http).constant()] {
            let (mut driver, mut state) = (Http2::new(), Http2State::default());
            driver.start(&mut state);
            // SETTINGS_INITIAL_WINDOW_SIZE of 1 GiB, and as much for the connection.
            let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x40, 0, 0, 0];
            let opened = [&settings[..], &window(0)].concat();
            let mut rest = &opened[..];
            while !rest.is_empty() {
                rest = &rest[driver.receive_streams(&mut state, rest).0..];
            }
            driver.out.clear();
            for user in 0..4 {
                assert!(matches!(
                    driver.open(&mut state, &request, user, false),
                    Opened::Stream(_)
                ));
            }
            let (mut total, mut pieces) = (0, 0);
            while !driver.out.is_empty() {
                let piece = driver.out.len();
                assert!(piece < WAITING_BYTES + 2_000, "{piece}");
                total += data_bytes(&driver.out);
                pieces += 1;
                driver.out.clear();
                assert_eq!(driver.is_held(&state), total < 4 * body.len());
                driver.taken(&mut state);
            }
            assert_eq!(total, 4 * body.len());
            assert_eq!(pieces, total.div_ceil(WAITING_BYTES));
            assert!(unsent(&state).is_empty());
        }
    }
}
