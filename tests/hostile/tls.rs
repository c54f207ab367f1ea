//! BI-29: TLS handshakes that stall, are invalid or are aborted (RFC 8446). The bystander uses TLS,
//! too.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::ClientConfig;

use crate::harness::tls::{Authority, Secure, client_hello};
use crate::harness::{PATIENCE, eventually};

use super::siege::{HELD, Siege};

/// Memory for sessions that have not completed their handshake: 16 KiB each.
const SESSIONS_BYTES: u64 = HELD as u64 * 16 * 1024;

fn siege(more: &[&str]) -> (Siege, Arc<ClientConfig>) {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let flags = ["--tls-cert", &certificate, "--tls-key", &key];
    let config = authority.client(None);
    (Siege::begin_tls(&[&flags[..], more].concat(), &config), config)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Everything that the server sends before it ends the stream.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // It may reset a stream with unread data.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Nothing, or half a ClientHello: no answer, and no connection stays longer than a head may take.
#[test]
fn bi_29_hellos_that_stall() {
    let (mut siege, config) = siege(&["--handshake-timeout", "2s", "--idle-timeout", "off"]);
    let hello = client_hello(&config);
    let mut parts = [0, 1, hello.len() / 2, hello.len() - 1].into_iter().cycle();
    let mut stall = |address| {
        let mut stream = connect(address);
        stream.write_all(&hello[..parts.next().unwrap_or_default()]).unwrap();
        stream
    };
    siege.withstands(SESSIONS_BYTES, &mut stall, drop);
    eventually("they are disconnected", || siege.server.metrics()["standfast_connections"] == 1.0);
    let before = siege.server.closed("handshake_timeout");
    let stalled: Vec<TcpStream> = (0..HELD).map(|_| stall(siege.server.listen)).collect();
    for stream in stalled {
        assert_eq!(answer(stream), b"", "closed without an answer");
    }
    siege.server.until_closed("handshake_timeout", before + HELD as u64);
    siege.echo();
}

/// A ClientHello that arrives in small pieces is valid; then nothing follows.
#[test]
fn bi_29_hellos_that_trickle_in() {
    let (mut siege, config) = siege(&[]);
    let hello = client_hello(&config);
    let begun = siege.withstands(
        SESSIONS_BYTES,
        |address| {
            let mut stream = connect(address);
            for bytes in hello.chunks(32) {
                stream.write_all(bytes).unwrap();
            }
            let mut record = [0];
            stream.read_exact(&mut record).unwrap();
            assert_eq!(record, [22], "a record of the handshake");
            stream
        },
        drop,
    );
    // A client that closes with unread data sends a reset.
    eventually("each is disconnected", || {
        siege.server.closed("gone") + siege.server.closed("reset") == begun
    });
}

/// 64 KiB of junk, plain HTTP, and a ClientHello continued by junk: an alert, then the end.
#[test]
fn bi_29_invalid_hellos() {
    let (mut siege, config) = siege(&[]);
    let hello = client_hello(&config);
    let junk = [
        vec![b'G'; 65_536],
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        [&hello[..hello.len() / 2], &[0xFF; 4_096]].concat(),
        // A record without length, and one of a version that does not exist.
        [&[22, 3, 1, 0, 0][..], &[22, 9, 9, 0, 4, 1, 0, 0, 0]].concat(),
    ];
    let mut turn = junk.iter().cycle();
    let begun = siege.withstands(
        SESSIONS_BYTES,
        |address| {
            let mut stream = connect(address);
            let _ = stream.write_all(turn.next().unwrap());
            stream
        },
        |stream| {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let answer = answer(stream);
            assert!(answer.first().is_none_or(|first| *first == 21), "an alert: {answer:?}");
        },
    );
    siege.server.until_closed("tls_failed", begun);
}

/// A stream that ends without close_notify, and one with it.
#[test]
fn bi_29_ends_with_and_without_close_notify() {
    let (mut siege, config) = siege(&[]);
    let mut polite = [true, false].into_iter().cycle();
    let begun = siege.withstands(
        SESSIONS_BYTES,
        |address| {
            let mut socket = Secure::open(address, &config, "/echo");
            if polite.next() == Some(true) {
                socket.say_goodbye();
            }
            socket
        },
        drop,
    );
    eventually("each is disconnected", || {
        siege.server.closed("gone") + siege.server.closed("reset") == begun
    });
}
