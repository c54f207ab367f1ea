//! What only the simulated kernel has: limits of tables, shared listeners, seeds. That it behaves as Linux
//! does is tested by the contract (`sys::contract`).

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
fn buffers_hold_the_configured_number_of_bytes() {
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
fn close_with_unread_bytes_resets_the_peer() {
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
fn a_sender_can_ask_how_much_of_its_bytes_was_read() {
    let (_, mut server, mut client, listener) = machine(100);
    let a = client.connect(address(), None).unwrap();
    let b = server.accept(listener).unwrap();
    client.send(a, b"twelve bytes").unwrap();
    assert_eq!(client.read_by_peer(a), 0);
    server.recv(b, &mut [0; 5]).unwrap();
    server.send(b, b"x").unwrap();
    assert_eq!((client.read_by_peer(a), server.read_by_peer(b)), (5, 0));
    server.recv(b, &mut [0; 16]).unwrap();
    server.close(b);
    assert_eq!(client.read_by_peer(a), 12);
}

#[test]
fn hang_ups_are_reported_for_every_interest() {
    let (_, mut server, mut client, listener) = machine(100);
    let a = client.connect(address(), None).unwrap();
    let b = server.accept(listener).unwrap();
    server.watch(b, Interest::NONE, 9).unwrap();
    client.send(a, b"hello").unwrap();
    assert!(wait(&mut server).is_empty(), "no interest");
    server.rewatch(b, Interest::READ, 9).unwrap();
    let readable = Event { key: 9, readable: true, writable: false, failed: false };
    assert_eq!(wait(&mut server), [readable]);
    assert_eq!(wait(&mut server), [readable]);
    server.rewatch(b, Interest::NONE, 9).unwrap();
    client.reset_on_close(a);
    client.close(a);
    let failed = Event { key: 9, readable: true, writable: true, failed: true };
    assert_eq!(wait(&mut server), [failed]);
    assert!(wait(&mut server).is_empty(), "with no interest it is reported once");
    server.rewatch(b, Interest::NONE, 9).unwrap();
    assert_eq!(wait(&mut server), [failed]);
    server.close(b);
    assert!(wait(&mut server).is_empty(), "a closed descriptor is not watched");
}

#[test]
fn numbers_are_reused_and_a_full_table_fails_before_an_empty_queue() {
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
fn shared_listener_loses_its_queue_with_its_last_number() {
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
    assert_eq!(wait(&mut one).len(), 1, "epoll still reports it because another table has it open");
    two.sys.clone().close(Fd::new(two.listeners[0]));
    assert_eq!((kernel.waiting(), kernel.lost()), (0, 1));
    assert_eq!(errno(client.recv(a, &mut [0; 1])), Some(libc::ECONNRESET));
    kernel.advance(2_000_000_000);
    let late = client.connect(address(), None).unwrap();
    assert_eq!(errno(client.connect_outcome(late)), Some(libc::ECONNREFUSED));
}

#[test]
fn same_seed_gives_the_same_trace() {
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

#[test]
fn removed_end_is_forgotten_by_the_other() {
    let (_, mut server, mut client, listener) = machine(100);
    let a = client.connect(address(), None).unwrap();
    let b = server.accept(listener).unwrap();
    // Both ends are shut, so the unread byte causes no RST.
    server.send(b, b"unread").unwrap();
    server.shutdown_write(b);
    client.shutdown_write(a);
    client.close(a);
    // The next connect gets the file of the removed end.
    let new = client.connect(address(), None).unwrap();
    let accepted = server.accept(listener).unwrap();
    server.close(b);
    server.send(accepted, b"hello").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(client.recv(new, &mut buffer).unwrap(), 5);
    assert_eq!(errno(client.recv(new, &mut buffer)), Some(libc::EAGAIN));
}
