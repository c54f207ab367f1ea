//! [`Coordinator`]: a run as its leader sees it, from the plan to the results of all agents. It has neither a
//! socket nor a clock: messages and times are passed in, so that a simulation can drive it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, bail};
use load::Outcome;

use super::fixtures::{Captures, Fixtures, Teardown, TeardownOrder};
use super::leader::{PREPARE, Request};
use super::member::{Agent, Obeyed, Readiness};
use super::message::{
    FromAgent, Plan, Says, TEXT_CHARS_MAX, ToAgent, decode, encode, inbox, of_all, one_line,
    printable, version,
};
use super::travel::Travelling;
use super::{PIECE_BYTES, REPEAT, RESULT_BYTES_MAX, sha256};

/// From the decision to begin to the beginning.
const AHEAD: Duration = Duration::from_secs(2);
/// How often the clock of an agent is read before the start.
const PING: Duration = Duration::from_millis(50);
/// How often a start is repeated until the agent has confirmed it.
const REPEAT_START: Duration = Duration::from_millis(100);
/// How long the others may take to stop when an agent is lost or on Ctrl-C.
const STOPPING: Duration = Duration::from_secs(45);
/// How long a row waits for those of all agents.
const ROW_WAIT: Duration = Duration::from_secs(2);
/// Agents that are written to at once, and the time until the next ones are: the queue of messages to be sent is
/// bounded.
const PART: usize = 500;
const PART_EVERY: Duration = Duration::from_millis(10);
/// Results that are fetched at the same time, each in pieces of up to [`PIECE_BYTES`].
const FETCHES_MAX: usize = 64;

/// What a coordinator does to the world.
pub(super) trait Outbox {
    /// Sends a message. It may be lost.
    fn send(&mut self, subject: &str, message: Vec<u8>);
    /// Tells the user.
    fn note(&mut self, text: String);
}

pub(super) struct Coordinator {
    pub(super) fleet: String,
    /// The id of the leader, and of the run.
    id: String,
    pub(super) run: String,
    /// The longest message of the NATS server in bytes.
    payload_max: usize,
    seed: u64,
    words: Vec<String>,
    files: Vec<Travelling>,
    pub(super) agents: Vec<Agent>,
    places: HashMap<String, usize>,
    pass: Pass,
    beat_ns: u64,
    /// When agents have to be ready; then when they begin.
    until_ns: u64,
    stopping_ns: Option<u64>,
    shown: Shown,
    /// The agents whose results are being fetched, and since when; and those that wait for it.
    fetches: Vec<(usize, u64)>,
    to_fetch: BTreeSet<usize>,
    pub(super) fixtures: Fixtures,
    /// Of the setup, once it was made.
    pub(super) captured: Option<Captures>,
    pub(super) is_set_up_ordered: bool,
    /// Agents may have been told when to begin; and the time of the start has come.
    pub(super) is_start_ordered: bool,
    pub(super) has_begun: bool,
    pub(super) teardown_order: Option<TeardownOrder>,
    /// Once it has ended.
    pub(super) teardown: Option<Teardown>,
}

impl Coordinator {
    /// The coordinator of a run of these agents.
    ///
    /// # Errors
    /// The plan is longer than a message of the NATS server.
    pub(super) fn new(
        [id, run]: [String; 2],
        payload_max: usize,
        request: &Request<'_>,
        files: Vec<Travelling>,
        mut agents: Vec<Agent>,
        now: u64,
    ) -> Result<Coordinator> {
        // Others may have been awaited for long since they were called.
        agents.iter_mut().for_each(|agent| agent.heard_ns = now);
        let places = agents.iter().enumerate().map(|(at, agent)| (agent.id.clone(), at));
        let coordinator = Coordinator {
            fleet: request.flags.fleet.clone(),
            id,
            run,
            payload_max,
            seed: request.seed,
            words: request.words.clone(),
            files,
            places: places.collect(),
            pass: Pass::default(),
            beat_ns: 0,
            until_ns: now + nanoseconds(PREPARE + request.fixtures.setup.unwrap_or_default()),
            stopping_ns: None,
            shown: Shown::new(&agents, now),
            fetches: Vec::new(),
            to_fetch: BTreeSet::new(),
            fixtures: request.fixtures,
            captured: None,
            is_set_up_ordered: false,
            is_start_ordered: false,
            has_begun: false,
            teardown_order: None,
            teardown: None,
            agents,
        };
        // Those of the last agents have the most digits.
        let most = coordinator.plan(coordinator.agents.len().saturating_sub(1)).len();
        if most > payload_max {
            bail!(
                "the plan has {most} bytes and the NATS server takes {payload_max} (max_payload): put long values into files"
            );
        }
        Ok(coordinator)
    }

    /// Makes all agents ready and measures their clocks. `None` until all are.
    ///
    /// # Errors
    /// All that is wrong with the agents; no load was started.
    pub(super) fn prepare(
        &mut self,
        now: u64,
        out: &mut impl Outbox,
    ) -> Option<Result<(), String>> {
        let is_late = now > self.until_ns;
        let has = |state| self.agents.iter().any(|agent| agent.readiness(now) == state);
        let is_prepared = !has(Readiness::Open) && !has(Readiness::Refused);
        // A setup is not made for a run that cannot begin.
        let is_open = has(Readiness::Open) || has(Readiness::Prepared) && is_prepared;
        if is_late || !is_open {
            let mut problems: Vec<String> =
                self.agents.iter().filter_map(|agent| agent.problem(now)).collect();
            let waits = |agent: &&Agent| agent.readiness(now) == Readiness::Prepared;
            if problems.is_empty()
                && let Some(agent) = self.agents.iter().find(waits)
            {
                problems.push(format!("agent {}: [setup] has not ended in time", agent.name));
            }
            if problems.is_empty() {
                (self.pass, self.until_ns) = (Pass::default(), now + nanoseconds(AHEAD));
                return Some(Ok(()));
            }
            return Some(Err(problems.join("\n  ")));
        }
        self.beat(now, false, out);
        for at in self.pass.turn(now, PING, self.agents.len()) {
            let Some(agent) = self.agents.get_mut(at) else { continue };
            let is_due = |since: u64, every| now >= since.saturating_add(nanoseconds(every));
            let has_plan = !matches!(agent.last, Says::Here { .. });
            let ping_every = if agent.offset.is_known(now) { REPEAT } else { PING };
            let subject = inbox(&self.fleet, &agent.id);
            if is_due(agent.pinged_ns, ping_every) {
                agent.pinged_ns = now;
                let ping = ToAgent::Ping { leader: self.id.clone(), sent_ns: now };
                out.send(&subject, encode(&ping, &[]));
            }
            if !has_plan && is_due(agent.planned_ns, REPEAT) {
                agent.planned_ns = now;
                out.send(&subject, self.plan(at));
            }
            if is_prepared && self.fixtures.setup.is_some() {
                self.set_up(at, now, out);
            }
        }
        None
    }

    /// The message with the plan of an agent.
    fn plan(&self, at: usize) -> Vec<u8> {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let plan = Plan {
            run: self.run.clone(),
            leader: self.id.clone(),
            version: version(),
            nth: number(at),
            of: number(self.agents.len()),
            seed: self.seed,
            words: self.words.clone(),
            files: self.files.iter().map(|file| file.entry.clone()).collect(),
        };
        encode(&ToAgent::Plan(plan), &[])
    }

    /// Tells all agents when to begin, until the time has come. Returns whether it has.
    pub(super) fn begin(&mut self, now: u64, out: &mut impl Outbox) -> bool {
        let at_ns = self.until_ns;
        if now >= at_ns {
            for agent in &mut self.agents {
                if matches!(agent.last, Says::Ready { .. }) {
                    agent.lost = Some("it did not confirm the start".to_owned());
                }
                agent.heard_ns = now;
            }
            (self.beat_ns, self.has_begun) = (0, true);
            self.shown.at_ns = now;
            return true;
        }
        self.beat(now, false, out);
        self.is_start_ordered = true;
        for at in self.pass.turn(now, REPEAT_START, self.agents.len()) {
            let Some(agent) = self.agents.get_mut(at) else { continue };
            // A clock that jumps now makes a wrong time of the start.
            let subject = inbox(&self.fleet, &agent.id);
            let ping = ToAgent::Ping { leader: self.id.clone(), sent_ns: now };
            out.send(&subject, encode(&ping, &[]));
            let estimate =
                agent.offset.at(at_ns).filter(|_| matches!(agent.last, Says::Ready { .. }));
            let Some(estimate) = estimate else { continue };
            // It obeys the first of these messages that arrives.
            agent.start_error_ns = agent.start_error_ns.max(Some(estimate.error_ns));
            let begin = ToAgent::Begin { run: self.run.clone(), at_ns: estimate.of_theirs(at_ns) };
            out.send(&subject, encode(&begin, &[]));
        }
        false
    }

    /// Shows rows until every agent has sent its result or is lost, and the teardown is made. One that is lost stops
    /// all, and so does Ctrl-C. Returns whether it has ended.
    pub(super) fn follow(
        &mut self,
        now: u64,
        interrupts: u32,
        out: &mut impl Outbox,
        row: &mut dyn FnMut(&[Agent]),
    ) -> bool {
        if self.agents.iter().all(Agent::is_settled) {
            if self.shown.is_new(&self.agents) {
                self.shown.note(&self.agents, now);
                row(&self.agents);
            }
            return self.tear_down(now, interrupts, out);
        }
        for agent in self.agents.iter_mut().filter(|agent| !agent.is_settled()) {
            agent.lost = agent.is_lost(now);
            if let Some(why) = &agent.lost {
                out.note(format!(
                    "agent {}: {why}: stopping the others, as the run is incomplete",
                    agent.name
                ));
            }
        }
        let has_lost = self.agents.iter().any(|agent| agent.lost.is_some());
        if self.stopping_ns.is_none() && (has_lost || interrupts > 0) {
            (self.stopping_ns, self.beat_ns) = (Some(now), 0);
            if interrupts > 0 {
                out.note(
                    "interrupted: stopping all agents; Ctrl-C again does not wait for their results"
                        .to_owned(),
                );
            }
        }
        if interrupts > 1 {
            self.agents.iter_mut().for_each(Agent::give_up);
        }
        if self.stopping_ns.is_some_and(|since| now > since + nanoseconds(STOPPING)) {
            for agent in self.agents.iter_mut().filter(|agent| !agent.is_settled()) {
                agent.lost = Some("it did not stop in time".to_owned());
            }
        }
        self.beat(now, self.stopping_ns.is_some(), out);
        if self.shown.is_due(&self.agents, now) {
            row(&self.agents);
        }
        false
    }

    /// Frees all agents.
    pub(super) fn release(&self, out: &mut impl Outbox) {
        for agent in &self.agents {
            self.send(agent, &ToAgent::Release { run: self.run.clone() }, &[], out);
        }
    }

    /// Takes a message of an agent.
    pub(super) fn take(&mut self, now: u64, bytes: &[u8], out: &mut impl Outbox) {
        let Some((FromAgent { agent, run, says }, body)) = decode::<FromAgent>(bytes) else {
            return;
        };
        let Some(at) = self.places.get(&agent).copied() else { return };
        let Some(one) = self.agents.get_mut(at) else { return };
        if let Says::Pong { sent_ns, at_ns } = says {
            // A time that we have not sent is no round trip.
            if sent_ns > now {
                return;
            }
            let widened_ns = one.offset.add(sent_ns, at_ns, now);
            match (widened_ns, one.start_error_ns) {
                (Some(by), Some(error)) => one.start_error_ns = Some(error.saturating_add(by)),
                (None, Some(_)) if !one.is_settled() => {
                    one.lost = Some("its clock jumped before the start".to_owned());
                }
                _ => {}
            }
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
                let bytes_max = match one.last {
                    Says::Done { bytes, .. } if one.is_fetched && !one.is_settled() => bytes,
                    _ => 0,
                };
                let is_next = offset == one.result.len() && end <= bytes_max;
                // Nothing is requested after a duplicate, as that would start a second sequence of pieces. Without bytes
                // it is requested again when the agent repeats that it has a result.
                if is_next && !body.is_empty() {
                    one.is_fetched = false;
                    one.result.extend_from_slice(body);
                    self.fetch(at, now, out);
                }
            }
            Says::Want { file, offset } => {
                one.last = Says::Want { file, offset };
                let piece_bytes = PIECE_BYTES.min(self.payload_max / 2);
                let piece = self.files.get(file).map(|file| file.piece(offset, piece_bytes));
                let message = ToAgent::Piece { run: self.run.clone(), file, offset };
                if let (Some(one), Some(piece)) = (self.agents.get(at), piece) {
                    self.send(one, &message, piece, out);
                }
            }
            Says::Done { bytes, .. } if bytes > RESULT_BYTES_MAX => {
                let why = format!("its result has {bytes} bytes: at most {RESULT_BYTES_MAX}");
                one.last = Says::Failed { why };
            }
            Says::Done { late_us, discarded, .. } => {
                (one.last, one.late_us, one.discarded) = (says, late_us, discarded);
                self.fetch(at, now, out);
            }
            Says::Refused { why } => one.last = Says::Refused { why: printable(&why) },
            Says::Failed { why } => one.last = Says::Failed { why: printable(&why) },
            Says::Ready { captured } => {
                if at == 0 && self.captured.is_none() {
                    self.captured = captured;
                }
                one.last = Says::Ready { captured: None };
            }
            Says::TornDown { failed } => {
                one.last =
                    Says::TornDown { failed: failed.map(|why| one_line(&why, TEXT_CHARS_MAX)) };
            }
            Says::Prepared | Says::SettingUp | Says::Waiting => one.last = says,
            Says::Controlled { number, taken, events } if number > one.obeyed.number => {
                one.obeyed = Obeyed { number, taken, events };
            }
            Says::Row { .. }
            | Says::Controlled { .. }
            | Says::Pong { .. }
            | Says::Here { .. }
            | Says::Checked { .. }
            | Says::Serving(_)
            | Says::Upgrade(_) => {}
        }
    }

    /// Asks for the rest of a result, or reads it and goes on with the next one.
    fn fetch(&mut self, at: usize, now: u64, out: &mut impl Outbox) {
        let Some(one) = self.agents.get_mut(at) else { return };
        let Says::Done { bytes, sha256: expected, .. } = &one.last else { return };
        let is_missing = one.result.len() < *bytes && !one.is_settled();
        // An agent that does not answer holds no place for long: it repeats that it has a result.
        let since = now.saturating_sub(2 * nanoseconds(REPEAT));
        self.fetches.retain(|(place, asked_ns)| *place != at && *asked_ns >= since);
        if is_missing {
            if self.fetches.len() >= FETCHES_MAX {
                self.to_fetch.insert(at);
                return;
            }
            self.fetches.push((at, now));
            one.is_fetched = true;
            let message = ToAgent::Fetch { run: self.run.clone(), offset: one.result.len() };
            out.send(&inbox(&self.fleet, &one.id), encode(&message, &[]));
            return;
        }
        if !one.is_settled() {
            let read = match sha256(&one.result) == *expected {
                true => serde_json::from_slice(&one.result).map_err(|error| error.to_string()),
                false => Err("wrong SHA-256".to_owned()),
            };
            match read.and_then(Outcome::read) {
                Ok(outcome) => one.outcome = Some(outcome),
                Err(why) => {
                    one.lost = Some(format!(
                        "its result cannot be read: {}",
                        one_line(&why, TEXT_CHARS_MAX)
                    ))
                }
            }
            one.result = Vec::new();
        }
        while self.fetches.len() < FETCHES_MAX
            && let Some(next) = self.to_fetch.pop_first()
        {
            self.fetch(next, now, out);
        }
    }

    /// Tells all agents of the run, from time to time, that its leader lives.
    pub(super) fn beat(&mut self, now: u64, stop: bool, out: &mut impl Outbox) {
        if now >= self.beat_ns.saturating_add(nanoseconds(REPEAT)) {
            self.beat_ns = now;
            let beat = ToAgent::Beat { run: self.run.clone(), stop };
            out.send(&of_all(&self.fleet), encode(&beat, &[]));
        }
    }

    pub(super) fn send(
        &self,
        agent: &Agent,
        message: &ToAgent,
        body: &[u8],
        out: &mut impl Outbox,
    ) {
        out.send(&inbox(&self.fleet, &agent.id), encode(message, body));
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// A pass over all agents, a part of them at a time.
#[derive(Default)]
struct Pass {
    next: usize,
    began_ns: u64,
    part_ns: u64,
}

impl Pass {
    /// The agents whose turn it is. A pass begins at most as often as this.
    fn turn(&mut self, now: u64, every: Duration, agents: usize) -> Range<usize> {
        if self.next >= agents && now >= self.began_ns.saturating_add(nanoseconds(every)) {
            self.next = 0;
        }
        let is_first = self.next == 0;
        if !is_first && now < self.part_ns.saturating_add(nanoseconds(PART_EVERY)) {
            return 0..0;
        }
        if is_first {
            self.began_ns = now;
        }
        self.part_ns = now;
        let end = (self.next + PART).min(agents);
        std::mem::replace(&mut self.next, end)..end
    }
}

/// Which rows were shown, and when.
pub(super) struct Shown {
    numbers: Vec<u64>,
    at_ns: u64,
}

impl Shown {
    pub(super) fn new(agents: &[Agent], now: u64) -> Shown {
        Shown { numbers: vec![0; agents.len()], at_ns: now }
    }

    /// Whether each agent has a row that was not shown, or has waited long enough for others.
    pub(super) fn is_due(&mut self, agents: &[Agent], now: u64) -> bool {
        // Before the first row of an agent nothing is known of the whole.
        let is_known = agents.iter().all(|agent| agent.row.is_some() || agent.is_settled());
        let mut each = agents.iter().zip(&self.numbers);
        let all_new = each.all(|(agent, shown)| agent.number > *shown || agent.is_settled());
        let has_waited = now > self.at_ns + nanoseconds(ROW_WAIT);
        let is_due = is_known && self.is_new(agents) && (all_new || has_waited);
        if is_due {
            self.note(agents, now);
        }
        is_due
    }

    fn note(&mut self, agents: &[Agent], now: u64) {
        self.numbers = agents.iter().map(|agent| agent.number).collect();
        self.at_ns = now;
    }

    fn is_new(&self, agents: &[Agent]) -> bool {
        agents.iter().zip(&self.numbers).any(|(agent, shown)| agent.number > *shown)
    }
}

#[cfg(test)]
mod tests;
