//! [`Renderer`]: renders a step to the bytes of a request (RFC 9112). A redirect changes its target and
//! drops parts of it, as in browsers (RFC 9110 section 15.4).

use std::io::Write;
use std::sync::Arc;

use crate::Endpoint;
use crate::transport::connect_options::{Route, basic};
use crate::workload::scenario::cookies::{CookieJar, Site};
use crate::workload::scenario::template::Values;
use crate::workload::scenario::{Scenario, Step};

/// A redirect that a user follows.
#[derive(Clone, Debug)]
pub(crate) struct Follow {
    pub(crate) endpoint: u8,
    /// The endpoint.
    pub(crate) at: Arc<Endpoint>,
    pub(crate) target: String,
    pub(crate) hops: u8,
    /// The method has become GET.
    pub(crate) becomes_get: bool,
    /// It leads to another server, which must not get secrets.
    pub(crate) moved: bool,
}

/// Reused buffers.
#[derive(Default, Debug)]
pub(crate) struct Renderer {
    target: Vec<u8>,
    body: Vec<u8>,
    pair: Vec<u8>,
}

/// The parts of a request.
#[derive(Copy, Clone)]
pub(crate) struct RenderContext<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) step: &'a Step,
    /// Its target, after redirects.
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) values: Values<'a>,
    pub(crate) jar: Option<&'a CookieJar>,
    pub(crate) follow: Option<&'a Follow>,
}

impl RenderContext<'_> {
    pub(crate) fn number(&self) -> u8 {
        self.follow.map_or(self.step.endpoint, |follow| follow.endpoint)
    }

    pub(crate) fn method(&self) -> &str {
        match self.follow {
            Some(follow) if follow.becomes_get => "GET",
            _ => &self.step.method,
        }
    }

    fn has_body(&self) -> bool {
        !self.follow.is_some_and(|follow| follow.becomes_get)
    }

    fn leaves_out(&self, name: &str) -> bool {
        let is_one = |names: &[&str]| names.iter().any(|one| name.eq_ignore_ascii_case(one));
        let moved = self.follow.is_some_and(|follow| follow.moved);
        let of_body = ["content-type", "content-length", "content-encoding"];
        let secret = ["host", "authorization", "cookie"];
        !self.has_body() && is_one(&of_body) || moved && is_one(&secret)
    }
}

impl Renderer {
    /// Replaces `out` by the rendered request.
    pub(crate) fn render(&mut self, asked: &RenderContext<'_>, out: &mut Vec<u8>) {
        let endpoint = asked.endpoint;
        out.clear();
        self.render_target(asked);
        out.extend_from_slice(asked.method().as_bytes());
        out.push(b' ');
        let by_proxy = match &endpoint.route {
            Route::Forward(proxy) => Some(proxy),
            _ => None,
        };
        if by_proxy.is_some() {
            out.extend_from_slice(b"http://");
            out.extend_from_slice(endpoint.host.as_bytes());
        }
        out.extend_from_slice(&self.target);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let says = |name: &str| {
            let mut names = asked.step.headers.iter().map(|(one, _)| one);
            names.any(|one| one.eq_ignore_ascii_case(name) && !asked.leaves_out(name))
        };
        if !says("host") {
            line(out, "Host", endpoint.host.as_bytes());
        }
        if let Some(proxy) = by_proxy.filter(|proxy| !proxy.authorization.is_empty()) {
            line(out, "Proxy-Authorization", proxy.authorization.as_bytes());
        }
        self.headers(asked, out);
        self.cookies(asked, endpoint, out);
        if asked.scenario.close && !says("connection") {
            line(out, "Connection", b"close");
        }
        self.body(asked, says("content-length") || says("transfer-encoding"), out);
    }

    /// The request target of a step.
    pub(crate) fn target(&mut self, asked: &RenderContext<'_>) -> &[u8] {
        self.render_target(asked);
        &self.target
    }

    fn render_target(&mut self, asked: &RenderContext<'_>) {
        self.target.clear();
        match asked.follow {
            Some(follow) => self.target.extend_from_slice(follow.target.as_bytes()),
            None => asked.step.target.render(&mut self.target, &asked.values),
        }
        if self.target.starts_with(b"/") {
            return;
        }
        // A captured link may be an absolute URL.
        let origin = asked.endpoint.origin();
        if self.target.starts_with(origin.as_bytes()) {
            self.target.drain(..origin.len());
        }
        if !self.target.starts_with(b"/") {
            self.target.insert(0, b'/');
        }
    }

    fn headers(&mut self, asked: &RenderContext<'_>, out: &mut Vec<u8>) {
        for (name, value) in &asked.step.headers {
            if !asked.leaves_out(name) && !name.eq_ignore_ascii_case("cookie") {
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(b": ");
                value.render(out, &asked.values);
                out.extend_from_slice(b"\r\n");
            }
        }
        if let Some(pair) = asked.step.basic.as_ref().filter(|_| !asked.leaves_out("authorization"))
        {
            self.pair.clear();
            pair.render(&mut self.pair, &asked.values);
            line(out, "Authorization", basic(&self.pair).as_bytes());
        }
    }

    /// Renders one Cookie header (RFC 6265 section 5.4): cookies of the step and of the jar.
    fn cookies(&self, asked: &RenderContext<'_>, endpoint: &Endpoint, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(b"Cookie: ");
        let empty = out.len();
        let own = asked.step.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("cookie"));
        if let Some((_, value)) = own.filter(|_| !asked.leaves_out("cookie")) {
            value.render(out, &asked.values);
        }
        if let Some(jar) = asked.jar {
            let path = std::str::from_utf8(&self.target).unwrap_or("/");
            let site = Site { host: endpoint.server_name(), path, secure: endpoint.tls };
            let before = out.len();
            if before > empty {
                out.extend_from_slice(b"; ");
            }
            if !jar.render(out, &site, asked.values.now_ms) {
                out.truncate(before);
            }
        }
        match out.len() > empty {
            true => out.extend_from_slice(b"\r\n"),
            false => out.truncate(begin),
        }
    }

    fn body(&mut self, asked: &RenderContext<'_>, framed: bool, out: &mut Vec<u8>) {
        self.body.clear();
        if let Some(body) = asked.step.body.as_ref().filter(|_| asked.has_body()) {
            body.render(&mut self.body, &asked.values);
        }
        let expected = matches!(asked.method(), "POST" | "PUT" | "PATCH");
        if !framed && (expected || !self.body.is_empty()) {
            let _ = write!(out, "Content-Length: {}\r\n", self.body.len());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for bytes in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(bytes);
    }
}
