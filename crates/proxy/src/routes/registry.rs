//! [`Registry`]: all upstreams, across changes. It builds the table from the configuration and the
//! resolved names, and keeps each upstream with its counts from one table to the next. A removed
//! upstream stays known while a tunnel uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::routes_config::{Check, MemberConfig, PoolConfig, RouteConfig, RoutesConfig};
use super::{HostPattern, Route, Routes, Table};
use crate::balance::{Ejection, Member, Place, Pool, PoolState, Upstream, UpstreamAddress};
use crate::config::Outgoing;
use crate::health::How;

/// Addresses taken of one name.
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
    /// An upstream leaves a pool; its tunnels stay.
    Remove(Box<str>, Place),
    /// An upstream takes nothing new, or does so again.
    Draining(Box<str>, Place, bool),
    /// One more route, or another pool for one that is there.
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

/// All upstreams.
pub struct Fleet {
    said: RoutesConfig,
    resolved: BTreeMap<(Box<str>, u16), Vec<SocketAddr>>,
    table: Arc<Table>,
    retired: Vec<Retired>,
    numbers: u32,
}

impl Fleet {
    /// With an empty table, until something is said.
    #[must_use]
    pub fn new(table: Arc<Table>) -> Self {
        let (said, resolved) = (RoutesConfig::default(), BTreeMap::new());
        Fleet { said, resolved, table, retired: Vec::new(), numbers: 0 }
    }

    /// The current configuration.
    #[must_use]
    pub fn said(&self) -> &RoutesConfig {
        &self.said
    }

    /// Replaces the configuration. Upstreams of the first one begin without a slow start, later ones
    /// with it.
    ///
    /// # Errors
    /// What is wrong with it; nothing was changed then.
    pub fn say(&mut self, said: RoutesConfig, now_ns: u64) -> Result<Changed, String> {
        said.check()?;
        self.said = said;
        Ok(self.build(now_ns))
    }

    /// Applies one change.
    ///
    /// # Errors
    /// What is wrong with it; nothing was changed then.
    pub fn change(&mut self, change: &Change, now_ns: u64) -> Result<Changed, String> {
        if let Change::Draining(pool, place, draining) = change {
            self.drain(pool, place, *draining, now_ns)?;
            return Ok(Changed::default());
        }
        let mut said = self.said.clone();
        apply(&mut said, change)?;
        self.say(said, now_ns)
    }

    /// The names to resolve, each with its shortest lookup interval.
    #[must_use]
    pub fn names(&self) -> Vec<(Box<str>, u16, std::time::Duration)> {
        let mut names = BTreeMap::new();
        for pool in &self.said.pools {
            for member in &pool.members {
                let Place::Name(host, port) = &member.place else { continue };
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
        mut addresses: Vec<SocketAddr>,
        now_ns: u64,
    ) -> Changed {
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES_MAX);
        let name = (Box::from(host), port);
        if addresses.is_empty() || self.resolved.get(&name) == Some(&addresses) {
            return Changed::default();
        }
        self.resolved.insert(name, addresses);
        self.build(now_ns)
    }

    /// Every upstream with health checks, with its check and transport.
    #[must_use]
    pub fn patients(&self) -> Vec<(Arc<Upstream>, Check, Outgoing)> {
        let routes = self.table.routes();
        let pools = routes.pools().iter().filter_map(|pool| {
            let said = self.said.pools.iter().find(|said| *said.name == *pool.name())?;
            (said.check.how != How::Off).then_some((pool, &said.check))
        });
        let each = pools.flat_map(|(pool, check)| {
            let of = |member: &Member| {
                (Arc::clone(&member.upstream), check.clone(), pool.outgoing().clone())
            };
            pool.members().iter().map(of)
        });
        each.collect()
    }

    /// The members of a pool whose names are not resolved yet.
    pub fn unresolved<'p>(&'p self, pool: &str) -> impl Iterator<Item = &'p MemberConfig> {
        let said = self.said.pools.iter().find(|said| *said.name == *pool);
        said.into_iter().flat_map(|said| &said.members).filter(|member| match &member.place {
            Place::Name(host, port) => !self.resolved.contains_key(&(host.clone(), *port)),
            Place::Address(_) => false,
        })
    }

    /// Removed upstreams with open tunnels; those without are forgotten.
    pub fn retired(&mut self) -> &[Retired] {
        self.retired.retain(|retired| retired.upstream.tunnels() > 0);
        &self.retired
    }

    /// The upstreams of that place, in the table or left, in one pool or in all.
    pub fn upstreams(&mut self, pool: Option<&str>, place: Option<&Place>) -> Vec<Arc<Upstream>> {
        let name = place.map(ToString::to_string);
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

    fn drain(&mut self, pool: &str, place: &Place, draining: bool, now: u64) -> Result<(), String> {
        let found = self.upstreams(Some(pool), Some(place));
        if found.is_empty() {
            return Err(unknown(&self.said, pool, place));
        }
        found.iter().for_each(|upstream| upstream.set_draining(draining, now));
        Ok(())
    }

    fn build(&mut self, now_ns: u64) -> Changed {
        let before = self.table.routes();
        let known = known(&before);
        // Who is there from the start need not warm up; the rest of a table that begins does.
        let up_since_ns = if known.is_empty() { 0 } else { now_ns };
        let mut changed = Changed::default();
        let mut named = BTreeSet::new();
        let mut pools = Vec::new();
        let said = std::mem::take(&mut self.said);
        for pool in &said.pools {
            let mut members = Vec::new();
            for (member, address) in self.places(pool) {
                let key = (&*pool.name, &address);
                let upstream = known.get(&key).cloned().or_else(|| self.returned(key, now_ns));
                let upstream = upstream.unwrap_or_else(|| {
                    changed.added += 1;
                    self.numbers += 1;
                    let name = member.place.to_string();
                    Arc::new(Upstream::new(self.numbers, &name, address, up_since_ns))
                });
                upstream.set_ejection(Ejection {
                    after: pool.eject_after,
                    for_ns: u64::try_from(pool.eject_for.as_nanos()).unwrap_or(u64::MAX),
                });
                if pool.check.how == How::Off {
                    upstream.set_down(false, now_ns);
                }
                named.insert(upstream.number());
                let most = member.max.or(pool.max).unwrap_or(u32::MAX);
                members.push(Member { upstream, weight: member.weight, most });
            }
            pools.push(Arc::new(made(pool, members, &before)));
        }
        for ((pool, _), upstream) in known {
            if !named.contains(&upstream.number()) {
                changed.removed += 1;
                self.retired.push(Retired { pool: pool.into(), upstream });
            }
        }
        self.retired.retain(|left| left.upstream.tunnels() > 0);
        let routes = said.routes.iter().filter_map(|route| {
            let pool = pools.iter().find(|pool| *pool.name() == *route.pool)?;
            let (host, path) = (route.host.clone(), route.path.clone());
            Some(Route { host, path, pool: Arc::clone(pool) })
        });
        let routes: Vec<Route> = routes.collect();
        self.table.set(Routes::new(routes, pools));
        self.said = said;
        changed
    }

    /// The addresses of a pool, each once, with what is said of them.
    fn places<'p>(&self, pool: &'p PoolConfig) -> Vec<(&'p MemberConfig, UpstreamAddress)> {
        let mut places: Vec<(&MemberConfig, UpstreamAddress)> = Vec::new();
        for member in &pool.members {
            let addresses = match &member.place {
                Place::Address(address) => vec![address.clone()],
                Place::Name(host, port) => {
                    let resolved = self.resolved.get(&(host.clone(), *port));
                    let addresses = resolved.into_iter().flatten().copied();
                    addresses.map(UpstreamAddress::Tcp).collect()
                }
            };
            for address in addresses {
                if !places.iter().any(|(_, other)| *other == address) {
                    places.push((member, address));
                }
            }
        }
        places
    }

    /// One that left and comes back while it still has tunnels; what it was told then is over.
    fn returned(
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

/// The upstreams of a table, by pool and address.
fn known(routes: &Routes) -> BTreeMap<(&str, &UpstreamAddress), Arc<Upstream>> {
    let each = routes.pools().iter().flat_map(|pool| {
        pool.members().iter().map(move |member| {
            ((pool.name(), member.upstream.address()), Arc::clone(&member.upstream))
        })
    });
    each.collect()
}

/// A pool, with the counts of the one that had its name.
fn made(said: &PoolConfig, members: Vec<Member>, before: &Routes) -> Pool {
    let same = before.pools().iter().find(|pool| *pool.name() == *said.name);
    let state: Arc<PoolState> = same.map(|pool| Arc::clone(pool.state())).unwrap_or_default();
    let (balance, sticky) = (said.balance.clone(), said.sticky.clone());
    let pool = Pool::new(&said.name, balance, sticky, said.limits, members, state);
    pool.spoken_to(said.outgoing.clone())
}

fn apply(said: &mut RoutesConfig, change: &Change) -> Result<(), String> {
    match change {
        Change::Set(pool, member) => {
            let members = &mut pool_mut(said, pool)?.members;
            match members.iter_mut().find(|known| known.place == member.place) {
                Some(known) => *known = member.clone(),
                None => members.push(member.clone()),
            }
        }
        Change::Remove(pool, place) => {
            let error = unknown(said, pool, place);
            let members = &mut pool_mut(said, pool)?.members;
            let before = members.len();
            members.retain(|member| member.place != *place);
            if members.len() == before {
                return Err(error);
            }
        }
        Change::Route(route) => {
            let same =
                |known: &&mut RouteConfig| known.host == route.host && known.path == route.path;
            match said.routes.iter_mut().find(same) {
                Some(known) => known.pool = route.pool.clone(),
                None => said.routes.push(route.clone()),
            }
        }
        Change::Unroute(host, path) => {
            let before = said.routes.len();
            said.routes.retain(|route| route.host != *host || route.path != *path);
            if said.routes.len() == before {
                return Err(format!("there is no route for host {host}, path {path}"));
            }
        }
        Change::Draining(..) => {}
    }
    Ok(())
}

fn pool_mut<'s>(said: &'s mut RoutesConfig, name: &str) -> Result<&'s mut PoolConfig, String> {
    let known: Vec<&str> = said.pools.iter().map(|pool| &*pool.name).collect();
    let error = format!("there is no pool {name}; there are {}", known.join(", "));
    said.pools.iter_mut().find(|pool| *pool.name == *name).ok_or(error)
}

fn unknown(said: &RoutesConfig, pool: &str, place: &Place) -> String {
    let of = said.pools.iter().find(|known| *known.name == *pool);
    let known = of.into_iter().flat_map(|pool| &pool.members);
    let known: Vec<String> = known.map(|member| member.place.to_string()).collect();
    format!("the pool {pool} has no upstream {place}; it has {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{Key, Picked, Standing};

    fn place(text: &str) -> Place {
        text.parse().unwrap()
    }

    fn fleet(places: &[&str]) -> (Fleet, Arc<Table>) {
        let table = Arc::new(Table::default());
        let mut fleet = Fleet::new(Arc::clone(&table));
        let said = RoutesConfig::to(places.iter().map(|text| place(text)));
        fleet.say(said, 1_000).unwrap();
        (fleet, table)
    }

    fn pick(table: &Table, random: u64) -> Picked {
        let routes = table.routes();
        let pool = &routes.find("x", "/").unwrap().pool;
        pool.pick(&Key { now_ns: 5_000, random, ..Key::default() }).unwrap()
    }

    fn names(table: &Table) -> Vec<String> {
        let routes = table.routes();
        let members = routes.pools()[0].members().iter();
        members.map(|member| member.upstream.address().to_string()).collect()
    }

    #[test]
    fn counts_survive_every_change() {
        let (mut fleet, table) = fleet(&["10.0.0.1:80", "10.0.0.2:80"]);
        let held: Vec<Picked> = (0..10).map(|n| pick(&table, n << 33)).collect();
        let add = Change::Set("default".into(), MemberConfig::new(place("10.0.0.3:80")));
        let changed = fleet.change(&add, 2_000).unwrap();
        assert_eq!(changed, Changed { added: 1, removed: 0 });
        let routes = table.routes();
        let members = routes.pools()[0].members();
        let tunnels: u32 = members.iter().map(|member| member.upstream.tunnels()).sum();
        assert_eq!((members.len(), tunnels), (3, 10));
        drop(held);
        assert!(members.iter().all(|member| member.upstream.tunnels() == 0));
    }

    #[test]
    fn who_leaves_is_known_while_it_has_tunnels_and_may_come_back() {
        let (mut fleet, table) = fleet(&["10.0.0.1:80", "10.0.0.2:80"]);
        let held: Vec<Picked> = (0..8).map(|n| pick(&table, n << 33)).collect();
        let gone = place("10.0.0.2:80");
        let remove = Change::Remove("default".into(), gone.clone());
        assert_eq!(fleet.change(&remove, 2_000).unwrap(), Changed { added: 0, removed: 1 });
        assert_eq!(names(&table), ["10.0.0.1:80"]);
        let left = fleet.retired().first().unwrap().upstream.clone();
        assert!(left.tunnels() > 0);
        assert_eq!(fleet.upstreams(None, Some(&gone)).len(), 1, "and can be drained");
        let back = Change::Set("default".into(), MemberConfig::new(gone.clone()));
        assert_eq!(fleet.change(&back, 3_000).unwrap(), Changed::default());
        let again = fleet.upstreams(Some("default"), Some(&gone));
        assert!(Arc::ptr_eq(&again[0], &left));
        fleet.change(&remove, 4_000).unwrap();
        drop(held);
        assert!(fleet.retired().is_empty());
    }

    #[test]
    fn a_refused_change_changes_nothing() {
        let (mut fleet, table) = fleet(&["10.0.0.1:80"]);
        let before = table.routes();
        let last = Change::Remove("default".into(), place("10.0.0.1:80"));
        assert!(fleet.change(&last, 2_000).unwrap_err().contains("0 upstreams"));
        let nowhere = Change::Remove("default".into(), place("10.0.0.9:80"));
        assert!(fleet.change(&nowhere, 2_000).unwrap_err().contains("10.0.0.1:80"));
        let none = Change::Set("chat".into(), MemberConfig::new(place("10.0.0.9:80")));
        assert!(fleet.change(&none, 2_000).unwrap_err().contains("there are default"));
        let drain = Change::Draining("default".into(), place("10.0.0.9:80"), true);
        assert!(fleet.change(&drain, 2_000).is_err());
        assert!(fleet.say(RoutesConfig::default(), 2_000).is_err());
        assert!(Arc::ptr_eq(&before, &table.routes()));
    }

    #[test]
    fn draining_holds_over_changes() {
        let (mut fleet, table) = fleet(&["10.0.0.1:80", "10.0.0.2:80"]);
        let drain = |draining| Change::Draining("default".into(), place("10.0.0.1:80"), draining);
        fleet.change(&drain(true), 2_000).unwrap();
        let add = Change::Set("default".into(), MemberConfig::new(place("10.0.0.3:80")));
        fleet.change(&add, 3_000).unwrap();
        for n in 0..50u64 {
            assert_ne!(pick(&table, n << 40).upstream().name(), "10.0.0.1:80");
        }
        fleet.say(fleet.said().clone(), 3_500).unwrap();
        let of_one = fleet.upstreams(None, Some(&place("10.0.0.1:80")));
        assert_eq!(of_one[0].standing(5_000), Standing::Draining, "a reload undoes no drain");
        fleet.change(&drain(false), 4_000).unwrap();
        let back = fleet.upstreams(None, Some(&place("10.0.0.1:80")));
        assert_eq!(back[0].standing(5_000), Standing::Up);
    }

    #[test]
    fn a_name_is_as_many_upstreams_as_it_has_addresses() {
        let (mut fleet, table) = fleet(&["app.internal:80", "10.0.0.1:80"]);
        assert_eq!(names(&table), ["10.0.0.1:80"], "not resolved yet");
        assert_eq!(fleet.names().len(), 1);
        let of = |hosts: &[u8]| hosts.iter().map(|n| ([10, 0, 0, *n], 80).into()).collect();
        let name = ("app.internal", 80);
        assert_eq!(fleet.resolved(name, of(&[3, 2, 1, 2]), 2_000).added, 2);
        assert_eq!(names(&table).len(), 3, "the address that is there already counts once");
        assert_eq!(fleet.resolved(name, of(&[1, 2, 3]), 3_000), Changed::default());
        assert_eq!(fleet.resolved(name, of(&[]), 3_000), Changed::default());
        assert_eq!(names(&table).len(), 3, "a resolver that fails takes nobody away");
        let changed = fleet.resolved(name, of(&[2, 4]), 4_000);
        assert_eq!(changed, Changed { added: 1, removed: 1 });
    }

    #[test]
    fn routes_come_and_go() {
        let (mut fleet, table) = fleet(&["10.0.0.1:80"]);
        let route = |pool: &str| RouteConfig {
            host: "a.de".parse().unwrap(),
            path: "/x".into(),
            pool: pool.into(),
        };
        assert!(
            fleet.change(&Change::Route(route("none")), 1).unwrap_err().contains("[pool.none]")
        );
        fleet.change(&Change::Route(route("default")), 1).unwrap();
        assert_eq!(&*table.routes().find("a.de", "/x").unwrap().path, "/x");
        let unroute = Change::Unroute("a.de".parse().unwrap(), "/x".into());
        fleet.change(&unroute, 1).unwrap();
        assert_eq!(&*table.routes().find("a.de", "/x").unwrap().path, "/");
        assert!(fleet.change(&unroute, 1).is_err());
    }
}
