//! [`Request`]: a request and its target, rendered to bytes once. A redirect makes a new one from it.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering};

use wire::http::{EMPTY_HEADER, MAX_HEADERS, encode_request_head, parse_request};

use crate::Endpoint;
use crate::transport::connect_options::Route;
use crate::transport::fields::head_bytes;
use crate::transport::target_table::TargetTable;

/// The header that is sent only to the proxy.
const PROXY_AUTHORIZATION: &str = "Proxy-Authorization";

/// A rendered request, which can be sent any number of times.
#[derive(Clone, Debug, Default)]
pub struct Request {
    endpoint: u8,
    is_head: bool,
    kind: Kind,
    /// Unique for constant requests, 0 for others.
    id: u32,
    bytes: Vec<u8>,
}

/// The kind of a request. All but the first and calls need a driver with [`crate::transport::driver::Driver::PUSHES`].
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Kind {
    /// A request with an answer, such as one of HTTP.
    #[default]
    Plain,
    /// The head of a WebSocket handshake without its key, on a new connection.
    Connect,
    /// The same for Action Cable, until its welcome.
    ConnectCable,
    /// A text message.
    Text,
    /// A binary message.
    Binary,
    /// A ping, answered by its pong.
    Ping,
    /// A close frame, answered by that of the server.
    Close,
    /// An Action Cable command that is confirmed or rejected.
    Subscribe,
    /// Sends nothing and awaits a message.
    Await,
    /// A gRPC call that one message answers; the driver is [`crate::transport::http2_grpc::Http2Grpc`].
    Unary,
    /// A gRPC call that any number of messages answer.
    ServerStream,
    /// A gRPC call that stays open, on a connection of its own; its messages are [`Kind::Binary`].
    Call {
        /// Exactly one message answers it.
        has_one_answer: bool,
    },
}

impl Kind {
    /// Whether the connection stays usable after a failure.
    pub(crate) fn leaves_open(self) -> bool {
        use Kind::{Await, Binary, Ping, Subscribe, Text};
        matches!(self, Await | Binary | Ping | Subscribe | Text)
    }
}

/// The parts of an HTTP/1.1 request.
#[derive(Clone, Debug)]
pub struct HttpRequest<'a> {
    /// The method, such as `GET`.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// For the Host header, unless `headers` have one.
    pub host: &'a str,
    /// Additional headers, in order.
    pub headers: &'a [(String, String)],
    /// The body; may be empty.
    pub body: &'a [u8],
    /// Ask the server to close the connection after the answer.
    pub close: bool,
}

impl Request {
    /// A request of a private protocol to endpoint number `endpoint` of [`crate::workload::requests::config::Requests`].
    #[must_use]
    pub fn raw(endpoint: u8, bytes: Vec<u8>) -> Request {
        Request { endpoint, is_head: false, kind: Kind::Plain, id: 0, bytes }
    }

    /// An HTTP/1.1 request.
    #[must_use]
    pub fn http(endpoint: u8, http: &HttpRequest<'_>) -> Request {
        let mut request = Request::default();
        request.set_http(endpoint, http);
        request
    }

    /// Replaces it by an HTTP/1.1 request, reusing the memory.
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
        (self.endpoint, self.is_head, self.id) = (endpoint, method == "HEAD", 0);
    }

    /// An HTTP/1.1 request for the route of an endpoint: a forward proxy gets the absolute URL and its
    /// authorization. [`HttpRequest::host`] is replaced by the host of the endpoint.
    #[must_use]
    pub fn to(number: u8, endpoint: &Endpoint, http: &HttpRequest<'_>) -> Request {
        let http = HttpRequest { host: &endpoint.host, ..http.clone() };
        let Route::Forward(proxy) = &endpoint.route else { return Request::http(number, &http) };
        let target = format!("{}{}", endpoint.origin(), http.target);
        let mut headers = http.headers.to_vec();
        if !proxy.authorization.is_empty() {
            headers.push((PROXY_AUTHORIZATION.to_owned(), proxy.authorization.clone()));
        }
        Request::http(number, &HttpRequest { target: &target, headers: &headers, ..http })
    }

    /// Converts it to HTTP/1.0 (RFC 9112 section 2.3): the connection ends with the answer.
    #[must_use]
    pub fn as_http10(mut self) -> Request {
        let line = self.bytes.windows(2).position(|two| two == b"\r\n").unwrap_or(0);
        let version = self.bytes.get_mut(..line).filter(|line| line.ends_with(b"HTTP/1.1"));
        if let Some(last) = version.and_then(<[u8]>::last_mut) {
            *last = b'0';
        }
        self
    }

    /// Replaces it by what `render` writes.
    pub(crate) fn set_rendered(
        &mut self,
        endpoint: u8,
        is_head: bool,
        render: impl FnOnce(&mut Vec<u8>),
    ) {
        (self.endpoint, self.is_head, self.kind, self.id) = (endpoint, is_head, Kind::Plain, 0);
        self.bytes.clear();
        render(&mut self.bytes);
    }

    /// Replaces it by a message that `render` writes, for a WebSocket or to open one.
    pub(crate) fn set_message(
        &mut self,
        endpoint: u8,
        kind: Kind,
        render: impl FnOnce(&mut Vec<u8>),
    ) {
        self.set_rendered(endpoint, false, render);
        self.kind = kind;
    }

    /// A message of a kind for a WebSocket.
    #[must_use]
    pub fn message(endpoint: u8, kind: Kind, bytes: Vec<u8>) -> Request {
        Request { endpoint, is_head: false, kind, id: 0, bytes }
    }

    /// The same request as a constant one, which drivers may prepare once.
    #[must_use]
    pub fn constant(mut self) -> Request {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        self.id = NEXT.fetch_add(1, Ordering::Relaxed);
        self
    }

    /// A number that only copies of this request have; `None` unless it is constant.
    pub(crate) fn id(&self) -> Option<u32> {
        (self.id > 0).then_some(self.id)
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its target: an index of [`crate::workload::requests::config::Requests::endpoints`].
    #[must_use]
    pub fn endpoint(&self) -> u8 {
        self.endpoint
    }

    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it is HEAD, whose answer has no body.
    #[must_use]
    pub fn is_head(&self) -> bool {
        self.is_head
    }

    /// The request that follows a redirect by `status` to `location` (RFC 9110 section 15.4), as
    /// browsers do it: 303, and 301 and 302 after POST, become GET. `None` if the location is
    /// unusable.
    pub(crate) fn redirected(
        &self,
        status: u16,
        location: &[u8],
        targets: &TargetTable,
    ) -> Option<Request> {
        let head = head_bytes(&self.bytes)?;
        let (head, body) = self.bytes.split_at_checked(head)?;
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let asked = parse_request(head, &mut headers).ok()?;
        let location = std::str::from_utf8(location).ok()?;
        let from = as_path(asked.target);
        let (number, target) = targets.resolve_location(self.endpoint, &from, location)?;
        let becomes_get = match status {
            303 => asked.method != "HEAD",
            301 | 302 => asked.method == "POST",
            _ => false,
        };
        let method = if becomes_get { "GET" } else { asked.method };
        let moved = number != self.endpoint;
        let of_body = ["content-length", "content-type", "content-encoding", "transfer-encoding"];
        // Secrets of one server are not sent to another.
        let secret = ["host", "authorization", "cookie"];
        let is_left_out = |name: &str| {
            let is_one = |names: &[&str]| names.iter().any(|one| name.eq_ignore_ascii_case(one));
            is_one(&[PROXY_AUTHORIZATION])
                || becomes_get && is_one(&of_body)
                || moved && is_one(&secret)
        };
        let kept = asked.headers.iter().filter(|header| !is_left_out(header.name));
        let kept: Vec<(String, String)> = kept
            .filter_map(|header| {
                Some((header.name.to_owned(), String::from_utf8(header.value.to_vec()).ok()?))
            })
            .collect();
        let endpoint = targets.endpoint(number)?;
        let (headers, body) = (&kept[..], if becomes_get { &[][..] } else { body });
        let (target, host) = (&target, "");
        let http = HttpRequest { method, target, host, headers, body, close: false };
        let next = Request::to(number, &endpoint, &http);
        let is_old = head.split(|byte| *byte == b'\r').next();
        let is_old = is_old.is_some_and(|line| line.ends_with(b"HTTP/1.0"));
        Some(if is_old { next.as_http10() } else { next })
    }
}

/// A request target without scheme and host, which it has for a proxy.
fn as_path(target: &str) -> Cow<'_, str> {
    let Some((_, rest)) = target.split_once("://").filter(|_| !target.starts_with('/')) else {
        return Cow::Borrowed(target);
    };
    match rest.find(['/', '?']).and_then(|at| rest.get(at..)) {
        Some(path) if path.starts_with('/') => Cow::Borrowed(path),
        rest => Cow::Owned(format!("/{}", rest.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> TargetTable {
        let urls = ["http://127.0.0.1:81/", "http://127.0.0.1:82/"];
        TargetTable::new(&urls.map(|url| Endpoint::parse_web(url).unwrap()))
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
    fn redirects_resolve_as_in_browsers() {
        let headers = [("Cookie".to_owned(), "secret".to_owned())];
        let request = get(&headers);
        for (location, endpoint, line) in [
            ("/x", 0, "GET /x HTTP/1.1"),
            ("d?e", 0, "GET /a/d?e HTTP/1.1"),
            ("?e#part", 0, "GET /a/b?e HTTP/1.1"),
            ("http://127.0.0.1:82/x", 1, "GET /x HTTP/1.1"),
            ("//127.0.0.1:82", 1, "GET / HTTP/1.1"),
            ("HTTP://127.0.0.1:81?q", 0, "GET /?q HTTP/1.1"),
            ("http://127.0.0.1:83/", 2, "GET / HTTP/1.1"),
            ("https://127.0.0.1:81/z", 2, "GET /z HTTP/1.1"),
        ] {
            let next = request.redirected(302, location.as_bytes(), &targets());
            let next = next.unwrap_or_else(|| panic!("{location}"));
            let text = String::from_utf8(next.bytes().to_vec()).unwrap();
            assert!(text.starts_with(line), "{location}: {text}");
            assert_eq!(next.endpoint(), endpoint, "{location}");
            assert_eq!(text.contains("secret"), endpoint == 0, "{location}: {text}");
            assert_eq!(text.matches("Host: ").count(), 1, "{text}");
        }
        for elsewhere in
            ["http://127.0.0.1:99999/", "gopher://127.0.0.1/", "http://a@b/", "/a b", ""]
        {
            assert!(request.redirected(302, elsewhere.as_bytes(), &targets()).is_none());
        }
    }

    #[test]
    fn absolute_url_and_authorization_go_to_the_proxy_only() {
        let proxy = crate::Proxy::parse("u:p@127.0.0.1:80").unwrap();
        let options = std::sync::Arc::new(crate::ConnectOptions {
            proxy: Some(std::sync::Arc::new(proxy)),
            ..crate::ConnectOptions::default()
        });
        let endpoint = options.web("http://a.test/x?y").unwrap();
        let http = HttpRequest {
            method: "GET",
            target: &endpoint.path,
            host: "",
            headers: &[],
            body: b"",
            close: false,
        };
        let text = |request: &Request| String::from_utf8(request.bytes().to_vec()).unwrap();
        let request = Request::to(0, &endpoint, &http).as_http10();
        assert!(text(&request).starts_with("GET http://a.test/x?y HTTP/1.0\r\nHost: a.test\r\n"));
        assert_eq!(text(&request).matches("Proxy-Authorization: Basic dTpw\r\n").count(), 1);
        let targets = TargetTable::new(&[endpoint]);
        let next = request.redirected(302, b"z", &targets).unwrap();
        assert!(text(&next).starts_with("GET http://a.test/z HTTP/1.0\r\n"), "{}", text(&next));
        assert_eq!(text(&next).matches("Proxy-Authorization").count(), 1);
        let secure = request.redirected(302, b"https://a.test/z", &targets).unwrap();
        assert!(text(&secure).starts_with("GET /z HTTP/1.0\r\n"), "{}", text(&secure));
        assert!(!text(&secure).contains("Proxy-Authorization"), "the tunnel has it already");
    }

    #[test]
    fn redirected_post_becomes_get_as_in_browsers() {
        let (target, host) = ("/", "127.0.0.1:81");
        let http =
            HttpRequest { method: "POST", target, host, headers: &[], body: b"x", close: false };
        let post = Request::http(0, &http);
        for (status, line, length) in
            [(301, "GET", false), (303, "GET", false), (307, "POST", true), (308, "POST", true)]
        {
            let next = post.redirected(status, b"/y", &targets()).unwrap();
            let text = String::from_utf8(next.bytes().to_vec()).unwrap();
            assert!(text.starts_with(line), "{status}: {text}");
            assert_eq!(text.contains("Content-Length: 1"), length, "{status}: {text}");
        }
    }
}
