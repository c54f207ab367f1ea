//! Requests of HTTP/1.1 as fields of HTTP/2 (RFC 9113 section 8.3.1): one list of what is left out, for requests,
//! calls of gRPC and WebSockets.

use wire::http::{EMPTY_HEADER, MAX_HEADERS, parse_request};

/// What a request becomes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Request,
    /// The extended CONNECT of a WebSocket (RFC 8441 section 4).
    WebSocket,
}

/// Where the head of a request ends, and its body begins.
pub(crate) fn head_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Passes the fields of a head to `make`, which returns what this returns; `None` if it is no head. `names` is memory
/// for their names.
pub(crate) fn translate<T>(
    head: &[u8],
    form: Form,
    secure: bool,
    names: &mut Vec<u8>,
    make: impl for<'f> FnOnce(&mut dyn Iterator<Item = (&'f [u8], &'f [u8])>) -> T,
) -> Option<T> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = parse_request(head, &mut headers).ok()?;
    names.clear();
    for header in request.headers {
        names.extend(header.name.bytes().map(|byte| byte.to_ascii_lowercase()));
    }
    let scheme: &[u8] = if secure { b"https" } else { b"http" };
    let is_request = form == Form::Request;
    let method = if is_request { request.method.as_bytes() } else { b"CONNECT" };
    let pseudo: [Option<(&[u8], &[u8])>; 5] = [
        Some((b":method", method)),
        (!is_request).then_some((b":protocol", b"websocket")),
        Some((b":scheme", scheme)),
        Some((b":path", request.target.as_bytes())),
        Some((b":authority", request.header("host").unwrap_or_default())),
    ];
    let mut rest = names.as_slice();
    let others = request.headers.iter().filter_map(|header| {
        let (name, behind) = rest.split_at_checked(header.name.len())?;
        rest = behind;
        Some((name, header.value))
    });
    let others = others.filter(|(name, value)| !is_left_out(name, value, form));
    Some(make(&mut pseudo.into_iter().flatten().chain(others)))
}

/// Whether a header is not for HTTP/2 (RFC 9113 section 8.2.2), or is in a pseudo-field, or is replaced by the stream
/// of a WebSocket (RFC 8441 section 5).
fn is_left_out(name: &[u8], value: &[u8], form: Form) -> bool {
    match name {
        b"host" | b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
        | b"upgrade" => true,
        b"te" => !value.eq_ignore_ascii_case(b"trailers"),
        b"sec-websocket-key" => form == Form::WebSocket,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields as `name=value`.
    fn fields(head: &[u8], form: Form, secure: bool) -> Option<Vec<String>> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        translate(head, form, secure, &mut Vec::new(), |fields| {
            fields.map(|(name, value)| format!("{}={}", text(name), text(value))).collect()
        })
    }

    #[test]
    fn what_is_of_a_connection_is_left_out_in_each_form() {
        let head = b"POST /x?y HTTP/1.1\r\nHost: a.test:1\r\nX-Id: 7\r\nConnection: close\r\n\
            Keep-Alive: 5\r\nProxy-Connection: close\r\nUpgrade: websocket\r\nTE: gzip\r\n\
            Sec-WebSocket-Key: k\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(head_bytes(&[&head[..], b"hello\r\n\r\n"].concat()), Some(head.len()));
        let others = ["x-id=7", "content-length=5"];
        let request = [":method=POST", ":scheme=https", ":path=/x?y", ":authority=a.test:1"];
        let found = fields(head, Form::Request, true).unwrap();
        assert_eq!(found[..4], request);
        assert_eq!(found[4..], [others[0], "sec-websocket-key=k", others[1]]);
        let found = fields(head, Form::WebSocket, false).unwrap();
        let connect = [
            ":method=CONNECT",
            ":protocol=websocket",
            ":scheme=http",
            ":path=/x?y",
            ":authority=a.test:1",
        ];
        assert_eq!(found[..5], connect);
        assert_eq!(found[5..], others);
        let trailers = b"GET / HTTP/1.1\r\nHost: a\r\nTE: Trailers\r\n\r\n";
        assert_eq!(fields(trailers, Form::Request, false).unwrap()[4], "te=Trailers");
        assert_eq!(fields(b"no head\r\n\r\n", Form::Request, false), None);
        assert_eq!(head_bytes(b"GET / HTTP/1.1\r\n"), None);
    }
}
