//! Client CPU of an echoed message: `standfast load ws://…` over HTTP/2 (RFC 8441) beside the same over HTTP/1.1,
//! both through HAProxy to `standfast serve --echo`, proxy and server on one core, client on the other.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Context;
use super::http::{CPU, FAILED, PER_SECOND, RSS, measured, pinned};
use super::peer::Core;
use super::report::{self, Target};
use super::rounds::{Contestant, Figures, Rounds, median};

const SECONDS: f64 = 4.0;
/// Sockets, and of HTTP/2 those of a connection.
const SOCKETS: u32 = 100;
const STREAMS: u32 = 10;
/// CPU of a message over HTTP/2 ÷ that over HTTP/1.1.
const SHARE_MOST: f64 = 1.5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

impl Contestant for Version {
    fn name(self) -> &'static str {
        match self {
            Version::Http1 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
        }
    }
}

/// Measures. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let seconds = bench.seconds.unwrap_or(SECONDS);
    println!("\n=== http2-sockets: HAProxy and the server on one core, client on the other");
    let servers = Servers::start(bench)?;
    let rounds = Rounds::run(&[Version::Http1, Version::Http2], bench.pairs, |version| {
        once(bench, &servers, version, seconds)
    })?;
    rounds.print(&[CPU, PER_SECOND, FAILED, RSS]);
    let share = median(rounds.ratios(Version::Http2, Version::Http1, CPU));
    let lost = rounds.values(Version::Http2, FAILED).into_iter().fold(0.0, f64::max);
    let targets = [
        Target::at_most("CPU of a message, HTTP/2 ÷ HTTP/1.1", share, SHARE_MOST),
        Target::at_most("messages lost over HTTP/2", lost, 0.0),
    ];
    let settings = json!({ "seconds": seconds, "pairs": bench.pairs, "sockets": SOCKETS,
                           "streams": STREAMS, "proxy": "HAProxy, one thread" });
    report::finish(&bench.out, "http2-sockets", settings, rounds.json(), &targets)
}

fn once(bench: &Context, servers: &Servers, version: Version, seconds: f64) -> Result<Figures> {
    let (port, more) = match version {
        Version::Http1 => (servers.http1, format!("--connections {SOCKETS}")),
        Version::Http2 => {
            let connections = SOCKETS / STREAMS;
            (servers.http2, format!("--http2 --connections {connections} --streams {STREAMS}"))
        }
    };
    let file = servers.folder.join("load.json");
    let line = format!(
        "{} load ws://127.0.0.1:{port}/echo --echo {more} --duration {seconds}s --json {} --plain",
        bench.tools.standfast().display(),
        file.display()
    );
    let run = measured(version.name(), &line, false)?;
    let output: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let of = |name: &str| output["echo"][name].as_f64().with_context(|| format!("no {name}"));
    run.figures(of("received")?, of("lost")?)
}

/// The server and the proxy, stopped when dropped.
struct Servers {
    children: Vec<Child>,
    http1: u16,
    http2: u16,
    folder: PathBuf,
}

impl Servers {
    fn start(bench: &Context) -> Result<Servers> {
        let port = || -> Result<u16> { Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()) };
        let folder = std::env::temp_dir().join(format!("standfast-sockets-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let (server, http1, http2) = (port()?, port()?, port()?);
        let config = folder.join("haproxy.cfg");
        let text = format!(
            "global\n maxconn 2000\n nbthread 1\ndefaults\n mode http\n timeout connect 10s\n \
             timeout client 1m\n timeout server 1m\n timeout tunnel 1m\n default_backend sockets\n\
             frontend http1\n bind 127.0.0.1:{http1}\nfrontend http2\n bind 127.0.0.1:{http2} proto h2\n\
             backend sockets\n server one 127.0.0.1:{server}\n"
        );
        fs::write(&config, text)?;
        let mut servers = Servers { children: Vec::new(), http1, http2, folder };
        let program = bench.tools.standfast();
        let listen = format!("127.0.0.1:{server}");
        let mut serve = pinned(Core::Server, &program.to_string_lossy());
        serve.args(["serve", "--echo", "--admin", "off", "--listen", &listen]);
        let mut haproxy = pinned(Core::Server, "haproxy");
        haproxy.args(["-db", "-f"]).arg(&config);
        for (mut command, ports) in [(serve, [server, server]), (haproxy, [http1, http2])] {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let name = format!("{command:?}");
            let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
            servers.children.push(child);
            let is_up = (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok())
            });
            ensure!(is_up, "it does not listen: {name}");
        }
        Ok(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // These fail only when nothing is left to stop.
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
