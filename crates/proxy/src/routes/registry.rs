//! [`Registry`]: all upstreams, across changes. It builds the table from the configuration and the
//! resolved names, and keeps each upstream with its counts from one table to the next. A removed
//! upstream stays known while a tunnel uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use engine::invariant;
use tracing::{info, warn};

use super::change::{Change, apply_change, unknown_upstream};
use super::drained::DrainedNames;
use super::known::KnownUpstreams;
use super::routes_config::{HealthCheck, MemberConfig, PoolConfig, RoutesConfig};
use super::{Route, RouteSettings, Routes, Table, UpstreamFilter};
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

/// How many upstreams a change added, removed and renamed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Upstreams added.
    pub added: usize,
    /// Upstreams removed.
    pub removed: usize,
    /// Upstreams that have another name.
    pub renamed: usize,
}

/// The registry of all upstreams.
pub struct Registry {
    config: RoutesConfig,
    resolved: BTreeMap<Name, Vec<SocketAddr>>,
    table: Arc<Table>,
    retired: Vec<Retired>,
    drained: DrainedNames,
    /// How many addresses of a full pool get no upstream; pools that use all have no entry.
    left_out: BTreeMap<Box<str>, usize>,
    numbers: u32,
}

impl Registry {
    /// Creates a registry with an empty table.
    #[must_use]
    pub fn new(table: Arc<Table>) -> Self {
        let (config, resolved) = (RoutesConfig::default(), BTreeMap::new());
        let (retired, drained) = (Vec::new(), DrainedNames::default());
        let left_out = BTreeMap::new();
        Registry { config, resolved, table, retired, drained, left_out, numbers: 0 }
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
        self.check_addresses(&config, &found)?;
        let names: BTreeSet<Name> = config.hosts().into_iter().collect();
        self.resolved.retain(|name, _| names.contains(name));
        for (name, addresses) in found {
            // What the periodic lookups have found meanwhile is as recent.
            self.resolved.entry(name).or_insert_with(|| used(addresses));
        }
        self.config = config;
        Ok(self.build(now_ns))
    }

    /// Checks that every pool that has an upstream with an address keeps one. A pool without any does
    /// not prevent other changes.
    ///
    /// # Errors
    /// The first pool that would lose its last address.
    pub(crate) fn check_addresses(
        &self,
        config: &RoutesConfig,
        found: &BTreeMap<Name, Vec<SocketAddr>>,
    ) -> Result<(), String> {
        let routes = self.table.routes();
        let had = routes.pools().iter().filter(|pool| !pool.members().is_empty());
        for pool in had {
            if self.lacks_address(config, pool.name(), found) {
                let name = pool.name();
                return Err(format!(
                    "pool {name} would have no address: none of its upstreams is resolved yet"
                ));
            }
        }
        Ok(())
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
        if let Change::Draining(filter, draining) = change {
            self.drain(filter, *draining, now_ns)?;
            return Ok(Changed::default());
        }
        let mut config = self.config.clone();
        apply_change(&mut config, change)?;
        if let Change::Remove(pool, _) = change
            && self.lacks_address(&config, pool, &BTreeMap::new())
        {
            return Err(format!("no other upstream of pool {pool} is resolved yet"));
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

    /// How many addresses of this pool get no requests, as it already has [`Pool::MEMBERS_MAX`] upstreams.
    #[must_use]
    pub fn left_out(&self, pool: &str) -> usize {
        self.left_out.get(pool).copied().unwrap_or_default()
    }

    /// Removed upstreams with open tunnels; those without are forgotten.
    pub fn retired(&mut self) -> &[Retired] {
        self.retired.retain(|retired| retired.upstream.tunnels() > 0);
        &self.retired
    }

    /// The upstreams that match, current and removed.
    pub fn upstreams(&mut self, filter: &UpstreamFilter) -> Vec<Arc<Upstream>> {
        self.upstreams_of_pools(filter).into_iter().map(|(_, upstream)| upstream).collect()
    }

    /// The same, each with its pool.
    fn upstreams_of_pools(&mut self, filter: &UpstreamFilter) -> Vec<(Box<str>, Arc<Upstream>)> {
        let routes = self.table.routes();
        let members = routes.pools().iter().flat_map(|pool| {
            pool.members().iter().map(move |member| (pool.name(), &member.upstream))
        });
        let retired = self.retired().iter().map(|left| (&*left.pool, &left.upstream));
        let found = filter.select(members.chain(retired).collect()).into_iter();
        found.map(|(pool, upstream)| (pool.into(), Arc::clone(upstream))).collect()
    }

    /// Whether no upstream of a pool has an address. An empty pool has its own error.
    fn lacks_address(
        &self,
        config: &RoutesConfig,
        pool: &str,
        found: &BTreeMap<Name, Vec<SocketAddr>>,
    ) -> bool {
        let known = |name: &Name| self.resolved.contains_key(name) || found.contains_key(name);
        let unresolved = |member: &MemberConfig| member.host().is_some_and(|name| !known(&name));
        let pool = config.pools.iter().find(|known| *known.name == *pool);
        pool.is_some_and(|pool| !pool.members.is_empty() && pool.members.iter().all(unresolved))
    }

    fn drain(&mut self, filter: &UpstreamFilter, draining: bool, now: u64) -> Result<(), String> {
        let found = self.upstreams_of_pools(filter);
        if found.is_empty() {
            return Err(self.not_found(filter));
        }
        for (pool, upstream) in &found {
            upstream.set_draining(draining, now);
            if is_configured(&self.config, pool, &upstream.name()) {
                let name = (&**pool, &*upstream.name());
                self.drained.set_address(name, upstream.address(), draining);
            }
        }
        if filter.address.is_none() {
            self.drain_names(filter, draining);
        }
        Ok(())
    }

    /// Notes the names that are drained with all their addresses, or no longer.
    fn drain_names(&mut self, filter: &UpstreamFilter, draining: bool) {
        let of_pool = |pool: &&PoolConfig| filter.pool.as_ref().is_none_or(|own| *own == pool.name);
        for pool in self.config.pools.iter().filter(of_pool) {
            let members = pool.members.iter().map(|member| &member.endpoint);
            let named =
                members.filter(|name| filter.upstream.as_ref().is_none_or(|own| own == *name));
            for name in named {
                self.drained.set_name(&pool.name, &name.to_string(), draining);
            }
        }
    }

    /// Why no upstream matches.
    fn not_found(&self, filter: &UpstreamFilter) -> String {
        let (Some(pool), Some(endpoint)) = (&filter.pool, &filter.upstream) else {
            return "no such upstream".to_owned();
        };
        let of = self.config.pools.iter().find(|known| known.name == *pool);
        let configured =
            of.is_some_and(|pool| pool.members.iter().any(|known| known.endpoint == *endpoint));
        let resolved = match endpoint {
            Endpoint::Name(host, port) => self.resolved.contains_key(&(host.clone(), *port)),
            Endpoint::Address(_) => true,
        };
        match &filter.address {
            _ if configured && !resolved => {
                format!("upstream {endpoint} of pool {pool} has no address yet")
            }
            Some(address) if configured => {
                format!("upstream {endpoint} of pool {pool} has no address {address}")
            }
            _ => unknown_upstream(&self.config, pool, endpoint),
        }
    }

    fn build(&mut self, now_ns: u64) -> Changed {
        let before = self.table.routes();
        let mut known = KnownUpstreams::of(&before);
        // Upstreams of the first table have no slow start.
        let times = (now_ns, if known.is_empty() { 0 } else { now_ns });
        let mut changed = Changed::default();
        let mut pools = Vec::new();
        let config = std::mem::take(&mut self.config);
        for pool in &config.pools {
            let upstreams = self.upstreams_of(pool, &mut known, &mut changed, times);
            let members = upstreams.into_iter().map(|(member, upstream)| {
                let max_tunnels = member.max.or(pool.max).unwrap_or(u32::MAX);
                Member { upstream, weight: member.weight, max_tunnels, backup: member.backup }
            });
            let members = members.collect();
            let same = before.pools().iter().find(|same| *same.name() == *pool.name);
            let transport = same.filter(|same| *same.transport() == pool.transport);
            let transport_key = transport.map(|same| same.transport_key()).unwrap_or_else(|| {
                self.numbers += 1;
                self.numbers
            });
            let built = build_pool(pool, members, same.map(|same| &**same));
            pools.push(Arc::new(built.with_transport(pool.transport.clone(), transport_key)));
        }
        // A name that was replaced has passed its drain on.
        self.drained.retain(|pool, name| is_configured(&config, pool, name));
        self.left_out.retain(|name, _| config.pools.iter().any(|pool| pool.name == *name));
        for removed in known.into_retired() {
            changed.removed += 1;
            self.retired.push(removed);
        }
        self.retired.retain(|left| left.upstream.tunnels() > 0);
        let routes = config.routes.iter().filter_map(|route| {
            let Some(pool) = pools.iter().find(|pool| *pool.name() == *route.pool) else {
                invariant::broken("a route of a checked configuration has a pool");
                return None;
            };
            let (host, path) = (route.host.clone(), route.path.clone());
            let settings = (route.settings != RouteSettings::default())
                .then(|| Arc::new(route.settings.clone()));
            Some(Route { host, path, pool: Arc::clone(pool), settings })
        });
        let routes: Vec<Route> = routes.collect();
        self.table.set(Routes::new(routes, pools));
        self.config = config;
        changed
    }

    /// The upstreams of a pool for the next table, each with its configuration: those of the previous
    /// table as far as possible.
    fn upstreams_of<'p>(
        &mut self,
        pool: &'p PoolConfig,
        known: &mut KnownUpstreams,
        changed: &mut Changed,
        (now_ns, up_since_ns): (u64, u64),
    ) -> Vec<(&'p MemberConfig, Arc<Upstream>)> {
        let members = pool.members.iter().map(|member| (member, member.endpoint.to_string()));
        let names: Vec<(&MemberConfig, String)> = members.collect();
        let has = |name: &str| names.iter().any(|(_, own)| own == name);
        let addresses = names.iter().flat_map(|(member, name)| {
            let addresses = self.addresses_of(member).into_iter();
            addresses.map(move |address| (*member, name, address))
        });
        let mut addresses: Vec<_> = addresses.collect();
        // Those that do not fit are not taken from the previous table, so they count as removed.
        let left_out = addresses.len().saturating_sub(Pool::MEMBERS_MAX);
        addresses.truncate(Pool::MEMBERS_MAX);
        note_left_out(&mut self.left_out, &pool.name, left_out);
        let mut wanted = Vec::new();
        for (member, name, address) in addresses {
            let same = known.take(&pool.name, name, &address);
            let same = same.or_else(|| self.take_retired(&pool.name, name, &address, now_ns));
            wanted.push((member, name, address, same));
        }
        // After all that kept their names.
        let mut taken_over = BTreeMap::new();
        for (_, name, address, same) in &mut wanted {
            if same.is_some() {
                continue;
            }
            let Some(upstream) = known.take_renamed(&pool.name, address, has) else { continue };
            changed.renamed += 1;
            info!("upstream renamed: {} is now {name}", upstream.label());
            let drained = self.has_drained_name(&pool.name, &upstream);
            *taken_over.entry(name.as_str()).or_insert(true) &= drained;
            self.numbers += 1;
            upstream.rename(name, self.numbers);
            *same = Some(upstream);
        }
        // The drain of a name goes to the name that replaces it, hence to all addresses of that one.
        for (name, drained) in &taken_over {
            self.drained.set_name(&pool.name, name, *drained);
        }
        for (_, name, address, same) in &wanted {
            let same = same.as_ref().filter(|_| taken_over.contains_key(name.as_str()));
            if let Some(upstream) = same {
                let name = (&*pool.name, name.as_str());
                self.drained.set_address(name, address, upstream.is_draining());
            }
        }
        let each = wanted.into_iter().map(|(member, name, address, same)| {
            let upstream = same.unwrap_or_else(|| {
                changed.added += 1;
                self.numbers += 1;
                let upstream = Upstream::new(self.numbers, name, address, up_since_ns);
                let drained = self.drained.has(&pool.name, name, upstream.address());
                upstream.set_draining(drained, now_ns);
                Arc::new(upstream)
            });
            (member, upstream)
        });
        let upstreams: Vec<_> = each.collect();
        for (_, upstream) in &upstreams {
            upstream.set_ejection(Ejection {
                after: pool.eject_after,
                for_ns: u64::try_from(pool.eject_for.as_nanos()).unwrap_or(u64::MAX),
            });
            upstream.errors().set_counting(pool.limits.error_ejection.percent > 0);
            if pool.check.kind == CheckKind::Off {
                upstream.set_down(false, now_ns);
            }
        }
        upstreams
    }

    /// Whether the name of an upstream is drained. An address that is drained is no name: the name that
    /// replaces it may have addresses that nobody drained.
    fn has_drained_name(&self, pool: &str, upstream: &Upstream) -> bool {
        let name = upstream.name();
        let is_address = upstream.address().to_string() == *name;
        !is_address && self.drained.has_name(pool, &name)
    }

    /// The addresses of an upstream as configured; none if its name is not resolved yet.
    fn addresses_of(&self, member: &MemberConfig) -> Vec<UpstreamAddress> {
        match &member.endpoint {
            Endpoint::Address(address) => vec![address.clone()],
            Endpoint::Name(host, port) => {
                let resolved = self.resolved.get(&(host.clone(), *port));
                resolved.into_iter().flatten().copied().map(UpstreamAddress::Tcp).collect()
            }
        }
    }

    /// Returns a removed upstream that is added again while it has tunnels. A drain of it is over, unless its
    /// name was configured all the time.
    fn take_retired(
        &mut self,
        pool: &str,
        name: &str,
        address: &UpstreamAddress,
        now_ns: u64,
    ) -> Option<Arc<Upstream>> {
        let back = |left: &Retired| {
            let upstream = &left.upstream;
            *left.pool == *pool && upstream.address() == address && *upstream.name() == *name
        };
        let at = self.retired.iter().position(back)?;
        let upstream = self.retired.swap_remove(at).upstream;
        upstream.set_draining(self.drained.has(pool, name, address), now_ns);
        Some(upstream)
    }
}

/// Keeps how many addresses of a pool are left out, and logs when that changes.
fn note_left_out(all: &mut BTreeMap<Box<str>, usize>, pool: &str, left_out: usize) {
    let before = match left_out {
        0 => all.remove(pool),
        _ => all.insert(pool.into(), left_out),
    };
    match (before.unwrap_or_default(), left_out) {
        (before, now) if before == now => {}
        (_, 0) => info!("pool {pool}: all addresses are used again"),
        (_, now) => warn!(
            "pool full: {pool}: {now} addresses get no requests, at most {} upstreams per pool",
            Pool::MEMBERS_MAX
        ),
    }
}

fn is_configured(config: &RoutesConfig, pool: &str, name: &str) -> bool {
    let pool = config.pools.iter().find(|known| *known.name == *pool);
    pool.is_some_and(|pool| pool.members.iter().any(|member| member.endpoint.to_string() == name))
}

/// The addresses of a name that are used, in a fixed order.
fn used(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    addresses
}

/// Builds a pool, without its transport, with the counts of the previous pool of that name.
fn build_pool(config: &PoolConfig, members: Vec<Member>, before: Option<&Pool>) -> Pool {
    let state: Arc<PoolState> = before.map(|pool| Arc::clone(pool.state())).unwrap_or_default();
    let (balance, sticky) = (config.balance.clone(), config.sticky.clone());
    let pool = Pool::new(&config.name, balance, sticky, config.limits, members, state);
    let checked = config.check.kind != CheckKind::Off;
    pool.with_checks(checked)
}

#[cfg(test)]
mod tests;
