//! `cargo xtask sim`: the engine over simulated system calls, one run per seed.
//!
//! The simulation itself is an example of `topics`, over the kernel of `engine::sys::sim`; this hands
//! it the arguments.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::step;

/// Which seeds to run.
#[derive(Args)]
pub(crate) struct SimArgs {
    /// How many seeds to run.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plant bugs, one after another, and require that each is found.
    #[arg(long)]
    planted: bool,
}

/// Whether every seed went through (with `--planted`: whether every bug was found).
pub(crate) fn run(args: &SimArgs) -> Result<bool> {
    let (seeds, seed) = (args.seeds.to_string(), args.seed.to_string());
    let mut words = vec!["--seeds", &seeds, "--seed", &seed];
    if args.planted {
        words.push("--planted");
    }
    Ok(command(&["--release"], &words).status()?.success())
}

/// For the suite: as tests are built, with overflow checked. A few seeds take less than it takes to
/// link a release build.
pub(crate) fn in_debug(words: &[&str]) -> Command {
    command(&[], words)
}

/// The simulation built like that, with `words` as its arguments.
fn command(built: &[&str], words: &[&str]) -> Command {
    let mut command = step::cargo(&[&["run", "--quiet"], built].concat());
    command.args(["--package", "standfast-topics", "--example", "sim"]);
    if words.contains(&"--planted") {
        command.args(["--features", "planted"]);
    }
    command.arg("--").args(words);
    command
}
