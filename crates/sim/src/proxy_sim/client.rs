//! [`Client`]: one connection to the proxy: a handshake and a tunnel behind it, or plain requests one
//! after the other. It sends too much too early, stops reading, half-closes, disconnects and resets.

use std::collections::VecDeque;
use std::time::Duration;

use engine::sys::sim::Sim;
use engine::sys::{Fd, Sys};
use fastrand::Rng;

use super::http_reader::{Body, Framing, Head};
use super::ledger::{Direction, Ledger, bytes};
use super::scenario::{Scenario, front};

/// What it does when it has sent everything.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Ends its side and waits for the other's end.
    HalfClose,
    /// Waits for the other's end.
    Stay,
    /// Closes without waiting.
    Close,
    /// Resets the connection before it has sent everything.
    Reset,
}

impl End {
    pub(crate) fn draw(random: &mut Rng) -> End {
        match random.u8(..10) {
            0..5 => End::HalfClose,
            5..8 => End::Stay,
            8 => End::Close,
            _ => End::Reset,
        }
    }
}

/// An answer that is owed.
struct ExpectedAnswer {
    exchange: u32,
    head_only: bool,
}

/// An answer being read.
struct Answer {
    /// The exchange, unless the proxy itself answered.
    exchange: Option<u32>,
    body: Body,
}

pub(crate) struct Client {
    sys: Sim,
    random: Rng,
    ledger: Ledger,
    fd: Option<Fd>,
    over: bool,
    pub(crate) due_ns: u64,
    rest: Duration,
    chunk: usize,
    /// Requests, and tunnel bytes sent before the 101.
    out: Vec<u8>,
    sent: usize,
    /// The requested tunnel, and where its bytes begin in `out`.
    tunnel: Option<(u32, usize)>,
    payload_sent: u64,
    payload_bytes: u64,
    end: End,
    /// Breaking off happens after so many bytes in all.
    disconnects_at: usize,
    finished: bool,
    expected: VecDeque<ExpectedAnswer>,
    answer: Option<Answer>,
    inbox: Vec<u8>,
    open: bool,
    received: u64,
    received_end: bool,
    paused_until_ns: u64,
}

impl Client {
    pub(crate) fn new(sys: Sim, ledger: Ledger, mut random: Rng, scenario: &Scenario) -> Client {
        let now_ns = sys.now_ns();
        let payload_bytes = random.u64(..scenario.bytes_max);
        let mut client = Client {
            fd: None,
            over: false,
            due_ns: now_ns + random.u64(..5_000_000),
            rest: scenario.rest,
            chunk: random.usize(1 + scenario.bytes_max as usize / 40..20_000),
            out: Vec::new(),
            sent: 0,
            tunnel: None,
            payload_sent: 0,
            payload_bytes,
            end: End::draw(&mut random),
            disconnects_at: 0,
            finished: false,
            expected: VecDeque::new(),
            answer: None,
            inbox: Vec::new(),
            open: false,
            received: 0,
            received_end: false,
            paused_until_ns: 0,
            sys,
            random,
            ledger,
        };
        if client.random.u8(..3) > 0 {
            client.plan_tunnel()
        } else {
            client.plan_requests(scenario)
        }
        let all = client.out.len() + client.payload_bytes as usize;
        client.disconnects_at = client.random.usize(..=all);
        client
    }

    fn plan_tunnel(&mut self) {
        let exchange = self.ledger.book().begin(true, false);
        self.out = format!(
            "GET /s/{exchange} HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade, X-Gone\r\n\
             X-Gone: 1\r\nTE: trailers\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        .into_bytes();
        self.tunnel = Some((exchange, self.out.len()));
        self.expected.push_back(ExpectedAnswer { exchange, head_only: false });
        if self.random.u8(..3) == 0 {
            let early = self.random.u64(..=self.payload_bytes.min(8_000));
            self.out.extend(bytes(exchange, Direction::Up, 0, early));
        }
    }

    fn plan_requests(&mut self, scenario: &Scenario) {
        self.payload_bytes = 0;
        if self.end == End::Stay {
            self.end = End::HalfClose;
        }
        for _ in 0..self.random.usize(1..=4) {
            let method = self.random.choice(["GET", "GET", "HEAD", "POST"]).unwrap_or("GET");
            let exchange = self.ledger.book().begin(false, method == "POST");
            let length = match method {
                "POST" => self.random.u64(..scenario.bytes_max.min(30_000)),
                _ => 0,
            };
            self.ledger.book().sent_up(exchange, length);
            let body = bytes(exchange, Direction::Up, 0, length);
            let head = format!("{method} /s/{exchange} HTTP/1.1\r\nHost: h\r\nKeep-Alive: 5\r\n");
            self.out.extend_from_slice(head.as_bytes());
            match method {
                "POST" if self.random.bool() => self.push_chunks(&body),
                "POST" => {
                    let length = format!("Content-Length: {length}\r\n\r\n");
                    self.out.extend_from_slice(length.as_bytes());
                    self.out.extend(body);
                }
                _ => self.out.extend_from_slice(b"\r\n"),
            }
            self.expected.push_back(ExpectedAnswer { exchange, head_only: method == "HEAD" });
        }
    }

    fn push_chunks(&mut self, body: &[u8]) {
        self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        let size = self.random.usize(1 + body.len() / 20..=1 + body.len());
        for chunk in body.chunks(size) {
            self.out.extend_from_slice(format!("{:x};a=b\r\n", chunk.len()).as_bytes());
            self.out.extend_from_slice(chunk);
            self.out.extend_from_slice(b"\r\n");
        }
        self.out.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// In a calm: checks that what should have arrived by now has arrived.
    pub(crate) fn check_ends(&self) {
        let Some((exchange, _)) = self.tunnel.filter(|_| self.open && !self.over) else { return };
        let mut book = self.ledger.book();
        let due = book.end_is_due(exchange) && !self.received_end;
        book.require(!due, || {
            format!("the client of {exchange} did not receive the upstream's end")
        });
    }

    /// Ends a side that waits for the other to end.
    pub(crate) fn end_stays(&mut self) {
        if self.end == End::Stay {
            self.end = End::HalfClose;
        }
    }

    /// One step: sends a little, receives a little.
    pub(crate) fn step(&mut self) {
        let now_ns = self.sys.now_ns();
        let calm = self.ledger.book().calm;
        let rest = if calm { self.rest.min(Duration::from_millis(1)) } else { self.rest };
        self.due_ns = now_ns + 1 + self.random.u64(..=rest.as_nanos() as u64);
        let Some(fd) = self.fd else {
            self.fd = self.sys.connect(front(), None).ok();
            self.over = self.fd.is_none();
            return;
        };
        if calm && !self.sys.was_accepted(fd) {
            return self.disconnect(fd, true);
        }
        self.send(fd);
        if !self.over && (calm || self.paused_until_ns <= now_ns) {
            self.receive(fd);
            if self.random.u8(..40) == 0 {
                self.paused_until_ns = now_ns + self.random.u64(..300_000_000);
            }
        }
        if !self.over && (self.received_end || self.expected.is_empty() && self.tunnel.is_none()) {
            // There is nothing to wait for any more.
            let done = self.tunnel.is_none() || !self.open || self.has_sent_all();
            if done {
                self.disconnect(fd, false);
            }
        }
    }

    fn has_sent_all(&self) -> bool {
        self.sent == self.out.len() && self.payload_sent == self.payload_bytes
    }

    fn send(&mut self, fd: Fd) {
        if self.end == End::Reset && self.sent + self.payload_sent as usize >= self.disconnects_at {
            self.sys.reset_on_close(fd);
            return self.disconnect(fd, true);
        }
        let tail = self.open.then_some(self.tunnel).flatten().map(|(exchange, _)| {
            let count = (self.payload_bytes - self.payload_sent).min(self.chunk as u64);
            bytes(exchange, Direction::Up, self.payload_sent, count)
        });
        let chunk = match self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            Some(rest) => rest.get(..self.chunk.min(rest.len())).unwrap_or(rest).to_vec(),
            None => tail.unwrap_or_default(),
        };
        if !chunk.is_empty() {
            match self.sys.send(fd, &chunk) {
                Ok(sent) => self.on_sent(sent),
                Err(error) if waits(&error) => return,
                Err(_) => return self.disconnect(fd, true),
            }
        }
        if self.finished || !self.has_sent_all() || self.tunnel.is_some() && !self.open {
            return;
        }
        match self.end {
            // No side waits for ever.
            End::Stay if self.random.u16(..500) == 0 => self.end = End::HalfClose,
            End::Close if self.tunnel.is_some() => self.disconnect(fd, true),
            End::HalfClose if self.tunnel.is_some() => {
                self.finished = true;
                self.note_end();
                self.sys.shutdown_write(fd);
            }
            _ => {}
        }
    }

    fn on_sent(&mut self, sent: usize) {
        if self.sent < self.out.len() {
            self.sent += sent;
            let head = self.tunnel.map_or(usize::MAX, |(_, head)| head);
            self.payload_sent = self.sent.saturating_sub(head) as u64;
        } else {
            self.payload_sent += sent as u64;
        }
        if let Some((exchange, _)) = self.tunnel {
            self.ledger.book().sent_up(exchange, self.payload_sent);
        }
    }

    fn note_end(&self) {
        if let Some((exchange, _)) = self.tunnel {
            self.ledger.book().exchange(exchange).up.ended = true;
        }
    }

    /// Closes the connection; `early` if the peer might have had more to send.
    fn disconnect(&mut self, fd: Fd, early: bool) {
        let mut book = self.ledger.book();
        let expected = self.expected.iter().map(|expected| expected.exchange);
        for exchange in expected.chain(self.tunnel.map(|(exchange, _)| exchange)) {
            book.exchange(exchange).broken |= early;
            book.exchange(exchange).client_gone = true;
        }
        drop(book);
        if !early && self.open {
            self.note_end();
        }
        self.sys.close(fd);
        self.over = true;
        self.due_ns = u64::MAX;
    }

    fn receive(&mut self, fd: Fd) {
        let mut buffer = [0u8; 4096];
        for _ in 0..8 {
            match self.sys.recv(fd, &mut buffer) {
                Ok(0) => return self.on_end(),
                Ok(got) => {
                    self.inbox.extend_from_slice(buffer.get(..got).unwrap_or_default());
                    if let Err(why) = self.understand() {
                        let tunnel = self.tunnel;
                        self.ledger.book().fail(format!("a client ({tunnel:?}) received {why}"));
                    }
                }
                Err(error) if waits(&error) => return,
                Err(_) => {
                    if let Some((exchange, _)) = self.tunnel.filter(|_| self.open) {
                        self.ledger.book().received_reset(exchange);
                    }
                    return self.disconnect(fd, true);
                }
            }
        }
    }

    fn on_end(&mut self) {
        if std::mem::replace(&mut self.received_end, true) {
            return;
        }
        match (self.tunnel, &self.answer) {
            (Some((exchange, _)), _) if self.open => {
                self.ledger.book().received_end(exchange, Direction::Down, self.received);
            }
            (_, Some(Answer { exchange: Some(exchange), body })) if body.is_until_end() => {
                self.ledger.book().received_end(*exchange, Direction::Down, body.got);
            }
            _ => {}
        }
    }

    fn understand(&mut self) -> Result<(), String> {
        while !self.inbox.is_empty() {
            if let Some((exchange, _)) = self.tunnel.filter(|_| self.open) {
                let data = std::mem::take(&mut self.inbox);
                self.ledger.book().received(exchange, Direction::Down, self.received, &data);
                self.received += data.len() as u64;
            } else if self.answer.is_some() {
                if !self.read_body()? {
                    return Ok(());
                }
            } else {
                let Some(head) = Head::take(&mut self.inbox) else { return Ok(()) };
                self.on_head(&head)?;
            }
        }
        Ok(())
    }

    fn on_head(&mut self, head: &Head) -> Result<(), String> {
        let status = head.status();
        let exchange = head.value("x-index").map(str::parse).transpose().unwrap_or_default();
        let expected = self.expected.front().ok_or("an answer without a request")?;
        let (expected_exchange, head_only) = (expected.exchange, expected.head_only);
        if exchange.is_some_and(|exchange: u32| exchange != expected_exchange) {
            return Err(format!("the answer to {exchange:?} instead of {expected_exchange}"));
        }
        if status == 101 {
            let switched =
                self.tunnel.is_some() && self.ledger.book().exchange(expected_exchange).switched;
            if !switched {
                return Err(format!("101 to {expected_exchange}, which no upstream has switched"));
            }
            self.open = true;
            self.expected.pop_front();
            let mut book = self.ledger.book();
            book.opened += 1;
            book.exchange(expected_exchange).client_switched = true;
            return Ok(());
        }
        if matches!(status, 100..=199) {
            return Ok(());
        }
        for name in ["keep-alive", "te", "proxy-connection", "x-gone"] {
            if head.count(name) > 0 {
                return Err(format!("{name}, which is for one hop"));
            }
        }
        let bodiless = head_only || matches!(status, 204 | 304);
        let framing = if bodiless { Framing::Counted(0) } else { head.framing(false)? };
        let body = Body::new(framing);
        let done = body.done;
        self.answer = Some(Answer { exchange: exchange.filter(|_| !bodiless), body });
        if done { self.answered() } else { Ok(()) }
    }

    /// False while a chunk's size line is incomplete.
    fn read_body(&mut self) -> Result<bool, String> {
        let Some(answer) = &mut self.answer else { return Ok(true) };
        let from = answer.body.got;
        let data = answer.body.take(&mut self.inbox)?;
        if let Some(exchange) = answer.exchange {
            self.ledger.book().received(exchange, Direction::Down, from, &data);
        }
        if answer.body.done {
            return self.answered().map(|()| true);
        }
        Ok(!data.is_empty())
    }

    /// An answer is complete.
    fn answered(&mut self) -> Result<(), String> {
        self.expected.pop_front();
        let Some(Answer { exchange: Some(exchange), body }) = self.answer.take() else {
            return Ok(());
        };
        let known = self.ledger.book().exchange(exchange).clone();
        if !known.is_complete_answer(body.got) {
            return Err(format!(
                "{} bytes as the complete answer to {exchange}: {known:?}",
                body.got
            ));
        }
        self.ledger.book().complete += 1;
        Ok(())
    }
}

pub(crate) fn waits(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, NotConnected, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | NotConnected)
}
