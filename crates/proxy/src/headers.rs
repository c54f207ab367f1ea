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
pub(crate) struct Whose {
    /// Who is at the other end of the socket, if it has an address.
    pub(crate) peer: Option<IpAddr>,
    /// The client address that a trusted proxy gave.
    pub(crate) client: Option<IpAddr>,
    /// In which header the peer's word is taken, if it is. What stands in the others may be any
    /// client's.
    pub(crate) believed: Option<ForwardedBy>,
    /// It came over TLS.
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
    whose: &Whose,
) {
    out.extend_from_slice(request.method.as_bytes());
    out.push(b' ');
    push_target(out, request);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    push_line(out, "Host", request.authority().unwrap_or_default());
    let mut counted = false;
    for header in request.headers {
        let again = header.name.eq_ignore_ascii_case("content-length")
            && std::mem::replace(&mut counted, true);
        let host = header.name.eq_ignore_ascii_case("host");
        let ours = is_identity(header.name, whose);
        if !host && !again && !ours && goes_along(request.headers, header.name) {
            push_line(out, header.name, header.value);
        }
    }
    if upgrade {
        out.extend_from_slice(b"Upgrade: websocket\r\nConnection: Upgrade\r\n");
    }
    if framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    push_identity(out, request, whose);
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
        if !again && (wanted || goes_along(answer.headers, header.name)) {
            push_line(out, header.name, header.value);
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

pub(crate) fn push_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a line goes on beyond this hop.
fn goes_along(headers: &[Header<'_>], name: &str) -> bool {
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

/// Whether a header says whose a request is, and is no word of a proxy that is believed.
fn is_identity(name: &str, whose: &Whose) -> bool {
    let believed = whose.believed == Some(ForwardedBy::XForwardedFor);
    let is = |known: &&str| name.len() == known.len() && begins(name, known);
    IDENTITY.iter().any(is) || !believed && begins(name, FORWARDED)
}

/// Whether a name begins like this; some servers read `_` as `-`.
fn begins(name: &str, front: &str) -> bool {
    let same = |(a, b): (u8, u8)| a.eq_ignore_ascii_case(&b) || a == b'_' && b == b'-';
    name.len() >= front.len() && name.bytes().zip(front.bytes()).all(same)
}

fn push_identity(out: &mut Vec<u8>, request: &Request<'_, '_>, whose: &Whose) {
    let told = |name, by| values(request.headers, name).filter(move |_| whose.believed == Some(by));
    let x = |name| told(name, ForwardedBy::XForwardedFor);
    let elements = || told("forwarded", ForwardedBy::Forwarded);
    // A list that goes on names whom we heard it from; a new one begins with the client.
    let next_of = |goes_on: bool| if goes_on { whose.peer } else { whose.client.or(whose.peer) };
    let from = next_of(x("x-forwarded-for").next().is_some()).map(|from| from.to_string());
    push_list(out, "X-Forwarded-For", x("x-forwarded-for"), from.as_deref());
    let scheme = if whose.secure { "https" } else { "http" };
    let host = request.authority().unwrap_or_default();
    let proto = x("x-forwarded-proto").next().or_else(|| elements().last().and_then(proto_of));
    push_line(out, "X-Forwarded-Proto", proto.unwrap_or(scheme.as_bytes()));
    let forwarded_host = x("x-forwarded-host").next().unwrap_or(host);
    if !forwarded_host.is_empty() {
        push_line(out, "X-Forwarded-Host", forwarded_host);
    }
    let from = next_of(elements().next().is_some());
    let element = whose.forwarded.then(|| forwarded_element(from, scheme, host));
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
    came: impl Iterator<Item = &'v [u8]>,
    ours: Option<&'v str>,
) {
    let begin = out.len();
    for value in came.chain(ours.map(str::as_bytes)).filter(|value| !value.is_empty()) {
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

    fn passed(head: &str, whose: &Whose) -> String {
        let head = head.replace('\n', "\r\n");
        let mut headers = [EMPTY_HEADER; 40];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        let mut out = Vec::new();
        encode_request(&mut out, &request, false, Framing::Counted, whose);
        String::from_utf8(out).unwrap().replace("\r\n", "\n")
    }

    fn stranger() -> Whose {
        Whose { peer: Some([192, 0, 2, 1].into()), ..Whose::default() }
    }

    #[test]
    fn what_is_for_one_hop_stays_and_the_rest_goes_along_in_order() {
        let head = "GET /a?b=c HTTP/1.1\nHost: h\nA: 1\nconnection: close, B\nb: 2\nTE: trailers\n\
                    Keep-Alive: 5\nUpgrade: h2c\nHTTP2-Settings: x\nC: 3\n\n";
        assert_eq!(
            passed(head, &stranger()),
            "GET /a?b=c HTTP/1.1\nHost: h\nA: 1\nC: 3\nX-Forwarded-For: 192.0.2.1\n\
             X-Forwarded-Proto: http\nX-Forwarded-Host: h\n\n"
        );
    }

    #[test]
    fn no_client_takes_away_or_makes_up_what_says_whose_a_request_is() {
        let head = "GET / HTTP/1.1\nHost: h\nConnection: x-forwarded-for, X-Forwarded-Proto, host\n\
                    X-Forwarded-For: 1.1.1.1\nx-forwarded-for: 2.2.2.2\nX_Forwarded_For: 3.3.3.3\n\
                    X-Forwarded-Proto: https\nForwarded: for=4.4.4.4\nX-Real-Ip: 5.5.5.5\n\n";
        let whose = Whose { forwarded: true, ..stranger() };
        assert_eq!(
            passed(head, &whose),
            "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\n\
             X-Forwarded-Host: h\nForwarded: for=192.0.2.1;proto=http;host=\"h\"\n\n"
        );
    }

    #[test]
    fn the_word_of_a_trusted_proxy_is_kept_and_added_to() {
        let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1\nX-Forwarded-Proto: https\n\
                    X-Forwarded-Host: outer\n\n";
        let client = Some([1, 1, 1, 1].into());
        let believed = Some(ForwardedBy::XForwardedFor);
        let whose = Whose { believed, client, ..stranger() };
        assert_eq!(
            passed(head, &whose),
            "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1, 192.0.2.1\n\
             X-Forwarded-Proto: https\nX-Forwarded-Host: outer\n\n"
        );
        // By a PROXY header it told the client's address alone.
        let by_header = passed("GET / HTTP/1.1\nHost: h\n\n", &whose);
        assert!(by_header.contains("X-Forwarded-For: 1.1.1.1\n"), "{by_header}");
    }

    #[test]
    fn what_else_proxies_say_is_a_strangers_word_unless_it_is_believed() {
        let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-Ssl: on\nx-forwarded-scheme: https\n\
                    X_Forwarded_Port: 443\nX-Forwarded-Prefix: /a\nX-Forwarded: 1\n\n";
        let by = |believed| passed(head, &Whose { believed, ..stranger() });
        let ours = "X-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\nX-Forwarded-Host: h\n\n";
        for strange in [by(None), by(Some(ForwardedBy::Forwarded))] {
            assert_eq!(strange, format!("GET / HTTP/1.1\nHost: h\nX-Forwarded: 1\n{ours}"));
        }
        let believed = by(Some(ForwardedBy::XForwardedFor));
        for kept in ["Ssl: on", "scheme: https", "Port: 443", "Prefix: /a"] {
            assert!(believed.contains(kept), "{kept} in {believed}");
        }
    }

    #[test]
    fn only_the_header_that_a_trusted_proxy_writes_is_believed() {
        let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 6.6.6.6\nX-Real-IP: 6.6.6.6\n\
                    X-Forwarded-Proto: ftp\nX-Forwarded-Host: evil\n\
                    Forwarded: for=1.1.1.1;proto=https\n\n";
        let client = Some([1, 1, 1, 1].into());
        let believed = Some(ForwardedBy::Forwarded);
        let whose = Whose { believed, client, forwarded: true, ..stranger() };
        assert_eq!(
            passed(head, &whose),
            "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1\nX-Forwarded-Proto: https\n\
             X-Forwarded-Host: h\n\
             Forwarded: for=1.1.1.1;proto=https, for=192.0.2.1;proto=http;host=\"h\"\n\n"
        );
        let believed = Some(ForwardedBy::XForwardedFor);
        let by_x = passed(head, &Whose { believed, client: None, ..whose });
        assert!(by_x.contains("X-Forwarded-For: 6.6.6.6, 192.0.2.1\n"), "{by_x}");
        assert!(by_x.contains("\nForwarded: for=192.0.2.1;proto=http;host=\"h\"\n"), "{by_x}");
        assert!(!by_x.contains("1.1.1.1") && !by_x.contains("X-Real-IP"), "{by_x}");
    }

    #[test]
    fn a_whole_url_becomes_a_path_and_a_host() {
        let request = passed("GET http://real/x?y HTTP/1.1\nHost: other\n\n", &Whose::default());
        assert!(request.starts_with("GET /x?y HTTP/1.1\nHost: real\n"), "{request}");
        assert!(request.contains("X-Forwarded-Host: real\n") && !request.contains("other"));
    }

    #[test]
    fn a_question_about_a_whole_server_stays_one() {
        for (asked, passed_on) in [
            ("OPTIONS *", "OPTIONS *"),
            ("OPTIONS http://real", "OPTIONS *"),
            ("OPTIONS http://real:8080", "OPTIONS *"),
            ("OPTIONS http://real/", "OPTIONS /"),
            ("OPTIONS http://real?a", "OPTIONS /?a"),
            ("GET http://real", "GET /"),
        ] {
            let request = passed(&format!("{asked} HTTP/1.1\nHost: real\n\n"), &stranger());
            assert!(request.starts_with(&format!("{passed_on} HTTP/1.1\n")), "{asked}: {request}");
        }
    }

    #[test]
    fn of_several_protocols_only_the_tunnels_is_offered_to_an_upstream() {
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
    fn an_answer_keeps_what_is_the_clients() {
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
    fn the_reason_of_an_answer_goes_along_as_it_came() {
        for (came, passed) in [
            ("HTTP/1.1 404 Nope", "HTTP/1.1 404 Nope"),
            ("HTTP/1.0 200 All is\twell, really", "HTTP/1.1 200 All is\twell, really"),
            ("HTTP/1.1 299 ", "HTTP/1.1 299 "),
            // The space is part of the status line even without a reason (RFC 9112 section 4).
            ("HTTP/1.1 404", "HTTP/1.1 404 "),
        ] {
            let head = format!("{came}\r\n\r\n");
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
        assert!(broken.is_err(), "nothing that breaks a line gets so far");
    }

    #[test]
    fn what_has_no_body_gets_no_length() {
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
