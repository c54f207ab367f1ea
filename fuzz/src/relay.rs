//! One worker of the proxy over the simulated kernel, between a client and an upstream that send the
//! fuzzer's bytes, in pieces. A separate parser that shares no code with ours reads what the proxy sends
//! to either side: no hop-by-hop header, no two lengths, no second request inside the first, no tunnel
//! without a valid 101. In the end nothing is left.

use std::net::SocketAddr;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{Remote, Totals, Worker};
use proxy::{Live, ProxyVersion, Relay, Relays, RoutesConfig};

use crate::input::{Input, reads};

const MILLISECOND_NS: u64 = 1_000_000;
/// Turns without time passing after which a worker counts as spinning.
const TURNS_MAX: usize = 5000;
/// Longer than any timeout.
const PATIENCE_MS: u64 = 200_000;
/// Limit of connections that the upstream serves; never reached.
const LEGS_MAX: usize = 64;

const ONE_HOP: [&str; 8] = [
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    ":protocol",
];

/// Runs the input.
pub fn play(data: &[u8]) {
    let mut input = Input::new(data);
    let (choice, seed) = (input.byte(), input.byte());
    let length = usize::from(input.u16());
    let request = input.take(length);
    let mut machine = Machine::new(choice);
    machine.say_to_proxy(request, seed);
    machine.answer(input.rest(), seed);
    let asked: Vec<Vec<u8>> = machine.legs.iter().map(|(_, heard)| heard.clone()).collect();
    let tunnel = machine.relays.tally().opened > 0;
    let header = choice & 1 == 1;
    asked.iter().for_each(|asked| check_asked(asked, tunnel, header));
    check_told(&machine.told, tunnel);
    machine.end();
}

struct Machine {
    kernel: Kernel,
    worker: Worker<Sim, Relay>,
    relays: Relays,
    outside: Sim,
    behind: Sim,
    listener: Fd,
    client: Fd,
    told: Vec<u8>,
    legs: Vec<(Fd, Vec<u8>)>,
}

fn front() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

fn back() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 81))
}

impl Machine {
    fn new(choice: u8) -> Machine {
        let buffers = if choice & 2 == 0 { (1 << 16, 1 << 16) } else { (40, 300) };
        let kernel = Kernel::new(u64::from(choice), buffers);
        let proxy_header = (choice & 1 == 1).then_some(ProxyVersion::V1);
        let live = Live { forwarded: choice & 4 != 0, ..Live::default() };
        let mut routes = RoutesConfig::to([back().to_string().parse().expect("an address")]);
        routes.pools.iter_mut().for_each(|pool| pool.transport.proxy_header = proxy_header);
        let relays = Relays::new(routes, live, 1).expect("a route");
        let seat = kernel.seat(64, &[kernel.listen(front(), 16, 0)]);
        let remote = Remote::new(vec![seat.wake], 1 << 20);
        let (limits, handler) = (relays.limits(), relays.relay(0));
        let worker = Worker::new(seat.sys, 0, limits, remote.clone(), &seat.listeners, 60, handler)
            .expect("a worker");
        remote.give_listener(0, 0);
        let behind = kernel.outside_with(&[kernel.listen(back(), 64, 0)]);
        let mut outside = kernel.outside();
        let client = outside.connect(front(), None).expect("somebody listens");
        let listener = Fd::new(behind.listeners[0]);
        let (told, legs) = (Vec::new(), Vec::new());
        let behind = behind.sys;
        Machine { kernel, worker, relays, outside, behind, listener, client, told, legs }
    }

    /// Runs turns until nothing is left to do, while both peers read.
    fn settle(&mut self) {
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "the worker spins");
            let due = self.worker.deadline().is_some_and(|at| at <= self.kernel.now_ns());
            if !due && !self.kernel.is_ready(0) && !self.hear() {
                return;
            }
            self.worker.turn(None).expect("a turn");
        }
    }

    /// Reads what has arrived on either side. Returns whether anything has.
    fn hear(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let mut any = false;
        while let Ok(fd) = self.behind.accept(self.listener) {
            self.legs.push((fd, Vec::new()));
            assert!(self.legs.len() < LEGS_MAX, "it asks and asks");
        }
        while let Ok(got @ 1..) = self.outside.recv(self.client, &mut buffer) {
            self.told.extend_from_slice(&buffer[..got]);
            any = true;
        }
        for (fd, heard) in &mut self.legs {
            while let Ok(got @ 1..) = self.behind.recv(*fd, &mut buffer) {
                heard.extend_from_slice(&buffer[..got]);
                any = true;
            }
        }
        any
    }

    fn say_to_proxy(&mut self, bytes: &[u8], seed: u8) {
        let mut rest = bytes;
        for size in reads(seed) {
            let (piece, later) = rest.split_at(size.min(rest.len()));
            match self.outside.send(self.client, piece) {
                Ok(sent) => rest = if sent < piece.len() { &rest[sent..] } else { later },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => rest = &[],
            }
            self.pass(1);
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Every connection to the upstream receives the same.
    fn answer(&mut self, bytes: &[u8], seed: u8) {
        let mut at = 0;
        for size in reads(seed ^ 0x55) {
            let piece = &bytes[at..bytes.len().min(at + size)];
            for (fd, _) in &self.legs {
                // What does not fit is left out: any input will do.
                let _ = self.behind.send(*fd, piece);
            }
            self.pass(1);
            at += piece.len();
            if at == bytes.len() {
                return;
            }
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        self.settle();
        self.kernel.advance(milliseconds * MILLISECOND_NS);
        self.settle();
    }

    /// Both peers disconnect, and nothing is left.
    fn end(mut self) {
        self.outside.shutdown_write(self.client);
        for (fd, _) in &self.legs {
            self.behind.shutdown_write(*fd);
        }
        self.pass(1);
        self.outside.close(self.client);
        for (fd, _) in std::mem::take(&mut self.legs) {
            self.behind.close(fd);
        }
        for _ in 0..PATIENCE_MS / 1_000 {
            self.pass(1_000);
            for (fd, _) in std::mem::take(&mut self.legs) {
                self.behind.close(fd);
            }
        }
        let tally = self.relays.tally();
        assert_eq!((tally.tunnels, tally.exchanges, tally.places), (0, 0, 0), "left over");
        assert_eq!(tally.ended.iter().sum::<u64>(), tally.opened);
        let (_, core) = self.worker.parts();
        let totals = Totals::sum([core.counters()]);
        assert_eq!((totals.connections, totals.queued_bytes), (0, 0), "left over");
    }
}

// ---- what the upstream may receive ----

struct Head<'b> {
    line: Vec<&'b str>,
    headers: Vec<(String, &'b [u8])>,
}

impl<'b> Head<'b> {
    /// The first head and what follows it.
    fn take(bytes: &'b [u8]) -> Option<(Head<'b>, &'b [u8])> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let mut lines = Vec::new();
        let mut rest = &bytes[..end];
        while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
            lines.push(&rest[..at]);
            rest = &rest[at + 2..];
        }
        lines.push(rest);
        for line in &lines {
            assert!(!line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)), "a torn line");
        }
        let line = std::str::from_utf8(lines[0]).expect("a first line is text");
        let headers = lines[1..].iter().map(|line| {
            let colon = line.iter().position(|byte| *byte == b':').expect("a header has a colon");
            let name = std::str::from_utf8(&line[..colon]).expect("a name is text");
            assert!(!name.is_empty() && !name.contains([' ', '\t']), "{name:?}");
            (name.to_ascii_lowercase(), line[colon + 1..].trim_ascii())
        });
        let head = Head { line: line.splitn(3, ' ').collect(), headers: headers.collect() };
        Some((head, &bytes[end + 4..]))
    }

    fn values(&self, name: &str) -> Vec<&'b [u8]> {
        let found = self.headers.iter().filter(|(other, _)| other == name);
        found.map(|(_, value)| *value).collect()
    }

    /// At most one length, and none with chunked encoding.
    fn framing(&self) -> (Option<u64>, bool) {
        let (lengths, codings) = (self.values("content-length"), self.values("transfer-encoding"));
        assert!(lengths.len() + codings.len() <= 1, "two ways to tell a length");
        assert!(codings.iter().all(|coding| *coding == b"chunked"));
        let length = lengths.first().map(|length| {
            let text = std::str::from_utf8(length).expect("a length is text");
            assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "{text:?}");
            text.parse().expect("a length is a number")
        });
        (length, !codings.is_empty())
    }

    fn check_hops(&self) {
        for name in ONE_HOP {
            assert!(self.values(name).is_empty(), "{name} goes on");
        }
    }
}

fn check_asked(asked: &[u8], tunnel: bool, header: bool) {
    let mut rest = asked;
    if header && !rest.is_empty() {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return };
        assert!(rest.starts_with(b"PROXY "), "no PROXY header");
        rest = &rest[end + 2..];
    }
    while let Some((head, body)) = Head::take(rest) {
        assert_eq!((head.line.len(), head.line.last()), (3, Some(&"HTTP/1.1")), "{:?}", head.line);
        assert!(head.line[0] != "CONNECT" && !head.line[1].is_empty());
        head.check_hops();
        assert_eq!(head.values("host").len(), 1);
        assert!(head.values("x-real-ip").is_empty(), "a stranger says whose it is");
        assert_eq!(head.values("x-forwarded-for"), [b"127.0.0.1"]);
        let (length, chunked) = head.framing();
        let upgrade = head.values("upgrade");
        if !upgrade.is_empty() {
            assert_eq!(
                (upgrade, head.values("connection")),
                (vec![&b"websocket"[..]], vec![&b"Upgrade"[..]])
            );
            assert!(head.line[0] == "GET" && length.unwrap_or(0) == 0 && !chunked);
            assert!(tunnel || body.is_empty(), "bytes of a tunnel that is none");
            return;
        }
        assert!(head.values("connection").is_empty());
        rest = match after_body(body, length, chunked) {
            Some(rest) => rest,
            None => return,
        };
    }
    assert!(rest.is_empty() || rest.len() < 64 * 1024, "a head without an end");
}

/// Returns what follows a body; nothing if the body is incomplete.
fn after_body(mut body: &[u8], length: Option<u64>, chunked: bool) -> Option<&[u8]> {
    if !chunked {
        return body.get(usize::try_from(length.unwrap_or(0)).ok()?..);
    }
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&body[..end]).expect("a chunk's size is text");
        let size = usize::from_str_radix(line, 16).expect("and nothing else");
        body = body.get(end + 2 + size..)?;
        if body.len() < 2 {
            return None;
        }
        assert!(body.starts_with(b"\r\n"), "a chunk of another length");
        body = &body[2..];
        if size == 0 {
            return Some(body);
        }
    }
}

// ---- what the client may receive ----

fn check_told(told: &[u8], tunnel: bool) {
    let mut rest = told;
    while let Some((head, body)) = Head::take(rest) {
        let status: u16 = head.line.get(1).and_then(|s| s.parse().ok()).expect("a status");
        assert_eq!(head.line[0], "HTTP/1.1");
        head.check_hops();
        let (length, chunked) = head.framing();
        let bodiless = status < 200 || status == 204;
        assert!(!bodiless || length.is_none() && !chunked, "{status} with a length");
        if status == 101 {
            assert!(tunnel, "101 without a tunnel");
            assert_eq!(head.values("upgrade"), [b"websocket"]);
            return;
        }
        assert!(status == 426 || head.values("upgrade").is_empty(), "{status} with Upgrade");
        if status >= 200 {
            // Responses without a body, such as to HEAD, cannot be recognised here.
            return;
        }
        rest = body;
    }
}
