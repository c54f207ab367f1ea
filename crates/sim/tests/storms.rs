//! Storms of connects over the simulated kernel: clients whose request arrives after their connection
//! was accepted are all served, however many they are; clients that never send one are not.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{
    AdmissionLimits, Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Totals,
    Worker,
};
use wire::websocket::OpCode;

const WORKERS: usize = 2;
const MAX_HANDSHAKES: u32 = 20;
const MILLISECOND_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000 * MILLISECOND_NS;
const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

struct Host;

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

struct Simulation {
    kernel: Kernel,
    remote: Remote<()>,
    workers: Vec<Worker<Sim, Host>>,
    outside: Sim,
}

/// The simulated kernel gives every connection of an address to its first listener.
fn address(worker: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80 + worker as u16))
}

impl Simulation {
    fn new() -> Simulation {
        let admission =
            AdmissionLimits { handshakes: MAX_HANDSHAKES, ..AdmissionLimits::default() };
        let limits = Limits { admission, ..Limits::default() };
        let kernel = Kernel::new(1, (4096, 4096));
        let listeners: Vec<usize> =
            (0..WORKERS).map(|worker| kernel.listen(address(worker), 1 << 16, 0)).collect();
        let (mut wakes, mut places) = (Vec::new(), Vec::new());
        for _ in 0..WORKERS {
            let seat = kernel.seat(1 << 16, &listeners);
            wakes.push(seat.wake);
            places.push((seat.sys, seat.listeners));
        }
        let remote = Remote::new(wakes, limits.mailbox_bytes);
        let workers = places.into_iter().enumerate().map(|(index, (sys, numbers))| {
            let (limits, remote) = (limits.clone(), remote.clone());
            Worker::new(sys, index as u16, limits, remote, &numbers, 1 << 16, Host).unwrap()
        });
        let workers = workers.collect();
        (0..WORKERS).for_each(|index| remote.give_listener(index, index));
        let outside = kernel.outside();
        Simulation { kernel, remote, workers, outside }
    }

    fn connect(&mut self, clients: usize) -> Vec<Fd> {
        let connect = |client| self.outside.connect(address(client % WORKERS), None).unwrap();
        (0..clients).map(connect).collect()
    }

    fn request(&mut self, clients: &[Fd]) {
        for client in clients {
            self.outside.send(*client, HANDSHAKE).unwrap();
        }
    }

    fn turns(&mut self, for_ns: u64) {
        let step_ns = 50 * MILLISECOND_NS;
        for _ in 0..for_ns.div_ceil(step_ns).max(1) {
            // A worker turns again at once while connections wait to be accepted.
            let mut accepted = u64::MAX;
            while accepted != self.totals().accepted {
                accepted = self.totals().accepted;
                for _ in 0..4 {
                    for worker in &mut self.workers {
                        worker.turn(Some(Duration::ZERO)).unwrap();
                    }
                }
            }
            self.kernel.advance(step_ns.min(for_ns));
        }
    }

    fn totals(&self) -> Totals {
        Totals::sum(self.remote.counters())
    }

    fn refused(&self) -> u64 {
        self.totals().refused.iter().sum()
    }
}

#[test]
fn requests_that_arrive_after_their_connections_were_accepted_are_all_served() {
    let mut simulation = Simulation::new();
    let clients = simulation.connect(10 * MAX_HANDSHAKES as usize);
    simulation.turns(300 * MILLISECOND_NS);
    assert_eq!(simulation.totals().accepted, clients.len() as u64);
    assert_eq!(simulation.refused(), 0, "none had time to send a request");
    simulation.request(&clients);
    simulation.turns(5 * SECOND_NS);
    assert_eq!((simulation.refused(), simulation.remote.handshakes()), (0, 0));
    assert_eq!(simulation.totals().websockets, clients.len() as u64);
}

#[test]
fn heads_that_stay_incomplete_are_refused() {
    // Time without anything, and with a part of a head.
    for (part, grace_ns) in [(&b""[..], 5 * SECOND_NS), (&HANDSHAKE[..20], SECOND_NS)] {
        let mut simulation = Simulation::new();
        let clients = simulation.connect(10 * MAX_HANDSHAKES as usize);
        simulation.turns(0);
        for client in &clients {
            simulation.outside.send(*client, part).unwrap();
        }
        simulation.turns(grace_ns - 100 * MILLISECOND_NS);
        assert_eq!(simulation.refused(), 0);
        simulation.turns(SECOND_NS);
        assert_eq!(simulation.refused(), 9 * u64::from(MAX_HANDSHAKES), "down to the limit");
        assert_eq!(simulation.remote.handshakes(), MAX_HANDSHAKES);
        simulation.turns(60 * SECOND_NS);
        assert_eq!(simulation.totals().connections, 0, "and the others by their deadline");
    }
}

#[test]
fn the_limit_follows_what_drains() {
    const EACH: usize = 12;
    let mut simulation = Simulation::new();
    let silent = simulation.connect(2 * MAX_HANDSHAKES as usize);
    let (mut waiting, mut honest) = (VecDeque::new(), 0);
    // 120 clients per second whose requests take ever longer, up to 3 s: 360 in flight.
    for round in 0..120 {
        waiting.push_back(simulation.connect(EACH));
        honest += EACH as u64;
        while waiting.len() > (round / 3).min(30) {
            let clients = waiting.pop_front().unwrap();
            simulation.request(&clients);
        }
        simulation.turns(100 * MILLISECOND_NS);
    }
    assert!(simulation.remote.handshakes() > 15 * MAX_HANDSHAKES);
    for clients in waiting {
        simulation.request(&clients);
        simulation.turns(100 * MILLISECOND_NS);
    }
    let totals = simulation.totals();
    assert_eq!(totals.websockets, honest, "none of a storm that drains is refused");
    assert!(simulation.refused() <= silent.len() as u64);
    // Once the storm is over the limit is the configured one again.
    simulation.turns(10 * SECOND_NS);
    let before = simulation.refused();
    simulation.connect(3 * MAX_HANDSHAKES as usize);
    simulation.turns(6 * SECOND_NS);
    assert!(simulation.refused() >= before + 2 * u64::from(MAX_HANDSHAKES));
    assert!(simulation.remote.handshakes() <= MAX_HANDSHAKES);
}

#[test]
fn a_head_has_its_whole_time_from_its_first_byte() {
    let mut simulation = Simulation::new();
    let late = simulation.connect(1)[0];
    simulation.turns(9 * SECOND_NS);
    simulation.outside.send(late, &HANDSHAKE[..20]).unwrap();
    simulation.turns(9 * SECOND_NS);
    assert_eq!(simulation.totals().connections, 1, "closed after 9 s of 10 s");
    simulation.outside.send(late, &HANDSHAKE[20..]).unwrap();
    simulation.turns(SECOND_NS);
    assert_eq!(simulation.totals().websockets, 1);
    // One that trickles is closed in time all the same.
    let slow = simulation.connect(1)[0];
    simulation.turns(9 * SECOND_NS);
    for byte in &HANDSHAKE[..10] {
        simulation.outside.send(slow, &[*byte]).unwrap();
        simulation.turns(900 * MILLISECOND_NS);
        assert_eq!(simulation.totals().connections, 2);
    }
    simulation.turns(1_500 * MILLISECOND_NS);
    assert_eq!(simulation.totals().connections, 1, "10 s after its first byte");
    // One that sends nothing has three times as long.
    simulation.connect(1);
    simulation.turns(28 * SECOND_NS);
    assert_eq!(simulation.totals().connections, 2);
    simulation.turns(4 * SECOND_NS);
    assert_eq!(simulation.totals().connections, 1);
}
