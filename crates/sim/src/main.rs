//! `standfast-sim engine|proxy [--seeds N] [--seed S] [--planted]`: the command line of the simulations,
//! for `cargo xtask sim`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("engine") => sim::engine_sim::main(),
        Some("proxy") => sim::proxy_sim::main(),
        _ => {
            eprintln!("usage: standfast-sim engine|proxy [--seeds N] [--seed S] [--planted]");
            ExitCode::from(2)
        }
    }
}
