//! [`Hosts`]: the servers of a scenario's steps without duplicates, with their connect options.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use engine::TlsClient;
use load::grpc::Variant;
use load::{ConnectOptions, Dialect, Endpoint, Proxy, Resolve};

use super::tables::{Located, Table};

/// The servers found so far.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) endpoints: Vec<Endpoint>,
    /// Pairs of a server and its second endpoint for sockets, which uses a tunnel.
    for_sockets: Vec<(u8, u8)>,
    options: Arc<ConnectOptions>,
}

/// A URL of gRPC as one of HTTP, over which calls are made; others stay as they are.
pub(super) fn as_http(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://").filter(|_| variant(url).is_some()) else {
        return url.to_owned();
    };
    let ours = if scheme.ends_with(['s', 'S']) { "https" } else { "http" };
    format!("{ours}://{rest}")
}

/// The form of gRPC that a URL asks for; `None` if its scheme is none of gRPC.
pub(super) fn variant(url: &str) -> Option<Variant> {
    url.split_once("://").and_then(|(scheme, _)| Variant::of_scheme(scheme))
}

/// Splits a URL into `http://HOST:PORT` and the rest.
pub(super) fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let is_known = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len()) + scheme.len() + 3;
    is_known.then(|| url.split_at(end))
}

impl Hosts {
    /// Reads the options of `[connect]`; paths in it are relative to `folder`. `tls` applies to hosts
    /// that are reached only by redirects. With `calls` everything is HTTP/2.
    pub(super) fn new(
        connect: Option<&Table<'_>>,
        folder: &Path,
        tls: Option<TlsClient>,
        calls: bool,
    ) -> Result<Hosts> {
        let dialect = Dialect::Scenario;
        let mut options =
            ConnectOptions { tls, http2: calls, dialect, ..ConnectOptions::default() };
        if let Some(connect) = connect {
            options.http2 |= connect.boolean("http2")?.unwrap_or(false);
            options.tls = options.tls.map(|tls| if options.http2 { tls.for_http2() } else { tls });
            options.resolve = connect.all("resolve", Resolve::parse)?;
            options.proxy = connect.parsed("proxy", Proxy::parse)?.map(Arc::new);
            let file = connect.text("unix_socket")?;
            options.unix_socket = file.map(|file| folder.join(file.text).into());
            if options.proxy.is_some() && options.unix_socket.is_some() {
                let what = "proxy and unix_socket exclude each other: set one";
                return Err(connect.doc.wrong(connect.at, what));
            }
        }
        Ok(Hosts { endpoints: Vec::new(), for_sockets: Vec::new(), options: Arc::new(options) })
    }

    /// Returns the number of the endpoint for sockets of a server. Through a proxy, sockets use a
    /// tunnel, while plain requests are sent to the proxy.
    ///
    /// # Errors
    /// Too many servers.
    pub(super) fn for_sockets(&mut self, number: u8) -> Result<u8, String> {
        let Some(server) = self.endpoints.get(usize::from(number)) else {
            engine::invariant::broken("a step's server is in the list");
            return Ok(number);
        };
        if self.options.proxy.is_none() || server.tls {
            return Ok(number);
        }
        if let Some((_, own)) = self.for_sockets.iter().find(|(one, _)| *one == number) {
            return Ok(*own);
        }
        let own = self.add(self.options.websocket(&format!("ws://{}/", server.host)))?;
        self.for_sockets.push((number, own));
        Ok(own)
    }

    fn add(&mut self, endpoint: Result<Endpoint, String>) -> Result<u8, String> {
        if self.endpoints.len() >= usize::from(u8::MAX) {
            return Err("too many servers: expected at most 255".to_owned());
        }
        self.endpoints.push(endpoint?);
        Ok((self.endpoints.len() - 1) as u8)
    }

    /// Returns the number of a server, given as `http://HOST:PORT`.
    pub(super) fn number(
        &mut self,
        table: &Table<'_>,
        located: &Located,
        origin: &str,
    ) -> Result<u8> {
        let wrong =
            |error: String| table.doc.wrong(located.at, format!("{:?}: {error}", located.text));
        let (scheme, host) = origin.split_once("://").unwrap_or(("http", origin));
        if host.contains("{{") {
            return Err(wrong(
                "the host must be fixed: use templates only in path and query".into(),
            ));
        }
        let tls = scheme.eq_ignore_ascii_case("https");
        let same = |one: &Endpoint| one.tls == tls && one.host.eq_ignore_ascii_case(host);
        if let Some(number) = self.endpoints.iter().position(same) {
            return Ok(number as u8);
        }
        self.add(self.options.web(&format!("{scheme}://{host}/"))).map_err(wrong)
    }
}
