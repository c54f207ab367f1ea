//! A server without threads, driven by another event loop: here one that is written by hand, on poll(2).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use standfast::{
    Accept, CloseCode, Embedded, Handler, Message, Response, Routes, Sent, Server, Socket,
    SocketId, UpgradeRequest,
};

use crate::client::Client;

const PATIENCE: Duration = Duration::from_secs(60);

/// The sockets of each name.
type Names = Arc<Mutex<BTreeMap<String, SocketId>>>;

/// What clients write is `NAME COMMAND`: done to the socket that has the name.
#[derive(Clone)]
struct Directory(Names);

impl Handler for Directory {
    type Data = String;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<String>, Response> {
        Ok(Accept::new(request.param("name").unwrap_or_default().into_owned()))
    }

    fn open(&mut self, socket: &mut Socket<'_>, name: &mut String) {
        socket.subscribe("all");
        self.0.lock().unwrap().insert(name.clone(), socket.id());
    }

    fn message(&mut self, socket: &mut Socket<'_>, name: &mut String, message: Message<'_>) {
        let text = message.as_text().unwrap().to_owned();
        let (to, command) = text.split_once(' ').unwrap();
        let to = self.0.lock().unwrap().get(to).copied();
        let mut context = socket.context();
        match (to, command) {
            (Some(to), "close") => {
                let mut other = context.socket(to);
                other.close(CloseCode::NORMAL, "by another");
                assert!(!other.is_open() && other.send("too late") == Sent::Dropped);
            }
            (Some(to), command) => drop(context.socket(to).send(command)),
            (None, command) => {
                context.publish("all", format!("{name}: {command}").as_str()).unwrap()
            }
        }
    }

    fn close(&mut self, _: &mut Socket<'_>, name: String, _: &standfast::Close<'_>) {
        self.0.lock().unwrap().remove(&name);
    }
}

/// Drives a server until something holds, with what `between` does between two turns.
fn drive<R: Routes>(
    server: &mut Embedded<R>,
    mut between: impl FnMut(&mut Embedded<R>),
    until: impl Fn(&Embedded<R>, bool) -> bool,
) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "not in time");
        let due = server.due().unwrap_or(PATIENCE).min(PATIENCE);
        let due = Timespec::try_from(due).unwrap();
        poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&due)).unwrap();
        let running = server.turn().unwrap();
        between(server);
        if until(server, running) {
            break;
        }
    }
}

#[test]
fn another_loop_drives_a_server_and_acts_on_its_sockets() {
    let names = Names::default();
    let server = Server::bind("127.0.0.1:0").unwrap().route("/{name}", Directory(names.clone()));
    let mut server = server.embed().unwrap();
    let address = server.address();
    let clients = spawn(move || {
        let (mut a, mut b) = (Client::open(address, "/a"), Client::open(address, "/b"));
        // From within a handler: to another socket, and to all.
        a.send("b hello");
        assert_eq!(b.text(), "hello");
        b.send("everyone good morning");
        assert_eq!((a.text(), b.text()), ("b: good morning".into(), "b: good morning".into()));
        // What is done between two turns.
        a.send("everyone between");
        assert_eq!((a.text(), b.text()), ("a: between".into(), "a: between".into()));
        a.send("a ready");
        assert_eq!(a.text(), "ready");
        assert_eq!((a.text(), b.text()), ("between turns".into(), "between turns".into()));
        a.send("b close");
        assert_eq!(b.closed(), (1000, "by another".into()));
        drop(b);
        assert_eq!(a.text(), "direct");
        a.closed()
    });
    let mut steps = 0;
    let between = |server: &mut Embedded<_>| {
        let there = |name| names.lock().unwrap().get(name).copied();
        let messages = server.totals().messages_in;
        match (steps, messages) {
            (0, 4) => {
                steps = 1;
                server.act(|context| context.publish("all", "between turns").unwrap());
            }
            (1, 5) if there("b").is_none() => {
                steps = 2;
                let id = there("a").unwrap();
                assert_eq!(server.act(|context| context.socket(id).send("direct")), Sent::Sent);
                server.remote().stop(Duration::ZERO);
            }
            _ => {}
        }
    };
    drive(&mut server, between, |_, running| !running);
    assert_eq!(clients.join().unwrap().0, 1001);
    let totals = server.totals();
    assert_eq!((totals.upgrades, totals.connections, totals.messages_in), (2, 0, 5));
}

#[test]
fn a_dropped_server_ends_its_connections() {
    let names = Names::default();
    let server = Server::bind("127.0.0.1:0").unwrap().route("/{name}", Directory(names.clone()));
    let mut server = server.embed().unwrap();
    let address = server.address();
    let client = spawn(move || Client::open(address, "/a"));
    drive(&mut server, |_| {}, |server, _| server.totals().websockets == 1);
    let mut client = client.join().unwrap();
    drop(server);
    assert!(client.0.read().is_err());
    assert!(names.lock().unwrap().is_empty(), "its handler was told");
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens");
}
