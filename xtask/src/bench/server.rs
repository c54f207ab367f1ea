//! The servers under test: standfast, its competitors and the C floor, behind one handle.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::peer::{Core, Peer, words};
use super::proc;
use super::rounds::Contestant;
use super::tools::Tools;

/// A server that can be started.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// `standfast serve`, one worker.
    Standfast,
    /// The same a second time: shows how much two runs of the same program differ.
    Control,
    /// Bun's `Bun.serve` (uWebSockets inside).
    Bun,
    /// npm `ws` on Node.js.
    Ws,
    /// `bench/floor/echo_server.c`.
    Floor,
}

impl Contestant for Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Standfast => "standfast",
            Kind::Control => "standfast again",
            Kind::Bun => "bun",
            Kind::Ws => "ws",
            Kind::Floor => "floor",
        }
    }
}

impl Kind {
    /// Whether this runs standfast.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Kind::Standfast | Kind::Control)
    }
}

/// A server that is ready, and killed when dropped.
pub(super) struct Server {
    kind: Kind,
    peer: Peer,
    /// Port of the public listener, on 127.0.0.1.
    port: u16,
    /// Port of the admin listener, if it has one.
    admin: Option<u16>,
}

impl Server {
    /// Starts a server on the servers' core and waits until it listens.
    pub(super) fn start(kind: Kind, tools: &Tools) -> Result<Server> {
        Server::start_with(kind, tools, &[])
    }

    /// The same with additional arguments.
    pub(super) fn start_with(kind: Kind, tools: &Tools, more: &[String]) -> Result<Server> {
        let mut command = match kind {
            Kind::Standfast | Kind::Control => {
                let mut command =
                    ours(if kind == Kind::Control { tools.control() } else { tools.standfast() });
                command.extend(words([&"--workers", &"1"]));
                command
            }
            Kind::Bun => words([&tools.bun(), &tools.competitor("bun_server.js")]),
            Kind::Ws => words([&"node", &tools.competitor("ws_server.js"), &tools.peers()]),
            Kind::Floor => words([&tools.floor("echo_server")]),
        };
        command.extend(more.iter().map(OsString::from));
        Server::ready(kind, Core::Server, &command)
    }

    /// Starts standfast on every core with its default number of workers and the flags `more`.
    pub(super) fn start_ours(tools: &Tools, more: &[&str]) -> Result<Server> {
        let mut command = ours(tools.standfast());
        command.extend(more.iter().map(OsString::from));
        Server::ready(Kind::Standfast, Core::Any, &command)
    }

    /// The same with its log to `log`.
    pub(super) fn start_logging_to(tools: &Tools, more: &[&str], log: Stdio) -> Result<Server> {
        let mut command = ours(tools.standfast());
        command.extend(more.iter().map(OsString::from));
        let peer = Peer::start_logging_to("server standfast", Core::Any, &command, log)?;
        Server::of(Kind::Standfast, peer)
    }

    /// Starts the server of a script on the servers' core.
    pub(super) fn start_foreign(name: &str, command: &[OsString]) -> Result<Server> {
        Server::of(Kind::Ws, Peer::start(&format!("server {name}"), Core::Server, command)?)
    }

    /// The same on every core.
    pub(super) fn start_unpinned(name: &str, command: &[OsString]) -> Result<Server> {
        Server::of(Kind::Ws, Peer::start(&format!("server {name}"), Core::Any, command)?)
    }

    fn ready(kind: Kind, core: Core, command: &[OsString]) -> Result<Server> {
        Server::of(kind, Peer::start(&format!("server {}", kind.name()), core, command)?)
    }

    fn of(kind: Kind, mut peer: Peer) -> Result<Server> {
        let ready = peer.receive(Duration::from_secs(20))?;
        let port_of = |key: &str| ready[key].as_str()?.rsplit(':').next()?.parse().ok();
        let port = ready["port"].as_u64().and_then(|port| port.try_into().ok());
        let port = port.or_else(|| port_of("listen")).context("the ready line names no port")?;
        let server = Server { kind, peer, port, admin: port_of("admin") };
        std::thread::sleep(Duration::from_millis(100)); // what it still does after its ready line
        Ok(server)
    }

    /// The process id.
    pub(super) fn pid(&self) -> u32 {
        self.peer.pid()
    }

    /// The public port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The admin port, if it has one.
    pub(super) fn admin(&self) -> Option<u16> {
        self.admin
    }

    /// Its CPU time so far, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        proc::cpu_seconds(self.pid())
    }

    /// Its resident memory, in bytes.
    pub(super) fn rss_bytes(&self) -> Result<u64> {
        proc::rss_bytes(self.pid())
    }

    /// Starts an echo client with `sockets` open sockets and messages of `bytes`.
    pub(super) fn echo_client(&self, tools: &Tools, sockets: usize, bytes: usize) -> Result<Peer> {
        echo_client(tools, self.port, sockets, bytes)
    }

    /// Starts clients that connect to topic `bench` as `how` says; their first line has yet to be received.
    pub(super) fn crowd(&self, tools: &Tools, sockets: usize, how: &str) -> Result<Peer> {
        let command = words([
            &tools.floor("connect_client"),
            &"127.0.0.1",
            &self.port.to_string(),
            &"/topics/bench",
            &sockets.to_string(),
            &how,
        ]);
        Peer::start("crowd", Core::Client, &command)
    }

    /// Starts a publisher of messages of `bytes` to topic `bench`, over this server's HTTP interface.
    pub(super) fn publisher(&self, tools: &Tools, bytes: usize) -> Result<Peer> {
        let (port, path, form) = if self.kind.is_ours() {
            (self.admin.context("the ready line names no admin")?, "/api/publish", "json")
        } else {
            (self.port, "/publish?topic=bench", "text")
        };
        let command = words([
            &tools.floor("publish_client"),
            &"127.0.0.1",
            &port.to_string(),
            &path,
            &"bench",
            &bytes.to_string(),
            &form,
        ]);
        Peer::start("publisher", Core::Client, &command)
    }
}

/// Starts clients of Action Cable for the server on a port of this machine; their first line has yet to be received.
/// Each has so many `streams` of its own, or all have the one with this name if that is 0.
pub(super) fn cable_clients(
    tools: &Tools,
    port: u16,
    sockets: usize,
    streams: usize,
    name: &str,
) -> Result<Peer> {
    let command = words([
        &tools.floor("cable_client"),
        &"127.0.0.1",
        &port.to_string(),
        &sockets.to_string(),
        &streams.to_string(),
        &name,
    ]);
    Peer::start("clients", Core::Any, &command)
}

/// Starts an echo client for the server on a port of this machine.
pub(super) fn echo_client(tools: &Tools, port: u16, sockets: usize, bytes: usize) -> Result<Peer> {
    let command = words([
        &tools.floor("echo_client"),
        &"127.0.0.1",
        &port.to_string(),
        &"/echo",
        &sockets.to_string(),
        &bytes.to_string(),
    ]);
    let mut client = Peer::start("echo client", Core::Client, &command)?;
    client.receive(Duration::from_secs(20))?;
    Ok(client)
}

fn ours(executable: PathBuf) -> Vec<OsString> {
    let listen = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut command = words([&executable]);
    command.extend(listen.map(OsString::from));
    command.extend(words([&"--echo", &"--ready-json"]));
    command
}
