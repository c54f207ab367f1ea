//! Development tasks, run as `cargo xtask TASK` from anywhere in the repository.
//!
//! Not shipped and not part of any program: it starts other tools (cargo, apt-get, npm, the
//! built executable) and reports their results.

#![allow(clippy::disallowed_methods, reason = "tasks run in real time; there is no `Sys` here")]

mod autobahn;
mod bench;
mod cert;
mod dist;
mod docs;
mod elf;
mod fuzz;
mod machine;
mod mutants;
mod mutations;
mod sim;
mod step;
mod suite;
mod tests;
mod venv;

use std::process::ExitCode;

use clap::Parser;

/// Development tasks of standfast
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Run every test and prove 50,000 sockets [20 to 30 minutes on two cores]
    #[command(visible_alias = "ci")]
    Test(suite::TestArgs),
    /// Check format and lints, run the unit tests [at most 2 minutes]
    Quick,
    /// Check what the suite needs on this machine
    #[command(hide = true)]
    Requirements(machine::RequirementsArgs),
    /// Run the engine and the proxy over a simulated kernel, one run per seed
    Sim(sim::SimArgs),
    /// Apply generated mutations, each of which a test must find [takes hours]
    Mutants(mutants::MutantsArgs),
    /// Fuzz the parsers and state machines with libFuzzer
    Fuzz(fuzz::FuzzArgs),
    /// Compare standfast with competitors and with bare C programs
    Bench(Box<bench::BenchArgs>),
    /// Run the Autobahn TestSuite against the server, the proxy or the client
    Autobahn(autobahn::AutobahnArgs),
    /// Create a test CA with a server and a client certificate
    Cert(cert::CertArgs),
    /// Build the documentation site into target/book and check its links
    Docs(docs::DocsArgs),
    /// Build the static executable and the packages with it into target/dist, and try them
    Dist(dist::DistArgs),
}

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Test(args) => suite::run(&args),
        Task::Quick => suite::quick(),
        Task::Requirements(args) => machine::run(&args),
        Task::Sim(args) => sim::run(&args),
        Task::Mutants(args) => mutants::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Autobahn(args) => autobahn::run(&args),
        Task::Cert(args) => cert::run(&args),
        Task::Docs(args) => docs::run(&args),
        Task::Dist(args) => dist::run(&args),
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
