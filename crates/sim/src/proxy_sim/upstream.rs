//! [`Upstream`]: a server behind the proxy. It answers correctly, late, wrongly, partially or not at all,
//! and its tunnels end in every way.

use std::time::Duration;

use engine::sys::sim::Sim;
use engine::sys::{Fd, Sys};
use fastrand::Rng;

use super::client::{End, waits};
use super::http_reader::{Body, Framing, Head};
use super::ledger::{Direction, Flow, Ledger, bytes};
use super::reaction::{Reaction, partial_head, push_chunks, right_switch, wrong_switch};
use super::scenario::Scenario;

/// How often it looks for connections.
const LOOK_NS: u64 = 2_000_000;
/// For one hop only.
const ONE_HOP: [&str; 6] =
    ["te", "keep-alive", "proxy-connection", "http2-settings", "x-gone", "trailer"];

/// Where a connection is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    /// A request is being read and answered.
    Requested,
    Tunnel,
    /// What it receives is discarded; it may receive nothing of a client.
    Over,
}

struct Leg {
    fd: Fd,
    state: State,
    exchange: u32,
    /// It has received a request: `exchange` is its latest.
    asked: bool,
    /// Which of the exchange's flows its answer is.
    flow: usize,
    upgrade: bool,
    saw_upgrade: bool,
    reaction: Reaction,
    head_only: bool,
    request: Body,
    answer_ns: u64,
    answers_early: bool,
    may_be_asked: bool,
    inbox: Vec<u8>,
    out: Vec<u8>,
    /// It ends its side when all of `out` is sent.
    ends: bool,
    finished: bool,
    sent: u64,
    to_send: u64,
    end: End,
    received: u64,
    received_end: bool,
    paused_until_ns: u64,
    closed: bool,
    /// Bytes that the proxy had read of this connection before it sent this request.
    read_before: u64,
    /// The proxy has read some of the answer.
    answer_read: bool,
}

pub(crate) struct Upstream {
    sys: Sim,
    listener: Fd,
    random: Rng,
    ledger: Ledger,
    rest: Duration,
    bytes_max: u64,
    legs: Vec<Leg>,
    /// PROXY headers are to be expected.
    proxy_header_expected: bool,
    pub(crate) due_ns: u64,
}

impl Upstream {
    pub(crate) fn new(
        (sys, listener): (Sim, i32),
        ledger: Ledger,
        random: Rng,
        scenario: &Scenario,
    ) -> Upstream {
        Upstream {
            due_ns: sys.now_ns(),
            sys,
            listener: Fd::new(listener),
            random,
            ledger,
            rest: scenario.rest,
            bytes_max: scenario.bytes_max,
            legs: Vec::new(),
            proxy_header_expected: scenario.sends_proxy_header(),
        }
    }

    /// Connections that are not over.
    pub(crate) fn legs(&self) -> usize {
        self.legs.len()
    }

    /// In a calm: checks that what should have arrived by now has arrived.
    pub(crate) fn check_ends(&self) {
        for leg in self.legs.iter().filter(|leg| leg.state == State::Tunnel && !leg.received_end) {
            let mut book = self.ledger.book();
            let exchange = book.exchange(leg.exchange).clone();
            let due = exchange.up.ended || exchange.client_gone;
            book.require(!due, || {
                format!("the upstream of {} did not receive the end", leg.exchange)
            });
        }
    }

    /// Ends a side that waits for the other to end.
    pub(crate) fn end_stays(&mut self) {
        for leg in self.legs.iter_mut().filter(|leg| leg.end == End::Stay) {
            leg.end = End::HalfClose;
        }
    }

    pub(crate) fn step(&mut self) {
        let now_ns = self.sys.now_ns();
        let rest = self.rest.as_nanos() as u64;
        let rest = if self.ledger.book().calm { rest.min(1_000_000) } else { rest };
        self.due_ns = now_ns + 1 + self.random.u64(..=rest.min(LOOK_NS));
        while let Ok(fd) = self.sys.accept(self.listener) {
            self.legs.push(Leg::new(fd));
        }
        let mut legs = std::mem::take(&mut self.legs);
        for leg in &mut legs {
            if self.random.u8(..3) > 0 {
                self.step_leg(leg);
            }
        }
        legs.retain(|leg| !leg.closed);
        self.legs = legs;
    }

    fn step_leg(&mut self, leg: &mut Leg) {
        self.note_read(leg);
        let (now_ns, calm) = (self.sys.now_ns(), self.ledger.book().calm);
        if calm || leg.paused_until_ns <= now_ns {
            self.receive(leg);
            if self.random.u8(..40) == 0 {
                leg.paused_until_ns = now_ns + self.random.u64(..300_000_000);
            }
        }
        if leg.closed {
            return;
        }
        let ready = leg.state == State::Requested && (leg.answer_ns <= now_ns || calm);
        if ready && (leg.request.done || leg.answers_early) {
            self.answer(leg, calm);
        }
        self.send(leg);
        let idle = leg.state == State::Waiting && (calm || leg.received_end);
        let done = leg.received_end && (leg.state == State::Over || leg.finished);
        if !leg.closed && (idle || done && leg.out.is_empty()) {
            self.close(leg);
        }
    }

    /// Notes it when the proxy has read some of the answer.
    fn note_read(&self, leg: &mut Leg) {
        let asked = !leg.answer_read && leg.asked;
        if asked && self.sys.read_by_peer(leg.fd) > leg.read_before {
            leg.answer_read = true;
            self.ledger.book().answer_read(leg.exchange);
        }
    }

    fn close(&mut self, leg: &mut Leg) {
        self.note_read(leg);
        self.sys.close(leg.fd);
        leg.closed = true;
    }

    // ---- hearing ----

    fn receive(&mut self, leg: &mut Leg) {
        let mut buffer = [0u8; 4096];
        for _ in 0..8 {
            match self.sys.recv(leg.fd, &mut buffer) {
                Ok(0) => return self.on_end(leg),
                Ok(got) => {
                    leg.inbox.extend_from_slice(buffer.get(..got).unwrap_or_default());
                    self.understand(leg);
                }
                Err(error) if waits(&error) => return,
                Err(_) => return self.lose(leg),
            }
        }
    }

    fn on_end(&mut self, leg: &mut Leg) {
        if std::mem::replace(&mut leg.received_end, true) {
            return;
        }
        match leg.state {
            State::Tunnel => {
                self.ledger.book().received_end(leg.exchange, Direction::Up, leg.received)
            }
            State::Requested | State::Waiting | State::Over => {
                // Its client does not wait for it any more.
                leg.state = State::Over;
                leg.out.clear();
                leg.finished = true;
            }
        }
    }

    /// The connection was reset.
    fn lose(&mut self, leg: &mut Leg) {
        self.end(leg);
    }

    fn understand(&mut self, leg: &mut Leg) {
        while !leg.inbox.is_empty() {
            match leg.state {
                State::Waiting => {
                    if self.proxy_header_expected && !leg.drop_proxy_header() {
                        return;
                    }
                    let Some(head) = Head::take(&mut leg.inbox) else { return };
                    if let Err(why) = self.on_head(leg, &head) {
                        self.ledger
                            .book()
                            .fail(format!("an upstream received {why}: {}", head.line));
                    }
                }
                State::Requested if !leg.request.done => {
                    if !self.read_body(leg) {
                        return;
                    }
                }
                // The next request arrives after this answer; a tunnel's bytes after its 101.
                State::Requested => {
                    let exchange = leg.exchange;
                    leg.inbox.clear();
                    return self.ledger.book().fail(format!("{exchange}: bytes before the answer"));
                }
                State::Tunnel => {
                    let data = std::mem::take(&mut leg.inbox);
                    self.ledger.book().received(leg.exchange, Direction::Up, leg.received, &data);
                    leg.received += data.len() as u64;
                }
                State::Over => {
                    let rest = leg.request.done && !leg.may_be_asked;
                    leg.inbox.clear();
                    let (exchange, why) = (leg.exchange, leg.reaction);
                    let what =
                        || format!("{exchange}: bytes behind an answer ({why:?}) that ends all");
                    return self.ledger.book().require(!rest, what);
                }
            }
        }
    }

    fn on_head(&mut self, leg: &mut Leg, head: &Head) -> Result<(), String> {
        let mut words = head.line.split(' ');
        let method = words.next().unwrap_or_default();
        let path = words.next().and_then(|path| path.strip_prefix("/s/"));
        let exchange: u32 =
            path.and_then(|exchange| exchange.parse().ok()).ok_or("no exchange in the path")?;
        if let Some(name) = ONE_HOP.iter().find(|name| head.count(name) > 0) {
            return Err(format!("{name}, which is for one hop"));
        }
        if head.count("x-forwarded-for") != 1 || head.count("host") != 1 {
            return Err("not one X-Forwarded-For and one Host".to_owned());
        }
        if leg.saw_upgrade {
            return Err("a request instead of an upgrade".to_owned());
        }
        self.note_read(leg);
        (leg.asked, leg.answer_read) = (true, false);
        leg.read_before = self.sys.read_by_peer(leg.fd);
        leg.upgrade = head.value("upgrade") == Some("websocket");
        leg.saw_upgrade = leg.upgrade;
        (leg.exchange, leg.state) = (exchange, State::Requested);
        leg.head_only = method == "HEAD";
        leg.request = Body::new(head.framing(true)?);
        leg.reaction = Reaction::draw(leg.upgrade, &mut self.random);
        let late = self.random.u8(..4) == 0;
        let delay_ns = self.random.u64(..if late { 1_500_000_000 } else { 3_000_000 });
        leg.answer_ns = self.sys.now_ns() + delay_ns;
        leg.answers_early = self.random.u8(..6) == 0;
        self.ledger.book().attempts(exchange, leg.upgrade);
        Ok(())
    }

    /// False while a chunk's size line is incomplete.
    fn read_body(&mut self, leg: &mut Leg) -> bool {
        let from = leg.request.got;
        match leg.request.take(&mut leg.inbox) {
            Ok(data) => {
                let mut book = self.ledger.book();
                book.received(leg.exchange, Direction::Up, from, &data);
                let (sent, got) = (book.exchange(leg.exchange).up.sent, leg.request.got);
                let complete = !leg.request.done || sent == got;
                book.require(complete, || format!("{got} bytes as the complete body of {sent}"));
                leg.request.done || !data.is_empty()
            }
            Err(why) => {
                self.ledger.book().fail(format!("the body of {}: {why}", leg.exchange));
                false
            }
        }
    }

    // ---- saying ----

    fn answer(&mut self, leg: &mut Leg, calm: bool) {
        let early = !leg.request.done;
        let head = match leg.reaction {
            Reaction::Silence if !calm => return,
            Reaction::Silence | Reaction::CloseBefore => return self.end(leg),
            Reaction::ResetBefore => {
                self.sys.reset_on_close(leg.fd);
                return self.end(leg);
            }
            Reaction::Right if leg.upgrade => return self.switch(leg),
            // Without a body there is nothing to cut short.
            Reaction::Short if leg.head_only => return self.complete(leg, 200, early),
            Reaction::Right => return self.complete(leg, 200, early),
            Reaction::Status(status) => return self.complete(leg, status, early),
            Reaction::WrongSwitch(missing) => wrong_switch(missing),
            Reaction::Garbage => "HTTP/1.1 2OO OK\r\nA: b\r\n\r\n".to_owned(),
            Reaction::Partial => partial_head(leg.upgrade, leg.exchange, &mut self.random),
            Reaction::Short => {
                format!("HTTP/1.1 200 OK\r\nX-Index: {}\r\nContent-Length: 9\r\n\r\n", leg.exchange)
            }
            Reaction::Interims => "HTTP/1.1 102 Wait\r\n\r\n".repeat(12),
        };
        let mut book = self.ledger.book();
        book.exchange(leg.exchange).answered += 1;
        book.exchange(leg.exchange).broken = true;
        drop(book);
        leg.out.extend_from_slice(head.as_bytes());
        (leg.ends, leg.state) = (true, State::Over);
    }

    /// Ends it without a further word.
    fn end(&mut self, leg: &mut Leg) {
        if leg.state == State::Tunnel {
            let mut book = self.ledger.book();
            let exchange = book.exchange(leg.exchange);
            (exchange.broken, exchange.aborted) = (true, true);
        }
        self.close(leg);
    }

    fn switch(&mut self, leg: &mut Leg) {
        if self.random.u8(..4) == 0 {
            leg.out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        }
        leg.out.extend_from_slice(right_switch(leg.exchange).as_bytes());
        leg.to_send = self.random.u64(..self.bytes_max);
        let late = self.random.u64(..=leg.to_send.min(5_000)) * u64::from(self.random.bool());
        leg.out.extend(bytes(leg.exchange, Direction::Down, 0, late));
        leg.sent = late;
        leg.end = End::draw(&mut self.random);
        leg.state = State::Tunnel;
        let mut book = self.ledger.book();
        leg.flow = book.answers(leg.exchange);
        book.down(leg.exchange, leg.flow).sent = late;
        book.exchange(leg.exchange).switched = true;
    }

    /// A complete answer, with its body delimited in one of the possible ways.
    fn complete(&mut self, leg: &mut Leg, status: u16, early: bool) {
        let bodiless = matches!(status, 204 | 304);
        // The same from each upstream that it may be sent to.
        let drawn = u64::from(leg.exchange).wrapping_mul(0x9e37_79b9) >> 3;
        let length = if bodiless { 0 } else { drawn % self.bytes_max.min(40_000) };
        let framing = match self.random.u8(..4) {
            _ if bodiless => Framing::Counted(0),
            0 => Framing::UntilEnd,
            1 => Framing::Chunked,
            _ => Framing::Counted(length),
        };
        let closes = early || framing == Framing::UntilEnd || self.random.u8(..5) == 0;
        let mut head = format!("HTTP/1.1 {status} X\r\nX-Index: {}\r\nX-Gone: 1\r\n", leg.exchange);
        head += "Connection: X-Gone\r\nKeep-Alive: 3\r\n";
        match framing {
            Framing::Counted(length) => head += &format!("Content-Length: {length}\r\n"),
            Framing::Chunked => head += "Transfer-Encoding: chunked\r\n",
            Framing::UntilEnd => {}
        }
        if closes && self.random.bool() {
            head += "Connection: close\r\n";
        } else {
            // The proxy may retry as it has received nothing.
            let until_end = framing == Framing::UntilEnd && !leg.head_only;
            leg.may_be_asked = !leg.upgrade && !until_end;
        }
        leg.out.extend_from_slice((head + "\r\n").as_bytes());
        let body = bytes(leg.exchange, Direction::Down, 0, length);
        match framing {
            _ if leg.head_only => {}
            Framing::Chunked => push_chunks(&mut leg.out, &body),
            _ => leg.out.extend(body),
        }
        let mut book = self.ledger.book();
        leg.flow = book.answers(leg.exchange);
        *book.down(leg.exchange, leg.flow) = Flow { sent: length, ended: true, received: 0 };
        drop(book);
        (leg.ends, leg.state) = (closes, if closes { State::Over } else { State::Waiting });
        // The rest of its request is harmless.
        leg.request.done &= !early;
    }

    fn send(&mut self, leg: &mut Leg) {
        if leg.out.is_empty() && leg.state == State::Tunnel && leg.sent < leg.to_send {
            let count = (leg.to_send - leg.sent).min(1 + self.bytes_max / 20);
            leg.out = bytes(leg.exchange, Direction::Down, leg.sent, count);
            leg.sent += count;
            self.ledger.book().down(leg.exchange, leg.flow).sent = leg.sent;
        }
        while !leg.out.is_empty() {
            match self.sys.send(leg.fd, &leg.out) {
                Ok(sent) => drop(leg.out.drain(..sent)),
                Err(error) if waits(&error) => return,
                Err(_) => return self.lose(leg),
            }
        }
        if leg.finished || leg.closed {
            return;
        }
        let all = leg.sent == leg.to_send;
        match (leg.state, leg.end) {
            (State::Over, _) if leg.ends => self.finish(leg),
            // No side waits for ever.
            (State::Tunnel, End::Stay) if self.random.u16(..500) == 0 => leg.end = End::HalfClose,
            (State::Tunnel, End::Close) if all => self.end(leg),
            (State::Tunnel, End::Reset) if self.random.u8(..8) == 0 => {
                self.sys.reset_on_close(leg.fd);
                self.end(leg);
            }
            (State::Tunnel, _) if all && (leg.end == End::HalfClose || leg.received_end) => {
                self.ledger.book().down(leg.exchange, leg.flow).ended = true;
                self.finish(leg);
            }
            _ => {}
        }
    }

    fn finish(&mut self, leg: &mut Leg) {
        leg.finished = true;
        self.sys.shutdown_write(leg.fd);
    }
}

impl Leg {
    fn new(fd: Fd) -> Leg {
        Leg {
            fd,
            state: State::Waiting,
            exchange: 0,
            asked: false,
            flow: 0,
            upgrade: false,
            saw_upgrade: false,
            reaction: Reaction::Right,
            head_only: false,
            request: Body::new(Framing::Counted(0)),
            answer_ns: 0,
            answers_early: false,
            may_be_asked: false,
            inbox: Vec::new(),
            out: Vec::new(),
            ends: false,
            finished: false,
            sent: 0,
            to_send: 0,
            end: End::HalfClose,
            received: 0,
            received_end: false,
            paused_until_ns: 0,
            closed: false,
            read_before: 0,
            answer_read: false,
        }
    }

    /// Takes the PROXY header off the front, if there is one; false while it is incomplete.
    fn drop_proxy_header(&mut self) -> bool {
        if !self.inbox.starts_with(b"PROXY ") {
            return self.inbox.len() >= 6;
        }
        let Some(end) = self.inbox.windows(2).position(|two| two == b"\r\n") else { return false };
        self.inbox.drain(..end + 2);
        true
    }
}
