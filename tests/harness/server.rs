//! `standfast serve` as a child process: started on free loopback ports, ended with its test.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::executable::{Running, limited, standfast};
use super::http::{self, Response};
use super::lowered::Namespace;
use super::{PATIENCE, eventually};

/// A running server.
pub(crate) struct Server {
    running: Running,
    log: Arc<Mutex<String>>,
    /// Where clients connect.
    pub(crate) listen: SocketAddr,
    /// All places where clients connect, as told.
    pub(crate) listeners: Vec<String>,
    /// Where the admin listener answers.
    pub(crate) admin: SocketAddr,
    /// The key of the admin listener, if it was started with one.
    admin_key: Option<String>,
}

impl Server {
    /// A server with `/echo` and `more` flags, ready when this returns.
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_with(more, &[])
    }

    /// The same with `env` in its environment.
    pub(crate) fn start_with(more: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = standfast(&arguments(more));
        command.envs(env.iter().copied());
        Self::run(command)
    }

    /// A server that is told by `env` alone where clients connect.
    pub(crate) fn start_where_told(env: &[(&str, &str)]) -> Self {
        let mut command = standfast(&["serve", "--admin", "127.0.0.1:0", "--echo", "--ready-json"]);
        command.envs(env.iter().copied());
        Self::run(command)
    }

    /// `standfast proxy` with `more` flags, which say where it passes requests on to.
    pub(crate) fn start_proxy(more: &[&str]) -> Self {
        let fixed = ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-json"];
        Self::run(standfast(&[&fixed[..], more].concat()))
    }

    /// The same in a network namespace, on all its addresses.
    pub(crate) fn start_proxy_in(namespace: &Namespace, more: &[&str]) -> Self {
        let fixed = ["proxy", "--listen", "0.0.0.0:0", "--admin", "127.0.0.1:0", "--ready-json"];
        let mut command = namespace.inside(&standfast(&[&fixed[..], more].concat()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::run(command)
    }

    /// The same with tables of `nofile` descriptors.
    pub(crate) fn start_limited(nofile: u64, more: &[&str]) -> Self {
        Self::run(limited(nofile, &arguments(more)))
    }

    /// The same with tables of `nofile` descriptors and whatever else `lowered` makes of it.
    pub(crate) fn start_as(lowered: impl Fn(&Command) -> Command, nofile: u64) -> Self {
        let mut command = lowered(&limited(nofile, &arguments(&[])));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::run(command)
    }

    /// The same in a network namespace; only who is in there reaches it.
    pub(crate) fn start_in(namespace: &Namespace, more: &[&str]) -> Self {
        let mut command = namespace.inside(&standfast(&arguments(more)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::run(command)
    }

    /// A server from its command, which must set `--ready-json` and both listeners. Its log is empty
    /// if stderr is not a pipe to this process.
    pub(crate) fn run(mut command: Command) -> Self {
        let mut running = Running(command.spawn().expect("the executable starts"));
        let log = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = running.0.stderr.take() {
            let sink = Arc::clone(&log);
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    *sink.lock().expect("no writer panics") += &(line + "\n");
                }
            });
        }
        let mut stdout = BufReader::new(running.0.stdout.take().expect("stdout is piped"));
        let (ready, is_ready) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let _ = stdout.read_line(&mut line);
            let _ = ready.send(line);
            // Read on, or a server that prints more would meet a full or broken pipe.
            let _ = std::io::copy(&mut stdout, &mut std::io::sink());
        });
        let line = is_ready.recv_timeout(PATIENCE).unwrap_or_default();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            let log = log.lock().expect("no writer panics");
            panic!("{command:?} said {line:?} instead of its ready line; its log:\n{log}");
        };
        let address = |key: &str| -> SocketAddr {
            let text = ready[key].as_str().unwrap_or_else(|| panic!("no {key} in {ready}"));
            text.parse().unwrap_or_else(|error| panic!("{key} is {text}: {error}"))
        };
        assert_eq!(ready["pid"], running.0.id(), "the ready line names our child");
        let (listen, admin) = (address("listen"), address("admin"));
        let mut arguments = command.get_args().skip_while(|argument| *argument != "--admin-key");
        let admin_key = arguments.nth(1).map(|key| key.to_string_lossy().into_owned());
        let listeners = ready["listeners"].as_array().expect("all listeners are told");
        let listeners = listeners.iter().filter_map(|l| l.as_str().map(str::to_owned)).collect();
        Self { running, log, listen, listeners, admin, admin_key }
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Sends the process a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.running.0.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's pid is positive"), signal).expect("the child lives");
    }

    /// Waits until the process has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.running.wait()
    }

    /// What it has written to standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("no writer panics").clone()
    }

    /// `GET path` on the admin listener, with its key.
    pub(crate) fn admin_get(&self, path: &str) -> Response {
        self.admin_request("GET", path, "")
    }

    /// `POST path` on the admin listener, with its key.
    pub(crate) fn admin_post(&self, path: &str, body: &str) -> Response {
        self.admin_request("POST", path, body)
    }

    /// `DELETE path` on the admin listener, with its key.
    pub(crate) fn admin_delete(&self, path: &str) -> Response {
        self.admin_request("DELETE", path, "")
    }

    fn admin_request(&self, method: &str, path: &str, body: &str) -> Response {
        let (host, length) = (self.admin, body.len());
        let key = self.admin_key.as_ref();
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{key}");
        http::ask(host, &format!("{head}Content-Length: {length}\r\n\r\n{body}"))
    }

    /// `POST /api/publish` on the admin listener.
    pub(crate) fn publish(&self, body: &Value) -> Response {
        http::post(self.admin, "/api/publish", &body.to_string())
    }

    /// Every sample of `/metrics`, by name and labels as printed.
    pub(crate) fn metrics(&self) -> HashMap<String, f64> {
        let response = self.admin_get("/metrics");
        assert_eq!(response.status, 200, "{response:?}");
        let samples = response.body.lines().filter(|line| !line.starts_with('#'));
        samples
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| (name.to_owned(), value.parse().expect("a sample is a number")))
            .collect()
    }

    /// How many connections have ended for `cause` so far.
    pub(crate) fn closed(&self, cause: &str) -> u64 {
        let name = format!("standfast_closed_total{{cause=\"{cause}\"}}");
        self.metrics().get(&name).map_or(0, |count| *count as u64)
    }

    /// Waits until `count` connections have ended for `cause`.
    pub(crate) fn until_closed(&self, cause: &str, count: u64) {
        eventually(&format!("{count} connections closed by {cause}"), || {
            self.closed(cause) == count
        });
    }

    /// The whole process's resident memory, in bytes.
    pub(crate) fn rss_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// The same without pages of the executable, which come as its code is first used.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.status_bytes("RssAnon:")
    }

    fn status_bytes(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.running.0.id());
        let status = fs::read_to_string(path).expect("the child lives");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.expect("it is in kB") * 1024
    }

    /// Open descriptors, summed over every thread's table (workers have their own).
    pub(crate) fn descriptors(&self) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.running.0.id()));
        let tasks = tasks.expect("the child lives").filter_map(Result::ok);
        tasks.filter_map(|task| fs::read_dir(task.path().join("fd")).ok()).flatten().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the server's log\n{}---", self.log());
        }
    }
}

/// A `--listen` in `more` replaces the usual one.
fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["serve", "--admin", "127.0.0.1:0", "--echo", "--ready-json"];
    if !more.contains(&"--listen") {
        args.extend(["--listen", "127.0.0.1:0"]);
    }
    args.extend(more);
    args
}
