//! The engine and its topics over a simulated kernel, one run per seed: `cargo xtask sim engine`.
//!
//! Workers of a server, workers in the client's role, hostile peers on bare sockets and a control
//! plane run in one thread over [`engine::sys::sim`], in an order that the seed decides. Every step is
//! checked. A failure names its seed, which repeats it exactly.

mod client;
mod control;
mod envelope;
mod ledger;
mod polls;
mod raw;
mod run;
mod scenario;
mod script;
mod server;
mod simulation;

use std::process::ExitCode;

use self::simulation::EngineSim;

/// Runs the simulation with these arguments.
#[must_use]
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    crate::main::<EngineSim>("engine", words)
}
