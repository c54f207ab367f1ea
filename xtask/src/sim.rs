//! `cargo xtask sim`: the engine, the history of topics, several nodes, and the proxy's relay, over simulated system calls,
//! one run per seed.
//!
//! The simulations are in `crates/sim`, over the kernel of `engine::sys::sim`; this builds and starts
//! them. With `--mutations` they run over mutated copies of the sources, and each mutation must be
//! found: [`mutations`].

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::{mutations, step};

/// The executable with all simulations.
pub(crate) const EXECUTABLE: &str = "standfast-sim";

/// Which simulations to run, and how often.
#[derive(Args)]
pub(crate) struct SimArgs {
    /// Simulation to run [default: all]
    #[arg(value_enum)]
    what: Option<What>,
    /// Number of seeds
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Apply mutations to a copy of the sources, one after another, and require that each is found
    #[arg(long)]
    mutations: bool,
    /// Skip mutations of crates that have not changed since theirs were found
    #[arg(long, requires = "mutations")]
    changed: bool,
    /// Print what the broker between 1 to 100 nodes has to do, and nothing else
    #[arg(long, conflicts_with = "mutations")]
    table: bool,
    /// Build as tests are built, with overflow checked; quicker for a few seeds
    #[arg(long)]
    debug: bool,
}

/// A simulation.
#[derive(Copy, Clone, ValueEnum)]
pub(crate) enum What {
    /// Workers of a server and of clients, and topics
    Engine,
    /// Readers of topics with a history, who leave and come back
    History,
    /// Up to a hundred nodes, over a broker that restarts and loses connections
    Nodes,
    /// Workers of the proxy, between clients and upstreams
    Proxy,
}

/// Whether every seed passed (with `--mutations`: whether every mutation was found).
pub(crate) fn run(args: &SimArgs) -> Result<bool> {
    let simulations = match args.what {
        None => &["engine", "history", "nodes", "proxy"][..],
        Some(What::Engine) => &["engine"],
        Some(What::History) => &["history"],
        Some(What::Nodes) => &["nodes"],
        Some(What::Proxy) => &["proxy"],
    };
    let SimArgs { seeds, seed, debug, changed, .. } = *args;
    if args.mutations {
        return mutations::run(&mutations::Options { simulations, seeds, seed, debug, changed });
    }
    ensure!(build_command(EXECUTABLE, debug).status()?.success(), "`{EXECUTABLE}` does not build");
    if args.table {
        let mut command = Command::new(executable(EXECUTABLE, debug));
        return Ok(command.args(["nodes", "--table"]).status()?.success());
    }
    let (seeds, seed) = (seeds.to_string(), seed.to_string());
    let mut passed = true;
    for simulation in simulations {
        let mut command = Command::new(executable(EXECUTABLE, debug));
        command.args([simulation, "--seeds", &seeds, "--seed", &seed]).current_dir(step::root());
        passed &= command.status()?.success();
    }
    Ok(passed)
}

/// Builds the executable of that name with the features that the workspace's tests are built with,
/// so that nothing they have built is built again: one of the tests has cargo count their needs.
pub(crate) fn build_command(executable: &str, debug: bool) -> Command {
    let words = ["build", "--quiet", "--workspace", "--bin", executable, "--test", "admission"];
    let mut cargo = step::cargo(&words);
    if !debug {
        cargo.arg("--release");
    }
    cargo
}

/// Where that executable is once it is built.
pub(crate) fn executable(name: &str, debug: bool) -> PathBuf {
    step::target_folder().join(if debug { "debug" } else { "release" }).join(name)
}
