//! [`Endpoint`]: a URL for WebSocket, HTTP or plain TCP whose name was resolved.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use engine::TlsClient;

use crate::transport::connect_options::{ConnectOptions, Route};

/// A target of connections.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Address and port of the host, or of the proxy that its [`Route`] uses.
    pub address: SocketAddr,
    /// As in the Host header.
    pub host: String,
    /// Path and query.
    pub path: String,
    /// Whether the target uses TLS.
    pub tls: bool,
    /// TLS settings; set before the run if `tls` is true.
    pub client: Option<TlsClient>,
    /// How connections reach it.
    pub route: Route,
    /// The options that resolved it. They also resolve the hosts that its answers redirect to.
    pub options: Arc<ConnectOptions>,
    /// The schemes of its protocol.
    pub(crate) schemes: Schemes,
}

/// The plain and the secure scheme of a protocol.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Schemes {
    pub(crate) plain: &'static str,
    pub(crate) secure: Option<&'static str>,
    /// Whether it is HTTP, which a forward proxy can relay without a tunnel.
    pub(crate) is_web: bool,
}

impl Schemes {
    pub(crate) const WEBSOCKET: Schemes =
        Schemes { plain: "ws", secure: Some("wss"), is_web: false };
    pub(crate) const WEB: Schemes = Schemes { plain: "http", secure: Some("https"), is_web: true };
    pub(crate) const GRPC: Schemes = Schemes { plain: "grpc", secure: Some("grpcs"), is_web: true };
    pub(crate) const GRPC_WEB: Schemes =
        Schemes { plain: "grpc-web", secure: Some("grpc-webs"), is_web: true };
    pub(crate) const GRPC_WEB_TEXT: Schemes =
        Schemes { plain: "grpc-web-text", secure: Some("grpc-web-texts"), is_web: true };
    pub(crate) const TCP: Schemes = Schemes { plain: "tcp", secure: Some("tls"), is_web: false };
}

impl Endpoint {
    /// Parses a WebSocket URL and resolves its name. Blocks while the resolver works.
    ///
    /// # Errors
    /// What is wrong with the URL, or why the name does not resolve.
    pub fn parse(url: &str) -> Result<Endpoint, String> {
        Self::parse_as(Schemes::WEBSOCKET, url)?.found(url)
    }

    /// Parses an `http://` or `https://` URL.
    ///
    /// # Errors
    /// As [`Endpoint::parse`].
    pub fn parse_web(url: &str) -> Result<Endpoint, String> {
        Self::parse_as(Schemes::WEB, url)?.found(url)
    }

    /// Parses `tcp://HOST:PORT` or, for TLS, `tls://HOST:PORT`. The port is required.
    ///
    /// # Errors
    /// As [`Endpoint::parse`].
    pub fn parse_tcp(url: &str) -> Result<Endpoint, String> {
        Self::parse_as(Schemes::TCP, url)?.found(url)
    }

    fn parse_as(schemes: Schemes, url: &str) -> Result<Endpoint, String> {
        ConnectOptions::direct().endpoint(schemes, url)
    }

    fn found(self, url: &str) -> Result<Endpoint, String> {
        match &self.route {
            Route::Unresolved(why) => Err(format!("{url:?}: {why}")),
            _ => Ok(self),
        }
    }

    /// Parses a URL without resolving its name.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub(crate) fn read(
        schemes: Schemes,
        url: &str,
        options: &Arc<ConnectOptions>,
    ) -> Result<Endpoint, String> {
        let expected = schemes.plain;
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!("invalid URL {url:?}: expected {expected}://HOST:PORT/PATH"));
        };
        let tls = schemes.secure.is_some_and(|secure| scheme.eq_ignore_ascii_case(secure));
        if !tls && !scheme.eq_ignore_ascii_case(expected) {
            return Err(format!("invalid URL {url:?}: expected {expected}://, not {scheme}://"));
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        let path = match path.chars().next() {
            None => "/".to_owned(),
            Some('?') => format!("/{path}"),
            Some(_) => path.to_owned(),
        };
        let wrong = |why: &str| format!("invalid URL {url:?}: {why}");
        let hint = format!("expected {expected}://HOST:PORT/PATH");
        if host.is_empty() {
            return Err(wrong(&format!("no host; {hint}")));
        }
        if let Some(why) = unusable(host, &path) {
            return Err(wrong(why));
        }
        let endpoint = Endpoint {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            host: host.to_owned(),
            path,
            tls,
            client: None,
            route: Route::Unresolved("not resolved".into()),
            options: Arc::clone(options),
            schemes,
        };
        if schemes == Schemes::TCP && endpoint.explicit_port().is_none() {
            return Err(format!("invalid URL {url:?}: no port; expected tcp://HOST:PORT"));
        }
        if endpoint.port().is_none() {
            return Err(wrong(&format!("the port is not a number up to 65535; {hint}")));
        }
        Ok(endpoint)
    }

    /// The explicit port or that of the scheme; `None` if it is not a number.
    pub fn port(&self) -> Option<u16> {
        match self.explicit_port() {
            Some(port) => port.parse().ok(),
            None if self.tls => Some(443),
            None => Some(80),
        }
    }

    fn explicit_port(&self) -> Option<&str> {
        let named = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, rest)| rest);
        named.rsplit_once(':').map(|(_, port)| port)
    }

    /// The origin: `https://HOST`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.host)
    }

    /// The name or address without brackets and port, as in a certificate.
    #[must_use]
    pub fn server_name(&self) -> &str {
        let host = self.host.strip_prefix('[').and_then(|host| host.split_once(']'));
        let plain = || self.host.rsplit_once(':').map_or(self.host.as_str(), |(name, _)| name);
        host.map_or_else(plain, |(address, _)| address)
    }

    /// Whether any address of 127.0.0.0/8 can connect to it.
    pub(crate) fn is_ipv4_loopback(&self) -> bool {
        matches!(self.address.ip(), IpAddr::V4(ip) if ip.is_loopback())
    }
}

/// Returns why a host or path is unsafe in a request line or header.
fn unusable(host: &str, path: &str) -> Option<&'static str> {
    let has = |wrong: fn(&char) -> bool| host.chars().chain(path.chars()).any(|c| wrong(&c));
    if host.contains('@') {
        return Some(
            "a user and password in the URL are not sent; pass them as a header, \
             -H 'Authorization: Basic …'",
        );
    }
    if has(|c| c.is_whitespace() || c.is_ascii_control()) {
        return Some("it contains a space or an end of line; write a space as %20");
    }
    has(|c| !c.is_ascii()).then_some(
        "it contains a character that is not ASCII; encode a path with %XX, a host as xn--…",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (String, String, String) {
        let endpoint = Endpoint::parse(url).unwrap();
        (endpoint.address.to_string(), endpoint.host, endpoint.path)
    }

    fn of(address: &str, host: &str, path: &str) -> (String, String, String) {
        (address.to_owned(), host.to_owned(), path.to_owned())
    }

    #[test]
    fn urls_are_split_into_address_host_and_path() {
        let full = parsed("ws://127.0.0.1:8080/topics/a?x=1#part");
        assert_eq!(full, of("127.0.0.1:8080", "127.0.0.1:8080", "/topics/a?x=1"));
        assert_eq!(parsed("WS://127.0.0.1"), of("127.0.0.1:80", "127.0.0.1", "/"));
        assert_eq!(parsed("ws://[::1]:81?q"), of("[::1]:81", "[::1]:81", "/?q"));
        assert_eq!(parsed("ws://[::1]/"), of("[::1]:80", "[::1]", "/"));
        assert_eq!(parsed("wss://127.0.0.1/"), of("127.0.0.1:443", "127.0.0.1", "/"));
    }

    #[test]
    fn server_name_is_the_host_without_port() {
        for (url, name) in [
            ("wss://127.0.0.1:81/", "127.0.0.1"),
            ("wss://[::1]:81/", "::1"),
            ("wss://[::1]/", "::1"),
            ("wss://localhost/", "localhost"),
        ] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!((endpoint.server_name(), endpoint.tls), (name, true));
        }
        assert!(!Endpoint::parse("ws://127.0.0.1/").unwrap().tls);
        assert!(Endpoint::parse_web("wss://127.0.0.1/").is_err());
    }

    #[test]
    fn http_and_tcp_have_their_own_schemes() {
        let web = Endpoint::parse_web("https://127.0.0.1/a").unwrap();
        assert_eq!((web.address.port(), web.tls), (443, true));
        assert!(!Endpoint::parse_web("http://127.0.0.1").unwrap().tls);
        assert!(Endpoint::parse_tcp("tls://[::1]:7").unwrap().tls);
        assert_eq!(Endpoint::parse_tcp("tcp://127.0.0.1:7").unwrap().address.port(), 7);
        for url in ["tcp://127.0.0.1", "tcp://[::1]", "http://127.0.0.1:7"] {
            assert!(Endpoint::parse_tcp(url).unwrap_err().contains(url));
        }
    }

    #[test]
    fn errors_quote_the_url_and_the_reason() {
        for url in ["127.0.0.1:80", "https://127.0.0.1/", "gopher://127.0.0.1/", "ws://", "ws:///x"]
        {
            let error = Endpoint::parse(url).unwrap_err();
            assert!(error.contains(url), "{error}");
        }
        for (url, why) in [
            ("ws://127.0.0.1/a b", "%20"),
            ("ws://127.0.0.1/\r\nX: y", "end of line"),
            ("ws://127.0.0.1/\u{7f}", "end of line"),
            ("ws://127.0.0.1/ä", "not ASCII"),
            ("ws://bücher.test/", "xn--"),
            ("ws://me:word@127.0.0.1/", "Authorization"),
            ("ws://127.0.0.1:99999/", "port"),
            ("ws:///x", "no host"),
        ] {
            let error = Endpoint::parse(url).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
