//! [`HistorySim`]: workers, readers and the control plane of one run, stepped in an order that the seed
//! decides: a storm, a calm in which every reader must get everything, and a drain.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use engine::sys::sim::{Fault, Kernel};
use engine::{Limits, Remote, Target};
use fastrand::Rng;
use topics::{Directory, Epoch, History, Past, Unavailable};

use super::client::Client;
use super::ledger::{Book, Coverage, Ledger};
use super::scenario::{Scenario, address};
use super::server::{Post, Server};
use crate::ledger::Judge;
use crate::{Crew, Member, SeedTotals, Simulation};

const SECOND_NS: u64 = 1_000_000_000;
/// A storm that takes longer than this has got stuck.
const STORM_NS_MAX: u64 = 600 * SECOND_NS;

pub(crate) struct HistorySim {
    kernel: Kernel,
    ledger: Ledger,
    scenario: Scenario,
    random: Rng,
    remote: Remote<Post>,
    client_remotes: Vec<Remote<()>>,
    servers: Vec<Member<Server>>,
    clients: Vec<Member<Client>>,
    directory: Directory,
    history: Arc<History>,
    /// When the control plane publishes next.
    due_ns: u64,
    acts: u64,
}

impl HistorySim {
    fn with(mut random: Rng, scenario: Scenario, kernel: Kernel) -> std::io::Result<HistorySim> {
        let epoch = Epoch::new(random.u32(..0xdead_0000));
        let ledger = Ledger::of(Book::new(&scenario, epoch));
        let listeners = [kernel.listen(address(), 64, 0)];
        let crew = Crew {
            workers: scenario.servers,
            // Few, so that readers return to other workers, too.
            capacity: 300,
            table: 300,
            mailbox_bytes: scenario.limits.mailbox_bytes,
            limits: scenario.limits.clone(),
        };
        let history = Arc::new(history(&scenario, epoch, kernel.now_ns()));
        let directory = Directory::with_history(Some(Arc::clone(&history)));
        let (remote, servers) = crew.start(&kernel, &listeners, |index| {
            let (ledger, history) = (ledger.clone(), Arc::clone(&history));
            Server::new(ledger, index, directory.clone(), history, &scenario)
        })?;
        let (clients, client_remotes) = (Vec::new(), Vec::new());
        let mut sim = HistorySim {
            kernel,
            ledger,
            scenario,
            random,
            remote,
            client_remotes,
            servers,
            clients,
            directory,
            history,
            due_ns: 0,
            acts: 0,
        };
        sim.add_clients()?;
        for &(fault, rate) in &sim.scenario.rates {
            sim.kernel.set_rate(fault, rate);
        }
        Ok(sim)
    }

    fn add_clients(&mut self) -> std::io::Result<()> {
        let limits = Limits { idle_timeout: None, ..self.scenario.limits.clone() };
        for _ in 0..self.scenario.clients {
            let crew = Crew {
                workers: 1,
                capacity: u32::MAX,
                table: self.scenario.readers + 7,
                mailbox_bytes: limits.mailbox_bytes,
                limits: limits.clone(),
            };
            let (remote, mut members) = crew
                .start(&self.kernel, &[], |_| Client::new(self.ledger.clone(), &self.scenario))?;
            for member in &mut members {
                let (_, core) = member.worker.parts();
                for target in 0..self.scenario.topics * 2 {
                    let path = format!("/{}/{}", target / 2, target % 2);
                    core.add_target(Target::websocket(address(), "sim", &path, &[], false, &[]))?;
                }
            }
            self.client_remotes.push(remote);
            self.clients.append(&mut members);
        }
        Ok(())
    }

    /// Publishes some, or lets the history forget what is too old, and checks its figures.
    fn control(&mut self) {
        let now_ns = self.kernel.now_ns();
        self.due_ns = now_ns + self.random.u64(..3_000_000);
        if self.ledger.book().calm {
            self.due_ns = now_ns + SECOND_NS / 10;
        } else {
            for _ in 0..self.random.u8(..=self.scenario.burst) {
                let topic = self.random.u32(..self.scenario.topics);
                let filler = self.random.usize(..self.scenario.filler_max);
                let publication = Arc::new(self.ledger.book().write(topic, filler, now_ns));
                let kept_at = self.ledger.book().kept_at(topic, &publication);
                let published = match kept_at {
                    Some(at) => self.directory.publish_kept(&self.remote, &publication, at),
                    None => self.directory.publish(&self.remote, &publication),
                };
                if published.is_ok() {
                    self.ledger.book().published(topic, &publication);
                }
            }
        }
        if self.random.u8(..16) == 0 {
            self.history.expire(now_ns);
        }
        let (stats, limits) = (self.history.stats(), self.scenario.history);
        let evicted: u64 = stats.evicted.iter().sum();
        let mut book = self.ledger.book();
        book.require(stats.kept_total == stats.messages as u64 + evicted, || format!("{stats:?}"));
        book.require(stats.bytes <= limits.bytes, || format!("{stats:?} beyond {limits:?}"));
        let most = limits.messages.saturating_mul(self.scenario.topics as usize);
        book.require(stats.messages <= most, || format!("{stats:?} beyond {limits:?}"));
    }
}

/// An empty history; of a broker with topics that were never published to.
fn history(scenario: &Scenario, epoch: Epoch, now_ns: u64) -> History {
    if scenario.broker.is_none() {
        return History::new(epoch, scenario.history, now_ns);
    }
    let history = History::replica(scenario.history, now_ns);
    for topic in 0..scenario.topics {
        let past = Past { epoch, floor: 0, floor_ns: 0, last: 0, publications: Vec::new() };
        history.load(&topic.to_string(), past, now_ns);
    }
    history
}

/// Everybody is at work.
fn storm(sim: &mut HistorySim) {
    let wanted = sim.scenario.events;
    if sim.steps(STORM_NS_MAX, |sim| sim.events() >= wanted) {
        sim.ledger.book().fail("the simulation makes no progress");
    }
}

/// Faults and publications stop; every reader that is there gets what it lacks.
fn calm(sim: &mut HistorySim) {
    sim.kernel.calm();
    sim.ledger.book().calm = true;
    for remote in &sim.client_remotes {
        // So that those who do not read go on.
        let _ = remote.post(0, (), 0);
    }
    sim.due_ns = sim.kernel.now_ns();
    sim.steps(5 * SECOND_NS, |_| false);
    for client in &sim.clients {
        client.worker.handler().check_calm();
    }
    for server in &sim.servers {
        let replaying = server.worker.handler().replaying();
        sim.ledger.book().require(replaying == 0, || format!("{replaying} replays do not end"));
    }
}

/// The server stops, then the clients; nothing is left.
fn drain(sim: &mut HistorySim) {
    let over = Duration::from_millis(100);
    let bound = (over + sim.scenario.limits.close_timeout).as_nanos() as u64 + SECOND_NS;
    sim.kernel.set_rate(Fault::ClockJump, 0);
    sim.remote.drain(over);
    if sim.steps(bound, |sim| sim.servers.iter().all(|member| member.stopped)) {
        sim.ledger.book().fail("the server does not end");
    }
    for remote in &sim.client_remotes {
        remote.drain(over);
    }
    if sim.steps(bound, |sim| sim.clients.iter().all(|member| member.stopped)) {
        sim.ledger.book().fail("a client does not end");
    }
    for server in &sim.servers {
        let left = server.worker.handler().subscriptions();
        sim.ledger.book().require(left == 0, || format!("{left} subscriptions left over"));
    }
}

impl Simulation for HistorySim {
    type Coverage = Coverage;

    fn build(seed: u64) -> Result<HistorySim, String> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::draw(&mut random);
        let kernel = Kernel::new(random.u64(..), scenario.buffers);
        HistorySim::with(random, scenario, kernel).map_err(|error| error.to_string())
    }

    fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    fn random(&mut self) -> &mut Rng {
        &mut self.random
    }

    fn failure(&self) -> Option<String> {
        self.ledger.book().failure.clone()
    }

    fn phases(&self) -> &'static [fn(&mut HistorySim)] {
        &[storm, calm, drain]
    }

    fn actors(&self) -> usize {
        self.servers.len() + self.clients.len() + 1
    }

    fn act(&mut self, at: usize) -> bool {
        let servers = self.servers.len();
        if let Some(member) = self.servers.get_mut(at) {
            return self.ledger.turn(member, &self.kernel);
        }
        if let Some(member) = self.clients.get_mut(at - servers) {
            return self.ledger.turn(member, &self.kernel);
        }
        let due = self.due_ns <= self.kernel.now_ns();
        if due {
            self.control();
            self.acts += 1;
        }
        due
    }

    fn acts(&self) -> u64 {
        self.acts
    }

    fn next_ns(&self) -> Option<u64> {
        let servers = self.servers.iter().filter_map(Member::deadline);
        let clients = self.clients.iter().filter_map(Member::deadline);
        servers.chain(clients).chain([self.due_ns]).min()
    }

    fn add_coverage(&self, coverage: &mut Coverage) {
        let book = self.ledger.book();
        let own = &book.coverage;
        coverage.replays += own.replays;
        coverage.portions += own.portions;
        coverage.at_the_edge += own.at_the_edge;
        coverage.overtaken += own.overtaken;
        coverage.messages += own.messages;
        for (total, count) in coverage.gaps.iter_mut().zip(own.gaps) {
            *total += count;
        }
    }

    fn summary(coverage: &Coverage) -> String {
        let Coverage { replays, portions, at_the_edge, gaps, overtaken, messages } = coverage;
        let mut text = format!(
            ", {messages} messages read, {replays} replays ({portions} further portions, \
             {at_the_edge} from the first kept message, {overtaken} overtaken by evictions)"
        );
        for (why, count) in Unavailable::ALL.into_iter().zip(gaps) {
            let _ = write!(text, ", {count} gaps ({})", why.name());
        }
        text
    }

    fn missing(totals: &SeedTotals<Coverage>) -> Option<String> {
        let Coverage { replays, portions, at_the_edge, gaps, overtaken, messages } =
            &totals.coverage;
        let all = [replays, portions, at_the_edge, overtaken, messages];
        let seen = all.into_iter().chain(gaps).all(|count| *count > 0);
        (!seen).then(|| "something was never seen".to_owned())
    }
}
