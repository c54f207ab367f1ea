//! Development tasks, run as `cargo xtask TASK` from anywhere in the repository.
//!
//! Not shipped and not part of any program: it starts other tools (cargo, apt-get, npm, the
//! built executable) and reports their results.

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

/// Development tasks of standfast
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
    /// Compare standfast with competitors and with bare C programs
    Bench(bench::BenchArgs),
    /// Run the Autobahn TestSuite against the server, the proxy or the client
    Autobahn(autobahn::AutobahnArgs),
    /// Create a test CA with a server and a client certificate
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
