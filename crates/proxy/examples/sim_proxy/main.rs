//! The relay over a simulated kernel, one run per seed:
//! `cargo run --release -p standfast-proxy --example sim_proxy -- --seeds 1000`.
//!
//! Workers of the proxy, clients before it and upstreams behind it run in one thread over
//! [`engine::sys::sim`], in an order that the seed decides. Clients and upstreams half-close, reset,
//! stop reading, say too much too early, answer late or wrong, and each byte that arrives is checked.
//! A failure names its seed, which repeats it exactly. With `--features planted` and `--planted` it
//! proves that it finds bugs: each of those planted in the relay must show.

mod asked;
mod client;
mod house;
mod ledger;
mod run;
mod scenario;
mod upstream;

use std::process::ExitCode;

use proxy::planted::Bug;

use crate::house::House;

fn main() -> ExitCode {
    engine::simulation::main::<House, Bug>("proxy")
}
