//! Drivers with pushed messages, with a custom script: answers, other messages and missing answers are
//! distinguished and counted exactly.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

#[allow(dead_code, reason = "other tests use the rest of it")]
mod server;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use load::Endpoint;
use load::Outcome;
use load::requests::{
    Answer, Failure, Kind, Part, Push, Request, Requests, Script, SocketEnd, Step, WebSocket,
    drive_requests,
};

/// Long enough for an answer on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(1);
const ASKS: u32 = 250;
const HEAD: &str =
    "Host: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n";

#[derive(Default)]
struct ServerLog {
    /// Messages that were no answer.
    strays: AtomicU64,
    left: Mutex<Vec<SocketEnd>>,
}

/// Each user connects and sends one request after another.
struct Asker {
    book: Arc<ServerLog>,
    request: Request,
    connect: Request,
    asked: Vec<u32>,
}

impl Asker {
    fn text(&self, user: u32) -> String {
        format!("message {:04}", self.asked[user as usize])
    }
}

impl Script for Asker {
    fn next(&mut self, user: u32, _: u64) -> Step {
        self.asked[user as usize] += 1;
        if self.asked[user as usize] > ASKS + 1 { Step::End } else { Step::Send }
    }

    fn request(&mut self, user: u32) -> &Request {
        if self.kind(user) == Kind::Connect {
            return &self.connect;
        }
        self.request = Request::message(0, Kind::Text, self.text(user).into_bytes());
        &self.request
    }

    fn kind(&self, user: u32) -> Kind {
        if self.asked[user as usize] == 1 { Kind::Connect } else { Kind::Text }
    }

    fn awaits(&self, user: u32) -> bool {
        self.kind(user) == Kind::Text
    }

    fn pushed(&mut self, user: u32, _: u8, push: &Push<'_>, waits: bool, _: u64) -> bool {
        let is_it = waits && push.is_text && push.data == self.text(user).as_bytes();
        self.book.strays.fetch_add(u64::from(!is_it), Ordering::Relaxed);
        is_it
    }

    fn socket_ended(&mut self, _: u32, _: u8, left: SocketEnd) {
        self.book.left.lock().unwrap().push(left);
    }

    fn answered(&mut self, _: u32, _: &Answer<'_>) -> Option<Failure> {
        None
    }
}

fn run(port: u16, path: &str, users: u64) -> (Outcome, Arc<ServerLog>) {
    let endpoint = Endpoint::parse_web(&format!("http://127.0.0.1:{port}/")).unwrap();
    let config = Requests {
        duration: None,
        requests: Some(u64::MAX >> 1),
        timeout: LIMIT,
        ..Requests::new(vec![endpoint], users)
    };
    let book: Arc<ServerLog> = Arc::default();
    let (own, head) = (Arc::clone(&book), format!("GET {path} HTTP/1.1\r\n{HEAD}"));
    let script = move |part: Part| Asker {
        book: Arc::clone(&own),
        request: Request::default(),
        connect: Request::message(0, Kind::Connect, head.clone().into_bytes()),
        asked: vec![0; part.users as usize],
    };
    let wait = |time| {
        std::thread::sleep(time);
        false
    };
    let ended = drive_requests(&config, WebSocket::new, script, |_| {}, wait).unwrap();
    (ended, book)
}

#[test]
fn every_request_has_its_answer() {
    let server = server::Server::start();
    let (summary, book) = run(server.port, "/echo", 20);
    let of = summary.requests.unwrap();
    assert_eq!((of.ok, of.failed, of.sent), (20 * 251, 0, 20 * 251), "{summary}");
    assert_eq!(summary.connections.opened.unwrap(), 20);
    assert_eq!(book.strays.load(Ordering::Relaxed), 0);
    assert!(book.left.lock().unwrap().is_empty(), "the users closed their connections");
}

#[test]
fn dropped_corrupted_duplicated_or_late_messages_are_no_answers() {
    let server = server::Server::start();
    // The server drops each 100th message of a connection, delays the 50th, corrupts the 70th and
    // duplicates each 101st.
    let (summary, book) = run(server.port, "/faults", 3);
    let of = summary.requests.unwrap();
    assert_eq!((of.failed, summary.errors["timeout"]), (3 * 4, 3 * 4), "{summary}");
    assert_eq!(of.ok, 3 * (251 - 4), "{summary}");
    assert_eq!(
        book.strays.load(Ordering::Relaxed),
        3 * 4,
        "one late, one corrupted, and two duplicated"
    );
    assert_eq!(summary.connections.opened.unwrap(), 3, "none of that costs the socket");
}
