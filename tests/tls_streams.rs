//! The stream under TLS: key updates, ends with and without close_notify, truncated records, and more
//! data than the kernel's buffers hold, in both directions.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;

use rustls::ClientConfig;

use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::{BINARY, masked};
use crate::harness::tls::{Authority, Secure};

const MIB: usize = 1 << 20;

/// A server with TLS and one worker, and the configuration of a client that trusts it.
fn start(more: &[&str]) -> (Server, Arc<ClientConfig>) {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let flags = ["--workers", "1", "--tls-cert", &certificate, "--tls-key", &key];
    (Server::start(&[&flags[..], more].concat()), authority.client(None))
}

fn echoes(socket: &mut Secure, message: &[u8]) {
    socket.send(&masked(BINARY, message)).unwrap();
    let frame = socket.frame().expect("an echo");
    assert_eq!((frame.first, frame.payload == message), (BINARY, true));
}

#[test]
fn key_updates_are_accepted_between_and_inside_messages() {
    let (server, config) = start(&[]);
    let mut socket = Secure::open(server.listen, &config, "/echo");
    for length in [1, 5, 3_000, 40_000].into_iter().cycle().take(40) {
        socket.update_keys();
        echoes(&mut socket, &vec![b'k'; length]);
    }
    let frame = masked(BINARY, &vec![b'm'; 60_000]);
    for piece in frame.chunks(25_000) {
        socket.send(piece).unwrap();
        socket.update_keys();
    }
    assert_eq!(socket.frame().map(|frame| frame.payload.len()), Some(60_000));
    // Endless key updates without data end the connection.
    let mut idle = Secure::open(server.listen, &config, "/echo");
    for _ in 0..200 {
        idle.update_keys();
    }
    server.until_closed("tls_failed", 1);
    echoes(&mut socket, b"still here");
}

#[test]
fn the_server_closes_when_the_peer_does_with_or_without_close_notify() {
    let (server, config) = start(&[]);
    let open = || Secure::open(server.listen, &config, "/echo");
    let mut polite = open();
    polite.say_goodbye();
    // Without close_notify this read would fail.
    assert_eq!(polite.frame(), None);
    let mut mute = open();
    mute.tcp().shutdown(Shutdown::Write).unwrap();
    assert_eq!(mute.frame(), None);
    server.until_closed("gone", 2);
    // Data before the end is answered before it.
    let mut last = open();
    last.send(&masked(BINARY, b"the last")).unwrap();
    last.say_goodbye();
    assert_eq!(last.frame().map(|frame| frame.payload), Some(b"the last".to_vec()));
    assert_eq!(last.frame(), None);
    server.until_closed("gone", 3);
}

#[test]
fn a_truncated_record_delivers_nothing() {
    let (server, config) = start(&[]);
    let mut bystander = Secure::open(server.listen, &config, "/echo");
    let received = || server.metrics()["standfast_messages_in_total"];
    for (number, at) in [1, 4, 5, 6, 30].into_iter().enumerate() {
        let mut socket = Secure::open(server.listen, &config, "/echo");
        let record = socket.seal(&masked(BINARY, b"pay 1,000"));
        let before = received();
        (&mut socket.tcp()).write_all(&record[..at]).unwrap();
        socket.tcp().shutdown(Shutdown::Write).unwrap();
        server.until_closed("gone", number as u64 + 1);
        assert_eq!(received(), before, "truncated at {at}");
    }
    // With its last byte the record is complete.
    let mut socket = Secure::open(server.listen, &config, "/echo");
    let record = socket.seal(&masked(BINARY, b"pay 1,000"));
    let (last, most) = record.split_last().unwrap();
    (&mut socket.tcp()).write_all(most).unwrap();
    echoes(&mut bystander, b"meanwhile");
    (&mut socket.tcp()).write_all(&[*last]).unwrap();
    assert_eq!(socket.frame().map(|frame| frame.payload), Some(b"pay 1,000".to_vec()));
}

#[test]
fn a_large_message_arrives_complete_while_a_bystander_is_served() {
    let (server, config) = start(&["--max-message", "32MiB", "--send-queue", "64MiB"]);
    let mut bystander = Secure::open(server.listen, &config, "/echo");
    let mut socket = Secure::open(server.listen, &config, "/echo");
    let message: Vec<u8> = (0..24 * MIB as u32).map(|n| (n ^ (n >> 9)) as u8).collect();
    // The client reads no byte before it has sent the complete message.
    socket.send(&masked(BINARY, &message)).unwrap();
    let queued = || server.metrics()["standfast_queued_bytes"] as usize;
    eventually("the answer is queued", || queued() > MIB);
    echoes(&mut bystander, b"meanwhile");
    // It reads a little, pauses, then reads the rest.
    let mut taken = vec![0; 3 * MIB];
    socket.read_exact(&mut taken).unwrap();
    echoes(&mut bystander, b"and still");
    let reading = thread::spawn(move || {
        let mut rest = vec![0; message.len() + 10 - taken.len()];
        socket.read_exact(&mut rest).unwrap();
        taken.extend(rest);
        assert!(taken[10..] == message, "the answer differs");
        echoes(&mut socket, b"as ever");
    });
    while !reading.is_finished() {
        echoes(&mut bystander, b"while it reads");
    }
    reading.join().unwrap();
    eventually("the queue is empty", || queued() == 0);
}
