//! `standfast-sim engine|history|nodes|proxy [--seeds N] [--seed S]`: the command line of the simulations, for
//! `cargo xtask sim`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("engine") => sim::engine_sim::main(words),
        Some("history") => sim::history_sim::main(words),
        Some("nodes") => sim::nodes_sim::main(words),
        Some("proxy") => sim::proxy_sim::main(words),
        _ => {
            eprintln!("usage: standfast-sim engine|history|nodes|proxy [--seeds N] [--seed S]");
            ExitCode::from(2)
        }
    }
}
