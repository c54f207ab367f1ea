//! [`Api`]: the JSON admin API for upstreams, routes and tunnels, and the metrics of pools. It runs in
//! the control plane's threads.
//!
//! A change applies to every request after its response. It lasts until the next reload or restart,
//! unless the file contains it too; only a drain lasts until it is resumed. Tunnels are closed only
//! by requests that say so.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admin::{Asked, Exposition, Kind, Page, Reply};
use engine::sys::process::now_ns;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tracing::info;

use crate::balance::{Balance, Member, Place, Pool, Standing, Upstream};
use crate::drain::{HowMany, ORDERS_MAX, Order, UnderWay, Which};
use crate::routes::{Change, Fleet, MemberConfig, Retired, RouteConfig, Table};

/// The longest time over which tunnels can be closed: a day.
const OVER_SECONDS_MAX: f64 = 86_400.0;

/// The workers, as operators' requests reach them.
pub(crate) trait Crew: Send + Sync {
    /// Sends an order to all that run; how many got it.
    fn end(&self, order: &Arc<Order>) -> u32;
    /// Has requests look again that wait for a place: there may be one now, or never.
    fn look_again(&self);
    /// One page of tunnels, of these upstreams if any are given.
    fn tunnels(&self, page: &Page, upstreams: Option<&[u32]>) -> Reply;
}

/// The admin API of a proxy.
pub(crate) struct Api {
    pub(crate) table: Arc<Table>,
    pub(crate) fleet: Arc<Mutex<Fleet>>,
    pub(crate) under_way: Mutex<UnderWay>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamAsked {
    action: String,
    pool: Option<String>,
    upstream: String,
    weight: Option<u16>,
    /// `null` removes the limit.
    #[serde(default, deserialize_with = "given")]
    max: Option<Option<u32>>,
    over_seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteAsked {
    action: String,
    host: Option<String>,
    path: Option<String>,
    pool: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CloseAsked {
    count: Option<u64>,
    percent: Option<f64>,
    pool: Option<String>,
    upstream: Option<String>,
    over_seconds: Option<f64>,
}

/// The error response to a request.
type Refusal = Reply;

impl Api {
    /// The paths of the admin listener, for its 404.
    pub(crate) const PATHS: &str = "/metrics, /health, /api/stats, /api/upstreams, /api/routes, \
                                    /api/tunnels and /api/close";

    /// Answers a request; nothing where it is for none of these paths.
    pub(crate) fn answer(&self, crew: &dyn Crew, asked: &Asked<'_>) -> Option<Reply> {
        let answer = match (asked.method, asked.path) {
            ("GET", "/api/upstreams") => Ok(Reply::json(&self.upstreams())),
            ("POST", "/api/upstreams") => read(asked.body).and_then(|a| self.upstream(crew, &a)),
            ("GET", "/api/routes") => Ok(Reply::json(&self.routes())),
            ("POST", "/api/routes") => read(asked.body).and_then(|a| self.route(&a)),
            ("GET", "/api/tunnels") => self.tunnels(crew, asked),
            ("POST", "/api/close") => read(asked.body).and_then(|a| self.close(crew, &a)),
            (_, "/api/upstreams" | "/api/routes" | "/api/tunnels" | "/api/close") => {
                let message = "GET /api/tunnels, POST /api/close, both for the others";
                Ok(Reply::error(405, "method_not_allowed", message))
            }
            _ => return None,
        };
        Some(answer.unwrap_or_else(|refusal| refusal))
    }

    /// Returns all pools and their upstreams with state and counts.
    pub(crate) fn upstreams(&self) -> Value {
        let now_ns = now_ns();
        let mut fleet = self.fleet();
        let retired = fleet.retired().to_vec();
        let routes = self.table.routes();
        let left = |pool: &str| {
            let of_pool = retired.iter().filter(|left| *left.pool == *pool);
            of_pool.map(|left| told(&left.upstream, None, "removed")).collect::<Vec<Value>>()
        };
        let pools = routes.pools().iter().map(|pool| {
            let members = pool.members().iter().map(|member| {
                told(&member.upstream, Some(member), member.upstream.standing(now_ns).name())
            });
            json!({
                "pool": pool.name(),
                "balance": balance_name(pool.balance()),
                "waiting": pool.waiting(),
                "upstreams": members
                    .chain(fleet.unresolved(pool.name()).map(unresolved))
                    .chain(left(pool.name()))
                    .collect::<Vec<_>>(),
            })
        });
        let gone = retired.iter().map(|left| &*left.pool);
        let gone: BTreeSet<&str> = gone.filter(|name| routes.pool(name).is_none()).collect();
        let gone = gone.into_iter().map(
            |name| json!({ "pool": name, "balance": null, "waiting": 0, "upstreams": left(name) }),
        );
        json!({ "pools": pools.chain(gone).collect::<Vec<_>>() })
    }

    fn routes(&self) -> Value {
        let routes = self.table.routes();
        let each = routes.all().map(|route| {
            let host = route.host.to_string();
            json!({ "host": host, "path": route.path, "pool": route.pool.name() })
        });
        json!({ "routes": each.collect::<Vec<_>>() })
    }

    fn upstream(&self, crew: &dyn Crew, asked: &UpstreamAsked) -> Result<Reply, Refusal> {
        let place: Place = asked.upstream.parse().map_err(|why: String| bad(&why))?;
        let pool = self.pool_named(asked.pool.as_deref())?;
        let over = over(asked.over_seconds)?
            .filter(|_| matches!(asked.action.as_str(), "remove" | "drain"));
        // An order that cannot be given is to change nothing.
        let order = over.map(|over| Ok((over, self.room_for_order()?))).transpose()?;
        let concerned = self.fleet().upstreams(Some(&pool), Some(&place));
        let change = match asked.action.as_str() {
            "set" => Change::Set(pool.clone(), self.member(&pool, place.clone(), asked)),
            "remove" => Change::Remove(pool.clone(), place.clone()),
            "drain" => Change::Draining(pool.clone(), place.clone(), true),
            "resume" => Change::Draining(pool.clone(), place.clone(), false),
            other => {
                let why = format!("\"{other}\" is no action: set, remove, drain or resume");
                return Err(bad(&why));
            }
        };
        let changed = self.fleet().change(&change, now_ns()).map_err(|why| bad(&why))?;
        crew.look_again();
        info!("{} of upstream {} in pool {pool}, by the API", asked.action, asked.upstream);
        if let Some((over, mut under_way)) = order {
            end(crew, &mut under_way, Some(&concerned), (HowMany::Share(10_000), over))?;
        }
        let tunnels: u64 = concerned.iter().map(|one| u64::from(one.tunnels())).sum();
        let (added, removed) = (changed.added, changed.removed);
        let unresolved = self.fleet().unresolved(&pool).any(|member| member.place == place);
        Ok(Reply::json(&json!({
            "added": added, "removed": removed, "tunnels": tunnels, "unresolved": unresolved
        })))
    }

    /// An upstream as it is to be; what is not said stays.
    fn member(&self, pool: &str, place: Place, asked: &UpstreamAsked) -> MemberConfig {
        let fleet = self.fleet();
        let pool = fleet.said().pools.iter().find(|known| *known.name == *pool);
        let known = pool.and_then(|pool| pool.members.iter().find(|known| known.place == place));
        let mut member = known.cloned().unwrap_or_else(|| MemberConfig::new(place));
        member.weight = asked.weight.unwrap_or(member.weight);
        member.max = asked.max.unwrap_or(member.max);
        member
    }

    fn route(&self, asked: &RouteAsked) -> Result<Reply, Refusal> {
        let host = asked.host.as_deref().unwrap_or("*");
        let host = host.parse().map_err(|why: String| bad(&why))?;
        let path: Box<str> = asked.path.as_deref().unwrap_or("/").into();
        if !path.starts_with('/') {
            return Err(bad("a path begins with /"));
        }
        let change = match asked.action.as_str() {
            "set" => {
                let pool = self.pool_named(asked.pool.as_deref())?;
                Change::Route(RouteConfig { host, path, pool })
            }
            "remove" => Change::Unroute(host, path),
            other => return Err(bad(&format!("\"{other}\" is no action: set or remove"))),
        };
        self.fleet().change(&change, now_ns()).map_err(|why| bad(&why))?;
        info!("{} of a route, by the API", asked.action);
        Ok(Reply::json(&self.routes()))
    }

    fn tunnels(&self, crew: &dyn Crew, asked: &Asked<'_>) -> Result<Reply, Refusal> {
        let number = |name: &str, default: u64, most: u64| match asked.parameter(name) {
            None => Ok(default),
            Some(text) => text.parse().ok().filter(|number| *number <= most).ok_or_else(|| {
                bad(&format!("{name} must be a number up to {most}, not \"{text}\""))
            }),
        };
        let limit = number("limit", Page::LIMIT as u64, Page::LIMIT_MAX as u64)?.max(1);
        let page = Page {
            limit: usize::try_from(limit).unwrap_or(Page::LIMIT),
            after: number("after", 0, u64::MAX)?,
        };
        let (pool, upstream) = (asked.parameter("pool"), asked.parameter("upstream"));
        let wanted = self.wanted(pool, upstream)?;
        let numbers = wanted.map(|upstreams| numbers(&upstreams));
        Ok(crew.tunnels(&page, numbers.as_deref()))
    }

    fn close(&self, crew: &dyn Crew, asked: &CloseAsked) -> Result<Reply, Refusal> {
        let many = match (asked.count, asked.percent) {
            (Some(count), None) => HowMany::Count(count),
            (None, Some(percent)) if (0.0..=100.0).contains(&percent) => {
                HowMany::Share((percent * 100.0).ceil() as u32)
            }
            (None, Some(_)) => return Err(bad("percent is a number from 0 to 100")),
            _ => return Err(bad("say how many: count or percent")),
        };
        let over = over(asked.over_seconds)?.unwrap_or_default();
        let wanted = self.wanted(asked.pool.as_deref(), asked.upstream.as_deref())?;
        end(crew, &mut *self.room_for_order()?, wanted.as_deref(), (many, over))?;
        let seconds = over.as_secs_f64();
        Ok(Reply::json_with(202, &json!({ "over_seconds": seconds })))
    }

    /// Upstreams by pool and place; none where neither is said.
    fn wanted(
        &self,
        pool: Option<&str>,
        upstream: Option<&str>,
    ) -> Result<Option<Vec<Arc<Upstream>>>, Refusal> {
        if pool.is_none() && upstream.is_none() {
            return Ok(None);
        }
        let place = upstream.map(str::parse::<Place>).transpose().map_err(|why| bad(&why))?;
        let found = self.fleet().upstreams(pool, place.as_ref());
        if found.is_empty() {
            return Err(bad("there is no such upstream: GET /api/upstreams lists them"));
        }
        Ok(Some(found))
    }

    /// Holds others back who would give an order.
    fn room_for_order(&self) -> Result<MutexGuard<'_, UnderWay>, Refusal> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if under_way.has_room() {
            return Ok(under_way);
        }
        let why = format!(
            "{ORDERS_MAX} orders to end tunnels are under way: wait until one is over, or leave \
             out over_seconds and end the tunnels of many by one POST /api/close"
        );
        Err(Reply::error(503, "overloaded", &why))
    }

    /// The pool with this name, or the only pool.
    fn pool_named(&self, name: Option<&str>) -> Result<Box<str>, Refusal> {
        let fleet = self.fleet();
        match (name, fleet.said().pools.as_slice()) {
            (Some(name), _) => Ok(name.into()),
            (None, [only]) => Ok(only.name.clone()),
            (None, pools) => {
                let names: Vec<&str> = pools.iter().map(|pool| &*pool.name).collect();
                Err(bad(&format!("say which pool: {}", names.join(", "))))
            }
        }
    }

    fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metrics of pools and upstreams.
    pub(crate) fn metrics(&self, exposition: &mut Exposition) {
        let now_ns = now_ns();
        let (routes, left) = {
            let mut fleet = self.fleet();
            (self.table.routes(), fleet.retired().to_vec())
        };
        let members = routes.pools().iter().flat_map(|pool| {
            pool.members().iter().map(move |member| (pool.name(), &*member.upstream))
        });
        let members = members.chain(left.iter().map(|left| (&*left.pool, &*left.upstream)));
        let members: Vec<(&str, &Upstream)> = members.collect();
        let takes = |upstream: &Upstream| {
            let removed = |left: &Retired| left.upstream.number() == upstream.number();
            upstream.standing(now_ns) == Standing::Up && !left.iter().any(removed)
        };
        let labels = |pool: &str, upstream: &Upstream| {
            vec![("pool", pool.to_owned()), ("upstream", upstream.address().to_string())]
        };
        let mut each = |name, kind, help, value: &dyn Fn(&Upstream) -> f64| {
            let samples =
                members.iter().map(|(pool, upstream)| (labels(pool, upstream), value(upstream)));
            exposition.tagged(name, kind, help, samples);
        };
        each("upstream_tunnels", Kind::Gauge, "Tunnels to each upstream.", &|upstream| {
            upstream.tunnels().into()
        });
        each("upstream_up", Kind::Gauge, "Whether it takes tunnels.", &|upstream| {
            f64::from(u8::from(takes(upstream)))
        });
        let counter = Kind::Counter;
        each("upstream_picked", counter, "Times it was chosen.", &|up| up.taken() as f64);
        each("upstream_failed", counter, "Connects and handshakes that failed.", &|up| {
            up.failed_times() as f64
        });
        each("upstream_ejections", counter, "Times it was ejected.", &|up| up.ejections() as f64);
        each("upstream_flips", counter, "Times its checks changed their verdict.", &|up| {
            up.flips() as f64
        });
        let ports = members.iter().flat_map(|(pool, upstream)| {
            let labels = labels(pool, upstream);
            upstream.ports().into_iter().map(move |(source, count)| {
                let source =
                    source.map_or_else(|| "system".to_owned(), |source| source.to_string());
                let labels = labels.iter().cloned().chain([("source", source)]).collect();
                (labels, f64::from(count))
            })
        });
        let help = "Connections to each upstream, each a port, by the address they come from.";
        exposition.tagged("source_ports", Kind::Gauge, help, ports);
        let mut of_pool = |name, kind, help, value: &dyn Fn(&Pool) -> u64| {
            let samples =
                routes.pools().iter().map(|pool| (pool.name().to_owned(), value(pool) as f64));
            exposition.labelled(name, kind, help, "pool", samples);
        };
        let waiting = "Requests that wait for a place.";
        of_pool("pool_waiting", Kind::Gauge, waiting, &|pool| pool.waiting().into());
        of_pool("pool_queued", counter, "Requests that had to wait.", &|pool| {
            pool.state().queued.load(Ordering::Relaxed)
        });
        of_pool("pool_overflowed", counter, "Requests that found the queue full.", &|pool| {
            pool.state().overflowed.load(Ordering::Relaxed)
        });
        of_pool("pool_busy", counter, "Choices that found every upstream at its most.", &|pool| {
            pool.state().busy.load(Ordering::Relaxed)
        });
        of_pool("pool_down", counter, "Choices that found no upstream up.", &|pool| {
            pool.state().down.load(Ordering::Relaxed)
        });
    }
}

fn told(upstream: &Upstream, member: Option<&Member>, state: &str) -> Value {
    json!({
        "upstream": upstream.name(),
        "address": upstream.address().to_string(),
        "state": state,
        "weight": member.map(|member| member.weight),
        "max": member.map(|member| member.most).filter(|most| *most != u32::MAX),
        "tunnels": upstream.tunnels(),
        "picked": upstream.taken(),
        "failed": upstream.failed_times(),
        "ejections": upstream.ejections(),
        "flips": upstream.flips(),
    })
}

/// A name that means no address yet: it takes nothing.
fn unresolved(member: &MemberConfig) -> Value {
    json!({
        "upstream": member.place.to_string(),
        "address": null,
        "state": "unresolved",
        "weight": member.weight,
        "max": member.max,
        "tunnels": 0,
        "picked": 0,
        "failed": 0,
        "ejections": 0,
        "flips": 0,
    })
}

fn end(
    crew: &dyn Crew,
    under_way: &mut UnderWay,
    upstreams: Option<&[Arc<Upstream>]>,
    (many, over): (HowMany, Duration),
) -> Result<(), Refusal> {
    let which = upstreams.map_or(Which::All, |of| Which::Of(numbers(of).into()));
    info!("ending tunnels over {over:?}: {many:?}, {which:?}");
    let order = Arc::new(Order::new(which, many, over, now_ns()));
    let workers = crew.end(&order);
    order.sent_to(workers);
    under_way.add(&order);
    if workers == 0 {
        return Err(Reply::error(503, "overloaded", "no worker takes orders now: ask again"));
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

fn numbers(upstreams: &[Arc<Upstream>]) -> Vec<u32> {
    upstreams.iter().map(|upstream| upstream.number()).collect()
}

fn read<A: DeserializeOwned>(body: &[u8]) -> Result<A, Refusal> {
    serde_json::from_slice(body).map_err(|error| bad(&error.to_string()))
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
        Some(_) => Err(bad("over_seconds is a number from 0 to 86400")),
    }
}

fn bad(message: &str) -> Refusal {
    Reply::error(400, "bad_request", message)
}

#[cfg(test)]
mod tests;
