//! The proxies of a proof: `standfast proxy`, nginx and HAProxy, each started for one cell with as
//! many workers as the cell needs and the settings that its documentation gives for WebSockets.
//!
//! A tunnel takes two descriptors. A worker of `standfast proxy` has its own descriptor table; nginx
//! has a process per worker; HAProxy is one process, so it is limited to one table.

use std::collections::VecDeque;
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use capacity::limits::{sources_needed, worker_capacity};
use capacity::{Machine, ProcessMemory};
use clap::ValueEnum;
use engine::sys::process;

use super::cell::Cell;
use crate::commands::prove::child;

/// Time limits for a proxy to listen, and to end after SIGTERM.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Descriptors of an nginx or HAProxy process besides its tunnels.
const OWN_DESCRIPTORS: u64 = 100;
/// Reserve of tunnels in percent: some open before the proxy notices that others ended.
const RESERVE_PERCENT: u64 = 8;
/// Lines kept of a proxy's standard error.
const LINES_KEPT: usize = 20;

/// The proxy between clients and server.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub(in crate::commands::prove) enum Competitor {
    /// `standfast proxy`.
    Standfast,
    /// nginx, from PATH or where Debian puts it.
    Nginx,
    /// HAProxy, found likewise.
    Haproxy,
}

impl Competitor {
    pub(in crate::commands::prove) const ALL: [Competitor; 3] =
        [Competitor::Standfast, Competitor::Nginx, Competitor::Haproxy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Competitor::Standfast => "standfast",
            Competitor::Nginx => "nginx",
            Competitor::Haproxy => "haproxy",
        }
    }

    /// Returns its executable and version, or `None` if it is not installed.
    pub(super) fn find(self) -> Option<Installed> {
        if self == Competitor::Standfast {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            return Some(Installed { program: std::env::current_exe().ok()?, version });
        }
        let program = in_path(self.name())?;
        let output = Command::new(&program).arg("-v").output().ok()?;
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        // `nginx version: nginx/1.22.1`, `HAProxy version 2.6.12-1 2023/12/16 - https://…`.
        let mut words = printed.split_whitespace().map(|word| word.trim_start_matches("nginx/"));
        let version = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        Some(Installed { program, version: version.unwrap_or("unknown").to_owned() })
    }

    /// Returns the number of workers that can hold the cell with descriptor tables of this size, or why
    /// no number can.
    pub(super) fn workers(self, tunnels: u64, table: u64) -> Result<u64, String> {
        let sockets = 2 * tunnels;
        let needed = sockets * (100 + RESERVE_PERCENT) / 100 + OWN_DESCRIPTORS;
        match self {
            Competitor::Standfast => (1..=1_024)
                .find(|&workers| workers * (worker_capacity(table, workers) / 2) >= tunnels)
                .ok_or_else(|| format!("descriptor tables of {table} are too small")),
            // The kernel distributes connections over its workers at random.
            Competitor::Nginx if needed <= table => Ok(1),
            Competitor::Nginx => {
                let room = table.saturating_sub(OWN_DESCRIPTORS).max(1);
                Ok((needed - OWN_DESCRIPTORS).div_ceil(room))
            }
            Competitor::Haproxy if sockets + OWN_DESCRIPTORS <= table => Ok(1),
            Competitor::Haproxy => Err(format!(
                "too few descriptors: one process with {table} descriptors holds {} tunnels",
                table.saturating_sub(OWN_DESCRIPTORS) / 2
            )),
        }
    }

    /// Starts it in front of `upstream` and waits until it listens.
    ///
    /// # Errors
    /// A proxy that does not start, with its last output.
    pub(super) fn start(
        self,
        installed: &Installed,
        cell: &Cell,
        workers: u64,
        upstream: SocketAddr,
        machine: &Machine,
    ) -> Result<Proxy> {
        match self {
            Competitor::Standfast => start_ours(workers, upstream),
            Competitor::Nginx => {
                let port = free_port()?;
                let scratch = Scratch::new(self.name())?;
                let text = nginx(cell, workers, port, upstream, machine, &scratch.0);
                let file = scratch.file("nginx.conf", &text)?;
                start_other(installed, &["-e", "stderr", "-c", &file], port, workers, scratch)
            }
            Competitor::Haproxy => {
                let port = free_port()?;
                let scratch = Scratch::new(self.name())?;
                let text = haproxy(cell, machine.files.table(), port, upstream);
                let file = scratch.file("haproxy.cfg", &text)?;
                start_other(installed, &["-db", "-f", &file], port, workers, scratch)
            }
        }
    }
}

/// An installed executable.
pub(super) struct Installed {
    program: PathBuf,
    pub(super) version: String,
}

/// Finds an executable in PATH or in the folders of system programs.
pub(in crate::commands::prove) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// Returns nginx's configuration: the settings of its WebSocket documentation, no access log, and
/// enough connections for the cell. One worker is one process; several workers get a listening socket
/// each, as otherwise the first would accept nearly all connections.
fn nginx(
    cell: &Cell,
    workers: u64,
    port: u16,
    upstream: SocketAddr,
    machine: &Machine,
    folder: &Path,
) -> String {
    let (shown, tunnels) = (folder.display(), cell.tunnels);
    let connections =
        2 * tunnels.div_ceil(workers) * (100 + RESERVE_PERCENT) / 100 + OWN_DESCRIPTORS / 2;
    let several = workers > 1;
    let mut text = format!(
        "daemon off;\nmaster_process {};\nworker_processes {workers};\npid {shown}/pid;\n\
         error_log stderr warn;\nevents {{ worker_connections {connections}; }}\nhttp {{\n\
         access_log off;\nclient_body_temp_path {shown}/body;\nproxy_temp_path {shown}/proxy;\n\
         fastcgi_temp_path {shown}/fastcgi;\nuwsgi_temp_path {shown}/uwsgi;\n\
         scgi_temp_path {shown}/scgi;\n",
        if several { "on" } else { "off" }
    );
    // The number of ports from one source address to one upstream is limited.
    let ports = machine.ports.usable().unwrap_or(28_232);
    let sources = sources_needed(tunnels, ports, 1).unwrap_or(1);
    if sources > 1 {
        let share = 10_000 / (sources + 1);
        text += "split_clients \"$connection\" $from {\n";
        for source in 1..=sources {
            let (whole, hundredths) = (share / 100, share % 100);
            let _ = writeln!(text, "{whole}.{hundredths:02}% 127.64.0.{source};");
        }
        let _ = writeln!(text, "* 127.64.0.{};\n}}", sources + 1);
    }
    let reuse = if several { " reuseport" } else { "" };
    let from = if sources > 1 { "proxy_bind $from;\n" } else { "" };
    let _ = write!(
        text,
        "server {{\nlisten 127.0.0.1:{port} backlog=4096{reuse};\nlocation / {{\n\
         proxy_pass http://{upstream};\n{from}proxy_http_version 1.1;\n\
         proxy_set_header Upgrade $http_upgrade;\nproxy_set_header Connection upgrade;\n\
         proxy_read_timeout 1h;\nproxy_send_timeout 1h;\n}}\n}}\n}}\n"
    );
    text
}

/// Returns HAProxy's configuration: one thread, no log, and enough connections for the cell.
fn haproxy(cell: &Cell, table: u64, port: u16, upstream: SocketAddr) -> String {
    let most = table.saturating_sub(OWN_DESCRIPTORS) / 2;
    let maxconn = (cell.tunnels * (100 + RESERVE_PERCENT) / 100 + OWN_DESCRIPTORS / 2).min(most);
    format!(
        "global\n  maxconn {maxconn}\n  nbthread 1\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n  \
         timeout tunnel 1h\n\
         frontend front\n  bind 127.0.0.1:{port}\n  maxconn {maxconn}\n  default_backend back\n\
         backend back\n  server echo {upstream}\n"
    )
}

/// A temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Scratch> {
        let folder = format!("standfast-prove-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Scratch(folder))
    }

    fn file(&self, name: &str, text: &str) -> Result<String> {
        let file = self.0.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file.display().to_string())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running proxy. Dropping it ends the process by its id.
pub(super) struct Proxy {
    child: Child,
    pub(super) listen: SocketAddr,
    pub(super) workers: u64,
    /// The last lines of its standard error.
    output: Arc<Mutex<VecDeque<String>>>,
    // Last: dropped after the process has ended.
    _scratch: Option<Scratch>,
}

fn start_ours(workers: u64, upstream: SocketAddr) -> Result<Proxy> {
    let mut arguments =
        ["proxy", "--listen=127.0.0.1:0", "--admin=off", "--ready-json"].map(String::from).to_vec();
    arguments.extend(["--end-with-parent", "--drain=0s", "--log=warn"].map(String::from));
    arguments.extend([format!("--workers={workers}"), format!("--upstream={upstream}")]);
    let (child, ready) = child::start_and_wait(&arguments)?;
    let mut proxy = Proxy {
        child,
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        workers,
        output: Arc::default(),
        _scratch: None,
    };
    let listen = ready["listen"].as_str().and_then(|text| text.parse().ok());
    proxy.listen =
        listen.ok_or_else(|| anyhow!("the proxy's ready line lacks `listen`: {ready}"))?;
    Ok(proxy)
}

/// Starts nginx or HAProxy such that it ends even if the proof is killed.
fn start_other(
    installed: &Installed,
    arguments: &[&str],
    port: u16,
    workers: u64,
    scratch: Scratch,
) -> Result<Proxy> {
    let mut command = Command::new(&installed.program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C goes to the proof only, which then ends the proxy.
    let mut child = process::start_foreign(command.process_group(0))
        .with_context(|| format!("cannot start {}", installed.program.display()))?;
    let output: Arc<Mutex<VecDeque<String>>> = Arc::default();
    if let Some(stderr) = child.stderr.take() {
        let output = Arc::clone(&output);
        thread::spawn(move || keep_last(BufReader::new(stderr), &output));
    }
    let listen = SocketAddr::from(([127, 0, 0, 1], port));
    let mut proxy = Proxy { child, listen, workers, output, _scratch: Some(scratch) };
    proxy.wait_until_it_listens()?;
    Ok(proxy)
}

fn keep_last(from: impl BufRead, output: &Mutex<VecDeque<String>>) {
    for line in from.lines().map_while(Result::ok) {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.len() >= LINES_KEPT {
            output.pop_front();
        }
        output.push_back(line);
    }
}

impl Proxy {
    fn wait_until_it_listens(&mut self) -> Result<()> {
        let deadline_ns = process::now_ns() + READY_TIMEOUT.as_nanos() as u64;
        while TcpStream::connect(self.listen).is_err() {
            let ended = self.ended();
            if ended.is_some() || process::now_ns() > deadline_ns {
                let how = ended.unwrap_or_else(|| "it does not listen".to_owned());
                return Err(anyhow!("the proxy did not start: {how}; {}", self.last_output()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns its exit status if it has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Returns the last line of its standard error.
    pub(super) fn last_output(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.back().map_or("no output".to_owned(), |line| format!("last output: {line}"))
    }

    /// Returns resident memory and CPU time of all its processes; shared memory counts in each.
    pub(super) fn measure_memory(&self) -> ProcessMemory {
        let mut sum = ProcessMemory { rss_bytes: 0, anon_bytes: 0, cpu_seconds: 0.0 };
        for pid in self.pids() {
            let Ok(one) = ProcessMemory::of(pid) else { continue };
            sum.rss_bytes += one.rss_bytes;
            sum.anon_bytes += one.anon_bytes;
            sum.cpu_seconds += one.cpu_seconds;
        }
        sum
    }

    /// Returns the process and its workers.
    fn pids(&self) -> Vec<u32> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let workers = children.split_whitespace().filter_map(|word| word.parse().ok());
        std::iter::once(pid).chain(workers).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let workers = self.pids().split_off(1);
        process::terminate(self.child.id());
        let deadline_ns = process::now_ns() + END_TIMEOUT.as_nanos() as u64;
        while self.ended().is_none() {
            if process::now_ns() > deadline_ns {
                // Killing it leaves its workers, which it would have ended.
                let _ = self.child.kill();
                workers.iter().for_each(|&worker| process::terminate(worker));
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Traffic;
    use super::*;

    fn cell(tunnels: u64) -> Cell {
        let traffic = Traffic::Every(Duration::from_secs(1));
        Cell { tunnels, size: 20, traffic, hold: Duration::from_secs(2) }
    }

    #[test]
    fn workers_follow_from_the_descriptor_tables() {
        for (competitor, few, many) in [(Competitor::Standfast, 1, 6), (Competitor::Nginx, 1, 6)] {
            assert_eq!(competitor.workers(5_000, 20_000), Ok(few), "{competitor:?}");
            assert_eq!(competitor.workers(50_000, 20_000), Ok(many), "{competitor:?}");
        }
        assert_eq!(Competitor::Haproxy.workers(9_950, 20_000), Ok(1));
        let why = Competitor::Haproxy.workers(9_951, 20_000).unwrap_err();
        assert!(why.contains("20000 descriptors holds 9950 tunnels"), "{why}");
    }

    #[test]
    fn nginx_gets_connections_sources_and_listening_sockets() {
        let mut machine = Machine::read();
        machine.ports.range = Some((32_768, 60_999));
        machine.ports.reserved = 0;
        let upstream = SocketAddr::from(([127, 0, 0, 1], 9));
        let of = |tunnels, workers| {
            nginx(&cell(tunnels), workers, 8, upstream, &machine, Path::new("/folder"))
        };
        let small = of(1_000, 1);
        assert!(small.contains("worker_connections 2210;") && small.contains("master_process off"));
        assert!(!small.contains("proxy_bind") && !small.contains("reuseport"), "{small}");
        let large = of(50_000, 6);
        assert!(large.contains("worker_connections 18051;") && large.contains("reuseport"));
        // Four sources have just enough ports; random distribution needs one more.
        assert!(large.contains("20.00% 127.64.0.4;\n* 127.64.0.5;"), "{large}");
        assert_eq!(large.matches('{').count(), large.matches('}').count());
        assert!(haproxy(&cell(9_900), 20_000, 8, upstream).contains("maxconn 9950\n"));
    }
}
