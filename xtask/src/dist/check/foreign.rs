//! The executable of another processor, from its archive, under qemu's user mode: it starts, checks the machine,
//! and holds sockets. `prove` is not run: it starts itself again, which the kernel refuses without binfmt_misc.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::dist::{Built, Target, VERSION, archive, output, staging};

const CONNECTIONS: u64 = 100;

/// qemu's program for a processor, if it is installed.
pub(super) fn emulator(target: &Target) -> Option<String> {
    let program = format!("qemu-{}-static", target.machine);
    output(Command::new(&program).arg("--version")).is_ok().then_some(program)
}

/// Checks version, doctor, and [`CONNECTIONS`] sockets between `load` and `serve`.
pub(super) fn run(built: &Built, dist: &Path) -> Result<Option<Duration>> {
    let emulator = emulator(built.target).context("qemu is installed")?;
    let stage = staging(dist, "foreign")?;
    let name = archive::name(built.target.triple);
    let file = dist.join(format!("{name}.tar.gz"));
    output(Command::new("tar").arg("-C").arg(&stage).arg("-xzf").arg(file))?;
    let standfast = |args: &[&str]| {
        let mut command = Command::new(&emulator);
        command.arg(stage.join(&name).join("standfast")).args(args);
        command
    };
    let version = output(&mut standfast(&["--version"]))?;
    ensure!(version.trim() == format!("standfast {VERSION}"), "{version}");
    let doctor = output(&mut standfast(&["doctor", "--connections", &CONNECTIONS.to_string()]))?;
    ensure!(doctor.contains("it fits"), "{doctor}");
    let mut serve = standfast(&["serve", "--echo", "--listen", "127.0.0.1:0", "--admin", "off"]);
    serve.arg("--ready-json").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Running(serve.spawn().context("cannot start the server")?);
    let stdout = server.0.stdout.take().context("its output is piped")?;
    let mut ready = String::new();
    BufReader::new(stdout).read_line(&mut ready)?;
    let ready: Value = serde_json::from_str(&ready).with_context(|| format!("{ready:?}"))?;
    let address = ready["listen"].as_str().with_context(|| ready.to_string())?;
    let connections = CONNECTIONS.to_string();
    let report = output(&mut standfast(&[
        "load",
        &format!("ws://{address}/echo"),
        "--connections",
        &connections,
        "--hold",
        "2s",
        "--heartbeat",
        "1s",
        "--json",
        "-",
    ]))?;
    let report: Value = serde_json::from_str(&report)?;
    let open = &report["connections"]["open"];
    ensure!(*open == CONNECTIONS, "{open} of {CONNECTIONS} sockets are open: {report}");
    Ok(None)
}

/// Killed at the end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
