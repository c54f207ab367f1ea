//! The simulated kernel by itself: that it behaves as sockets do.

use super::*;

fn machine(limit: usize) -> (Kernel, Sim, Sim, Fd) {
    let kernel = Kernel::new(7, (16, 16));
    let listener = kernel.listen(address(), 8, 0);
    let server = kernel.seat(limit, &[listener]);
    let client = kernel.seat(100, &[]);
    let number = server.listeners[0];
    (kernel, server.sys, client.sys, Fd::new(number))
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn wait(sys: &mut Sim) -> Vec<Event> {
    let mut events = Vec::new();
    sys.wait(&mut events, 100, None).unwrap();
    events
}

#[test]
fn bytes_pass_both_ways_until_the_buffer_is_full_and_the_end_is_read() {
    let (_, mut server, mut client, listener) = machine(100);
    let a = client.connect(address(), None).unwrap();
    let b = server.accept(listener).unwrap();
    assert_eq!(errno(server.accept(listener)), Some(libc::EAGAIN));
    assert_eq!(client.send(a, &[1; 20]).unwrap(), 16);
    assert_eq!(errno(client.send(a, &[1; 20])), Some(libc::EAGAIN));
    let mut buffer = [0; 64];
    assert_eq!(server.recv(b, &mut buffer[..10]).unwrap(), 10);
    assert_eq!(client.send_vectored(a, &[IoSlice::new(b"xy"), IoSlice::new(b"z")]).unwrap(), 3);
    client.shutdown_write(a);
    assert_eq!(errno(client.send(a, b"late")), Some(libc::EPIPE));
    assert_eq!(server.recv(b, &mut buffer).unwrap(), 9);
    assert_eq!(server.recv(b, &mut buffer).unwrap(), 0);
    assert_eq!(server.send(b, b"answer").unwrap(), 6);
    server.close(b);
    assert_eq!(client.recv(a, &mut buffer).unwrap(), 6);
    assert_eq!(client.recv(a, &mut buffer).unwrap(), 0);
}

#[test]
fn closing_with_bytes_unread_resets_the_peer() {
    let (_, mut server, mut client, listener) = machine(100);
    let a = client.connect(address(), None).unwrap();
    let b = server.accept(listener).unwrap();
    client.send(a, b"unread").unwrap();
    server.close(b);
    assert_eq!(errno(client.recv(a, &mut [0; 8])), Some(libc::ECONNRESET));
    assert_eq!(client.recv(a, &mut [0; 8]).unwrap(), 0);
    assert_eq!(errno(client.send(a, b"x")), Some(libc::EPIPE));
}

#[test]
fn a_hang_up_is_reported_whatever_is_watched_and_a_level_until_it_is_gone() {
    let (_, mut server, mut client, listener) = machine(100);
    let a = client.connect(address(), None).unwrap();
    let b = server.accept(listener).unwrap();
    server.watch(b, Interest::NONE, 9).unwrap();
    client.send(a, b"hello").unwrap();
    assert!(wait(&mut server).is_empty(), "nothing is watched for");
    server.rewatch(b, Interest::READ, 9).unwrap();
    let readable = Event { key: 9, readable: true, writable: false, failed: false };
    assert_eq!(wait(&mut server), [readable]);
    assert_eq!(wait(&mut server), [readable]);
    server.rewatch(b, Interest::NONE, 9).unwrap();
    client.reset_on_close(a);
    client.close(a);
    let failed = Event { key: 9, readable: true, writable: true, failed: true };
    assert_eq!(wait(&mut server), [failed]);
    assert!(wait(&mut server).is_empty(), "of what is watched for nothing it is told once");
    server.rewatch(b, Interest::NONE, 9).unwrap();
    assert_eq!(wait(&mut server), [failed]);
    server.close(b);
    assert!(wait(&mut server).is_empty(), "a closed descriptor is not watched");
}

#[test]
fn numbers_are_used_again_at_once_and_a_full_table_shows_before_the_queue_is_looked_at() {
    let (kernel, mut server, mut client, listener) = machine(3);
    assert_eq!(kernel.used(server.table()), 2, "wake-up and listener");
    client.connect(address(), None).unwrap();
    let b = server.accept(listener).unwrap();
    assert_eq!(errno(server.accept(listener)), Some(libc::EMFILE));
    server.close(b);
    assert_eq!(errno(server.accept(listener)), Some(libc::EAGAIN));
    client.connect(address(), None).unwrap();
    assert_eq!(server.accept(listener).unwrap(), b);
    assert_eq!(kernel.counted(Fault::NumberReused), 1);
}

#[test]
fn a_shared_listener_loses_its_queue_only_with_its_last_number() {
    let kernel = Kernel::new(7, (16, 16));
    let listener = kernel.listen(address(), 1, 0);
    let (one, two) = (kernel.seat(9, &[listener]), kernel.seat(9, &[listener]));
    let mut client = kernel.seat(9, &[]).sys;
    let a = client.connect(address(), None).unwrap();
    client.connect(address(), None).unwrap();
    assert_eq!(kernel.counted(Fault::BacklogFull), 1);
    let (mut one, fd) = (one.sys, Fd::new(one.listeners[0]));
    one.watch(fd, Interest::READ, 1).unwrap();
    one.close(fd);
    assert_eq!((kernel.waiting(), kernel.lost()), (1, 0));
    assert_eq!(wait(&mut one).len(), 1, "another table holds it: epoll goes on reporting");
    two.sys.clone().close(Fd::new(two.listeners[0]));
    assert_eq!((kernel.waiting(), kernel.lost()), (0, 1));
    assert_eq!(errno(client.recv(a, &mut [0; 1])), Some(libc::ECONNRESET));
    kernel.advance(2_000_000_000);
    let late = client.connect(address(), None).unwrap();
    assert_eq!(errno(client.connect_outcome(late)), Some(libc::ECONNREFUSED));
}

#[test]
fn the_same_seed_plays_the_same_kernel() {
    let play = |seed| {
        let kernel = Kernel::new(seed, (10, 100));
        for fault in [Fault::ShortRead, Fault::ShortSend, Fault::Interrupted, Fault::LateEvent] {
            kernel.set_rate(fault, 3000);
        }
        let listener = kernel.listen(address(), 8, 0);
        let seat = kernel.seat(9, &[listener]);
        let (mut server, fd) = (seat.sys, Fd::new(seat.listeners[0]));
        let mut client = kernel.seat(9, &[]).sys;
        let a = client.connect(address(), None).unwrap();
        let b = loop {
            if let Ok(b) = server.accept(fd) {
                break b;
            }
        };
        let mut got = 0;
        for _ in 0..100 {
            let _ = client.send(a, &[7; 33]);
            got += server.recv(b, &mut [0; 50]).unwrap_or(0);
        }
        (kernel.trace(), got, kernel.counted(Fault::ShortRead) > 0)
    };
    assert_eq!(play(3), play(3));
    assert_ne!(play(3).0, play(4).0);
    assert!(play(3).2);
}
