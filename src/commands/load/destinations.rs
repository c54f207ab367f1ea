//! Where a run goes, and from where: what runs of sockets and of requests read alike.

use std::net::UdpSocket;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use load::{Endpoint, Route, Ways};

use super::flags::Args;
use super::{scenario, urls};
use crate::settings::nearest;

/// All URLs, each of a range by itself.
///
/// # Errors
/// What is no range.
pub(super) fn urls(args: &Args) -> Result<Vec<String>> {
    let urls = args.urls.iter().map(|url| urls::expand(url, load::ENDPOINTS_MAX));
    let urls: Result<Vec<Vec<String>>, String> = urls.collect();
    Ok(urls.map_err(anyhow::Error::msg)?.into_iter().flatten().collect())
}

/// What a URL may begin with.
const SCHEMES: [&str; 8] = ["http", "https", "ws", "wss", "cable", "cables", "tcp", "tls"];

/// Looks whether the first URL is one: by its scheme it is decided what a run is.
///
/// # Errors
/// It is none, and what was probably meant.
pub(super) fn check_first(urls: &[String]) -> Result<()> {
    let Some(url) = urls.first() else { return Ok(()) };
    if let Some((scheme, rest)) = url.split_once("://") {
        let lower = scheme.to_ascii_lowercase();
        if SCHEMES.contains(&lower.as_str()) {
            return Ok(());
        }
        let near = nearest(&lower, SCHEMES.into_iter());
        let near = near.map(|near| format!("; did you mean {near}://{rest}?")).unwrap_or_default();
        bail!("{url:?}: {scheme}:// is none of {}{near}", SCHEMES.join(", "));
    }
    if url.contains([':', '/', '.']) || url == "localhost" {
        bail!(
            "{url:?} has no scheme: write http://{url} for requests, ws://{url} for WebSockets \
             (a scenario is a file, FILE.toml)"
        );
    }
    let known = scenario::names();
    let near = nearest(url, known.clone());
    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    let known = known.collect::<Vec<_>>().join(", ");
    bail!(
        "{url:?} is no URL, no file here, and none of the scenarios that are built in ({known}){near}"
    )
}

/// How connections get to their hosts, and to those that answers redirect to.
///
/// # Errors
/// Files of TLS that cannot be used.
pub(super) fn ways(args: &Args) -> Result<Arc<Ways>> {
    Ok(Arc::new(Ways {
        proxy: args.proxy.clone().map(Arc::new),
        unix_socket: args.unix_socket.as_deref().map(Arc::from),
        resolve: args.resolve.clone(),
        tls: if args.requests.redirects > 0 { args.tls.for_redirects()? } else { None },
    }))
}

/// Where publications go: straight, whatever way connections take, but to where `--resolve` says.
///
/// # Errors
/// What is wrong with the URL.
pub(super) fn publish(args: &Args, url: &str) -> Result<Endpoint> {
    let ways = Arc::new(Ways { resolve: args.resolve.clone(), ..Ways::default() });
    ways.http(url).map_err(anyhow::Error::msg)
}

/// Looks whether all sources are addresses of this machine that lead to all endpoints.
///
/// # Errors
/// One is none, or does not.
pub(super) fn check_sources(args: &Args, endpoints: &[Endpoint]) -> Result<()> {
    let by_address =
        |endpoint: &&Endpoint| !matches!(endpoint.route, Route::Nowhere(_) | Route::Unix(_));
    for &source in &args.source {
        let strange = |e: &&Endpoint| e.address.is_ipv4() != source.is_ipv4();
        if let Some(other) = endpoints.iter().filter(by_address).find(strange) {
            bail!("--source {source}: cannot reach {} from there", other.address);
        }
        // Binding is how to ask whether an address is ours.
        UdpSocket::bind((source, 0))
            .with_context(|| format!("--source {source} is no address of this machine"))?;
    }
    Ok(())
}

/// What is said of endpoints whose names lead nowhere: their requests, or whatever goes there, fail
/// one by one.
pub(crate) fn tell_lost(endpoints: &[Endpoint], what: &str) {
    for endpoint in endpoints {
        if let Route::Nowhere(why) = &endpoint.route {
            eprintln!("note: {} is not found, so its {what} fail as dns: {why}", endpoint.host);
        }
    }
}
