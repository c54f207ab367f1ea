//! Several workers accept from one UNIX socket: a connection wakes one of them, all of them get their share,
//! and none is lost.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Response, Sys, Tables, Totals,
    Workers,
};
use wire::websocket::OpCode;

const WORKERS: usize = 4;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(30);

/// Workers' tables start as copies of the process's, so only one test at a time may open sockets.
static ALONE: Mutex<()> = Mutex::new(());

struct Answers;

impl Handler for Answers {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(200, "ok\n"))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

/// Workers that accept from one UNIX socket, each by a descriptor of its own.
struct Server {
    workers: Workers<()>,
    path: PathBuf,
}

impl Server {
    fn start(name: &str, capacity: u32) -> Server {
        let file = format!("standfast-{}-{name}.sock", std::process::id());
        let path = std::env::temp_dir().join(file);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let others = (1..WORKERS).map(|_| listener.try_clone().unwrap());
        let mut numbers: Vec<i32> = others.map(IntoRawFd::into_raw_fd).collect();
        numbers.push(listener.into_raw_fd());
        let tables = Tables::Private;
        let plan = Plan { workers: WORKERS, accepting: WORKERS, capacity, tables };
        let workers = Workers::start(plan, &Limits::default(), &numbers, |_, _| Answers).unwrap();
        Server { workers, path }
    }

    fn totals(&self) -> Totals {
        Totals::sum(self.workers.remote().counters())
    }

    /// Waits until no worker turns any more.
    fn settle(&self) {
        let (mut before, mut same) = (self.totals().turns, 0);
        while same < 3 {
            thread::sleep(Duration::from_micros(200));
            let now = self.totals().turns;
            same = if now == before { same + 1 } else { 0 };
            before = now;
        }
    }

    fn end(self) {
        self.workers.drain(Duration::ZERO).unwrap();
        std::fs::remove_file(&self.path).unwrap();
    }
}

/// Connects as soon as there is room in the queue.
fn connect(path: &Path) -> UnixStream {
    for _ in 0..PATIENCE.as_millis() {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the queue stays full");
}

fn is_answered(mut stream: UnixStream) {
    stream.write_all(REQUEST).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_connection_wakes_one_worker_and_all_get_their_share() {
    const CONNECTIONS: u64 = 1_000;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start("wakes", 1_000);
    is_answered(connect(&server.path));
    let accepted = || -> Vec<u64> {
        server.workers.remote().counters().map(|counters| counters.accepted.get()).collect()
    };
    let (sleeps, before) = (sleeps(), accepted());
    for _ in 0..CONNECTIONS {
        let stream = connect(&server.path);
        // All of them are idle again, however slow the machine is.
        server.settle();
        is_answered(stream);
        server.settle();
    }
    let sleeps = self::sleeps() - sleeps;
    // After its accept, its request and its end. With all workers woken by a connection, three more.
    let each = sleeps as f64 / CONNECTIONS as f64;
    println!("a connection makes workers sleep {each} times");
    assert!(each < 4.5, "{each}");
    let shares: Vec<u64> = accepted().iter().zip(before).map(|(now, then)| now - then).collect();
    assert_eq!(shares.iter().sum::<u64>(), CONNECTIONS);
    let least = CONNECTIONS / WORKERS as u64 / 2;
    assert!(shares.iter().all(|share| *share >= least), "{shares:?}");
    server.end();
}

/// How often workers went to sleep so far: a worker that is woken and finds nothing to do sleeps again within
/// epoll, without a turn.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let of_workers = statuses.filter(|status| status.starts_with("Name:\tworker-"));
    let count = |status: String| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line?.trim().parse().ok()
    };
    of_workers.filter_map(count).sum()
}

#[test]
fn no_connection_of_a_storm_is_lost() {
    const CLIENTS: usize = 8;
    const EACH: usize = 300;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for capacity in [1_000, 3] {
        // With little room workers pass their descriptors on and stop watching, with others queued.
        let server = Server::start("storm", capacity);
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| (0..EACH).for_each(|_| is_answered(connect(&server.path))));
            }
        });
        let totals = server.totals();
        assert_eq!(totals.accepted, (CLIENTS * EACH) as u64, "capacity {capacity}");
        server.end();
    }
}
