//! [`main`]: the command line of a simulation. It runs seed after seed and reports what all of them
//! have covered, or the first seed that fails.

use std::process::ExitCode;

use super::{Simulation, run};
use engine::sys::sim::Fault;

const USAGE: &str = "usage: standfast-sim engine|history|nodes|proxy [--seeds N] [--seed S]";
/// Each of the first seeds is run twice, to see that the same seed gives the same run.
const RUN_TWICE: u64 = 5;
/// So many seeds should have covered everything.
const ENOUGH_SEEDS: u64 = 200;

struct Args {
    seeds: u64,
    seed: u64,
}

/// Totals of all runs.
pub struct SeedTotals<S> {
    /// Runs.
    pub seeds: u64,
    /// How often each fault happened, by its number.
    pub faults: [u64; Fault::ALL.len()],
    /// What the simulation counts itself.
    pub coverage: S,
    events: u64,
    events_min: u64,
}

/// Runs a simulation with these arguments. `name` is its name in `cargo xtask sim`.
#[must_use]
pub fn main<H: Simulation>(name: &str, words: impl Iterator<Item = String>) -> ExitCode {
    let Some(args) = parse(words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    std::panic::set_hook(Box::new(|_| {}));
    if run_seeds::<H>(&args, name) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Args> {
    let mut args = Args { seeds: ENOUGH_SEEDS, seed: 1 };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => args.seeds = words.next()?.parse().ok()?,
            "--seed" => args.seed = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(args)
}

/// Runs every seed; whether all went well.
fn run_seeds<H: Simulation>(args: &Args, name: &str) -> bool {
    let (faults, coverage) = ([0; Fault::ALL.len()], H::Coverage::default());
    let mut totals =
        SeedTotals { seeds: args.seeds, faults, coverage, events: 0, events_min: u64::MAX };
    for seed in args.seed..args.seed + args.seeds {
        let outcome = run::<H>(seed, &mut totals.coverage);
        let again = || run::<H>(seed, &mut H::Coverage::default()).trace;
        let differs = || seed < args.seed + RUN_TWICE && again() != outcome.trace;
        let other = || differs().then_some("the same seed gave another run");
        if let Some(failure) = outcome.failure.as_deref().or_else(other) {
            println!("seed {seed} failed: {failure}");
            println!("repeat it: cargo xtask sim {name} --seeds 1 --seed {seed}");
            return false;
        }
        totals.events += outcome.events;
        totals.events_min = totals.events_min.min(outcome.events);
        for (totals, count) in totals.faults.iter_mut().zip(outcome.faults) {
            *totals += count;
        }
    }
    let (seeds, events, events_min, summary) =
        (totals.seeds, totals.events, totals.events_min, H::summary(&totals.coverage));
    println!("{seeds} seeds, {events} events, at least {events_min} a seed{summary}; all passed");
    println!("{:<24}{:>12}", "fault", "fired");
    for (fault, count) in Fault::ALL.into_iter().zip(totals.faults) {
        println!("{:<24}{count:>12}", fault.name());
    }
    let missing = Some(&totals).filter(|totals| totals.seeds >= ENOUGH_SEEDS).and_then(H::missing);
    if let Some(missing) = &missing {
        println!("{missing}");
    }
    missing.is_none()
}
