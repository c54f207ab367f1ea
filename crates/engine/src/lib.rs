//! Workers, connections, queues, timers and mailboxes over epoll, built for a million sockets.
//!
//! A [`Worker`] is one thread's share: its slab of connections, one read buffer, its timers, and a
//! [`Handler`] that decides what to do. Between reading a message and writing its answer there is
//! no lock, no task and no channel. Other threads reach a worker through its mailbox ([`Remote`]).
//! [`Workers`] starts several, each with a descriptor table of its own.
//!
//! What it is not: it knows no topics, no paths and no brokers, and it reads no clock but
//! [`Sys`]'s. TLS sits between the kernel and `ingest`, and below every send.

mod accept;
mod admission;
mod body;
mod buffers;
mod classes;
mod close;
mod closed;
mod coalescing;
mod conn;
mod connect;
mod core;
mod counters;
mod deferred;
mod deflate;
#[cfg(test)]
mod drained;
mod dropped;
#[cfg(target_os = "linux")]
mod embedded;
#[cfg(test)]
mod generations;
mod handler;
mod histogram;
mod http;
mod id;
pub mod invariant;
mod limits;
mod mailbox;
mod opening;
mod outgoing;
mod parked;
mod partial_write;
mod polled;
mod queue;
mod read;
mod redirect;
#[cfg(test)]
mod reloaded_timeouts;
mod request_rejection;
mod send;
mod slab;
pub mod sys;
mod target;
mod timers;
mod tls;
mod worker;
#[cfg(target_os = "linux")]
mod workers;

pub use crate::admission::{AdmissionLimits, Network, Prefix, Proxies, ProxyProtocol, Refusal};
pub use crate::classes::ClassLimits;
pub use crate::closed::{Closed, ServerFault};
pub use crate::conn::Mode;
pub use crate::core::{ConnInfo, Core};
pub use crate::counters::{Counter, Counters, Totals};
pub use crate::deflate::Compression;
pub use crate::handler::{Answer, Handler, Incoming, RejectedRequest, Response};
pub use crate::histogram::{Histogram, Histograms};
pub use crate::id::{ConnId, SLOTS_MAX, WORKERS_MAX};
pub use crate::limits::{Limits, READ_BUFFER_BYTES, retry_after};
pub use crate::mailbox::{MailboxFull, Remote, Wake};
pub use crate::opening::Opening;
pub use crate::parked::LISTENERS_MAX;
pub use crate::queue::{SharedFrame, SlowConsumer};
pub use crate::redirect::HttpsRedirect;
pub use crate::send::Sent;
pub use crate::sys::Sys;
pub use crate::target::{Destination, Target, TlsConnect};
pub use crate::tls::{
    ClientAuth, TlsClient, TlsError, TlsIdentity, TlsServer, TlsSession, TlsState, TlsTrust,
    TlsVersion,
};
pub use crate::worker::{Turn, Worker};
#[cfg(target_os = "linux")]
pub use crate::workers::{Plan, Tables, Workers};
