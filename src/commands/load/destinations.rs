//! Targets and source addresses of a run, for WebSockets and requests alike.

use std::net::UdpSocket;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use load::{ConnectOptions, Endpoint, Route};

use super::flags::Args;
use super::{requests, scenario, urls};
use crate::output;
use crate::settings::nearest;

/// Returns all URLs with ranges expanded.
///
/// # Errors
/// An invalid range.
pub(super) fn urls(args: &Args) -> Result<Vec<String>> {
    let urls = args.urls.iter().map(|url| urls::expand(url, load::ENDPOINTS_MAX));
    let urls: Result<Vec<Vec<String>>, String> = urls.collect();
    Ok(urls.map_err(anyhow::Error::msg)?.into_iter().flatten().collect())
}

/// The supported URL schemes.
const SCHEMES: [&str; 14] = [
    "http",
    "https",
    "ws",
    "wss",
    "cable",
    "cables",
    "grpc",
    "grpcs",
    "grpc-web",
    "grpc-webs",
    "grpc-web-text",
    "grpc-web-texts",
    "tcp",
    "tls",
];

/// Checks the first URL, whose scheme decides the kind of run.
///
/// # Errors
/// An invalid URL, with the nearest match.
pub(super) fn check_first(urls: &[String]) -> Result<()> {
    let Some(url) = urls.first() else { return Ok(()) };
    if let Some((scheme, rest)) = url.split_once("://") {
        let lower = scheme.to_ascii_lowercase();
        if SCHEMES.contains(&lower.as_str()) {
            return Ok(());
        }
        let near = nearest(&lower, SCHEMES.into_iter());
        let near = near.map(|near| format!(", did you mean {near}://{rest}?")).unwrap_or_default();
        bail!("unsupported scheme in {url:?}{near} (expected one of {})", SCHEMES.join(", "));
    }
    if url.contains([':', '/', '.']) || url == "localhost" {
        bail!(
            "missing scheme in {url:?}: expected http://{url} for requests or ws://{url} for \
             WebSockets (or a scenario, FILE.toml)"
        );
    }
    let known = scenario::built_in_names();
    let near = nearest(url, known.clone());
    let near = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
    let known = known.collect::<Vec<_>>().join(", ");
    bail!(
        "{url:?} is neither a URL nor a scenario file nor a built-in scenario{near} (built in: {known})"
    )
}

/// Returns the connect options for targets and redirect targets.
///
/// # Errors
/// TLS files that cannot be used.
pub(super) fn ways(args: &Args) -> Result<Arc<ConnectOptions>> {
    let redirected = || -> Result<_> {
        let client = args.tls.for_redirects()?;
        Ok(if args.requests.http2 { client.map(|client| client.for_http2()) } else { client })
    };
    Ok(Arc::new(ConnectOptions {
        proxy: args.proxy.clone().map(Arc::new),
        unix_socket: args.unix_socket.as_deref().map(Arc::from),
        resolve: args.resolve.clone(),
        tls: if args.requests.redirects > 0 { redirected()? } else { None },
        http2: args.requests.http2 || requests::is_grpc(&args.urls),
        ..ConnectOptions::default()
    }))
}

/// Returns the endpoint for publications. They ignore `--proxy` and `--unix-socket`, but follow
/// `--resolve`.
///
/// # Errors
/// An invalid URL.
pub(super) fn publish(args: &Args, url: &str) -> Result<Endpoint> {
    let ways =
        Arc::new(ConnectOptions { resolve: args.resolve.clone(), ..ConnectOptions::default() });
    ways.web(url).map_err(anyhow::Error::msg)
}

/// Checks that all sources are local addresses from which all endpoints can be reached.
///
/// # Errors
/// Names the source that is not.
pub(super) fn check_sources(args: &Args, endpoints: &[Endpoint]) -> Result<()> {
    let by_address =
        |endpoint: &&Endpoint| !matches!(endpoint.route, Route::Unresolved(_) | Route::Unix(_));
    for &source in &args.source {
        let strange = |e: &&Endpoint| e.address.is_ipv4() != source.is_ipv4();
        if let Some(other) = endpoints.iter().filter(by_address).find(strange) {
            bail!("--source {source} cannot reach {}: different address family", other.address);
        }
        // Binding tells whether the address is local.
        UdpSocket::bind((source, 0))
            .with_context(|| format!("--source {source} is not an address of this machine"))?;
    }
    Ok(())
}

/// Warns about endpoints whose host name does not resolve; `what` goes there fails with cause `dns`.
pub(crate) fn warn_unresolved(endpoints: &[Endpoint], what: &str) {
    for endpoint in endpoints {
        if let Route::Unresolved(why) = &endpoint.route {
            output::note(&format!(
                "warning: cannot resolve {}, its {what} will fail (cause dns): {why}",
                endpoint.host
            ));
        }
    }
}
