//! [`Routes`]: route lookup by host and path, without allocation.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::access::{AccessList, decoded_path};
use super::routes_config::HostPattern;
use super::settings::RouteSettings;
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
    /// Its settings, if it has any.
    pub settings: Option<Arc<RouteSettings>>,
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
    /// A route has an access list.
    has_access_lists: bool,
}

impl Route {
    fn access(&self) -> Option<&AccessList> {
        let access = self.settings.as_ref().map(|settings| &settings.access);
        access.filter(|access| !access.is_empty())
    }
}

impl Routes {
    pub(crate) fn new(routes: impl IntoIterator<Item = Route>, pools: Vec<Arc<Pool>>) -> Self {
        let mut all = Routes { pools, ..Routes::default() };
        for route in routes {
            all.has_access_lists |= route.access().is_some();
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
        let (host, path) = (HostPattern::Any, "/".into());
        let route = Route { host, path, pool: Arc::clone(&pool), settings: None };
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

    /// Whether a client may use the route that was found for this host and path. A path that an upstream may
    /// read as another one needs the permission of both routes.
    pub(crate) fn allows(
        &self,
        found: &Route,
        client: Option<IpAddr>,
        host: &str,
        path: &str,
    ) -> bool {
        if !self.has_access_lists {
            return true;
        }
        let by = |route: &Route| route.access().is_none_or(|access| access.allows(client));
        let other = decoded_path(path).and_then(|path| self.find(host, &path));
        by(found) && other.is_none_or(by)
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
pub(super) fn is_below(path: &str, prefix: &str) -> bool {
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
            settings: None,
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
    fn an_access_list_applies_however_the_path_is_written() {
        let pool = Arc::new(Pool::of("a", Vec::new()));
        let access = AccessList::new(&["10.0.0.0/8".parse().unwrap()], &[]).unwrap();
        let settings = Arc::new(RouteSettings { access, ..RouteSettings::default() });
        let route = |path: &str, settings: Option<&Arc<RouteSettings>>| Route {
            host: HostPattern::Any,
            path: path.into(),
            pool: Arc::clone(&pool),
            settings: settings.cloned(),
        };
        let routes = Routes::new([route("/", None), route("/admin", Some(&settings))], Vec::new());
        let allows = |path, client: [u8; 4]| {
            let found = routes.find("h", path).unwrap();
            routes.allows(found, Some(client.into()), "h", path)
        };
        for path in [
            "/admin",
            "/admin/x",
            "/%61dmin",
            "/%61dmin/%ff",
            "//admin",
            "/x/../admin",
            "/admin/../x",
            "/admin%00",
        ] {
            assert!(allows(path, [10, 0, 0, 1]), "{path}");
            assert!(!allows(path, [192, 0, 2, 1]), "{path}");
        }
        assert!(allows("/x", [192, 0, 2, 1]) && allows("/administrator", [192, 0, 2, 1]));
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
