//! [`ProxySim`]: the proxy's workers, clients and upstreams of one run, stepped in an order that the seed
//! decides, and what is checked of a worker beside what is true of any.

use engine::sys::sim::{Kernel, Sim};
use engine::{Handler, Remote};
use fastrand::Rng;
use proxy::{Relay, Relays};

use super::client::Client;
use super::ledger::Ledger;
use super::run;
use super::scenario::{Scenario, behind, front};
use super::upstream::Upstream;
use crate::{Crew, Member, SeedTotals};

/// One read, with what was kept of the one before, and a head: the most that waits for one reader.
const QUEUED_MAX: usize = 2 * engine::READ_BUFFER_BYTES + 32 * 1024;

/// What clients observed.
#[derive(Default)]
pub(crate) struct Coverage {
    /// Tunnels that opened.
    tunnels: u64,
    /// Directions that arrived in full and ended cleanly.
    complete: u64,
    bytes: u64,
}

pub(crate) struct ProxySim {
    pub(crate) kernel: Kernel,
    pub(crate) ledger: Ledger,
    pub(crate) scenario: Scenario,
    pub(crate) random: Rng,
    pub(crate) relays: Relays,
    pub(crate) remote: Remote<<Relay as Handler>::Post>,
    pub(crate) members: Vec<Member<Relay>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) upstreams: Vec<Upstream>,
    outside: Sim,
    /// Steps of clients and upstreams.
    acts: u64,
}

impl ProxySim {
    fn client(&mut self) -> Client {
        let random = Rng::with_seed(self.random.u64(..));
        Client::new(self.outside.clone(), self.ledger.clone(), random, &self.scenario)
    }

    /// Whether every client and every upstream connection has ended.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.clients.iter().all(Client::is_over)
            && self.upstreams.iter().all(|upstream| upstream.legs() == 0)
    }
}

impl crate::Simulation for ProxySim {
    type Coverage = Coverage;

    fn build(seed: u64) -> Result<ProxySim, String> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::draw(&mut random);
        let kernel = Kernel::new(random.u64(..), scenario.buffers);
        let ledger = Ledger::new(scenario.is_strict());
        let relays = Relays::new(scenario.routes.clone(), scenario.live.clone(), scenario.workers)?;
        let fronts: Vec<usize> =
            (0..scenario.listeners).map(|_| kernel.listen(front(), 64, 0)).collect();
        let crew = Crew {
            workers: scenario.workers,
            capacity: scenario.capacity,
            table: scenario.table,
            mailbox_bytes: 1 << 20,
            limits: relays.limits(),
        };
        let (remote, members) = crew
            .start(&kernel, &fronts, |index| relays.relay(index))
            .map_err(|error| error.to_string())?;
        let mut upstreams = Vec::new();
        for upstream in 0..scenario.upstreams {
            let listener = kernel.listen(behind(upstream), 64, 0);
            let seat = kernel.outside_with(&[listener]);
            let number = seat.listeners.first().copied().ok_or("no number for a listener")?;
            let random = Rng::with_seed(random.u64(..));
            upstreams.push(Upstream::new((seat.sys, number), ledger.clone(), random, &scenario));
        }
        let outside = kernel.outside();
        for &(fault, rate) in &scenario.rates {
            kernel.set_rate(fault, rate);
        }
        let mut sim = ProxySim {
            kernel,
            ledger,
            scenario,
            random,
            relays,
            remote,
            members,
            clients: Vec::new(),
            upstreams,
            outside,
            acts: 0,
        };
        for _ in 0..sim.scenario.clients {
            let client = sim.client();
            sim.clients.push(client);
        }
        Ok(sim)
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

    fn phases(&self) -> &'static [fn(&mut ProxySim)] {
        run::phases(self.scenario.ends_in_storm)
    }

    fn actors(&self) -> usize {
        self.members.len() + self.clients.len() + self.upstreams.len()
    }

    fn act(&mut self, at: usize) -> bool {
        let now_ns = self.kernel.now_ns();
        if let Some(member) = self.members.get_mut(at) {
            return turn(member, &self.kernel, &self.ledger);
        }
        let at = at - self.members.len();
        if let Some(upstream) = self.upstreams.get_mut(at) {
            let due = upstream.due_ns <= now_ns;
            if due {
                upstream.step();
                self.acts += 1;
            }
            return due;
        }
        let at = at - self.upstreams.len();
        let Some(client) = self.clients.get_mut(at).filter(|client| client.due_ns <= now_ns) else {
            return false;
        };
        client.step();
        self.acts += 1;
        if client.is_over() && !self.ledger.book().calm {
            let successor = self.client();
            if let Some(place) = self.clients.get_mut(at) {
                *place = successor;
            }
        }
        true
    }

    fn acts(&self) -> u64 {
        self.acts
    }

    fn next_ns(&self) -> Option<u64> {
        let members = self.members.iter().filter_map(Member::deadline);
        let clients = self.clients.iter().map(|client| client.due_ns);
        let upstreams = self.upstreams.iter().map(|upstream| upstream.due_ns);
        members.chain(clients).chain(upstreams).min()
    }

    fn add_coverage(&self, coverage: &mut Coverage) {
        let book = self.ledger.book();
        coverage.tunnels += book.opened;
        coverage.complete += book.complete;
        let received =
            book.exchanges().iter().map(|exchange| exchange.up.received + exchange.down_received);
        coverage.bytes += received.sum::<u64>();
    }

    fn summary(coverage: &Coverage) -> String {
        let Coverage { tunnels, complete, bytes } = coverage;
        format!(", {tunnels} tunnels with {bytes} bytes, {complete} directions complete")
    }

    fn missing(totals: &SeedTotals<Coverage>) -> Option<String> {
        let enough =
            totals.coverage.tunnels > totals.seeds && totals.coverage.complete > totals.seeds;
        (!enough).then(|| "too few tunnels and complete directions to judge by".to_owned())
    }
}

/// Gives the worker a turn if it would not sleep; whether it had anything to do.
fn turn(member: &mut Member<Relay>, kernel: &Kernel, ledger: &Ledger) -> bool {
    let turned = member.step(kernel);
    let (table, most) = (member.table(), member.queued_max);
    let mut book = ledger.book();
    book.require(most <= QUEUED_MAX, || format!("table {table}: {most} bytes wait for one reader"));
    turned.unwrap_or_else(|wrong| {
        book.fail(wrong);
        true
    })
}
