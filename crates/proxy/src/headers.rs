//! Request and response heads as they are passed on: end-to-end headers, hop-by-hop headers, and the
//! headers that name the client (RFC 9110 section 7.6, RFC 7239, RFC 6455 section 4).
//!
//! A client may name any header in `Connection`, including those that the proxy adds. So every header
//! that names a client is removed first, however it is spelt, and written again by the proxy.

use std::net::IpAddr;

use wire::http::{ForwardedBy, Header, Request, Response};

/// Hop-by-hop headers, whatever `Connection` lists (RFC 9110 section 7.6.1, RFC 7540 section 3.2.1).
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers that name the client; the proxy writes them itself.
const IDENTITY: [&str; 5] =
    ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];
/// The prefix of further headers that proxies add and servers may trust: -Ssl, -Scheme, -Port,
/// -Prefix and others.
const FORWARDED: &str = "x-forwarded-";
/// Headers that `Connection` cannot remove, because that would change the message.
const END_TO_END: [&str; 5] = ["authorization", "content-length", "content-type", "cookie", "host"];

/// The client of a request and how it is passed on.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct ClientIdentity {
    /// The address of the peer of the socket, if it has one.
    pub(crate) peer: Option<IpAddr>,
    /// The client address that a trusted proxy gave.
    pub(crate) client: Option<IpAddr>,
    /// The header in which the peer is trusted, if it is. Others may come from any client.
    pub(crate) trusted: Option<ForwardedBy>,
    /// The request came over TLS.
    pub(crate) secure: bool,
    /// Whether to add `Forwarded` (RFC 7239).
    pub(crate) forwarded: bool,
}

/// The framing of a message body as passed on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// By Content-Length, which is passed on; or no body.
    Counted,
    /// Chunked by the proxy.
    Chunked,
    /// Until the connection is closed.
    UntilClose,
}

/// Appends the request head for an upstream.
pub(crate) fn encode_request(
    out: &mut Vec<u8>,
    request: &Request<'_, '_>,
    upgrade: bool,
    framing: Framing,
    identity: &ClientIdentity,
) {
    out.extend_from_slice(request.method.as_bytes());
    out.push(b' ');
    push_target(out, request);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    push_header(out, "Host", request.authority().unwrap_or_default());
    let mut counted = false;
    for header in request.headers {
        let again = header.name.eq_ignore_ascii_case("content-length")
            && std::mem::replace(&mut counted, true);
        let host = header.name.eq_ignore_ascii_case("host");
        let ours = is_identity(header.name, identity);
        if !host && !again && !ours && is_passed_on(request.headers, header.name) {
            push_header(out, header.name, header.value);
        }
    }
    if upgrade {
        out.extend_from_slice(b"Upgrade: websocket\r\nConnection: Upgrade\r\n");
    }
    if framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    push_identity(out, request, identity);
    out.extend_from_slice(b"\r\n");
}

/// Appends the response head for a client, without the final blank line, so that headers can follow.
pub(crate) fn encode_answer(out: &mut Vec<u8>, answer: &Response<'_, '_>, framing: Framing) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(answer.status.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(answer.reason.as_bytes());
    out.extend_from_slice(b"\r\n");
    // A status without a body has no Content-Length (RFC 9110 section 8.6).
    let mut counted = answer.status < 200 || answer.status == 204;
    for header in answer.headers {
        let again = header.name.eq_ignore_ascii_case("content-length")
            && std::mem::replace(&mut counted, true);
        // A 426 needs its Upgrade header, which names the required protocol.
        let wanted = answer.status == 426 && header.name.eq_ignore_ascii_case("upgrade");
        if !again && (wanted || is_passed_on(answer.headers, header.name)) {
            push_header(out, header.name, header.value);
        }
    }
    if framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
}

/// Appends the path and query, or a target that is no path (`*`) unchanged. `OPTIONS` with a URL
/// without a path becomes `OPTIONS *` (RFC 9112 section 3.2.4).
fn push_target(out: &mut Vec<u8>, request: &Request<'_, '_>) {
    if !request.target.contains("://") || request.target.starts_with('/') {
        return out.extend_from_slice(request.target.as_bytes());
    }
    let without_path = request.target.matches('/').count() == 2;
    if request.method == "OPTIONS" && without_path && request.query().is_none() {
        return out.push(b'*');
    }
    out.extend_from_slice(request.path().as_bytes());
    if let Some(query) = request.query() {
        out.push(b'?');
        out.extend_from_slice(query.as_bytes());
    }
}

pub(crate) fn push_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Removes all headers of this name from an encoded head.
pub(crate) fn remove_header(head: &mut Vec<u8>, name: &str) {
    let lines = head.split_inclusive(|byte| *byte == b'\n');
    let is = |line: &&[u8]| {
        let split = line.split_at_checked(name.len());
        split.is_some_and(|(front, rest)| {
            front.eq_ignore_ascii_case(name.as_bytes()) && rest.starts_with(b":")
        })
    };
    let kept: Vec<u8> = lines.filter(|line| !is(line)).flatten().copied().collect();
    *head = kept;
}

/// Whether a header is passed on beyond this hop.
fn is_passed_on(headers: &[Header<'_>], name: &str) -> bool {
    let is = |other: &&str| name.eq_ignore_ascii_case(other);
    if HOP_BY_HOP.iter().any(is) {
        return false;
    }
    let kept = END_TO_END.iter().any(is);
    kept || is_handshake(name) || !is_named(headers, name)
}

fn is_handshake(name: &str) -> bool {
    name.get(..14).is_some_and(|front| front.eq_ignore_ascii_case("sec-websocket-"))
}

/// Whether `Connection` lists this header.
fn is_named(headers: &[Header<'_>], name: &str) -> bool {
    let of = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("connection"));
    let mut items = of.flat_map(|header| header.value.split(|byte| *byte == b','));
    items.any(|item| item.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

/// Whether a header names the client or the outer request and does not come from a trusted proxy.
fn is_identity(name: &str, identity: &ClientIdentity) -> bool {
    let trusted = identity.trusted == Some(ForwardedBy::XForwardedFor);
    let is = |known: &&str| name.len() == known.len() && has_prefix(name, known);
    IDENTITY.iter().any(is) || !trusted && has_prefix(name, FORWARDED)
}

/// Whether a name has this prefix; `_` counts as `-`, as some servers read it.
fn has_prefix(name: &str, front: &str) -> bool {
    let same = |(a, b): (u8, u8)| a.eq_ignore_ascii_case(&b) || a == b'_' && b == b'-';
    name.len() >= front.len() && name.bytes().zip(front.bytes()).all(same)
}

fn push_identity(out: &mut Vec<u8>, request: &Request<'_, '_>, identity: &ClientIdentity) {
    let values_of =
        |name, by| values(request.headers, name).filter(move |_| identity.trusted == Some(by));
    let x = |name| values_of(name, ForwardedBy::XForwardedFor);
    let elements = || values_of("forwarded", ForwardedBy::Forwarded);
    // A list that is continued gets the peer appended; a new one begins with the client.
    let next_of =
        |goes_on: bool| if goes_on { identity.peer } else { identity.client.or(identity.peer) };
    let from = next_of(x("x-forwarded-for").next().is_some()).map(|from| from.to_string());
    push_list(out, "X-Forwarded-For", x("x-forwarded-for"), from.as_deref());
    let scheme = if identity.secure { "https" } else { "http" };
    let host = request.authority().unwrap_or_default();
    let proto = x("x-forwarded-proto").next().or_else(|| elements().last().and_then(proto_of));
    push_header(out, "X-Forwarded-Proto", proto.unwrap_or(scheme.as_bytes()));
    let forwarded_host = x("x-forwarded-host").next().unwrap_or(host);
    if !forwarded_host.is_empty() {
        push_header(out, "X-Forwarded-Host", forwarded_host);
    }
    let from = next_of(elements().next().is_some());
    let element = identity.forwarded.then(|| forwarded_element(from, scheme, host));
    push_list(out, "Forwarded", elements(), element.as_deref());
}

/// The scheme in the last element of a Forwarded header.
fn proto_of(value: &[u8]) -> Option<&[u8]> {
    let last = value.rsplit(|byte| *byte == b',').next()?;
    last.split(|byte| *byte == b';').map(<[u8]>::trim_ascii).find_map(|pair| {
        let (name, value) = pair.split_at_checked(6)?;
        let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        let scheme = quoted.unwrap_or(value);
        let known = matches!(scheme, b"http" | b"https");
        (known && name.eq_ignore_ascii_case(b"proto=")).then_some(scheme)
    })
}

/// Appends one header with the received values and our own; none if there are no values.
fn push_list<'v>(
    out: &mut Vec<u8>,
    name: &str,
    received: impl Iterator<Item = &'v [u8]>,
    ours: Option<&'v str>,
) {
    let begin = out.len();
    for value in received.chain(ours.map(str::as_bytes)).filter(|value| !value.is_empty()) {
        if out.len() == begin {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
        } else {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(value);
    }
    if out.len() > begin {
        out.extend_from_slice(b"\r\n");
    }
}

/// The element added to `Forwarded`. A valid host needs no escape between quotes.
fn forwarded_element(from: Option<IpAddr>, scheme: &str, host: &[u8]) -> String {
    let mut element = match from {
        Some(IpAddr::V4(address)) => format!("for={address}"),
        Some(IpAddr::V6(address)) => format!("for=\"[{address}]\""),
        None => "for=unknown".to_owned(),
    };
    element.push_str(";proto=");
    element.push_str(scheme);
    if let Some(host) = std::str::from_utf8(host).ok().filter(|host| !host.is_empty()) {
        element.push_str(";host=\"");
        element.push_str(host);
        element.push('"');
    }
    element
}

fn values<'h>(headers: &'h [Header<'_>], name: &str) -> impl Iterator<Item = &'h [u8]> {
    let named = move |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
    headers.iter().filter(named).map(|header| header.value)
}

#[cfg(test)]
mod tests {
    use wire::http::{EMPTY_HEADER, parse_request, parse_response};

    use super::*;

    fn passed(head: &str, identity: &ClientIdentity) -> String {
        let head = head.replace('\n', "\r\n");
        let mut headers = [EMPTY_HEADER; 40];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        let mut out = Vec::new();
        encode_request(&mut out, &request, false, Framing::Counted, identity);
        String::from_utf8(out).unwrap().replace("\r\n", "\n")
    }

    fn stranger() -> ClientIdentity {
        ClientIdentity { peer: Some([192, 0, 2, 1].into()), ..ClientIdentity::default() }
    }

    #[test]
    fn hop_by_hop_headers_are_removed_and_the_rest_keeps_its_order() {
        let head = "GET /a?b=c HTTP/1.1\nHost: h\nA: 1\nconnection: close, B\nb: 2\nTE: trailers\n\
                    Keep-Alive: 5\nUpgrade: h2c\nHTTP2-Settings: x\nC: 3\n\n";
        assert_eq!(
            passed(head, &stranger()),
            "GET /a?b=c HTTP/1.1\nHost: h\nA: 1\nC: 3\nX-Forwarded-For: 192.0.2.1\n\
             X-Forwarded-Proto: http\nX-Forwarded-Host: h\n\n"
        );
    }

    #[test]
    fn a_header_is_removed_by_its_full_name() {
        let mut head = b"POST /Expect:1 HTTP/1.1\r\nExpect-CT: 1\r\nEXPECT: 100-continue\r\nA: Expect: 2\r\n\r\n".to_vec();
        remove_header(&mut head, "Expect");
        assert_eq!(head, b"POST /Expect:1 HTTP/1.1\r\nExpect-CT: 1\r\nA: Expect: 2\r\n\r\n");
        let before = head.clone();
        remove_header(&mut head, "Expect");
        assert_eq!(head, before);
    }

    #[test]
    fn a_client_can_neither_remove_nor_forge_identity_headers() {
        let head = "GET / HTTP/1.1\nHost: h\nConnection: x-forwarded-for, X-Forwarded-Proto, host\n\
                    X-Forwarded-For: 1.1.1.1\nx-forwarded-for: 2.2.2.2\nX_Forwarded_For: 3.3.3.3\n\
                    X-Forwarded-Proto: https\nForwarded: for=4.4.4.4\nX-Real-Ip: 5.5.5.5\n\n";
        let identity = ClientIdentity { forwarded: true, ..stranger() };
        assert_eq!(
            passed(head, &identity),
            "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\n\
             X-Forwarded-Host: h\nForwarded: for=192.0.2.1;proto=http;host=\"h\"\n\n"
        );
    }

    #[test]
    fn headers_of_a_trusted_proxy_are_kept_and_extended() {
        let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1\nX-Forwarded-Proto: https\n\
                    X-Forwarded-Host: outer\n\n";
        let client = Some([1, 1, 1, 1].into());
        let trusted = Some(ForwardedBy::XForwardedFor);
        let identity = ClientIdentity { trusted, client, ..stranger() };
        assert_eq!(
            passed(head, &identity),
            "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1, 192.0.2.1\n\
             X-Forwarded-Proto: https\nX-Forwarded-Host: outer\n\n"
        );
        // With a PROXY header only the client's address is known.
        let by_header = passed("GET / HTTP/1.1\nHost: h\n\n", &identity);
        assert!(by_header.contains("X-Forwarded-For: 1.1.1.1\n"), "{by_header}");
    }

    #[test]
    fn other_forwarding_headers_pass_only_from_a_trusted_proxy() {
        let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-Ssl: on\nx-forwarded-scheme: https\n\
                    X_Forwarded_Port: 443\nX-Forwarded-Prefix: /a\nX-Forwarded: 1\n\n";
        let by = |trusted| passed(head, &ClientIdentity { trusted, ..stranger() });
        let ours = "X-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\nX-Forwarded-Host: h\n\n";
        for strange in [by(None), by(Some(ForwardedBy::Forwarded))] {
            assert_eq!(strange, format!("GET / HTTP/1.1\nHost: h\nX-Forwarded: 1\n{ours}"));
        }
        let trusted = by(Some(ForwardedBy::XForwardedFor));
        for kept in ["Ssl: on", "scheme: https", "Port: 443", "Prefix: /a"] {
            assert!(trusted.contains(kept), "{kept} in {trusted}");
        }
    }

    #[test]
    fn only_the_configured_header_of_a_trusted_proxy_is_trusted() {
        let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 6.6.6.6\nX-Real-IP: 6.6.6.6\n\
                    X-Forwarded-Proto: ftp\nX-Forwarded-Host: evil\n\
                    Forwarded: for=1.1.1.1;proto=https\n\n";
        let client = Some([1, 1, 1, 1].into());
        let trusted = Some(ForwardedBy::Forwarded);
        let identity = ClientIdentity { trusted, client, forwarded: true, ..stranger() };
        assert_eq!(
            passed(head, &identity),
            "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1\nX-Forwarded-Proto: https\n\
             X-Forwarded-Host: h\n\
             Forwarded: for=1.1.1.1;proto=https, for=192.0.2.1;proto=http;host=\"h\"\n\n"
        );
        let trusted = Some(ForwardedBy::XForwardedFor);
        let by_x = passed(head, &ClientIdentity { trusted, client: None, ..identity });
        assert!(by_x.contains("X-Forwarded-For: 6.6.6.6, 192.0.2.1\n"), "{by_x}");
        assert!(by_x.contains("\nForwarded: for=192.0.2.1;proto=http;host=\"h\"\n"), "{by_x}");
        assert!(!by_x.contains("1.1.1.1") && !by_x.contains("X-Real-IP"), "{by_x}");
    }

    #[test]
    fn an_absolute_url_becomes_a_path_and_a_host() {
        let request =
            passed("GET http://real/x?y HTTP/1.1\nHost: other\n\n", &ClientIdentity::default());
        assert!(request.starts_with("GET /x?y HTTP/1.1\nHost: real\n"), "{request}");
        assert!(request.contains("X-Forwarded-Host: real\n") && !request.contains("other"));
    }

    #[test]
    fn options_for_a_server_stays_options_star() {
        for (received, passed_on) in [
            ("OPTIONS *", "OPTIONS *"),
            ("OPTIONS http://real", "OPTIONS *"),
            ("OPTIONS http://real:8080", "OPTIONS *"),
            ("OPTIONS http://real/", "OPTIONS /"),
            ("OPTIONS http://real?a", "OPTIONS /?a"),
            ("GET http://real", "GET /"),
        ] {
            let request = passed(&format!("{received} HTTP/1.1\nHost: real\n\n"), &stranger());
            assert!(
                request.starts_with(&format!("{passed_on} HTTP/1.1\n")),
                "{received}: {request}"
            );
        }
    }

    #[test]
    fn only_websocket_of_several_protocols_is_offered_to_an_upstream() {
        let head = "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: h2c, WebSocket\r\nUpgrade: TLS/1.0\r\n\
                    Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
        let mut headers = [EMPTY_HEADER; 10];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        let mut out = Vec::new();
        encode_request(&mut out, &request, true, Framing::Counted, &stranger());
        let out = String::from_utf8(out).unwrap();
        let lines = out.lines().filter(|line| line.to_ascii_lowercase().contains("upgrade"));
        assert_eq!(lines.collect::<Vec<_>>(), ["Upgrade: websocket", "Connection: Upgrade"]);
        assert!(!out.contains("h2c") && !out.contains("HTTP2") && !out.contains("TLS/"), "{out}");
    }

    #[test]
    fn a_response_keeps_its_end_to_end_headers() {
        let head = "HTTP/1.1 426 Nope\nConnection: upgrade, set-x\nUpgrade: websocket\nSet-X: 1\n\
                    Content-Length: 0\nContent-Length: 0\nSet-Cookie: a\nSet-Cookie: b\n\n";
        let head = head.replace('\n', "\r\n");
        let mut headers = [EMPTY_HEADER; 10];
        let answer = parse_response(head.as_bytes(), &mut headers).unwrap();
        let mut out = Vec::new();
        encode_answer(&mut out, &answer, Framing::Counted);
        assert_eq!(
            String::from_utf8(out).unwrap().replace("\r\n", "\n"),
            "HTTP/1.1 426 Nope\nUpgrade: websocket\nContent-Length: 0\nSet-Cookie: a\nSet-Cookie: b\n"
        );
    }

    #[test]
    fn the_reason_phrase_is_passed_on_unchanged() {
        for (received, passed) in [
            ("HTTP/1.1 404 Nope", "HTTP/1.1 404 Nope"),
            ("HTTP/1.0 200 All is\twell, really", "HTTP/1.1 200 All is\twell, really"),
            ("HTTP/1.1 299 ", "HTTP/1.1 299 "),
            // The space is part of the status line even without a reason (RFC 9112 section 4).
            ("HTTP/1.1 404", "HTTP/1.1 404 "),
        ] {
            let head = format!("{received}\r\n\r\n");
            let mut headers = [EMPTY_HEADER; 4];
            let answer = parse_response(head.as_bytes(), &mut headers).unwrap();
            let mut out = Vec::new();
            encode_answer(&mut out, &answer, Framing::Counted);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{passed}\r\n"));
        }
        let mut headers = [EMPTY_HEADER; 4];
        let foreign = b"HTTP/1.1 404 Unauff\xc3\xadndbar\r\n\r\n";
        let answer = parse_response(foreign, &mut headers).unwrap();
        let mut out = Vec::new();
        encode_answer(&mut out, &answer, Framing::Counted);
        assert_eq!(out, b"HTTP/1.1 404 \r\n");
        let mut headers = [EMPTY_HEADER; 4];
        let broken = parse_response(b"HTTP/1.1 404 No\0pe\r\n\r\n", &mut headers);
        assert!(broken.is_err(), "a reason with control characters is rejected");
    }

    #[test]
    fn a_status_without_a_body_has_no_content_length() {
        for (status, lengths) in [(101, 0), (103, 0), (204, 0), (200, 1), (304, 1)] {
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 7\r\nA: b\r\n\r\n");
            let mut headers = [EMPTY_HEADER; 4];
            let answer = parse_response(head.as_bytes(), &mut headers).unwrap();
            let mut out = Vec::new();
            encode_answer(&mut out, &answer, Framing::Counted);
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out.matches("Content-Length").count(), lengths, "{out}");
            assert!(out.contains("A: b\r\n"));
        }
    }
}
