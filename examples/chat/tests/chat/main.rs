//! The chat over real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod announcing;
mod api;
mod client;
mod requests;
mod storm;
