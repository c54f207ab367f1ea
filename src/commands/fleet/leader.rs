//! The leader of a run: `standfast load … --agents WHO`. It finds agents, waits until all are ready, starts
//! them at one instant, and follows them to their results. An agent that is lost stops all others.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use brokers::nats::messages::{Event, Messages};
use engine::sys::process::{self, Signal, now_ns};
use load::Outcome;

use super::member::{Agent, Readiness, check, too_few};
use super::message::{
    FromAgent, Plan, Says, ToAgent, decode, encode, inbox, of_all, printable, version,
};
use super::travel::{self, Travelling};
use super::{AGENTS_MAX, FleetFlags, PIECE_BYTES, REPEAT, RESULT_BYTES_MAX, sha256, unique};
use crate::report::screen;

/// How long agents are looked for, unless a number of them is awaited.
const LOOK_FOR_ALL: Duration = Duration::from_secs(2);
/// How long a NATS server is tried, and by default a number of agents is awaited.
pub(super) const LOOK_FOR: Duration = Duration::from_secs(10);
/// How long answers are awaited although enough agents have answered, so that the choice is by name.
const CHOOSE: Duration = Duration::from_millis(300);
/// How long the agents take to be ready.
pub(super) const PREPARE: Duration = Duration::from_secs(60);
/// From the decision to begin to the beginning.
const AHEAD: Duration = Duration::from_secs(2);
/// Round trips to each agent before the start.
pub(super) const PINGS: usize = 12;
/// How long the others may take to stop when an agent is lost or on Ctrl-C.
const STOPPING: Duration = Duration::from_secs(45);
/// How long a row waits for those of all agents.
const ROW_WAIT: Duration = Duration::from_secs(2);
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
    /// Users, or groups of them that share connections.
    pub(crate) users: u64,
    pub(crate) seed: u64,
}

/// The connection to a fleet.
pub(crate) struct Leader<'a> {
    flags: &'a FleetFlags,
    id: String,
    run: String,
    messages: Messages,
    /// The longest message of the NATS server in bytes; 0 before the first connection.
    payload_max: usize,
    agents: Vec<Agent>,
    files: Vec<Travelling>,
    interrupted: bool,
}

/// What came of a run.
pub(crate) struct Led {
    pub(crate) agents: Vec<Agent>,
    /// By Ctrl-C.
    pub(crate) interrupted: bool,
}

/// Whether what was waited for has happened, or Ctrl-C before.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Waited {
    Done,
    Interrupted,
}

impl<'a> Leader<'a> {
    pub(crate) fn new(flags: &'a FleetFlags) -> Result<Leader<'a>> {
        let (id, run) = (unique(), unique());
        let messages = Messages::start(flags.transport()?, vec![inbox(&flags.fleet, &id)])?;
        let (agents, files) = (Vec::new(), Vec::new());
        Ok(Leader { flags, id, run, messages, payload_max: 0, agents, files, interrupted: false })
    }

    /// Calls all agents, and returns those of `who` that have answered, by name.
    ///
    /// # Errors
    /// There is no NATS server, or fewer agents are free than asked for.
    pub(super) fn find(&mut self, who: &str, within: Duration) -> Result<(Vec<Agent>, Waited)> {
        let wanted = who.parse::<usize>().ok();
        let began_ns = now_ns();
        let (mut called_ns, mut opened_ns, mut down) = (0, None, None);
        let mut found: BTreeMap<String, Agent> = BTreeMap::new();
        loop {
            let now = now_ns();
            let since = Duration::from_nanos(now - opened_ns.unwrap_or(began_ns));
            let most = if opened_ns.is_none() || wanted.is_some() { within } else { LOOK_FOR_ALL };
            let free = found.values().filter(|agent| !agent.busy).count();
            // A connection that comes and goes is not tried forever.
            let is_late = now > began_ns + (within + LOOK_FOR).as_nanos() as u64;
            let has_enough = wanted.is_some_and(|wanted| free >= wanted && since > CHOOSE);
            if since > most || is_late || has_enough {
                break;
            }
            if self.is_interrupted() {
                return Ok((Vec::new(), Waited::Interrupted));
            }
            if opened_ns.is_some() && now > called_ns + REPEAT.as_nanos() as u64 {
                called_ns = now;
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
                    if let Some(agent) = Agent::new(message)
                        && agent.is_selected(who)
                        && is_room
                    {
                        found.insert(agent.id.clone(), agent);
                    }
                }
                None => {}
            }
        }
        if opened_ns.is_none() {
            bail!(
                "cannot reach the NATS server of the fleet: {} (is it running? --nats URL names it)",
                down.unwrap_or_else(|| "no answer".to_owned())
            );
        }
        let mut agents: Vec<Agent> = found.into_values().collect();
        agents.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        Ok((agents, Waited::Done))
    }

    /// Finds the agents of a run and waits until all of them are ready to begin, with their clocks measured.
    ///
    /// # Errors
    /// All that is wrong with the agents; then nothing was started.
    pub(crate) fn prepare(&mut self, request: &Request<'_>) -> Result<Waited> {
        self.files = travel::files(request.files_max)?;
        let (agents, waited) = self.find(request.who, request.within)?;
        if waited == Waited::Interrupted {
            return Ok(waited);
        }
        let (busy, mut agents): (Vec<_>, Vec<_>) = agents.into_iter().partition(|agent| agent.busy);
        if let Ok(wanted) = request.who.parse::<usize>() {
            if agents.len() < wanted {
                bail!("{}", too_few(wanted, &agents, &busy));
            }
            agents.truncate(wanted);
        }
        check(&agents, &busy, request)?;
        self.agents = agents;
        let waited = self.barrier(request);
        if !matches!(waited, Ok(Waited::Done)) {
            self.release();
        }
        waited
    }

    /// Starts the agents, shows rows, and follows each agent to its result.
    pub(crate) fn run(mut self, row: &mut dyn FnMut(&[Agent])) -> Led {
        self.begin();
        self.follow(row);
        self.release();
        Led { agents: self.agents, interrupted: self.interrupted }
    }

    pub(super) fn send(&self, agent: &Agent, message: &ToAgent, body: &[u8]) {
        self.messages.send(&inbox(&self.flags.fleet, &agent.id), encode(message, body));
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The next message of any agent.
    pub(super) fn next(&mut self, within: Duration) -> Option<FromAgent> {
        match self.messages.next(within)? {
            Event::Message(_, bytes) => decode::<FromAgent>(&bytes).map(|(message, _)| message),
            Event::Open(_) | Event::Down(_) => None,
        }
    }

    pub(super) fn is_interrupted(&mut self) -> bool {
        let signal = process::wait_signal(Duration::ZERO);
        self.interrupted |= matches!(signal, Some(Signal::Interrupt | Signal::Terminate));
        self.interrupted
    }

    /// Takes the messages that have come, after waiting for the first.
    fn take_all(&mut self, within: Duration) {
        let mut within = within;
        for _ in 0..MESSAGES_MAX {
            let Some(event) = self.messages.next(within) else { return };
            within = Duration::ZERO;
            match event {
                Event::Message(_, bytes) => self.take(&bytes),
                Event::Open(_) => screen::aside("NATS: connected again".to_owned()),
                Event::Down(why) => screen::aside(format!("NATS: {why}; trying again")),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let now = now_ns();
        let Some((FromAgent { agent, run, says }, body)) = decode::<FromAgent>(bytes) else {
            return;
        };
        let Some(at) = self.agents.iter().position(|one| one.id == agent) else { return };
        let Some(one) = self.agents.get_mut(at) else { return };
        if let Says::Pong { sent_ns, at_ns } = says {
            one.offset.add(sent_ns, at_ns, now);
            return;
        }
        if run != self.run {
            return;
        }
        one.heard_ns = now;
        match says {
            // One that was overtaken or comes twice is not newer.
            Says::Row { number, late_us, row } if number > one.number => {
                (one.number, one.row, one.late_us) = (number, Some(*row), late_us);
            }
            Says::Piece { offset } => {
                let end = offset.saturating_add(body.len());
                let is_next = offset == one.result.len() && end <= RESULT_BYTES_MAX;
                // Nothing is requested after a duplicate, as that would start a second sequence of pieces. Without bytes
                // it is requested again when the agent repeats that it has a result.
                if is_next && !body.is_empty() {
                    one.result.extend_from_slice(body);
                    self.fetch(at);
                }
            }
            Says::Want { file, offset } => {
                one.last = Says::Want { file, offset };
                let piece_bytes = PIECE_BYTES.min(self.payload_max / 2);
                let piece = self.files.get(file).map(|file| file.piece(offset, piece_bytes));
                let message = ToAgent::Piece { run: self.run.clone(), file, offset };
                if let (Some(one), Some(piece)) = (self.agents.get(at), piece) {
                    self.send(one, &message, piece);
                }
            }
            Says::Done { bytes, .. } if bytes > RESULT_BYTES_MAX => {
                let why = format!("its result has {bytes} bytes: at most {RESULT_BYTES_MAX}");
                one.last = Says::Failed { why };
            }
            Says::Done { late_us, .. } => {
                (one.last, one.late_us) = (says, late_us);
                self.fetch(at);
            }
            Says::Refused { why } => one.last = Says::Refused { why: printable(&why) },
            Says::Failed { why } => one.last = Says::Failed { why: printable(&why) },
            Says::Ready | Says::Waiting => one.last = says,
            Says::Row { .. } | Says::Pong { .. } | Says::Here { .. } | Says::Checked { .. } => {}
        }
    }

    /// Asks for the rest of a result, or reads it.
    fn fetch(&mut self, at: usize) {
        let Some(one) = self.agents.get_mut(at) else { return };
        let Says::Done { bytes, sha256: expected, .. } = &one.last else { return };
        if one.is_settled() {
            return;
        }
        if one.result.len() < *bytes {
            let offset = one.result.len();
            let message = ToAgent::Fetch { run: self.run.clone(), offset };
            if let Some(one) = self.agents.get(at) {
                self.send(one, &message, &[]);
            }
            return;
        }
        let read = match sha256(&one.result) == *expected {
            true => serde_json::from_slice(&one.result).map_err(|error| error.to_string()),
            false => Err("wrong SHA-256".to_owned()),
        };
        match read.and_then(Outcome::read) {
            Ok(outcome) => one.outcome = Some(outcome),
            Err(why) => one.lost = Some(format!("its result cannot be read: {why}")),
        }
        one.result = Vec::new();
    }

    fn beat(&self, stop: bool) {
        for agent in &self.agents {
            self.send(agent, &ToAgent::Beat { run: self.run.clone(), stop }, &[]);
        }
    }

    /// Waits until all agents are ready, and measures their clocks.
    fn barrier(&mut self, request: &Request<'_>) -> Result<Waited> {
        let until_ns = now_ns() + PREPARE.as_nanos() as u64;
        let plans = self.plans(request)?;
        let mut repeated_ns = 0;
        // Others may have been awaited for long since they were called.
        self.agents.iter_mut().for_each(|agent| agent.heard_ns = now_ns());
        loop {
            let now = now_ns();
            if self.is_interrupted() {
                return Ok(Waited::Interrupted);
            }
            let is_late = now > until_ns;
            let mut states = self.agents.iter().map(|agent| agent.readiness(now));
            if is_late || states.all(|state| state != Readiness::Open) {
                let problems: Vec<String> =
                    self.agents.iter().filter_map(|agent| agent.problem(now)).collect();
                if problems.is_empty() {
                    return Ok(Waited::Done);
                }
                bail!("nothing was started:\n  {}", problems.join("\n  "));
            }
            if now > repeated_ns + REPEAT.as_nanos() as u64 / 5 {
                repeated_ns = now;
                self.beat(false);
                for (agent, plan) in self.agents.iter().zip(&plans) {
                    if matches!(agent.last, Says::Here { .. }) {
                        self.messages.send(&inbox(&self.flags.fleet, &agent.id), plan.clone());
                    }
                    let ping = ToAgent::Ping { leader: self.id.clone(), sent_ns: now_ns() };
                    self.send(agent, &ping, &[]);
                }
            }
            self.take_all(Duration::from_millis(5));
        }
    }

    /// The message with the plan of each agent.
    fn plans(&self, request: &Request<'_>) -> Result<Vec<Vec<u8>>> {
        let of = u32::try_from(self.agents.len()).unwrap_or(u32::MAX);
        let plan = |nth| {
            let plan = Plan {
                run: self.run.clone(),
                leader: self.id.clone(),
                version: version(),
                nth,
                of,
                seed: request.seed,
                words: request.words.clone(),
                files: self.files.iter().map(|file| file.entry.clone()).collect(),
            };
            encode(&ToAgent::Plan(plan), &[])
        };
        let plans: Vec<Vec<u8>> = (0..of).map(plan).collect();
        let most = plans.iter().map(Vec::len).max().unwrap_or(0);
        if most > self.payload_max {
            bail!(
                "the plan has {most} bytes and the NATS server takes {} (max_payload): put long values into files",
                self.payload_max
            );
        }
        Ok(plans)
    }

    /// Tells all agents when to begin, until they have confirmed it or it is too late.
    fn begin(&mut self) {
        let at_ns = now_ns() + AHEAD.as_nanos() as u64;
        let mut repeated_ns = 0;
        while now_ns() < at_ns {
            if now_ns() > repeated_ns + REPEAT.as_nanos() as u64 / 5 {
                repeated_ns = now_ns();
                self.beat(false);
                for at in 0..self.agents.len() {
                    let Some(agent) = self.agents.get_mut(at) else { continue };
                    if !matches!(agent.last, Says::Ready) {
                        continue;
                    }
                    let Some(estimate) = agent.offset.at(at_ns) else { continue };
                    // It obeys the first of these messages that arrives.
                    agent.start_error_ns = agent.start_error_ns.max(Some(estimate.error_ns));
                    let at_ns = estimate.of_theirs(at_ns);
                    let message = ToAgent::Begin { run: self.run.clone(), at_ns };
                    if let Some(agent) = self.agents.get(at) {
                        self.send(agent, &message, &[]);
                    }
                }
            }
            self.take_all(Duration::from_millis(5));
        }
        for agent in &mut self.agents {
            if matches!(agent.last, Says::Ready) {
                agent.lost = Some("it did not confirm the start".to_owned());
            }
        }
    }

    /// Shows rows until every agent has sent its result or is lost. One that is lost stops all.
    fn follow(&mut self, row: &mut dyn FnMut(&[Agent])) {
        let (mut beat_ns, mut stopping_ns) = (0, None);
        let mut shown = Shown { numbers: vec![0; self.agents.len()], at_ns: now_ns() };
        self.agents.iter_mut().for_each(|agent| agent.heard_ns = now_ns());
        while !self.agents.iter().all(Agent::is_settled) {
            let now = now_ns();
            for agent in self.agents.iter_mut().filter(|agent| !agent.is_settled()) {
                agent.lost = agent.is_lost(now);
                if let Some(why) = &agent.lost {
                    screen::aside(format!(
                        "agent {}: {why}: stopping the others, as the run is incomplete",
                        agent.name
                    ));
                }
            }
            let has_lost = self.agents.iter().any(|agent| agent.lost.is_some());
            if stopping_ns.is_none() && (has_lost || self.is_interrupted()) {
                (stopping_ns, beat_ns) = (Some(now), 0);
            }
            if stopping_ns.is_some_and(|since| now > since + STOPPING.as_nanos() as u64) {
                for agent in self.agents.iter_mut().filter(|agent| !agent.is_settled()) {
                    agent.lost = Some("it did not stop in time".to_owned());
                }
            }
            if now > beat_ns + REPEAT.as_nanos() as u64 {
                beat_ns = now;
                self.beat(stopping_ns.is_some());
            }
            if shown.is_due(&self.agents, now) {
                row(&self.agents);
            }
            self.take_all(Duration::from_millis(10));
        }
        if shown.is_new(&self.agents) {
            row(&self.agents);
        }
    }

    fn release(&self) {
        for agent in &self.agents {
            self.send(agent, &ToAgent::Release { run: self.run.clone() }, &[]);
        }
    }
}

/// Which rows were shown, and when.
struct Shown {
    numbers: Vec<u64>,
    at_ns: u64,
}

impl Shown {
    /// Whether each agent has a row that was not shown, or has waited long enough for others.
    fn is_due(&mut self, agents: &[Agent], now: u64) -> bool {
        // Before the first row of an agent nothing is known of the whole.
        let is_known = agents.iter().all(|agent| agent.row.is_some() || agent.is_settled());
        let mut each = agents.iter().zip(&self.numbers);
        let all_new = each.all(|(agent, shown)| agent.number > *shown || agent.is_settled());
        let has_waited = now > self.at_ns + ROW_WAIT.as_nanos() as u64;
        let is_due = is_known && self.is_new(agents) && (all_new || has_waited);
        if is_due {
            self.numbers = agents.iter().map(|agent| agent.number).collect();
            self.at_ns = now;
        }
        is_due
    }

    fn is_new(&self, agents: &[Agent]) -> bool {
        agents.iter().zip(&self.numbers).any(|(agent, shown)| agent.number > *shown)
    }
}
