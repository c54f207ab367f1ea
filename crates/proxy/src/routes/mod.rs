//! Routes: which pool a request goes to, by host and path. [`RoutesConfig`] is the configuration,
//! [`Routes`] what workers use, [`Table`] where they find it, and [`Registry`] builds one from the
//! other and keeps the upstreams across changes.
//!
//! Routes are no access control: a path is compared as it was sent, and an upstream may decode it
//! differently.

mod filter;
mod find;
mod known;
mod registry;
mod routes_config;
mod table;

pub use self::filter::UpstreamFilter;
pub use self::find::{Route, Routes};
pub use self::registry::{Change, Changed, Registry, Retired};
pub use self::routes_config::{
    HealthCheck, HostPattern, MemberConfig, PoolConfig, RouteConfig, RoutesConfig,
};
pub use self::table::{Cached, Table};
