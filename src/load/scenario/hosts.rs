//! [`Hosts`]: the servers that a scenario's steps ask, each once, with where its name leads.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use engine::TlsClient;
use load::{Endpoint, Proxy, Resolve, Ways};

use super::tables::{Said, Table};

/// The servers so far.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) endpoints: Vec<Endpoint>,
    ways: Arc<Ways>,
}

/// A URL's two parts: `http://HOST:PORT`, and the rest.
pub(super) fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let is_known = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len()) + scheme.len() + 3;
    is_known.then(|| url.split_at(end))
}

impl Hosts {
    /// What `[connect]` says of ways to servers; `folder` is where its files are, and `tls` how TLS
    /// is spoken with hosts that only a redirect leads to.
    pub(super) fn new(
        connect: Option<&Table<'_>>,
        folder: &Path,
        tls: Option<TlsClient>,
    ) -> Result<Hosts> {
        let mut ways = Ways { tls, ..Ways::default() };
        if let Some(connect) = connect {
            ways.resolve = connect.all("resolve", Resolve::parse)?;
            ways.proxy = connect.parsed("proxy", Proxy::parse)?.map(Arc::new);
            let file = connect.said("unix_socket")?;
            ways.unix_socket = file.map(|file| folder.join(file.text).into());
            if ways.proxy.is_some() && ways.unix_socket.is_some() {
                let what = "proxy and unix_socket are two ways: give one";
                return Err(connect.doc.wrong(connect.at, what));
            }
        }
        Ok(Hosts { endpoints: Vec::new(), ways: Arc::new(ways) })
    }

    /// An HTTP proxy stands before all of them.
    pub(super) fn is_by_proxy(&self) -> bool {
        self.ways.proxy.is_some()
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
        if self.endpoints.len() >= usize::from(u8::MAX) {
            return Err(wrong("more than 255 servers".to_owned()));
        }
        self.endpoints.push(self.ways.web(&format!("{scheme}://{host}/")).map_err(wrong)?);
        Ok((self.endpoints.len() - 1) as u8)
    }
}
