//! Program 1: holds the sockets and feeds them.
//!
//! [`start`] opens the listeners, starts the engine's workers with a [`handler::Door`] each, then the
//! control plane. `/echo` answers what it hears, `/topics/NAME` subscribes whoever connects,
//! `/health` says ok or draining; publishing over HTTP and all detail are the admin listener's.
//!
//! What it is not: it parses no command line and no file (the binary does), it knows no system call
//! (the engine does), and it has no protocol beyond its dialects.

mod auth;
mod broadcast;
mod broadcast_worker;
mod config;
mod control;
mod handler;
mod identifiers;
mod log_events;
mod origin;
mod path;
mod protocols;
mod publish;
mod retry_queue;
mod server;
mod session;
mod session_index;
mod shared;
mod sid;
mod start;

pub use admin::{Address, Server};
pub use engine::{AdmissionLimits, Compression, Limits, Network, Prefix, Proxies, SlowConsumer};
pub use wire::http::ForwardedBy;

pub use crate::auth::{Auth, KeySet, Secret};
pub use crate::config::{Channels, Config, Live, TOPIC_BYTES_MAX};
pub use crate::origin::Origin;
pub use crate::server::Running;
pub use crate::start::{StartError, start};
