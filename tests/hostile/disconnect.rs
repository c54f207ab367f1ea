//! BI-17, BI-27, BI-28, BI-30: peers that connect in masses, stop reading, or disconnect in any
//! state.

use std::net::SocketAddr;
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use crate::harness::eventually;
use crate::harness::server::Server;
use crate::harness::socket::{BINARY, CLOSE, PING, PONG, Socket, TEXT, masked, upgrade};

use super::siege::{HELD, RSS_BYTES, Siege};

/// How many connect: a tenth of the real number, because this suite runs often.
const MASSES: usize = 100_000 / SCALE;
const SLOWLORIS: usize = 10_000 / SCALE;
const SCALE: usize = 10;
/// Memory that may remain used: a byte for every ten connections.
const LEFT_BYTES: u64 = 1 << 20;

/// Runs `leave` for `count` connections from four threads, after some to warm up the server, and
/// requires that memory and descriptors return to their level before. The bystander stays
/// connected.
fn require_nothing_left(server: &Server, count: usize, leave: impl Fn(SocketAddr, usize) + Sync) {
    const THREADS: usize = 4;
    let settle = || {
        eventually("only the bystander is left", || {
            server.metrics()["standfast_connections"] == 1.0
        });
    };
    leave(server.listen, count / 10);
    settle();
    let (descriptors, rss) = (server.descriptors(), server.own_bytes());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| leave(server.listen, count / THREADS));
        }
    });
    settle();
    eventually("every descriptor is given back", || server.descriptors() <= descriptors);
    eventually("memory is given back", || server.own_bytes() <= rss + LEFT_BYTES);
}

fn through(count: usize) -> u64 {
    (count / 10 + count / 4 * 4) as u64
}

#[test]
fn bi_17_masses_of_refused_handshakes() {
    let mut siege = Siege::begin(&["--handshake-timeout", "2s"]);
    let head = upgrade("/echo", &[("Sec-WebSocket-Key", "short")]);
    let request = |address| {
        let mut socket = Socket::connect(address);
        socket.send(head.as_bytes());
        socket
    };
    let refused = |mut socket: Socket| assert_eq!(socket.response().status, 400);
    let begun = siege.withstands(RSS_BYTES, request, refused);
    require_nothing_left(&siege.server, MASSES, |address, count| {
        (0..count).for_each(|_| refused(request(address)));
    });
    siege.server.until_closed("violation", begun + through(MASSES));
    siege.echo();
}

#[test]
fn bi_17_masses_of_resets() {
    let mut siege = Siege::begin(&[]);
    let open = |address| Socket::open(address, "/echo");
    let begun = siege.withstands(RSS_BYTES, open, Socket::reset);
    require_nothing_left(&siege.server, MASSES, |address, count| {
        (0..count).for_each(|_| open(address).reset());
    });
    siege.server.until_closed("reset", begun + through(MASSES));
    siege.echo();
}

/// Heads that are begun and continue, a byte at a time, until the timeout.
#[test]
fn bi_17_slowloris() {
    let mut siege = Siege::begin(&["--handshake-timeout", "1s", "--idle-timeout", "off"]);
    let begin = |address| {
        let mut socket = Socket::connect(address);
        socket.send(b"GET /echo HTTP/1.1\r\nHost: a\r\nX-Slow: ");
        socket
    };
    let ended = |mut socket: Socket| {
        socket.send(b"x");
        assert!(socket.ends(), "closed without an answer");
    };
    // Waiting for each of these in turn would take too long.
    let leave = |socket: Socket| socket.reset();
    let begun = siege.withstands(RSS_BYTES, begin, leave);
    eventually("they are disconnected", || siege.server.metrics()["standfast_connections"] == 1.0);
    let timeouts = siege.server.closed("handshake_timeout");
    assert!(timeouts <= begun);
    require_nothing_left(&siege.server, SLOWLORIS, |address, count| {
        let sockets: Vec<Socket> = (0..count).map(|_| begin(address)).collect();
        sockets.into_iter().for_each(ended);
    });
    siege.server.until_closed("handshake_timeout", timeouts + through(SLOWLORIS));
    siege.echo();
}

/// The client does not read the echo, so the server stops reading from it: what waits is bounded,
/// and nothing is lost.
#[test]
fn bi_27_a_sender_that_does_not_read() {
    let mut siege = Siege::begin(&[]);
    let mut hostile = Socket::open(siege.server.listen, "/echo");
    let frame = masked(BINARY, &[7; 16 * 1024]);
    let attack = |_| (0..64).for_each(|_| hostile.pour(&frame));
    siege.withstands(2 * RSS_BYTES, attack, |()| ());
    let echoes = hostile.poured() / frame.len();
    assert!(echoes > 64, "{echoes} messages were taken");
    for _ in 0..echoes {
        assert_eq!(hostile.frame().unwrap().payload, [7; 16 * 1024]);
    }
    drop(hostile);
    siege.server.until_closed("gone", 1);
}

#[test]
fn bi_27_a_subscriber_that_does_not_read() {
    let mut siege = Siege::begin(&[]);
    let hostile = Socket::open(siege.server.listen, "/topics/x");
    let (admin, body) = (siege.server.admin, json!({ "topic": "x", "data": "x".repeat(32_768) }));
    let body = body.to_string();
    let attack = |_| {
        eventually("it is accepted", || {
            let response = crate::harness::http::post(admin, "/api/publish", &body);
            // On a busy machine the worker is late, and the topic is refused until it is not.
            assert!([200, 429].contains(&response.status), "{response:?}");
            response.status == 200
        });
    };
    siege.withstands(4 * RSS_BYTES, attack, |()| ());
    eventually("its queue is full", || {
        attack(siege.server.listen);
        siege.server.metrics()["standfast_dropped_slow_total"] > 0.0
    });
    // Its time to read the close frame may be over: `limits` has a test of that frame.
    siege.server.until_closed("slow_consumer", 1);
    drop(hostile);
}

/// The states in which a peer may disconnect: what it has sent, and the cause it is counted as.
fn states() -> [(&'static str, Vec<u8>, &'static str); 7] {
    let closing = masked(CLOSE, &1000_u16.to_be_bytes());
    let broken = masked(CLOSE, &[3]);
    let frame = masked(TEXT, b"partial");
    [
        ("open", vec![], "reset"),
        ("in a header", frame[..3].to_vec(), "reset"),
        ("in a payload", masked(BINARY, &[7; 9_000])[..4_000].to_vec(), "reset"),
        ("in a message", masked(0x01, b"begun"), "reset"),
        ("after an echo", masked(TEXT, b"unread"), "reset"),
        ("after its close frame", closing, "by_peer"),
        ("after a violation", broken, "violation"),
    ]
}

#[test]
fn bi_28_resets_in_every_state() {
    for (state, bytes, cause) in states() {
        let mut siege = Siege::begin(&[]);
        let begun = siege.withstands(
            RSS_BYTES,
            |address| {
                let mut socket = Socket::open(address, "/echo");
                // The pong shows that the server has read up to here.
                socket.send(&[masked(PING, b""), bytes.clone()].concat());
                assert_eq!(socket.frame().unwrap().first, PONG);
                socket
            },
            Socket::reset,
        );
        eventually(state, || siege.server.closed(cause) == begun);
    }
}

#[test]
fn bi_28_resets_within_a_head() {
    let mut siege = Siege::begin(&[]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::connect(address);
            socket.send(b"GET /echo HTTP/1.1\r\nHost: a\r\n");
            socket
        },
        Socket::reset,
    );
    // Reset before it was accepted, or after.
    eventually("only the bystander is connected", || {
        siege.server.metrics()["standfast_connections"] == 1.0
    });
    assert!(siege.server.closed("reset") <= begun);
}

/// The client ends its side of the stream, with and without data before; then the server does.
#[test]
fn bi_28_half_closes() {
    let mut siege = Siege::begin(&[]);
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::open(address, "/echo");
            socket.send_frame(TEXT, b"last words");
            socket.finish_sending();
            socket
        },
        |mut socket| {
            assert_eq!(socket.frame().unwrap().payload, b"last words");
            assert!(socket.ends());
        },
    );
    siege.server.until_closed("gone", begun);
    let closed = siege.withstands(
        RSS_BYTES,
        |address| {
            let mut socket = Socket::open(address, "/echo");
            socket.send_frame(CLOSE, &1000_u16.to_be_bytes());
            socket
        },
        |mut socket| {
            assert_eq!(socket.close_code(), 1000);
            assert!(socket.ends(), "the server ends the stream first (RFC 6455 section 7.1.1)");
            socket.send_frame(TEXT, b"still here?");
        },
    );
    siege.server.until_closed("by_peer", closed);
}

/// An unplugged peer sends no FIN; to the server it is just idle. The bystander is active and
/// stays.
#[test]
fn bi_28_peers_that_vanish() {
    let mut siege = Siege::begin(&["--idle-timeout", "1s"]);
    let rss = siege.server.own_bytes();
    let gone: Vec<Socket> = (0..HELD).map(|_| Socket::open(siege.server.listen, "/echo")).collect();
    while siege.server.closed("idle_timeout") < HELD as u64 {
        siege.serves_as_before(|siege, times| {
            (0..HELD).for_each(|turn| times.take(turn, siege, |_| ()));
        });
    }
    assert!(siege.server.own_bytes() <= rss + RSS_BYTES);
    for mut socket in gone {
        assert_eq!(socket.close_code(), 1001);
        assert!(socket.ends());
    }
}

/// The process has no descriptor for new connections: they wait, open ones are served, the server
/// does not spin, and when there are descriptors again the waiting ones are accepted.
#[test]
fn bi_30_no_descriptor_to_accept_with() {
    const ECHOES: usize = 1_000;
    let mut siege = Siege::begin(&[]);
    let pid = i32::try_from(siege.server.pid()).ok().and_then(Pid::from_raw);
    // The server has inherited our limits.
    let few = Rlimit { current: Some(4), ..getrlimit(Resource::Nofile) };
    let usual = prlimit(pid, Resource::Nofile, few).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let mut socket = Socket::connect(siege.server.listen);
        socket.send(upgrade("/echo", &[]).as_bytes());
        waiting.push(socket);
    }
    let rss = siege.server.own_bytes();
    let mut echoes = 0;
    while echoes < ECHOES {
        siege.serves_as_before(|siege, times| {
            (0..HELD).for_each(|turn| times.take(turn, siege, |_| echoes += 1));
        });
    }
    assert!(siege.server.own_bytes() <= rss + RSS_BYTES);
    prlimit(pid, Resource::Nofile, usual).unwrap();
    for socket in &mut waiting {
        assert_eq!(socket.response().status, 101);
    }
    let metrics = siege.server.metrics();
    let pauses = metrics["standfast_accept_paused_total"];
    assert!(pauses > 0.0, "descriptors never ran out");
    assert!(pauses < echoes as f64 / 2.0, "{pauses} pauses in {echoes} echoes: it spins");
    assert_eq!(metrics["standfast_websockets"], 51.0);
}

/// A free descriptor is reused at once; nothing of its last connection may reach the next one,
/// which receives its own echo and nothing else.
#[test]
fn bi_30_reused_descriptors() {
    let mut siege = Siege::begin(&[]);
    let mut number = 0;
    let begun = siege.withstands(
        RSS_BYTES,
        |address| {
            number += 1;
            let mut leaving = Socket::open(address, "/echo");
            leaving.send_frame(TEXT, b"nobody reads this");
            leaving.reset();
            let mut next = Socket::open(address, "/echo");
            let mine = format!("{number} only");
            next.send_frame(TEXT, mine.as_bytes());
            (mine, next)
        },
        |(mine, mut next)| {
            assert_eq!(next.frame().unwrap().payload, mine.as_bytes());
            next.send_frame(CLOSE, &1000_u16.to_be_bytes());
            assert_eq!(next.close_code(), 1000);
            assert!(next.ends());
        },
    );
    siege.server.until_closed("by_peer", begun);
    siege.server.until_closed("reset", begun);
}
