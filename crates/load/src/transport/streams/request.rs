//! Requests on streams, in scenarios with sockets: one of HTTP/1.1 as the engine writes it, and its answer as the
//! engine expects it, on a connection that ends after it. Of a gRPC call the trailers follow the body as the last
//! frame, as in gRPC-Web; one without a length is sent until our side of the connection ends.

use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_request};
use wire::http2::hpack::HeaderList;
use wire::websocket::accept_key;

use super::socket::Held;
use crate::grpc::TRAILERS;
use crate::transport::fields::head_bytes;
use crate::transport::grpc::is_type;

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
    fn a_request_has_a_head_and_a_body() {
        let head = b"POST /x?y HTTP/1.1\r\nHost: a.test:1\r\nX-Id: 7\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
        let bytes = [&head[..], b"hel"].concat();
        assert_eq!(
            (host(&bytes), read(&bytes)),
            (
                Some(&b"a.test:1"[..]),
                Some(Begun::Request { head_bytes: head.len(), body_bytes: 5, is_call: false })
            )
        );
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
