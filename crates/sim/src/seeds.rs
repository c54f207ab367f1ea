//! [`main`]: the command line of a simulation. It runs seed after seed and reports what all of them
//! have covered, or the first seed that fails.

use std::process::ExitCode;

use super::{House, run};
use engine::planted::Plantable;
use engine::sys::sim::Fault;

const USAGE: &str = "usage: [--seeds N] [--seed S] [--planted]";
/// Each of the first seeds is run twice, to see that the same seed gives the same run.
const RUN_TWICE: u64 = 5;
/// So many seeds should have covered everything.
const ENOUGH_SEEDS: u64 = 200;

struct Args {
    seeds: u64,
    seed: u64,
    planted: bool,
}

/// What all runs have seen.
pub struct Sum<S> {
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
pub fn main<H: House, B: Plantable>(name: &str) -> ExitCode {
    let Some(args) = parse(std::env::args().skip(2)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    std::panic::set_hook(Box::new(|_| {}));
    let good = if args.planted {
        planted(&args, B::ALL, failure_of::<H>)
    } else {
        sound::<H>(&args, name)
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Args> {
    let mut args = Args { seeds: ENOUGH_SEEDS, seed: 1, planted: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => args.seeds = words.next()?.parse().ok()?,
            "--seed" => args.seed = words.next()?.parse().ok()?,
            "--planted" => args.planted = true,
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
    let lacks = Some(&sum).filter(|sum| sum.seeds >= ENOUGH_SEEDS).and_then(H::lacks);
    if let Some(lacks) = &lacks {
        println!("{lacks}");
    }
    lacks.is_none()
}

fn failure_of<H: House>(seed: u64) -> Option<String> {
    run::<H>(seed, &mut H::Seen::default()).failure
}

/// Plants one bug after the other; whether each was found.
#[cfg(feature = "planted")]
fn planted<B: Plantable>(args: &Args, bugs: &[B], failure_of: Failure) -> bool {
    use engine::planted::plant;

    let failure = |seed| Some((seed, failure_of(seed)?));
    let mut all = true;
    for &bug in bugs {
        plant(Some(bug));
        let found = (args.seed..args.seed + args.seeds).find_map(failure);
        plant(None::<B>);
        match found {
            Some((seed, failure)) => println!("{bug:?} found by seed {seed}: {failure}"),
            None => {
                println!("{bug:?} not found within {} seeds", args.seeds);
                all = false;
            }
        }
    }
    all
}

#[cfg(not(feature = "planted"))]
fn planted(_: &Args, _: &[impl Plantable], _: Failure) -> bool {
    eprintln!("--planted needs --features planted");
    false
}
