//! Routes: which pool a request goes to, by host and path. [`RoutesConfig`] is what an operator
//! says, [`Routes`] what workers use, [`Table`] where they find it, [`Fleet`] what turns one into
//! the other and keeps the upstreams over every change.
//!
//! Routes are no access control: a path is compared as it was sent, and an upstream may read it
//! otherwise.

mod find;
mod fleet;
mod said;
mod table;

pub use self::find::{Route, Routes};
pub use self::fleet::{Change, Changed, Fleet, Retired};
pub use self::said::{Check, HostPattern, MemberConfig, PoolConfig, RouteConfig, RoutesConfig};
pub use self::table::{Cached, Table};
