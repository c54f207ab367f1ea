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
use crate::transport::allowed;
use crate::transport::endpoint::Schemes;

/// How connections reach hosts.
#[derive(Clone, Default, Debug)]
pub struct ConnectOptions {
    /// The proxy of all connections.
    pub proxy: Option<Arc<Proxy>>,
    /// The UNIX socket of all connections, whatever the host.
    pub unix_socket: Option<Arc<Path>>,
    /// Configured addresses, which take precedence over the resolver.
    pub resolve: Vec<Resolve>,
    /// TLS settings for hosts that only a redirect leads to.
    pub tls: Option<TlsClient>,
    /// Requests are of HTTP/2: over TLS it is negotiated, otherwise the server must know (RFC 9113
    /// section 3.3). A proxy is asked for a tunnel in any case.
    pub http2: bool,
    /// How advice names flags.
    pub dialect: Dialect,
}

/// The command whose flags advice names.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Dialect {
    /// `standfast load`.
    #[default]
    Load,
    /// A scenario of `standfast load`.
    Scenario,
    /// `standfast stress`.
    Stress,
}

impl Dialect {
    /// What to do where HTTP/2 is not spoken.
    pub(crate) fn without_http2(self) -> &'static str {
        match self {
            Dialect::Load => "leave out --http2",
            Dialect::Scenario => "leave out http2 = true",
            Dialect::Stress => "leave out -http2",
        }
    }

    /// What to do where only HTTP/2 is spoken, without TLS.
    pub(crate) fn with_http2(self) -> &'static str {
        match self {
            Dialect::Load => "add --http2, or call methods of gRPC with grpc://",
            Dialect::Scenario => {
                "set http2 = true in [connect], or call methods of gRPC with the key grpc"
            }
            Dialect::Stress => {
                "use standfast load --http2, or call methods of gRPC with -u grpc://…"
            }
        }
    }

    /// How to trust a certificate that a private authority signed.
    pub(crate) fn trust(self) -> &'static str {
        match self {
            Dialect::Load | Dialect::Scenario => {
                "trust it with --ca FILE, or accept any with --insecure"
            }
            Dialect::Stress => {
                "trust it with SSL_CERT_FILE=FILE in the environment, or accept any with -k in a curl command of -p"
            }
        }
    }
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
    /// Directly to its address.
    Direct,
    /// No connection: its name did not resolve, for this reason.
    Unresolved(Arc<str>),
    /// To this UNIX socket.
    Unix(Arc<Path>),
    /// To a forward proxy, with absolute URLs (RFC 9112 section 3.2.2).
    Forward(Arc<Proxy>),
    /// Through a proxy tunnel opened by CONNECT (RFC 9110 section 9.3.6).
    Tunnel(Arc<Proxy>),
}

impl ConnectOptions {
    /// Options that connect directly. All callers share one instance.
    #[must_use]
    pub fn direct() -> Arc<ConnectOptions> {
        static DIRECT: LazyLock<Arc<ConnectOptions>> = LazyLock::new(Arc::default);
        Arc::clone(&DIRECT)
    }

    /// Parses and resolves `http://…` or `https://…`. A name that does not resolve is no error: the
    /// endpoint gets [`Route::Unresolved`] and its requests fail as `dns`.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn web(self: &Arc<ConnectOptions>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::WEB, url)
    }

    /// Parses and resolves `ws://…` or `wss://…`. Both use a tunnel through a proxy (RFC 6455 section
    /// 4.1).
    ///
    /// # Errors
    /// As [`ConnectOptions::web`].
    pub fn websocket(self: &Arc<ConnectOptions>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::WEBSOCKET, url)
    }

    /// Parses and resolves `grpc://HOST:PORT/SERVICE/METHOD` or, for TLS, `grpcs://…`.
    ///
    /// # Errors
    /// As [`ConnectOptions::web`].
    pub fn grpc(self: &Arc<ConnectOptions>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::GRPC, url)
    }

    /// Parses and resolves `grpc-web://HOST:PORT/SERVICE/METHOD` or, for TLS, `grpc-webs://…`.
    ///
    /// # Errors
    /// As [`ConnectOptions::web`].
    pub fn grpc_web(self: &Arc<ConnectOptions>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::GRPC_WEB, url)
    }

    /// Parses and resolves `grpc-web-text://HOST:PORT/SERVICE/METHOD` or, for TLS, `grpc-web-texts://…`.
    ///
    /// # Errors
    /// As [`ConnectOptions::web`].
    pub fn grpc_web_text(self: &Arc<ConnectOptions>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::GRPC_WEB_TEXT, url)
    }

    /// Parses and resolves `tcp://HOST:PORT` or, for TLS, `tls://HOST:PORT`.
    ///
    /// # Errors
    /// As [`ConnectOptions::web`].
    pub fn tcp(self: &Arc<ConnectOptions>, url: &str) -> Result<Endpoint, String> {
        self.endpoint(Schemes::TCP, url)
    }

    pub(crate) fn endpoint(
        self: &Arc<ConnectOptions>,
        schemes: Schemes,
        url: &str,
    ) -> Result<Endpoint, String> {
        let endpoint = Endpoint::read(schemes, url, self)?;
        Ok(self.resolved(endpoint, schemes.is_web))
    }

    /// Resolves the endpoint's address and route. Blocks while the resolver works.
    pub(crate) fn resolved(&self, mut endpoint: Endpoint, is_web: bool) -> Endpoint {
        match self.find_route(&endpoint, is_web) {
            Ok((address, route)) => {
                (endpoint.address, endpoint.route) = (address, route);
                if let Some(why) = allowed::refusal(&endpoint) {
                    // Nothing can connect there by mistake.
                    endpoint.address = SocketAddr::from(([127, 0, 0, 1], 0));
                    endpoint.route = Route::Unresolved(why.into());
                }
            }
            Err(why) => endpoint.route = Route::Unresolved(why.into()),
        }
        endpoint
    }

    /// The route of a host whose name resolves.
    pub(crate) fn route(&self, endpoint: &Endpoint, is_web: bool) -> Route {
        match (&self.unix_socket, &self.proxy) {
            (Some(path), _) => Route::Unix(Arc::clone(path)),
            (None, Some(proxy)) if is_web && !endpoint.tls && !self.http2 => {
                Route::Forward(Arc::clone(proxy))
            }
            (None, Some(proxy)) => Route::Tunnel(Arc::clone(proxy)),
            (None, None) => Route::Direct,
        }
    }

    fn find_route(&self, endpoint: &Endpoint, is_web: bool) -> Result<(SocketAddr, Route), String> {
        let route = self.route(endpoint, is_web);
        match &route {
            Route::Unix(_) => return Ok((endpoint.address, route)),
            Route::Forward(proxy) | Route::Tunnel(proxy) => {
                let address = look_up(&proxy.host).map_err(|why| format!("proxy: {why}"))?;
                return Ok((address, route));
            }
            Route::Direct | Route::Unresolved(_) => {}
        }
        let (name, port) = (endpoint.server_name(), endpoint.port().unwrap_or_default());
        let matches = |one: &&Resolve| one.port == port && one.host.eq_ignore_ascii_case(name);
        if let Some(one) = self.resolve.iter().find(matches) {
            return Ok((SocketAddr::new(one.address, port), Route::Direct));
        }
        let named = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
        Ok((look_up(&format!("{named}:{port}"))?, Route::Direct))
    }
}

impl Proxy {
    /// Parses `http://[USER:PASSWORD@]HOST:PORT`; the scheme is optional.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(url: &str) -> Result<Proxy, String> {
        let wrong =
            || format!("invalid HTTP proxy {url:?}: expected http://[USER:PASSWORD@]HOST:PORT");
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
    #[must_use]
    pub fn connect(&self, authority: &str) -> Vec<u8> {
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
        let wrong = || {
            format!(
                "invalid address override {text:?}: expected HOST:PORT:ADDRESS, as in example.com:443:127.0.0.1"
            )
        };
        // In curl a + lets the entry expire. Here none does.
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
    found.next().ok_or_else(|| format!("{named}: no address found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut ConnectOptions)) -> Arc<ConnectOptions> {
        let mut options = ConnectOptions::default();
        change(&mut options);
        Arc::new(options)
    }

    #[test]
    fn configured_address_applies_to_its_port() {
        let one = Resolve::parse("A.test:81:127.0.0.9").unwrap();
        let six = Resolve::parse("a.test:82:[::1],127.0.0.1").unwrap();
        let options = options(|options| options.resolve = vec![one, six]);
        let address = |url: &str| options.web(url).unwrap().address.to_string();
        assert_eq!(address("http://a.TEST:81/x"), "127.0.0.9:81");
        assert_eq!(address("https://a.test:82/"), "[::1]:82");
        let elsewhere = options.web("http://a.test:83/").unwrap();
        assert!(matches!(elsewhere.route, Route::Unresolved(_)), "{elsewhere:?}");
        for wrong in ["a", "a:80", "a:80:b", "a:x:127.0.0.1", ":80:127.0.0.1", ""] {
            assert!(Resolve::parse(wrong).unwrap_err().contains("HOST:PORT:ADDRESS"), "{wrong}");
        }
    }

    #[test]
    fn proxy_forwards_plain_http_and_tunnels_the_rest() {
        let proxy = Proxy::parse("http://me:w%3Ard@127.0.0.1:3128/").unwrap();
        assert_eq!(
            (proxy.host.as_str(), proxy.authorization.as_str()),
            ("127.0.0.1:3128", "Basic bWU6dzpyZA==")
        );
        let connect = String::from_utf8(proxy.connect("a:443")).unwrap();
        assert!(connect.starts_with("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nProxy-Auth"));
        let options = options(|options| options.proxy = Some(Arc::new(proxy)));
        for (endpoint, is_tunnel) in [
            (options.web("http://nowhere.invalid/"), false),
            (options.web("https://nowhere.invalid/"), true),
            (options.tcp("tcp://nowhere.invalid:1"), true),
            (options.websocket("ws://nowhere.invalid/"), true),
        ] {
            let endpoint = endpoint.unwrap();
            assert_eq!(endpoint.address.port(), 3128);
            assert_eq!(matches!(endpoint.route, Route::Tunnel(_)), is_tunnel, "{endpoint:?}");
            assert_eq!(matches!(endpoint.route, Route::Forward(_)), !is_tunnel, "{endpoint:?}");
        }
        for wrong in ["https://a:1", "socks5://a:1", "http://", "a", "http://a:b", "http://a:1/x"] {
            assert!(Proxy::parse(wrong).unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn unix_socket_is_used_for_every_host() {
        let options = options(|options| options.unix_socket = Some(Path::new("/s").into()));
        let endpoint = options.web("https://nowhere.invalid/").unwrap();
        assert_eq!(endpoint.route, Route::Unix(Path::new("/s").into()));
    }
}
