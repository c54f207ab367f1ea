//! One step of a task: a command, run in the repository's root; how many tests it passed, failed and
//! skipped, and the time it took.
//!
//! Not a build system: steps know nothing of each other. libtest's result lines are read from
//! the step's standard output; a step that prints none counts as one test.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// The result of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// Wall time.
    pub(crate) took: Duration,
    /// CPU time of the step's processes; zero where it was not measured.
    pub(crate) cpu: Duration,
    /// Tests of which libtest reported a time.
    pub(crate) times: Vec<TestTime>,
    /// Tests that libtest reported as failed.
    pub(crate) failures: Vec<String>,
    /// Tests that failed and passed when they were run again alone; they count as passed.
    pub(crate) flaky: Vec<String>,
}

/// How long one test took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestTime {
    pub(crate) name: String,
    pub(crate) took: Duration,
}

impl Outcome {
    /// A step that did not run because this machine lacks something.
    pub(crate) fn skipped(name: &str) -> Outcome {
        Outcome { name: name.to_owned(), skipped: 1, ..Outcome::default() }
    }

    /// Takes the result of a second run of the failed tests into account: those that passed in it are
    /// flaky.
    pub(crate) fn count_second_run(&mut self, second: &Outcome) {
        let (again, passed): (Vec<_>, Vec<_>) =
            self.failures.drain(..).partition(|name| second.failures.contains(name));
        // A second run that did not get as far as its tests proves nothing.
        if second.passed + second.failed + second.skipped == (again.len() + passed.len()) as u64 {
            self.failed -= passed.len() as u64;
            self.passed += passed.len() as u64;
            self.flaky = passed;
            self.failures = again;
        }
        self.took += second.took;
        self.cpu += second.cpu;
    }

    /// Counts the results in the lines of `output`, and the tests that named themselves in the file
    /// `skipped` as skipped instead of passed. A step without result lines counts as one test.
    fn count(&mut self, output: &str, success: bool, skipped: &Path) {
        let mut has_results = false;
        for line in output.lines() {
            if let Some(counts) = test_result(line) {
                self.passed += counts.passed;
                self.failed += counts.failed;
                self.skipped += counts.ignored;
                has_results = true;
            }
            self.times.extend(test_time(line));
            self.failures.extend(failed_test(line));
        }
        if success && !has_results {
            self.passed = 1;
        }
        if !success && self.failed == 0 {
            self.failed = 1;
        }
        // libtest knows no skipped tests: one that returns early has passed.
        let list = fs::read_to_string(skipped).unwrap_or_default();
        let skipped = (skipped_tests(&list).len() as u64).min(self.passed);
        self.passed -= skipped;
        self.skipped += skipped;
    }
}

/// The repository's root: where steps run and what paths are relative to.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_path_buf()
}

/// The cargo that runs this task, ready to run in the repository's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// A task of this program in a process of its own, ready to run in the repository's root. Not by cargo: it
/// would wait while another one builds.
pub(crate) fn xtask(args: &[&str]) -> Command {
    let mut command = Command::new(&*OWN_EXECUTABLE);
    command.args(args).current_dir(root());
    command
}

/// Found before a build replaces the file: then the system names one that was deleted.
static OWN_EXECUTABLE: LazyLock<PathBuf> =
    LazyLock::new(|| env::current_exe().expect("/proc is mounted"));

/// The folder that cargo builds into.
pub(crate) fn target_folder() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Where `cargo build --release` puts the executable.
pub(crate) fn release_executable() -> PathBuf {
    target_folder().join("release/standfast")
}

/// Whether `command` starts and succeeds; none of its output is shown.
pub(crate) fn succeeds(mut command: Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether this run may skip nothing: the environment has `CI`.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Runs `command` to its end and shows its output as it arrives.
///
/// # Errors
/// Only when the command cannot be started or its output cannot be read.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<Outcome> {
    println!("\n=== {name}");
    let started = Instant::now();
    let skipped = skip_list(name, command)?;
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| cannot_start(command))?;
    let stdout = child.stdout.take().context("the step's output is not piped")?;
    let mut output = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        output.push_str(&line);
        output.push('\n');
    }
    let (status, cpu) = wait(&mut child)?;
    let mut outcome =
        Outcome { name: name.to_owned(), took: started.elapsed(), cpu, ..Outcome::default() };
    outcome.count(&output, status.success(), &skipped);
    Ok(outcome)
}

/// The command that runs only these tests of libtest's, one at a time.
pub(crate) fn only_tests(command: &Command, names: &[String]) -> Command {
    let mut only = Command::new(command.get_program());
    let mut args = command.get_args();
    while let Some(arg) = args.next() {
        // libtest takes this option once.
        match arg == "--test-threads" {
            true => _ = args.next(),
            false => _ = only.arg(arg),
        }
    }
    only.args(["--exact", "--test-threads=1"]).args(names);
    environment_of(only, command)
}

/// Runs `command` while others run beside it: returns its output and its errors instead of showing
/// them.
///
/// # Errors
/// As of [`run`].
pub(crate) fn run_quietly(name: &str, command: &mut Command) -> Result<(Outcome, String)> {
    let started = Instant::now();
    let skipped = skip_list(name, command)?;
    let path = suite_file(name, "log")?;
    let log = File::create(&path)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn().with_context(|| cannot_start(command))?;
    let (status, cpu) = wait(&mut child)?;
    let output = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    let mut outcome =
        Outcome { name: name.to_owned(), took: started.elapsed(), cpu, ..Outcome::default() };
    outcome.count(&output, status.success(), &skipped);
    Ok((outcome, output))
}

/// The same command at the lowest priority.
pub(crate) fn low_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    environment_of(nice, command)
}

/// `started` with the environment and the folder of `command`.
fn environment_of(mut started: Command, command: &Command) -> Command {
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => started.env(name, value),
            None => started.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        started.current_dir(folder);
    }
    started
}

/// Makes the empty file in which the step's tests name themselves when they skip themselves
/// (`tests/harness/skip.rs`).
fn skip_list(name: &str, command: &mut Command) -> Result<PathBuf> {
    let path = suite_file(name, "skipped")?;
    File::create(&path)?;
    command.env("STANDFAST_SKIPPED", &path);
    Ok(path)
}

/// A file of the step's own below the target folder.
fn suite_file(name: &str, extension: &str) -> Result<PathBuf> {
    let folder = target_folder().join("suite");
    fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{}.{extension}", name.replace([' ', ',', '/'], "-"))))
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start {}", command.get_program().to_string_lossy())
}

/// Waits for the child's end. Its CPU time includes that of its own children it waited for.
fn wait(child: &mut Child) -> Result<(ExitStatus, Duration)> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.context("a child has a process id")?;
    // Left as a zombie for a moment, as only then is everything it used in /proc.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(error) = waitid(WaitId::Pid(pid), options) {
        if error != rustix::io::Errno::INTR {
            return Err(error).context("cannot wait for the step");
        }
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let cpu = cpu_time(&stat, rustix::param::clock_ticks_per_second()).unwrap_or_default();
    Ok((child.wait()?, cpu))
}

/// utime, stime, cutime and cstime of `/proc/PID/stat` (proc_pid_stat(5)).
fn cpu_time(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    // The name of the program may contain blanks and parentheses.
    let fields = stat.rsplit_once(')')?.1;
    let ticks = fields.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<Result<u64, _>>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / ticks_per_second.max(1)))
}

struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Reads `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
fn test_result(line: &str) -> Option<Counts> {
    let counts = line.strip_prefix("test result: ")?;
    let count = |word: &str| {
        counts
            .split([';', '.'])
            .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
    };
    let (passed, failed) = (count("passed")?, count("failed")?);
    Some(Counts { passed, failed, ignored: count("ignored").unwrap_or(0) })
}

/// Reads `test limits::idle ... ok <1.234s>`, which libtest prints with `--report-time`.
fn test_time(line: &str) -> Option<TestTime> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = result.rsplit_once('<')?.1.strip_suffix("s>")?;
    let took = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    Some(TestTime { name: name.to_owned(), took })
}

/// Reads `test limits::idle ... FAILED <1.234s>`.
fn failed_test(line: &str) -> Option<String> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    result.starts_with("FAILED").then(|| name.to_owned())
}

/// The names in lines of `TEST<TAB>REASON`, each once: a test may lack several things.
fn skipped_tests(list: &str) -> BTreeSet<&str> {
    list.lines().filter_map(|line| line.split('\t').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_line_gives_all_counts() {
        let counts =
            |line: &str| test_result(line).map(|all| (all.passed, all.failed, all.ignored));
        let ok = "test result: ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(counts(ok), Some((12, 3, 1)));
        let bad = "test result: FAILED. 0 passed; 1 failed; 0 ignored; finished in 0.02s";
        assert_eq!(counts(bad), Some((0, 1, 0)));
        assert_eq!(counts("test result: ok. 5 passed; 0 failed"), Some((5, 0, 0)));
        assert_eq!(counts("test peers::node ... ok"), None);
    }

    #[test]
    fn step_without_result_lines_counts_once() {
        let ok = run("true", &mut Command::new("true")).unwrap();
        assert_eq!((ok.passed, ok.failed), (1, 0));
        let bad = run("false", &mut Command::new("false")).unwrap();
        assert_eq!((bad.passed, bad.failed), (0, 1));
        let line = "test result: ok. 0 passed; 0 failed; 1 ignored";
        let skipped = run("echo", Command::new("echo").arg(line)).unwrap();
        assert_eq!((skipped.passed, skipped.failed, skipped.skipped), (0, 0, 1));
    }

    #[test]
    fn test_that_skips_itself_is_not_counted_as_passed() {
        let mut command = Command::new("sh");
        let result = "test result: ok. 3 passed; 0 failed; 0 ignored";
        let script =
            "printf 'a\\tno curl\\nb\\tno ss\\na\\tno ip\\n' >> $STANDFAST_SKIPPED; echo $RESULT";
        command.args(["-c", script]).env("RESULT", result);
        let outcome = run("skips", &mut command).unwrap();
        assert_eq!((outcome.passed, outcome.failed, outcome.skipped), (1, 0, 2));
    }

    #[test]
    fn quiet_step_is_counted_alike_and_low_priority_runs_the_same_command() {
        let mut command = Command::new("sh");
        let result = "test result: ok. 2 passed; 0 failed; 0 ignored";
        command.args(["-c", "echo $RESULT; nice >&2; pwd"]).env("RESULT", result).current_dir("/");
        let (outcome, output) = run_quietly("quiet test", &mut low_priority(&command)).unwrap();
        assert_eq!((outcome.passed, outcome.failed), (2, 0));
        assert_eq!(output.lines().collect::<Vec<_>>(), [result, "19", "/"]);
        let (bad, _) = run_quietly("quiet failure", &mut Command::new("false")).unwrap();
        assert_eq!((bad.passed, bad.failed), (0, 1));
    }

    #[test]
    fn cpu_time_is_read_from_the_process_table() {
        let stat = "7 (a) b) S 1 1 1 0 -1 4194560 9 8 0 0 150 50 100 100 20 0 1 0 5";
        assert_eq!(cpu_time(stat, 100), Some(Duration::from_secs(4)));
        assert_eq!(cpu_time("", 100), None);
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; sh -c :";
        let busy = run("busy loop", Command::new("sh").args(["-c", script])).unwrap();
        assert!(busy.cpu > Duration::ZERO, "{busy:?}");
    }

    #[test]
    fn only_tests_that_pass_the_second_time_are_flaky() {
        let mut first = Outcome::default();
        let lines = "test a::b ... FAILED <60.1s>\ntest c ... FAILED\ntest d ... ok\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored";
        first.count(lines, false, Path::new("/nonexistent"));
        assert_eq!(first.failures, ["a::b", "c"]);
        let mut second = Outcome::default();
        let lines = "test a::b ... ok <0.1s>\ntest c ... FAILED\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored";
        second.count(lines, false, Path::new("/nonexistent"));
        let mut both = first.clone();
        both.count_second_run(&second);
        assert_eq!((both.passed, both.failed), (2, 1));
        assert_eq!((both.flaky, both.failures), (vec!["a::b".to_owned()], vec!["c".to_owned()]));
        let mut crashed = Outcome::default();
        crashed.count("", false, Path::new("/nonexistent"));
        first.count_second_run(&crashed);
        assert_eq!((first.passed, first.failed), (1, 2), "nothing was run again");
    }

    #[test]
    fn second_run_has_the_same_environment_and_only_the_names() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $A $@", "sh", "--test-threads", "4"]).env("A", "b");
        let output = only_tests(&command, &["x::y".to_owned()]).output().unwrap();
        assert_eq!(output.stdout, b"b --exact --test-threads=1 x::y\n");
    }

    #[test]
    fn test_times_are_read_from_the_report() {
        let line = "test limits::idle_connection ... ok <1.250s>";
        let time = test_time(line).unwrap();
        assert_eq!((time.name.as_str(), time.took.as_millis()), ("limits::idle_connection", 1250));
        assert_eq!(test_time("test limits::idle_connection ... ok"), None);
    }
}
