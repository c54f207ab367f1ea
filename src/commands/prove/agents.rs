//! `prove --agents`: the sockets are of the agents of a fleet, the server is on this machine or of other agents. This file has the
//! flags, what cannot be shared, and the checks before anything starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, bail};
use load::Connect;

use super::phases::Fleets;
use super::plan::Plan;
use crate::commands::fleet::controlled::{Controlled, Problems, Target};
use crate::commands::fleet::message::not_for_servers;
use crate::commands::fleet::servers::Chosen;
use crate::commands::fleet::{FleetFlags, HEADING, listen, who};
use crate::units;

/// How long a number of agents is waited for.
const WITHIN: Duration = Duration::from_secs(10);

/// The flags of a proof whose sockets are of agents.
#[derive(clap::Args, Debug)]
pub(super) struct Flags {
    /// Open the WebSockets from agents of a fleet: their number, `all`, or a label as KEY=VALUE
    ///
    /// For --connections, and for cable-500k, million, million-hold and storm
    #[arg(long, value_name = "WHO", value_parser = who, help_heading = HEADING)]
    pub(super) agents: Option<String>,
    /// How long to wait for that number of agents [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, help_heading = HEADING,
        requires = "agents")]
    pub(super) agents_within: Option<Duration>,
    /// Address of this machine that agents connect to, as IP or IP:PORT [default: 127.0.0.1]
    #[arg(long, value_name = "IP", value_parser = listen, help_heading = HEADING, requires = "agents")]
    pub(super) listen: Option<SocketAddr>,
    /// Agents that run the servers: their number, `all`, or a label as KEY=VALUE [default: a server here]
    ///
    /// They were started with --serve. Each server has every nth WebSocket
    #[arg(long, value_name = "WHO", value_parser = who, help_heading = HEADING, requires = "agents",
        conflicts_with = "listen")]
    pub(super) servers: Option<String>,
    #[command(flatten)]
    pub(super) fleet: FleetFlags,
}

impl Flags {
    /// Whether agents connect to a server of this machine.
    pub(super) fn listens_here(&self) -> bool {
        self.agents.is_some() && self.servers.is_none()
    }

    /// Where the server listens for agents.
    pub(super) fn address(&self) -> SocketAddr {
        self.listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))
    }

    /// Refuses flags without `--agents`, and plans that agents cannot share.
    ///
    /// # Errors
    /// Names the flag, or what cannot be shared and why.
    pub(super) fn check(&self, plan: &Plan) -> Result<()> {
        if self.agents.is_none() {
            let FleetFlags { nats, nats_creds, nats_ca, .. } = &self.fleet;
            let given = [
                ("--nats", !nats.is_empty()),
                ("--nats-creds", nats_creds.is_some()),
                ("--nats-ca", nats_ca.is_some()),
                ("--fleet", self.fleet.is_other()),
            ];
            if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
                bail!("{flag} has an effect only with --agents");
            }
            return Ok(());
        }
        if let Some(why) = not_shared(plan) {
            let what = plan.scenario.as_deref().unwrap_or("this proof");
            bail!(
                "{what} cannot use --agents: {why}\n  agents can share cable-500k, million, million-hold, storm, \
                 and proofs with --connections"
            );
        }
        if self.servers.is_some() {
            if plan.connections.is_none() {
                bail!("--servers needs --connections, or a scenario that has them");
            }
            if let Some(flag) = not_for_servers(&plan.serve) {
                bail!(
                    "{flag} of [serve] cannot be used with --servers: agents do not take this flag"
                );
            }
        }
        Ok(())
    }

    /// Finds the agents that run servers and those that open the sockets; and what is wrong with them. `None` after
    /// Ctrl-C.
    ///
    /// # Errors
    /// There is no NATS server.
    pub(super) fn find(
        &self,
        who: &str,
        connections: u64,
    ) -> Result<Option<(Fleets<'_>, Problems)>> {
        let within = self.agents_within.unwrap_or(WITHIN);
        let (mut servers, mut problems) = (None, Problems::default());
        if let Some(who) = &self.servers {
            let Some(found) = Chosen::find(&self.fleet, (who, within), connections)? else {
                return Ok(None);
            };
            (servers, problems) = (Some(found.0), found.1);
        }
        let targets = match &servers {
            Some(servers) => servers.targets(),
            None => vec![Target { address: self.address(), of: None }],
        };
        let of_servers = servers.as_ref().map(Chosen::of_hosts).unwrap_or_default();
        let chosen = (who, within);
        let found = Controlled::find(&self.fleet, chosen, connections, &targets, &of_servers)?;
        let Some((agents, of_agents)) = found else { return Ok(None) };
        problems.fatal.extend(of_agents.fatal);
        problems.limits.extend(of_agents.limits);
        Ok(Some(((servers, Some(agents)), problems)))
    }
}

/// Why agents cannot share a proof; `None` if they can.
pub(super) fn not_shared(plan: &Plan) -> Option<&'static str> {
    let one_by_one = "connections are opened one after another, which only one process can do";
    if !plan.cells.is_empty() {
        return Some("its [[cells]] compare proxies on this machine");
    }
    if plan.link.is_some() {
        return Some("the clients of its [link] are in a network namespace of this machine");
    }
    if plan.churn.is_some() {
        return Some(
            "the process of its [churn] publishes, and checks and times what its clients receive",
        );
    }
    if plan.rounds.iter().any(|round| round.connect == Connect::OneByOne) {
        return Some(one_by_one);
    }
    if !plan.rounds.is_empty() {
        return Some("its [[rounds]] are separate proofs: run each by itself");
    }
    (plan.connect == Connect::OneByOne).then_some(one_by_one)
}
