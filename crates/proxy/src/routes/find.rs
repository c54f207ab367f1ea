//! [`Routes`]: route lookup by host and path, without allocation.

use std::collections::HashMap;
use std::sync::Arc;

use super::routes_config::HostPattern;
use crate::balance::Pool;

/// Maximum length of a host name (RFC 1035 section 2.3.4); a longer one matches only routes for all
/// hosts.
const HOST_BYTES_MAX: usize = 253;

/// A route: the requests it matches and their pool.
#[derive(Clone, Debug)]
pub struct Route {
    /// The hosts it applies to.
    pub host: HostPattern,
    /// The path prefix: this path and everything below it.
    pub path: Box<str>,
    /// The upstreams to choose from.
    pub pool: Arc<Pool>,
}

/// All routes; immutable. A change replaces the whole.
#[derive(Debug, Default)]
pub struct Routes {
    /// By exact host, the longest path first.
    exact: HashMap<Box<str>, Vec<Route>>,
    /// By the suffix after the star.
    below: HashMap<Box<str>, Vec<Route>>,
    any: Vec<Route>,
    pools: Vec<Arc<Pool>>,
}

impl Routes {
    pub(crate) fn new(routes: impl IntoIterator<Item = Route>, pools: Vec<Arc<Pool>>) -> Self {
        let mut all = Routes { pools, ..Routes::default() };
        for route in routes {
            let of_host = match &route.host {
                HostPattern::Exact(name) => all.exact.entry(name.clone()).or_default(),
                HostPattern::Below(name) => all.below.entry(name.clone()).or_default(),
                HostPattern::Any => &mut all.any,
            };
            of_host.push(route);
        }
        let lists = all.exact.values_mut().chain(all.below.values_mut());
        for list in lists.chain([&mut all.any]) {
            list.sort_by_key(|route| std::cmp::Reverse(route.path.len()));
        }
        all
    }

    /// Routes all requests to one pool.
    #[must_use]
    pub fn single(pool: Arc<Pool>) -> Self {
        let route = Route { host: HostPattern::Any, path: "/".into(), pool: Arc::clone(&pool) };
        Routes::new([route], vec![pool])
    }

    /// The route of a request: of the hosts with a matching path the most specific, and of its paths
    /// the longest. `host` may have a port; `path` has no query.
    #[must_use]
    pub fn find(&self, host: &str, path: &str) -> Option<&Route> {
        let mut lower = [0u8; HOST_BYTES_MAX];
        let host = without_port(host);
        let host = host.strip_suffix('.').unwrap_or(host);
        let name = lowered(host, &mut lower).unwrap_or_default();
        let of = |routes: &'_ Vec<Route>| -> Option<usize> {
            routes.iter().position(|route| is_below(path, &route.path))
        };
        let pick = |routes: Option<&Vec<Route>>| -> Option<usize> { of(routes?) };
        if let Some(at) = pick(self.exact.get(name)) {
            return self.exact.get(name)?.get(at);
        }
        let dots = name.bytes().enumerate().filter(|(_, byte)| *byte == b'.');
        let endings = dots.filter_map(|(at, _)| name.get(at..)).filter(|_| !self.below.is_empty());
        for ending in endings {
            if let Some(at) = pick(self.below.get(ending)) {
                return self.below.get(ending)?.get(at);
            }
        }
        self.any.get(of(&self.any)?)
    }

    /// Every pool, including those without a route.
    #[must_use]
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// The pool with this name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.name() == name)
    }

    /// Every route.
    pub fn all(&self) -> impl Iterator<Item = &Route> {
        self.exact.values().chain(self.below.values()).flatten().chain(&self.any)
    }
}

/// Whether `path` is `prefix` or below it: `/a/b` is below `/a`, `/ab` is not.
fn is_below(path: &str, prefix: &str) -> bool {
    let Some(rest) = path.strip_prefix(prefix) else { return false };
    rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/')
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The last colon of `[::1]` does not start a port.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn lowered<'b>(text: &str, buffer: &'b mut [u8]) -> Option<&'b str> {
    let lower = buffer.get_mut(..text.len())?;
    lower.copy_from_slice(text.as_bytes());
    lower.make_ascii_lowercase();
    std::str::from_utf8(lower).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(list: &[(&str, &str, &str)]) -> Routes {
        let route = |(host, path, pool): &(&str, &str, &str)| Route {
            host: host.parse().unwrap(),
            path: (*path).into(),
            pool: Arc::new(Pool::of(pool, Vec::new())),
        };
        Routes::new(list.iter().map(route).collect::<Vec<_>>(), Vec::new())
    }

    #[test]
    fn the_most_specific_host_and_the_longest_path_win() {
        let routes = routes(&[
            ("*", "/", "rest"),
            ("chat.example.com", "/", "chat"),
            ("chat.example.com", "/cable", "cable"),
            ("*.example.com", "/cable", "below"),
            ("*.eu.example.com", "/", "eu"),
            ("[::1]", "/", "six"),
        ]);
        let found = |host, path| routes.find(host, path).map(|route| route.pool.name());
        for (host, path, pool) in [
            ("chat.example.com", "/cable", "cable"),
            ("chat.example.com", "/cable/1", "cable"),
            ("chat.example.com", "/cables", "chat"),
            ("CHAT.example.COM:8080", "/", "chat"),
            ("chat.example.com.", "/x", "chat"),
            ("other.example.com", "/cable", "below"),
            ("a.b.example.com", "/cable", "below"),
            ("a.eu.example.com", "/cable", "eu"),
            ("other.example.com", "/", "rest"),
            ("example.com", "/cable", "rest"),
            ("", "/", "rest"),
            ("[::1]", "/", "six"),
            ("[::1]:80", "/", "six"),
        ] {
            assert_eq!(found(host, path), Some(pool), "{host} {path}");
        }
        assert_eq!(found(&"a".repeat(300), "/"), Some("rest"));
    }

    #[test]
    fn no_route_is_found_where_none_matches() {
        let routes = routes(&[("a.de", "/x/", "x"), ("*.b.de", "/", "b"), ("c.fr.", "/", "c")]);
        let found = |host, path| routes.find(host, path).map(|route| route.pool.name());
        assert_eq!(found("a.de", "/x/y"), Some("x"));
        assert_eq!(found("a.de", "/x"), None);
        assert_eq!(found("b.de", "/"), None);
        assert_eq!(found("c.de", "/"), None);
        assert_eq!(found("*.b.de", "/"), Some("b"));
        assert_eq!((found("c.fr", "/"), found("c.fr.", "/")), (Some("c"), Some("c")));
    }
}
