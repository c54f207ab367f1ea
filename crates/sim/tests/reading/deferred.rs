//! When replies of sockets that are received together are sent.

use engine::sys::Fd;

use crate::harness::{Simulation, text};

const REPLY: &[u8] = b"\x81\x04echo";

fn four(simulation: &mut Simulation) -> [Fd; 4] {
    [(); 4].map(|()| simulation.connect("/"))
}

/// Asks for an echo on each of these sockets at once. Returns whether a reply had been sent at each call of the handler.
/// The call of this number is slow and has no reply.
fn sent_at(simulation: &mut Simulation, clients: [Fd; 4], slow_call: usize) -> [bool; 4] {
    let before = simulation.totals().bytes_out;
    simulation.host().slow_call = slow_call;
    simulation.host().bytes_out.clear();
    clients.iter().for_each(|fd| simulation.put(*fd, &text("echo")));
    simulation.settle();
    let replies = clients.map(|fd| simulation.receive(fd).0);
    let replied = replies.iter().filter(|reply| *reply == REPLY).count();
    assert_eq!(replied, if slow_call == 0 { 4 } else { 3 }, "{replies:?}");
    let seen = std::mem::take(&mut simulation.host().bytes_out);
    <[u64; 4]>::try_from(seen).unwrap().map(|bytes| bytes > before)
}

#[test]
fn replies_are_sent_after_all_calls() {
    let mut simulation = Simulation::new();
    let clients = four(&mut simulation);
    assert_eq!(sent_at(&mut simulation, clients, 0), [false; 4]);
}

#[test]
fn answers_to_requests_with_bodies_are_sent_after_all_calls() {
    let mut simulation = Simulation::new();
    let clients = [(); 4].map(|()| simulation.connect("/plain"));
    let before = simulation.totals().bytes_out;
    clients
        .iter()
        .for_each(|fd| simulation.put(*fd, b"GET /raw HTTP/1.1\r\nHost: h\r\n\r\nanswer"));
    simulation.settle();
    assert_eq!(simulation.host().bytes_out, [before; 4]);
    assert_eq!(clients.map(|fd| simulation.receive(fd).0), [b"answered"; 4]);
}

#[test]
fn replies_wait_for_one_slow_call_also_if_it_has_no_reply_and_then_for_none() {
    let mut simulation = Simulation::new();
    let clients = four(&mut simulation);
    assert_eq!(sent_at(&mut simulation, clients, 2), [false, false, true, true]);
    for _ in 0..16 {
        assert_eq!(sent_at(&mut simulation, clients, 0), [false, true, true, true]);
    }
    assert_eq!(sent_at(&mut simulation, clients, 0), [false; 4]);
}

#[test]
fn what_ends_a_connection_follows_the_reply_before_it() {
    let mut simulation = Simulation::new();
    let clients = [simulation.connect("/"), simulation.connect("/")];
    // Each ends the other: the one that is called first, after its own reply was collected.
    for fd in clients {
        simulation.put(fd, &[text("echo"), text("abort other")].concat());
    }
    simulation.settle();
    let replies = clients.map(|fd| simulation.receive(fd).0);
    assert_eq!(replies.iter().filter(|reply| *reply == REPLY).count(), 1, "{replies:?}");
}
