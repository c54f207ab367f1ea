//! What a worker does with the bytes it reads, over the simulated kernel and its clock.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

/// [`engine::Handler::READS_SOCKETS_TOGETHER`]; `together.rs` has the same tests with it.
const SOCKETS_TOGETHER: bool = false;

mod frames;
mod harness;
mod idle;
mod raw;
