//! `cargo xtask sim`: the engine, and the proxy's relay, over simulated system calls, one run per seed.
//!
//! The simulations themselves are examples of `topics` and of `proxy`, over the kernel of
//! `engine::sys::sim`; this hands them the arguments.

use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::step;

/// Which seeds to run.
#[derive(Args)]
pub(crate) struct SimArgs {
    /// What to run [default: both]
    #[arg(value_enum)]
    what: Option<What>,
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

/// What is simulated.
#[derive(Copy, Clone, ValueEnum)]
pub(crate) enum What {
    /// Workers of a server and of clients, and topics.
    Engine,
    /// Workers of the proxy, between clients and upstreams.
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
    for what in args.what.as_ref().map_or(&all[..], std::slice::from_ref) {
        good &= command(*what, &["--release"], &words).status()?.success();
    }
    Ok(good)
}

/// For the suite: as tests are built, with overflow checked. A few seeds take less than it takes to
/// link a release build.
pub(crate) fn in_debug(what: What, words: &[&str]) -> Command {
    command(what, &[], words)
}

/// The simulation built like that, with `words` as its arguments.
fn command(what: What, built: &[&str], words: &[&str]) -> Command {
    let mut command = step::cargo(&[&["run", "--quiet"], built].concat());
    let (package, example) = match what {
        What::Engine => ("standfast-topics", "sim"),
        What::Proxy => ("standfast-proxy", "sim_proxy"),
    };
    command.args(["--package", package, "--example", example]);
    if words.contains(&"--planted") {
        command.args(["--features", "planted"]);
    }
    command.arg("--").args(words);
    command
}
