//! `cargo xtask mutants`: generated mutations, which tests and simulations must find. Takes long, so
//! it is no part of the suite.
//!
//! cargo-mutants generates them. It would build once for each; here all go into one copy of the sources
//! below `target/mutants`: every function gets a body per mutant, and an environment variable chooses
//! one. Bodies that do not compile are taken out again. Mutants outside a function cannot be chosen at
//! run time and are counted as skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::Value;

use crate::mutations::{self, COPIED};
use crate::step;

const INSTALL: &str = "cargo install cargo-mutants --locked";
/// Names the mutant that is chosen.
const SWITCH: &str = "STANDFAST_MUTATION";
/// A test hangs if it takes this many times as long as without a mutant, and this in addition: of CPU
/// time, or of time, which on a busy machine says less.
const SLOWDOWN: u32 = 4;
const CPU_PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(90);
/// Clock ticks per second in /proc (proc(5)).
const TICKS: u64 = 100;
const POLL_EVERY: Duration = Duration::from_millis(10);
/// Runs the rest of a command with at most 8 GB of memory, which a loop could fill.
const LIMITED: [&str; 4] = ["sh", "-c", "ulimit -v 8000000 && exec \"$@\"", "sh"];
/// Stands for the module of a mutant's file in a command.
const MODULE: &str = "{module}";
/// What wire's property tests have in common in their names, and its long other tests.
const PROPERTIES: &[&str] = &["_any_reads", "_round_trip", "encoded_", "anything_"];
const LONG: &[&str] = &["bi_04_", "bi_05_", "bi_07_", "bi_13_", "every_pair", "masking_"];
/// For property tests: fewer cases than usual, always the same ones, and no search for smaller ones.
const PROPERTY_TESTS: &[(&str, &str)] = &[
    ("PROPTEST_CASES", "40"),
    ("PROPTEST_RNG_SEED", "6455"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true"),
];
/// Compilers report errors in rounds: types first, borrows last.
const BUILDS_MAX: usize = 12;
const SWITCH_MODULE: &str = "//! Which mutant is chosen.\n\nextern crate std;\n\
    use std::sync::LazyLock;\n\nstatic CHOSEN: LazyLock<usize> = LazyLock::new(|| {\n    \
    std::env::var(\"STANDFAST_MUTATION\").ok().and_then(|text| text.parse().ok()).unwrap_or(0)\n});\
    \n\n/// Its number.\npub(crate) fn chosen() -> usize {\n    *CHOSEN\n}\n";

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

/// A test that judges, and how long it takes with no mutant chosen.
struct Judge {
    test: Vec<String>,
    time: Duration,
    cpu: Duration,
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
    let (tests, unviable, skipped) = build(package, &copy, &mutants, unviable)?;
    let mut judges = tests.into_iter().map(|test| time(test, &copy)).collect::<Result<Vec<_>>>()?;
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
                let verdict = judge(number, mutant, &judges, &copy)?;
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

type Built = (Vec<Vec<String>>, BTreeSet<usize>, BTreeSet<usize>);

/// Builds the tests with all mutants in; the commands that judge, and the numbers of mutants that do
/// not compile and of those that cannot be chosen at run time.
fn build(
    package: Package,
    copy: &Path,
    mutants: &[Mutant],
    mut unviable: BTreeSet<usize>,
) -> Result<Built> {
    let (folder, _, packages) = package.parts();
    let mut skipped = BTreeSet::new();
    for _ in 0..BUILDS_MAX {
        let (files, ranges) = write(folder, mutants, &unviable, &mut skipped)?;
        mutations::write_changed(copy, &files)?;
        let words = ["test", "--no-run", "--message-format", "json", "--quiet"];
        let mut cargo = step::cargo(&words);
        cargo.current_dir(copy).env("CARGO_TARGET_DIR", step::target_folder());
        for package in packages {
            cargo.args(["--package", package]);
        }
        if matches!(package, Package::Wire) {
            cargo.args(["--config", "profile.dev.package.standfast-wire.opt-level=1"]);
        }
        let output = cargo.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if output.status.success() {
            return Ok((commands(package, &messages), unviable, skipped));
        }
        let before = unviable.len();
        for message in &messages {
            unviable.extend(wrong_in(message, &ranges));
        }
        if unviable.len() == before {
            bail!("the mutants do not build: {}", String::from_utf8_lossy(&output.stderr));
        }
        println!("{} mutants do not compile", unviable.len());
    }
    bail!("the mutants do not build after {BUILDS_MAX} attempts")
}

/// The numbers of the mutants that an error of the compiler is about.
fn wrong_in(message: &Value, ranges: &[(PathBuf, usize, usize, usize)]) -> Vec<usize> {
    let error = &message["message"];
    if error["level"] != "error" {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for span in error["spans"].as_array().into_iter().flatten() {
        let line = span["line_start"].as_u64().unwrap_or(0) as usize;
        let name = Path::new(span["file_name"].as_str().unwrap_or_default());
        let inside = ranges.iter().filter(|(file, from, to, _)| {
            (name.ends_with(file) || file.ends_with(name)) && (*from..=*to).contains(&line)
        });
        wrong.extend(inside.map(|(.., number)| *number));
    }
    wrong
}

/// The simulation and the tests' executables.
fn commands(package: Package, messages: &[Value]) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for message in messages.iter().filter(|message| message["profile"]["test"] == true) {
        let Some(executable) = message["executable"].as_str() else { continue };
        if matches!(package, Package::Wire) {
            commands.extend(stages(executable, message["target"]["kind"][0] == "lib"));
            continue;
        }
        commands.push(vec![executable.to_owned(), "--quiet".to_owned()]);
    }
    let path = step::target_folder().join("debug/standfast-sim-mutants").display().to_string();
    for words in package.simulations() {
        let words = words.iter().map(|word| (*word).to_owned());
        commands.push([path.clone()].into_iter().chain(words).collect());
    }
    commands
}

/// A test executable of wire, as commands of which each does more: most mutants are found by the short
/// tests of their own module.
fn stages(executable: &str, unit_tests: bool) -> Vec<Vec<String>> {
    let stage = |words: &[&str], skipped: &[&[&str]]| -> Vec<String> {
        let skips = skipped.concat().into_iter().flat_map(|name| ["--skip", name]);
        let program = LIMITED.into_iter().chain([executable, "--quiet"]);
        program.chain(words.iter().copied()).chain(skips).map(str::to_owned).collect()
    };
    let all = stage(&[], &[]);
    if !unit_tests {
        return vec![all];
    }
    vec![stage(&[MODULE], &[PROPERTIES, LONG]), stage(&[], &[PROPERTIES]), all]
}

/// The outermost module of the mutant's file.
fn module(mutant: &Mutant) -> String {
    let path = mutant.file.iter().skip_while(|part| *part != "src").nth(1).unwrap_or_default();
    format!("{}::", path.to_string_lossy().trim_end_matches(".rs"))
}

type Written = (BTreeMap<PathBuf, Vec<u8>>, Vec<(PathBuf, usize, usize, usize)>);

/// The files of the copy, and in which lines of which file each mutant's body is.
fn write(
    folder: &str,
    mutants: &[Mutant],
    unviable: &BTreeSet<usize>,
    skipped: &mut BTreeSet<usize>,
) -> Result<Written> {
    let root = step::root();
    let mut files = BTreeMap::new();
    for path in COPIED {
        mutations::read_all(&root, Path::new(path), &mut files)?;
    }
    let mut by_function: BTreeMap<(PathBuf, Span), Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(mutants) {
        match &mutant.function {
            Some(function) if !unviable.contains(&number) => {
                let key = (mutant.file.clone(), function.span);
                by_function.entry(key).or_default().push((number, mutant));
            }
            Some(_) => {}
            None => {
                skipped.insert(number);
            }
        }
    }
    let mut ranges: Vec<(PathBuf, usize, usize, usize)> = Vec::new();
    // From the last function of a file to the first, so that places before it stay right.
    for ((file, span), mutants) in by_function.into_iter().rev() {
        let bytes = files.get_mut(&file).with_context(|| format!("no {}", file.display()))?;
        let text = String::from_utf8(std::mem::take(bytes))?;
        let (changed, bodies) = match switched(&text, span, &mutants) {
            Some(switched) => switched,
            None => {
                skipped.extend(mutants.iter().map(|(number, _)| *number));
                (text.clone(), Vec::new())
            }
        };
        let grown = changed.lines().count() - text.lines().count();
        for (.., from, to, _) in ranges.iter_mut().filter(|(other, ..)| *other == file) {
            *from += grown;
            *to += grown;
        }
        ranges
            .extend(bodies.into_iter().map(|(from, to, number)| (file.clone(), from, to, number)));
        *bytes = changed.into_bytes();
    }
    let lib = format!("crates/{folder}/src/lib.rs");
    mutations::edit(&mut files, &lib, "\nmod ", |rest| format!("mutant;\nmod {rest}"))?;
    files.insert(format!("crates/{folder}/src/mutant.rs").into(), SWITCH_MODULE.into());
    mutations::set_apart(&mut files, "mutants")?;
    Ok((files, ranges))
}

type Switched = (String, Vec<(usize, usize, usize)>);

/// The text with a function's body once for each mutant; the lines that each is in.
fn switched(text: &str, function: Span, mutants: &[(usize, &Mutant)]) -> Option<Switched> {
    let (start, end) = (offset(text, function.start)?, offset(text, function.end)?);
    let open = start + opening(text.get(start..end)?)?;
    let close = start + text.get(start..end)?.rfind('}')?;
    // A constant function chooses nothing, so the copy's are not constant.
    let signature = text.get(start..open)?.replace("const fn", "fn");
    let before = text.get(..start)?;
    let mut out = format!("{before}{signature}{{ match crate::mutant::chosen() {{\n");
    let mut ranges = Vec::new();
    for (number, mutant) in mutants {
        let (from, to) = (offset(text, mutant.span.start)?, offset(text, mutant.span.end)?);
        let (before, after) = (text.get(open + 1..from)?, text.get(to..close)?);
        let first = out.lines().count() + 1;
        let _ = writeln!(out, "{number} => {{ {before} {} {after}\n}}", mutant.replacement);
        ranges.push((first, out.lines().count(), *number));
    }
    let _ = write!(out, "_ => {{ {}\n}} }} ", text.get(open + 1..close)?);
    Some((out + text.get(close..)?, ranges))
}

/// Where a function's body begins: the first brace that is in no comment and in no attribute.
fn opening(text: &str) -> Option<usize> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let code = line.trim_start();
        let prose = code.starts_with("//") || code.starts_with("#[");
        if let Some(brace) = line.find('{').filter(|_| !prose) {
            return Some(at + brace);
        }
        at += line.len();
    }
    None
}

fn offset(text: &str, place: Place) -> Option<usize> {
    let line: usize = text.split_inclusive('\n').take(place.line - 1).map(str::len).sum();
    let rest = text.get(line..)?;
    let column = rest.char_indices().nth(place.column - 1).map_or(rest.len(), |(at, _)| at);
    Some(line + column)
}

/// Runs a test with no mutant chosen, which must pass.
fn time(test: Vec<String>, copy: &Path) -> Result<Judge> {
    let started = Instant::now();
    let mut child = start(&test, 0, "", copy)?;
    let mut cpu = Duration::ZERO;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        cpu = cpu_time(&child).unwrap_or(cpu);
        thread::sleep(POLL_EVERY);
    };
    ensure!(status.success(), "{} fails with no mutant chosen", test.join(" "));
    Ok(Judge { test, time: started.elapsed(), cpu })
}

/// The CPU time of a child that runs, as /proc/PID/stat shows it (proc(5)).
fn cpu_time(child: &Child) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // The name before may hold spaces. The user and system times are the fields 14 and 15.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

fn start(test: &[String], number: usize, module: &str, copy: &Path) -> Result<Child> {
    let (program, words) = test.split_first().context("no test")?;
    let mut command = Command::new(program);
    let words = words.iter().map(|word| if word == MODULE { module } else { word });
    command.args(words).current_dir(copy).env(SWITCH, number.to_string());
    command.envs(PROPERTY_TESTS.iter().copied()).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.spawn()?)
}

/// Runs the tests until one finds the mutant.
fn judge(number: usize, mutant: &Mutant, judges: &[Judge], copy: &Path) -> Result<Verdict> {
    let module = module(mutant);
    for judge in judges {
        let mut child = start(&judge.test, number, &module, copy)?;
        let deadline = Instant::now() + judge.time * SLOWDOWN + PATIENCE;
        let cpu_max = judge.cpu * SLOWDOWN + CPU_PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline || cpu_time(&child).is_some_and(|cpu| cpu > cpu_max) {
                child.kill()?;
                child.wait()?;
                return Ok(Verdict::Timeout);
            }
            thread::sleep(POLL_EVERY);
        };
        if !status.success() {
            return Ok(Verdict::Caught);
        }
    }
    Ok(Verdict::Missed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_gets_a_body_per_mutant() {
        let text = "/// As { this }.\nfn f(a: u8) -> bool {\n    a == 1\n}\n";
        let place = |line, column| Place { line, column };
        let mutant = Mutant {
            file: "f.rs".into(),
            function: None,
            name: "f.rs:3:7: replace == with != in f".into(),
            replacement: "!=".into(),
            span: Span { start: place(3, 7), end: place(3, 9) },
        };
        let function = Span { start: place(1, 1), end: place(4, 2) };
        let (out, ranges) = switched(text, function, &[(7, &mutant)]).unwrap();
        let words: Vec<&str> = out.split_whitespace().skip(5).collect();
        let expected = "fn f(a: u8) -> bool { match crate::mutant::chosen() { 7 => { a != 1 } \
            _ => { a == 1 } } }";
        assert_eq!(words.join(" "), expected);
        assert_eq!(ranges, [(3, 6, 7)]);
        assert_eq!(without_place(&mutant.name), "f.rs: replace == with != in f");
        let constant = text.replace("fn f", "const fn f");
        let (of_constant, _) = switched(&constant, function, &[(7, &mutant)]).unwrap();
        assert_eq!(of_constant, out);
    }
}
