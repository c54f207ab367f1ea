//! [`Simulation`]: one worker and the clients of a test over the simulated kernel; the worker's handler
//! does what it receives.

use std::net::SocketAddr;

use engine::sys::sim::{Kernel, Sim};
use engine::sys::{Fd, Sys};
use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Remote, Response, Totals, Worker,
};
use wire::websocket::{CloseCode, FrameHeader, OpCode};

const SECOND_NS: u64 = 1_000_000_000;
pub(super) const BUFFER: usize = 64 * 1024;

/// Does what a message or the raw bytes say.
#[derive(Default)]
pub(super) struct Host {
    /// All connections, in the order of their requests.
    pub(super) ids: Vec<ConnId>,
    pub(super) received: Vec<(usize, String)>,
    pub(super) closing: Vec<Closed>,
    pub(super) closed: Vec<Closed>,
    /// Raw bytes that it uses of a call, if not all.
    pub(super) uses: Option<usize>,
    pub(super) keeps_half_open: bool,
    /// Bytes that the worker had read at each call for raw bytes.
    pub(super) bytes_in: Vec<u64>,
    /// Bytes that it had sent at each message, and at each call for raw bytes.
    pub(super) bytes_out: Vec<u64>,
    /// Which of the messages that ask for an echo takes a millisecond, and has no reply; the first is 1, 0 is none.
    pub(super) slow_call: usize,
    kernel: Option<Kernel>,
}

impl Host {
    fn follow<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &[u8]) {
        let at = self.ids.iter().position(|other| *other == id).unwrap();
        let text = String::from_utf8_lossy(data).into_owned();
        match &*text {
            "echo" if self.bytes_out.len() == self.slow_call => {
                self.kernel.as_ref().unwrap().advance(SECOND_NS / 1000);
            }
            "echo" => drop(core.send(id, OpCode::Text, b"echo")),
            "close" => core.close(id, CloseCode::NORMAL, "enough"),
            "abort" => core.abort(id),
            "pause" => core.pause(id),
            "pause other" => core.pause(self.ids[1 - at]),
            "abort other" => core.abort(self.ids[1 - at]),
            "answer" => {
                core.write(id, b"answered");
                core.next_request(id);
            }
            "bye" => {
                core.write(id, b"good bye");
                core.end_after(id, Closed::ByUs);
            }
            "flood" => {
                for _ in 0..4 {
                    core.send(id, OpCode::Binary, &[0; BUFFER]);
                }
            }
            _ => {}
        }
        self.received.push((at, text));
    }
}

impl Handler for Host {
    type User = ();
    type Post = ();

    const READS_TOGETHER: usize = 8;
    const READS_SOCKETS_TOGETHER: bool = crate::SOCKETS_TOGETHER;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId, request: &Incoming) -> Answer {
        self.ids.push(id);
        match request.head.path() {
            "/raw" => Answer::Raw,
            "/plain" => Answer::Respond(Response::text(200, "plain\n")),
            _ => Answer::Upgrade(None),
        }
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {}

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        self.bytes_out.push(core.counters().bytes_out.get());
        self.follow(core, id, data);
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        self.bytes_in.push(core.counters().bytes_in.get());
        self.bytes_out.push(core.counters().bytes_out.get());
        let used = self.uses.unwrap_or(data.len()).min(data.len());
        self.follow(core, id, &data[..used]);
        core.leave_unread(data.len() - used);
    }

    fn ended<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) -> bool {
        self.keeps_half_open
    }

    fn closing<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, why: Closed) {
        self.closing.push(why);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, why: Closed, _: bool) {
        self.closed.push(why);
    }

    fn post<S: Sys>(&mut self, _: &mut Core<S, Self>, (): ()) {}
}

pub(super) struct Simulation {
    pub(super) kernel: Kernel,
    pub(super) worker: Worker<Sim, Host>,
    remote: Remote<()>,
    table: usize,
    pub(super) outside: Sim,
}

pub(super) fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 80))
}

/// A masked frame.
pub(super) fn frame(opcode: OpCode, last: bool, data: &[u8]) -> Vec<u8> {
    let header = FrameHeader::new(opcode, last, data.len(), Some([0; 4]));
    [header.as_slice(), data].concat()
}

pub(super) fn text(data: &str) -> Vec<u8> {
    frame(OpCode::Text, true, data.as_bytes())
}

/// A compressed message: one stored block (RFC 7692, section 7.2.3.3), in so many frames.
pub(super) fn compressed(data: &str, frames: usize) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    let block = [&[0], &length.to_le_bytes()[..], &(!length).to_le_bytes(), data.as_bytes(), &[0]];
    let block = block.concat();
    let mut out = Vec::new();
    for (at, piece) in block.chunks(block.len().div_ceil(frames)).enumerate() {
        let (opcode, last) = ([OpCode::Text, OpCode::Continuation][at.min(1)], at + 1 == frames);
        let header = FrameHeader::new(opcode, last, piece.len(), Some([0; 4]));
        let header = if at == 0 { header.deflated() } else { header };
        out.extend_from_slice(&[header.as_slice(), piece].concat());
    }
    out
}

/// A close frame with code 1000.
pub(super) fn close_frame() -> Vec<u8> {
    frame(OpCode::Close, true, &[3, 232])
}

impl Simulation {
    pub(super) fn new() -> Simulation {
        Simulation::with(Limits::default())
    }

    pub(super) fn with(limits: Limits) -> Simulation {
        Simulation::with_kernel(limits, Kernel::new(1, (BUFFER, BUFFER)))
    }

    pub(super) fn with_kernel(limits: Limits, kernel: Kernel) -> Simulation {
        let listener = kernel.listen(address(), 16, 0);
        let seat = kernel.seat(64, &[listener]);
        let remote = Remote::new(vec![seat.wake], limits.mailbox_bytes);
        let table = seat.sys.table();
        let host = Host { kernel: Some(kernel.clone()), ..Host::default() };
        let worker =
            Worker::new(seat.sys, 0, limits, remote.clone(), &seat.listeners, 50, host).unwrap();
        remote.give_listener(0, 0);
        let outside = kernel.outside();
        Simulation { kernel, worker, remote, table, outside }
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            let now_ns = self.kernel.now_ns();
            let due = self.worker.deadline().is_some_and(|at_ns| at_ns <= now_ns);
            if !due && !self.kernel.is_ready(self.table) {
                return;
            }
            self.worker.turn(None).unwrap();
        }
        panic!("the worker spins");
    }

    /// Lets time pass in steps of a second.
    pub(super) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.kernel.advance(SECOND_NS);
            self.settle();
        }
    }

    pub(super) fn connect(&mut self, path: &str) -> Fd {
        let fd = self.outside.connect(address(), None).unwrap();
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
            Sec-WebSocket-Extensions: permessage-deflate\r\n";
        let upgrade = if path == "/" { upgrade } else { "" };
        self.send(fd, format!("GET {path} HTTP/1.1\r\nHost: h\r\n{upgrade}\r\n").as_bytes());
        let (head, ended) = self.receive(fd);
        assert!(path == "/raw" || head.starts_with(b"HTTP/1.1 ") && !ended);
        fd
    }

    /// Sends without a turn of the worker.
    pub(super) fn put(&mut self, fd: Fd, bytes: &[u8]) {
        assert_eq!(self.outside.send(fd, bytes).unwrap(), bytes.len());
    }

    pub(super) fn send(&mut self, fd: Fd, bytes: &[u8]) {
        self.put(fd, bytes);
        self.settle();
    }

    /// Everything that arrived, and whether the stream has ended.
    pub(super) fn receive(&mut self, fd: Fd) -> (Vec<u8>, bool) {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.outside.recv(fd, &mut buffer) {
                Ok(0) => return (bytes, true),
                Ok(got) => bytes.extend_from_slice(&buffer[..got]),
                Err(_) => return (bytes, false),
            }
            self.settle();
        }
    }

    pub(super) fn host(&mut self) -> &mut Host {
        self.worker.parts().0
    }

    /// What arrived from the connection at this index.
    pub(super) fn received(&mut self, at: usize) -> Vec<String> {
        let all = std::mem::take(&mut self.host().received);
        let (own, others) = all.into_iter().partition(|(from, _)| *from == at);
        self.host().received = others;
        let own: Vec<(usize, String)> = own;
        own.into_iter().map(|(_, text)| text).collect()
    }

    pub(super) fn totals(&self) -> Totals {
        Totals::sum(self.remote.counters())
    }
}
