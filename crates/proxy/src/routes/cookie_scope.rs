//! The scope of sticky cookies. A browser sends a sticky cookie with every request to the host that set it
//! (`Path=/`, no `Domain`). Two pools that one host reaches therefore need cookies with different names.

use std::collections::{BTreeMap, BTreeSet};

use super::find::is_below;
use super::routes_config::{HostPattern, RouteConfig, RoutesConfig};

/// Checks that no host reaches two pools whose sticky cookies have the same name. Each would replace the
/// cookie of the other.
///
/// # Errors
/// Names the first two such pools.
pub(super) fn check(config: &RoutesConfig) -> Result<(), String> {
    let sticky = config.pools.iter().filter_map(|pool| Some((&*pool.name, pool.sticky.as_ref()?)));
    let cookies: BTreeMap<&str, &str> =
        sticky.map(|(pool, sticky)| (pool, &*sticky.cookie)).collect();
    let names: BTreeSet<&str> = cookies.values().copied().collect();
    if names.len() == cookies.len() {
        return Ok(());
    }
    let hosts: BTreeSet<&HostPattern> = config.routes.iter().map(|route| &route.host).collect();
    for host in hosts {
        let mut pools = BTreeMap::new();
        for route in reached_from(host, &config.routes) {
            let Some(cookie) = cookies.get(&*route.pool) else { continue };
            let pool = &*route.pool;
            let other = *pools.entry(*cookie).or_insert(pool);
            if other != pool {
                return Err(format!(
                    "pools {other} and {pool} have the same sticky cookie, {cookie}, and requests \
                     for host {host} reach both: each would replace the cookie of the other; give \
                     one of them another name"
                ));
            }
        }
    }
    Ok(())
}

/// The routes that requests for these hosts can reach, if no other route is for fewer of them.
fn reached_from<'r>(host: &HostPattern, routes: &'r [RouteConfig]) -> Vec<&'r RouteConfig> {
    let matching: Vec<&RouteConfig> =
        routes.iter().filter(|route| includes(&route.host, host)).collect();
    let is_hidden = |route: &RouteConfig| {
        let hides = |other: &&RouteConfig| {
            specificity(&other.host) > specificity(&route.host)
                && is_below(&route.path, &other.path)
        };
        matching.iter().any(hides)
    };
    matching.iter().copied().filter(|route| !is_hidden(route)).collect()
}

/// Whether all hosts of `inner` are hosts of `outer`.
fn includes(outer: &HostPattern, inner: &HostPattern) -> bool {
    match (outer, inner) {
        (HostPattern::Any, _) => true,
        (HostPattern::Below(suffix), HostPattern::Exact(name) | HostPattern::Below(name)) => {
            name.ends_with(&**suffix)
        }
        (HostPattern::Exact(outer), HostPattern::Exact(inner)) => outer == inner,
        _ => false,
    }
}

/// Orders patterns that include one host: the greatest one is chosen.
fn specificity(host: &HostPattern) -> usize {
    match host {
        HostPattern::Any => 0,
        HostPattern::Below(suffix) => suffix.len(),
        HostPattern::Exact(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{CookieKey, Sticky};
    use crate::routes::PoolConfig;

    /// Routes as (host, path, pool). Pools have the cookie of their first letter; `-` has none.
    fn checked(routes: &[(&str, &str, &str)]) -> Result<(), String> {
        let route = |(host, path, pool): &(&str, &str, &str)| {
            RouteConfig::new(host.parse().unwrap(), *path, *pool)
        };
        let names: BTreeSet<&str> = routes.iter().map(|(_, _, pool)| *pool).collect();
        let pool = |name: &str| {
            let mut pool = PoolConfig::new(name, ["app:80".parse().unwrap()]);
            let cookie = name.get(..1).filter(|first| *first != "-");
            pool.sticky = cookie.map(|cookie| Sticky {
                cookie: cookie.into(),
                max_age: None,
                secure: false,
                key: CookieKey::default(),
            });
            pool
        };
        let pools = names.into_iter().map(pool).collect();
        RoutesConfig { routes: routes.iter().map(route).collect(), pools }.check()
    }

    #[test]
    fn pools_that_one_host_reaches_need_different_cookies() {
        for routes in [
            &[("*", "/", "a1"), ("*", "/x", "a2")][..],
            &[("h.de", "/x", "a1"), ("h.de", "/y", "a2")],
            // The host has no route for `/`, so the next pattern serves it.
            &[("h.de", "/x", "a1"), ("*", "/", "a2")],
            &[("h.de", "/x", "a1"), ("*.de", "/", "a2")],
            &[("*.h.de", "/x", "a1"), ("*.de", "/", "a2")],
            &[("h.de", "/x", "a1"), ("*.de", "/y", "-"), ("*", "/z", "a2")],
        ] {
            let error = checked(routes).unwrap_err();
            assert!(
                error.contains("pools a1 and a2") || error.contains("pools a2 and a1"),
                "{error}"
            );
            assert!(error.contains("sticky cookie, a,"), "{error}");
        }
    }

    #[test]
    fn pools_without_a_common_host_may_share_the_name_of_a_cookie() {
        for routes in [
            &[("*", "/", "a1"), ("*", "/x", "b1")][..],
            &[("*", "/", "a1"), ("*", "/x", "-")],
            &[("*", "/", "a1"), ("h.de", "/", "a1")],
            &[("g.de", "/", "a1"), ("h.de", "/", "a2")],
            // All paths of the host have a route of its own.
            &[("h.de", "/", "a1"), ("*", "/", "a2")],
            &[("h.de", "/", "a1"), ("*.de", "/x", "a2"), ("*.de", "/", "a2")],
            &[("h.de", "/x", "a1"), ("*.de", "/", "-"), ("*", "/y", "a2")],
            &[("h.de", "/x", "a1"), ("*", "/x/y", "a2")],
            &[("*.a.de", "/", "a1"), ("*.b.de", "/", "a2")],
        ] {
            assert_eq!(checked(routes), Ok(()), "{routes:?}");
        }
    }
}
