//! The handshake of a WebSocket on a stream (RFC 8441 section 5): the request that the engine writes for
//! HTTP/1.1 as an extended CONNECT, and the answer to it as the engine expects it.

use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_request};
use wire::http2::hpack::HeaderList;
use wire::websocket::accept_key;

/// What is read of a request before its stream opens.
pub(super) struct Request<'a> {
    /// As in the Host header.
    pub(super) host: &'a [u8],
    /// The answer to its key.
    pub(super) accept: [u8; 28],
}

/// Reads the request of a handshake; `None` if it is none.
pub(super) fn read(head: &[u8]) -> Option<Request<'_>> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = parse_request(head, &mut headers).ok()?;
    let host = request.header("host")?;
    let accept = accept_key(request.header("sec-websocket-key")?);
    Some(Request { host, accept })
}

/// Appends the answer to a handshake as one of HTTP/1.1.
pub(super) fn answer(status: u16, fields: &HeaderList, accept: &[u8; 28], out: &mut Vec<u8>) {
    if !(200..300).contains(&status) {
        out.extend_from_slice(b"HTTP/1.1 ");
        for digit in [status / 100 % 10, status / 10 % 10, status % 10] {
            out.push(b'0' + digit as u8);
        }
        out.extend_from_slice(b" \r\nContent-Length: 0\r\n\r\n");
        return;
    }
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
          Sec-WebSocket-Accept: ",
    );
    out.extend_from_slice(accept);
    out.extend_from_slice(b"\r\n");
    let is_agreed =
        |name: &[u8]| matches!(name, b"sec-websocket-protocol" | b"sec-websocket-extensions");
    for (name, value) in fields.iter().filter(|(name, _)| is_agreed(name)) {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use wire::websocket::{check_upgrade_response, encode_key, encode_upgrade_request};

    use super::*;
    use crate::transport::fields::{Form, translate};

    #[test]
    fn the_request_becomes_an_extended_connect() {
        let (mut head, key) = (Vec::new(), encode_key([7; 16]));
        let further = [("Origin", "https://a.test"), ("Cookie", "a=1; b=2")];
        encode_upgrade_request(&mut head, "a.test:1", "/x?y", &key, &["chat"], true, further);
        let request = read(&head).unwrap();
        assert_eq!((request.host, request.accept), (&b"a.test:1"[..], accept_key(&key)));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = translate(&head, Form::WebSocket, true, &mut Vec::new(), |fields| {
            fields
                .map(|(name, value)| format!("{}={}", text(name), text(value)))
                .collect::<Vec<_>>()
        });
        let fields = fields.unwrap();
        let pseudo = [
            ":method=CONNECT",
            ":protocol=websocket",
            ":scheme=https",
            ":path=/x?y",
            ":authority=a.test:1",
        ];
        assert_eq!(fields[..5], pseudo);
        for wanted in [
            "origin=https://a.test",
            "cookie=a=1; b=2",
            "sec-websocket-version=13",
            "sec-websocket-protocol=chat",
        ] {
            assert!(fields.iter().any(|field| field == wanted), "{fields:?}");
        }
        assert!(
            fields.iter().any(|field| field.starts_with("sec-websocket-extensions=permessage"))
        );
        let of_http1 = ["host", "upgrade", "connection", "sec-websocket-key"];
        assert!(!fields.iter().any(|field| of_http1.iter().any(|name| field.starts_with(name))));
        assert_eq!(fields.len(), 5 + 5);
    }

    #[test]
    fn an_answer_is_accepted_or_has_its_status() {
        let key = encode_key([9; 16]);
        let mut fields = HeaderList::new();
        fields.push(b"sec-websocket-protocol", b"chat");
        fields.push(b"server", b"a");
        let mut out = Vec::new();
        answer(200, &fields, &accept_key(&key), &mut out);
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let response = wire::http::parse_response(&out, &mut headers).unwrap();
        let accepted = check_upgrade_response(&response, &key, &["chat"], false).unwrap();
        assert_eq!(accepted.protocol, Some("chat"));
        out.clear();
        answer(403, &fields, &accept_key(&key), &mut out);
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        assert_eq!(wire::http::parse_response(&out, &mut headers).unwrap().status, 403);
    }
}
