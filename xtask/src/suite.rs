//! `cargo xtask test`: the whole suite, and `cargo xtask quick`: what takes less than two minutes.
//!
//! Every step runs even when an earlier one failed, so one run reports everything. Tests are built
//! once, in debug mode, where overflow and invariants are checked; the executable they run, and
//! which proves its sockets, is the release build people use.
//!
//! The suite takes as long as its CPU time needs on two cores, so no core may idle. Steps that wait have others
//! beside them: the installation of programs waits for the network, tests for sockets, the Autobahn TestSuite is
//! one thread of Python. What runs beside tests has the lowest priority, so that it takes only what they leave.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::step::{self, Outcome, TestTime};
use crate::tests::{self, TestExecutable};
use crate::{autobahn, fuzz, machine};

/// How many of the slowest tests the summary names.
const SLOWEST: usize = 10;
/// Test executables that use no sockets and no real time, so that they may run at low priority.
const COMPUTING: [&str; 7] = [
    "action_cable",
    "action_cable/round_trips",
    "wire",
    "wire/oracles",
    "topics/portions",
    "capacity",
    "standfast, units",
];

/// Sockets that the release build has to hold.
const PROVED: u64 = 50_000;
/// A step with more failed tests than these runs none of them again.
const SECOND_RUN_MAX: usize = 3;

/// Queues of steps beside the tests that are worked off at the same time: one that waits leaves the other.
const BESIDE: usize = 2;

/// What the suite may do to this machine.
#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Install what is missing: system packages, npm packages, the Autobahn TestSuite [default: only with CI set]
    #[arg(long)]
    install: bool,
}

/// A name, and what is to run.
struct Step {
    name: String,
    /// Nothing: this machine lacks what it needs.
    command: Option<Command>,
    /// Whether it is an executable of libtest's whose few failed tests are run again, alone.
    second_run: bool,
    /// What its result has to be checked for when it has ended.
    check: Option<fn(&mut Outcome)>,
}

impl Step {
    fn new(name: &str, command: Command) -> Step {
        Step { name: name.to_owned(), command: Some(command), second_run: false, check: None }
    }

    /// The tests of an executable. One that fails is run again when the others have ended: on a loaded
    /// machine of two cores a deadline passes now and then. Tests that pass only then are named in
    /// the summary.
    fn tests(tests: &TestExecutable) -> Step {
        Step { second_run: true, ..Step::new(&tests.name, tests.command()) }
    }

    fn run(self) -> Result<Outcome> {
        let Some(mut command) = self.command else { return Ok(Outcome::skipped(&self.name)) };
        let mut outcome = step::run(&self.name, &mut command)?;
        let failures = outcome.failures.len();
        if self.second_run && (1..=SECOND_RUN_MAX).contains(&failures) {
            let name = format!("{}, failed tests again", self.name);
            let mut again = step::only_tests(&command, &outcome.failures);
            outcome.count_second_run(&step::run(&name, &mut again)?);
        }
        if let Some(check) = self.check {
            check(&mut outcome);
        }
        Ok(outcome)
    }

    /// Runs it and returns its output instead of showing it.
    fn run_quietly(self) -> Result<(Outcome, String)> {
        match self.command {
            Some(mut command) => step::run_quietly(&self.name, &mut command),
            None => Ok((Outcome::skipped(&self.name), "skipped\n".to_owned())),
        }
    }

    /// The step at the lowest priority.
    fn low_priority(mut self) -> Step {
        self.command = self.command.map(|command| step::low_priority(&command));
        self
    }

    /// The step, skipped unless `needed` is here.
    fn only_with(mut self, needed: bool) -> Step {
        self.command = self.command.filter(|_| needed);
        self
    }
}

/// Runs the suite; the last line printed is `N passed, N failed, N skipped`. Whether nothing failed.
pub(crate) fn run(args: &TestArgs) -> Result<bool> {
    let started = Instant::now();
    let install = args.install || step::is_ci();
    let requirements = Step::new("requirements", requirements(install));
    let mut outcomes = Vec::new();
    let mut beside = vec![release_build(), addon_build()];
    // Programs that only tests need are installed while the compiler works.
    match machine::can_build() {
        true => beside.insert(0, requirements),
        false => outcomes.push(requirements.run()?),
    }
    outcomes.extend(together(checks(), beside, BESIDE)?);
    let has = Installed {
        may_install: install,
        autobahn: install || autobahn::is_installed(),
        cpp_compiler: machine::has_cpp_compiler(),
        node: machine::has_node(),
    };
    // Built above; where that failed, its step says so.
    let executables = tests::build(&[]).unwrap_or_default();
    let (here, beside) = test_stage(executables, &has)?;
    outcomes.extend(together(here, beside, BESIDE)?);
    let (here, beside) = conformance_stage(&has);
    outcomes.extend(together(here, beside, BESIDE)?);
    Ok(summarise(&outcomes, started.elapsed()))
}

/// Format, lints, unit tests and the rules about crates: no foreign program, no network, no release
/// build.
pub(crate) fn quick() -> Result<bool> {
    let started = Instant::now();
    let mut outcomes = Vec::new();
    let (format, lints) = (format(), lints());
    for mut step in [format, lints] {
        outcomes.extend(step.command.as_mut().map(|command| step::run(&step.name, command)));
    }
    let mut outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    let built = Instant::now();
    let executables = tests::build(&["--lib", "--bins", "--test", "standfast"])?;
    outcomes.push(Outcome {
        name: "tests, built".to_owned(),
        passed: 1,
        took: built.elapsed(),
        ..Outcome::default()
    });
    let (rules, units): (Vec<_>, Vec<_>) =
        executables.into_iter().partition(|tests| tests.name == tests::EXECUTABLE_TESTS);
    let units = units.iter().map(|tests| Step::new(&tests.name, tests.command()));
    let rules = rules.iter().map(|tests| {
        let mut command = tests.command();
        command.args(["floors::", "docs::links"]);
        Step::new("rules about crates, links of the docs", command)
    });
    outcomes.extend(together(units.collect(), rules.collect(), 1)?);
    Ok(summarise(&outcomes, started.elapsed()))
}

/// What this machine has, or will have.
struct Installed {
    /// Whether steps may install what they lack.
    may_install: bool,
    autobahn: bool,
    cpp_compiler: bool,
    node: bool,
}

fn format() -> Step {
    Step::new("format", step::cargo(&["fmt", "--all", "--check"]))
}

fn lints() -> Step {
    let mut clippy = step::cargo(&["clippy", "--workspace", "--all-targets", "--quiet"]);
    clippy.args(["--", "--deny", "warnings"]);
    Step::new("lints", clippy)
}

fn checks() -> Vec<Step> {
    vec![format(), lints(), Step::new("tests, built", step::cargo(&tests::BUILD))]
}

fn release_build() -> Step {
    Step::new("release build", step::cargo(&["build", "--release"]))
}

/// `tests/node_package.rs` finds it beside the executable.
fn addon_build() -> Step {
    let command = step::cargo(&["build", "--release", "--package", "standfast-node"]);
    Step::new("addon of Node.js, release build", command)
}

/// What runs one after another, and beside it the same at low priority.
fn test_stage(executables: Vec<TestExecutable>, has: &Installed) -> Result<(Vec<Step>, Vec<Step>)> {
    let (computing, waiting): (Vec<_>, Vec<_>) =
        executables.into_iter().partition(|tests| COMPUTING.contains(&tests.name.as_str()));
    let waiting = waiting.iter().map(Step::tests).collect();
    // The longest first. Those from `computing` on need the folder of the tests' build, which cargo locks for
    // the packages until they are built.
    let mut aside = vec![
        Step::new("packages, installed", dist()),
        Step::new("fuzz targets, built", fuzz::build_command()?).only_with(has.cpp_compiler),
        Step::new("documentation site", docs(has.may_install)),
        Step::new("Autobahn, installed", autobahn(&["install"])).only_with(has.autobahn),
        Step::new("crates, packaged", crates()),
    ];
    aside.extend(computing.iter().map(Step::tests));
    aside.extend([
        Step::new("mutations", simulation(&["--seeds", "4000", "--mutations", "--changed"])),
        Step::new("without features", step::cargo(&["check", "--quiet", "--no-default-features"])),
        Step::new("examples in the docs of code", step::cargo(&["test", "--workspace", "--doc"])),
    ]);
    Ok((waiting, aside.into_iter().map(Step::low_priority).collect()))
}

/// The Autobahn TestSuite, the simulations and the proof, one after another; beside them the same and, with
/// what they leave of the CPU, fuzzing.
fn conformance_stage(has: &Installed) -> (Vec<Step>, Vec<Step>) {
    let autobahn = |name, which: &[&str]| Step::new(name, autobahn(which)).only_with(has.autobahn);
    let here = vec![
        autobahn("Autobahn, our server", &["server"]),
        autobahn("Autobahn over TLS, our server", &["server", "--tls"]),
        autobahn("Autobahn through our proxy", &["proxy"]),
        autobahn("Autobahn, the package of Node.js", &["node"]).only_with(has.node),
        autobahn("Autobahn, our client", &["client", "--debug"]),
        autobahn("Autobahn over TLS, our client", &["client", "--debug", "--tls"]),
        prove(),
    ];
    let fuzzing = Step::new("fuzzing", step::xtask(&["fuzz", "--suite"]));
    let beside = vec![
        fuzzing.only_with(has.cpp_compiler).low_priority(),
        Step::new("simulation, 200 seeds", simulation(&["engine", "--seeds", "200"])),
        Step::new("simulation of history, 200 seeds", simulation(&["history", "--seeds", "200"])),
        Step::new("simulation of nodes, 20 seeds", simulation(&["nodes", "--seeds", "20"])),
        Step::new("simulation of the proxy, 30 seeds", simulation(&["proxy", "--seeds", "30"])),
    ];
    (here, beside)
}

/// Runs `here` with its output as it arrives. At the same time takes steps from `beside`, `lanes` at once; their
/// output follows.
fn together(here: Vec<Step>, beside: Vec<Step>, lanes: usize) -> Result<Vec<Outcome>> {
    let (queue, ended) = (Mutex::new(VecDeque::from(beside)), Mutex::new(Vec::new()));
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    let lane = || {
        while let Some(step) = next() {
            let result = step.run_quietly();
            if let Ok(mut ended) = ended.lock() {
                ended.push(result);
            }
        }
    };
    let mut outcomes = Vec::new();
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        for step in here {
            outcomes.push(step.run()?);
        }
        let panicked = lanes.into_iter().map(|lane| lane.join()).any(|ended| ended.is_err());
        ensure!(!panicked, "a step panicked");
        Ok(())
    })?;
    for quiet in ended.into_inner().unwrap_or_default() {
        let (outcome, output) = quiet?;
        println!("\n=== {}, beside the others\n{output}", outcome.name);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// What the tests need; installs what is missing.
fn requirements(install: bool) -> Command {
    step::xtask(if install { &["requirements", "--install"] } else { &["requirements"] })
}

/// A test per case, those that are quick.
fn autobahn(which: &[&str]) -> Command {
    let mut autobahn = step::xtask(&[&["autobahn"], which].concat());
    autobahn.env("STANDFAST_EXECUTABLE", step::release_executable());
    autobahn
}

/// Skipped without mdBook.
fn docs(install: bool) -> Command {
    let install = if install { "--install" } else { "--skip-without-mdbook" };
    step::xtask(&["docs", install])
}

/// Of static builds as tests are built, in less time than those for users; `cargo xtask dist --check` is the
/// whole.
fn dist() -> Command {
    let mut dist = step::xtask(&["dist", "--profile", "dev", "--check", "--suite"]);
    dist.args(["--target", "aarch64-unknown-linux-musl", "--connections", "2000"]);
    dist
}

/// Each published crate has what it needs to be published; `cargo publish --dry-run` also builds it.
fn crates() -> Command {
    let mut package = step::cargo(&["package", "--workspace", "--exclude", "xtask", "--exclude"]);
    package.args([
        "standfast-sim",
        "--exclude",
        "standfast-chat",
        "--no-verify",
        "--allow-dirty",
        "--offline",
        "--quiet",
    ]);
    package
}

/// Built as tests are.
fn simulation(words: &[&str]) -> Command {
    step::xtask(&[&["sim", "--debug"], words].concat())
}

/// Proves sockets as a user would, and checks in the report that all were open.
fn prove() -> Step {
    let mut command = Command::new(step::release_executable());
    command.args(["prove", "--connections", &PROVED.to_string(), "--json"]).arg(proof());
    let step = Step::new(&format!("{PROVED} sockets, proved"), command);
    Step { check: Some(all_were_open), ..step }
}

/// The report of the proof.
fn proof() -> PathBuf {
    env::temp_dir().join(format!("standfast-prove-{}.json", process::id()))
}

fn all_were_open(outcome: &mut Outcome) {
    let open = fs::read_to_string(proof()).ok().and_then(|text| {
        let report: Value = serde_json::from_str(&text).ok()?;
        report["connections"]["open"].as_u64()
    });
    if outcome.failed == 0 && open != Some(PROVED) {
        println!("{PROVED} sockets should be open; the report has {open:?}");
        (outcome.passed, outcome.failed) = (0, 1);
    }
    // Missing when nothing was written.
    let _ = fs::remove_file(proof());
}

/// Prints each step with its times, the slowest tests and the totals. Whether nothing failed.
fn summarise(outcomes: &[Outcome], took: Duration) -> bool {
    println!("\n=== summary (wall time, CPU time)");
    for outcome in outcomes {
        let Outcome { name, passed, failed, skipped, took, cpu, .. } = outcome;
        let verdict = match (failed, passed) {
            (0, 0) if *skipped > 0 => "skipped",
            (0, _) => "ok",
            _ => "FAILED",
        };
        println!(
            "{verdict:<7} {passed:>4} passed {failed:>3} failed {skipped:>3} skipped \
             {:>5.0} s {:>5.0} s CPU  {name}",
            took.as_secs_f64(),
            cpu.as_secs_f64(),
        );
    }
    println!("\n=== slowest tests");
    for test in slowest(outcomes) {
        println!("{:>6.1} s  {}", test.took.as_secs_f64(), test.name);
    }
    for name in outcomes.iter().flat_map(|outcome| &outcome.flaky) {
        println!("\nFLAKY: {name} failed and passed when run again alone: it needs repair");
    }
    let sum = |count: fn(&Outcome) -> u64| outcomes.iter().map(count).sum::<u64>();
    let failed = sum(|outcome| outcome.failed);
    let (minutes, seconds) = (took.as_secs() / 60, took.as_secs() % 60);
    println!("\n{minutes} min {seconds} s");
    let (passed, skipped) = (sum(|outcome| outcome.passed), sum(|outcome| outcome.skipped));
    let flaky = match sum(|outcome| outcome.flaky.len() as u64) {
        0 => String::new(),
        flaky => format!(" ({flaky} of the passed only when run again)"),
    };
    println!("{passed} passed, {failed} failed, {skipped} skipped{flaky}");
    failed == 0
}

fn slowest(outcomes: &[Outcome]) -> Vec<&TestTime> {
    let mut tests: Vec<&TestTime> = outcomes.iter().flat_map(|outcome| &outcome.times).collect();
    tests.sort_by_key(|test| std::cmp::Reverse(test.took));
    tests.truncate(SLOWEST);
    tests
}

#[cfg(test)]
mod counting {
    use super::*;

    #[test]
    fn step_whose_needs_are_missing_is_skipped_and_counted() {
        let step = || Step::new("needs a compiler", Command::new("false"));
        let outcomes = together(vec![step().only_with(false)], vec![step().only_with(false)], 1);
        let outcomes = outcomes.unwrap();
        assert_eq!(outcomes.iter().map(|outcome| outcome.skipped).sum::<u64>(), 2);
        assert!(summarise(&outcomes, Duration::ZERO), "a skip is no failure");
        let outcomes = together(vec![step().only_with(true)], Vec::new(), 1).unwrap();
        assert!(!summarise(&outcomes, Duration::ZERO));
    }

    #[test]
    fn steps_beside_others_run_at_the_same_time_and_each_once() {
        let folder = step::target_folder().join(format!("beside-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        // Each of the two waits for the other; in one lane the first would fail.
        let wait = |own: &str, other: &str| {
            let script = format!(
                "touch {own}; for i in $(seq 600); do test -e {other} && exit; sleep 0.1; done; exit 1"
            );
            let mut command = Command::new("sh");
            command.args(["-c", &script]).current_dir(&folder);
            Step::new(own, command)
        };
        let beside = vec![wait("a", "b"), wait("b", "c")];
        let outcomes = together(vec![wait("c", "a")], beside, 2).unwrap();
        assert_eq!(outcomes.iter().map(|outcome| outcome.passed).sum::<u64>(), 3);
        assert_eq!(outcomes.len(), 3);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn check_of_a_step_decides() {
        let fail: fn(&mut Outcome) = |outcome| outcome.failed = 1;
        let step = Step { check: Some(fail), ..Step::new("checked", Command::new("true")) };
        assert_eq!(together(vec![step], Vec::new(), 1).unwrap()[0].failed, 1);
    }

    #[test]
    fn slowest_tests_come_first() {
        let times = [1, 3, 2].map(|seconds| TestTime {
            name: seconds.to_string(),
            took: Duration::from_secs(seconds),
        });
        let outcomes = [Outcome { times: times.to_vec(), ..Outcome::default() }];
        let names: Vec<&str> = slowest(&outcomes).iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["3", "2", "1"]);
    }
}
