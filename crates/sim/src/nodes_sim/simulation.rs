//! [`NodesSim`]: nodes, clients, servers and the control plane of one run, stepped in an order that the seed decides:
//! a storm, a calm after which nothing may be missing or left over, and a drain.

use std::time::Duration;

use engine::sys::sim::Kernel;
use engine::{Remote, Target};
use fastrand::Rng;
use topics::{Directory, Topics};

use super::client::Client;
use super::driver::{Driver, Wiring};
use super::ledger::{Book, Coverage, Ledger};
use super::node::{self, Node, Post};
use super::pubsub::Pubsub;
use super::scenario::{Scenario, address};
use super::server::{Counts, Server};
use crate::ledger::Judge;
use crate::{Crew, Member, SeedTotals, Simulation};

const SECOND_NS: u64 = 1_000_000_000;
/// The longest that a silent connection, its last deliveries, a restart, a pause, a beacon and a lingering topic take
/// together.
const CALM_NS: u64 = 20 * SECOND_NS;

/// What happens to nodes, servers and connections.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mishap {
    /// A node is killed.
    Killed,
    /// A server restarts.
    Restarted,
    /// A connection ends.
    Cut,
    /// A connection loses what is sent, and stays.
    Swallowed,
    /// What a node is sent takes long.
    Slowed,
    /// The same, until it is closed for that.
    TooSlow,
}

impl Mishap {
    const ALL: [Mishap; 6] = [
        Mishap::Killed,
        Mishap::Restarted,
        Mishap::Cut,
        Mishap::Swallowed,
        Mishap::Slowed,
        Mishap::TooSlow,
    ];
}

/// One node.
struct Running {
    remote: Remote<Post>,
    wiring: Wiring,
    drivers: Vec<Driver>,
}

pub(crate) struct NodesSim {
    kernel: Kernel,
    ledger: Ledger,
    scenario: Scenario,
    random: Rng,
    nodes: Vec<Running>,
    /// All workers, with the node of each.
    workers: Vec<(usize, Member<Node>)>,
    client_remote: Remote<()>,
    client: Vec<Member<Client>>,
    servers: Vec<Server>,
    publish_at_ns: u64,
    fault_at_ns: u64,
    acts: u64,
}

impl NodesSim {
    pub(crate) fn with(
        mut random: Rng,
        scenario: Scenario,
        kernel: Kernel,
    ) -> std::io::Result<NodesSim> {
        let forgetful = scenario.sent_max < 1_000;
        let ledger = Ledger::of(Book::new(scenario.nodes, scenario.topics, forgetful));
        let (mut nodes, mut workers) = (Vec::new(), Vec::new());
        for number in 0..scenario.nodes {
            // Some join later.
            let starts_ns = if random.u8(..6) == 0 { random.u64(..SECOND_NS) } else { 0 };
            let (node, members) = start(&kernel, &ledger, &scenario, number, starts_ns)?;
            nodes.push(node);
            workers.extend(members.into_iter().map(|member| (number, member)));
        }
        let crew = Crew {
            workers: 1,
            capacity: u32::MAX,
            table: scenario.sockets * scenario.nodes + 7,
            mailbox_bytes: scenario.limits.mailbox_bytes,
            limits: scenario.limits.clone(),
        };
        let (client_remote, mut client) =
            crew.start(&kernel, &[], |_| Client::new(ledger.clone(), &scenario))?;
        for member in &mut client {
            let (_, core) = member.worker.parts();
            for number in 0..scenario.nodes {
                core.add_target(Target::websocket(address(number), "sim", "/", &[], false, &[]))?;
            }
        }
        let output_bytes = scenario.output_bytes;
        let servers = (0..scenario.shards).map(|_| Server::new(ledger.clone(), output_bytes));
        let servers = servers.collect();
        for &(fault, rate) in &scenario.rates {
            kernel.set_rate(fault, rate);
        }
        let fault_at_ns = scenario.fault_ns;
        Ok(NodesSim {
            kernel,
            ledger,
            scenario,
            random,
            nodes,
            workers,
            client_remote,
            client,
            servers,
            publish_at_ns: 0,
            fault_at_ns,
            acts: 0,
        })
    }

    /// What is due of the connections and servers; whether there was anything.
    fn exchange(&mut self) -> bool {
        let now_ns = self.kernel.now_ns();
        let mut acted = false;
        for server in &mut self.servers {
            acted |= server.step(now_ns);
        }
        for node in &mut self.nodes {
            node.wiring.pubsub.set_now(now_ns);
            for (driver, server) in node.drivers.iter_mut().zip(&mut self.servers) {
                let due = driver.next_ns(server).is_some_and(|at_ns| at_ns <= now_ns);
                if due || driver.is_rung() {
                    acted |= driver.step(now_ns, server, &mut self.random);
                }
            }
        }
        acted
    }

    /// When the next of them is due.
    fn exchange_ns(&self) -> Option<u64> {
        let servers = self.servers.iter().filter_map(Server::next_ns);
        let of = |node: &Running| {
            node.drivers
                .iter()
                .zip(&self.servers)
                .filter_map(|(one, server)| one.next_ns(server))
                .min()
        };
        servers.chain(self.nodes.iter().filter_map(of)).min()
    }

    /// A node publishes, or something goes wrong.
    fn control(&mut self) -> bool {
        let now_ns = self.kernel.now_ns();
        if self.ledger.book().calm {
            return false;
        }
        if self.publish_at_ns <= now_ns {
            let Scenario { publish_ns, topics, steady, .. } = self.scenario;
            let (mut number, mut topic) =
                (self.random.usize(..self.nodes.len()), self.random.u32(..topics));
            self.publish_at_ns += 1 + self.random.u64(..2 * publish_ns);
            if steady {
                let turn = now_ns / publish_ns;
                self.publish_at_ns = (turn + 1) * publish_ns;
                number = turn as usize % self.nodes.len();
                topic = (turn / self.nodes.len() as u64) as u32 % topics;
            }
            let filler = self.random.usize(..=self.scenario.filler_max);
            let pubsub = &self.nodes[number].wiring.pubsub;
            node::publish(&self.ledger, pubsub, number, now_ns, topic, filler);
            return true;
        }
        if self.fault_at_ns <= now_ns {
            self.fault_at_ns = now_ns + 1 + self.random.u64(..2 * self.scenario.fault_ns);
            self.go_wrong(now_ns);
            return true;
        }
        false
    }

    fn go_wrong(&mut self, now_ns: u64) {
        let what = Mishap::ALL[self.random.usize(..Mishap::ALL.len())];
        let number = self.random.usize(..self.nodes.len());
        let at = self.random.usize(..self.servers.len());
        let away_ns = self.random.u64(1_000..SECOND_NS);
        let living = self.ledger.book().dead.iter().filter(|dead| !**dead).count();
        let server = &mut self.servers[at];
        match what {
            Mishap::Killed if living > 1 && self.random.u8(..4) == 0 => {
                let node = &self.nodes[number];
                node.wiring.pubsub.kill();
                node.remote.drain(Duration::ZERO);
                self.ledger.book().dead[number] = true;
            }
            Mishap::Killed => return,
            Mishap::Restarted => server.restart(now_ns, away_ns),
            Mishap::Cut => server.end(now_ns, number),
            Mishap::Swallowed | Mishap::Slowed | Mishap::TooSlow => {
                let Some(link) = server.links.get_mut(&number) else { return };
                match what {
                    Mishap::Swallowed => link.swallows_ns = Some(now_ns),
                    Mishap::Slowed => link.slow_ns = away_ns / 10,
                    _ => link.slow_ns = 3 * SECOND_NS,
                }
            }
        }
        self.ledger.book().coverage.mishaps[what as usize] += 1;
    }

    /// What each server has done since this was last called, and its subscriptions.
    pub(crate) fn take_counts(&mut self) -> Vec<(Counts, usize)> {
        let of = |server: &mut Server| (std::mem::take(&mut server.counts), server.subscriptions());
        self.servers.iter_mut().map(of).collect()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn clients_subscribed(&self) -> usize {
        self.client.iter().map(|member| member.worker.handler().subscribed().0).sum()
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, for_ns: u64) {
        self.steps(for_ns, |_| false);
    }
}

/// Starts a node.
fn start(
    kernel: &Kernel,
    ledger: &Ledger,
    scenario: &Scenario,
    number: usize,
    starts_ns: u64,
) -> std::io::Result<(Running, Vec<Member<Node>>)> {
    let pubsub = Pubsub::new(scenario);
    let mut directory = Directory::new();
    let observed = pubsub.clone();
    directory.observe(move |topic, there| observed.observe(topic, there));
    let listeners = [kernel.listen(address(number), 1024, 0)];
    let sockets = scenario.sockets * scenario.nodes;
    let crew = Crew {
        workers: scenario.workers,
        capacity: sockets as u32,
        table: sockets,
        mailbox_bytes: scenario.limits.mailbox_bytes,
        limits: scenario.limits.clone(),
    };
    let (remote, members) = crew.start(kernel, &listeners, |index| {
        let topics = Topics::new(index, directory.clone());
        Node::new(ledger.clone(), number, topics, pubsub.clone(), scenario.filler_max)
    })?;
    let wiring = Wiring { pubsub, directory, remote: remote.clone() };
    let driver = |at| Driver::new(ledger, number, at, &wiring, scenario, starts_ns);
    let drivers = (0..wiring.pubsub.shards()).map(driver).collect();
    Ok((Running { remote, wiring, drivers }, members))
}

/// Everybody is at work.
fn storm(sim: &mut NodesSim) {
    let storm_ns = sim.scenario.storm_ns;
    sim.steps(storm_ns, |_| false);
}

/// Nothing goes wrong any more; everything that has not been lost arrives, and every gap is told.
fn calm(sim: &mut NodesSim) {
    sim.kernel.calm();
    sim.ledger.book().calm = true;
    for server in &mut sim.servers {
        server.links.values_mut().for_each(|link| link.slow_ns = 0);
    }
    sim.steps(CALM_NS, |_| false);
    for client in &sim.client {
        client.worker.handler().check();
    }
    for node in &sim.nodes {
        for (driver, server) in node.drivers.iter().zip(&sim.servers) {
            if !node.wiring.pubsub.is_dead() {
                driver.check(server);
            }
        }
    }
    for (number, member) in &sim.workers {
        let awaiting = member.worker.handler().awaiting();
        let mut book = sim.ledger.book();
        book.require(awaiting == 0, || format!("{awaiting} clients of node {number} still wait"));
    }
    sim.ledger.book().check_passed();
}

/// Nodes stop, then clients; nothing is left.
fn drain(sim: &mut NodesSim) {
    let over = Duration::from_millis(100);
    let bound = (over + sim.scenario.limits.close_timeout).as_nanos() as u64 + SECOND_NS;
    sim.nodes.iter().for_each(|node| node.remote.drain(over));
    if sim.steps(bound, |sim| sim.workers.iter().all(|(_, member)| member.stopped)) {
        sim.ledger.book().fail("a node does not end");
    }
    sim.client_remote.drain(over);
    if sim.steps(bound, |sim| sim.client.iter().all(|member| member.stopped)) {
        sim.ledger.book().fail("the clients do not end");
    }
    for (number, member) in &sim.workers {
        let left = member.worker.handler().subscriptions();
        let mut book = sim.ledger.book();
        book.require(left == 0, || format!("{left} subscriptions are left at node {number}"));
    }
}

impl Simulation for NodesSim {
    type Coverage = Coverage;

    fn build(seed: u64) -> Result<NodesSim, String> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::draw(&mut random);
        let kernel = Kernel::new(random.u64(..), scenario.buffers);
        NodesSim::with(random, scenario, kernel).map_err(|error| error.to_string())
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

    fn phases(&self) -> &'static [fn(&mut NodesSim)] {
        &[storm, calm, drain]
    }

    fn actors(&self) -> usize {
        self.workers.len() + self.client.len() + 2
    }

    fn act(&mut self, at: usize) -> bool {
        let workers = self.workers.len();
        if let Some((number, member)) = self.workers.get_mut(at) {
            self.nodes[*number].wiring.pubsub.set_now(self.kernel.now_ns());
            return self.ledger.turn(member, &self.kernel);
        }
        if let Some(member) = self.client.get_mut(at - workers) {
            return self.ledger.turn(member, &self.kernel);
        }
        let acted = if at == workers + 1 { self.exchange() } else { self.control() };
        self.acts += u64::from(acted);
        acted
    }

    fn acts(&self) -> u64 {
        self.acts
    }

    fn next_ns(&self) -> Option<u64> {
        let workers = self.workers.iter().filter_map(|(_, member)| member.deadline());
        let clients = self.client.iter().filter_map(Member::deadline);
        let calm = self.ledger.book().calm;
        let control = [self.publish_at_ns, self.fault_at_ns].into_iter().filter(|_| !calm);
        workers.chain(clients).chain(self.exchange_ns()).chain(control).min()
    }

    fn add_coverage(&self, coverage: &mut Coverage) {
        let book = self.ledger.book();
        let own = &book.coverage;
        coverage.messages += own.messages;
        coverage.refused += own.refused;
        coverage.lacked += own.lacked;
        coverage.repeated += own.repeated;
        coverage.awaited += own.awaited;
        coverage.nodes = coverage.nodes.max(self.nodes.len());
        let counts = coverage.gaps.iter_mut().chain(&mut coverage.mishaps);
        for (total, count) in counts.zip(own.gaps.iter().chain(&own.mishaps)) {
            *total += count;
        }
    }

    fn summary(coverage: &Coverage) -> String {
        let Coverage { messages, refused, gaps, lacked, repeated, awaited, mishaps, nodes } =
            coverage;
        let [missing, reconnected, overloaded] = gaps;
        let [killed, restarts, cut, swallowed, slow, too_slow] = mishaps;
        format!(
            ", up to {nodes} nodes, {messages} messages received, {refused} publications refused, \
             {repeated} repeated, {awaited} subscriptions waited, topics with gaps: {missing} missing, \
             {reconnected} reconnected, {overloaded} overloaded ({lacked} publications in them); \
             {killed} nodes killed, {restarts} restarts of servers, connections: {cut} cut, \
             {swallowed} silent, {slow} and {too_slow} slow"
        )
    }

    fn missing(totals: &SeedTotals<Coverage>) -> Option<String> {
        let own = &totals.coverage;
        let all = [own.messages, own.refused, own.lacked, own.repeated, own.awaited];
        let all = all.into_iter().chain(own.mishaps).chain(own.gaps);
        let seen = all.into_iter().all(|count| count > 0) && own.nodes == 100;
        (!seen).then(|| "something was never seen".to_owned())
    }
}
