//! Balancing: which upstream a request goes to, counted over all workers.
//!
//! [`Pool`] chooses, [`Upstream`] counts, [`Picked`] is a place taken. No lock, no allocation but for
//! a new sticky cookie, and no socket: connecting is the relay's, finding out who is alive is the
//! control plane's.

mod address;
mod cookie;
mod hash;
mod pool;
#[cfg(test)]
mod tests;
mod upstream;

pub use self::address::{Place, UpstreamAddress};
pub use self::cookie::Sticky;
pub use self::pool::{Balance, HashBy, Key, Member, Pool, PoolLimits, Refused, Waiting};
pub use self::upstream::{Ejection, Fault, Picked, Standing, Upstream};

pub(crate) use self::upstream::Port;

pub(crate) use self::pool::PoolState;
