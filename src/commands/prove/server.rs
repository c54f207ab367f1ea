//! [`Serve`]: the server of a proof.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Child;

use anyhow::{Result, anyhow, bail};
use capacity::{Goal, Limit, Machine, Role};
use engine::sys::process;

use super::broadcast::Admin;
use super::child::{READY_TIMEOUT, reap, start};
use super::generator::Load;
use super::link::{self, Namespaces};
use super::plan::Plan;
use crate::report::screen;

/// The topic that every socket subscribes to.
pub(super) const TOPIC: &str = "prove";
/// Connection limit of the server above the number that is held.
const CONNECTION_RESERVE: u64 = 1_000;

/// Returns the server's connection limit: the held number and a reserve for connections that arrive
/// before the server has noticed that others ended, as far as its descriptor tables allow.
fn connection_limit(connections: u64) -> u64 {
    let private_tables = process::private_tables_work();
    let goal = Goal { private_tables, ..Goal::new(Role::Serve, connections + CONNECTION_RESERVE) };
    let needs = capacity::check(&Machine::read(), &goal).needs;
    let tables = needs.iter().find(|need| need.limit == Limit::OpenFiles);
    goal.connections.min(tables.map_or(u64::MAX, |need| need.fits)).max(1)
}

/// The server process.
pub(super) struct Serve {
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
        let max = format!("--max-connections={}", connection_limit(connections));
        let mut arguments = [
            "serve",
            "--ready-json",
            "--end-with-parent",
            "--drain=0s",
            "--log=warn",
            "--echo",
            &max,
        ]
        .map(String::from)
        .to_vec();
        match namespaces {
            // Its loopback is not reachable from here, a UNIX socket is.
            Some(_) => arguments.extend([
                format!("--listen={}:0", link::SERVER),
                format!("--admin=unix:{}", socket.display()),
                "--public".into(),
            ]),
            None => {
                let listen = plan.listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0));
                arguments.extend([format!("--listen={listen}"), "--admin=127.0.0.1:0".into()]);
                arguments.extend((!listen.ip().is_loopback()).then(|| "--public".into()));
            }
        }
        arguments.extend(plan.serve.iter().cloned());
        let before = namespaces.map(Namespaces::at_server).unwrap_or_default();
        let started = start(&before, &arguments, screen::aside)?;
        let Ok(ready) = started.lines.recv_timeout(READY_TIMEOUT) else {
            started.kill();
            bail!("the server did not start; see its messages above");
        };
        let address = |key: &str| {
            let text = ready[key].as_str().and_then(|text| text.parse().ok());
            text.ok_or_else(|| anyhow!("the server's ready line lacks `{key}`: {ready}"))
        };
        let admin = match namespaces {
            Some(_) => Admin::Unix(socket),
            None => Admin::Tcp(address("admin")?),
        };
        Ok(Serve { listen: address("listen")?, admin, child: started.child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Returns the URL for the clients of this plan.
    pub(super) fn url(&self, plan: &Plan) -> String {
        let listen = self.listen;
        match (plan.cable, plan.messages) {
            (true, _) => format!("cable://{listen}/cable"),
            (false, Some(_)) => format!("ws://{listen}/echo"),
            (false, None) => format!("ws://{listen}/topics/{TOPIC}"),
        }
    }

    pub(super) fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Returns the exit status if the process has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
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
