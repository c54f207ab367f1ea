//! [`Plan`]: the settings of a proof. Flags override the scenario, which overrides the defaults.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use load::Connect;

use super::Args;
use super::churn::Churn;
use super::link::Link;
use super::proxies::{Cell, Competitor};
use super::scenario::Scenario;

/// All settings of a proof except the machine's.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) scenario: Option<String>,
    pub(super) about: Option<String>,
    /// `None`: as many as this machine can hold, at most a million.
    pub(super) connections: Option<u64>,
    pub(super) connect: Connect,
    pub(super) hold: Duration,
    /// Heartbeat interval; zero disables heartbeats.
    pub(super) heartbeat: Duration,
    pub(super) broadcasts: u32,
    pub(super) messages: Option<Messages>,
    pub(super) link: Option<Link>,
    /// WebSockets are Action Cable clients.
    pub(super) cable: bool,
    /// Time without a ping after which a client reconnects; `None`: as Rails' client.
    pub(super) stale_after: Option<Duration>,
    /// Subscriptions that begin and end during the hold.
    pub(super) churn: Option<Churn>,
    /// The proof is repeated for each round; empty: one proof.
    pub(super) rounds: Vec<Round>,
    /// Cells that replace the proof; each is run through each of `proxies`.
    pub(super) cells: Vec<Cell>,
    pub(super) proxies: Vec<Competitor>,
    /// Additional flags for `standfast serve`.
    pub(super) serve: Vec<String>,
    /// Where the server listens for agents; `None`: the clients are of this machine, or the servers of agents.
    pub(super) listen: Option<SocketAddr>,
    /// Agents run the servers.
    pub(super) has_servers: bool,
    /// Start even if a machine is too small.
    pub(super) force: bool,
}

/// The settings that differ between rounds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Round {
    pub(super) connect: Connect,
    /// Worker threads of the server.
    pub(super) workers: u16,
}

/// Messages that each WebSocket sends during the hold and gets echoed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Messages {
    pub(super) every: Duration,
    /// Bytes of payload.
    pub(super) size: usize,
}

impl Messages {
    pub(super) const SIZE_DEFAULT: usize = 20;

    /// Returns the messages per socket during a hold; the last is due before its end.
    pub(super) fn per_socket(&self, hold: Duration) -> u32 {
        u32::try_from(hold.as_nanos() / self.every.as_nanos().max(1)).unwrap_or(u32::MAX)
    }

    /// Returns the messages per second over all sockets, at least one.
    pub(super) fn rate(&self, sockets: u64) -> u64 {
        let per_second = sockets as f64 / self.every.as_secs_f64();
        (per_second.round() as u64).max(1)
    }
}

impl Plan {
    /// Merges flags, scenario and defaults.
    ///
    /// # Errors
    /// A scenario that cannot be read, or settings that cannot be combined.
    pub(super) fn new(args: &Args) -> Result<Plan> {
        let scenario =
            args.scenario.as_deref().map(Scenario::read).transpose()?.unwrap_or_default();
        let cells = cells(args, &scenario)?;
        let messages = match args.message_every {
            Some(Duration::ZERO) => None,
            Some(every) => Some(Messages { every, size: Messages::SIZE_DEFAULT }),
            None => scenario.messages,
        };
        let heartbeat_default = Duration::from_secs(if messages.is_some() { 0 } else { 30 });
        let mut plan = Plan {
            scenario: scenario.name,
            about: scenario.about,
            connections: args.connections.or(scenario.connections),
            connect: args.connect.or(scenario.connect).unwrap_or(Connect::Windowed),
            hold: args.hold.or(scenario.hold).unwrap_or(Duration::from_secs(30)),
            heartbeat: args.heartbeat.or(scenario.heartbeat).unwrap_or(heartbeat_default),
            broadcasts: args.broadcasts.or(scenario.broadcasts).unwrap_or(if messages.is_some() {
                0
            } else {
                1
            }),
            messages,
            link: scenario.link,
            cable: scenario.cable,
            stale_after: scenario.stale_after,
            churn: scenario.churn,
            rounds: scenario.rounds,
            cells,
            proxies: if args.proxies.is_empty() {
                Competitor::ALL.to_vec()
            } else {
                args.proxies.clone()
            },
            serve: scenario.serve,
            listen: args.fleet.listens_here().then(|| args.fleet.address()),
            has_servers: args.fleet.servers.is_some(),
            force: args.force,
        };
        if let Some(connect) = args.connect {
            let mut rounds = Vec::new();
            for round in &plan.rounds {
                let round = Round { connect, ..*round };
                rounds.extend((!rounds.contains(&round)).then_some(round));
            }
            plan.rounds = rounds;
        }
        if plan.churn.is_some() && (!plan.cable || plan.broadcasts > 0 || plan.link.is_some()) {
            bail!(
                "[churn] needs Action Cable clients on loopback without broadcasts: set `cable = true` \
                 and `broadcasts = 0`, and remove [link]"
            );
        }
        if plan.stale_after.is_some() && !plan.cable {
            bail!("stale_after applies to Action Cable clients only: set `cable = true`");
        }
        if plan.messages.is_some() && plan.cable {
            bail!(
                "Action Cable clients receive no echoes without an application: leave out messages"
            );
        }
        if !plan.rounds.is_empty() && args.html.is_some() {
            bail!("--html does not support scenarios with several rounds: leave it out");
        }
        if plan.messages.is_some() && plan.broadcasts > 0 {
            bail!(
                "messages and broadcasts exclude each other (one uses /echo, the other a topic): \
                 leave out --broadcasts, or set --message-every 0"
            );
        }
        if plan.messages.is_some_and(|messages| messages.per_socket(plan.hold) == 0) {
            bail!("--hold {:?} is too short for one message per WebSocket", plan.hold);
        }
        args.fleet.check(&plan)?;
        Ok(plan)
    }

    /// Ends of each connection that are on this machine for certain.
    pub(super) fn ends_here(&self) -> u64 {
        match self.listen {
            _ if self.has_servers => 0,
            Some(address) if !address.ip().is_loopback() => 1,
            _ => 2,
        }
    }

    /// Returns the plan of one round.
    pub(super) fn round(&self, round: Round) -> Plan {
        let mut serve = self.serve.clone();
        serve.retain(|flag| !flag.starts_with("--workers="));
        serve.push(format!("--workers={}", round.workers));
        Plan { connect: round.connect, rounds: Vec::new(), serve, ..self.clone() }
    }
}

/// Returns the requested cells with the requested hold.
fn cells(args: &Args, scenario: &Scenario) -> Result<Vec<Cell>> {
    let mut cells = scenario.cells.clone();
    if cells.is_empty() {
        if !args.cells.is_empty() || !args.proxies.is_empty() {
            bail!(
                "--cells and --proxies apply to scenarios with [[cells]] only: nginx-idle, nginx-active"
            );
        }
        return Ok(cells);
    }
    let flags = [
        ("--connections", args.connections.is_some()),
        ("--connect", args.connect.is_some()),
        ("--heartbeat", args.heartbeat.is_some()),
        ("--message-every", args.message_every.is_some()),
        ("--broadcasts", args.broadcasts.is_some()),
    ];
    if let Some((flag, _)) = flags.iter().find(|(_, given)| *given) {
        bail!(
            "{flag} does not apply to a scenario with [[cells]], which set it; --cells selects cells"
        );
    }
    let rest = scenario.connections.is_some() || scenario.messages.is_some() || scenario.cable;
    if rest || scenario.link.is_some() || !scenario.rounds.is_empty() {
        bail!("a scenario with [[cells]] takes only `about` and [serve] beside them");
    }
    let known = cells.iter().map(Cell::name).collect::<Vec<_>>();
    if let Some(unknown) = args.cells.iter().find(|name| !known.contains(name)) {
        bail!("unknown cell \"{unknown}\" in --cells: expected one of {}", known.join(", "));
    }
    cells.retain(|cell| args.cells.is_empty() || args.cells.contains(&cell.name()));
    for cell in &mut cells {
        cell.hold = args.hold.unwrap_or(cell.hold);
        cell.check()?;
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<Plan> {
        let words = std::iter::once("prove").chain(line.split_whitespace());
        Plan::new(&Command::try_parse_from(words)?.args)
    }

    #[test]
    fn flags_override_the_scenario_and_the_scenario_overrides_defaults() {
        let bare = plan("").unwrap();
        assert_eq!((bare.hold, bare.heartbeat), (Duration::from_secs(30), Duration::from_secs(30)));
        assert_eq!((bare.broadcasts, bare.connections), (1, None));
        let million = plan("million --connections 2k --hold 2m").unwrap();
        assert_eq!(million.connections, Some(2_000));
        let messages = million.messages.unwrap();
        assert_eq!((messages.per_socket(million.hold), messages.rate(2_000)), (2, 33));
        assert_eq!((million.broadcasts, million.heartbeat), (0, Duration::ZERO));
    }

    #[test]
    fn cells_and_proxies_are_selected_by_name() {
        let all = plan("nginx-idle").unwrap();
        assert!(all.cells.len() > 5 && all.proxies == Competitor::ALL, "{all:?}");
        let some = plan("nginx-active --cells 500-4096B-50x --hold 2s --proxies standfast,nginx");
        let some = some.unwrap();
        assert_eq!((some.cells.len(), some.proxies.len()), (1, 2));
        assert_eq!(some.cells[0].hold, Duration::from_secs(2));
    }

    #[test]
    fn each_round_has_its_own_connect_mode_and_workers() {
        let cable = plan("cable-10k").unwrap();
        assert!(cable.cable && cable.rounds.len() == 4, "{cable:?}");
        let round = cable.round(cable.rounds[0]);
        assert_eq!((round.connect, round.rounds.len()), (Connect::OneByOne, 0));
        assert!(round.serve.contains(&"--workers=1".to_owned()), "{:?}", round.serve);
        let storms = plan("cable-10k --connect storm").unwrap().rounds;
        let of = |workers| Round { connect: Connect::Storm, workers };
        assert_eq!(storms, [of(1), of(2)]);
    }

    #[test]
    fn conflicting_settings_are_refused() {
        for (line, named) in [
            ("million --broadcasts 1", "--message-every 0"),
            ("million --hold 5s", "too short"),
            ("no-such", "million-hold"),
            ("cable-10k --message-every 1s --broadcasts 0", "Action Cable"),
            ("cable-10k --html x.html", "--html"),
            ("cable-churn --broadcasts 1", "broadcasts = 0"),
            ("nginx-idle --connections 5", "--cells"),
            ("nginx-idle --hold 1s", "too short"),
            ("nginx-active --cells 500-2B-50x", "500-1B-50x, 500-"),
            ("million --proxies nginx", "nginx-idle"),
        ] {
            let error = format!("{:#}", plan(line).unwrap_err());
            assert!(error.contains(named), "{line}: {error}");
        }
        assert!(plan("million --broadcasts 1 --message-every 0").unwrap().messages.is_none());
    }
}
