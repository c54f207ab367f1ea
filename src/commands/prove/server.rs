//! [`Server`]: the server of a proof, a process of this machine or those of agents of a fleet.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use capacity::{Goal, Limit, Machine, Role};
use engine::sys::process;
use load::Usage;
use serde_json::Value;

use super::broadcast::{self, Admin};
use super::child::{READY_TIMEOUT, Started, command, reap, start, usage_of};
use super::generator::Load;
use super::link::{self, Namespaces};
use super::phases::Stop;
use super::plan::Plan;
use crate::commands::fleet::servers::Servers;
use crate::report::screen;

/// The topic that every socket subscribes to.
pub(in crate::commands) const TOPIC: &str = "prove";
/// Connection limit of the server above the number that is held.
const CONNECTION_RESERVE: u64 = 1_000;

/// Returns the server's connection limit: the held number and a reserve for connections that arrive
/// before the server has noticed that others ended, as far as its descriptor tables allow.
fn connection_limit(connections: u64) -> u64 {
    let private_tables = process::private_tables_work();
    let goal = Goal {
        private_tables,
        ..Goal::new(Role::Serve, connections.saturating_add(CONNECTION_RESERVE))
    };
    let needs = capacity::check(&Machine::read(), &goal).needs;
    let tables = needs.iter().find(|need| need.limit == Limit::OpenFiles);
    goal.connections.min(tables.map_or(u64::MAX, |need| need.fits)).max(1)
}

/// A server that was started and is not ready yet.
pub(in crate::commands) struct Starting {
    started: Started,
    /// Its admin listener, if that is a UNIX socket.
    socket: Option<PathBuf>,
}

impl Starting {
    /// Starts a server for so many connections on this address, with these flags besides. It has no environment, and
    /// the lines of its standard error are passed on.
    pub(in crate::commands) fn hosted(
        connections: u64,
        listen: SocketAddr,
        flags: &[String],
        pass_on: impl Fn(String) + Send + 'static,
    ) -> Result<Starting> {
        let arguments = arguments(connections, &on_address(listen), flags);
        let mut command = command(&[], &arguments)?;
        command.env_clear();
        Ok(Starting { started: start(command, pass_on)?, socket: None })
    }

    /// What it said, if it is ready; an error if it has ended.
    pub(in crate::commands) fn poll(&self) -> Option<Result<Value>> {
        match self.started.lines.try_recv() {
            Ok(ready) => Some(Ok(ready)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(anyhow!("the server did not start"))),
        }
    }

    /// Kills it.
    pub(in crate::commands) fn kill(self) {
        self.started.kill();
    }

    /// The server that said this.
    pub(in crate::commands) fn ready(self, ready: &Value) -> Result<Serve> {
        let address = |key: &str| {
            let text = ready[key].as_str().and_then(|text| text.parse().ok());
            text.ok_or_else(|| anyhow!("the server's ready line lacks `{key}`: {ready}"))
        };
        let admin = match self.socket {
            Some(socket) => Admin::Unix(socket),
            None => Admin::Tcp(address("admin")?),
        };
        Ok(Serve { listen: address("listen")?, admin, child: self.started.child })
    }
}

/// The command line of a server.
fn arguments(connections: u64, listen: &[String], flags: &[String]) -> Vec<String> {
    let max = format!("--max-connections={}", connection_limit(connections));
    let all =
        ["serve", "--ready-json", "--end-with-parent", "--drain=0s", "--log=warn", "--echo", &max];
    let own = all.map(String::from).into_iter();
    own.chain(listen.iter().cloned()).chain(flags.iter().cloned()).collect()
}

/// The flags of its addresses.
fn on_address(listen: SocketAddr) -> Vec<String> {
    let mut flags = vec![format!("--listen={listen}"), "--admin=127.0.0.1:0".into()];
    flags.extend((!listen.ip().is_loopback()).then(|| "--public".into()));
    flags
}

/// The server process.
pub(in crate::commands) struct Serve {
    child: Child,
    listen: SocketAddr,
    admin: Admin,
}

impl Serve {
    pub(super) fn start(
        connections: u64,
        plan: &Plan,
        namespaces: Option<&Namespaces>,
    ) -> Result<Serve> {
        let socket = std::env::temp_dir().join(format!("standfast-prove-{}", std::process::id()));
        let listen = match namespaces {
            // Its loopback is not reachable from here, a UNIX socket is.
            Some(_) => vec![
                format!("--listen={}:0", link::SERVER),
                format!("--admin=unix:{}", socket.display()),
                "--public".into(),
            ],
            None => {
                on_address(plan.listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)))
            }
        };
        let arguments = arguments(connections, &listen, &plan.serve);
        let before = namespaces.map(Namespaces::at_server).unwrap_or_default();
        let started = start(command(&before, &arguments)?, screen::aside)?;
        let Ok(ready) = started.lines.recv_timeout(READY_TIMEOUT) else {
            started.kill();
            bail!("the server did not start; see its messages above");
        };
        Starting { started, socket: namespaces.map(|_| socket) }.ready(&ready)
    }

    pub(in crate::commands) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(in crate::commands) fn listen(&self) -> SocketAddr {
        self.listen
    }

    pub(in crate::commands) fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Returns the exit status if the process has ended.
    pub(in crate::commands) fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// Kills the server and waits for both processes. Nothing is measured any more, so the server
    /// need not notice each of a million closed sockets: the kernel frees both ends at the same time. That takes
    /// seconds, during which `look` is called.
    pub(super) fn end_with(&mut self, load: &mut Load<'_>, mut look: impl FnMut()) {
        let _ = self.child.kill();
        load.reap(&mut look);
        reap(&mut self.child, &mut look);
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The servers of a proof.
pub(super) enum Server {
    Here(Serve),
    /// Of agents of a fleet.
    Agents(Servers),
}

impl Server {
    /// The URLs for the clients of this plan.
    pub(super) fn urls(&self, plan: &Plan) -> Vec<String> {
        let url = |listen: SocketAddr| match (plan.cable, plan.messages) {
            (true, _) => format!("cable://{listen}/cable"),
            (false, Some(_)) => format!("ws://{listen}/echo"),
            (false, None) => format!("ws://{listen}/topics/{TOPIC}"),
        };
        match self {
            Server::Here(serve) => vec![url(serve.listen)],
            Server::Agents(servers) => servers.addresses().into_iter().map(url).collect(),
        }
    }

    /// The admin listener of a server on this machine.
    pub(super) fn admin(&self) -> Option<&Admin> {
        match self {
            Server::Here(serve) => Some(&serve.admin),
            Server::Agents(_) => None,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Server::Here(serve) => format!("serve has PID {}", serve.pid()),
            Server::Agents(servers) => servers.describe(),
        }
    }

    /// Memory and CPU time of all servers together; `None` if one is unknown.
    pub(super) fn usage(&self) -> Option<Usage> {
        match self {
            Server::Here(serve) => usage_of(serve.pid()),
            Server::Agents(servers) => servers.usage(),
        }
    }

    /// Publishes a message to all sockets. Returns how long the servers took.
    ///
    /// # Errors
    /// Names the server that has failed.
    pub(super) fn publish(&self, sequence: u32) -> Result<Duration> {
        match self {
            Server::Here(serve) => broadcast::publish(&serve.admin, TOPIC, sequence),
            Server::Agents(servers) => servers.publish(sequence),
        }
    }

    /// A publication takes at most a second from now on.
    pub(super) fn hurry(&self) {
        if let Server::Agents(servers) = self {
            servers.hurry();
        }
    }

    /// Why the proof cannot go on, if a server has ended or is lost.
    pub(super) fn stop(&mut self) -> Option<Stop> {
        match self {
            Server::Here(serve) => {
                let how = serve.ended()?;
                Some(Stop::Broken(format!("serve ended during the proof: {how}")))
            }
            Server::Agents(servers) if !servers.lost().is_empty() => Some(Stop::Incomplete),
            Server::Agents(servers) => servers.failed().map(Stop::Broken),
        }
    }

    /// Ends the servers. Nothing is measured any more.
    pub(super) fn end_with(&mut self, load: &mut Load<'_>, look: impl FnMut()) {
        match self {
            Server::Here(serve) => serve.end_with(load, look),
            Server::Agents(servers) => servers.end(),
        }
    }
}
