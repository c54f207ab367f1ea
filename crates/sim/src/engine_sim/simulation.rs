//! [`EngineSim`]: all workers, peers and the control plane of one run, stepped in an order that the seed
//! decides, and what is checked of a worker beside what is true of any.

use engine::sys::sim::{Fault, Kernel};
use engine::{Closed, Handler, Limits, Remote, Target, Totals};
use fastrand::Rng;
use topics::{Directory, Topics};

use super::client::{Client, Purpose};
use super::control::Control;
use super::ledger::Ledger;
use super::raw::Raw;
use super::run;
use super::scenario::{Scenario, address};
use super::server::{PROCESS, Post, Server};
use crate::{Crew, Member, SeedTotals};

pub(crate) struct EngineSim {
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

impl EngineSim {
    fn with(random: Rng, scenario: Scenario, kernel: Kernel) -> std::io::Result<EngineSim> {
        let ledger = Ledger::new(scenario.limits.slow_consumer);
        let defer_ns = scenario.defer.as_nanos() as u64;
        let listeners: Vec<usize> = (0..scenario.listeners)
            .map(|_| kernel.listen(address(), scenario.backlog, defer_ns))
            .collect();
        let crew = Crew {
            workers: scenario.servers,
            capacity: scenario.capacity,
            table: scenario.table,
            mailbox_bytes: scenario.limits.mailbox_bytes,
            limits: scenario.limits.clone(),
        };
        let directory = Directory::new();
        let (remote, servers) = crew.start(&kernel, &listeners, |index| {
            Server::new(ledger.clone(), index, Topics::new(index, directory.clone()))
        })?;
        let control = Control::new(ledger.clone(), remote.clone(), directory);
        let mut sim = EngineSim {
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
        sim.add_clients()?;
        for &(fault, rate) in &sim.scenario.rates {
            sim.kernel.set_rate(fault, rate);
        }
        Ok(sim)
    }

    fn add_clients(&mut self) -> std::io::Result<()> {
        let scenario = &self.scenario;
        let limits = Limits { idle_timeout: None, ..scenario.limits.clone() };
        for index in 0..scenario.clients {
            let crew = Crew {
                workers: 1,
                capacity: u32::MAX,
                table: scenario.wanted + 7,
                mailbox_bytes: limits.mailbox_bytes,
                limits: limits.clone(),
            };
            let echo = scenario.echo_targets;
            let mut purposes = vec![Purpose::Echo; echo];
            purposes.resize(echo + scenario.topics as usize, Purpose::Topic);
            let process = PROCESS + 1 + index;
            let (remote, mut members) = crew.start(&self.kernel, &[], |_| {
                Client::new(self.ledger.clone(), process, scenario, purposes.clone())
            })?;
            let echoes = ["/echo", "/echo", "/later"].into_iter().take(echo).map(str::to_owned);
            let topics = (0..scenario.topics).map(|topic| format!("/topics/{topic}"));
            let paths: Vec<String> = echoes.chain(topics).collect();
            for member in &mut members {
                let (_, core) = member.worker.parts();
                for path in &paths {
                    core.add_target(Target::websocket(address(), "sim", path, &[], false, &[]))?;
                }
            }
            self.client_remotes.push(remote);
            self.clients.append(&mut members);
        }
        let outside = self.kernel.outside();
        for _ in 0..self.scenario.raw_peers {
            let random = Rng::with_seed(self.random.u64(..));
            self.raws.push(Raw::new(outside.clone(), self.ledger.clone(), random, &self.scenario));
        }
        Ok(())
    }

    /// Whether no connection could be accepted: every worker or every table is full.
    pub(crate) fn is_full(&self) -> bool {
        self.servers.iter().zip(self.remote.open()).all(|(member, (open, capacity))| {
            open >= capacity || member.used(&self.kernel) >= self.scenario.table
        })
    }
}

impl crate::Simulation for EngineSim {
    type Coverage = ();

    fn build(seed: u64) -> Result<EngineSim, String> {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::draw(&mut random);
        let kernel = Kernel::new(random.u64(..), scenario.buffers);
        EngineSim::with(random, scenario, kernel).map_err(|error| error.to_string())
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

    fn phases(&self) -> &'static [fn(&mut EngineSim)] {
        run::phases(self.scenario.ends_in_storm)
    }

    fn actors(&self) -> usize {
        self.servers.len() + self.clients.len() + self.raws.len() + 1
    }

    fn act(&mut self, at: usize) -> bool {
        let (servers, clients) = (self.servers.len(), self.clients.len());
        let now_ns = self.kernel.now_ns();
        if let Some(member) = self.servers.get_mut(at) {
            return turn(member, PROCESS, &self.kernel, &self.ledger);
        }
        let at = at - servers;
        if let Some(member) = self.clients.get_mut(at) {
            return turn(member, PROCESS + 1 + at, &self.kernel, &self.ledger);
        }
        if let Some(raw) = self.raws.get_mut(at - clients) {
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

    fn acts(&self) -> u64 {
        self.acts
    }

    fn next_ns(&self) -> Option<u64> {
        let servers = self.servers.iter().filter_map(Member::deadline);
        let clients = self.clients.iter().filter_map(Member::deadline);
        let raws = self.raws.iter().map(|raw| raw.due_ns);
        servers.chain(clients).chain(raws).chain([self.control.due_ns]).min()
    }

    fn clock_jumps(&mut self, to_ns: u64) {
        self.ledger.book().jumped_ns = to_ns;
    }

    fn missing(totals: &SeedTotals<()>) -> Option<String> {
        let mut counts = Fault::ALL.into_iter().zip(totals.faults);
        let (fault, _) = counts.find(|(_, count)| *count == 0)?;
        Some(format!("the fault `{}` was never seen", fault.name()))
    }
}

/// Gives the worker a turn if it would not sleep; whether it had anything to do.
fn turn<H: Handler>(
    member: &mut Member<H>,
    process: usize,
    kernel: &Kernel,
    ledger: &Ledger,
) -> bool {
    match member.step(kernel) {
        Ok(turned) => {
            if turned {
                check_ends(member, process, kernel, ledger);
            }
            turned
        }
        Err(wrong) => {
            ledger.book().fail(wrong);
            true
        }
    }
}

/// Each ended connection was reported closed, with a true cause, and no other was.
fn check_ends<H: Handler>(
    member: &mut Member<H>,
    process: usize,
    kernel: &Kernel,
    ledger: &Ledger,
) {
    let table = member.table();
    let (_, core) = member.worker.parts();
    let totals = Totals::sum([core.counters()]);
    let (worker, limits) = (core.worker(), core.limits());
    let mut book = ledger.book();
    let causes = std::mem::take(&mut book.closed);
    let mut ended = kernel.take_ended(table);
    book.require(causes.len() == ended.len(), || {
        format!("table {table}: {} told closed, {} closed", causes.len(), ended.len())
    });
    let unsaid = causes.iter().zip(&ended).find(|(why, ended)| {
        matches!(why, Closed::Gone | Closed::Reset | Closed::ConnectRefused) && !ended.peer_ended
    });
    book.require(unsaid.is_none(), || format!("table {table}: {unsaid:?} though the peer stays"));
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
