//! Request and response heads as they are passed on: end-to-end headers, hop-by-hop headers, and the
//! headers that name the client (RFC 9110 section 7.6, RFC 7239, RFC 6455 section 4).
//!
//! A client may name any header in `Connection`, including those that the proxy adds. So every header
//! that names a client is removed first, however it is spelt, and written again by the proxy.

use std::net::IpAddr;

use wire::http::{ForwardedBy, Header, Request, Response};

use crate::request_id;
use crate::routes::{HeaderRule, Variables};

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
    /// Whether to add `X-Real-IP`.
    pub(crate) real_ip: bool,
}

impl ClientIdentity {
    /// The client's address: the one that a trusted proxy gave, or the peer's.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.client.or(self.peer)
    }
}

/// The headers of a request that the configuration changes.
#[derive(Copy, Clone, Default)]
pub(crate) struct RequestChanges<'c> {
    /// The rules of its route; they take precedence over everything else.
    pub(crate) rules: &'c [HeaderRule],
    pub(crate) variables: Variables<'c>,
    /// Whether to send the request id.
    pub(crate) sends_id: bool,
}

impl RequestChanges<'_> {
    fn has_rule(&self, name: &str) -> bool {
        self.rules.iter().any(|rule| rule.is_for(name))
    }

    /// Whether a received header is dropped.
    fn replaces(&self, name: &str) -> bool {
        self.sends_id && is_same(name, request_id::HEADER) || self.has_rule(name)
    }

    /// Appends the headers that are set.
    fn push(&self, out: &mut Vec<u8>) {
        let id = self.variables.request_id.filter(|_| self.sends_id);
        if let Some(id) = id.filter(|_| !self.has_rule(request_id::HEADER)) {
            push_header(out, request_id::HEADER, id.as_bytes());
        }
        for rule in self.rules {
            rule.push(out, &self.variables);
        }
    }
}

/// The headers of a response that the configuration changes. Those that are set are encoded when the
/// request arrives.
#[derive(Copy, Clone, Default)]
pub(crate) struct AnswerChanges<'c> {
    pub(crate) rules: &'c [HeaderRule],
    /// Whether the request id is sent.
    pub(crate) sends_id: bool,
    /// The lines that are added.
    pub(crate) lines: &'c [u8],
}

impl AnswerChanges<'_> {
    fn replaces(&self, name: &str) -> bool {
        let by_rule = self.rules.iter().any(|rule| rule.is_for(name));
        by_rule || self.sends_id && is_same(name, request_id::HEADER)
    }
}

/// Encodes the headers that responses to a request get.
pub(crate) fn answer_lines(
    rules: &[HeaderRule],
    sends_id: bool,
    variables: &Variables<'_>,
) -> Vec<u8> {
    let mut lines = Vec::new();
    RequestChanges { rules, variables: *variables, sends_id }.push(&mut lines);
    lines
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
    changes: &RequestChanges<'_>,
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
        let ours = is_identity(header.name, identity) || changes.replaces(header.name);
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
    push_identity(out, request, identity, changes);
    changes.push(out);
    out.extend_from_slice(b"\r\n");
}

/// Appends the response head for a client, without the final blank line, so that headers can follow.
pub(crate) fn encode_answer(
    out: &mut Vec<u8>,
    answer: &Response<'_, '_>,
    framing: Framing,
    changes: &AnswerChanges<'_>,
) {
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
        let passes = wanted || is_passed_on(answer.headers, header.name);
        if !again && passes && !changes.replaces(header.name) {
            push_header(out, header.name, header.value);
        }
    }
    if framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    out.extend_from_slice(changes.lines);
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
    let is = |known: &&str| is_same(name, known);
    IDENTITY.iter().any(is) || !trusted && has_prefix(name, FORWARDED)
}

/// Whether a name is this one; `_` counts as `-`.
fn is_same(name: &str, known: &str) -> bool {
    name.len() == known.len() && has_prefix(name, known)
}

/// Whether a name has this prefix; `_` counts as `-`, as some servers read it.
fn has_prefix(name: &str, front: &str) -> bool {
    let same = |(a, b): (u8, u8)| a.eq_ignore_ascii_case(&b) || a == b'_' && b == b'-';
    name.len() >= front.len() && name.bytes().zip(front.bytes()).all(same)
}

fn push_identity(
    out: &mut Vec<u8>,
    request: &Request<'_, '_>,
    identity: &ClientIdentity,
    changes: &RequestChanges<'_>,
) {
    let values_of =
        |name, by| values(request.headers, name).filter(move |_| identity.trusted == Some(by));
    let x = |name| values_of(name, ForwardedBy::XForwardedFor);
    let elements = || values_of("forwarded", ForwardedBy::Forwarded);
    // A list that is continued gets the peer appended; a new one begins with the client.
    let next_of = |goes_on: bool| if goes_on { identity.peer } else { identity.address() };
    let from = next_of(x("x-forwarded-for").next().is_some()).map(|from| from.to_string());
    if !changes.has_rule("X-Forwarded-For") {
        push_list(out, "X-Forwarded-For", x("x-forwarded-for"), from.as_deref());
    }
    let scheme = if identity.secure { "https" } else { "http" };
    let host = request.authority().unwrap_or_default();
    let proto = x("x-forwarded-proto").next().or_else(|| elements().last().and_then(proto_of));
    if !changes.has_rule("X-Forwarded-Proto") {
        push_header(out, "X-Forwarded-Proto", proto.unwrap_or(scheme.as_bytes()));
    }
    let forwarded_host = x("x-forwarded-host").next().unwrap_or(host);
    if !forwarded_host.is_empty() && !changes.has_rule("X-Forwarded-Host") {
        push_header(out, "X-Forwarded-Host", forwarded_host);
    }
    if let Some(address) = identity.address().filter(|_| identity.real_ip)
        && !changes.has_rule("X-Real-IP")
    {
        push_header(out, "X-Real-IP", address.to_string().as_bytes());
    }
    if changes.has_rule("Forwarded") {
        return;
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
mod tests;
