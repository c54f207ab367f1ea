//! Targets of a run of stress: the requests, endpoints and connect options. Each curl command of a file
//! has its own.

use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use load::requests::{HttpRequest, Request};
use load::{ConnectOptions, Dialect, Endpoint, Proxy, Resolve};

use super::flags::Args;
use crate::{curl, tls};

/// Renders commands as requests to endpoints, without duplicate endpoints.
///
/// # Errors
/// An invalid command, by line.
pub(super) fn render(
    args: &Args,
    commands: &[curl::Request],
    notes: &mut Vec<String>,
) -> Result<(Vec<Endpoint>, Vec<Request>)> {
    let mut endpoints: Vec<Endpoint> = Vec::new();
    let mut requests = Vec::new();
    let mut known: Vec<(curl::Request, Arc<ConnectOptions>)> = Vec::new();
    for one in commands {
        let url = args.url.as_deref().unwrap_or(&one.url);
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let found = known.iter().find(|(other, _)| same_options(one, other));
        let ways = match found {
            Some((_, ways)) => Arc::clone(ways),
            None => {
                let ways = ways(one, args.http2());
                let ways = Arc::new(ways.with_context(|| format!("line {}", one.line))?);
                known.push((one.clone(), Arc::clone(&ways)));
                ways
            }
        };
        let mut endpoint = ways.web(&url).map_err(anyhow::Error::msg)?;
        if endpoint.tls {
            if is_unchecked(one, args.http2()) {
                note_unchecked(notes);
            }
            let client = ways.tls.as_ref().map(|tls| tls.named(endpoint.server_name()));
            endpoint.client = client.transpose()?;
        }
        let target = endpoint.path.clone();
        let same = |other: &Endpoint| {
            (other.tls, &other.host) == (endpoint.tls, &endpoint.host)
                && Arc::ptr_eq(&other.options, &ways)
        };
        let number = endpoints.iter().position(same).unwrap_or(endpoints.len());
        let number = u8::try_from(number).context("-p: at most 255 different servers")?;
        let http = HttpRequest {
            method: &one.method,
            target: &target,
            host: &endpoint.host,
            headers: &one.headers,
            body: one.body.as_deref().unwrap_or_default(),
            close: !args.keep(),
        };
        let request = Request::to(number, &endpoint, &http);
        requests.push(if one.http10 { request.as_http10() } else { request });
        if usize::from(number) == endpoints.len() {
            endpoints.push(endpoint);
        }
    }
    Ok((endpoints, requests))
}

/// Returns the addresses to connect from; one for the whole run.
///
/// # Errors
/// Several different addresses, or one that this machine does not have.
pub(super) fn sources(commands: &[curl::Request]) -> Result<Vec<IpAddr>> {
    let mut sources: Vec<IpAddr> = Vec::new();
    for one in commands {
        let Some(interface) = &one.source else { continue };
        let at = || format!("line {}", one.line);
        let source = curl::source(interface).map_err(anyhow::Error::msg).with_context(at)?;
        // bind(2) fails if the address does not belong to this machine.
        UdpSocket::bind((source, 0)).with_context(|| {
            format!("{}: --interface {source} is not an address of this machine", at())
        })?;
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    if sources.len() > 1 {
        bail!("--interface: all commands of a file must use one address, found {sources:?}");
    }
    Ok(sources)
}

/// Whether any certificate is accepted: as in go-stress-testing, they are checked only with HTTP/2, and if
/// the command names a CA.
fn is_unchecked(one: &curl::Request, http2: bool) -> bool {
    one.insecure || one.ca.is_none() && !http2
}

fn ways(one: &curl::Request, http2: bool) -> Result<ConnectOptions> {
    let parse = |entry: &String| Resolve::parse(entry).map_err(|e| format!("--resolve {e}"));
    let resolve: Result<_, String> = one.resolve.iter().map(parse).collect();
    let proxy = one.proxy.as_deref().map(Proxy::parse).transpose();
    let proxy = proxy.map_err(|error| anyhow::anyhow!("-x {error}"))?;
    if one.proxy.is_some() && one.unix_socket.is_some() {
        bail!("-x and --unix-socket exclude each other: give one");
    }
    let file = |name: &Option<String>| name.as_ref().map(PathBuf::from);
    let key = file(&one.key).or(file(&one.cert));
    let (anyone, ca) = (is_unchecked(one, http2), file(&one.ca));
    let flags = tls::ClientFlags::of_files(anyone, ca, file(&one.cert), key);
    let client = flags.for_redirects()?;
    Ok(ConnectOptions {
        proxy: proxy.map(Arc::new),
        unix_socket: one.unix_socket.as_deref().map(|file| Path::new(file).into()),
        resolve: resolve.map_err(anyhow::Error::msg)?,
        tls: if http2 { client.map(|client| client.for_http2()) } else { client },
        http2,
        dialect: Dialect::Stress,
    })
}

/// Returns whether two commands have the same connect options.
fn same_options(one: &curl::Request, other: &curl::Request) -> bool {
    let of = |one: &curl::Request| {
        let curl::Request { proxy, unix_socket, resolve, ca, cert, key, insecure, .. } =
            one.clone();
        (proxy, unix_socket, resolve, ca, cert, key, insecure)
    };
    of(one) == of(other)
}

fn note_unchecked(notes: &mut Vec<String>) {
    let note = super::UNCHECKED.to_owned();
    if !notes.contains(&note) {
        notes.push(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_source_address_and_interface_name_are_rejected() {
        let from = |source: &str| curl::Request {
            source: Some(source.to_owned()),
            ..curl::Request::get("http://a/")
        };
        assert_eq!(sources(&[from("127.0.0.1"), from("host!127.0.0.1")]).unwrap().len(), 1);
        let two = sources(&[from("127.0.0.1"), from("127.0.0.2")]).unwrap_err().to_string();
        assert!(two.contains("one address"), "{two}");
        let device = format!("{:#}", sources(&[from("lo")]).unwrap_err());
        assert!(device.contains("--interface lo: expected a local IP address"), "{device}");
    }
}
