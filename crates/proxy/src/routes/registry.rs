//! [`Registry`]: all upstreams, across changes. It builds the table from the configuration and the
//! resolved names, and keeps each upstream with its counts from one table to the next. A removed
//! upstream stays known while a tunnel uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use engine::invariant;

use super::routes_config::{HealthCheck, MemberConfig, PoolConfig, RouteConfig, RoutesConfig};
use super::{HostPattern, Route, Routes, Table};
use crate::balance::{Ejection, Endpoint, Member, Pool, PoolState, Upstream, UpstreamAddress};
use crate::config::Transport;
use crate::health::CheckKind;
use crate::resolve::Name;

/// Maximum number of addresses used of one name.
const ADDRESSES_MAX: usize = 64;

/// A removed upstream that still has tunnels.
#[derive(Clone, Debug)]
pub struct Retired {
    /// The pool it was in.
    pub pool: Box<str>,
    /// The upstream with its open tunnels.
    pub upstream: Arc<Upstream>,
}

/// A change of the configuration by the API.
#[derive(Clone, Debug)]
pub enum Change {
    /// Adds an upstream to a pool, or changes the weight and maximum of one.
    Set(Box<str>, MemberConfig),
    /// Removes an upstream from a pool; its tunnels stay open.
    Remove(Box<str>, Endpoint),
    /// Starts or stops draining an upstream.
    Draining(Box<str>, Endpoint, bool),
    /// Adds a route, or changes the pool of one.
    Route(RouteConfig),
    /// Removes a route.
    Unroute(HostPattern, Box<str>),
}

/// How many upstreams a change added and removed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Upstreams added.
    pub added: usize,
    /// Upstreams removed.
    pub removed: usize,
}

/// The registry of all upstreams.
pub struct Registry {
    config: RoutesConfig,
    resolved: BTreeMap<Name, Vec<SocketAddr>>,
    table: Arc<Table>,
    retired: Vec<Retired>,
    numbers: u32,
}

impl Registry {
    /// Creates a registry with an empty table.
    #[must_use]
    pub fn new(table: Arc<Table>) -> Self {
        let (config, resolved) = (RoutesConfig::default(), BTreeMap::new());
        Registry { config, resolved, table, retired: Vec::new(), numbers: 0 }
    }

    /// The current configuration.
    #[must_use]
    pub fn config(&self) -> &RoutesConfig {
        &self.config
    }

    /// Replaces the configuration. Upstreams of the first one begin without a slow start, later ones
    /// with it.
    ///
    /// # Errors
    /// The first error in it; nothing was changed then.
    pub fn apply(&mut self, config: RoutesConfig, now_ns: u64) -> Result<Changed, String> {
        self.apply_resolved(config, BTreeMap::new(), now_ns)
    }

    /// As [`Registry::apply`], with addresses of names that were not known before.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn apply_resolved(
        &mut self,
        config: RoutesConfig,
        found: BTreeMap<Name, Vec<SocketAddr>>,
        now_ns: u64,
    ) -> Result<Changed, String> {
        config.check()?;
        let names: BTreeSet<Name> = config.hosts().into_iter().collect();
        self.resolved.retain(|name, _| names.contains(name));
        for (name, addresses) in found {
            // What the periodic lookups have found meanwhile is as recent.
            self.resolved.entry(name).or_insert_with(|| used(addresses));
        }
        self.config = config;
        Ok(self.build(now_ns))
    }

    /// The names to resolve before this configuration is applied: those that a pool of it adds and that
    /// have no address yet. Without one a pool would lose its upstreams for as long as the lookup takes.
    #[must_use]
    pub fn new_names(&self, config: &RoutesConfig) -> Vec<(Box<str>, u16)> {
        let added = config.pools.iter().flat_map(|pool| {
            let before = self.config.pools.iter().find(|before| before.name == pool.name);
            let known = before.map_or(&[][..], |before| &before.members);
            let added = |member: &&MemberConfig| {
                !known.iter().any(|known| known.endpoint == member.endpoint)
            };
            pool.members.iter().filter(added).filter_map(MemberConfig::host)
        });
        added.filter(|name| !self.resolved.contains_key(name)).collect()
    }

    /// Applies one change.
    ///
    /// # Errors
    /// What is wrong with it; nothing was changed then.
    pub fn change(&mut self, change: &Change, now_ns: u64) -> Result<Changed, String> {
        if let Change::Draining(pool, endpoint, draining) = change {
            self.drain(pool, endpoint, *draining, now_ns)?;
            return Ok(Changed::default());
        }
        let mut config = self.config.clone();
        apply_change(&mut config, change)?;
        if let Change::Remove(pool, _) = change {
            self.check_has_address(&config, pool)?;
        }
        self.apply(config, now_ns)
    }

    /// The names to resolve, each with its shortest lookup interval.
    #[must_use]
    pub fn names(&self) -> Vec<(Box<str>, u16, std::time::Duration)> {
        let mut names = BTreeMap::new();
        for pool in &self.config.pools {
            for member in &pool.members {
                let Endpoint::Name(host, port) = &member.endpoint else { continue };
                let every = names.entry((host.clone(), *port)).or_insert(pool.resolve_every);
                *every = (*every).min(pool.resolve_every);
            }
        }
        names.into_iter().map(|((host, port), every)| (host, port, every)).collect()
    }

    /// Sets the addresses of a name. An empty or unchanged list changes nothing: a failed lookup
    /// removes no upstream.
    pub fn resolved(
        &mut self,
        (host, port): (&str, u16),
        addresses: Vec<SocketAddr>,
        now_ns: u64,
    ) -> Changed {
        let addresses = used(addresses);
        let name = (Box::from(host), port);
        if addresses.is_empty() || self.resolved.get(&name) == Some(&addresses) {
            return Changed::default();
        }
        self.resolved.insert(name, addresses);
        self.build(now_ns)
    }

    /// Every upstream with health checks, with its check and transport.
    #[must_use]
    pub fn health_checks(&self) -> Vec<(Arc<Upstream>, HealthCheck, Transport)> {
        let routes = self.table.routes();
        let pools = routes.pools().iter().filter_map(|pool| {
            let config = self.config.pools.iter().find(|config| *config.name == *pool.name())?;
            (config.check.kind != CheckKind::Off).then_some((pool, &config.check))
        });
        let each = pools.flat_map(|(pool, check)| {
            let of = |member: &Member| {
                (Arc::clone(&member.upstream), check.clone(), pool.transport().clone())
            };
            pool.members().iter().map(of)
        });
        each.collect()
    }

    /// The members of a pool whose names are not resolved yet.
    pub fn unresolved<'p>(&'p self, pool: &str) -> impl Iterator<Item = &'p MemberConfig> {
        let config = self.config.pools.iter().find(|config| *config.name == *pool);
        config
            .into_iter()
            .flat_map(|config| &config.members)
            .filter(|member| member.host().is_some_and(|name| !self.resolved.contains_key(&name)))
    }

    /// Removed upstreams with open tunnels; those without are forgotten.
    pub fn retired(&mut self) -> &[Retired] {
        self.retired.retain(|retired| retired.upstream.tunnels() > 0);
        &self.retired
    }

    /// The upstreams with this name or address, current and removed, in one pool or in all.
    pub fn upstreams(
        &mut self,
        pool: Option<&str>,
        endpoint: Option<&Endpoint>,
    ) -> Vec<Arc<Upstream>> {
        let name = endpoint.map(ToString::to_string);
        let wanted = |of: &str, upstream: &Arc<Upstream>| {
            let by_name = name.as_deref().is_none_or(|name| {
                upstream.name() == name || upstream.address().to_string() == name
            });
            pool.is_none_or(|pool| pool == of) && by_name
        };
        let routes = self.table.routes();
        let members = routes.pools().iter().flat_map(|pool| {
            pool.members().iter().map(move |member| (pool.name(), &member.upstream))
        });
        let retired = self.retired().iter().map(|left| (&*left.pool, &left.upstream));
        let found = members.chain(retired).filter(|(of, upstream)| wanted(of, upstream));
        found.map(|(_, upstream)| Arc::clone(upstream)).collect()
    }

    /// Checks that a pool still has an upstream with an address.
    fn check_has_address(&self, config: &RoutesConfig, name: &str) -> Result<(), String> {
        let pool = config.pools.iter().find(|pool| *pool.name == *name);
        let unresolved = |member: &MemberConfig| {
            member.host().is_some_and(|name| !self.resolved.contains_key(&name))
        };
        // An empty pool has its own error.
        match pool {
            Some(pool) if !pool.members.is_empty() && pool.members.iter().all(unresolved) => {
                Err(format!("no other upstream of pool {name} is resolved yet"))
            }
            _ => Ok(()),
        }
    }

    fn drain(
        &mut self,
        pool: &str,
        endpoint: &Endpoint,
        draining: bool,
        now: u64,
    ) -> Result<(), String> {
        let found = self.upstreams(Some(pool), Some(endpoint));
        if found.is_empty() {
            return Err(unknown_upstream(&self.config, pool, endpoint));
        }
        found.iter().for_each(|upstream| upstream.set_draining(draining, now));
        Ok(())
    }

    fn build(&mut self, now_ns: u64) -> Changed {
        let before = self.table.routes();
        let known = upstreams_by_address(&before);
        // Upstreams of the first table have no slow start.
        let up_since_ns = if known.is_empty() { 0 } else { now_ns };
        let mut changed = Changed::default();
        let mut named = BTreeSet::new();
        let mut pools = Vec::new();
        let config = std::mem::take(&mut self.config);
        for pool in &config.pools {
            let mut members = Vec::new();
            for (member, address) in self.addresses_of(pool) {
                let key = (&*pool.name, &address);
                let upstream = known.get(&key).cloned().or_else(|| self.take_retired(key, now_ns));
                let upstream = upstream.unwrap_or_else(|| {
                    changed.added += 1;
                    self.numbers += 1;
                    let name = member.endpoint.to_string();
                    Arc::new(Upstream::new(self.numbers, &name, address, up_since_ns))
                });
                upstream.set_ejection(Ejection {
                    after: pool.eject_after,
                    for_ns: u64::try_from(pool.eject_for.as_nanos()).unwrap_or(u64::MAX),
                });
                if pool.check.kind == CheckKind::Off {
                    upstream.set_down(false, now_ns);
                }
                named.insert(upstream.number());
                let max_tunnels = member.max.or(pool.max).unwrap_or(u32::MAX);
                members.push(Member { upstream, weight: member.weight, max_tunnels });
            }
            pools.push(Arc::new(build_pool(pool, members, &before)));
        }
        for ((pool, _), upstream) in known {
            if !named.contains(&upstream.number()) {
                changed.removed += 1;
                self.retired.push(Retired { pool: pool.into(), upstream });
            }
        }
        self.retired.retain(|left| left.upstream.tunnels() > 0);
        let routes = config.routes.iter().filter_map(|route| {
            let Some(pool) = pools.iter().find(|pool| *pool.name() == *route.pool) else {
                invariant::broken("a route of a checked configuration has a pool");
                return None;
            };
            let (host, path) = (route.host.clone(), route.path.clone());
            Some(Route { host, path, pool: Arc::clone(pool) })
        });
        let routes: Vec<Route> = routes.collect();
        self.table.set(Routes::new(routes, pools));
        self.config = config;
        changed
    }

    /// The addresses of a pool, each once, with their configuration.
    fn addresses_of<'p>(&self, pool: &'p PoolConfig) -> Vec<(&'p MemberConfig, UpstreamAddress)> {
        let mut endpoints: Vec<(&MemberConfig, UpstreamAddress)> = Vec::new();
        for member in &pool.members {
            let addresses = match &member.endpoint {
                Endpoint::Address(address) => vec![address.clone()],
                Endpoint::Name(host, port) => {
                    let resolved = self.resolved.get(&(host.clone(), *port));
                    let addresses = resolved.into_iter().flatten().copied();
                    addresses.map(UpstreamAddress::Tcp).collect()
                }
            };
            for address in addresses {
                if !endpoints.iter().any(|(_, other)| *other == address) {
                    endpoints.push((member, address));
                }
            }
        }
        endpoints
    }

    /// Returns a removed upstream that is added again while it has tunnels; a drain of it is over.
    fn take_retired(
        &mut self,
        (pool, address): (&str, &UpstreamAddress),
        now_ns: u64,
    ) -> Option<Arc<Upstream>> {
        let back = |left: &Retired| *left.pool == *pool && left.upstream.address() == address;
        let at = self.retired.iter().position(back)?;
        let upstream = self.retired.swap_remove(at).upstream;
        upstream.set_draining(false, now_ns);
        Some(upstream)
    }
}

/// The addresses of a name that are used, in a fixed order.
fn used(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    addresses
}

/// The upstreams of a table, by pool and address.
fn upstreams_by_address(routes: &Routes) -> BTreeMap<(&str, &UpstreamAddress), Arc<Upstream>> {
    let each = routes.pools().iter().flat_map(|pool| {
        pool.members().iter().map(move |member| {
            ((pool.name(), member.upstream.address()), Arc::clone(&member.upstream))
        })
    });
    each.collect()
}

/// Builds a pool with the counts of the previous pool of that name.
fn build_pool(config: &PoolConfig, members: Vec<Member>, before: &Routes) -> Pool {
    let same = before.pools().iter().find(|pool| *pool.name() == *config.name);
    let state: Arc<PoolState> = same.map(|pool| Arc::clone(pool.state())).unwrap_or_default();
    let (balance, sticky) = (config.balance.clone(), config.sticky.clone());
    let pool = Pool::new(&config.name, balance, sticky, config.limits, members, state);
    let checked = config.check.kind != CheckKind::Off;
    pool.with_transport(config.transport.clone()).with_checks(checked)
}

fn apply_change(config: &mut RoutesConfig, change: &Change) -> Result<(), String> {
    match change {
        Change::Set(pool, member) => {
            let members = &mut pool_mut(config, pool)?.members;
            match members.iter_mut().find(|known| known.endpoint == member.endpoint) {
                Some(known) => *known = member.clone(),
                None => members.push(member.clone()),
            }
        }
        Change::Remove(pool, endpoint) => {
            let error = unknown_upstream(config, pool, endpoint);
            let members = &mut pool_mut(config, pool)?.members;
            let before = members.len();
            members.retain(|member| member.endpoint != *endpoint);
            if members.len() == before {
                return Err(error);
            }
        }
        Change::Route(route) => {
            let same =
                |known: &&mut RouteConfig| known.host == route.host && known.path == route.path;
            match config.routes.iter_mut().find(same) {
                Some(known) => known.pool = route.pool.clone(),
                None => config.routes.push(route.clone()),
            }
        }
        Change::Unroute(host, path) => {
            let before = config.routes.len();
            config.routes.retain(|route| route.host != *host || route.path != *path);
            if config.routes.len() == before {
                return Err(format!("no route for host {host}, path {path}"));
            }
        }
        Change::Draining(..) => {}
    }
    Ok(())
}

fn pool_mut<'s>(config: &'s mut RoutesConfig, name: &str) -> Result<&'s mut PoolConfig, String> {
    let known: Vec<&str> = config.pools.iter().map(|pool| &*pool.name).collect();
    let error = format!("no pool {name}; known pools: {}", known.join(", "));
    config.pools.iter_mut().find(|pool| *pool.name == *name).ok_or(error)
}

fn unknown_upstream(config: &RoutesConfig, pool: &str, endpoint: &Endpoint) -> String {
    let of = config.pools.iter().find(|known| *known.name == *pool);
    let known = of.into_iter().flat_map(|pool| &pool.members);
    let known: Vec<String> = known.map(|member| member.endpoint.to_string()).collect();
    format!("pool {pool} has no upstream {endpoint}; known upstreams: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{Permit, PickContext, UpstreamState};

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn registry(endpoints: &[&str]) -> (Registry, Arc<Table>) {
        let table = Arc::new(Table::default());
        let mut registry = Registry::new(Arc::clone(&table));
        let config = RoutesConfig::to(endpoints.iter().map(|text| endpoint(text)));
        registry.apply(config, 1_000).unwrap();
        (registry, table)
    }

    fn pick(table: &Table, random: u64) -> Permit {
        let routes = table.routes();
        let pool = &routes.find("x", "/").unwrap().pool;
        pool.pick(&PickContext { now_ns: 5_000, random, ..PickContext::default() }).unwrap()
    }

    fn names(table: &Table) -> Vec<String> {
        let routes = table.routes();
        let members = routes.pools()[0].members().iter();
        members.map(|member| member.upstream.address().to_string()).collect()
    }

    #[test]
    fn counts_survive_every_change() {
        let (mut registry, table) = registry(&["10.0.0.1:80", "10.0.0.2:80"]);
        let held: Vec<Permit> = (0..10).map(|n| pick(&table, n << 33)).collect();
        let add = Change::Set("default".into(), MemberConfig::new(endpoint("10.0.0.3:80")));
        let changed = registry.change(&add, 2_000).unwrap();
        assert_eq!(changed, Changed { added: 1, removed: 0 });
        let routes = table.routes();
        let members = routes.pools()[0].members();
        let tunnels: u32 = members.iter().map(|member| member.upstream.tunnels()).sum();
        assert_eq!((members.len(), tunnels), (3, 10));
        drop(held);
        assert!(members.iter().all(|member| member.upstream.tunnels() == 0));
    }

    #[test]
    fn a_removed_upstream_is_known_while_it_has_tunnels_and_can_return() {
        let (mut registry, table) = registry(&["10.0.0.1:80", "10.0.0.2:80"]);
        let held: Vec<Permit> = (0..8).map(|n| pick(&table, n << 33)).collect();
        let gone = endpoint("10.0.0.2:80");
        let remove = Change::Remove("default".into(), gone.clone());
        assert_eq!(registry.change(&remove, 2_000).unwrap(), Changed { added: 0, removed: 1 });
        assert_eq!(names(&table), ["10.0.0.1:80"]);
        let left = registry.retired().first().unwrap().upstream.clone();
        assert!(left.tunnels() > 0);
        assert_eq!(registry.upstreams(None, Some(&gone)).len(), 1, "it can still be drained");
        let back = Change::Set("default".into(), MemberConfig::new(gone.clone()));
        assert_eq!(registry.change(&back, 3_000).unwrap(), Changed::default());
        let again = registry.upstreams(Some("default"), Some(&gone));
        assert!(Arc::ptr_eq(&again[0], &left));
        registry.change(&remove, 4_000).unwrap();
        drop(held);
        assert!(registry.retired().is_empty());
    }

    #[test]
    fn a_refused_change_changes_nothing() {
        let (mut registry, table) = registry(&["10.0.0.1:80"]);
        let before = table.routes();
        let last = Change::Remove("default".into(), endpoint("10.0.0.1:80"));
        assert!(registry.change(&last, 2_000).unwrap_err().contains("0 upstreams"));
        let nowhere = Change::Remove("default".into(), endpoint("10.0.0.9:80"));
        assert!(registry.change(&nowhere, 2_000).unwrap_err().contains("10.0.0.1:80"));
        let none = Change::Set("chat".into(), MemberConfig::new(endpoint("10.0.0.9:80")));
        assert!(registry.change(&none, 2_000).unwrap_err().contains("known pools: default"));
        let drain = Change::Draining("default".into(), endpoint("10.0.0.9:80"), true);
        assert!(registry.change(&drain, 2_000).is_err());
        assert!(registry.apply(RoutesConfig::default(), 2_000).is_err());
        assert!(Arc::ptr_eq(&before, &table.routes()));
    }

    #[test]
    fn draining_survives_changes() {
        let (mut registry, table) = registry(&["10.0.0.1:80", "10.0.0.2:80"]);
        let drain =
            |draining| Change::Draining("default".into(), endpoint("10.0.0.1:80"), draining);
        registry.change(&drain(true), 2_000).unwrap();
        let add = Change::Set("default".into(), MemberConfig::new(endpoint("10.0.0.3:80")));
        registry.change(&add, 3_000).unwrap();
        for n in 0..50u64 {
            assert_ne!(pick(&table, n << 40).upstream().name(), "10.0.0.1:80");
        }
        registry.apply(registry.config().clone(), 3_500).unwrap();
        let of_one = registry.upstreams(None, Some(&endpoint("10.0.0.1:80")));
        assert_eq!(of_one[0].state(5_000), UpstreamState::Draining, "a reload keeps a drain");
        registry.change(&drain(false), 4_000).unwrap();
        let back = registry.upstreams(None, Some(&endpoint("10.0.0.1:80")));
        assert_eq!(back[0].state(5_000), UpstreamState::Up);
    }

    #[test]
    fn each_address_of_a_name_is_an_upstream() {
        let (mut registry, table) = registry(&["app.internal:80", "10.0.0.1:80"]);
        assert_eq!(names(&table), ["10.0.0.1:80"], "not resolved yet");
        assert_eq!(registry.names().len(), 1);
        let of = |hosts: &[u8]| hosts.iter().map(|n| ([10, 0, 0, *n], 80).into()).collect();
        let name = ("app.internal", 80);
        assert_eq!(registry.resolved(name, of(&[3, 2, 1, 2]), 2_000).added, 2);
        assert_eq!(names(&table).len(), 3, "a duplicate address counts once");
        assert_eq!(registry.resolved(name, of(&[1, 2, 3]), 3_000), Changed::default());
        assert_eq!(registry.resolved(name, of(&[]), 3_000), Changed::default());
        assert_eq!(names(&table).len(), 3, "a failed lookup removes no upstream");
        let changed = registry.resolved(name, of(&[2, 4]), 4_000);
        assert_eq!(changed, Changed { added: 1, removed: 1 });
    }

    #[test]
    fn names_that_a_pool_adds_are_resolved_before_it_changes() {
        let (mut registry, table) = registry(&["app.internal:80", "10.0.0.1:80"]);
        let config = |texts: &[&str]| RoutesConfig::to(texts.iter().map(|text| endpoint(text)));
        let new = |registry: &Registry, texts| registry.new_names(&config(texts));
        assert!(new(&registry, &["app.internal:80"]).is_empty(), "unresolved before, too");
        let next = ["new.internal:80", "10.0.0.2:80"];
        let name: Name = ("new.internal".into(), 80);
        assert_eq!(new(&registry, &next), std::slice::from_ref(&name));
        let address = SocketAddr::from(([10, 0, 0, 7], 80));
        let found = BTreeMap::from([(name, vec![address, address])]);
        registry.apply_resolved(config(&next), found, 2_000).unwrap();
        assert_eq!(names(&table), ["10.0.0.7:80", "10.0.0.2:80"]);
        assert!(new(&registry, &["new.internal:80"]).is_empty());
        // The addresses of names that are gone are forgotten.
        registry.apply(config(&["10.0.0.2:80"]), 3_000).unwrap();
        assert_eq!(new(&registry, &next).len(), 1);
    }

    #[test]
    fn the_last_upstream_with_an_address_cannot_be_removed() {
        let (mut registry, table) = registry(&["app.internal:80", "10.0.0.1:80"]);
        let remove = Change::Remove("default".into(), endpoint("10.0.0.1:80"));
        let error = registry.change(&remove, 2_000).unwrap_err();
        assert!(error.contains("no other upstream of pool default is resolved"), "{error}");
        assert_eq!(names(&table), ["10.0.0.1:80"]);
        let found = vec![([10, 0, 0, 7], 80).into()];
        registry.resolved(("app.internal", 80), found, 3_000);
        registry.change(&remove, 4_000).unwrap();
        assert_eq!(names(&table), ["10.0.0.7:80"]);
    }

    #[test]
    fn routes_are_added_and_removed() {
        let (mut registry, table) = registry(&["10.0.0.1:80"]);
        let route = |pool: &str| RouteConfig {
            host: "a.de".parse().unwrap(),
            path: "/x".into(),
            pool: pool.into(),
        };
        assert!(
            registry.change(&Change::Route(route("none")), 1).unwrap_err().contains("[pool.none]")
        );
        registry.change(&Change::Route(route("default")), 1).unwrap();
        assert_eq!(&*table.routes().find("a.de", "/x").unwrap().path, "/x");
        let unroute = Change::Unroute("a.de".parse().unwrap(), "/x".into());
        registry.change(&unroute, 1).unwrap();
        assert_eq!(&*table.routes().find("a.de", "/x").unwrap().path, "/");
        assert!(registry.change(&unroute, 1).is_err());
    }
}
