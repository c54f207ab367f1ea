//! `cargo xtask test`: the whole suite, and `cargo xtask quick`: what takes less than two minutes.
//!
//! Every step runs even when an earlier one failed, so one run reports everything. Tests are built
//! once, in debug mode, where overflow and invariants are checked; the executable they run, and
//! which proves its sockets, is the release build people use.
//!
//! Steps that leave a core idle have others beside them: tests wait for sockets, the Autobahn
//! TestSuite is one thread of Python. What runs beside the tests has the lowest priority.

use std::process::{self, Command};
use std::{env, fs, thread};

use anyhow::{Result, anyhow};
use serde_json::Value;

use crate::step::{self, Outcome};
use crate::{fuzz, machine};

/// A name, and what is to run.
type Step = (&'static str, Command);

/// Runs the suite; the last line printed is `N passed, N failed`. Whether nothing failed.
pub(crate) fn run() -> Result<bool> {
    let mut outcomes = vec![machine::prepare()?];
    for (here, aside) in stages()? {
        outcomes.extend(together(here, aside)?);
    }
    outcomes.push(fuzz::suite()?);
    outcomes.push(prove(50_000)?);
    Ok(summarise(&outcomes))
}

/// What runs one after another, and beside it the same.
fn stages() -> Result<Vec<(Vec<Step>, Vec<Step>)>> {
    let cargo = step::cargo;
    let checks = vec![
        ("format", cargo(&["fmt", "--all", "--check"])),
        ("lints", clippy()),
        ("tests, built", cargo(&["test", "--workspace", "--no-run"])),
    ];
    let release = vec![("release build", cargo(&["build", "--release"]))];
    let tests = vec![("tests", tests())];
    let without = cargo(&["check", "--quiet", "--no-default-features"]);
    let planted = simulation(&["engine", "--seeds", "1000", "--planted"]);
    let made = vec![
        ("Autobahn, installed", autobahn(&["install"])),
        ("fuzz targets, built", step::gently(&fuzz::build_command()?)),
        ("without features", step::gently(&without)),
        ("simulation, planted bugs", step::gently(&planted)),
    ];
    let server = vec![
        ("Autobahn, our server", autobahn(&["server"])),
        ("Autobahn over TLS, our server", autobahn(&["server", "--tls"])),
        ("Autobahn through our proxy", autobahn(&["proxy"])),
        ("simulation, 200 seeds", simulation(&["engine", "--seeds", "200"])),
    ];
    let client = vec![
        ("Autobahn, our client", autobahn(&["client", "--debug"])),
        ("Autobahn over TLS, our client", autobahn(&["client", "--debug", "--tls"])),
        ("simulation of the proxy, 30 seeds", simulation(&["proxy", "--seeds", "30"])),
        (
            "simulation of the proxy, planted bugs",
            simulation(&["proxy", "--seeds", "200", "--planted"]),
        ),
    ];
    Ok(vec![(checks, release), (tests, made), (server, client)])
}

/// Runs `here` with its output as it arrives and `aside` at the same time, whose output follows.
fn together(here: Vec<Step>, aside: Vec<Step>) -> Result<Vec<Outcome>> {
    thread::scope(|scope| {
        let quietly = |(name, mut command): Step| step::run_quietly(name, &mut command);
        let aside = scope.spawn(move || aside.into_iter().map(quietly).collect::<Vec<_>>());
        let mut outcomes = Vec::new();
        for (name, mut command) in here {
            outcomes.push(step::run(name, &mut command)?);
        }
        for quiet in aside.join().map_err(|_| anyhow!("a step panicked"))? {
            let (outcome, said) = quiet?;
            println!("\n=== {}, beside the others\n{said}", outcome.name);
            outcomes.push(outcome);
        }
        Ok(outcomes)
    })
}

fn clippy() -> Command {
    let mut clippy = step::cargo(&["clippy", "--workspace", "--all-targets", "--quiet"]);
    clippy.args(["--", "--deny", "warnings"]);
    clippy
}

/// A test per case, those that are quick.
fn autobahn(which: &[&str]) -> Command {
    let mut autobahn = step::cargo(&[&["xtask", "autobahn"], which].concat());
    autobahn.env("STANDFAST_EXECUTABLE", step::release_executable());
    autobahn
}

/// As tests are built.
fn simulation(words: &[&str]) -> Command {
    step::cargo(&[&["xtask", "sim", "--debug"], words].concat())
}

fn tests() -> Command {
    let mut test = step::cargo(&["test", "--workspace", "--no-fail-fast"]);
    // `tests/harness/executable.rs` runs this instead of a debug build.
    test.env("STANDFAST_EXECUTABLE", step::release_executable());
    test
}

/// Proves `connections` sockets as a user would, and reads in the report that they were held.
fn prove(connections: u64) -> Result<Outcome> {
    let report = env::temp_dir().join(format!("standfast-prove-{}.json", process::id()));
    let mut command = step::cargo(&["run", "--release", "--quiet", "--", "prove"]);
    command.args(["--connections", &connections.to_string(), "--json"]).arg(&report);
    let mut outcome = step::run(&format!("{connections} sockets, proved"), &mut command)?;
    let open = fs::read_to_string(&report).ok().and_then(|text| {
        let report: Value = serde_json::from_str(&text).ok()?;
        report["connections"]["open"].as_u64()
    });
    if outcome.failed == 0 && open != Some(connections) {
        println!("the report does not say that all {connections} were open: {open:?}");
        (outcome.passed, outcome.failed) = (0, 1);
    }
    // Missing when nothing was written.
    let _ = fs::remove_file(&report);
    Ok(outcome)
}

fn summarise(outcomes: &[Outcome]) -> bool {
    println!("\n=== summary");
    for Outcome { name, passed, failed, took } in outcomes {
        let verdict = if *failed == 0 { "ok    " } else { "FAILED" };
        let seconds = took.as_secs();
        println!("{verdict} {passed:>4} passed {failed:>3} failed {seconds:>5} s  {name}");
    }
    let passed: u64 = outcomes.iter().map(|outcome| outcome.passed).sum();
    let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
    println!("{passed} passed, {failed} failed");
    failed == 0
}
