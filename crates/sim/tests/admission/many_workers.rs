//! A process of 128 workers that listens on two addresses, over the simulated kernel: every worker
//! accepts, and every listener that was parked is taken over when there is room again.

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{Limits, Remote, Totals, Turn, Worker};

use crate::{HANDSHAKE, Host};

const WORKERS: usize = 128;
const ADDRESSES: usize = 2;
const LISTENERS: usize = WORKERS * ADDRESSES;

struct Simulation {
    kernel: Kernel,
    remote: Remote<()>,
    workers: Vec<(Worker<Sim, Host>, bool)>,
    tables: Vec<usize>,
    outside: Sim,
}

/// The kernel gives all connections to an address to its first listener, so each listener here has
/// an address of its own, as if the hash of its group had chosen it.
fn address(listener: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1024 + listener as u16))
}

impl Simulation {
    fn new(seed: u64, capacity: u32) -> Simulation {
        let kernel = Kernel::new(seed, (4096, 4096));
        let listeners: Vec<usize> =
            (0..LISTENERS).map(|listener| kernel.listen(address(listener), 16, 0)).collect();
        let (mut wakes, mut places) = (Vec::new(), Vec::new());
        for _ in 0..WORKERS {
            let seat = kernel.seat(1_000, &listeners);
            wakes.push(seat.wake);
            places.push((seat.sys, seat.listeners));
        }
        let limits = Limits::default();
        let remote = Remote::new(wakes, limits.mailbox_bytes);
        let tables = places.iter().map(|(sys, _)| sys.table()).collect();
        let workers = places.into_iter().enumerate().map(|(index, (sys, numbers))| {
            let (limits, remote) = (limits.clone(), remote.clone());
            let worker = Worker::new(sys, index as u16, limits, remote, &numbers, capacity, Host);
            (worker.unwrap(), false)
        });
        let workers = workers.collect();
        (0..LISTENERS).for_each(|listener| remote.give_listener(listener % WORKERS, listener));
        let outside = kernel.outside();
        Simulation { kernel, remote, workers, tables, outside }
    }

    /// Gives turns until no worker has anything to do.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut rests = true;
            for (at, (worker, stopped)) in self.workers.iter_mut().enumerate() {
                if !*stopped && self.kernel.is_ready(self.tables[at]) {
                    *stopped = worker.turn(Some(Duration::ZERO)).unwrap() == Turn::Stopped;
                    rests = false;
                }
            }
            if rests {
                return;
            }
        }
        panic!("the workers do not come to rest");
    }

    /// A client at each listener.
    fn connect_all(&mut self) -> Vec<Fd> {
        let clients: Vec<Fd> = (0..LISTENERS)
            .map(|listener| self.outside.connect(address(listener), None).unwrap())
            .collect();
        for client in &clients {
            self.outside.send(*client, HANDSHAKE).unwrap();
        }
        self.settle();
        clients
    }

    fn open(&self) -> Vec<u32> {
        self.remote.open().map(|(open, _)| open).collect()
    }
}

#[test]
fn all_128_workers_accept_on_two_addresses() {
    let mut simulation = Simulation::new(1, 100);
    for round in 1..=3 {
        simulation.connect_all();
        assert_eq!(simulation.open(), vec![round * ADDRESSES as u32; WORKERS]);
    }
}

#[test]
fn every_parked_listener_of_128_workers_is_taken_over_again() {
    for seed in 0..4 {
        // The first clients fill every worker.
        let mut simulation = Simulation::new(seed, ADDRESSES as u32);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut inside = simulation.connect_all();
        for round in 1..=3 {
            let waiting = simulation.connect_all();
            let totals = Totals::sum(simulation.remote.counters());
            assert_eq!(totals.accepted, round * LISTENERS as u64, "nobody beyond the capacity");
            assert!(totals.accept_full > 0, "{totals:?}");
            random.shuffle(&mut inside);
            for client in inside {
                simulation.outside.close(client);
                if random.u8(..8) == 0 {
                    simulation.settle();
                }
            }
            simulation.settle();
            let totals = Totals::sum(simulation.remote.counters());
            assert_eq!(totals.accepted, (round + 1) * LISTENERS as u64, "a listener stays parked");
            inside = waiting;
        }
    }
}

#[test]
fn a_drain_stops_the_parked_listeners_of_128_workers() {
    let mut simulation = Simulation::new(1, ADDRESSES as u32);
    let mut inside = simulation.connect_all();
    let waiting = simulation.connect_all();
    inside.extend(waiting);
    simulation.remote.drain(Duration::ZERO);
    for _ in 0..200 {
        simulation.kernel.advance(50_000_000);
        for (worker, stopped) in simulation.workers.iter_mut().filter(|(_, stopped)| !*stopped) {
            *stopped = worker.turn(Some(Duration::ZERO)).unwrap() == Turn::Stopped;
        }
        for client in &inside {
            // It answers the close frame by ending the stream.
            simulation.outside.shutdown_write(*client);
        }
    }
    assert!(simulation.workers.iter().all(|(_, stopped)| *stopped), "a worker goes on");
    assert_eq!(Totals::sum(simulation.remote.counters()).connections, 0);
}
