//! [`Upstream`]: a server behind the proxy. It answers correctly, late, wrongly, partially or not at all,
//! and its tunnels end in every way.

use std::time::Duration;

use engine::sys::sim::Sim;
use engine::sys::{Fd, Sys};
use fastrand::Rng;

use super::client::{End, waits};
use super::http_reader::{Body, Framing, Head};
use super::ledger::{Ledger, Way, bytes};
use super::scenario::Scenario;

const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// How often it looks for connections.
const LOOK_NS: u64 = 2_000_000;
/// For one hop only.
const ONE_HOP: [&str; 6] =
    ["te", "keep-alive", "proxy-connection", "http2-settings", "x-gone", "trailer"];

/// How it answers a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Reaction {
    /// What was requested: a tunnel, or an answer.
    Right,
    /// An answer with this status.
    Status(u16),
    /// A 101 that lacks something.
    WrongSwitch(u8),
    Garbage,
    /// The begin of a head, and the end.
    Partial,
    /// Less of the body than was announced, and the end.
    Short,
    /// Too many interim answers.
    Interims,
    CloseBefore,
    ResetBefore,
    Silence,
}

impl Reaction {
    fn draw(upgrade: bool, random: &mut Rng) -> Reaction {
        match random.u8(..20) {
            0..11 => Reaction::Right,
            11 => Reaction::Status(random.choice([200, 404, 503, 426]).unwrap_or(404)),
            12 if !upgrade => Reaction::Status(random.choice([204, 304]).unwrap_or(204)),
            12 | 13 => Reaction::WrongSwitch(random.u8(..3)),
            14 => Reaction::Garbage,
            15 => Reaction::Partial,
            16 => Reaction::CloseBefore,
            17 => Reaction::ResetBefore,
            18 if upgrade => Reaction::Silence,
            18 => Reaction::Short,
            _ if random.bool() => Reaction::Interims,
            _ => Reaction::Silence,
        }
    }
}

/// Where a connection is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    /// A request is being read and answered.
    Asked,
    Tunnel,
    /// What it receives is discarded; it may receive nothing of a client.
    Over,
}

struct Leg {
    fd: Fd,
    state: State,
    story: u32,
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
    said: u64,
    to_say: u64,
    end: End,
    heard: u64,
    heard_end: bool,
    deaf_until_ns: u64,
    gone: bool,
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
    told_by_header: bool,
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
            told_by_header: scenario.tells_by_header(),
        }
    }

    /// Connections that are not over.
    pub(crate) fn legs(&self) -> usize {
        self.legs.len()
    }

    /// In a calm: what should have come by now has come.
    pub(crate) fn check_told(&self) {
        for leg in self.legs.iter().filter(|leg| leg.state == State::Tunnel && !leg.heard_end) {
            let mut book = self.ledger.book();
            let story = book.story(leg.story).clone();
            let due = story.up.ended || story.left;
            book.require(!due, || format!("the upstream of {} was not told the end", leg.story));
        }
    }

    /// Whoever waits for the other to end ends now.
    pub(crate) fn stay_no_longer(&mut self) {
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
        legs.retain(|leg| !leg.gone);
        self.legs = legs;
    }

    fn step_leg(&mut self, leg: &mut Leg) {
        let (now_ns, calm) = (self.sys.now_ns(), self.ledger.book().calm);
        if calm || leg.deaf_until_ns <= now_ns {
            self.hear(leg);
            if self.random.u8(..40) == 0 {
                leg.deaf_until_ns = now_ns + self.random.u64(..300_000_000);
            }
        }
        if leg.gone {
            return;
        }
        let ready = leg.state == State::Asked && (leg.answer_ns <= now_ns || calm);
        if ready && (leg.request.done || leg.answers_early) {
            self.answer(leg, calm);
        }
        self.say(leg);
        let idle = leg.state == State::Waiting && (calm || leg.heard_end);
        let done = leg.heard_end && (leg.state == State::Over || leg.finished);
        if !leg.gone && (idle || done && leg.out.is_empty()) {
            self.sys.close(leg.fd);
            leg.gone = true;
        }
    }

    // ---- hearing ----

    fn hear(&mut self, leg: &mut Leg) {
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
        if std::mem::replace(&mut leg.heard_end, true) {
            return;
        }
        match leg.state {
            State::Tunnel => self.ledger.book().heard_end(leg.story, Way::Up, leg.heard),
            State::Asked | State::Waiting | State::Over => {
                // Nobody waits for it any more.
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
                    if self.told_by_header && !leg.drop_proxy_header() {
                        return;
                    }
                    let Some(head) = Head::take(&mut leg.inbox) else { return };
                    if let Err(why) = self.on_head(leg, &head) {
                        self.ledger.book().fail(format!("an upstream heard {why}: {}", head.line));
                    }
                }
                State::Asked if !leg.request.done => {
                    if !self.read_body(leg) {
                        return;
                    }
                }
                // The next request comes when this one is answered; a tunnel's bytes behind its 101.
                State::Asked => {
                    let story = leg.story;
                    leg.inbox.clear();
                    return self.ledger.book().fail(format!("{story}: bytes before the answer"));
                }
                State::Tunnel => {
                    let data = std::mem::take(&mut leg.inbox);
                    self.ledger.book().heard(leg.story, Way::Up, leg.heard, &data);
                    leg.heard += data.len() as u64;
                }
                State::Over => {
                    let rest = leg.request.done && !leg.may_be_asked;
                    leg.inbox.clear();
                    let (story, why) = (leg.story, leg.reaction);
                    let what =
                        || format!("{story}: bytes behind an answer ({why:?}) that ends all");
                    return self.ledger.book().require(!rest, what);
                }
            }
        }
    }

    fn on_head(&mut self, leg: &mut Leg, head: &Head) -> Result<(), String> {
        let mut words = head.line.split(' ');
        let method = words.next().unwrap_or_default();
        let path = words.next().and_then(|path| path.strip_prefix("/s/"));
        let story: u32 = path.and_then(|story| story.parse().ok()).ok_or("no story")?;
        if let Some(name) = ONE_HOP.iter().find(|name| head.count(name) > 0) {
            return Err(format!("{name}, which is for one hop"));
        }
        if head.count("x-forwarded-for") != 1 || head.count("host") != 1 {
            return Err("not one X-Forwarded-For and one Host".to_owned());
        }
        if leg.saw_upgrade {
            return Err("a request where an upgrade was asked for".to_owned());
        }
        leg.upgrade = head.value("upgrade") == Some("websocket");
        leg.saw_upgrade = leg.upgrade;
        (leg.story, leg.state) = (story, State::Asked);
        leg.head_only = method == "HEAD";
        leg.request = Body::new(head.framing(true)?);
        leg.reaction = Reaction::draw(leg.upgrade, &mut self.random);
        let late = self.random.u8(..4) == 0;
        let delay_ns = self.random.u64(..if late { 1_500_000_000 } else { 3_000_000 });
        leg.answer_ns = self.sys.now_ns() + delay_ns;
        leg.answers_early = self.random.u8(..6) == 0;
        self.ledger.book().asked(story, leg.upgrade);
        Ok(())
    }

    /// False while a chunk's size line is incomplete.
    fn read_body(&mut self, leg: &mut Leg) -> bool {
        let from = leg.request.got;
        match leg.request.take(&mut leg.inbox) {
            Ok(data) => {
                let mut book = self.ledger.book();
                book.heard(leg.story, Way::Up, from, &data);
                let (said, got) = (book.flow(leg.story, Way::Up).said, leg.request.got);
                let whole = !leg.request.done || said == got;
                book.require(whole, || format!("{got} bytes as the whole body of {said}"));
                leg.request.done || !data.is_empty()
            }
            Err(why) => {
                self.ledger.book().fail(format!("the body of {}: {why}", leg.story));
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
            Reaction::Short if leg.head_only => return self.whole(leg, 200, early),
            Reaction::Right => return self.whole(leg, 200, early),
            Reaction::Status(status) => return self.whole(leg, status, early),
            Reaction::WrongSwitch(lacks) => wrong_switch(lacks),
            Reaction::Garbage => "HTTP/1.1 2OO OK\r\nA: b\r\n\r\n".to_owned(),
            Reaction::Partial => "HTTP/1.1 10".to_owned(),
            Reaction::Short => {
                format!("HTTP/1.1 200 OK\r\nX-Story: {}\r\nContent-Length: 9\r\n\r\n", leg.story)
            }
            Reaction::Interims => "HTTP/1.1 102 Wait\r\n\r\n".repeat(12),
        };
        let mut book = self.ledger.book();
        book.story(leg.story).answered += 1;
        book.story(leg.story).broken = true;
        drop(book);
        leg.out.extend_from_slice(head.as_bytes());
        (leg.ends, leg.state) = (true, State::Over);
    }

    /// Ends it without a further word.
    fn end(&mut self, leg: &mut Leg) {
        if leg.state == State::Tunnel {
            let mut book = self.ledger.book();
            let story = book.story(leg.story);
            (story.broken, story.cut) = (true, true);
        }
        self.sys.close(leg.fd);
        leg.gone = true;
    }

    fn switch(&mut self, leg: &mut Leg) {
        if self.random.u8(..4) == 0 {
            leg.out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        }
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nConnection: Upgrade\r\n\
             X-Story: {}\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n",
            leg.story
        );
        leg.out.extend_from_slice(head.as_bytes());
        leg.to_say = self.random.u64(..self.bytes_max);
        let late = self.random.u64(..=leg.to_say.min(5_000)) * u64::from(self.random.bool());
        leg.out.extend(bytes(leg.story, Way::Down, 0, late));
        leg.said = late;
        leg.end = End::draw(&mut self.random);
        leg.state = State::Tunnel;
        let mut book = self.ledger.book();
        book.said(leg.story, Way::Down, late);
        let story = book.story(leg.story);
        story.switched = true;
        story.answered += 1;
    }

    /// An answer that is whole, in one of the ways a body may be delimited.
    fn whole(&mut self, leg: &mut Leg, status: u16, early: bool) {
        let bodiless = matches!(status, 204 | 304);
        // The same from whichever upstream is asked in the end.
        let drawn = u64::from(leg.story).wrapping_mul(0x9e37_79b9) >> 3;
        let length = if bodiless { 0 } else { drawn % self.bytes_max.min(40_000) };
        let framing = match self.random.u8(..4) {
            _ if bodiless => Framing::Counted(0),
            0 => Framing::UntilEnd,
            1 => Framing::Chunked,
            _ => Framing::Counted(length),
        };
        let closes = early || framing == Framing::UntilEnd || self.random.u8(..5) == 0;
        let mut head = format!("HTTP/1.1 {status} X\r\nX-Story: {}\r\nX-Gone: 1\r\n", leg.story);
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
        let body = bytes(leg.story, Way::Down, 0, length);
        match framing {
            _ if leg.head_only => {}
            Framing::Chunked => push_chunks(&mut leg.out, &body),
            _ => leg.out.extend(body),
        }
        let mut book = self.ledger.book();
        book.said(leg.story, Way::Down, length);
        book.flow(leg.story, Way::Down).ended = true;
        book.story(leg.story).answered += 1;
        drop(book);
        (leg.ends, leg.state) = (closes, if closes { State::Over } else { State::Waiting });
        // The rest of its request is harmless.
        leg.request.done &= !early;
    }

    fn say(&mut self, leg: &mut Leg) {
        if leg.out.is_empty() && leg.state == State::Tunnel && leg.said < leg.to_say {
            let count = (leg.to_say - leg.said).min(1 + self.bytes_max / 20);
            leg.out = bytes(leg.story, Way::Down, leg.said, count);
            leg.said += count;
            self.ledger.book().said(leg.story, Way::Down, leg.said);
        }
        while !leg.out.is_empty() {
            match self.sys.send(leg.fd, &leg.out) {
                Ok(sent) => drop(leg.out.drain(..sent)),
                Err(error) if waits(&error) => return,
                Err(_) => return self.lose(leg),
            }
        }
        if leg.finished || leg.gone {
            return;
        }
        let all = leg.said == leg.to_say;
        match (leg.state, leg.end) {
            (State::Over, _) if leg.ends => self.finish(leg),
            // No side waits for ever.
            (State::Tunnel, End::Stay) if self.random.u16(..500) == 0 => leg.end = End::HalfClose,
            (State::Tunnel, End::Close) if all => self.end(leg),
            (State::Tunnel, End::Reset) if self.random.u8(..8) == 0 => {
                self.sys.reset_on_close(leg.fd);
                self.end(leg);
            }
            (State::Tunnel, _) if all && (leg.end == End::HalfClose || leg.heard_end) => {
                self.ledger.book().flow(leg.story, Way::Down).ended = true;
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
            story: 0,
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
            said: 0,
            to_say: 0,
            end: End::HalfClose,
            heard: 0,
            heard_end: false,
            deaf_until_ns: 0,
            gone: false,
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

fn wrong_switch(lacks: u8) -> String {
    let accept = if lacks == 0 { "AAAAAAAAAAAAAAAAAAAAAAAAAAA=" } else { ACCEPT };
    let upgrade = if lacks == 1 { "h2c" } else { "websocket" };
    let connection = if lacks == 2 { "close" } else { "Upgrade" };
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: {upgrade}\r\nConnection: {connection}\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

fn push_chunks(out: &mut Vec<u8>, body: &[u8]) {
    for chunk in body.chunks(1 + body.len() / 7) {
        out.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
}
