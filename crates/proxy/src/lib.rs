//! Program 3: a reverse proxy and load balancer for WebSockets and HTTP.
//!
//! [`start`] opens the listeners, starts the engine's workers with one relay each, then the control
//! plane. [`RoutesConfig`] maps requests to pools; a [`Registry`] builds the [`Table`] that workers
//! choose from, and keeps every [`Upstream`] with its counts across changes. A [`Watcher`] runs the
//! health checks.
//!
//! What it is not: it parses no command line and no file, makes no system call, and does not decode
//! the frames in tunnels.

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
mod page;
mod relay;
#[cfg(feature = "simulation")]
mod relays;
mod request_id;
mod resolve;
mod routes;
mod server;
mod shared;
mod start;

pub use admin::{Address, Server};
pub use engine::{AdmissionLimits, HttpsRedirect, Limits, Network, Prefix, Proxies};
pub use wire::ProxyVersion;
pub use wire::http::{ForwardedBy, PlainPath};

pub use crate::balance::{
    Balance, CookieKey, Ejection, Endpoint, ErrorEjection, Fault, HashBy, Member, Permit,
    PickContext, PickError, Pool, PoolLimits, QueueTicket, Sticky, Upstream, UpstreamAddress,
    UpstreamState,
};
pub use crate::config::{BodyLimits, Config, Live, MinRate, Timeouts, Transport, UpstreamTls};
pub use crate::counters::{EndReason, Phase, Refusal, Stage};
pub use crate::drain::{ClosingUpstream, DrainAmount, DrainOrder, DrainTarget};
pub use crate::health::{CheckKind, Statuses, WatchError, Watcher};
pub use crate::relay::Relay;
#[cfg(feature = "simulation")]
pub use crate::relays::{Relays, Tally};
pub use crate::request_id::RequestIds;
pub use crate::resolve::{Lookups, Resolving};
pub use crate::routes::{
    AccessList, Cached, Change, Changed, Clients, HeaderRule, HealthCheck, HostPattern,
    MemberChange, MemberConfig, PoolConfig, Registry, Retired, Route, RouteConfig, RouteSettings,
    Routes, RoutesConfig, Table, UpstreamFilter,
};
pub use crate::server::Running;
pub use crate::start::{StartError, check_sources, start};
