//! Chores of the project, run as `cargo xtask CHORE` from anywhere in the repository.
//!
//! Not shipped and not part of any program: it starts other tools (cargo, apt-get, npm, the
//! built executable) and reports what they said.

#![allow(clippy::disallowed_methods, reason = "chores run in real time; there is no `Sys` here")]

mod autobahn;
mod bench;
mod cert;
mod dist;
mod elf;
mod fuzz;
mod machine;
mod sim;
mod step;
mod suite;

use std::process::ExitCode;

use clap::Parser;

/// Chores of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Installs what the tests need, runs every one of them and proves 50,000 sockets.
    #[command(visible_alias = "ci")]
    Test,
    /// Runs the engine over simulated system calls, one run per seed.
    Sim(sim::SimArgs),
    /// Looks for inputs that break what reads them, with libFuzzer.
    Fuzz(fuzz::FuzzArgs),
    /// Measures ours beside rivals and the bare C floor; raw results go to bench/results.
    Bench(bench::BenchArgs),
    /// Runs the Autobahn TestSuite against our server or our client.
    Autobahn(autobahn::AutobahnArgs),
    /// Makes an authority with certificates for a server on this machine and for a client.
    Cert(cert::CertArgs),
    /// Builds the static executable and packs it with completions and manual into target/dist.
    Dist(dist::DistArgs),
}

fn main() -> ExitCode {
    let outcome = match Chore::parse() {
        Chore::Test => suite::run(),
        Chore::Sim(args) => sim::run(&args),
        Chore::Fuzz(args) => fuzz::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Autobahn(args) => autobahn::run(&args),
        Chore::Cert(args) => cert::run(&args),
        Chore::Dist(args) => dist::run(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
