//! `cargo xtask mutants`: generated mutations, which tests and simulations must find. Takes long, so
//! it is no part of the suite.
//!
//! cargo-mutants generates them. It would build once for each; here all go into one copy of the sources
//! below `target/mutants`: every function gets a body per mutant, and an environment variable chooses
//! one. Bodies that do not compile are taken out again. Mutants outside a function cannot be chosen at
//! run time and are counted as skipped.

mod copy;
mod judges;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::step;

const INSTALL: &str = "cargo install cargo-mutants --locked";

/// What to mutate.
#[derive(Args)]
pub(crate) struct MutantsArgs {
    /// Package to mutate [default: each, with the files named in brackets]
    #[arg(long, value_enum)]
    package: Option<Package>,
    /// File to mutate, instead of the package's default
    #[arg(long, requires = "package")]
    file: Option<String>,
    /// Only shard K of N, counted from 0
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Judge only what the previous run missed or gave up, without what is accepted
    #[arg(long)]
    missed: bool,
    /// Mutants judged at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Install cargo-mutants if it is missing
    #[arg(long)]
    install: bool,
}

/// A package with its default files.
#[derive(Copy, Clone, ValueEnum)]
enum Package {
    /// Every file
    Wire,
    /// src/read.rs
    Engine,
    /// src/relay/tunnel.rs
    Proxy,
}

impl Package {
    /// The folder below `crates/`, the files, and the packages whose tests judge.
    fn parts(self) -> (&'static str, &'static str, &'static [&'static str]) {
        match self {
            Package::Wire => ("wire", "crates/wire/src/**", &["standfast-wire"]),
            Package::Engine => (
                "engine",
                "crates/engine/src/read.rs",
                &["standfast-sim", "standfast-engine", "standfast-proxy"],
            ),
            Package::Proxy => {
                ("proxy", "crates/proxy/src/relay/tunnel.rs", &["standfast-sim", "standfast-proxy"])
            }
        }
    }

    /// Arguments of the simulations that judge, too.
    fn simulations(self) -> &'static [&'static [&'static str]] {
        const PROXY: &[&str] = &["proxy", "--seeds", "20"];
        match self {
            Package::Wire => &[],
            // Only the proxy has raw connections.
            Package::Engine => &[&["engine", "--seeds", "20"], PROXY],
            Package::Proxy => &[PROXY],
        }
    }
}

/// As `cargo mutants --list --json` prints it.
#[derive(Deserialize, Clone)]
struct Mutant {
    file: PathBuf,
    function: Option<Function>,
    name: String,
    replacement: String,
    span: Span,
}

#[derive(Deserialize, Clone)]
struct Function {
    span: Span,
}

#[derive(Deserialize, Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    start: Place,
    end: Place,
}

/// Counted from 1, columns in characters.
#[derive(Deserialize, Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    line: usize,
    column: usize,
}

/// What became of a mutant.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Verdict {
    Caught,
    Timeout,
    Missed,
    Unviable,
    Skipped,
}

/// A mutant that is known to survive.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    /// As cargo-mutants names it, without line and column.
    name: String,
    reason: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct AcceptedList {
    #[serde(default)]
    accepted: Vec<Accepted>,
}

impl AcceptedList {
    fn read() -> Result<AcceptedList> {
        let path = step::root().join("crates/sim/mutations/accepted.toml");
        Ok(toml::from_str(&fs::read_to_string(path)?)?)
    }

    /// Why a mutant is accepted, if it is.
    fn reason(&self, mutant: &Mutant) -> Option<&str> {
        let name = without_place(&mutant.name);
        let accepted = self.accepted.iter().find(|accepted| accepted.name == name)?;
        Some(&accepted.reason)
    }
}

/// Whether every mutant was found or is listed as accepted.
pub(crate) fn run(args: &MutantsArgs) -> Result<bool> {
    if !step::succeeds(step::cargo(&["mutants", "--version"])) {
        ensure!(args.install, "cargo-mutants is missing: run `{INSTALL}`, or add --install");
        let words: Vec<&str> = INSTALL.split(' ').skip(1).collect();
        ensure!(step::cargo(&words).status()?.success(), "`{INSTALL}` failed");
    }
    let mut good = true;
    for package in args.package.as_ref().map_or(Package::value_variants(), std::slice::from_ref) {
        good &= run_package(*package, args)?;
    }
    Ok(good)
}

fn run_package(package: Package, args: &MutantsArgs) -> Result<bool> {
    let (folder, files, _) = package.parts();
    let accepted = AcceptedList::read()?;
    let mutants = list(folder, args.file.as_deref().unwrap_or(files), args.shard.as_deref())?;
    let copy = step::target_folder().join("mutants").join(folder);
    let shard = args.shard.as_deref().unwrap_or("all").replace('/', "-of-");
    let report = copy.join(format!("verdicts-{shard}.txt"));
    let known = if args.missed { known(&report)? } else { BTreeMap::new() };
    let is_known = |mutant: &Mutant, verdict| known.get(&mutant.name) == Some(&verdict);
    let unviable = (1..).zip(&mutants).filter(|(_, m)| is_known(m, Verdict::Unviable));
    let unviable = unviable.map(|(number, _)| number).collect();
    let (tests, unviable, skipped) = copy::build(package, &copy, &mutants, unviable)?;
    let mut judges =
        tests.into_iter().map(|test| judges::time(test, &copy)).collect::<Result<Vec<_>>>()?;
    // The quickest finds most.
    judges.sort_by_key(|judge| judge.cpu);
    let mut verdicts = BTreeMap::new();
    let mut due = Vec::new();
    for (number, mutant) in (1..).zip(&mutants) {
        if skipped.contains(&number) {
            verdicts.insert(number, Verdict::Skipped);
        } else if unviable.contains(&number) {
            verdicts.insert(number, Verdict::Unviable);
        } else if is_known(mutant, Verdict::Caught) {
            verdicts.insert(number, Verdict::Caught);
        } else if args.missed && accepted.reason(mutant).is_some() {
            verdicts.insert(number, Verdict::Missed);
        } else {
            due.push((number, mutant));
        }
    }
    let (due, verdicts) = (Mutex::new(due.into_iter()), Mutex::new(verdicts));
    thread::scope(|scope| -> Result<()> {
        let work = || -> Result<()> {
            loop {
                let next = lock(&due).next();
                let Some((number, mutant)) = next else { return Ok(()) };
                let verdict = judges::judge(number, mutant, &judges, &copy)?;
                println!("{verdict:?}: {}", mutant.name);
                let mut verdicts = lock(&verdicts);
                verdicts.insert(number, verdict);
                write_report(&report, &verdicts, &mutants)?;
            }
        };
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a judge panicked"),
        })
    })?;
    let verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    write_report(&report, &verdicts, &mutants)?;
    let all: Vec<(Verdict, &Mutant)> = verdicts.into_values().zip(&mutants).collect();
    summarise(folder, &all, &accepted, &report)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the verdicts so far, one a line.
fn write_report(
    report: &Path,
    verdicts: &BTreeMap<usize, Verdict>,
    mutants: &[Mutant],
) -> Result<()> {
    let mut lines = String::new();
    for (number, mutant) in (1..).zip(mutants) {
        if let Some(verdict) = verdicts.get(&number) {
            let _ = writeln!(lines, "{verdict:?}\t{}", mutant.name);
        }
    }
    Ok(fs::write(report, lines)?)
}

/// The mutants that a report says were found or do not compile. Those that took too long are judged
/// again.
fn known(report: &Path) -> Result<BTreeMap<String, Verdict>> {
    let text = fs::read_to_string(report).context("no previous run to continue")?;
    let known = text.lines().filter_map(|line| match line.split_once('\t')? {
        ("Caught", name) => Some((name.to_owned(), Verdict::Caught)),
        ("Unviable", name) => Some((name.to_owned(), Verdict::Unviable)),
        _ => None,
    });
    Ok(known.collect())
}

/// The mutants of the files, as cargo-mutants makes them.
fn list(folder: &str, files: &str, shard: Option<&str>) -> Result<Vec<Mutant>> {
    let package = format!("standfast-{folder}");
    let mut command = step::cargo(&["mutants", "--list", "--json", "--no-shuffle"]);
    command.args(["--package", &package, "--file", files]);
    if let Some(shard) = shard {
        command.args(["--shard", shard]);
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "cargo-mutants lists no mutants of {files}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Prints the counts and those missed; whether all of these are accepted.
fn summarise(
    folder: &str,
    all: &[(Verdict, &Mutant)],
    accepted: &AcceptedList,
    report: &Path,
) -> Result<bool> {
    let of = |wanted: Verdict| all.iter().filter(|(verdict, _)| *verdict == wanted).count();
    let (caught, missed) = (of(Verdict::Caught) + of(Verdict::Timeout), of(Verdict::Missed));
    let mut unknown = 0;
    for (_, mutant) in all.iter().filter(|(verdict, _)| *verdict == Verdict::Missed) {
        let reason = accepted.reason(mutant);
        unknown += u32::from(reason.is_none());
        println!("missed: {}: {}", mutant.name, reason.unwrap_or("NOT ACCEPTED"));
    }
    println!(
        "{folder}: {} mutants, {caught} caught ({} by timeout), {missed} missed ({unknown} not \
         accepted), {} unviable, {} skipped: {:.1} % caught; {}",
        all.len(),
        of(Verdict::Timeout),
        of(Verdict::Unviable),
        of(Verdict::Skipped),
        100.0 * caught as f64 / (caught + missed).max(1) as f64,
        report.display(),
    );
    Ok(unknown == 0)
}

/// `crates/wire/src/proxy.rs:12:3: replace …` without the place in the file, which changes.
fn without_place(name: &str) -> String {
    let parts: Vec<&str> = name.splitn(4, ':').collect();
    match parts[..] {
        [file, _, _, what] => format!("{file}:{what}"),
        _ => name.to_owned(),
    }
}
