//! [`Request`]: what is asked of whom, rendered to bytes once. A redirect makes another of it.

use wire::http::{EMPTY_HEADER, MAX_HEADERS, encode_request_head, parse_request};

use crate::Endpoint;

/// A request, ready to be sent as often as wanted.
#[derive(Clone, Debug, Default)]
pub struct Request {
    endpoint: u8,
    is_head: bool,
    kind: Kind,
    bytes: Vec<u8>,
}

/// What a request is to its connection. All but the first are for drivers with
/// [`super::Driver::PUSHES`].
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Kind {
    /// Bytes that are answered, such as a request of HTTP.
    #[default]
    Plain,
    /// The head of a WebSocket handshake without its key; on a new connection.
    Connect,
    /// The same for Action Cable, whose welcome is awaited.
    ConnectCable,
    /// A message of text.
    Text,
    /// A message of bytes.
    Binary,
    /// A ping, answered by its pong.
    Ping,
    /// A close frame, answered by the server's.
    Close,
    /// A command of Action Cable that is confirmed or rejected.
    Subscribe,
    /// Nothing is sent; a message is awaited.
    Await,
}

impl Kind {
    /// A failure leaves the connection as good as it was.
    pub(super) fn leaves_open(self) -> bool {
        use Kind::{Await, Binary, Ping, Subscribe, Text};
        matches!(self, Await | Binary | Ping | Subscribe | Text)
    }
}

/// What a request of HTTP/1.1 says, before it is rendered.
#[derive(Clone, Debug)]
pub struct HttpRequest<'a> {
    /// Such as `GET`.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// For the Host header, unless `headers` have one.
    pub host: &'a str,
    /// Further header lines, in order.
    pub headers: &'a [(String, String)],
    /// May be empty.
    pub body: &'a [u8],
    /// Ask the server to end the connection after the answer.
    pub close: bool,
}

impl Request {
    /// Bytes of a protocol of one's own for the endpoint of that number in [`super::Requests`].
    #[must_use]
    pub fn raw(endpoint: u8, bytes: Vec<u8>) -> Request {
        Request { endpoint, is_head: false, kind: Kind::Plain, bytes }
    }

    /// A request of HTTP/1.1.
    #[must_use]
    pub fn http(endpoint: u8, http: &HttpRequest<'_>) -> Request {
        let mut request = Request::default();
        request.set_http(endpoint, http);
        request
    }

    /// The same in the place of what was there, without another allocation if there is room.
    pub fn set_http(&mut self, endpoint: u8, http: &HttpRequest<'_>) {
        let HttpRequest { method, target, host, headers, body, close } = *http;
        let says = |name: &str| headers.iter().any(|(one, _)| one.eq_ignore_ascii_case(name));
        let length = body.len().to_string();
        let has_body = !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH");
        let framed = says("content-length") || says("transfer-encoding");
        let host = (!says("host")).then_some(("Host", host));
        let length = (has_body && !framed).then_some(("Content-Length", length.as_str()));
        let close = (close && !says("connection")).then_some(("Connection", "close"));
        let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let lines = host.into_iter().chain(lines).chain(length).chain(close);
        self.bytes.clear();
        encode_request_head(&mut self.bytes, method, target, lines);
        self.bytes.extend_from_slice(body);
        (self.endpoint, self.is_head) = (endpoint, method == "HEAD");
    }

    /// What `render` writes, in the place of what was there.
    pub(crate) fn set_rendered(
        &mut self,
        endpoint: u8,
        is_head: bool,
        render: impl FnOnce(&mut Vec<u8>),
    ) {
        (self.endpoint, self.is_head, self.kind) = (endpoint, is_head, Kind::Plain);
        self.bytes.clear();
        render(&mut self.bytes);
    }

    /// What `render` writes to a connection that is no longer HTTP's, or makes it so.
    pub(crate) fn set_message(
        &mut self,
        endpoint: u8,
        kind: Kind,
        render: impl FnOnce(&mut Vec<u8>),
    ) {
        self.set_rendered(endpoint, false, render);
        self.kind = kind;
    }

    /// Bytes that are a message of that kind for a socket.
    #[must_use]
    pub fn message(endpoint: u8, kind: Kind, bytes: Vec<u8>) -> Request {
        Request { endpoint, is_head: false, kind, bytes }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whom it is for: a number of [`super::Requests::endpoints`].
    #[must_use]
    pub fn endpoint(&self) -> u8 {
        self.endpoint
    }

    /// What is sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its answer has a head and no body, whatever the head says.
    #[must_use]
    pub fn is_head(&self) -> bool {
        self.is_head
    }

    /// The request that follows a redirect by `status` to `location` (RFC 9110 section 15.4), as
    /// browsers do it: 303, and 301 and 302 after POST, become GET. `None` where it leads to none of
    /// `endpoints`.
    pub(crate) fn redirected(
        &self,
        status: u16,
        location: &[u8],
        endpoints: &[Endpoint],
    ) -> Option<Request> {
        let head = self.bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let (head, body) = self.bytes.split_at_checked(head)?;
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let asked = parse_request(head, &mut headers).ok()?;
        let location = std::str::from_utf8(location).ok()?.split('#').next()?;
        let (endpoint, target) = place(self.endpoint, asked.target, location, endpoints)?;
        let becomes_get = match status {
            303 => asked.method != "HEAD",
            301 | 302 => asked.method == "POST",
            _ => false,
        };
        let method = if becomes_get { "GET" } else { asked.method };
        let moved = endpoint != self.endpoint;
        let of_body = ["content-length", "content-type", "transfer-encoding"];
        // What was meant for one server is not shown to another.
        let secret = ["host", "authorization", "cookie"];
        let is_left_out = |name: &str| {
            let is_one = |names: &[&str]| names.iter().any(|one| name.eq_ignore_ascii_case(one));
            becomes_get && is_one(&of_body) || moved && is_one(&secret)
        };
        let kept = asked.headers.iter().filter(|header| !is_left_out(header.name));
        let kept: Vec<(String, String)> = kept
            .filter_map(|header| {
                Some((header.name.to_owned(), String::from_utf8(header.value.to_vec()).ok()?))
            })
            .collect();
        let host = &endpoints.get(usize::from(endpoint))?.host;
        let (headers, body) = (&kept[..], if becomes_get { &[][..] } else { body });
        let http = HttpRequest { method, target: &target, host, headers, body, close: false };
        Some(Request::http(endpoint, &http))
    }
}

/// Where a Location leads from a request to `endpoint` for `from`.
pub(crate) fn place(
    endpoint: u8,
    from: &str,
    location: &str,
    endpoints: &[Endpoint],
) -> Option<(u8, String)> {
    let absolute = location.strip_prefix("//").map(|rest| (None, rest));
    let absolute =
        absolute.or_else(|| location.split_once("://").map(|(scheme, rest)| (Some(scheme), rest)));
    if let Some((scheme, rest)) = absolute.filter(|(scheme, _)| scheme.is_none_or(is_scheme)) {
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        let own = endpoints.get(usize::from(endpoint)).is_some_and(|endpoint| endpoint.tls);
        let tls = scheme.map_or(own, |scheme| scheme.eq_ignore_ascii_case("https"));
        let same = |one: &Endpoint| one.tls == tls && same_authority(&one.host, authority, tls);
        let found = endpoints.iter().position(same)?;
        let slash = if target.starts_with('/') { "" } else { "/" };
        return Some((u8::try_from(found).ok()?, format!("{slash}{target}")));
    }
    let (path, _) = from.split_once('?').unwrap_or((from, ""));
    let target = match location.chars().next()? {
        '/' => location.to_owned(),
        '?' => format!("{path}{location}"),
        _ => format!("{}/{location}", path.rsplit_once('/').map_or("", |(folder, _)| folder)),
    };
    let usable = target.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    usable.then_some((endpoint, target))
}

fn is_scheme(text: &str) -> bool {
    text.eq_ignore_ascii_case("http") || text.eq_ignore_ascii_case("https")
}

fn same_authority(one: &str, other: &str, tls: bool) -> bool {
    let port = if tls { ":443" } else { ":80" };
    let bare = |text: &str| text.strip_suffix(port).unwrap_or(text).to_ascii_lowercase();
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> Vec<Endpoint> {
        ["http://127.0.0.1:81/", "http://127.0.0.1:82/"]
            .map(|url| Endpoint::parse_http(url).unwrap())
            .to_vec()
    }

    fn get(headers: &[(String, String)]) -> Request {
        let (method, target, host) = ("GET", "/a/b?c", "127.0.0.1:81");
        Request::http(0, &HttpRequest { method, target, host, headers, body: b"", close: false })
    }

    #[test]
    fn a_request_is_rendered_once() {
        assert_eq!(get(&[]).bytes(), b"GET /a/b?c HTTP/1.1\r\nHost: 127.0.0.1:81\r\n\r\n");
        let headers = [("host".to_owned(), "x".to_owned()), ("A".to_owned(), "b".to_owned())];
        let http = HttpRequest {
            method: "POST",
            target: "/",
            host: "y",
            headers: &headers,
            body: b"12345",
            close: true,
        };
        let request = Request::http(3, &http);
        let text = "POST / HTTP/1.1\r\nhost: x\r\nA: b\r\nContent-Length: 5\r\nConnection: close\r\n\r\n12345";
        assert_eq!(std::str::from_utf8(request.bytes()), Ok(text));
        assert_eq!((request.endpoint(), request.is_head()), (3, false));
    }

    #[test]
    fn a_redirect_leads_where_a_browser_would_go() {
        let headers = [("Cookie".to_owned(), "secret".to_owned())];
        let request = get(&headers);
        for (location, endpoint, line) in [
            ("/x", 0, "GET /x HTTP/1.1"),
            ("d?e", 0, "GET /a/d?e HTTP/1.1"),
            ("?e#part", 0, "GET /a/b?e HTTP/1.1"),
            ("http://127.0.0.1:82/x", 1, "GET /x HTTP/1.1"),
            ("//127.0.0.1:82", 1, "GET / HTTP/1.1"),
            ("HTTP://127.0.0.1:81?q", 0, "GET /?q HTTP/1.1"),
        ] {
            let next = request.redirected(302, location.as_bytes(), &endpoints());
            let next = next.unwrap_or_else(|| panic!("{location}"));
            let text = String::from_utf8(next.bytes().to_vec()).unwrap();
            assert!(text.starts_with(line), "{location}: {text}");
            assert_eq!(next.endpoint(), endpoint, "{location}");
            assert_eq!(text.contains("secret"), endpoint == 0, "{location}: {text}");
            assert_eq!(text.matches("Host: ").count(), 1, "{text}");
        }
        for elsewhere in ["http://127.0.0.1:83/", "https://127.0.0.1:81/", "/a b", ""] {
            assert!(request.redirected(302, elsewhere.as_bytes(), &endpoints()).is_none());
        }
    }

    #[test]
    fn a_post_becomes_a_get_where_browsers_make_it_one() {
        let (target, host) = ("/", "127.0.0.1:81");
        let http =
            HttpRequest { method: "POST", target, host, headers: &[], body: b"x", close: false };
        let post = Request::http(0, &http);
        for (status, line, length) in
            [(301, "GET", false), (303, "GET", false), (307, "POST", true), (308, "POST", true)]
        {
            let next = post.redirected(status, b"/y", &endpoints()).unwrap();
            let text = String::from_utf8(next.bytes().to_vec()).unwrap();
            assert!(text.starts_with(line), "{status}: {text}");
            assert_eq!(text.contains("Content-Length: 1"), length, "{status}: {text}");
        }
    }
}
