//! [`House`]: all workers, peers and the control plane of one run, stepped in an order that the seed
//! decides, and what is checked after every step.

use engine::sys::sim::{Fault, Kernel, Sim};
use engine::{Closed, Core, Handler, Limits, Remote, Target, Totals, Turn, Worker};
use fastrand::Rng;
use topics::{Directory, Topics};

use crate::client::{Client, Purpose};
use crate::control::Control;
use crate::ledger::Ledger;
use crate::raw::Raw;
use crate::scenario::{Scenario, address};
use crate::server::{PROCESS, Post, Server};

/// Turns that move nothing which a worker may take in a second: its timers tick 50 times, and the
/// control plane wakes it up some 2,000 times. One that spins takes 30,000 and more.
const IDLE_TURNS_MAX: u64 = 5000;
const SECOND_NS: u64 = 1_000_000_000;

/// A worker and what is known of it from outside.
pub(crate) struct Member<H: Handler> {
    pub(crate) worker: Worker<Sim, H>,
    process: usize,
    table: usize,
    /// Numbers of its table that are no connections.
    own: usize,
    pub(crate) stopped: bool,
    /// When the worker has something to do even if nothing happens, as of its last turn.
    deadline_ns: Option<u64>,
    /// Turns that moved nothing.
    pub(crate) idle_turns: u64,
    window_turns: u64,
    window_ns: u64,
}

pub(crate) struct House {
    pub(crate) kernel: Kernel,
    pub(crate) ledger: Ledger,
    pub(crate) scenario: Scenario,
    pub(crate) random: Rng,
    pub(crate) remote: Remote<Post>,
    pub(crate) client_remotes: Vec<Remote<()>>,
    pub(crate) servers: Vec<Member<Server>>,
    pub(crate) clients: Vec<Member<Client>>,
    pub(crate) raws: Vec<Raw>,
    pub(crate) control: Control,
    /// Steps of peers and of the control plane.
    pub(crate) acts: u64,
}

impl House {
    pub(crate) fn build(seed: u64) -> std::io::Result<House> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::draw(&mut random);
        let kernel = Kernel::new(random.u64(..), scenario.buffers);
        let ledger = Ledger::new(scenario.limits.slow_consumer);
        let defer_ns = scenario.defer.as_nanos() as u64;
        let listeners: Vec<usize> = (0..scenario.listeners)
            .map(|_| kernel.listen(address(), scenario.backlog, defer_ns))
            .collect();
        let own = 1 + listeners.len();
        let seats: Vec<_> =
            (0..scenario.servers).map(|_| kernel.seat(scenario.table + own, &listeners)).collect();
        let (mut places, mut wakes) = (Vec::new(), Vec::new());
        for seat in seats {
            wakes.push(seat.wake);
            places.push((seat.sys, seat.listeners));
        }
        let remote = Remote::new(wakes, scenario.limits.mailbox_bytes);
        let directory = Directory::new();
        let mut servers = Vec::new();
        for (index, (sys, numbers)) in places.into_iter().enumerate() {
            let topics = Topics::new(index as u16, directory.clone());
            let handler = Server::new(ledger.clone(), index as u16, topics);
            let (table, limits) = (sys.table(), scenario.limits.clone());
            let (remote, capacity) = (remote.clone(), scenario.capacity);
            let index = index as u16;
            let worker = Worker::new(sys, index, limits, remote, &numbers, capacity, handler)?;
            servers.push(Member::new(worker, PROCESS, table, own));
        }
        for listener in 0..scenario.listeners {
            remote.give_listener(listener % scenario.servers, listener);
        }
        let control = Control::new(ledger.clone(), remote.clone(), directory);
        let mut house = House {
            kernel,
            ledger,
            random,
            remote,
            client_remotes: Vec::new(),
            servers,
            clients: Vec::new(),
            raws: Vec::new(),
            control,
            acts: 0,
            scenario,
        };
        house.add_clients()?;
        for &(fault, rate) in &house.scenario.rates {
            house.kernel.set_rate(fault, rate);
        }
        Ok(house)
    }

    fn add_clients(&mut self) -> std::io::Result<()> {
        let scenario = &self.scenario;
        let limits = Limits { idle_timeout: None, ..scenario.limits.clone() };
        for index in 0..scenario.clients {
            let seat = self.kernel.seat(scenario.wanted + 8, &[]);
            let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
            let echo = scenario.echo_targets;
            let mut purposes = vec![Purpose::Echo; echo];
            purposes.resize(echo + scenario.topics as usize, Purpose::Topic);
            let process = PROCESS + 1 + index;
            let handler = Client::new(self.ledger.clone(), process, scenario, purposes);
            let (table, remote2) = (seat.sys.table(), remote.clone());
            let mut worker =
                Worker::new(seat.sys, 0, limits.clone(), remote2, &[], u32::MAX, handler)?;
            let (_, core) = worker.parts();
            for path in ["/echo", "/echo", "/later"].into_iter().take(echo) {
                core.add_target(Target::websocket(address(), "sim", path, &[], false, &[]))?;
            }
            for topic in 0..scenario.topics {
                let path = format!("/topics/{topic}");
                core.add_target(Target::websocket(address(), "sim", &path, &[], false, &[]))?;
            }
            self.client_remotes.push(remote);
            self.clients.push(Member::new(worker, process, table, 1));
        }
        let outside = self.kernel.outside();
        for _ in 0..self.scenario.raw_peers {
            let random = Rng::with_seed(self.random.u64(..));
            self.raws.push(Raw::new(outside.clone(), self.ledger.clone(), random, &self.scenario));
        }
        Ok(())
    }

    /// Reports and acts so far.
    pub(crate) fn events(&self) -> u64 {
        self.kernel.reports() + self.acts
    }

    /// Lets one of those that have something to do take a step; if nobody has, lets time pass until
    /// somebody has, but not beyond `until_ns`.
    pub(crate) fn step(&mut self, until_ns: u64) {
        let count = self.servers.len() + self.clients.len() + self.raws.len() + 1;
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
            self.ledger.book().jumped_ns = now_ns + pass_ns;
        }
        self.kernel.advance(pass_ns);
    }

    fn step_one(&mut self, at: usize) -> bool {
        let (servers, clients) = (self.servers.len(), self.clients.len());
        let now_ns = self.kernel.now_ns();
        if let Some(member) = self.servers.get_mut(at) {
            return member.step(&self.kernel, &self.ledger);
        }
        if let Some(member) = self.clients.get_mut(at.wrapping_sub(servers)) {
            return member.step(&self.kernel, &self.ledger);
        }
        if let Some(raw) = self.raws.get_mut(at.wrapping_sub(servers + clients)) {
            let due = raw.due_ns <= now_ns;
            if due {
                raw.step();
                self.acts += 1;
                if raw.is_over() && !self.ledger.book().calm {
                    let random = Rng::with_seed(self.random.u64(..));
                    *raw = raw.successor(random, &self.scenario);
                }
            }
            return due;
        }
        let due = self.control.due_ns <= now_ns;
        if due {
            self.control.step(now_ns, &self.scenario, &mut self.random);
            self.acts += 1;
        }
        due
    }

    fn next_ns(&self) -> Option<u64> {
        let servers = self.servers.iter().filter_map(Member::deadline);
        let clients = self.clients.iter().filter_map(Member::deadline);
        let raws = self.raws.iter().map(|raw| raw.due_ns);
        let others = [Some(self.control.due_ns), self.kernel.next_ns()].into_iter().flatten();
        servers.chain(clients).chain(raws).chain(others).min()
    }

    /// Whether nobody could be accepted: every worker or every table is full.
    pub(crate) fn is_full(&self) -> bool {
        self.servers.iter().all(|member| {
            let used = self.kernel.used(member.table) - member.own;
            used >= (self.scenario.capacity as usize).min(self.scenario.table)
        })
    }
}

impl<H: Handler> Member<H> {
    fn new(worker: Worker<Sim, H>, process: usize, table: usize, own: usize) -> Self {
        Member {
            worker,
            process,
            table,
            own,
            stopped: false,
            deadline_ns: Some(0),
            idle_turns: 0,
            window_turns: 0,
            window_ns: 0,
        }
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
        self.idle_turns += u64::from(idle);
        self.window_turns += u64::from(idle);
        let (process, table) = (self.process, self.table);
        ledger.book().require(self.window_turns <= IDLE_TURNS_MAX, || {
            format!("the worker of table {table} (process {process}) spins")
        });
    }

    /// What is true of a worker after each turn.
    fn check_books(&mut self, kernel: &Kernel, ledger: &Ledger) {
        let (process, table) = (self.process, self.table);
        let (_, core) = self.worker.parts();
        let totals = Totals::sum([core.counters()]);
        let mut book = ledger.book();
        let came = totals.accepted + totals.connects;
        let went: u64 = totals.closed.iter().sum();
        book.require(came == went + totals.connections, || {
            format!("table {table}: {came} came, {went} went, {} are there", totals.connections)
        });
        book.require(u64::from(core.connections()) == totals.connections, || {
            format!("table {table}: the gauge of connections is off")
        });
        let used = kernel.used(table) as u64;
        let leaks = used != self.own as u64 + totals.connections;
        book.require(!leaks, || {
            format!("table {table}: {used} numbers for {} connections", totals.connections)
        });
        let queues: Vec<usize> = (0..core.slots()).filter_map(|slot| backlog(core, slot)).collect();
        // Those that ended after the reaping are told of no more, but counted until the next.
        let all_told = queues.len() as u64 == totals.connections;
        let queued = queues.iter().sum::<usize>() as u64;
        book.require(!all_told || queued == totals.queued_bytes, || {
            format!("table {table}: {queued} bytes queued, gauge {}", totals.queued_bytes)
        });
        let worker = core.worker();
        let limits = core.limits().clone();
        let causes = std::mem::take(&mut book.closed);
        let mut ended = kernel.take_ended(table);
        book.require(causes.len() == ended.len(), || {
            format!("table {table}: {} told closed, {} closed", causes.len(), ended.len())
        });
        let unsaid = causes.iter().zip(&ended).find(|(why, ended)| {
            matches!(why, Closed::Gone | Closed::Reset | Closed::ConnectRefused)
                && !ended.peer_ended
        });
        book.require(unsaid.is_none(), || {
            format!("table {table}: {unsaid:?} though the peer stays")
        });
        for (why, ended) in causes.into_iter().zip(ended.drain(..)) {
            let least = match why {
                Closed::HandshakeTimeout => limits.handshake_timeout,
                Closed::IdleTimeout | Closed::Unfinished => {
                    limits.idle_timeout.unwrap_or_default() * 9 / 10
                }
                _ => continue,
            };
            book.require(u128::from(ended.held_ns) >= least.as_nanos(), || {
                format!("table {table}: {why} after {} ns", ended.held_ns)
            });
        }
        let open = book.open_on(process, worker);
        book.require(open == totals.websockets, || {
            format!("table {table}: {open} open, gauge {}", totals.websockets)
        });
    }
}

fn backlog<H: Handler>(core: &Core<Sim, H>, slot: u32) -> Option<usize> {
    core.info(core.id_at(slot)?).map(|info| info.queued_bytes)
}
