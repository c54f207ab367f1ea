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

struct House {
    kernel: Kernel,
    remote: Remote<()>,
    worker: Worker<Sim, Host>,
    outside: Sim,
}

impl House {
    fn new(limits: Limits) -> House {
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
        House { kernel, remote, worker, outside }
    }

    fn connect(&mut self) -> Fd {
        self.outside.connect(address(), None).unwrap()
    }

    fn turns(&mut self) {
        for _ in 0..4 {
            self.worker.turn(Some(Duration::ZERO)).unwrap();
        }
    }

    fn say(&mut self, fd: Fd, bytes: &[u8]) {
        assert_eq!(self.outside.send(fd, bytes).unwrap(), bytes.len());
        self.turns();
    }

    /// All that was answered by now.
    fn heard(&mut self, fd: Fd) -> String {
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
fn a_body_comes_whole_however_it_is_cut() {
    let twice = format!("{}{CHUNKED}{}", counted("/", "hello"), counted("/", ""));
    for step in [1, 7, 30, twice.len()] {
        let mut house = House::new(Limits::default());
        let fd = house.connect();
        for piece in twice.as_bytes().chunks(step) {
            house.say(fd, piece);
        }
        let heard = house.heard(fd);
        let bodies: Vec<&str> = heard.lines().filter(|line| line.starts_with("got")).collect();
        assert_eq!(bodies, ["got hello", "got hello", "got "], "in steps of {step}: {heard}");
        assert_eq!(heard.matches("Connection: keep-alive").count(), 3, "{heard}");
        let totals = house.totals();
        assert_eq!((totals.bodies_in, totals.body_bytes, totals.connections), (3, 0, 1));
    }
}

#[test]
fn whoever_waits_for_leave_to_send_gets_it() {
    let mut house = House::new(Limits::default());
    let fd = house.connect();
    house.say(
        fd,
        b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
    );
    assert_eq!(house.heard(fd), "HTTP/1.1 100 Continue\r\n\r\n");
    house.say(fd, b"ok");
    assert!(house.heard(fd).ends_with("got ok\n"));
}

#[test]
fn an_answer_may_come_later_and_the_connection_goes_on() {
    let mut house = House::new(Limits::default());
    let fd = house.connect();
    for text in ["one", "two"] {
        house.say(fd, (counted("/later", text) + "GET / HTTP").as_bytes());
        assert_eq!(house.heard(fd), "");
        let (id, body) = house.worker.parts().0.later.pop().unwrap();
        house.remote.answer(id, Answer::Respond(got(&body)));
        house.turns();
        let heard = house.heard(fd);
        assert!(heard.contains("keep-alive") && heard.ends_with(&format!("got {text}\n")));
        house.say(fd, b"/1.1\r\nHost: h\r\n\r\n");
        assert!(house.heard(fd).ends_with("got \n"), "what came behind it is read then");
    }
}

#[test]
fn a_body_that_is_too_long_is_refused_before_it_is_read() {
    let long = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n".to_owned();
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
    let ten = "a\r\n0123456789\r\n".repeat(10);
    for request in [long, chunked.clone() + "65\r\n", chunked + &ten + "1\r\n"] {
        let mut house = House::new(Limits::default());
        let fd = house.connect();
        house.say(fd, request.as_bytes());
        let heard = house.heard(fd);
        assert!(heard.starts_with("HTTP/1.1 413 "), "{heard}");
        let totals = house.totals();
        let violation = wire::Violation::BodyTooLarge as usize;
        assert_eq!((totals.violations[violation], totals.body_bytes), (1, 0));
    }
}

#[test]
fn a_body_nobody_asks_for_is_not_read() {
    let mut house = House::new(Limits::default());
    let fd = house.connect();
    house.say(fd, counted("/ignored", "x").as_bytes());
    let heard = house.heard(fd);
    assert!(heard.contains("Connection: close") && heard.ends_with("got no body\n"), "{heard}");
    assert_eq!(house.totals().bodies_in, 0);
}

#[test]
fn a_body_that_does_not_come_is_given_up() {
    let mut house = House::new(Limits::default());
    let (slow, gone) = (house.connect(), house.connect());
    // An earlier request on the same connection leaves an older deadline behind.
    house.say(slow, counted("/", "first").as_bytes());
    house.heard(slow);
    house.kernel.advance(9 * SECOND_NS);
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\nbegun";
    house.say(slow, head.as_bytes());
    house.say(gone, head.as_bytes());
    assert_eq!(house.totals().body_bytes, 10);
    house.outside.close(gone);
    house.turns();
    assert_eq!(house.totals().body_bytes, 5, "what is gone is not held");
    house.kernel.advance(9 * SECOND_NS);
    house.turns();
    assert_eq!(house.heard(slow), "", "it has its own time");
    house.kernel.advance(11 * SECOND_NS);
    house.turns();
    let heard = house.heard(slow);
    assert!(heard.starts_with("HTTP/1.1 408 "), "{heard}");
    let totals = house.totals();
    assert_eq!((totals.bodies_late, totals.body_bytes), (1, 0));
}

#[test]
fn a_worker_holds_only_so_much_of_all_bodies() {
    let mut house = House::new(Limits { bodies_bytes: 120, ..Limits::default() });
    let fds: Vec<Fd> = (0..3).map(|_| house.connect()).collect();
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60\r\n\r\n";
    for &fd in &fds {
        house.say(fd, (head.to_owned() + &"x".repeat(50)).as_bytes());
    }
    let heard: Vec<String> = fds.iter().map(|&fd| house.heard(fd)).collect();
    assert!(heard[0].is_empty() && heard[1].is_empty(), "{heard:?}");
    assert!(heard[2].starts_with("HTTP/1.1 503 ") && heard[2].contains("Retry-After"));
    assert_eq!((house.totals().bodies_refused, house.totals().body_bytes), (1, 100));
    house.say(fds[0], &[b'y'; 10]);
    assert!(house.heard(fds[0]).contains("200 OK"));
    assert_eq!(house.totals().body_bytes, 50);
}
