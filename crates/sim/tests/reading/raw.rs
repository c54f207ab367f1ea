//! Raw bytes, kept, returned or passed on, and how connections without frames end.

use engine::sys::sim::Kernel;
use engine::sys::{Fd, Sys};
use engine::{Closed, Limits, READ_BUFFER_BYTES, Sent};

use crate::harness::{BUFFER, Simulation, address};

#[test]
fn raw_bytes_that_are_not_used_are_delivered_again() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/raw");
    simulation.host().uses = Some(3);
    simulation.send(fd, b"abcdefgh");
    assert_eq!(simulation.received(0), ["abc"]);
    let read = simulation.totals().bytes_in;
    simulation.send(fd, b"ij");
    assert_eq!((simulation.received(0).len(), simulation.totals().bytes_in), (0, read));
    for expected in [&["def"][..], &["gh", "ij"]] {
        let (host, core) = simulation.worker.parts();
        core.resume(host.ids[0]);
        simulation.settle();
        assert_eq!(simulation.received(0), expected);
    }
    assert_eq!(simulation.totals().bytes_in, read + 2);
}

#[test]
fn raw_connections_received_together_get_their_own_bytes() {
    let mut simulation = Simulation::new();
    let fds: Vec<Fd> = (0..5).map(|_| simulation.connect("/raw")).collect();
    let before = simulation.totals().bytes_in;
    for (at, fd) in fds.iter().enumerate() {
        simulation.put(*fd, "x".repeat(at + 1).as_bytes());
    }
    simulation.settle();
    let expected: Vec<_> = (0..5).map(|at| (at, "x".repeat(at + 1))).collect();
    simulation.host().received.sort();
    assert_eq!(simulation.host().received, expected);
    let all = simulation.totals().bytes_in;
    assert_eq!(all - before, 15);
    assert_eq!(simulation.host().bytes_in, [all; 5], "all are received first");
}

#[test]
fn raw_connections_are_read_once_a_turn() {
    let kernel = Kernel::new(1, (2 * BUFFER, 2 * BUFFER));
    let mut simulation = Simulation::with_kernel(Limits::default(), kernel);
    let fds: Vec<Fd> = (0..3).map(|_| simulation.connect("/raw")).collect();
    let before = simulation.totals().bytes_in;
    fds.iter().for_each(|fd| simulation.put(*fd, &[b'x'; 2 * BUFFER]));
    for turn in 1..=2 {
        simulation.worker.turn(None).unwrap();
        let read = simulation.totals().bytes_in - before;
        assert_eq!(read, turn * 3 * READ_BUFFER_BYTES as u64);
    }
}

#[test]
fn raw_connection_aborted_by_another_in_the_same_turn_delivers_nothing() {
    let mut simulation = Simulation::new();
    for fd in [simulation.connect("/raw"), simulation.connect("/raw")] {
        simulation.put(fd, b"abort other");
    }
    simulation.settle();
    assert_eq!(simulation.host().received.len(), 1);
    assert_eq!(simulation.host().closed, [Closed::Aborted]);
}

/// The answer is collected while the bytes are read, so the end waits for it.
#[test]
fn raw_connection_ends_after_its_last_answer() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/raw");
    simulation.send(fd, b"bye");
    assert_eq!(simulation.receive(fd), (b"good bye".to_vec(), true));
    simulation.send(fd, b"late");
    assert_eq!(simulation.received(0), ["bye"]);
    assert_eq!(simulation.host().closed, []);
    simulation.outside.close(fd);
    simulation.settle();
    assert_eq!(simulation.host().closed, [Closed::ByUs]);
}

#[test]
fn raw_connection_with_a_queue_ends_once_it_is_sent() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/raw");
    let (host, core) = simulation.worker.parts();
    let id = host.ids[0];
    assert_eq!(core.write(id, &[b'x'; BUFFER + 9]), Sent::Queued(9));
    simulation.send(fd, b"bye");
    let (bytes, ended) = simulation.receive(fd);
    assert_eq!((bytes.len(), &bytes[BUFFER + 9..], ended), (BUFFER + 17, &b"good bye"[..], true));
}

#[test]
fn raw_half_close_is_kept_open_only_if_the_handler_wants() {
    for keeps in [false, true] {
        let mut simulation = Simulation::new();
        let fd = simulation.connect("/raw");
        simulation.host().keeps_half_open = keeps;
        simulation.put(fd, b"last");
        simulation.outside.shutdown_write(fd);
        simulation.settle();
        assert_eq!(simulation.received(0), ["last"]);
        assert_eq!(simulation.receive(fd), (Vec::new(), !keeps));
        if keeps {
            let (host, core) = simulation.worker.parts();
            let id = host.ids[0];
            assert_eq!(core.mode(id), Some(engine::Mode::HalfClosed));
            assert_eq!(core.write(id, b"answer"), Sent::Sent);
            core.finish_writing(id);
            simulation.settle();
            assert_eq!(simulation.receive(fd), (b"answer".to_vec(), true));
        }
        assert_eq!(simulation.host().closed, [Closed::Gone]);
    }
}

#[test]
fn http_connection_that_ends_after_its_answer_was_answered() {
    let mut simulation = Simulation::new();
    let fd = simulation.connect("/plain");
    let silent = simulation.outside.connect(address(), None).unwrap();
    simulation.settle();
    simulation.outside.close(fd);
    simulation.settle();
    simulation.outside.close(silent);
    simulation.settle();
    assert_eq!(simulation.host().closed, [Closed::Answered, Closed::Gone]);
}
