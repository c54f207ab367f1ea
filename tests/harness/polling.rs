//! A client of long polling: test-only, one connection that it keeps open between its requests.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use super::PATIENCE;
use super::http::{Response, read_response};

/// Requests after which no more messages are expected to come.
const POLLS_MAX: usize = 200;

pub(crate) struct Poller {
    server: SocketAddr,
    stream: TcpStream,
    pending: Vec<u8>,
    /// What each request has beside its path: a query, and further headers with their line ends.
    pub(crate) query: String,
    pub(crate) headers: String,
    /// The id of the session, once it is open.
    pub(crate) id: String,
    pub(crate) sid: String,
    pub(crate) welcome: Value,
    heard: VecDeque<Value>,
}

impl Poller {
    /// A client that has not sent a request yet.
    pub(crate) fn new(server: SocketAddr, query: &str, headers: &str) -> Self {
        Poller {
            server,
            stream: connect(server),
            pending: Vec::new(),
            query: query.to_owned(),
            headers: headers.to_owned(),
            id: String::new(),
            sid: String::new(),
            welcome: Value::Null,
            heard: VecDeque::new(),
        }
    }

    /// A client with an open session, after its welcome.
    pub(crate) fn open(server: SocketAddr, query: &str) -> Self {
        Self::open_with(server, query, "")
    }

    pub(crate) fn open_with(server: SocketAddr, query: &str, headers: &str) -> Self {
        let mut client = Self::new(server, query, headers);
        client.begin("");
        client
    }

    /// Opens the session with a request that has this body.
    pub(crate) fn begin(&mut self, body: &str) {
        let response = self.ask(body);
        assert_eq!(response.status, 200, "{response:?}");
        self.id = response.header("x-anycable-poll-id").expect("the session has an id").to_owned();
        self.take(&response);
        self.welcome = self.hear();
        assert_eq!(self.welcome["type"], "welcome", "{}", self.welcome);
        self.sid = self.welcome["sid"].as_str().unwrap_or_default().to_owned();
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn send(&mut self, body: &str) {
        let id = match self.id.as_str() {
            "" => String::new(),
            id => format!("X-Anycable-Poll-ID: {id}\r\n"),
        };
        let request = format!(
            "POST /lp{} HTTP/1.1\r\nHost: {}\r\n{id}{}Content-Length: {}\r\n\r\n{body}",
            self.query,
            self.server,
            self.headers,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).expect("the request is taken");
    }

    /// Reads the answer to the last request.
    pub(crate) fn answer(&mut self) -> Response {
        read_response(&mut self.stream, &mut self.pending)
    }

    pub(crate) fn ask(&mut self, body: &str) -> Response {
        self.send(body);
        self.answer()
    }

    /// Continues on another connection; the one before is closed.
    pub(crate) fn reconnect(&mut self) {
        self.stream = connect(self.server);
        self.pending.clear();
    }

    /// One request with these commands; its messages are heard next.
    pub(crate) fn poll(&mut self, commands: &[Value]) -> usize {
        let body: String = commands.iter().map(|command| format!("{command}\n")).collect();
        let response = self.ask(&body);
        assert_eq!(response.status, 200, "{response:?}");
        self.take(&response)
    }

    fn take(&mut self, response: &Response) -> usize {
        let lines = messages(response);
        let count = lines.len();
        self.heard.extend(lines);
        count
    }

    /// The next message; polls until there is one.
    pub(crate) fn hear(&mut self) -> Value {
        for _ in 0..POLLS_MAX {
            if let Some(message) = self.heard.pop_front() {
                return message;
            }
            self.poll(&[]);
        }
        panic!("no message came");
    }

    /// Subscribes and waits for the confirmation.
    pub(crate) fn subscribe(&mut self, identifier: &str) {
        self.poll(&[json!({"command": "subscribe", "identifier": identifier})]);
        assert_eq!(self.hear(), json!({"type": "confirm_subscription", "identifier": identifier}));
    }
}

/// The messages in an answer: a line each.
pub(crate) fn messages(response: &Response) -> Vec<Value> {
    let body = &response.body;
    assert!(body.is_empty() || body.ends_with('\n'), "{body:?}");
    body.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream
}
