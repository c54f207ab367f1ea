//! [`ConnectOptions`]: how connections reach hosts: directly, through an HTTP proxy or a UNIX
//! socket, or at a configured address. [`Route`] is the result for one host.
//!
//! A name is resolved once: when the run begins, or when a redirect first leads to it.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::TlsClient;

use crate::Endpoint;
use crate::endpoint::Schemes;

/// How connections reach hosts.
#[derive(Clone, Default, Debug)]
pub struct Ways {
    /// All connections go by it.
    pub proxy: Option<Arc<Proxy>>,
    /// The UNIX socket of all connections, whatever the host.
    pub unix_socket: Option<Arc<Path>>,
    /// Configured addresses, which take precedence over the resolver.
    pub resolve: Vec<Resolve>,
    /// TLS settings for hosts that only a redirect leads to.
    pub tls: Option<TlsClient>,
}

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Proxy {
    /// `HOST:PORT`.
    pub host: String,
    /// The complete value of Proxy-Authorization; empty for none.
    pub authorization: String,
}

/// A configured address of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolve {
    /// Compared without case.
    pub host: String,
    /// The only port it applies to.
    pub port: u16,
    /// The address.
    pub address: IpAddr,
}

/// How connections reach one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    /// To its address.
    Straight,
    /// Not at all, for this reason: its name leads to no address.
    Nowhere(Arc<str>),
    /// To this file.
    Unix(Arc<Path>),
    /// To a proxy that is asked in its place, with whole URLs (RFC 9112 section 3.2.2).
    Asked(Arc<Proxy>),
    /// Through a tunnel that a proxy is asked for by CONNECT (RFC 9110 section 9.3.6).
    Tunnel(Arc<Proxy>),
}

impl Ways {
    /// To each host's own address. All callers get the same.
    #[must_use]
    pub fn straight() -> Arc<Ways> {
        static STRAIGHT: LazyLock<Arc<Ways>> = LazyLock::new(Arc::default);
        Arc::clone(&STRAIGHT)
    }

    /// Parses and resolves `http://…` or `https://…`. A name that does not resolve is no error: the
    /// endpoint gets [`Route::Unresolved`] and its requests fail as `dns`.
    ///
    /// # Errors
    /// What is wrong with the URL, as a text for people.
    pub fn web(self: &Arc<Ways>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::WEB, url)
    }

    /// Parses and resolves `http://…`.
    ///
    /// # Errors
    /// As [`Ways::web`].
    pub fn http(self: &Arc<Ways>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::HTTP, url)
    }

    /// Parses and resolves `ws://…` or `wss://…`. Both use a tunnel through a proxy (RFC 6455 section
    /// 4.1).
    ///
    /// # Errors
    /// As [`Ways::web`].
    pub fn websocket(self: &Arc<Ways>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::WEBSOCKET, url)
    }

    /// Parses and resolves `tcp://HOST:PORT` or, for TLS, `tls://HOST:PORT`.
    ///
    /// # Errors
    /// As [`Ways::web`].
    pub fn tcp(self: &Arc<Ways>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::TCP, url)
    }

    pub(crate) fn endpoint(
        self: &Arc<Ways>,
        schemes: Schemes,
        url: &str,
    ) -> Result<Endpoint, String> {
        let endpoint = Endpoint::read(schemes, url, self)?;
        Ok(self.led(endpoint, schemes.is_web))
    }

    /// Looks up where the endpoint's connections go, which may take as long as the resolver does.
    pub(crate) fn led(&self, mut endpoint: Endpoint, is_web: bool) -> Endpoint {
        match self.lead(&endpoint, is_web) {
            Ok((address, route)) => (endpoint.address, endpoint.route) = (address, route),
            Err(why) => endpoint.route = Route::Nowhere(why.into()),
        }
        endpoint
    }

    /// The route of a host whose name resolves.
    pub(crate) fn route(&self, endpoint: &Endpoint, is_web: bool) -> Route {
        match (&self.unix_socket, &self.proxy) {
            (Some(path), _) => Route::Unix(Arc::clone(path)),
            (None, Some(proxy)) if is_web && !endpoint.tls => Route::Asked(Arc::clone(proxy)),
            (None, Some(proxy)) => Route::Tunnel(Arc::clone(proxy)),
            (None, None) => Route::Straight,
        }
    }

    fn lead(&self, endpoint: &Endpoint, is_web: bool) -> Result<(SocketAddr, Route), String> {
        let route = self.route(endpoint, is_web);
        match &route {
            Route::Unix(_) => return Ok((endpoint.address, route)),
            Route::Asked(proxy) | Route::Tunnel(proxy) => {
                let address = look_up(&proxy.host).map_err(|why| format!("the proxy: {why}"))?;
                return Ok((address, route));
            }
            Route::Straight | Route::Nowhere(_) => {}
        }
        let (name, port) = (endpoint.server_name(), endpoint.port().unwrap_or_default());
        let said = |one: &&Resolve| one.port == port && one.host.eq_ignore_ascii_case(name);
        if let Some(one) = self.resolve.iter().find(said) {
            return Ok((SocketAddr::new(one.address, port), Route::Straight));
        }
        let named = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
        Ok((look_up(&format!("{named}:{port}"))?, Route::Straight))
    }
}

impl Proxy {
    /// Parses `http://[USER:PASSWORD@]HOST:PORT`; the scheme is optional.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(url: &str) -> Result<Proxy, String> {
        let wrong = || format!("{url:?} is no HTTP proxy: write http://[USER:PASSWORD@]HOST:PORT");
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(wrong()),
            None => url,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (pair, host) = match rest.rsplit_once('@') {
            Some((pair, host)) => (Some(pair), host),
            None => (None, rest),
        };
        let port = host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        let fits = |byte: u8| byte.is_ascii_graphic() && !b"/?#@".contains(&byte);
        if host.is_empty() || !host.bytes().all(fits) || !matches!(port, Some(Ok(_))) {
            return Err(wrong());
        }
        let authorization = pair.map(|pair| basic(&percent_decoded(pair))).unwrap_or_default();
        Ok(Proxy { host: host.to_owned(), authorization })
    }

    /// The CONNECT request for a tunnel to `HOST:PORT`.
    pub(crate) fn connect(&self, authority: &str) -> Vec<u8> {
        let mut head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
        if !self.authorization.is_empty() {
            head += &format!("Proxy-Authorization: {}\r\n", self.authorization);
        }
        head += "\r\n";
        head.into_bytes()
    }
}

impl Resolve {
    /// Parses `HOST:PORT:ADDRESS`, as curl's `--resolve` does. Of several addresses the first is used.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(text: &str) -> Result<Resolve, String> {
        let wrong = || format!("{text:?}: write HOST:PORT:ADDRESS, example.com:443:127.0.0.1");
        // A + says that the entry may grow old, which none here does.
        let bare = text.strip_prefix('+').unwrap_or(text);
        let (host, rest) = match bare.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
            Some(split) => split,
            None => bare.split_once(':').ok_or_else(wrong)?,
        };
        let (port, address) = rest.split_once(':').ok_or_else(wrong)?;
        let address = address.split(',').next().unwrap_or_default().trim_matches(['[', ']']);
        let (port, address) = (port.parse().ok(), address.parse().ok());
        let (Some(port), Some(address), false) = (port, address, host.is_empty()) else {
            return Err(wrong());
        };
        Ok(Resolve { host: host.to_owned(), port, address })
    }
}

/// `USER:PASSWORD` as the value of an Authorization header (RFC 7617).
#[must_use]
pub fn basic(pair: &[u8]) -> String {
    format!("Basic {}", STANDARD.encode(pair))
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| byte == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(value.unwrap_or(byte));
        rest = behind.get(if value.is_some() { 2 } else { 0 }..).unwrap_or_default();
    }
    out
}

fn look_up(named: &str) -> Result<SocketAddr, String> {
    let mut found = named.to_socket_addrs().map_err(|error| format!("{named}: {error}"))?;
    found.next().ok_or_else(|| format!("{named} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(change: impl FnOnce(&mut Ways)) -> Arc<Ways> {
        let mut ways = Ways::default();
        change(&mut ways);
        Arc::new(ways)
    }

    #[test]
    fn a_name_leads_where_it_was_said_to_on_that_port() {
        let one = Resolve::parse("A.test:81:127.0.0.9").unwrap();
        let six = Resolve::parse("a.test:82:[::1],127.0.0.1").unwrap();
        let ways = ways(|ways| ways.resolve = vec![one, six]);
        let address = |url: &str| ways.web(url).unwrap().address.to_string();
        assert_eq!(address("http://a.TEST:81/x"), "127.0.0.9:81");
        assert_eq!(address("https://a.test:82/"), "[::1]:82");
        let elsewhere = ways.web("http://a.test:83/").unwrap();
        assert!(matches!(elsewhere.route, Route::Nowhere(_)), "{elsewhere:?}");
        for wrong in ["a", "a:80", "a:80:b", "a:x:127.0.0.1", ":80:127.0.0.1", ""] {
            assert!(Resolve::parse(wrong).unwrap_err().contains("HOST:PORT:ADDRESS"), "{wrong}");
        }
    }

    #[test]
    fn a_proxy_is_asked_for_what_is_plain_and_for_tunnels_to_the_rest() {
        let proxy = Proxy::parse("http://me:w%3Ard@127.0.0.1:3128/").unwrap();
        assert_eq!(
            (proxy.host.as_str(), proxy.authorization.as_str()),
            ("127.0.0.1:3128", "Basic bWU6dzpyZA==")
        );
        let connect = String::from_utf8(proxy.connect("a:443")).unwrap();
        assert!(connect.starts_with("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nProxy-Auth"));
        let ways = ways(|ways| ways.proxy = Some(Arc::new(proxy)));
        for (endpoint, is_tunnel) in [
            (ways.web("http://nowhere.invalid/"), false),
            (ways.web("https://nowhere.invalid/"), true),
            (ways.tcp("tcp://nowhere.invalid:1"), true),
            (ways.websocket("ws://nowhere.invalid/"), true),
        ] {
            let endpoint = endpoint.unwrap();
            assert_eq!(endpoint.address.port(), 3128);
            assert_eq!(matches!(endpoint.route, Route::Tunnel(_)), is_tunnel, "{endpoint:?}");
            assert_eq!(matches!(endpoint.route, Route::Asked(_)), !is_tunnel, "{endpoint:?}");
        }
        for wrong in ["https://a:1", "socks5://a:1", "http://", "a", "http://a:b", "http://a:1/x"] {
            assert!(Proxy::parse(wrong).unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn a_socket_file_stands_for_every_host() {
        let ways = ways(|ways| ways.unix_socket = Some(Path::new("/s").into()));
        let endpoint = ways.web("https://nowhere.invalid/").unwrap();
        assert_eq!(endpoint.route, Route::Unix(Path::new("/s").into()));
    }
}
