//! Shedding over the simulated kernel: while memory is short, the clients that hold most of it are
//! closed, however often they ping, and clients that hold nothing stay.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, SharedFrame, Totals, Worker,
};
use wire::websocket::{FrameHeader, OpCode};

const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SECOND_NS: u64 = 1_000_000_000;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const LIMIT: u64 = 16 << 20;
/// Rounds of shedding until nothing changes any more.
const ROUNDS: usize = 100;

/// Sends to all its connections what is posted to it.
#[derive(Default)]
struct Host {
    open: Vec<ConnId>,
    /// Entries of what it holds for each.
    entries: usize,
}

impl Handler for Host {
    type User = ();
    type Post = usize;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.open.push(id);
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        // A frame of its own for this client.
        let length = std::str::from_utf8(data).unwrap().parse().unwrap();
        core.send(id, OpCode::Binary, &vec![7; length]);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, _: Closed, _: bool) {
        self.open.retain(|other| *other != id);
    }

    fn held_entries<S: Sys>(&self, _: &Core<S, Self>, _: ConnId) -> usize {
        self.entries
    }

    /// One frame of this length, shared by all.
    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, length: usize) {
        let mut bytes = FrameHeader::new(OpCode::Binary, true, length, None).as_slice().to_vec();
        bytes.resize(bytes.len() + length, 9);
        let frame = SharedFrame::new(&bytes, 1);
        for id in self.open.clone() {
            core.send_shared(id, &frame);
        }
    }
}

/// Two workers, each with a listener at an address of its own.
struct Simulation {
    kernel: Kernel,
    remote: Remote<usize>,
    workers: Vec<(Worker<Sim, Host>, usize)>,
    outside: Sim,
}

fn address(worker: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80 + worker as u16))
}

impl Simulation {
    fn new(buffers: (usize, usize)) -> Simulation {
        Simulation::with_entries(buffers, 0)
    }

    /// Its handlers hold that many entries for each client.
    fn with_entries(buffers: (usize, usize), entries: usize) -> Simulation {
        let kernel = Kernel::new(1, buffers);
        let listeners: Vec<usize> =
            (0..2).map(|worker| kernel.listen(address(worker), 4096, 0)).collect();
        let limits = Limits {
            idle_timeout: Some(Duration::from_secs(120)),
            wire: wire::Limits { message_bytes: MIB as u32, ..wire::Limits::default() },
            send_queue_bytes: 4 * MIB,
            close_timeout: Duration::from_secs(5),
            ..Limits::default()
        };
        let (mut wakes, mut places) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let seat = kernel.seat(5_000, &listeners);
            wakes.push(seat.wake);
            places.push((seat.sys, seat.listeners));
        }
        let remote = Remote::new(wakes, limits.mailbox_bytes);
        let workers = places.into_iter().enumerate().map(|(index, (sys, numbers))| {
            let (limits, remote, table) = (limits.clone(), remote.clone(), sys.table());
            let host = Host { entries, ..Host::default() };
            let worker =
                Worker::new(sys, index as u16, limits, remote, &numbers, 5_000, host).unwrap();
            (worker, table)
        });
        let workers = workers.collect();
        (0..2).for_each(|worker| remote.give_listener(worker, worker));
        let outside = kernel.outside();
        Simulation { kernel, remote, workers, outside }
    }

    fn open(&mut self, worker: usize) -> Fd {
        let client = self.outside.connect(address(worker), None).unwrap();
        self.outside.send(client, HANDSHAKE).unwrap();
        self.settle();
        let mut head = [0; 4096];
        assert!(self.outside.recv(client, &mut head).unwrap() > 0);
        client
    }

    fn send(&mut self, client: Fd, opcode: OpCode, last: bool, data: &[u8]) {
        let mut frame =
            FrameHeader::new(opcode, last, data.len(), Some([0; 4])).as_slice().to_vec();
        frame.extend_from_slice(data);
        // A client that was shed may still try.
        let _ = self.outside.send(client, &frame);
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let now_ns = self.kernel.now_ns();
            let mut rests = true;
            for (worker, table) in &mut self.workers {
                let due = worker.deadline().is_some_and(|at_ns| at_ns <= now_ns);
                if due || self.kernel.is_ready(*table) {
                    worker.turn(None).unwrap();
                    rests = false;
                }
            }
            if rests {
                return;
            }
        }
        panic!("the workers never rest");
    }

    /// Time passes, in which only `busy` clients are active.
    fn seconds(&mut self, seconds: usize, busy: &[Fd]) {
        for _ in 0..seconds {
            self.kernel.advance(SECOND_NS);
            self.settle();
            for client in busy {
                self.send(*client, OpCode::Ping, true, b"still here");
                let mut pong = [0; 256];
                let _ = self.outside.recv(*client, &mut pong);
            }
        }
    }

    /// What a client has received and not read yet.
    fn received(&mut self, client: Fd) -> Vec<u8> {
        let (mut buffer, mut received) = (vec![0; 64 * KIB], Vec::new());
        self.settle();
        while let Ok(got @ 1..) = self.outside.recv(client, &mut buffer) {
            received.extend_from_slice(&buffer[..got]);
            self.settle();
        }
        received
    }

    /// How many of these clients the server still serves: they get a pong.
    fn served(&mut self, clients: &[Fd]) -> usize {
        let is_served = |client: &&Fd| {
            self.received(**client);
            self.send(**client, OpCode::Ping, true, b"are you there?");
            self.received(**client).ends_with(b"\x8a\x0eare you there?")
        };
        clients.iter().filter(is_served).count()
    }

    /// Memory is short by `over` bytes, and what is freed does not help.
    fn short_of_memory(&mut self, over: u64) {
        self.remote.set_short_of_memory(true);
        for _ in 0..ROUNDS {
            self.remote.shed(over, LIMIT);
            self.settle();
            self.kernel.advance(SECOND_NS / 10);
        }
        self.remote.set_short_of_memory(false);
    }

    fn shed(&self) -> u64 {
        Totals::sum(self.remote.counters()).shed
    }
}

#[test]
fn clients_with_a_begun_message_are_shed_though_they_ping_and_idle_ones_stay() {
    let mut simulation = Simulation::new((MIB, MIB));
    // Worker 1 has only clients that hold nothing.
    let idle: Vec<Fd> = (0..200).map(|number| simulation.open(number % 2)).collect();
    let attackers: Vec<Fd> = (0..24).map(|_| simulation.open(0)).collect();
    for attacker in &attackers {
        simulation.send(*attacker, OpCode::Binary, false, &[7; 200 * KIB]);
    }
    simulation.seconds(60, &attackers);
    assert_eq!((simulation.served(&attackers), simulation.served(&idle)), (24, 200));
    simulation.seconds(40, &attackers);
    simulation.short_of_memory(24 * 200 * KIB as u64);
    let received: Vec<Vec<u8>> = attackers.iter().map(|fd| simulation.received(*fd)).collect();
    assert_eq!(simulation.served(&attackers), 0, "attackers stay");
    let reason = b"the server is short of memory";
    let told = |received: &&Vec<u8>| received.windows(reason.len()).any(|part| part == reason);
    assert_eq!(received.iter().filter(told).count(), 24);
    assert_eq!(simulation.served(&idle), 200, "clients that hold nothing are closed");
}

#[test]
fn the_largest_are_closed_first_and_no_more_than_needed() {
    let mut simulation = Simulation::new((MIB, MIB));
    let begin = |simulation: &mut Simulation, count: usize, length: usize| {
        let clients: Vec<Fd> = (0..count).map(|number| simulation.open(number % 2)).collect();
        for client in &clients {
            simulation.send(*client, OpCode::Binary, false, &vec![7; length]);
        }
        clients
    };
    let small = begin(&mut simulation, 40, 3 * KIB);
    let large = begin(&mut simulation, 10, 700 * KIB);
    let all = [&*small, &*large].concat();
    // The first round measures.
    simulation.remote.set_short_of_memory(true);
    for _ in 0..2 {
        simulation.remote.shed(4 * 700 * KIB as u64, LIMIT);
        simulation.settle();
    }
    assert_eq!((simulation.shed(), simulation.served(&all)), (4, 46));
    assert_eq!(simulation.served(&small), 40);
    // Memory was enough in between: the next round measures again.
    simulation.remote.set_short_of_memory(false);
    simulation.remote.set_short_of_memory(true);
    simulation.remote.shed(1, LIMIT);
    simulation.settle();
    assert_eq!(simulation.shed(), 4);
    for client in &large {
        simulation.outside.close(*client);
    }
    simulation.seconds(10, &[]);
    simulation.remote.shed(1, LIMIT);
    simulation.settle();
    simulation.remote.shed(1, LIMIT);
    simulation.settle();
    assert_eq!((simulation.shed(), simulation.served(&small)), (5, 39), "then the next largest");
}

#[test]
fn slow_readers_count_for_their_share_of_what_they_share() {
    // The kernel takes next to nothing, so everything waits in queues.
    let mut simulation = Simulation::new((KIB, KIB));
    let slow: Vec<Fd> = (0..100).map(|number| simulation.open(number % 2)).collect();
    for worker in 0..2 {
        simulation.remote.post(worker, 300 * KIB, 0).unwrap();
    }
    simulation.settle();
    // Two have frames of their own, which are smaller.
    let alone: Vec<Fd> = (0..2).map(|worker| simulation.open(worker)).collect();
    for client in &alone {
        simulation.send(*client, OpCode::Text, true, b"200000");
    }
    let idle: Vec<Fd> = (0..100).map(|number| simulation.open(number % 2)).collect();
    let all = slow.iter().chain(&alone);
    simulation.seconds(40, &all.copied().collect::<Vec<Fd>>());
    simulation.remote.set_short_of_memory(true);
    for _ in 0..10 {
        simulation.remote.shed(2 * 150_000, LIMIT);
        simulation.settle();
        if simulation.shed() > 0 {
            break;
        }
    }
    assert_eq!(simulation.shed(), 2);
    simulation.remote.set_short_of_memory(false);
    assert_eq!((simulation.served(&alone), simulation.served(&idle)), (0, 100));
    assert_eq!(simulation.served(&slow), 100, "they share what they hold");
    let totals = Totals::sum(simulation.remote.counters());
    assert_eq!(totals.queued_bytes, 0, "nothing is left in a queue");
}

#[test]
fn queues_of_shed_clients_are_freed_at_once() {
    let mut simulation = Simulation::new((KIB, KIB));
    let slow: Vec<Fd> = (0..8).map(|_| simulation.open(0)).collect();
    for client in &slow {
        // The first is begun, and is too long to be finished for the sake of a close frame.
        for length in [&b"100000"[..], b"200000", b"50000"] {
            simulation.send(*client, OpCode::Text, true, length);
        }
    }
    let queued = |simulation: &Simulation| {
        let totals = Totals::sum(simulation.remote.counters());
        totals.queued_bytes as usize
    };
    assert!(queued(&simulation) > 8 * 340_000, "{}", queued(&simulation));
    simulation.remote.set_short_of_memory(true);
    for _ in 0..2 {
        simulation.remote.shed(MIB as u64 * 10, LIMIT);
        simulation.settle();
    }
    assert_eq!((simulation.shed(), queued(&simulation)), (8, 0), "no time has passed since");
    let totals = Totals::sum(simulation.remote.counters());
    assert_eq!((totals.dropped_gone, totals.connections), (24, 0));
}

#[test]
fn idle_clients_are_closed_only_if_that_frees_enough() {
    let mut simulation = Simulation::new((MIB, MIB));
    let idle: Vec<Fd> = (0..200).map(|number| simulation.open(number % 2)).collect();
    let busy: Vec<Fd> = (0..20).map(|number| simulation.open(number % 2)).collect();
    simulation.seconds(40, &busy);
    simulation.short_of_memory(MIB as u64);
    simulation.short_of_memory(1);
    assert_eq!((simulation.shed(), simulation.served(&idle)), (0, 200), "they free nothing");
    simulation.seconds(40, &busy);
    let half = simulation.outside.connect(address(0), None).unwrap();
    simulation.outside.send(half, &HANDSHAKE[..20]).unwrap();
    simulation.settle();
    simulation.remote.set_short_of_memory(true);
    for _ in 0..2 {
        assert!(simulation.remote.shed(10 * KIB as u64, 100 * KIB as u64));
        simulation.settle();
    }
    let answer = String::from_utf8(simulation.received(half)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let shed = simulation.shed() as usize;
    assert!((1..=20).contains(&shed), "{shed}: a share in each round");
    let served = (simulation.served(&idle), simulation.served(&busy));
    assert_eq!(served, (200 - shed, 20), "clients that are active stay");
}

#[test]
fn many_entries_of_a_handler_are_examined_over_several_turns() {
    let mut simulation = Simulation::with_entries((MIB, MIB), 20_000);
    (0..40).for_each(|_| {
        simulation.open(0);
    });
    let turns = |simulation: &Simulation| {
        simulation.remote.counters().map(|counters| counters.turns.get()).sum::<u64>()
    };
    let before = turns(&simulation);
    simulation.remote.set_short_of_memory(true);
    assert!(simulation.remote.can_shed(1, LIMIT), "nothing is measured yet");
    simulation.remote.shed(1, LIMIT);
    simulation.settle();
    assert!(!simulation.remote.can_shed(1, LIMIT), "they hold nothing");
    let turns = turns(&simulation) - before;
    assert!(turns >= 40, "{turns} turns for 800,000 entries");
}
