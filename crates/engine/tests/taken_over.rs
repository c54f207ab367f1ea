//! Requests that a handler takes over as raw bytes, connections that become HTTP again, half-closes, connects to
//! addresses that are not targets, and requests whose connection the handler ends.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use engine::sys::process::{self, Listen};
use engine::{
    Answer, Closed, ConnId, Core, Destination, Handler, Incoming, Limits, Plan, Response, Sent,
    Sys, Tables, Workers,
};
use wire::websocket::OpCode;

const PATIENCE: Duration = Duration::from_secs(60);

/// For `/take?N`, reads N raw bytes and becomes HTTP again. For `/half`, relays to a connection of its own and
/// keeps each side open until both have ended.
struct Taking {
    events: Sender<String>,
    peer: Option<ConnId>,
    client: Option<ConnId>,
}

impl Handler for Taking {
    type User = usize;
    type Post = Box<std::path::Path>;

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        request: &Incoming<'_, '_>,
    ) -> Answer {
        match request.head.path() {
            "/take" => {
                let wanted = request.head.query().and_then(|query| query.parse().ok());
                *core.user_mut(id).unwrap() = wanted.unwrap();
                Answer::Raw
            }
            "/half" => {
                self.client = Some(id);
                Answer::Raw
            }
            "/end" => {
                core.abort(id);
                match request.head.query() {
                    Some("upgrade") => Answer::Upgrade(None),
                    Some("later") => Answer::LaterWithin(60_000_000_000),
                    _ => {
                        let mut response = Response::text(200, "late\n");
                        response.close = true;
                        Answer::Respond(response)
                    }
                }
            }
            _ => Answer::Respond(Response::text(200, "plain\n")),
        }
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {
        self.events.send("open".into()).unwrap();
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {}

    fn connected<S: Sys>(&mut self, _: &mut Core<S, Self>, id: ConnId) {
        self.peer = Some(id);
        self.events.send("connected".into()).unwrap();
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        if Some(id) == self.client || Some(id) == self.peer {
            let other = if Some(id) == self.client { self.peer } else { self.client };
            if let Sent::Queued(_) = core.write(other.unwrap(), data) {
                core.pause(id);
            }
            return;
        }
        let wanted = core.user_mut(id).unwrap();
        let taken = data.len().min(*wanted);
        *wanted -= taken;
        let done = *wanted == 0;
        self.events.send(String::from_utf8_lossy(&data[..taken]).into_owned()).unwrap();
        core.leave_unread(data.len() - taken);
        if done {
            core.write(id, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            core.next_request(id);
        }
    }

    fn drained<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let other = if Some(id) == self.client { self.peer } else { self.client };
        core.resume(other.unwrap());
    }

    fn ended<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) -> bool {
        let other = if Some(id) == self.client { self.peer } else { self.client };
        let Some(other) = other else { return false };
        core.finish_writing(other);
        true
    }

    fn closed<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, why: Closed, _: bool) {
        assert_eq!(core.mode(id), None, "it has ended");
        let who = if Some(id) == self.client { "client" } else { "other" };
        // A connection whose own side has ended too is closed without this call.
        if let Some(client) = self.client.filter(|client| *client != id) {
            core.finish_writing(client);
        }
        self.events.send(format!("{who} closed: {why}")).unwrap();
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, path: Self::Post) {
        core.connect_raw(Destination::Unix(&path), None, None).unwrap();
    }
}

struct Fixture {
    workers: Workers<Box<std::path::Path>>,
    address: SocketAddr,
    events: Receiver<String>,
}

impl Fixture {
    fn new() -> Fixture {
        let (listener, address) = process::listen(&Listen {
            address: ([127, 0, 0, 1], 0).into(),
            backlog: 16,
            shared_port: false,
            defer: Duration::ZERO,
            v6_only: false,
        })
        .unwrap();
        process::notice_dead_peers(listener, Duration::from_secs(30)).unwrap();
        let (events, receiver) = mpsc::channel();
        let plan = Plan { workers: 1, accepting: 1, capacity: 8, tables: Tables::Shared };
        let limits = Limits::default();
        let handler = move |_, _: &_| Taking { events: events.clone(), peer: None, client: None };
        let workers = Workers::start(plan, &limits, &[listener], handler).unwrap();
        Fixture { workers, address, events: receiver }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn next(&self) -> String {
        self.events.recv_timeout(PATIENCE).unwrap()
    }
}

fn read_until(stream: &mut TcpStream, end: &[u8]) -> String {
    let mut got = Vec::new();
    while !got.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        got.push(byte[0]);
    }
    String::from_utf8(got).unwrap()
}

#[test]
fn bytes_left_unread_are_the_next_request() {
    let fixture = Fixture::new();
    let mut client = fixture.connect();
    // In one write: two requests with bodies, then one without.
    let request = |body: &str| {
        format!("POST /take?{} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n{body}", body.len())
    };
    let all = request("first") + &request("other") + "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    client.write_all(all.as_bytes()).unwrap();
    assert_eq!(fixture.next(), "first");
    assert_eq!(fixture.next(), "other");
    for _ in 0..2 {
        assert!(read_until(&mut client, b"\r\n\r\nok").contains("200 OK"));
    }
    assert!(read_until(&mut client, b"plain\n").contains("200 OK"));
    // And in parts: the body arrives later.
    let third = request("third");
    let (front, back) = third.split_at(third.len() - 3);
    client.write_all(front.as_bytes()).unwrap();
    client.write_all(back.as_bytes()).unwrap();
    let mut body = fixture.next();
    while body.len() < 5 {
        body += &fixture.next();
    }
    assert_eq!(body, "third");
    read_until(&mut client, b"\r\n\r\nok");
    drop(client);
    assert_eq!(fixture.next(), "other closed: answered");
    fixture.workers.drain(Duration::ZERO).unwrap();
}

#[test]
fn half_closed_connections_end_when_both_sides_have_ended() {
    let fixture = Fixture::new();
    let folder = std::env::temp_dir().join(format!("standfast-taken-over-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("peer.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    fixture.workers.remote().post(0, path.clone().into(), 0).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(fixture.next(), "connected");
    let mut client = fixture.connect();
    client.write_all(b"GET /half HTTP/1.1\r\nHost: h\r\n\r\nearly").unwrap();
    let mut early = [0; 5];
    peer.read_exact(&mut early).unwrap();
    assert_eq!(&early, b"early");
    client.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    assert_eq!(peer.read_to_end(&mut rest).unwrap(), 0, "the end of one side is passed on");
    // The other side still sends, more than any kernel buffer holds.
    let writer = std::thread::spawn(move || {
        peer.write_all(&vec![b'x'; 8 << 20]).unwrap();
        peer
    });
    let mut heard = vec![0; 8 << 20];
    client.read_exact(&mut heard).unwrap();
    assert!(heard.iter().all(|byte| *byte == b'x'));
    // Then it ends too, and both connections are closed.
    drop(writer.join().unwrap());
    assert_eq!(client.read(&mut heard).unwrap(), 0);
    let mut over = [fixture.next(), fixture.next()];
    over.sort();
    assert_eq!(over, ["client closed: gone", "other closed: gone"]);
    std::fs::remove_dir_all(&folder).unwrap();
    fixture.workers.drain(Duration::ZERO).unwrap();
}

#[test]
fn a_request_whose_connection_the_handler_has_ended_has_no_answer() {
    let fixture = Fixture::new();
    for what in ["respond", "upgrade", "later"] {
        let mut client = fixture.connect();
        let request = format!(
            "GET /end?{what} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        client.write_all(request.as_bytes()).unwrap();
        assert_eq!(fixture.next(), "other closed: aborted", "{what}");
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{what}");
    }
    fixture.workers.drain(Duration::ZERO).unwrap();
}
