//! [`Hosts`]: the servers that a scenario's steps ask, each once, with where its name leads.

use anyhow::Result;
use load::Endpoint;
use load::scenario::Proxy;

use super::tables::{Said, Table};
use crate::units;

/// The servers so far.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) proxy: Option<Proxy>,
    /// Of the proxy.
    proxy_address: Option<String>,
    /// `HOST:PORT` and where it leads.
    resolve: Vec<(String, String)>,
}

/// A URL's two parts: `http://HOST:PORT`, and the rest.
pub(super) fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let is_known = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len()) + scheme.len() + 3;
    is_known.then(|| url.split_at(end))
}

impl Hosts {
    /// What `[connect]` says of ways to servers.
    pub(super) fn new(connect: Option<&Table<'_>>) -> Result<Hosts> {
        let Some(connect) = connect else { return Ok(Hosts::default()) };
        let resolve = connect.all("resolve", |text| {
            let wrong = || format!("{text:?}: write HOST:PORT:ADDRESS, example.com:443:127.0.0.1");
            let (host, rest) = text.split_once(':').ok_or_else(wrong)?;
            let (port, address) = rest.split_once(':').ok_or_else(wrong)?;
            let bare = address.trim_start_matches('[').trim_end_matches(']');
            let address = units::ip(bare)?;
            let port: u16 = port.parse().map_err(|_| wrong())?;
            let to = std::net::SocketAddr::new(address, port);
            Ok((format!("{}:{port}", host.to_ascii_lowercase()), to.to_string()))
        })?;
        let mut hosts = Hosts { resolve, ..Hosts::default() };
        if let Some((address, proxy)) = connect.parsed("proxy", proxy)? {
            (hosts.proxy, hosts.proxy_address) = (Some(proxy), Some(address));
        }
        Ok(hosts)
    }

    /// The number of a server, by its `http://HOST:PORT`.
    pub(super) fn number(&mut self, table: &Table<'_>, said: &Said, origin: &str) -> Result<u8> {
        let wrong = |error: String| table.doc.wrong(said.at, format!("{:?}: {error}", said.text));
        let (scheme, host) = origin.split_once("://").unwrap_or(("http", origin));
        if host.contains("{{") {
            return Err(wrong("the host must be fixed; templates go into path and query".into()));
        }
        let tls = scheme.eq_ignore_ascii_case("https");
        let same = |one: &Endpoint| one.tls == tls && one.host.eq_ignore_ascii_case(host);
        if let Some(number) = self.endpoints.iter().position(same) {
            return Ok(number as u8);
        }
        if tls && self.proxy.is_some() {
            return Err(wrong("https:// by a proxy is not there yet".to_owned()));
        }
        if self.endpoints.len() > usize::from(u8::MAX) {
            return Err(wrong("more than 256 servers".to_owned()));
        }
        let port = if tls { 443 } else { 80 };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let full = if has_port { host.to_owned() } else { format!("{host}:{port}") };
        let led = self.resolve.iter().find(|(name, _)| name.eq_ignore_ascii_case(&full));
        let to = self.proxy_address.as_ref().or(led.map(|(_, to)| to));
        let url = format!("{scheme}://{}/", to.map_or(host, String::as_str));
        let endpoint = Endpoint::parse_web(&url).map_err(wrong)?;
        self.endpoints.push(Endpoint { host: host.to_owned(), ..endpoint });
        Ok((self.endpoints.len() - 1) as u8)
    }
}

/// Where a proxy is, and what it is shown.
fn proxy(url: &str) -> Result<(String, Proxy), String> {
    let wrong = || format!("{url:?} is no proxy: write http://HOST:PORT");
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    let (pair, address) = match rest.rsplit_once('@') {
        Some((pair, address)) => (Some(pair), address),
        None => (None, rest),
    };
    if address.is_empty() || address.contains('/') {
        return Err(wrong());
    }
    let authorization = pair.map(|pair| load::scenario::basic(pair.as_bytes()));
    Ok((address.to_owned(), Proxy { authorization: authorization.unwrap_or_default() }))
}
