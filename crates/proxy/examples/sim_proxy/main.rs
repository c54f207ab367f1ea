//! The relay over a simulated kernel, one run per seed:
//! `cargo run --release -p standfast-proxy --example sim_proxy -- --seeds 1000`.
//!
//! Workers of the proxy, clients before it and upstreams behind it run in one thread over
//! [`engine::sys::sim`], in an order that the seed decides. Clients and upstreams half-close, reset,
//! stop reading, say too much too early, answer late or wrong, and each byte that arrives is checked.
//! A failure names its seed, which repeats it exactly. With `--features planted` and `--planted` it
//! proves that it finds bugs: each of those planted in the relay must show.

mod asked;
mod client;
mod house;
mod ledger;
mod run;
mod scenario;
mod upstream;

use std::process::ExitCode;

use engine::sys::sim::Fault;

use crate::run::run;

const USAGE: &str = "usage: sim [--seeds N] [--seed S] [--planted]";
/// Each of the first seeds is run twice, to see that the same seed gives the same run.
const RUN_TWICE: u64 = 5;

struct Args {
    seeds: u64,
    seed: u64,
    planted: bool,
}

fn main() -> ExitCode {
    let Some(args) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    std::panic::set_hook(Box::new(|_| {}));
    let good = if args.planted { planted(&args) } else { sound(&args) };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Args> {
    let mut args = Args { seeds: 200, seed: 1, planted: false };
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
fn sound(args: &Args) -> bool {
    let mut counts = [0u64; Fault::ALL.len()];
    let (mut events, mut tunnels, mut whole, mut bytes) = (0, 0, 0, 0);
    for seed in args.seed..args.seed + args.seeds {
        let outcome = run(seed);
        if let Some(failure) = &outcome.failure {
            return failed(seed, failure);
        }
        if seed < args.seed + RUN_TWICE && run(seed).trace != outcome.trace {
            return failed(seed, "the same seed gave another run");
        }
        events += outcome.events;
        tunnels += outcome.tunnels;
        whole += outcome.whole;
        bytes += outcome.bytes;
        for (sum, count) in counts.iter_mut().zip(outcome.faults) {
            *sum += count;
        }
    }
    println!(
        "{} seeds, {events} events, {tunnels} tunnels with {bytes} bytes, {whole} directions whole \
         to their end; nothing is wrong",
        args.seeds
    );
    println!("{:<24}{:>12}", "fault", "fired");
    for (fault, count) in Fault::ALL.into_iter().zip(counts) {
        println!("{:<24}{count:>12}", fault.name());
    }
    let enough = args.seeds < 200 || tunnels > args.seeds && whole > args.seeds;
    if !enough {
        println!("too little was seen to say anything");
    }
    enough
}

fn failed(seed: u64, what: &str) -> bool {
    println!("seed {seed} failed: {what}");
    println!("repeat it: cargo xtask sim proxy --seeds 1 --seed {seed}");
    false
}

/// Plants one bug after the other; whether each was found.
#[cfg(feature = "planted")]
fn planted(args: &Args) -> bool {
    use proxy::planted::{Bug, plant};

    let mut all = true;
    for bug in Bug::ALL {
        plant(Some(bug));
        let mut seeds = args.seed..args.seed + args.seeds;
        let found = seeds.find_map(|seed| run(seed).failure.map(|failure| (seed, failure)));
        plant(None);
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
fn planted(_: &Args) -> bool {
    eprintln!("--planted needs --features planted");
    false
}
