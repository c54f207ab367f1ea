//! [`Endpoint`]: a URL of WebSockets, HTTP or plain TCP with its name already looked up.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use engine::TlsClient;

/// Where connections go.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// As in the Host header.
    pub host: String,
    /// Path and query.
    pub path: String,
    /// TLS is spoken there.
    pub tls: bool,
    /// How: to be set before the run where `tls` says so.
    pub client: Option<TlsClient>,
}

impl Endpoint {
    /// Reads a URL and looks its name up, which may take as long as the resolver does.
    ///
    /// # Errors
    /// A text for people: what is wrong with the URL, or that the name leads nowhere.
    pub fn parse(url: &str) -> Result<Endpoint, String> {
        Self::parse_as("ws", Some("wss"), url)
    }

    /// The same for a URL of HTTP.
    ///
    /// # Errors
    /// As [`Endpoint::parse`].
    pub fn parse_http(url: &str) -> Result<Endpoint, String> {
        Self::parse_as("http", None, url)
    }

    /// The same for a URL of HTTP whose connections may be secure: `http://` or `https://`.
    ///
    /// # Errors
    /// As [`Endpoint::parse`].
    pub fn parse_web(url: &str) -> Result<Endpoint, String> {
        Self::parse_as("http", Some("https"), url)
    }

    /// The same for plain TCP, `tcp://HOST:PORT`, or TLS over it, `tls://HOST:PORT`. The port must
    /// be there.
    ///
    /// # Errors
    /// As [`Endpoint::parse`].
    pub fn parse_tcp(url: &str) -> Result<Endpoint, String> {
        let endpoint = Self::parse_as("tcp", Some("tls"), url)?;
        if endpoint.server_name().len() == endpoint.host.trim_matches(['[', ']']).len() {
            return Err(format!("{url:?} needs a port: write tcp://HOST:PORT"));
        }
        Ok(endpoint)
    }

    /// The name or address without brackets and port, as a certificate holds it.
    #[must_use]
    pub fn server_name(&self) -> &str {
        let host = self.host.strip_prefix('[').and_then(|host| host.split_once(']'));
        let plain = || self.host.rsplit_once(':').map_or(self.host.as_str(), |(name, _)| name);
        host.map_or_else(plain, |(address, _)| address)
    }

    fn parse_as(expected: &str, secure: Option<&str>, url: &str) -> Result<Endpoint, String> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!("{url:?} is no URL: write {expected}://HOST:PORT/PATH"));
        };
        let tls = secure.is_some_and(|secure| scheme.eq_ignore_ascii_case(secure));
        if !tls && !scheme.eq_ignore_ascii_case(expected) {
            return Err(format!("{url:?}: this must be {expected}://, not {scheme}://"));
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        let path = match path.chars().next() {
            None => "/".to_owned(),
            Some('?') => format!("/{path}"),
            Some(_) => path.to_owned(),
        };
        if host.is_empty() || host.contains('@') || !is_header_text(host) || !is_header_text(&path)
        {
            return Err(format!("{url:?} is no usable URL: write {expected}://HOST:PORT/PATH"));
        }
        let port = if tls { 443 } else { 80 };
        let address = look_up(host, port).map_err(|error| format!("{url:?}: {error}"))?;
        Ok(Endpoint { address, host: host.to_owned(), path, tls, client: None })
    }

    /// Whether it is reached from any address of 127.0.0.0/8.
    pub(crate) fn is_ipv4_loopback(&self) -> bool {
        matches!(self.address.ip(), IpAddr::V4(ip) if ip.is_loopback())
    }
}

/// What may stand in a request line or header without breaking out of it.
fn is_header_text(text: &str) -> bool {
    text.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
}

fn look_up(host: &str, port: u16) -> Result<SocketAddr, String> {
    let unbracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Some(ip) = unbracketed.and_then(|ip| ip.parse().ok()) {
        return Ok(SocketAddr::new(ip, port));
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let named = if has_port { host.to_owned() } else { format!("{host}:{port}") };
    let mut found = named.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| format!("{host} has no address"))
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
    fn urls_come_apart() {
        let full = parsed("ws://127.0.0.1:8080/topics/a?x=1#part");
        assert_eq!(full, of("127.0.0.1:8080", "127.0.0.1:8080", "/topics/a?x=1"));
        assert_eq!(parsed("WS://127.0.0.1"), of("127.0.0.1:80", "127.0.0.1", "/"));
        assert_eq!(parsed("ws://[::1]:81?q"), of("[::1]:81", "[::1]:81", "/?q"));
        assert_eq!(parsed("ws://[::1]/"), of("[::1]:80", "[::1]", "/"));
        assert_eq!(parsed("wss://127.0.0.1/"), of("127.0.0.1:443", "127.0.0.1", "/"));
    }

    #[test]
    fn a_certificate_is_asked_for_the_host_alone() {
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
        assert!(Endpoint::parse_http("wss://127.0.0.1/").is_err());
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
    fn what_is_no_endpoint_is_named() {
        for url in ["127.0.0.1:80", "https://127.0.0.1/", "gopher://127.0.0.1/", "ws://", "ws:///x"]
        {
            let error = Endpoint::parse(url).unwrap_err();
            assert!(error.contains(url), "{error}");
        }
        assert!(Endpoint::parse("ws://127.0.0.1/a b").is_err());
        assert!(Endpoint::parse("ws://127.0.0.1/\r\nX: y").is_err());
        assert!(Endpoint::parse("ws://127.0.0.1:99999/").is_err());
    }
}
