//! Listeners that workers at capacity hand on, park and stop.

use std::net::SocketAddr;
use std::time::Duration;

use wire::websocket::OpCode;

use super::*;
use crate::sys::sim::{Kernel, Sim};
use crate::{Answer, Closed, ConnId, Core, Incoming, Limits, Remote, Turn};

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

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

/// A worker that accepts on ports from 1 on, each with a listener.
fn with_listeners(kernel: &Kernel, ports: u16) -> Worker<Sim, Host> {
    let listen = |port| kernel.listen(at_port(port), 4096, 0);
    let listeners: Vec<usize> = (1..=ports).map(listen).collect();
    let seat = kernel.seat(1 << 14, &listeners);
    let remote = Remote::new(vec![seat.wake], Limits::default().mailbox_bytes);
    let limits = Limits::default();
    let mut worker =
        Worker::new(seat.sys, 0, limits, remote, &seat.listeners, 1 << 14, Host).unwrap();
    (0..usize::from(ports)).for_each(|index| worker.start_listening(index));
    worker
}

fn at_port(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Workers with these capacities and one listener. The first one owns it.
fn workers<const N: usize>(
    kernel: &Kernel,
    capacities: [u32; N],
) -> (Remote<()>, [Worker<Sim, Host>; N]) {
    let listener = kernel.listen(address(), 16, 0);
    let seats = [(); N].map(|()| kernel.seat(64, &[listener]));
    let (mut wakes, mut seated) = (Vec::new(), Vec::new());
    for seat in seats {
        wakes.push(seat.wake);
        seated.push((seat.sys, seat.listeners));
    }
    let remote = Remote::new(wakes, Limits::default().mailbox_bytes);
    let mut seated = seated.into_iter().zip(0..);
    let mut workers = capacities.map(|capacity| {
        let ((sys, listeners), index) = seated.next().unwrap();
        let mailbox = remote.clone();
        Worker::new(sys, index, Limits::default(), mailbox, &listeners, capacity, Host).unwrap()
    });
    workers[0].listeners[0].owned = true;
    workers[0].watch_listener(0);
    (remote, workers)
}

fn turns(worker: &mut Worker<Sim, Host>) -> Turn {
    for _ in 0..3 {
        if worker.turn(Some(Duration::ZERO)).unwrap() == Turn::Stopped {
            return Turn::Stopped;
        }
    }
    Turn::Running
}

#[test]
fn a_worker_is_no_longer_full_without_its_listener_or_with_room() {
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let (_, [mut full, _other]) = workers(&kernel, [1, 1]);
    let mut outside = kernel.outside();
    let client = outside.connect(address(), None).unwrap();
    turns(&mut full);
    assert_eq!(full.core.connections(), 1);
    full.core.full = true;
    full.pass_listener_on(0);
    assert!(!full.core.full, "nobody waits for this worker");
    full.core.full = true;
    outside.close(client);
    turns(&mut full);
    assert_eq!((full.core.connections(), full.core.full), (0, false), "there is room");
}

#[test]
fn a_listener_is_not_parked_beside_a_worker_that_may_make_room() {
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    // The other worker's connection becomes idle before the listener is parked …
    let (remote, [mut full, mut other]) = workers(&kernel, [0, 0]);
    full.listeners[0].owned = false;
    other.core.set_may_make_room(true);
    full.park_listener(0, 0);
    assert!(!remote.shared.parked.any(1));
    turns(&mut other);
    assert!(other.listeners[0].owned);
}

#[test]
fn a_worker_that_may_make_room_takes_over_a_parked_listener() {
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    // … or after that, when it was answered as if nobody waited.
    let (remote, [mut full, mut other]) = workers(&kernel, [0, 0]);
    full.listeners[0].owned = false;
    full.park_listener(0, 0);
    assert!(remote.shared.parked.any(1));
    other.core.set_may_make_room(true);
    assert!(!remote.shared.parked.any(1));
    turns(&mut other);
    assert!(other.listeners[0].owned);
}

#[test]
fn a_listener_is_not_handed_to_a_stopped_worker() {
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let (remote, [mut full, mut other]) = workers(&kernel, [0, 8]);
    remote.drain(Duration::ZERO);
    assert_eq!(turns(&mut other), Turn::Stopped);
    // It has not read its mail yet.
    full.pass_listener_on(0);
    assert_eq!(turns(&mut full), Turn::Stopped);
    let listener = full.listeners[0].fd;
    let refused = full.core.sys.accept(listener).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "it is stopped");
}

#[test]
fn a_draining_worker_without_descriptors_keeps_its_listener_to_stop_it() {
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let (remote, [mut full, _other]) = workers(&kernel, [8, 8]);
    let mut outside = kernel.outside();
    outside.connect(address(), None).unwrap();
    turns(&mut full);
    remote.drain(Duration::from_secs(1_000));
    turns(&mut full);
    assert!(full.is_draining() && full.core.connections() == 1);
    full.listeners[0].owned = true;
    full.accept_failed(0, &io::Error::from_raw_os_error(libc::EMFILE));
    assert!(full.listeners[0].owned);
}

/// Turns until the worker has that many connections.
fn turns_until(worker: &mut Worker<Sim, Host>, connections: u32) -> u64 {
    let turns = |worker: &Worker<Sim, Host>| worker.core.counters().turns.get();
    let before = turns(worker);
    while worker.core.connections() < connections {
        assert!(turns(worker) - before < 100_000, "{} arrive", worker.core.connections());
        assert_eq!(worker.turn(Some(Duration::ZERO)).unwrap(), Turn::Running);
    }
    turns(worker) - before
}

#[test]
fn clients_that_come_one_by_one_are_accepted_without_looking_for_another() {
    for ports in [1, 32] {
        let kernel = Kernel::new(1, (1 << 16, 1 << 16));
        let mut worker = with_listeners(&kernel, ports);
        let mut outside = kernel.outside();
        let before = kernel.accepts_in_vain();
        for client in 0..1_000_u16 {
            outside.connect(at_port(1 + client % ports), None).unwrap();
            turns_until(&mut worker, u32::from(client) + 1);
        }
        let in_vain = kernel.accepts_in_vain() - before;
        assert!(in_vain <= 1_000 / 16, "{in_vain} with {ports} listeners");
    }
}

#[test]
fn a_long_accept_queue_is_taken_in_long_batches() {
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let mut worker = with_listeners(&kernel, 1);
    let mut outside = kernel.outside();
    let before = kernel.accepts_in_vain();
    for _ in 0..4_000 {
        outside.connect(at_port(1), None).unwrap();
    }
    let turns = turns_until(&mut worker, 4_000);
    // 64 are the budget of a turn; it takes some turns to learn that so many wait.
    assert!(turns <= 4_000 / ACCEPTS_PER_TURN as u64 + 32, "{turns} turns");
    assert!(kernel.accepts_in_vain() - before <= 1);
}

#[test]
fn accept_queues_of_a_worker_are_served_in_turn() {
    let kernel = Kernel::new(1, (1 << 16, 1 << 16));
    let mut worker = with_listeners(&kernel, 32);
    let mut outside = kernel.outside();
    // A storm on the first port does not delay the single client of each other port.
    for _ in 0..4_000 {
        outside.connect(at_port(1), None).unwrap();
    }
    let clients: Vec<_> =
        (2..=32).map(|port| outside.connect(at_port(port), None).unwrap()).collect();
    worker.turn(Some(Duration::ZERO)).unwrap();
    for client in clients {
        assert!(outside.was_accepted(client));
    }
}
