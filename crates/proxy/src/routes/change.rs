//! [`Change`]: a change of the configuration by the API.

use super::{HostPattern, MemberConfig, PoolConfig, RouteConfig, RoutesConfig, UpstreamFilter};
use crate::balance::{Endpoint, UpstreamAddress};

/// A change of the configuration by the API.
#[derive(Clone, Debug)]
pub enum Change {
    /// Adds an upstream to a pool, or changes one.
    Set(Box<str>, MemberChange),
    /// Removes an upstream from a pool; its tunnels stay open.
    Remove(Box<str>, Endpoint),
    /// Starts or stops draining upstreams.
    Draining(UpstreamFilter, bool),
    /// Adds a route, or changes the pool of one.
    Route(RouteConfig),
    /// Removes a route.
    Unroute(HostPattern, Box<str>),
}

/// What to change of an upstream. What is left out stays as it is, or has its default in an upstream that
/// is added.
#[derive(Clone, Debug)]
pub struct MemberChange {
    /// The upstream.
    pub endpoint: Endpoint,
    /// Its weight.
    pub weight: Option<u16>,
    /// Maximum number of tunnels; `Some(None)` removes the limit.
    pub max: Option<Option<u32>>,
    /// Whether it is a backup.
    pub backup: Option<bool>,
}

impl MemberChange {
    /// Adds an upstream, or leaves it as it is.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        MemberChange { endpoint, weight: None, max: None, backup: None }
    }

    fn apply(&self, member: &mut MemberConfig) {
        member.weight = self.weight.unwrap_or(member.weight);
        member.max = self.max.unwrap_or(member.max);
        member.backup = self.backup.unwrap_or(member.backup);
    }
}

/// Applies a change to a configuration, which is checked afterwards.
///
/// # Errors
/// What the change names does not exist.
pub(super) fn apply_change(config: &mut RoutesConfig, change: &Change) -> Result<(), String> {
    match change {
        Change::Set(pool, change) => {
            let members = &mut pool_mut(config, pool)?.members;
            let known = members.iter_mut().find(|known| known.endpoint == change.endpoint);
            if let Some(member) = known {
                change.apply(member);
                return Ok(());
            }
            if let Endpoint::Address(UpstreamAddress::Unix(_)) = change.endpoint {
                // The proxy's user may open sockets that the client of the API may not.
                let why = "a UNIX socket can be added only in the configuration file";
                return Err(why.to_owned());
            }
            let mut member = MemberConfig::new(change.endpoint.clone());
            change.apply(&mut member);
            members.push(member);
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
    let error = unknown_pool(config, name);
    config.pools.iter_mut().find(|pool| *pool.name == *name).ok_or(error)
}

fn unknown_pool(config: &RoutesConfig, name: &str) -> String {
    let known: Vec<&str> = config.pools.iter().map(|pool| &*pool.name).collect();
    format!("no pool {name}; known pools: {}", known.join(", "))
}

/// The error that a pool has no such upstream.
pub(super) fn unknown_upstream(config: &RoutesConfig, pool: &str, endpoint: &Endpoint) -> String {
    let of = config.pools.iter().find(|known| *known.name == *pool);
    let Some(of) = of else { return unknown_pool(config, pool) };
    let known = of.members.iter();
    let known: Vec<String> = known.map(|member| member.endpoint.to_string()).collect();
    format!("pool {pool} has no upstream {endpoint}; known upstreams: {}", known.join(", "))
}
