//! Hang-ups of raw connections that are paused: what the peer sent before stays in the kernel until
//! the connection is resumed, and the worker sleeps meanwhile. epoll reports a hang-up whatever a
//! descriptor is watched for, so one that is watched for nothing must report it once only.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use engine::sys::linux::Linux;
use engine::sys::process::now_ns;
use engine::{
    Answer, Closed, ConnId, Core, Destination, Handler, Incoming, Limits, Remote, Response, Sys,
    Turn, Wake, Worker,
};
use wire::websocket::OpCode;

/// How long the worker is watched while it holds the connection.
const HELD: Duration = Duration::from_millis(500);
/// Turns that a worker may take in that time: its timers need a few, and a worker that spins takes
/// tens of thousands.
const TURNS_MAX: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER: &[u8] = b"sent before the hang-up";

/// Reads what arrives on one connection. It pauses the connection as soon as it is connected.
#[derive(Default)]
struct Slow {
    finish_writing: bool,
    id: Option<ConnId>,
    data: Vec<u8>,
    closed: Option<Closed>,
}

impl Handler for Slow {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, ""))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {
        unreachable!("a raw connection is no WebSocket");
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {
        unreachable!("a raw connection is no WebSocket");
    }

    fn connected<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        core.pause(id);
        if self.finish_writing {
            core.finish_writing(id);
        }
        self.id = Some(id);
    }

    fn data<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, data: &mut [u8]) {
        self.data.extend_from_slice(data);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, why: Closed, _: bool) {
        self.closed = Some(why);
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

/// Nobody posts to the worker, so nothing has to wake it.
struct NoWake;

impl Wake for NoWake {
    fn wake(&self) {}
}

/// A worker with one connection to `place`, connected and paused.
fn paused(place: Destination<'_>, finish_writing: bool) -> Worker<Linux, Slow> {
    let remote = Remote::new(vec![Box::new(NoWake)], 0);
    let handler = Slow { finish_writing, ..Slow::default() };
    let sys = Linux::new(None).unwrap();
    let mut worker = Worker::new(sys, 0, Limits::default(), remote, &[], 1, handler).unwrap();
    worker.parts().1.connect_raw(place, None, None).unwrap();
    turn_until(&mut worker, |handler| handler.id.is_some());
    worker
}

fn turn_until(worker: &mut Worker<Linux, Slow>, condition: impl Fn(&Slow) -> bool) {
    let deadline_ns = now_ns() + PATIENCE.as_nanos() as u64;
    while !condition(worker.handler()) {
        assert!(now_ns() < deadline_ns, "the condition does not hold after {PATIENCE:?}");
        assert_eq!(worker.turn(Some(Duration::from_millis(10))).unwrap(), Turn::Running);
    }
}

/// Holds the hung-up connection for [`HELD`], then resumes it.
fn hold_and_resume(mut worker: Worker<Linux, Slow>) {
    let deadline_ns = now_ns() + HELD.as_nanos() as u64;
    let mut turns = 0;
    while let Some(left_ns) = deadline_ns.checked_sub(now_ns()) {
        worker.turn(Some(Duration::from_nanos(left_ns))).unwrap();
        turns += 1;
    }
    let rate = f64::from(turns) / HELD.as_secs_f64();
    println!("{rate} turns per second");
    assert!(turns <= TURNS_MAX, "the worker spins: {rate} turns per second");
    assert_eq!(worker.handler().closed, None, "the connection is still held");

    let (handler, core) = worker.parts();
    core.resume(handler.id.unwrap());
    turn_until(&mut worker, |handler| handler.closed.is_some());
    assert_eq!(worker.handler().data, ANSWER);
    assert_eq!(worker.handler().closed, Some(Closed::Gone));
}

#[test]
fn worker_sleeps_while_a_unix_peer_has_closed_behind_a_paused_connection() {
    let path = std::env::temp_dir().join(format!("standfast-hang-up-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let worker = paused(Destination::Unix(&path), false);
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(ANSWER).unwrap();
    drop(peer);
    hold_and_resume(worker);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn worker_sleeps_while_both_sides_of_a_paused_tcp_connection_have_ended() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = paused(Destination::Tcp(listener.local_addr().unwrap()), true);
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(ANSWER).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the worker has ended its side");
    drop(peer);
    hold_and_resume(worker);
}
