//! Load balancing: which upstream a request goes to, with counts over all workers.
//!
//! [`Pool`] chooses, [`Upstream`] counts, and a [`Permit`] is one of the tunnels an upstream allows. No
//! lock, no allocation except for a new sticky cookie, and no socket: the relay connects, and the
//! control plane runs the health checks.

mod address;
mod cookie;
mod errors;
mod hash;
mod pool;
mod queue;
mod round;
mod settings;
#[cfg(test)]
mod tests;
mod upstream;

pub use self::address::{Endpoint, UpstreamAddress};
pub use self::cookie::{CookieKey, Sticky};
pub use self::errors::ErrorEjection;
pub use self::pool::{Member, PickContext, PickError, Pool};
pub use self::queue::QueueTicket;
pub use self::settings::{Balance, HashBy, PoolLimits};
pub use self::upstream::{Ejection, Fault, Permit, Upstream, UpstreamState};

pub(crate) use self::pool::PoolHealth;
pub(crate) use self::upstream::Port;

pub(crate) use self::queue::PoolState;
