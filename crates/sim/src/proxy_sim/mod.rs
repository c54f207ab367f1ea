//! The relay over a simulated kernel, one run per seed: `cargo xtask sim proxy`.
//!
//! Workers of the proxy, clients before it and upstreams behind it run in one thread over
//! [`engine::sys::sim`], in an order that the seed decides. Clients and upstreams half-close, reset,
//! stop reading, say too much too early, answer late or wrong, and each byte that arrives is checked.
//! A failure names its seed, which repeats it exactly. With `--features planted` and `--planted` it
//! proves that it finds bugs: each of those planted in the relay must show.

mod client;
mod http_reader;
mod ledger;
mod run;
mod scenario;
mod simulation;
mod upstream;

use std::process::ExitCode;

use proxy::planted::Bug;

/// Runs the simulation with these arguments.
#[must_use]
pub fn main() -> ExitCode {
    crate::main::<House, Bug>("proxy")
}
