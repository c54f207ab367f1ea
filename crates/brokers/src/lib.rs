//! Publications between nodes, over Redis or NATS.
//!
//! The crate knows no topics of workers and no clients: who uses it says which channels it wants and what it
//! publishes, and is told what arrives, what is confirmed and what may be missing.

pub mod envelope;
pub mod gaps;
pub mod interest;
pub mod limits;
#[cfg(feature = "redis")]
pub mod redis;
pub mod settings;
pub mod transport;

pub use settings::{RedisUrl, ServerAddress, UrlError};
pub use transport::{
    Channel, Fault, FaultKind, Inbox, InboxReceiver, Incoming, Link, Outgoing, Transport,
};
