//! [`House`]: the proxy's workers, clients and upstreams of one run, stepped in an order that the seed
//! decides, and what is checked after every step.

use engine::sys::sim::{Fault, Kernel, Sim};
use engine::{Handler, Remote, Totals, Turn, Worker};
use fastrand::Rng;
use proxy::{Relay, Relays};

use crate::client::Client;
use crate::ledger::Ledger;
use crate::scenario::{Scenario, behind, front};
use crate::upstream::Upstream;

/// Turns that move nothing which a worker may take in a second; one that spins takes 30,000 and more.
const IDLE_TURNS_MAX: u64 = 5000;
const SECOND_NS: u64 = 1_000_000_000;

/// A worker and what is known of it from outside.
pub(crate) struct Member {
    pub(crate) worker: Worker<Sim, Relay>,
    table: usize,
    /// Numbers of its table that are no connections.
    own: u64,
    pub(crate) stopped: bool,
    /// When the worker has something to do even if nothing happens, as of its last turn.
    deadline_ns: Option<u64>,
    window_turns: u64,
    window_ns: u64,
}

pub(crate) struct House {
    pub(crate) kernel: Kernel,
    pub(crate) ledger: Ledger,
    pub(crate) scenario: Scenario,
    pub(crate) random: Rng,
    pub(crate) relays: Relays,
    pub(crate) remote: Remote<<Relay as Handler>::Post>,
    pub(crate) members: Vec<Member>,
    pub(crate) clients: Vec<Client>,
    pub(crate) upstreams: Vec<Upstream>,
    outside: Sim,
    /// Steps of clients and upstreams.
    acts: u64,
}

impl House {
    pub(crate) fn build(seed: u64) -> Result<House, String> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::draw(&mut random);
        let kernel = Kernel::new(random.u64(..), scenario.buffers);
        let ledger = Ledger::new(scenario.is_strict());
        let relays = Relays::new(scenario.routes.clone(), scenario.live.clone(), scenario.workers)?;
        let fronts: Vec<usize> =
            (0..scenario.listeners).map(|_| kernel.listen(front(), 64, 0)).collect();
        let own = 1 + fronts.len();
        let (mut places, mut wakes) = (Vec::new(), Vec::new());
        for _ in 0..scenario.workers {
            let seat = kernel.seat(scenario.table + own, &fronts);
            wakes.push(seat.wake);
            places.push((seat.sys, seat.listeners));
        }
        let remote = Remote::new(wakes, 1 << 20);
        let mut members = Vec::new();
        for (index, (sys, numbers)) in places.into_iter().enumerate() {
            let (table, index) = (sys.table(), index as u16);
            let (handler, limits) = (relays.relay(index), relays.limits());
            let capacity = scenario.capacity;
            let worker =
                Worker::new(sys, index, limits, remote.clone(), &numbers, capacity, handler)
                    .map_err(|error| error.to_string())?;
            members.push(Member::new(worker, table, own as u64));
        }
        for listener in 0..scenario.listeners {
            remote.give_listener(listener % scenario.workers, listener);
        }
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
        let mut house = House {
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
        for _ in 0..house.scenario.clients {
            let client = house.client();
            house.clients.push(client);
        }
        Ok(house)
    }

    fn client(&mut self) -> Client {
        let random = Rng::with_seed(self.random.u64(..));
        Client::new(self.outside.clone(), self.ledger.clone(), random, &self.scenario)
    }

    /// Reports and acts so far.
    pub(crate) fn events(&self) -> u64 {
        self.kernel.reports() + self.acts
    }

    /// Lets one of those that have something to do take a step; if nobody has, lets time pass until
    /// somebody has, but not beyond `until_ns`.
    pub(crate) fn step(&mut self, until_ns: u64) {
        let count = self.members.len() + self.clients.len() + self.upstreams.len();
        let start = self.random.usize(..count);
        for at in (0..count).map(|offset| (start + offset) % count) {
            if self.step_one(at) {
                return self.kernel.advance(self.random.u64(1_000..30_000));
            }
        }
        let now_ns = self.kernel.now_ns();
        let next_ns =
            self.next_ns().unwrap_or(u64::MAX).clamp(now_ns + 1, until_ns.max(now_ns + 1));
        let mut pass_ns = next_ns - now_ns;
        if self.kernel.strike(Fault::ClockJump) {
            pass_ns += self.random.u64(..2 * SECOND_NS);
        }
        self.kernel.advance(pass_ns);
    }

    fn step_one(&mut self, at: usize) -> bool {
        let now_ns = self.kernel.now_ns();
        if let Some(member) = self.members.get_mut(at) {
            return member.step(&self.kernel, &self.ledger);
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

    fn next_ns(&self) -> Option<u64> {
        let members = self.members.iter().filter_map(Member::deadline);
        let clients = self.clients.iter().map(|client| client.due_ns);
        let upstreams = self.upstreams.iter().map(|upstream| upstream.due_ns);
        members.chain(clients).chain(upstreams).chain(self.kernel.next_ns()).min()
    }

    /// Whether clients and upstreams have come to their ends.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.clients.iter().all(Client::is_over)
            && self.upstreams.iter().all(|upstream| upstream.legs() == 0)
    }
}

impl Member {
    fn new(worker: Worker<Sim, Relay>, table: usize, own: u64) -> Self {
        let (deadline_ns, window_turns, window_ns) = (Some(0), 0, 0);
        Member { worker, table, own, stopped: false, deadline_ns, window_turns, window_ns }
    }

    fn deadline(&self) -> Option<u64> {
        self.deadline_ns.filter(|_| !self.stopped)
    }

    /// Gives the worker a turn if it would not sleep.
    fn step(&mut self, kernel: &Kernel, ledger: &Ledger) -> bool {
        let due = self.deadline().is_some_and(|at_ns| at_ns <= kernel.now_ns());
        if self.stopped || !due && !kernel.is_ready(self.table) {
            return false;
        }
        let moved = |kernel: &Kernel| (kernel.progress(self.table), kernel.drawn());
        let before = moved(kernel);
        match self.worker.turn(None) {
            Ok(turn) => self.stopped = turn == Turn::Stopped,
            Err(error) => ledger.book().fail(format!("a turn failed: {error}")),
        }
        self.deadline_ns = self.worker.deadline();
        let idle = before == (kernel.progress(self.table), kernel.drawn());
        self.check_pace(idle, kernel.now_ns(), ledger);
        self.check_books(kernel, ledger);
        true
    }

    /// A worker without anything to do sleeps.
    fn check_pace(&mut self, idle: bool, now_ns: u64, ledger: &Ledger) {
        if now_ns - self.window_ns > SECOND_NS {
            (self.window_ns, self.window_turns) = (now_ns, 0);
        }
        self.window_turns += u64::from(idle);
        let table = self.table;
        ledger.book().require(self.window_turns <= IDLE_TURNS_MAX, || {
            format!("the worker of table {table} spins")
        });
    }

    /// What is true of a worker after each turn: no slot, descriptor or queued byte without its
    /// connection.
    fn check_books(&mut self, kernel: &Kernel, ledger: &Ledger) {
        let table = self.table;
        let (_, core) = self.worker.parts();
        let totals = Totals::sum([core.counters()]);
        let mut book = ledger.book();
        let came = totals.accepted + totals.connects;
        let went: u64 = totals.closed.iter().sum();
        book.require(came == went + totals.connections, || {
            format!("table {table}: {came} came, {went} went, {} are there", totals.connections)
        });
        let used = kernel.used(table) as u64;
        book.require(used == self.own + totals.connections, || {
            format!("table {table}: {used} numbers for {} connections", totals.connections)
        });
        let info = |slot| core.info(core.id_at(slot)?).map(|info| info.queued_bytes);
        let queues: Vec<usize> = (0..core.slots()).filter_map(info).collect();
        // Those that ended after the reaping are told of no more, but counted until the next.
        let all_told = queues.len() as u64 == totals.connections;
        let queued = queues.iter().sum::<usize>() as u64;
        book.require(!all_told || queued == totals.queued_bytes, || {
            format!("table {table}: {queued} bytes queued, gauge {}", totals.queued_bytes)
        });
        let most = queues.iter().max().copied().unwrap_or(0);
        // One read, with what was kept of the one before, and a head.
        book.require(most <= 2 * engine::READ_BUFFER_BYTES + 32 * 1024, || {
            format!("table {table}: {most} bytes wait for one reader")
        });
    }
}
