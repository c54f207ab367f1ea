//! The leader of a run: `standfast load … --agents WHO`. It finds agents and passes messages between them and
//! a [`Coordinator`], which waits until all are ready, starts them at one instant, and follows them to their
//! results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use brokers::nats::messages::{Event, Messages};
use engine::sys::process::{self, Signal, now_ns};
use load::control::Command;

use super::coordinator::{Coordinator, Outbox};
use super::fixtures::{Fixtures, Teardown};
use super::member::{Agent, Purpose, namesakes, problems, too_few};
use super::message::{FromAgent, ToAgent, decode, encode, inbox, of_all};
use super::travel::{self, Travelling};
use super::{AGENTS_MAX, FleetFlags, REPEAT, unique};
use crate::report::screen;

/// How long agents are looked for, unless a number of them is awaited.
const LOOK_FOR_ALL: Duration = Duration::from_secs(2);
/// How long a NATS server is tried, and by default a number of agents is awaited.
pub(super) const LOOK_FOR: Duration = Duration::from_secs(10);
/// How long answers are awaited although enough agents have answered, so that the choice is by name.
const CHOOSE: Duration = Duration::from_millis(300);
/// An agent that has not answered calls for so long is not counted.
const SILENT: Duration = REPEAT.saturating_mul(3);
/// How long the agents take to be ready.
pub(super) const PREPARE: Duration = Duration::from_secs(60);
/// How often a leader looks at the time and at signals, before the start and during the run.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_AT_RUN: Duration = Duration::from_millis(50);
/// Longer answers to a call are none of an agent.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Messages that are taken before anything else is done.
const MESSAGES_MAX: u32 = 256;

/// What agents are asked to do.
pub(crate) struct Request<'a> {
    /// A number of agents, `all`, or a label.
    pub(crate) who: &'a str,
    pub(crate) flags: &'a FleetFlags,
    /// The command line for agents, after `load`.
    pub(crate) words: Vec<String>,
    /// How long a number of agents is waited for.
    pub(crate) within: Duration,
    /// Most bytes of files.
    pub(crate) files_max: u64,
    pub(crate) parts: Parts,
    pub(crate) seed: u64,
    pub(crate) fixtures: Fixtures,
}

/// What agents share: each has at least one.
#[derive(Copy, Clone)]
pub(crate) struct Parts {
    pub(crate) count: u64,
    /// In the plural if there are several, and what makes more of them.
    pub(crate) name: &'static str,
    pub(crate) remedy: &'static str,
}

impl Parts {
    pub(crate) fn connections(count: u64) -> Parts {
        let name = if count == 1 { "connection" } else { "connections" };
        Parts { count, name, remedy: "--connections" }
    }
}

/// The connection to a fleet.
pub(crate) struct Leader<'a> {
    flags: &'a FleetFlags,
    purpose: Purpose,
    id: String,
    messages: Messages,
    /// The longest message of the NATS server in bytes; 0 before the first connection.
    payload_max: usize,
    /// Once the agents of a run are known.
    coordinator: Option<Coordinator>,
    /// Of agents of one name, after [`Leader::find`].
    pub(super) namesakes: Vec<String>,
    /// How often Ctrl-C came.
    pub(super) interrupts: u32,
    /// What a setup has left behind, if the run was not started.
    left_behind: Option<String>,
}

/// What came of a run.
pub(crate) struct Led {
    pub(crate) agents: Vec<Agent>,
    /// By Ctrl-C.
    pub(crate) interrupted: bool,
    /// Messages of this leader that were discarded, as NATS was not connected or a queue was full.
    pub(crate) discarded: usize,
    pub(crate) has_setup: bool,
    /// `None` if the run has none.
    pub(crate) teardown: Option<Teardown>,
}

/// Whether what was waited for has happened, or Ctrl-C before.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Waited {
    Done,
    Interrupted,
}

impl<'a> Leader<'a> {
    pub(crate) fn new(flags: &'a FleetFlags, purpose: Purpose) -> Result<Leader<'a>> {
        let id = unique();
        let messages = Messages::start(flags.transport()?, vec![inbox(&flags.fleet, &id)])?;
        Ok(Leader {
            flags,
            purpose,
            id,
            messages,
            payload_max: 0,
            coordinator: None,
            namesakes: Vec::new(),
            interrupts: 0,
            left_behind: None,
        })
    }

    /// Calls all agents, and returns those of `who` that have answered, by name. Agents of one name are noted.
    ///
    /// # Errors
    /// There is no NATS server, or fewer agents are free than asked for.
    pub(super) fn find(&mut self, who: &str, within: Duration) -> Result<(Vec<Agent>, Waited)> {
        let (wanted, purpose) = (who.parse::<usize>().ok(), self.purpose);
        let began_ns = now_ns();
        // It may have been connected before.
        let mut opened_ns = (self.payload_max > 0).then_some(began_ns);
        let (mut called_ns, mut down) = (0, None);
        let mut found: BTreeMap<String, Agent> = BTreeMap::new();
        let mut doubled_ns = None;
        loop {
            let now = now_ns();
            let since = Duration::from_nanos(now - opened_ns.unwrap_or(began_ns));
            let most = if opened_ns.is_none() || wanted.is_some() { within } else { LOOK_FOR_ALL };
            let is_free = |agent: &&Agent| !agent.busy && agent.is_selected(who, purpose);
            let free = found.values().filter(is_free).count();
            // A connection that comes and goes is not tried forever.
            let is_late = now > began_ns + (within + LOOK_FOR).as_nanos() as u64;
            let has_enough = wanted.is_some_and(|wanted| free >= wanted && since > CHOOSE);
            if since > most || is_late || has_enough {
                // An agent that was restarted has answered under two ids.
                let first_ns = *doubled_ns.get_or_insert(now);
                let is_silence_over = now > first_ns + (SILENT + 2 * REPEAT).as_nanos() as u64;
                if is_late || is_silence_over || !has_namesakes(&found) {
                    break;
                }
            }
            if self.is_interrupted() {
                return Ok((Vec::new(), Waited::Interrupted));
            }
            if opened_ns.is_some() && now > called_ns + REPEAT.as_nanos() as u64 {
                called_ns = now;
                forget_silent(&mut found, now);
                let call = ToAgent::Call { leader: self.id.clone() };
                self.messages.send(&of_all(&self.flags.fleet), encode(&call, &[]));
            }
            match self.messages.next(Duration::from_millis(20)) {
                Some(Event::Open(payload_max)) => {
                    (self.payload_max, opened_ns) = (payload_max, Some(now_ns()));
                }
                Some(Event::Down(why)) => down = Some(why),
                Some(Event::Message(_, bytes)) => {
                    if bytes.len() > ANSWER_BYTES_MAX {
                        continue;
                    }
                    let Some((message, _)) = decode::<FromAgent>(&bytes) else { continue };
                    let is_room = found.len() < AGENTS_MAX || found.contains_key(&message.agent);
                    if let Some(agent) = Agent::new(message, now)
                        && is_room
                    {
                        found.insert(agent.id.clone(), agent);
                    }
                }
                None => {}
            }
        }
        if opened_ns.is_none() {
            let why = down.unwrap_or_else(|| "no answer".to_owned());
            let hint = match why.contains("authorization") {
                true => "give them by --nats nats://USER:PASSWORD@HOST or --nats-creds FILE",
                false => "is it running? --nats URL names it",
            };
            bail!("cannot reach the NATS server of the fleet: {why} ({hint})");
        }
        let mut agents: Vec<Agent> = found.into_values().collect();
        agents.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        self.namesakes = namesakes(&agents);
        agents.retain(|agent| agent.is_selected(who, purpose));
        Ok((agents, Waited::Done))
    }

    /// Finds the agents of a run and waits until all of them are ready to begin, with their clocks measured.
    ///
    /// # Errors
    /// All that is wrong with the agents; then no load was started.
    pub(crate) fn prepare(&mut self, request: &Request<'_>) -> Result<Waited> {
        let files = travel::files(request.files_max)?;
        let chosen = self.choose(request.who, request.within, request.parts)?;
        let Some((problems, agents)) = chosen else { return Ok(Waited::Interrupted) };
        if !problems.is_empty() {
            bail!("{}", problems.join("\n  "));
        }
        self.make_ready(request, files, agents)
    }

    /// Finds the agents of a run of so many parts, and what is wrong with them; `None` after Ctrl-C.
    ///
    /// # Errors
    /// There is no NATS server.
    pub(super) fn choose(
        &mut self,
        who: &str,
        within: Duration,
        parts: Parts,
    ) -> Result<Option<(Vec<String>, Vec<Agent>)>> {
        let (agents, waited) = self.find(who, within)?;
        if waited == Waited::Interrupted {
            return Ok(None);
        }
        let (busy, mut agents): (Vec<_>, Vec<_>) = agents.into_iter().partition(|agent| agent.busy);
        if let Ok(wanted) = who.parse::<usize>() {
            if agents.len() < wanted {
                let mut problems = std::mem::take(&mut self.namesakes);
                problems.push(too_few(self.purpose, wanted, &agents, &busy));
                return Ok(Some((problems, Vec::new())));
            }
            agents.truncate(wanted);
        }
        let mut problems = problems(self.purpose, (&agents, &busy), who, parts);
        problems.splice(0..0, std::mem::take(&mut self.namesakes));
        Ok(Some((problems, agents)))
    }

    /// Waits until all of these agents are ready to begin, with their clocks measured.
    ///
    /// # Errors
    /// All that is wrong with the agents; then no load was started.
    pub(super) fn make_ready(
        &mut self,
        request: &Request<'_>,
        files: Vec<Travelling>,
        agents: Vec<Agent>,
    ) -> Result<Waited> {
        let ids = [self.id.clone(), unique()];
        let mut coordinator =
            Coordinator::new(ids, self.payload_max, request, files, agents, now_ns())?;
        let waited = loop {
            if self.is_interrupted() {
                break Ok(Waited::Interrupted);
            }
            if let Some(ready) = coordinator.prepare(now_ns(), &mut &self.messages) {
                break ready.map(|()| Waited::Done);
            }
            take_all(&self.messages, &mut coordinator, LOOK);
        };
        match waited {
            Ok(Waited::Done) => self.coordinator = Some(coordinator),
            _ => self.undo(coordinator),
        }
        waited.map_err(|problems| match &self.left_behind {
            Some(left) => anyhow!("no load was started:\n  {problems}\n  {left}"),
            None => anyhow!("nothing was started:\n  {problems}"),
        })
    }

    /// Has the teardown made after a setup whose run does not begin, and frees all agents. Another Ctrl-C ends the
    /// teardown.
    fn undo(&mut self, mut coordinator: Coordinator) {
        if coordinator.can_undo() {
            screen::aside("no load is started: [teardown]; Ctrl-C ends it".to_owned());
            while !coordinator.tear_down(now_ns(), self.interrupts(), &mut &self.messages) {
                take_all(&self.messages, &mut coordinator, LOOK_AT_RUN);
            }
        }
        self.left_behind = coordinator.left_behind();
        coordinator.release(&mut &self.messages);
    }

    /// What Ctrl-C before the start has left.
    pub(crate) fn not_started(&self) -> String {
        match &self.left_behind {
            Some(left) => format!("no load was started; {left}"),
            None => "nothing was started".to_owned(),
        }
    }

    /// Starts the agents, shows rows, and follows each agent to its result; `None` after Ctrl-C before the start.
    pub(crate) fn run(&mut self, row: &mut dyn FnMut(&[Agent])) -> Option<Led> {
        if self.begin() == Waited::Interrupted {
            return None;
        }
        let (mut agents, mut has_setup, mut teardown) = (Vec::new(), false, None);
        let mut interrupted = false;
        if let Some(mut coordinator) = self.coordinator.take() {
            loop {
                let interrupts = self.interrupts();
                // Later ones end the teardown of a run that was complete before.
                if !coordinator.agents.iter().all(Agent::is_settled) {
                    interrupted = interrupts > 0;
                }
                let out = &mut &self.messages;
                if coordinator.follow(now_ns(), interrupts, out, row) {
                    break;
                }
                take_all(&self.messages, &mut coordinator, LOOK_AT_RUN);
            }
            coordinator.release(&mut &self.messages);
            has_setup = coordinator.fixtures.setup.is_some();
            (agents, teardown) = (coordinator.agents, coordinator.teardown);
        }
        let discarded = self.messages.dropped();
        Some(Led { agents, interrupted, discarded, has_setup, teardown })
    }

    /// Starts the agents that are ready. After Ctrl-C they are free, and nothing is started.
    pub(super) fn begin(&mut self) -> Waited {
        loop {
            if self.is_interrupted() {
                if let Some(coordinator) = self.coordinator.take() {
                    self.undo(coordinator);
                }
                return Waited::Interrupted;
            }
            let Some(coordinator) = &mut self.coordinator else { return Waited::Done };
            if coordinator.begin(now_ns(), &mut &self.messages) {
                return Waited::Done;
            }
            take_all(&self.messages, coordinator, LOOK);
        }
    }

    /// Tells all agents, from time to time, that their leader lives, or that they have to stop.
    pub(super) fn beat(&mut self, stop: bool) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.beat(now_ns(), stop, &mut &self.messages);
        }
    }

    /// Takes the messages that have come, after waiting for the first.
    pub(super) fn listen(&mut self, within: Duration) {
        if let Some(coordinator) = &mut self.coordinator {
            take_all(&self.messages, coordinator, within);
        }
    }

    /// Frees all agents of the run. Returns them.
    pub(super) fn release(&mut self) -> Vec<Agent> {
        let Some(coordinator) = self.coordinator.take() else { return Vec::new() };
        coordinator.release(&mut &self.messages);
        coordinator.agents
    }

    /// The agents of the run, once they are ready.
    pub(super) fn agents(&self) -> &[Agent] {
        self.coordinator.as_ref().map_or(&[], |coordinator| &coordinator.agents)
    }

    pub(super) fn agents_mut(&mut self) -> &mut [Agent] {
        self.coordinator.as_mut().map_or(&mut [], |coordinator| &mut coordinator.agents)
    }

    /// Gives an agent of the run a command.
    pub(super) fn command(&self, agent: &Agent, number: u64, command: Command) {
        if let Some(coordinator) = &self.coordinator {
            let command = ToAgent::Command { run: coordinator.run.clone(), number, command };
            coordinator.send(agent, &command, &[], &mut &self.messages);
        }
    }

    /// Messages of this leader that were discarded.
    pub(super) fn discarded(&self) -> usize {
        self.messages.dropped()
    }

    pub(super) fn send(&self, agent: &Agent, message: &ToAgent, body: &[u8]) {
        self.messages.send(&inbox(&self.flags.fleet, &agent.id), encode(message, body));
    }

    /// The connection, and the id that agents answer to.
    pub(super) fn into_messages(self) -> (Messages, String) {
        (self.messages, self.id)
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn flags(&self) -> &'a FleetFlags {
        self.flags
    }

    /// The next message of any agent.
    pub(super) fn next(&mut self, within: Duration) -> Option<FromAgent> {
        match self.messages.next(within)? {
            Event::Message(_, bytes) => decode::<FromAgent>(&bytes).map(|(message, _)| message),
            Event::Open(_) | Event::Down(_) => None,
        }
    }

    /// How often Ctrl-C came.
    pub(super) fn interrupts(&mut self) -> u32 {
        self.is_interrupted();
        self.interrupts
    }

    pub(super) fn is_interrupted(&mut self) -> bool {
        let signal = process::wait_signal(Duration::ZERO);
        let is_now = matches!(signal, Some(Signal::Interrupt | Signal::Terminate));
        self.interrupts = self.interrupts.saturating_add(is_now.into());
        self.interrupts > 0
    }
}

/// Forgets agents that no longer answer calls: they have ended, or were restarted under another id.
fn forget_silent(found: &mut BTreeMap<String, Agent>, now: u64) {
    found.retain(|_, agent| now <= agent.heard_ns.saturating_add(SILENT.as_nanos() as u64));
}

fn has_namesakes(found: &BTreeMap<String, Agent>) -> bool {
    let names: BTreeSet<&str> = found.values().map(|agent| &*agent.name).collect();
    names.len() < found.len()
}

/// Takes the messages that have come, after waiting for the first.
fn take_all(messages: &Messages, coordinator: &mut Coordinator, within: Duration) {
    let mut within = within;
    for _ in 0..MESSAGES_MAX {
        let Some(event) = messages.next(within) else { return };
        within = Duration::ZERO;
        match event {
            Event::Message(_, bytes) => coordinator.take(now_ns(), &bytes, &mut &*messages),
            Event::Open(_) => screen::aside("NATS: connected again".to_owned()),
            Event::Down(why) => screen::aside(format!("NATS: {why}; trying again")),
        }
    }
}

impl Outbox for &Messages {
    fn send(&mut self, subject: &str, message: Vec<u8>) {
        Messages::send(self, subject, message);
    }

    fn note(&mut self, text: String) {
        screen::aside(text);
    }
}
