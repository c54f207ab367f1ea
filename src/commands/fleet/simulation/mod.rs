//! Simulation of a [`Coordinator`] with up to 10,000 agents, over a network that loses, repeats, delays and
//! reorders messages, with agents that have other clocks and may end at any time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use load::requests::Generators;
use load::scenario::Captured;
use load::{Counts, Progress, Recorder, Row, Series, SharedRow, SharedRows};
use rustix::time::{ClockId, clock_gettime};

use super::coordinator::{Coordinator, Outbox};
use super::fixtures::{Captures, Fixtures};
use super::leader::{Parts, Request};
use super::member::Agent;
use super::message::{FromAgent, Says, ToAgent, decode, encode, version};
use super::{FleetFlags, LEASE, REPEAT, sha256};
use crate::output;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The leader's clock at the start of a simulation; those of agents are up to ten seconds behind.
const START: u64 = 100 * SECOND;
/// Requests of an agent in a second.
const RATE: u64 = 10;
/// Different rows and results: encoding one for each agent would take longer than the leader.
const KINDS: usize = 16;
const OUTCOME: &str = include_str!("outcome.json");

#[derive(Copy, Clone)]
enum To {
    Leader,
    Agent(usize),
    /// An agent looks at its clock.
    Tick(usize),
}

struct Parcel {
    at: u64,
    number: u64,
    to: To,
    bytes: Rc<Vec<u8>>,
}

impl PartialEq for Parcel {
    fn eq(&self, other: &Parcel) -> bool {
        self.number == other.number
    }
}

impl Eq for Parcel {}

impl PartialOrd for Parcel {
    fn partial_cmp(&self, other: &Parcel) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Parcel {
    fn cmp(&self, other: &Parcel) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A network. One message of each hundred is lost, and one comes twice.
struct Network {
    now: u64,
    random: u64,
    /// The longest way of a message.
    most: u64,
    number: u64,
    parcels: BinaryHeap<Reverse<Parcel>>,
    notes: Vec<String>,
    /// Messages of the leader since the clock went on, and the most there were.
    burst: usize,
    burst_max: usize,
    /// The last message to all agents.
    to_all: Option<Vec<u8>>,
}

impl Network {
    fn below(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % most.max(1)
    }

    fn post(&mut self, to: To, bytes: Rc<Vec<u8>>) {
        let copies = match self.below(100) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let at = self.now + 20_000 + self.below(self.most);
            self.put(at, to, Rc::clone(&bytes));
        }
    }

    fn put(&mut self, at: u64, to: To, bytes: Rc<Vec<u8>>) {
        self.number += 1;
        self.parcels.push(Reverse(Parcel { at, number: self.number, to, bytes }));
    }

    fn next(&mut self, until: u64) -> Option<Parcel> {
        let is_due = self.parcels.peek().is_some_and(|Reverse(parcel)| parcel.at <= until);
        let Reverse(parcel) = is_due.then(|| self.parcels.pop()).flatten()?;
        self.now = self.now.max(parcel.at);
        Some(parcel)
    }
}

impl Outbox for Network {
    fn send(&mut self, subject: &str, message: Vec<u8>) {
        self.burst += 1;
        let last = subject.rsplit('.').next().unwrap();
        match last.parse() {
            Ok(agent) => self.post(To::Agent(agent), Rc::new(message)),
            Err(_) => self.to_all = Some(message),
        }
    }

    fn note(&mut self, text: String) {
        self.notes.push(text);
    }
}

#[derive(Clone)]
enum State {
    Free,
    Prepared,
    Ready,
    /// Begins at this time of the leader's clock.
    Waiting(u64),
    Done(usize),
    TornDown,
    Dead,
}

/// An agent with its clock.
struct Member {
    state: State,
    shift: i128,
    ppm: i128,
    heard: u64,
    begun: Option<u64>,
    rows: u64,
    /// By the setup.
    captured: Option<Captures>,
    setups: u64,
}

impl Member {
    fn clock(&self, now: u64) -> u64 {
        let now = i128::from(now);
        u64::try_from(now + self.shift + now * self.ppm / 1_000_000).unwrap()
    }

    /// The time at which the clock shows this.
    fn when(&self, shown: u64) -> u64 {
        let shown = i128::from(shown) - self.shift;
        u64::try_from(shown * 1_000_000 / (1_000_000 + self.ppm)).unwrap()
    }
}

struct Simulation {
    network: Network,
    members: Vec<Member>,
    coordinator: Coordinator,
    /// Rows of each second and kind, and results by requests, as JSON.
    rows: Rc<Vec<Vec<String>>>,
    results: Vec<Rc<Vec<u8>>>,
    /// Seconds of the run.
    seconds: u64,
    /// The processor time that the leader has taken.
    taken: Duration,
    shown: Vec<(u64, u64)>,
}

impl Simulation {
    fn new(
        seed: u64,
        agents: usize,
        rows: Rc<Vec<Vec<String>>>,
        most: u64,
        fixtures: Fixtures,
    ) -> Simulation {
        let seconds = rows.len() as u64;
        let here = |at: usize| {
            Agent::example(&at.to_string(), &format!("agent-{at:05}"), &version(), START)
        };
        let flags =
            FleetFlags { nats: Vec::new(), nats_creds: None, nats_ca: None, fleet: "f".to_owned() };
        let request = Request {
            who: "all",
            flags: &flags,
            words: vec!["http://127.0.0.1:8080/".to_owned()],
            within: Duration::ZERO,
            files_max: 0,
            parts: Parts::connections(agents as u64),
            seed,
            fixtures,
        };
        let ids = ["leader".to_owned(), "run".to_owned()];
        let all = (0..agents).map(here).collect();
        let coordinator = Coordinator::new(ids, 1 << 20, &request, Vec::new(), all, START).unwrap();
        let member = |at: usize| Member {
            state: State::Free,
            shift: (at as i128 % 21 - 10) * i128::from(SECOND),
            ppm: at as i128 % 3 * 100 - 100,
            heard: START,
            begun: None,
            rows: 0,
            captured: None,
            setups: 0,
        };
        let network = Network {
            now: START,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            most,
            number: 0,
            parcels: BinaryHeap::new(),
            notes: Vec::new(),
            burst: 0,
            burst_max: 0,
            to_all: None,
        };
        Simulation {
            network,
            members: (0..agents).map(member).collect(),
            coordinator,
            rows,
            results: (0..=seconds).map(|second| Rc::new(outcome(second * RATE))).collect(),
            seconds,
            taken: Duration::ZERO,
            shown: Vec::new(),
        }
    }

    /// Lets the time pass, with what the leader does from time to time, until it says that it is done.
    fn until(&mut self, what: &str, step: u64, mut work: impl FnMut(&mut Simulation, u64) -> bool) {
        let mut now = self.network.now;
        for _ in 0..100_000 {
            let began = cpu_time();
            let is_done = work(self, now);
            self.taken += cpu_time() - began;
            self.pass_to_all();
            self.network.burst_max = self.network.burst_max.max(self.network.burst);
            self.network.burst = 0;
            if is_done {
                return;
            }
            now += step;
            while let Some(Parcel { at, to, bytes, .. }) = self.network.next(now) {
                match to {
                    To::Leader => {
                        let began = cpu_time();
                        self.coordinator.take(at, &bytes, &mut self.network);
                        self.taken += cpu_time() - began;
                    }
                    To::Agent(number) => self.receive(number, &bytes),
                    To::Tick(number) => self.tick(number),
                }
            }
            self.network.now = now;
        }
        panic!("{what} takes longer than all agents may");
    }

    /// Passes a beat on to all agents, but one of each hundred.
    fn pass_to_all(&mut self) {
        let Some(bytes) = self.network.to_all.take() else { return };
        let Some((ToAgent::Beat { stop, .. }, _)) = decode::<ToAgent>(&bytes) else { return };
        for number in 0..self.members.len() {
            if self.network.below(100) == 0 {
                continue;
            }
            let now = self.network.now;
            let member = &mut self.members[number];
            member.heard = now;
            if stop && matches!(member.state, State::Waiting(_)) {
                self.finish(number);
            }
        }
    }

    fn say(&mut self, number: usize, says: Says, body: &[u8]) {
        let message = FromAgent { agent: number.to_string(), run: "run".to_owned(), says };
        self.network.post(To::Leader, Rc::new(encode(&message, body)));
    }

    fn receive(&mut self, number: usize, bytes: &[u8]) {
        let now = self.network.now;
        let Some((message, _)) = decode::<ToAgent>(bytes) else { panic!("no message") };
        let member = &mut self.members[number];
        match (message, member.state.clone()) {
            (_, State::Dead) => {}
            (ToAgent::Ping { sent_ns, .. }, _) => {
                let at_ns = member.clock(now);
                self.say(number, Says::Pong { sent_ns, at_ns }, &[]);
            }
            (ToAgent::Plan(_), State::Free) => {
                let has_setup = self.coordinator.fixtures.setup.is_some();
                let state = if has_setup { State::Prepared } else { State::Ready };
                (member.state, member.heard) = (state, now);
                self.network.put(now, To::Tick(number), Rc::default());
            }
            (ToAgent::SetUp { captured, .. }, State::Prepared) => {
                assert_eq!(captured.is_none(), number == 0, "only the first makes the setup");
                member.setups += u64::from(captured.is_none());
                let own: Captured = Arc::new([Some(b"token".as_slice().into())]);
                member.captured = Some(captured.unwrap_or_else(|| Captures::of(&own)));
                member.state = State::Ready;
                self.network.put(now, To::Tick(number), Rc::default());
            }
            (ToAgent::TearDown { .. }, State::Done(_) | State::Ready | State::Waiting(_)) => {
                member.state = State::TornDown;
                self.network.put(now, To::Tick(number), Rc::default());
            }
            (ToAgent::Begin { at_ns, .. }, State::Ready) => {
                let begin = member.when(at_ns);
                assert!(begin > now, "it comes in time");
                (member.state, member.begun) = (State::Waiting(begin), Some(begin));
                self.say(number, Says::Waiting, &[]);
                self.network.put(begin + SECOND, To::Tick(number), Rc::default());
            }
            (ToAgent::Fetch { offset, .. }, State::Done(result)) => {
                let result = Rc::clone(&self.results[result]);
                self.say(number, Says::Piece { offset }, &result[offset..]);
            }
            (ToAgent::Release { .. }, _) => member.state = State::Dead,
            _ => {}
        }
    }

    /// Says what has to be repeated, and a row each second.
    fn tick(&mut self, number: usize) {
        let (now, repeat) = (self.network.now, REPEAT.as_nanos() as u64);
        let member = &mut self.members[number];
        if now > member.heard + LEASE.as_nanos() as u64 {
            member.state = State::Dead;
        }
        match member.state.clone() {
            State::Free | State::Dead => return,
            State::Prepared => self.say(number, Says::Prepared, &[]),
            State::Ready => {
                let captured = (number == 0).then(|| member.captured.clone()).flatten();
                self.say(number, Says::Ready { captured }, &[]);
            }
            State::TornDown => self.say(number, Says::TornDown { failed: None }, &[]),
            State::Waiting(begin) if now >= begin + (member.rows + 1) * SECOND => {
                member.rows += 1;
                let second = member.rows;
                let row = &self.rows[second as usize - 1][number % KINDS];
                let text = format!(
                    "{{\"agent\":\"{number}\",\"run\":\"run\",\"says\":{{\"row\":{{\"number\":{second},\"late_us\":1,\"row\":{row}}}}}}}\n"
                );
                self.network.post(To::Leader, Rc::new(text.into_bytes()));
                if second == self.seconds {
                    self.finish(number);
                    return;
                }
                self.network.put(begin + (second + 1) * SECOND, To::Tick(number), Rc::default());
                return;
            }
            State::Waiting(_) => self.say(number, Says::Waiting, &[]),
            State::Done(result) => {
                let result = Rc::clone(&self.results[result]);
                let (bytes, sha256) = (result.len(), sha256(&result));
                let done = Says::Done { bytes, sha256, late_us: Some(1), discarded: Some(0) };
                self.say(number, done, &[]);
            }
        }
        self.network.put(now + repeat, To::Tick(number), Rc::default());
    }

    fn finish(&mut self, number: usize) {
        let member = &mut self.members[number];
        member.state = State::Done(member.rows as usize);
        let now = self.network.now;
        self.network.put(now, To::Tick(number), Rc::default());
    }

    fn prepare(&mut self) {
        self.until("getting ready", 5 * MS, |this, now| {
            let ready = this.coordinator.prepare(now, &mut this.network);
            ready.is_some_and(|ready| {
                ready.unwrap();
                true
            })
        });
    }

    fn begin(&mut self) {
        self.until("the start", 5 * MS, |this, now| this.coordinator.begin(now, &mut this.network));
    }

    /// Follows the run; at each step something may happen to an agent.
    fn follow(&mut self, mut fault: impl FnMut(&mut Simulation, u64)) {
        let mut sum = SharedRows::default();
        self.until("the run", 50 * MS, |this, now| {
            fault(this, now);
            let shown = &mut this.shown;
            this.coordinator.follow(now, 0, &mut this.network, &mut |agents| {
                let row = sum.add(agents.iter().filter_map(|agent| agent.row.as_ref()));
                let timed = row.progress.timed.latency(Series::Latency).map_or(0, |of| of.count);
                shown.push((row.sent, timed));
            })
        });
    }

    /// The most by which the start of an agent differs from that of another.
    fn skew(&self) -> u64 {
        let begun = self.members.iter().filter_map(|member| member.begun);
        let (least, most) =
            begun.fold((u64::MAX, 0), |(least, most), at| (least.min(at), most.max(at)));
        most - least
    }

    fn sent(&self) -> u64 {
        let outcomes = self.coordinator.agents.iter().filter_map(|agent| agent.outcome.as_ref());
        outcomes.map(|outcome| outcome.requests.as_ref().unwrap().sent).sum()
    }
}

/// Rows of a run of so many seconds.
fn rows(seconds: u64) -> Rc<Vec<Vec<String>>> {
    let of_second = |second| (0..KINDS).map(|kind| row(second, kind)).collect();
    Rc::new((1..=seconds).map(of_second).collect())
}

/// A row of an agent as JSON.
fn row(second: u64, kind: usize) -> String {
    let mut recorder = Recorder::default();
    for n in 0..second * RATE {
        for series in [Series::Latency, Series::ServiceTime, Series::FirstByte, Series::SendLag] {
            recorder.record(series, (n * 37 + kind as u64 * 11) % 900 * MS / 10);
        }
    }
    let sent = second * RATE;
    let row = Row {
        elapsed: Duration::from_secs(second),
        phase: "requests",
        sent,
        received: sent,
        progress: Progress {
            counts: Counts::Requests(Box::default()),
            timed: Arc::new(recorder),
            ..Progress::default()
        },
        ..Row::default()
    };
    serde_json::to_string(&SharedRow::of(&row, None)).unwrap()
}

/// A result with so many requests.
fn outcome(sent: u64) -> Vec<u8> {
    let mut outcome: serde_json::Value = serde_json::from_str(OUTCOME).unwrap();
    outcome["version"] = load::OUTCOME_VERSION.into();
    outcome["requests"]["sent"] = sent.into();
    serde_json::to_vec(&outcome).unwrap()
}

/// Processor time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Memory of this process in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

#[test]
fn thousands_of_agents_start_together_and_their_counts_are_added() {
    // A debug build takes ten times as long.
    let agents = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let agents =
        std::env::var("STANDFAST_FLEET_AGENTS").map_or(agents, |text| text.parse().unwrap());
    let (seconds, before) = (3, memory());
    let mut simulation = Simulation::new(1, agents, rows(seconds), MS, Fixtures::default());
    simulation.prepare();
    let (ready, took) = (simulation.network.now, simulation.taken);
    let after = (ready - START) / MS;
    output::note(&format!("{agents} agents ready after {after} ms; the leader took {took:?}"));
    simulation.begin();
    assert!(simulation.skew() <= 5 * MS, "{} ns", simulation.skew());
    let began = simulation.taken;
    simulation.follow(|_, _| {});
    let took = simulation.taken - began;
    let grown = memory().saturating_sub(before) / 1_024 / agents as u64;
    let (skew, burst) = (simulation.skew() / 1_000, simulation.network.burst_max);
    output::note(&format!(
        "skew {skew} µs; {seconds} s of rows and the results took {took:?}; {grown} KiB for each agent; at most \
         {burst} messages at once"
    ));
    assert!(simulation.coordinator.agents.iter().all(|agent| agent.lost.is_none()));
    let expected = agents as u64 * seconds * RATE;
    assert_eq!(simulation.sent(), expected);
    // Rows that were lost are those before: what is shown is never too much, and consistent.
    let (sent, timed) = *simulation.shown.last().unwrap();
    assert!(sent == timed && sent <= expected && sent > expected * 98 / 100, "{sent}, {timed}");
    assert!(simulation.shown.is_sorted());
    // The queue to NATS takes 4,096.
    assert!(simulation.network.burst_max < 4_096, "{}", simulation.network.burst_max);
}

#[test]
fn an_agent_that_is_lost_stops_all_others_and_is_the_only_one_that_is_missing() {
    let rows = rows(20);
    for seed in 0..10 {
        let agents = 3 + seed as usize * 3;
        let mut simulation =
            Simulation::new(seed, agents, Rc::clone(&rows), 5 * MS, Fixtures::default());
        simulation.prepare();
        simulation.begin();
        let (dies, at) =
            (simulation.network.below(agents as u64) as usize, simulation.network.below(7));
        let at = simulation.network.now + at * SECOND;
        simulation.follow(|this, now| {
            if now > at {
                this.members[dies].state = State::Dead;
            }
        });
        assert_eq!(simulation.network.notes.len(), 1, "{:?}", simulation.network.notes);
        for (number, agent) in simulation.coordinator.agents.iter().enumerate() {
            assert_eq!(agent.lost.is_some(), number == dies, "{seed}: {:?}", agent.lost);
            let sent = agent.outcome.as_ref().map(|one| one.requests.as_ref().unwrap().sent);
            assert_eq!(sent, (number != dies).then_some(simulation.members[number].rows * RATE));
        }
        let last = simulation.network.now;
        assert!(last < at + 12 * SECOND, "the lease, and the others stop");
    }
}

#[test]
fn one_agent_makes_the_setup_before_all_and_one_the_teardown_after_all() {
    let (rows, limit) = (rows(2), Some(Duration::from_secs(60)));
    for seed in 0..20 {
        let fixtures = Fixtures { setup: limit, teardown: limit };
        let agents = 1 + seed as usize * 2;
        let mut simulation = Simulation::new(seed, agents, Rc::clone(&rows), 50 * MS, fixtures);
        simulation.prepare();
        for (number, member) in simulation.members.iter().enumerate() {
            assert_eq!(member.setups, u64::from(number == 0), "{seed}");
            assert_eq!(member.captured, simulation.members[0].captured);
        }
        assert!(simulation.members[0].captured.is_some());
        simulation.begin();
        // The first is lost after its result in some runs: then the next makes it, if there is one.
        let dies = seed % 4 == 3;
        simulation.follow(|this, _| {
            if dies && this.coordinator.agents.iter().all(|one| one.outcome.is_some()) {
                this.members[0].state = State::Dead;
            }
        });
        assert_eq!(simulation.sent(), agents as u64 * 2 * RATE);
        let teardown = simulation.coordinator.teardown.clone().expect("it has ended");
        let by = if dies { "agent-00001" } else { "agent-00000" };
        assert_eq!(teardown.made_by(), Some(by), "{seed}: {teardown:?}");
        let torn = |member: &Member| matches!(member.state, State::TornDown);
        assert_eq!(simulation.members.iter().filter(|one| torn(one)).count(), 1);
    }
}

#[test]
fn the_teardown_is_made_after_a_setup_whose_run_does_not_begin() {
    let (rows, limit) = (rows(1), Some(Duration::from_secs(60)));
    for seed in 0..20 {
        let fixtures = Fixtures { setup: limit, teardown: limit };
        let agents = 1 + seed as usize * 2;
        let mut simulation = Simulation::new(seed, agents, Rc::clone(&rows), 50 * MS, fixtures);
        simulation.prepare();
        // The first is lost in some runs: then the next makes it.
        let dies = seed % 4 == 3;
        if dies {
            simulation.members[0].state = State::Dead;
        }
        simulation.until("the teardown", 50 * MS, |this, now| {
            this.coordinator.tear_down(now, 1, &mut this.network)
        });
        let by = if dies { "agent-00001" } else { "agent-00000" };
        let left = format!("[setup] was made on agent agent-00000, [teardown] on agent {by}");
        assert_eq!(simulation.coordinator.left_behind(), Some(left), "{seed}");
        assert!(simulation.members.iter().all(|member| member.begun.is_none()));
    }
}

#[test]
fn a_share_is_of_one_agent() {
    let of = 10_000;
    let parts = (0..of).map(|nth| Generators { nth, of }.part_of(1_000_003));
    assert_eq!(parts.sum::<u64>(), 1_000_003);
}
