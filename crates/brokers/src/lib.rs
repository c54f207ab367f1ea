//! Publications between nodes, over Redis or NATS.
//!
//! The crate knows no workers and no clients. A program subscribes and publishes through [`Broker`]; its
//! [`Receiver`] is called with what arrives, which subscriptions are confirmed, and where something may be missing.

#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "some is for Redis only"))]
pub mod adapters;
mod backoff;
mod bell;
mod broker;
mod driver;
pub mod envelope;
mod figures;
pub mod gaps;
pub mod interest;
mod kept;
pub mod limits;
pub mod members;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "nats")]
mod nats_servers;
pub mod placement;
#[cfg(feature = "redis")]
pub mod redis;
pub mod settings;
mod store;
#[cfg(test)]
mod test_servers;
mod ticket;
pub mod transport;

pub use broker::{
    Accepted, Broker, ConfirmedTopic, NO_ROOM, OwnedExcept, Publication, Receiver, Settings,
    Unavailable, Undelivered,
};
pub use figures::{Counters, GapCause, NodeSeen, ShardFigures};
pub use kept::{HistorySettings, Kept, Past, Position};
#[cfg(feature = "nats")]
pub use nats_servers::{NatsServers, NatsUrl};
pub use placement::{Placement, shard_of};
pub use settings::{RedisUrl, ServerAddress, UrlError};
pub use store::{NewValue, OnAnswer, StoreAction, StoreAnswer, StoreCommand};
pub use ticket::{Outcome, Ticket};
pub use transport::{
    Arrived, Channel, Fault, FaultKind, Fetched, Inbox, InboxReceiver, Incoming, Link, Outgoing,
    Rejected, Taken, Transport,
};
