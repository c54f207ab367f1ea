//! The engine and its topics over a simulated kernel, one run per seed:
//! `cargo run --release -p standfast-topics --example sim -- --seeds 1000`.
//!
//! Workers of a server, workers in the client's role, ill-mannered peers on bare sockets and a
//! control plane run in one thread over [`engine::sys::sim`], in an order that the seed decides, and
//! every step is checked. A failure names its seed, which repeats it exactly. With `--features
//! planted` and `--planted` it proves that it finds bugs: each of those planted must show.

mod client;
mod control;
mod house;
mod ledger;
mod letter;
mod raw;
mod run;
mod scenario;
mod script;
mod server;

use std::process::ExitCode;

use engine::planted::Bug;

use crate::house::House;

fn main() -> ExitCode {
    engine::simulation::main::<House, Bug>("engine")
}
