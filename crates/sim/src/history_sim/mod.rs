//! History and replays of topics over a simulated kernel, one run per seed: `cargo xtask sim history`.
//!
//! Readers come, leave at any moment and come back to any worker with the position of the last message
//! that they have read, while others publish and the history evicts by number, age and bytes. Each reader
//! must get every message once and in order, or be told of a gap that there is. A failure names its seed,
//! which repeats it exactly.

mod client;
mod ledger;
mod scenario;
mod server;
mod simulation;

use std::process::ExitCode;

use self::simulation::HistorySim;

/// Runs the simulation with these arguments.
#[must_use]
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    crate::main::<HistorySim>("history", words)
}
