//! Routes: which pool a request goes to, by host and path. [`RoutesConfig`] is what an operator
//! says, [`Routes`] what workers use, [`Table`] where they find it, [`Fleet`] what turns one into
//! the other and keeps the upstreams over every change.
//!
//! Routes are no access control: a path is compared as it was sent, and an upstream may read it
//! otherwise.

mod find;
mod registry;
mod routes_config;
mod table;

pub use self::find::{Route, Routes};
pub use self::registry::{Change, Changed, Fleet, Retired};
pub use self::routes_config::{
    Check, HostPattern, MemberConfig, PoolConfig, RouteConfig, RoutesConfig,
};
pub use self::table::{Cached, Table};
