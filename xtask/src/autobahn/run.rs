//! One run of the program under test and the suite on loopback, until the suite has written its report.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::testsuite::TestSuite;
use super::verdict::{self, Results};
use super::{Role, Tested};
use crate::{cert, step};

/// The name of our programs in reports.
const AGENT: &str = "standfast";
/// How long the suite's server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The settings of a run.
struct Run<'a> {
    suite: &'a TestSuite,
    tested: Tested,
    patterns: &'a [String],
    /// Use the debug build of the client.
    debug: bool,
    /// The folder for reports, log and certificates.
    folder: PathBuf,
}

/// Runs the cases and returns the suite's verdict of each.
pub(super) fn results(
    suite: &TestSuite,
    tested: Tested,
    patterns: &[String],
    debug: bool,
) -> Result<Results> {
    let folder = step::target_folder().join("autobahn").join(tested.name());
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    println!("reports and log: {}", folder.display());
    if tested.tls {
        cert::write_all(&folder, &[])?;
    }
    let report = folder.join("index.json");
    let run = Run { suite, tested, patterns, debug, folder };
    match tested.role {
        Role::Server | Role::Proxy | Role::Node => run.test_server()?,
        Role::Client => run.test_client()?,
    }
    verdict::read_report(&report, AGENT)
}

impl Run<'_> {
    fn test_server(&self) -> Result<()> {
        let mut command = match self.tested.role {
            Role::Node => self.node_server()?,
            _ => self.server()?,
        };
        let (server, mut listen) = listening(&mut command)?;
        let mut ours = vec![server];
        if self.tested.role == Role::Proxy {
            let mut command = Command::new(server_executable()?);
            command.args(["proxy", "--upstream", &listen, "--ready-json"]);
            command.args(["--listen", "127.0.0.1:0", "--admin", "off"]);
            let (proxy, before) = listening(&mut command)?;
            ours.push(proxy);
            listen = before;
        }
        let url = format!("{}://{listen}/echo", self.tested.scheme());
        let mut endpoint = json!({"agent": AGENT, "url": url});
        if self.tested.tls {
            // With this the suite sends the name as SNI and requires a certificate for it.
            endpoint["hostname"] = "localhost".into();
        }
        let mut command = self.wstest("fuzzingclient", json!({"servers": [endpoint]}))?;
        // OpenSSL trusts the certificates in this file.
        let status = command.env("SSL_CERT_FILE", self.folder.join("ca.pem")).status()?;
        ensure!(status.success(), "the suite failed ({status}): see its log");
        for running in &mut ours {
            if let Some(status) = running.0.try_wait()? {
                bail!("the program under test ended during the run ({status})");
            }
        }
        Ok(())
    }

    fn server(&self) -> Result<Command> {
        let mut command = Command::new(server_executable()?);
        command.args(["serve", "--echo", "--max-message", "32MiB", "--ready-json"]);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        if self.tested.tls {
            command.arg("--tls-cert").arg(self.folder.join("server.pem"));
            command.arg("--tls-key").arg(self.folder.join("server.key"));
        }
        Ok(command)
    }

    /// The package with the addon of the release build.
    fn node_server(&self) -> Result<Command> {
        let addon = addon()?;
        let package = self.folder.join("package");
        fs::create_dir_all(&package)?;
        for part in ["lib", "uws", "index.js", "package.json"] {
            let from = step::root().join("packages/node").join(part);
            let status = Command::new("cp").arg("-r").arg(from).arg(&package).status()?;
            ensure!(status.success(), "cannot copy {part} of packages/node ({status})");
        }
        fs::copy(addon, package.join("standfast.node")).context("the addon is not built")?;
        let mut command = Command::new("node");
        command.arg(step::root().join("tests/peers/node_echo.js")).arg(package);
        Ok(command)
    }

    fn test_client(&self) -> Result<()> {
        let mut client = Command::new(client_executable(self.debug)?);
        // Free now. If another process takes it before the suite does, the suite does not listen.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let url = format!("{}://127.0.0.1:{port}", self.tested.scheme());
        client.args([&url, AGENT]).stdin(Stdio::null());
        let mut endpoint = json!({"url": url});
        if self.tested.tls {
            endpoint["cert"] = self.folder.join("server.pem").to_str().into();
            endpoint["key"] = self.folder.join("server.key").to_str().into();
            client.arg(self.folder.join("ca.pem"));
        }
        let mut command = self.wstest("fuzzingserver", endpoint)?;
        let mut fuzzing = Running(start(command.args(["--webport", "0"]))?);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = fuzzing.0.try_wait()?;
            ensure!(
                ended.is_none() && Instant::now() < deadline,
                "the suite does not listen: see its log"
            );
            thread::sleep(Duration::from_millis(50));
        }
        let status = client.status()?;
        ensure!(status.success(), "the client did not complete every case ({status})");
        Ok(())
    }

    /// The command for `wstest` in `mode` with a specification; its output goes to a log.
    fn wstest(&self, mode: &str, mut specification: Value) -> Result<Command> {
        specification["outdir"] = self.folder.to_str().into();
        specification["cases"] = self.patterns.into();
        specification["exclude-cases"] = json!([]);
        specification["exclude-agent-cases"] = json!({});
        let path = self.folder.join("specification.json");
        fs::write(&path, serde_json::to_string_pretty(&specification)?)?;
        let log = fs::File::create(self.folder.join("log.txt"))?;
        let mut command = self.suite.wstest();
        command.args(["--mode", mode, "--spec"]).arg(path).current_dir(&self.folder);
        command.stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }
}

/// Starts one of our programs. Returns it and its address.
fn listening(command: &mut Command) -> Result<(Running, String)> {
    let mut running = Running(start(command.stdout(Stdio::piped()))?);
    let stdout = running.0.stdout.take().context("the program's output is not piped")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let ready: Value = serde_json::from_str(&line).context("the program did not become ready")?;
    let listen = ready["listen"].as_str().context("the ready line names no address")?;
    Ok((running, listen.to_owned()))
}

fn start(command: &mut Command) -> Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {name}"))
}

/// The release build, or the executable that STANDFAST_EXECUTABLE names.
fn server_executable() -> Result<PathBuf> {
    if let Some(path) = env::var_os("STANDFAST_EXECUTABLE") {
        return Ok(path.into());
    }
    build(&["--release", "--bin", "standfast"])?;
    Ok(step::release_executable())
}

/// The addon of the release build, or that beside the executable that STANDFAST_EXECUTABLE names.
fn addon() -> Result<PathBuf> {
    if env::var_os("STANDFAST_EXECUTABLE").is_none() {
        build(&["--release", "--package", "standfast-node"])?;
        return Ok(step::release_executable().with_file_name("libstandfast_node.so"));
    }
    Ok(server_executable()?.with_file_name("libstandfast_node.so"))
}

fn client_executable(debug: bool) -> Result<PathBuf> {
    if debug {
        // With all packages, as for the tests: so it is built already.
        build(&["--workspace", "--example", "autobahn"])?;
        return Ok(step::target_folder().join("debug/examples/autobahn"));
    }
    build(&["--release", "--package", "standfast-load", "--example", "autobahn"])?;
    Ok(step::target_folder().join("release/examples/autobahn"))
}

fn build(what: &[&str]) -> Result<()> {
    let status = step::cargo(&["build", "--quiet"]).args(what).status()?;
    ensure!(status.success(), "cargo build {} failed", what.join(" "));
    Ok(())
}
