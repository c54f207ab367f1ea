//! The relay over a simulated kernel, one run per seed: `cargo xtask sim proxy`.
//!
//! Workers of the proxy, its clients and its upstreams run in one thread over [`engine::sys::sim`], in
//! an order that the seed decides. Clients and upstreams half-close, reset, stop reading, send too
//! much too early, and answer late or wrong. Each byte that arrives is checked. A failure names its
//! seed, which repeats it exactly.

mod client;
mod http_reader;
mod ledger;
mod reaction;
mod run;
mod scenario;
mod simulation;
mod upstream;

use std::process::ExitCode;

use self::simulation::ProxySim;

/// Runs the simulation with these arguments.
#[must_use]
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    crate::main::<ProxySim>("proxy", words)
}
