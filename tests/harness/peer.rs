//! Foreign clients (`tests/peers/`): programs that share no code with us, run to their end.
//!
//! A client prints `ok NAME` for each thing that worked, anything else for a person to read,
//! and exits with 0 only when everything did.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::server::Server;
use super::{eventually, skip};

/// The program that runs a client, and a check whether it is installed.
pub(crate) struct Runtime {
    pub(crate) program: &'static str,
    pub(crate) check: &'static [&'static str],
}

/// Node.js with the npm packages of `tests/peers`.
pub(crate) const NODE: Runtime =
    Runtime { program: "node", check: &["-e", "require('ws'); require('playwright-core')"] };
/// Node.js without packages.
pub(crate) const NODE_ALONE: Runtime = Runtime { program: "node", check: &["-e", ""] };
/// Node.js with the packages that applications of AnyCable use.
pub(crate) const APPLICATION: Runtime =
    Runtime { program: "node", check: &["-e", "require('jose'); require('@anycable/core')"] };
/// Node.js with the libraries of AnyCable's encoders.
pub(crate) const ENCODERS: Runtime =
    Runtime { program: "node", check: &["-e", "require('@ygoe/msgpack'); require('protobufjs')"] };
/// Node.js with gRPC.
pub(crate) const GRPC: Runtime = Runtime {
    program: "node",
    check: &["-e", "require('@grpc/grpc-js'); require('@grpc/proto-loader')"],
};
/// Node.js with gRPC and its reflection.
pub(crate) const GRPC_REFLECTION: Runtime = Runtime {
    program: "node",
    check: &["-e", "require('@grpc/grpc-js'); require('@grpc/reflection')"],
};
/// Node.js with connect-node, for gRPC-Web.
pub(crate) const CONNECT: Runtime = Runtime {
    program: "node",
    check: &["-e", "require('@connectrpc/connect-node'); require('protobufjs')"],
};
/// Debian's Python with its `websockets`.
pub(crate) const PYTHON: Runtime =
    Runtime { program: "/usr/bin/python3", check: &["-c", "import websockets"] };
/// Chromium, driven from Node.js.
pub(crate) const BROWSER: Runtime = Runtime {
    program: "node",
    check: &["-e", "require('playwright-core'); fs.accessSync('/usr/bin/chromium')"],
};

/// Chromium with AnyCable's client for browsers.
pub(crate) const ANYCABLE_WEB: Runtime = Runtime {
    program: "node",
    check: &["-e", "require.resolve('@anycable/web'); fs.accessSync('/usr/bin/chromium')"],
};

/// Runs `script` against `server` and requires that it reports exactly `expected`.
///
/// A machine without the runtime skips the client; under `CI` that is a failure.
pub(crate) fn talks(runtime: &Runtime, script: &str, server: &Server, expected: &[&str]) {
    let (public, admin) = (format!("ws://{}", server.listen), format!("http://{}", server.admin));
    works(runtime, script, &[&public, &admin], expected);
}

/// As [`talks`], with other arguments.
pub(crate) fn works(runtime: &Runtime, script: &str, args: &[&str], expected: &[&str]) {
    if !is_here(runtime, script) {
        return;
    }
    let script = root().join("tests/peers").join(script);
    let script = script.to_str().expect("the repository's path is text");
    let mut client = command(runtime, &[&[script], args].concat());
    let output = client.stdout(Stdio::piped()).output().expect("the client starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {}\n{stdout}{stderr}", output.status);
    let worked: Vec<&str> = stdout.lines().filter_map(|line| line.strip_prefix("ok ")).collect();
    assert_eq!(worked, expected, "{stdout}{stderr}");
}

/// A foreign program that runs until it is dropped, and prints lines.
pub(crate) struct Program {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Program {
    /// Starts `script`; `None` if this machine cannot.
    pub(crate) fn start(runtime: &Runtime, script: &str, args: &[&str]) -> Option<Self> {
        if !is_here(runtime, script) {
            return None;
        }
        let script = root().join("tests/peers").join(script);
        let script = script.to_str().expect("the repository's path is text");
        let mut command = command(runtime, &[&[script], args].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("the program starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stdout, sink) = (child.stdout.take().expect("it is piped"), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                sink.lock().expect("no writer panics").push(line);
            }
        });
        Some(Program { child, lines })
    }

    /// The lines that it has printed so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no writer panics").clone()
    }

    /// Its first line, once it is there.
    pub(crate) fn first_line(&self) -> String {
        eventually("the program has printed a line", || !self.lines().is_empty());
        self.lines().swap_remove(0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether this machine can run `what`. If not, the test is recorded as skipped; under `CI` it
/// fails.
pub(crate) fn is_here(runtime: &Runtime, what: &str) -> bool {
    let here = command(runtime, runtime.check).status().is_ok_and(|status| status.success());
    if !here {
        let program = runtime.program;
        skip::missing(&format!("{program} cannot run {what}: try cargo xtask test --install"));
    }
    here
}

fn command(runtime: &Runtime, args: &[&str]) -> Command {
    let mut command = Command::new(runtime.program);
    command.args(args).env("NODE_PATH", root().join(".peers/node_modules"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}
