//! Up to a hundred nodes and their broker, one run per seed: `cargo xtask sim nodes`.
//!
//! Nodes are real workers with real topics over a simulated kernel, and what crosses nodes is decided by the pure
//! parts of the crate `brokers`: which channels are wanted and confirmed, numbers and gaps, the bytes. The
//! connections ([`driver`]) and the broker ([`server`]) are models. Meanwhile nodes are killed, brokers restart,
//! connections are cut, slow, silent or closed for being slow. Each subscriber must get every publication that was
//! accepted after its subscription was confirmed, once and in the order of its sender, or be told of a gap; and
//! afterwards the broker has exactly the subscriptions that nodes want.
//!
//! `standfast-sim nodes --table` prints what a broker has to do for 1 to 100 nodes, without faults.

mod client;
mod driver;
mod ledger;
mod node;
mod pubsub;
mod scenario;
mod server;
mod simulation;
mod table;

use std::process::ExitCode;

use self::simulation::NodesSim;

/// Runs the simulation with these arguments.
#[must_use]
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    let mut words = words.peekable();
    if words.next_if(|word| word == "--table").is_some() {
        return table::main();
    }
    crate::main::<NodesSim>("nodes", words)
}
