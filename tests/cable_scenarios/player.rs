//! Plays a transcript: clients, an application that answers HTTP RPC, and `serve` between them.
//!
//! No step waits for a fixed time. That nothing comes is known by a fence: something that is broadcast
//! later and has arrived.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::transcript::Step;
use crate::harness::app::{Answer, App, Call};
use crate::harness::server::Server;
use crate::harness::socket::{CLOSE, Socket, TEXT, upgrade};
use crate::harness::{eventually, http};

const FENCE: &str = r#"{"channel":"$pubsub","stream_name":"fence"}"#;

/// What the application is called with, and what it answers.
struct Line {
    call: String,
    expected: Value,
    answer: Value,
    used: bool,
}

/// What the application knows.
struct Script {
    lines: Mutex<Vec<Line>>,
    /// Calls that no line names.
    unnamed: Mutex<Vec<String>>,
    /// Where it broadcasts.
    admin: OnceLock<SocketAddr>,
}

/// A client and what was last heard.
struct Client {
    socket: Socket,
    sid: String,
    ping: u64,
    fences: bool,
}

/// Plays the steps.
///
/// # Panics
/// At the first step that does not go as written.
pub(super) fn play(flags: &[String], steps: &[Step]) {
    let script = Arc::new(Script::new(steps));
    let app = {
        let script = Arc::clone(&script);
        App::start(move |call| script.answer(call))
    };
    let url = app.url();
    let fixed = ["--rpc-host", &url, "--public-streams", "--workers", "1"];
    let more: Vec<&str> = flags.iter().map(|flag| &**flag).collect();
    let server = Server::start(&[&fixed[..], &more].concat());
    script.admin.set(server.admin).expect("it is set once");
    let (clients, left) = (BTreeMap::new(), String::new());
    let mut stage =
        Stage { server, script, clients, position: Value::Null, second: 0, left, fences: 0 };
    for step in steps {
        println!("{step:?}");
        stage.perform(step);
    }
    stage.end();
}

impl Script {
    fn new(steps: &[Step]) -> Self {
        let line = |step: &Step| match step {
            Step::App { call, expected, answer } => Some(Line {
                call: call.clone(),
                expected: expected.clone(),
                answer: answer.clone(),
                used: false,
            }),
            _ => None,
        };
        let lines = Mutex::new(steps.iter().filter_map(line).collect());
        Script { lines, unnamed: Mutex::default(), admin: OnceLock::new() }
    }

    fn answer(&self, call: &Call) -> Answer {
        let mut lines = self.lines.lock().expect("no step panics in here");
        let is = |line: &&mut Line| {
            !line.used && line.call == call.name() && has(&call.body, &line.expected)
        };
        let found = lines.iter_mut().find(is);
        let answer = found.map(|line| {
            line.used = true;
            line.answer.clone()
        });
        drop(lines);
        let Some(mut answer) = answer else {
            return self.unnamed(call);
        };
        let admin = *self.admin.get().expect("calls come after the start");
        let sid = json!(call.sid());
        for broadcast in answer["broadcasts"].take().as_array().into_iter().flatten() {
            let named = |text: &str| (text == "%sid").then(|| sid.clone());
            send_broadcast(admin, &replaced(broadcast, &named));
        }
        let transmissions = answer["sends"].take();
        let transmissions = transmissions.as_array().into_iter().flatten();
        let texts: Vec<String> = transmissions.map(Value::to_string).collect();
        let fields = answer.as_object_mut().expect("an answer is an object");
        fields.retain(|name, _| !matches!(&**name, "sends" | "broadcasts"));
        fields.insert("transmissions".into(), json!(texts));
        fields.entry("status").or_insert(json!(1));
        Answer::Json(answer)
    }

    /// Clients may come and go; all else must be named.
    fn unnamed(&self, call: &Call) -> Answer {
        match call.name() {
            "connect" => Answer::Json(json!({"status": 1, "identifiers": "{}"})),
            "disconnect" => Answer::Json(json!({"status": 1})),
            _ => {
                let call = format!("{} {}", call.name(), call.body);
                self.unnamed.lock().expect("no step panics in here").push(call);
                Answer::Json(json!({"status": 0}))
            }
        }
    }

    fn used(&self) -> usize {
        let lines = self.lines.lock().expect("no step panics in here");
        lines.iter().filter(|line| line.used).count()
    }
}

struct Stage {
    server: Server,
    script: Arc<Script>,
    clients: BTreeMap<usize, Client>,
    /// The last message that had a position.
    position: Value,
    /// A second of Unix time that has passed.
    second: u64,
    /// The session of the last client that has left.
    left: String,
    fences: u64,
}

impl Stage {
    fn perform(&mut self, step: &Step) {
        match step {
            Step::App { .. } => {}
            Step::Connects(number, how) => {
                let client = self.connect(how);
                self.clients.insert(*number, client);
            }
            Step::Says(number, command) => {
                let command = self.filled(command).to_string();
                self.client(*number).socket.send_frame(TEXT, command.as_bytes());
            }
            Step::Hears(number, expected) => {
                let (message, expected) = (self.hear(*number), self.filled(expected));
                assert!(has(&message, &expected), "{number} hears {message}, not {expected}");
            }
            Step::HearsAll(number, expected) => {
                let heard: Vec<Value> = expected.iter().map(|_| self.hear(*number)).collect();
                for expected in expected {
                    let there = heard.iter().any(|message| has(message, expected));
                    assert!(there, "{number} hears {heard:?}, not {expected}");
                }
            }
            Step::HearsPing(number) => self.hear_ping(*number),
            Step::HearsNothing(number) => self.fence(*number),
            Step::Closed(number, code) => {
                let code_heard = self.client(*number).socket.close_code();
                assert_eq!(code_heard, *code);
                self.clients.remove(number);
            }
            Step::Leaves(number) => {
                let client = self.clients.remove(number).expect("it has connected");
                self.left = client.sid;
            }
            Step::Broadcast(broadcast) => send_broadcast(self.server.admin, broadcast),
            Step::Subscriptions(count) => {
                let own = self.clients.values().filter(|client| client.fences).count() as f64;
                eventually("the subscriptions are so many", || {
                    self.server.metrics()["standfast_subscriptions"] == f64::from(*count) + own
                });
            }
            Step::Stored(count) => eventually("the sessions are stored", || {
                self.server.metrics()["standfast_sessions_stored"] == f64::from(*count)
            }),
            Step::Called(count) => {
                eventually("the application is called", || self.script.used() == *count);
            }
            Step::Restart => self.server.signal(Signal::TERM),
            Step::NextSecond => {
                let now = || {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH);
                    now.expect("it is after 1970").as_secs()
                };
                self.second = now() + 1;
                eventually("the next second has begun", || now() > self.second);
            }
        }
    }

    /// Every line of the application was used, and no others were needed.
    fn end(self) {
        drop(self.clients);
        let lines = || self.script.lines.lock().expect("no step panics in here");
        eventually("the application is called for all", || lines().iter().all(|line| line.used));
        let unnamed = self.script.unnamed.lock().expect("no step panics in here");
        assert!(unnamed.is_empty(), "calls that no line names: {unnamed:#?}");
    }

    fn client(&mut self, number: usize) -> &mut Client {
        self.clients.get_mut(&number).expect("it has connected and was not closed")
    }

    fn connect(&self, how: &Value) -> Client {
        let how = self.filled(how);
        let path = how["path"].as_str().unwrap_or("/cable");
        let protocol = how["protocol"].as_str().unwrap_or("actioncable-v1-json");
        let mut headers = vec![("Sec-WebSocket-Protocol", protocol)];
        let more = how["headers"].as_object().into_iter().flatten();
        headers.extend(more.map(|(name, value)| (&**name, value.as_str().expect("text"))));
        let mut socket = Socket::connect(self.server.listen);
        socket.send(upgrade(path, &headers).as_bytes());
        let response = socket.response();
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.header("sec-websocket-protocol"), Some(protocol), "{response:?}");
        Client { socket, sid: String::new(), ping: 0, fences: false }
    }

    /// The next message of any kind.
    fn next(&mut self, number: usize) -> Value {
        let frame = self.client(number).socket.frame().expect("a message before the end");
        assert_ne!(frame.first, CLOSE, "it is closed");
        assert_eq!(frame.first, TEXT, "{frame:?}");
        serde_json::from_slice(&frame.payload).expect("it is JSON")
    }

    /// The next one other than a ping.
    fn hear(&mut self, number: usize) -> Value {
        loop {
            let message = self.next(number);
            if message["type"] == "ping" {
                continue;
            }
            if message["type"] == "welcome" {
                self.client(number).sid = message["sid"].as_str().unwrap_or_default().to_owned();
            }
            if message["offset"].is_u64() {
                self.position = message.clone();
            }
            return message;
        }
    }

    fn hear_ping(&mut self, number: usize) {
        let message = self.next(number);
        assert_eq!(message["type"], "ping", "{message}");
        let time = message["message"].as_u64().expect("a time");
        let before = std::mem::replace(&mut self.client(number).ping, time);
        assert!(time > before, "{message} after {before}");
    }

    fn fence(&mut self, number: usize) {
        if !self.client(number).fences {
            let command = json!({"command": "subscribe", "identifier": FENCE}).to_string();
            self.client(number).socket.send_frame(TEXT, command.as_bytes());
            let confirmed = self.hear(number);
            let expected = json!({"type": "confirm_subscription", "identifier": FENCE});
            assert_eq!(confirmed, expected);
            self.client(number).fences = true;
        }
        self.fences += 1;
        let fence = self.fences;
        let data = json!({"number": number, "fence": fence});
        send_broadcast(self.server.admin, &json!({"stream": "fence", "data": data}));
        loop {
            let message = self.hear(number);
            assert_eq!(message["identifier"], FENCE, "nothing was expected");
            if message["message"] == data {
                return;
            }
        }
    }

    /// Values in which names with `%` stand for what was heard before.
    fn filled(&self, value: &Value) -> Value {
        replaced(value, &|name| match name {
            "%stream" => Some(self.position["stream_id"].clone()),
            "%epoch" => Some(self.position["epoch"].clone()),
            "%before" => self.position["offset"].as_u64().map(|offset| json!(offset - 1)),
            "%second" => Some(json!(self.second)),
            "%sid" => Some(json!(self.left)),
            _ => None,
        })
    }
}

fn send_broadcast(admin: SocketAddr, broadcast: &Value) {
    let mut broadcast = broadcast.clone();
    // As applications do: the data is JSON in a text.
    if !broadcast["data"].is_null() {
        broadcast["data"] = json!(broadcast["data"].to_string());
    }
    let answer = http::post(admin, "/_broadcast", &broadcast.to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
}

/// Replaces texts and keys that `name` knows.
fn replaced(value: &Value, name: &impl Fn(&str) -> Option<Value>) -> Value {
    match value {
        Value::String(text) => name(text).unwrap_or_else(|| value.clone()),
        Value::Array(all) => all.iter().map(|one| replaced(one, name)).collect(),
        Value::Object(fields) => {
            let key = |key: &String| {
                let known = name(key).and_then(|value| value.as_str().map(str::to_owned));
                known.unwrap_or_else(|| key.clone())
            };
            let fields = fields.iter().map(|(own, one)| (key(own), replaced(one, name)));
            Value::Object(fields.collect())
        }
        _ => value.clone(),
    }
}

/// Whether a value has at least the fields that are expected; null stands for none.
fn has(value: &Value, expected: &Value) -> bool {
    match (value, expected) {
        (Value::Object(own), Value::Object(fields)) => {
            fields.iter().all(|(key, one)| has(own.get(key).unwrap_or(&Value::Null), one))
        }
        _ => value == expected,
    }
}
