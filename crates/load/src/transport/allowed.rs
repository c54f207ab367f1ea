//! The targets that a process may connect to, if it runs the plan of another one. Every address comes from
//! [`ConnectOptions::resolved`](crate::ConnectOptions), also those of redirects, and is checked there.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::transport::connect_options::Route;
use crate::transport::endpoint::Endpoint;

/// Unset in processes that may connect anywhere.
static ALLOWED: OnceLock<Vec<String>> = OnceLock::new();
/// The first target that was refused.
static REFUSED: Mutex<Option<String>> = Mutex::new(None);

/// From now on only loopback addresses and these targets are connected to: each an address, a host, or
/// `HOST:PORT` as in a URL, or `*` for all. It is set once in a process.
pub fn allow_only(targets: Vec<String>) {
    let _ = ALLOWED.set(targets);
}

/// Why the first target was refused so far; `None` if none was.
#[must_use]
pub fn refused() -> Option<String> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Why an endpoint whose route is known must not be connected to; `None` if it may be.
pub(crate) fn refusal(endpoint: &Endpoint) -> Option<String> {
    let allowed = ALLOWED.get()?;
    if is_allowed(allowed, endpoint) {
        return None;
    }
    let why = match &endpoint.route {
        Route::Unix(path) => format!("agents connect to no UNIX sockets ({})", path.display()),
        route => {
            let host = match route {
                Route::Forward(proxy) | Route::Tunnel(proxy) => &proxy.host,
                _ => &endpoint.host,
            };
            format!("the target {host} is not allowed: start the agent with --allow-target {host}")
        }
    };
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    refused.get_or_insert_with(|| why.clone());
    Some(why)
}

fn is_allowed(allowed: &[String], endpoint: &Endpoint) -> bool {
    let is_named = |name: &str| allowed.iter().any(|one| one.eq_ignore_ascii_case(name));
    match &endpoint.route {
        // A proxy connects to any host, so the proxy itself must be allowed.
        Route::Forward(proxy) | Route::Tunnel(proxy) => is_named("*") || is_named(&proxy.host),
        Route::Direct => {
            let ip = endpoint.address.ip();
            // With `--resolve` the plan chose the address, so an allowed name does not allow it.
            let by_name = || {
                let is_resolved = endpoint.options.resolve.is_empty();
                is_resolved && [&*endpoint.host, endpoint.server_name()].into_iter().any(is_named)
            };
            let by_address =
                || is_named(&ip.to_string()) || is_named(&endpoint.address.to_string());
            ip.is_loopback() || is_named("*") || by_address() || by_name()
        }
        Route::Unresolved(_) => true,
        Route::Unix(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::transport::connect_options::{ConnectOptions, Proxy, Resolve};

    #[test]
    fn targets_are_loopback_or_named() {
        let is = |url: &str, options: &ConnectOptions, allowed: &[&str]| {
            let endpoint = Arc::new(options.clone()).web(url).unwrap();
            let allowed: Vec<String> = allowed.iter().map(|one| (*one).to_owned()).collect();
            is_allowed(&allowed, &endpoint)
        };
        let (direct, away) = (ConnectOptions::default(), "http://10.255.0.1:81/");
        assert!(is("http://127.0.0.1:9/", &direct, &[]) && is("http://[::1]:9/", &direct, &[]));
        assert!(!is(away, &direct, &[]) && !is(away, &direct, &["10.255.0.1:80", "10.255.0.2"]));
        for allowed in ["*", "10.255.0.1", "10.255.0.1:81"] {
            assert!(is(away, &direct, &[allowed]), "{allowed}");
        }
        // Other ways to write an address are judged by where they lead.
        for here in ["http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://[0::1]/"] {
            assert!(is(here, &direct, &[]), "{here}");
        }
        for elsewhere in [
            "http://[::ffff:10.255.0.1]:81/",
            "http://184483841:81/",
            "http://0.0.0.0:81/",
            "http://[::]:81/",
            "http://10.255.0.1:81/#@localhost",
            "http://10.255.0.1:81/?@localhost",
        ] {
            assert!(!is(elsewhere, &direct, &["a.test", "10.255.0.2"]), "{elsewhere}");
        }
        assert!(Arc::new(direct.clone()).web("http://127.0.0.1@10.255.0.1/").is_err());
        // A name is not allowed for an address that the plan chose.
        let resolve = vec![Resolve::parse("a.test:80:10.255.0.1").unwrap()];
        let resolved = ConnectOptions { resolve, ..ConnectOptions::default() };
        assert!(!is("http://a.test/", &resolved, &["a.test"]));
        assert!(is("http://a.test/", &resolved, &["10.255.0.1"]));
        let proxy = Some(Arc::new(Proxy::parse("http://127.0.0.1:3128").unwrap()));
        let forwarded = ConnectOptions { proxy, ..ConnectOptions::default() };
        assert!(!is("http://127.0.0.1:9/", &forwarded, &["127.0.0.1:9"]));
        assert!(is(away, &forwarded, &["127.0.0.1:3128"]));
        let unix_socket = Some(Arc::from(Path::new("/run/x")));
        let unix = ConnectOptions { unix_socket, ..ConnectOptions::default() };
        assert!(!is("http://127.0.0.1/", &unix, &["*"]));
    }
}
