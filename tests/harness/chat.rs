//! A small faulty chat server that counts its faults ([`super::faults`]): rooms (`/room/NAME`), where each
//! message goes to all others; private chats (`/private?id=N`), where `{"to":N}` names the recipient;
//! `/echo`, which with `?chooses=NAME` selects that subprotocol; and Action Cable (`/cable`) with
//! whispers and publications posted to `/_broadcast`. Every other path violates the protocol in one way;
//! with `?held` the connection then stays open. One thread per connection; no code of this project.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::cable::V1;
use super::eventually;
use super::faults::{Fault, Plan, Rest, deliver, foreign_publication};
use super::recorder::{RecordedRequest, frame, more, read_frame, read_request};

/// The messages of a chat and its faults.
#[derive(Clone, Default, Debug)]
pub(crate) struct Book {
    pub(crate) handshakes: Vec<RecordedRequest>,
    /// Messages that members were to receive.
    pub(crate) due: u64,
    /// Those that were sent right, each counted once, also too late or out of order.
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    pub(crate) doubled: u64,
    pub(crate) swapped: u64,
    pub(crate) corrupted: u64,
    pub(crate) delayed: u64,
    /// Those of `delayed` behind a later one.
    pub(crate) overtaken: u64,
    pub(crate) foreign: u64,
    /// Connections ended on purpose.
    pub(crate) ended: u64,
    /// Refused handshakes or publications.
    pub(crate) refused: u64,
    /// Messages sent for publications that were refused.
    pub(crate) undue: u64,
    /// Publications, also refused ones.
    pub(crate) published: u64,
    /// Messages of clients, without commands of Action Cable.
    pub(crate) heard: u64,
    /// Subscriptions of Action Cable.
    pub(crate) subscriptions: Vec<SubscriptionLog>,
    /// Close frames that clients sent.
    pub(crate) closes: u64,
    pub(crate) pongs: u64,
    /// Received texts.
    pub(crate) said: Vec<String>,
}

/// A subscription of Action Cable.
#[derive(Clone, Debug)]
pub(crate) struct SubscriptionLog {
    member: u64,
    identifier: String,
    pub(crate) began: Instant,
    /// When it was ended by an unsubscribe.
    pub(crate) ended: Option<Instant>,
    /// When a message for it was dropped or corrupted.
    pub(crate) missed: Vec<Instant>,
}

pub(crate) struct Chat {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    plan: Plan,
    book: Book,
    members: Vec<Member>,
    /// Connections that are served.
    serving: u64,
    /// Delayed messages that are not sent yet.
    late: u64,
    /// Connections that stay open.
    held: Vec<TcpStream>,
}

pub(crate) struct Member {
    number: u64,
    room: String,
    pub(crate) stream: TcpStream,
    /// A message to send after the next one of its sequence.
    pub(crate) held: Option<(Vec<u8>, Vec<u8>)>,
    /// Messages sent to it, by sequence.
    pub(crate) sent: HashMap<Vec<u8>, u64>,
    /// Its subscriptions.
    identifiers: Vec<String>,
}

impl Chat {
    /// Starts a server that drops, doubles and swaps one message each per `every` receipts; 0: none.
    pub(crate) fn start(every: u64) -> Chat {
        let faults = vec![(1, Fault::Drop), (3, Fault::Double), (5, Fault::Swap)];
        Chat::with(Plan { every, faults, ends: 0, delay: Duration::ZERO })
    }

    /// Starts a server that makes these faults.
    pub(crate) fn with(plan: Plan) -> Chat {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { plan, ..State::default() }));
        let own = Arc::clone(&state);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
                let state = Arc::clone(&own);
                state.lock().unwrap().serving += 1;
                thread::spawn(move || {
                    serve(stream, number, &state);
                    state.lock().unwrap().serving -= 1;
                });
            }
        });
        Chat { address, state }
    }

    /// Returns the counts once all clients have disconnected; held messages count as dropped.
    pub(crate) fn book(&self) -> Book {
        eventually("all have left", || {
            let state = self.state.lock().unwrap();
            state.serving == 0 && state.late == 0
        });
        self.state.lock().unwrap().book.clone()
    }
}

impl Chat {
    /// Returns whether a handshake was received.
    pub(crate) fn has_clients(&self) -> bool {
        !self.state.lock().unwrap().book.handshakes.is_empty()
    }

    /// Returns the number of texts received so far.
    pub(crate) fn received(&self) -> usize {
        self.state.lock().unwrap().book.said.len()
    }

    /// Returns all received texts, once all clients have disconnected.
    pub(crate) fn said(&self) -> Vec<String> {
        self.book().said
    }
}

fn serve(mut stream: TcpStream, number: u64, state: &Arc<Mutex<State>>) {
    let mut pending = Vec::new();
    let (asked, key) = loop {
        let Some(asked) = read_request(&mut stream, &mut pending, number) else { return };
        if let Some(key) = asked.header("sec-websocket-key").map(str::to_owned) {
            break (asked, key);
        }
        let status = publish(state, &asked.body);
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    };
    let room = asked.target.clone();
    let is_refused = {
        let state = &mut *state.lock().unwrap();
        state.book.handshakes.push(asked);
        let number = state.book.handshakes.len() as u64;
        let is_refused = room.ends_with("?refusable") && state.plan.refuses(number);
        state.book.refused += u64::from(is_refused);
        is_refused
    };
    let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    let accept = base64::engine::general_purpose::STANDARD.encode(digest);
    let (way, is_held) = room.strip_suffix("?held").map_or((&*room, false), |way| (way, true));
    let way = if is_refused { "/busy" } else { way };
    if hostile(&mut stream, way, &accept) {
        // Reads the rest, so that no sent bytes are lost to a reset.
        while more(&mut stream, &mut pending).is_some() {}
        if is_held {
            state.lock().unwrap().held.push(stream);
        }
        return;
    }
    let is_cable = room.starts_with("/cable");
    {
        // A client that has the answer must be registered: others may send to it from then on.
        let mut state = state.lock().unwrap();
        let mut head = switched(&accept);
        let protocol = room.split_once("?chooses=").map(|(_, name)| name);
        if let Some(name) = protocol.or(is_cable.then_some(V1)) {
            head.insert_str(head.len() - 2, &format!("Sec-WebSocket-Protocol: {name}\r\n"));
        }
        let welcome = if is_cable { frame(0x1, br#"{"type":"welcome"}"#) } else { Vec::new() };
        if stream.write_all(&[head.as_bytes(), &welcome].concat()).is_err() {
            return;
        }
        let stream = stream.try_clone().unwrap();
        let (held, identifiers) = (None, Vec::new());
        state.members.push(Member {
            number,
            room: room.clone(),
            stream,
            held,
            sent: HashMap::new(),
            identifiers,
        });
    }
    while let Some((opcode, data)) = read_frame(&mut stream, &mut pending) {
        match opcode {
            0x8 => {
                state.lock().unwrap().book.closes += 1;
                let _ = stream.write_all(&frame(0x8, &data));
                break;
            }
            0x9 => drop(stream.write_all(&frame(0xa, &data))),
            0xa => state.lock().unwrap().book.pongs += 1,
            _ if is_cable => command(state, number, &data),
            _ => pass_on(state, number, &room, &data, opcode, &mut stream),
        }
    }
    let mut state = state.lock().unwrap();
    state.remove(number);
}

fn switched(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Sends a message to those for whom it is meant.
fn pass_on(
    state: &Arc<Mutex<State>>,
    from: u64,
    room: &str,
    data: &[u8],
    opcode: u8,
    own: &mut TcpStream,
) {
    let mut locked = state.lock().unwrap();
    locked.book.heard += 1;
    if room.starts_with("/echo") && locked.plan.every == 0 {
        // The answer in two fragments, with a ping in between.
        let cut = data.len() / 2;
        let mut pieces = frame(opcode, &data[..cut]);
        pieces[0] &= 0x7f;
        pieces.extend(frame(0x9, b"there?"));
        pieces.extend(frame(0x0, &data[cut..]));
        drop(locked);
        let _ = own.write_all(&pieces);
        return;
    }
    if room.starts_with("/echo") {
        return locked
            .send_to(state, opcode, data, b"not an answer", &|member| member.number == from);
    }
    locked.book.said.push(String::from_utf8_lossy(data).into_owned());
    let said: Value = serde_json::from_slice(data).unwrap_or_default();
    let private = said["to"].as_u64().map(|to| format!("/private?id={to}"));
    let foreign = foreign_publication();
    locked.send_to(state, opcode, data, foreign.as_bytes(), &|member| match &private {
        Some(room) => member.room == *room,
        None => member.room == room && member.number != from,
    });
}

/// Executes a command of Action Cable.
fn command(state: &Arc<Mutex<State>>, from: u64, data: &[u8]) {
    let command: Value = serde_json::from_slice(data).unwrap();
    let identifier = command["identifier"].as_str().unwrap().to_owned();
    let mut locked = state.lock().unwrap();
    let now = Instant::now();
    match command["command"].as_str().unwrap() {
        "subscribe" => {
            let confirm = json!({"identifier": &identifier, "type": "confirm_subscription"});
            let confirm = frame(0x1, confirm.to_string().as_bytes());
            let Some(member) = locked.members.iter_mut().find(|one| one.number == from) else {
                return;
            };
            let _ = member.stream.write_all(&confirm);
            if !member.identifiers.contains(&identifier) {
                member.identifiers.push(identifier.clone());
                let (ended, missed) = (None, Vec::new());
                let log = SubscriptionLog { member: from, identifier, began: now, ended, missed };
                locked.book.subscriptions.push(log);
            }
        }
        "unsubscribe" => {
            if let Some(member) = locked.members.iter_mut().find(|one| one.number == from) {
                member.identifiers.retain(|known| *known != identifier);
            }
            let is_its = |log: &&mut SubscriptionLog| {
                log.member == from && log.ended.is_none() && log.identifier == identifier
            };
            locked.book.subscriptions.iter_mut().find(is_its).unwrap().ended = Some(now);
        }
        "whisper" => {
            locked.book.heard += 1;
            locked.send_on(state, &identifier, &command["data"], Some(from));
        }
        other => panic!("{other}"),
    }
}

/// Publishes the body of a request as AnyCable does; returns the status.
fn publish(state: &Arc<Mutex<State>>, body: &[u8]) -> u16 {
    let body: Value = serde_json::from_slice(body).unwrap();
    let (stream, data) = (body["stream"].as_str().unwrap(), body["data"].as_str().unwrap());
    let data: Value = serde_json::from_str(data).unwrap();
    let identifier = format!(r#"{{"channel":"$pubsub","stream_name":"{stream}"}}"#);
    let mut locked = state.lock().unwrap();
    locked.book.published += 1;
    let is_refused = locked.plan.refuses(locked.book.published);
    let before = locked.book.sent;
    locked.send_on(state, &identifier, &data, None);
    if !is_refused {
        return 201;
    }
    locked.book.refused += 1;
    locked.book.undue += locked.book.sent - before;
    503
}

impl State {
    /// Sends a message to all subscribers of a channel except one.
    fn send_on(
        &mut self,
        state: &Arc<Mutex<State>>,
        identifier: &str,
        message: &Value,
        except: Option<u64>,
    ) {
        let data = json!({"identifier": identifier, "message": message}).to_string();
        let foreign = json!({"identifier": identifier, "message": foreign_publication()});
        let (data, foreign) = (data.into_bytes(), foreign.to_string().into_bytes());
        self.send_to(state, 0x1, &data, &foreign, &|member| {
            Some(member.number) != except
                && member.identifiers.iter().any(|known| known == identifier)
        });
    }

    /// Sends a message to the members for whom it is meant.
    fn send_to(
        &mut self,
        state: &Arc<Mutex<State>>,
        opcode: u8,
        data: &[u8],
        foreign: &[u8],
        is_meant: &dyn Fn(&Member) -> bool,
    ) {
        let (mut ended, mut at) = (Vec::new(), 0);
        while at < self.members.len() {
            let member = &mut self.members[at];
            at += 1;
            if !is_meant(member) {
                continue;
            }
            let number = member.number;
            let sent = member.sent.get(foreign).copied().unwrap_or(0);
            match deliver(&self.plan, &mut self.book, member, opcode, data, foreign) {
                Rest::Missing => self.note_missed(number, data),
                Rest::Nothing => {}
                Rest::Later => {
                    let (state, whole) = (Arc::clone(state), frame(opcode, data));
                    let (delay, sequence) = (self.plan.delay, foreign.to_vec());
                    self.late += 1;
                    thread::spawn(move || {
                        thread::sleep(delay);
                        state.lock().unwrap().send_late(number, &whole, &sequence, sent);
                    });
                }
                Rest::Ended => ended.push(number),
            }
        }
        ended.into_iter().for_each(|number| self.remove(number));
    }

    fn note_missed(&mut self, number: u64, data: &[u8]) {
        let text = String::from_utf8_lossy(data);
        let is_its = |log: &&mut SubscriptionLog| {
            let name = Value::from(log.identifier.as_str()).to_string();
            log.member == number && log.ended.is_none() && text.contains(&name)
        };
        let log = self.book.subscriptions.iter_mut().find(is_its);
        log.into_iter().for_each(|log| log.missed.push(Instant::now()));
    }

    /// Sends a delayed message to a member to which `before` messages of its sequence had been sent.
    fn send_late(&mut self, number: u64, whole: &[u8], sequence: &[u8], before: u64) {
        self.late -= 1;
        let Some(member) = self.members.iter_mut().find(|one| one.number == number) else {
            self.book.dropped += 1;
            return;
        };
        let _ = member.stream.write_all(whole);
        self.book.sent += 1;
        self.book.delayed += 1;
        let sent = member.sent.get(sequence).copied().unwrap_or(0);
        self.book.overtaken += u64::from(sent > before);
    }

    /// Removes a member, whose held message is dropped.
    fn remove(&mut self, number: u64) {
        let left = self.members.iter().position(|member| member.number == number);
        if let Some(member) = left.map(|at| self.members.swap_remove(at)) {
            self.book.dropped += u64::from(member.held.is_some());
        }
    }
}

/// Sends the protocol violation of a path; returns false for other paths.
fn hostile(stream: &mut TcpStream, path: &str, accept: &str) -> bool {
    let switched = switched(accept).into_bytes();
    let then = |bytes: &[u8]| [switched.as_slice(), bytes].concat();
    let lines = &switched[..switched.len() - 2];
    let with = |line: &str| [lines, line.as_bytes(), b"\r\n\r\n"].concat();
    let says = match path {
        "/masked" => then(&[0x81, 0x81, 1, 2, 3, 4, 5]),
        "/accept" => b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n"
            .to_vec(),
        "/reserved" => then(&[0xf1, 1, b'a']),
        "/oversize" => then(&[0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0]),
        "/huge" => then(&[0x82, 127, 0x40, 0, 0, 0, 0, 0, 0, 0]),
        "/continuation" => then(&[0x80, 1, b'a']),
        "/utf8" => then(&[0x81, 2, 0xc3, 0x28]),
        "/short-close" => then(&[0x88, 1, 3]),
        "/bad-close" => then(&[0x88, 2, 0x03, 0xed]),
        // 200 KB of one message without a final fragment.
        "/fragments" => {
            let piece = [&[0x00, 100][..], &[b'a'; 100]].concat();
            then(&[&[0x01, 0][..], &piece.repeat(2_000)].concat())
        }
        "/farewell" => {
            let text = br#"{"type":"disconnect","reason":"full","reconnect":false}"#;
            then(&frame(0x1, text))
        }
        "/busy" => b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n".to_vec(),
        "/page" => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi".to_vec(),
        "/garbage" => b"SSH-2.0-x\r\n\r\n".to_vec(),
        "/unasked" => with("Sec-WebSocket-Extensions: x"),
        "/protocol" => with("Sec-WebSocket-Protocol: other"),
        "/no-upgrade" => {
            let right = String::from_utf8(switched.clone()).unwrap();
            right.replacen("Upgrade: websocket", "X: y", 1).into_bytes()
        }
        "/refused" => b"HTTP/1.1 403 X\r\nContent-Length: 2\r\n\r\nno".to_vec(),
        "/closes" => then(&[0x88, 2, 0x0f, 0xa7]),
        "/midway" => then(&[0x81, 10, b'a', b'b']),
        "/gone" => then(&[]),
        "/head" => [b"HTTP/1.1 101 X\r\nA: ".as_slice(), &[b'a'; 32 << 10]].concat(),
        "/silent" => Vec::new(),
        _ => return false,
    };
    let _ = stream.write_all(&says);
    if matches!(path, "/midway" | "/gone") {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    true
}
