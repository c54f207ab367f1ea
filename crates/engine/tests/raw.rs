//! Raw connects: bytes in both directions once connected, without a handshake by the engine.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use engine::{
    Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Response, Sent, Sys, Tables,
    Target, Workers,
};
use wire::websocket::OpCode;

const PATIENCE: Duration = Duration::from_secs(60);

/// The handler's calls, in order.
#[derive(Debug, PartialEq)]
enum Event {
    Connected(Sent),
    Data(Vec<u8>),
    Closed(Closed, bool),
}

/// Sends hello, answers every byte with its successor, and reports its calls.
struct Counting(Sender<Event>);

impl Handler for Counting {
    type User = ();
    type Post = SocketAddr;

    fn request<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: &Incoming) -> Answer {
        Answer::Respond(Response::text(404, ""))
    }

    fn open<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId) {
        unreachable!("a raw connection is no WebSocket");
    }

    fn message<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: OpCode, _: &mut [u8]) {
        unreachable!("a raw connection is no WebSocket");
    }

    fn connected<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let sent = core.write(id, b"hello");
        self.0.send(Event::Connected(sent)).unwrap();
    }

    fn data<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId, data: &mut [u8]) {
        self.0.send(Event::Data(data.to_vec())).unwrap();
        data.iter_mut().for_each(|byte| *byte += 1);
        core.write(id, data);
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, why: Closed, opened: bool) {
        self.0.send(Event::Closed(why, opened)).unwrap();
    }

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, address: SocketAddr) {
        let target = core.add_target(Target::raw(address)).unwrap();
        core.connect(target, None).unwrap();
    }
}

#[test]
fn raw_connection_transfers_bytes_in_both_directions() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (events, receiver) = mpsc::channel();
    let workers = workers(events);
    workers.remote().post(0, listener.local_addr().unwrap(), 0).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    stream.write_all(&[7]).unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [8]);
    drop(stream);
    let next = || receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next(), Event::Connected(Sent::Sent));
    assert_eq!(next(), Event::Data(vec![7]));
    assert_eq!(next(), Event::Closed(Closed::Gone, false));
    workers.drain(Duration::ZERO).unwrap();
}

#[test]
fn refused_raw_connect_is_closed_as_connect_refused() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (events, receiver) = mpsc::channel();
    let workers = workers(events);
    workers.remote().post(0, address, 0).unwrap();
    let why = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(why, Event::Closed(Closed::ConnectRefused, false));
    workers.drain(Duration::ZERO).unwrap();
}

fn workers(events: Sender<Event>) -> Workers<SocketAddr> {
    let plan = Plan { workers: 1, accepting: 1, capacity: 4, tables: Tables::Shared };
    let limits = Limits::default();
    Workers::start(plan, &limits, &[], move |_, _| Counting(events.clone())).unwrap()
}
