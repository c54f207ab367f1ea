//! Plays a transcript to an Action Cable server and records its messages.
//!
//! No step waits for a fixed time. After each act every client subscribes to something new, and then
//! something is published to all (a fence): when both have arrived, all earlier messages have.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::harness::socket::{CLOSE, Socket, TEXT, masked, upgrade};

/// Placeholder of the channel's name in a transcript.
pub(super) const CHANNEL: &str = "CHANNEL";
/// Placeholder of a long text.
pub(super) const MUCH: &str = "MUCH";
/// The subprotocols that Rails' client offers.
pub(super) const OFFER: &str = "actioncable-v1-json, actioncable-unsupported";
/// The stream of the fence after each act.
const FENCE: &str = "fence";

/// A server that the transcript is played to.
pub(super) trait Oracle {
    fn address(&self) -> SocketAddr;
    /// The channel that streams from `stream_name`.
    fn channel(&self) -> &'static str;
    fn publish(&self, stream: &str, data: &str);
    /// Disconnects all clients with reconnect.
    fn restart(&self);
}

/// Acts with new clients.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) clients: usize,
    pub(super) acts: Vec<Act>,
}

pub(super) enum Act {
    /// Connects as Rails' client does, and records the welcome unchanged.
    Welcome,
    /// Connects to this path with these headers, records the response up to the welcome, and disconnects.
    Handshake(&'static str, Vec<(&'static str, &'static str)>),
    /// The client with this number sends these frames in one packet.
    Send(usize, Vec<(u8, String)>),
    Publish(&'static str, &'static str),
    /// The first client waits for a ping.
    RecordPing,
    Restart,
}

/// Plays the steps and returns the recorded lines of each.
pub(super) fn play(server: &impl Oracle, steps: Vec<Step>) -> Vec<(&'static str, Vec<String>)> {
    let recorded = |step: &Step| Stage::open(server, step.clients).perform(&step.acts);
    steps.iter().map(|step| (step.name, recorded(step))).collect()
}

/// The clients of one step; `None` for one that was disconnected.
struct Stage<'a, S> {
    server: &'a S,
    clients: Vec<Option<Socket>>,
    fences: usize,
    recorded: Vec<String>,
}

impl<'a, S: Oracle> Stage<'a, S> {
    fn open(server: &'a S, count: usize) -> Self {
        let clients = (0..count).map(|_| Some(client(server).0)).collect();
        let mut stage = Self { server, clients, fences: 0, recorded: Vec::new() };
        for number in 0..count {
            stage.send(number, &[(TEXT, subscribe(&identifier(FENCE, "")))]);
            stage.record_until(number, |message| message["type"] == "confirm_subscription");
        }
        stage
    }

    fn perform(mut self, acts: &[Act]) -> Vec<String> {
        for act in acts {
            match act {
                Act::Welcome => self.record_welcome(),
                Act::Handshake(path, headers) => self.handshake(path, headers),
                Act::Send(number, frames) => self.send(*number, frames),
                Act::Publish(stream, data) => self.server.publish(stream, data),
                Act::RecordPing => self.record_ping(),
                Act::Restart => return self.restart(),
            }
            self.settle();
        }
        self.recorded
    }

    fn record_welcome(&mut self) {
        let mut welcome = client(self.server).1;
        if let Some(sid) = welcome.get_mut("sid") {
            *sid = json!("SID");
        }
        self.recorded.push(welcome.to_string());
    }

    fn handshake(&mut self, path: &str, headers: &[(&str, &str)]) {
        let mut socket = request(self.server, path, headers);
        let response = socket.response();
        let agreed = response.header("sec-websocket-protocol").unwrap_or("no subprotocol");
        self.recorded.push(format!("{} {agreed}", response.status));
        if response.status == 101 {
            self.clients.push(Some(socket));
            self.record_until(0, |message| message["type"] == "welcome");
            self.clients.clear();
        }
    }

    fn send(&mut self, number: usize, frames: &[(u8, String)]) {
        let (name, much) = (self.server.channel(), "x".repeat(4096));
        let expand = |text: &str| text.replace(CHANNEL, name).replace(MUCH, &much);
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|(first, text)| masked(*first, expand(text).as_bytes()))
            .collect();
        if let Some(client) = &mut self.clients[number] {
            client.send(&bytes);
        }
    }

    fn record_ping(&mut self) {
        let client = self.clients[0].as_mut().expect("the first client is there");
        let ping = loop {
            let frame = client.frame().expect("a ping before the end");
            let mut message: Value = serde_json::from_slice(&frame.payload).expect("it is JSON");
            if message["type"] == "ping" {
                assert!(message["message"].as_u64().is_some_and(|seconds| seconds > 1_700_000_000));
                message["message"] = json!("TIME");
                break message;
            }
        };
        self.recorded.push(ping.to_string());
    }

    fn restart(mut self) -> Vec<String> {
        self.server.restart();
        for number in 0..self.clients.len() {
            self.record_until(number, |_| false);
        }
        self.recorded
    }

    /// Records all messages that follow from an act, client by client.
    fn settle(&mut self) {
        self.fences += 1;
        let before = self.recorded.len();
        let fence = self.fences;
        for number in 0..self.clients.len() {
            let new = identifier(FENCE, &fence.to_string());
            self.send(number, &[(TEXT, subscribe(&new))]);
            let confirmed = json!({"type": "confirm_subscription", "identifier": new});
            self.record_until(number, |message| *message == confirmed);
        }
        self.server.publish(FENCE, &fence.to_string());
        for number in 0..self.clients.len() {
            let delivered = json!({"identifier": identifier(FENCE, ""), "message": fence});
            self.record_until(number, |message| *message == delivered);
        }
        if self.clients.len() > 1 {
            self.recorded[before..].sort_by_key(|line| line.split(':').next().map(str::to_owned));
        }
    }

    /// Records a client's messages until `last`, or until it is disconnected. Fences are not recorded.
    fn record_until(&mut self, number: usize, last: impl Fn(&Value) -> bool) {
        let prefix = if self.clients.len() > 1 { format!("{number}: ") } else { String::new() };
        while let Some(client) = &mut self.clients[number] {
            let frame = client.frame().expect("a close frame before the end");
            if frame.first == CLOSE {
                client.send_frame(CLOSE, &frame.payload);
                self.clients[number] = None;
                self.recorded.push(format!("{prefix}close {}", close_code(&frame.payload)));
                return;
            }
            assert_eq!(frame.first, TEXT, "{frame:?}");
            let mut message = self.message(&frame.payload);
            let is_last = last(&message);
            if !is_fence(&message) && message["type"] != "ping" {
                message.as_object_mut().map(|message| message.remove("sid"));
                self.recorded.push(format!("{prefix}{message}"));
            }
            if is_last {
                return;
            }
        }
    }

    fn message(&self, payload: &[u8]) -> Value {
        let text = String::from_utf8(payload.to_vec()).expect("it is text");
        let text = text.replace(self.server.channel(), CHANNEL).replace(&"x".repeat(4096), MUCH);
        serde_json::from_str(&text).expect("it is JSON")
    }
}

fn request(server: &impl Oracle, path: &str, headers: &[(&str, &str)]) -> Socket {
    let mut socket = Socket::connect(server.address());
    socket.send(upgrade(path, headers).as_bytes());
    socket
}

/// A client after its welcome, and the welcome.
fn client(server: &impl Oracle) -> (Socket, Value) {
    let mut socket = request(server, "/cable", &[("Sec-WebSocket-Protocol", OFFER)]);
    assert_eq!(socket.response().status, 101);
    loop {
        let frame = socket.frame().expect("a welcome");
        let message: Value = serde_json::from_slice(&frame.payload).expect("it is JSON");
        if message["type"] != "ping" {
            return (socket, message);
        }
    }
}

fn is_fence(message: &Value) -> bool {
    let identifier = message["identifier"].as_str();
    identifier.is_some_and(|identifier| identifier.contains(r#""stream_name":"fence""#))
}

fn close_code(payload: &[u8]) -> String {
    let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
    code.map_or_else(|| "without a code".to_owned(), |code| code.to_string())
}

/// The identifier of a subscription to `stream`, one of several by `which`.
pub(super) fn identifier(stream: &str, which: &str) -> String {
    format!("{{\"channel\":\"{CHANNEL}\",\"stream_name\":\"{stream}\",\"which\":\"{which}\"}}")
}

pub(super) fn subscribe(identifier: &str) -> String {
    json!({"command": "subscribe", "identifier": identifier}).to_string()
}
