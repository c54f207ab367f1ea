//! Posts and what clients send: who posts and then lets a client connect finds the post in effect before it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use engine::sys::linux::Linux;
use engine::sys::process::{self, now_ns};
use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Response, Sys, Wake, Worker,
};
use wire::websocket::OpCode;

const PATIENCE: Duration = Duration::from_secs(60);

/// Notes what comes, in order. A request for `/posting` posts, and then connects another client.
struct Order {
    came: Vec<String>,
    remote: Remote<&'static str>,
    address: SocketAddr,
    clients: Vec<TcpStream>,
}

impl Handler for Order {
    type User = ();
    type Post = &'static str;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, of: &Incoming) -> Answer {
        self.came.push(of.head.path().to_owned());
        if of.head.path() == "/posting" {
            self.remote.post(0, "post", 0).unwrap();
            self.clients.push(ask(self.address, "/after"));
        }
        Answer::Respond(Response::text(200, "ok"))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, post: &'static str) {
        self.came.push(post.to_owned());
    }
}

struct Descriptor(i32);

impl Wake for Descriptor {
    fn wake(&self) {
        process::wake(self.0);
    }
}

fn listening() -> (Worker<Linux, Order>, SocketAddr, Remote<&'static str>) {
    let wake = process::wake_descriptor().unwrap();
    let remote = Remote::new(vec![Box::new(Descriptor(wake))], 1 << 20);
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let defer = Duration::from_secs(10);
    let listen =
        process::Listen { address, backlog: 16, shared_port: false, defer, v6_only: false };
    let (number, address) = process::listen(&listen).unwrap();
    let sys = Linux::new(Some(wake)).unwrap();
    let handler = Order { came: Vec::new(), remote: remote.clone(), address, clients: Vec::new() };
    let limits = Limits::default();
    let mut worker = Worker::new(sys, 0, limits, remote.clone(), &[number], 16, handler).unwrap();
    remote.give_listener(0, 0);
    worker.turn(Some(Duration::ZERO)).unwrap();
    (worker, address, remote)
}

fn turn_until(worker: &mut Worker<Linux, Order>, condition: impl Fn(&[String]) -> bool) {
    let deadline_ns = now_ns() + PATIENCE.as_nanos() as u64;
    while !condition(&worker.handler().came) {
        assert!(now_ns() < deadline_ns, "after {PATIENCE:?}: {:?}", worker.handler().came);
        worker.turn(Some(Duration::from_millis(10))).unwrap();
    }
}

fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream
}

fn assert_order(came: &[String], round: usize) {
    let place = |what: &str| came.iter().position(|one| one == what);
    assert!(place("post") < place("/after"), "round {round}: {came:?}");
}

#[test]
fn a_post_comes_before_what_was_sent_after_it() {
    let (mut worker, address, remote) = listening();
    let mut clients = Vec::new();
    for round in 0..20 {
        let before = worker.handler().came.len();
        // The listener is reported before the wake-up as well as behind it.
        let others = round % 3;
        clients.extend((0..others).map(|_| ask(address, "/before")));
        remote.post(0, "post", 0).unwrap();
        clients.push(ask(address, "/after"));
        turn_until(&mut worker, |came| came.len() == before + others + 2);
        assert_order(&worker.handler().came[before..], round);
        if round % 4 == 3 {
            clients.clear();
        }
    }
}

#[test]
fn a_post_of_this_turn_comes_before_who_connects_after_it() {
    let (mut worker, address, _) = listening();
    let mut clients = Vec::new();
    for round in 0..20 {
        let before = worker.handler().came.len();
        // The worker accepts several connections in a turn: the one that "/posting" opens can be among them.
        clients.extend(["/before", "/posting", "/before"].map(|path| ask(address, path)));
        turn_until(&mut worker, |came| came.len() == before + 5);
        assert_order(&worker.handler().came[before..], round);
        clients.clear();
        worker.parts().0.clients.clear();
    }
}

/// Each of several threads posts when its last post has come: the worker sleeps only when nobody has woken it.
#[test]
fn no_wake_up_is_lost() {
    const THREADS: usize = 3;
    const POSTS: usize = 10_000;
    let (mut worker, address, remote) = listening();
    let (answers, posters): (Vec<_>, Vec<_>) = ["a", "b", "c"]
        .into_iter()
        .map(|name| {
            let (answer, came) = mpsc::channel();
            let remote = remote.clone();
            let poster = thread::spawn(move || {
                for _ in 0..POSTS {
                    remote.post(0, name, 0).unwrap();
                    came.recv_timeout(PATIENCE).expect("the worker sleeps");
                }
            });
            ((name, answer), poster)
        })
        .unzip();
    let mut clients = Vec::new();
    let mut taken = 0;
    while taken < THREADS * POSTS {
        worker.turn(Some(2 * PATIENCE)).unwrap();
        for came in worker.parts().0.came.drain(..) {
            let Some((_, answer)) = answers.iter().find(|(name, _)| *name == came) else {
                continue;
            };
            answer.send(()).unwrap();
            taken += 1;
            if taken % 1_000 == 0 {
                clients = vec![ask(address, "/"), ask(address, "/")];
            }
        }
    }
    drop(clients);
    posters.into_iter().for_each(|poster| poster.join().unwrap());
}
