//! One worker over the simulated kernel. The fuzzer controls its peers: bytes, frames, time, buffer space,
//! half-closes and resets in any order. The handler does everything that handlers may.
//!
//! After every turn the counters must be consistent. The worker must write valid HTTP and valid frames
//! and must not spin. In the end, after any input, it drains and nothing is left.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use engine::sys::sim::{Fault, Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{
    AdmissionLimits, Answer, Compression, Limits, Network, Proxies, ProxyProtocol, Remote,
    Response, SlowConsumer, Target, Totals, Turn, Worker,
};
use wire::Role;
use wire::websocket::{CloseCode, FrameHeader, OpCode, accept_key, encode_masked};

use crate::input::Input;

pub(crate) mod handler;
pub(crate) mod output;

use handler::Echo;

const MESSAGE_BYTES: usize = 4096;
const QUEUE_BYTES: usize = 16 * 1024;
/// The most that one connection may have queued: the limit, one more message with its header, a pong, a
/// close frame, and an HTTP response.
const QUEUED_MAX: u64 = (QUEUE_BYTES + MESSAGE_BYTES + 2048) as u64;
const ACTIONS_MAX: usize = 400;
const PEERS_MAX: usize = 4;
/// Turns without time passing after which a worker counts as spinning.
const TURNS_MAX: usize = 5000;
const MILLISECOND_NS: u64 = 1_000_000;

/// The server accepts compression.
const ANSWER: &str = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
                      client_no_context_takeover; client_max_window_bits=10\r\n";

/// Plays the input against a worker whose side of each connection is `role`.
pub fn play(role: Role, data: &[u8]) {
    let mut input = Input::new(data);
    let mut machine = Machine::new(role, input.byte());
    machine.open();
    machine.settle();
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        let action = input.byte();
        machine.act(action, &mut input);
        // Otherwise the next action happens before the worker wakes up.
        if action & 0x80 == 0 {
            machine.settle();
        }
    }
    machine.end();
}

struct Peer {
    fd: Fd,
    open: bool,
    inbox: Vec<u8>,
    answered: bool,
}

struct Machine {
    role: Role,
    kernel: Kernel,
    worker: Worker<Sim, Echo>,
    remote: Remote<()>,
    table: usize,
    /// Descriptors in the worker's table that are not connections.
    own: u64,
    outside: Sim,
    listener: Fd,
    peers: Vec<Peer>,
    stopped: bool,
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

/// Limits so low that they are often reached.
fn admission(strict: bool) -> AdmissionLimits {
    if !strict {
        return AdmissionLimits::default();
    }
    AdmissionLimits {
        handshakes: 1,
        connect_rate: Some(5),
        per_address: Some(3),
        per_address_rate: Some(4),
        ..AdmissionLimits::default()
    }
}

/// All peers are proxies that must send a PROXY header, or any may, or none.
fn proxies(choice: u8) -> Proxies {
    let everybody: Network = "127.0.0.0/8".parse().expect("a network");
    let (trusted, protocol) = match choice >> 5 & 3 {
        0 => (Vec::new(), ProxyProtocol::Off),
        2 => (Vec::new(), ProxyProtocol::Accepted),
        _ => (vec![everybody], ProxyProtocol::Required),
    };
    Proxies { trusted, protocol, ..Proxies::default() }
}

impl Machine {
    fn new(role: Role, choice: u8) -> Self {
        let buffers = if choice & 1 == 0 { (64 * 1024, 64 * 1024) } else { (64, 300) };
        let kernel = Kernel::new(u64::from(choice), buffers);
        let policies =
            [SlowConsumer::Disconnect, SlowConsumer::DropOldest, SlowConsumer::LatestOnly];
        let compressions = [Compression::Off, Compression::Shared, Compression::Takeover];
        let limits = Limits {
            wire: wire::Limits {
                message_bytes: MESSAGE_BYTES as u32,
                head_bytes: 1024,
                ..wire::Limits::default()
            },
            send_queue_bytes: QUEUE_BYTES,
            slow_consumer: policies[usize::from(choice >> 1) % 3],
            idle_timeout: Some(Duration::from_secs(2)),
            handshake_timeout: Duration::from_secs(1),
            close_timeout: Duration::from_millis(500),
            compression: compressions[usize::from(choice >> 3) % 3],
            compress_above_bytes: 16,
            admission: admission(choice & 0x80 != 0),
            proxies: proxies(choice),
            mailbox_bytes: 64 * 1024,
            ..Limits::default()
        };
        let listener = kernel.listen(address(), 16, 0);
        let server = role == Role::Server;
        let listeners = [listener];
        let (ours, theirs) =
            if server { (&listeners[..], &[][..]) } else { (&[][..], &listeners[..]) };
        let (seat, outside) = (kernel.seat(64, ours), kernel.seat(1024, theirs));
        let accepts = if server { 0 } else { outside.listeners[0] };
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let (table, numbers) = (seat.sys.table(), seat.listeners);
        let mut worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), &numbers, 50, Echo::default())
                .expect("a worker can be made");
        if server {
            remote.give_listener(0, 0);
        }
        let target =
            Target::websocket(address(), "fuzz", "/echo", &["chat"], choice & 0x40 != 0, &[]);
        worker.parts().1.add_target(target).expect("there is room for one target");
        Machine {
            role,
            kernel,
            worker,
            remote,
            table,
            own: 1 + numbers.len() as u64,
            outside: outside.sys,
            listener: Fd::new(accepts),
            peers: Vec::new(),
            stopped: false,
        }
    }

    /// Runs turns until the worker would sleep.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let now_ns = self.kernel.now_ns();
            let due = self.worker.deadline().is_some_and(|at_ns| at_ns <= now_ns);
            if self.stopped || !due && !self.kernel.is_ready(self.table) {
                return;
            }
            let turn = self.worker.turn(None).expect("no turn fails");
            self.stopped = turn == Turn::Stopped;
            self.check_books();
        }
        panic!("the worker spins");
    }

    fn check_books(&mut self) {
        let (handler, core) = self.worker.parts();
        let totals = Totals::sum([core.counters()]);
        let went: u64 = totals.closed.iter().sum();
        assert_eq!(totals.accepted + totals.connects, went + totals.connections);
        assert_eq!(u64::from(core.connections()), totals.connections);
        assert_eq!(self.kernel.used(self.table) as u64, self.own + totals.connections);
        assert_eq!(handler.open(), totals.websockets);
        assert!(totals.queued_bytes <= QUEUED_MAX * totals.connections, "{}", totals.queued_bytes);
        let dropped = totals.dropped_slow + totals.dropped_gone;
        assert!(dropped <= totals.messages_out, "{dropped} dropped of {}", totals.messages_out);
    }

    fn act(&mut self, action: u8, input: &mut Input<'_>) {
        let at = usize::from(action >> 4 & 3) % self.peers.len().max(1);
        match action & 15 {
            0 | 1 => {
                let most = usize::from(input.byte());
                self.write(at, input.take(most));
            }
            2 => self.handshake(at, input.byte()),
            3 => self.frame(at, input),
            4 => self.read(at, usize::from(input.u16())),
            5 => self.read(at, usize::MAX),
            6 => {
                let times = [1, 20, 110, 400, 600, 1100, 2100, 10_000];
                let time = times[usize::from(input.byte()) % times.len()];
                self.kernel.advance(time * MILLISECOND_NS);
            }
            7 => {
                if let Some(peer) = self.peers.get(at).filter(|peer| peer.open) {
                    self.outside.shutdown_write(peer.fd);
                }
            }
            8 => self.leave(at, true),
            9 => self.leave(at, false),
            10 => self.open(),
            11 => self.worker_acts(input),
            12 => self.answer_later(input.byte()),
            13 => match input.byte() {
                short @ 240.. => {
                    self.remote.set_short_of_memory(short & 1 != 0);
                    self.remote.shed(300, 0);
                }
                over => self.remote.drain(Duration::from_millis(u64::from(over))),
            },
            14 => self.set_faults(input.byte()),
            _ => self.flood(at, input.byte()),
        }
    }

    // ---- what peers do ----

    /// Opens a connection; replaces the oldest when there are many.
    fn open(&mut self) {
        if self.peers.len() == PEERS_MAX {
            self.leave(0, false);
            self.check_output(0);
            self.peers.remove(0);
        }
        let fd = match self.role {
            Role::Server => self.outside.connect(address(), None),
            Role::Client if self.stopped => return,
            Role::Client => {
                // A failed connect is returned and causes no event.
                let _ = self.worker.parts().1.connect(0, None);
                self.settle();
                self.kernel.advance(30 * MILLISECOND_NS);
                let listener = self.listener;
                retry(|| self.outside.accept(listener))
            }
        };
        if let Ok(fd) = fd {
            self.peers.push(Peer { fd, open: true, inbox: Vec::new(), answered: false });
        }
    }

    fn leave(&mut self, at: usize, reset: bool) {
        let Some(peer) = self.peers.get_mut(at).filter(|peer| peer.open) else { return };
        if reset {
            self.outside.reset_on_close(peer.fd);
        }
        self.outside.close(peer.fd);
        peer.open = false;
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let Some(peer) = self.peers.get(at).filter(|peer| peer.open) else { return };
        let mut rest = bytes;
        // What does not fit is lost, as with a peer that gives up.
        while let Ok(sent @ 1..) = retry(|| self.outside.send(peer.fd, rest)) {
            rest = &rest[sent..];
        }
    }

    fn read(&mut self, at: usize, most: usize) {
        let Some(peer) = self.peers.get_mut(at).filter(|peer| peer.open) else { return };
        let mut left = most;
        let mut buffer = [0; 4096];
        while left > 0 {
            let room = &mut buffer[..left.min(4096)];
            let Ok(got @ 1..) = retry(|| self.outside.recv(peer.fd, room)) else { return };
            peer.inbox.extend_from_slice(&buffer[..got]);
            left -= got;
        }
    }

    fn handshake(&mut self, at: usize, choice: u8) {
        if self.role == Role::Client {
            return self.answer_handshake(at, choice);
        }
        let paths = ["/echo", "/later", "/stream", "/plain", "/close", "/body"];
        let path = paths[usize::from(choice) % paths.len()];
        let method = if choice & 0x80 == 0 { "GET" } else { "HEAD" };
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: h\r\n");
        if choice & 0x40 == 0 {
            head.push_str(
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            );
        }
        if choice & 0x10 != 0 {
            head.push_str(
                "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n",
            );
        }
        if choice & 0x20 != 0 {
            head.push_str("Content-Length: 5\r\n");
        }
        head.push_str("\r\n");
        self.write(at, head.as_bytes());
    }

    /// The correct response to a client that has sent its handshake.
    fn answer_handshake(&mut self, at: usize, choice: u8) {
        self.read(at, usize::MAX);
        let Some(peer) = self.peers.get_mut(at).filter(|peer| !peer.answered) else { return };
        let text = String::from_utf8_lossy(&peer.inbox);
        let key = text.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        let Some(accept) = key.map(|key| accept_key(key.as_bytes())) else { return };
        peer.answered = true;
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n{}\r\n",
            String::from_utf8_lossy(&accept),
            if choice & 0x10 == 0 { "" } else { ANSWER }
        );
        self.write(at, answer.as_bytes());
    }

    /// A frame with any first byte and a correct length.
    fn frame(&mut self, at: usize, input: &mut Input<'_>) {
        let (first, length) = (input.byte(), usize::from(input.byte()));
        let length = if length < 200 { length } else { (length - 200) * 100 };
        let mask = (self.role == Role::Server).then_some([0; 4]);
        let header = FrameHeader::new(OpCode::Text, true, length, mask);
        let mut bytes = header.as_slice().to_vec();
        bytes[0] = first;
        let begin = bytes.len();
        bytes.extend_from_slice(input.take(length.min(8)));
        bytes.resize(begin + length, b'x');
        self.write(at, &bytes);
    }

    /// Sends the same short frame many times and reads nothing.
    fn flood(&mut self, at: usize, choice: u8) {
        let kinds = [OpCode::Ping, OpCode::Text, OpCode::Pong, OpCode::Close];
        let opcode = kinds[usize::from(choice & 3)];
        let mut one = Vec::new();
        match self.role {
            Role::Server => encode_masked(&mut one, opcode, b"", [1, 2, 3, 4]),
            Role::Client => wire::websocket::encode(&mut one, opcode, b""),
        }
        self.write(at, &one.repeat(usize::from(choice >> 2) * 32));
    }

    // ---- what the program and the kernel do ----

    fn worker_acts(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let (handler, core) = self.worker.parts();
        // Some of them may be closed.
        let Some(id) = handler.pick(usize::from(choice >> 4)) else { return };
        match choice & 15 {
            0 => _ = core.send(id, OpCode::Text, b"hello"),
            1 => _ = core.send(id, OpCode::Binary, &[7; MESSAGE_BYTES]),
            2 => {
                for _ in 0..64 {
                    core.send(id, OpCode::Text, &[b'y'; 900]);
                }
            }
            3 => _ = core.ping(id, b"there?"),
            4 => core.close(id, CloseCode::NORMAL, "done"),
            5 => core.abort(id),
            6 => core.reset(id),
            7 | 8 => core.pause(id),
            9 | 10 => core.resume(id),
            11 => _ = core.write(id, b"a line\n"),
            _ => {}
        }
    }

    fn answer_later(&mut self, choice: u8) {
        let Some(id) = self.worker.parts().0.later.pop() else { return };
        let answer = match choice & 3 {
            0 => Answer::Respond(Response::text(403, "no\n")),
            1 => Answer::Stream(Response::text(200, "begin\n")),
            _ => Answer::Upgrade(None),
        };
        self.remote.answer(id, answer);
    }

    fn set_faults(&self, choice: u8) {
        let rate = |bit: u8, rate: u32| if choice >> bit & 1 == 0 { 0 } else { rate };
        for (bit, fault, most) in [
            (0, Fault::ShortRead, 5000),
            (1, Fault::ShortSend, 5000),
            (2, Fault::AgainOnRead, 2000),
            (2, Fault::AgainOnSend, 2000),
            (3, Fault::Interrupted, 1000),
            (4, Fault::Reset, 300),
            (5, Fault::NoBuffers, 2000),
            (5, Fault::Aborted, 2000),
            (6, Fault::WatchNoMemory, 500),
            (6, Fault::ConnectInProgress, 5000),
            (7, Fault::SpuriousEvent, 1000),
            (7, Fault::LateEvent, 2000),
        ] {
            self.kernel.set_rate(fault, rate(bit, most));
        }
    }

    // ---- the end ----

    fn end(mut self) {
        self.kernel.calm();
        self.settle();
        for at in 0..self.peers.len() {
            self.read(at, usize::MAX);
            self.settle();
        }
        self.remote.drain(Duration::ZERO);
        for _ in 0..200 {
            self.settle();
            if self.stopped {
                break;
            }
            (0..self.peers.len()).for_each(|at| self.read(at, usize::MAX));
            self.kernel.advance(100 * MILLISECOND_NS);
        }
        assert!(self.stopped, "the worker does not end");
        let totals = Totals::sum([self.worker.parts().1.counters()]);
        assert_eq!((totals.connections, totals.websockets, totals.queued_bytes), (0, 0, 0));
        (0..self.peers.len()).for_each(|at| self.check_output(at));
    }

    fn check_output(&self, at: usize) {
        let Some(peer) = self.peers.get(at) else { return };
        match self.role {
            Role::Server => output::check_server(&peer.inbox),
            Role::Client => output::check_client(&peer.inbox),
        }
    }
}

/// Injected faults affect peers, too; retries a few in a row.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut result = call();
    for _ in 0..8 {
        match &result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => result = call(),
            _ => break,
        }
    }
    result
}
