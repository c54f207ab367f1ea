//! One run: our program and the suite's, on loopback, until the suite has written its report.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::Role;
use super::testsuite::TestSuite;
use super::verdict::{self, Results};
use crate::step;

/// The name that our programs have in reports.
const AGENT: &str = "standfast";
/// How long the suite's server may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the cases and returns what the suite said of each.
pub(super) fn results(suite: &TestSuite, role: Role, patterns: &[String]) -> Result<Results> {
    let folder = step::target_folder().join("autobahn").join(role.name());
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    println!("its reports and log: {}", folder.display());
    match role {
        Role::Server => test_server(suite, &folder, patterns)?,
        Role::Client => test_client(suite, &folder, patterns)?,
    }
    verdict::read_report(&folder.join("index.json"), AGENT)
}

fn test_server(suite: &TestSuite, folder: &Path, patterns: &[String]) -> Result<()> {
    let mut command = Command::new(server_executable()?);
    command.args(["serve", "--echo", "--max-message", "32MiB", "--ready-json"]);
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let mut server = Running(start(command.stdout(Stdio::piped()))?);
    let stdout = server.0.stdout.take().context("the server's output is not piped")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let ready: Value = serde_json::from_str(&line).context("the server did not become ready")?;
    let listen = ready["listen"].as_str().context("the ready line names no address")?;
    let specification = json!({
        "outdir": folder,
        "servers": [{"agent": AGENT, "url": format!("ws://{listen}/echo")}],
        "cases": patterns,
        "exclude-cases": [],
        "exclude-agent-cases": {},
    });
    let status = wstest(suite, "fuzzingclient", folder, &specification)?.status()?;
    ensure!(status.success(), "the suite failed ({status}); see its log");
    if let Some(status) = server.0.try_wait()? {
        bail!("the server ended during the run ({status})");
    }
    Ok(())
}

fn test_client(suite: &TestSuite, folder: &Path, patterns: &[String]) -> Result<()> {
    let client = client_executable()?;
    // Free now; that somebody takes it in between shows as a suite that does not listen.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let url = format!("ws://127.0.0.1:{port}");
    let specification = json!({
        "outdir": folder,
        "url": url,
        "cases": patterns,
        "exclude-cases": [],
        "exclude-agent-cases": {},
    });
    let mut command = wstest(suite, "fuzzingserver", folder, &specification)?;
    let mut fuzzing = Running(start(command.args(["--webport", "0"]))?);
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = fuzzing.0.try_wait()?;
        ensure!(
            ended.is_none() && Instant::now() < deadline,
            "the suite does not listen; see its log"
        );
        thread::sleep(Duration::from_millis(50));
    }
    let status = Command::new(client).args([&url, AGENT]).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "the client did not get through every case ({status})");
    Ok(())
}

/// `wstest` in `mode`, writing what it says into a log.
fn wstest(suite: &TestSuite, mode: &str, folder: &Path, specification: &Value) -> Result<Command> {
    let path = folder.join("specification.json");
    fs::write(&path, serde_json::to_string_pretty(specification)?)?;
    let log = fs::File::create(folder.join("log.txt"))?;
    let mut command = suite.wstest();
    command.args(["--mode", mode, "--spec"]).arg(path).current_dir(folder);
    command.stdout(log.try_clone()?).stderr(log);
    Ok(command)
}

fn start(command: &mut Command) -> Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {name}"))
}

/// The release build, or what STANDFAST_EXECUTABLE names.
fn server_executable() -> Result<PathBuf> {
    if let Some(path) = env::var_os("STANDFAST_EXECUTABLE") {
        return Ok(path.into());
    }
    build(&["--bin", "standfast"])?;
    Ok(step::release_executable())
}

fn client_executable() -> Result<PathBuf> {
    build(&["--package", "standfast-load", "--example", "autobahn"])?;
    Ok(step::target_folder().join("release/examples/autobahn"))
}

fn build(what: &[&str]) -> Result<()> {
    let status = step::cargo(&["build", "--release", "--quiet"]).args(what).status()?;
    ensure!(status.success(), "cargo build {} failed", what.join(" "));
    Ok(())
}
