//! [`RoutesConfig`]: routes and pools as configured, as plain data, and their validation.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::time::Duration;

use super::cookie_scope;
use super::settings::RouteSettings;
use crate::balance::{Balance, Endpoint, Pool, PoolLimits, Sticky};
use crate::config::Transport;
use crate::health::{CheckKind, Statuses};

/// Maximum number of routes.
pub(crate) const ROUTES_MAX: usize = 1_000;
/// Maximum number of pools.
pub(crate) const POOLS_MAX: usize = 256;
/// The name of the pool that `--upstream` makes.
const DEFAULT_POOL: &str = "default";

/// Routes and pools.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RoutesConfig {
    /// In any order: the most specific route wins.
    pub routes: Vec<RouteConfig>,
    /// Each with a unique name.
    pub pools: Vec<PoolConfig>,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConfig {
    /// The hosts it applies to.
    pub host: HostPattern,
    /// The path prefix: this path and everything below it.
    pub path: Box<str>,
    /// The pool that serves it.
    pub pool: Box<str>,
    /// What it does differently.
    pub settings: RouteSettings,
}

impl RouteConfig {
    /// A route without settings of its own.
    #[must_use]
    pub fn new(host: HostPattern, path: impl Into<Box<str>>, pool: impl Into<Box<str>>) -> Self {
        let settings = RouteSettings::default();
        RouteConfig { host, path: path.into(), pool: pool.into(), settings }
    }

    /// Checks that requests can have this path: it begins with a slash, and has no query and no spaces.
    ///
    /// # Errors
    /// The path and what is expected.
    pub fn check_path(path: &str) -> Result<(), String> {
        let visible = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?');
        if path.starts_with('/') && visible {
            return Ok(());
        }
        Err(format!("invalid path \"{path}\": expected a path such as /cable"))
    }
}

/// The hosts of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPattern {
    /// This host, in lower case.
    Exact(Box<str>),
    /// All names with this suffix, which begins with a dot.
    Below(Box<str>),
    /// All hosts.
    Any,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name.
    pub name: Box<str>,
    /// Its upstreams.
    pub members: Vec<MemberConfig>,
    /// The balancing method.
    pub balance: Balance,
    /// The cookie for sticky sessions.
    pub sticky: Option<Sticky>,
    /// Maximum tunnels of each upstream that sets no maximum of its own.
    pub max: Option<u32>,
    /// Slow start and queue.
    pub limits: PoolLimits,
    /// Health checks of its upstreams.
    pub check: HealthCheck,
    /// Consecutive failures that eject an upstream; 0 disables ejection.
    pub eject_after: u32,
    /// Duration of an ejection.
    pub eject_for: Duration,
    /// Interval between DNS lookups.
    pub resolve_every: Duration,
    /// TLS and PROXY header to its upstreams.
    pub transport: Transport,
}

/// An upstream as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// Where to connect.
    pub endpoint: Endpoint,
    /// Its weight.
    pub weight: u16,
    /// Maximum number of tunnels.
    pub max: Option<u32>,
    /// It gets requests only while no other upstream of the pool can take them.
    pub backup: bool,
}

/// The health checks of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The kind of check.
    pub kind: CheckKind,
    /// The Host header; by default the name or address of each upstream.
    pub host: Option<Box<str>>,
    /// Further headers. They replace those that a check sends by itself; an empty value removes one.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// The statuses that pass; by default 200 to 399, and 101 for a WebSocket check.
    pub expect: Option<Statuses>,
    /// Interval between checks.
    pub every: Duration,
    /// Timeout of one check.
    pub timeout: Duration,
    /// Consecutive passed checks that mark an upstream up.
    pub rise: u32,
    /// Consecutive failed checks that mark it down.
    pub fall: u32,
}

impl Default for HealthCheck {
    fn default() -> Self {
        HealthCheck {
            kind: CheckKind::Off,
            host: None,
            headers: Vec::new(),
            expect: None,
            every: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

impl MemberConfig {
    /// An upstream with weight 1 and no limit.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        MemberConfig { endpoint, weight: 1, max: None, backup: false }
    }

    /// Its name and port, if it is given by name.
    pub(crate) fn host(&self) -> Option<(Box<str>, u16)> {
        match &self.endpoint {
            Endpoint::Name(host, port) => Some((host.clone(), *port)),
            Endpoint::Address(_) => None,
        }
    }
}

impl PoolConfig {
    /// A pool with default settings.
    #[must_use]
    pub fn new(name: &str, endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        PoolConfig {
            name: name.into(),
            members: endpoints.into_iter().map(MemberConfig::new).collect(),
            balance: Balance::default(),
            sticky: None,
            max: None,
            limits: PoolLimits::default(),
            check: HealthCheck::default(),
            eject_after: 3,
            eject_for: Duration::from_secs(10),
            resolve_every: Duration::from_secs(30),
            transport: Transport::default(),
        }
    }
}

impl RoutesConfig {
    /// Routes all requests to these upstreams, in a pool named `default`.
    #[must_use]
    pub fn to(endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        RoutesConfig {
            routes: vec![RouteConfig::new(HostPattern::Any, "/", DEFAULT_POOL)],
            pools: vec![PoolConfig::new(DEFAULT_POOL, endpoints)],
        }
    }

    /// Validates the configuration.
    ///
    /// # Errors
    /// The first error and what to do about it.
    pub fn check(&self) -> Result<(), String> {
        if self.routes.len() > ROUTES_MAX || self.pools.len() > POOLS_MAX {
            return Err(format!(
                "too many: expected at most {ROUTES_MAX} routes and {POOLS_MAX} pools"
            ));
        }
        if self.routes.is_empty() {
            return Err(
                "no route configured: use --upstream, or add a [[route]] with a pool".to_owned()
            );
        }
        for (at, pool) in self.pools.iter().enumerate() {
            if self.pools.iter().take(at).any(|other| other.name == pool.name) {
                return Err(format!("there are two pools named {}", pool.name));
            }
            pool.check()?;
        }
        for (at, route) in self.routes.iter().enumerate() {
            let same = |other: &&RouteConfig| other.host == route.host && other.path == route.path;
            if let Some(other) = self.routes.iter().take(at).find(same) {
                let (host, path) = (&route.host, &route.path);
                let pools = format!("{} and {}", other.pool, route.pool);
                return Err(format!("two routes for host {host}, path {path}: pools {pools}"));
            }
            RouteConfig::check_path(&route.path)?;
            let named = |why| format!("route for host {}, path {}: {why}", route.host, route.path);
            route.settings.check().map_err(named)?;
            if !self.pools.iter().any(|pool| pool.name == route.pool) {
                return Err(format!(
                    "a route uses pool {}, but there is no [pool.{}]",
                    route.pool, route.pool
                ));
            }
        }
        cookie_scope::check(self)
    }

    /// The names and ports of upstreams, which have to be resolved.
    #[must_use]
    pub fn hosts(&self) -> Vec<(Box<str>, u16)> {
        let members = self.pools.iter().flat_map(|pool| &pool.members);
        members.filter_map(MemberConfig::host).collect()
    }

    /// Pools that no route uses.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let unused = |pool: &&PoolConfig| !self.routes.iter().any(|route| route.pool == pool.name);
        self.pools.iter().filter(unused).map(|pool| &*pool.name)
    }
}

impl PoolConfig {
    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let most = Pool::MEMBERS_MAX;
        if self.members.is_empty() || self.members.len() > most {
            let given = self.members.len();
            return Err(format!("[pool.{name}] has {given} upstreams: expected 1 to {most}"));
        }
        if self.members.iter().all(|member| member.backup) {
            return Err(format!(
                "[pool.{name}] has backup upstreams only: at least one must not be a backup"
            ));
        }
        for (at, member) in self.members.iter().enumerate() {
            let endpoint = &member.endpoint;
            if self.members.iter().take(at).any(|other| other.endpoint == *endpoint) {
                return Err(format!("[pool.{name}] lists upstream {endpoint} twice"));
            }
            if member.weight == 0 || member.weight > Pool::WEIGHT_MAX {
                let most = Pool::WEIGHT_MAX;
                return Err(format!(
                    "[pool.{name}], upstream {endpoint}: weight must be 1 to {most}"
                ));
            }
            if member.max == Some(0) {
                return Err(format!(
                    "[pool.{name}], upstream {endpoint}: max must be 1 or more; to take an \
                     upstream out, drain or remove it"
                ));
            }
        }
        let check = &self.check;
        let detailed = check.host.is_some() || !check.headers.is_empty() || check.expect.is_some();
        if detailed && matches!(check.kind, CheckKind::Off | CheckKind::Tcp) {
            return Err(format!(
                "[pool.{name}]: check_host, check_headers and check_expect need a check that sends a \
                 request: http:/path or websocket:/path"
            ));
        }
        let errors = &self.limits.error_ejection;
        if errors.longest < errors.first {
            return Err(format!(
                "[pool.{name}]: eject_5xx_for_max must not be shorter than eject_5xx_for"
            ));
        }
        let limited = self.max.is_some() || self.members.iter().any(|m| m.max.is_some());
        if self.limits.queue > 0 && !limited {
            return Err(format!(
                "[pool.{name}] has a queue but no upstream has a max: no request would ever wait"
            ));
        }
        Ok(())
    }
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(HostPattern::Any);
        }
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        // With the dot of an absolute name it is the same host, as in requests (RFC 1034 section 3.1).
        let name = name.strip_suffix('.').unwrap_or(name);
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let label = |label: &str| !label.is_empty() && label.bytes().all(letter);
        let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_host = match bracketed {
            Some(address) => !below && address.parse::<Ipv6Addr>().is_ok(),
            None => name.len() <= 253 && name.split('.').all(label),
        };
        if !is_host && text.parse::<Ipv6Addr>().is_ok() {
            return Err(format!("invalid host \"{text}\": write [{text}], as in requests"));
        }
        if !is_host {
            return Err(format!(
                "invalid host \"{text}\": expected chat.example.com, *.example.com, [::1] or * for \
                 all, without a port (a route applies to every port)"
            ));
        }
        let name = name.to_ascii_lowercase();
        Ok(if below {
            HostPattern::Below(format!(".{name}").into())
        } else {
            HostPattern::Exact(name.into())
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(name) => f.write_str(name),
            HostPattern::Below(name) => write!(f, "*{name}"),
            HostPattern::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(pools: &[(&str, &[&str])], routes: &[(&str, &str, &str)]) -> Result<(), String> {
        let pool = |(name, endpoints): &(&str, &[&str])| {
            PoolConfig::new(name, endpoints.iter().map(|endpoint| endpoint.parse().unwrap()))
        };
        let route = |(host, path, pool): &(&str, &str, &str)| {
            RouteConfig::new(host.parse().unwrap(), *path, *pool)
        };
        let pools = pools.iter().map(pool).collect();
        RoutesConfig { routes: routes.iter().map(route).collect(), pools }.check()
    }

    #[test]
    fn invalid_configurations_are_rejected_with_the_name() {
        let one: (&str, &[&str]) = ("a", &["app:80"]);
        assert_eq!(checked(&[one], &[("*", "/", "a")]), Ok(()));
        for (pools, routes, named) in [
            (&[one][..], &[][..], "no route"),
            (&[one], &[("*", "/", "b")], "[pool.b]"),
            (&[one, one], &[("*", "/", "a")], "two pools named a"),
            (&[("a", &[][..])], &[("*", "/", "a")], "0 upstreams"),
            (&[("a", &["b:1", "b:1"][..])], &[("*", "/", "a")], "b:1 twice"),
            (&[one], &[("X.de", "/", "a"), ("x.de", "/", "a")], "host x.de, path /"),
        ] {
            let error = checked(pools, routes).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        let mut config = RoutesConfig::to(["app:80".parse().unwrap()]);
        config.pools[0].limits.queue = 1;
        assert!(config.check().unwrap_err().contains("no request would ever wait"));
        config.pools[0].max = Some(5);
        config.pools[0].members[0].weight = 300;
        assert!(config.check().unwrap_err().contains("1 to 256"));
        config.pools[0].members[0].weight = 1;
        config.pools[0].check.host = Some("a.test".into());
        assert!(config.check().unwrap_err().contains("http:/path"));
        config.pools[0].check.kind = CheckKind::Http("/".into());
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn hosts_are_parsed_and_shown_in_lower_case() {
        for (text, shown) in [
            ("Chat.Example.com", "chat.example.com"),
            ("*.Example.com", "*.example.com"),
            ("chat.example.com.", "chat.example.com"),
            ("*.example.com.", "*.example.com"),
            ("*", "*"),
            ("[::1]", "[::1]"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            ".",
            "a..",
            "a..b",
            ".a",
            "*..a",
            "a b",
            "*.",
            "*a",
            "https://x",
            "[a]",
            "[::1]:80",
            "*.[::1]",
            "[::1",
            "a]",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
        for (text, advice) in [
            ("chat.example.com:8080", "without a port"),
            ("*.example.com:80", "without a port"),
            ("::1", "write [::1]"),
        ] {
            let error = text.parse::<HostPattern>().unwrap_err();
            assert!(error.contains(text) && error.contains(advice), "{error}");
        }
    }
}
