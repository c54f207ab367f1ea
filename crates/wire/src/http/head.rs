//! The parsed head of a message: request, response, and what both have in common (RFC 9110). Not
//! here: how it was parsed.

use super::Header;
use super::scan::is_tchar;

/// A request's head, borrowed from the bytes it arrived in.
#[derive(Clone, Debug)]
pub struct Request<'h, 'b> {
    /// Case-sensitive, as sent.
    pub method: &'b str,
    /// The request target as sent: visible ASCII, in one of the four forms of RFC 9112 3.2.
    pub target: &'b str,
    /// The minor version, 0 or 1.
    pub version: u8,
    /// In order, names as sent.
    pub headers: &'h [Header<'b>],
    pub(crate) framing: Framing,
    /// All header lines as bytes, for values that outlive the parsed ones.
    pub(crate) head: &'b [u8],
}

/// A response's head, borrowed from the bytes it arrived in.
#[derive(Clone, Debug)]
pub struct Response<'h, 'b> {
    /// Three digits.
    pub status: u16,
    /// Often empty; of no use to programs.
    pub reason: &'b str,
    /// The minor version, 0 or 1.
    pub version: u8,
    /// In order, names as sent.
    pub headers: &'h [Header<'b>],
    pub(crate) framing: Framing,
}

/// What the head says about the body's length (RFC 9112 6.3).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Framing {
    Unsaid,
    Length(u64),
    Chunked,
}

/// What requests and responses have in common.
pub trait Head {
    /// The minor version, 0 or 1.
    fn version(&self) -> u8;
    /// The header lines, in order.
    fn headers(&self) -> &[Header<'_>];
}

impl Head for Request<'_, '_> {
    fn version(&self) -> u8 {
        self.version
    }
    fn headers(&self) -> &[Header<'_>] {
        self.headers
    }
}

impl Head for Response<'_, '_> {
    fn version(&self) -> u8 {
        self.version
    }
    fn headers(&self) -> &[Header<'_>] {
        self.headers
    }
}

impl<'b> Request<'_, 'b> {
    /// The value of the first header of this name, in any case, without surrounding blanks.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        first_value(self.headers, name)
    }

    /// Whether a comma-separated header, over all its lines, contains this item, in any case.
    pub fn header_list_contains(&self, name: &str, token: &str) -> bool {
        list_contains(self.headers, name, token)
    }

    /// The target without its query, and without scheme and authority if it has them.
    pub fn path(&self) -> &'b str {
        self.split_target().0
    }

    /// The host that the request addresses: the authority of a target that has one, otherwise Host
    /// (RFC 9112 3.2.2).
    pub fn authority(&self) -> Option<&'b [u8]> {
        let authority = match after_scheme(self.target) {
            Some((scheme, rest)) if !scheme.contains(['/', '?']) => {
                rest.split(['/', '?']).next().map(str::as_bytes)
            }
            _ => None,
        };
        authority.or_else(|| self.header("host"))
    }

    /// The part after the first `?` of the target.
    pub fn query(&self) -> Option<&'b str> {
        self.split_target().1
    }

    fn split_target(&self) -> (&'b str, Option<&'b str>) {
        let (rest, query) = match self.target.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (self.target, None),
        };
        let path = match after_scheme(rest) {
            Some((scheme, rest)) if !scheme.contains('/') => {
                rest.find('/').and_then(|slash| rest.get(slash..)).unwrap_or("/")
            }
            _ => rest,
        };
        (path, query)
    }
}

impl<'b> Response<'_, 'b> {
    /// The value of the first header of this name, in any case, without surrounding blanks.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        first_value(self.headers, name)
    }

    /// Whether a comma-separated header, over all its lines, contains this item, in any case.
    pub fn header_list_contains(&self, name: &str, token: &str) -> bool {
        list_contains(self.headers, name, token)
    }
}

/// Scheme and rest of a target, if it has a scheme. A search costs more than the rest of the routing, and
/// nearly all targets are paths.
fn after_scheme(target: &str) -> Option<(&str, &str)> {
    if target.starts_with('/') { None } else { target.split_once("://") }
}

/// Whether the sender of this head keeps the connection open for further messages (RFC 9112 9.3). A
/// response whose body runs until the end of the connection ends it regardless.
pub fn keep_alive(head: &impl Head) -> bool {
    let lists = |token| list_contains(head.headers(), "connection", token);
    !lists("close") && (head.version() >= 1 || lists("keep-alive"))
}

/// Whether the client waits for [`CONTINUE`](super::CONTINUE) before it sends the body (RFC 9110
/// 10.1.1).
pub fn expects_continue(request: &Request<'_, '_>) -> bool {
    request.version >= 1
        && !matches!(request.framing, Framing::Unsaid | Framing::Length(0))
        && request.header_list_contains("expect", "100-continue")
}

/// The items of one line of a comma-separated header, blanks trimmed, empty ones skipped (RFC 9110
/// 5.6.1).
pub(crate) fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

/// Whether this is a token: a method, a header name, a subprotocol (RFC 9110 5.6.2).
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_tchar(*byte))
}

fn first_value<'b>(headers: &[Header<'b>], name: &str) -> Option<&'b [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

fn list_contains(headers: &[Header<'_>], name: &str, token: &str) -> bool {
    headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case(name))
        .flat_map(|header| list_items(header.value))
        .any(|item| item.eq_ignore_ascii_case(token.as_bytes()))
}
