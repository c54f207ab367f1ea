//! [`Controlled`]: a run that agents share phase by phase, as `prove` commands. Commands are numbered, and each one
//! is repeated until all agents have taken it. What agents report is cumulative. An agent that is lost ends the
//! run, which is INCOMPLETE.
//!
//! Not here: what an agent does with commands (`load::control`), and the verdict.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use capacity::Count;
use engine::sys::process::now_ns;
use load::control::{Command, Event, Finish, ProgressRow};
use load::requests::Generators;
use load::{Counts, Series, SharedRows, Usage};

use super::FleetFlags;
use super::coordinator::Shown;
use super::doctor::share_problems;
use super::fixtures::Fixtures;
use super::leader::{Leader, Led, Parts, Request, Waited};
use super::member::{Agent, Purpose, agent_row, usage};
use super::message::{TEXT_CHARS_MAX, one_line};
use crate::report::screen::{self, AgentRow};

/// How long a command may take to reach all agents that are heard.
const TAKE: Duration = Duration::from_secs(30);
/// How long agents may take to send their results.
const RESULTS: Duration = Duration::from_secs(60);
/// How often a command that was not taken is repeated.
const REPEAT_COMMAND: Duration = Duration::from_millis(100);
/// How long messages are waited for at a time.
const LOOK: Duration = Duration::from_millis(10);

/// Why a run stops early.
#[derive(Debug)]
pub(crate) enum Halt {
    /// An agent of the run is lost, which its entry says.
    Lost,
    /// By Ctrl-C.
    Interrupted,
}

/// A server that agents connect to.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// The agent that runs it, and its machine; `None`: this machine does.
    pub(crate) of: Option<[String; 2]>,
}

/// What is wrong with agents before a run.
#[derive(Default)]
pub(crate) struct Problems {
    /// The run cannot begin.
    pub(crate) fatal: Vec<String>,
    /// Limits that their shares exceed.
    pub(crate) limits: Vec<String>,
}

pub(crate) struct Controlled<'a> {
    leader: Leader<'a>,
    /// The agents before the run.
    chosen: Vec<Agent>,
    rows: SharedRows,
    shown: Option<Shown>,
    /// The number of the latest command.
    number: u64,
    /// What it is for each agent.
    parts: Vec<Command>,
    /// Commands whose event is awaited from all agents.
    awaited: Vec<(Kind, u64)>,
    events: VecDeque<Event>,
    repeated_ns: u64,
    /// An agent is lost, so all have to stop.
    stops: bool,
    is_finished: bool,
}

/// The events that end a phase.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Reached,
    Echoed,
    Expecting,
}

impl Kind {
    fn of_command(command: &Command) -> Option<Kind> {
        match command {
            Command::Target(_) => Some(Kind::Reached),
            Command::Echo { .. } => Some(Kind::Echoed),
            Command::Expect { .. } => Some(Kind::Expecting),
            Command::Heartbeat(_) | Command::Turnover { .. } => None,
            Command::Churn | Command::Finish(_) => None,
        }
    }

    fn of_event(event: &Event) -> Option<Kind> {
        match event {
            Event::Reached { .. } => Some(Kind::Reached),
            Event::Echoed { .. } => Some(Kind::Echoed),
            Event::Expecting { .. } => Some(Kind::Expecting),
            _ => None,
        }
    }
}

impl<'a> Controlled<'a> {
    /// Finds the agents, and what they lack for their share of so many connections to this address; `None` after
    /// Ctrl-C.
    ///
    /// # Errors
    /// There is no NATS server.
    pub(crate) fn find(
        flags: &'a FleetFlags,
        (who, within): (&str, Duration),
        connections: u64,
        targets: &[Target],
        of_servers: &HashMap<String, u64>,
    ) -> Result<Option<(Controlled<'a>, Problems)>> {
        let mut leader = Leader::new(flags, Purpose::Loads)?;
        let chosen = leader.choose(who, within, Parts::connections(connections))?;
        let Some((mut fatal, agents)) = chosen else { return Ok(None) };
        // Every agent has one address of its own, and connects to every nth server.
        let is_here = targets.iter().all(|target| target.address.ip().is_loopback());
        let servers = (targets.len() / common_divisor(targets.len(), agents.len())).max(1) as u64;
        let destinations = (!is_here).then_some([servers, targets.len().max(1) as u64]);
        let shares = shares(&agents, connections);
        let found = share_problems(&mut leader, &agents, &shares, destinations, of_servers);
        if leader.is_interrupted() {
            return Ok(None);
        }
        for agent in &agents {
            fatal.extend(not_allowed(agent, targets));
            fatal.extend(targets.iter().find_map(|target| not_reached(agent, target)));
        }
        let limits = limits_of(&agents, &shares, found);
        let controlled = Controlled {
            leader,
            chosen: agents,
            rows: SharedRows::default(),
            shown: None,
            number: 0,
            parts: Vec::new(),
            awaited: Vec::new(),
            events: VecDeque::new(),
            repeated_ns: 0,
            stops: false,
            is_finished: false,
        };
        Ok(Some((controlled, Problems { fatal, limits })))
    }

    /// Starts the load of all agents by these words after `load`; it waits for commands. Returns after the first
    /// row of all.
    ///
    /// # Errors
    /// All that is wrong with the agents; then no load was started.
    pub(crate) fn begin(&mut self, words: Vec<String>, connections: u64) -> Result<Waited> {
        let flags = self.leader.flags();
        let request = Request {
            who: "",
            flags,
            words,
            within: Duration::ZERO,
            files_max: 0,
            parts: Parts::connections(connections),
            seed: 0,
            fixtures: Fixtures::default(),
        };
        let agents = std::mem::take(&mut self.chosen);
        if self.leader.make_ready(&request, Vec::new(), agents)? == Waited::Interrupted {
            return Ok(Waited::Interrupted);
        }
        if self.leader.begin() == Waited::Interrupted {
            return Ok(Waited::Interrupted);
        }
        self.shown = Some(Shown::new(self.leader.agents(), now_ns()));
        let until_ns = now_ns() + TAKE.as_nanos() as u64;
        while self.rows_are_missing() && self.tend().is_ok() {
            if self.leader.is_interrupted() {
                return Ok(Waited::Interrupted);
            }
            if now_ns() > until_ns {
                let silent = |agent: &&mut Agent| agent.row.is_none();
                for agent in self.leader.agents_mut().iter_mut().filter(silent) {
                    agent.lost = Some("it did not report in time".to_owned());
                }
            }
            self.leader.listen(LOOK);
        }
        Ok(Waited::Done)
    }

    fn rows_are_missing(&self) -> bool {
        self.leader.agents().iter().any(|agent| agent.row.is_none())
    }

    /// Gives each agent its part of a command, and waits until all have taken it.
    ///
    /// # Errors
    /// An agent is lost, or Ctrl-C.
    pub(crate) fn command(&mut self, command: &Command) -> Result<(), Halt> {
        let of = self.agents() as u32;
        self.number += 1;
        self.parts = (0..of).map(|nth| part(command, Generators { nth, of })).collect();
        self.repeated_ns = 0;
        if let Some(kind) = Kind::of_command(command) {
            self.awaited.retain(|(awaited, _)| *awaited != kind);
            self.awaited.push((kind, self.number));
        }
        let until_ns = now_ns() + TAKE.as_nanos() as u64;
        loop {
            self.tend()?;
            let number = self.number;
            if self.leader.agents().iter().all(|agent| agent.obeyed.taken >= number) {
                return Ok(());
            }
            if self.leader.is_interrupted() {
                return Err(Halt::Interrupted);
            }
            if now_ns() > until_ns {
                let late = |agent: &&mut Agent| agent.obeyed.taken < number;
                for agent in self.leader.agents_mut().iter_mut().filter(late) {
                    agent.lost = Some("it did not take a command".to_owned());
                }
                return Err(Halt::Lost);
            }
            self.leader.listen(LOOK);
        }
    }

    /// The next event of the whole, if there is one within this time.
    ///
    /// # Errors
    /// An agent is lost, or Ctrl-C.
    pub(crate) fn next(&mut self, within: Duration) -> Result<Option<Event>, Halt> {
        let until_ns = now_ns() + within.as_nanos() as u64;
        loop {
            if self.leader.is_interrupted() {
                return Err(Halt::Interrupted);
            }
            self.tend()?;
            self.collect()?;
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            if left.is_zero() {
                return Ok(None);
            }
            self.leader.listen(LOOK.min(left));
        }
    }

    /// Says that the leader lives while it waits this long for something else.
    pub(crate) fn keep(&mut self, time: Duration) {
        let until_ns = now_ns() + time.as_nanos() as u64;
        // Why the run stops is known.
        let _ = self.tend();
        while now_ns() < until_ns {
            self.leader.listen(LOOK);
        }
    }

    /// Says that the leader lives, repeats what was not taken, and looks for agents that are lost.
    fn tend(&mut self) -> Result<(), Halt> {
        let now = now_ns();
        for agent in self.leader.agents_mut().iter_mut().filter(|agent| agent.lost.is_none()) {
            agent.lost = agent.is_lost(now);
            if agent.outcome.is_some() && !self.is_finished {
                agent.lost = Some("its load stopped before the end".to_owned());
            }
        }
        self.leader.beat(self.stops);
        if now > self.repeated_ns + REPEAT_COMMAND.as_nanos() as u64 {
            self.repeated_ns = now;
            for (agent, command) in self.leader.agents().iter().zip(&self.parts) {
                if agent.obeyed.taken < self.number && !agent.is_settled() {
                    self.leader.command(agent, self.number, command.clone());
                }
            }
        }
        if self.leader.agents().iter().any(|agent| agent.lost.is_some()) {
            Err(Halt::Lost)
        } else {
            Ok(())
        }
    }

    /// Makes events of the whole from those of all agents.
    fn collect(&mut self) -> Result<(), Halt> {
        for agent in self.leader.agents_mut() {
            let error = agent.obeyed.events.iter().find_map(|(_, event)| match event {
                Event::Error { message } => Some(one_line(message, TEXT_CHARS_MAX)),
                _ => None,
            });
            agent.lost = agent.lost.take().or(error);
        }
        if self.leader.agents().iter().any(|agent| agent.lost.is_some()) {
            return Err(Halt::Lost);
        }
        let (agents, events) = (self.leader.agents(), &mut self.events);
        self.awaited.retain(|(kind, number)| {
            let of_agent = |agent: &'_ Agent| {
                let mut events = agent.obeyed.events.iter();
                let event = events
                    .find(|(taken, event)| taken >= number && Kind::of_event(event) == Some(*kind));
                event.map(|(_, event)| event.clone())
            };
            let of_all: Option<Vec<Event>> = agents.iter().map(of_agent).collect();
            let whole = of_all.and_then(|of_all| of_all.into_iter().reduce(add));
            let is_awaited = whole.is_none();
            events.extend(whole);
            is_awaited
        });
        if self.shown.as_mut().is_some_and(|shown| shown.is_due(agents, now_ns())) {
            let row = self.rows.add(agents.iter().filter_map(|agent| agent.row.as_ref()));
            if let Counts::Sockets(counts) = &row.progress.counts {
                let timed = &row.progress.timed;
                let mut series = [Series::Latency, Series::Heartbeat].into_iter();
                let so_far = series.find_map(|series| timed.latency(series));
                let last_second = row.latency;
                let row = ProgressRow::of(row.elapsed, counts);
                events.push_back(Event::Row(Box::new(ProgressRow { last_second, so_far, ..row })));
            }
        }
        Ok(())
    }

    /// Ends the run on all agents, and waits for their results. The second Ctrl-C of a run ends that.
    pub(crate) fn finish(&mut self, mut interrupted: bool) -> Led {
        let give_up_at = self.leader.interrupts + if interrupted { 1 } else { 2 };
        let interrupts = self.leader.interrupts;
        // One that has missed a command takes none after it.
        self.stops = self.tend().is_err();
        self.is_finished = true;
        self.number += 1;
        self.parts = vec![Command::Finish(Finish::Abort); self.agents()];
        self.repeated_ns = 0;
        let until_ns = now_ns() + RESULTS.as_nanos() as u64;
        while !self.leader.agents().iter().all(Agent::is_settled) {
            self.stops |= self.tend().is_err();
            if now_ns() > until_ns {
                let open = |agent: &&mut Agent| !agent.is_settled();
                for agent in self.leader.agents_mut().iter_mut().filter(open) {
                    agent.lost = Some("it did not stop in time".to_owned());
                }
            }
            if self.leader.interrupts() > interrupts {
                if !interrupted {
                    screen::aside("interrupted: Ctrl-C again does not wait for results".to_owned());
                }
                interrupted = true;
            }
            if self.leader.interrupts >= give_up_at {
                self.leader.agents_mut().iter_mut().for_each(Agent::give_up);
            }
            self.leader.listen(LOOK);
        }
        let agents = self.leader.release();
        let discarded = self.leader.discarded();
        Led { agents, interrupted, discarded, has_setup: false, teardown: None }
    }

    /// The number of agents.
    pub(crate) fn agents(&self) -> usize {
        self.chosen.len().max(self.leader.agents().len())
    }

    /// What the loads of all agents use; `None` if that of one is unknown.
    pub(crate) fn usage(&self) -> Option<Usage> {
        usage(self.leader.agents())
    }

    pub(crate) fn agent_rows(&self) -> Vec<AgentRow> {
        self.leader.agents().iter().map(agent_row).collect()
    }
}

impl Drop for Controlled<'_> {
    fn drop(&mut self) {
        // After a result no agent is left here.
        self.leader.release();
    }
}

/// What agents lack for these shares, by what they have found.
pub(super) fn limits_of(
    agents: &[Agent],
    shares: &[u64],
    found: Vec<Option<Vec<String>>>,
) -> Vec<String> {
    let mut limits = Vec::new();
    for ((agent, connections), found) in agents.iter().zip(shares).zip(found) {
        let share = format!("agent {}, {} connections:", agent.name, Count(*connections));
        match found {
            None => limits.push(format!("{share} it did not say what it lacks")),
            Some(found) => limits.extend(found.iter().map(|what| {
                let what = what.replace('\n', "\n    ");
                format!("{share} {what}")
            })),
        }
    }
    limits
}

/// The greatest common divisor.
fn common_divisor(one: usize, other: usize) -> usize {
    if other == 0 { one.max(1) } else { common_divisor(other, one % other) }
}

/// Every nth connection is of the nth agent.
pub(super) fn shares(agents: &[Agent], connections: u64) -> Vec<u64> {
    let of = u32::try_from(agents.len()).unwrap_or(u32::MAX);
    (0..of).map(|nth| Generators { nth, of }.part_of(connections)).collect()
}

/// What an agent has to allow, if it does not.
fn not_allowed(agent: &Agent, targets: &[Target]) -> Option<String> {
    let mut missing: Vec<String> = Vec::new();
    for Target { address, .. } in targets {
        let ip = address.ip();
        let names = ["*".to_owned(), ip.to_string(), address.to_string()];
        let is_allowed = ip.is_loopback() || agent.targets.iter().any(|one| names.contains(one));
        let flag = format!("--allow-target {ip}");
        if !is_allowed && !missing.contains(&flag) {
            missing.push(flag);
        }
    }
    let name = &agent.name;
    (!missing.is_empty()).then(|| format!("agent {name}: start it with {}", missing.join(" ")))
}

/// What is wrong with a server on a loopback address that is that of another machine.
fn not_reached(agent: &Agent, target: &Target) -> Option<String> {
    let [server, host] = target.of.as_ref()?;
    let Agent { name, host: own, .. } = agent;
    let is_elsewhere = target.address.ip().is_loopback() && host != own;
    is_elsewhere.then(|| {
        let ip = target.address.ip();
        format!(
            "agent {name} is on {own}, and server {server} listens on {ip} of {host}: start that agent with an address \
             that others reach (--serve IP)"
        )
    })
}

/// A command for the nth of several agents.
fn part(command: &Command, share: Generators) -> Command {
    match command {
        Command::Target(connections) => Command::Target(share.part_of(*connections)),
        // As with one process, sockets send at least one a second.
        Command::Echo { size, rate, messages } => {
            let rate = share.part_of(*rate).max(1);
            Command::Echo { size: *size, rate, messages: *messages }
        }
        whole => whole.clone(),
    }
}

/// The event of two agents together.
fn add(one: Event, other: Event) -> Event {
    match (one, other) {
        (
            Event::Reached { connections, open, failed, seconds },
            Event::Reached { connections: c, open: o, failed: f, seconds: s },
        ) => Event::Reached {
            connections: connections.saturating_add(c),
            open: open.saturating_add(o),
            failed: failed.saturating_add(f),
            seconds: seconds.max(s),
        },
        (Event::Echoed { sent, received }, Event::Echoed { sent: s, received: r }) => {
            Event::Echoed { sent: sent.saturating_add(s), received: received.saturating_add(r) }
        }
        (Event::Expecting { publisher, expected }, Event::Expecting { expected: e, .. }) => {
            Event::Expecting { publisher, expected: expected.saturating_add(e) }
        }
        // Only events of one kind are added.
        (one, _) => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_commands_add_up_to_the_whole() {
        let commands =
            |command: Command| (0..3).map(move |nth| part(&command, Generators { nth, of: 3 }));
        let targets: Vec<Command> = commands(Command::Target(10_001)).collect();
        assert_eq!(targets, [3_334, 3_334, 3_333].map(Command::Target));
        let rates = commands(Command::Echo { size: 20, rate: 100, messages: 7 });
        let rates = rates.map(|command| match command {
            Command::Echo { size: 20, rate, messages: 7 } => rate,
            other => panic!("{other:?}"),
        });
        assert_eq!(rates.collect::<Vec<_>>(), [34, 33, 33]);
        let all: Vec<Command> = commands(Command::Heartbeat(30.0)).collect();
        assert_eq!(all, vec![Command::Heartbeat(30.0); 3]);
    }

    #[test]
    fn events_of_agents_are_added() {
        let reached = |connections, open, failed, seconds| Event::Reached {
            connections,
            open,
            failed,
            seconds,
        };
        let whole = add(reached(10, 9, 1, 2.5), reached(11, 11, 0, 1.5));
        let Event::Reached { connections: 21, open: 20, failed: 1, seconds } = whole else {
            panic!("{whole:?}")
        };
        assert!((seconds - 2.5).abs() < 1e-9);
    }
}
