//! Routes: which pool a request goes to, by host and path. [`RoutesConfig`] is the configuration,
//! [`Routes`] what workers use, [`Table`] where they find it, and [`Registry`] builds one from the
//! other and keeps the upstreams across changes.
//!
//! A path is compared as it was sent, and an upstream may decode it differently. So the access list of a
//! route also applies to requests that match it when they are decoded.

mod access;
mod change;
mod cookie_scope;
mod drained;
mod filter;
mod find;
mod header_rules;
mod known;
mod registry;
mod routes_config;
mod settings;
mod table;

pub use self::access::{AccessList, Clients};
pub use self::change::{Change, MemberChange};
pub use self::filter::UpstreamFilter;
pub use self::find::{Route, Routes};
pub use self::header_rules::HeaderRule;
pub(crate) use self::header_rules::Variables;
pub use self::registry::{Changed, Registry, Retired};
pub use self::routes_config::{
    HealthCheck, HostPattern, MemberConfig, PoolConfig, RouteConfig, RoutesConfig,
};
pub use self::settings::RouteSettings;
pub use self::table::{Cached, Table};
