//! [`GrpcWeb`]: a client of gRPC-Web over HTTP/1.1 (`doc/PROTOCOL-WEB.md` of gRPC), with one call at a time on a
//! connection. A call that ends with a status is an answer with that status. Calls whose content type is
//! `application/grpc-web-text` are sent in Base64, and may be answered so. [`GrpcWebStream`] (`grpc_web/stream.rs`) counts
//! the messages of streams as they arrive.

mod stream;

use std::io::Write;

use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_response};

pub use self::stream::GrpcWebStream;
use crate::grpc::{Code, TextDecoder, Variant, WebDecoder, answer_status, encode_text, trailer};
use crate::outcome::failure::Failure;
use crate::transport::driver::{CompleteAnswer, Driver, Received};
use crate::transport::fields::head_bytes;
use crate::transport::grpc::is_type;
use crate::transport::http1::{Http1, Http1State};
use crate::workload::requests::answer::{Awaited, Wants};
use crate::workload::requests::request::{Kind, Request};

/// Constant requests that are prepared; further ones are rendered each time.
const PREPARED_MAX: usize = 1_024;

/// The content type of bodies in Base64.
const TEXT: &[u8] = b"application/grpc-web-text";
/// The header of calls that [`crate::transport::streams`] makes over HTTP/2, whose answers it translates.
const NATIVE: &[u8] = b"content-type: application/grpc\r\n";

/// The gRPC-Web driver of one worker.
pub struct GrpcWeb {
    http: Http1,
    /// The kind of requests that are [`Kind::Plain`].
    plain: Kind,
    message_bytes_max: usize,
    /// What one call of [`Http1::receive`] found.
    received: Awaited,
    /// Decoders that no connection uses.
    #[allow(clippy::vec_box, reason = "connections take the box")]
    decoders: Vec<Box<WebDecoder>>,
    /// Constant requests by their number.
    prepared: Vec<(u32, Prepared)>,
    out: Vec<u8>,
    /// Bytes of a body that was Base64.
    plain_body: Vec<u8>,
    /// Messages that were completed last.
    completed: u32,
}

/// A rendered call.
struct Prepared {
    bytes: Box<[u8]>,
    form: Variant,
}

/// The state of a connection.
#[derive(Default)]
pub struct GrpcWebState {
    http: Http1State,
    /// What the last request was.
    kind: Kind,
    form: Variant,
    /// The answer that has begun.
    answer: Option<Begun>,
}

struct Begun {
    status: u16,
    /// It is of gRPC-Web, by its content type.
    is_grpc: bool,
    /// The status in the head, of an answer without messages.
    code: Option<Code>,
    /// Of a body in Base64.
    text: Option<TextDecoder>,
    decoder: Box<WebDecoder>,
}

impl GrpcWeb {
    /// A driver all of whose requests are calls; `unary` if exactly one message answers each, of at most so many
    /// bytes.
    #[must_use]
    pub fn new(unary: bool, message_bytes_max: usize) -> GrpcWeb {
        let plain = if unary { Kind::Unary } else { Kind::ServerStream };
        GrpcWeb { plain, ..GrpcWeb::beside_requests(message_bytes_max) }
    }

    /// A driver whose requests are calls by their kind, and otherwise of HTTP/1.1.
    #[must_use]
    pub fn beside_requests(message_bytes_max: usize) -> GrpcWeb {
        GrpcWeb {
            http: Http1::new(),
            plain: Kind::Plain,
            message_bytes_max,
            received: Awaited::default(),
            decoders: Vec::new(),
            prepared: Vec::new(),
            out: Vec::new(),
            plain_body: Vec::new(),
            completed: 0,
        }
    }

    /// An answer with this head.
    fn begin(&mut self, head: &[u8], form: Variant) -> Begun {
        let bytes_max = self.message_bytes_max;
        let decoder = self.decoders.pop().unwrap_or_else(|| Box::new(WebDecoder::new(bytes_max)));
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let Ok(head) = parse_response(head, &mut headers) else {
            // The driver of HTTP has parsed it.
            return Begun { status: 0, is_grpc: false, code: None, text: None, decoder };
        };
        let kind = head.header("content-type").unwrap_or_default();
        let text = is_type(kind, TEXT).then(TextDecoder::default);
        let is_grpc = match form {
            Variant::Http2 => is_type(kind, b"application/grpc"),
            Variant::Web => is_type(kind, b"application/grpc-web"),
            Variant::WebText => is_type(kind, b"application/grpc-web") || text.is_some(),
        };
        let code = head.header("grpc-status").map(Code::parse);
        Begun { status: head.status, is_grpc, code, text, decoder }
    }

    /// The end of an answer, whose status is in the trailers.
    fn finish(&mut self, state: &mut GrpcWebState, whole: CompleteAnswer) -> Received {
        let Some(mut answer) = state.answer.take() else {
            return Received::Failed(Failure::GrpcContentType);
        };
        let lines = answer.decoder.trailers().unwrap_or_default();
        let code = trailer(lines, "grpc-status").map(Code::parse).or(answer.code);
        let (messages, body_bytes) = (answer.decoder.messages, answer.decoder.message_bytes);
        let is_cut = !answer.decoder.is_between_frames()
            || answer.text.is_some_and(|text| !text.is_between_groups());
        let unary = state.kind == Kind::Unary;
        answer.decoder.restart();
        self.decoders.push(answer.decoder);
        let code = match code {
            None if answer.status != 200 => Ok(Code::of_http(answer.status)),
            _ if !answer.is_grpc => Err(Failure::GrpcContentType),
            Some(Code::OK) if is_cut || unary && messages != 1 => Err(Failure::GrpcMessage),
            Some(code) => Ok(code),
            None if is_cut => Err(Failure::GrpcMessage),
            None => Err(Failure::GrpcNoStatus),
        };
        match code {
            Ok(code) => Received::Complete(CompleteAnswer {
                status: answer_status(code),
                body_bytes,
                ..whole
            }),
            Err(failure) => Received::Failed(failure),
        }
    }
}

/// Appends a request with the length of its body. Returns its form, by which the body is in Base64.
fn render(request: &Request, out: &mut Vec<u8>) -> Variant {
    let bytes = request.bytes();
    let end = head_bytes(bytes).map_or(bytes.len(), |length| length - 2);
    let (head, rest) = bytes.split_at(end);
    let body = rest.get(2..).unwrap_or_default();
    let has = |text: &[u8]| head.windows(text.len()).any(|part| part == text);
    let is_text = has(TEXT);
    out.extend_from_slice(head);
    let length = if is_text { body.len().div_ceil(3) * 4 } else { body.len() };
    // Writing to a `Vec` cannot fail.
    let _ = write!(out, "Content-Length: {length}\r\n\r\n");
    match is_text {
        true => encode_text(body, out),
        false => out.extend_from_slice(body),
    }
    match is_text {
        true => Variant::WebText,
        false if has(NATIVE) => Variant::Http2,
        false => Variant::Web,
    }
}

/// Trailers as a head of HTTP/1.1.
pub(crate) fn as_head(lines: &[u8]) -> Vec<u8> {
    let mut head = b"HTTP/1.1 200\r\n".to_vec();
    for line in lines.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        if !line.is_empty() {
            head.extend_from_slice(line);
            head.extend_from_slice(b"\r\n");
        }
    }
    head.extend_from_slice(b"\r\n");
    head
}

impl Driver for GrpcWeb {
    type State = GrpcWebState;

    fn encode<'a>(&'a mut self, state: &mut GrpcWebState, request: &'a Request) -> &'a [u8] {
        state.kind = match request.kind() {
            Kind::Plain => self.plain,
            kind => kind,
        };
        if state.kind == Kind::Plain {
            return self.http.encode(&mut state.http, request);
        }
        let id = request.id();
        let known = id.and_then(|id| self.prepared.iter().position(|(one, _)| *one == id));
        if known.is_none() {
            self.out.clear();
            state.form = render(request, &mut self.out);
            if let Some(id) = id.filter(|_| self.prepared.len() < PREPARED_MAX) {
                let bytes = self.out.as_slice().into();
                self.prepared.push((id, Prepared { bytes, form: state.form }));
            }
        }
        let Some((_, prepared)) = known.and_then(|at| self.prepared.get(at)) else {
            return &self.out;
        };
        state.form = prepared.form;
        &prepared.bytes
    }

    fn receive(
        &mut self,
        state: &mut GrpcWebState,
        bytes: &[u8],
        awaited: &mut Awaited,
    ) -> Received {
        if state.kind == Kind::Plain {
            return self.http.receive(&mut state.http, bytes, awaited);
        }
        let mut found = std::mem::take(&mut self.received);
        found.begin(Wants::Body(usize::MAX), false, false);
        let received = self.http.receive(&mut state.http, bytes, &mut found);
        let (head, body, _) = found.kept();
        if !head.is_empty() {
            let answer = self.begin(head, state.form);
            awaited.head(answer.status, head);
            state.answer = Some(answer);
        }
        let mut decoded = Ok(());
        self.completed = 0;
        if let Some(answer) = state.answer.as_mut().filter(|answer| answer.is_grpc) {
            self.plain_body.clear();
            let body = match &mut answer.text {
                None => Ok(body),
                Some(text) => text.push(body, &mut self.plain_body).map(|()| &self.plain_body[..]),
            };
            let before = answer.decoder.messages;
            decoded = body.and_then(|body| answer.decoder.push(body, |bytes| awaited.body(bytes)));
            self.completed = answer.decoder.messages.saturating_sub(before);
        }
        self.received = found;
        match (decoded, received) {
            (Err(failure), _) => Received::Failed(failure),
            (Ok(()), Received::Complete(whole)) => {
                let lines = state.answer.as_ref().and_then(|answer| answer.decoder.trailers());
                if let Some(lines) = lines.filter(|_| awaited.keeps_heads()) {
                    awaited.trailers(&as_head(lines));
                }
                self.finish(state, whole)
            }
            (Ok(()), other) => other,
        }
    }

    fn ended(&mut self, state: &mut GrpcWebState) -> Received {
        match self.http.ended(&mut state.http) {
            Received::Complete(whole) if state.kind != Kind::Plain => self.finish(state, whole),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc-web+proto\r\n";
    const MESSAGE: &[u8] = b"\x00\x00\x00\x00\x02ab";
    const OK: &[u8] = b"\x80\x00\x00\x00\x10grpc-status: 0\r\n";

    fn answer(body: &[u8]) -> Vec<u8> {
        let length = format!("Content-Length: {}\r\n\r\n", body.len());
        [HEAD, length.as_bytes(), body].concat()
    }

    /// The end of an answer that arrives in pieces, with what scripts see of it.
    fn received(answer: &[u8], piece: usize) -> (Received, Awaited) {
        let mut driver = GrpcWeb::new(true, 100);
        let mut state =
            GrpcWebState { kind: Kind::Unary, form: Variant::WebText, ..Default::default() };
        let mut awaited = Awaited::default();
        awaited.begin(Wants::Body(100), false, false);
        for bytes in answer.chunks(piece) {
            match driver.receive(&mut state, bytes, &mut awaited) {
                Received::More => {}
                Received::Complete(whole) => {
                    return (Received::Complete(CompleteAnswer { used: 0, ..whole }), awaited);
                }
                other => return (other, awaited),
            }
        }
        (driver.ended(&mut state), awaited)
    }

    #[test]
    fn calls_end_by_their_status_in_pieces_of_any_size() {
        let ended = |body: &[u8], piece| received(&answer(body), piece);
        let whole = [MESSAGE, OK].concat();
        let not_found = b"\x80\x00\x00\x00\x0fgrpc-status:5\r\n";
        for piece in 1..200 {
            let (right, awaited) = ended(&whole, piece);
            let complete = CompleteAnswer { used: 0, status: 1_000, keep: true, body_bytes: 7 };
            assert_eq!(right, Received::Complete(complete), "pieces of {piece}");
            assert_eq!(awaited.kept_body(), MESSAGE);
            assert!(
                awaited.kept_head().ends_with(b"\r\ngrpc-status: 0\r\n\r\n"),
                "{:?}",
                awaited.kept_head()
            );
            let (wrong, _) = ended(not_found, piece);
            let complete = CompleteAnswer { status: 1_005, body_bytes: 0, ..complete };
            assert_eq!(wrong, Received::Complete(complete));
            for (body, failure) in [
                (MESSAGE, Failure::GrpcNoStatus),
                (&MESSAGE[..6], Failure::GrpcMessage),
                (OK, Failure::GrpcMessage),
                (&[MESSAGE, MESSAGE, OK].concat(), Failure::GrpcMessage),
                (b"hello", Failure::GrpcMessage),
                (b"\x00\x00\x00\x00\xff", Failure::TooLarge),
            ] {
                assert_eq!(ended(body, piece).0, Received::Failed(failure), "{body:?} {piece}");
            }
        }
    }

    #[test]
    fn answers_of_something_else_have_the_status_of_http() {
        for (answer, ended) in [
            (&b"HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\nno"[..], Ok(1_014)),
            (b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", Ok(1_012)),
            (
                b"HTTP/1.1 200 X\r\nContent-Type: application/grpc-web\r\ngrpc-status: 7\r\nContent-Length: 0\r\n\r\n",
                Ok(1_007),
            ),
            (
                b"HTTP/1.1 200 X\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi",
                Err(Failure::GrpcContentType),
            ),
            (b"HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\nhi", Err(Failure::ClosedMidway)),
        ] {
            match (received(answer, 1_000).0, ended) {
                (Received::Complete(whole), Ok(status)) => assert_eq!(whole.status, status),
                (Received::Failed(failure), Err(expected)) => assert_eq!(failure, expected),
                other => panic!("{other:?}"),
            }
        }
        let until_end = [HEAD, b"Connection: close\r\n\r\n", MESSAGE, OK].concat();
        let (ended, _) = received(&until_end, 1_000);
        assert!(matches!(ended, Received::Complete(whole) if whole.status == 1_000 && !whole.keep));
    }

    #[test]
    fn answers_in_base64_end_alike_in_pieces_of_any_size() {
        let text = |parts: &[&[u8]]| {
            let mut body = Vec::new();
            parts.iter().for_each(|part| encode_text(part, &mut body));
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc-web-text+proto\r\n";
            let length = format!("Content-Length: {}\r\n\r\n", body.len());
            [&head[..], length.as_bytes(), &body].concat()
        };
        let whole = [MESSAGE, OK].concat();
        for piece in 1..200 {
            for parts in [&[&whole[..]][..], &[MESSAGE, OK], &[&whole[..1], &whole[1..]]] {
                let (ended, awaited) = received(&text(parts), piece);
                let complete = CompleteAnswer { used: 0, status: 1_000, keep: true, body_bytes: 7 };
                assert_eq!(ended, Received::Complete(complete), "pieces of {piece}");
                assert_eq!(awaited.kept_body(), MESSAGE);
            }
            for (parts, failure) in
                [(&[MESSAGE][..], Failure::GrpcNoStatus), (&[&MESSAGE[..6]], Failure::GrpcMessage)]
            {
                assert_eq!(received(&text(parts), piece).0, Received::Failed(failure), "{piece}");
            }
        }
        let of = |body: &[u8]| {
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc-web-text\r\n";
            let length = format!("Content-Length: {}\r\n\r\n", body.len());
            received(&[&head[..], length.as_bytes(), body].concat(), 1_000).0
        };
        assert_eq!(of(MESSAGE), Received::Failed(Failure::GrpcMessage));
        assert_eq!(of(b"AAAAAAJhYg=="), Received::Failed(Failure::GrpcNoStatus));
        assert_eq!(of(b"AAAAAAJhYg="), Received::Failed(Failure::GrpcMessage));
    }

    #[test]
    fn requests_have_the_length_of_their_body() {
        let (mut driver, mut state) = (GrpcWeb::new(true, 100), GrpcWebState::default());
        let call =
            Request::raw(0, b"POST /a.B/C HTTP/1.1\r\nA: b\r\n\r\n\x00\x00\x00\x00\x00".to_vec());
        let expected =
            b"POST /a.B/C HTTP/1.1\r\nA: b\r\nContent-Length: 5\r\n\r\n\x00\x00\x00\x00\x00";
        for call in [call.clone(), call.constant()] {
            for _ in 0..2 {
                assert_eq!(driver.encode(&mut state, &call), expected);
            }
        }
        assert_eq!(driver.prepared.len(), 1);
        let head = "POST /a.B/C HTTP/1.1\r\ncontent-type: application/grpc-web-text\r\n";
        let bytes = [head.as_bytes(), b"\r\n\x00\x00\x00\x00\x00"].concat();
        let expected = format!("{head}Content-Length: 8\r\n\r\nAAAAAAA=");
        for call in [Request::raw(0, bytes.clone()), Request::raw(0, bytes).constant()] {
            for _ in 0..2 {
                assert_eq!(driver.encode(&mut state, &call), expected.as_bytes());
                assert!(std::mem::take(&mut state.form) == Variant::WebText);
            }
        }
    }
}
