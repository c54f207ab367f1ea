//! Publications between nodes, over Redis or NATS.
//!
//! The crate knows no topics of workers and no clients: who uses it says which topics it wants and what it
//! publishes ([`Broker`]), and is told what arrives, what is confirmed and what may be missing ([`Receiver`]).

mod backoff;
mod bell;
mod broker;
pub mod doors;
mod driver;
pub mod envelope;
mod figures;
pub mod gaps;
pub mod interest;
pub mod limits;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "nats")]
mod nats_servers;
#[cfg(feature = "redis")]
pub mod redis;
pub mod settings;
mod ticket;
pub mod transport;

pub use broker::{
    Broker, ConfirmedTopic, OwnedExcept, Publication, Receiver, Settings, Unavailable, Undelivered,
};
pub use figures::{Counters, GapCause, NodeSeen, ShardFigures};
#[cfg(feature = "nats")]
pub use nats_servers::{NatsServers, NatsUrl};
pub use settings::{RedisUrl, ServerAddress, UrlError};
pub use ticket::{Outcome, Ticket};
pub use transport::{
    Channel, Fault, FaultKind, Inbox, InboxReceiver, Incoming, Link, Outgoing, Transport,
};
