//! `cargo xtask sim`: the engine, and the proxy's relay, over simulated system calls, one run per seed.
//!
//! The simulations are in `crates/sim`, over the kernel of `engine::sys::sim`; this builds and starts
//! them. With `--mutations` they run over mutated copies of the sources, and each mutation must be
//! found: [`mutations`].

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::step;

/// Which seeds to run.
#[derive(Args)]
pub(crate) struct SimArgs {
    /// Simulation to run [default: both]
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
    planted: bool,
    /// As tests are built, with overflow checked: of a few seeds it is the quicker, too.
    #[arg(long)]
    debug: bool,
}

/// A simulation.
#[derive(Copy, Clone, ValueEnum)]
pub(crate) enum What {
    /// Workers of a server and of clients, and topics
    Engine,
    /// Workers of the proxy, between clients and upstreams
    Proxy,
}

/// Whether every seed went through (with `--planted`: whether every bug was found).
pub(crate) fn run(args: &SimArgs) -> Result<bool> {
    let (seeds, seed) = (args.seeds.to_string(), args.seed.to_string());
    let mut words = vec!["--seeds", &seeds, "--seed", &seed];
    if args.planted {
        words.push("--planted");
    }
    let all = [What::Engine, What::Proxy];
    let mut good = true;
    let executable = build(args)?;
    for what in args.what.as_ref().map_or(&all[..], std::slice::from_ref) {
        let name = match what {
            What::Engine => "engine",
            What::Proxy => "proxy",
        };
        let mut simulation = Command::new(&executable);
        simulation.arg(name).args(&words).current_dir(step::root());
        good &= simulation.status()?.success();
    }
    Ok(good)
}

/// Builds the simulation with the whole house's choice of features, so that of what the tests are
/// built on nothing is built again; where it is then.
fn build(args: &SimArgs) -> Result<PathBuf> {
    let mut cargo = step::cargo(&["build", "--quiet", "--workspace", "--bin", "standfast-sim"]);
    if args.planted {
        cargo.args(["--features", "standfast-sim/planted"]);
    }
    if !args.debug {
        cargo.arg("--release");
    }
    ensure!(cargo.status()?.success(), "the simulations do not build");
    let folder = if args.debug { "debug" } else { "release" };
    Ok(step::target_folder().join(folder).join("standfast-sim"))
}
