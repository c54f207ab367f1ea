//! A small Action Cable server on the engine with one worker. Each path behaves differently; received
//! commands are counted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use action_cable::{Command, DisconnectReason, Message};
use engine::sys::process;
use engine::{Answer, Closed, ConnId, Core, Handler, Incoming, Limits, Plan, Response, Sys};
use engine::{Tables, Workers};
use wire::websocket::OpCode;

/// A running server on loopback; it ends with the test.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) observed: Arc<Mutex<Observed>>,
    workers: Workers<()>,
}

/// Commands received from clients.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) subscribes: BTreeMap<String, u64>,
    pub(crate) performed: u64,
    pub(crate) whispers: u64,
    /// Publications posted to `/publish`.
    pub(crate) published: u64,
    /// Faults with them: see [`Cable::publish`].
    pub(crate) faults: u64,
}

const PING_EVERY_NS: u64 = 50_000_000;

impl Server {
    /// The first `mistreated` connections are mistreated, depending on their path.
    pub(crate) fn start(mistreated: u64) -> Server {
        let address = ([127, 0, 0, 1], 0).into();
        let defer = Duration::ZERO;
        let listen =
            process::Listen { address, backlog: 1_024, shared_port: false, defer, v6_only: false };
        let (listener, address) = process::listen(&listen).unwrap();
        let plan = Plan { workers: 1, accepting: 1, capacity: 2_000, tables: Tables::Private };
        let observed = Arc::new(Mutex::new(Observed::default()));
        let shared = Arc::clone(&observed);
        let cable = move |_, _: &_| Cable {
            observed: Arc::clone(&shared),
            mistreated,
            begun: 0,
            whispered: 0,
            delivered: 0,
            next_ns: 0,
        };
        let workers = Workers::start(plan, &Limits::default(), &[listener], cable).unwrap();
        Server { port: address.port(), observed, workers }
    }

    /// Disconnects all clients with the reason of a restart.
    pub(crate) fn restart(&self) {
        self.workers.remote().post(0, (), 0).unwrap();
    }
}

struct Cable {
    observed: Arc<Mutex<Observed>>,
    mistreated: u64,
    begun: u64,
    whispered: u64,
    delivered: u64,
    next_ns: u64,
}

#[derive(Default)]
struct Peer {
    path: String,
    mistreated: bool,
    asked: u32,
    identifiers: Vec<String>,
}

fn say<S: Sys>(core: &mut Core<S, Cable>, id: ConnId, message: &Message) {
    let mut text = Vec::new();
    message.encode(&mut text);
    core.send(id, OpCode::Text, &text);
}

fn disconnect<S: Sys>(core: &mut Core<S, Cable>, id: ConnId, reason: DisconnectReason) {
    let reconnect = reason.reconnect();
    say(core, id, &Message::Disconnect { reason, reconnect });
}

impl Cable {
    fn subscribe<S: Sys>(&self, core: &mut Core<S, Self>, id: ConnId, identifier: Cow<str>) {
        *self.observed.lock().unwrap().subscribes.entry(identifier.to_string()).or_default() += 1;
        let Some(peer) = core.user_mut(id) else { return };
        peer.asked += 1;
        let (path, asked, mistreated) = (peer.path.clone(), peer.asked, peer.mistreated);
        match path.as_str() {
            "/rejects" if mistreated => return say(core, id, &Message::Reject { identifier }),
            "/late" if asked <= 2 => return,
            "/late" if asked == 3 => say(core, id, &Message::Pong),
            _ => {}
        }
        if let Some(peer) = core.user_mut(id)
            && !peer.identifiers.iter().any(|known| *known == identifier)
        {
            peer.identifiers.push(identifier.to_string());
        }
        say(core, id, &Message::Confirm { identifier });
        if path == "/restarts" && mistreated {
            disconnect(core, id, DisconnectReason::ServerRestart);
        }
    }

    /// Sends to all others of the same subscription; on `/loses` each eighth whisper is dropped for one
    /// of them, duplicated for another, and sent with another identifier to a third.
    fn whisper<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        from: ConnId,
        identifier: &str,
        message: &str,
    ) {
        self.observed.lock().unwrap().whispers += 1;
        self.whispered += 1;
        let loses = core.user(from).is_some_and(|peer| peer.path == "/loses");
        let mut number = if loses && self.whispered.is_multiple_of(8) { 0 } else { 3 };
        for slot in 0..core.slots() {
            let Some(id) = core.id_at(slot).filter(|&id| id != from && core.is_open(id)) else {
                continue;
            };
            if !listens(core, id, identifier) {
                continue;
            }
            let identifier = match number {
                2 => Cow::Borrowed("another"),
                _ => Cow::Borrowed(identifier),
            };
            for _ in 0..[0, 2, 1, 1][number] {
                let identifier = identifier.clone();
                say(core, id, &Message::Data { identifier, message, position: None });
            }
            number = (number + 1).min(3);
        }
    }

    /// Sends to all subscribers of a stream. Each 97th delivery has a fault: on `/drops` it is dropped, on
    /// `/doubles` it is duplicated, on `/strays` it goes to a client that is not subscribed.
    fn publish<S: Sys>(&mut self, core: &mut Core<S, Self>, stream: &str, data: &str) {
        self.observed.lock().unwrap().published += 1;
        let identifier = format!(r#"{{"channel":"$pubsub","stream_name":"{stream}"}}"#);
        let message = data;
        for slot in 0..core.slots() {
            let Some(id) = core.id_at(slot).filter(|&id| core.is_open(id)) else { continue };
            let path = core.user(id).map(|peer| peer.path.clone()).unwrap_or_default();
            let asked = listens(core, id, &identifier);
            if !asked && path != "/strays" {
                continue;
            }
            self.delivered += 1;
            let fault = self.delivered.is_multiple_of(97);
            let times = match path.as_str() {
                "/drops" if fault => 0,
                "/doubles" if fault => 2,
                "/strays" => u64::from(asked || fault),
                _ => 1,
            };
            if times != u64::from(asked) {
                self.observed.lock().unwrap().faults += 1;
            }
            for _ in 0..times {
                let identifier = Cow::Borrowed(identifier.as_str());
                say(core, id, &Message::Data { identifier, message, position: None });
            }
        }
    }
}

fn listens<S: Sys>(core: &Core<S, Cable>, id: ConnId, identifier: &str) -> bool {
    core.user(id).is_some_and(|peer| peer.identifiers.iter().any(|known| known == identifier))
}

impl Handler for Cable {
    type User = Peer;
    type Post = ();

    fn request<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        incoming: &Incoming,
    ) -> Answer {
        let offers = |upgrade: &wire::websocket::Upgrade| {
            upgrade.protocols().any(|offered| offered == action_cable::V1)
        };
        if incoming.head.path() == "/publish" {
            return Answer::Body(64 * 1024);
        }
        if !incoming.upgrade.is_some_and(offers) {
            return Answer::Respond(Response::text(404, "Page not found\n"));
        }
        self.begun += 1;
        if let Some(peer) = core.user_mut(id) {
            peer.path = incoming.head.target.to_owned();
            peer.mistreated = self.begun <= self.mistreated;
        }
        Answer::Upgrade(Some(action_cable::V1.into()))
    }

    fn body<S: Sys>(&mut self, core: &mut Core<S, Self>, _: ConnId, body: Vec<u8>) -> Answer {
        let posted: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let text = |field: &str| posted[field].as_str().unwrap().to_owned();
        self.publish(core, &text("stream"), &text("data"));
        Answer::Respond(Response::text(201, ""))
    }

    fn open<S: Sys>(&mut self, core: &mut Core<S, Self>, id: ConnId) {
        let forbidden =
            core.user(id).is_some_and(|peer| peer.path == "/forbids" && peer.mistreated);
        if forbidden {
            return disconnect(core, id, DisconnectReason::Unauthorized);
        }
        say(core, id, &Message::Welcome { sid: None, restored: None });
    }

    fn message<S: Sys>(
        &mut self,
        core: &mut Core<S, Self>,
        id: ConnId,
        _: OpCode,
        data: &mut [u8],
    ) {
        let text = std::str::from_utf8(data).unwrap();
        match Command::decode(text).unwrap() {
            Command::Subscribe { identifier, .. } => self.subscribe(core, id, identifier),
            Command::Message { identifier, data } => {
                self.observed.lock().unwrap().performed += 1;
                let message = &*data;
                say(core, id, &Message::Data { identifier, message, position: None });
            }
            Command::Unsubscribe { identifier } => {
                if let Some(peer) = core.user_mut(id) {
                    peer.identifiers.retain(|known| *known != identifier);
                }
            }
            Command::Whisper { identifier, data } => self.whisper(core, id, &identifier, data),
            other => panic!("{other:?}"),
        }
    }

    fn closed<S: Sys>(&mut self, _: &mut Core<S, Self>, _: ConnId, _: Closed, _: bool) {}

    fn post<S: Sys>(&mut self, core: &mut Core<S, Self>, (): ()) {
        for slot in 0..core.slots() {
            if let Some(id) = core.id_at(slot) {
                disconnect(core, id, DisconnectReason::ServerRestart);
            }
        }
    }

    fn turn<S: Sys>(&mut self, core: &mut Core<S, Self>) -> Option<u64> {
        let now_ns = core.now_ns();
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + PING_EVERY_NS;
            for slot in 0..core.slots() {
                let Some(id) = core.id_at(slot).filter(|&id| core.is_open(id)) else { continue };
                let mute =
                    core.user(id).is_some_and(|peer| peer.path == "/mute" && peer.mistreated);
                if !mute {
                    say(core, id, &Message::Ping { message: 1 });
                }
            }
        }
        Some(self.next_ns)
    }
}
