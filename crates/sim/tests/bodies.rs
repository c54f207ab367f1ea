//! Request bodies over the simulated kernel: passed to the handler complete, however they are split, or
//! answered with 413, 408 or 503. Afterwards no memory is held for them.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Response, Totals, Worker,
};
use wire::websocket::OpCode;

const LIMIT: u64 = 100;
const SECOND_NS: u64 = 1_000_000_000;

/// Answers with the body it got; for `/later` through `Remote::answer`.
struct Host {
    later: Vec<(ConnId, Vec<u8>)>,
    is_later: bool,
}

fn got(body: &[u8]) -> Response {
    Response::text(200, format!("got {}\n", String::from_utf8_lossy(body)))
}

impl Handler for Host {
    type User = ();
    type Post = ();

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, request: &Incoming) -> Answer {
        self.is_later = request.head.path() == "/later";
        match request.head.path() {
            "/ignored" => Answer::Respond(got(b"no body")),
            _ => Answer::Body(LIMIT),
        }
    }

    fn body<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, body: Vec<u8>) -> Answer {
        if self.is_later {
            self.later.push((id, body));
            return Answer::Later;
        }
        Answer::Respond(got(&body))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

struct Simulation {
    kernel: Kernel,
    remote: Remote<()>,
    worker: Worker<Sim, Host>,
    outside: Sim,
}

impl Simulation {
    fn new(limits: Limits) -> Simulation {
        let kernel = Kernel::new(7, (64 * 1024, 64 * 1024));
        let listener = kernel.listen(address(), 64, 0);
        let seat = kernel.seat(100, &[listener]);
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let host = Host { later: Vec::new(), is_later: false };
        let listeners = &seat.listeners;
        let worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), listeners, 100, host).unwrap();
        remote.give_listener(0, 0);
        let outside = kernel.outside();
        Simulation { kernel, remote, worker, outside }
    }

    fn connect(&mut self) -> Fd {
        self.outside.connect(address(), None).unwrap()
    }

    fn turns(&mut self) {
        for _ in 0..4 {
            self.worker.turn(Some(Duration::ZERO)).unwrap();
        }
    }

    fn send(&mut self, fd: Fd, bytes: &[u8]) {
        assert_eq!(self.outside.send(fd, bytes).unwrap(), bytes.len());
        self.turns();
    }

    /// All responses so far.
    fn received(&mut self, fd: Fd) -> String {
        let mut buffer = [0; 4096];
        let mut text = String::new();
        while let Ok(count @ 1..) = self.outside.recv(fd, &mut buffer) {
            text += std::str::from_utf8(&buffer[..count]).unwrap();
        }
        text
    }

    fn totals(&self) -> Totals {
        Totals::sum(self.remote.counters())
    }
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

fn counted(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}")
}

const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
    3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: t\r\n\r\n";

#[test]
fn body_is_complete_however_it_is_split() {
    let twice = format!("{}{CHUNKED}{}", counted("/", "hello"), counted("/", ""));
    for step in [1, 7, 30, twice.len()] {
        let mut simulation = Simulation::new(Limits::default());
        let fd = simulation.connect();
        for piece in twice.as_bytes().chunks(step) {
            simulation.send(fd, piece);
        }
        let received = simulation.received(fd);
        let bodies: Vec<&str> = received.lines().filter(|line| line.starts_with("got")).collect();
        assert_eq!(bodies, ["got hello", "got hello", "got "], "in steps of {step}: {received}");
        assert_eq!(received.matches("Connection: keep-alive").count(), 3, "{received}");
        let totals = simulation.totals();
        assert_eq!((totals.bodies_in, totals.body_bytes, totals.connections), (3, 0, 1));
    }
}

#[test]
fn expect_100_continue_is_answered() {
    let mut simulation = Simulation::new(Limits::default());
    let fd = simulation.connect();
    simulation.send(
        fd,
        b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    assert_eq!(simulation.received(fd), "HTTP/1.1 100 Continue\r\n\r\n");
    simulation.send(fd, b"ok");
    assert!(simulation.received(fd).ends_with("got ok\n"));
}

#[test]
fn response_can_be_sent_later_on_a_kept_connection() {
    let mut simulation = Simulation::new(Limits::default());
    let fd = simulation.connect();
    for text in ["one", "two"] {
        simulation.send(fd, (counted("/later", text) + "GET / HTTP").as_bytes());
        assert_eq!(simulation.received(fd), "");
        let (id, body) = simulation.worker.parts().0.later.pop().unwrap();
        simulation.remote.answer(id, Answer::Respond(got(&body)));
        simulation.turns();
        let received = simulation.received(fd);
        assert!(received.contains("keep-alive") && received.ends_with(&format!("got {text}\n")));
        simulation.send(fd, b"/1.1\r\nHost: h\r\n\r\n");
        assert!(simulation.received(fd).ends_with("got \n"), "what came behind it is read then");
    }
}

#[test]
fn too_long_body_is_refused_before_it_is_read() {
    let long = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n".to_owned();
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
    let ten = "a\r\n0123456789\r\n".repeat(10);
    for request in [long, chunked.clone() + "65\r\n", chunked + &ten + "1\r\n"] {
        let mut simulation = Simulation::new(Limits::default());
        let fd = simulation.connect();
        simulation.send(fd, request.as_bytes());
        let received = simulation.received(fd);
        assert!(received.starts_with("HTTP/1.1 413 "), "{received}");
        let totals = simulation.totals();
        let violation = wire::Violation::BodyTooLarge as usize;
        assert_eq!((totals.violations[violation], totals.body_bytes), (1, 0));
    }
}

#[test]
fn body_that_the_handler_does_not_request_is_not_read() {
    let mut simulation = Simulation::new(Limits::default());
    let fd = simulation.connect();
    simulation.send(fd, counted("/ignored", "x").as_bytes());
    let received = simulation.received(fd);
    assert!(
        received.contains("Connection: close") && received.ends_with("got no body\n"),
        "{received}"
    );
    assert_eq!(simulation.totals().bodies_in, 0);
}

#[test]
fn body_that_does_not_arrive_times_out() {
    let mut simulation = Simulation::new(Limits::default());
    let (slow, gone) = (simulation.connect(), simulation.connect());
    // An earlier request on the same connection has an older deadline.
    simulation.send(slow, counted("/", "first").as_bytes());
    simulation.received(slow);
    simulation.kernel.advance(9 * SECOND_NS);
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\nbegun";
    simulation.send(slow, head.as_bytes());
    simulation.send(gone, head.as_bytes());
    assert_eq!(simulation.totals().body_bytes, 10);
    simulation.outside.close(gone);
    simulation.turns();
    assert_eq!(simulation.totals().body_bytes, 5, "what is gone is not held");
    simulation.kernel.advance(9 * SECOND_NS);
    simulation.turns();
    assert_eq!(simulation.received(slow), "", "its own deadline counts");
    simulation.kernel.advance(11 * SECOND_NS);
    simulation.turns();
    let received = simulation.received(slow);
    assert!(received.starts_with("HTTP/1.1 408 "), "{received}");
    let totals = simulation.totals();
    assert_eq!((totals.bodies_late, totals.body_bytes), (1, 0));
}

#[test]
fn worker_limits_the_memory_of_all_bodies() {
    let mut simulation = Simulation::new(Limits { bodies_bytes: 120, ..Limits::default() });
    let fds: Vec<Fd> = (0..3).map(|_| simulation.connect()).collect();
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60\r\n\r\n";
    for &fd in &fds {
        simulation.send(fd, (head.to_owned() + &"x".repeat(50)).as_bytes());
    }
    let received: Vec<String> = fds.iter().map(|&fd| simulation.received(fd)).collect();
    assert!(received[0].is_empty() && received[1].is_empty(), "{received:?}");
    assert!(received[2].starts_with("HTTP/1.1 503 ") && received[2].contains("Retry-After"));
    assert_eq!((simulation.totals().bodies_refused, simulation.totals().body_bytes), (1, 100));
    simulation.send(fds[0], &[b'y'; 10]);
    assert!(simulation.received(fds[0]).contains("200 OK"));
    assert_eq!(simulation.totals().body_bytes, 50);
}
