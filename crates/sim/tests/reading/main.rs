//! What a worker does with the bytes it reads, over the simulated kernel and its clock.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod frames;
mod harness;
mod idle;
mod raw;
