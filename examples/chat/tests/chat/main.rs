//! The chat over real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod announcing;
mod api;
mod brokers;
mod client;
mod kills;
mod nodes;
mod requests;
mod storm;
