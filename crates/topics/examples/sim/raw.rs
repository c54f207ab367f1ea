//! [`Raw`]: peers on bare sockets that follow a script, most of them ill-mannered, and know what
//! they are owed.

use std::time::Duration;

use engine::sys::sim::Sim;
use engine::sys::{Fd, Sys};
use fastrand::Rng;
use wire::websocket::{FrameHeader, OpCode, encode_close, encode_masked};

use crate::ledger::Ledger;
use crate::letter::{Kind, Letter};
use crate::scenario::{Scenario, address};

/// What a raw peer does.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Script {
    /// Echo, in good order but torn anyhow.
    Echo,
    /// Echo in fragments with pings between them.
    Fragments,
    /// Bytes of no meaning.
    Garbage,
    /// A request head that never ends.
    EndlessHead,
    /// Nothing after the handshake, not even pongs.
    Silent,
    /// Nothing after the handshake but pongs.
    Ponger,
    /// Echo without ever reading.
    Deaf,
    /// A frame that breaks a rule.
    Violator,
    /// Plain requests, several at once.
    Health,
    /// A stream of lines.
    Stream,
}

const SCRIPTS: [Script; 10] = [
    Script::Echo,
    Script::Fragments,
    Script::Garbage,
    Script::EndlessHead,
    Script::Silent,
    Script::Ponger,
    Script::Deaf,
    Script::Violator,
    Script::Health,
    Script::Stream,
];

/// How it leaves in the middle of what it has to say.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Leave {
    Reset,
    HalfClose,
    Close,
}

pub(crate) struct Raw {
    sys: Sim,
    random: Rng,
    ledger: Ledger,
    script: Script,
    who: u32,
    fd: Option<Fd>,
    over: bool,
    out: Vec<u8>,
    sent: usize,
    /// Bytes written at a time, and the rest between.
    chunk: usize,
    rest: Duration,
    /// After so many bytes it leaves.
    leave: Option<(usize, Leave)>,
    reads: bool,
    /// Bytes read and not yet understood.
    inbox: Vec<u8>,
    upgraded: bool,
    echoes: u32,
    got: u32,
    healthy: usize,
    /// When it last said something, and when it had last read all there was.
    spoke_ns: u64,
    heard_ns: u64,
    /// When it was last seen in a listener's queue.
    queued_ns: u64,
    /// Steps since somebody should have ended it.
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
        let who = ledger.book().new_peer(false);
        // Those who write some bytes at a time have less to say.
        let slow = random.u8(..3) == 0;
        let echoes = random.u32(1..if slow { 8 } else { 30 });
        let filler = random.usize(1..scenario.filler_max.min(if slow { 100 } else { 3000 }));
        let out = script_bytes(script, who, echoes, filler, &mut random);
        let leaves = random.u8(..3) == 0;
        let how = random.choice([Leave::Reset, Leave::HalfClose, Leave::Close]);
        let leave = how.filter(|_| leaves).map(|how| (random.usize(..=out.len()), how));
        let limits = &scenario.limits;
        let idle = limits.idle_timeout.unwrap_or_default();
        let patience = limits.handshake_timeout.max(idle * 5 / 4) + limits.close_timeout * 2;
        Raw {
            script,
            who,
            fd: None,
            over: false,
            sent: 0,
            chunk: if slow { random.usize(1..=3) } else { random.usize(1..=20_000) },
            rest: if slow { scenario.rest.min(Duration::from_millis(1)) } else { scenario.rest },
            leave,
            reads: script != Script::Deaf,
            inbox: Vec::new(),
            upgraded: false,
            echoes,
            got: 0,
            healthy: 0,
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

    /// The next peer, in the place of one that has left.
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
            self.spoke_ns = now_ns;
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
        self.ledger.book().peer_gone(self.who);
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
                        // With a small buffer the rest comes piece by piece.
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
            Script::Garbage | Script::EndlessHead => return self.inbox.clear(),
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
                let whole = Letter::read(line).is_some_and(|letter| letter.kind == Kind::Publish);
                self.ledger.book().require(whole, || "a line of a stream is not whole".into());
            }
            // The empty line that ends the head.
            self.upgraded |= line == b"\r";
        }
    }

    fn on_frame(&mut self, frame: &Frame<'_>) {
        let who = self.who;
        match frame.opcode {
            1 | 2 => {
                let Some(letter) = Letter::read(frame.payload) else {
                    return self.ledger.book().fail(format!("raw {who} got a broken message"));
                };
                let echo = letter.kind == Kind::Echo && letter.number == self.got;
                self.ledger.book().arrived += 1;
                self.got += u32::from(letter.kind == Kind::Echo);
                let right = letter.who == who && (echo || letter.kind == Kind::Direct);
                let opcode = letter.opcode() as u8 == frame.opcode;
                self.ledger.book().require(right && opcode, || {
                    format!("raw {who} ({:?}) got {letter:?}", self.script)
                });
            }
            8 => self.on_close(frame.payload),
            9 if self.script != Script::Silent && self.leave.is_none() => {
                encode_masked(&mut self.out, OpCode::Pong, frame.payload, [1, 2, 3, 4]);
            }
            9 | 10 => {}
            other => self.ledger.book().fail(format!("raw {who} got a frame of kind {other}")),
        }
    }

    fn on_close(&mut self, payload: &[u8]) {
        let idle = payload.get(2..) == Some(b"idle timeout");
        let silent_ns = self.sys.now_ns() - self.spoke_ns;
        // Two ticks, and the time that bytes take to be read.
        let least = self.idle.saturating_sub(Duration::from_millis(300));
        // What it said shortly before it last listened may have crossed with this.
        let sure = self.heard_ns >= self.spoke_ns + 50_000_000;
        let early = idle && sure && silent_ns < least.as_nanos() as u64;
        let (who, script) = (self.who, self.script);
        self.ledger.book().require(!early, || {
            format!("raw {who} ({script:?}) closed as idle {silent_ns} ns after it spoke")
        });
        if self.leave.is_none() && self.sent == self.out.len() {
            encode_close(&mut self.out, None, "", Some([9, 8, 7, 6]));
        }
    }

    /// Whoever says nothing more is not kept for ever.
    fn check_patience(&mut self, fd: Fd) {
        let quiet = self.script != Script::Stream && self.script != Script::Health;
        if self.over || !quiet {
            return;
        }
        if !self.sys.was_accepted(fd) {
            self.queued_ns = self.sys.now_ns();
        }
        let jumped_ns = self.ledger.book().jumped_ns;
        let since_ns = self.spoke_ns.max(self.queued_ns).max(jumped_ns);
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
            let (who, script) = (self.who, self.script);
            self.ledger
                .book()
                .fail(format!("raw {who} ({script:?}) is kept {silent_ns} ns after it spoke last"));
        }
    }

    /// After a calm: those that behaved have got what they are owed.
    pub(crate) fn check_calm(&self) {
        let served = self.fd.is_some_and(|fd| self.sys.was_accepted(fd));
        if self.over || self.leave.is_some() || !served || self.sent < self.out.len() {
            return;
        }
        let (who, script) = (self.who, self.script);
        let (had, owed) = match script {
            Script::Echo | Script::Fragments => (self.got as usize, self.echoes as usize),
            Script::Health => (self.healthy, self.echoes as usize),
            _ => return,
        };
        self.ledger
            .book()
            .require(had == owed, || format!("raw {who} ({script:?}) got {had} answers of {owed}"));
    }
}

fn waits(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted)
}

/// Everything a script has to say, in bytes.
fn script_bytes(script: Script, who: u32, echoes: u32, filler: usize, random: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    match script {
        Script::Garbage => out.extend((0..random.usize(1..400)).map(|_| random.u8(..))),
        Script::EndlessHead => {
            out.extend_from_slice(b"GET /echo HTTP/1.1\r\n");
            out.extend((0..random.usize(..300)).flat_map(|_| *b"X-Word: y\r\n").take(1000));
        }
        Script::Health => {
            out.extend((0..echoes).flat_map(|_| *b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"));
        }
        Script::Stream => out.extend_from_slice(b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"),
        _ => out.extend_from_slice(
            b"GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        ),
    }
    let says = matches!(script, Script::Echo | Script::Fragments | Script::Deaf);
    for number in 0..if says { echoes } else { 0 } {
        let letter = Letter { kind: Kind::Echo, who, number };
        let data = letter.write(random.usize(..filler));
        let opcode = letter.opcode();
        if script == Script::Fragments {
            push_fragments(&mut out, opcode, &data, random);
        } else {
            encode_masked(&mut out, opcode, &data, random.u32(..).to_ne_bytes());
        }
    }
    if script == Script::Violator {
        let broken: [&[u8]; 5] = [
            b"\x81\x02hi",
            b"\xf1\x80\0\0\0\0",
            b"\x83\x80\0\0\0\0",
            b"\x89\xfe\x00\x80\0\0\0\0",
            b"\x81\x82\0\0\0\0\xff\xfe",
        ];
        out.extend_from_slice(random.choice(broken).unwrap_or_default());
    }
    out
}

fn push_fragments(out: &mut Vec<u8>, opcode: OpCode, data: &[u8], random: &mut Rng) {
    let mut rest = data;
    let mut opcode = opcode;
    loop {
        let (piece, more) = rest.split_at(random.usize(..=rest.len()));
        let last = more.is_empty();
        let mask = random.u32(..).to_ne_bytes();
        let header = FrameHeader::new(opcode, last, piece.len(), Some(mask));
        out.extend_from_slice(header.as_slice());
        out.extend(piece.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        if last {
            return;
        }
        if random.u8(..4) == 0 {
            encode_masked(out, OpCode::Ping, b"between", mask);
        }
        (rest, opcode) = (more, OpCode::Continuation);
    }
}

/// The first frame, if it is there whole. A server's frames are neither masked nor fragmented.
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
