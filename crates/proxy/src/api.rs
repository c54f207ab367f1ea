//! [`Api`]: the JSON admin API for upstreams, routes and tunnels. It runs in the control plane's
//! threads.
//!
//! A change applies to every request after its response. It lasts until the next reload or restart,
//! unless the file contains it too; only a drain lasts until it is resumed. Tunnels are closed only
//! by requests that say so.

mod metrics;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admin::{ApiRequest, Page, Reply};
use engine::sys::process::now_ns;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tracing::info;

use crate::balance::{Balance, Endpoint, Member, Pool, Upstream, UpstreamAddress, UpstreamState};
use crate::drain::{
    ActiveDrains, ClosingUpstream, DrainAmount, DrainOrder, DrainTarget, ORDERS_MAX,
};
use crate::routes::{
    Change, MemberChange, MemberConfig, Registry, RouteConfig, Table, UpstreamFilter,
};

/// The longest time over which tunnels can be closed: a day.
const OVER_SECONDS_MAX: f64 = 86_400.0;

/// The workers, as the API uses them.
pub(crate) trait Workers: Send + Sync {
    /// Sends an order to all running workers; returns how many got it.
    fn drain(&self, order: &Arc<DrainOrder>) -> u32;
    /// Makes queued requests look for an upstream again, as the pool may have changed.
    fn wake_waiters(&self);
    /// Returns one page of tunnels, to these upstreams only if any are given.
    fn tunnels(&self, page: &Page, upstreams: Option<&[u32]>) -> Reply;
}

/// The admin API of a proxy.
pub(crate) struct Api {
    pub(crate) table: Arc<Table>,
    pub(crate) registry: Arc<Mutex<Registry>>,
    pub(crate) active_drains: Mutex<ActiveDrains>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamRequest {
    action: String,
    pool: Option<String>,
    upstream: String,
    address: Option<String>,
    weight: Option<u16>,
    /// `null` removes the limit.
    #[serde(default, deserialize_with = "given")]
    max: Option<Option<u32>>,
    backup: Option<bool>,
    over_seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteRequest {
    action: String,
    host: Option<String>,
    path: Option<String>,
    pool: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CloseRequest {
    count: Option<u64>,
    percent: Option<f64>,
    pool: Option<String>,
    upstream: Option<String>,
    address: Option<String>,
    over_seconds: Option<f64>,
}

/// The error response to a request.
type Refusal = Reply;

impl Api {
    /// The paths of the admin listener, for its 404.
    pub(crate) const PATHS: &str = "/metrics, /health, /ready, /api/stats, /api/upstreams, /api/routes, \
                                    /api/tunnels and /api/close";

    /// Answers a request; `None` if the path is not of this API.
    pub(crate) fn answer(&self, workers: &dyn Workers, asked: &ApiRequest<'_>) -> Option<Reply> {
        let answer = match (asked.method, asked.path) {
            ("POST", "/api/upstreams" | "/api/routes" | "/api/close") if !asked.may_change => {
                Err(Reply::read_only())
            }
            ("GET", "/api/upstreams") => Ok(Reply::json(&self.upstreams())),
            ("POST", "/api/upstreams") => read(asked.body).and_then(|a| self.upstream(workers, &a)),
            ("GET", "/api/routes") => Ok(Reply::json(&self.routes())),
            ("POST", "/api/routes") => read(asked.body).and_then(|a| self.route(&a)),
            ("GET", "/api/tunnels") => self.tunnels(workers, asked),
            ("POST", "/api/close") => read(asked.body).and_then(|a| self.close(workers, &a)),
            (_, "/api/upstreams" | "/api/routes" | "/api/tunnels" | "/api/close") => {
                let message =
                    "expected GET /api/tunnels, POST /api/close, or GET or POST elsewhere";
                Ok(Reply::error(405, "method_not_allowed", message))
            }
            _ => return None,
        };
        Some(answer.unwrap_or_else(|refusal| refusal))
    }

    /// Returns all pools and their upstreams with state and counts.
    pub(crate) fn upstreams(&self) -> Value {
        let now_ns = now_ns();
        let mut registry = self.registry();
        let retired = registry.retired().to_vec();
        let routes = self.table.routes();
        let left = |pool: &str| {
            let of_pool = retired.iter().filter(|left| *left.pool == *pool);
            of_pool
                .map(|left| upstream_json(&left.upstream, None, "removed"))
                .collect::<Vec<Value>>()
        };
        let pools = routes.pools().iter().map(|pool| {
            let members = pool.members().iter().map(|member| {
                upstream_json(&member.upstream, Some(member), state_name(pool, member, now_ns))
            });
            json!({
                "pool": pool.name(),
                "balance": balance_name(pool.balance()),
                "waiting": pool.waiting(),
                "upstreams": members
                    .chain(registry.unresolved(pool.name()).map(unresolved_json))
                    .chain(left(pool.name()))
                    .collect::<Vec<_>>(),
            })
        });
        let removed_pools = retired.iter().map(|left| &*left.pool);
        let removed_pools: BTreeSet<&str> =
            removed_pools.filter(|name| routes.pool(name).is_none()).collect();
        let removed_pools = removed_pools.into_iter().map(
            |name| json!({ "pool": name, "balance": null, "waiting": 0, "upstreams": left(name) }),
        );
        json!({ "pools": pools.chain(removed_pools).collect::<Vec<_>>() })
    }

    fn routes(&self) -> Value {
        let routes = self.table.routes();
        let each = routes.all().map(|route| {
            let host = route.host.to_string();
            json!({ "host": host, "path": route.path, "pool": route.pool.name() })
        });
        json!({ "routes": each.collect::<Vec<_>>() })
    }

    fn upstream(&self, workers: &dyn Workers, request: &UpstreamRequest) -> Result<Reply, Refusal> {
        let endpoint: Endpoint =
            request.upstream.parse().map_err(|why: String| bad_request(&why))?;
        let over = over(request.over_seconds)?
            .filter(|_| matches!(request.action.as_str(), "remove" | "drain"));
        // Checked first: a request whose drain cannot start must change nothing.
        let order = over.map(|over| Ok((over, self.reserve_drain()?))).transpose()?;
        let address = request.address.as_deref().map(address).transpose()?;
        if address.is_some() && matches!(request.action.as_str(), "set" | "remove") {
            return Err(bad_request(
                "address is for drain and resume; set and remove change a name with all its addresses",
            ));
        }
        let mut registry = self.registry();
        let pool = pool_named(&registry, request.pool.as_deref())?;
        let filter =
            UpstreamFilter { pool: Some(pool.clone()), upstream: Some(endpoint.clone()), address };
        let affected = registry.upstreams(&filter);
        let change = match request.action.as_str() {
            "set" => {
                let (weight, max, backup) = (request.weight, request.max, request.backup);
                let endpoint = endpoint.clone();
                Change::Set(pool.clone(), MemberChange { endpoint, weight, max, backup })
            }
            "remove" => Change::Remove(pool.clone(), endpoint.clone()),
            "drain" => Change::Draining(filter, true),
            "resume" => Change::Draining(filter, false),
            other => {
                let why =
                    format!("invalid action \"{other}\": expected set, remove, drain or resume");
                return Err(bad_request(&why));
            }
        };
        let changed = registry.change(&change, now_ns()).map_err(|why| bad_request(&why))?;
        let unresolved = registry.unresolved(&pool).any(|member| member.endpoint == endpoint);
        drop(registry);
        workers.wake_waiters();
        info!("API: {} upstream {} in pool {pool}", request.action, request.upstream);
        if let Some((over, mut active_drains)) = order {
            // First: the order closes the tunnels that are open when it arrives.
            let closing = affected.iter().map(ClosingUpstream::new).collect();
            let target = (DrainTarget::Closing(closing), names(&affected));
            drain(workers, &mut active_drains, target, (DrainAmount::Share(10_000), over))?;
        }
        let tunnels: u64 = affected.iter().map(|one| u64::from(one.tunnels())).sum();
        let (added, removed) = (changed.added, changed.removed);
        Ok(Reply::json(&json!({
            "added": added, "removed": removed, "tunnels": tunnels, "unresolved": unresolved
        })))
    }

    fn route(&self, request: &RouteRequest) -> Result<Reply, Refusal> {
        let host = request.host.as_deref().unwrap_or("*");
        let host = host.parse().map_err(|why: String| bad_request(&why))?;
        let path: Box<str> = request.path.as_deref().unwrap_or("/").into();
        let change = match request.action.as_str() {
            "set" => {
                let pool = pool_named(&self.registry(), request.pool.as_deref())?;
                Change::Route(RouteConfig::new(host, path, pool))
            }
            "remove" => Change::Unroute(host, path),
            other => {
                return Err(bad_request(&format!(
                    "invalid action \"{other}\": expected set or remove"
                )));
            }
        };
        self.registry().change(&change, now_ns()).map_err(|why| bad_request(&why))?;
        info!("API: {} route", request.action);
        Ok(Reply::json(&self.routes()))
    }

    fn tunnels(&self, workers: &dyn Workers, asked: &ApiRequest<'_>) -> Result<Reply, Refusal> {
        let number = |name: &str, default: u64, most: u64| match asked.parameter(name) {
            None => Ok(default),
            Some(text) => text.parse().ok().filter(|number| *number <= most).ok_or_else(|| {
                bad_request(&format!("invalid {name} \"{text}\": expected a number up to {most}"))
            }),
        };
        let limit = number("limit", Page::LIMIT as u64, Page::LIMIT_MAX as u64)?.max(1);
        let page = Page {
            limit: usize::try_from(limit).unwrap_or(Page::LIMIT),
            after: number("after", 0, u64::MAX)?,
        };
        let named = ["pool", "upstream", "address"].map(|name| asked.parameter(name));
        let wanted = self.find_upstreams(named)?;
        let numbers = wanted.map(|upstreams| numbers(&upstreams));
        Ok(workers.tunnels(&page, numbers.as_deref()))
    }

    fn close(&self, workers: &dyn Workers, request: &CloseRequest) -> Result<Reply, Refusal> {
        let amount = match (request.count, request.percent) {
            (Some(count), None) => DrainAmount::Count(count),
            (None, Some(percent)) if (0.0..=100.0).contains(&percent) => {
                DrainAmount::Share((percent * 100.0).ceil() as u32)
            }
            (None, Some(_)) => return Err(bad_request("invalid percent: expected 0 to 100")),
            _ => return Err(bad_request("expected either count or percent")),
        };
        let over = over(request.over_seconds)?.unwrap_or_default();
        let named = [&request.pool, &request.upstream, &request.address].map(Option::as_deref);
        let wanted = self.find_upstreams(named)?;
        let target = match &wanted {
            Some(of) => (DrainTarget::Upstreams(numbers(of).into()), names(of)),
            None => (DrainTarget::All, "all upstreams".to_owned()),
        };
        drain(workers, &mut *self.reserve_drain()?, target, (amount, over))?;
        let seconds = over.as_secs_f64();
        Ok(Reply::json_with(202, &json!({ "over_seconds": seconds })))
    }

    /// Finds upstreams by pool, name and address; `None` if none of them is given.
    fn find_upstreams(
        &self,
        [pool, upstream, at]: [Option<&str>; 3],
    ) -> Result<Option<Vec<Arc<Upstream>>>, Refusal> {
        let upstream = upstream.map(str::parse).transpose();
        let filter = UpstreamFilter {
            pool: pool.map(Into::into),
            upstream: upstream.map_err(|why: String| bad_request(&why))?,
            address: at.map(address).transpose()?,
        };
        if filter == UpstreamFilter::default() {
            return Ok(None);
        }
        let found = self.registry().upstreams(&filter);
        if found.is_empty() {
            return Err(bad_request("no such upstream: GET /api/upstreams lists them"));
        }
        Ok(Some(found))
    }

    /// Locks the list of drains, if another one may start.
    fn reserve_drain(&self) -> Result<MutexGuard<'_, ActiveDrains>, Refusal> {
        let mut active_drains = self.active_drains.lock().unwrap_or_else(PoisonError::into_inner);
        if active_drains.has_room() {
            return Ok(active_drains);
        }
        let why = format!(
            "{ORDERS_MAX} drains are running: wait until one ends, or leave out over_seconds and \
             close the tunnels of several upstreams with one POST /api/close"
        );
        Err(Reply::error(503, "overloaded", &why))
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pool with this name, or the only pool.
fn pool_named(registry: &Registry, name: Option<&str>) -> Result<Box<str>, Refusal> {
    match (name, registry.config().pools.as_slice()) {
        (Some(name), _) => Ok(name.into()),
        (None, [only]) => Ok(only.name.clone()),
        (None, pools) => {
            let names: Vec<&str> = pools.iter().map(|pool| &*pool.name).collect();
            Err(bad_request(&format!("pool is required: one of {}", names.join(", "))))
        }
    }
}

/// The state of an upstream.
fn state_name(pool: &Pool, member: &Member, now_ns: u64) -> &'static str {
    if is_unchecked(pool, &member.upstream, now_ns) {
        return "unchecked";
    }
    member.upstream.state(now_ns).name()
}

/// Whether an upstream takes requests but is not known to be up: before its first health check, and
/// without any.
fn is_unchecked(pool: &Pool, upstream: &Upstream, now_ns: u64) -> bool {
    let assumed = !pool.is_checked() || upstream.checks() == 0;
    assumed && upstream.state(now_ns) == UpstreamState::Up
}

fn upstream_json(upstream: &Upstream, member: Option<&Member>, state: &str) -> Value {
    let (ejected_by, ejected_seconds) = upstream.ejected(now_ns()).unzip();
    json!({
        "upstream": &*upstream.name(),
        "address": upstream.address().to_string(),
        "state": state,
        "backup": member.map(|member| member.backup),
        "weight": member.map(|member| member.weight),
        "max": member.map(|member| member.max_tunnels).filter(|most| *most != u32::MAX),
        "tunnels": upstream.tunnels(),
        "picked": upstream.picks(),
        "failed": upstream.failed_times(),
        "ejections": upstream.ejections(),
        "ejections_5xx": upstream.errors().ejections(),
        "ejected_by": ejected_by,
        "ejected_seconds": ejected_seconds,
        "flips": upstream.flips(),
        "checks": upstream.checks(),
    })
}

/// An upstream whose name is not resolved yet; it takes no requests.
fn unresolved_json(member: &MemberConfig) -> Value {
    json!({
        "upstream": member.endpoint.to_string(),
        "address": null,
        "state": "unresolved",
        "backup": member.backup,
        "weight": member.weight,
        "max": member.max,
        "tunnels": 0,
        "picked": 0,
        "failed": 0,
        "ejections": 0,
        "ejections_5xx": 0,
        "ejected_by": null,
        "ejected_seconds": null,
        "flips": 0,
        "checks": 0,
    })
}

fn drain(
    workers: &dyn Workers,
    active_drains: &mut ActiveDrains,
    (target, names): (DrainTarget, String),
    (amount, over): (DrainAmount, Duration),
) -> Result<(), Refusal> {
    let over_text = if over.is_zero() { "at once".to_owned() } else { format!("over {over:?}") };
    info!("closing tunnels: {amount} of {names}, {over_text}");
    let order = Arc::new(DrainOrder::new(target, amount, over, now_ns()));
    let workers = workers.drain(&order);
    order.sent_to(workers);
    active_drains.add(&order);
    if workers == 0 {
        return Err(Reply::error(503, "overloaded", "no worker could take the order: try again"));
    }
    Ok(())
}

fn balance_name(balance: &Balance) -> &'static str {
    match balance {
        Balance::LeastConnections => "least_connections",
        Balance::RoundRobin => "round_robin",
        Balance::Random => "random",
        Balance::Hash(_) => "hash",
    }
}

fn names(upstreams: &[Arc<Upstream>]) -> String {
    let names: Vec<String> = upstreams.iter().map(|upstream| upstream.label()).collect();
    names.join(", ")
}

fn numbers(upstreams: &[Arc<Upstream>]) -> Vec<u32> {
    upstreams.iter().map(|upstream| upstream.number()).collect()
}

fn read<A: DeserializeOwned>(body: &[u8]) -> Result<A, Refusal> {
    serde_json::from_slice(body).map_err(|error| bad_request(&error.to_string()))
}

/// The address of an upstream.
fn address(text: &str) -> Result<UpstreamAddress, Refusal> {
    match text.parse() {
        Ok(Endpoint::Address(address)) => Ok(address),
        _ => Err(bad_request(&format!(
            "invalid address \"{text}\": expected 10.0.0.1:8080 or unix:/run/app.sock"
        ))),
    }
}

/// Distinguishes `null` from a field that is left out.
fn given<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Option<u32>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

fn over(seconds: Option<f64>) -> Result<Option<Duration>, Refusal> {
    match seconds {
        None => Ok(None),
        Some(seconds) if (0.0..=OVER_SECONDS_MAX).contains(&seconds) => {
            Ok(Some(Duration::from_secs_f64(seconds)))
        }
        Some(_) => Err(bad_request("invalid over_seconds: expected 0 to 86400")),
    }
}

fn bad_request(message: &str) -> Refusal {
    Reply::error(400, "bad_request", message)
}

#[cfg(test)]
mod tests;
