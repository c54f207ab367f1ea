//! Raw client connections that become WebSockets later ([`Core::upgrade`]): the bytes before, as to a proxy,
//! the handshake after them, and connections that cannot be upgraded.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use engine::{
    Answer, Closed, ConnId, Core, Destination, Handler, Incoming, Limits, Plan, Response,
    ServerFault, Sys, Tables, Target, Workers,
};
use wire::websocket::{OpCode, accept_key};

const PATIENCE: Duration = Duration::from_secs(60);

/// The handler's calls, and the results of its upgrades.
#[derive(Debug, PartialEq)]
enum Event {
    /// The error of each upgrade, in the order they were tried.
    Upgrade(Vec<Option<ErrorKind>>),
    Data(Vec<u8>),
    Open,
    Message(Vec<u8>),
    Closed(Closed, bool, Option<ServerFault>),
}

/// Requests a tunnel on a raw connection and upgrades the connection when it is established.
struct Tunnelling {
    events: Sender<Event>,
    websocket: u8,
    raw: u8,
}

impl Handler for Tunnelling {
    type User = ();
    type Post = SocketAddr;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, ""))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        assert!(core.upgrade(id, self.websocket).is_err(), "it is a WebSocket already");
        self.events.send(Event::Open).unwrap();
        core.send(id, OpCode::Text, b"hello");
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, data: &mut [u8]) {
        self.events.send(Event::Message(data.to_vec())).unwrap();
    }

    fn connected<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        core.write(id, b"tunnel?");
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        self.events.send(Event::Data(data.to_vec())).unwrap();
        let nobody = ConnId::from_u64(id.as_u64() + 1);
        let (websocket, raw) = (self.websocket, self.raw);
        let tries = [(nobody, websocket), (id, raw), (id, 200), (id, websocket), (id, websocket)];
        let tries = tries.map(|(id, target)| core.upgrade(id, target).err());
        let kinds = tries.iter().map(|error| error.as_ref().map(std::io::Error::kind));
        self.events.send(Event::Upgrade(kinds.collect())).unwrap();
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, opened: bool) {
        self.events.send(Event::Closed(why, opened, core.server_fault(id))).unwrap();
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, to: SocketAddr) {
        let target = Target::websocket(to, "behind.test", "/ws", &[], false, &[]);
        self.websocket = core.add_target(target).unwrap();
        self.raw = core.add_target(Target::raw(to)).unwrap();
        core.connect_raw(Destination::Tcp(to), None, None).unwrap();
    }
}

/// Connects through a tunnel to `server`, which gets the stream after the head of the handshake, and the head.
/// Returns the events after the upgrades.
fn visit(limits: &Limits, server: impl FnOnce(&mut TcpStream, &str) + Send) -> Vec<Event> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = Plan { workers: 1, accepting: 1, capacity: 4, tables: Tables::Shared };
    let (events, receiver) = mpsc::channel();
    let handler = move |_: u16, _: &_| Tunnelling {
        events: events.clone(),
        websocket: u8::MAX,
        raw: u8::MAX,
    };
    let workers = Workers::start(plan, limits, &[], handler).unwrap();
    workers.remote().post(0, listener.local_addr().unwrap(), 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut asked = [0; 7];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(&asked, b"tunnel?");
            stream.write_all(b"yes").unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            server(&mut stream, &String::from_utf8(head).unwrap());
        });
    });
    let next = || receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next(), Event::Data(b"yes".to_vec()));
    let (gone, no_target) = (Some(ErrorKind::NotConnected), Some(ErrorKind::NotFound));
    assert_eq!(next(), Event::Upgrade(vec![gone, no_target, no_target, None, gone]));
    let mut rest = vec![next()];
    while !matches!(rest.last(), Some(Event::Closed(..))) {
        rest.push(next());
    }
    workers.drain(Duration::ZERO).unwrap();
    rest
}

#[test]
fn raw_connection_becomes_a_websocket_after_other_bytes() {
    let events = visit(&Limits::default(), |stream, head| {
        assert!(head.starts_with("GET /ws HTTP/1.1\r\nHost: behind.test\r\n"), "{head}");
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = String::from_utf8(accept_key(key.as_bytes()).to_vec()).unwrap();
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n\x01\x02hi"
        );
        // The first fragment of a message.
        stream.write_all(answer.as_bytes()).unwrap();
        let mut hello = [0; 2 + 4 + 5];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(hello[..2], [0x81, 0x80 | 5], "masked, as a client's");
        stream.write_all(b"\x80\x03 ho").unwrap();
    });
    let closed = Event::Closed(Closed::Gone, true, None);
    assert_eq!(events, [Event::Open, Event::Message(b"hi ho".to_vec()), closed]);
}

#[test]
fn rejected_or_unanswered_upgrade_is_closed_with_its_cause() {
    let events = visit(&Limits::default(), |stream, _| {
        stream.write_all(b"HTTP/1.1 404 Nope\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let rejected = Event::Closed(Closed::HandshakeRejected, false, Some(ServerFault::Status(404)));
    assert_eq!(events, [rejected]);
    let hasty = Limits { handshake_timeout: Duration::from_millis(200), ..Limits::default() };
    let events = visit(&hasty, |stream, _| {
        // Until the client closes it.
        let _ = stream.read(&mut [0]);
    });
    assert_eq!(events, [Event::Closed(Closed::HandshakeTimeout, false, None)]);
}
