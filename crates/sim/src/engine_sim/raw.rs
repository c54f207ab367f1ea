//! [`Raw`]: peers on bare sockets that follow a script, most of them ill-mannered, and know what
//! they are owed.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::sys::sim::Sim;
use engine::sys::{Fd, Sys};
use fastrand::Rng;
use wire::websocket::{OpCode, encode_close, encode_masked};

use super::envelope::{Envelope, Kind};
use super::ledger::Ledger;
use super::scenario::{Scenario, address};
use super::script::{SCRIPTS, Script, script_bytes};

/// How it disconnects in the middle of what it sends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Leave {
    Reset,
    HalfClose,
    Close,
}

/// Leaving before this many bytes is leaving during the handshake or soon after.
const HEAD_BYTES: usize = 220;

pub(crate) struct Raw {
    sys: Sim,
    random: Rng,
    ledger: Ledger,
    script: Script,
    peer_id: u32,
    fd: Option<Fd>,
    over: bool,
    out: Vec<u8>,
    sent: usize,
    /// Bytes written at a time, and the rest between.
    chunk: usize,
    rest: Duration,
    /// After so many bytes it disconnects.
    leave: Option<(usize, Leave)>,
    reads: bool,
    /// Bytes read and not yet understood.
    inbox: Vec<u8>,
    upgraded: bool,
    echoes: u32,
    got: u32,
    healthy: usize,
    /// The number of the next publication expected from each publisher.
    next: BTreeMap<u32, u32>,
    /// When it connected.
    began_ns: u64,
    /// When it last sent something, and when it had last read everything.
    spoke_ns: u64,
    heard_ns: u64,
    /// When it was last in a listener's queue.
    queued_ns: u64,
    /// Steps since the server should have closed it.
    overdue: u32,
    idle: Duration,
    /// How long an unanswering peer may last.
    patience: Duration,
    pub(crate) due_ns: u64,
}

/// A frame of the server as a peer without our decoder reads it.
struct Frame<'b> {
    opcode: u8,
    payload: &'b [u8],
    bytes: usize,
}

impl Raw {
    pub(crate) fn new(sys: Sim, ledger: Ledger, mut random: Rng, scenario: &Scenario) -> Self {
        let script = random.choice(SCRIPTS).unwrap_or(Script::Echo);
        let peer_id = ledger.book().new_peer(false);
        // Peers that write a few bytes at a time send less.
        let slow = random.u8(..3) == 0;
        let echoes = random.u32(1..if slow { 8 } else { 30 });
        let filler = random.usize(1..scenario.filler_max.min(if slow { 100 } else { 3000 }));
        let out = script_bytes(script, peer_id, echoes, filler, &mut random);
        let closing = random.u8(..3) == 0;
        let how = random.choice([Leave::Reset, Leave::HalfClose, Leave::Close]);
        // As often in the handshake or right after it as in all that follows.
        let most = if random.bool() { out.len().min(HEAD_BYTES) } else { out.len() };
        let leave = how.filter(|_| closing).map(|how| (random.usize(..=most), how));
        let limits = &scenario.limits;
        let idle = limits.idle_timeout.unwrap_or_default();
        let patience = limits.handshake_timeout.max(idle * 5 / 4) + limits.close_timeout * 2;
        Raw {
            script,
            peer_id,
            fd: None,
            over: false,
            sent: 0,
            chunk: match script {
                Script::Dribble => 1,
                _ if slow => random.usize(1..=3),
                _ => random.usize(1..=20_000),
            },
            rest: match script {
                Script::Dribble => limits.handshake_timeout / 50,
                _ if slow => scenario.rest.min(Duration::from_millis(1)),
                _ => scenario.rest,
            },
            leave,
            reads: !matches!(script, Script::Deaf | Script::Pings),
            inbox: Vec::new(),
            upgraded: false,
            echoes,
            got: 0,
            healthy: 0,
            next: BTreeMap::new(),
            began_ns: sys.now_ns(),
            spoke_ns: sys.now_ns(),
            heard_ns: 0,
            queued_ns: 0,
            overdue: 0,
            idle,
            patience: patience + Duration::from_millis(700),
            due_ns: sys.now_ns() + random.u64(..2_000_000),
            sys,
            random,
            ledger,
            out,
        }
    }

    /// The peer that replaces one that has disconnected.
    pub(crate) fn successor(&self, random: Rng, scenario: &Scenario) -> Self {
        Raw::new(self.sys.clone(), self.ledger.clone(), random, scenario)
    }

    /// Whether it will do nothing more.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// One step: write a little, read a little.
    pub(crate) fn step(&mut self) {
        let now_ns = self.sys.now_ns();
        let calm = self.ledger.book().calm && self.sent == self.out.len();
        let rest = if calm { self.rest.max(Duration::from_millis(20)) } else { self.rest };
        self.due_ns = now_ns + 1 + self.random.u64(..=rest.as_nanos() as u64);
        let Some(fd) = self.fd else {
            self.fd = self.sys.connect(address(), None).ok();
            (self.began_ns, self.spoke_ns) = (now_ns, now_ns);
            return;
        };
        self.write(fd);
        if self.reads && !self.over {
            self.read(fd);
        }
        self.check_patience(fd);
    }

    fn write(&mut self, fd: Fd) {
        let end = self.leave.map_or(self.out.len(), |(at, _)| at);
        let chunk = self.out.get(self.sent..end.min(self.sent + self.chunk)).unwrap_or_default();
        if !chunk.is_empty() {
            match self.sys.send(fd, chunk) {
                Ok(sent) => {
                    self.sent += sent;
                    self.spoke_ns = self.sys.now_ns();
                }
                Err(error) if waits(&error) => {}
                Err(_) => return self.end(fd),
            }
        }
        let Some((at, how)) = self.leave else { return };
        if self.sent < at {
            return;
        }
        match how {
            Leave::HalfClose => self.sys.shutdown_write(fd),
            Leave::Reset => {
                self.sys.reset_on_close(fd);
                self.end(fd);
            }
            Leave::Close => self.end(fd),
        }
    }

    fn end(&mut self, fd: Fd) {
        self.sys.close(fd);
        self.over = true;
        self.due_ns = u64::MAX;
        self.ledger.book().peer_gone(self.peer_id);
    }

    fn read(&mut self, fd: Fd) {
        let mut buffer = [0u8; 4096];
        for _ in 0..8 {
            match self.sys.recv(fd, &mut buffer) {
                Ok(0) => return self.end(fd),
                Ok(got) => {
                    self.inbox.extend_from_slice(buffer.get(..got).unwrap_or_default());
                    self.understand();
                    if self.ledger.book().calm {
                        // With a small buffer the rest arrives piece by piece.
                        self.due_ns = self.due_ns.min(self.sys.now_ns() + 500_000);
                    }
                }
                Err(error) if waits(&error) => {
                    self.heard_ns = self.sys.now_ns();
                    return;
                }
                Err(_) => return self.end(fd),
            }
        }
        // There is more.
        self.due_ns = self.sys.now_ns() + 1;
    }

    fn understand(&mut self) {
        match self.script {
            Script::Health => {
                let answer = b"HTTP/1.1 200 ";
                self.healthy = self.inbox.windows(answer.len()).filter(|w| w == answer).count();
                return;
            }
            Script::Stream => return self.understand_lines(),
            Script::Poll => return self.understand_answers(),
            Script::Garbage | Script::EndlessHead | Script::Dribble => {
                return self.inbox.clear();
            }
            _ => {}
        }
        if !self.upgraded {
            let Some(end) = self.inbox.windows(4).position(|w| w == b"\r\n\r\n") else { return };
            self.upgraded = self.inbox.starts_with(b"HTTP/1.1 101 ");
            let upgraded = self.upgraded;
            self.ledger.book().require(upgraded, || "a good handshake was refused".into());
            self.inbox.drain(..end + 4);
        }
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = inbox.as_slice();
        while let Some(frame) = next_frame(rest) {
            rest = rest.get(frame.bytes..).unwrap_or_default();
            self.on_frame(&frame);
        }
        self.inbox = rest.to_vec();
    }

    fn understand_lines(&mut self) {
        while let Some(end) = self.inbox.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.inbox.drain(..=end).collect();
            let line = line.strip_suffix(b"\n").unwrap_or_default();
            if self.upgraded {
                let whole =
                    Envelope::read(line).is_some_and(|envelope| envelope.kind == Kind::Publish);
                self.ledger.book().require(whole, || "a line of a stream is not whole".into());
            }
            // The empty line that ends the head.
            self.upgraded |= line == b"\r";
        }
    }

    /// Answers to polls: what they bring is complete, in order and there once.
    fn understand_answers(&mut self) {
        loop {
            let Some(end) = self.inbox.windows(4).position(|w| w == b"\r\n\r\n") else { return };
            let head = String::from_utf8_lossy(self.inbox.get(..end).unwrap_or_default());
            let length = head.split("Content-Length: ").nth(1).and_then(|it| it.lines().next());
            let length: usize = length.and_then(|it| it.parse().ok()).unwrap_or(0);
            if self.inbox.len() < end + 4 + length {
                return;
            }
            let answer: Vec<u8> = self.inbox.drain(..end + 4 + length).collect();
            self.healthy += 1;
            if answer.starts_with(b"HTTP/1.1 200 ") {
                let body = answer.get(end + 4..).unwrap_or_default();
                body.split_inclusive(|byte| *byte == b'\n').for_each(|line| self.on_line(line));
            }
        }
    }

    fn on_line(&mut self, line: &[u8]) {
        let peer_id = self.peer_id;
        let mut book = self.ledger.book();
        let envelope = line.strip_suffix(b"\n").and_then(Envelope::read);
        let Some(envelope) = envelope else {
            return book.fail(format!("poller {peer_id} got a line that is not whole"));
        };
        if envelope.kind == Kind::Direct {
            let own = envelope.peer_id == peer_id;
            return book.require(own, || format!("poller {peer_id} got {envelope:?}"));
        }
        let next = self.next.insert(envelope.peer_id, envelope.number + 1);
        let right = next.is_none_or(|next| match book.lossy {
            true => envelope.number >= next,
            false => envelope.number == next,
        });
        book.require(right && envelope.kind == Kind::Publish, || {
            format!("poller {peer_id} got {envelope:?}, expected {next:?}")
        });
    }

    fn on_frame(&mut self, frame: &Frame<'_>) {
        let peer_id = self.peer_id;
        match frame.opcode {
            1 | 2 => {
                let Some(envelope) = Envelope::read(frame.payload) else {
                    return self.ledger.book().fail(format!("raw {peer_id} got a broken message"));
                };
                let echo = envelope.kind == Kind::Echo && envelope.number == self.got;
                self.ledger.book().arrived += 1;
                self.got += u32::from(envelope.kind == Kind::Echo);
                let right = envelope.peer_id == peer_id && (echo || envelope.kind == Kind::Direct);
                let opcode = envelope.opcode() as u8 == frame.opcode;
                self.ledger.book().require(right && opcode, || {
                    format!("raw {peer_id} ({:?}) got {envelope:?}", self.script)
                });
            }
            8 => self.on_close(frame.payload),
            9 if self.script != Script::Silent && self.leave.is_none() => {
                encode_masked(&mut self.out, OpCode::Pong, frame.payload, [1, 2, 3, 4]);
            }
            9 | 10 => {}
            other => self.ledger.book().fail(format!("raw {peer_id} got a frame of kind {other}")),
        }
    }

    fn on_close(&mut self, payload: &[u8]) {
        self.check_code(payload);
        let idle = payload.get(2..) == Some(b"idle timeout");
        let silent_ns = self.sys.now_ns() - self.spoke_ns;
        // Two ticks, and the time that bytes take to be read.
        let least = self.idle.saturating_sub(Duration::from_millis(300));
        // What it sent shortly before it last read may have crossed with this.
        let sure = self.heard_ns >= self.spoke_ns + 50_000_000;
        let early = idle && sure && silent_ns < least.as_nanos() as u64;
        let (peer_id, script) = (self.peer_id, self.script);
        self.ledger.book().require(!early, || {
            format!("raw {peer_id} ({script:?}) closed as idle {silent_ns} ns after it spoke")
        });
        if self.leave.is_none() && self.sent == self.out.len() {
            encode_close(&mut self.out, None, "", Some([9, 8, 7, 6]));
        }
    }

    /// A violation is answered with its close code. Only an idle timeout, a slow consumer, the drain
    /// and the control plane (1000) may come first, or 1008 for a message that does not end in time.
    fn check_code(&mut self, payload: &[u8]) {
        let broke = self.script.breaks();
        let Some(&code) = payload.first_chunk().filter(|_| broke) else { return };
        let code = u16::from_be_bytes(code);
        let (peer_id, script) = (self.peer_id, self.script);
        let age_ns = self.sys.now_ns() - self.began_ns;
        let told = matches!(code, 1000 | 1001 | 1002 | 1007 | 1009 | 1013)
            || code == 1008 && age_ns > self.idle.as_nanos() as u64;
        self.ledger
            .book()
            .require(told, || format!("raw {peer_id} ({script:?}) received the close code {code}"));
    }

    /// A peer that sends nothing more is not kept for ever.
    fn check_patience(&mut self, fd: Fd) {
        let quiet = !matches!(self.script, Script::Stream | Script::Health | Script::Poll);
        if self.over || !quiet {
            return;
        }
        if !self.sys.was_accepted(fd) {
            self.queued_ns = self.sys.now_ns();
        }
        let jumped_ns = self.ledger.book().jumped_ns;
        // A head has to be complete in time, however it dribbles in.
        let dribbles = self.script == Script::Dribble;
        let last_ns = if dribbles { self.began_ns } else { self.spoke_ns };
        let since_ns = last_ns.max(self.queued_ns).max(jumped_ns);
        let silent_ns = self.sys.now_ns() - since_ns;
        let patience_ns = self.patience.as_nanos() as u64;
        if silent_ns < patience_ns {
            // Whatever it does, it looks again then.
            self.due_ns = self.due_ns.min(since_ns + patience_ns + 1);
            return;
        }
        // By now there is an end to be read.
        self.reads = true;
        self.overdue += 1;
        if self.overdue > 60 && silent_ns > patience_ns + 1_000_000_000 {
            let (peer_id, script) = (self.peer_id, self.script);
            self.ledger.book().fail(format!(
                "raw {peer_id} ({script:?}) is kept {silent_ns} ns after it spoke last"
            ));
        }
    }

    /// After a calm: those that behaved have got what they are owed.
    pub(crate) fn check_calm(&self) {
        let served = self.fd.is_some_and(|fd| self.sys.was_accepted(fd));
        if self.over || self.leave.is_some() || !served || self.sent < self.out.len() {
            return;
        }
        let (peer_id, script) = (self.peer_id, self.script);
        let (had, owed) = match script {
            Script::Echo | Script::Fragments => (self.got as usize, self.echoes as usize),
            // It received a close and should have ended.
            Script::BreaksOff => (usize::from(self.over), 1),
            Script::Health | Script::Poll => (self.healthy, self.echoes as usize),
            _ => return,
        };
        self.ledger.book().require(had == owed, || {
            format!("raw {peer_id} ({script:?}) got {had} answers of {owed}")
        });
    }
}

fn waits(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted)
}

/// The first frame, if it is complete. A server's frames are neither masked nor fragmented.
fn next_frame(bytes: &[u8]) -> Option<Frame<'_>> {
    let (&[first, second], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match second {
        126 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        127 => {
            let (length, rest) = rest.split_first_chunk()?;
            (u64::from_be_bytes(*length) as usize, rest)
        }
        length => (usize::from(length), rest),
    };
    let payload = rest.get(..length)?;
    Some(Frame { opcode: first ^ 0x80, payload, bytes: bytes.len() - rest.len() + length })
}
