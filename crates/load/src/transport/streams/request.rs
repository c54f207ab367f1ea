//! Requests on streams, in scenarios with sockets: one of HTTP/1.1 as the engine writes it, and its answer as the
//! engine expects it, on a connection that ends after it. Of a gRPC call the trailers follow the body as the last
//! frame, as in gRPC-Web; one without a length is sent until our side of the connection ends.

use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_request};
use wire::http2::hpack::HeaderList;
use wire::websocket::accept_key;

use super::socket::Held;
use crate::grpc::TRAILERS;
use crate::transport::grpc::is_type;
use crate::transport::http2::is_of_connection;

/// The Host of a request or a handshake, which may have a body behind it; `None` if it is neither.
pub(super) fn host(bytes: &[u8]) -> Option<&[u8]> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    parse_request(bytes.get(..head_bytes(bytes)?)?, &mut headers).ok()?.header("host")
}

/// What a socket begins with.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// A handshake; with requests around, what is expected as Sec-WebSocket-Accept.
    WebSocket(Option<[u8; 28]>),
    Request {
        head_bytes: usize,
        /// `u64::MAX` of a call whose messages are still to come.
        body_bytes: u64,
        is_call: bool,
    },
}

impl Begun {
    pub(super) fn note(self, held: &mut Held) {
        match self {
            Begun::WebSocket(Some(accept)) => held.accept = accept,
            Begun::WebSocket(None) => {}
            Begun::Request { body_bytes, is_call, .. } => {
                (held.body_left, held.is_call) = (body_bytes, is_call);
            }
        }
    }
}

/// Reads a handshake or a request; `None` if it is neither, or a request of unknown length.
pub(super) fn read(bytes: &[u8]) -> Option<Begun> {
    let length = head_bytes(bytes)?;
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = parse_request(bytes.get(..length)?, &mut headers).ok()?;
    if let Some(key) = request.header("sec-websocket-key") {
        return Some(Begun::WebSocket(Some(accept_key(key))));
    }
    if request.header("transfer-encoding").is_some() {
        return None;
    }
    let is_call =
        request.header("content-type").is_some_and(|kind| is_type(kind, b"application/grpc"));
    let body = match request.header("content-length") {
        None if is_call => u64::MAX,
        None => 0,
        Some(value) => std::str::from_utf8(value).ok()?.parse().ok()?,
    };
    Some(Begun::Request { head_bytes: length, body_bytes: body, is_call })
}

fn head_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Passes the fields of a request to `open`; `None` if it is none.
pub(super) fn translate<T>(
    head: &[u8],
    secure: bool,
    names: &mut Vec<u8>,
    open: impl for<'f> FnOnce(&mut dyn Iterator<Item = (&'f [u8], &'f [u8])>) -> T,
) -> Option<T> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = parse_request(head, &mut headers).ok()?;
    names.clear();
    for header in request.headers {
        names.extend(header.name.bytes().map(|byte| byte.to_ascii_lowercase()));
    }
    let scheme: &[u8] = if secure { b"https" } else { b"http" };
    let pseudo: [(&[u8], &[u8]); 4] = [
        (b":method", request.method.as_bytes()),
        (b":scheme", scheme),
        (b":path", request.target.as_bytes()),
        (b":authority", request.header("host").unwrap_or_default()),
    ];
    let mut rest = names.as_slice();
    let others = request.headers.iter().filter_map(|header| {
        let (name, behind) = rest.split_at_checked(header.name.len())?;
        rest = behind;
        Some((name, header.value))
    });
    let others = others.filter(|(name, value)| !is_of_connection(name, value));
    Some(open(&mut pseudo.into_iter().chain(others)))
}

/// Appends the head of an answer as one of HTTP/1.1, after which the connection ends. The body of a call has no
/// length, as trailers follow it.
pub(super) fn answer(status: u16, fields: &HeaderList, is_call: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    for digit in [status / 100 % 10, status / 10 % 10, status % 10] {
        out.push(b'0' + digit as u8);
    }
    out.extend_from_slice(b" \r\n");
    let is_kept = |name: &[u8]| !(name.starts_with(b":") || is_call && name == b"content-length");
    for (name, value) in fields.iter().filter(|(name, _)| is_kept(name)) {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
}

/// Appends the trailers of a call as a frame of gRPC-Web; returns its bytes.
pub(super) fn trailers<'f>(
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    out: &mut Vec<u8>,
) -> usize {
    let begin = out.len();
    out.extend_from_slice(&[TRAILERS, 0, 0, 0, 0]);
    let lines = out.len();
    for (name, value) in fields {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    // The list of fields is far shorter than its limit.
    let length = u32::try_from(out.len() - lines).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(begin + 1..lines) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    out.len() - begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_becomes_fields_and_a_body() {
        let head = b"POST /x?y HTTP/1.1\r\nHost: a.test:1\r\nX-Id: 7\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
        let bytes = [&head[..], b"hel"].concat();
        assert_eq!(
            (host(&bytes), read(&bytes)),
            (
                Some(&b"a.test:1"[..]),
                Some(Begun::Request { head_bytes: head.len(), body_bytes: 5, is_call: false })
            )
        );
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = translate(head, true, &mut Vec::new(), |fields| {
            fields
                .map(|(name, value)| format!("{}={}", text(name), text(value)))
                .collect::<Vec<_>>()
        });
        let expected = [
            ":method=POST",
            ":scheme=https",
            ":path=/x?y",
            ":authority=a.test:1",
            "x-id=7",
            "content-length=5",
        ];
        assert_eq!(fields.unwrap(), expected);
        for other in [
            &b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\n",
            b"\x81\x85",
        ] {
            assert_eq!(read(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn an_answer_ends_its_connection() {
        let mut fields = HeaderList::new();
        fields.push(b":status", b"404");
        fields.push(b"content-length", b"2");
        let mut out = Vec::new();
        answer(404, &fields, false, &mut out);
        assert_eq!(out, b"HTTP/1.1 404 \r\ncontent-length: 2\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn a_call_without_a_length_goes_on_and_has_trailers_after_its_body() {
        let head = b"POST /a.B/C HTTP/1.1\r\nHost: a\r\ncontent-type: application/grpc\r\n\r\n";
        let begun = Begun::Request { head_bytes: head.len(), body_bytes: u64::MAX, is_call: true };
        assert_eq!(read(head), Some(begun));
        let mut fields = HeaderList::new();
        fields.push(b"content-length", b"9");
        let mut out = Vec::new();
        answer(200, &fields, true, &mut out);
        assert_eq!(out, b"HTTP/1.1 200 \r\nConnection: close\r\n\r\n");
        out.clear();
        let status = [(&b"grpc-status"[..], &b"5"[..])];
        assert_eq!((trailers(status.into_iter(), &mut out), out.len()), (21, 21));
        assert_eq!(out, b"\x80\0\0\0\x10grpc-status: 5\r\n");
    }
}
