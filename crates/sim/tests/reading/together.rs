//! The tests of `main.rs` with sockets that are received together, and whose replies are sent together.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

/// [`engine::Handler::READS_SOCKETS_TOGETHER`].
const SOCKETS_TOGETHER: bool = true;

mod deferred;
mod frames;
mod harness;
mod idle;
mod raw;
