//! A server at capacity over real sockets: a full worker passes its listener on, and no connection in its
//! queue is reset.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use engine::sys::process;
use engine::{
    Answer, Closed, ConnId, Core, Destination, Handler, Incoming, Limits, Plan, Sys, Tables,
    Totals, Workers,
};
use wire::websocket::OpCode;

const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Workers' tables start as copies of the process's, so only one test at a time may open sockets.
static ALONE: Mutex<()> = Mutex::new(());

struct Echo {
    /// What it connects to for each WebSocket that it accepts, as a proxy does.
    upstream: Option<SocketAddr>,
}

impl Handler for Echo {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, core: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        if let Some(upstream) = self.upstream {
            core.keep_room_for_pairs();
            core.connect_raw(Destination::Tcp(upstream), None, None).unwrap();
        }
        Answer::Upgrade(None)
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        opcode: OpCode,
        data: &mut [u8],
    ) {
        core.send(id, opcode, data);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

fn start(workers: usize, capacity: u32, listeners: usize) -> (Workers<()>, SocketAddr) {
    start_with(workers, capacity, listeners, None)
}

fn start_with(
    workers: usize,
    capacity: u32,
    listeners: usize,
    upstream: Option<SocketAddr>,
) -> (Workers<()>, SocketAddr) {
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut numbers = Vec::new();
    for _ in 0..listeners {
        let defer = Duration::ZERO;
        let listen =
            process::Listen { address, backlog: 1024, shared_port: true, defer, v6_only: false };
        let (number, bound) = process::listen(&listen).unwrap();
        numbers.push(number);
        address = bound;
    }
    let plan = Plan { workers, accepting: workers, capacity, tables: Tables::Private };
    let limits = Limits { close_timeout: Duration::from_millis(200), ..Limits::default() };
    let workers = Workers::start(plan, &limits, &numbers, move |_, _| Echo { upstream }).unwrap();
    (workers, address)
}

/// Connects and sends a WebSocket handshake without waiting for the response.
fn ask(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(HANDSHAKE).unwrap();
    stream
}

/// Whether the response arrives within the time.
fn is_open(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut head = Vec::new();
    let mut byte = [0u8; 1];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            Ok(_) => panic!("the stream ended before its answer"),
            Err(error) if error.kind() == ErrorKind::WouldBlock && head.is_empty() => return false,
            Err(error) => panic!("lost while waiting to be accepted: {error}"),
        }
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    true
}

fn echo(stream: &mut TcpStream) {
    stream.write_all(b"\x82\x84\0\0\0\0echo").unwrap();
    let mut answer = [0u8; 6];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"\x82\x04echo");
}

#[test]
fn connection_storm_fills_workers_in_turn_without_resets() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for listeners in [1, 3] {
        let (workers, address) = start(8, 50, listeners);
        let mut streams: Vec<TcpStream> = (0..300).map(|_| ask(address)).collect();
        for stream in &mut streams {
            assert!(
                is_open(stream, Duration::from_secs(10)),
                "not accepted although there is room"
            );
            echo(stream);
        }
        let open: Vec<u32> = workers.remote().open().map(|(open, _)| open).collect();
        assert_eq!(open.iter().sum::<u32>(), 300, "{open:?}");
        assert!(open.iter().all(|&open| open <= 50), "{open:?}");
        let totals = Totals::sum(workers.remote().counters());
        // Six workers are needed, and each listener starts at one.
        assert!(totals.listener_handed_on >= 6 - listeners as u64, "{totals:?}");
        workers.drain(Duration::ZERO).unwrap();
    }
}

#[test]
fn client_waiting_at_capacity_is_accepted_when_another_disconnects() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (workers, address) = start(2, 2, 1);
    let mut inside: Vec<TcpStream> = (0..4).map(|_| ask(address)).collect();
    for stream in &mut inside {
        assert!(is_open(stream, Duration::from_secs(10)));
    }
    let mut waiting: Vec<TcpStream> = (0..4).map(|_| ask(address)).collect();
    for stream in &mut waiting {
        assert!(!is_open(stream, Duration::from_millis(50)), "accepted beyond the capacity");
    }
    for stream in &mut inside {
        echo(stream);
    }
    drop(inside);
    for stream in &mut waiting {
        assert!(is_open(stream, Duration::from_secs(10)), "not accepted within 10 s");
        echo(stream);
    }
    workers.drain(Duration::ZERO).unwrap();
}

#[test]
fn room_is_published_with_the_outgoing_connection_counted() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let upstream = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    // The fourth worker's room is the last: were it published as full with one pair less, its
    // listener would wait for somebody to leave.
    let (workers, address) = start_with(4, 6, 4, Some(upstream.local_addr().unwrap()));
    let mut streams = Vec::new();
    for pairs in 1..=12 {
        let mut stream = ask(address);
        assert!(is_open(&mut stream, Duration::from_secs(10)), "pair {pairs} has to wait");
        streams.push(stream);
        let used: u32 = workers.remote().open().map(|(used, _)| used).sum();
        assert_eq!(used, 2 * pairs);
    }
    workers.drain(Duration::ZERO).unwrap();
}

#[test]
fn sockets_opened_after_the_start_are_in_no_workers_table() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = Plan { workers: 8, accepting: 8, capacity: 4, tables: Tables::Private };
    for _ in 0..20 {
        let low: Vec<File> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
        let (begun, beginnings) = mpsc::channel();
        let begin = move |_, _: &_| {
            begun.send(()).unwrap();
            Echo { upstream: None }
        };
        let workers = Workers::start(plan, &Limits::default(), &[], begin).unwrap();
        // Numbers below the wake-up descriptors, which workers' tables would copy.
        drop(low);
        let (mut one, other) = UnixStream::pair().unwrap();
        for worker in 0..plan.workers {
            workers.remote().post(worker, (), 0).unwrap();
        }
        assert_eq!(beginnings.iter().take(plan.workers).count(), plan.workers);
        one.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        drop(other);
        assert_eq!(one.read(&mut [0; 1]).unwrap(), 0, "nobody else has it open");
        workers.drain(Duration::ZERO).unwrap();
    }
}
