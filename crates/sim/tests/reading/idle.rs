//! Silent peers: pinged, then closed.

use std::time::Duration;

use engine::sys::Sys;
use engine::{Closed, Limits};
use wire::websocket::OpCode;

use crate::harness::{Simulation, address, frame, text};

fn idle_after(seconds: u64) -> Limits {
    Limits { idle_timeout: Some(Duration::from_secs(seconds)), ..Limits::default() }
}

#[test]
fn silent_peer_is_pinged_once_and_closed() {
    let mut simulation = Simulation::with(idle_after(100));
    let fd = simulation.connect("/");
    simulation.pass(49);
    assert_eq!(simulation.totals().pings_out, 0);
    simulation.pass(30);
    assert_eq!(simulation.totals().pings_out, 1);
    assert_eq!(simulation.receive(fd), (b"\x89\x00".to_vec(), false));
    simulation.pass(20);
    assert_eq!((simulation.totals().pings_out, simulation.receive(fd)), (1, (Vec::new(), false)));
    simulation.pass(27);
    assert_eq!(simulation.receive(fd).0, b"\x88\x0e\x03\xe9idle timeout");
    assert_eq!(simulation.host().closing, [Closed::IdleTimeout]);
}

#[test]
fn answered_pings_keep_a_connection_open() {
    let mut simulation = Simulation::with(idle_after(100));
    let fd = simulation.connect("/");
    for round in 1..=5 {
        simulation.pass(80);
        assert_eq!(simulation.totals().pings_out, round);
        assert_eq!(simulation.receive(fd), (b"\x89\x00".to_vec(), false));
        simulation.send(fd, &frame(OpCode::Pong, true, b""));
    }
    assert_eq!(simulation.totals().pongs_in, 5);
}

#[test]
fn without_pings_a_silent_peer_is_closed_only() {
    let mut simulation = Simulation::with(Limits { pings: false, ..idle_after(100) });
    let fd = simulation.connect("/");
    simulation.pass(99);
    assert_eq!(simulation.receive(fd), (Vec::new(), false));
    simulation.pass(27);
    assert_eq!(simulation.receive(fd).0, b"\x88\x0e\x03\xe9idle timeout");
    assert_eq!(simulation.totals().pings_out, 0);
}

#[test]
fn paused_and_raw_connections_are_not_closed_as_idle() {
    let mut simulation = Simulation::with(idle_after(100));
    let (paused, raw) = (simulation.connect("/"), simulation.connect("/raw"));
    simulation.send(paused, &text("pause"));
    simulation.pass(300);
    for fd in [paused, raw] {
        assert_eq!(simulation.receive(fd), (Vec::new(), false));
    }
    assert_eq!(simulation.totals().pings_out, 0);
    // From now on it counts as silent.
    let (host, core) = simulation.worker.parts();
    core.resume(host.ids[0]);
    simulation.pass(40);
    assert_eq!(simulation.totals().pings_out, 0);
    simulation.pass(40);
    assert_eq!(simulation.totals().pings_out, 1);
}

/// A head that trickles in does not count as activity, other bytes do.
#[test]
fn received_bytes_count_as_activity_once_a_request_was_accepted() {
    let mut simulation = Simulation::with(idle_after(100));
    let raw = simulation.connect("/raw");
    let head = simulation.outside.connect(address(), None).unwrap();
    simulation.send(head, b"GET / HT");
    simulation.pass(5);
    simulation.put(raw, b"x");
    simulation.send(head, b"TP/1.1\r\n");
    let (_, core) = simulation.worker.parts();
    let idle: Vec<f64> = (0..core.slots())
        .filter_map(|slot| core.info(core.id_at(slot)?))
        .map(|info| info.idle_seconds)
        .collect();
    assert!(idle[0] < 0.5 && (4.0..6.0).contains(&idle[1]), "{idle:?}");
}
