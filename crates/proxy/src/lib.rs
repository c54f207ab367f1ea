//! Program 3: a load balancer for WebSockets and whatever else HTTP carries.
//!
//! [`RoutesConfig`] says which requests go where; a [`Fleet`] makes the [`Table`] of it that workers
//! choose from, and carries every [`Upstream`] with its counts over each change. A [`Watcher`] asks
//! upstreams whether they are alive.
//!
//! What it is not: it parses no command line and no file, knows no system call, and looks into no
//! tunnel.

pub mod access_log;
#[allow(dead_code, reason = "the relay takes it up")]
mod api;
mod balance;
#[allow(dead_code, reason = "the relay takes it up")]
mod ending;
mod health;
mod routes;
#[allow(dead_code, reason = "the relay takes it up")]
mod times;

pub use crate::balance::{
    Balance, Ejection, HashBy, Key, Member, Picked, Place, Pool, PoolLimits, Refused, Standing,
    Sticky, Upstream, UpstreamAddress, Waiting,
};
pub use crate::ending::{HowMany, Order, Which};
pub use crate::health::{How, WatchError, Watcher, resolve_first};
pub use crate::routes::{
    Cached, Change, Changed, Check, Fleet, HostPattern, MemberConfig, PoolConfig, Retired, Route,
    RouteConfig, Routes, RoutesConfig, Table,
};
