//! Program 3: a load balancer for WebSockets and whatever else HTTP carries.
//!
//! [`start`] opens the listeners, starts the engine's workers with a relay each, then the control
//! plane. [`RoutesConfig`] says which requests go where; a [`Fleet`] makes the [`Table`] of it that workers
//! choose from, and carries every [`Upstream`] with its counts over each change. A [`Watcher`] asks
//! upstreams whether they are alive.
//!
//! What it is not: it parses no command line and no file, knows no system call, and looks into no
//! tunnel.

pub mod access_log;
mod api;
mod balance;
mod config;
mod control;
mod counters;
mod drain;
mod failure_log;
mod headers;
mod health;
mod histogram;
pub mod planted;
mod relay;
mod relays;
mod routes;
mod server;
mod shared;
mod start;

pub use admin::{Address, Server};
pub use engine::{AdmissionLimits, Limits, Network, Prefix, Proxies};
pub use wire::ProxyVersion;
pub use wire::http::ForwardedBy;

pub use crate::balance::{
    Balance, Ejection, Fault, HashBy, Key, Member, Picked, Place, Pool, PoolLimits, Refused,
    Standing, Sticky, Upstream, UpstreamAddress, Waiting,
};
pub use crate::config::{Config, Live, Outgoing, Patience, UpstreamTls};
pub use crate::counters::{Ended, Phase, Refusal, Stage};
pub use crate::drain::{HowMany, Order, Which};
pub use crate::health::{How, WatchError, Watcher, resolve_first};
pub use crate::relay::Relay;
pub use crate::relays::{Relays, Tally};
pub use crate::routes::{
    Cached, Change, Changed, Check, Fleet, HostPattern, MemberConfig, PoolConfig, Retired, Route,
    RouteConfig, Routes, RoutesConfig, Table,
};
pub use crate::server::Running;
pub use crate::start::{StartError, check_sources, start};
